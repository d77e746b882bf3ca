"""The tracing phase: operations run imperatively, and each is recorded.

The tensors that the program gets are TerraTensors that hide the eager values, so that the program takes the same way through the framework's Python as
in co-execution, and every read of a value is seen (a fetch point). The tapes record TerraTensors too: gradients need no special case, the backward
operations are traced as they are executed.
"""

from terra.graph.nonfailing_ops import is_harmless
from terra.graph.trace import ARG, CONST, FEED, RESOURCE, VALUE, Const, RawEvent, RawTrace, is_value
from terra.runtime.interpreter import frames
from terra.runtime.tensors.draws import seed_enum
from terra.runtime.tensors.host_values import HOST_STATIC, has_varying_shape, host_static, recorded_shape, shape_of_variable, static_shape
from terra.runtime.tensors.shape_inference import open_shapes, output_shapes
from terra.runtime.tensors.size_origins import KnowsSizes
from terra.runtime.tensors.tensor import TerraTensor, make_tensor, record_on_tapes, still_held
from terra.runtime.tracing import catching
from terra.runtime.tracing.fetches import CHECK_INFOS, FETCH_INFOS
from terra.runtime.tracing.flat_inputs import computed_sizes, enums_of, handles, value_positions
from terra.runtime.tracing.cse import is_repeated, known_event
from terra.runtime.tracing.structures import flat_outputs, nest_outputs, with_values
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import RESOURCE_ENUM, const_key, is_small_constant, value_key
from terra.tf.opschema import get_schema, op_info, schemas
from terra.tf.private import hardware, scopes, tables

EagerTensor, FallbackException, BaseResourceVariable = tfi.EagerTensor, tfi.FallbackException, tfi.BaseResourceVariable
DTYPES = tfi.INTERN_DTYPES
_fast_execute, _tape_set_is_empty, _context_changes = tfi.fast_execute, tfi.tape_set_is_empty, tfi.context_changes
_SWEEP = 64  # the tensors that the program has dropped are looked for after so many events, at least


