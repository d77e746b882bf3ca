"""Why an operation matches no node that can follow."""

from terra.graph.trace import CONST
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import const_key, is_small_constant

EagerTensor = tfi.EagerTensor


def why(runner, info, flat):
    """Why the operation at hand matches no node that can follow: one sentence, and what is relaxed for good because of it."""
    location = runner.cursor.current
    for node, _ in runner.node.successors:
        if node.info is info and node.location is location:
            for k, (x, slot) in enumerate(zip(flat, node.slots)):
                if slot.kind is CONST and type(x) is EagerTensor and id(x) not in runner.step.args:
                    shape = x._shape_tuple()
                    if is_small_constant(x._datatype_enum(), shape) and const_key(x, x._datatype_enum(), shape) != slot.const:
                        return f"input {k} of {info.op_type} was a constant so far and has changed"
            if node.fixed:
                return f"{info.op_type} got inputs of other shapes than so far, or from a source that was never seen there"
            return f"{info.op_type} got inputs (or shapes) from a source that was never seen there"
    for node, _ in runner.node.successors:
        if node.op_type == info.op_type and node.location is location and node.category != opschema.FETCH:
            other = [name for name, value in info.attrs.items() if node.info.attrs.get(name) != value]
            return f"{info.op_type} never followed {node_name(runner)} here with {'another ' + ' and '.join(other) if other else 'such inputs'}"
    return f"{info.op_type} never followed {node_name(runner)} here"


def node_name(runner):
    """Names what was issued last, for a message."""
    if runner.node is runner.program.start:
        return "the start of the step"
    if runner.node.category == opschema.FETCH:
        return "the read of a value"
    return runner.node.op_type
