"""The compiled form of a generated function: the same function, with its pure stretches as clusters that XLA compiles.

Arguments, results and channels are those of the ordinary form, so the skeleton does not know which of the two runs. Reads and updates of variables, feeds,
fetches, Cases with their branches, random operations and what XLA has no kernel for stay outside. Constants are copied into each cluster that uses them: XLA
needs shapes and axes as constants. A number that decides a shape may also be an argument of the function; XLA then compiles anew for each of its values.
"""

from terra.graph import inlining, xla_ops
from terra.graph.clusters import ALONG, NO, YES, find_clusters
from terra.graph.functiondef import attr, dtype, type_list
from terra.runtime import internals as tfi
from terra.runtime.fingerprints import COMPILED

SMALLEST = 8  # operations in a cluster: calling a compiled function takes as long as a few of them
LARGEST = 5000  # for more (loops that are unrolled), XLA takes minutes
INT32, BOOL = tfi.types_pb2.DT_INT32, tfi.types_pb2.DT_BOOL
_QUEUE_OPS = frozenset(["QueueDequeueV2", "QueueEnqueueV2"])


class Cluster:
    """A stretch of the graph that is a function of its own: its protos, and the refs in the ordinary form that it takes and gives."""

    __slots__ = ("name", "number", "fdef", "caller", "inputs", "outputs", "n_nodes")

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.inputs, self.outputs = [], []


class XlaForm:
    """The functions of the compiled form.

    top: what runs in place of the ordinary function. probe: the ordinary function, whose further results are the clusters' inputs (`probed`).
    left_out: reason -> operations that are not compiled because of it. constants: names of arguments whose values XLA needs.
    """

    __slots__ = ("clusters", "top", "probe", "probed", "left_out", "constants", "n_compiled")

    @property
    def fdefs(self):
        return [fdef for c in self.clusters for fdef in (c.fdef, c.caller)] + [self.probe, self.top]


def make_form(top, fdefs, library, open_refs, number, without=()):
    """The compiled form of function `top`, one of `fdefs`; None if nothing of it is worth compiling.

    library: name -> FunctionDef of what they call.
    open_refs: nodes, and refs of their outputs, whose shapes may differ between steps with the same arguments.
    without: numbers of clusters that could not be compiled, to be left as they are.
    """
    return _Maker(top, fdefs, library, open_refs, number).make(without)


