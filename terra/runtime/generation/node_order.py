"""How a graph function is registered: in which order its nodes come, which decides what TensorFlow's executor runs first, and which of them it
computes beforehand."""

from terra.runtime.generation.functiondef import node_of
from terra.tf import private_names as tfi
from terra.tf.private import hardware

# TensorFlow leaves an operation with this attribute alone when it computes what follows from constants; empty, it means nothing else.
_UNFOLDED = "_scoped_allocator"
_EXACT = frozenset(getattr(tfi.types_pb2, "DT_" + name) for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"))


def to_register(fdef):
    """A copy of a FunctionDef, to be registered."""
    made = tfi.function_pb2.FunctionDef()
    made.CopyFrom(fdef)
    if hardware.n_gpus():
        keep_unfolded(made.node_def)
    sort_shortest_first(made)
    return made


def keep_unfolded(nodes):
    """Makes operations on constants run where eager execution runs them: TensorFlow would run them once, on the CPU, whose last bits may be others.
    nodes: in a topological order."""
    folded = set()
    for node in nodes:
        values = [node_of(ref) for ref in node.input if not ref.startswith("^")]
        if not (folded.issuperset(values) and (values or node.op == "Const")):
            continue
        if node.op == "Const" or all(value.type in _EXACT for value in node.attr.values() if value.type):
            folded.add(node.name)
        else:
            node.attr[_UNFOLDED].list.SetInParent()


def sort_shortest_first(fdef):
    """Order the nodes, so far in a topological order, by the number of operations that are still to come after them, the fewest first.

    When an operation is done, the executor goes through those that read it in the order of their nodes: it hands them to other threads, all but the
    last expensive one, which it runs at once. That should be the one that the most have to wait for.
    """
    after = {}
    for node in reversed(fdef.node_def):
        n = after.setdefault(node.name, 0) + 1
        for ref in node.input:
            name = node_of(ref)
            if after.get(name, 0) < n:
                after[name] = n
    fdef.node_def.sort(key=lambda node: after[node.name])
