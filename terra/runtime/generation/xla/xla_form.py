"""The compiled form of a generated function: the same function, with its pure stretches as clusters that XLA compiles.

Arguments, results and channels are those of the ordinary form, so the skeleton does not know which of the two runs. Reads and updates of variables, feeds,
fetches, Cases with their branches, random operations and what XLA has no kernel for stay outside. Constants are copied into each cluster that uses them: XLA
needs shapes and axes as constants. A number that decides a shape may also be an argument of the function; XLA then compiles anew for each of its values.

If nothing else would stay outside, XLA compiles the function as a *whole*, with its variables: no function is called for it that only calls another
one, which takes a tenth of a millisecond.
"""

import collections

from terra.runtime.generation.functiondef import add_node, attr, dtype, must, node_of, type_list
from terra.runtime.generation.generated import CHECK_FAILED
from terra.runtime.generation.xla import inlining, xla_ops
from terra.runtime.generation.xla.clusters import ALONG, NO, YES, find_clusters
from terra.runtime.generation.xla.xla_checks import BOOL, RangeChecks
from terra.runtime.generation.xla.xla_cluster import WHOLE, Cluster, XlaForm, add_call
from terra.tf import private_names as tfi
from terra.tf.private import hardware, runtime_functions

SMALLEST = 8  # operations in a cluster: calling a compiled function takes as long as a few of them
LARGEST = 5000  # for more (loops that are unrolled), XLA takes minutes
_QUEUE_OPS = frozenset(["QueueDequeueV2", "QueueEnqueueV2"])
_OF_VARIABLES = frozenset(["ReadVariableOp", "AssignVariableOp"])


