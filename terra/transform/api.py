"""The transform's interface for the rest of Terra: `instrument`, `to_code`, `is_instrumented`, `reason`."""

import functools
import inspect
import textwrap
from types import FunctionType, MethodType

from terra.transform import convert

__all__ = ["instrument", "to_code", "is_instrumented", "reason"]


def _function_of(target):
    """The Python function at the bottom of a method, static method, partial or callable object; None if there is none."""
    if isinstance(target, FunctionType):
        return target
    if isinstance(target, (MethodType, staticmethod, classmethod)):
        return _function_of(target.__func__)
    if isinstance(target, functools.partial):
        return _function_of(target.func)
    if not isinstance(target, type):
        call = convert._static_lookup(type(target), "__call__")
        if isinstance(call, FunctionType):
            return call
    return None


def instrument(target):
    """The instrumented form of a function, method or callable; `target` itself where there is none (see `reason`).

    Always the same object for the same function; an instrumented function is its own form. Functions that it calls are
    instrumented when they are called.
    """
    if isinstance(target, FunctionType):
        return convert.function_form(target, forced=True)
    if isinstance(target, MethodType):
        form = instrument(target.__func__)
        return target if form is target.__func__ else MethodType(form, target.__self__)
    if isinstance(target, (staticmethod, classmethod)):
        form = instrument(target.__func__)
        return target if form is target.__func__ else type(target)(form)
    if isinstance(target, functools.partial):
        form = instrument(target.func)
        return target if form is target.func else functools.partial(form, *target.args, **target.keywords)
    function = _function_of(target)
    if function is None or isinstance(target, type):
        return target
    form = convert.function_form(function)
    return target if form is function else MethodType(form, target)


def is_instrumented(target):
    """Is `target` the result of `instrument` (or a function made inside of one), or has it nothing to instrument?"""
    function = _function_of(target)
    if function is None:
        return False
    decision = convert._decisions.get(id(function.__code__))
    return decision is not None and decision.is_instrumented


def reason(target):
    """Why a function runs without instrumentation; None if it does not."""
    function = _function_of(target)
    if function is None:
        return "is not a Python function"
    return convert.decide(function, forced=True).reason


def to_code(target):
    """The instrumented source of a function, as a person reads it (comments are lost)."""
    function = _function_of(target)
    if function is None:
        raise TypeError(f"to_code needs a Python function or method, not {type(target).__name__}")
    decision = convert.decide(function, forced=True)
    if decision.factory is None and decision.is_instrumented and decision.reason is None:
        decision = next((d for d in list(convert._decisions.values())
                         if d.factory is not None and d.factory.code is function.__code__), decision)
    if decision.factory is not None:
        return decision.factory.code_text
    note = f"# not instrumented: {decision.reason or 'part of an instrumented function'}\n"
    try:
        return note + textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return note
