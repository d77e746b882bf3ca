"""Late reads: numbers that a step reads of tensors only to give them back, as in `return float(loss)`.

They are others at each step, so a step that reads them could never be skipped, if it looked at them. Where it does not, they are read when it is skipped,
too. The observer is shown the operands of nearly all that the step's code does: a number that becomes one, other than to be bound, returned or put into a list,
tuple or dict, is not late any more. Only numbers of tensors without dimensions are late: arrays can be changed, viewed and taken apart in too many ways.
"""

from typing import NamedTuple

import numpy as np


class Late(NamedTuple):
    """A number that a call has read, and gives back without a look at it."""

    node: object  # of the fetch
    how: object


class Received(NamedTuple):
    """A tensor of which a call has read the value, and which it gives as well."""

    key: object
    node: object  # of the fetch


class LateReads:
    """Numbers that were read of tensors and, so far, not looked at: (it, the tensor's key, how it was read, how many reads that took) by id.

    `varying`: the numbers that the run was given (see `Varying`): it is noted which of them are looked at.
    """

    def __init__(self, varying):
        self.held = {}
        self._varying = varying
        self._numbers = varying.numbers
        self._seen = set()

    def read(self, runner, tensor, how):
        """`how(tensor)`"""
        before = runner.step.counts.fetches + len(runner.read_twice)
        value = how(tensor)
        n = runner.step.counts.fetches + len(runner.read_twice) - before
        if n and tensor._shp == () and isinstance(value, (float, np.number)):  # others, such as `np.True_`, may be shared, or taken apart
            self.held[id(value)] = value, tensor._key, how, n
        return value

    def looked_at(self, value):
        self.held.pop(id(value), None)
        if id(value) in self._numbers:
            self._seen.add(id(value))

    def number(self, value):
        """The place, among those that vary, of a number that the run gives or keeps; None if it is none of them."""
        known = self._numbers.get(id(value))
        return None if known is None else known[1]

    def looks_at_numbers(self):
        return self._varying.is_looked_at(self._seen)

    def places(self):
        """Where the numbers are that were looked at."""
        return self._varying.looked_at(self._seen)

    def times(self, key):
        """How often the value of this key was read so."""
        return sum(n for _, k, _, n in self.held.values() if k is key)

