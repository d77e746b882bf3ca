"""The user's code that the framework calls: a layer of the user's in a Sequential, a learning rate schedule, an activation, a loss.

A call of the framework's is skipped only if nothing of the user's could be missed. Where its object holds functions or subclasses of the user's, they are
observed while the call is recorded: for as long as it takes, their code is exchanged for their observed form, and a profile function looks out
for code of the user's that was called but not observed.
"""

import sys
from types import FunctionType, MethodType

from terra.runtime import guards
from terra.runtime.observer import Observer
from terra.runtime.regions import Unskippable
from terra.transform import convert, policy
from terra.transform.observed import Unobservable

_libraries = {}  # id of a code object that is no user's -> it


def observe(runner, users, call):
    """Make `call`, which may run these functions, and methods of these classes: (its result, what they read; None if they were not pure)."""
    step = runner.step.function
    if runner.observer is not None or sys.getprofile() is not None or not step.located or step.options.fast_forward == "framework":
        return call(), None
    observer = Observer(runner, set())
    exchanged = []  # (function, its own code)
    called, arguments = {}, []

    def profile(frame, event, argument):
        if event != "call":
            return
        code = frame.f_code
        if id(code) in _libraries:
            return
        if convert.is_observed(code):
            called[id(code)] = code
            for x in frame.f_locals.values():
                if type(x) is list or type(x) is dict:  # it may come from the framework, as the same one the next time
                    observer.give(x)
                    arguments.append(x)
        elif policy.is_user_module(frame.f_globals.get("__name__"), code.co_filename) and not _makes_named_tuple(frame):
            observer.impure(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) is called by the framework and was not observed")
        else:
            _libraries[id(code)] = code

    try:
        for function in dict.fromkeys(_functions(users)):
            try:
                code = convert.observed_code(function)
            except Unobservable:
                continue
            if code.co_freevars == function.__code__.co_freevars:
                exchanged.append((function, function.__code__))
                function.__code__ = code
        with observer:
            sys.setprofile(profile)
            try:
                result = call()
            finally:
                sys.setprofile(None)
    finally:
        observed = [(function, function.__code__) for function, _ in exchanged]
        for function, code in exchanged:
            function.__code__ = code
    for function, code in observed:
        if id(code) in called:
            observer.calls(function)
    for cls in users:
        if isinstance(cls, type):
            for base in cls.__mro__:
                if not guards.is_librarys(base) and base is not object:
                    observer.reads.contents(vars(base), base)
    try:
        return result, observer.finish_inside()
    except Unskippable:
        return result, None


def _makes_named_tuple(frame):
    return frame.f_code.co_filename.startswith("<string>") and frame.f_globals.get("__name__", "").startswith("namedtuple_")


def _functions(users):
    """The Python functions among these functions, methods and classes."""
    for thing in users:
        if isinstance(thing, type):
            for base in thing.__mro__:
                if not guards.is_librarys(base) and base is not object:
                    for value in vars(base).values():
                        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                        if type(value) is FunctionType:
                            yield value
        else:
            function = thing.__func__ if type(thing) is MethodType else thing
            if type(function) is FunctionType:
                yield function
