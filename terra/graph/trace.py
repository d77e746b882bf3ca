"""Traces as they are recorded, and how they become a TraceGraph.

A raw trace is a list of `RawEvent`: one executed operation (or one fetch) with a reference for each flat input. Before merging it is brought into
canonical form (`TraceOp`): what an input *is* (a value of this step, a constant, a fed value, an argument of the step, a variable) is part of the node's
identity; shapes are not. Small external tensors are speculated to be constant; one whose value changed between traces is relaxed to a fed value for
good, and the graph is built again from the raw traces, so that nothing fails twice for the same reason.
"""

import operator
from collections import Counter

from terra.graph.nodes import TraceOp
from terra.graph.tracegraph import TraceGraph

FETCH, CHECK = "OutputFetching", "OutputChecking"  # the kinds of fetches, types of operations of Terra's own; of the second Python does not use the value, but waits for it in case that it cannot be computed
VALUE, CONST, FEED, ARG, RESOURCE = "v", "c", "f", "a", "r"


BUILDING_STEPS = 2  # steps that may create variables before a step that always does is believed to
MOST_VALUES = 3  # of integers that a traced function was given, after which the shapes of what it gives are taken for data


def is_value(key):
    """Returns whether a shape key tells the value of an input, (dtype enum, shape, bytes), and not only its shape."""
    return type(key) is tuple and len(key) == 3 and type(key[2]) is bytes


class Const:
    """A small external tensor and its value: `key` is (dtype enum, shape, bytes)."""

    __slots__ = ("oid", "key", "tensor")

    def __init__(self, oid, key, tensor):
        self.oid, self.key, self.tensor = oid, key, tensor


class RawEvent:
    """One event of a step as it was executed.

    refs: per flat input (VALUE, position, output) | (CONST, Const) | (FEED, object number, dtype enum) | (ARG, index, dtype enum) |
    (RESOURCE, handle). shape_key: what the output shapes followed from; out_shapes: per flat output a tuple, or what is known (a Partial, None) if it
    depends on data. line: `file.py:12`, for events that no instrumented call site need be near to. enums: the dtype enums of its inputs, if another
    call is to be compared with it. origin: ((path, line number) in the program, name scope) where it was first recorded, for names and listings only.
    """

    __slots__ = ("info", "location", "refs", "shape_key", "out_shapes", "out_enums", "template", "fast_attrs", "grad_attrs", "device", "line", "enums", "origin")

    @property
    def has_open_shape(self):
        """Whether the shape of an output depends on data."""
        return not all(type(shape) is tuple for shape in self.out_shapes)

    def __init__(self, info, location, refs, shape_key, out_shapes, out_enums, template, fast_attrs, grad_attrs, device="", line=None, enums=None, origin=None):
        self.info = info
        self.location = location
        self.refs = refs
        self.shape_key = shape_key
        self.out_shapes = out_shapes
        self.out_enums = out_enums
        self.template = template
        self.fast_attrs = fast_attrs
        self.grad_attrs = grad_attrs
        self.device = device  # where the outputs live
        self.line = line
        self.enums = enums
        self.origin = origin

    @property
    def signature(self):
        return (self.info.key, self.location)


class RawTrace:
    """The events of one step, and the values that outlived it as (position, output)."""

    __slots__ = ("events", "survivors", "creates_variables")

    def __init__(self):
        self.events = []
        self.survivors = []
        self.creates_variables = False


class NodePayload:
    """Payload of a TraceGraph node: the event that made it, the kinds of its inputs, and the output shapes seen so far."""

    __slots__ = ("event", "kinds", "shapes", "fixed")

    def __init__(self, event, kinds):
        self.event = event
        self.kinds = kinds  # per flat input: (VALUE,) | (CONST, Const) | (FEED, enum) | (ARG, i) | (RESOURCE, handle)
        self.shapes = {}
        self.fixed = None  # the key of the only shapes that the graph is right for, if it has no general form


def is_relaxed(relaxed, signature, occurrence, k):
    """Returns whether a constant is taken as a fed value."""
    return (signature, occurrence, k) in relaxed or (signature, None, k) in relaxed


def _numbered(events):
    """(event, its signature, how often that signature came before) for each event."""
    occurrences = {}
    for event in events:
        signature = event.signature
        occurrence = occurrences.get(signature, 0)
        occurrences[signature] = occurrence + 1
        yield event, signature, occurrence


def _is_function_of_values(event):
    """Returns whether the output shapes may follow from the values of inputs, in a way that no shape function tells."""
    return event.info.schema.is_function and any(map(is_value, event.shape_key))


