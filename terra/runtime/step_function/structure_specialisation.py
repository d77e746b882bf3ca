"""Recurring structures: steps that are cut into segments, but whose arguments come again and again in the same shapes.

A rolled step needs no new graph for a new tree or a new length, and pays for that with Python's work between the segments. Where the same structure
recurs, epoch after epoch, a graph of its own for the whole step is faster: it is what unrolling the loops for this one structure gives, and its
Python is skipped where that is possible. So each structure that has taken the same path through the segments several times gets an unrolled function
of its own, as long as tracing and generating those takes no more than a part of the time that the program runs, and their number is bounded. Once it
is known what such functions cost and save, the next structure gets one when it has come so often that one can be expected to pay for itself.

The key that stands for a structure only chooses which of the functions runs a step. It need not be right: what such a function assumes is checked as
in any other, and one that falls back again and again is given up.
"""

import math
import sys

import numpy as np

from terra.runtime.fallback.policy import Policy
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi

TIMES = 3  # that a structure must have taken the same path
_CHANGES = 4  # of that path, with the same graphs; each further one doubles the times
MOST = 64  # structures of one function with a graph of their own
SHARE = 1.0  # of the time that all steps have taken, which tracing, generating and recording for single structures may take; half of that if steps do not become twice as short
SHARE_OF_WHOLE = 0.1  # the same where steps are not in segments, so that there is less to gain
LARGEST = 4000  # operations of a step that is unrolled
_MOST_SEEN = 512  # structures that are remembered
_MOST_PARTS = 4000  # of an argument that are looked at
_MISSES = 2  # fallbacks of a function for one structure, after which it is given up (and one more for each 50 steps)
_COSTS = 3, 0  # of the first and the second step that is traced, in times that it takes: generating, in the background, costs about as much as one of them
_MOST_GIVEN_UP = 4  # after so many, no structure of this function gets one
_ENOUGH, _ENOUGH_STEPS = 3, 5  # functions, and steps of each, that are compared with the segments
_MOST_UNKNOWN = 8  # functions until it is known whether they pay
_FAIR, _LOSS = 12, 1.2  # a function whose steps, after so many, have all taken more than so many times as long as in segments is given up
_TO_COME = 4  # times as often as it has come, a structure is expected to come: it is data for some epochs
_WORTH = 0.9  # no further structure gets a function if steps take more than so many times as long as in segments

_ARRAYS = frozenset([tfi.EagerTensor, TerraTensor, np.ndarray])
_BY_VALUE = frozenset([int, float, bool, str, bytes, type(None)])


def structure_key(args, kwargs):
    """Makes a key of the arguments: shapes of tensors and arrays, also of those that an object holds, values of plain Python objects, the identity of
    all others. None if they have too many parts."""
    parts, todo = [], [kwargs, args]
    while todo:
        value = todo.pop()
        kind = type(value)
        if kind in _BY_VALUE:
            parts += (kind, value)
        elif kind is tfi.EagerTensor or kind is TerraTensor:
            parts += (value._datatype_enum(), value._shape_tuple())
        elif kind is list or kind is dict or issubclass(kind, tuple):
            if len(parts) + len(value) > _MOST_PARTS:
                return None
            parts += (kind, len(value))
            if kind is dict:
                parts += map(id, value)
                value = value.values()
            todo += value
        elif kind is np.ndarray:
            parts += (value.dtype, value.shape)
        else:
            held = getattr(value, "__dict__", None)
            if type(held) is dict and len(held) < _MOST_PARTS and not tfi.is_variable(value) and not _ARRAYS.isdisjoint(map(type, held.values())):
                parts += (kind, len(held))  # a batch, which is made anew for each step
                todo += held.values()
            else:
                parts.append(id(value))
    return tuple(parts)


class SpecialisationPolicy(Policy):
    """The policy of the function for one structure: whether to go on with it is decided by `StructureSpecialisation`."""

    def __init__(self, name):
        super().__init__(name)
        self.misses = self.steps = self.traces = 0
        self.shortest = self.shortest_in_pieces = math.inf  # seconds from the beginning of a step to that of the next one

    def imperative(self):
        return False

    def wants_sample(self):
        return False

    def took(self, coexecuted, seconds):
        pass

    def traced(self, covered):
        pass

    def coexecuted(self):
        self.steps += 1

    def fell_back(self, reason):
        self.misses += 1

    def raised(self, error):
        pass

    def cannot(self, reason):
        self.misses = sys.maxsize

    @property
    def failed(self):
        return self.misses > _MISSES + self.steps // 50

    @property
    def is_loss(self):
        return self.steps >= _FAIR and self.shortest > _LOSS * self.shortest_in_pieces


