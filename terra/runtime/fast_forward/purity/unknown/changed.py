"""Containers and arrays that calls of unknown code change, and that the program looks at, too: all that is done with one is a call of unknown code from then on."""

import collections
import weakref
from typing import Any, Iterable

import numpy as np

from terra.runtime.tensors.object_kinds import is_librarys

_MOST = 1000  # containers that are known
_KINDS = list, dict, collections.deque


class ChangedContainers:
    """Those of one run, and those that are known to be.

    `known`: {id: container}, of the program; `opaque`: the opaque calls of the run. What one of these has given is not known beyond the run.
    """

    __slots__ = ("_known", "_of", "_now")

    def __init__(self, known: dict[int, Any], opaque: Any):
        self._known, self._of = known, weakref.ref(opaque)
        self._now: dict[int, Any] = {}

    def __contains__(self, it: Any) -> bool:
        return bool(self._known) and id(it) in self._known

    def change(self, it: Any) -> None:
        """A call of the run changes a container."""
        self._now[id(it)] = it

    def may_change(self, owner: Any) -> None:
        """A method of an object was called, which may be a container."""
        if isinstance(owner, _KINDS):
            self.change(owner)

    def looks_at(self, it: Any) -> bool:
        """Returns whether a call has changed a container that is looked at, which is known from now on."""
        if not self._now or id(it) in self._known:
            return False
        is_changed = id(it) in self._now or (type(it) is np.ndarray and any(type(x) is np.ndarray and np.may_share_memory(x, it) for x in self._now.values()))
        return is_changed and self.are_read([it])

    def are_read(self, values: Iterable[Any]) -> bool:
        """Notes the containers among what a call was given which has changed what was read before. Returns whether there are any that were not known."""
        found = [it for it in values if isinstance(it, (*_KINDS, np.ndarray)) and not is_librarys(type(it)) and id(it) not in self._known and self._of().number_of(it) is None]
        if len(self._known) < _MOST:
            self._known.update((id(it), it) for it in found)
        return bool(found)
