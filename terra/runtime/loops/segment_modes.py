"""The two modes of a step in segments: a segment is traced, or its program is walked. See `terra.runtime.loops.segments`."""

from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.matching.reasons import node_name
from terra.runtime.execution.process.cross_thread import Visit
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.fallback.replay import StepRecord
from terra.runtime.fast_forward.cache import verification
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing import catching
from terra.runtime.tracing.structures import nest_outputs
from terra.runtime.tracing.tracer import Tracer, real
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.opschema import get_schema

EagerTensor = tfi.EagerTensor
MOST_FLIGHTS = 400  # dispatched segments of which Python has not yet heard that they are done

_variadic = {}


def variadic(op):
    """The schema of an operation that takes or gives a list of tensors, else None."""
    try:
        return _variadic[op]
    except KeyError:
        schema = get_schema(op)
        is_one = schema is not None and schema.category == opschema.GRAPH and not schema.is_function and (
            any(number for number, _, _, _ in schema.inputs) or any(number or types for _, number, types in schema.outputs))
        _variadic[op] = schema if is_one else None
        return _variadic[op]


class _InSegment:
    """The base of both modes: an operation of another region ends the segment, one that stands alone runs between two."""

    def _elsewhere(self):
        """Returns whether the operation at hand belongs to another segment."""
        step = self.step
        if step.mode is not self:
            return True
        if step.real_cursor.current is not step.cursor.here and step.leaves_region():
            step.cut()
            step.begin_segment()
            return True
        return False

    def _alone_fast(self, schema, ctx, op, name, args):
        n = schema.n_inputs
        inputs, attrs = args[:n], args[n:]
        if not self.step.stands_alone(schema, op, inputs, attrs):
            return None
        flat = schema.flatten(inputs)
        for x in flat:
            t = type(x)
            if t is not TerraTensor and t is not EagerTensor:
                raise tfi.FallbackException("converted by the slow path")
        outs, template = self.step.run_alone(op, inputs, attrs, (list(flat), attrs + schema.inferred_attrs(inputs)))
        return [nest_outputs(outs, template)]  # (wrapped: an operation may return None)

    def _alone_slow(self, schema, inputs, attrs):
        nested = nest_inputs(schema, inputs, attrs)
        if not self.step.stands_alone(schema, schema.name, nested, attrs):
            return None
        own = {number for number, _, _, _ in schema.inputs if number} | {t for _, t, _, _ in schema.inputs if t} | {
            t for _, _, t, _ in schema.inputs if t}
        given = tuple(x for pair in zip(attrs[::2], attrs[1::2]) if pair[0] not in own for x in pair)
        return self.step.run_alone(schema.name, nested, given)[0]


def nest_inputs(schema, flat, attrs):
    """Flat inputs as the fast path takes them."""
    values = dict(zip(attrs[::2], attrs[1::2]))
    nested, k = [], 0
    for number, _, types, _ in schema.inputs:
        if number or types:
            count = values[number] if number else len(values[types])
            nested.append(list(flat[k:k + count]))
            k += count
        else:
            nested.append(flat[k])
            k += 1
    return nested


class SegmentTracer(_InSegment, Tracer):
    """Traces one segment."""

    computed_by_value = False

    def __init__(self, step):
        super().__init__(step)
        self.tapes = step.tapes
        self.record_on_tapes = step.tapes.record

    def fast(self, ctx, op, name, *args):
        if self._elsewhere():
            return self.step.mode.fast(ctx, op, name, *args)
        if GRAPH_RUNNER.flights and interception.touches_variables(args):
            GRAPH_RUNNER.sync()  # segments in flight may be going to change it, or to read it
        schema = variadic(op)
        if schema is not None:
            alone = self._alone_fast(schema, ctx, op, name, args)
            if alone is not None:
                return alone[0]
        return Tracer.fast(self, ctx, op, name, *args)

    def slow(self, execute, handle, device, op, inputs, attrs, *rest):
        if self._elsewhere():
            return self.step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
        if GRAPH_RUNNER.flights and interception.touches_variables(inputs):
            GRAPH_RUNNER.sync()
        schema = variadic(op.decode() if type(op) is bytes else op)
        if schema is not None:
            alone = self._alone_slow(schema, inputs, attrs)
            if alone is not None:
                return alone
        return Tracer.slow(self, execute, handle, device, op, inputs, attrs, *rest)

    def external(self, x, needs_value):
        if type(x) is TerraTensor and id(x) not in self.step.new_handles:  # computed: it is data
            real(x)
            return (("f", self._number(x), x._enum), x._shape_tuple())
        return super().external(x, needs_value)

    def check(self, t):
        self.materialise(t)

    def materialise(self, t):
        with Visit(self.step):
            if t._value is None:
                if self.step.mode is self:
                    self.step.counts.fetches += 1
                    self.step.cut()
                else:
                    t._value = t._hidden
        return t._value if t._value is not None else t._eager()

    def _host(self, schema, ctx, op, name, inputs, flat, attrs):
        self.step.tapes.before_host(op, flat)
        if self.step.touches_variables(schema, flat):
            self.step.cut()
            GRAPH_RUNNER.sync()
        return super()._host(schema, ctx, op, name, inputs, flat, attrs)

    def _host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest):
        self.step.tapes.before_host(schema.name, inputs)
        if self.step.touches_variables(schema, inputs):
            self.step.cut()
            GRAPH_RUNNER.sync()
        return super()._host_slow(schema, execute, handle, device, op, inputs, attrs, *rest)