class _Maker:
    def __init__(self, top, fdefs, library, open_refs, number):
        self.top = top
        self.library = library
        self.nodes = list(top.node_def)
        self.index = {node.name: k for k, node in enumerate(self.nodes)}
        self.arg_types = {a.name: a.type for a in top.signature.input_arg}
        self.fetching = {f.signature.name for f in fdefs if any(n.op == "QueueEnqueueV2" for n in f.node_def)}
        self.open_refs = open_refs
        self.prefix = f"{top.signature.name}_x{number}"
        self.types = dict(self.arg_types)  # of every ref
        self.left_out = {}
        self.constants = set()

    def make(self, without):
        before = [self._sources(node) for node in self.nodes]
        order = [k for k, node in enumerate(self.nodes) if node.op in _QUEUE_OPS or node.op == "Case"]
        reads = [k for k in order if self._is_read(self.nodes[k])]
        may = [self._may(node) for node in self.nodes]
        # Constants belong to every cluster that uses them.
        sizes = list(map(self._size, self.nodes))
        found = find_clusters(before, may, order, reads, SMALLEST, sizes)
        apart = self._torn_apart(found)
        if apart:
            self.left_out["lists of tensors would be handed on between parts"] = [self.nodes[k].op for k in apart]
            found = find_clusters(before, [NO if k in apart else how for k, how in enumerate(may)], order, reads, SMALLEST, sizes)
        for members in found:
            if len(members) > LARGEST:
                self.left_out["XLA would take minutes for so many in a row"] = [self.nodes[k].op for k in members]
        numbers = [number for number, members in enumerate(found) if number not in without and len(members) <= LARGEST]
        found = [found[number] for number in numbers]
        if not found:
            return None
        form = XlaForm()
        form.left_out = self.left_out
        form.constants = self.constants
        home = {self.nodes[k].name: number for number, members in enumerate(found) for k in members}
        form.clusters = [Cluster(f"{self.prefix}_cluster{number}", number) for number in numbers]
        form.n_compiled = len(home)
        self._find_ports(form.clusters, found, home)
        guards = {}
        for cluster, members in zip(form.clusters, found):
            self._write_cluster(cluster, members, guards)
        form.top = self._write_top(form.clusters, home, guards)
        form.probed = list(dict.fromkeys(ref for c in form.clusters for ref in c.inputs))
        form.probe = self._write_probe(form.probed)
        return form

    def _called(self, node):
        """The function that a node calls; None if it is another operation."""
        return self.library.get(node.attr["f"].func.name) if node.op == "PartitionedCall" else None

    def _size(self, node):
        called = self._called(node)
        return 1 if called is None else len(called.node_def)

    def _torn_apart(self, found):
        """Nodes in clusters that are handed lists of tensors by a node outside, or hand lists on to one."""
        home = {k: number for number, members in enumerate(found) for k in members}
        apart = set()
        for k, node in enumerate(self.nodes):
            for ref in node.input:
                source = self.index.get(_node_of(ref))
                if self.types.get(ref) == xla_ops.VARIANT and home.get(source) != home.get(k):
                    apart.update({source, k} & home.keys())
        return apart

    def _sources(self, node):
        """The nodes that a node depends on; constants are there for everybody."""
        names = {_node_of(ref) for ref in node.input}
        return sorted(self.index[name] for name in names if name in self.index and self.nodes[self.index[name]].op != "Const")

    def _is_read(self, node):
        return node.op == "QueueEnqueueV2" or (node.op == "Case" and any(f.name in self.fetching for f in node.attr["branches"].list.func))

    def _may(self, node):
        """YES, ALONG or NO; also notes the types of the node's outputs."""
        if node.op == "Const":
            self.types[node.name + ":output:0"] = node.attr["dtype"].type
            return NO
        if node.op == "PartitionedCall":
            reason = inlining.why_not(self._called(node), self.library)
        else:
            reason = xla_ops.why_not(node)
        if tfi.op_def(node.op) is not None:
            self.types.update(xla_ops.output_types(node))
        if reason is None:
            reason = self._shapes_not_fixed(node)
        if reason is None and node.device and not _is_only_device(node.device):
            reason = "it is tied to a device"
        if reason is None and any(ref.startswith("^") for ref in node.input):
            reason = "it must run after another operation"
        if reason is not None:
            if node.op not in _BOOKKEEPING:
                self.left_out.setdefault(reason, []).append(node.op)
            return NO
        for k in xla_ops.constant_inputs(node):
            if node.input[k] in self.arg_types:
                self.constants.add(node.input[k])
        enums = [*xla_ops.input_types(node), *xla_ops.output_types(node).values()]
        # Counters, seeds and the like: what uses them (random operations, Case Select) would have to wait for a cluster.
        return YES if any(enum in xla_ops.FLOATS for enum in enums) else ALONG

    def _shapes_not_fixed(self, node):
        if node.name in self.open_refs or any(ref in self.open_refs or _node_of(ref) in self.open_refs for ref in node.input):
            return "shapes there depend on data"
        for k in xla_ops.constant_inputs(node):
            ref = node.input[k]
            source = self.index.get(_node_of(ref))
            if (ref not in self.arg_types or node.op in xla_ops.GUARDED) and (source is None or self.nodes[source].op != "Const"):
                return "a shape or axis is computed in the step"
        return None

    def _axis(self, node):
        """Along which axis of its first input the second one's indices count; None if a third input is their bound."""
        if node.op != "GatherV2":
            return None if node.op == "UnsortedSegmentSum" else 1
        return int(tfi.tf.make_ndarray(self.nodes[self.index[_node_of(node.input[2])]].attr["value"].tensor))

    def _find_ports(self, clusters, found, home):
        taken = [{} for _ in clusters]
        given = [{} for _ in clusters]
        for node in self.nodes:
            mine = home.get(node.name)
            for ref in node.input:
                if ref.startswith("^") or self._is_const(ref):
                    continue
                theirs = home.get(_node_of(ref))
                if theirs != mine:
                    if mine is not None:
                        taken[mine][ref] = None
                    if theirs is not None:
                        given[theirs][ref] = None
        for ref in self.top.ret.values():
            theirs = home.get(_node_of(ref))
            if theirs is not None:
                given[theirs][ref] = None
        for cluster, inputs, outputs in zip(clusters, taken, given):
            cluster.inputs, cluster.outputs = list(inputs), list(outputs)

    def _is_const(self, ref):
        source = self.index.get(_node_of(ref))
        return source is not None and self.nodes[source].op == "Const"

    def _write_cluster(self, cluster, members, guards):
        fdef = cluster.fdef = tfi.function_pb2.FunctionDef()
        fdef.signature.name = cluster.name
        cluster.n_nodes = len(members)
        renamed = {}
        for k, ref in enumerate(cluster.inputs):
            arg = fdef.signature.input_arg.add()
            arg.name, arg.type = f"a{k}", self.types[ref]
            renamed[ref] = arg.name
        constants = {}
        for k in members:
            for ref in self.nodes[k].input:
                if self._is_const(ref):
                    constants[_node_of(ref)] = None
        for name in constants:
            fdef.node_def.add().CopyFrom(self.nodes[self.index[name]])
        for k in members:
            node = tfi.node_def_pb2.NodeDef()
            node.CopyFrom(self.nodes[k])
            node.device = ""
            node.input[:] = [renamed.get(ref, ref) for ref in node.input]
            called = self._called(node)
            if called is None:
                fdef.node_def.append(node)
            else:
                renamed.update(inlining.write(fdef, node, called))
        results = [(renamed.get(ref, ref), self.types[ref]) for ref in cluster.outputs]
        checks = _Checks(fdef, cluster.name)
        for node in list(fdef.node_def):
            if node.op in xla_ops.GUARDED:
                checks.add(node, self._axis(self.nodes[self.index[node.name]]))
        if checks.refs:
            guards[cluster.name] = len(results)
            results.append((checks.all(), BOOL))
        for k, (ref, enum) in enumerate(results):
            out = fdef.signature.output_arg.add()
            out.name, out.type = f"r{k}", enum
            fdef.ret[out.name] = ref
        fdef.attr[COMPILED].b = True
        fdef.attr["_noinline"].b = True
        # The same call in a function of its own, to compile the cluster without running the step.
        caller = cluster.caller = tfi.function_pb2.FunctionDef()
        caller.signature.CopyFrom(fdef.signature)
        caller.signature.name = cluster.name + "_alone"
        self._add_call(caller, cluster, [a.name for a in fdef.signature.input_arg])
        for k, (_, _) in enumerate(results):
            caller.ret[f"r{k}"] = f"{cluster.name}:output:{k}"

    @staticmethod
    def _add_call(fdef, cluster, inputs):
        signature = cluster.fdef.signature
        node = fdef.node_def.add()
        node.name, node.op = cluster.name, "PartitionedCall"
        node.input.extend(inputs)
        node.attr["Tin"].CopyFrom(type_list([a.type for a in signature.input_arg]))
        node.attr["Tout"].CopyFrom(type_list([a.type for a in signature.output_arg]))
        node.attr["f"].func.name = cluster.name
        node.attr[COMPILED].b = True
        for name in ("config", "config_proto", "executor_type"):
            node.attr[name].CopyFrom(attr(""))

    def _write_top(self, clusters, home, guards):
        top = tfi.function_pb2.FunctionDef()
        top.signature.CopyFrom(self.top.signature)
        top.signature.name = self.prefix
        del top.signature.control_output[:]
        renamed = {ref: f"{c.name}:output:{k}" for c in clusters for k, ref in enumerate(c.outputs)}

        def after(ref):
            """A ref or a control input, in terms of the clusters."""
            if ref.startswith("^"):
                return "^" + name_of(ref[1:])
            return renamed.get(ref, ref)

        def name_of(node):
            return clusters[home[node]].name if node in home else node

        used = {_node_of(ref) for node in self.nodes if node.name not in home for ref in node.input}
        used.update(_node_of(ref) for ref in self.top.ret.values())
        for node in self.nodes:
            if node.name in home or (node.op == "Const" and node.name not in used):
                continue
            copy = top.node_def.add()
            copy.CopyFrom(node)
            copy.input[:] = dict.fromkeys(after(ref) for ref in node.input) if node.op == "NoOp" else [after(ref) for ref in node.input]
        for cluster in clusters:
            self._add_call(top, cluster, [after(ref) for ref in cluster.inputs])
        for name, ref in self.top.ret.items():
            top.ret[name] = after(ref)
        for name in dict.fromkeys(name_of(node) for node in self.top.control_ret.values()):
            _must(top, name)
        for cluster in clusters:
            if cluster.name in guards:
                self._add_guard(top, cluster, guards[cluster.name])
        return top

    def _add_guard(self, top, cluster, k):
        """Nothing that the check concerns may be read or committed before it has passed."""
        node = top.node_def.add()
        node.name, node.op = cluster.name + "_check", "Assert"
        text = tfi.tf.make_tensor_proto(b"a check of a compiled operation failed")
        const = top.node_def.add()
        const.name, const.op = node.name + "_text", "Const"
        const.attr["dtype"].CopyFrom(dtype(text.dtype))
        const.attr["value"].tensor.CopyFrom(text)
        node.input.extend([f"{cluster.name}:output:{k}", const.name + ":output:0"])
        node.attr["T"].CopyFrom(type_list([text.dtype]))
        node.attr["summarize"].CopyFrom(attr(1))
        _must(top, node.name)
        reached = {cluster.name}
        for other in _in_order(top):
            if any(_node_of(ref) in reached for ref in other.input):
                reached.add(other.name)
                if other.op in ("QueueEnqueueV2", "Case") or "barrier__NoOp" in other.name:
                    other.input.append("^" + node.name)

    def _write_probe(self, probed):
        probe = tfi.function_pb2.FunctionDef()
        probe.CopyFrom(self.top)
        probe.signature.name = self.prefix + "_probe"
        for k, ref in enumerate(probed):
            out = probe.signature.output_arg.add()
            out.name, out.type = f"p{k}", self.types[ref]
            probe.ret[out.name] = ref
        return probe