class _Seen:
    """Notes on a structure whose steps run in segments."""

    __slots__ = ("path", "times", "graphs", "changes", "shortest", "total")

    def __init__(self, path, graphs, changes, total=0):
        self.path = path  # that its last step took
        self.graphs = graphs  # how many there were then
        self.times = 0  # how many steps in a row took it
        self.total = total  # how many steps there were
        self.changes = changes  # how often it has taken another one than the step before, though there was no new graph
        self.shortest = math.inf  # seconds, as in `SpecialisationPolicy`

    @property
    def needed(self):
        """How many steps in a row must take the same path: where it is data that decides, as at the end of an episode, a few do by chance."""
        return TIMES << min(max(self.changes - _CHANGES, 0), 20)


class StructureSpecialisation:
    """The structures that one rolled function was given, and the functions of those that recur."""

    def __init__(self, make, share=SHARE):
        """make: gives the function for one more structure. share: of the time, for that (see `SHARE`)."""
        self.make, self.share = make, share
        self.functions = {}  # structure -> its function; None once that was given up
        self._seen = {}  # structure -> `_Seen`
        self._spent = 0.0  # seconds, on tracing and generating for single structures
        self._took = 0.0  # seconds, all steps
        self._given_up = 0
        self._last = None  # (`SpecialisationPolicy` or `_Seen` that wants to know how long the last step took, when that began)

    def find(self, structure, now):
        """The function that is to run a step that begins now, or None for the segments."""
        if self._last is not None:
            whose, began = self._last
            whose.shortest = min(whose.shortest, now - began)  # with what the program does between steps: it may wait for the graph there
            self._last = None
        function = self.functions.get(structure)
        if function is not None:
            return function if function.options.wait_for_graph or not function.generation.runs else None
        seen = self._seen.get(structure)
        if seen is None or seen.times < seen.needed or structure in self.functions or len(self.functions) >= MOST or self._given_up >= _MOST_GIVEN_UP:
            return None
        if not self._pays(seen):
            return None
        function = self.functions[structure] = self.make()
        function.policy.shortest_in_pieces = seen.shortest
        del self._seen[structure]
        return function

    def _pays(self, seen):
        """Returns whether there is time for another function, steps of the structures that have functions became shorter, as far as is known, and so
        much that one will pay for itself for this structure."""
        known = [f.policy for f in self.functions.values() if f is not None and f.policy.steps >= _ENOUGH_STEPS]
        ours, in_pieces = sum(p.shortest for p in known), sum(p.shortest_in_pieces for p in known)
        if self._spent > self._took * (self.share if 2 * ours <= in_pieces else self.share / 2):
            return False
        if len(known) < _ENOUGH:
            return len(self.functions) < _MOST_UNKNOWN
        return ours <= _WORTH * in_pieces and _TO_COME * seen.total * (in_pieces - ours) / len(known) >= self._spent / len(self.functions)

    def ran(self, structure, path, began, now, graphs=0):
        """A step ran in segments; path: stands for what segments these were, None if they are not all known or too many. graphs: how many there are."""
        self._took += now - began
        if structure in self.functions:
            return
        seen = self._seen.pop(structure, None)
        if seen is None or seen.path != path or path is None:
            changed = seen is not None and path is not None and seen.path is not None and seen.graphs == graphs
            seen = _Seen(path, graphs, *((0, 0) if seen is None else (seen.changes + changed, seen.total)))
        seen.total += 1
        if path is not None:
            seen.times += 1
            self._last = seen, began
        self._seen[structure] = seen
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def ran_by_itself(self, structure, coexecuted, began, now):
        """The function for this structure ran a step. Returns it if it is given up now."""
        self._took += now - began
        function = self.functions[structure]
        policy = function.policy
        if coexecuted:
            self._last = policy, began
            self._spent += max(0.0, now - began - policy.shortest_in_pieces)  # what is skipped later is recorded first
        else:
            self._spent += (now - began) * (_COSTS[policy.traces] if policy.traces < len(_COSTS) else 1)
            policy.traces += 1
        if not policy.failed and not policy.is_loss:
            return None
        self.functions[structure] = None
        self._given_up += 1
        return function