class SegmentRunner(_InSegment, PythonRunner):
    """Walks the program of one segment. It is always in the late form: nothing is read before the segment is dispatched."""

    tracer = SegmentTracer
    computed_by_value = False

    def __init__(self, step, program):
        super().__init__(step, program)
        self.tapes = step.tapes

    @property
    def takes_gradients_by_function(self):
        return not self.step.one_region  # while a plan is made, what gradient functions read is noted

    def fast(self, ctx, op, name, *args):
        step = self.step
        if step.real_cursor.current is not step.cursor.here and self._elsewhere():
            return step.mode.fast(ctx, op, name, *args)
        schema = variadic(op)
        if schema is not None:
            alone = self._alone_fast(schema, ctx, op, name, args)
            if alone is not None:
                return alone[0]
        result = PythonRunner.fast(self, ctx, op, name, *args)
        if step.mode is self:
            schema = get_schema(op)
            self._look_out(schema, schema.flatten(args[:schema.n_inputs]), [result])
        return result

    def slow(self, execute, handle, device, op, inputs, attrs, *rest):
        step = self.step
        if step.real_cursor.current is not step.cursor.here and self._elsewhere():
            return step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
        schema = variadic(op.decode() if type(op) is bytes else op)
        if schema is not None:
            alone = self._alone_slow(schema, inputs, attrs)
            if alone is not None:
                return alone
        result = PythonRunner.slow(self, execute, handle, device, op, inputs, attrs, *rest)
        if step.mode is self:
            self._look_out(get_schema(op.decode() if type(op) is bytes else op), inputs, [result])
        return result

    def _look_out(self, schema, flat, result):
        """End the segment, and wait for it, if its last operation may fail and the program would catch that."""
        if schema is not None and catching.would_catch(self.step, schema, flat):
            made = [t for t in tfi.tf.nest.flatten(result) if type(t) is TerraTensor]
            if made:
                self.materialise(made[0])

    def conflicts(self, schema, inputs):
        return False  # segments take effect in program order

    def _prepare_host(self, schema, flat):
        self.outside_events += 1
        step = self.step
        step.tapes.before_host(schema.name, flat)
        if step.touches_variables(schema, flat):
            step.cut()
            GRAPH_RUNNER.sync()
        for x in flat:
            if type(x) is TerraTensor:
                x._eager()
        return True

    def _host(self, schema, ctx, op, name, inputs, flat, attrs, args):
        if op == "DestroyResourceOp" and id(flat[0]) in self.step.new_handles:
            self.step.deferred_destroys.append(flat[0])
            return None
        self._prepare_host(schema, flat)
        return Tracer._host(self, schema, ctx, op, name, inputs, flat, attrs)

    def _host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest):
        self._prepare_host(schema, inputs)
        return Tracer._host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest)

    def diverge(self, reason):
        self.issued_before = [(t._id, t._key) for t in self.issued]
        super().diverge(reason)

    def materialise(self, tensor):
        """Python reads a value of this segment: the segment ends here."""
        step = self.step
        with Visit(step):
            if tensor._value is None and tensor._owner is self and step.mode is self:
                step.counts.fetches += 1
                step.cut()
        return tensor._eager()

    def end(self):
        """Hand the segment over to the graph; False if it diverged instead."""
        node = self.node
        if node is self.program.start:
            return True  # nothing was matched
        selects = node.end_selects
        if selects is None:
            self.diverge(f"a piece of the step ended after {node_name(self)}, where it went on before")
            return False
        composites = self.tapes.bundle(self, self.program)
        self._index.clear()
        survivors = self.survivors()
        if survivors is None:
            for composite in composites:
                composite.outputs = self.issued_before
            return False
        for composite in composites:
            composite.outputs = [(t._id, t._key) for t in survivors]
        self._select(selects)
        program, step = self.program, self.step
        found = verification.found(self) if step.verifies else None
        self.manager = tfi.new_cancellation_manager()
        arguments = self._arguments(self.feeds, self.selects)
        outputs = GRAPH_RUNNER.dispatch(program, arguments, self.manager)
        for t in survivors:
            t._hidden = outputs[t._key.result]
        record = StepRecord(self.log, step.arg_list, survivors, program.generated.undo, (), ())
        step.flight = flight = GRAPH_RUNNER.launch(outputs, record, self.manager, step.counts)
        flight.last = False
        for t in survivors:
            t._owner = flight
        if found is not None:
            verification.run_again(step, flight, found)
        step.launched += 1
        step.path = hash((step.path, id(step.segment), self.path))
        step.operations += len(self.log)
        if step.kept is not None:
            step.kept.append((program, arguments))
        self.issued = self.log = ()
        self.fed = self.fed_by_key = None
        if len(GRAPH_RUNNER.flights) > MOST_FLIGHTS:
            GRAPH_RUNNER.wait_for(GRAPH_RUNNER.flights[MOST_FLIGHTS // 2])
        return True
