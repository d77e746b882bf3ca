"""The arguments of unknown code that a run looks after: lists and dicts that the run has made, arrays that it has read, tensors whose values are read for it."""

from typing import Any, Iterable, Iterator

import numpy as np


class Given:
    """The containers and arrays among the arguments of one call that are the run's own."""

    __slots__ = ("_run", "_held")

    def __init__(self, run: Any, values: tuple):
        self._run = run
        self._held = [(x, _contents(x)) for x in _own(run, values)]

    def are_kept(self) -> None:
        """The call gets them otherwise than as an opaque one: the containers are still the run's own."""
        for it, _ in self._held:
            if type(it) is not np.ndarray:
                self._run.born.add(it)

    def have_changed(self) -> bool:
        """Returns whether the call has changed one of them."""
        return any(_contents(it) != held for it, held in self._held)


def _own(run: Any, values: Iterable) -> Iterator:
    """Yields the run's own ones, also those within others."""
    for x in values:
        if type(x) is tuple:
            yield from _own(run, x)
        elif type(x) in (list, dict) and run.born.has(x):
            yield x
            yield from _own(run, x.values() if type(x) is dict else x)
        elif type(x) is np.ndarray and run.deferred.knows(x):
            yield x


def comes_late(run: Any, part: Any) -> bool:
    """Returns whether a call that is made of these parts is given what is read of the graph."""
    if type(part) in (list, tuple, dict):
        return any(comes_late(run, x) for x in (part.values() if type(part) is dict else part))
    return id(part) in run.library_code.read or run.deferred.knows(part)


def _contents(it: Any) -> Any:
    """Returns the identities of what a list or dict holds; the bytes of an array."""
    return it.tobytes() if type(it) is np.ndarray else [(key, id(x)) for key, x in it.items()] if type(it) is dict else [*map(id, it)]
