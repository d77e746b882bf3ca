"""Remembers what an observed run has made, by identity, without keeping it alive: what the program drops dies as it would without an observer.

What can be held weakly is, and is forgotten when it dies, so that a new object of the same identity is not taken for it. Lists, dicts and iterators
cannot be: they are held until the run is over or turns out to be impure. Until then the program has not looked at lifetimes, since whatever does that
(a weak reference, a file, `sys.getrefcount`) makes a run impure.
"""

import weakref
from typing import Any, Iterator

from terra.runtime.tensors.object_kinds import ITERATORS
from terra.tf import private_names as tfi


class Born(dict):
    """Identity -> a weak reference to the object, or the object itself where there can be none; None in place of an iterator that is not held."""

    _is_closed = False

    def has(self, it: Any) -> bool:
        """Returns whether the run has made `it`. A mark in place of an iterator counts for iterators: it may outlive the one that it stood for."""
        key = id(it)
        return key in self and (self[key] is not None or type(it) in ITERATORS)

    def add(self, it: Any) -> None:
        """The run has made `it`."""
        if self._is_closed:
            return
        key = id(it)
        if tfi.is_to_be_used(type(it)):  # whether it was is asked in the end
            self[key] = it
            return
        try:
            self[key] = weakref.ref(it, lambda _: self.pop(key, None))
        except TypeError:
            self[key] = it

    def add_unheld(self, it: Any) -> None:
        """The run has made an iterator that is not held, as it would keep what it goes through. (An iterator that has its identity later was made in the run, too.)"""
        if not self._is_closed:
            self[id(it)] = None

    def drop_iterators(self) -> None:
        """Hold no iterator any more."""
        for key in [key for key, it in self.items() if type(it) in ITERATORS]:
            self[key] = None

    def close(self) -> None:
        """Forget all, and what is added from now on: the run is impure."""
        self._is_closed = True
        self.clear()

    def living(self) -> Iterator[Any]:
        """All of it that is there still."""
        for held in list(self.values()):
            it = held() if type(held) is weakref.ref else held
            if it is not None:
                yield it
