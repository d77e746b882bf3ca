"""Steps that are not calls: the block of a gradient tape, and what follows it, in code that is not decorated (supplement C.2, Figure 4).

Where does the step end? Its beginning is the block's; but the gradients, and the update that they are for, may stand in the block (as in Figure 4) or
behind it, in this function or in its caller. So a step is *done* as soon as its tape's gradient was taken and a variable was updated since. If it is
done when the block is left, it ends there. Otherwise it stays open: operations behind the block go on belonging to it, until

    * Python reads a value, or an operation runs that is never part of a graph (printing, summaries, files), and the step is done;
    * an input iterator moves on, or the next step begins (a block, or a call of a co-executed function);
    * the tape is deleted (its function returns) and the step is done, or no gradient was ever taken;
    * another thread touches a variable, `terra.sync()` or `terra.imperative()` is called, or the interpreter exits;
    * `LONGEST` operations have run since the block.

Wherever it ends, the program's values are those of eager execution: the rule decides how much of the program is co-executed, never what it computes. What
outlives the step (the loss, the tensors that a tape saved) is an output of its graph, and `tape.gradient` on a tape whose step is over runs eagerly.
"""

import time
from threading import get_ident

from terra import ours
from terra.graph.trace import RESOURCE
from terra.location import current_step, location
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.process import signal_handlers
from terra.runtime.execution.process.garbage import collect_as_before
from terra.runtime.execution.process.cross_thread import View
from terra.runtime.execution.step import Step
from terra.runtime.fallback import stance
from terra.runtime.fast_forward.cache import verification
from terra.runtime.interpreter import frames, spans
from terra.runtime.step_function import recorded
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.lifecycle import Lifecycle
from terra.runtime.tensors.tensor import noted
from terra.runtime.tracing import catching
from terra.runtime.tracing.tracer import Tracer
from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.tf.constants import MOST_SETTINGS

