"""Cuts steps whose last statements keep their code from being skipped: these run behind the step.

A function often ends with what belongs to Python alone: `self.meter.update(float(loss))`, a best value that is kept, a line that is written. If such code
cannot be skipped, the step is cut before it: the step is its head, which is skipped, and the tail runs as it is written, as if it stood behind the call. There each value is waited for, and operations
are issued one by one, so what a tail does is right whatever it does; a tail that issues many operations is taken back into the step.
"""

import weakref
from types import FunctionType, MethodType
from typing import Any

from terra import ours
from terra.graph.trace import FETCH
from terra.location import location
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.steps.pure_functions import is_keras_step
from terra.tf import private_names as tfi
from terra.transform import forms, parts

_STEPS = 16  # whose code has run, one after the other, after which a function is cut
_PAID = 1.0  # times that these must have taken what it takes to trace the function anew, and to build its graph: a run may be short
_LOOKS = 8  # steps that are looked at for a place to cut
_FEW, _TIMES = 8, 5  # operations that a tail may issue one by one, if the head issues so many times as many
_FEW_TENSORS, _MOST = 40, 2000  # tensors that it may make in each step; those beyond these, in all, after which it is taken back


class Tail:
    """The tail of a function that was cut, and its head."""

    def __init__(self, found: parts.Parts, whole: FunctionType, owner: tuple):
        self._owner = owner  # that of a bound method
        self._of = forms.Form(weakref.ref(whole), found.head, whole.__code__, whole.__defaults__, whole.__kwdefaults__)
        self._tail = found.tail
        self.file, self.line = whole.__code__.co_filename, found.line  # where it begins
        self.head, self.plain_head = (MethodType(head, *owner) if owner else head for head in (found.head, found.plain_head))
        self.excess = 0  # tensors that it has made, beyond a few in each step

    def is_of(self, whole: FunctionType) -> bool:
        """Returns whether nobody has changed the function since."""
        return not forms.is_changed(whole, self._of)

    @ours.calling
    def run(self, given: Any, args: tuple, kwargs: dict) -> Any:
        """Returns what the whole function gives, of which the head has given this."""
        before = tfi.next_tensor_id()
        try:
            return self._tail(given, *self._owner, *args, **kwargs)
        finally:
            self.excess = max(0, self.excess + tfi.next_tensor_id() - before - _FEW_TENSORS)


class Tails:
    """Finds out whether one co-executed function had better be cut, and where."""

    def __init__(self, function: Any):
        self._function = function
        self._places: list[int] | None = None  # statements before which it is still to be cut
        self._looks = 0  # steps in which there was no such place
        self._ran = 0  # steps whose code has run since the last one that was skipped, or since the function was cut
        self._skipped = 0  # steps that were skipped until then
        self.current: Tail | None = None

    def now(self) -> Tail | None:
        """Returns the tail of the step that begins; None if its function is whole. Called with the lock of steps."""
        tail = self.current
        if tail is not None and (tail.excess > _MOST or not tail.is_of(_plain(self._function.__wrapped__))):
            self._places, self.current = [], None
        return self.current

    def look_at(self, step: Any) -> None:
        """A step ends whose code has run."""
        skipped, program = self._function.counts.whole_steps, self._function.program
        if skipped != self._skipped:
            self._skipped, self._ran = skipped, 0
        trial = None if program is None else program.whole
        if trial is None or trial.reason is None or trial.variants or type(step) is not Step or type(step.mode) is not PythonRunner or step.mode.program is not program:
            return
        self._ran += 1
        if self._ran < _STEPS or (self._places == [] and self.current is None) or not self._may_be_cut():
            return
        if self._places is None:
            self._looks += 1
            self._places = self._promising(step.mode.log, trial.line) or (None if self._looks < _LOOKS else [])
        if self._places is not None:
            self._cut(program)

    def _may_be_cut(self) -> bool:
        function, wrapped, form, account = self._function, self._function.__wrapped__, self._function.current(), self._function.policy.account
        if not (account.may_trace() and account.may_build(len(function.store.graph))):  # which a function that is cut needs
            return False
        took, stats = function.policy.times()[0], function._stats
        if took is None or took * self._ran < _PAID * account.to_begin_anew(stats.generation_s / max(stats.graphs, 1)):
            return False
        return (type(_plain(wrapped)) is type(_plain(form)) is FunctionType and not (type(form) is MethodType and is_keras_step(form)) and function.located
                and function.segments is None and function.specialisation is None and function.options.fast_forward is True)

    def _cut(self, program: Any) -> None:
        """Cut the function at the next place, or make it whole if there is none."""
        wrapped, form, before = self._function.__wrapped__, self._function.current(), self.current
        self.current = program.whole = None
        self._ran = 0
        while self._places and self.current is None:
            found = parts.cut_before(_plain(wrapped), _plain(form), self._places.pop(0))
            if found is not None:
                self.current = Tail(found, _plain(wrapped), (form.__self__,) if type(form) is MethodType else ())
        if self.current is not before:
            self._function.begins_anew = True  # what the tail does is no part of the step any more

    def _promising(self, log: list, impure: int | None) -> list[int]:
        """Returns the statements before which to cut: the first behind all operations, and that behind all but a few. The line that is `impure` has to come behind the cut."""
        spans = parts.statements_at(_plain(self._function.__wrapped__))
        issued, k = [0] * len(spans), 0  # operations of each statement; those whose line is not known count for that of the one before
        for node, *_ in log:
            line = None if node.op_type == FETCH else self._line(node.location)
            k = next((n for n, (first, last) in enumerate(spans) if line is not None and first <= line <= last), k)
            if spans and node.op_type != FETCH:
                issued[k] += 1
        found = [next((n + 1 for n in reversed(range(len(spans))) if issued[n]), 0)]
        if not self._function.options.jit_compile:
            found += [n for n in range(found[0]) if sum(issued[n:]) <= min(_FEW, sum(issued[:n]) / _TIMES)][:1]
        return [n for n in found if 0 < n < len(spans) and (impure is None or spans[n][0] <= impure)]

    def _line(self, there: Any) -> int | None:
        """Returns the line of the step's own function from which an operation was issued; None if it is not known."""
        while there.parent is not location.ROOT and there.parent is not there:
            there = there.parent
        place = location.site(there.id)
        code = _plain(self._function.__wrapped__).__code__
        return place.lineno if place is not None and place.filename == code.co_filename else None


def _plain(function: Any) -> Any:
    """Returns the function of a method."""
    return function.__func__ if type(function) is MethodType else function
