"""How a co-executed step ends: its graph takes over what Python keeps, or it falls back, and what was matched is executed again."""

from terra.graph.trace import CHECK, FETCH
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.matching.reasons import node_name
from terra.runtime.execution.swallowed import Remembered
from terra.runtime.fallback.replay import StepRecord, execute_again, unrecorded
from terra.runtime.generation import undo
from terra.runtime.tensors.tensor import make_tensor, still_held
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.fetches import CHECK_INFOS, FETCH_INFOS
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf import interrupts, opschema

verifier = None  # what looks at steps that are verified, when their graphs run: set by `verification`


class Dropped:
    """Owns the tensors of a step that was dropped, because one before it had failed."""

    __slots__ = ("_error",)

    def __init__(self, error):
        self._error = Remembered(error)

    def read_again(self, tensor):
        pass

    def materialise(self, tensor):
        error = self._error()
        try:
            GRAPH_RUNNER.swallowed.note_read_failed(error)
            raise error
        finally:
            del error  # its traceback has this frame


class Completion:
    """The part of `PythonRunner` for the end of the step."""

    def complete(self):
        """The step's function has returned: hand over to the graph, or diverge. True if the step was co-executed."""
        end_selects = self.node.end_selects
        if end_selects is None:
            self.diverge(f"the step ended after {node_name(self)}, where it went on before")
            return False
        self.tapes.finish()
        self._index.clear()
        survivors = self.survivors()
        if survivors is None:
            return False
        self._select(end_selects)
        generated = self.form if self.other_shapes_at < 0 or not self.late else self.program.general
        found = verifier.found(self) if self.step.verifies else None
        if self.late:
            arguments = self._arguments(self.feeds, self.selects)
            attrs = self.program.single_threaded_attrs if self.single_threaded and generated is self.form else None
            outputs, self.manager, self.waited = GRAPH_RUNNER.start(self.program, arguments, generated, self.step.counts, attrs)
        else:
            outputs, arguments = self.outputs, self.arguments
            if generated.gate is not None:
                self._put(generated.gate, [tfi.eager_constant(1, tfi.dtypes.int32)])
        for t in survivors:
            t._hidden = outputs[t._key.result]
        record = StepRecord(self.log, self.step.arg_list, survivors, generated.undo, () if self.late else self._touched, self.step.deferred_destroys)
        self.flight = GRAPH_RUNNER.launch(outputs, record, self.manager, self.step.counts)
        for t in survivors:
            t._owner = self.flight
        if found is not None:
            verifier.run_again(self.step, self.flight, found)
        if self.step.function.keeps_last:
            self.step.function.last = LastStep(self.program, generated, arguments, () if self.late else self.puts)
        if self._jumps and self.step.partial_shapes:
            self.opens = self.log[:self._jumps[0][0]]
        self.issued = self.log = ()
        self.fed = self.fed_by_key = self.received = self._sizes = None
        return True

    def kept_sizes(self):
        return self.program.sizes

    def survivors(self):
        """The placeholders that Python keeps; None if the step had to fall back because the graph does not give one of them."""
        read = [t for t in self.issued if t._value is not None] if self.step.verifies else ()  # they will be compared: held until then
        self.issued = still_held(self.issued)
        del read
        survivors = [t for t in self.issued if t._value is None]
        missing = [t for t in survivors if t._key.result < 0]
        if missing:
            self.step.kept = missing  # what only a cycle keeps may be gone when the trace ends: the garbage collector may run any time
            self.diverge(f"Python keeps the output of {missing[0]._key.node.payload.event.info.op_type} beyond the step, which it did not before")
            return None
        return survivors

    def diverge(self, reason):
        """Fall back: cancel the graph, replay what was matched, and go on as in the tracing phase."""
        held = interrupts.hold()
        try:
            self._fall_back(reason)
        finally:
            interrupts.release(held)

    def drop(self, error):
        """A step before this one has failed, and its error ended this one: eagerly, Python would not have come here. Nothing of it is done."""
        held = interrupts.hold()
        try:
            self.tapes.diverged(self)
            self._cancel()
            owner = Dropped(error)
            for t in self.issued:
                if t._value is None:
                    t._owner = owner
            self.log = self.issued = ()
        finally:
            interrupts.release(held)

    def _fall_back(self, reason):
        step = self.step
        self.tapes.diverged(self)
        step.note_fallback(reason)
        self._cancel()
        tracer = self.tracer(step)
        step.mode = tracer
        try:
            self._replay(tracer)
        except tfi.OpError as error:
            owner = Dropped(error)
            for t in self.issued:
                if t._owner is self:
                    t._owner = owner
            if self.log[-1][0].op_type != CHECK or self.log[self.replayed + 1:] != self.log[-1:]:  # else it is where the program expects it
                step.fails(error)
            raise
        finally:
            self.log = self.issued = ()

    def _cancel(self):
        """The graph does nothing, and has done nothing."""
        if not self.late:
            if self.manager is not None:
                GRAPH_RUNNER.cancel(self.manager)
            for queue in self._touched:
                queue.drain(GRAPH_RUNNER.handle)
            for queue in self.form.fetch_queues.values():
                queue.drain(GRAPH_RUNNER.handle)
            undo.restore(self.form.undo)
        else:
            GRAPH_RUNNER.sync()

    def _replay(self, tracer):
        """Execute the matched operations imperatively, in order, filling the placeholders that Python holds; the tapes hold them already."""
        placeholders = {t._key: t for t in self.issued}
        with unrecorded():
            for self.replayed, (node, refs, own_attrs) in enumerate(self.log):
                for dtype, enum, key in node.outs:
                    if key not in placeholders:  # of a record that was jumped over
                        placeholders[key] = make_tensor(dtype, enum, None, key, self, None)
                flat = [placeholders[x] if type(x) is ValueKey else x if type(x) is not int else self.step.arg_list[x] for x in refs]
                if node.category == opschema.FETCH:
                    tensor = flat[0]
                    tracer.note_fetch(tensor, node.location, FETCH_INFOS if node.op_type == FETCH else CHECK_INFOS)
                    continue
                eager = execute_again(node, [real(x) for x in flat], own_attrs)
                tracer.record(
                    node.info, flat, eager, node.template, node.fast_attrs, node.grad_attrs, node.location,
                    [placeholders[key] for _, _, key in node.outs])


class LastStep:
    """The graph's side of a co-executed step, kept so that it can be run again without a skeleton (for measurements)."""

    def __init__(self, program, form, arguments, puts):
        self.program, self.form, self.arguments, self.puts = program, form, arguments, puts

    def run(self):
        """Dispatch the graph with everything that Python gave it, and wait until it is done."""
        manager = tfi.new_cancellation_manager()  # its deletion would cancel the run
        start = GRAPH_RUNNER.dispatch if self.puts else GRAPH_RUNNER.run
        outputs = start(self.program, self.arguments, manager, self.form)
        for queue, values in self.puts:
            queue.put(GRAPH_RUNNER.handle, values)
        outputs[0].numpy()
        for queue in self.form.fetch_queues.values():
            queue.drain(GRAPH_RUNNER.handle)
