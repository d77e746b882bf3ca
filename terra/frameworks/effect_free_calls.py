"""Functions, most of them of Python's own library, that change nothing that a program could notice, and see nothing that a program keeps in objects: they may be
called once more (`is_blind`). And those that change nothing that guards compare, though they are to be called once (`keeps_guards`)."""

import bisect
import copy
import inspect
import json
import logging
import math
import operator
import os
import platform
import sys
import time
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodDescriptorType, MethodType, MethodWrapperType, ModuleType, WrapperDescriptorType
from typing import Any

from terra.frameworks import framework_objects

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
# Modules of Python's own library that keep what they change to themselves; what copies, and what only asks.
_MODULES = frozenset(
    "_contextvars _datetime _decimal _hashlib _random _struct base64 binascii calendar datetime decimal fractions hashlib html inspect json json.decoder json.encoder ntpath numbers pathlib "
    "posixpath random re secrets statistics string struct textwrap types unicodedata urllib.parse uuid zlib".split())
_LOGGING = frozenset(getattr(logging.Logger, name) for name in ("debug", "info", "warning", "error", "critical", "log")) | {logging.info, logging.warning, logging.error}
_COPYING = (copy.copy, copy.deepcopy, json.dumps)
_ASKING = (getattr, hasattr, len, bool, operator.contains, operator.getitem, list, tuple, dict, set, frozenset, sorted)
_ASKING_VALUES = (abs, ascii, bin, chr, divmod, format, hash, hex, max, min, oct, ord, pow, repr, round, sum, bisect.bisect_left, bisect.bisect_right)
_CONTAINERS = frozenset([list, tuple, dict, set, frozenset, MappingProxyType, range, *(type(view) for view in ({}.keys(), {}.values(), {}.items(), MappingProxyType({}).values()))])
_FUNCTIONS = (type, FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType, MethodDescriptorType, WrapperDescriptorType)
_READING = frozenset(["copy", "count", "get", "index", "items", "keys", "values"])  # methods of these
_PLAIN = (int, float, str, bytes, bool, type(None), type, FunctionType, BuiltinFunctionType)


def is_blind(function: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a call does neither, so that it may as well be made twice."""
    if type(function) in (type, BuiltinFunctionType) and function in _OF_VALUES:
        return not kwargs and all(type(x) in _VALUES for x in args)
    if type(function) not in (FunctionType, BuiltinFunctionType) or function not in _BLIND:
        return False
    return all(isinstance(x, _PLAIN) or (type(function) is FunctionType and callable(x)) for x in (*args, *kwargs.values()))


def is_unaware_of_errors(function: Any, kwargs: dict) -> bool:
    """Returns whether a call does not ask which exception is handled."""
    function = getattr(function, "__func__", function)
    return type(function) is not FunctionType or (function in _LOGGING and not kwargs.get("exc_info"))


def keeps_guards(function: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a call, which is not to be made twice, changes nothing that guards compare: what it makes is new, or what it changes is kept in the library that it is of."""
    values = (*args, *kwargs.values())
    if isinstance(function, type) and framework_objects.is_stock_layer(function):
        return all(type(x) in _VALUES for x in values)
    if type(function) is operator.attrgetter:
        return framework_objects.is_stock_layer(type(args[0]))
    if isinstance(function, type) and issubclass(function, BaseException):
        return type(function.__init__) is WrapperDescriptorType and type(function.__new__) is BuiltinFunctionType and all(type(x) in _VALUES for x in values)
    if not isinstance(function, _FUNCTIONS):
        return False
    owner = getattr(function, "__self__", getattr(function, "__objclass__", None))
    if any(function is asks for asks in _ASKING) or (type(owner) in _CONTAINERS and function.__name__ in _READING):
        return all(type(x) in _CONTAINERS or _is_of_library(type(x)) for x in values)
    if any(function is asks for asks in _ASKING_VALUES):
        return all(map(_is_value, values))
    if any(function is copies for copies in _COPYING):
        return True
    module = getattr(function if owner is None or isinstance(owner, ModuleType) else owner if isinstance(owner, type) else type(owner), "__module__", None)
    return module in _MODULES and all(_is_of_library(type(x)) for x in values)


def _is_value(it: Any) -> bool:
    return type(it) in _VALUES or (type(it) in (list, tuple) and all(map(_is_value, it)))


def _is_of_library(kind: type) -> bool:
    return kind in _VALUES or kind.__module__ in _MODULES
