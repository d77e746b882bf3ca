"""Late values: numbers and arrays that opaque calls give in a call, another one each time, and of which operations of that call make tensors.

A tensor stands for each use of one. It is among those that the call is given from outside (`LateFeed`), though it is made when the opaque call has been.
"""

from types import MappingProxyType
from typing import Any, NamedTuple

from terra.runtime.execution.arguments.open_arrays import stand_in
from terra.runtime.fast_forward.sources.opaque_calls import Result
from terra.runtime.tensors.tensor import is_unread, noted
from terra.tf import private_names as tfi


class ShownArrays:
    """Holds the arrays that vary in a run of a step, and in the one around it."""

    __slots__ = ("_step", "_inner", "_outer")

    def __init__(self, step, inner, outer):
        self._step, self._inner, self._outer = step, inner, outer

    def __contains__(self, array):
        return array in self._inner or (self._outer is not None and array in self._outer)

    @property
    def has_arrays(self):
        return self._inner.has_arrays or (self._outer is not None and self._outer.has_arrays)

    def tensor_of(self, array, dtype=None):
        if array in self._inner:
            return self._inner.tensor_of(array, dtype)
        return self._outer.tensor_of(array, dtype) if self._outer is not None else stand_in(self._step, array, dtype)


class LateFeed(NamedTuple):
    """A tensor of this type (None: its own), among those that a call is given from outside, that is made of the number or array which an opaque call of it gives."""

    place: int
    of: Result
    dtype: Any


def make_late_feeds(record, external, results, step, first=0):
    """Appends the tensors of a record's `LateFeed`s to those that its call is given, or puts them there; `results`: what its opaque calls have given so far, `first`: how many of these were there before."""
    for place, of, dtype in record.late_feeds:
        if not first <= of.index < len(results):
            continue
        made = tfi.eager_constant(results[of.index], dtype)
        if step is not None:
            made = step.hold_data(noted(made))
        external[place:place + 1] = (made,)


class _Nothing:
    """No arrays and no numbers."""

    numbers = places = integers = MappingProxyType({})
    has_arrays = False
    calls = ()

    def part_for(self, x):
        return None

    def __contains__(self, array):
        return False

    def is_place(self, holder, key):
        return False

    def is_looked_at(self, ids):
        return False

    def looked_at(self, ids):
        return []

    def is_open(self, array):
        """Whether it is an argument whose sizes are left unknown."""
        return False

    def counts(self, function, asked):
        return None

    def counter(self, owner, name, value, more):
        return None

    def why_needed(self):
        return None

    def late(self, of, number, dtype):
        return number

    def take_over(self, made, of, dtype):
        pass


NO_DYNAMIC_VALUES = _Nothing()


class OpaqueNumbers(_Nothing):
    """Holds what varies of a call of which nothing else may: numbers and arrays that opaque calls give in it, and operations take."""

    def __init__(self, step, inputs):
        self._step, self._inputs = step, inputs
        self.repeated, self._made, self.late_feeds = [], [], []
        self._late = {}  # id of an array that an opaque call has given -> (it, `Result`)
        self.given = 0  # times that the run has given an array to something that may make a tensor of it
        self._converted = 0  # times that it did
        self._taken = []  # (an array of which a tensor was made, what it held)

    def __contains__(self, array):
        return id(array) in self._late

    @property
    def has_arrays(self):
        """Whether arrays vary."""
        return bool(self._late)

    def note_late(self, array, of):
        """An opaque call has given an array."""
        self._late[id(array)] = array, of

    def tensor_of(self, array, dtype=None):
        """A tensor that stands for an array; None if the array is none of these. `dtype`: a floating type, if it is to have that."""
        known = self._late.get(id(array))
        if known is None:
            return None
        self._converted += 1
        self._taken.append((array, array.tobytes()))
        made = self._step.hold_data(noted(tfi.eager_constant(array, dtype)))
        self.take_over(made, known[1], dtype)
        return made

    def why_needed(self):
        """Why it matters what is in the arrays, or what a number is worth; None if it does not."""
        if any(array.tobytes() != held for array, held in self._taken):  # the tensors of a replay are made of what it holds in the end
            return "changes an array that it has computed with"
        return "uses an array that varies other than as a tensor" if self.given != self._converted else None

    def is_looked_at(self, ids):
        """Whether Python has looked at a tensor of one."""
        return not all(is_unread(made) for made, _ in self._made)

    def late(self, of, number, dtype):
        """Returns a tensor that stands for the number which an opaque call has given; the number itself if there can be none."""
        if not dtype.is_floating or tfi.promotes():
            return number
        made = self._step.hold_data(noted(tfi.eager_constant(number, dtype)))
        self.take_over(made, of, dtype)
        return made

    def take_over(self, made, of, dtype):
        """A call within has taken the tensor `made`, which stands for what this opaque call has given."""
        self.late_feeds.append(LateFeed(len(self._inputs.external), of, dtype))
        self._inputs.external.append(made)
        self._made.append((made, None))
        self.repeated.append((of, dtype))
