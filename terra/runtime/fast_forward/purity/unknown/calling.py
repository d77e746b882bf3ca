"""Makes calls of unknown code in a run that is observed, and tells what these must not have changed, and whether they took long."""

import sys
import time
from typing import Any, Callable

from terra import ours
from terra.runtime.fast_forward.purity.unknown.given import Given
from terra.runtime.fast_forward.sources.effects import changed_containers
from terra.runtime.fast_forward.sources.opaque_calls import Caller, outcomes
from terra.runtime.interpreter.integers import natural

try:
    import resource
except ImportError:  # Windows
    resource = None

_SLICE = 0.01  # seconds for which others have the processor at most, as a rule, when they take it from a call that is not long (once or more often: a wait is not counted)
_LONG, _LONG_PROFILED = 2e-3, 5e-3  # seconds; with a profile function, which looks on while calls of the framework's are recorded, Python takes several times as long


class Before:
    """Remembers what there was before a call of unknown code, which must leave it as it is. `given`: the run's own among what it is given; `looks`: whether what the run has read is looked at."""

    __slots__ = ("_run", "_given", "_values", "_touches", "_states", "_log", "_fetches", "_looks", "_changed")

    def __init__(self, run: Any, given: Given, values: tuple, looks: bool):
        self._run, self._given, self._values, self._looks = run, given, values, looks
        self._touches = changed_containers(run.effects.values(), values)
        self._states = [(effect, effect.state()) for effect in run.effects.values() if not effect.is_kept]
        self._log, self._fetches = len(run.runner.log), run.runner.step.counts.fetches
        self._changed = len([*run.reads.changes()]) if looks else 0  # by what the run itself has set

    def is_broken(self) -> tuple[str | None, bool]:
        """Returns (what the call has done that it must not, None if nothing; whether that may be different the next time)."""
        run, runner = self._run, self._run.runner
        if len(runner.log) != self._log or runner.step.counts.fetches != self._fetches or runner.step.skeleton is not runner:
            return "runs operations", False
        if self._given.have_changed():
            return "changes what it is given", False
        if self._looks and len([*run.reads.changes()]) > self._changed:
            runner.program.note_varying(run.reads)
            runner.program.not_observed.update(run.library_code.contexts)
            return "changes what the step has read", run.opaque.containers.are_read(self._values) or bool(run.library_code.contexts)
        for effect, state in self._states:
            if effect.state() is not state:
                effect.was = state
                if not any(effect.owner is it for it in self._touches):
                    return "changes what the step has set", False
        return None, False


def given_to(callee: Any, args: Any, kwargs: dict) -> tuple:
    """Returns all that a call is given, with the object whose method it is."""
    return getattr(callee, "__self__", None), *args, *kwargs.values()


@ours.calling
def make_call(callee: Callable, args: tuple, kwargs: dict, caller: Caller | None) -> Any:
    """Makes a call, with the integers that the program would have."""
    args = tuple(map(natural, args))
    return callee(*args, **kwargs) if caller is None else caller.call(callee, args, kwargs)


@ours.calling
def make_call_once(callee: Callable, args: tuple, kwargs: dict, caller: Caller | None, is_blind: bool) -> Any:
    """Makes a call, or gives what it has given, if it was made for a record that did not hold."""
    outcome = None if is_blind else outcomes.take(callee, (*args, *kwargs.values()))
    return make_call(callee, args, kwargs, caller) if outcome is None else outcome.give()


class Clock:
    """Tells whether what begins now has taken long: not that another thread or process had the processor meanwhile."""

    def __init__(self) -> None:
        self._interruptions, self._own, self._begin = _interruptions(), time.thread_time(), time.perf_counter()

    def says_long(self) -> bool:
        took, limit = time.perf_counter() - self._begin, _LONG if sys.getprofile() is None else _LONG_PROFILED
        return took > limit and (time.thread_time() - self._own > limit or took > limit + _SLICE * (_interruptions() > self._interruptions))


def _interruptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if resource is not None and hasattr(resource, "RUSAGE_THREAD") else 0
