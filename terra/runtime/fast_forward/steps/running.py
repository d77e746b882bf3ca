"""Runs a prepared step: what it uses in place of a skeleton while it runs: feeds, and the owner of tensors that are there at once."""

import time

from terra.runtime.execution.graph_runner import AT_ONCE
from terra.runtime.interpreter import spans


class Feeds:
    """Stands in for the skeleton: takes what `replay_record.bind_inputs` feeds in an express step: it takes this for the skeleton."""

    __slots__ = ("values", "fed_by_key", "_of")
    step = None

    def __init__(self, n, of):
        """of: the name of the step function."""
        self._of = of
        self.values = [None] * n
        self.fed_by_key = {}

    def note_fed(self, key, shape, x):
        self.fed_by_key[key] = x

    def _feed(self, slot, value):
        recorder = spans.recorder
        if recorder is not None:
            recorder.instant(spans.FEED, self._of, slot.feed)
        self.values[slot.feed.index] = value


class Ran:
    """Owns the tensors of steps that were run, not dispatched: tells whether Python still waits for each step at once."""

    __slots__ = ("counts", "at", "read")

    def __init__(self, counts):
        self.counts = counts
        self.at = 0.0  # when the last one returned
        self.read = True  # whether anything of it was looked at since

    def read_again(self, tensor):
        pass

    def materialise(self, tensor):
        if not self.read:
            self.read = True
            if time.perf_counter() - self.at >= AT_ONCE:
                self.counts.waited_at_once = 0
        value = tensor._value = tensor._hidden
        tensor._owner = None
        return value
