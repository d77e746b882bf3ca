"""Facts about who holds an object: whether it was made in a call that still runs."""

import gc
import inspect
from types import FrameType
from typing import Any

_ITERATORS = frozenset([zip, enumerate, reversed, type(iter([])), type(iter(())), type(reversed([]))])  # which run no code when they are read


def is_held_by_frames_only(it: Any, frame: FrameType, *others: Any) -> bool:
    """Returns whether nothing but running functions, from that of `frame` on, holds an iterator such as `zip(gradients, variables)` and the iterators that it reads: no other call can go on with it.

    `others`: what else may hold them. Looks at all objects that there are, which takes some 20 ms.
    """
    iterators: list[Any] = []
    known = {id(iterators), *map(id, others)}  # ids of what may hold them
    if not _collect(it, iterators, known):
        return False
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_flags & inspect.CO_OPTIMIZED and type(caller.f_locals) is dict:  # Python 3.13 makes no dict of them
            known.add(id(caller.f_locals))
        caller = caller.f_back
    return all(type(holder) is FrameType or id(holder) in known for holder in gc.get_referrers(*iterators))


def _collect(iterator: Any, iterators: list, known: set[int]) -> bool:
    """Appends an iterator and those that it reads; returns whether none of them may run code."""
    if type(iterator) not in _ITERATORS:
        return False
    iterators.append(iterator)
    known.add(id(iterator))
    for part in gc.get_referents(iterator):
        if type(part) is tuple:
            known.add(id(part))  # in which a zip keeps its iterators
        if not all(_collect(x, iterators, known) for x in (part if type(part) is tuple else (part,)) if hasattr(type(x), "__next__")):
            return False
    return True
