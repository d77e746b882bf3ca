"""Numbers that vary: where each is found in a step, how those that are calculated of them are calculated again, and which answers about them have to be the same again."""

import functools
import sys
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import NamedTuple

import numpy as np

from terra.runtime.fast_forward.sources.effects import NumbersBefore, held_in, holds_tensors, put, space_of
from terra.runtime.fast_forward.sources.value_sources import ResidualSource
from terra.runtime.interpreter import integers
from terra.runtime.tensors.object_kinds import TENSORS, is_librarys
from terra.tf import private_names as tfi

KINDS = frozenset([float, np.float64, np.float32])  # of numbers that may vary; integers do, too, in ways of their own
_VALUES = frozenset([int, str, bytes]) if integers.CAN_BE_MADE else frozenset([str, bytes])
_LASTING = frozenset([GeneratorType, FunctionType, MethodType, BuiltinFunctionType, functools.partial])
_LARGEST = 1 << 62  # integer of which a tensor is made without an error


class StorageSource:
    """Where a number of this kind is found: argument `key`, item `key` of the dict (of attributes, or of a module) or list `holder`, or what the cell `holder` holds (`key` is that of
    `effects.CONTENTS`)."""

    __slots__ = ("holder", "key", "kind")

    def __init__(self, holder, key, kind):
        self.holder, self.key, self.kind = holder, key, kind

    @property
    def identity(self):
        return id(self.holder), self.key

    def __eq__(self, other):
        return type(other) is StorageSource and self.holder is other.holder and self.key == other.key and self.kind is other.kind

    __hash__ = None

    def label(self, parameters):
        """Returns what the program calls it; `parameters`: the names of those of the step's function."""
        if self.holder is None:
            return parameters[self.key] if self.key < len(parameters) else f"argument {self.key + 1}"
        if type(self.holder) is CellType:
            return "what a closure holds"
        return self.key if type(self.key) is str else f"[{self.key!r}]"

    def value(self, given):
        """Returns what is there now; None if there is nothing. `given`: the step's arguments, in order."""
        try:
            if type(self.holder) is CellType:
                return NumbersBefore.before(self.holder.cell_contents, self.holder, self.key)
            return given[self.key] if self.holder is None else NumbersBefore.before(self.holder[self.key], self.holder, self.key)
        except (KeyError, IndexError, ValueError):
            return None

    def holds_number(self, given):
        value = self.value(given)
        return type(value) is self.kind and (self.kind is not int or can_be_told(value))

    def put(self, value):
        put(self.holder, self.key, value)


class ConstantNumber(NamedTuple):
    """A number that stays the same."""

    kind: type
    number: object


class CounterSource(NamedTuple):
    """An integer that is found as attribute or item `name` of an object, and how much more it is then than at the beginning of the run."""

    owner: object
    name: object
    more: int

    def __eq__(self, other):
        return type(other) is CounterSource and self.owner is other.owner and self.name == other.name and self.more == other.more

    __hash__ = None

    def value(self, given):
        value = NumbersBefore.before(held_in(self.owner, self.name), space_of(self.owner), self.name)
        return value + self.more if type(value) is int else None


class ComputedSource:
    """A number that `function`, without side effects, calculates of others: of those at these places in a list, or `ConstantNumber` ones."""

    __slots__ = ("function", "parts", "kind")

    def __init__(self, function, parts, kind=float):
        self.function, self.parts, self.kind = function, parts, kind

    def __eq__(self, other):  # functions of observed code are made anew in each run
        return type(other) is ComputedSource and self.parts == other.parts and self.kind is other.kind and _code(self.function) == _code(other.function)

    __hash__ = None


class NumberPredicate(ComputedSource):
    """A question about numbers whose answer has to be the same again."""

    __slots__ = ("answer",)

    def __init__(self, function, parts, answer):
        super().__init__(function, parts)
        self.answer = answer

    def __eq__(self, other):
        return type(other) is NumberPredicate and self.parts == other.parts and self.answer is other.answer and _code(self.function) == _code(other.function)

    __hash__ = None


def _code(function):
    return getattr(function, "__code__", function)


def differ(one, other):
    """Returns whether two numbers, or texts, are not equal; one that is not a number is like another one."""
    return one != other and not (one != one and other != other)


def is_large(value):
    """Returns whether it is an integer for which Python makes objects of their own."""
    return type(value) is int and not integers.is_shared(value)


def can_be_told(value):
    """Returns whether it is an integer for which there may be objects of their own."""
    return type(value) is int and (integers.CAN_BE_MADE or not integers.is_shared(value))


def is_value(it):
    """Returns whether it is a number, a text or another object of Python's own library that programs replace, and do not change."""
    kind = type(it)
    return kind in KINDS or kind in _VALUES or (kind is not bool and _is_replaced(kind))


def may_be_replaced(it):
    """Returns whether it is a value, or another object in whose place programs may put one that is made of it: none of the framework's, and no function, class or module."""
    kind = type(it)
    return is_value(it) or not (kind in _LASTING or kind in TENSORS or is_librarys(kind) or issubclass(kind, (type, ModuleType)) or tfi.is_variable(it) or holds_tensors(it))


def was_replaced(before, now):
    """Returns whether another value, or object, is now in the place of one that may be replaced. It runs no code of the program's."""
    return may_be_replaced(before) and may_be_replaced(now) and (differ(now, before) if is_value(now) and is_value(before) else now is not before)


@functools.lru_cache(1000)
def _is_replaced(kind):
    return (kind.__module__.split(".", 1)[0] in sys.stdlib_module_names and kind.__module__ != "builtins" and kind.__hash__ not in (None, object.__hash__)
            and not any(name in vars(cls) for cls in kind.__mro__ for name in ("__iter__", "__call__", "__enter__", "__next__")))


def number_at(place, sources, given, drawn):
    """Returns what one of these numbers is, as `evaluate` tells it; something else, or an error, where that tells that there is none."""
    source = sources[place]
    if type(source) is ResidualSource:
        return drawn[source.index]
    if type(source) is StorageSource or type(source) is CounterSource:
        return source.value(given)
    return source.function(*[number_at(part, sources, given, drawn) if type(part) is int else part.number for part in source.parts])


def evaluate(sources, given, drawn):
    """Returns what these numbers are, a list of a `StorageSource`, `CounterSource`, `ResidualSource`, `ComputedSource` or `NumberPredicate` each, where the step has the arguments `given`, and residual calls have given `drawn`; None if one of
    them is no number, an answer is another one, or the run would raise."""
    values = []
    for source in sources:
        if type(source) is ResidualSource:
            value = drawn[source.index]
        elif type(source) is StorageSource or type(source) is CounterSource:
            value = source.value(given)
        else:
            try:
                value = source.function(*[values[part] if type(part) is int else part.number for part in source.parts])
            except (ArithmeticError, ValueError, TypeError):
                return None
        if type(source) is NumberPredicate:
            if value is not source.answer:
                return None
        elif type(source) is not ResidualSource and type(value) is not (int if type(source) is CounterSource else source.kind):
            return None
        elif type(value) is int and not -_LARGEST <= value <= _LARGEST:
            return None
        values.append(value)
    return values
