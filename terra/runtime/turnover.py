"""Turnover: a step function that goes on with other variables (the next model of a cross-validation, of a search) has traces that nobody needs any more.

Merged with the new ones they would make a graph that branches at each variable, hold the old model in memory, and use up `max_traces`. So they are forgotten. Where the
old variables come back (models that take turns), they were needed: from then on all traces are merged.
"""

from terra.graph.trace import RESOURCE

_MOST_FORGOTTEN = 100_000  # variables that are remembered


class Turnover:
    """What one step function has forgotten."""

    def __init__(self):
        self.takes_turns = False  # whether variables that were forgotten have come back
        self._forgotten = set()  # what tells their handles from all others, also when they are gone

    def is_due(self, store, raw):
        """Whether what is in the TraceStore is to be forgotten, because most variables of the new trace `raw` are others."""
        if self.takes_turns:
            return False
        known = store.resources()
        used = {id(ref[1]): ref[1] for event in raw.events for ref in event.refs if ref[0] == RESOURCE}
        if not known or 2 * len(known.keys() & used.keys()) >= len(used):
            return False
        if 2 * sum(handle._id in self._forgotten for handle in used.values()) >= len(used):
            self.takes_turns = True
            return False
        if len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.clear()
        self._forgotten.update([handle._id for handle in known.values()])
        return True
