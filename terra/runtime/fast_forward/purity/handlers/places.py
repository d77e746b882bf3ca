"""The observer's part for places: attributes, items of lists and dicts, global variables and those of functions around, and the numbers there that count or vary."""

import builtins
import importlib.util
import sys
from types import CellType, ModuleType

from terra import ours
from terra.runtime.fast_forward.purity.facts.attribute_lookup import attributes_of
from terra.runtime.fast_forward.purity.facts.plain_classes import is_plain_metaclass
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sources.effects import WITH_ITEMS, StatePredicate, has_slots_only, held_in, space_of
from terra.runtime.fast_forward.sources.number_sources import KINDS, can_be_told, may_be_replaced
from terra.runtime.tensors.comparing import SCALARS
from terra.runtime.tensors.object_kinds import TENSORS, defined, is_librarys, is_librarys_container
from terra.tf import private_names as tfi

_UNKNOWN = object()
_ANSWERS = {True: object(), False: object()}


class Places(Handler):
    """The part of the Observer for places, which names of attributes, keys of items and the like tell apart."""

    __slots__ = ()

    def is_place(self, it, key):
        """Whether an item counts like an attribute: of a list or dict that is the same in each run."""
        if type(it) not in WITH_ITEMS or self.run.born.has(it) or id(it) in self.run.given or it in self.run.opaque:
            return False
        if type(it) is list:
            return type(key) is int and 0 <= key < len(it)
        if type(it) is CellType:
            return True
        return type(key) in SCALARS and key == key and all(type(k) in SCALARS for k in it)  # others may be compared with it

    def is_read_anew(self, owner, name):
        """Whether what is there is a number, or an object, that was another one each time, and the run has not set it, but for adding to it. (The numbers that a step itself finds may count as arguments.)"""
        if self.run.reason is not None:
            return False
        effect = self.run.effects.get((id(owner), name))
        if effect is not None:
            return self.run.recording is None and effect.added is not None and can_be_told(held_in(owner, name))
        program = self.run.runner.program
        kind = type(owner)
        if tfi.is_to_be_used(kind):  # which stands for another object
            return False
        is_class = issubclass(kind, type)
        space = attributes_of(owner, kind) if kind not in WITH_ITEMS and not has_slots_only(kind) and not is_class else owner
        if space is None:
            return False
        if (id(owner), name) in program.counters:
            return self.run.recording is None and can_be_told(held_in(owner, name))
        return (id(space), name) in program.varying and may_be_replaced(it := held_in(owner, name)) and not (self.run.recording is not None and (type(it) is int or type(it) in KINDS) and not is_class)

    def class_with(self, it, name):
        """Returns the class of which an attribute is read, of itself or of the object `it`, if that is one that the run has set, a counter or another one each time; else None."""
        program, kind = self.run.runner.program, type(it)
        if name not in program.names_of_classes or is_librarys(kind):
            return None
        of_class = issubclass(kind, type)
        attributes = None if of_class else attributes_of(it, kind)
        searched = it.__mro__ if of_class else kind.__mro__
        cls = next((cls for cls in searched if name in vars(cls)), None)
        if cls is None or (not of_class and (type(attributes) is not dict or name in attributes or not self.run.classes.is_looked_up_plainly(kind))):
            return None
        if (id(cls), name) not in program.varying and (id(cls), name) not in program.counters and (id(cls), name) not in self.run.effects:
            return None
        self.run.reads.bases(searched[0])
        for before in searched[:searched.index(cls)]:
            self.run.reads.absent(vars(before), name, before)
        if not of_class and not self.run.born.has(it):
            self.run.reads.object(it, kind, attributes)
            self.run.reads.absent(attributes, name)
        return cls

    def take(self, it, key):
        """Such an item is read."""
        if self.has_set(it, key) or (id(it), key) in self.run.carried:
            return
        if type(it) is CellType:
            self.run.reads.cell(it)
        elif type(it) is dict and key not in it:
            self.run.contents.look_into(it)
        else:
            self.run.reads.entry(it, key, it[key])

    def finds(self, state):
        """A call is skipped that counts what this attribute or item holds as an argument."""
        owner, name = state
        if type(owner) in WITH_ITEMS:
            self.take(owner, name)
        elif not self.has_set(owner, name) and state.key not in self.run.carried:
            self.run.reads.lookup(vars(owner), name)

    def counter(self, owner, name):
        """A number that stands for the counter that is there, which is handed on as it is; None if there is none, or it cannot be told from others."""
        if self.run.reason is not None or self.run.recording is None or (id(owner), name) not in self.run.runner.program.counters or not self._varies(owner, name):
            return None
        value, effect = held_in(owner, name), self.run.effects.get((id(owner), name))
        if type(value) is not int or not self.may_set(owner, name):
            return None
        if type(owner) in WITH_ITEMS:
            self.run.contents.keys(owner)
        return self.run.dynamic.counter(owner, name, value, 0 if effect is None else effect.added)

    def named(self, it, owner, name):
        """A variable that is not the function's own, but which it sets as well, is read: the global one of this name among these, or what a cell holds."""
        number = self.counter(owner, name)
        if number is not None:
            return number
        if self.is_read_anew(owner, name):
            return self.run.opaque.reads(owner, name)
        if self.run.reason is None:
            if not self.is_place(owner, name) or (type(owner) is dict and name not in owner):
                self.run.impure(f"reads the global variable {name}, which is kept elsewhere")
            self.take(owner, name)
        return it

    def sets_name(self, it, owner, name):
        """Such a variable is set."""
        if self.run.reason is None:
            if self.is_place(owner, name):
                self.run.changes.sets(owner, name)
            else:
                self.run.impure("sets a variable that is no place")
        return it

    @staticmethod
    def globals():
        """The global variables of the function that asks."""
        return sys._getframe(1).f_globals

    def imports(self, name, level, names):
        """A module is imported, or these names of it."""
        if self.run.reason is not None:
            return
        if level:
            name = importlib.util.resolve_name("." * level + (name or ""), self.globals_of_caller().get("__package__") or "")
        module = sys.modules.get(name)
        if module is None:
            self.run.impure(f"imports {name}, for the first time", True)
            return
        self.run.reads.entry(vars(builtins), "__import__", builtins.__import__)
        self.run.reads.entry(sys.modules, name, module)
        for part in names:
            if part in vars(module):
                self.run.reads.entry(vars(module), part, vars(module)[part])
            elif f"{name}.{part}" in sys.modules:
                self.run.reads.entry(sys.modules, f"{name}.{part}", sys.modules[f"{name}.{part}"])
            else:
                self.run.impure(f"imports {part} from {name}, which makes it when it is asked")

    @staticmethod
    def globals_of_caller():
        return sys._getframe(2).f_globals

    def has_set(self, owner, name):
        """Whether the run itself has set the attribute or item that it reads."""
        effect = self.run.effects.get((id(owner), name))
        if effect is None:
            return False
        if effect.added is not None:
            self.run.impure("looks at what it adds to")
        elif is_librarys_container(type(effect.value())) and self._has_wrapped(effect.value()):
            self.run.fresh(effect.value())
        return True

    def _has_wrapped(self, container):
        """Returns whether the framework has made a list or dict, as an attribute is set, of one that the run has made."""
        held = getattr(container, "_storage", None)
        return not self.run.reads.holds_any([id(container)]) and (held is None or self.run.born.has(held))

    @ours.calling
    def question(self, function, names, owners):
        """Returns what `function` is to tell of the attributes of these names, or of items (where there is a list instead, see `Observed._place`), or of numbers (None), is asked: an
        answer if one of them counts, or varies, else None. Nothing but the answer is evaluated twice, as it would be if some code of the user's ran here."""
        asked = self._what_varies(names, owners)
        if asked is None:
            return None
        if any(id(value) in self.run.dynamic.numbers for value, _ in asked):
            try:
                answer = None if any(place is not None for _, place in asked) else self.run.operands.answer(function, [value for value, _ in asked])
            except ArithmeticError:
                return None
            return None if answer is None else _ANSWERS[answer]
        parts = []
        for value, place in asked:
            if place is None:
                self.run.deferred.looked_at(value)
            parts.append((None, None, value) if place is None else place)
        try:
            answer = function(*[value for value, _ in asked])
        except ArithmeticError:
            return None
        self.run.reads.asked(StatePredicate(function, parts), None, answer)
        return _ANSWERS[answer]

    def counted(self, function, names, owners):
        """Asks what arithmetic gives of places: a list with what `function` gives, if that is a float, else None."""
        asked = self._what_varies(names, owners)
        is_late = asked is not None and any(place is None and self.run.deferred.knows(x) for x, place in asked)  # then it is calculated step by step
        value = None if asked is None or is_late else self.run.dynamic.counts(function, asked)
        if value is None:
            return None
        self.run.operands.look_at_others([x for x, place in asked if place is None])
        return [value]

    def _what_varies(self, names, owners):
        """[(value, None, or its place as in a `StatePredicate`)] of what is asked about; None if none of it counts or varies, or it cannot be told."""
        if self.run.reason is not None or not (self.run.runner.program.counters or self.run.dynamic.places or self.run.dynamic.integers or self.run.dynamic.numbers):
            return None
        places = list(map(self._place_of, owners, names))
        if None in places or not any(self._varies(owner, name) for owner, name in places):
            return None
        found = []
        for owner, name in places:
            place = None
            if name is not None and self._varies(owner, name):
                if (id(owner), name) in self.run.runner.program.counters:
                    if not self.may_set(owner, name):
                        return None
                elif type(owner) in WITH_ITEMS:
                    self.run.contents.keys(owner)
                else:
                    self.run.reads.object(owner, type(owner), vars(owner))
                    self.run.classes.found(type(owner).__mro__, name, vars(owner))
                effect = self.run.effects.get((id(owner), name))
                value = held_in(owner, name)
                if type(value) is float and self.run.recording is None:  # which the step may have set before, to another number each time
                    return None
                place = owner, name, None if type(value) is float else 0 if effect is None else effect.added
            elif name is None:
                value = owner
            else:
                value = self._value_at(owner, name) if type(owner) in WITH_ITEMS else getattr(self.run.attributes.owner(owner, name), name, None)
            if type(value) is not int and type(value) is not float:
                return None
            found.append((value, place))
        return found

    def _varies(self, owner, name):
        """Whether what is there, an attribute or item, is a counter, or a number that varies, and the run has not set it."""
        if name is None:
            return id(owner) in self.run.dynamic.numbers
        effect = self.run.effects.get((id(owner), name))
        if effect is not None and effect.added is None:
            return False
        return (id(owner), name) in self.run.runner.program.counters or self.run.dynamic.is_place(space_of(owner), name)

    def _value_at(self, owner, name):
        """The item of a list or dict, or what a cell holds, which is read."""
        self.run.contents.keys(owner)
        self.take(owner, name)
        return held_in(owner, name)

    def _place_of(self, owner, path):
        """(object, name) of an attribute that is looked up without code of the user's, or (container, key) of such an item, or (number, None); None if it is none of these."""
        if type(path) is list:
            *names, key = path
            container = self.looked_up(owner, names[0]) if names else owner
            if not self.is_place(container, key) or held_in(container, key, _UNKNOWN) is _UNKNOWN:
                return None
            if names:
                self.run.attributes.attribute(owner, names[0])
            return container, key
        if path is not None and self.looked_up(owner, path) is _UNKNOWN:
            return None
        return path is not None and self.class_with(owner, path) or owner, path

    def looked_up(self, owner, name):
        """The attribute of an object, if no code of the user's runs for it."""
        if issubclass(type(owner), type):
            return vars(owner).get(name, _UNKNOWN) if is_plain_metaclass(type(owner)) else _UNKNOWN
        if type(owner) in TENSORS or tfi.is_variable(owner) or not self._keeps_plainly(owner):
            return _UNKNOWN
        found = defined(type(owner), name)
        if found is not None and defined(type(found), "__get__") is not None:
            return _UNKNOWN
        attributes = getattr(owner, "__dict__", None)
        return attributes.get(name, found) if type(attributes) is dict else _UNKNOWN

    def _keeps_plainly(self, owner):
        """Whether an object has its attributes where others have them: that of a module is looked up there first."""
        return type(owner) is ModuleType or self.run.classes.is_looked_up_plainly(type(owner))

    def answer(self, it):
        """Returns what came of a question, or of evaluating what was asked."""
        return True if it is _ANSWERS[True] else False if it is _ANSWERS[False] else it

    def may_set(self, owner, name):
        return self.is_place(owner, name) or (type(owner) not in WITH_ITEMS and self.run.classes.may_set(owner, name))
