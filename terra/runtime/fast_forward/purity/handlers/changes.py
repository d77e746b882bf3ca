"""The observer's part for changes: of attributes, items and variables, which are effects of a run (see `effects`), and of containers, which only its own may be."""

import functools
import operator as operators
import sys
import threading
from types import FunctionType, ModuleType

import numpy as np

from terra import ours
from terra.frameworks import keras
from terra.location.null_observer import OPERATORS
from terra.runtime.fast_forward.cache.call_records import Instance
from terra.runtime.fast_forward.guards import attribute_filter
from terra.runtime.fast_forward.purity.facts.attribute_lookup import is_set_by_class
from terra.runtime.fast_forward.purity.facts.exceptions import is_own_error, is_plain_error
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sources.effects import ABSENT, WITH_ITEMS, Append, Effect, Removal, held_in, keep, kind_of
from terra.runtime.fast_forward.sources.dynamic_values import Becomes
from terra.runtime.fast_forward.sources.number_sources import KINDS
from terra.runtime.fast_forward.purity.unknown import skipped_calls
from terra.runtime.fast_forward.purity.unknown.instances import let_set_again
from terra.runtime.fast_forward.purity.unknown.stand_ins import OpaqueChange, OpaqueItem, OwnAttribute, SetByCall
from terra.runtime.fast_forward.sources.opaque_calls import Result
from terra.runtime.interpreter import tracebacks
from terra.runtime.interpreter.integers import natural
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, defined, is_frameworks_function, is_librarys, is_librarys_container, may_be_made
from terra.tf import private_names as tfi
from terra.transform import policy

_UNKNOWN = object()
_CALCULATED = frozenset([int, float, str, bytes, tuple, complex])
_COUNTING = frozenset(["Add", "Sub"])