LONGEST = 20_000  # operations behind a block that may still belong to its step
_ITERATORS = frozenset(["IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "MultiDeviceIteratorGetNextFromShard"])
_LOCK_PATIENCE = 5.0  # seconds another thread waits for the step's thread to leave an operation


class _Closed:
    """The mode of a step that has ended while one of its own operations was on the way: that one runs as any other."""

    @staticmethod
    def fast(*args):
        return interception._fast(*args)

    @staticmethod
    def slow(execute, *args):
        return interception._execute(execute, *args)


class Batches:
    """Which tensors from outside of a block are another one in each step: those that the step before did not use, or used as such.

    They are told by the numbers that TensorFlow gives its tensors, in the order in which they are made.
    """

    def __init__(self):
        self._begun = None  # the number that the next tensor had when the step began
        self._used = self._last_used = None  # numbers of other tensors that this step has used, and the last one

    def begin_step(self):
        self._begun = tfi.next_tensor_id()
        self._last_used, self._used = self._used, set()

    def has(self, number):
        """Whether the tensor of this number, which the step uses, is one."""
        if number >= self._begun:
            return False  # made in the block: perhaps of shapes and constants
        if self._last_used is None or number in self._last_used:
            self._used.add(number)
            return False
        return True


class BlockLifecycle(Lifecycle):
    """Begins the steps of one block, and ends them."""

    def __init__(self, function):
        super().__init__(function)
        self._last = None  # when the last step began, and how many there were of each kind then
        self._recorded = None  # the step at hand, if spans are noted

    def begin(self, *args):
        self._note_time()
        self._recorded = recorded.begin(self._function) if spans.recorder is not None or tfi.is_profiling() else None
        return super().begin(*args)

    @property
    def last_use(self):
        """When the last step began."""
        return self._last[0] if self._last is not None else time.perf_counter()

    def _note_time(self):
        """A step begins. Where the last one ended is not known: from one to the next is what it took."""
        function, now = self._function, time.perf_counter()
        stats = function._stats
        if self._last is not None and not function.options.verify:
            began, coexecuted, imperative, steps = self._last
            kinds = stats.coexecuted_steps - coexecuted, stats.imperative_steps - imperative
            if stats.steps == steps + 1 and sum(kinds) == 1:
                function.policy.took(kinds[0] == 1, now - began)
            if stats.steps == steps + 1 and not kinds[0]:
                function.policy.note_eager(now - began, kinds[1] == 1 and function.generation.task is None)
        self._last = now, stats.coexecuted_steps, stats.imperative_steps, stats.steps

    def leave(self, step):
        current_step.active = None
        collect_as_before(step)
        if step.view is None:  # else the thread has gone its way already
            location.end_step(step.came_from)
        tfi.flush_zeros_cache()
        interception.remove_if_idle()
        self.is_over()
        signal_handlers.put_back(step.handlers)

    def is_over(self):
        """The step is over, or the block of one that runs imperatively: nothing tells where such a step ends."""
        begun, self._recorded = self._recorded, None
        if begun is not None:
            recorded.note(*begun)


class BlockFunction(Coexecuted):
    """All steps of one `with` statement: what a co-executed function is to its calls."""

    may_roll = False
    lifecycle_class = BlockLifecycle

    def __init__(self, name, options):
        def block():
            raise TypeError("the block of a `with` statement cannot be called")

        block.__name__ = block.__qualname__ = name
        super().__init__(block, block, options)
        self.batches = Batches()
        self.used_by = None  # a thread

    def finish(self, step):
        try:
            self.lifecycle.end(step)
        except BaseException as error:
            self.lifecycle.abort(step, error)
            raise
        finally:
            self.lifecycle.leave(step)
        if step.verifies:
            GRAPH_RUNNER.limit(0)
            verification.finish(step)
        elif step.fallback_reason is None and self.options.run_ahead == 0:
            GRAPH_RUNNER.limit(0)
        stance.check(step)

    def give_up(self, step, error):
        """The block raised: what it did before is done, as in eager execution."""
        try:
            self.lifecycle.abort(step, error)
        finally:
            self.lifecycle.leave(step)


class BlockStep(Step):
    """One run of a block, and of what follows it."""

    in_block = True

    def __init__(self, frame, function, args, kwargs):
        super().__init__(function, args, kwargs)
        self.cursor = frames.FrameCursor(location.tls.cursor, frame)
        self.line = frame.f_lineno
        self.batches = function.batches
        self.batches.begin_step()
        self.guarded = catching.around_block(frame)  # where it ends is not known: at its end, the program may have left the statement
        self.view = None  # what the hooks see once the block is done
        self.closed = False
        self.tape_is_gone = False
        self._gradient_at = None  # how many operations the step had when the gradient was taken

    def is_data(self, x):
        return id(x) in self.data or (type(x) is tfi.EagerTensor and x._num_elements() > MOST_SETTINGS and self.batches.has(x._id))

    def is_running_here(self):
        return current_step.active is (self.view or self) and self.thread == get_ident()

    def with_batches(self, args):
        """The arguments of a call of a stock object; where they are integers of a batch, tensors that tell whether Python reads them."""
        return [self._with_batch(x) for x in args] if self.takes_tensors() else args

    def _with_batch(self, x):
        kind = type(x)
        if kind is list or kind is tuple:
            return kind([self._with_batch(y) for y in x])
        if kind is dict:
            return {name: self._with_batch(y) for name, y in x.items()}
        if kind is tfi.EagerTensor and x._datatype_enum() in opschema.HOST_KNOWN_ENUMS and not vars(x) and self.is_data(x):
            return self.hold_data(noted(x))
        return x

    def began_in(self):
        return self.cursor.frame, self.line

    def gradient_taken(self):
        if not self.closed:
            self._gradient_at = len(self._operations())

    def length(self):
        """How many operations there were so far, those that were skipped among them."""
        return 0 if self.closed else len(self._operations())

    def _operations(self):
        return self.mode.events if isinstance(self.mode, Tracer) else self.mode.log

    def done(self):
        """Whether nothing more is expected: see the module's docstring."""
        if self._gradient_at is None:
            return self.tape_is_gone
        mode = self.mode
        if mode is _Closed:
            return True
        if isinstance(mode, Tracer):
            mode.settle()
            return any(_updates(event) for event in mode.events[self._gradient_at:])
        return any(entry[0].updates for entry in mode.log[self._gradient_at:])

    def stay_open(self):
        """The block is left, what follows it goes on belonging to the step."""
        self.cursor.frame = None
        location.end_step(self.came_from)
        self.view = current_step.active = OpenEnd(self)

    @ours.calling
    def call(self, function, /, *args, **kwargs):
        """`function(*args, **kwargs)`, at the place in the program that the frames tell now, for all operations in it."""
        cursor = location.tls.cursor
        outer, cursor.current = cursor.current, self.cursor.current
        try:
            return function(*args, **kwargs)
        finally:
            cursor.current = outer

    def before_read(self):
        view = self.view
        if view is not None and (self.closed or (self.done() and not view.held)):  # an optimizer that looks at its schedule is not done
            self.close()
            return True
        return False

    def close(self):
        """End a step that is open. Any thread may; raises what running the rest of the step raises."""
        held = self.lock.acquire(timeout=-1 if get_ident() == self.thread else _LOCK_PATIENCE)
        if not held:
            return  # its thread is in the middle of an operation that waits for us
        try:
            if not self.closed:
                self.closed = True
                try:
                    self.function.finish(self)
                finally:
                    self.mode = _Closed
                    self.data, self.args, self.arg_list = {}, {}, []
        finally:
            self.lock.release()


def _updates(event):
    info = event.info
    return info.category == opschema.VARIABLE and any(
        how not in variable_use.READS_ONLY
        for _, how in variable_use.variable_access(info.schema, [ref[0] == RESOURCE for ref in event.refs]))


class OpenEnd(View):
    """The view of a step that is open behind its block. Another thread may end it, so each operation holds the step's lock."""

    open_ended = in_block = True

    def __init__(self, step):
        super().__init__(step)
        self.begun = step.length()
        self.held = False  # whether its thread holds the lock for a whole call
        self.busy = False  # whether an operation is on its way: what comes meanwhile comes from a finalizer, and cannot end the step

    @property
    def paused(self):
        return self.step.paused and not self.step.closed

    def before_outside_access(self, *args):
        self.step.before_outside_access(*args)

    def skipping(self):
        return self.step.skipping() if self.held else None  # else another thread could end the step half-way

    @ours.calling
    def call(self, function, /, *args, **kwargs):
        """The same, and no other thread ends the step meanwhile."""
        with self.step.lock:
            if not self.step.closed and not self.busy and not self.held and self._is_long():
                self.step.close()
            outer, self.held = self.held, True
            try:
                return self.step.call(function, *args, **kwargs)
            finally:
                self.held = outer

    def _is_long(self):
        return self.step.length() - self.begun >= LONGEST

    def takes_tensors(self):
        return self.held and not self.step.closed and self.step.takes_tensors()

    def varies(self, array):
        return self.step.varies(array)

    def as_data(self, array):
        return self.step.as_data(array)

    def as_shown(self, array, dtype):
        return self.step.as_shown(array, dtype)

    def with_batches(self, args):
        with self.step.lock:
            return args if self.step.closed else self.step.with_batches(args)

    def close(self):
        self.step.close()

    def pause(self):
        """`terra.imperative()` begins."""
        self.step.close()

    def resume(self):
        pass

    def _is_over(self, op):
        """Ends the step if `op` is not to be part of it."""
        step = self.step
        if not step.closed and not self.busy and op != "DestroyResourceOp":  # (which the garbage collector may run at any time)
            schema = opschema.get_schema(op)
            if self._is_long() or (
                    schema is not None and schema.category == opschema.HOST and (op in _ITERATORS or schema.hides_variables or step.done())):
                step.close()
        return step.closed

    def _is_ending(self, op, inputs):
        """Whether this thread is about to end the step: then a finalizer (or a signal handler) runs the operation."""
        if current_step.active is not self:
            return False
        self.step.before_outside_access(op, inputs)
        return True

    def fast(self, ctx, op, name, *args):
        with self.step.lock:
            if not self._is_over(op):
                outer, self.busy = self.busy, True
                try:
                    return self.step.mode.fast(ctx, op, name, *args)
                finally:
                    self.busy = outer
            if self._is_ending(op, args):
                return tfi.fast_execute(ctx, op, name, *args)
        return interception._fast(ctx, op, name, *args)

    def slow(self, execute, handle, device, op, inputs, attrs, *rest):
        with self.step.lock:
            if not self._is_over(op.decode() if type(op) is bytes else op):
                outer, self.busy = self.busy, True
                try:
                    return self.step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
                finally:
                    self.busy = outer
            if self._is_ending(op, inputs):
                return execute(handle, device, op, inputs, attrs, *rest)
        return interception._execute(execute, handle, device, op, inputs, attrs, *rest)
