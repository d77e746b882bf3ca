"""Conditions: what the values that a call reads must be, for its record to hold."""

from typing import Any, NamedTuple

from terra.runtime.generation.speculated_branches import Within
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import opschema
from terra.tf import private_names as tfi
from terra.tf.constants import const_key, is_small_constant, value_key


class HasShape(NamedTuple):
    """A value, no scalar, that was read for its shape: only that matters."""

    sizes: tuple


def condition_of(value: Any) -> tuple:
    """Returns what identifies a value that was looked at. Raises Unskippable if it will hardly be the same again."""
    enum, shape = value._datatype_enum(), value._shape_tuple()
    if not (enum == tfi.types_pb2.DT_BOOL and is_small_constant(enum, shape)) and not (enum in opschema.HOST_KNOWN_ENUMS and shape == ()):
        raise Unskippable("reads numbers, which are seldom the same for long")
    return const_key(value, enum, shape)


def shape_condition_of(value: Any) -> tuple:
    """Returns the same of a value that was read for its shape. (Of a scalar, the graph with conditions looks at the value.)"""
    sizes = value._shape_tuple()
    return HasShape(sizes) if sizes else condition_of(value)


def is_expected(expected: Any, value: Any) -> bool:
    """Returns whether a value that was read is what a record has for it."""
    if type(expected) is Within:
        return expected.low <= float(value) <= expected.high
    if type(expected) is HasShape:
        return value._shape_tuple() == expected.sizes
    return expected is None or value_key(value) == expected
