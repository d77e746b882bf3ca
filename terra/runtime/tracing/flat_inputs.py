"""Looks at the flat inputs of an operation: types, handles, and which values decide shapes."""

from terra.graph.trace import RESOURCE, is_value
from terra.runtime.tensors.tensor import TerraTensor


def enums_of(flat):
    """The dtype enums of tensors."""
    return tuple([x._datatype_enum() for x in flat])


def handles(refs, flat):
    """The variable's handle per flat input, or None."""
    return [ref[1] if ref[0] == RESOURCE else None for ref in refs[:len(flat)]]


def all_values_known(by_value, shape_key):
    """Returns whether the values of all inputs are known that may decide about output shapes."""
    return all(is_value(key) for key, flag in zip(shape_key, by_value) if flag)


def computed_sizes(schema, flat):
    """Returns whether an input whose value can decide output shapes was computed by a step."""
    for x, by_value in zip(flat, schema.value_inputs):
        if by_value and type(x) is TerraTensor:
            return True
    return False


def value_positions(schema, info, n):
    """Per flat input, whether its value can decide output shapes."""
    if not schema.has_lists:
        return schema.value_inputs + (False,) * (n - len(schema.value_inputs))
    flags = []
    for (number_attr, _, type_list_attr, _), flag in zip(schema.inputs, schema.value_inputs):
        count = info.attrs[number_attr] if number_attr else len(info.attrs[type_list_attr]) if type_list_attr else 1
        flags += [flag] * count
    return flags
