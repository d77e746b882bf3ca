"""`sum` of tensors, as the loop that it is.

Python's own adds in C: all additions would have one executed location, and each length of what is summed would be a path of its own. Instrumented call sites call
`located_sum`, which has a location for each addition, as code with a `for` has: where the lengths vary, the loop is rolled like any other.
"""

import itertools

from terra.runtime import location
from terra.runtime.tracer import is_tensor

_NOTHING = object()
_loops = {}  # id of a call site -> that of the loop in its call


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
    loop, total = here.loop(_loops.get(here.id) or _loop_at(here.id)), start
    while item is not _NOTHING:
        cursor.current = loop = loop.next or loop.grow()
        total = total + item
        cursor.current = here  # where a generator's items are computed
        item = next(items, _NOTHING)
    return total


def _loop_at(call_id):
    place = location.site(call_id)
    filename, line = ("", 0) if place is None else (place.filename, place.lineno)
    return _loops.setdefault(call_id, location.register_site("loop", filename, line, "sum"))
