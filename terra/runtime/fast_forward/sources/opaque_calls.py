"""Opaque calls: calls of code that nothing is known of, which are really made when the call around them is skipped.

An opaque call stands in a record with what it is given, and with what it gave when that was recorded. A call that is to be skipped makes its opaque calls first, in the order of the program, each
after the effects before it (see `effects`). If each gives what it did, as far as the program has looked at that, the record holds. If one does not, the effects are taken back, and the code
around runs, observed: calls that were made already are not made again there, but give what they gave (`outcomes`).

What an opaque call gives, or raises, is compared if it is a number, a text or the like (see `expectations`). Any other object is opaque as well: whatever the program does with it (reads an attribute, calls it, looks for an
item) is an opaque call in turn.
"""

import functools
import threading
from types import CodeType, FunctionType, MethodType
from typing import Any, Callable, Iterable, NamedTuple

import numpy as np

from terra import ours
from terra.runtime.fast_forward.sources.built_arguments import BuiltArguments, Change, paths_of, repeat
from terra.runtime.fast_forward.sources.effects import NumbersBefore, put_contents
from terra.runtime.fast_forward.sources.expectations import END, OfKind, is_met, may_be_another, may_be_own, renewed
from terra.runtime.fast_forward.sources.number_sources import KINDS
from terra.runtime.tensors.comparing import SCALARS, Unskippable, scalar
from terra.runtime.tensors.object_kinds import PLAIN


