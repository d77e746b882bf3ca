"""Small tensors, whose values identify them: the constants of a trace."""

from terra.tf import private_names as tfi
from terra.tf import opschema

RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
VARIANT_ENUM = tfi.types_pb2.DT_VARIANT
STRING_ENUM = tfi.types_pb2.DT_STRING
SMALL = 64  # external tensors of at most so many elements are speculated to be constant
MOST_SETTINGS = 8  # elements: a longer tensor that is another one for each block is a batch, a shorter one may be a shape


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def const_key(x, enum, shape):
    """(dtype enum, shape, bytes): equal exactly if two small tensors are interchangeable."""
    value = x._numpy_internal()
    return (enum, shape, value.tobytes() if enum != STRING_ENUM and hasattr(value, "tobytes") else _string_bytes(value))


def value_key(e):
    """Returns `const_key` of an eager tensor, whatever it is."""
    return const_key(e, e._datatype_enum(), e._shape_tuple())


def _string_bytes(value):
    return value if isinstance(value, bytes) else repr(value.tolist()).encode() if hasattr(value, "tolist") else bytes(value)


def is_small_constant(enum, shape):
    return enum != VARIANT_ENUM and enum != RESOURCE_ENUM and elements(shape) <= SMALL


def known_to_host(runner, x):
    """Returns a key for the value of a tensor that was fed, if operations on it may run on the host at once (see `host_values.host_static`); else None."""
    if type(x) is not tfi.EagerTensor or runner.step.is_data(x):
        return None
    enum, shape = x._datatype_enum(), x._shape_tuple()
    return const_key(x, enum, shape) if enum in opschema.HOST_KNOWN_ENUMS and is_small_constant(enum, shape) else None


_dummies = {}


def dummy(enum):
    """Returns a tensor to pass for an argument that the taken path does not use."""
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
