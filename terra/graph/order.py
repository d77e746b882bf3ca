"""How a graph function is registered: in which order its nodes come, which decides what TensorFlow's executor runs first, and which of them it computes beforehand."""

from terra.graph.functiondef import node_of
from terra.runtime import internals as tfi

# TensorFlow leaves an operation with this attribute alone when it computes what follows from constants; empty, it means nothing else.
_UNFOLDED = "_scoped_allocator"


def to_register(fdef):
    """A copy of a FunctionDef, to be registered."""
    made = shortest_first(fdef)
    if tfi.n_gpus():
        keep_unfolded(made)
    return made


def keep_unfolded(fdef):
    """Have operations whose inputs are constants computed where eager execution computes them: TensorFlow would do so once, on the CPU, whose last bits may be others."""
    constants = {node.name for node in fdef.node_def if node.op == "Const"}
    for node in fdef.node_def:
        values = [node_of(ref) for ref in node.input if not ref.startswith("^")]
        if values and constants.issuperset(values):
            node.attr[_UNFOLDED].list.SetInParent()


def shortest_first(fdef):
    """A copy of a FunctionDef whose nodes, so far in a topological order, come by the number of operations that are still to come after them, the fewest first.

    When an operation is done, the executor goes through those that read it in the order of their nodes: it hands them to other threads, all but the last expensive
    one, which it runs at once. That should be the one that the most have to wait for.
    """
    after = {}
    for node in reversed(fdef.node_def):
        n = after.setdefault(node.name, 0) + 1
        for ref in node.input:
            name = node_of(ref)
            if after.get(name, 0) < n:
                after[name] = n
    ordered = tfi.function_pb2.FunctionDef()
    ordered.CopyFrom(fdef)
    ordered.node_def.sort(key=lambda node: after[node.name])
    return ordered