def make_form(top, fdefs, library, open_refs, number, without=(), variables=()):
    """The compiled form of function `top`, one of `fdefs`; None if nothing of it is worth compiling.

    library: name -> FunctionDef of what they call.
    open_refs: nodes, and refs of their outputs, whose shapes may differ between steps with the same arguments.
    without: numbers of clusters that could not be compiled, to be left as they are; WHOLE if the whole could not.
    variables: the arguments that are variables of fixed shapes which XLA may be given.
    """
    maker = _Maker(top, fdefs, library, open_refs, number)
    whole = None if WHOLE in without else maker.make_whole(variables)
    return whole or maker.make(without)


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
        self.may = list(map(self._may, self.nodes))

    def make_whole(self, variables):
        """The form in which XLA compiles everything, if that is possible."""
        compiled = [node for node, how in zip(self.nodes, self.may) if how != NO]
        size = sum(map(self._size, compiled))
        given = [enum for name, enum in self.arg_types.items() if name not in variables] + [self.types[ref] for ref in self.top.ret.values()]
        if YES not in self.may or size < SMALLEST or len(compiled) > LARGEST or not xla_ops.TYPES.issuperset(given):
            return None
        accesses = collections.Counter((node.op, node.input[0]) for node in self.nodes if node.op in _OF_VARIABLES)
        if max(accesses.values(), default=0) > 1 or not all(how != NO or self._fits_whole(node, variables) for node, how in zip(self.nodes, self.may)):
            return None
        form = XlaForm()
        form.left_out, form.constants, form.whole, form.probe = {}, self.constants, True, None
        cluster = Cluster(f"{self.prefix}_whole", WHOLE)
        fdef, form.checked = self._write_whole(cluster.name)
        cluster.inputs = list(self.arg_types)
        cluster.write(fdef, size)
        form.clusters = [cluster]
        form.settle()
        return form

    def _write_whole(self, name):
        """(The function, whether it checks indices.) If one is out of range, variables keep their values, and the first result is False."""
        fdef = tfi.function_pb2.FunctionDef()
        fdef.signature.CopyFrom(self.top.signature)
        fdef.signature.name = name
        fdef.signature.is_stateful = True
        del fdef.signature.control_output[:]
        renamed = {}
        for node in self.nodes:
            if node.op not in ("NoOp", "AssignVariableOp"):
                self._write_node(fdef, node, renamed)
        checks = self._checks(fdef, name)
        ok = checks.all() if checks.refs else None
        reads = {node.input[0]: node.name for node in self.nodes if node.op == "ReadVariableOp"}
        for node in self.nodes:
            if node.op == "AssignVariableOp":
                _write_update(fdef, node, renamed.get(node.input[1], node.input[1]), reads.get(node.input[0]), ok)
        first = self.top.signature.output_arg[0].name
        for result, ref in self.top.ret.items():
            fdef.ret[result] = ok if ok is not None and result == first else renamed.get(ref, ref)
        return fdef, ok is not None

    def make(self, without):
        before = [self._sources(node) for node in self.nodes]
        order = [k for k, node in enumerate(self.nodes) if node.op in _QUEUE_OPS or node.op == "Case"]
        reads = [k for k in order if self._is_read(self.nodes[k])]
        # Constants belong to every cluster that uses them.
        sizes = list(map(self._size, self.nodes))
        found = find_clusters(before, self.may, order, reads, SMALLEST, sizes)
        apart = self._torn_apart(found)
        if apart:
            self.left_out["lists of tensors would be handed on between parts"] = [self.nodes[k].op for k in apart]
            found = find_clusters(before, [NO if k in apart else how for k, how in enumerate(self.may)], order, reads, SMALLEST, sizes)
        for members in found:
            if len(members) > LARGEST:
                self.left_out["XLA would take minutes for so many in a row"] = [self.nodes[k].op for k in members]
        numbers = [number for number, members in enumerate(found) if number not in without and len(members) <= LARGEST]
        found = [found[number] for number in numbers]
        if not found:
            return None
        form = XlaForm()
        form.left_out = self.left_out
        form.constants, form.whole, form.checked = self.constants, False, False
        home = {self.nodes[k].name: number for number, members in enumerate(found) for k in members}
        form.clusters = [Cluster(f"{self.prefix}_cluster{number}", number) for number in numbers]
        self._find_ports(form.clusters, found, home)
        guards = {}
        for cluster, members in zip(form.clusters, found):
            self._write_cluster(cluster, members, guards)
        form.top = self._write_top(form.clusters, home, guards)
        form.probed = list(dict.fromkeys(ref for c in form.clusters for ref in c.inputs))
        form.probe = self._write_probe(form.probed)
        return form

    def _fits_whole(self, node, variables):
        """Returns whether an operation that no cluster has may be part of the whole: constants, the barrier, and the read and the update of a
        variable, before and behind it."""
        if node.op in ("Const", "NoOp"):
            return True
        if node.op not in _OF_VARIABLES or node.input[0] not in variables or (node.device and not _is_only_device(node.device)):
            return False
        after = {self.nodes[self.index[ref[1:]]].op for ref in node.input if ref.startswith("^")}
        return after <= (set() if node.op == "ReadVariableOp" else {"NoOp"})

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
                source = self.index.get(node_of(ref))
                if self.types.get(ref) == xla_ops.VARIANT and home.get(source) != home.get(k):
                    apart.update({source, k} & home.keys())
        return apart

    def _sources(self, node):
        """The nodes that a node depends on; constants are there for everybody."""
        names = {node_of(ref) for ref in node.input}
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
        if runtime_functions.op_def(node.op) is not None:
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
        if node.name in self.open_refs or any(ref in self.open_refs or node_of(ref) in self.open_refs for ref in node.input):
            return "shapes there depend on data"
        for k in xla_ops.constant_inputs(node):
            ref = node.input[k]
            source = self.index.get(node_of(ref))
            if (ref not in self.arg_types or node.op in xla_ops.GUARDED) and (source is None or self.nodes[source].op != "Const"):
                return "a shape or axis is computed in the step"
        return None

    def _axis(self, node):
        """Along which axis of its first input the second one's indices count; None if a third input is their bound."""
        if node.op != "GatherV2":
            return None if node.op == "UnsortedSegmentSum" else 1
        return int(tfi.tf.make_ndarray(self.nodes[self.index[node_of(node.input[2])]].attr["value"].tensor))

    def _find_ports(self, clusters, found, home):
        taken = [{} for _ in clusters]
        given = [{} for _ in clusters]
        for node in self.nodes:
            mine = home.get(node.name)
            for ref in node.input:
                if ref.startswith("^") or self._is_const(ref):
                    continue
                theirs = home.get(node_of(ref))
                if theirs != mine:
                    if mine is not None:
                        taken[mine][ref] = None
                    if theirs is not None:
                        given[theirs][ref] = None
        for ref in self.top.ret.values():
            theirs = home.get(node_of(ref))
            if theirs is not None:
                given[theirs][ref] = None
        for cluster, inputs, outputs in zip(clusters, taken, given):
            cluster.inputs, cluster.outputs = list(inputs), list(outputs)

    def _is_const(self, ref):
        source = self.index.get(node_of(ref))
        return source is not None and self.nodes[source].op == "Const"

    def _write_cluster(self, cluster, members, guards):
        fdef = tfi.function_pb2.FunctionDef()
        fdef.signature.name = cluster.name
        renamed = {}
        for k, ref in enumerate(cluster.inputs):
            arg = fdef.signature.input_arg.add()
            arg.name, arg.type = f"a{k}", self.types[ref]
            renamed[ref] = arg.name
        constants = {}
        for k in members:
            for ref in self.nodes[k].input:
                if self._is_const(ref):
                    constants[node_of(ref)] = None
        for name in constants:
            fdef.node_def.add().CopyFrom(self.nodes[self.index[name]])
        for k in members:
            self._write_node(fdef, self.nodes[k], renamed)
        results = [(renamed.get(ref, ref), self.types[ref]) for ref in cluster.outputs]
        checks = self._checks(fdef, cluster.name)
        if checks.refs:
            guards[cluster.name] = len(results)
            results.append((checks.all(), BOOL))
        for k, (ref, enum) in enumerate(results):
            out = fdef.signature.output_arg.add()
            out.name, out.type = f"r{k}", enum
            fdef.ret[out.name] = ref
        cluster.write(fdef, len(members))

    def _write_node(self, fdef, node, renamed):
        """Add a node; `renamed`: what took the place of the outputs of calls that were written out."""
        copy = tfi.node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        copy.device = ""
        copy.input[:] = [renamed.get(ref, ref) for ref in node.input]
        called = self._called(node)
        if called is None:
            fdef.node_def.append(copy)
        else:
            renamed.update(inlining.write(fdef, copy, called))

    def _checks(self, fdef, prefix):
        checks = RangeChecks(fdef, prefix)
        for node in list(fdef.node_def):
            if node.op in xla_ops.GUARDED:
                checks.add(node, self._axis(self.nodes[self.index[node.name]]))
        return checks

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

        used = {node_of(ref) for node in self.nodes if node.name not in home for ref in node.input}
        used.update(node_of(ref) for ref in self.top.ret.values())
        for node in self.nodes:
            if node.name in home or (node.op == "Const" and node.name not in used):
                continue
            copy = top.node_def.add()
            copy.CopyFrom(node)
            copy.input[:] = dict.fromkeys(after(ref) for ref in node.input) if node.op == "NoOp" else [after(ref) for ref in node.input]
        for cluster in clusters:
            add_call(top, cluster.name, cluster.fdef.signature, [after(ref) for ref in cluster.inputs])
        for name, ref in self.top.ret.items():
            top.ret[name] = after(ref)
        for name in dict.fromkeys(name_of(node) for node in self.top.control_ret.values()):
            must(top, name)
        for cluster in clusters:
            if cluster.name in guards:
                self._add_guard(top, cluster, guards[cluster.name])
        return top

    def _add_guard(self, top, cluster, k):
        """Nothing that the check concerns may be read or committed before it has passed."""
        name, text = cluster.name + "_check", tfi.attr_value_pb2.AttrValue(tensor=tfi.tf.make_tensor_proto(CHECK_FAILED))
        add_node(top, name + "_text", "Const", (), {"dtype": dtype(text.tensor.dtype), "value": text})
        add_node(top, name, "Assert", [f"{cluster.name}:output:{k}", name + "_text:output:0"], {"T": type_list([text.tensor.dtype]), "summarize": attr(1)})
        must(top, name)
        reached = {cluster.name}
        for other in _in_order(top):
            if any(node_of(ref) in reached for ref in other.input):
                reached.add(other.name)
                if other.op in ("QueueEnqueueV2", "Case") or "barrier__NoOp" in other.name:
                    other.input.append("^" + name)

    def _write_probe(self, probed):
        probe = tfi.function_pb2.FunctionDef()
        probe.CopyFrom(self.top)
        probe.signature.name = self.prefix + "_probe"
        for k, ref in enumerate(probed):
            out = probe.signature.output_arg.add()
            out.name, out.type = f"p{k}", self.types[ref]
            probe.ret[out.name] = ref
        return probe


