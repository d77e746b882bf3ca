"""Objects of the program's classes that unknown code gives, or that are found in the place of others: what their classes do is observed, and what they hold is unknown.

A record that looked something up in the class of such an object holds where the class is the same again.
"""

import functools
import operator
import weakref
from types import FunctionType, MethodType
from typing import Any, Callable

from terra.location.null_observer import OPERATORS
from terra.runtime.fast_forward.purity.facts.attribute_lookup import attributes_of
from terra.runtime.fast_forward.purity.facts.plain_classes import is_made_by_runs
from terra.runtime.fast_forward.purity.facts.program_code import is_programs_class
from terra.runtime.fast_forward.sources.effects import WITH_ITEMS, space_of
from terra.runtime.fast_forward.sources.expectations import is_plain, OBJECT, OfClass, Same
from terra.runtime.fast_forward.sources.opaque_calls import Held, OpaqueCall
from terra.runtime.tensors.object_kinds import defined
from terra.transform import policy

_NAMES = {function: name for name, function in OPERATORS.items()}
_OTHERS = frozenset("__init__ __new__ __init_subclass__ __set_name__ __repr__ __str__ __format__ __enter__ __exit__ __call__ __getattr__ __setattr__ __delattr__ __del__ __post_init__ __reduce__ __getstate__ __setstate__ __dir__".split())
_ASKED = {len: "__len__", bool: "__bool__", operator.getitem: "__getitem__", list: "__iter__", operator.contains: "__contains__"}


class Instances:
    """The part of a run's opaque calls for these."""

    def __init__(self, run: Any):
        self._of = weakref.ref(run)
        self.replaced: list[tuple[int, Any]] = []  # places where the run has read objects anew
        self.constants: dict[int, Any] = {}  # id -> object that a call gives each time
        self._varying: set[int] = set()  # ids of such exceptions
        self.in_vain = False  # whether the run has come to nothing because a call cannot be an opaque one
        self.left: dict[int, Any] = {}  # id -> object of a plain class that the run has made, and leaves in others, or gives

    @property
    def _run(self) -> Any:
        return self._of()

    def note_error(self, error: BaseException, varies: bool) -> None:
        """A call has made an exception; whether of what is another one each time."""
        (self._varying.add if varies else self._varying.discard)(id(error))

    def varies(self, error: BaseException) -> bool:
        """Returns whether a call has made this exception of what is another one each time."""
        return id(error) in self._varying

    def is_one(self, it: Any) -> bool:
        """Returns whether unknown code has given it, and it is known neither by its value nor by what it is."""
        return self._run.opaque.number_of(it) is not None and not is_plain(it)

    def leaves(self, *values: Any) -> None:
        """Notes the objects of plain classes among what the run leaves, or gives, and within these."""
        run = self._run
        for it in values:
            kind = type(it)
            if kind in (tuple, list, dict):
                self.leaves(*(it.values() if kind is dict else it))
            elif run.born.has(it) and is_made_by_runs(kind):
                if id(it) in self.left:
                    self.had_better_be_made(kind)
                    run.impure(f"leaves an object of type {kind.__name__} twice", True)
                    return
                self.left[id(it)] = it
                self.leaves(*vars(it).values())

    def had_better_be_made(self, kind: type) -> None:
        """Objects of a class of the program's had better be made by calls of unknown code from now on."""
        if is_made_by_runs(kind):
            self._run.runner.program.made_by_calls.add(kind)

    def conclude(self, is_pure: bool = False) -> None:
        """The run has come to an end, or to nothing."""
        run = self._run
        if is_pure or self.in_vain:
            run.runner.program.note_replaced(self.replaced, self.in_vain)
        self.replaced.clear()
        for number, it in run.opaque.found_elsewhere(run.reads.ids() | run.given) if is_pure else ():
            if run.opaque.calls[number].expected in (OBJECT, OfClass(type(it))):
                run.opaque.calls[number].expected = Same(it)  # as the program may mean either

    def pins(self, it: Any) -> bool:
        """Returns whether it is such an object, whose class has to be the same again from now on."""
        opaque = self._run.opaque
        number = opaque.number_of(it)
        if number is None:
            return False
        call = opaque.calls[number]
        if call.expected is OBJECT and is_programs_class(type(it)):
            call.expected = OfClass(type(it))
        return type(call.expected) is OfClass

    def form(self, callee: Any, args: tuple) -> Callable | None:
        """Returns what to call in place of unknown code, to which such an object is given, or that is one; None if nothing of its class is called."""
        run = self._run
        if self.pins(callee):
            return run.calls.special(callee, "__call__")
        if not args:
            return None
        if callee is getattr and len(args) == 2:
            return self._attribute(*args) if self.pins(args[0]) else None
        if callee in _ASKED and self.pins(args[0]):
            method = run.calls.special(args[0], _ASKED[callee])
            if method is not None and callee is not list:
                return lambda _, *others: method(*others)
            if method is None and callee is not operator.contains and not any(map(_has_operators, args[1:])) and type(defined(type(args[0]), _ASKED[callee])) is not FunctionType:
                return lambda *_: run.opaque.make(callee, args, {}, f"calls {callee.__name__}", as_a_whole=True)
        if callee in _NAMES and any(map(self.pins, args)):
            value = run.objects.operator_of_own(_NAMES[callee], *args)
            if value is not None:
                return lambda *_: value
        if (callee in _ASKED or callee in _NAMES) and not any(map(_has_operators, args)):
            return lambda *_: run.opaque.make(callee, args, {}, f"calls {callee.__name__}", as_a_whole=True)
        return None

    def _attribute(self, it: Any, name: str) -> Callable | None:
        """Returns what gives an attribute of such an object; None if that is looked up in a way of its own."""
        run, kind = self._run, type(it)
        if not run.classes.is_looked_up_plainly(kind):
            return None
        found = defined(kind, name)
        run.classes.found(kind.__mro__, name, {name: None})
        held, how = attributes_of(it, kind), type(found)
        if how is property:
            return (lambda *_: run.calls.user_function(found.fget, None)(it)) if type(found.fget) is FunctionType and policy.may_know_program(found.fget) else None
        getter, is_set = defined(how, "__get__"), defined(how, "__set__") is not None
        if type(held) is dict and name not in held and not is_set:
            self._asks(_lacks, it, name)
            if found is None:
                getter = defined(kind, "__getattr__")
                run.classes.found(kind.__mro__, "__getattr__", {"__getattr__": None})
                return (lambda *_: run.calls.user_function(getter, getter)(it, name)) if type(getter) is FunctionType and policy.may_know_program(getter) else None
            if how is FunctionType:
                return lambda *_: MethodType(found, it)
            if how is staticmethod or how is classmethod:
                return lambda *_: found.__get__(it, kind)
        if type(getter) is FunctionType and (is_set or type(held) is not dict or name not in held):
            return (lambda *_: run.calls.user_function(getter, getter)(found, it, kind)) if policy.may_know_program(getter) else None
        return lambda *_: self._asks(getattr, it, name)

    def setter(self, it: Any) -> Callable | None:
        """Returns what to call in place of the method that sets an item, if the class of an object defines that in Python."""
        return self._run.calls.special(it, "__setitem__")

    def _asks(self, function: Callable, it: Any, name: str) -> Any:
        return self._run.opaque.make(function, (it, name), {}, f"asks for {name}", as_a_whole=True)


