"""Effects: what a skipped call of the user's leaves in objects: `self.loss = loss`, counters such as `self.steps += 1`, `self.losses.append(loss)`; and the same of items of
lists and dicts, as in `state["loss"] = loss`, of global names, and of those that a closure holds.

It is left when the call is skipped, too: a value of this step, a plain value, or lists of such. A counter goes on from what it is then, and so does a list; hence a run that looks
at one, other than to add to it, is another one each time. Except for a question like `self.steps % 100 == 0`: what matters is its answer, which can be told before the run.
And except for tensors, such as the state of a recurrent network: an attribute in which a run leaves tensors that the next one takes up is *carried*; what it holds counts as an argument
of the run.
"""

import collections
import functools
import threading
from types import CellType, MemberDescriptorType
from typing import NamedTuple

import numpy as np

from terra.runtime.fast_forward.sources.filled import Filled
from terra.runtime.interpreter import integers
from terra.runtime.tensors.object_kinds import TENSORS, defined, is_librarys_container, plain

CONTENTS = "cell_contents"  # the name of what a cell holds, for which a closure has a name of its own
GROWING = frozenset([list, collections.deque])
WITH_ITEMS = frozenset([list, dict, CellType])  # whose items, or contents, count like attributes; names are keys then
_COPIED = frozenset([list, dict, collections.deque])
ABSENT = "absent"  # in place of the value of an attribute


def space_of(owner):
    """Where the attributes of an object are (in itself, if it has slots or is a class), the items of a list or dict, or the contents of a cell."""
    return owner if type(owner) in WITH_ITEMS or has_slots_only(type(owner)) or issubclass(type(owner), type) else vars(owner)


@functools.lru_cache(1000)
def has_slots_only(kind):
    """Returns whether objects of a class have no dict of attributes."""
    return not kind.__dictoffset__ and not issubclass(kind, threading.local)


def held_in(owner, name, default=None):
    """Returns what an attribute or item is, or a cell holds."""
    try:
        if issubclass(type(owner), type):
            return vars(owner)[name]
        space = space_of(owner)
        if space is owner and type(owner) not in WITH_ITEMS:
            return slot_of(owner, name)(owner)
        return owner.cell_contents if type(owner) is CellType else space[name]
    except (KeyError, IndexError, ValueError, AttributeError):
        return default


def slot_of(owner, name):
    """Returns what reads this slot of objects like `owner`. Raises AttributeError if there is none."""
    found = defined(type(owner), name)
    if type(found) is not MemberDescriptorType:
        raise AttributeError(name)
    return found.__get__


def changed_containers(effects, given):
    """Returns the lists, dicts and deques among objects that these effects change."""
    found = {id(effect.owner): effect.owner for effect in effects if type(effect.owner) in _COPIED}
    return [it for key, it in found.items() if any(it is x for x in given)]


def put(space, key, value):
    """Puts a value into a dict, list, cell, slot or class, or removes what is there (ABSENT)."""
    if type(space) is CellType:
        if value is ABSENT:
            del space.cell_contents
        else:
            space.cell_contents = value
    elif issubclass(type(space), (dict, list)):
        if value is not ABSENT:
            space[key] = value
        else:
            del space[key]
    elif issubclass(type(space), type):
        type.__delattr__(space, key) if value is ABSENT else type.__setattr__(space, key, value)
    else:
        slot = defined(type(space), key)
        slot.__delete__(space) if value is ABSENT else slot.__set__(space, value)


def put_contents(container, contents):
    """Puts what another one of its kind holds into a list, dict or deque."""
    container.clear()
    (container.update if type(container) is dict else container.extend)(contents)


