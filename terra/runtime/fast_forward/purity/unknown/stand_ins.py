"""Stand-ins, in the observed form of a function, for objects while they are used: of which nothing is known, or that do it by methods of their own."""

import operator
from typing import Any, Callable

from terra import ours

_CHANGES = "changes a container that it has not made"


class Unknown(Exception):
    """Something is asked that cannot be understood, and may be an opaque call."""


class _Answer:
    """Stands in for an object whose property was read: has its value under its name."""


def answer(name, value):
    answer = _Answer()
    setattr(answer, name, value)
    return answer


class OpaqueItems:
    """Stands in for an opaque object of which an item is taken."""

    __slots__ = ("_opaque", "_it")

    def __init__(self, opaque: Any, it: Any):
        self._opaque, self._it = opaque, it

    def __getitem__(self, key: Any) -> Any:
        return self._opaque.operated(operator.getitem, self._it, key)


class OpaqueItem:
    """Stands in for a container that was there before, of which an item is changed in place."""

    __slots__ = ("_opaque", "it", "value")

    def __init__(self, opaque: Any, it: Any):
        self._opaque, self.it = opaque, it
        opaque.containers.change(it)

    def __getitem__(self, key: Any) -> Any:
        self.value = self._opaque.item_to_change(self.it, key, _CHANGES)
        return self.value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._opaque.make(operator.setitem, (self.it, key, value), {}, _CHANGES)


class OwnAttribute:
    """Stands in for an object of which an attribute is changed in place that is set in a way of its own."""

    __slots__ = ("_terra_run", "_terra_it", "_terra_value")  # no names of the program's

    def __init__(self, run: Any, it: Any):
        for name, value in zip(self.__slots__, (run, it, None)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._terra_run.attributes.owner(self._terra_it, name), name)
        object.__setattr__(self, "_terra_value", value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._terra_run.changes.assigned(self._terra_it, name), name, value)


class SetByCall:
    """Stands in for an object of which an attribute is set by a call, which is given the value."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable):
        object.__setattr__(self, "_call", call)

    def __setattr__(self, name: str, value: Any) -> None:
        self._call(value)


class OpaqueChange:
    """Stands in for a container that was there before, of which an item is set or deleted."""

    __slots__ = ("_opaque", "_it")

    def __init__(self, opaque: Any, it: Any):
        self._opaque, self._it = opaque, it
        opaque.containers.change(it)

    def __setitem__(self, key: Any, value: Any) -> None:
        form = self._opaque.instances.setter(self._it)
        if form is not None:
            form(key, value)
        else:
            self._opaque.make(operator.setitem, (self._it, key, value), {}, _CHANGES)

    def __delitem__(self, key: Any) -> None:
        self._opaque.make(operator.delitem, (self._it, key), {}, _CHANGES)


class OpaqueContext:
    """Entered in place of a context manager of which nothing is known."""

    __slots__ = ("_opaque", "_it")

    def __init__(self, opaque: Any, it: Any):
        self._opaque, self._it = opaque, it

    def __enter__(self) -> Any:
        return self._opaque.make(type(self._it).__enter__, (self._it,), {}, f"enters a context of type {type(self._it).__name__}")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is not None:
            self._opaque.leaves_by_error()
            return type(self._it).__exit__(self._it, kind, error, trace)
        return self._opaque.make(type(self._it).__exit__, (self._it, None, None, None), {}, f"leaves a context of type {type(self._it).__name__}")


class SpecialMethod:
    """Stands in for an object whose class defines in Python what is asked of it now: `form` is called in place of that."""

    __slots__ = ("_run", "_form")

    def __init__(self, run: Any, form: Any):
        self._run, self._form = run, form

    @ours.calling
    def _call(self, *args: Any) -> Any:
        result = self._form(*args)
        self._run.before = len(self._run.runner.log)  # what it has issued was looked at
        return result

    def __getitem__(self, key: Any) -> Any:
        return self._call(key)

    def __len__(self) -> Any:
        return self._call()

    def __bool__(self) -> Any:
        return self._call()

    def __contains__(self, it: Any) -> Any:
        return self._call(it)

    def __next__(self) -> Any:
        return self._call()

    def __iter__(self) -> Any:
        return self


class Operated:
    """Stands in for an object of the program's that a builtin compares with others, or adds to them: its class defines in Python how."""

    __slots__ = ("_run", "it")

    def __init__(self, run: Any, it: Any):
        self._run, self.it = run, it

    @staticmethod
    def _plain(it: Any) -> Any:
        return it.it if type(it) is Operated else it

    @ours.calling
    def __lt__(self, other: Any) -> Any:
        return self._run.operands.comparison("Lt", self.it, self._plain(other))

    @ours.calling
    def __gt__(self, other: Any) -> Any:
        if self._run.calls.special(self.it, "__gt__") is None:  # so the other one is asked
            return self._run.operands.comparison("Lt", self._plain(other), self.it)
        return self._run.operands.comparison("Gt", self.it, self._plain(other))

    @ours.calling
    def __add__(self, other: Any) -> Any:
        return Operated(self._run, self._run.operands.binary("Add", self.it, self._plain(other)))

    @ours.calling
    def __radd__(self, other: Any) -> Any:
        return Operated(self._run, self._run.operands.binary("Add", other, self.it))


class Printed:
    """Stands in for an object of the program's that is made a text of: its class defines in Python how."""

    __slots__ = ("_run", "_it")

    def __init__(self, run: Any, it: Any):
        self._run, self._it = run, it

    @ours.calling
    def __format__(self, spec: str) -> str:
        form = self._run.calls.special(self._it, "__format__")
        return form(spec) if form is not None else format(self._it, spec) if spec else str(self)

    @ours.calling
    def __str__(self) -> str:
        form = self._run.calls.special(self._it, "__str__")
        return form() if form is not None else repr(self)

    @ours.calling
    def __repr__(self) -> str:
        form = self._run.calls.special(self._it, "__repr__")
        return form() if form is not None else repr(self._run.operands.printed(self._it))
