"""Notes what a run of user code has read of the world around it, and tells whether that is still the same.

Each read is noted with what it gave: an entry of a dict (attributes, globals, what a class defines) by the object itself or, if it is a scalar, by
value; the contents of lists and dicts; cells and slots; the classes of objects, and which dicts they keep their attributes in. Nothing is walked when it is
compared.
"""

import functools
from operator import attrgetter, is_
from types import CellType, MemberDescriptorType, MethodWrapperType

import numpy as np

from terra.frameworks import keras
from terra.frameworks.settings import settings
from terra.runtime.fast_forward.guards import container_guard, guard_builder, patch_guard
from terra.runtime.fast_forward.guards.entries_guard import EntriesGuard
from terra.runtime.fast_forward.guards.property_reads import PropertyReads
from terra.runtime.fast_forward.sources.effects import ABSENT, CONTENTS, StatePredicate, held_in, put, space_of
from terra.runtime.fast_forward.sources.number_sources import KINDS, StorageSource, is_value, was_replaced
from terra.runtime.tensors.comparing import SCALARS, equal
from terra.runtime.tensors.object_kinds import is_c_class
from terra.tf import versions
from terra.transform import forms

_code = attrgetter("__code__")
_defaults = attrgetter("__defaults__")
_kwdefaults = attrgetter("__kwdefaults__")
_annotations = attrgetter("__annotations__")
DECORATING = frozenset(["__signature__", "__wrapped__"])  # attributes of a function that says that it has other parameters than its code
_contents = attrgetter("cell_contents")
_attributes = attrgetter("__dict__")
_FIELDS = {_code: "__code__", _defaults: "__defaults__", _kwdefaults: "__kwdefaults__", _contents: "cell_contents"}


def _is_empty(cell):
    try:
        _contents(cell)
    except ValueError:
        return True
    return False


_mro = type.__dict__["__mro__"].__get__


