"""A co-executed function: its phases, its steps, its traces and its programs."""

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
import weakref
from threading import get_ident

from terra.graph import trace
from terra.location import current_step, location
from terra.options import Stats
from terra.runtime.execution import dispatch
from terra.runtime.execution.graph_runner import runner
from terra.runtime.execution.opening import Opening
from terra.runtime.execution.process import handlers
from terra.runtime.execution.process.garbage import collect_as_before, collect_rarely
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.execution.registered import remove_left
from terra.runtime.execution.step import Counts, Step
from terra.runtime.fallback.policy import Policy
from terra.runtime.fallback.replay import destroy
from terra.runtime.fast_forward.cache import call_cache, verification
from terra.runtime.fast_forward.sites import framework_loops
from terra.runtime.fast_forward.sources import late_reads
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.fast_forward.steps import express_steps, whole_calls
from terra.runtime.interpreter import frames, tracebacks
from terra.runtime.loops import pieces, recurrent_layers
from terra.runtime.step_function import census, recurring
from terra.runtime.step_function.generation import Generation
from terra.runtime.step_function.methods import GIVES_CLASSES, OfInstances
from terra.runtime.step_function.rolling import Rolling
from terra.runtime.step_function.signatures import AsWritten
from terra.runtime.step_function.tuning.early_start import EarlyStart
from terra.runtime.step_function.tuning.single_threaded import SingleThreaded
from terra.runtime.step_function.turnover import Turnover
from terra.runtime.tensors import known_shapes
from terra.runtime.tracing import catching
from terra.runtime.tracing.tracer import Tracer
from terra.tf import internals as tfi
from terra.tf import interrupts
from terra.transform import edits, instrument, reason

log = logging.getLogger("terra")

tfi.replace_while_loop(framework_loops.located)
tfi.replace_map_fn(framework_loops.mapping)
tfi.replace_pfor(framework_loops.vectorizing)

MOST_NODES = 20_000  # of a TraceGraph that new paths may still be merged into, unless one trace is nearly as long
SETTLED = 24  # traces in a row, nothing new to a piece, after which it gets a graph while others of the step are not yet known
_NOTHING = contextlib.nullcontext()