class Tracer(KnowsSizes):
    """Runs a step imperatively and records its trace. One per step."""

    computed_by_value = True  # whether a value that earlier steps computed may decide shapes by its value

    def __init__(self, step):
        self.step = step
        self.cursor = step.cursor
        self.raw = RawTrace()
        self.events = self.raw.events
        self.outputs = []  # the TerraTensors issued, but for those that were found dropped since
        self._objects = {}  # id -> (object number, object): keeps ids unique during the trace
        self._settled = 0  # how many of the events are no mere notes any more
        self._sweep_at = _SWEEP  # at how many events to look for dropped tensors
        self.externals = {}  # id of an eager tensor from outside -> (its reference, its shape key, the tensor)
        latest = step.store.latest
        self.before = () if latest is None else latest.events  # what the step does again is not recorded anew

    # -- the three entry points ------------------------------------------------------------------------------------------------

    def fast(self, ctx, op, name, *args):
        schema = schemas.get(op) or get_schema(op)
        n = schema.n_inputs
        inputs, attrs = args[:n], args[n:]
        flat = inputs if not schema.has_lists else schema.flatten(inputs)
        args, computed = [], False
        known_shapes, uses_variables, step = True, schema.category == opschema.VARIABLE, self.step
        for x in flat:
            t = type(x)
            if t is TerraTensor:
                computed = True
                args.append(x._hidden if x._owner is self else real(x))
                if type(x._shp) is not tuple:
                    known_shapes = False
            elif t is EagerTensor:
                if uses_variables and x._datatype_enum() == RESOURCE_ENUM and shape_of_variable(x) is None:
                    known_shapes = False
                args.append(x)
            else:
                read = with_values(inputs, flat)
                if read is None:
                    raise FallbackException("converted by the slow path")
                return step.mode.fast(ctx, op, name, *read, *attrs)
        if not schema.plain:
            category = schema.category
            seeded = step.seeded(schema, flat, attrs) if category == opschema.RANDOM else attrs
            if seeded is None or step.runs_imperatively(schema, attrs, flat):
                return self._host(schema, ctx, op, name, inputs, flat, attrs)
            attrs = seeded
        if not (schema.plain and computed):
            known = host_static(schema, op, flat, self)
            if known is not None:
                if known is HOST_STATIC:
                    return tfi.fast_execute(ctx, op, name, *inputs, *attrs)
                return recorded_shape(schema, op, inputs, flat, attrs, self.record_on_tapes)
        if schema.has_lists:
            args = [[real(t) for t in x] if type(x) is list or type(x) is tuple else real(x) for x in inputs]
        recording = not _tape_set_is_empty()
        try:
            if recording:
                tfi.tape_stop()
                try:
                    result = _fast_execute(ctx, op, name, *args, *attrs)
                finally:
                    tfi.tape_restart()
            else:
                result = _fast_execute(ctx, op, name, *args, *attrs)
        except (tfi.NotOkStatusException, tfi.OpError):
            self._note_failure(schema, flat)
            raise
        if type(result) is EagerTensor:
            eager, template = (result,), True
        else:
            eager, template = flat_outputs(result)
        if step.settings_seen != _context_changes[0]:
            step.look_at_settings()
        device = step.device or ""
        if schema.has_list_attrs and list in map(type, attrs):  # which the program may change
            attrs = tuple([list(x) if type(x) is list else x for x in attrs])
        if known_shapes and schema.met and not step.store.dynamic and (schema.static or (schema.static_by_value and not computed_sizes(schema, flat))):
            if schema.has_lists:  # the same
                inputs = [tuple(x) if type(x) is list else x for x in inputs]
            outs = self._note((schema, inputs, flat, attrs, device, self.cursor.current, eager, template, self._origin()), eager)
            if recording:
                self.record_on_tapes(op, list(flat), schema.call(inputs, enums_of(flat), attrs, device)[1], outs)
        else:
            info, grad_attrs = schema.call(inputs, enums_of(flat), attrs, device)
            outs = self.record(info, flat, eager, template, attrs, grad_attrs)
            if recording:
                self.record_on_tapes(op, list(flat), grad_attrs, outs)
        if not known_shapes or op not in catching.SAFE:
            self.look_out(schema, flat, outs)
        return outs[0] if template is True else nest_outputs(outs, template)

    def slow(self, execute, handle, device, op, inputs, attrs, *rest):
        name = op.decode() if type(op) is bytes else op
        attrs = attrs or ()
        schema = get_schema(name)
        if schema is None:
            return execute(handle, device, op, inputs, attrs, *rest)
        category = schema.category
        seeded = self.step.seeded(schema, inputs, attrs) if category == opschema.RANDOM else attrs
        if seeded is None or self.step.runs_imperatively(schema, attrs, inputs):
            return self._host_slow(schema, execute, handle, device, op, inputs, attrs, *rest)
        attrs = seeded
        known = host_static(schema, name, inputs, self)
        if known is not None:
            if known is HOST_STATIC:
                return execute(handle, device, op, inputs, attrs, *rest)
            return static_shape(name, inputs, attrs, False)
        try:
            eager = execute(handle, device, op, [real(x) for x in inputs], attrs, *rest)
        except (tfi.NotOkStatusException, tfi.OpError):
            self._note_failure(schema, inputs)
            raise
        info = op_info(schema, attrs, device or "")
        outs = self.record(info, tuple(inputs), eager, (-1,) * len(eager), None, attrs)
        self.look_out(schema, inputs, outs)
        return outs

    def _note_failure(self, schema, inputs):
        """A kernel has failed; if the inputs' values may be why, the graph's would fail later than the step's code expects it, unless that waits for it."""
        if not (schema.outputs and catching.would_catch(self.step, schema, inputs)) and not is_harmless(schema.name, (VALUE,) * len(inputs)):
            self.step.failed = schema.name

    def look_out(self, schema, flat, outs):
        """Makes the step wait for an operation, if that may fail and the program would catch it."""
        if catching.would_catch(self.step, schema, flat):
            for t in outs:
                if t._enum in CHECK_INFOS:
                    self.check(t)
                    break

    def check(self, t):
        with self.step.visit():
            if t._value is None and self.step.mode is self and not self.step.before_read():
                self.note_fetch(t, self.cursor.current, CHECK_INFOS, self.step.line_here(), self._origin())

    # -- imperative-only operations --------------------------------------------------------------------------------------------

    def _host(self, schema, ctx, op, name, inputs, flat, attrs):
        real_args = [[host_value(t) for t in x] if type(x) in (list, tuple) else host_value(x) for x in inputs]
        # The tapes stay on: a py_function records its own inside. What the entry point itself records is overridden below.
        self.step.pause()
        try:
            result = tfi.fast_execute(ctx, op, name, *real_args, *attrs)
        finally:
            self.step.resume()
        eager, template = flat_outputs(result)
        self.step.note_host_outputs(schema, eager)
        if not tfi.tape_set_is_empty() and any(type(x) is TerraTensor for x in flat):
            self.record_on_tapes(op, list(flat), attrs + schema.inferred_attrs(inputs), eager)
        return result

    record_on_tapes = staticmethod(record_on_tapes)

    def _host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest):
        values = [host_value(x) for x in inputs]
        self.step.pause()
        try:
            result = execute(handle, device, op, values, attrs, *rest)
        finally:
            self.step.resume()
        self.step.note_host_outputs(schema, result)
        return result

    # -- recording -------------------------------------------------------------------------------------------------------------

    def record(self, info, flat, eager, template, fast_attrs, grad_attrs, location=None, outs=None):
        """Record one executed op; returns the TerraTensors of its outputs (`outs` if they exist already, as after a fallback)."""
        refs, shape_key, open_ended = self._inputs(info, flat)
        position = len(self.events)
        origin = None
        if location is None:
            location, origin = self.cursor.current, self._origin()
        unreliable = (info.key, location) in self.step.store.dynamic
        shapes = tuple([e._shape_tuple() for e in eager])
        enums = info.out_enums
        if enums is None:
            enums = info.out_enums = tuple([e._datatype_enum() for e in eager])
        if not (info.asked or open_ended):
            open_ended = self._meet(info, flat, refs, shape_key)
        open_ended = open_ended or any(has_varying_shape(info.schema, x) for x in flat)
        if open_ended or unreliable:
            shapes = tuple(open_shapes(info, [x._datatype_enum() for x in flat], shape_key, handles(refs, flat), shapes, unreliable))
        self.events.append(known_event(self, position, RawEvent(
            info, location, tuple(refs), tuple(shape_key), shapes, enums, template, fast_attrs, grad_attrs, eager[0].device if eager else "", origin=origin)))
        if outs is None:
            outs = [make_tensor(DTYPES[n], n, s, (position, k), self, e) for k, (e, n, s) in enumerate(zip(eager, enums, shapes))]
        else:
            for k, (out, e) in enumerate(zip(outs, eager)):
                out._hidden, out._owner, out._key = e, self, (position, k)
                if out._shp is None:
                    out._shp = shapes[k]
        self.outputs += outs
        if position >= self._sweep_at:
            self._sweep()
        return outs

    @staticmethod
    def _meet(info, flat, refs, shape_key):
        """An operation is recorded for the first time, with inputs of known shapes: whether the shapes of its outputs depend on data all the same."""
        schema = info.schema
        info.asked = schema.met = True
        if info.category != opschema.GRAPH or schema.is_function:
            return False
        keys = []
        for x, key, by_value in zip(flat, shape_key, info.value_flags):
            if by_value and not is_value(key):  # it has too many elements to be compared at each step, but not for being told once
                key = value_key(real(x))
            keys.append(key)
        shapes = output_shapes(info, [x._datatype_enum() for x in flat], keys, handles(refs, flat), len(info.out_enums))
        if shapes is None or all(type(shape) is tuple for shape in shapes):
            return False
        schema.depends_on_data()
        return True

    def _inputs(self, info, flat):
        """(references, shape keys, whether the shapes of the outputs depend on data) for the inputs of an op."""
        refs, shape_key = [], []
        open_ended = info.schema.dynamic
        needs_value = info.value_flags
        if needs_value is None:
            needs_value = info.value_flags = tuple(value_positions(info.schema, info, len(flat)))
        externals = self.externals
        for x, by_value in zip(flat, needs_value):
            if type(x) is TerraTensor:
                if x._owner is self:
                    shape = x._shp
                    refs.append((VALUE, *x._key))
                    shape_key.append(shape)
                    if by_value or type(shape) is not tuple:
                        open_ended = True
                    continue
                if by_value and not self.computed_by_value:
                    open_ended = True
                ref, key = self.external(x, by_value)
            elif by_value:
                ref, key = self.external(x, True)
            else:
                known = externals.get(id(x))
                if known is None:
                    known = externals[id(x)] = (*self.external(x, False), x)
                ref, key, _ = known
            refs.append(ref)
            shape_key.append(key)
        if info.category == opschema.RANDOM:
            refs.append((FEED, self._number(object()), seed_enum(info.op_type)))
        return refs, shape_key, open_ended

    def _note(self, noted, eager):
        """Record one executed op whose output shapes are what they are; the rest of the work is put off until `settle`.

        Between two operations, what the processor holds of this code is gone each time: many events in one go take a third as long.
        """
        events = self.events
        position = len(events)
        events.append(noted)
        outs = []
        for k, e in enumerate(eager):
            enum = e._datatype_enum()
            outs.append(make_tensor(DTYPES[enum], enum, e._shape_tuple(), (position, k), self, e))
        self.outputs += outs
        if position >= self._sweep_at:
            self._sweep()
        return outs

    def _sweep(self):
        """Let go of the tensors that the program has dropped: tracing needs about as much memory as eager execution."""
        self.settle()  # what is noted holds its tensors
        self.outputs = still_held(self.outputs)
        self._sweep_at = len(self.events) + _SWEEP + len(self.outputs) // 4  # those that are held (by a tape, say) are looked at again, but not too often

    def settle(self):
        """Make events of what was only noted."""
        events, before, devices = self.events, self.before, not hardware.has_one_device()
        for position in range(self._settled, len(events)):
            noted = events[position]
            if type(noted) is not tuple:
                continue
            if position < len(before) and is_repeated(self, noted, before[position], devices):
                events[position] = before[position]
                continue
            schema, inputs, flat, attrs, device, location, eager, template, origin = noted
            enums = enums_of(flat)
            info, grad_attrs = schema.call(inputs, enums, attrs, device)
            refs, shape_key, _ = self._inputs(info, flat)
            if info.out_enums is None:
                info.out_enums = tuple([e._datatype_enum() for e in eager])
            if not info.asked and self._meet(info, flat, refs, shape_key):
                self.step.function.begins_anew = True  # operations behind it were recorded as if its shapes were known
            events[position] = RawEvent(
                info, location, tuple(refs), tuple(shape_key), tuple([e._shape_tuple() for e in eager]), info.out_enums, template, attrs, grad_attrs,
                eager[0].device if eager else "", enums=enums if schema.tells_apart(attrs) else None, origin=origin)
        self._settled = len(events)

    def _origin(self):
        """Where the operation at hand comes from: ((path, line number) of the program's code, the name scope)."""
        return frames.place_inside(self.step.function.step_code), scopes.name_scope()

    def _number(self, x):
        return self._objects.setdefault(id(x), (len(self._objects), x))[0]

    def external(self, x, needs_value):
        """Reference and shape key of a tensor that no operation of this step produced."""
        arg = self.step.args.get(id(x))
        e = real(x)
        enum = e._datatype_enum()
        if enum == RESOURCE_ENUM:
            if id(x) in self.step.new_handles:  # a variable that this step itself created: another one each time
                return (FEED, self._number(x), enum), None
            tables.note(x)
            return (RESOURCE, x), None
        shape = e._shape_tuple()
        if arg is not None:
            return (ARG, arg[0], enum), (const_key(e, enum, shape) if needs_value and is_small_constant(enum, shape) else shape)
        small = is_small_constant(enum, shape)
        if small and not self.step.is_data(x):
            key = const_key(e, enum, shape)
            return (CONST, Const(self._number(x), key, e)), key if needs_value else shape
        return (FEED, self._number(x), enum), (const_key(e, enum, shape) if needs_value and small else shape)

    def materialise(self, t):
        """Python reads the value of `t`: a fetch point of the step."""
        with self.step.visit():  # worker threads of the step may read, too
            if t._value is None and not (self.step.mode is self and self.step.before_read()):
                if self.step.mode is self:
                    self.note_fetch(t, self.cursor.current, line=self.step.line_here(), origin=self._origin())
                else:
                    t._value = t._hidden
        return t._value

    def read_again(self, tensor):
        """Python reads what it has fetched before."""

    def note_fetch(self, t, location, infos=FETCH_INFOS, line=None, origin=None):
        event = RawEvent(infos[t._enum], location, ((VALUE, *t._key),), (), (), (), None, None, None, line=line, origin=origin)
        self.events.append(known_event(self, len(self.events), event))
        if t._value is None:
            t._value = t._hidden

    def finish(self):
        """Settle the tensors that outlive the step, and note which they are."""
        self.settle()
        survivors = self.raw.survivors
        self._objects = self.externals = {}
        self.before = ()
        for t in still_held(self.outputs):
            if t._value is None:
                survivors.append(t._key)
                t._value = t._hidden
            t._owner = None
        return self.raw


def real(x):
    """The eager tensor to compute with (no fetch is noted: operations may use hidden values)."""
    if type(x) is TerraTensor:
        value = x._value
        if value is None:
            value = x._hidden if isinstance(x._owner, Tracer) else x._eager()
        return value
    return x


def host_value(x):
    """The eager tensor for an imperative-only op: a fetch point if it is a value of the step."""
    return x._eager() if type(x) is TerraTensor else x
