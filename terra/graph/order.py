"""The order in which the nodes of a graph function are registered, which decides what TensorFlow's executor runs first."""

from terra.graph.functiondef import node_of
from terra.runtime import internals as tfi


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