class Effect:
    """An attribute, or item, that a call sets.

    added: what is added to it since the run began, if it is a counter; else `template` is what it is set to, as `Recording` describes results.
    """

    __slots__ = ("owner", "name", "added", "template", "before", "was", "since", "is_kept")

    def __init__(self, owner, name, added=None, template=None, before=None, since=0):
        self.owner, self.name, self.added, self.template = owner, name, added, template
        self.before = before  # what it was when the run began
        self.was = ABSENT  # what the run had set, if an opaque call, or another effect, has changed that
        self.since = since  # how much of what is added effects before have added that are kept
        self.is_kept = False  # whether another effect on this place follows

    @property
    def key(self):
        return id(self.owner), self.name

    @property
    def is_relative(self):
        """Whether what it leaves depends on what was there before."""
        return self.added is not None

    def was_read(self, reads):
        return reads.has_attribute(self.owner, self.name)

    @property
    def is_there(self):
        """Whether the attribute is where attributes are: the framework's classes may put it elsewhere."""
        return self.state() is not ABSENT or self.was is not ABSENT

    @property
    def label(self):
        return "what a closure holds" if type(self.owner) is CellType else f"[{self.name!r}]" if type(self.owner) in WITH_ITEMS else self.name

    def value(self):
        """Returns what the run has set it to."""
        return held_in(self.owner, self.name) if self.was is ABSENT else self.was

    def given(self, is_opaque):
        """Returns what it was set to: the framework makes lists and dicts of its own of those that it is given. `is_opaque(it)`: whether unknown code gave a list or dict, as which it is known."""
        return _given(self.value(), is_opaque)

    def apply(self, value):
        """Applies the effect; `value` is made of the template."""
        if self.added is not None:
            value = self.value() + self.added
        if type(self.owner) is list or type(self.owner) is dict:
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)

    def state(self):
        """Returns what `undo` is to be given, before the effect is had."""
        return held_in(self.owner, self.name, ABSENT)

    def undo(self, before):
        """Takes the effect back, which was had when there was `before`."""
        if type(self.owner) in WITH_ITEMS or issubclass(type(self.owner), type):
            put(self.owner, self.name, before)
        elif before is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, before)

    def described(self, template):
        """Returns the effect as a record keeps it."""
        described = type(self)(self.owner, self.name, None if self.added is None else self.added - self.since, template)
        described.was = ABSENT if self.was is ABSENT or self.added is not None else None
        return described

    def is_like(self, other, same):
        return self.key == other.key and self.added == other.added and same(self.template, other.template)


def keep(effects, effect, value):
    """Keeps one of a run's effects, which has left this value, beside another one that comes on the same place: a call of unknown code in between may have seen it. (A run that is skipped has both.)"""
    if effect.was is ABSENT:
        effect.was = value
    effect.is_kept = True
    others = [(("kept", id(effect)) if other is effect else key, other) for key, other in effects.items()]
    effects.clear()
    effects.update(others)


class Removal(Effect):
    """An attribute that a call deletes."""

    __slots__ = ()
    is_there = True

    @property
    def label(self):
        return f"no {self.name}"

    def value(self):
        return None

    def apply(self, value):
        if self.state() is not ABSENT:
            delattr(self.owner, self.name)


def _given(value, is_opaque):
    kind = type(value)
    if is_opaque(value):
        return value
    if kind is tuple or kind is list:
        return kind([_given(x, is_opaque) for x in value])
    if kind is dict or is_librarys_container(kind):
        held = plain(value)
        return {k: _given(x, is_opaque) for k, x in held.items()} if type(held) is dict else [_given(x, is_opaque) for x in held]
    return value


class Append(Effect):
    """An item that a call appends to a list or deque; `name` has its number among those of the call."""

    __slots__ = ("item",)
    is_relative = is_there = True

    @property
    def label(self):
        return "a list" if type(self.owner) is Filled else f"a {type(self.owner).__name__}"

    def __init__(self, owner, name, added, template=None, item=None):
        super().__init__(owner, name, added, template)
        self.item = item

    def was_read(self, reads):
        return reads.has_contents(self.owner.container if type(self.owner) is Filled else self.owner)

    def value(self):
        return self.item

    def given(self, is_opaque):
        return self.item

    def apply(self, value):
        self.owner.append(value)

    def state(self):
        return None

    def undo(self, before):
        self.owner.pop()


