"""PythonRunner: walks the program while Python runs the skeleton of a step.

Each operation that the skeleton issues is checked against the node that can follow (type, attributes, device, executed location, and for each
input that it is the value, constant, argument or variable it was), and gets placeholder tensors as its outputs. What Python decides goes to the
graph: values (Input Feeding), control edges (Case Select). What Python reads comes from the graph (Output Fetching). An operation that no known node
matches ends co-execution of the step: see `Completion.diverge`.
"""

from itertools import islice

from terra.graph.trace import ARG, CONST, FEED, RESOURCE, VALUE
from terra.runtime.execution.channels import Channels
from terra.runtime.execution.completion import Completion
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.matching.inputs import NUMBERS, has_constant, learn_numbers, speculated_alike, value_of_fed, value_as_far_as_known
from terra.runtime.execution.matching.reasons import why
from terra.runtime.execution.matching.shapes import infer_shapes
from terra.runtime.execution.placeholders import flat_template, launched
from terra.runtime.tapes.lazy_tape import Tapes
from terra.runtime.tensors.draws import rows_of, seed_tensor
from terra.runtime.tensors.host_values import HOST_STATIC, host_static, recorded_shape, static_shape
from terra.runtime.tensors.size_origins import KnowsSizes
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tracing.structures import nest_outputs, with_values
from terra.runtime.tracing.tracer import Tracer, host_value
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import const_key, is_small_constant, known_to_host
from terra.tf.opschema import get_schema, op_info

EagerTensor, FallbackException = tfi.EagerTensor, tfi.FallbackException
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
_context_changes = tfi.context_changes


