"""Guards single entries of dicts: attributes, globals, what classes define, and that there is none under a name."""

from operator import is_, itemgetter
from typing import Any, Iterable

import numpy as np

from terra.runtime.tensors.comparing import equal
from terra.tf import versions


class EntriesGuard:
    """The entries that dicts had, and the keys that they had not. Only dicts that have changed since are looked into, where Python numbers their versions."""

    __slots__ = ("_spaces", "_words", "_found", "_others")

    def __init__(self, entries: Iterable[tuple[Any, dict]], absent: Iterable[tuple[Any, Any]]):
        """`entries`: (a dict, {key: what it gave}); `absent`: (a dict, a key that it has not)."""
        parts = []  # (a dict, what gives its entries, these, keys that it has not)
        for space, held in entries:
            first = next(iter(held))
            parts.append((space, itemgetter(*held, first), (*held.values(), held[first]), ()))  # (of one key, itemgetter would give no tuple)
        gaps: dict[int, tuple[Any, list]] = {}
        for space, key in absent:
            gaps.setdefault(versions.address_of_version(space) or id(space), (space, []))[1].append(key)
        parts += [(space, None, (), keys) for space, keys in gaps.values()]
        addresses = [versions.address_of_version(part[0]) for part in parts]
        self._spaces = [part for part, address in zip(parts, addresses) if address is not None]
        self._others = [part for part, address in zip(parts, addresses) if address is None]
        self._words = versions.Words([address for address in addresses if address is not None]) if self._spaces else None
        self._found: bytes | None = None  # the versions with which they were found to hold

    def holds(self) -> bool:
        """Returns whether the dicts have the same objects, or equal scalars, under these keys, and nothing under those."""
        if self._words is not None:
            found = self._words.read()
            if found != self._found:
                changed = range(len(self._spaces)) if self._found is None else np.flatnonzero(np.frombuffer(found, np.uint64) != np.frombuffer(self._found, np.uint64)).tolist()
                if not all(_holds(*self._spaces[k]) for k in changed):
                    return False
                self._found = found
        return not self._others or all(_holds(*part) for part in self._others)


def _holds(space: Any, get: Any, held: tuple, absent: Iterable) -> bool:
    if get is not None:
        try:
            now = get(space)
        except (KeyError, IndexError):
            return False
        if not all(map(is_, now, held)) and not equal(now, held):
            return False
    return not any(key in space for key in absent)
