"""GraphGenerator: from a TraceGraph to a symbolic graph (Terra, section 4.2).

The graph is a TensorFlow function, written as FunctionDef protos: nodes that lie on every path are emitted inline, each switch-case with several cases
becomes a Case operation with one function for each case, driven by Case Select. Three forms of the same plan exist:

* *late*: feeds and selects are plain arguments; the function is dispatched when the skeleton has validated the whole step. It is what a step without
  fetches uses: no queue, no gate, nothing to cancel.
* *early*: the function starts with the step; feeds, selects and fetches go through queues (one for each point, so that no order between them is
  needed), and the updates of variables wait behind a gate for a token that Python sends when the step is validated.
* *deferred*: the late form where there are fetches, for steps that are skipped as a whole: what Python reads without a look at it are outputs, read in the end.
  There is another one with *conditions*: of what Python looks at, it is told what that should be.

In all forms the new value of a variable is forwarded to later reads, and the variables are assigned last, behind a barrier that all other operations
that may fail have passed: a failing kernel leaves every variable as it was. Updates that cannot be forwarded (fused optimizer kernels, scatter updates, nested
functions that write) run behind the barrier too, with all that depends on them, if none of that can fail (see `behind`); else they keep their place, and what they overwrite is noted before (see `fallback.undo`).
"""

import itertools
import os

from terra.errors import GenerationError
from terra.graph.cases import select_table
from terra.graph.dataflow import Slot, Value, make_plan
from terra.graph.harmless import is_harmless
from terra.graph.trace import ARG, CONST, FEED, FETCH, RESOURCE, VALUE
from terra.runtime.generation import conditions
from terra.runtime.generation.commit import Commits
from terra.runtime.generation.feeds import Feed, group_feeds
from terra.runtime.generation.functiondef import FunctionBuilder, attr, attr_protos, dtype, func, func_list, safe_name, type_list
from terra.runtime.generation.generated import Generated
from terra.runtime.generation.kernels import alternatives, behind, eager_kernels, sampled
from terra.runtime.generation.kernels.eager_kernels import constant_proto
from terra.runtime.generation.scope import Scope
from terra.runtime.generation.variables import NEW_VALUE, Accesses
from terra.tf import internals as tfi
from terra.tf import opschema
from terra.tf.fingerprints import COMPILED
from terra.tf.opschema import ASSIGN, ASSIGN_ADD, ASSIGN_SUB, READ, READS_ONLY, SKIP

INT32 = tfi.types_pb2.DT_INT32
INT64 = tfi.types_pb2.DT_INT64
BOOL = tfi.types_pb2.DT_BOOL
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
VARIANT_ENUM = tfi.types_pb2.DT_VARIANT
FEW_SHAPES = 4  # that an operation has had, up to which it is worth a graph that is right for the first of them only

_function_numbers = itertools.count()