_BOOKKEEPING = frozenset(["NoOp", "ReadVariableOp", "AssignVariableOp", "Unpack", "Case", *_QUEUE_OPS])


def _is_only_device(name):
    return name.endswith("CPU:0") and not tfi.n_gpus()


def _node_of(ref):
    return ref.lstrip("^").partition(":")[0]


def _must(fdef, name):
    fdef.control_ret[name] = name
    fdef.signature.control_output.append(name)
    fdef.signature.is_stateful = True


def _in_order(fdef):
    """The nodes of a function, each after those it depends on."""
    nodes = {node.name: node for node in fdef.node_def}
    done, result = set(), []
    for root in fdef.node_def:
        pending = [root.name]
        while pending:
            name = pending[-1]
            missing = [] if name in done else [s for s in map(_node_of, nodes[name].input) if s in nodes and s not in done]
            if missing:
                pending += missing
                continue
            pending.pop()
            if name not in done:
                done.add(name)
                result.append(nodes[name])
    return result


class _Checks:
    """Nodes in a cluster that compute whether the indices of an operation are in range, as its ordinary kernel would demand."""

    def __init__(self, fdef, prefix):
        self.fdef, self.prefix = fdef, prefix
        self.refs = []
        self._count = 0

    def _node(self, op, inputs, **attrs):
        self._count += 1
        node = self.fdef.node_def.add()
        node.name, node.op = f"{self.prefix}_check{self._count}", op
        node.input.extend(inputs)
        for name, value in attrs.items():
            node.attr[name].CopyFrom(value)
        return f"{node.name}:{tfi.op_def(op).output_arg[0].name}:0"

    def _const(self, value, enum):
        proto = tfi.tf.make_tensor_proto(value, dtype=tfi.dtypes.as_dtype(enum))
        value = tfi.attr_value_pb2.AttrValue()
        value.tensor.CopyFrom(proto)
        return self._node("Const", (), dtype=dtype(enum), value=value)

    def add(self, node, axis):
        """`node` looks up its second input along `axis` of its first."""
        table, indices = node.input[0], node.input[1]
        table_type, index_type = xla_ops.input_types(node)[:2]
        if axis is None:  # negative ones are dropped
            bound = self._node("Cast", [node.input[2]], SrcT=dtype(xla_ops.input_types(node)[2]), DstT=dtype(index_type))
            self._add(self._node("Less", [indices, bound], T=dtype(index_type)))
            return
        shape = self._node("Shape", [table], T=dtype(table_type), out_type=dtype(index_type))
        bounds = [self._const([axis], INT32), self._const([axis + 1], INT32), self._const([1], INT32)]
        size = self._node("StridedSlice", [shape, *bounds], T=dtype(index_type), Index=dtype(INT32), end_mask=attr(int(axis == -1)), shrink_axis_mask=attr(1))
        compared = dtype(index_type)
        low = self._node("GreaterEqual", [indices, self._const(0, index_type)], T=compared)
        high = self._node("Less", [indices, size], T=compared)
        self._add(self._node("LogicalAnd", [low, high]))

    def _add(self, inside):
        flat = self._node("Reshape", [inside, self._const([-1], INT32)], T=dtype(BOOL), Tshape=dtype(INT32))
        self.refs.append(self._node("All", [flat, self._const([0], INT32)], Tidx=dtype(INT32), keep_dims=attr(False)))

    def all(self):
        """One bool of all checks."""
        ref = self.refs[0]
        for other in self.refs[1:]:
            ref = self._node("LogicalAnd", [ref, other])
        return ref
