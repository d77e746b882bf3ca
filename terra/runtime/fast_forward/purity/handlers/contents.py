"""The observer's part for what containers hold: items that are taken, in turn or by a key, and those that operators go through.

Operators look as deep as their operands go, so the containers in a container are looked into, too.
"""

import collections
import functools
import itertools
import operator
from types import FunctionType

import numpy as np

from terra import ours
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.purity.unknown.opaque_items import goes_on, items_of, merged
from terra.runtime.fast_forward.purity.unknown.stand_ins import OpaqueItem, OpaqueItems, Operated, SpecialMethod
from terra.runtime.fast_forward.sources.effects import Effect
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.runtime.tensors.object_kinds import ITERATORS, LISTS, PLAIN, TENSORS, VIEWS, defined, is_container, is_librarys, is_like_builtin
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.transform import policy


_EMPTY = frozenset([None, list, dict, set, int, float, str, bool])  # what a `defaultdict` may make, none of which does anything else
_NUMBERS_AND_TEXTS = frozenset([int, float, str])
_KNOWN = frozenset([tuple, str, bytes, range, np.ndarray, *LISTS, *VIEWS, *ITERATORS])


class Contents(Handler):
    """The part of the Observer for containers."""

    __slots__ = ()

    def deeply(self, it, check, seen=None):
        """`check` whatever is in the container `it` and those in it, which are looked into; or `it` itself."""
        kind = type(it)
        self.run.deferred.looked_at(it)
        if self.run.reason is not None or kind in PLAIN:
            return it
        if kind in TENSORS:
            self.run.used.add(id(it))
        elif kind is tuple:
            for x in it:
                self.deeply(x, check, seen)
        elif is_container(it, kind) or kind in VIEWS:
            seen = set() if seen is None else seen
            if id(it) not in seen:
                seen.add(id(it))
                self.look_into(it)
                for x in it:
                    self.deeply(x, check, seen)
                if isinstance(it, dict):
                    for x in it.values():
                        self.deeply(x, check, seen)
        else:
            check(it)
        return it

    def keys(self, owner):
        """Something is looked up in the dict or set `owner`: it is compared with those of its keys that have the same hash."""
        if id(owner) not in self.run.keyed and not isinstance(owner, list) and is_container(owner, type(owner)):
            if not self.run.born.has(owner):
                self.run.keyed[id(owner)] = owner
            for x in owner:
                if type(x) not in SCALARS:
                    self.deeply(x, self.run.operands.comparable)

    def each(self, it, check):
        """Returns what to iterate over in place of `it`, whose items are shown to `check`."""
        it = self.iterated(it)
        if type(it) in ITERATORS and type(it) not in VIEWS:
            return self.run.fresh(map(functools.partial(self.run.builtins.shown, check), it))
        if type(it) in TENSORS or tfi.is_variable(it):
            self.run.impure("makes a set or a dict of a tensor")
        if self.run.reason is None and (type(it) is tuple or type(it) in VIEWS or is_container(it, type(it))):
            for x in it:
                check(x)
        return it

    def elements(self, it):
        """Returns what to make elements of a set of in place of `*it`."""
        return self.each(it, self.run.operands.compared)

    def pairs(self, it):
        """Returns what to make a dict of in place of `it`, a dict or something with pairs in it."""
        if isinstance(it, dict):
            self.gone_through(it)
            self.keys(it)
            return it
        return self.each(it, self._pair)

    def _pair(self, it):
        self.gone_through(it)
        if type(it) is tuple or type(it) is list:
            for x in it[:1]:
                self.run.operands.compared(x)
        else:
            self.run.impure(f"makes a key and a value of an object of type {type(it).__name__}")

    def container(self, it):
        """An item or slice of `it` is taken."""
        return OpaqueItems(self.run.opaque, it) if self.is_opaque(it) else self._understood(it)

    def _understood(self, it):
        self.run.before = len(self.run.runner.log)
        self.run.deferred.looked_at(it)
        if type(it) not in PLAIN and type(it) not in TENSORS:
            self.look_into(it)
        return it

    def iterated(self, it):
        """Returns what to take the items of `it` of, one by one."""
        return self.run.fresh(items_of(self.run.opaque, it)) if self.is_opaque(it) else self._understood(it)

    def gone_through(self, it):
        """The items of `it` are taken one by one, of itself."""
        if not self.is_opaque(it):
            self._understood(it)
        elif not hasattr(type(it), "__len__") or any(id(x) in self.run.opaque.unsteady for x in items_of(self.run.opaque, it)):
            self.run.impure("goes through what unknown code gives")

    def is_opaque(self, it):
        """Returns whether what is done with it is an opaque call: unknown code gave it, or it is a container of a library's, of a class that nothing is known of."""
        if it in self.run.opaque:
            return True
        kind = type(it)
        if goes_on(self.run, it):
            return True
        if self.run.reason is not None or kind in _KNOWN or kind in TENSORS or kind in PLAIN or self.run.born.has(it) or id(it) in self.run.given:
            return False
        taking = defined(kind, "__getitem__")
        return taking is not None and hasattr(kind, "__len__") and not (type(taking) is FunctionType and policy.may_know_program(taking)) and self.run.attempted(self.look_into, it) is not None

    @ours.calling
    def chained(self, items, /):
        """Call `itertools.chain.from_iterable`."""
        return self.run.fresh(itertools.chain.from_iterable(map(self.iterated, self.iterated(items))))

    @ours.calling
    def reduce(self, callee, form, /, *args, **kwargs):
        """Call sum, min, max, sorted, any or all."""
        operands, builtins = self.run.operands, self.run.builtins
        if not kwargs and (callee is min or callee is max):
            value = operands.calculates(callee, args)
            if value is not None:
                return value
        if callee is any or callee is all:
            show = functools.partial(builtins.shown, operands.truth)
        elif kwargs.get("key") is not None:
            show = self._as_it_is  # what is compared is what the function gives of it
        else:
            show = self._operated
        if len(args) == 1 or (args and (callee is sum or callee is sorted)):  # else these are compared themselves
            given = [self._shown_items(args[0], show), *map(show, args[1:])]
        else:
            given = [*map(show, args)]
        for name, x in kwargs.items():
            kwargs[name] = functools.partial(builtins.key, self.run.calls.builtin(x)) if name == "key" and x is not None else show(x)
        result = form(*given, **kwargs)
        if type(result) is Operated:
            return result.it
        return builtins.made([x.it if type(x) is Operated else x for x in result]) if callee is sorted else result

    def _shown_items(self, it, show):
        """Returns what has the items of `it` that `show` gives of them."""
        if it in self.run.opaque:
            it = items_of(self.run.opaque, it)
        if type(it) in ITERATORS:
            self.look_into(it)
            return map(show, it)
        if type(it) in LISTS or type(it) is tuple or type(it) is collections.deque:
            self.look_into(it)
            return [*map(show, it)]
        self.run.builtins.element(it)
        return it

    @staticmethod
    def _as_it_is(it):
        return it

    def _operated(self, it):
        """Returns what stands for an object that a builtin applies operators to: it itself, unless its class has operators of its own."""
        if self.run.reason is None and self.run.attempted(self.run.builtins.element, it) is not None and any(
                self.run.calls.special(it, name) is not None for name in ("__lt__", "__gt__", "__add__")):
            return Operated(self.run, it)
        self.run.builtins.element(it)
        return it

    def looped(self, it):
        """A loop goes over `it`: returns what is to take its place. (Whatever else takes items in turn asks `it` how many it has, too.)"""
        form = self.run.calls.special(it, "__iter__")
        if form is not None:
            it = form()
            shown = self.run.calls.special(it, "__next__")
            if shown is not None:
                return SpecialMethod(self.run, shown)
        return self.iterated(it)

    def mapping(self, it):
        """An item or slice of `it` is taken."""
        self.run.takes_index = False
        if it in self.run.opaque or it in self.run.opaque.containers:
            return OpaqueItems(self.run.opaque, it)
        if type(it) is np.ndarray and not self.run.is_over() and (self.run.recording is not None or self.run.deferred.held):  # what the index is, is not known yet
            self.run.before = len(self.run.runner.log)
            return _Indexed(self.run.arrays, it)
        form = self.run.calls.special(it, "__getitem__")
        may_vary = self.run.reason is None and (type(it) is list or type(it) is tuple) and not self.run.born.has(it) and (self.run.opaque.unsteady or self.run.dynamic.numbers)
        self.run.takes_index = form is not None or bool(may_vary)
        if form is not None:
            return SpecialMethod(self.run, form)
        if may_vary:
            return _Listed(self.run, it)
        self.keys(it)
        return _Defaults(self.run, it) if self._makes_items(it) else self.container(it)

    def _makes_items(self, it):
        return isinstance(it, collections.defaultdict) and self.run.born.has(it)

    def augmented(self, it):
        """Returns what to change an item of in place, in place of `it`."""
        if self._makes_items(it):
            return _Defaults(self.run, it)
        kind = type(it)
        is_place = kind is list or (kind is dict and all(type(key) in SCALARS for key in it))
        if self.run.reason is None and (it in self.run.opaque or (not is_place and kind not in TENSORS)) \
                and not (self.run.born.has(it) or id(it) in self.run.given or is_librarys(kind)):
            return OpaqueItem(self.run.opaque, it)
        return it

    @staticmethod
    def behind(it):
        """Returns what this stands for."""
        return it._it if type(it) is _Defaults else it.it if type(it) is OpaqueItem else it

    def items(self, it):
        """Returns what to merge into a dict, or to give as keyword arguments, in place of `it`."""
        self.keys(it)
        return self.run.fresh(merged(self.run.opaque, it)) if it in self.run.opaque else self.container(it)

    def subscript(self, it, key):
        """The item `key`, a constant, of `it` is taken."""
        if self.run.reason is not None or not self.run.places.is_place(it, key):
            return self.mapping(it)
        number = self.run.places.counter(it, key)
        if number is None and self.run.places.is_read_anew(it, key):
            number = self.run.opaque.reads(it, key)
        if number is not None:
            return _KnownItem(number)
        self.run.before = len(self.run.runner.log)
        self.keys(it)
        self.run.places.take(it, key)
        return it

    def unpacked(self, it, shape):
        """`it` is unpacked into targets of this structure: returns what to unpack."""
        if it in self.run.opaque:
            if "*" in shape and any(type(part) is tuple for part in shape):
                self.run.impure("unpacks what unknown code gives")
            items = itertools.islice(items_of(self.run.opaque, it), None if "*" in shape else len(shape) + 1)  # one more is an error
            return [self.unpacked(x, shape[k]) if k < len(shape) and type(shape[k]) is tuple else x for k, x in enumerate(items)]
        it = self.iterated(it)
        if type(it) is tuple or type(it) is list:
            items = list(it)
            if "*" in shape:
                k = shape.index("*")
                items[k:max(k, len(items) - (len(shape) - k - 1))] = [None]
            for x, part in zip(items, shape):
                if type(part) is tuple:
                    self.unpacked(x, part)
        elif any(type(part) is tuple for part in shape):
            self.run.impure(f"unpacks an object of type {type(it).__name__}")
        return it

    def unpacking(self, it, shape):
        """The items of `it` will be unpacked."""
        it = self.iterated(it)
        return self.run.fresh(map(lambda x: self.unpacked(x, shape), it))

    def look_into(self, it):
        """Notes that what a container holds is used."""
        self.run.deferred.looked_at(it)
        if self.run.reason is not None or self.run.born.has(it) or id(it) in self.run.given:
            return
        if self.run.opaque.containers.looks_at(it):
            self.run.runner.program.note_varying_places([(*place, False) for place in self.run.reads.places_of(it)])
            self.run.impure("looks at a container that unknown code has changed before", True)
            return
        kind = type(it)
        if kind is tuple or kind is tfi.TupleWrapper or kind in PLAIN or kind in TENSORS:
            return
        if self.run.classes.is_named_tuple(kind):
            self.run.classes.note_class(it)
            return
        if is_like_builtin(kind):
            self.run.classes.note_class(it)
        if kind is dict and self._looks_beside(it):
            return
        if kind in LISTS or kind is collections.deque or is_like_builtin(kind) or (isinstance(it, (list, dict)) and is_librarys(kind)):
            held = self.run.reads.contents(it)
            if any(type(x) is TerraTensor and x._owner is self.run.runner for x in held):
                self.run.impure("keeps a tensor in a container")
        elif kind is np.ndarray:
            if it in self.run.dynamic:
                self.run.impure("looks into an array that is an argument")
            try:
                self.run.reads.array(it)
            except Unskippable:
                self.run.impure("uses a large array")
        elif not tfi.is_variable(it):
            self.run.impure(f"looks into an object of type {kind.__name__}")

    def _looks_beside(self, it):
        """Notes which keys a dict has of which the run has set items that were there before, and none else, and what the other items are; returns whether it has."""
        own = {effect.name: effect for effect in self.run.effects.values() if effect.owner is it}
        if not own or any(type(effect) is not Effect or effect.added is not None or effect.before is None or effect.name not in it for effect in own.values()):
            return False
        self.run.reads.asked(_keys, it, _keys(it))
        for key, value in it.items():
            if key not in own:
                self.run.reads.entry(it, key, value)
        return True


