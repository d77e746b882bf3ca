"""Guards the contents of lists, sets and other things that can be gone through."""

from itertools import chain
from operator import is_
from typing import Any, Iterable

from terra.runtime.tensors.comparing import equal
from terra.tf import versions

# Of a list whose items are read from memory. So few are in memory of Python's own, and that is given back in large pieces only: a list that another thread makes longer, between the look at where its
# items are and that at the items, leaves memory behind that can be read.
_MOST = 48


class ItemsGuard:
    """The items that containers had. Those of short lists and sets are read from memory, all at once; the others are gone through."""

    __slots__ = ("_read", "_places", "_placed", "_items", "_found", "_views", "_sizes", "_held")

    def __init__(self, parts: Iterable[tuple[Any, tuple]]):
        """`parts`: (what is gone through, what that gives)."""
        self._read: list[tuple[Any, tuple]] = []
        self._places: versions.Words | None = None  # where the items are, and those of sets
        self._items: versions.Words | None = None
        self._placed = self._found = b""
        self._views: list[Any] = []  # what is gone through
        self._sizes: list[int] = []
        self._held: list[Any] = []
        for view, held in parts:
            if len(held) <= _MOST and versions.places_of_items(view):
                self._read.append((view, held))
            else:
                self._go_through(view, held)

    def _go_through(self, view: Any, held: tuple) -> None:
        self._views.append(view)
        self._sizes.append(len(held))
        self._held += held

    def holds(self) -> bool:
        """Returns whether there are the same objects, or equal scalars, in the same order."""
        if self._read and not self._are_unchanged() and not self._are_equal():
            return False
        if list(map(len, self._views)) != self._sizes:
            return False
        if not all(map(is_, chain.from_iterable(self._views), self._held)):
            now = list(chain.from_iterable(self._views))
            if not equal(now, self._held):
                return False
            self._held = now  # the next time they are the same objects
        return True

    def _are_unchanged(self) -> bool:
        return self._places is not None and self._places.read() == self._placed and (self._items is None or self._items.read() == self._found)

    def _are_equal(self) -> bool:
        """Returns whether those that are read from memory are the same, gone through; notes where they are from now on, and holds them: no other object can come to be there."""
        now = [(view, tuple(view)) for view, _ in self._read]
        if not all(equal(new, held) for (_, new), (_, held) in zip(now, self._read)):
            return False
        self._read, places, items = [], [], []
        for view, held in now:
            found = versions.places_of_items(view)
            if found:
                self._read.append((view, held))
                places += found
                items += versions.addresses_of_items(view)
            else:  # a set that has grown meanwhile
                self._go_through(view, held)
        self._places, self._items = versions.Words(places) if places else None, versions.Words(items) if items else None
        self._placed, self._found = b"" if self._places is None else self._places.read(), b"" if self._items is None else self._items.read()
        return True