class Held:
    """Stands for an object itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def is_like(self, other: "Held") -> bool:
        a, b = self.value, other.value
        return a is b or a == b if type(a) is type(b) and (type(a) in _COMPARED or isinstance(a, Behind)) else a is b


class Behind:
    """Base of what writes something outside of the program when it is called, and neither sees nor changes what that keeps: it may come behind all that a step does, and does not fail where it has not."""

    __slots__ = ()
    writes_summaries = False


class Result(NamedTuple):
    """Stands for what the opaque call of this number gives."""

    index: int


class Outcome(NamedTuple):
    """Holds what a call that was made has given, or raised; `left`: functions that leave what it has left where that was taken back, for what runs before it to find what was there before;
    `changes`: what it has done to lists and dicts that were made for it."""

    function: Any
    value: Any
    error: BaseException | None
    left: list
    changes: list[Change]

    @classmethod
    def of(cls, function: Any, value: Any, error: BaseException | None = None) -> "Outcome":
        """Returns that of a call which has just been made."""
        return cls(function, value, error, [], [])

    @ours.calling
    def give(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def leave(self) -> None:
        """The call is taken for one that is made now."""
        for change in self.left:
            change()
        self.left.clear()


class _Touch:
    """Stands, among the effects that are had, for a call that is given a container which an effect before it has changed."""

    __slots__ = ("container", "outcome")

    def __init__(self, container: Any, outcome: Outcome):
        self.container, self.outcome = container, outcome

    def undo(self, before: Any) -> None:
        """Takes back what the call has done to the container, which held `before`. (The call is not made again: see `Outcome.leave`.)"""
        self.outcome.left.append(functools.partial(put_contents, self.container, self.container.copy()))
        put_contents(self.container, before)


class _Outcomes(threading.local):
    """Outcomes of calls that were made for a record that did not hold, in the order of the program, until the code that runs instead has taken them up.

    Calls that may as well be made again (`OpaqueCall.is_blind`) are not among them: not all records of a step make them.
    """

    def __init__(self) -> None:
        self.pending: list[Outcome] = []

    def take(self, function: Any, given: tuple = ()) -> Outcome | None:
        """Returns the next one, if it is that of a call of `function`, which then has changed what it changed, also of what it is `given`; None if there is none."""
        if self.pending and self.pending[0].function == function:
            outcome = self.pending.pop(0)
            outcome.leave()
            repeat(outcome.changes, given)
            return outcome
        self.pending.clear()  # the program has gone another way
        return None


outcomes = _Outcomes()
_COMPARED = frozenset([*PLAIN, MethodType, type(print), type([].append), type("".__len__)])  # of which equal ones do the same


class OpaqueCall:
    """One such call.

    `parts`: (function, list of arguments, dict of keyword arguments), which `Recording` makes a template of; `expected` identifies what it gave, or is ANYTHING or `OfKind`; `n_effects`: how many effects of the
    run come before it; `key` tells where it stands in the program; `is_blind`: whether it changes nothing that is compared, and sees nothing that the run changes (but
    for one that reads a number which varies), so that it may be made twice;
    `keeps_guards`: whether it does the former, though it is not to be made twice; `constant`: the parts, if these are the same objects each time, else None;
    `touches`: the containers that it is given, and that effects before it change; `built`: where lists and dicts stand that are made for it (see `built_arguments`); `place`: how many operations of the run, or
    of the record, come before it.
    """

    __slots__ = ("parts", "expected", "n_effects", "key", "caller", "is_blind", "keeps_guards", "constant", "touches", "built", "place")

    def __init__(self, parts: Any, expected: Any, n_effects: int, key: Any, caller: "Caller | None", is_blind: bool, keeps_guards: bool, touches: Any = (), place: int = 0):
        self.parts, self.expected, self.n_effects, self.key, self.caller, self.is_blind, self.keeps_guards = parts, expected, n_effects, key, caller, is_blind, keeps_guards
        self.constant: tuple[Any, list, dict] | None = None
        self.touches, self.place, self.built = touches, place, ()

    def described(self, template: Any, start: int = 0) -> "OpaqueCall":
        """Returns the call as a record keeps it that begins `start` operations after the run."""
        described = OpaqueCall(template, self.expected, self.n_effects, self.key, self.caller, self.is_blind, self.keeps_guards, self.touches, self.place - start)
        function, args, kwargs = self.parts
        described.built = self.built or (() if self.is_blind else paths_of((*args, *kwargs.values())))
        if self.constant is not None:
            described.constant = self.constant
        elif all(type(part) is Held for part in (function, *args, *kwargs.values())):
            described.constant = function.value, [part.value for part in args], {name: part.value for name, part in kwargs.items()}
        return described

    def assumes_a_number(self) -> bool:
        """Returns whether it is to give a certain number, text or tuple of these, of a kind of which another one can be told from it (see `may_be_own`)."""
        if type(self.expected) is not tuple or len(self.expected) < 2:
            return False
        if self.expected[0] is tuple:
            return True
        kind, value = self.expected[:2]
        return kind in KINDS or (isinstance(kind, type) and issubclass(kind, np.number)) or (type(value) is kind and may_be_own(value))

    @property
    def is_behind(self) -> bool:
        """Whether it may come behind all else."""
        function = self.parts[0]
        return type(function) is Held and isinstance(function.value, Behind)

    def is_like(self, other: "OpaqueCall", same: Callable) -> bool:
        return (self.expected, self.n_effects) == (other.expected, other.n_effects) and same(self.parts, other.parts)


def make_all(calls: list[OpaqueCall], effects: list, build: Callable, results: list, unsteady: set, note: Callable | None = None, first: int = 0,
             n_had: int = 0, still_holds: Callable[[], bool] | None = None, changes: Callable[[], Iterable] = tuple,
             changed: dict | None = None, left: list | None = None) -> tuple[int, Any] | None:
    """Makes the opaque calls of a record, with the effects before each, which `build(template)` makes of their templates.

    `still_holds`: asked after each call that may change what is guarded, of which numbers count as before the effects (`changed`, see `NumbersBefore`); `changes` gives what has changed of that, as `GuardSet.changes` does: where the code around runs instead, it finds that
    unchanged up to the call. `left` gets what the effects have left. `first`: how many outcomes calls before these have; `n_had`: how many effects were had before.

    Returns (how many effects were had, a function that takes them back), or None if a call did not give what was expected; then no effect was had, and the outcomes are pending.
    `results` gets what the calls have given, `unsteady` the key of a call that gave another number or text than was expected: so it will again; `note`, if given, is told of each call that was made: (call, parts, what it gave).
    """
    had: list = []  # (an effect, or a `_Touch`; what there was before)
    numbers = NumbersBefore({} if changed is None else changed)

    def take_back() -> None:
        for effect, before in reversed(had):
            effect.undo(before)

    pending, n = outcomes.pending, first
    try:
        for call in calls:
            while n_had < call.n_effects:
                effect = effects[n_had]
                value = build(effect.template)
                had.append((effect, effect.state()))
                effect.apply(value)
                if left is not None:
                    left.append(value)
                numbers.note(*had[-1])
                n_had += 1
            held = [(it, it.copy()) for it in call.touches]
            function, args, kwargs = parts = call.constant or build(call.parts)
            built = BuiltArguments(call.built, (*args, *kwargs.values())) if call.built else None
            if not call.is_blind and n < len(pending) and pending[n].function == function:
                outcome = pending[n]
                outcome.leave()
            else:
                outcome = _made(function, call.caller, args, kwargs)
                if not call.is_blind:
                    del pending[n:]
                    pending.append(outcome)
            had += [(_Touch(it, outcome), contents) for it, contents in held]
            n += not call.is_blind
            if built is not None:
                outcome.changes.extend(built.changes())  # (nothing has, where the call was made already)
            is_another = not is_met(call.expected, outcome.value, outcome.error, results)
            if is_another and may_be_another(outcome.value):
                unsteady.add(call.key)
            if is_another or outcome.changes or not (call.is_blind or call.keeps_guards or still_holds is None or numbers.ask(still_holds)):
                take_back()
                if n > 0:
                    pending[n - 1].left.extend(taken_back(changes()))
                return None
            value = renewed(outcome.value) if note is not None and type(call.expected) is OfKind else outcome.value
            results.append(value)
            if note is not None:
                note(call, parts, value)
    except BaseException:
        take_back()
        raise
    return n_had, take_back


def taken_back(changes: Iterable) -> list[Callable]:
    """Takes back these changes, (what undoes one, what does it again), and returns what does them again."""
    found = list(changes)
    for undo, _ in found:
        undo()
    return [redo for _, redo in found]


def made_for_good(calls: list[OpaqueCall]) -> None:
    """The record held: nobody will ask for the outcomes of its calls."""
    del outcomes.pending[:with_outcomes(calls)]


def with_outcomes(calls: list[OpaqueCall]) -> int:
    """Returns how many of these calls may not be made again."""
    return sum(not call.is_blind for call in calls)


def iterator_of(it: Any) -> Any:
    return iter(it)


def following(iterator: Any) -> Any:
    """Returns what an iterator gives next, or END."""
    return next(iterator, END)


def numpy_of(tensor: Any) -> Any:
    return tensor.numpy()


def constant_part(part: Any) -> tuple:
    """Returns what identifies a number, text or tuple of these that a call is given. Raises Unskippable for anything else."""
    if type(part) is tuple:
        return tuple(map(constant_part, part))
    if type(part) is not Held or type(part.value) not in SCALARS:
        raise Unskippable
    return scalar(part.value)


def _made(function: Callable, caller: "Caller | None", args: list, kwargs: dict) -> Outcome:
    try:
        return Outcome.of(function, function(*args, **kwargs) if caller is None else caller.call(function, args, kwargs))
    except Exception as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # the first frame is this one
        return Outcome.of(function, None, error)


class Caller:
    """The places in the program, and in libraries, from which a call is made, innermost first: what looks for its caller (`logging`, `warnings`) finds these files, lines and functions."""

    __slots__ = ("_functions",)

    def __init__(self, places: list[tuple[CodeType, int, dict]]):
        self._functions = [FunctionType(_calling(code.co_filename, code.co_name, line), space) for code, line, space in places]

    @ours.calling
    def call(self, function: Callable, args: list, kwargs: dict) -> Any:
        for around in self._functions[:-1]:
            function, args, kwargs = around, (function, args, kwargs), {}
        return self._functions[-1](function, args, kwargs)


@functools.lru_cache(1000)
def _calling(filename: str, name: str, line: int) -> CodeType:
    module = compile("def call(function, args, kwargs): return function(*args, **kwargs)", filename, "exec")
    return ours.stand_in(next(x for x in module.co_consts if type(x) is CodeType).replace(co_firstlineno=line, co_name=name))
