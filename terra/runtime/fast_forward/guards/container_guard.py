"""Snapshots: what containers held, so that they can be compared with it all at once."""

import functools
from types import MappingProxyType

import numpy as np

from terra.runtime.fast_forward.guards import attribute_filter
from terra.runtime.fast_forward.guards.items_guard import ItemsGuard
from terra.runtime.fast_forward.sources.effects import put_contents
from terra.runtime.tensors.comparing import Unskippable, equal
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, is_librarys
from terra.tf import private_names as tfi
from terra.tf import versions

_SHOWN = frozenset([slice, range, tfi.tensor_shape.TensorShape, tfi.tf.DType])  # objects that are what they show
_MOST_BYTES = 500_000  # of an array that is compared: about 60 us


class ContainerGuard:
    """The contents that containers had: compared all at once, object by object."""

    __slots__ = ("_parts", "_dicts", "_words", "_found", "_items", "_losses", "added_losses")

    def __init__(self):
        self._parts = {}  # id -> (a container, what is iterated over, what that gave, its keys if it is a dict)
        self._items = None
        self._losses = {}  # id -> where a layer of tf_keras keeps the losses that its calls add, for each thread
        self.added_losses = {}  # id -> list of the losses that calls of a layer add (Keras 3), which was not noted: see `added_losses`

    def __len__(self):
        return len(self._parts)

    def add(self, container, owner=None):
        """Note what `container` holds; returns that, or () if it was noted already. `owner`: what lives as long as the container, if that is a view."""
        key = id(owner or container)
        if key in self._parts:
            return ()
        if owner is not None and type(container) is MappingProxyType:
            container = attribute_filter.namespace(owner, container)
        view = container
        if isinstance(container, (dict, MappingProxyType)):
            view = container.values()
        elif type(getattr(container, "_storage", None)) is list:
            view = container._storage  # of TensorFlow's wrappers of lists, whose own iterators are slow
        held = tuple(view)
        self._parts[key] = container, view, held, tuple(container) if view is not container and isinstance(container, (dict, MappingProxyType)) else ()
        self._items = None
        return held

    def covers(self, container, name=None):
        """Returns whether what `container` holds was noted, that of this name among it."""
        part = self._parts.get(id(container))
        return part is not None and name not in attribute_filter.states_of(part[0])

    def update(self, other):
        """Note what another Snapshot has noted, too."""
        for key, part in other._parts.items():
            if key not in self._parts or attribute_filter.states_of(part[0]) <= attribute_filter.states_of(self._parts[key][0]):
                self._parts[key] = part
        self._losses.update(other._losses)
        self._items = None

    def holds_any(self, ids):
        """Returns whether an object of one of these ids was held."""
        return not self.ids().isdisjoint(ids)

    def ids(self):
        """The ids of all objects that were held."""
        return {id(x) for _, _, held, _ in self._parts.values() for x in held}

    def left_out(self):
        """{id of an object: the names of its attributes of which only the kind was noted, or nothing}"""
        filters = [container for container, *_ in self._parts.values() if type(container) is attribute_filter.AttributeFilter]
        return {container.owner: (*container.left, *container.states) for container in filters if container.left or container.states}

    def no_losses(self, held):
        """A call that is skipped adds no losses to the thread's own, `held`, and removes none: there must be none."""
        self._losses[id(held)] = held

    def _flatten(self):
        self._dicts, addresses, items = [], [], []
        for container, view, held, keys in self._parts.values():
            address = versions.address_of_version(container.held if type(container) is attribute_filter.AttributeFilter else container)
            if address is not None:
                self._dicts.append((container, view, held, keys))
                addresses.append(address)
            elif type(container) is not tuple:
                items.append((view, held))
                if keys:
                    items.append((container.keys(), keys))
        self._words = versions.Words(addresses) if addresses else None
        # The dicts may have changed since they were noted: the first time their values are compared.
        self._found = None
        self._items = ItemsGuard(items)

    def only_version(self):
        """The version of the dict that was noted, as `versions.word_at` gives it; None if it has none, or if there is more to compare."""
        if len(self._parts) != 1 or self._losses:
            return None
        (container, *_), = self._parts.values()
        address = versions.address_of_version(container)
        return None if address is None else versions.word_at(address)

    def holds(self):
        """Returns whether they hold the same objects, or equal scalars."""
        if self._items is None:
            self._flatten()
        for held in self._losses.values():
            if held.__dict__.get("_eager_losses"):
                return False
        if self._words is not None:
            found = self._words.read()
            if found != self._found and not self._still(found):
                return False
        return self._items.holds()

    def put_back(self):
        """Where attributes are others of the framework's that are like those which were noted (a layer describes its input anew in each call): puts these back. Returns whether that is all that has
        changed."""
        changed = []
        for container, view, held, keys in self._parts.values():
            now = tuple(view)
            if equal(now, held):
                continue
            if type(container) is not dict or tuple(container) != keys:
                return False
            changed += [(container, key, old) for key, old, new in zip(keys, held, now) if new is not old]
        if not all(_are_alike(container[key], old) for container, key, old in changed):
            return False
        for container, key, old in changed:
            container[key] = old
        return bool(changed)

    def changes(self):
        """Yields, for each list and dict that holds something else now, (what puts back what it held, what puts there again what it holds now)."""
        for container, view, held, keys in self._parts.values():
            if (type(container) is list or type(container) is dict) and not (equal(tuple(view), held) and (not keys or equal(tuple(container), keys))):
                before = list(held) if type(container) is list else dict(zip(keys, held))
                yield functools.partial(put_contents, container, before), functools.partial(put_contents, container, container.copy())
            elif type(container) is attribute_filter.AttributeFilter and type(container.held) is dict and not equal(tuple(view), held):
                yield functools.partial(put_contents, container.held, container.as_it_was(held)), functools.partial(put_contents, container.held, container.held.copy())

    def _still(self, found):
        """Returns whether the dicts have the values that they had: `found` is what was read of them, and is expected the next time."""
        changed = range(len(self._dicts)) if self._found is None else np.flatnonzero(np.frombuffer(found, np.uint64) != np.frombuffer(self._found, np.uint64)).tolist()
        for container, view, held, keys in map(self._dicts.__getitem__, changed):
            now = tuple(view)
            if type(container) is attribute_filter.AttributeFilter:
                if not equal(now, held) and not equal(*container.in_order(now, held)):
                    return False
            elif not (equal(now, held) and equal(tuple(container), keys)):
                return False
        self._found = found
        return True


