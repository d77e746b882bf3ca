"""The arguments of unknown code that a run looks after: lists and dicts that the run has made, arrays that it has read, tensors whose values are read for it."""

from types import BuiltinFunctionType, ModuleType
from typing import Any, Iterable, Iterator

import numpy as np

from terra.runtime.fast_forward.purity.facts.attribute_lookup import attributes_of
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.tensors.comparing import SCALARS, Unskippable


class Given:
    """The containers and arrays among the arguments of one call that are the run's own."""

    __slots__ = ("_run", "_held")

    def __init__(self, run: Any, values: tuple):
        self._run = run
        self._held = [(x, _contents(x), run.born.has(x)) for x in _own(run, values, set())]

    def are_kept(self) -> None:
        """The call gets them otherwise than as an opaque one: the containers are as they were before it."""
        for it, _, was_born in self._held:
            if type(it) is not np.ndarray:
                self._run.opaque.handed_on.put_back(self._run.born, it, was_born)

    def have_changed(self) -> bool:
        """Returns whether the call has changed one of them."""
        return any(_contents(it) != held for it, held, _ in self._held)


class HandedOn:
    """The lists and dicts that a run has made, and unknown code was given: another call is given others that hold the same, as the first one was."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple] = {}  # id -> (the list or dict, the number of the last such call)

    def __contains__(self, it: Any) -> bool:
        return id(it) in self._held

    def take(self, born: Any, it: Any, number: int) -> None:
        """Takes it from what is the run's alone: the call of this number is given it. Raises Unskippable if it is given it twice, or within itself."""
        born.pop(id(it), None)
        if self._held.get(id(it), (it, -1))[1] == number:
            raise Unskippable(f"a {type(it).__name__} twice")
        self._held[id(it)] = it, number

    def put_back(self, born: Any, it: Any, was_born: bool) -> None:
        """The call is not given it after all; `was_born`: it was the run's alone."""
        if was_born:
            born.add(it)
            self._held.pop(id(it), None)
        else:
            self._held[id(it)] = it, -1


class Seen:
    """The lists, dicts and objects that a run has made and left somewhere, of which calls of unknown code may have seen what they hold: that must stay so, as a skipped run leaves them once."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple] = {}  # id -> (it, what it held)

    def note(self, run: Any) -> None:
        """Such a call is about to be made."""
        for effect in run.effects.values():
            if effect.added is None and not effect.is_kept:
                self._note(run, effect.value())

    def _note(self, run: Any, it: Any) -> None:
        kind = type(it)
        if kind is tuple:
            for x in it:
                self._note(run, x)
        elif id(it) not in self._held and run.born.has(it) and (kind in (list, dict) or type(attributes_of(it, kind)) is dict):
            self._held[id(it)] = it, _contents_of(it)
            for x in it if kind is list else (it if kind is dict else attributes_of(it, kind)).values():
                self._note(run, x)

    def have_changed(self) -> bool:
        return any(_contents_of(it) != held for it, held in self._held.values())


def may_see(callee: Any, given: Iterable, keeps_guards: bool) -> bool:
    """Returns whether a call may see what the run has left somewhere: not so a draw, nor a function of C, or of Python's that changes nothing, that is given numbers and texts only."""
    owner = getattr(callee, "__self__", None)
    if residual_calls.is_residual(owner, getattr(callee, "__name__", "")):
        return False
    return not (keeps_guards or (type(callee) is BuiltinFunctionType and type(owner) is ModuleType)) or any(type(x) not in SCALARS for x in given)


def _own(run: Any, values: Iterable, seen: set) -> Iterator:
    """Yields the run's own ones, also those within others, but for those that were `seen`."""
    for x in values:
        if type(x) is tuple:
            yield from _own(run, x, seen)
        elif type(x) in (list, dict) and id(x) not in seen and (run.born.has(x) or x in run.opaque.handed_on):
            seen.add(id(x))
            yield x
            yield from _own(run, x.values() if type(x) is dict else x, seen)
        elif type(x) is np.ndarray and run.deferred.knows(x):
            yield x


def comes_late(run: Any, part: Any) -> bool:
    """Returns whether a call that is made of these parts is given what is read of the graph."""
    if type(part) in (list, tuple, dict):
        return any(comes_late(run, x) for x in (part.values() if type(part) is dict else part))
    return id(part) in run.library_code.read or run.deferred.knows(part)


def _contents_of(it: Any) -> list:
    return _contents(it if type(it) in (list, dict) else attributes_of(it, type(it)))


def _contents(it: Any) -> Any:
    """Returns the identities of what a list or dict holds; the bytes of an array."""
    return it.tobytes() if type(it) is np.ndarray else [(key, id(x)) for key, x in it.items()] if type(it) is dict else [*map(id, it)]
