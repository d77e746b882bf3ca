"""Stands in for the observer while nobody observes: the observed form of a function shows it its operands, and everything is given back as it is."""

import operator
import sys

from terra.location.identity import itself
from terra.location.observed_patterns import Patterns

OPERATORS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv, "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow,
    "USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert, "MatMult": operator.matmul,
    "LShift": operator.lshift, "RShift": operator.rshift, "BitOr": operator.or_, "BitXor": operator.xor, "BitAnd": operator.and_,
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}


_CONVERSIONS = {ord("s"): str, ord("r"): repr, ord("a"): ascii}


def formatted_as(it, conversion, spec):
    """Returns the text that an f-string makes of `it`; `conversion`: the character behind `!`, or -1."""
    return format(_CONVERSIONS[conversion](it) if conversion in _CONVERSIONS else it, spec)


class NullObserver(Patterns):
    """Stands in for an `terra.runtime.fast_forward.purity.observer.Observer`."""

    def _same(self, it, *more):
        return it

    owner = operand = compared = truth = tested = container = iterated = looped = unpacked = unpacking = items = stored = inplace = fresh = context = _same
    assigned = removed = changed = inplace_attribute = augmented = subscript = answer = _same
    builtin = result = searched = item = mapping = modulo = identified = inplace_item = index = elements = raised = _same
    owner_to_change = caught = named = unobserved = sets_name = returning = returned = bound = asks_kind = _same

    @staticmethod
    def is_instance(asked, it, cls):
        return asked(it, cls)

    def binary(self, name, left, right):
        return OPERATORS[name](left, right)

    comparison = binary

    @staticmethod
    def piece(it, conversion, spec):
        return formatted_as(it, conversion, spec)

    @staticmethod
    def text(pieces):
        return "".join(pieces)

    def unary(self, name, it):
        return OPERATORS[name](it)

    @staticmethod
    def same(left, right):
        return itself(left) is itself(right)

    @staticmethod
    def contains(left, right):
        return left in right

    def imports(self, name, level, names):
        pass

    @staticmethod
    def globals():
        return sys._getframe(1).f_globals

    def question(self, function, names, owners):
        return None

    counted = question

    def enter(self, cursor, call_id, callee):
        return cursor.enter(call_id, callee)


NULL_OBSERVER = NullObserver()
