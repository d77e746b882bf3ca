"""Makes calls of unknown code in a run that is observed."""

from typing import Any, Callable

from terra import ours
from terra.runtime.fast_forward.sources.opaque_calls import Caller, outcomes
from terra.runtime.interpreter.integers import natural


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
