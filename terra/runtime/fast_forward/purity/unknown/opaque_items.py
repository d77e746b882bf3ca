"""The items of objects that unknown code gives, or of which nothing is known: each is given by a call of unknown code in turn."""

import operator
from types import GeneratorType
from typing import Any, Iterator

from terra.runtime.fast_forward.purity.facts.reach import is_apart
from terra.runtime.fast_forward.sources.expectations import END
from terra.runtime.fast_forward.sources.opaque_calls import following, iterator_of
from terra.runtime.tensors.object_kinds import LASTING

_ITERATES = "iterates over what unknown code gives"


def goes_on(run: Any, it: Any) -> bool:
    """Returns whether it is an iterator that a program goes on with from step to step."""
    kind = type(it)
    if run.reason is not None or (kind not in LASTING and kind is not GeneratorType) or run.born.has(it) or id(it) in run.given:
        return False
    if kind is GeneratorType:
        if not is_apart((it,)):
            return False
        run.reads.asked(is_apart, (it,), True)
    return True


def items_of(opaque: Any, it: Any) -> Any:
    """Returns the items of an opaque iterable, each opaque in turn. `opaque`: the `Opaque` of the run."""
    if not hasattr(type(it), "__len__"):
        return _each(opaque, it)
    found = opaque.make(list, (it,), {}, _ITERATES)
    n = opaque.operated(len, found)
    opaque.looks_at(n)
    return [opaque.operated(operator.getitem, found, k) for k in range(n)]


def _each(opaque: Any, it: Any) -> Iterator:
    """Yields the items of an opaque iterable that does not tell how many it has."""
    if not hasattr(type(it), "__next__"):
        it = opaque.make(iterator_of, (it,), {}, _ITERATES)
    while (value := opaque.make(following, (it,), {}, _ITERATES)) is not END:
        yield value


def next_of(opaque: Any, iterator: Any, *default: Any) -> Any:
    """Returns what `next` gives of an iterator that was there before. Raises StopIteration where that is at its end."""
    value = opaque.make(following, (iterator,), {}, "calls next")
    if value is not END:
        return value
    if default:
        return default[0]
    raise StopIteration


def merged(opaque: Any, it: Any) -> dict:
    """Returns a dict of the entries of an opaque mapping, each opaque in turn."""
    found = opaque.make(dict, (it,), {}, "takes what unknown code gives for a dict")
    return {key: opaque.operated(operator.getitem, found, key) for key in items_of(opaque, found)}
