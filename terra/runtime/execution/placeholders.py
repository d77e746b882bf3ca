"""How the skeleton nests what operations give, and what of it has not been waited for."""

from terra.runtime.execution.graph_runner import Flight
from terra.runtime.tensors.tensor import TerraTensor


def flat_template(schema, outs, info):
    """How the fast path would nest these outputs."""
    outputs = schema.outputs
    if not outputs:
        return None
    if len(outputs) == 1 and not outputs[0][1] and not outputs[0][2]:
        return True
    if len(outputs) == 1:
        return (-1,) * len(outs)
    return tuple(
        info.attrs[number] if number else len(info.attrs[types]) if types else -1 for _, number, types in outputs)


def unwaited(x):
    """The eager tensor of an argument; if it is in flight, its handle, without waiting."""
    if type(x) is TerraTensor:
        return x._value if x._value is not None else x._hidden
    return x


def launched(x):
    """The eager tensor behind a TerraTensor that is no value of the running segment: of one in flight its handle, without waiting."""
    if x._value is not None:
        return x._value
    return x._hidden if type(x._owner) is Flight else x._eager()
