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
functions that write) run behind the barrier too, with all that depends on them, if none of that can fail (see `in_place_updates`); else they keep
their place, and what they overwrite is noted before (see `fallback.undo`).
"""

import itertools
import os

from terra.errors import GenerationError
from terra.graph.cases import select_table
from terra.graph.dataflow import Slot, Value, make_plan
from terra.graph.nonfailing_ops import is_harmless
from terra.graph.trace import ARG, CONST, FEED, FETCH, RESOURCE, VALUE
from terra.runtime.generation import speculated_branches
from terra.runtime.generation.commit import Commits
from terra.runtime.generation.feeds import Feed, group_feeds
from terra.runtime.generation.functiondef import FunctionBuilder, attr, dtype, func_list, safe_name, type_list
from terra.runtime.generation.generated import Generated
from terra.runtime.generation.kernels import eager_kernels
from terra.runtime.generation.kernels.eager_kernels import constant_proto
from terra.runtime.generation.operations import Operations
from terra.runtime.generation.scope import Scope
from terra.runtime.generation.variables import Accesses
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.private import hardware
from terra.tf.variable_use import ASSIGN_ADD, ASSIGN_SUB, READS_ONLY

INT32 = tfi.types_pb2.DT_INT32
INT64 = tfi.types_pb2.DT_INT64
BOOL = tfi.types_pb2.DT_BOOL
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE

_function_numbers = itertools.count()


class GraphGenerator(Commits):
    """Generates one form of the graph.

    new_queue(enums): makes a channel for values of these types, which it takes together; it is only called for the early form. deferred: whether
    fetches are outputs, else the late form has none; conditional: whether it has conditions.
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
        self.fixed = None if compiled or hardware.n_gpus() else fixed
        self.forgiving = not compiled and not hardware.n_gpus()  # else any operation may fail: XLA may refuse it, a GPU may run out of memory
        self.out = Generated()
        self.out.early = early
        self.prefix = f"terra_{next(_function_numbers)}"
        self._keys = {}  # argument name -> key
        self._arg_names = {}
        self.handles = {}
        self._labels = {}
        self.operations = Operations(self)
        self._behind = []  # nodes that run behind the barrier, see `Commits`
        self.barriers = []  # what operations on variables themselves wait for, there

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
            return self.accesses.enums[key[1]]
        return key[2]  # ("arg", i, enum), ("feed", index, enum)

    def _out_enum(self, node, out):
        site = node.payload
        return site.event.out_enums[out] if out >= 0 else site.kinds[-1 - out][1]

    def _label(self, node):
        """Returns the first part of the names of what a node becomes: its line, and the layer that it is part of (`train.py_L15/net/dense_1`)."""
        event = node.payload.event
        key = event.origin or event.location
        label = self._labels.get(key)
        if label is None:
            place, scope = event.origin or (event.location.origin(), None)
            label = safe_name(f"{os.path.basename(place[0])}_L{place[1]}") if place else "step"
            if not label[0].isalpha():
                label = "f" + label
            label = self._labels[key] = "/".join([label, *map(safe_name, filter(None, (scope or "").split("/")))])
        return label

    # -- emission --------------------------------------------------------------------------------------------------------------

    def generate(self):
        """Build the function; returns `Generated`. Raises GenerationError if this TraceGraph cannot be written as one."""
        out = self.out
        self.switch_cases = self.graph.switch_cases()
        out.selects = select_table(self.switch_cases)
        order = self.graph.topological()
        accesses = self.accesses = Accesses(order, self.switch_cases, self.handles, self._can_run_behind, self.is_open)
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
        outputs = scope.repeated.find(info, refs) or self.operations.emit(scope, node, refs, label, harmless)
        scope.repeated.note(event, refs, outputs)
        if harmless:
            scope.harmless.update(scope.builder.node_names[before:])
        if scope is self.top and self.has_open_shape(event):
            self.out.open_refs.update(ref.partition(":")[0] for ref in (outputs.values() if type(outputs) is dict else outputs))
        if scope is not self.top and type(outputs) is list and outputs:
            scope.made[outputs[0].partition(":")[0]] = outputs[0], event.out_enums[0]
        for key, k in self.plan.keys_defined_by(node):
            if k < 0:
                continue  # a fed value, defined with the inputs
            scope.env[key] = outputs[k]

    def _is_harmless(self, node):
        """Returns whether nothing that the operation is written as can fail."""
        info, kinds = node.payload.event.info, node.payload.kinds
        if not self.forgiving or info.device:
            return False
        if info.category == opschema.VARIABLE:
            known = all(how in (ASSIGN_ADD, ASSIGN_SUB) and v not in self.accesses.raw for _, v, how in self.accesses.access[node])
        elif info.category == opschema.RANDOM:
            known = eager_kernels.draws_harmlessly(info.op_type, kinds)
        else:
            known = is_harmless(info.op_type, kinds)
        return known and not self.is_open(node)

    @staticmethod
    def _with_sources(node):
        """The events of an operation and of those that give its inputs."""
        return node.payload.event, *[source.payload.event for slot in node.slots for source, _ in slot]

    def has_open_shape(self, event):
        """Returns whether the shapes of an operation's outputs may depend on data."""
        return event.signature in self.store.dynamic or event.has_open_shape

    def is_open(self, node):
        return any(map(self.has_open_shape, self._with_sources(node)))

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
            if RESOURCE_ENUM in enums and hardware.n_gpus():  # channels are on the CPU, and TensorFlow hands no variable of a GPU to an operation there
                raise GenerationError("a variable that the step makes would be handed to a graph that runs already, which a GPU's cannot be")
            group.queue = self.new_queue(enums)
            group.refs = self._dequeue(scope, group.queue, enums, label, [scope.last_fetch] if scope.last_fetch else ())
        return group.refs[group.feeds.index(feed)]

    def _emit_fetch(self, scope, node, refs, label):
        if self.deferred:
            if node.payload.event.info.op_type == FETCH:
                if scope is self.top:  # in a branch: steps that take it, and give the value back, use the early form
                    self._fetched.append((node, refs[0]))
                if self.conditional and speculated_branches.is_condition(node):
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
        """Makes the form with conditions fail where what Python would look at is not what is expected."""
        known, values = self.out.conditions, []
        first = len(known)
        for node, ref in scope.conditions:
            known[node] = len(known)
            values.append((ref, self._out_enum(*node.slots[0][0])))
        if values:
            speculated_branches.check(scope.builder, scope.get(("expected",)), first, values)

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
                for _, v, how in self.accesses.access.get(node, ()):
                    if v in self.accesses.raw:
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
        """Adds readers for what only the program's errors need. (Branches are inlined before grappler looks at what a function must do.)"""
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
