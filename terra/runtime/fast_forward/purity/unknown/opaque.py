"""The observer's part for code that nothing is known of: its calls are made again where the run is skipped, see `opaque_calls`."""

import functools
import io
import operator
import sys
import weakref
from collections.abc import Coroutine, Generator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any, Callable

import numpy as np

from terra import ours
from terra.frameworks import effect_free_calls
from terra.location import location
from terra.location.null_observer import NULL_OBSERVER
from terra.runtime.fast_forward.purity.facts.bytecode import is_called_next, is_dropped
from terra.runtime.fast_forward.purity.facts.exceptions import is_plain_error
from terra.runtime.fast_forward.purity.facts.program_code import callers_looked_up, is_refused, runs_program, where_it_stands
from terra.runtime.fast_forward.purity.unknown.callbacks import may_call_back
from terra.runtime.fast_forward.purity.unknown.calling import Before, Clock, given_to, make_call, make_call_once
from terra.runtime.fast_forward.purity.unknown.changed import ChangedContainers
from terra.runtime.fast_forward.purity.unknown.given import Given, HandedOn, Seen, comes_late, may_see
from terra.runtime.fast_forward.purity.unknown.instances import Instances, place_of
from terra.runtime.fast_forward.purity.unknown.steadiness import is_of_many, is_unsteady
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.effects import CONTENTS, changed_containers, space_of
from terra.runtime.fast_forward.sources.expectations import ANYTHING, error_key, identity, is_plain, is_steady, may_be_another, may_be_own, OBJECT, OfArray, OfKind, Raises, renewed, Same, SameAs
from terra.runtime.fast_forward.sources.opaque_calls import Caller, Held, OpaqueCall, Result, constant_part, outcomes
from terra.runtime.fast_forward.sources.number_sources import KINDS, is_value
from terra.runtime.interpreter import frames
from terra.runtime.interpreter.integers import is_shared
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.runtime.tensors.object_kinds import TENSORS, is_frameworks_function, is_tapes
from terra.runtime.tensors.tensor import holds_numbers
from terra.tf.private import composites
from terra.tf.random_state import random_state

_MOST_CALLS = 1000  # in one run


