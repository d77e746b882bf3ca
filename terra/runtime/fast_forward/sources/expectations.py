"""Expectations: what a record of a call expects of each of its opaque calls (see `opaque_calls`): a value, an object, an exception, or only of what kind that is."""

import enum
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from terra.runtime.fast_forward.sources.number_sources import KINDS, can_be_told, is_large
from terra.runtime.interpreter import integers
from terra.runtime.tensors.comparing import SCALARS, scalar
from terra.tf import private_names as tfi
from terra.tf.constants import is_small_constant, value_key

_STEADY = frozenset([ModuleType, FunctionType, type])
ANYTHING = object()  # in place of what a call has given, if nobody looks at it


class Same(NamedTuple):
    """Says that a call gives this very object."""

    value: Any


class OfKind(NamedTuple):
    """Stands for a number or text of this type, another one each time."""

    kind: type


class OfArray(NamedTuple):
    """Stands for an array of this type and shape, another one each time."""

    dtype: str
    shape: tuple


class Raises(NamedTuple):
    """Says that a call raises an exception of this class, which this tells from others (see `facts.exceptions`)."""

    kind: type
    key: tuple


class SameAs(NamedTuple):
    """Says that a call gives the very object that the call of this number has given."""

    index: int


class OfClass(NamedTuple):
    """Stands for an object of this class, another one each time, of which something was looked up in the class."""

    kind: type


END = object()  # what an iterator gives that is at its end
OBJECT = object()  # in place of what a call has given, if that is opaque
_VARYING = frozenset([*KINDS, str, bytes])  # types of what a call may give that is another one each time


def identity(value: Any) -> Any:
    """Returns what identifies a plain value, also within tuples, or a small tensor; OBJECT of any other, with which all that the program does is an opaque call."""
    kind = type(value)
    if value is END:
        return END
    if kind is tuple:
        return kind, *map(identity, value)
    if kind is tfi.EagerTensor and is_plain(value):
        return value_key(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    return scalar(value) if kind in SCALARS else OBJECT


def is_steady(function: Any, value: Any) -> bool:
    """Returns whether what `function` gives is known as the object that it is: a module, function or class which is an attribute of something; or a member of an enumeration, of which there are few."""
    return (function is getattr and type(value) in _STEADY) or issubclass(type(value), enum.Enum)


def error_key(error: BaseException) -> tuple:
    """Returns what tells an exception from others of its class."""
    return identity(error.args), str(error), *[(name, identity(value)) for name, value in vars(error).items()]


def is_met(expected: Any, value: Any, error: BaseException | None, results: list) -> bool:
    """Returns whether a call has given, or raised, what is expected of it; `results`: what the calls before it have given."""
    kind = type(expected)
    if error is not None or kind is Raises:
        return kind is Raises and type(error) is expected.kind and error_key(error) == expected.key
    if kind is Same:
        return value is expected.value
    if kind is SameAs:
        return value is results[expected.index]
    if kind is OfArray:
        return type(value) is np.ndarray and (value.dtype.str, value.shape) == expected
    if kind is OfClass:
        return type(value) is expected.kind
    return expected is ANYTHING or (type(value) is expected.kind and may_be_own(value) if kind is OfKind else identity(value) == expected)


def may_be_another(value: Any) -> bool:
    """Returns whether it is a number or text of which Python can make an object of its own, which tells where it came from."""
    if type(value) in (str, bytes):
        return len(value) > 1  # Python has one object for each shorter one
    return type(value) in _VARYING or is_large(value) or isinstance(value, np.number)


def may_be_own(value: Any) -> bool:
    """Returns whether `renewed` gives an object of its own for it."""
    return may_be_another(value) or can_be_told(value) or (type(value) is tuple and len(value) > 0 and is_plain(value))


def renewed(value: Any) -> Any:
    """Returns an equal number or text that is an object of its own; anything else as it is."""
    if type(value) is float:
        return value * 1.0
    if type(value) is int:
        return integers.own(value)
    if type(value) is tuple:
        return tuple([*value])
    if not may_be_another(value):
        return value
    return type(value)().join([value[:1], value[1:]]) if type(value) in (str, bytes) else value.copy()


def is_plain(value: Any) -> bool:
    """Returns whether `identity` tells all about a value."""
    kind = type(value)
    if kind is tfi.EagerTensor:
        return not vars(value) and is_small_constant(value._datatype_enum(), value._shape_tuple())
    return all(map(is_plain, value)) if kind is tuple else kind in SCALARS or isinstance(value, np.generic)
