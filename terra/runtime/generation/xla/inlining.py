"""Calls of functions that are written into what XLA compiles: the loops over time of RNN layers (see `runtime/loops/recurrent_layers.py`).

XLA must know how long a list of tensors is that a loop fills, and takes what it must know of a called function for constants: all that the function
is given, so that it would compile anew for each value. In the cluster itself it finds out. The lists must stay there: XLA gives none to others.
"""

from terra.runtime.generation.xla import xla_ops

_FOR_XLA = "_xla_propagate_compile_time_consts"  # what TensorFlow gives a loop that was traced for XLA


def why_not(fdef, library):
    """Why calls of a function cannot be written into a cluster, as a phrase; None if they can."""
    if fdef is None or fdef.signature.is_stateful or fdef.control_ret or not any(node.op in xla_ops.LOOPS and node.attr[_FOR_XLA].b for node in fdef.node_def):
        return xla_ops.CALLS
    return _why_not(fdef, library)


def _why_not(fdef, library):
    for node in fdef.node_def:
        if node.op in xla_ops.LOOPS:
            called = [library.get(node.attr[name].func.name) for name in ("cond", "body")]
            reason = next(filter(None, [xla_ops.CALLS if f is None else _why_not(f, library) for f in called]), None)
        else:
            reason = xla_ops.why_not(node, in_loop=True)
        if reason is not None:
            return reason
    return None


def write(fdef, call, function):
    """Add the nodes of `function` to `fdef` in place of the node `call`; returns {ref of an output of the call: the ref that takes its place}."""
    given = {a.name: ref for a, ref in zip(function.signature.input_arg, call.input, strict=True)}

    def inside(ref):
        return given.get(ref, f"{call.name}/{ref}")

    for node in function.node_def:
        copy = fdef.node_def.add()
        copy.CopyFrom(node)
        copy.name = f"{call.name}/{node.name}"
        copy.device = ""
        copy.attr.pop("_class", None)  # which names nodes by what they were called
        copy.input[:] = [inside(ref) for ref in node.input if not ref.startswith("^")]
        copy.input.extend([f"^{call.name}/{ref[1:]}" for ref in node.input if ref.startswith("^") and ref[1:] not in given])  # an argument is always there
    return {f"{call.name}:output:{k}": inside(function.ret[a.name]) for k, a in enumerate(function.signature.output_arg)}
