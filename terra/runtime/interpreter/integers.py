"""Integers that are objects of their own. CPython has one object for all that are equal, from -5 to 256: of these, nobody can tell where one came from.

A calculation with an integer looks at its value, never at which object it is. So one that holds the words of a small integer is like it in all but its identity, which `is` tells: `natural` gives the
object that the program would have.
"""

import ctypes
from operator import is_
from typing import Any

_HEAD = object.__basicsize__
_WORDS = (1).__sizeof__() - _HEAD  # the sign, the number of digits and one digit
_LARGE = 1 << 20  # what is added to an integer for Python to make an object


def is_shared(value: int) -> bool:
    """Returns whether Python has one object for all integers that are equal to this one."""
    return -6 < value < 257


def _made(value: int) -> int:
    made = _LARGE + value
    ctypes.memmove(id(made) + _HEAD, id(value) + _HEAD, _WORDS)
    return made


def _works() -> bool:
    """Returns whether such integers are what they are meant to be."""
    for value in range(-5, 257):
        made = _made(value)
        if made is value or type(made) is not int or made != value or hash(made) != hash(value) or bool(made) is not bool(value) or repr(made) != repr(value) \
                or made + 1 != value + 1 or -made != -value or made * 300 != value * 300 or made + 0 is not value or divmod(made, 7) != divmod(value, 7):
            return False
    return True


CAN_BE_MADE = _works()  # whether there may be other objects for small integers


def own(value: int) -> int:
    """Returns an equal integer which is another object, if there may be one (see `CAN_BE_MADE`)."""
    return -(-value) if not is_shared(value) else _made(value) if CAN_BE_MADE else value


def natural(value: Any) -> Any:
    """Returns the object that Python has for a small integer, also in a tuple; anything else as it is."""
    kind = type(value)
    if kind is int:
        return value + 0 if is_shared(value) else value
    if kind is tuple:
        made = tuple(map(natural, value))
        return value if all(map(is_, made, value)) else made
    return value


def make_natural(value: Any, depth: int = 3) -> Any:
    """Returns the same as `natural`; in lists and dicts, down to this depth, integers are replaced where they are."""
    kind = type(value)
    if depth == 0 or kind not in (list, dict, tuple):
        return natural(value)
    items = {k: make_natural(x, depth - 1) for k, x in (value.items() if kind is dict else enumerate(value))}
    changed = {k: x for k, x in items.items() if x is not value[k]}
    if kind is tuple:
        return tuple(items.values()) if changed else value
    for k, x in changed.items():
        value[k] = x
    return value