class Changes(Handler):
    """The part of the Observer for changes."""

    __slots__ = ()

    def stored(self, it, sliced=False, value=_UNKNOWN, key=_UNKNOWN):
        """An item or a slice of `it` is set, to this value, or deleted. `key`: of the item, if that is a constant."""
        self.run.deferred.looked_at(it)
        kind = type(it)
        if self.run.reason is None and self.run.places.is_place(it, key):
            self.run.contents.keys(it)
            self.sets(it, key)
            return it
        if self.run.reason is None and not self.run.born.has(it) and not is_librarys(kind) and kind not in TENSORS:
            return OpaqueChange(self.run.opaque, it)
        if not self.run.born.has(it) or not (kind in (list, dict, np.ndarray) or is_librarys_container(kind) or may_be_made(kind)):
            self.run.impure("changes a container that it has not made")
        elif (kind is np.ndarray or sliced) and value is _UNKNOWN:
            self.run.impure("sets items that are not followed")
        elif kind is np.ndarray:
            self._taken_apart(value)
        elif sliced:
            self.run.contents.gone_through(value)
        self.run.contents.keys(it)
        return it

    def raised(self, it):
        """`raise it`"""
        if not self.run.opaque.raises(it) and not self.run.has_caught(it) and not (self.run.born.has(it) and is_own_error(type(it))) and not (isinstance(it, type) and it.__init__ is Exception.__init__ and it.__new__ is Exception.__new__):
            self.run.impure("raises an exception")
        return it

    def caught(self, error):
        """An exception is caught; None if it has no name."""
        tracebacks.clean(sys.exc_info()[1])  # the program may print where it was raised
        if error is None:
            return error
        self.run.caught.pop(id(error), None)
        if self.run.reason is None and is_plain_error(error) and not self.run.opaque.instances.varies(error) and not any(
                self.run.opaque.is_another_one(x) or self.run.deferred.knows(x) or id(x) in self.run.dynamic.numbers for x in (*error.args, *vars(error).values())):
            self.run.classes.note_whole(type(error))
            self.run.caught[id(error)] = error.args  # (not the exception, whose traceback holds frames)
        return error

    def assigned(self, it, name):
        """The attribute `name` of `it` is set."""
        if name == "learning_rate" and not self.run.is_over() and is_librarys(type(it)):
            return SetByCall(functools.partial(self.set_rate, it))
        if self.run.reason is None and isinstance(it, threading.local) and type(it) is not threading.local:
            return SetByCall(lambda value: self.run.opaque.make(setattr, (it, name, value), {}, "sets an attribute"))
        setter = self._setter(it, name)
        if setter is not None:
            return SetByCall(setter)
        if self.run.reason is None and it in self.run.opaque:
            return SetByCall(lambda value: self.run.opaque.make(setattr, (it, name, value), {}, "sets an attribute of what unknown code gives"))
        setter = self.run.objects.setter_of_container(it)
        if setter is not None:
            return SetByCall(functools.partial(self.run.calls.user_function(setter, setter), it, name))
        if name == "__dict__" and self.run.objects.is_own_object(it):
            return SetByCall(functools.partial(self._set_space, it))
        attribute_filter.note_user_attribute(it, name)
        if self.run.objects.sets_own(it, name) or self.run.objects.sets_items(it):
            return it
        why = self.run.attempted(self.run.classes.may_set, it, name) if self.run.reason is None else ""
        if why is None:
            self.sets(it, name)
        elif why and (type(it) is ModuleType or defined(type(it), "__setattr__") is object.__setattr__):
            return SetByCall(lambda value: self.run.opaque.make(setattr, (it, name, value), {}, why))
        elif why:
            self.run.impure(why)
        return it

    def _setter(self, it, name):
        """Returns what sets an attribute of `it` if code of the program's does it, of a property, another descriptor or a class that has its own way to set attributes; else None."""
        kind = type(it)
        found, setter = defined(kind, name), defined(kind, "__setattr__")
        if self.run.reason is not None or not self.run.classes.is_looked_up_plainly(kind):
            return None
        if type(setter) is FunctionType:
            given = (it, name)
        elif setter is object.__setattr__:
            setter = found.fset if type(found) is property else defined(type(found), "__set__")
            given = (it,) if type(found) is property else (found, it)
        if type(setter) is not FunctionType or not policy.may_know_program(setter):
            return None
        self.run.classes.note_class(it)
        for special in (name, "__setattr__"):
            self.run.classes.found(kind.__mro__, special, {special: None})
        if len(given) == 2 and given[0] is found:
            self.run.reads.object(found, type(found))
            self.run.classes.found(type(found).__mro__, "__set__", None)
        return functools.partial(self.run.calls.user_function(setter, setter), *given)

    def _set_space(self, it, space):
        """It is set where an object that the run has made keeps its attributes: a dict may keep them itself."""
        if space is not it:
            self.run.impure("sets __dict__")
        it.__dict__ = space

    def set_rate(self, optimizer, value):
        """The learning rate of an optimizer of the framework's is set: Keras' assigns the value to a variable."""
        setter = getattr(defined(type(optimizer), "learning_rate"), "fset", None)
        variable = vars(optimizer).get("_learning_rate")
        if getattr(setter, "__module__", None) != keras.BASE_OPTIMIZER or not is_frameworks_function(setter) or not tfi.is_variable(variable) \
                or not (type(value) in KINDS or type(value) in TENSORS):
            self.run.impure("sets an attribute")
            optimizer.learning_rate = value
            return
        self.run.reads.object(optimizer, type(optimizer), vars(optimizer))
        self.run.classes.found(type(optimizer).__mro__, "learning_rate", vars(optimizer))
        self.run.reads.entry(vars(optimizer), "_learning_rate", variable)
        self.run.calls.builtin(variable.assign)(value)

    def sets(self, owner, name, added=None, before=_UNKNOWN):
        """An attribute or item is about to be set; or it was, where there was `before`."""
        effects, key = self.run.effects, (id(owner), name)
        known, since = effects.get(key), 0
        if before is _UNKNOWN:
            before = held_in(owner, name)
        if known is not None and let_set_again(self.run.opaque.calls, owner, name, [*effects].index(key)):
            since = known.since
        elif known is not None:
            keep(effects, known, before)
            since = known.added or 0
        effects.pop(key, None)  # it comes last
        effects[key] = Effect(owner, name, added, before=before if known is None else known.before, since=since)

    def _removes(self, owner, name, before=_UNKNOWN):
        """An attribute is about to be deleted; or it was, where there was `before`."""
        self.sets(owner, name, None, before)
        if self.run.reason is None:
            self.run.effects[id(owner), name] = Removal(owner, name, before=self.run.effects[id(owner), name].before)

    def take_over_effects(self, record, calls, values, before, external):
        """A call was skipped that has these effects, which have set `values` where there was `before`, and has made these opaque calls: [(call, what it was made of, what it gave)]; it was
        given the tensors `external` from outside."""
        done, first, start = 0, len(self.run.opaque.calls), len(self.run.runner.log) - len(record.entries)
        for call, made_of, value in calls:
            for k in range(done, call.n_effects):
                self._take_effect(record.effects[k], values[k], before[k])
            done = max(done, call.n_effects)
            skipped_calls.take_over(self.run, call, made_of, value, start)
        for k in range(done, len(record.effects)):
            self._take_effect(record.effects[k], values[k], before[k])
        for place, of, dtype in record.late_feeds if self.run.reason is None else ():
            self.run.dynamic.take_over(external[place], Result(first + of.index), dtype)

    def _take_effect(self, effect, value, before):
        if self.run.reason is not None:
            return
        self.run.framework.bear(value)
        self._bear_instances(effect.template, value)
        if type(effect) is Append:
            self._append(effect.owner, value)
        elif type(effect) is Removal:
            self._removes(effect.owner, effect.name, before)
        else:
            known = self.run.effects.get(effect.key)
            counts = effect.added is not None and (known is None or known.added is not None)
            self.sets(effect.owner, effect.name, effect.added + (known.added if known is not None else 0) if counts else None, before)
            if effect.was is not ABSENT and self.run.reason is None:
                self.run.effects[effect.key].was = value

    def _bear_instances(self, template, value):
        """The objects in `value` that were made of a template are the run's own."""
        kind = type(template)
        if kind in (Instance, list, dict):
            self.run.born.add(value)
        if kind is Instance:
            template, value = template.attributes, vars(value)
        if kind in (list, tuple, dict, Instance):
            for key in template if type(template) is dict else range(len(template)):
                self._bear_instances(template[key], value[key])

    def take_over(self, effects, born):
        """A run inside of this one has had these effects, and has made these containers."""
        if self.run.reason is not None:
            return
        for it in born:
            self.run.born.add(it)
        for key, effect in effects.items():
            known = self.run.effects.get(key)
            if effect.is_kept:
                self.run.impure(f"makes a call that sets {effect.label} twice, and calls unknown code in between", True)
                return
            if type(effect) is Append:
                effect.name = ("appended", len(self.run.effects))
                self.run.effects[effect.key] = effect
            elif known is None:
                self.run.effects[key] = effect
            elif type(effect) is Removal:
                self._removes(effect.owner, effect.name, effect.before)
            else:
                self.sets(effect.owner, effect.name, None if effect.added is None or known.added is None else effect.added + known.added, effect.before)

    @ours.calling
    def appended(self, callee, /, *args, **kwargs):
        """Append to a list or deque that was there before."""
        callee(*map(natural, args), **kwargs)
        self._append(callee.__self__, args[0])

    @ours.calling
    def filled(self, callee, items, /):
        """Append to a list that the block only fills, or extend it."""
        if id(callee.__self__.container) in self.run.given:
            self.run.impure("changes a container that it is given")
        if callee.__name__ == "append":
            self.appended(callee, items)
            return
        for item in self.run.contents.iterated(items):
            callee.__self__.append(self.run.item(item))
            self._append(callee.__self__, item)

    def _append(self, owner, item):
        effect = Append(owner, ("appended", len(self.run.effects)), None, item=item)
        self.run.effects[effect.key] = effect

    def set_attribute(self, it, name, value, /):
        """Call `setattr`."""
        if type(name) is not str:
            self.run.impure("calls setattr")
        setattr(self.assigned(it, name), name, value)

    def owner_to_change(self, it, name):
        """An attribute of `it` is changed in place: returns what to do that with, where it is set in a way of its own."""
        if self.run.reason is not None or self.run.born.has(it) or type(it) in TENSORS or is_librarys(type(it)):
            return it
        return OwnAttribute(self.run, it) if it in self.run.opaque or is_set_by_class(type(it), name) else it

    def removed(self, it, name):
        """The attribute `name` of `it` is deleted."""
        if self.run.reason is not None or self.run.objects.sets_own(it, name):
            return it
        if self.run.born.has(it) or name not in (vars(it) if type(getattr(it, "__dict__", None)) is dict else ()) or not self.run.classes.may_set(it, name):
            self.run.impure("deletes an attribute")
            return it
        deleter = self.run.classes.found(type(it).__mro__, "__delattr__", None)
        if deleter is not object.__delattr__ and not is_frameworks_function(deleter):
            self.run.impure("deletes an attribute")
            return it
        if (id(it), name) not in self.run.effects:
            self.run.attributes.attribute(it, name)  # it has to be there
        self._removes(it, name)
        return it

    def changed(self, it):
        self.run.impure("changes a slice in place")
        return it

    def inplace_attribute(self, it, owner, name, operator):
        """`owner.name += it` and the like (also of a global variable, and of one of a function around). A counter is not read: what it is afterwards does not matter to the run."""
        if type(owner) is OwnAttribute:
            held = owner._terra_value
            return self._inplace_opaque(it, held, operator) if held in self.run.opaque else self.inplace(it, held, operator)
        if type(owner) in WITH_ITEMS:
            return it if self.run.reason is not None else self._inplace_place(it, owner, name, operator)
        attribute_filter.note_user_attribute(owner, name)
        if self.run.reason is not None:
            return it
        if self.run.objects.sets_own(owner, name):
            return self.inplace(it, vars(owner).get(name), operator)
        if self.run.objects.sets_items(owner):
            return self.inplace(it, owner.get(name), operator)
        return self._inplace_place(it, owner, name, operator)

    def _inplace_place(self, it, owner, name, operator):
        """Returns what `owner.name += it` is given, for an attribute or item."""
        if not self.run.places.may_set(owner, name):
            return it
        known, held = self.run.effects.get((id(owner), name)), held_in(owner, name)
        varies = self.run.opaque.is_another_one(it) or self.run.deferred.knows(it)
        if type(held) is int and type(it) is int and not varies and operator in _COUNTING and (known is None or known.added is not None):
            self.run.reads.asked(kind_of(name), owner, int)
            added = it if operator == "Add" else -it
            self.run.runner.program.counters.add((id(owner), name))
            self.sets(owner, name, added + (known.added if known is not None else 0))
            return it
        if self.run.places.is_read_anew(owner, name):
            it = Becomes(self.run.opaque.operated(OPERATORS[operator], self.run.opaque.reads(owner, name), it))
            self.sets(owner, name)
            return it
        if type(owner) in WITH_ITEMS:
            self.run.contents.keys(owner)
            self.run.places.take(owner, name)
        else:
            self.run.attributes.attribute(owner, name)
        it = self.inplace(it, held, operator)
        if type(held) is not list and not (type(held) is np.ndarray and type(it) is Becomes):  # which stay where they are
            self.sets(owner, name)
        return it

    def inplace(self, it, held, operator):
        """`held += it` and the like."""
        value = self.run.operands.calculates(OPERATORS[operator], (held, it))
        if value is None and self.run.reason is None and type(held) in _CALCULATED and type(it) not in TENSORS and (held in self.run.opaque or it in self.run.opaque):
            value = self.run.opaque.operated(OPERATORS[operator], held, it)
        if value is not None:
            return Becomes(value)
        it = self.run.beside(operator, it, held)
        kind = type(held)
        self.run.deferred.looked_at(held)
        if kind is list and not self.run.born.has(held) and operator == "Add" and self.run.reason is None:
            self.run.opaque.make(list.extend, (held, it), {}, "changes a container that it has not made")
            return []
        if kind is np.ndarray and not self.run.born.has(held) and self.run.reason is None:
            self.run.opaque.containers.change(held)
            return Becomes(self.run.opaque.make(_in_place(operator), (held, it), {}, "changes an array in place"))
        if kind is list or kind is set or kind is dict:
            if kind is set or self.stored(held, value=it) is not held:
                self.run.impure(f"changes a {kind.__name__} in place")
            if kind is dict:
                return self.run.contents.pairs(it)
            self.run.contents.gone_through(it)
        elif kind is str:
            self.run.operands.printed(it)  # by %=
        elif kind in PLAIN or kind in TENSORS or kind is tuple or isinstance(held, np.generic):
            self.run.operands.operand(it)
        else:
            return self._inplace_opaque(it, held, operator)
        return it

    def _inplace_opaque(self, it, held, operator):
        """`held += it` and the like, where unknown code gave `held`, or its class has operators of its own."""
        if hasattr(type(held), f"__i{OPERATORS[operator].__name__.rstrip('_')}__"):
            self.run.impure(f"changes an object of type {type(held).__name__}")
            return it
        value = self.run.objects.operator_of_own(operator, held, it)
        return Becomes(self.run.opaque.operated(OPERATORS[operator], held, it, reason=f"changes an object of type {type(held).__name__}") if value is None else value)

    def augmented(self, it):
        """An item of `it` is changed in place: see `inplace_item`."""
        self.run.deferred.looked_at(it)
        return self.run.contents.augmented(it)

    def inplace_item(self, it, container, key, operator):
        """`container[key] += it` and the like."""
        if type(container) is OpaqueItem and self.run.reason is None:
            return self._inplace_opaque(it, container.value, operator)
        container = self.run.contents.behind(container)
        if self.run.reason is not None:
            return it
        if self.run.places.is_place(container, key) and (type(container) is list or key in container):
            return self._inplace_place(it, container, key, operator)
        if self.stored(container, value=None) is not container:  # (the value is shown itself)
            self.run.impure("changes an item of a container that it has not made")
        if type(container) is not np.ndarray:
            return self.inplace(it, container[key], operator)
        self._taken_apart(it)
        return it

    def _taken_apart(self, it):
        """numpy makes numbers of `it`, to store them."""
        self.run.deferred.all_looked_at()
        self.run.builtins.element(it)
        self.run.operands.values(it)


def _in_place(operator):
    """Returns the function that applies an operator in place."""
    return getattr(operators, f"i{OPERATORS[operator].__name__.rstrip('_')}")
