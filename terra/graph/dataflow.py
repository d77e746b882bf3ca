"""Dataflow through switch-cases: which values each Case operation takes and returns (Terra, section 4.2).

Basic blocks communicate through an environment of *keys*.  A key is a variable that nodes assign when they execute:

* a `Value` has one assigning node: it is an output of that node;
* a `Slot` is the value input of a node (or of several nodes) whose producer depends on the path.  Each of its sources
  assigns it, so that it always holds that of the source executed latest, which is the rule of the TraceGraph.  The
  set of sources is the whole identity of a slot;
* an `ExtraSlot` is a mutable variable that the caller describes, such as a program variable whose new value is
  forwarded to later reads.

A Case operation returns every key that one of its branches assigns and that is live after it.  A branch that does not
assign it passes the incoming value through, or a dummy if there is none; hence an output that is not assigned by all
branches, and was assigned before, is an input too.  Liveness is the textbook backward analysis, done key by key over
the few items that mention the key: an item *kills* a key if all its branches assign it, and *exposes* a use if one of
its branches reads the key before assigning it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Hashable, Iterable, NamedTuple, Optional

from terra.graph.cases import SwitchCase
from terra.graph.nodes import Graph, Node


class Value(NamedTuple):
    """The key of one output of a node; equal to the tuple `(node, out)`."""

    node: Node
    out: int


class Slot:
    """The key of an input that has several sources.  There is one object for each set of sources in a plan."""

    __slots__ = ("sources",)

    def __init__(self, sources: tuple[tuple[Node, int], ...]):
        self.sources = sources

    def __repr__(self) -> str:
        return "Slot(" + " | ".join(f"{node.id}:{out}" for node, out in self.sources) + ")"


Key = Hashable


@dataclass
class ExtraSlot:
    """A mutable variable besides the values of the graph: each node in `defs` assigns its output to it when executed,
    each node in `uses` reads it (before it assigns it, if it does both)."""

    key: Key
    defs: dict[Node, int] = field(default_factory=dict)
    uses: set[Node] = field(default_factory=set)
    live_at_end: bool = False
    initial: bool = False  # it has a value before the first operation


@dataclass
class Branch:
    block: list[Node]


@dataclass
class Item:
    """One switch-case.  If not `is_case` it has one branch, which runs inline, and no inputs and outputs."""

    switch_case: int  # its index
    branches: list[Branch]
    is_case: bool
    inputs: list[Key] = field(default_factory=list)
    outputs: list[Key] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.switch_case


@dataclass
class DataflowPlan:
    """`slot_of[node, k]` is the key where `node` finds its k-th value input."""

    items: list[Item]
    slot_of: dict[tuple[Node, int], Key]
    _defined: dict[Node, list[tuple[Key, int]]] = field(repr=False, default_factory=dict)

    def keys_defined_by(self, node: Node) -> list[tuple[Key, int]]:
        """The keys that `node` assigns when it executes, each with the output that it gets."""
        return self._defined.get(node, [])


class _Mentions:
    """Where a key is mentioned: parallel lists, one entry for each item that does, in order."""

    __slots__ = ("items", "assigning", "exposed")

    def __init__(self):
        self.items: list[int] = []
        self.assigning: list[int] = []  # how many branches assign it
        self.exposed: list[bool] = []

    def at(self, item: int) -> int:
        if not self.items or self.items[-1] != item:
            self.items.append(item)
            self.assigning.append(0)
            self.exposed.append(False)
        return len(self.items) - 1


def make_plan(
    graph: Graph,
    switch_cases: list[SwitchCase],
    live_out: Iterable[tuple[Node, int]] = (),
    extra_slots: Iterable[ExtraSlot] = (),
) -> DataflowPlan:
    """The plan of the function that executes `switch_cases` one after another."""
    extra_slots = list(extra_slots)
    live_at_end = {Value(node, out) for node, out in live_out}
    nodes = graph.topological()
    slot_of, defined = _keys(nodes, live_at_end, extra_slots)
    reads: dict[Node, list[Key]] = {}
    for (node, _), key in slot_of.items():
        reads.setdefault(node, []).append(key)
    for extra in extra_slots:
        for node in extra.uses:
            reads.setdefault(node, []).append(extra.key)
        if extra.live_at_end:
            live_at_end.add(extra.key)

    items = []
    mentions: dict[Key, _Mentions] = {}
    for index, switch_case in enumerate(switch_cases):
        branches = [Branch(list(case.block)) for case in switch_case.cases]
        if switch_case.can_skip:
            branches.append(Branch([]))
        items.append(Item(index, branches, len(branches) > 1))
        for branch in branches:
            assigned: set[Key] = set()
            for node in branch.block:
                for key in reads.get(node, ()):
                    if key not in assigned:
                        entry = mentions.setdefault(key, _Mentions())
                        entry.exposed[entry.at(index)] = True
                for key, _ in defined.get(node, ()):
                    if key not in assigned:
                        assigned.add(key)
                        entry = mentions.setdefault(key, _Mentions())
                        entry.assigning[entry.at(index)] += 1

    initial = {extra.key for extra in extra_slots if extra.initial}
    # The keys are visited in the order in which the sweep met them: that fixes the order of inputs and outputs.
    for key, entry in mentions.items():
        first = _first_assigned(entry, key in initial)
        live = key in live_at_end
        for i in range(len(entry.items) - 1, -1, -1):
            item = items[entry.items[i]]
            kills = entry.assigning[i] == len(item.branches)
            passed = live and not kills  # the incoming value may survive the item
            if item.is_case:
                output = live and entry.assigning[i] > 0
                if output:
                    item.outputs.append(key)
                if (entry.exposed[i] or (output and passed)) and first is not None and first < entry.items[i]:
                    item.inputs.append(key)
            live = entry.exposed[i] or passed
    return DataflowPlan(items, slot_of, defined)


def _first_assigned(entry: _Mentions, initial: bool) -> Optional[int]:
    """The first item that assigns a key; -1 if it has a value before the first operation."""
    if initial:
        return -1
    return next((item for item, count in zip(entry.items, entry.assigning) if count), None)


def _keys(nodes, live_at_end, extra_slots):
    """`slot_of`, and the keys that each node assigns: values in the order of their first use, slots, extra slots."""
    slots: dict[frozenset, Slot] = {}
    values: dict[Value, Value] = {}
    slot_of: dict[tuple[Node, int], Key] = {}
    for node in nodes:
        for k, sources in enumerate(node.slots):
            if len(sources) == 1:
                value = Value(*sources[0])
                slot_of[node, k] = values.setdefault(value, value)
            else:
                identity = frozenset(sources)
                slot = slots.get(identity)
                if slot is None:
                    slot = slots[identity] = Slot(
                        tuple(sorted(sources, key=lambda source: (source[0].order, source[1])))
                    )
                slot_of[node, k] = slot
    for value in sorted(live_at_end, key=lambda value: (value.node.order, value.out)):
        values.setdefault(value, value)
    defined: dict[Node, list[tuple[Key, int]]] = {}
    for value in values:
        defined.setdefault(value.node, []).append((value, value.out))
    for slot in slots.values():
        for node, out in slot.sources:
            defined.setdefault(node, []).append((slot, out))
    for extra in extra_slots:
        for node, out in extra.defs.items():
            defined.setdefault(node, []).append((extra.key, out))
    return slot_of, defined