_BOOKKEEPING = _QUEUE_OPS | _OF_VARIABLES | {"NoOp", "Unpack", "Case"}


def _write_update(fdef, node, value, read, ok):
    """Add the update of a variable behind its read, if there is one; it keeps what it holds unless `ok`."""
    variable, kind = node.input[0], node.attr["dtype"]
    if ok is not None:
        if read is None:
            read = node.name + "_old"
            add_node(fdef, read, "ReadVariableOp", [variable], {"dtype": kind})
        add_node(fdef, node.name + "_new", "SelectV2", [ok, value, f"{read}:value:0"], {"T": kind})
        value = node.name + "_new:output:0"
    add_node(fdef, node.name, node.op, [variable, value, *([] if read is None else ["^" + read])], node.attr)
    must(fdef, node.name)


def _is_only_device(name):
    return name.endswith("CPU:0") and not hardware.n_gpus()


def _in_order(fdef):
    """The nodes of a function, each after those it depends on."""
    nodes = {node.name: node for node in fdef.node_def}
    done, result = set(), []
    for root in fdef.node_def:
        pending = [root.name]
        while pending:
            name = pending[-1]
            missing = [] if name in done else [s for s in map(node_of, nodes[name].input) if s in nodes and s not in done]
            if missing:
                pending += missing
                continue
            pending.pop()
            if name not in done:
                done.add(name)
                result.append(nodes[name])
    return result
