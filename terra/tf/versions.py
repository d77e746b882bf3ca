"""Versions of dicts, lengths of lists and sets, classes of objects, read from memory: whether thousands of attributes have changed, without looking
at one of them.

CPython 3.10 to 3.12 keep in each dict a number that is new after each change (`ma_version_tag`, PEP 509), which no Python function gives. It lies behind
the object's head and the number of items. Comparing attributes one by one costs a step 0.1 to 0.3 ms, most of it for cache misses, one after the
other; `Words` reads all it needs in one go. Where memory is not found to look as expected there is no address, and the items are compared.
"""

import collections
import ctypes
import gc
import sys
from types import CellType, FunctionType, MappingProxyType

import numpy as np

WORD = 8
_LENGTH = object.__basicsize__
_BEHIND = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # of a dict the version, of a set the length
_MANAGED_DICT = 1 << 4  # flag of a class
_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")


class _Memory:
    """A stretch of memory, for numpy: an array of words that owns nothing and is only ever asked for single ones."""

    def __init__(self, first, words):
        self.__array_interface__ = {"version": 3, "typestr": np.dtype(np.uint64).str, "shape": (words,), "data": (first, True)}


class Words:
    """The words at some addresses, which must stay readable as long as they are read."""

    __slots__ = ("_memory", "_index")

    def __init__(self, addresses):
        first, last = min(addresses), max(addresses)
        self._memory = np.asarray(_Memory(first, (last - first) // WORD + 1))
        self._index = np.array([(address - first) // WORD for address in addresses])

    def read(self):
        """All of them, as bytes."""
        return self._memory.take(self._index).tobytes()


def word_at(address):
    """One word, as a sequence of length one that reads it each time. It must stay readable, too."""
    return memoryview(ctypes.c_uint64.from_address(address)).cast("B").cast("Q")


def _dicts_work():
    """Returns whether the numbers behave: they change with each kind of change, and with nothing else."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return False

    class Thing:
        kind = 1

    thing = Thing()
    thing.x = thing.y = 1
    attributes, namespace, plain = vars(thing), gc.get_referents(vars(Thing))[0], {"a": 1}
    changes = [
        (attributes, lambda: setattr(thing, "x", 2)), (attributes, lambda: setattr(thing, "z", 2)), (attributes, lambda: delattr(thing, "y")),
        (attributes, lambda: attributes.update(x=3)), (namespace, lambda: setattr(Thing, "kind", 2)), (namespace, lambda: setattr(Thing, "new", 2)),
        (namespace, lambda: delattr(Thing, "new")), (plain, lambda: plain.__setitem__("a", 2)), (plain, lambda: plain.__setitem__("b", 2)),
        (plain, lambda: plain.pop("a")), (plain, plain.clear), (plain, lambda: plain.setdefault("c", 1)),
    ]
    numbers = {id(mapping): Words([id(mapping) + _BEHIND]) for mapping, _ in changes}
    for mapping, change in changes:
        before = {key: number.read() for key, number in numbers.items()}
        repr(mapping), len(mapping), thing.x, Thing.kind, list(mapping.values())
        if {key: number.read() for key, number in numbers.items()} != before:
            return False
        change()
        after = {key: number.read() for key, number in numbers.items()}
        if [key for key in after if after[key] != before[key]] != [id(mapping)]:
            return False
    return True


def _lists_work():
    """Returns whether the length of a list or set is where it is expected to be, whatever is done to it."""
    class DerivedList(list):
        pass

    class DerivedSet(set):
        pass

    for kind, place, add, extend in (
            (list, _LENGTH, list.append, list.extend), (DerivedList, _LENGTH, list.append, list.extend),
            (set, _BEHIND, set.add, set.update), (DerivedSet, _BEHIND, set.add, set.update)):
        made = kind([object(), object(), 3])
        words = Words([id(made) + place])
        for change in (lambda: None, lambda: add(made, object()), lambda: extend(made, range(100)), made.pop, lambda: made.remove(3), made.clear,
                       lambda: add(made, 1), lambda: add(made, 1)):
            change()
            if words.read() != np.array([len(made)], np.uint64).tobytes():
                return False
    return True


def _items_work():
    """Returns whether the items of a list, and of a small set, are where they are expected to be."""
    class Derived(list):
        pass

    held = [object() for _ in range(60)]
    for made in [], Derived(), set():
        add = made.add if isinstance(made, set) else made.append
        for it in held:
            add(it)
            places = _places_of_items(made)
            if isinstance(made, set):
                if (len(made) <= 4) is not bool(places) or len(places) not in (0, len(made) + 2) or (places and word_at(places[0])[0] != len(made)):
                    return False
            elif [word for word, in map(word_at, addresses_of_items(made))] != list(map(id, made)) or word_at(places[0])[0] != len(made):
                return False
    return True


def _headers_work():
    """Returns whether the class of an object, and the dict of its attributes, are where they are expected to be, and nothing else changes these words."""
    class Thing:
        pass

    class Other:
        pass

    class Derived(list):
        pass

    for made, other in ((Thing(), Other), (Derived(), None)):
        made.x = 1
        attributes = vars(made)
        if _pointer_to_attributes(made) is None:
            return False
        words = Words([id(made) + WORD, _pointer_to_attributes(made)])
        expected = np.array([id(type(made)), id(attributes)], np.uint64).tobytes()
        if words.read() != expected:
            return False
        made.x, made.y = 2, 3
        attributes.update(z=4)
        del made.x
        if words.read() != expected:
            return False
        made.__dict__ = {}
        if words.read() != np.array([id(type(made)), id(vars(made))], np.uint64).tobytes():
            return False
        if other is not None:
            made.__class__ = other
            if words.read() != np.array([id(other), id(vars(made))], np.uint64).tobytes():
                return False
    return True


def _fields_of_functions():
    """Returns where, behind a function's address, it has the pointers to its code, defaults and defaults of keyword arguments; () if these are not found."""
    def function(a=None, *, b=None):  # pragma: no cover (it is never called)
        pass

    def other(a=None, *, b=None):  # pragma: no cover
        return a

    def looks():
        return [id(getattr(function, field)) for field in _FIELDS]

    words = [word_at(id(function) + offset) for offset in range(2 * WORD, function.__sizeof__() - function.__sizeof__() % WORD, WORD)]
    found = [[k for k, word in enumerate(words) if word[0] == look] for look in looks()]
    if any(len(places) != 1 for places in found):
        return ()
    for change in (lambda: None, lambda: setattr(function, "__code__", other.__code__), lambda: setattr(function, "__defaults__", (1,)), lambda: setattr(function, "__kwdefaults__", {"b": 1})):
        change()
        if [words[k][0] for k, in found] != looks():
            return ()
    return tuple((k + 2) * WORD for k, in found)


def _cells_work():
    """Returns whether a cell has the pointer to its contents where it is expected to be."""
    held = [object(), object(), 1]
    cell = CellType(held[0])
    word = word_at(id(cell) + _LENGTH)
    for it in held:
        cell.cell_contents = it
        if word[0] != id(it):
            return False
    del cell.cell_contents
    return word[0] == 0


def _pointer_to_attributes(it):
    """Where an object has the pointer to the dict of its attributes: at the place that its class says, or in front of it; None if it is neither."""
    kind = type(it)
    if kind.__dictoffset__ > 0:
        return id(it) + kind.__dictoffset__
    return id(it) - 3 * WORD if kind.__flags__ & _MANAGED_DICT and sys.version_info >= (3, 11) else None


def address_of_version(mapping):
    """Where the version of a dict, or of a class's namespace, lies; None if there is none. The dict must be kept alive."""
    if not _DICTS:
        return None
    if type(mapping) is MappingProxyType:
        (mapping,) = gc.get_referents(mapping)
    if not issubclass(type(mapping), dict) or issubclass(type(mapping), collections.OrderedDict):  # whose order may change, and nothing else
        return None
    return id(mapping) + _BEHIND


def address_of_length(container):
    """Where the length of a list or set lies; None if it is neither. It must be kept alive."""
    if not _LISTS:
        return None
    return id(container) + _LENGTH if isinstance(container, list) else id(container) + _BEHIND if isinstance(container, set) else None


def places_of_items(container):
    """Where the number of a list's or set's items is told, and where they are: if these words stay the same, so do the items of a set, and the `addresses_of_items` of a list. () if they cannot be read."""
    return _places_of_items(container) if _ITEMS else ()


def _places_of_items(container):
    kind, length = type(container), address_of_length(container)
    if isinstance(container, list) and kind.__iter__ is list.__iter__:
        return (length, length + WORD)[:2 if container else 1]
    table = id(container) + _BEHIND + 5 * WORD  # of a small set, in the object itself: for each item it, and its hash
    if isinstance(container, set) and kind.__iter__ is set.__iter__ and word_at(id(container) + _BEHIND + 2 * WORD)[0] == table:
        items = set(map(id, set.__iter__(container)))
        return length, length + 2 * WORD, *[address for address in range(table, table + 16 * WORD, 2 * WORD) if word_at(address)[0] in items]
    return ()


def addresses_of_items(container):
    """Where a list has its items, as long as the words at its `places_of_items` stay the same."""
    if not isinstance(container, list) or not container:
        return ()
    first = word_at(id(container) + _LENGTH + WORD)[0]
    return range(first, first + len(container) * WORD, WORD)


def address_of_field(it, field):
    """Where a function has a pointer to its `__code__`, `__defaults__` or `__kwdefaults__`, or a cell to its `cell_contents`; None if that is not known. It must be kept alive."""
    if type(it) is FunctionType and _FUNCTION and field in _FIELDS:
        return id(it) + _FUNCTION[_FIELDS.index(field)]
    return id(it) + _LENGTH if type(it) is CellType and _CELLS and field == "cell_contents" else None


def words_of_header(it, kind, attributes):
    """[(where the class of an object lies, the word there)], and the same for its attributes if these are given; [] if that is not known.

    Only for an object that is kept alive, whose class is now `kind` and whose attributes are now the dict `attributes`.
    """
    if not _HEADERS:
        return []
    words = [(id(it) + WORD, id(kind))]
    if attributes is not None:
        address = _pointer_to_attributes(it)
        if address is None:
            return []
        words.append((address, id(attributes)))
    return words if Words([address for address, _ in words]).read() == np.array([word for _, word in words], np.uint64).tobytes() else []


def watch(functions):
    """Returns (an array, an index, bytes): as long as the functions live, and `array.take(index).tobytes()` is what these bytes are, they have the code and defaults that they have now. None where that
    cannot be said.

    The array must not be looked into once one of them is gone.
    """
    if not _FUNCTION or not functions:
        return None
    words = Words([id(function) + offset for function in functions for offset in _FUNCTION])
    return words._memory, words._index, words.read()


_SUPPORTED = sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == WORD and not hasattr(sys, "getobjects") \
    and getattr(sys, "_is_gil_enabled", lambda: True)()
_LISTS = _SUPPORTED and (3, 10) <= sys.version_info[:2] <= (3, 13) and _lists_work()
_DICTS = _SUPPORTED and _dicts_work()
_ITEMS = _LISTS and _items_work()
_HEADERS = _DICTS and _headers_work()
_FUNCTION = _fields_of_functions() if _SUPPORTED else ()
_CELLS = _SUPPORTED and _cells_work()
