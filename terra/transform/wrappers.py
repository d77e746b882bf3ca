"""Library objects around a user's function: ``contextlib.contextmanager``, ``functools.lru_cache``, ``functools.wraps``.

The call site sees the library's function, which is not instrumented, and that one calls the user's. Where the library's is
a Python function with a ``__wrapped__``, it is copied with the instrumented form in the cell that holds the wrapped
function. The C object that ``lru_cache`` makes can not be copied (its cache is part of what the program sees): there the
user's function is given the instrumented code itself; `restore` undoes that.
"""

import functools
import weakref
from types import CellType, FunctionType

__all__ = ["CACHED", "STEPS", "around", "exchange_code", "is_wrapper", "restore"]

CACHED = type(functools.lru_cache(lambda: None))
STEPS = weakref.WeakKeyDictionary()  # what stands in for a function of the program's that is, or may be, a step -> what has that as its `__wrapped__`, and gives its form `within` a step
_exchanged = {}  # id(function) -> (weak reference to it, its own code, that of its form)


def is_wrapper(function):
    """Returns whether it names the function that it is around, as ``functools.wraps`` has it."""
    return "__wrapped__" in getattr(function, "__dict__", ())


def around(wrapper, inner, form):
    """`wrapper` as it is, but for `form` wherever its closure holds `inner`."""

    def exchanged(cell):
        try:
            return CellType(form) if cell.cell_contents is inner else cell
        except ValueError:  # an empty cell
            return cell

    cells = wrapper.__closure__ or ()
    new_cells = tuple(exchanged(cell) for cell in cells)
    if all(new is old for new, old in zip(new_cells, cells)):
        return wrapper
    new = FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, new_cells)
    new.__kwdefaults__ = wrapper.__kwdefaults__
    new.__dict__ = wrapper.__dict__
    new.__qualname__, new.__module__, new.__doc__ = wrapper.__qualname__, wrapper.__module__, wrapper.__doc__
    new.__annotations__ = wrapper.__annotations__
    return new


def exchange_code(function, form):
    """Gives `function` the code of its instrumented form, if both have the same free variables."""
    old, new = function.__code__, form.__code__
    if old is new or old.co_freevars != new.co_freevars:
        return
    key = id(function)
    _exchanged[key] = weakref.ref(function, lambda _: _exchanged.pop(key, None)), old, new
    function.__code__ = new


def restore():
    """Puts the functions' own code back."""
    for reference, old, new in list(_exchanged.values()):
        function = reference()
        if function is not None and function.__code__ is new:
            function.__code__ = old
    _exchanged.clear()
