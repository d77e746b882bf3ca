"""Terra's own code: which frames run it, and which of its functions call the program's code or the framework's.

A function says the latter of itself, by the decorator `calling`: where a traceback ends in such a
function, the call has been wrong, or the framework has taken its own frames out.
"""

import weakref
from types import CodeType, FrameType, FunctionType
from typing import TypeVar

Function = TypeVar("Function", bound=FunctionType)

PACKAGE = __name__.partition(".")[0]
_WITHIN = PACKAGE + "."
_STANDS_IN = "stands in for a line of the program's"
_calling: dict[int, weakref.ref[CodeType]] = {}  # by id, as equal code may be another function's


def is_ours(frame: FrameType) -> bool:
    """Returns whether a frame runs Terra's own code."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(_WITHIN)


def owns(kind: type) -> bool:
    """Returns whether a class is Terra's own."""
    return kind.__module__.startswith(_WITHIN)


def calling(function: Function) -> Function:
    """Decorates a function that calls the program's code or the framework's."""
    code = function.__code__
    key = id(code)
    if key not in _calling:  # closures share their code
        _calling[key] = weakref.ref(code, lambda _: _calling.pop(key, None))
    return function


def calls(frame: FrameType) -> bool:
    """Returns whether a frame runs one of the functions that call the program's code or the framework's."""
    return id(frame.f_code) in _calling


def stand_in(code: CodeType) -> CodeType:
    """Returns the same code, marked as one that only stands in for a line of the program's: the line itself is in the traceback as well."""
    return code.replace(co_consts=(*code.co_consts, _STANDS_IN))


def stands_in(frame: FrameType) -> bool:
    """Returns whether a frame runs such code."""
    return frame.f_code.co_consts[-1:] == (_STANDS_IN,)
