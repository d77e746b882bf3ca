"""Small tensors, whose values identify them: the constants of a trace."""

from terra.runtime import internals as tfi

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
    """The same of an eager tensor, whatever it is."""
    return const_key(e, e._datatype_enum(), e._shape_tuple())


def _string_bytes(value):
    return value if isinstance(value, bytes) else repr(value.tolist()).encode() if hasattr(value, "tolist") else bytes(value)


def is_small_constant(enum, shape):
    return enum != VARIANT_ENUM and enum != RESOURCE_ENUM and elements(shape) <= SMALL