class PythonRunner(Channels, Completion, KnowsSizes):
    """Walks `program` for one step. Gives the hook its entry points, like Tracer."""

    tracer = Tracer  # what goes on after a fallback
    observer = None  # who observes the user's code that is running, if somebody does
    replayed = None  # the place in the log of the operation that was replayed last
    opens = ()  # in the end: entries of the operations that have left sizes of the step's arguments open, before it was jumped over
    has_failed = False  # whether the step fell back because a kernel of its graph failed
    takes_gradients_by_function = True  # whether a gradient that runs is to be skipped function by function
    computed_by_value = True  # whether a value that earlier steps computed may decide shapes by its value

    def __init__(self, step, program, form=None, single_threaded=False):
        self.step = step
        self.single_threaded = single_threaded  # whether the graph is to run on one thread
        self.cursor = step.cursor
        self.program = program
        self.form = form or program.generated  # of its graph
        self.node = program.start
        self.expected = program.start.expected
        self.issued = []  # placeholders, in order
        # (node, inputs: value keys of this step, numbers of arguments, or outside tensors; drawn seeds) of what was matched
        self.log = []
        self.fed = {}  # id of a fed tensor -> (its value key, shape, the tensor), in order
        self.fed_by_key = {}
        self._fed_signature = []
        self.by_value = []  # the values of what was fed, where they decide the shape of a result, and other attributes than those of the trace
        self.latest = {}  # slot with several sources -> value key executed latest
        self.late = not self.form.early
        self.waited = 0.0  # seconds that it took to run the graph, if that was run and not dispatched
        self.unconverted = None
        self.outside_events = 0  # imperative-only operations: a jump could not repeat them
        self.received = {}  # node -> the value that it has fetched
        self.read_twice, self.reads, self.shape_reads, self.jumped_reads = [], {}, {}, {}  # see `fast_forward.cache.conditions`; the first: keys of values that were read after they had been fetched
        self.deferred_fetches = {}  # what is `held`, see `DeferredFetches`, of the numbers that the framework has read
        self.recorded_within = False  # whether a call is being recorded for the first time, of which those that it makes are part
        self.attempted = set()  # the user's functions whose calls are being observed or jumped over
        self.modules_checked = False  # whether fast-forward has looked for replaced functions of the framework
        self.chosen = []  # what Case Select was told
        self._told = set()  # queues that have got their values, though what they were for was taken back
        self._gathered = {}  # queue of several feeds -> {place: value}
        self.path = 0  # a digest of the branches taken
        self.tapes = Tapes(self, step.lazy_tapes, several=True)
        self.other_shapes_at = -1  # where in the log an operation had other shapes than the graph is right for, so that its general form has to run
        self._jumps = []  # (place in the log, record)
        self._index = {}  # value key -> placeholder, of the first `_indexed` issued ones
        self._indexed = 0
        if self.late:
            self.selects = [0] * len(self.form.select_index)
            self.feeds = [None] * program.n_feeds
            self.manager = None
        else:
            self._start()

    def device(self):
        """The name of the device that operations are to run on now, empty if nothing asks for one."""
        step = self.step
        if step.settings_seen != _context_changes[0]:
            step.look_at_settings()
        return step.device or ""

    # -- the three entry points ------------------------------------------------------------------------------------------------

    def fast(self, ctx, op, name, *args):
        node = self.expected
        if node is not None and node.op_type == op and node.location is self.cursor.current and args[node.n_in:] == node.fast_attrs \
                and node.device == self.device():
            flat = args[:node.n_in] if not node.has_lists else node.info.schema.flatten(args[:node.n_in])
            outs = self._match(node, flat, (), None)
            if outs is not None:
                if not tfi.tape_set_is_empty():
                    self.tapes.record(
                        op, [x if type(x) not in NUMBERS else slot.const_obj for x, slot in zip(flat, node.slots)], node.grad_attrs, outs)
                if node.checked:
                    self._check(outs)
                return outs[0] if node.template is True else nest_outputs(outs, node.template)
        return self._fast(ctx, op, name, args)

    def _fast(self, ctx, op, name, args):
        """Everything but the expected operation."""
        schema = get_schema(op)
        n = schema.n_inputs
        inputs, attrs = args[:n], args[n:]
        flat = schema.flatten(inputs)
        for x in flat:
            t = type(x)
            if t is not TerraTensor and t is not EagerTensor:
                read = with_values(inputs, flat)
                if read is None:
                    self.unconverted = (op, flat, attrs)
                    raise FallbackException("converted by the slow path")
                return self.step.mode.fast(ctx, op, name, *read, *attrs)
        category = schema.category
        seeded = self.step.seeded(schema, flat, attrs) if category == opschema.RANDOM else attrs
        if seeded is None or self.step.runs_imperatively(schema, attrs, flat):
            return self._host(schema, ctx, op, name, inputs, flat, attrs, args)
        attrs = seeded
        known = host_static(schema, op, flat, self)
        if known is not None:
            return tfi.fast_execute(ctx, op, name, *args) if known is HOST_STATIC else recorded_shape(schema, op, inputs, flat, attrs, self.tapes.record)
        grad_attrs = attrs + schema.inferred_attrs(inputs)
        info = op_info(schema, grad_attrs, self.device())
        found = self._find(info, flat, attrs if schema.varies else None)
        if found is None:
            self.diverge(why(self, info, flat))
            return self.step.mode.fast(ctx, op, name, *args)
        node, outs = found
        if node.fast_attrs is None and schema.tells_apart(attrs):
            node.fast_attrs = attrs
            node.template = flat_template(schema, node.outs, node.info)  # traced on the converting path, which returns lists
        if not tfi.tape_set_is_empty():
            self.tapes.record(op, list(flat), grad_attrs, outs)
        if node.checked:
            self._check(outs)
        return nest_outputs(outs, flat_template(schema, outs, info))

    def slow(self, execute, handle, device, op, inputs, attrs, *rest):
        name = op.decode() if type(op) is bytes else op
        attrs = attrs or ()
        node = self.expected
        if node is not None and node.op_type == name and node.exec_attrs == attrs and node.location is self.cursor.current:
            outs = self._match(node, inputs, (), None) if node.device == (device or "") else None
            if outs is not None:
                learn_numbers(self, node)
                if node.checked:
                    self._check(outs)
                return list(outs)
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
            return execute(handle, device, op, inputs, attrs, *rest) if known is HOST_STATIC else static_shape(name, inputs, attrs, False)
        info = op_info(schema, attrs, device or "")
        found = self._find(info, tuple(inputs), attrs if schema.varies else None)
        if found is None:
            self.diverge(why(self, info, inputs))
            return self.step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
        node, outs = found
        if node.exec_attrs is None and schema.tells_apart(attrs):
            node.exec_attrs = attrs
        learn_numbers(self, node)
        if node.checked:
            self._check(outs)
        return list(outs)

    # -- imperative-only operations --------------------------------------------------------------------------------------------

    def record_on_tapes(self, *record):
        """Tell the tapes of an operation that has run imperatively."""
        self.tapes.record(*record)

    def _host(self, schema, ctx, op, name, inputs, flat, attrs, args):
        if op == "DestroyResourceOp" and id(flat[0]) in self.step.new_handles:
            self.outside_events += 1
            self.step.deferred_destroys.append(flat[0])  # the graph has yet to use it
            return None
        if not self._prepare_host(schema, flat):
            return self.step.mode.fast(ctx, op, name, *args)
        tracer = self.step.mode
        if tracer is not self:  # a fetch diverged
            return tracer.fast(ctx, op, name, *args)
        return Tracer._host(self, schema, ctx, op, name, inputs, flat, attrs)

    def _host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest):
        if not self._prepare_host(schema, inputs) or self.step.mode is not self:
            return self.step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
        return Tracer._host_slow(self, schema, execute, handle, device, op, inputs, attrs, *rest)

    def _prepare_host(self, schema, flat):
        """Fetch what the op reads; False if the step had to fall back because the op sees variables that the step has not committed."""
        self.outside_events += 1
        if self.step.touches_variables(schema, flat):
            if self.conflicts(schema, flat):
                self.diverge(f"{schema.name} runs imperatively and uses variables that this step has updated, or updates some, before it")
                return False
            GRAPH_RUNNER.sync()
        for x in flat:
            host_value(x)
        return self.step.mode is self

    def conflicts(self, schema, inputs):
        """Returns whether an imperative op on these variables must not run now: the graph still has to update them, or has to read what the op overwrites."""
        touched = {id(getattr(y, "handle", y)) for x in inputs for y in (x if type(x) is list or type(x) is tuple else (x,))}
        if not self.late and not touched.isdisjoint(self.step.new_handles):
            return True
        writes = schema is None or schema.may_write
        # A graph that runs already may read what the op writes, or have updated in its place what the op reads.
        at_risk = () if self.late else self.program.handles if writes else [id(handle) for handle in self.form.in_place]
        if not touched.isdisjoint(at_risk):
            self.step.function.early_start.harmed()
            return True
        return any(
            (node.category == opschema.VARIABLE and (node.updates or writes) or (writes and node.category != opschema.FETCH and node.info.schema.reads_tables))
            and any(id(x) in touched for x in refs if type(x) is EagerTensor)
            for node, refs, _ in self.log)

    # -- fast-forward ----------------------------------------------------------------------------------------------------------

    def note_fed(self, key, shape, x):
        """The tensor `x` becomes the value `key`, unless it was fed before."""
        if id(x) not in self.fed:
            self.fed[id(x)] = key, shape, x
            self.fed_by_key[key] = x

    def fed_signature(self):
        """Returns a tuple that tells what was fed so far, with its shapes."""
        signature = self._fed_signature
        for key, shape, tensor in islice(self.fed.values(), len(signature) // 3, None):
            signature += (key, shape, known_to_host(self, tensor))
        return signature

    def note_jump(self, record):
        self._jumps.append((len(self.log), record))

    def jumped_shapes(self, place):
        """{value key: (dtype, enum, shape)} of the records jumped over since the log was `place` long."""
        shapes = {}
        for at, record in self._jumps:
            if at >= place:
                shapes.update(record.shapes)
        return shapes

    def placeholder(self, key, shapes):
        """The placeholder for a value of this step, made now if a jump skipped the code that would have."""
        index = self._index
        for t in self.issued[self._indexed:]:
            index[t._key] = t
        t = index.get(key)
        if t is None:
            dtype, enum, shape = shapes.get(key) or self.jumped_shapes(0)[key]
            t = index[key] = make_tensor(dtype, enum, shape, key, self, None)
            self.issued.append(t)
        self._indexed = len(self.issued)
        return t

    def expand(self, record):
        return record.expanded(self)

    # -- matching --------------------------------------------------------------------------------------------------------------

    def _match(self, node, flat, selects, seeds):
        """If the inputs are those that `node` expects, take it as the next node and return its placeholders; else None, and nothing changed."""
        shape_key, refs, feeds = [], [], None
        if seeds is not None:
            flat = (*flat, seeds)
        slots = node.slots
        if len(flat) != len(slots):
            return None
        for x, slot in zip(flat, slots):
            kind = slot.kind
            if kind is VALUE:
                if type(x) is TerraTensor and x._owner is self:
                    key, shape = x._key, x._shp
                    refs.append(key)
                else:
                    known = self.fed.get(id(x))
                    if known is None:
                        return None
                    key, shape, _ = known
                    refs.append(x)
                    if slot.needs_value and type(shape) is tuple:
                        shape = value_of_fed(self, slot, key, shape, x)
                if key is not slot.key and (slot.multi is None or self.latest.get(slot.multi) is not key):
                    return None
                shape_key.append(shape)
            elif kind is RESOURCE:
                if x is not slot.handle:
                    return None
                refs.append(x)
                shape_key.append(None)
            elif kind is CONST:
                if type(x) is slot.py_type and x == slot.py_value:
                    x = slot.const_obj
                elif x is not slot.const_obj and not has_constant(self, slot, x):
                    return None
                refs.append(x)
                shape_key.append(slot.const_shape_key)
            else:
                if type(x) is EagerTensor:
                    e, enum = x, x._datatype_enum()
                elif type(x) is TerraTensor and x._owner is not self:
                    e, enum = launched(x), x._enum
                else:
                    return None
                if enum != slot.enum or (enum == RESOURCE_ENUM and id(x) not in self.step.new_handles):
                    return None
                arg = self.step.args.get(id(x))
                if (arg is None or arg[0] != slot.arg) if kind is ARG else (arg is not None or id(x) in self.fed):
                    return None
                shape = key = None if enum == RESOURCE_ENUM else x._shape_tuple()
                if slot.needs_value and is_small_constant(enum, shape) and (self.computed_by_value or type(x) is EagerTensor):
                    key = const_key(e, enum, shape) if kind is ARG or not self.step.partial_shapes else value_as_far_as_known(self, slot, e, enum, shape)
                    self.by_value.append(key)
                if x is not seeds:
                    refs.append(x)
                    shape_key.append(key)
                if kind is FEED:
                    feeds = feeds or []
                    feeds.append((slot, x, e, shape))
        shapes = node.shapes.get(tuple(shape_key))
        if shapes is None:
            shapes = infer_shapes(self, node, flat, shape_key)
            if shapes is None:
                return None
        # Accepted.
        if selects:
            self._select(selects)
        if feeds is not None:
            self._feed_all(node, feeds, seeds)
        outs = []
        for (dtype, enum, key), shape in zip(node.outs, shapes):
            outs.append(make_tensor(dtype, enum, shape, key, self, None))
        for multi, key in node.assigns_multi:
            if key.out >= 0:
                self.latest[multi] = key
        self.issued += outs
        self.log.append((node, refs, None))
        self.node = node
        self.expected = node.expected
        return outs

    def _feed_all(self, node, feeds, seeds):
        """Give the graph what `node` has got from Python: [(slot, what was given, its tensor, shape)]."""
        for slot, x, e, shape in feeds:
            if x is not seeds and id(x) not in self.fed:  # (as `note_fed`, without the call)
                self.fed[id(x)] = slot.key, shape, x
                self.fed_by_key[slot.key] = x
            self._feed(slot, e)
            for multi, key in node.assigns_multi:
                if key is slot.key:
                    self.latest[multi] = key

    def _find(self, info, flat, own_attrs):
        """The first node that can follow and matches, as (node, placeholders); or None. `own_attrs`: those of this call, where that is no matter."""
        location = self.cursor.current
        seeds = None
        if info.category == opschema.RANDOM:
            seeds = seed_tensor(info.op_type, own_attrs, rows_of(flat[0]) if info.op_type == opschema.SHUFFLE else None)
        unclear = self.node.unclear
        for node, selects in self.node.successors:
            if node.info is info and node.location is location:
                if unclear and not speculated_alike(self, node, flat):
                    continue
                outs = self._match(node, flat, selects, seeds)
                if outs is not None:
                    if own_attrs is not None:
                        self.log[-1] = (node, self.log[-1][1], own_attrs)
                        if seeds is None:  # gradients tell the message, too
                            self.by_value.append(own_attrs)
                    return node, outs
        return None

    def _from_outside(self, x):
        """Returns whether the tracing phase would speculate that `x` is constant if it is small enough."""
        if type(x) is TerraTensor:
            if x._owner is self or not self.computed_by_value:
                return False
        elif type(x) is not EagerTensor:
            return False
        return id(x) not in self.step.args and not self.step.is_data(x)
