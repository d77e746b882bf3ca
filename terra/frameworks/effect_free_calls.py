"""Functions of Python's own library that change nothing that a program could notice, and see nothing that a program keeps in objects: they may be
called once more."""

import inspect
import math
import operator
import os
import platform
import sys
import time
from types import BuiltinFunctionType, FunctionType
from typing import Any

_NAMES = {
    time: "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns thread_time localtime gmtime strftime ctime mktime",
    inspect: "signature getfullargspec isfunction ismethod isclass ismodule isbuiltin isroutine iscoroutinefunction isgeneratorfunction getmodule getdoc",
    os: "getenv getpid getcwd cpu_count fspath",
    platform: "system machine node python_version release",
    sys: "getsizeof getrecursionlimit getdefaultencoding getfilesystemencoding intern",
    operator: "add sub mul truediv floordiv mod pow neg pos eq ne lt le gt ge not_ truth index",
}
_BLIND = frozenset([getattr(module, name) for module, names in _NAMES.items() for name in names.split() if hasattr(module, name)] + [f for f in vars(math).values() if callable(f)])
_OF_VALUES = frozenset([bool, operator.contains, operator.getitem])  # where all that they are given are numbers and texts: other classes have methods for them
_VALUES = frozenset([int, float, str, bytes, bool, type(None)])
_PLAIN = (int, float, str, bytes, bool, type(None), type, FunctionType, BuiltinFunctionType)


def is_blind(function: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a call does neither, so that it may as well be made twice."""
    if type(function) in (type, BuiltinFunctionType) and function in _OF_VALUES:
        return not kwargs and all(type(x) in _VALUES for x in args)
    if type(function) not in (FunctionType, BuiltinFunctionType) or function not in _BLIND:
        return False
    return all(isinstance(x, _PLAIN) or callable(x) for x in (*args, *kwargs.values()))
