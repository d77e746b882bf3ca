"""Snapshots: what containers held, so that they can be compared with it all at once."""

from itertools import chain
from operator import is_
from types import MappingProxyType

import numpy as np

from terra.runtime.fast_forward.guards import attribute_filter
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.tf import versions

_MOST_BYTES = 500_000  # of an array that is compared: about 60 us


class ContainerGuard:
    """The contents that containers had: compared all at once, object by object."""

    __slots__ = ("_parts", "_dicts", "_words", "_found", "_expected", "_sized", "_lengths", "_views", "_held", "_losses", "added_losses")

    def __init__(self):
        self._parts = {}  # id -> (a container, what is iterated over, what that gave, its keys if it is a dict)
        self._views = None
        self._losses = {}  # id -> where a layer of tf_keras keeps the losses that its calls add, for each thread
        self.added_losses = {}  # id -> list of the losses that calls of a layer add (Keras 3), which was not noted: see `added_losses`

    def __len__(self):
        return len(self._parts)

    def add(self, container, owner=None):
        """Note what `container` holds; returns that, or () if it was noted already. `owner`: what lives as long as the container, if that is a view."""
        key = id(owner or container)
        if key in self._parts:
            return ()
        view = container
        if isinstance(container, (dict, MappingProxyType)):
            view = container.values()
        elif type(getattr(container, "_storage", None)) is list:
            view = container._storage  # of TensorFlow's wrappers of lists, whose own iterators are slow
        held = tuple(view)
        self._parts[key] = container, view, held, tuple(container) if view is not container and isinstance(container, (dict, MappingProxyType)) else ()
        self._views = None
        return held

    def covers(self, container):
        """Returns whether what `container` holds was noted."""
        return id(container) in self._parts

    def update(self, other):
        """Note what another Snapshot has noted, too."""
        self._parts.update(other._parts)
        self._losses.update(other._losses)
        self._views = None

    def holds_any(self, ids):
        """Returns whether an object of one of these ids was held."""
        return not self.ids().isdisjoint(ids)

    def ids(self):
        """The ids of all objects that were held."""
        return {id(x) for _, _, held, _ in self._parts.values() for x in held}

    def left_out(self):
        """{id of an object: the names of its attributes of which only the kind was noted}"""
        return {container.owner: container.left for container, *_ in self._parts.values() if type(container) is attribute_filter.AttributeFilter and container.left}

    def no_losses(self, held):
        """A call that is skipped adds no losses to the thread's own, `held`, and removes none: there must be none."""
        self._losses[id(held)] = held

    def _flatten(self):
        self._dicts, self._sized, self._lengths, self._views, self._held = [], [], [], [], []
        versions_at, lengths_at, expected = [], [], []
        for container, view, held, keys in self._parts.values():
            address = versions.address_of_version(container.held if type(container) is attribute_filter.AttributeFilter else container)
            if address is not None:
                self._dicts.append((container, view, held, keys))
                versions_at.append(address)
                continue
            if type(container) is tuple:
                continue
            address = versions.address_of_length(view)
            if address is not None:
                lengths_at.append(address)
                expected.append(len(held))
            else:
                self._sized.append(view)
                self._lengths.append(len(held))
            if held:
                self._views.append(view)
                self._held += held
            if keys:
                self._views.append(container.keys())
                self._held += keys
        self._words = versions.Words(versions_at + lengths_at) if versions_at or lengths_at else None
        # The dicts may have changed since they were noted: the first time their values are compared.
        self._found = None
        self._expected = np.array(expected, np.uint64)

    def only_version(self):
        """The version of the dict that was noted, as `versions.word_at` gives it; None if it has none, or if there is more to compare."""
        if len(self._parts) != 1 or self._losses:
            return None
        (container, *_), = self._parts.values()
        address = versions.address_of_version(container)
        return None if address is None else versions.word_at(address)

    def holds(self):
        """Returns whether they hold the same objects, or equal scalars."""
        if self._views is None:
            self._flatten()
        for held in self._losses.values():
            if held.__dict__.get("_eager_losses"):
                return False
        if self._words is not None:
            found = self._words.read()
            if found != self._found and not self._still(found):
                return False
        if list(map(len, self._sized)) != self._lengths:
            return False
        if not all(map(is_, chain.from_iterable(self._views), self._held)):
            now = list(chain.from_iterable(self._views))
            if not equal(now, self._held):
                return False
            self._held = now  # the next time they are the same objects
        return True

    def _still(self, found):
        """Returns whether lists have the lengths, and dicts the values, that they had: `found` is what was read of them, and is expected the next time."""
        n = len(self._dicts)
        now = np.frombuffer(found, np.uint64)
        if not np.array_equal(now[n:], self._expected):
            return False
        changed = range(n) if self._found is None else np.flatnonzero(now[:n] != np.frombuffer(self._found, np.uint64)[:n]).tolist()
        for container, view, held, keys in map(self._dicts.__getitem__, changed):
            now = tuple(view)
            if type(container) is attribute_filter.AttributeFilter:
                if not equal(now, held) and not equal(*container.in_order(now, held)):
                    return False
            elif not (equal(now, held) and equal(tuple(container), keys)):
                return False
        self._found = found
        return True


def contents(array):
    """Returns all that can change of an array: its data, and its shape and type, which may be set in place."""
    return array.shape, array.dtype, array.tobytes()


def noted(array):
    """(the array, its contents). Raises Unskippable if they cannot be compared, or not cheaply."""
    if array.nbytes > _MOST_BYTES or array.dtype.hasobject or array.dtype.names is not None:
        raise Unskippable("uses an array that is too large to be compared")
    return array, contents(array)


def equal(new, old):
    """Returns whether two sequences hold the same objects, or equal scalars of one type, one by one."""
    if len(new) != len(old):
        return False
    return all(
        a is b or (type(a) in SCALARS and type(a) is type(b) and a == b and (a != 0 or type(a) is not float or str(a) == str(b)))  # 0.0 == -0.0
        for a, b in zip(new, old))
