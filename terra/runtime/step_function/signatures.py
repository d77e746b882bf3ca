"""Functions of Terra's that stand in for the program's, and are seen by inspection as those were written.

Programs look at the signature of a function to find out what to call it with: through `inspect`, or at `__code__`, `__defaults__` and `__kwdefaults__`
themselves, which they may also set. So what stands in for a function has code with the same parameters, and hands on what it got for each.
"""

import functools
import inspect
from types import FunctionType
from typing import Any, Callable

from terra import ours

_NAME = "_terra_call"


def standing_in(function: FunctionType, call: Callable[..., Any]) -> FunctionType:
    """Returns a function with the parameters, defaults and attributes of `function`, which calls `call` with what it is given."""
    code = function.__code__
    names, n, n_named = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    rest = iter(names[n + n_named:])
    star = next(rest) if code.co_flags & inspect.CO_VARARGS else None
    stars = next(rest) if code.co_flags & inspect.CO_VARKEYWORDS else None
    parameters, given = list(names[:n]), list(names[:n])
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if star is not None:
        given.append(f"*{star}")
    if star is not None or n_named:
        parameters.append(f"*{star or ''}")
    for name in names[n:n + n_named]:
        parameters.append(name)
        given.append(f"{name}={name}")
    if stars is not None:
        parameters.append(f"**{stars}")
        given.append(f"**{stars}")
    space = {"__name__": __name__, _NAME: call}  # so its frames are known for Terra's
    exec(f"def call({', '.join(parameters)}):\n    return {_NAME}({', '.join(given)})", space)
    made = functools.update_wrapper(ours.calling(space.pop("call")), function)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__ and dict(function.__kwdefaults__)
    return made


class AsWritten:
    """The part of a callable for what inspection asks of functions: that of the function which it wraps, and set there, too."""

    __code__, __defaults__, __kwdefaults__, __globals__, __closure__ = (
        property(lambda self, name=name: getattr(self.__wrapped__, name), lambda self, value, name=name: setattr(self.__wrapped__, name, value))
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"))