class Coexecuted(OfInstances, AsWritten):
    """What `terra.coexecute` returns: call it like the function it wraps."""

    may_roll = True  # whether its steps can be cut into pieces

    def __init__(self, fn, python, options, located=True):
        functools.update_wrapper(self, fn)
        self.located = located  # whether its code keeps its own location; else locations come from the interpreter's frames
        census.instances.add(self)
        self._python = python  # the instrumented function
        self._deterministic = tfi.is_deterministic()  # what the traces were made with
        self._edits = edits.look()  # of functions, when it was instrumented
        self._was_edited = False  # whether there were some since the last step that was co-executed
        self.options = options
        self.store = trace.TraceStore()
        self.counts = Counts()
        self.policy = Policy(getattr(fn, "__qualname__", repr(fn)))
        self.program = None
        self.early_start = EarlyStart()
        self.single_threaded = SingleThreaded()
        self.lengths = {}  # (id of an RNN layer, location) -> lengths of the sequences that it was given there
        self.recurrences = None  # once the loops of RNN layers are one operation each: those
        self.pieces = None  # once loops are rolled: what takes the place of `store` and `program`
        self.recurring = None  # then: the structures of arguments that come again and again, each with a function of its own
        self.rolling = Rolling(self)
        self.policy.otherwise = self.rolling.roll_branching
        self.fallback_reasons = {}  # reason with its line -> how often
        self.raised = {}  # the same, of the steps that raised while they were traced
        self._stats = Stats()
        self.generation = Generation(self)
        self.begins_anew = False  # whether the traces are to be forgotten before the next step
        self.turnover = Turnover()
        self.read_lock = threading.RLock()
        self._took = None  # of the last step: (whether it was co-executed, seconds, how long Python had waited for graphs by then)
        self._path = None  # what stands for the pieces that the last rolled step took, if they were all known
        OfInstances.__init__(self)
        self._departs = weakref.finalize(self, census.depart, self.policy.name, self._stats, self.counts)
        self._departs.atexit = False
        self._warnings = set()  # that were given: each comes once
        self.batches_of = (None, None, None), None  # ([Keras model, its compiled loss and metrics], what makes sure that no code of the program's sees its batches)
        self.opening = Opening(options.reduce_retracing)
        self.keeps_last = False
        self.last = None  # what the last co-executed step gave its graph, if it is kept

    def __repr__(self):
        code = getattr(getattr(self.__wrapped__, "__func__", self.__wrapped__), "__code__", None)
        return f"<co-executed {self.policy.name}" + (f" at {code.co_filename}:{code.co_firstlineno}>" if code else ">")

    # -- calls -----------------------------------------------------------------------------------------------------------------

    def __call__(self, *args, **kwargs):
        if GIVES_CLASSES:
            own = self.for_arguments(args)
            if own is not self:
                return own(*args, **kwargs)
        active = current_step.active
        if active is not None and active.thread == get_ident() and not active.open_ended:
            return self._as_part(False)(*args, **kwargs)  # part of the outer step
        if current_step.left_alone.depth:
            return self._as_part()(*args, **kwargs)  # part of an imperative step
        express = self.program and self.program.express
        known = express is not None and express.may_run_here()
        if not known and not tfi.executing_eagerly():
            self._warn_once("is traced into a graph by its caller, where nothing is co-executed; with Keras, compile the model with run_eagerly=True "
                            "(or use terra.compile).")
            return self._for_graph()(*args, **kwargs)  # part of somebody's graph
        if (not known and self._runs_in_replica()) or not current_step.lock.acquire(timeout=dispatch.LONGEST_WAIT):
            self._stats.steps += 1
            self._stats.imperative_steps += 1
            return self._current()(*args, **kwargs)
        held = ()
        try:
            dispatch.end_open_step()
            held = handlers.put_off()
            return self._step(args, kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise
        finally:
            current_step.lock.release()
            if held:
                handlers.put_back(held)

    def _runs_in_replica(self):
        """Whether a distribution strategy calls it on a replica's thread."""
        return tfi.in_replica() and self._warn_once(
            "runs imperatively, because a distribution strategy runs it as a replica, on a thread of its own; without `strategy.run` it is co-executed.")

    def _warn_once(self, text):
        """Returns True: it is the case, whether or not that was said before."""
        if text not in self._warnings:
            self._warnings.add(text)
            log.warning("terra: %s %s", self.policy.name, text)
        return True

    def _step(self, args, kwargs):
        if self.policy.pause_left and self.generation.task is None and not self.generation.retired:
            return self._leave_alone(args, kwargs)
        if self.recurring is not None and not self.policy.pause_left:
            return self._rolled_step(args, kwargs)
        return self._one_step(args, kwargs)

    def _rolled_step(self, args, kwargs):
        """A step in pieces, or one of the function for this structure of arguments."""
        structure = recurring.structure_of(args, kwargs)
        if structure is None:
            return self._one_step(args, kwargs)
        start, stats, known = time.perf_counter(), self._stats, self.recurring
        function = known.find(structure, start)
        if function is None:
            self._path = None
            try:
                return self._one_step(args, kwargs)
            finally:
                known.ran(structure, self._path, start, time.perf_counter(), stats.graphs)
        before = stats.coexecuted_steps
        function.keeps_last = self.keeps_last
        try:
            return function._one_step(args, kwargs)
        finally:
            coexecuted = stats.coexecuted_steps > before
            stats.recurring_steps += coexecuted
            if self.keeps_last:
                self.last = function.last
            if known.ran_by_itself(structure, coexecuted, start, time.perf_counter()):
                self.generation.retired += function.generation.retire()

    def _another(self, options):
        """Another one for the same function, which is counted as part of this one."""
        made = Coexecuted(self.__wrapped__, self._current(), options, self.located)
        made._is_part()
        return made

    def for_structure(self):
        """A function that unrolls all loops, for one structure of arguments; what happens to it is counted as happening to this one."""
        made = self._another(dataclasses.replace(self.options, loops="unroll", reduce_retracing=False))
        made._stats, made.counts, made.fallback_reasons, made.generation.registered = self._stats, self.counts, self.fallback_reasons, self.generation.registered
        made.policy = recurring.Trust(self.policy.name)
        made.store.inherits = self._relaxed()
        return made

    def _relaxed(self):
        """What tells whether an input of an operation is known not to be constant, wherever in the loops that is."""
        if self.pieces is None:
            known = {(signature, k) for signature, _, k in self.store.relaxed}
            return lambda signature, k: (signature, k) in known
        places = self.pieces.places
        known = {(signature, k) for piece in self.pieces.table.values() for signature, _, k in piece.store.relaxed}
        return lambda signature, k: ((signature[0], places(signature[1])[0]), k) in known

    def _one_step(self, args, kwargs):
        if outcomes.pending:
            outcomes.pending.clear()
        program = self.program  # another thread may put a new one in its place
        if program is not None and program.express is not None and program.express.prepared:
            result = program.express.attempt(args, kwargs)
            if result is not express_steps.MISSED:
                return result
        self._note_last_step()
        start = time.perf_counter()
        before, whole = self._stats.coexecuted_steps, self.counts.whole_steps
        held, skeleton = interrupts.hold(), None
        try:
            step = self.begin(Step, args, kwargs)
            if step is not None:
                try:
                    held = interrupts.release(held)
                    result = whole_calls.run_step(step, self._python, args, kwargs)
                    held = interrupts.hold()
                    if self.counts.whole_steps != whole:
                        skeleton = step.mode
                    self._end(step)
                except BaseException as error:
                    held = held or interrupts.hold()
                    self._abort(step, error)
                    raise
                finally:
                    self._leave(step)
        finally:
            interrupts.release(held)
        if step is None:
            with current_step.left_alone:
                result = self._python(*args, **kwargs)
        elif step.verifies:
            runner.limit(0)
            verification.finish(step)
        elif step.fallback_reason is None and (self.options.run_ahead == 0 or self._is_guarded()):
            runner.limit(0)
        coexecuted = self._stats.coexecuted_steps > before
        if coexecuted and skeleton is not None:
            express_steps.prepare(self, step, skeleton, args, kwargs)
        if (coexecuted or step is None) and not self.options.verify:
            self._took = coexecuted, time.perf_counter() - start, self.counts.python_stall
        return result

    def _note_last_step(self):
        """A step begins: tell the policy what the last one took, with what Python has waited since for what it returned."""
        if self._took is not None:
            coexecuted, seconds, stall = self._took
            self._took = None
            self.policy.took(coexecuted, seconds + self.counts.python_stall - stall)

    step_code = _one_step.__code__  # of the frame around the code of a step

    def _is_guarded(self):
        """Whether the program would catch the failure of this very step."""
        if self.program is not None and not self.program.may_fail:
            return False
        return catching.around_step(frames.around_ours(sys._getframe(2)))

    def _leave_alone(self, args, kwargs):
        """A step while the policy has given up: the user's own function, so that it costs next to nothing."""
        self._note_last_step()
        start = time.perf_counter()
        self._stats.steps += 1
        self._stats.imperative_steps += 1
        self.policy.imperative()
        with current_step.left_alone:
            result = self.__wrapped__(*args, **kwargs)
        self._took = False, time.perf_counter() - start, self.counts.python_stall
        return result

    def begin(self, kind, args=(), kwargs=None):
        """Begin a step of class `kind` on this thread, whose operations belong to it until `_leave`; None if it is to run imperatively."""
        stats = self._stats
        stats.steps += 1
        self._current()
        generation = self.generation
        generation.settle(self.options.wait_for_graph)
        if tfi.is_deterministic() is not self._deterministic:
            self._forget_everything()
        if self.begins_anew:
            self._begin_anew()
        remove_left()
        if generation.retired:
            try:
                generation.remove_retired()
            except BaseException:  # of an earlier step: this one has not begun
                stats.steps -= 1
                raise
        if self.program is not None and self.program.compiled is not None:
            self.program.compiled.advance(self.options.wait_for_graph)
        if self.pieces is not None and kind is Step:
            kind = pieces.PiecewiseStep
            waiting = generation.task is not None and not self.pieces.ready
        else:
            waiting = self.program is None and generation.task is not None
        if waiting or self._cannot_be_ordered() or self._is_looked_at() or (not outcomes.pending and self.policy.imperative()) or (
                not self.options.wait_for_graph and not outcomes.pending and not self.options.verify and self.policy.wants_sample()):
            stats.imperative_steps += 1
            return None
        step = kind(self, args, kwargs)
        if self.opening.look_at(step):
            self._begin_anew()
        try:
            if step.mode is not None:
                runner.limit(max(self.options.run_ahead - 1, 0))
            elif self.program is None or (not self.keeps_last and self.turnover.traces()):
                runner.sync()
                recurrent_layers.replace()
                known_shapes.replace()
                late_reads.replace(call_cache.running)
                step.mode = Tracer(step)
            else:
                program, form, single_threaded = self.program, None, False
                if not self.keeps_last:
                    now = time.perf_counter()
                    form = self.early_start.begins(program, stats.steps, now, self.counts.python_stall)
                    single_threaded = self.single_threaded.begins(program, form, stats.steps, now)
                runner.limit(max(self.options.run_ahead - 1, 0))
        except BaseException:  # of an earlier step: this one has not begun
            stats.steps -= 1
            raise
        collect_rarely(step)
        step.came_from = location.begin_step()
        current_step.active = step
        dispatch.install()
        tfi.note_drawn_seeds(step.drawn_seeds)
        tfi.flush_zeros_cache()
        if step.mode is None:
            try:
                step.mode = PythonRunner(step, program, form, single_threaded)
            except BaseException:
                stats.steps -= 1
                self._leave(step)
                raise
        step.begins()
        return step

    def _cannot_be_ordered(self):
        """Whether the program's own eager operations are queued on another executor than ours, where they could be overtaken."""
        return tfi.executes_asynchronously() and self._warn_once(
            "runs imperatively, because TensorFlow executes asynchronously on this thread; leave that off (see "
            "tf.config.experimental.set_synchronous_execution): co-executed steps are asynchronous anyway.")

    def _current(self, look=True):
        """The instrumented function, as it is now; `look`: whether nobody has just looked for edits."""
        if self.located and self._edits != (edits.look() if look else edits.found()):
            self._edits, self._was_edited = edits.found(), True
            self._python, self.located = instrument(self.__wrapped__), reason(self.__wrapped__) is None
        return self._python

    def _as_part(self, look=True):
        """What is called where another step, or an imperative one, or a graph that either makes, calls this one."""
        return self._current(look) if tfi.executing_eagerly() else self._for_graph()

    def _for_graph(self):
        """What is called while a graph is made: AutoGraph's form of the function, if AutoGraph has converted what calls this one."""
        return tfi.converted(self.__wrapped__) if tfi.is_autographs(frames.around_ours(sys._getframe(1))) else self.__wrapped__

    def _forget_everything(self):
        """Determinism was switched on or off: TensorFlow's functions look at that. They may issue other operations now, or raise."""
        self._deterministic = tfi.is_deterministic()
        self.generation.settle(True)
        if self.pieces is None:
            self.forget_traces()
        else:
            self.rolling.unroll()

    def _is_looked_at(self):
        """Whether each operation is to be shown to somebody, which a graph does not do."""
        return tfi.has_callbacks() and self._warn_once(
            "runs imperatively as long as TensorFlow shows each operation to a callback, which tf.debugging.enable_check_numerics, say, has asked for.")

    @staticmethod
    def _leave(step):
        current_step.active = None
        collect_as_before(step)
        location.end_step(step.came_from)
        if type(step.cursor) is frames.FrameCursor:
            step.cursor.frame = None  # the frame would keep the step's tensors alive
        tfi.note_drawn_seeds(None)
        tfi.flush_zeros_cache()
        dispatch.remove_if_idle()

    def _end(self, step):
        """The function has returned."""
        with step.lock if current_step.active is not step else _NOTHING:  # other threads may be at work in it
            step.ends()
            self._end_alone(step)

    def _end_alone(self, step):
        tfi.flush_zeros_cache()  # which would keep tensors of the step alive
        if step.error is not None:
            raise step.error
        if isinstance(step, pieces.PiecewiseStep):
            self._end_rolled(step)
            return
        mode = step.mode
        if isinstance(mode, PythonRunner) and mode.complete():
            self._stats.early_steps += not mode.late
            self.early_start.ends(time.perf_counter() - mode.waited, self.counts.python_stall - mode.waited)
            self.note_coexecuted(
                mode.program, mode.form, mode.path, step.shapes(), mode.single_threaded, mode.other_shapes_at >= 0, self.generation.lacks_form(self.program))
            step.mode = None
            return
        self._stats.tracing_steps += 1
        self._look_for_failure(step)
        raw = step.mode.finish()
        destroy(step.deferred_destroys)
        self._merge(step, raw)
        step.mode = None  # the two hold each other, and all that was recorded

    def note_coexecuted(self, program, form, path, shapes, single_threaded, general, lacks_form):
        """A step with arguments of these shapes was co-executed along `path`, by a form of the graph of `program` or, for other shapes, by its `general` one; `lacks_form`: whether another form is due."""
        self._stats.coexecuted_steps += 1
        self._stats.single_threaded_steps += single_threaded
        self._was_edited = False
        if self.recurring is not None and len(self.store.graph) <= recurring.LARGEST:
            self._path = path
        if form.fixed:
            self.generation.note_completed(general)
        if self.generation.task is None and (self.generation.lacks_shapes or lacks_form):
            self.generation.begin()
        compiled = program.compiled
        if compiled is not None:
            self._stats.compiled_steps += compiled.used
            if compiled.reason is not None and self.generation.task is None and program is self.program:
                self.generation.given_up = compiled, len(self.store.graph.nodes)
                if not self.rolling.unroll_layers():
                    self.generation.begin()  # graphs that XLA may compile are somewhat slower if it does not
        self.policy.coexecuted()
        if self.store.n_traces > 1 and self.turnover.has_settled((path, shapes)) and self.generation.task is None and not self.options.jit_compile:
            self._narrow()

    def _abort(self, step, error):
        """The function raised: what it did before is done, as in eager execution."""
        with step.lock if current_step.active is not step else _NOTHING:
            step.ends()
            self._abort_alone(step, error)

    def _abort_alone(self, step, error):
        if step.mode is None:
            return
        self.policy.raised(error)
        why = f"the step raised {type(error).__name__}"
        if step.fallback_reason is None and not isinstance(step.mode, PythonRunner):
            self.raised[why] = self.raised.get(why, 0) + 1
        if isinstance(step, pieces.PiecewiseStep):
            self._stats.tracing_steps += 1
            try:
                step.abort()
            finally:
                destroy(step.deferred_destroys)
                step.mode = None
            return
        if isinstance(step.mode, PythonRunner) and runner.has_raised(error):
            step.mode.drop(error)
            destroy(step.deferred_destroys)
            self._stats.tracing_steps += 1
        elif isinstance(step.mode, PythonRunner):
            step.mode.diverge(why)
        if isinstance(step.mode, Tracer):
            step.mode.finish()
            destroy(step.deferred_destroys)
            self._stats.tracing_steps += 1
        step.mode = None

    def _end_rolled(self, step):
        step.finish()
        destroy(step.deferred_destroys)
        fell_back = step.fallback_reason is not None
        self._look_for_failure(step)
        if not step.traced:
            self._stats.coexecuted_steps += 1
            self.policy.coexecuted()
            if step.operations <= recurring.LARGEST:
                self._path = step.path
                if self.options.loops == "auto" and self.turnover.has_settled(step.path) and self.generation.task is None:
                    self._unroll()
            if self.keeps_last:
                self.last = pieces.LastPieces(step.kept)
        else:
            self._stats.tracing_steps += 1
            if fell_back:
                self.policy.fell_back(step.fallback_reason)
            else:
                self.policy.traced(True)
        step.mode = None
        if self.pieces is None:
            return
        if not self.rolling.after_pieces(step) and self.pieces.dirty and self.generation.task is None:
            if fell_back or not step.learned:
                self.pieces.due = set(self.pieces.dirty)
            elif not self.pieces.ready:  # iterations of a loop need not wait for what comes once in a step
                self.pieces.due = {piece for piece in self.pieces.dirty if piece.quiet >= SETTLED}
            if self.pieces.due:
                self.generation.begin()

    def _look_for_failure(self, step):
        if step.failed is not None:
            self.policy.never(f"it goes on when an operation has failed ({step.failed}), which a graph would tell only after its code has moved on")

    # -- traces and graphs -----------------------------------------------------------------------------------------------------

    def _merge(self, step, raw):
        raw.creates_variables = step.creates_variables
        fell_back = step.fallback_reason is not None
        if self.begins_anew:
            return
        if self.located and type(step) is Step and self.options.loops != "unroll":
            if self.rolling.after_trace({event.location for event in raw.events}):
                return
        is_due = self.turnover.is_due(self.store, raw, self.store.n_traces >= self.options.max_traces)
        if is_due:
            log.info("terra: step %d of %s uses other variables than those before: their traces are forgotten", self._stats.steps, self.policy.name)
            self._forget_trials()
            self.generation.expect_fixed_shapes()
        if is_due or (self._was_edited and fell_back):  # operations in other code are others, too
            self._was_edited = False
            self._begin_anew()
            if self.begins_anew:
                return
            fell_back = fell_back and is_due and self.turnover.is_known  # else what was unknown before tells nothing of this path
        with self.generation.lock:
            may_grow = self.store.n_traces < self.options.max_traces and len(self.store.graph) < max(MOST_NODES, 3 * len(raw.events))
            changed = self.store.add(raw, may_grow=may_grow)
        if not fell_back:
            self.policy.traced(not changed)
        elif changed or self.generation.task is None:  # else the graph that knows this path is being generated
            self.policy.fell_back(step.fallback_reason)
        if (self.store.version != self.generation.version or self.generation.lacks_shapes) and (fell_back or not changed) and self.generation.task is None:
            self.generation.begin()

    def _begin_anew(self):
        """Forget the traces, now if no graph is being generated, else as soon as it is there."""
        self.begins_anew = self.generation.task is not None
        if not self.begins_anew:
            self.forget_traces()

    def forget_traces(self):
        """Begin anew: there is another way to run the steps. No graph is being generated."""
        self.store = trace.TraceStore()
        self.generation.version = 0
        if self.program is not None:
            self.generation.retired.append(self.program)
            self.program = None

    def _narrow(self):
        """Make a graph of the path alone that all steps take now; until it is there, the old one is used."""
        log.info("terra: step %d of %s: all steps have taken one path for long; it gets a graph of its own", self._stats.steps, self.policy.name)
        self.turnover.narrow()
        version = self.store.version + 1
        self.store = trace.TraceStore()
        self.store.version = self.generation.version = version
        self._forget_trials()

    def _forget_trials(self):
        """How the graph was best run so far may not be best for the next one."""
        self.early_start, self.single_threaded = EarlyStart(), SingleThreaded()

    def _unroll(self):
        log.info("terra: step %d of %s: all loops have run equally often for long; they are unrolled", self._stats.steps, self.policy.name)
        self._path = None
        self.rolling.unroll()

    def note_rolled(self, loops):
        """So many loops are rolled from now on."""
        self._stats.rolled_loops = loops

    def note_generated(self, graphs, seconds):
        """So many graphs were made, in so long a time."""
        self._stats.graphs += graphs
        self._stats.generation_s += seconds

    def note_fallback(self, reason):
        self._stats.fallbacks += 1
        self.turnover.note_fallback()
        compiled = self.program.compiled if self.program is not None else None
        if compiled is not None and compiled.used and "kernel failed" in reason:
            compiled.failed()
        self.fallback_reasons[reason] = self.fallback_reasons.get(reason, 0) + 1
        while len(self.fallback_reasons) > 200:
            del self.fallback_reasons[next(iter(self.fallback_reasons))]
        log.info("terra: step %d of %s fell back: %s", self._stats.steps, self.policy.name, reason)

    @property
    def n_steps(self):
        """How many steps there were, with this one."""
        return self._stats.steps

    @property
    def compiled(self):
        """What `jit_compile` has made of the program in use, or why that was given up; None without it."""
        of_program = None if self.program is None else self.program.compiled
        return of_program if of_program is not None or self.generation.given_up is None else self.generation.given_up[0]

    # -- what users ask --------------------------------------------------------------------------------------------------------

    def stats(self):
        """A snapshot of the `Stats` of this function; of a method asked through its class, the sum over the instances.

        Of a class method it is, from Python 3.13 on, the sum over the classes: Python does not tell which one it was asked through.
        """
        snapshot = census.snapshot(self._stats, self.counts)
        snapshot.traces = self.store.n_traces
        snapshot.pieces = 0 if self.pieces is None else len(self.pieces.table)
        snapshot.recurrent_layers = 0 if self.recurrences is None else len(self.recurrences)
        for own in (self._gone, *(made.stats() for made in self.of_instances())):
            snapshot.add(own)
        return snapshot

    def run_graph_alone(self, *args, **kwargs):
        """Run the graph of a step without its skeleton, and wait: the physical limit of a step, for benchmarks. Variables change as by a step.

        The first call runs a whole step with the arguments given, whose inputs later calls give to the graph again.
        Raises: RuntimeError if that step was not co-executed.
        """
        own = self.for_arguments(args)
        if own is not self:
            return own.run_graph_alone(*args, **kwargs)
        if self.last is None:
            self.keeps_last = True
            self(*args, **kwargs)
            self.keeps_last = False
            if self.last is None:
                raise RuntimeError(f"{self.policy.name} was not co-executed just now, so there is no graph to run alone; call it more often first.")
        runner.sync()
        self.last.run()

    @property
    def trace_graph(self):
        """The TraceGraph that the traces of this function were merged into."""
        return self._in_use().store.graph

    @property
    def graph(self):
        """The symbolic graph in use as a `tf.Graph` (for TensorBoard), or None before there is one."""
        program = self._in_use().program
        return None if program is None else tfi.graph_of_function(program.generated.fdefs[-1])