def place_of(owner: Any, name: Any) -> tuple:
    """Returns the key of a call that reads a number, or an object, which is another one each time."""
    return "reads", id(space_of(owner)), name


def let_set_again(calls: list[OpaqueCall], owner: Any, name: Any, index: int) -> bool:
    """Returns whether none of these calls may have seen the effect on this place, of this number among those of the run, which is had later then."""
    later = [call for call in calls if call.n_effects > index]
    if not all(call.key != place_of(owner, name) and (call.is_blind or looks_elsewhere(call, owner, name)) for call in later):
        return False
    for call in later:
        call.n_effects -= 1
    return True


def looks_elsewhere(call: OpaqueCall, owner: Any, name: Any) -> bool:
    """Returns whether a call only reads something, and that is not the attribute or item of this name, of whatever object."""
    function, args, _ = call.parts
    if type(function) is not Held:
        return False
    if function.value is getattr or function.value is _lacks:
        return len(args) == 2 and type(args[1]) is Held and args[1].value != name
    return type(owner) not in WITH_ITEMS and (function.value is operator.is_ or (function.value is operator.getitem and call.keeps_guards))


@functools.lru_cache(1000)
def _may_operate(kind: type) -> bool:
    return any(type(found) is FunctionType and name.startswith("__") and name not in _OTHERS and policy.may_know_program(found)
               for cls in kind.__mro__ if is_programs_class(cls) for name, found in vars(cls).items())


def _has_operators(it: Any) -> bool:
    """Returns whether the class of an object says in Python what operators do."""
    return type(it) in (list, tuple, set, frozenset, dict) or _may_operate(type(it))


def _lacks(it: Any, name: str) -> bool:
    """Returns whether an object has no attribute of its own of this name."""
    return name not in vars(it)
