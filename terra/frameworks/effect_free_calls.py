"""Functions of Python's own library that change nothing that a program could notice, and see nothing that a program keeps in objects: only for speed."""

from types import BuiltinFunctionType, FunctionType
from typing import Any

_MODULES = frozenset(["time", "inspect", "os", "posix", "platform", "sys", "math", "operator", "_operator", "string", "locale", "socket", "uuid", "functools", "types", "numbers", "typing"])
_CHANGING = frozenset(["sleep", "putenv", "unsetenv", "remove", "unlink", "rename", "chdir", "mkdir", "makedirs", "rmdir", "system", "setattr", "setprofile", "settrace", "exit", "_exit", "kill"])
_LOOKING = frozenset([getattr, hasattr, isinstance, issubclass, callable, len, id, type, repr, str, bool, hash, list, tuple])
_PLAIN = (int, float, str, bytes, bool, type(None), type, FunctionType, BuiltinFunctionType)


def is_blind(function: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a call does neither."""
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if type(function) not in (FunctionType, BuiltinFunctionType) or module not in _MODULES or name in _CHANGING:
        return False
    return all(isinstance(x, _PLAIN) or callable(x) for x in (*args, *kwargs.values()))