def _are_alike(new, old, depth=8):
    """Whether nobody can tell two objects of the framework's that only describe something, or containers of such, from one another but by their identity."""
    kind = type(new)
    if new is old or type(old) is not kind or not depth:
        return new is old
    if kind in PLAIN:
        return equal((new,), (old,)) or (kind in _SHOWN and repr(new) == repr(old))
    if kind is list or kind is tuple or kind is tfi.ListWrapper:
        return len(new) == len(old) and all(map(_are_alike, new, old, [depth - 1] * len(new)))
    if kind is dict:
        return [*map(id, new)] == [*map(id, old)] and all(_are_alike(value, old[key], depth - 1) for key, value in new.items())
    if not is_librarys(kind) or kind.__dictoffset__ == 0 or tfi.is_variable(new) or kind in TENSORS or isinstance(new, (list, dict, set, tfi.tf.Module)) or callable(new):
        return False
    return _are_alike(vars(new), vars(old), depth - 1)


def contents(array):
    """Returns all that can change of an array: its data, and its shape and type, which may be set in place."""
    return array.shape, array.dtype, array.tobytes()


def noted(array):
    """(the array, its contents). Raises Unskippable if they cannot be compared, or not cheaply."""
    if array.nbytes > _MOST_BYTES or array.dtype.hasobject or array.dtype.names is not None:
        raise Unskippable("uses an array that is too large to be compared")
    return array, contents(array)
