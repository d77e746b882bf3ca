"""Calls of the framework's that cannot be skipped, while they are made: their parts may be."""

from typing import Any, Callable

from terra import ours


class Entered:
    """A call of `owner`, or of a method of it, that is made. `Step.enters` holds it while the framework's own code runs."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any):
        self.owner = owner

    @ours.calling
    def part(self, step: Any, call: Callable, owner: Any, args: tuple, kwargs: dict) -> Any:
        """Makes a call within this one, `call(owner, args, kwargs)`, which may be skipped. What it calls is no part of this one."""
        step.enters = None
        try:
            return call(owner, args, kwargs)
        finally:
            step.enters = self


@ours.calling
def make(step: Any, entered: Entered, call: Callable[[], Any]) -> Any:
    """Makes the call that `entered` stands for."""
    around, step.enters = step.enters, entered
    try:
        return call()
    finally:
        step.enters = around
