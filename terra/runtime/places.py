"""Normalised locations: the executed location of an operation without the counters of loops that vary, and without the depth of a recursion.

A step whose loops run another number of times each time, or that walks trees, issues operations at ever new executed locations, though its code is
finite. Here a location is mapped to its *place* (the same tree of locations, in which loops that vary have the counter 0 and a recursive call continues where
its function was entered first) and to its *region*: the iteration, or the recursive call, that it belongs to. Operations of one region are one piece of
the step (see `terra.runtime.pieces`).

Nothing here knows TensorFlow.
"""

from terra.runtime.location import ROOT, site

_MOST = 100_000  # locations remembered


class Places:
    """The mapping for one step function. `varying`: the ids of the loops that are rolled."""

    def __init__(self, varying=()):
        self.varying = set(varying)
        self._known = {}

    def __call__(self, location):
        """(place, region) of a location."""
        known = self._known.get(location)
        if known is None:
            if len(self._known) > _MOST:
                self._known.clear()
            known = self._known[location] = self._compute(location)
        return known

    def _compute(self, location):
        place = region = ROOT
        entered = {}  # function -> (place, region) where it was entered first
        at_entry = True
        for node in location._walk():
            if at_entry:
                code = site(node.id)
                function = code and (code.filename, code.function)
                if function in entered:  # a recursive call
                    place = entered[function]
                    region = node.parent
                else:
                    entered[function] = place
                at_entry = False
            if node.counter is None:
                place = place.call(node.id)
                at_entry = True
            elif node.id in self.varying:
                place = place.loop(node.id)
                region = node
            else:
                place = place.loop(node.id)
                for _ in range(node.counter):
                    place = place.next or place.grow()
        return place, region


def trip_counts(locations):
    """{(location around the loop, loop id): largest counter} of the loops that these locations were in."""
    counts = {}
    for location in locations:
        for node in location._walk():
            if node.counter is not None:
                key = (node.parent, node.id)
                if counts.get(key, -1) < node.counter:
                    counts[key] = node.counter
    return counts


def is_recursive(location):
    """Whether some function was entered more than once on the way to `location`."""
    entered = set()
    at_entry = True
    for node in location._walk():
        if at_entry:
            code = site(node.id)
            function = code and (code.filename, code.function)
            if function in entered:
                return True
            entered.add(function)
        at_entry = node.counter is None
    return False


def varying_loops(counts, others):
    """Ids of the loops that two traces ran a different number of times."""
    return {loop_id for (parent, loop_id), n in counts.items() if others.get((parent, loop_id), n) != n}