def _keys(it):
    """Tells the keys of a dict, in their order."""
    return repr([*it])


class _KnownItem:
    """Stands in for a container of which the item is known."""

    __slots__ = ("_item",)

    def __init__(self, item):
        self._item = item

    def __getitem__(self, key):
        return self._item


class _Defaults:
    """Stands in for a `defaultdict` that the run has made: so is what it puts in itself."""

    __slots__ = ("_run", "_it")

    def __init__(self, run, it):
        self._run, self._it = run, it

    def __getitem__(self, key):
        is_new = key not in self._it
        if is_new and self._it.default_factory not in _EMPTY:
            self._run.impure("has a defaultdict call what it was made with")
        item = self._it[key]
        return self._run.fresh(item) if is_new and type(item) in LISTS else item

    def __setitem__(self, key, value):
        self._it[key] = value


class _Listed:
    """Stands in for a list or tuple of which an item is taken: of numbers or texts, at a place that varies, maybe."""

    __slots__ = ("_run", "_it")

    def __init__(self, run, it):
        self._run, self._it = run, it

    def __getitem__(self, index):
        if type(index) is int and self._run.opaque.is_another_one(index) and -len(self._it) <= index < len(self._it) and type(self._it[index]) in _NUMBERS_AND_TEXTS:
            return self._run.opaque.operated(operator.getitem, self._it, index)
        self._run.takes_index = False
        return self._run.contents.container(self._it)[self._run.operands.index(index)]


class _Indexed:
    """Stands in for an array of which an item or slice is taken."""

    __slots__ = ("_arrays", "_array")

    def __init__(self, arrays, array):
        self._arrays, self._array = arrays, array

    def __getitem__(self, index):
        return self._arrays.item_of_array(self._array, index)
