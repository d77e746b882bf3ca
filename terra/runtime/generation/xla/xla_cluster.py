"""The parts of a compiled form: functions that XLA compiles, and the one that calls them."""

from terra.runtime.generation.functiondef import add_node, attr, func, type_list
from terra.runtime.generation.xla import xla_order
from terra.tf import private_names as tfi
from terra.tf.fingerprints import COMPILED

WHOLE = "whole"  # in place of a cluster's number


class Cluster:
    """A stretch of the graph that is a function of its own, and the refs in the ordinary form that it takes and gives.

    ways: its protos, for the orders in which its operations may start; fdef: that of them which is used.
    """

    __slots__ = ("name", "number", "ways", "fdef", "inputs", "outputs", "n_nodes")

    def __init__(self, name, number):
        self.name, self.number = name, number
        self.inputs, self.outputs = [], []

    def write(self, fdef, n_nodes):
        fdef.attr[COMPILED].b = True
        fdef.attr["_noinline"].b = True
        self.n_nodes = n_nodes
        self.ways = xla_order.ways(fdef)
        self.fdef = self.ways[0]


class XlaForm:
    """The functions of the compiled form.

    top: what runs in place of the ordinary function. probe: the ordinary function, whose further results are the clusters' inputs (`probed`).
    left_out: reason -> operations that are not compiled because of it. constants: names of arguments whose values XLA needs.
    whole: whether XLA compiles all of it: then there is one cluster, which is `top`, and no probe. checked: whether its first result, like which
        there is one in any
    form, says whether it has done anything: it does not if an index is out of range.
    """

    __slots__ = ("clusters", "top", "probe", "probed", "left_out", "constants", "whole", "checked")

    def settle(self):
        """Give `top` the ways of its clusters that have been chosen."""
        if self.whole:
            self.top = self.clusters[0].fdef
            return
        calls = {node.name: node for node in self.top.node_def}
        for cluster in self.clusters:
            calls[cluster.name].attr["f"].func.name = cluster.fdef.signature.name


def caller(fdef):
    """A function that only calls a cluster, as the graph does: to compile it without running the step."""
    result = tfi.function_pb2.FunctionDef()
    result.signature.CopyFrom(fdef.signature)
    result.signature.name += "_alone"
    add_call(result, "call", fdef.signature, [a.name for a in fdef.signature.input_arg])
    for k, a in enumerate(fdef.signature.output_arg):
        result.ret[a.name] = f"call:output:{k}"
    return result


def add_call(fdef, name, called, inputs):
    """Add a call of the function with the signature `called`."""
    add_node(fdef, name, "PartitionedCall", inputs, {
        "Tin": type_list([a.type for a in called.input_arg]), "Tout": type_list([a.type for a in called.output_arg]), "f": func(called.name), COMPILED: attr(True),
        "config": attr(""), "config_proto": attr(""), "executor_type": attr(""),
    })