class Opaque:
    """The opaque calls of one run."""

    def __init__(self, run: Any):
        self._of = weakref.ref(run)
        self.calls: list[OpaqueCall] = []
        self.instances = Instances(run)
        self._handled = sys.exc_info()[1]  # the exception that was handled when the run began
        self.containers = ChangedContainers(run.runner.program.changed_containers, self)
        self._last: tuple[int, CodeType, int] | None = None  # id of what the last call of the program's has given, and where that stands
        self._raising: int | None = None  # id of the exception that the last call has made
        self.draws, self.handed_on, self.seen = False, HandedOn(), Seen()  # whether some draw random numbers; what they are given; what they may have seen
        self.files: list[tuple[weakref.ref, Any]] = []  # (weak reference, where it was opened) of those that were not closed by a call since: they are closed when they go, which would be later where the run is skipped
        self._known: dict[int, tuple[Any, int]] = {}  # id -> (a weak reference to an object that a call has given, or it itself; the call's number)
        self.unsteady: dict[int, Any] = run.deferred.unsteady  # id -> number or text that a call gives, another one each time

    @property
    def _run(self) -> Any:
        return self._of()

    def number_of(self, it: Any) -> int | None:
        """Returns the number of the call that has given this very object; None if none has."""
        held = self._known.get(id(it))
        if held is None:
            return None
        return held[1] if it is (held[0]() if type(held[0]) is weakref.ref else held[0]) else None

    def found_elsewhere(self, ids: set) -> list[tuple[int, Any]]:
        """Returns (the number of the call that has given it, it) of the objects of these ids."""
        found = [(number, held() if type(held) is weakref.ref else held) for held, number in map(self._known.__getitem__, ids.intersection(self._known))]
        return [(number, it) for number, it in found if it is not None]

    def __contains__(self, it: Any) -> bool:
        return (it in self.containers and type(it) is not np.ndarray) or self.number_of(it) is not None

    def made_of(self, it: Any) -> tuple | None:
        """Returns the class of an object that an opaque call has made, and the numbers and texts that it was made of; None if these were not known beforehand."""
        if (number := self.number_of(it)) is None:  # the run has turned out impure meanwhile
            return None
        function, args, kwargs = self.calls[number].parts
        if type(function) is not Held or function.value is not type(it):
            return None
        try:
            return type(it), constant_part(tuple(args)), constant_part(tuple(kwargs.values())), *kwargs
        except Unskippable:
            return None

    def is_called_at_once(self, it: Any, instrumented: bool) -> bool:
        """Returns whether the program, in code that is instrumented or not, is about to call what the last call has given, as in `Add()(x)`: nothing else has it then."""
        frame = frames.around_ours(sys._getframe(1))
        return self._last is not None and self._last[:2] == (id(it), frame.f_code) and is_called_next(frame.f_code, self._last[2], frame.f_lasti, instrumented)

    def clear(self) -> None:
        self.instances.conclude()
        self.calls, self.handed_on, self.files, self.seen = [], HandedOn(), [], Seen()
        self._known.clear()
        self.unsteady.clear()

    def _refuse(self, reason: str, passing: bool = False) -> None:
        """A call cannot be an opaque one, as is perhaps because of what was read anew."""
        self.instances.in_vain = not passing
        self._run.impure(reason, passing)

    def calling(self, callee: Any, reason: str) -> Callable:
        """Returns what to call in place of `callee`, which makes the run impure for this reason if it cannot be an opaque call."""
        if is_refused(callee) or (type(callee) is FunctionType and is_frameworks_function(callee)):
            self._run.impure(reason)
            return callee
        return functools.partial(self._call, callee, reason)

    @ours.calling
    def _call(self, callee: Any, reason: str, /, *args: Any, **kwargs: Any) -> Any:
        frame = frames.around_ours(sys._getframe(1))
        value = self.make(callee, args, kwargs, reason, frame)
        self._last = id(value), frame.f_code, frame.f_lasti
        return value

    @ours.calling
    def make(self, callee: Any, args: tuple, kwargs: dict, reason: str, frame: Any = None, as_a_whole: bool = False, key: Any = None) -> Any:
        """Makes a call, and notes it; `frame`: that of the code which makes it, if that is the program's; `as_a_whole`: even if it may know of the program."""
        run, is_blind, calls_back = self._run, effect_free_calls.is_blind(callee, args, kwargs), False
        if run.reason is None and is_refused(callee):
            self._refuse(reason)
        if run.reason is None and not is_blind and not as_a_whole and (self._is_to_be_observed(callee) or runs_program(callee, (*args, *kwargs.values()))):
            form = self.instances.form(callee, args) or (run.library_code.attribute(*args) if callee is getattr and len(args) == 2 else run.library_code.called(callee))
            if form is not None:
                return form(*args, **kwargs)
            calls_back = may_call_back(run, callee, args, kwargs)
            if not calls_back:
                self._observe_next_time(callee, args)
                self._refuse(reason)
        level = callers_looked_up(callee, args, kwargs)
        if level > 1:
            self._refuse(f"{reason}, which looks at who has called its caller")
        caller = None if frame is None else Caller(frames.around_call(frame, level))
        if run.reason is not None:
            return make_call_once(callee, args, kwargs, caller, is_blind)
        given = Given(run, (*args, *kwargs.values()))
        parts, why = self._parts_or_why(callee, args, kwargs)
        if parts is None:
            given.are_kept()
            form = run.library_code.called(callee)
            if form is not None:
                return form(*args, **kwargs)
            self._observe_next_time(callee, args)
            self._refuse(reason + why)
            return make_call_once(callee, args, kwargs, caller, is_blind)
        keeps_guards = is_blind or effect_free_calls.keeps_guards(callee, args, kwargs)
        if not keeps_guards and sys.exc_info()[1] is not self._handled and not effect_free_calls.is_unaware_of_errors(callee, kwargs):  # (where the run is skipped, none is)
            run.impure(f"{reason}, which may look at the exception that is handled")
            return make_call_once(callee, args, kwargs, caller, is_blind)
        before = Before(run, given, given_to(callee, args, kwargs), not keeps_guards and len(self.calls) < _MOST_CALLS // 20)  # a record does not hold behind others that change what was read before
        if not is_blind and may_see(callee, (*args, *kwargs.values()), keeps_guards):
            self.seen.note(run)
        outcome, clock, value, error = None if is_blind else outcomes.take(callee, (*args, *kwargs.values())), Clock(), None, None
        try:
            value = outcome.give() if outcome is not None else self._made(callee, args, kwargs, caller, calls_back)
        except Exception as raised:
            if not is_plain_error(raised):
                self._refuse(f"{reason}, which raises")
                raise
            error = raised
        why, is_passing = before.is_broken()
        if why is None and outcome is None and not comes_late(run, parts) and clock.says_long():
            why, is_passing = "takes long", True  # the graph had better run at the same time; with what that has computed, the call comes behind it anyway
        if why is not None:
            self._refuse(f"{reason}, which {why}", is_passing)
        else:
            if not keeps_guards:
                self.containers.may_change(getattr(callee, "__self__", None))
            dropped = frame is not None and is_dropped(frame.f_code, frame.f_lasti)
            where = frame or frames.around_ours(sys._getframe(1))
            key = key or (getattr(callee, "__qualname__", type(callee).__name__), (where.f_code.co_filename, where.f_lineno), args[1] if callee is getattr else None)
            value = self.note(callee, parts, value, key, caller, dropped or error is not None, is_blind, reason, args, kwargs, keeps_guards)
        if error is None:
            return value
        if why is None and run.reason is None:
            self.calls[-1].expected = Raises(type(error), error_key(error))
        try:
            raise error
        finally:
            del error  # which holds the frame

    @ours.calling
    def _made(self, callee: Any, args: tuple, kwargs: dict, caller: Caller | None, calls_back: bool) -> Any:
        run, before = self._run, random_state()
        observers, run.is_inside_opaque = (location.tls.observer, run.runner.observer), True  # code of the program's that it calls is made to run again with it
        if calls_back:
            location.tls.observer, run.runner.observer = NULL_OBSERVER, None
        try:
            return make_call(callee, args, kwargs, caller)
        finally:
            if calls_back:
                location.tls.observer, run.runner.observer = observers
            run.is_inside_opaque = False
            self.note_draws(before)

    def _is_to_be_observed(self, callee: Any) -> bool:
        return type(function := getattr(callee, "__func__", callee)) is FunctionType and self._run.library_code.is_to_be_observed(function)

    def _observe_next_time(self, callee: Any, args: tuple) -> None:
        """The run comes to nothing because something is done with what opaque calls have given: they had better be observed."""
        for number in filter(lambda n: n is not None, map(self.number_of, (callee, *args))):
            given_by = self.calls[number].parts[0]
            function = getattr(given_by.value, "__func__", given_by.value) if type(given_by) is Held else None
            if type(function) is FunctionType:
                self._run.library_code.observe_next_time(function)

    def note_constant(self, callee: Any, args: tuple, kwargs: dict, value: Any) -> str | None:
        """A function of the framework's has given `value`, and has run no operation: notes that; returns why it cannot."""
        if not (args or kwargs) or not is_plain(value):
            return f"gives an object of type {type(value).__name__}"
        try:
            parts = self._parts(callee, args, kwargs)
        except Unskippable as error:
            return f"is given {error}"
        self.note(callee, parts, value, (callee.__qualname__, None), None, False, True, f"calls {callee.__qualname__}")
        return None

    def note(self, callee, parts, value, key, caller, dropped, is_blind, reason, args=(), kwargs={}, keeps_guards=False, assumed=None):  # noqa: B006 (it is not changed)
        """Notes a call that was made; `assumed`: what the record of a skipped call that has made it took it to give, if that is a certain number or text."""
        run = self._run
        is_array = type(value) is np.ndarray and holds_numbers(value) and value.size > 0
        if (type(value) in TENSORS and not is_plain(value)) or (isinstance(value, np.ndarray) and not is_array) or composites.is_composite(type(value)):
            self._refuse(f"{reason}, which gives {'a tensor' if not isinstance(value, np.ndarray) else 'an array'}")
            return value
        self.files = [(held, where) for held, where in self.files if (file := held()) is None or not file.closed]
        if issubclass(type(value), io.IOBase):
            self.files += [(weakref.ref(value), run.here())] * (type(value) not in (io.StringIO, io.BytesIO))
        elif hasattr(type(value), "__del__") or issubclass(type(value), (Generator, Coroutine)):  # what is done then may be waited for, and a record that is tried holds it for a while
            self._refuse(f"{reason}, which gives something that does something in the end")
            return value
        if len(self.calls) >= _MOST_CALLS:
            run.impure(f"{reason}, and does so too often")
            return value
        program, which = run.runner.program, (id(getattr(callee, "__self__", None)), id(run.runner.node), sum(call.key == key for call in self.calls))
        follows = may_be_another(value) or (may_be_own(value) and key not in program.looked_at)
        varies = not dropped and (follows or (is_plain(value) and value is not None and type(value) is not bool)) and (run.deferred.knows(value) or is_unsteady(program, key, which, value) or (follows and any(map(self.is_another_one, args)))) and assumed is None
        if varies and run.recording is not None and type(value) in KINDS and (place := where_it_stands(callee)) is not None and all(
                type(part) is Held and type(part.value) in SCALARS for part in (*parts[1], *parts[2].values())):
            return run.live_calls.gave(value, *place, args, kwargs)
        if residual_calls.is_residual(getattr(callee, "__self__", None), getattr(callee, "__name__", "")):
            self._has_drawn()
        steady = is_steady(callee, value)
        expected = ANYTHING if dropped else OfKind(type(value)) if varies else OfArray(value.dtype.str, value.shape) if is_array else Same(value) if steady else identity(value)
        touches = changed_containers(run.effects.values(), given_to(callee, args, kwargs))
        self.calls.append(OpaqueCall(parts, expected, len(run.effects), key, caller, is_blind, keeps_guards, touches, len(run.runner.log)))
        if varies and may_be_own(value):
            value = renewed(value)
            self.note_unsteady(value, len(self.calls) - 1)
        elif not dropped and ((varies and is_plain(value)) or is_of_many(program, key, value)):
            run.impure(f"{reason}, which gives something else each time")
        elif isinstance(value, BaseException):
            self._raising = id(value)  # it is not held: its traceback may hold anything
            self.instances.note_error(value, any(map(self.is_another_one, (*args, *kwargs.values()))))
        elif steady and not dropped:
            self.instances.constants[id(value)] = value
        elif not dropped and (not is_plain(value) or isinstance(value, np.generic)):
            number, known = len(self.calls) - 1, self.number_of(value)
            if known is not None and expected is OBJECT:
                self.calls[-1].expected = SameAs(known)
                return value
            if is_array:
                run.dynamic.note_late(value, Result(number))
            try:
                self._known[id(value)] = weakref.ref(value, lambda _, key=id(value): self._known.pop(key, None)), number
            except TypeError:
                self._known[id(value)] = value, number
        return value

    def is_another_one(self, it: Any) -> bool:
        """Returns whether it, or something in it, is a number or text that is another one each time."""
        return any(map(self.is_another_one, it)) if type(it) is tuple else id(it) in self.unsteady or self._run.deferred.number(it) is not None

    def looks_at(self, value: Any) -> None:
        """A number that a call has given matters."""
        self._run.deferred.looked_at(value)

    def looked_at(self, values: list) -> bool:
        """Notes that the run has looked at such numbers or texts. Returns whether there may be a record for each from now on: of small integers and texts, if they are few."""
        known = self._run.runner.program.looked_at
        found = {self.calls[number].key for x in values if (type(x) in (tuple, str, bytes) or (type(x) is int and is_shared(x))) and (number := self.number_of(x)) is not None} - known
        known |= found
        self._run.runner.program.unsteady -= found
        return bool(found)

    def note_draws(self, before: tuple) -> None:
        """Notes that calls have drawn random numbers, if the state of Python's and NumPy's own generators is not what it was `before`."""
        after = random_state()
        if after != before:
            self._run.runner.step.draws.append((before, after))
            self._has_drawn()

    def _has_drawn(self) -> None:
        self.draws = True
        if any(call.draws for call in self._run.dynamic.calls):  # those are made beforehand where the step is skipped
            self._run.impure("draws random numbers, after functions that do so inside of calls")

    def note_unsteady(self, value: Any, number: int) -> None:
        self.unsteady[id(value)] = value
        self._known[id(value)] = value, number

    def tensor(self, it: Any, dtype: Any) -> Any:
        """Returns a tensor of this type that stands for a number which an opaque call has given, another one each time; anything else as it is."""
        number = self.number_of(it) if type(it) in KINDS else None
        return it if number is None else self._run.dynamic.late(Result(number), it, dtype)

    def raises(self, it: Any) -> bool:
        """Returns whether `it`, which is raised, was made by the last call."""
        made, self._raising = self._raising, None
        return id(it) == made

    def _parts_or_why(self, callee: Any, args: tuple, kwargs: dict) -> tuple[Any, str]:
        """Returns (what a call is made of, None if that is not known; why)."""
        try:
            return self._parts(callee, args, kwargs), ""
        except (Unskippable, TypeError) as error:
            return None, f", which is given {error}" if str(error) else ""

    def _parts(self, callee: Any, args: tuple, kwargs: dict) -> tuple[Any, list, dict]:
        """Returns what a call is made of. Raises Unskippable."""
        return self.part(callee), [self.part(x) for x in args], {name: self.part(x) for name, x in kwargs.items()}

    def part(self, it: Any) -> Any:
        """Returns what a call is given, or what is called, as `Recording` makes a template of it. Raises Unskippable, which says what that is."""
        run, kind = self._run, type(it)
        if run.has_caught(it) and kind.__module__ == "builtins" and not vars(it):  # another one takes its place, which holds no frames
            self.note(kind, (Held(kind), [*map(Held, it.args)], {}), it, ("exception", None), None, False, True, "makes an exception")
            return Result(len(self.calls) - 1)
        number = self.number_of(it)
        if number is not None:
            return Result(number)
        if kind is tuple or run.born.has(it) or it in self.handed_on:
            if kind not in (tuple, list, dict):
                self.instances.had_better_be_made(kind)
                raise Unskippable(f"a {kind.__name__} that was made just now")
            if kind is not tuple:  # unknown code may keep it: what the run does to it later would have to be done to another one
                self.handed_on.take(run.born, it, len(self.calls))
            return {k: self.part(x) for k, x in it.items()} if kind is dict else kind(map(self.part, it))
        if id(it) in run.given and kind in (list, dict):
            raise Unskippable(f"a {kind.__name__} that is an argument")
        if id(it) in run.library_code.read:
            return it
        if kind in TENSORS or composites.is_composite(kind):
            raise Unskippable("a tensor")
        if kind is np.ndarray and (it in run.dynamic or (run.deferred.part_for(it) is not None and not run.deferred.knows(it))):
            raise Unskippable("an array that varies")
        if kind in (MethodType, BuiltinFunctionType, MethodWrapperType) and not isinstance(it.__self__, (ModuleType, type, type(None))):
            owner = it.__self__
            if self.number_of(owner) is not None or run.born.has(owner) or type(owner) in TENSORS:
                raise Unskippable(f"a method of a {type(owner).__name__} that was made just now")
            if id(owner) in run.given:
                raise Unskippable(f"a method of a {type(owner).__name__} that is an argument")
        if is_tapes(kind):
            raise Unskippable("a tape")
        if run.deferred.knows(it) or run.deferred.number(it) is not None:
            return it  # it is read, or calculated, anew each time
        run.deferred.looked_at(it)
        return Held(it)

    # -- what is done with what an opaque call gives ------------------------------------------------------------------------------

    def operated(self, function: Callable, *parts: Any, reason: str | None = None) -> Any:
        """Returns what an operator gives, one of whose operands is opaque, or of a class of which nothing is known."""
        return self.make(function, parts, {}, reason or f"applies {function.__name__} to what unknown code gives")

    def takes(self, args: tuple, kwargs: dict) -> bool:
        """Returns whether a call with these arguments can be an opaque one."""
        run = self._run
        return run.reason is None and all(
            type(x) not in TENSORS and (not run.born.has(x) or type(x) in (list, dict)) and not composites.is_composite(type(x)) for x in (*args, *kwargs.values()))

    def attribute(self, it: Any, name: str, reason: str | None = None) -> Any:
        self.instances.pins(it)
        return self.make(getattr, (it, name), {}, reason or f"asks for {name}")

    def reads(self, owner: Any, name: Any) -> Any:
        """Returns a number that is another one each time, which an object, list, dict or cell holds under this name: it is read each time, after what the run has changed until then."""
        function, key = (operator.getitem, name) if type(owner) is list or type(owner) is dict else (getattr, CONTENTS if type(owner) is CellType else name)
        try:
            parts = self._parts(function, (owner, key), {})
        except Unskippable:
            return function(owner, key)
        place, it = place_of(owner, name), function(owner, key)
        if place not in self._run.runner.program.looked_at or type(it) not in (str, bytes):
            self._run.runner.program.unsteady.add(place)
        if not is_value(it):
            self.instances.replaced.append((id(space_of(owner)), name))
        return self.note(function, parts, it, place, None, False, True, f"reads {name}")

    def item_to_change(self, it: Any, key: Any, reason: str) -> Any:
        """Returns an item that is changed in place then: another one each time."""
        place = "changes", id(it), key if type(key) in SCALARS else None
        self._run.runner.program.unsteady.add(place)
        return self.make(operator.getitem, (it, key), {}, reason, key=place)

    def leaves_by_error(self) -> None:
        self._run.impure("leaves a context by an exception")
