"""Exceptions that a run may catch, and look at: what they say follows from what they were made of."""

from types import FunctionType, WrapperDescriptorType
from typing import Any

from terra.runtime.fast_forward.sources.expectations import is_plain
from terra.runtime.tensors.object_kinds import defined

_MAKING = frozenset(["__init__", "__reduce__", "__setstate__"])
_TRACES = frozenset(["__traceback__", "__context__", "__cause__", "__dict__", "__suppress_context__"])


def is_told(kind: type) -> bool:
    """Returns whether the text of such an exception, and what it is made of, are those of Python's own."""
    return not any(type(value) is FunctionType and name.startswith("__") and name not in _MAKING for name, value in _of_program(kind))


def _of_program(kind: type) -> list[tuple[str, Any]]:
    return [pair for cls in kind.__mro__ if cls.__module__ != "builtins" for pair in vars(cls).items()]


def is_plain_error(error: BaseException) -> bool:
    """Returns whether an exception, which was raised just now, is told by its class and by plain values."""
    return is_told(type(error)) and is_plain(error.args) and all(map(is_plain, vars(error).values()))


def is_own_error(kind: type) -> bool:
    """Returns whether instances of a class of exceptions are made by `__init__` alone, and have their attributes where others have."""
    return issubclass(kind, Exception) and type(kind) is type and defined(kind, "__new__") is defined(kind.__mro__[_first_of_python(kind)], "__new__") and not any(
        name in ("__slots__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__del__") for name, _ in _of_program(kind))


def _first_of_python(kind: type) -> int:
    return next(k for k, cls in enumerate(kind.__mro__) if cls.__module__ == "builtins")


def is_initialiser(found: Any) -> bool:
    """Returns whether something is the `__init__` of exceptions of Python's own."""
    return type(found) is WrapperDescriptorType and found.__name__ == "__init__" and issubclass(found.__objclass__, BaseException)


def may_ask(name: str) -> bool:
    """Returns whether an attribute of an exception tells nothing of where it was raised."""
    return name not in _TRACES