class ReadSet:
    """Collects reads; after `seal()`, `holds()` compares them.

    `numbers`: identities of the places (see `number_sources.StorageSource`) whose values count as arguments.
    """

    def __init__(self, numbers=()):
        self._numbers = numbers
        self._entries = {}  # id of a dict, or of the class whose namespace it is -> (the dict, {key: what it gave})
        self._namespaces = {}  # id -> such a class
        self._absent = {}  # (id of a dict, key) -> the dict
        self._asked = {}  # (function, id of its argument) -> (argument, what it gave)
        self._objects = {}  # id -> (object, its class, the dict of its attributes or None)
        self._arrays = {}  # id -> (array, its contents)
        self._walk = guard_builder.GuardBuilder(container_guard.ContainerGuard(), [], reading=True)
        self._parts = {}  # (how properties look at parts, id of the object) -> PropertyReads
        self._settings = []
        self._classes = {}  # id -> (what `user_layers` knows of a class, the class)

    # -- what is noted ---------------------------------------------------------------------------------------------------------

    def entry(self, space, key, value, owner=None):
        """`space[key]` was `value`. `owner`: the class whose namespace `space` is."""
        if (id(space), key) in self._numbers:
            return
        self._entries.setdefault(id(owner or space), (space, {}))[1].setdefault(key, value)
        if owner is not None:
            self._namespaces[id(owner)] = owner

    def entries_of(self, space):
        """The entries of a dict that were read: {key: what it gave}."""
        return self._entries.get(id(space), (space, {}))[1]

    def forget(self, space, key):
        """That an entry was read does not matter."""
        entries = self._entries[id(space)][1]
        del entries[key]
        if not entries:
            del self._entries[id(space)]

    def absent(self, space, key, owner=None):
        """`space` has no `key`."""
        self._absent[id(owner or space), key] = space

    def lookup(self, space, key):
        """It was asked whether `space` has `key`, and what that is."""
        if key in space:
            self.entry(space, key, space[key])
        else:
            self.absent(space, key)

    def asked(self, function, argument, value):
        """`function(argument)`, a look without side effects, gave `value`."""
        self._asked.setdefault((function, id(argument)), (argument, value))

    def object(self, it, kind, attributes=None):
        """`it` was of the class `kind`, and had its attributes in this dict."""
        if attributes is not None or id(it) not in self._objects:
            self._objects[id(it)] = it, kind, attributes

    def bases(self, cls):
        """The class `cls` was searched, with what it derives from."""
        self.asked(_mro, cls, _mro(cls))

    def contents(self, container, owner=None):
        """The list, dict or set was looked into, or the namespace of the class `owner`; returns what it held."""
        return self._walk.containers.add(container, owner)

    def array(self, array):
        """The numpy array was used. Raises Unskippable if it is large."""
        self._arrays[id(array)] = container_guard.noted(array)

    def parts(self, owner, name):
        """The property `name` of the framework's looked at the object `owner` and its parts. Raises Unskippable if it may call the user's code."""
        how = name if name in keras.OF_METRICS else name in keras.QUIET_PROPERTIES
        known = self._parts.get((how, id(owner)))
        if known is not None and known.is_particular:
            how = name
        if (how, id(owner)) not in self._parts:
            looks = PropertyReads(self, name)
            looks.object(owner)  # it raises again the next time, if it does now
            self._parts[how, id(owner)] = looks

    def variable(self, variable):
        self._walk.variable(variable)

    def layers_class(self, known, cls):
        """The class `cls` of a user's layers is as `user_layers` knows it."""
        self._classes[id(cls)] = known, cls

    def cell(self, cell):
        """It was read what a cell holds."""
        if (id(cell), CONTENTS) not in self._numbers:
            try:
                self.asked(_contents, cell, cell.cell_contents)
            except ValueError:  # an empty cell
                self.asked(_is_empty, cell, True)

    def function(self, function, globals_read, shown):
        """A user's function was called: its code and defaults, the globals of these names, what its cells hold; but not those of the names `shown`."""
        self._parameters(function)
        space, builtins = function.__globals__, function.__builtins__ if hasattr(function, "__builtins__") else {}
        for name in globals_read:
            if name not in shown:
                self.lookup(space, name)
                if name not in space:
                    self.lookup(builtins, name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if name not in shown:
                self.cell(cell)

    def _parameters(self, function):
        self.asked(_code, function, function.__code__)
        self.asked(_defaults, function, function.__defaults__)
        self.asked(_kwdefaults, function, function.__kwdefaults__)
        if function.__kwdefaults__:
            self.contents(function.__kwdefaults__)

    def signature(self, function, has_own_code):
        """It was asked which parameters a function has, that is not decorated: its annotations and defaults, too. `has_own_code`: else that is noted elsewhere."""
        if has_own_code:
            self._parameters(function)
        self.asked(_annotations, function, function.__annotations__)
        self.contents(function.__annotations__)
        for name in DECORATING:
            self.absent(vars(function), name)

    def _places(self):
        """(dict, list or cell, key, what was there) of what was read by itself where another value can be put."""
        for space, entries in self._entries.values():
            if type(space) is dict or type(space) is list:
                for key, value in entries.items():
                    yield space, key, value
        for (function, _), (cell, value) in self._asked.items():
            if function is _contents:
                yield cell, CONTENTS, value

    def _slots(self):
        """(object, name, what was there) of the slots that were read."""
        for (function, _), (it, value) in self._asked.items():
            if type(function) is MethodWrapperType and type(slot := function.__self__) is MemberDescriptorType and not is_c_class(slot.__objclass__):
                yield it, slot.__name__, value

    def _of_classes_own(self):
        """(class, name, what was there) of the attributes of classes that were read by themselves."""
        for key, cls in self._namespaces.items():
            for name, value in self._entries[key][1].items():
                yield cls, name, value

    def plain_numbers(self):
        """(`StorageSource`, value) of the numbers that were read where another one can be put."""
        for space, key, value in self._places():
            if type(value) is int or type(value) in KINDS:
                yield StorageSource(space, key, type(value)), value

    def places_of(self, it):
        """(dict, list or cell, key) of the places that were read, where this object was, or is now."""
        return [(space, key) for space, key, value in self._places() if value is it or held_in(space, key) is it]

    def changed_values(self):
        """(dict, list, cell, class or object with slots, key, whether it is a number or another value) of what was read there, may be replaced, and is another now."""
        for space, key, value in (*self._places(), *self._slots(), *self._of_classes_own()):
            if was_replaced(value, held_in(space, key)):
                yield space, key, is_value(value)

    def guard(self, guard, before):
        """Notes what a skipped call depended on; `before`: the effects that there were until then."""
        self._walk.containers.update(guard.containers)
        self._arrays.update((id(array), (array, held)) for array, held in guard.arrays)
        if guard.reads is not None:
            self._merge(guard.reads, before)
        self.settings(guard.root)

    def has_attribute(self, owner, name):
        """Returns whether it was read what the attribute `name` of an object is, or that item of a list or dict."""
        return self.has_entry(owner, name) or (type(owner) is not CellType and self._walk.containers.covers(space_of(owner), name))

    def has_entry(self, owner, name):
        """Returns whether that was read by itself, not with all others."""
        if type(owner) is CellType:
            return (_contents, id(owner)) in self._asked
        return name in self._entries.get(id(space_of(owner)), ((), ()))[1]

    def attribute(self, owner, name):
        """Returns what the attribute was, if it was read by itself; else None."""
        if type(owner) is CellType:
            return self._asked.get((_contents, id(owner)), (owner, None))[1]
        return self._entries.get(id(space_of(owner)), ((), {}))[1].get(name)

    def has_contents(self, container, name=None):
        """Returns whether it was read what is in a container, that of this name among it."""
        return self._walk.containers.covers(container, name)

    def settings(self, root):
        """The settings of the framework `root` matter, the call context among them."""
        if root not in (None, "tensorflow", *[root for root, _ in self._settings]):  # TensorFlow has no settings but those that all look at
            self._settings.append((root, None))

    def _merge(self, other, before):
        for key, (space, entries) in other._entries.items():
            self._entries.setdefault(key, (space, {}))[1].update(entries)
        self._namespaces.update(other._namespaces)
        self._absent.update(other._absent)
        for (function, argument), answer in other._asked.items():
            if before and type(function) is StatePredicate:
                function = function.after(before)
            self._asked[function, argument] = answer
        for it, kind, attributes in other._objects.values():
            self.object(it, kind, attributes)
        self._arrays.update(other._arrays)
        self._classes.update(other._classes)
        self._walk.containers.update(other._walk.containers)
        self._settings += [pair for pair in other._settings if pair[0] is not None and pair[0] not in [root for root, _ in self._settings]]

    # -- what is compared ------------------------------------------------------------------------------------------------------

    def values(self):
        """All objects that were read."""
        for _, entries in self._entries.values():
            yield from entries.values()
        for _, value in self._asked.values():
            yield value

    def holds_any(self, ids):
        """Returns whether an object of one of these ids was read."""
        return not self.ids().isdisjoint(ids)

    def ids(self):
        """The ids of all objects that were read."""
        values = list(self.values())
        for value in values:
            if type(value) is tuple:
                values += value
        return set(map(id, values)) | self._walk.containers.ids()

    def seal(self, settings):
        """Nothing more will be noted; `settings` are those ({root: value}) at the beginning of the run."""
        self._settings = [(root, settings[root]) for root in [root for root, _ in self._settings] or [None]]
        self._of_dicts = EntriesGuard(self._entries.values(), [(space, key) for (_, key), space in self._absent.items()])
        answers = [(function, argument, value) for (function, _), (argument, value) in self._asked.items()]
        self._answers = _Answers([answer for answer in answers if type(answer[0]) is not StatePredicate])
        self._questions = [(question, answer) for question, _, answer in answers if type(question) is StatePredicate]
        self._held_arrays = list(self._arrays.values())
        self._known = list(self._classes.values())
        addresses = [versions.address_of_version(space) for known, _ in self._known for space in known.spaces]
        self._of_classes = versions.Words(addresses) if addresses and None not in addresses else None
        self._found = None  # what was read of them, and how often the framework was patched then
        words, others = {}, []
        for it, kind, attributes in self._objects.values():
            found = versions.words_of_header(it, kind, attributes)
            words.update(found)
            if not found:
                others.append((it, kind, attributes))
        self._headers = versions.Words(list(words)) if words else None
        self._held_headers = np.array(list(words.values()), np.uint64).tobytes()
        self._kinds = [it for it, _, _ in others], [kind for _, kind, _ in others]
        owners = [(it, attributes) for it, _, attributes in others if attributes is not None]
        self._owners = [it for it, _ in owners], [attributes for _, attributes in owners]
        for parts in self._parts.values():
            self._walk.containers.update(parts.containers)
        self._containers = self._walk.containers

    def holds(self):
        """Returns whether all that was read is still the same."""
        return self.hold_after_the_run() and (not self._questions or all(question(None) is answer for question, answer in self._questions))

    def hold_after_the_run(self):
        """Returns whether all that was read still is as it was, but for the questions: the run itself may have counted on."""
        if not self._of_dicts.holds():
            return False
        if self._headers is not None and self._headers.read() != self._held_headers:
            return False
        if not all(map(is_, map(type, self._kinds[0]), self._kinds[1])):
            return False
        try:
            if not all(map(is_, map(_attributes, self._owners[0]), self._owners[1])):
                return False
        except AttributeError:
            return False
        if not self._answers.hold():
            return False
        if self._known and not self._classes_hold():
            return False
        if not self._containers.holds():
            return False
        for array, held in self._held_arrays:
            if container_guard.contents(array) != held:
                return False
        return all(equal(settings(root), held) for root, held in self._settings)

    def changes(self):
        """Yields, for each entry that was read and is another now, (what puts back what it was, what puts there again what it is now): of attributes, globals, items, cells and containers."""
        for space, key, value in (*self._places(), *self._slots(), *self._of_classes_own()):
            if not equal((now := held_in(space, key, ABSENT),), (value,)):
                yield functools.partial(put, space, key, value), functools.partial(put, space, key, now)
        for (_, key), space in self._absent.items():
            if type(space) is dict and key in space:
                yield functools.partial(put, space, key, ABSENT), functools.partial(put, space, key, space[key])
        yield from self._walk.containers.changes()

    def _classes_hold(self):
        """Returns whether the classes of layers are as they were: of those whose namespaces have not changed, nor the framework's, nothing is looked at."""
        if self._of_classes is None:
            return all(known.holds(cls) for known, cls in self._known)
        found = self._of_classes.read(), patch_guard.modules.version
        if found != self._found:
            if not all(known.holds(cls) for known, cls in self._known):
                return False
            self._found = found
        return True


class _Answers:
    """Compares what functions without side effects have given for their arguments: (function, argument, what it gave). Fields of functions and cells are read from memory, all at once."""

    __slots__ = ("_read", "_words", "_found", "_others")

    def __init__(self, answers):
        self._read = [answer for answer in answers if versions.address_of_field(answer[1], _FIELDS.get(answer[0])) is not None]
        self._others = [answer for answer in answers if versions.address_of_field(answer[1], _FIELDS.get(answer[0])) is None]
        self._words = versions.Words([versions.address_of_field(argument, _FIELDS[function]) for function, argument, _ in self._read]) if self._read else None
        self._found = None  # what was read when they were found to be the same

    def hold(self):
        """Returns whether they give the same objects, or equal scalars."""
        if self._words is not None:
            found = self._words.read()
            if found != self._found:
                if not _are_same(self._read):
                    return False
                self._read = [(function, argument, function(argument)) for function, argument, _ in self._read]  # held, so that no other object can come to be there
                self._found = found
        return _are_same(self._others)


def _are_same(answers):
    """Returns whether functions give the same objects again, or equal scalars."""
    for function, argument, value in answers:
        try:
            now = function(argument)
        except (ValueError, AttributeError):  # an empty cell or slot
            return False
        if now is not value and not (type(now) in SCALARS and equal((now,), (value,))):
            if function is _defaults or function is _kwdefaults:
                forms.refresh_form(argument)
            return False
    return True
