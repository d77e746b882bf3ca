"""The observer: finds out whether a run of user code did nothing but compute.

It is shown the operands of the observed form of a function (see `terra.transform.observed`) while that runs, and gives them back as they are. A run is *pure* if

* all calls of the framework's were skipped (see `fast_forward`), so that nothing in the framework changed either, and each was the same as before;
* it called nothing else but functions of the user's, observed in the same way, and builtins without side effects;
* it changed no object but the containers that it had made itself.

Everything that it read of the world around it is noted in `Reads`: if the reads hold, and the arguments are the same, another run would do the same.
Whatever is not known to be harmless makes a run impure; that costs speed only.
"""

import dis
import sys
from types import CellType, ModuleType

import numpy as np

from terra.runtime import added_losses, fast_calls, guards, lasting, location, opschema, user_layers
from terra.runtime import internals as tfi
from terra.runtime.effects import CONTENTS, WITH_ITEMS, Carried, Effect, Question, held_in, holds_tensors, kind_of, so_far, space_of
from terra.runtime.kinds import LISTS, PLAIN, TENSORS, defined, is_frameworks, is_librarys_container, is_record, makes_named_tuples, plain
from terra.runtime.late_reads import LateReads
from terra.runtime.observed_attributes import Attributes
from terra.runtime.observed_builtins import Builtins
from terra.runtime.observed_calls import Calls
from terra.runtime.observed_operands import Operands
from terra.runtime.reads import Reads
from terra.runtime.regions import SCALARS, Unskippable, logits_of, mask_of
from terra.runtime.tensor import TerraTensor
from terra.runtime.unobserved import OPERATORS
from terra.runtime.varying import NOTHING_VARIES, Becomes
from terra.transform import convert


_UNKNOWN = object()
_COUNTING = frozenset(["Add", "Sub"])
_ANSWERS = {True: object(), False: object()}