class NumbersBefore:
    """The numbers that there were before effects which a step has had by now: what it asks of numbers behind opaque calls is asked of these.

    changed: {(id of a dict, list or cell, key): (number before, number that the effects have left)}.
    """

    _asked: dict = {}  # those of which is asked just now: one step asks at a time

    def __init__(self, changed):
        self._changed = changed

    def note(self, effect, before):
        """An effect was had on a place that held `before`."""
        if type(before) is int or type(before) is float or isinstance(before, np.number):
            place = id(space_of(effect.owner)), effect.name
            self._changed[place] = self._changed.get(place, (before,))[0], held_in(effect.owner, effect.name)

    def ask(self, question):
        """Returns what `question()` gives."""
        if not self._changed:
            return question()
        NumbersBefore._asked = self._changed
        try:
            return question()
        finally:
            NumbersBefore._asked = {}

    @staticmethod
    def before(value, space, key):
        """Returns what was there, where there is `value` now; None if that is not what the effects have left."""
        if not NumbersBefore._asked:
            return value
        before, left = NumbersBefore._asked.get((id(space), key), (value, value))
        return before if value is left or (type(value) is type(left) and value == left) else None


class StateInput(NamedTuple):
    """An attribute in which a run finds tensors that the one before has left there."""

    owner: object
    name: str

    @property
    def key(self):
        return id(self.owner), self.name

    def value(self):
        """Returns what the attribute, or item, holds; ABSENT if there is none."""
        return held_in(self.owner, self.name, ABSENT)


def holds_tensors(value):
    """Whether it is a tensor, or lists, tuples and dicts of tensors, and of nothing that is likely to be another one each time."""
    kinds = set(map(type, _within(value)))
    return not kinds.isdisjoint(TENSORS) and kinds <= _BESIDE_TENSORS


_BESIDE_TENSORS = frozenset(TENSORS) | {type(None), bool, str}


def tensors_within(value):
    """Returns the tensors in lists, tuples and dicts, or the one that it is."""
    return [x for x in _within(value) if type(x) in TENSORS]


def _within(value):
    if type(value) is tuple or isinstance(value, (list, dict)):
        for x in value.values() if isinstance(value, dict) else value:
            yield from _within(x)
    else:
        yield value


class StatePredicate:
    """A question that a run asks about counters, and numbers that vary: (owner, name, how much more it is then than at the beginning; None if it is a float) for each, or (None, None, value) of what
    stays the same."""

    __slots__ = ("function", "parts", "_key")

    def __init__(self, function, parts):
        self.function, self.parts = function, parts
        self._key = function.__code__, *[(id(owner), name, type(more), more) for owner, name, more in parts]

    def __eq__(self, other):
        return type(other) is StatePredicate and self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def __call__(self, _):
        """The answer, before the run; None if there is none."""
        values = []
        for owner, name, more in self.parts:
            if owner is not None:
                value = NumbersBefore.before(held_in(owner, name), space_of(owner), name)
                if type(value) is not (float if more is None else int):
                    return None
                more = value if more is None else more + value
            values.append(more)
        try:
            return self.function(*values)
        except ArithmeticError:
            return None

    def after(self, effects):
        """Returns this question as it is asked in a call, where the run around it has had effects before (see `so_far`)."""
        parts = []
        for owner, name, more in self.parts:
            before = effects.get((id(owner), name), 0) if owner is not None else 0  # (no float: those are asked about in the step's own function only)
            if type(before) is tuple:
                owner, name, before = None, None, before[0]
            parts.append((owner, name, more + before))
        return StatePredicate(self.function, parts)


def leave_natural(effects):
    """Puts the integers that the program would have in the place of those that a run has left as objects of their own (see `integers`)."""
    for effect in effects:
        value = held_in(effect.owner, effect.name) if type(effect) is Effect else None
        made = integers.make_natural(value)
        if made is not value:
            put(space_of(effect.owner), effect.name, made)


def so_far(effects):
    """Returns what `StatePredicate.after` is to know of a run's effects until then: {key: what was added, or (value,) of what was set}."""
    return {key: effect.added if effect.added is not None else (effect.value(),) for key, effect in effects.items() if type(effect) is Effect}


@functools.lru_cache(None)
def kind_of(name):
    """A look at the type of an attribute or item."""
    return lambda owner: type(held_in(owner, name))
