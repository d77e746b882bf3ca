"""Tensors and nestings that the skeleton makes itself: dummies for arguments that a path does not use."""

from terra.runtime import internals as tfi
from terra.runtime.graph_runner import Flight
from terra.runtime.tensor import TerraTensor


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


_dummies = {}


def dummy(enum):
    """A tensor to pass for an argument that the taken path does not use."""
    value = _dummies.get(enum)
    if value is None:
        dtype = tfi.dtypes.as_dtype(enum)
        if dtype == tfi.tf.resource:
            _dummies["variable"] = tfi.tf.Variable(0.0, trainable=False)
            value = _dummies["variable"].handle
        elif dtype == tfi.tf.variant:
            value = tfi.tf.raw_ops.EmptyTensorList(element_shape=tfi.tf.constant([], tfi.tf.int32), max_num_elements=0, element_dtype=tfi.tf.float32)
        else:
            value = tfi.tf.constant(b"" if dtype == tfi.tf.string else 0 if dtype != tfi.tf.bool else False, dtype=dtype)
        _dummies[enum] = value
    return value


def unwaited(x):
    """The eager tensor of an argument; if it is in flight, its handle, without waiting."""
    if type(x) is TerraTensor:
        return x._value if x._value is not None else x._hidden
    return x


def launched(x):
    """The eager tensor behind a TerraTensor that is no value of the running piece: of one in flight its handle, without waiting."""
    if x._value is not None:
        return x._value
    return x._hidden if type(x._owner) is Flight else x._eager()
