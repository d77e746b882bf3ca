"""`sum`, `map` and `functools.reduce`, as the loops that they are.

Python's own run in C: what they issue would have one executed location, and each length of what they are given would be a path of its own.
Instrumented call sites call these instead, which have a location for each item, as code with a `for` has: where the lengths vary, the loop is rolled
like any other. The functions that they are given are instrumented, too.
"""

import functools
import itertools
from types import BuiltinFunctionType

from terra import ours
from terra.location import location
from terra.location.suspension import LazyEach
from terra.runtime.tracing.structures import is_tensor

_NOTHING = object()
_loops = {}  # id of a call site -> (that of the loop in its call, of the calls in that)
_METHODS = type(str.strip), type([].__len__), type(dict.__dict__["fromkeys"])  # of builtin types


@ours.calling
def located_sum(iterable, /, start=0):
    """The builtin `sum`, at the current location."""
    items = iter(iterable)
    if isinstance(start, (str, bytes, bytearray)):
        return sum(items, start)  # raises
    item = next(items, _NOTHING)
    if item is _NOTHING:
        return start
    if not is_tensor(item):
        return sum(itertools.chain((item,), items), start)
    cursor = location.tls.cursor
    here = cursor.current
    loop, total = here.loop(_ids(here)[0]), start
    while item is not _NOTHING:
        cursor.current = loop = loop.next or loop.grow()
        total = total + item
        cursor.current = here  # where a generator's items are computed
        item = next(items, _NOTHING)
    return total


@ours.calling
def located_map(*args):
    """The builtin `map`, whose calls have locations of their own."""
    if len(args) < 2 or is_builtin(args[0]):
        return map(*args)
    return map(LocatedCalls(args[0]), *args[1:])


@ours.calling
def located_reduce(*args):
    """The builtin `functools.reduce`, whose calls have locations of their own."""
    return functools.reduce(*args) if not args or args[0] is None else functools.reduce(LocatedCalls(args[0]), *args[1:])


def is_builtin(function):
    """Returns whether what `map` is given is no function of anybody's, whose calls need a location."""
    return function is None or issubclass(type(function), (type, BuiltinFunctionType, *_METHODS))


class LocatedCalls:
    """The calls of a function that a builtin makes, each on top of the location where its item is asked for. `enter` gives what to call at a location."""

    __slots__ = ("function", "enter", "items", "call_id")

    def __init__(self, function, enter=location.target_at):
        self.function = function
        self.enter = enter
        loop_id, self.call_id = _ids(location.tls.cursor.current)
        self.items = LazyEach(location.tls, loop_id)

    def __call__(self, /, *args):
        cursor = location.tls.cursor
        here = cursor.current
        self.items.advance(None)
        cursor.current = there = cursor.current.call(self.call_id)
        result = self.enter(there, self.function)(*args)
        cursor.current = here
        return result


def _ids(here):
    """The ids of the loop in a call of a builtin, and of the calls that are made there."""
    made = _loops.get(here.id)
    if made is None:
        place = location.site(here.id)
        at = ("", 0) if place is None else (place.filename, place.lineno)
        # A function of its own for each: in another call of it on the way, the program recurses.
        made = _loops.setdefault(here.id, tuple([location.register_site(kind, *at, f"builtin {here.id}") for kind in ("loop", "call")]))
    return made


_located = {id(sum): located_sum, id(map): located_map, id(functools.reduce): located_reduce}


def located(callee):
    """Returns the function that instrumented call sites call in place of a builtin that is a loop; None for anything else."""
    return _located.get(id(callee))
