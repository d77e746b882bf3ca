"""Whether a call may run code of the program's, or of a library that may know of it: it is not made again where a run is skipped, as what it changes may have been read before."""

import enum
import functools
import gc
import inspect
import operator
import sys
import traceback
import warnings
import weakref
from types import (
    BuiltinFunctionType, CellType, ClassMethodDescriptorType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodType, WrapperDescriptorType)
from typing import Any

import numpy as np

from terra.runtime.tensors.object_kinds import defined, is_frameworks_function, is_librarys
from terra.transform import policy

_HARMLESS = frozenset(["__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__enter__", "__exit__", "__setstate__", "__getstate__", "__reduce__"])
_OF_C = frozenset([MethodDescriptorType, MemberDescriptorType, GetSetDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType])  # descriptors that run nothing
_EMPTY = CellType()
_OF_CONTAINERS, _CONTAINERS = frozenset([len, operator.getitem]), frozenset([list, tuple, dict, set, frozenset])
_WATCHING = frozenset(["weakref", "_weakref", "_weakrefset", "gc", "tracemalloc", "faulthandler"])  # modules that look at when objects go
# What looks at the frame that calls it, as deep as it likes, or gives what changes behind the observer's back.
_REFUSED = frozenset([
    exec, eval, globals, locals, vars, dir, super, delattr, __import__, breakpoint, iter, next, sys._getframe, inspect.currentframe, inspect.stack, inspect.trace, traceback.extract_stack,
    traceback.format_stack, traceback.print_stack, traceback.walk_stack, sys.exc_info, getattr(sys, "exception", sys.exc_info), sys.settrace, sys.setprofile, gc.collect, gc.get_objects, gc.get_referrers, sys.getrefcount, weakref.ref])


def is_refused(callee: Any) -> bool:
    """Returns whether something looks at frames deeper than its caller, at when objects go, or does what the observer cannot see."""
    function = callee.__func__ if type(callee) is MethodType else callee
    if getattr(callee, "__module__", None) in _WATCHING or (type(function) is FunctionType and function.__globals__.get("__name__") in _WATCHING):
        return True
    try:
        return callee in _REFUSED
    except TypeError:  # it has no hash
        return False


def runs_program(callee: Any, args: tuple) -> bool:
    """Returns whether a call may run such code."""
    if callee is getattr or callee is hasattr:
        it, name = args[:2]
        kind = type(it)
        if kind is super or issubclass(kind, type) or (is_librarys(kind) and type(defined(kind, name)) is not MemberDescriptorType):
            return True
        if not is_programs_class(kind):
            return False
        how, found = defined(kind, "__dict__"), defined(kind, name)
        held = how.__get__(it) if type(how) is GetSetDescriptorType else ()
        if type(found) in _OF_C and type(defined(kind, "__getattribute__")) is not FunctionType:
            return False
        return name not in held or defined(type(found), "__set__") is not None
    if callee is setattr or callee is object.__setattr__:
        kind = type(args[0])
        return is_programs_class(kind) and ((callee is setattr and defined(kind, "__setattr__") is not object.__setattr__) or type(defined(type(how := defined(kind, args[1])), "__set__")) is FunctionType
                                            or type(how) is property)
    if type(callee) is BuiltinFunctionType and callee in _OF_CONTAINERS and type(args[0]) in _CONTAINERS:  # which look at no item, or at keys only
        return any(map(may_be_run, (*(args[0] if type(args[0]) is dict else ()), *args[1:])))
    function = getattr(callee, "__func__", callee)
    if type(function) is FunctionType:
        if not is_frameworks_function(function) and (policy.may_know_program(function) or any(map(may_be_run, held_by(function)))):
            return True
    elif isinstance(callee, type):
        if is_programs_class(callee) and not (issubclass(callee, BaseException) and callee.__init__ is Exception.__init__):
            return True
    elif type(function) is not BuiltinFunctionType and (
            is_programs_class(type(callee)) or (isinstance(callee, np.ufunc) and getattr(np, callee.__name__, None) is not callee)):
        return True
    return any(map(may_be_run, args))


def held_by(function: FunctionType) -> list:
    """Lists what the variables hold that a function has from functions around."""
    return [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]


def may_be_run(it: Any) -> bool:
    """Returns whether a call that is given `it` may run code of the program's: a function, or special methods of a class."""
    kind = type(it)
    if kind is FunctionType or kind is MethodType:
        function = getattr(it, "__func__", it)
        return type(function) is not FunctionType or policy.is_user_code(function)
    if kind in (list, tuple, set, frozenset, dict):
        return any(map(may_be_run, it)) or (kind is dict and any(map(may_be_run, it.values())))
    return kind is functools.partial or not issubclass(kind, enum.Enum) and _has_special_methods(kind)


@functools.lru_cache(1000)
def _has_special_methods(kind: type) -> bool:
    return is_programs_class(kind) and any(
        name.startswith("__") and name not in _HARMLESS and type(value) is FunctionType for cls in kind.__mro__ if not is_librarys(cls) for name, value in vars(cls).items())


@functools.lru_cache(1000)
def is_programs_class(kind: type) -> bool:
    """Returns whether the program, or a library that may know of it, has written a class, or one that it derives from."""
    for cls in kind.__mro__:
        module = sys.modules.get(getattr(cls, "__module__", None) or "")
        filename = getattr(module, "__file__", None) if module is not None else "<unknown>"
        name = module.__name__ if module is not None else None
        if filename is not None and not is_librarys(cls) and (policy.is_user_module(name, filename) or policy.is_strange(name, filename)):
            return True
    return False


def callers_looked_up(callee: Any, args: tuple, kwargs: dict) -> int:
    """Returns how many callers a call looks up, as `warnings.warn(text, stacklevel=2)` does."""
    level = args[2] if callee is warnings.warn and len(args) > 2 else kwargs.get("stacklevel", 1)
    return level if type(level) is int else 1


def where_it_stands(callee: Any) -> tuple[Any, str] | None:
    """Returns (module, name) of a function that stands in its module under its name."""
    module, name = sys.modules.get(getattr(callee, "__module__", None) or ""), getattr(callee, "__name__", None)
    return (module, name) if module is not None and getattr(module, str(name), None) is callee else None
