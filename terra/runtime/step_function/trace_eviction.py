"""Trace eviction: which traces of a step function nobody needs any more.

One that goes on with other variables (the next model of a cross-validation, of a search) needs none of those before. Merged with the new ones they
would make a graph that branches at each variable, hold the old model in memory, and use up `max_traces`. So they are forgotten. Where the old
variables come back (models that take turns), they were needed: from then on all traces are merged. So it is with a few new variables that just take
the places of others (metrics that are made for each epoch). Where they come with new operations, all are merged until `max_traces` is reached.

Training has phases, too: the first step, a warm-up, some epochs with a part of the model frozen. Once many steps in a row have taken one path, with
arguments of the same shapes (the last batch of an epoch may be smaller), the next ones are traced anew, and the graph that is made of these traces
alone, without branches, with more constants, replaces the old one. Should another path be taken after all, that is one more fallback, and next time
it takes more steps. Steps in segments become whole again in the same way, once their loops no longer vary.
"""

from terra.graph.trace import RESOURCE

_MOST_FORGOTTEN = 100_000  # variables that are remembered
_STEPS = 100  # in a row along one path, after which the others are forgotten
_RARER = 8  # times as many the next time
_MOST_TRACED = 4  # steps, for a graph of that path alone


class TraceEviction:
    """Decides when one step function forgets traces, and remembers what it has forgotten."""

    def __init__(self):
        self.takes_turns = False  # whether variables that were forgotten have come back
        self.is_known = False  # whether the trace that was due last does what the one before did, with other variables: it need not come again
        self._forgotten = set()  # what tells their handles from all others, also when they are gone
        self._path = None  # of the last step
        self._steps = 0  # in a row along it
        self.narrowed = 0  # times that other paths were forgotten
        self._to_trace = 0  # steps that may be traced because of that

    def has_settled(self, path):
        """A step of a function with several traces was co-executed along this path, which tells shapes apart: whether the other ones are to be forgotten."""
        if path != self._path:
            self._path, self._steps = path, 0
        self._steps += 1
        return self._steps >= _STEPS * _RARER ** self.narrowed

    def note_fallback(self):
        """The step has left the path that it was on."""
        self._path = None

    def narrow(self):
        """Asks for the next steps to be traced."""
        self.narrowed += 1
        self._path, self._to_trace = None, _MOST_TRACED

    @property
    def wants_traces(self):
        """Whether the next step is to be traced."""
        return self._to_trace > 0

    def traces(self):
        """Returns whether the step that begins is to be traced; counts it if so."""
        if not self._to_trace:
            return False
        self._to_trace -= 1
        return True

    def has_traced(self):
        """There are traces enough for a graph."""
        self._to_trace = 0

    def is_due(self, store, raw, is_full):
        """Returns whether what is in the TraceStore is to be forgotten: most variables of the new trace `raw` are others; or some, and they have
        taken the places of others, or the store `is_full`."""
        if self.takes_turns:
            return False
        known = store.resources()
        used = {id(ref[1]): ref[1] for event in raw.events for ref in event.refs if ref[0] == RESOURCE}
        new = [handle for key, handle in used.items() if key not in known]
        if not known or not new:
            return False
        self.is_known = _are_in_places_of_others(store.latest, raw, used)
        if 2 * len(new) <= len(used) and not is_full and not self.is_known:
            return False
        if 2 * sum(handle._id in self._forgotten for handle in new) >= len(new):
            self.takes_turns = True
            return False
        if len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.clear()
        self._forgotten.update([handle._id for key, handle in known.items() if key not in used])
        return True


def _are_in_places_of_others(before, after, used):
    """Returns whether a trace does what the one before did, but for variables that are used no more; `used`: those of the new one, by id."""
    if before is None or len(before.events) != len(after.events):
        return False
    places = {}
    for a, b in zip(before.events, after.events):
        if a.info is not b.info or a.location is not b.location:
            return False
        for old, new in zip(a.refs, b.refs):
            if old[0] != new[0] or (old[0] == RESOURCE and places.setdefault(id(old[1]), new[1]) is not new[1]):
                return False
            if old[0] == RESOURCE and old[1] is not new[1] and id(old[1]) in used:
                return False
    return True