class Observer(Attributes, Calls, Builtins, Operands):
    """Observes one run."""

    def __init__(self, runner, given, varying=None, covered=None, inputs=None, carried=()):
        self.runner = runner
        self._inputs = inputs  # the tensors among the arguments, if all of these are known
        self.covered = covered  # what is guarded of the object of the framework's whose call is recorded, if that is why the run is observed
        self.start = len(runner.log)
        self.recording = None  # of the run, if that may make live calls
        self._varying = NOTHING_VARIES if varying is None else varying  # arrays, and numbers, that are not to matter
        self.reads = Reads(self._varying.places)
        self.reason = None  # why the run is impure
        self.passing = False  # whether that may be different the next time
        self.jumped = []  # (region, the effects until then: see `effects.so_far`) of calls that were jumped over
        self.entered = 0  # calls of the framework's that were not
        self._skipped = []  # (place in the log, length) of them, and of what the operators of tensors have issued
        self._before = self.start  # how long the log was before the operator at hand
        self._born = {}  # id -> container, iterator, function or tape that the run has made
        self.exchanged = []  # functions that were called while they had other code than their own: what they read is still to be noted
        self.late = LateReads(self._varying)
        self.losses = {}  # id -> (list of the losses that a layer adds, what it must hold before), of those that the run may have changed; see `added_losses`
        self.added = []  # in the end, of those that it has changed
        self.effects = {}  # (id of an object, name) -> Effect, of the attributes that the run has set; and what it has appended to lists
        self.carried = carried  # (id of an object, name) of the attributes that count as arguments: see `effects.Carried`
        self.used = set()  # ids of the tensors that operators, and calls of the framework's, were given
        self.carries = []  # `Carried`, of those that should
        self.masks = {}  # id of a tensor from outside of the step that something of the framework's was given -> (it, its mask, and its logits, then)
        self._keyed = {}  # id -> dict or set whose keys were looked at
        self._given = given  # ids of the containers among the arguments
        self._settings = {root: guards.settings(root) for root in (None, "keras", "tf_keras")}

    def __enter__(self):
        if not fast_calls.operators_are_original():
            self.impure("uses operators that were replaced")
        self._outer = location.tls.observer, self.runner.observer
        location.tls.observer = self.runner.observer = self
        return self

    def __exit__(self, *exc):
        location.tls.observer, self.runner.observer = self._outer

    def run(self, called, args, kwargs):
        """The result of calling the user's function or, wrapped, layer `called`."""
        with self:
            if type(called) is user_layers.Wrapped:
                return self._layer(called.layer, called, *args, **kwargs)
            return self._user_function(called, called)(*args, **kwargs)

    def finish(self, result):
        """The run gave `result`: the sealed reads. Raises Unskippable if it was not pure."""
        if self.reason is None:
            node = self._issued()
            if node is not None:
                self.impure(f"issues {node.op_type} in a call that was not skipped", True, node.location)
            else:
                seen = set()
                self._check_result(result, seen)
                for effect in self.effects.values():
                    if not effect.is_there:
                        self.impure(f"sets {effect.name}, which is kept elsewhere")
                    elif effect.added is None and effect.value() is not result:
                        self._check_result(effect.value(), seen)
        needed = self._varying.why_needed() or (self.late.looks_at_numbers() and "looks at a number that varies")
        if needed:
            self.impure(needed)
        return self._finish()

    def finish_inside(self):
        """The same for a run inside of a call of the framework's that is recorded as a whole."""
        if self.effects:
            self.impure("sets an attribute")
        return self._finish()

    def _finish(self):
        if self.reason is None and any(type(x) is TerraTensor and x._owner is self.runner for x in self.reads.values()):
            self.impure("keeps a tensor in an object")
        for region, before in self.jumped:
            self.reads.guard(region.guard, before)
            for variable in region.accessed:
                self.reads.variable(variable)
        if self.masks:
            known = self.reads.ids()
            for key, (tensor, mask, logits) in self.masks.items():
                if key in known:
                    self.reads.asked(mask_of, tensor, mask)
                    self.reads.asked(logits_of, tensor, logits)
            self.masks.clear()
        for held, needed in self.losses.values():
            if self.covered is not None:
                if id(held) not in self.covered.added_losses:
                    self.impure("adds losses to a layer from elsewhere")
            elif needed:
                self.impure("adds losses to those of this step")
            elif needed is not None and not held:
                self.reads.contents(held)
            else:
                self.added.append((held, needed))
        for effect in self.effects.values():
            if not effect.was_read(self.reads):
                continue
            if effect.is_relative:
                self.impure("looks at what it adds to")
            elif self.reads.has_contents(space_of(effect.owner)) and not lasting.is_left(effect.owner, effect.name) \
                    and not guards.equal((effect.value(),), (effect.before,)):
                self.impure("changes what the framework, or a look at all of it, finds there", True)  # it found another thing before
            elif self.reason is None and _carries(self.reads.attribute(effect.owner, effect.name), effect.value()):
                self.carries.append(Carried(effect.owner, effect.name))
        if self.carries:
            self.impure("sets an attribute that holds tensors which it has read", True)
        self._born.clear()
        self._given.clear()
        if self.reason is not None:
            raise Unskippable
        self.reads.seal(self._settings)
        return self.reads

    def give(self, container):
        """The framework hands a list or dict to the user's code."""
        if id(container) not in self._born:
            self._given.add(id(container))

    def gives(self, it):
        """`it` goes into an operation: whether it is an array of the step's whose contents then need not matter."""
        given = type(it) is np.ndarray and it in self._varying
        if given:
            self._varying.given += 1
        return given

    def calls(self, function):
        """The user's `function` was called."""
        self.reads.function(function, _globals_read(function.__code__), convert.names_shown(function))

    def _issued(self):
        """The first operation that the run issued itself, or None. What it only read decides which of several regions a jump takes, or is late."""
        log, k = self.runner.log, self.start
        for at, length in [*self._skipped, (len(log), 0)]:
            while k < at and log[k][0].category == opschema.FETCH:
                k += 1
            if at != k:
                break
            k += length
        return log[k][0] if k < len(log) else None

    def impure(self, reason, passing=False, where=None):
        """The run does something that another could not leave out."""
        if self.reason is None:
            line = (where or location.tls.cursor.current).line()
            self.reason = f"{reason} ({line})" if line else reason
            self.passing = passing

    def ids_of_containers(self):
        """The ids of what was read, containers among it, and of the containers that the run was given."""
        return self.reads.ids() | self._given

    def note_jump(self, region):
        self.jumped.append((region, so_far(self.effects)))
        if region.effects:  # of a function of the user's: these are not jumped over in an observed run
            self.impure("calls a function that was skipped and sets attributes")
        for held, needed, _ in region.losses:
            self.losses.setdefault(id(held), (held, needed))
        self._skipped.append((len(self.runner.log), len(region.entries)))

    def adds_loss(self, layer):
        """The layer will add a loss."""
        held = added_losses.list_of(vars(layer))
        needed = added_losses.identify(self.runner, held)
        if needed is None and id(held) not in self.losses:
            self.impure("adds losses to those of another step")
        self.reads.entry(vars(layer), "_losses", held)
        self.losses.setdefault(id(held), (held, needed))

    def empties_losses(self, layer):
        """The losses of the layer, and of its parts, will be forgotten."""
        for part in layer._flatten_layers():
            held = added_losses.list_of(vars(part))
            self.losses.setdefault(id(held), (held, None if held else ()))

    def _check_result(self, value, seen):
        kind = type(value)
        if kind is tuple or kind is list or kind is dict:
            if kind is not tuple:
                if id(value) not in self._born or id(value) in seen:
                    self.impure("returns a container that it has not made, or one twice")
                    return
                seen.add(id(value))
            for x in value.values() if kind is dict else value:
                self._check_result(x, seen)
        elif is_record(kind):
            if id(value) not in self._born or id(value) in seen:
                self.impure(f"returns an object of type {kind.__name__} that it has not made, or one twice")
                return
            seen.add(id(value))
            for x in vars(value).values():
                self._check_result(x, seen)
        elif is_librarys_container(kind):  # as an attribute of a layer: it has made it of one that it was given
            held = getattr(value, "_storage", None)
            for x in (held,) if type(held) is list else plain(value).values() if isinstance(value, dict) else value:
                self._check_result(x, seen)
        elif issubclass(kind, tuple):
            if not makes_named_tuples(kind) or not self.is_named_tuple(kind) or getattr(value, "__dict__", None):
                self.impure(f"returns an object of type {kind.__name__}")
                return
            for x in value:
                self._check_result(x, seen)

    # -- operands --------------------------------------------------------------------------------------------------------------

    def fresh(self, it):
        self._born[id(it)] = it
        return it

    def result(self, it):
        """`it` is what an operator or a slice gave: what it issued follows from its operands."""
        if type(it) is list:
            self._born[id(it)] = it
        return self.item(it)

    def item(self, it):
        """`it` is an item of something, which was there before."""
        length = len(self.runner.log)
        if length != self._before and (not self._skipped or self._skipped[-1][0] < self._before):
            self._skipped.append((self._before, length - self._before))
        self._before = length
        return it

    def formatted(self, it):
        self.late.looked_at(it)
        if type(it) not in SCALARS:
            self.impure(f"formats an object of type {type(it).__name__}")
        return it

    def container(self, it):
        """An item or slice of `it` is taken."""
        self._before = len(self.runner.log)
        self.late.looked_at(it)
        if type(it) not in PLAIN and type(it) not in TENSORS:
            self._look_into(it)
        return it

    iterated = container

    def mapping(self, it):
        """An item or slice of `it` is taken, or it is merged into a dict."""
        self._keys(it)
        return self.container(it)

    items = mapping

    def subscript(self, it, key):
        """The item `key`, a constant, of `it` is taken."""
        if self.reason is not None or not self._is_place(it, key):
            return self.mapping(it)
        self._before = len(self.runner.log)
        self._keys(it)
        self._take(it, key)
        return it

    def _is_place(self, it, key):
        """Whether an item counts like an attribute: of a list or dict that is the same in each run."""
        if type(it) not in WITH_ITEMS or id(it) in self._born or id(it) in self._given:
            return False
        if type(it) is list:
            return type(key) is int and 0 <= key < len(it)
        if type(it) is CellType:
            return True
        return (type(key) is int or type(key) is str) and all(type(k) in SCALARS for k in it)  # others may be compared with it

    def _take(self, it, key):
        """Such an item is read."""
        if self.has_set(it, key) or (id(it), key) in self.carried:
            return
        if type(it) is CellType:
            self.reads.cell(it)
        elif type(it) is dict and key not in it:
            self._look_into(it)
        else:
            self.reads.entry(it, key, it[key])

    def global_name(self, it, name):
        """The global variable `name`, which the function sets as well, is read."""
        return self._named(it, sys._getframe(1).f_globals, name)

    def cell_name(self, it, cell):
        """A variable of a function around, which the function sets as well, is read."""
        return self._named(it, cell, CONTENTS)

    def _named(self, it, owner, name):
        if self.reason is None:
            if not self._is_place(owner, name) or (type(owner) is dict and name not in owner):
                self.impure(f"reads the global variable {name}, which is kept elsewhere")
            self._take(owner, name)
        return it

    def set_global(self, it, name):
        """The global variable `name` is set."""
        return self._set_name(it, sys._getframe(1).f_globals, name)

    def set_cell(self, it, cell):
        """A variable of a function around is set."""
        return self._set_name(it, cell, CONTENTS)

    def _set_name(self, it, owner, name):
        if self.reason is None:
            if self._is_place(owner, name):
                self._sets(owner, name)
            else:
                self.impure("sets a variable that is no place")
        return it

    @staticmethod
    def globals():
        """The global variables of the function that asks."""
        return sys._getframe(1).f_globals

    def has_set(self, owner, name):
        """Whether the run itself has set the attribute or item that it reads."""
        effect = self.effects.get((id(owner), name))
        if effect is None:
            return False
        if effect.added is not None:
            self.impure("looks at what it adds to")
        elif is_librarys_container(type(effect.value())):
            self.fresh(effect.value())
        return True

    def unpacked(self, it, shape):
        """`it` is unpacked into targets of this structure."""
        self.iterated(it)
        if type(it) is tuple or type(it) is list:
            items = list(it)
            if "*" in shape:
                k = shape.index("*")
                items[k:max(k, len(items) - (len(shape) - k - 1))] = [None]
            for x, part in zip(items, shape):
                if type(part) is tuple:
                    self.unpacked(x, part)
        elif any(type(part) is tuple for part in shape):
            self.impure(f"unpacks an object of type {type(it).__name__}")
        return it

    def unpacking(self, it, shape):
        """The items of `it` will be unpacked."""
        self.iterated(it)
        return self.fresh(map(lambda x: self.unpacked(x, shape), it))

    def _look_into(self, it):
        """What a container holds is used."""
        self.late.looked_at(it)
        if self.reason is not None or id(it) in self._born or id(it) in self._given:
            return
        kind = type(it)
        if kind is tuple or kind in PLAIN or kind in TENSORS:
            return
        if self.is_named_tuple(kind):
            self.note_class(it)
            return
        if kind in LISTS or (isinstance(it, (list, dict)) and guards.is_librarys(kind)):
            held = self.reads.contents(it)
            if any(type(x) is TerraTensor and x._owner is self.runner for x in held):
                self.impure("keeps a tensor in a container")
        elif kind is np.ndarray:
            if it in self._varying:
                self.impure("looks into an array that is an argument")
            try:
                self.reads.array(it)
            except Unskippable:
                self.impure("uses a large array")
        elif not tfi.is_variable(it):
            self.impure(f"looks into an object of type {kind.__name__}")

    # -- changes ---------------------------------------------------------------------------------------------------------------

    def stored(self, it, sliced=False, value=_UNKNOWN, key=_UNKNOWN):
        """An item or a slice of `it` is set, to this value, or deleted. `key`: of the item, if that is a constant."""
        self.late.looked_at(it)
        kind = type(it)
        if self.reason is None and self._is_place(it, key):
            self._keys(it)
            self._sets(it, key)
            return it
        if id(it) not in self._born or kind not in (list, dict, np.ndarray):
            self.impure("changes a container that it has not made")
        elif (kind is np.ndarray or sliced) and value is _UNKNOWN:
            self.impure("sets items that are not followed")
        elif kind is np.ndarray:
            self._taken_apart(value)
        elif sliced:
            self.iterated(value)
        self._keys(it)
        return it

    def raised(self, it):
        """`raise it`"""
        self.impure("raises an exception")
        return it

    def assigned(self, it, name):
        """The attribute `name` of `it` is set."""
        if name == "learning_rate" and not self._is_over() and guards.is_librarys(type(it)):
            return _Settable(self, it)
        lasting.note_left(it, name)
        if self._sets_record(it):
            return it
        if self.reason is None and self.may_set(it, name):
            self._sets(it, name)
        return it

    def set_rate(self, optimizer, value):
        """The learning rate of an optimizer of the framework's is set: Keras' assigns the value to a variable."""
        setter = getattr(defined(type(optimizer), "learning_rate"), "fset", None)
        variable = vars(optimizer).get("_learning_rate")
        if getattr(setter, "__module__", None) != "keras.src.optimizers.base_optimizer" or not is_frameworks(setter) or not tfi.is_variable(variable) \
                or not (type(value) is float or type(value) in TENSORS):
            self.impure("sets an attribute")
            optimizer.learning_rate = value
            return
        self.reads.object(optimizer, type(optimizer), vars(optimizer))
        self._found(type(optimizer).__mro__, "learning_rate", vars(optimizer))
        self.reads.entry(vars(optimizer), "_learning_rate", variable)
        self.builtin(variable.assign)(value)

    def _sets(self, owner, name, added=None):
        """An attribute or item is about to be set."""
        known = self.effects.get((id(owner), name))
        self.effects[id(owner), name] = Effect(owner, name, added, before=held_in(owner, name) if known is None else known.before)

    def _sets_record(self, it):
        """Whether an attribute is set of an instance of a data class that the run has made."""
        return id(it) in self._born and is_record(type(it)) and defined(type(it), "__setattr__") is object.__setattr__

    def removed(self, it, name):
        self.impure("deletes an attribute")
        return it

    def changed(self, it):
        self.impure("changes a slice in place")
        return it

    def question(self, function, names, owners):
        """What `function` is to tell of the attributes of these names, or of items (where there is a list instead, see `Observed._place`), or of numbers (None), is asked: an
        answer if one of them counts, or varies, else None. Nothing but the answer is evaluated twice, as it would be if some code of the user's ran here."""
        asked = self._what_varies(names, owners)
        if asked is None:
            return None
        parts = []
        for value, place in asked:
            if place is None:
                self.late.looked_at(value)
            parts.append((None, None, value) if place is None else place)
        try:
            answer = function(*[value for value, _ in asked])
        except ArithmeticError:
            return None
        self.reads.asked(Question(function, parts), None, answer)
        return _ANSWERS[answer]

    def counted(self, function, names, owners):
        """The same for arithmetic: a list with what `function` gives, if that is a float, else None."""
        asked = self._what_varies(names, owners)
        value = None if asked is None else self._varying.counts(function, asked)
        if value is None:
            return None
        for x, place in asked:
            if place is None and id(x) not in self._varying.numbers:
                self.late.looked_at(x)
        return [value]

    def _what_varies(self, names, owners):
        """[(value, None, or its place as in a `Question`)] of what is asked about; None if none of it counts or varies, or it cannot be told."""
        if self.reason is not None or not (self.runner.program.counters or self._varying.places or self._varying.integers):
            return None
        places = list(map(self._place_of, owners, names))
        if None in places or not any(self._varies(owner, name) for owner, name in places):
            return None
        found = []
        for owner, name in places:
            place = None
            if self._varies(owner, name):
                if (id(owner), name) in self.runner.program.counters:
                    if not self._may_set(owner, name):
                        return None
                elif type(owner) in WITH_ITEMS:
                    self._keys(owner)
                else:
                    self.reads.object(owner, type(owner), vars(owner))
                    self._found(type(owner).__mro__, name, vars(owner))
                effect = self.effects.get((id(owner), name))
                value = held_in(owner, name)
                place = owner, name, None if type(value) is float else 0 if effect is None else effect.added
            elif name is None:
                value = owner
            else:
                value = self._value_at(owner, name) if type(owner) in WITH_ITEMS else getattr(self.owner(owner, name), name, None)
            if type(value) is not int and type(value) is not float:
                return None
            found.append((value, place))
        return found

    def _varies(self, owner, name):
        """Whether what is there, an attribute or item, is a counter, or a number that varies, and the run has not set it."""
        effect = self.effects.get((id(owner), name))
        if name is None or (effect is not None and effect.added is None):
            return False
        return (id(owner), name) in self.runner.program.counters or self._varying.is_place(space_of(owner), name)

    def _value_at(self, owner, name):
        """The item of a list or dict, or what a cell holds, which is read."""
        self._keys(owner)
        self._take(owner, name)
        return held_in(owner, name)

    def _place_of(self, owner, path):
        """(object, name) of an attribute that is looked up without code of the user's, or (container, key) of such an item, or (number, None); None if it is none of these."""
        if type(path) is list:
            *names, key = path
            container = self._looked_up(owner, names[0]) if names else owner
            if not self._is_place(container, key) or held_in(container, key, _UNKNOWN) is _UNKNOWN:
                return None
            if names:
                self._attribute(owner, names[0])
            return container, key
        return (owner, path) if path is None or self._looked_up(owner, path) is not _UNKNOWN else None

    def _looked_up(self, owner, name):
        """The attribute of an object, if no code of the user's runs for it."""
        if type(owner) in TENSORS or tfi.is_variable(owner) or not self._keeps_plainly(owner):
            return _UNKNOWN
        found = defined(type(owner), name)
        if found is not None and defined(type(found), "__get__") is not None:
            return _UNKNOWN
        attributes = getattr(owner, "__dict__", None)
        return attributes.get(name, found) if type(attributes) is dict else _UNKNOWN

    def _keeps_plainly(self, owner):
        """Whether an object has its attributes where others have them: that of a module is looked up there first."""
        return type(owner) is ModuleType or self._is_looked_up_plainly(type(owner))

    def answer(self, it):
        """What came of a question, or of evaluating what was asked."""
        return True if it is _ANSWERS[True] else False if it is _ANSWERS[False] else it

    def inplace_attribute(self, it, owner, name, operator):
        """`owner.name += it` and the like (also of a global variable, and of one of a function around). A counter is not read: what it is afterwards does not matter to the run."""
        if type(owner) in WITH_ITEMS:
            return it if self.reason is not None else self._inplace_place(it, owner, name, operator)
        lasting.note_left(owner, name)
        if self.reason is not None:
            return it
        if self._sets_record(owner):
            return self.inplace(it, vars(owner).get(name), operator)
        return self._inplace_place(it, owner, name, operator)

    def _may_set(self, owner, name):
        return self._is_place(owner, name) or (type(owner) not in WITH_ITEMS and self.may_set(owner, name))

    def _inplace_place(self, it, owner, name, operator):
        """The same of an attribute or item."""
        if not self._may_set(owner, name):
            return it
        known, held = self.effects.get((id(owner), name)), held_in(owner, name)
        if type(held) is int and type(it) is int and operator in _COUNTING and (known is None or known.added is not None):
            self.reads.asked(kind_of(name), owner, int)
            added = it if operator == "Add" else -it
            self.runner.program.counters.add((id(owner), name))
            self._sets(owner, name, added + (known.added if known is not None else 0))
            return it
        if type(owner) in WITH_ITEMS:
            self._keys(owner)
            self._take(owner, name)
        else:
            self._attribute(owner, name)
        it = self.inplace(it, held, operator)
        self._sets(owner, name)
        return it

    def inplace(self, it, held, operator):
        """`held += it` and the like."""
        if self._varying.numbers:
            value = self.calculates(OPERATORS[operator], (held, it))
            if value is not None:
                return Becomes(value)
            it = self._varying.beside(operator, held, it)[1]
        kind = type(held)
        self.late.looked_at(held)
        if kind is list or kind is set or kind is dict:
            self.stored(held, value=it) if kind is not set else self.impure("changes a set")
            if kind is dict:
                return self._pairs(it)
            self.iterated(it)
        elif kind is str:
            self.printed(it)  # by %=
        elif kind in PLAIN or kind in TENSORS or kind is tuple or isinstance(held, np.generic):
            self.operand(it)
        else:
            self.impure(f"changes an object of type {kind.__name__}")
        return it

    def augmented(self, it):
        """An item of `it` is changed in place: see `inplace_item`."""
        self.late.looked_at(it)
        return it

    def inplace_item(self, it, container, key, operator):
        """`container[key] += it` and the like."""
        if self.reason is not None:
            return it
        if self._is_place(container, key) and (type(container) is list or key in container):
            return self._inplace_place(it, container, key, operator)
        self.stored(container, value=None)  # (the value is shown itself)
        if type(container) is not np.ndarray:
            return self.inplace(it, container[key], operator)
        self._taken_apart(it)
        return it

    def _taken_apart(self, it):
        """numpy makes numbers of `it`, to store them."""
        self.late.held.clear()
        self._element(it)
        self.values(it)


class _Settable:
    """Stands in for an optimizer whose learning rate is set."""

    __slots__ = ("_observer", "_optimizer")

    def __init__(self, observer, optimizer):
        self._observer, self._optimizer = observer, optimizer

    def _set(self, value):
        self._observer.set_rate(self._optimizer, value)

    learning_rate = property(None, _set)


def _carries(before, after):
    """Whether an attribute that was read and then set is likely to hold tensors that the next run reads."""
    return holds_tensors(before) or (before is None and holds_tensors(after))


_globals_known = {}  # id of a code object -> (it, names)


def _globals_read(code):
    """The names that a code object, or one nested in it, looks up among the globals."""
    known = _globals_known.get(id(code))
    if known is None:
        names = {i.argval for c in convert.codes_within(code) for i in dis.get_instructions(c) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        known = _globals_known[id(code)] = code, tuple(names)
    return known[1]