class GraphGenerator(Commits):
    """Generates one form of the graph.

    new_queue(enums): makes a channel for values of these types, which it takes together; it is only called for the early form. deferred: whether fetches are outputs, else the late form has none; conditional: whether it has conditions.
    optimize: results need not be bitwise those of eager execution. compiled: XLA may compile parts of the graph. fixed: those operations {node: its shapes}
    for whose shapes alone the graph may be right; all, with the shapes that they had so far, if it is empty; none if it is None.
    """

    def __init__(self, store, early, new_queue=None, optimize=False, compiled=False, fixed=None, deferred=False, conditional=False):
        self.store = store
        self.graph = store.graph
        self.early = early
        self.deferred, self.conditional = deferred, conditional
        self._fetched = []  # (fetch node, ref of its value), in the deferred form
        self.new_queue = new_queue
        self.exact = not optimize
        self.compiled = compiled
        self.fixed = None if compiled or tfi.n_gpus() else fixed
        self.forgiving = not compiled and not tfi.n_gpus()  # else any operation may fail: XLA may refuse it, a GPU may run out of memory
        self.out = Generated()
        self.out.early = early
        self.prefix = f"terra_{next(_function_numbers)}"
        self._keys = {}  # argument name -> key
        self._arg_names = {}
        self._apart = {}  # a function that is not inlined, and what its variables are -> the name of the copy that is called
        self.handles = {}
        self._labels = {}
        self._attr_protos = {}
        self._behind = []  # nodes that run behind the barrier, see `Commits`
        self._barriers = []  # what operations on variables themselves wait for, there

    # -- names and types -------------------------------------------------------------------------------------------------------

    def arg_name(self, key):
        name = self._arg_names.get(key)
        if name is None:
            name = self._arg_names[key] = f"{key[0] if type(key) is tuple and type(key[0]) is str else 'v'}_{len(self._arg_names)}"
            self._keys[name] = key
        return name

    def key_enum(self, key):
        if isinstance(key, Slot):
            node, out = key.sources[0]
            return self._out_enum(node, out)
        if isinstance(key, Value):
            return self._out_enum(key.node, key.out)
        kind = key[0]
        if kind in ("res", "queue"):
            return RESOURCE_ENUM
        if kind == "selects":
            return INT32
        if kind == "expected":
            return INT64
        if kind == "var":
            return self._accesses.enums[key[1]]
        return key[2]  # ("arg", i, enum), ("feed", index, enum)

    def _out_enum(self, node, out):
        site = node.payload
        return site.event.out_enums[out] if out >= 0 else site.kinds[-1 - out][1]

    def _label(self, node):
        location = node.payload.event.location
        label = self._labels.get(location)
        if label is None:
            origin = location.origin()
            label = safe_name(f"{os.path.basename(origin[0])}_L{origin[1]}") if origin else "step"
            if not label[0].isalpha():
                label = "f" + label
            self._labels[location] = label
        return label

    def _protos(self, info):
        protos = self._attr_protos.get(info)
        if protos is None:
            protos = self._attr_protos[info] = attr_protos(info)
        return protos

    def _protos_of(self, info, names):
        protos = self._protos(info)
        return {name: protos[name] for name in names}

    # -- emission --------------------------------------------------------------------------------------------------------------

    def generate(self):
        """Build the function; returns `Generated`. Raises GenerationError if this TraceGraph cannot be written as one."""
        out = self.out
        self.switch_cases = self.graph.switch_cases()
        out.selects = select_table(self.switch_cases)
        order = self.graph.topological()
        accesses = self._accesses = Accesses(order, self.switch_cases, self.handles, self._can_run_behind, self._is_open)
        extra, out.in_place = accesses.slots, [self.handles[v] for v in sorted(accesses.in_place)]
        out.live_out = sorted(self.store.live_out, key=lambda v: (v[0].order, v[1]))
        self.plan = make_plan(self.graph, self.switch_cases, out.live_out, extra)
        for node in order:
            for k, kind in enumerate(node.payload.kinds):
                if kind[0] == FEED:
                    out.feeds[node, k] = Feed(node, k, kind[1], len(out.feeds))
        if self.early:
            for block in [branch.block for item in self.plan.items for branch in item.branches]:
                group_feeds(block, out.feeds)
        builder = FunctionBuilder(self.prefix)
        self.top = top = Scope(self, builder)
        choices = [item for item in self.plan.items if item.is_case]
        if choices and not self.early:
            for position, item in enumerate(choices):
                out.select_index[item.switch_case] = position
            unpack = builder.node(
                "Unpack", [top.get(("selects",))], {"num": attr(len(choices)), "axis": attr(0), "T": dtype(INT32)})
        self._keep_values(top)
        for item in self.plan.items:
            if not item.is_case:
                for node in item.branches[0].block:
                    if node in accesses.behind:
                        self._behind.append(node)
                    else:
                        self._emit(top, node)
                continue
            if self.early:
                queue = out.select_queues[item.switch_case] = self.new_queue((INT32,))
                (select,) = self._dequeue(top, queue, (INT32,), "case_select")
            else:
                select = f"{unpack}:output:{out.select_index[item.switch_case]}"
            self._emit_case(top, item, select)
        self._check_conditions(top)
        given = [top.get(Value(*v)) for v in out.live_out if v[0] not in accesses.behind]
        self._commit(top, [slot for slot in extra if slot.live_at_end], [*given, *[ref for _, ref in self._fetched]])
        done = builder.const("done", lambda: constant_proto(True, BOOL))
        results = [(done, BOOL)] + [(top.get(Value(*v)), self._out_enum(*v)) for v in out.live_out]
        for node, ref in self._fetched:
            out.fetched[node] = len(results)
            results.append((ref, self._out_enum(*node.slots[0][0])))
        out.name = self.prefix
        out.n_outputs = len(results)
        if self.early:
            out.feed_queues = [(feed.group.queue, feed.group.feeds.index(feed), len(feed.group.feeds)) for feed in out.feeds.values()]
        names = list(builder.args)
        out.arg_specs = [self._keys[n] for n in names]
        out.fdefs.append(builder.finish(names, results))
        return out

    def _dequeue(self, scope, queue, enums, label, controls=()):
        handle = scope.get(("queue", queue))
        name = scope.builder.node(
            "QueueDequeueV2", [handle], {"component_types": type_list(enums), "timeout_ms": attr(-1)}, label, controls)
        scope.builder.must(name)
        return [f"{name}:components:{k}" for k in range(len(enums))]

    def _emit(self, scope, node):
        site = node.payload
        event = site.event
        info = event.info
        label = self._label(node)
        refs = self._input_refs(scope, node, label)
        category = info.category
        before = len(scope.builder.node_names)
        if category == opschema.FETCH:
            self._emit_fetch(scope, node, refs, label)
            return
        harmless = self._is_harmless(node)
        outputs = scope.repeated.find(info, refs) or self._emit_operation(scope, node, refs, label, harmless)
        scope.repeated.note(event, refs, outputs)
        if harmless:
            scope.harmless.update(scope.builder.node_names[before:])
        if scope is self.top and self._has_open_shape(event):
            self.out.open_refs.update(ref.partition(":")[0] for ref in (outputs.values() if type(outputs) is dict else outputs))
        if scope is not self.top and type(outputs) is list and outputs:
            scope.made[outputs[0].partition(":")[0]] = outputs[0], event.out_enums[0]
        for key, k in self.plan.keys_defined_by(node):
            if k < 0:
                continue  # a fed value, defined with the inputs
            scope.env[key] = outputs[k]

    def _emit_operation(self, scope, node, refs, label, harmless):
        site = node.payload
        event, info = site.event, site.event.info
        if info.category == opschema.VARIABLE:
            return self._emit_variable_op(scope, node, refs, label)
        if info.op_type in opschema.SAMPLERS:
            return sampled.sampled_candidates(scope.builder, info.op_type, refs, self._protos(info), label)
        if info.category == opschema.RANDOM:
            return [eager_kernels.stateless_random(scope.builder, info.op_type, refs, self._protos(info), label)]
        outputs = self._emit_scaled(scope, site, refs, label) if harmless and info.op_type in eager_kernels.SCALING else None
        outputs = outputs or self._emit_otherwise(scope, node, refs, label) or self._emit_plain(scope, info, event, refs, label)
        if harmless and info.op_type == "BroadcastTo":
            scope.spread.note(refs, outputs[0], self._protos(info), event.out_shapes[0])
        return outputs

    def _emit_scaled(self, scope, site, refs, label):
        scalars = [kind[0] == CONST and kind[1].key[1] == () for kind in site.kinds]
        result = scope.spread.scaled(scope.builder, site.event.info.op_type, refs, scalars, self._protos(site.event.info), label)
        return result and [result]

    def _emit_otherwise(self, scope, node, refs, label):
        """The outputs of a faster way to compute an operation, which is right for the shapes that it had first; None if there is none."""
        if self.fixed is None or self._barriers or node.payload.event.info.op_type not in alternatives.TYPES or self._is_open(node):
            return None
        fixes = node.payload.event.info.op_type not in alternatives.OF_ANY_SHAPE
        known = self.fixed.get(node) if self.fixed and fixes else dict(node.payload.shapes)
        question = alternatives.question(node, known)
        way = question and alternatives.find(question)
        if way is None or (fixes and len(known) > (1 if self.early else FEW_SHAPES)):
            return None
        if fixes:
            self.out.fixed[node] = dict([next(iter(known.items()))])
            self.out.varies = self.out.varies or len(known) > 1
            refs = [ref if value is not None else self._check_shape(scope, ref, enum, shape, label)
                    for ref, enum, shape, value in zip(refs, question.input_enums(), question.shapes, question.constants)]
        return way(scope.builder, refs, label)

    def _check_shape(self, scope, ref, enum, shape, label):
        """The ref of the same tensor: the graph fails, and nothing is committed, if it has another shape."""
        checked = scope.checked.get((ref, shape))
        if checked is None:
            name = scope.builder.node("EnsureShape", [ref], {"T": dtype(enum), "shape": tfi.as_attr_value(shape, "shape", "shape")}, label)
            checked = scope.checked[ref, shape] = name + ":output:0"
            scope.checks.add(name)
        return checked

    def _is_harmless(self, node):
        """Whether nothing that the operation is written as can fail."""
        info, kinds = node.payload.event.info, node.payload.kinds
        if not self.forgiving or info.device:
            return False
        if info.category == opschema.VARIABLE:
            known = all(how in (ASSIGN_ADD, ASSIGN_SUB) and v not in self._accesses.raw for _, v, how in self._accesses.access[node])
        elif info.category == opschema.RANDOM:
            known = eager_kernels.draws_harmlessly(info.op_type, kinds)
        else:
            known = is_harmless(info.op_type, kinds)
        return known and not self._is_open(node)

    @staticmethod
    def _with_sources(node):
        """The events of an operation and of those that give its inputs."""
        return node.payload.event, *[source.payload.event for slot in node.slots for source, _ in slot]

    def _has_open_shape(self, event):
        """Whether the shapes of an operation's outputs may depend on data."""
        return event.signature in self.store.dynamic or event.has_open_shape

    def _is_open(self, node):
        return any(map(self._has_open_shape, self._with_sources(node)))

    def _input_refs(self, scope, node, label):
        refs, value = [], 0
        fed = None
        for k, kind in enumerate(node.payload.kinds):
            what = kind[0]
            if what == VALUE:
                refs.append(scope.get(self.plan.slot_of[node, value]))
                value += 1
            elif what == CONST:
                const = kind[1]
                refs.append(scope.builder.const(const.key, lambda: constant_proto(const.tensor.numpy(), const.key[0])))
            elif what == ARG:
                refs.append(scope.get(("arg", kind[1], kind[2])))
            elif what == RESOURCE:
                self.handles[id(kind[1])] = kind[1]
                refs.append(scope.get(("res", id(kind[1]))))
            else:
                feed = self.out.feeds[node, k]
                if self.early:
                    ref = self._fed(scope, feed, label)
                else:
                    ref = scope.get(("feed", feed.index, feed.enum))
                refs.append(ref)
                fed = fed or {}
                fed[-1 - k] = ref
        if fed:
            for key, k in self.plan.keys_defined_by(node):
                if k in fed:
                    scope.env[key] = fed[k]
        return refs

    def _fed(self, scope, feed, label):
        """The ref of a value that comes by a channel."""
        group = feed.group
        if group.refs is None:
            enums = [other.enum for other in group.feeds]
            if RESOURCE_ENUM in enums and tfi.n_gpus():  # channels are on the CPU, and TensorFlow hands no variable of a GPU to an operation there
                raise GenerationError("a variable that the step makes would be handed to a graph that runs already, which a GPU's cannot be")
            group.queue = self.new_queue(enums)
            group.refs = self._dequeue(scope, group.queue, enums, label, [scope.last_fetch] if scope.last_fetch else ())
        return group.refs[group.feeds.index(feed)]

    def _emit_fetch(self, scope, node, refs, label):
        if self.deferred:
            if node.payload.event.info.op_type == FETCH:
                if scope is self.top:  # in a branch: steps that take it, and give the value back, use the early form
                    self._fetched.append((node, refs[0]))
                if self.conditional and conditions.is_condition(node):
                    scope.conditions.append((node, refs[0]))
            return
        if not self.early:
            raise GenerationError("a late-dispatch graph has no fetches")
        (source, k), = node.slots[0][:1]
        enum = self._out_enum(source, k)
        queue = self.out.fetch_queues[node] = self.new_queue((enum,))
        handle = scope.get(("queue", queue))
        name = scope.builder.node(
            "QueueEnqueueV2", [handle] + refs, {"Tcomponents": type_list([enum]), "timeout_ms": attr(-1)}, label)
        scope.builder.must(name)
        scope.last_fetch = name

    def _check_conditions(self, scope):
        """Have the form with conditions fail where what Python would look at is not what is expected."""
        known, values = self.out.conditions, []
        first = len(known)
        for node, ref in scope.conditions:
            known[node] = len(known)
            values.append((ref, self._out_enum(*node.slots[0][0])))
        if values:
            conditions.check(scope.builder, scope.get(("expected",)), first, values)

    def _emit_plain(self, scope, info, event, refs, label, controls=()):
        builder = scope.builder
        if info.schema.is_function:
            fdef = info.schema.fdef
            self.out.library.update(info.schema.library)
            op = "StatefulPartitionedCall" if fdef.signature.is_stateful else "PartitionedCall"
            config = _string_attr(info.raw.get("config_proto", b""))
            attrs = {
                "Tin": type_list([a.type for a in fdef.signature.input_arg]),
                "Tout": type_list([a.type for a in fdef.signature.output_arg]),
                "f": func(self._called(fdef, config, event.refs)),
                "config": attr(""), "config_proto": attr(config),
                "executor_type": attr(_string_attr(info.raw.get("executor_type", b""))),
            }
            if COMPILED in fdef.attr:
                attrs[COMPILED] = fdef.attr[COMPILED]
            name = builder.node(op, refs, attrs, label, controls)
            if fdef.signature.is_stateful:
                builder.must(name)
            return [f"{name}:output:{k}" for k in range(len(fdef.signature.output_arg))]
        if info.op_type == "AddN" and len(refs) > 2 and not info.device and event.out_enums[0] != VARIANT_ENUM and not self._has_open_shape(event):
            return [eager_kernels.sum_in_order(builder, refs, self._protos_of(info, ("T",)), label)]
        if self.exact and not self.compiled and info.op_type == "MaxPoolGrad" and not info.device:
            protos, shape = self._protos(info), None if self._has_open_shape(event) else event.out_shapes[0]
            if eager_kernels.may_pool_by_onednn(protos, scope.pooled.get((refs[0], refs[1])), shape):
                result, branches = eager_kernels.pool_gradient(builder, refs, protos, label)
                self.out.fdefs += branches
                return [result]
        if self.exact:
            refs = eager_kernels.keep_apart(builder, info.op_type, refs, self._protos(info), label)
        name = builder.node(info.op_type, refs, self._protos(info), label, controls)
        if info.device:
            builder.fdef.node_def[-1].device = info.device
        if not info.output_refs:
            builder.must(name)
        elif info.op_type == "MaxPool":
            scope.pooled[refs[0], f"{name}:output:0"] = self._protos(info)
        return [f"{name}:{ref}" for ref in info.output_refs]

    def _called(self, fdef, config, refs):
        """The name of the function to call: where eager execution has grappler rewrite it, that must happen here too, or last bits differ. It does if the call is not inlined.

        Grappler must know of variables what it knows there.
        """
        if not self.exact or self.compiled or COMPILED in fdef.attr or not tfi.has_grappler(config):
            return fdef.signature.name
        known = {k: ref[1]._handle_data for k, ref in enumerate(refs) if ref[0] == RESOURCE and ref[1]._handle_data is not None}
        key = fdef.signature.name, *[(k, data.SerializeToString()) for k, data in known.items()]
        name = self._apart.get(key)
        if name is None:
            name = self._apart[key] = f"{self.prefix}_{fdef.signature.name}_{len(self._apart)}"
            apart = type(fdef)()
            apart.CopyFrom(fdef)
            apart.signature.name = name
            apart.attr["_noinline"].b = True
            for k, data in known.items():
                attrs = apart.arg_attr[k].attr
                attrs["_handle_dtypes"].list.type.extend(held.dtype for held in data.shape_and_type)
                attrs["_handle_shapes"].list.shape.extend(held.shape for held in data.shape_and_type)
            self.out.fdefs.append(apart)
        return name

    def _emit_variable_op(self, scope, node, refs, label):
        found = self._accesses.access[node]
        if any(v in self._accesses.raw for _, v, _ in found):
            return self._emit_raw_variable_op(scope, node, refs, label, found)
        site = node.payload
        info = site.event.info
        (_, v, how), = found
        key = ("var", v)
        if how == READ:
            return [scope.get(key)]
        builder = scope.builder
        enum = self._accesses.enums[v]
        if how == "raw_read":
            protos = self._protos(info)
            if info.op_type == "ResourceGather":
                axis = eager_kernels.first_axis(builder)
                name = builder.node("GatherV2", [scope.get(key), refs[1], axis], {
                    "Tparams": dtype(enum), "Tindices": protos["Tindices"], "Taxis": dtype(INT32), "batch_dims": protos["batch_dims"],
                }, label)
            else:
                name = builder.node(
                    "GatherNd", [scope.get(key), refs[1]], {"Tparams": dtype(enum), "Tindices": protos["Tindices"]}, label)
            return [name + ":output:0"]
        if how == SKIP:
            state = scope.get(key)
            return {0: state, NEW_VALUE: eager_kernels.skip_philox(builder, state, site.kinds[2][1], label)}
        if how == ASSIGN:
            new = refs[1]
        else:
            op = "AddV2" if how == ASSIGN_ADD else "Sub"
            new = builder.node(op, [scope.get(key), refs[1]], {"T": dtype(enum)}, label) + ":z:0"
        return {NEW_VALUE: new}

    def _emit_raw_variable_op(self, scope, node, refs, label, found):
        """An op that works on the variable itself: ordered after earlier accesses."""
        event = node.payload.event
        info = event.info
        raw = [(v, how not in READS_ONLY) for _, v, how in found if v in self._accesses.raw]
        for k, v, _ in found:
            if v not in self._accesses.raw and v in self._accesses.written:
                raise GenerationError("an op mixes forwarded and unforwarded variables")
        if node not in self._accesses.behind and behind.has_rows(node):
            self._keep_rows(scope, node, refs, label, found)
        controls = self._order_controls(scope, raw) + self._barriers
        before = len(scope.builder.node_names)
        outputs = self._emit_plain(scope, info, event, refs, label, controls)
        self._note_access(scope, raw, scope.builder.node_names[before])
        return outputs

    def _order_controls(self, scope, raw):
        controls = []
        for v, writes in raw:
            last_write, reads = scope.order.get(v, (None, ()))
            if last_write:
                controls.append(last_write)
            if writes:
                controls.extend(reads)
        return list(dict.fromkeys(controls))

    def _note_access(self, scope, raw, name):
        for v, writes in raw:
            last_write, reads = scope.order.get(v, (None, ()))
            scope.order[v] = (name, ()) if writes else (last_write, (*reads, name))

    def _emit_case(self, top, item, select):
        scopes = []
        for k, branch in enumerate(item.branches):
            builder = FunctionBuilder(f"{self.prefix}_case{item.switch_case}_{k}")
            scope = Scope(self, builder, outer=top)
            for node in branch.block:
                self._emit(scope, node)
            self._check_conditions(scope)
            scopes.append(scope)
        enums = [self.key_enum(key) for key in item.outputs]
        results = [[(self._branch_output(scope, key, item), enum) for key, enum in zip(item.outputs, enums)] for scope in scopes]
        names = list(dict.fromkeys(name for scope in scopes for name in scope.builder.args))
        for scope, result in zip(scopes, results):
            for name in names:
                scope.builder.arg(name, self.key_enum(self._keys[name]))
            given = [ref.partition(":")[0] for ref, _ in result]
            _, sinks = scope.builder.may_fail(scope.harmless, given, scope.checks)
            self._keep_unread(scope, [name for name in sinks if name not in given])
            for sink in sinks:
                scope.builder.must(sink)
            self.out.fdefs.append(scope.builder.finish(names, result))
        raw = {}
        for branch in item.branches:
            for node in branch.block:
                for _, v, how in self._accesses.access.get(node, ()):
                    if v in self._accesses.raw:
                        raw[v] = raw.get(v, False) or how not in READS_ONLY
        raw = list(raw.items())
        inputs = [top.get(self._keys[name]) for name in names]
        lower = attr(True)
        name = top.builder.node("Case", [select] + inputs, {
            "Tin": type_list([self.key_enum(self._keys[n]) for n in names]), "Tout": type_list(enums),
            "branches": func_list([s.builder.name for s in scopes]), "_lower_using_switch_merge": lower,
        }, "switch", self._order_controls(top, raw))
        top.builder.must(name)
        self._note_access(top, raw, name)
        for k, key in enumerate(item.outputs):
            top.env[key] = f"{name}:output:{k}"
            if isinstance(key, Slot) and len({n.payload.event.out_shapes[out] if out >= 0 else None for n, out in key.sources}) > 1:
                self.out.open_refs.add(top.env[key])

    def _keep_unread(self, scope, unread):
        """Have somebody read what only the program's errors need. (Branches are inlined before grappler looks at what a function must do.)"""
        for name in unread:
            if name in scope.made:
                ref, enum = scope.made[name]
                true = scope.builder.const(("true",), lambda: constant_proto(True, BOOL))
                scope.builder.must(scope.builder.node("Assert", [true, ref], {"T": type_list([enum]), "summarize": attr(0)}, "unread"))

    def _branch_output(self, scope, key, item):
        """A branch's result: what it computed; else what came in, if that existed before; else a dummy. Always through the branch's own node."""
        if key in scope.env:
            return scope.env[key]
        if key in item.inputs:
            return scope.get(key)
        return scope.dummy(key)


def _string_attr(value):
    return value if isinstance(value, (bytes, str)) else b""
