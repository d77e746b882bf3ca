"""Normalised locations: the executed location of an operation without the counters of loops that vary, and without the depth of a recursion.

A step whose loops run another number of times each time, or that walks trees, issues operations at ever new executed locations, though its code is
finite. Here a location is mapped to its *place* (the same tree of locations, in which loops that vary have the counter 0 and a recursive call continues where
its function was entered first) and to its *region*: the iteration, or the recursive call, that it belongs to. Operations of one region are one segment of
the step (see `terra.runtime.loops.segments`).

Nothing here knows TensorFlow.
"""

from terra.location.location import ROOT, site

_MOST = 100_000  # locations remembered


class NormalisedLocations:
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
        entered = {}  # function -> place where it was entered first
        for node, function in _frames(location):
            if function is not None:
                if function in entered:  # a recursive call
                    place = entered[function]
                    region = node.parent
                else:
                    entered[function] = place
            if node.counter is None:
                place = place.call(node.id)
            elif node.id in self.varying:
                place = place.loop(node.id)
                region = node
            else:
                place = place.loop(node.id)
                for _ in range(node.counter):
                    place = place.next or place.grow()
        return place, region


def _frames(location):
    """(node, function that was entered here or None) for the nodes on the way to `location`.

    A call's arguments are computed at the call's location, in the caller's frame; behind any other call site comes the frame of the callee.
    """
    before = None
    for node in location._walk():
        if before is None:
            entered = True
        elif before.counter is not None:
            entered = False
        else:
            first, end = site(before.id).arguments
            entered = not first <= node.id < end
        code = site(node.id)
        yield node, (code.filename, code.function) if entered else None
        before = node


def trip_counts(locations):
    """{(location around the loop, loop id): largest counter} of the loops that these locations were in."""
    counts = {}
    for location in locations:
        for key, count in _about(location)[0]:
            if counts.get(key, -1) < count:
                counts[key] = count
    return counts


def is_recursive(location):
    """Whether some function was entered again before it was left, on the way to `location`."""
    return _about(location)[1]


_known = {}  # location -> what `_about` tells: each trace asks for the same ones


def _about(location):
    """(((location around the loop, loop id), counter) of each loop around it, whether it is in a recursive call) of a location."""
    known = _known.get(location)
    if known is None:
        if len(_known) > _MOST:
            _known.clear()
        loops = tuple([((node.parent, node.id), node.counter) for node in location._walk() if node.counter is not None])
        entered = [function for _, function in _frames(location) if function is not None]
        known = _known[location] = loops, len(entered) > len(set(entered))
    return known