class TraceStore:
    """All traces of one step function, and the TraceGraph they make."""

    def __init__(self):
        self.graph = TraceGraph()
        # (signature, occurrence, input) of constants that turned out not to be constant; occurrence None: wherever they occur
        self.relaxed = set()
        self._counts = {}  # signature -> how often it occurs in a trace
        self._shifting = set()  # signatures that occur now more, now less often: which occurrence is which, their numbers do not tell
        self.dynamic = set()  # signatures of operations whose output shapes depend on data
        self.live_out = set()  # (node, output) of values that outlive the step
        self.notes = {}  # of what its graphs note of variables, see `fallback.undo`
        self.version = 0  # counts changes
        self.inherits = None  # whether an input of a signature turned out not to be constant elsewhere, of which this is a part
        self.latest = None  # the last trace that was added, or left out: the next one shares the events that are the same
        self._path = None  # its nodes in the graph; None if it was left out, and the graph is as it was then
        self._raws = []
        self._const_keys = {}
        self._building = 0

    @property
    def n_traces(self):
        return len(self._raws)

    def resources(self):
        """{id: handle} of the variables in the TraceGraph."""
        return {id(kind[1]): kind[1] for node in self.graph.nodes for kind in node.payload.kinds if kind[0] == RESOURCE}

    def canonical(self, raw):
        """[TraceOp] of a raw trace under the present relaxations."""
        ops, fed = [], {}
        relaxed = self.relaxed
        for position, (event, signature, occurrence) in enumerate(_numbered(raw.events)):
            kinds, identity, sources = [], [], []
            for k, ref in enumerate(event.refs):
                kind = ref[0]
                if kind == CONST and is_relaxed(relaxed, signature, occurrence, k):
                    ref = (FEED, ref[1].oid, ref[1].key[0])
                    kind = FEED
                if kind == FEED and ref[1] in fed and fed[ref[1]][0] != position:  # (an op that takes it twice has two feeds)
                    ref = (VALUE, *fed[ref[1]])
                    kind = VALUE
                if kind == VALUE:
                    sources.append((ref[1], ref[2]))
                    kinds.append((VALUE,))
                    identity.append(VALUE)
                elif kind == FEED:
                    fed.setdefault(ref[1], (position, -1 - k))
                    kinds.append((FEED, ref[2]))
                    identity.append((FEED, ref[2]))
                elif kind == CONST:
                    kinds.append(ref)
                    identity.append((CONST, ref[1].key))
                elif kind == ARG:
                    kinds.append(ref)
                    identity.append(ref)
                else:
                    kinds.append(ref)
                    identity.append((RESOURCE, id(ref[1])))
            site = NodePayload(event, tuple(kinds))
            ops.append(TraceOp((signature, tuple(identity)), tuple(sources), site))
        return ops

    def add(self, raw, may_grow=True):
        """Merge a raw trace; True if it was not covered (new path, value that outlives the step, relaxation or kind of shape).

        Without `may_grow`, a new path is left out; a known one still teaches its shapes.
        """
        if raw.creates_variables and self._building < BUILDING_STEPS:
            self._building += 1
            return True  # as a rule its path cannot come again: the variables exist now
        if self.inherits is not None and not self._raws:
            self._relax_inherited(raw)
        latest = self.latest
        if latest is not None and len(raw.events) == len(latest.events) and all(map(operator.is_, raw.events, latest.events)):
            if not may_grow if self._path is None else all((self._path[position], output) in self.live_out for position, output in raw.survivors):
                return False
        if not may_grow and self.graph.find_path(self.canonical(raw)) is None:
            self.latest, self._path = raw, None
            return False
        rebuilt = self._relax_changed_constants(raw)
        changed = self._merge(raw)
        if changed or rebuilt:
            self._raws.append(raw)
            self.version += 1
        return changed or rebuilt

    def _relax_inherited(self, raw):
        for event in raw.events:
            for k, ref in enumerate(event.refs):
                if ref[0] == CONST and self.inherits(event.signature, k):
                    self.relaxed.add((event.signature, None, k))

    def _relax_changed_constants(self, raw):
        found = self._note_counts(raw)
        for event, signature, occurrence in _numbered(raw.events):
            for k, ref in enumerate(event.refs):
                if ref[0] != CONST and ref[0] != FEED:
                    continue
                key = ref[1].key if ref[0] == CONST else FEED  # what is small enough to be a constant in one step may be too large in another
                if self._const_keys.setdefault((signature, occurrence, k), key) != key and not is_relaxed(self.relaxed, signature, occurrence, k):
                    self.relaxed.add((signature, None if signature in self._shifting else occurrence, k))
                    found = True
        if found:
            self.rebuild()
        return found

    def _note_counts(self, raw):
        """Learn which signatures are shifting; True if constants are relaxed because of that."""
        found = False
        for signature, count in Counter(event.signature for event in raw.events).items():
            if signature not in self._shifting and self._counts.setdefault(signature, count) != count:
                self._shifting.add(signature)
                places = {(signature, None, k) for other, _, k in self.relaxed if other == signature}
                found = found or bool(places)
                self.relaxed |= places
        return found

    def rebuild(self):
        """Build the graph again from the raw traces, under the present relaxations."""
        self.graph = TraceGraph()
        self.live_out = set()
        self.latest = self._path = None
        raws, self._raws = self._raws, []
        for raw in raws:
            if self._merge(raw):
                self._raws.append(raw)
        self.version += 1

    def _merge(self, raw):
        ops = self.canonical(raw)
        changed = self.graph.merge(ops)
        path = self.graph.find_path(ops)
        self.latest, self._path = raw, path
        taught = False
        for node, event in zip(path, raw.events):
            site = node.payload
            if event.signature in self.dynamic:
                continue  # what is known of its shapes the runtime asks its shape function
            if site.fixed is not None and event.shape_key != site.fixed:
                site.fixed, taught = None, True
            if site.shapes.setdefault(event.shape_key, event.out_shapes) != event.out_shapes or (
                    len(site.shapes) > MOST_VALUES and _is_function_of_values(event)):
                self.dynamic.add(event.signature)
                for other in self.graph.nodes:
                    if other.payload.event.signature == event.signature:
                        other.payload.shapes.clear()
                changed = True
        self.version += taught  # no new path: the same traces make another graph
        for position, output in raw.survivors:
            value = (path[position], output)
            if value not in self.live_out:
                self.live_out.add(value)
                changed = True
        return changed
