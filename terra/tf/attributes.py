"""Attributes of operations in one canonical, hashable form."""

from terra.tf import private_names as tfi


def _dtype_enum(v):
    return v if type(v) is int else tfi.dtypes.as_dtype(v).base_dtype.as_datatype_enum


def _shape(v):
    if v is None:
        return None
    shape = tfi.tensor_shape.as_shape(v)
    return None if shape.rank is None else tuple(-1 if d is None else d for d in shape.as_list())


def _function_name(v):
    return getattr(v, "name", v)


def _string(v):
    return v if type(v) is bytes else str(v).encode()


def _float(v):
    return float(v) if v != 0 or str(v)[0] != "-" else "-0.0"  # which equals 0.0


_NORMALISERS = {
    "type": _dtype_enum, "shape": _shape, "int": int, "float": _float, "bool": bool, "string": _string, "func": _function_name,
}


def normalise_attr(value, attr_type):
    """A canonical, hashable form of an attribute value."""
    if attr_type.startswith("list("):
        one = _NORMALISERS.get(attr_type[5:-1], repr)
        return tuple(one(v) for v in value)
    if attr_type == "tensor":
        return value if isinstance(value, str) else value.SerializeToString()
    return _NORMALISERS.get(attr_type, repr)(value)


def default_value(attr_def):
    """The default of an attribute, as a Python value."""
    proto = attr_def.default_value
    kind = proto.WhichOneof("value")
    if kind == "list":
        return next((list(values) for _, values in proto.list.ListFields()), [])
    return getattr(proto, kind) if kind in ("s", "i", "f", "b", "type") else None
