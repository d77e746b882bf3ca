"""Stands, in a calculation that is to be made again, for what is another one then."""

from typing import NamedTuple


class ResidualSource(NamedTuple):
    """Stands for what residual calls (see `residual_calls`) give at this place: a tensor, an array or a number."""

    index: int


class ArgumentSource(NamedTuple):
    """The array of this number among those that the step is given."""

    index: int


class NumberSource(NamedTuple):
    """The number at this place among the sources of those that vary."""

    index: int


class ConstantSource:
    """An array that is the same object each time, whatever is in it; or the copy of one that holds the same each time."""

    __slots__ = ("array", "is_copy")

    def __init__(self, array, is_copy):
        self.array = array.copy() if is_copy else array
        self.is_copy = is_copy

    def __eq__(self, other):
        if type(other) is not ConstantSource or self.is_copy != other.is_copy:
            return False
        a, b = self.array, other.array
        return a is b or (self.is_copy and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())

    __hash__ = None


class ContainerSource(NamedTuple):
    """A list, tuple or slice of such parts."""

    kind: type
    parts: tuple


class FetchSource(NamedTuple):
    """A number, or an array, that was read of a tensor and not looked at, until it is known which fetch it came of."""

    value: object
