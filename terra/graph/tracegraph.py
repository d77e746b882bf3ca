"""The TraceGraph: every execution path seen so far, merged into one directed acyclic graph (Terra, section 4.1, and
section A of its supplement).

A *trace* is the sequence of operations that one step of a program issued.  Two operations are the same node if their
type, attributes and executed location agree (all folded into ``TraceOp.key``).  Merging walks a new trace along the
graph from ``start``, branches where it differs, rejoins where it meets a known node again, and finishes with an edge to
``end``.  A walk visits known nodes in strictly increasing topological order, so every edge that it adds points forward:
the graph stays a DAG with one source and one sink.

**Dataflow belongs to the graph.**  An input of a node may come from different producers on different paths.  Nothing
is stored per path: a slot only knows its set of producers, and the value that a path uses is that of the producer that
the path executed *latest* before the node.  In other words a slot with several producers is a variable that each of
them assigns.  Merging matches an operation with a node only if this rule stays right for the new trace and for every
trace that was merged before (otherwise it branches, and the operation becomes a node of its own).  Hence a graph and a
path together determine all dataflow, and a path whose producers were never seen is a new trace.

**Walking needs no search.**  A runner that follows a program must know its node at once, without seeing what comes
next.  It takes the first successor that has the operation's key and gives the operation its sources
(`TraceGraph.successor`).  Merging keeps this walk right for every merged trace: new edges are appended, and a node
gets a new source only if no merged trace that goes to a sibling with the same key would now be drawn to it.
`find_path` is this walk, so "covered" means the same here and in a runner.
"""

from __future__ import annotations

from typing import Callable, Hashable, Iterator, Mapping, Optional, Sequence

from terra.graph.matching import Matching
from terra.graph.nodes import ORDER, Node, Source, TraceOp, gives


class TraceGraph:
    """All traces of one program, merged.

    `nodes` are in the order of their creation (`nodes[i].id == i`), without `start` and `end`.  `traces` are the
    distinct paths that were merged.
    """

    def __init__(self) -> None:
        self.start = Node(-1, None)
        self.end = Node(-2, None)
        self.end.order = 1
        self.start.paths = -1  # on every path
        self.nodes: list[Node] = []
        self.traces: list[tuple[Node, ...]] = []
        self.ordered: list[Node] = []
        self.by_key: dict[Hashable, list[Node]] = {}  # in topological order
        self.users: dict[tuple[Source, Hashable], list[Node]] = {}  # the nodes with this key that use this source

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        edges = sum(1 for _ in self.edges())
        return f"<TraceGraph: {len(self.nodes)} nodes, {edges} edges, {len(self.traces)} traces>"

    def topological(self) -> list[Node]:
        """The nodes, without start and end, in topological order."""
        return list(self.ordered)

    def edges(self) -> Iterator[tuple[Node, Node]]:
        """All edges, those from `start` and to `end` included, in topological order of their first nodes."""
        for node in (self.start, *self.ordered):
            for succ in node.succ:
                yield node, succ

    def switch_cases(self):
        """The ordered list of switch-cases of this graph (`terra.graph.cases`)."""
        from terra.graph.cases import assign_cases

        return assign_cases(self)

    def to_dot(self, label: Optional[Callable[[Node], str]] = None, by: str = "op") -> str:
        """This graph as Graphviz text (`terra.graph.dot`); `by` says what becomes one box: "op", "line" or "layer"."""
        from terra.graph.dot import to_dot

        return to_dot(self, label, by)

    def listing(self, most: Optional[int] = 200) -> str:
        """This graph by the lines of the program, with at most so many lines of text (`terra.graph.listing`)."""
        from terra.graph.listing import listing

        return listing(self, most)

    def __str__(self) -> str:
        return self.listing()

    def _repr_html_(self) -> str:
        from terra.graph.listing import to_html

        return to_html(self)

    def successor(
        self, node: Node, key: Hashable, sources: Sequence[Source], when: Mapping[Node, int]
    ) -> Optional[Node]:
        """Where a path at `node` goes if it executes `key` on `sources`; None if that is not a known path.

        `when` gives, for each node that the path has executed, a number that increases along the path.
        """
        for candidate in node.succ if node._followers is None else node.followers(key):
            if candidate.key == key and key is not None and gives(candidate.slots, sources, when):
                return candidate
        return None

    def find_path(self, trace: Sequence[TraceOp]) -> Optional[tuple[Node, ...]]:
        """The path of `trace` if the graph covers it, else None.

        Covered means that each step is a known edge and the latest-source rule gives each operation its sources; the
        trace as a whole need not have been merged.
        """
        path, _, _ = self._walk(trace)
        return tuple(path) if len(path) == len(trace) and self._may_end(path) else None

    def _walk(self, trace):
        """The nodes that the first operations of `trace` go to along known edges, as far as that leads; the number of
        each; and the sources of each as nodes."""
        path: list[Node] = []
        when: dict[Node, int] = {}
        mapped: list[list[Source]] = []
        node: Optional[Node] = self.start
        for position, op in enumerate(trace):
            sources = [(path[p], out) for p, out in op.sources]
            node = self.successor(node, op.key, sources, when)
            if node is None:
                break
            path.append(node)
            when[node] = position
            mapped.append(sources)
        return path, when, mapped

    def _may_end(self, path) -> bool:
        return self.end in (path[-1] if path else self.start).succ

    # ------------------------------------------------------------------ merging

    def merge(self, trace: Sequence[TraceOp]) -> bool:
        """Adds `trace`; False, and nothing changes, if the graph covers it already."""
        _check(trace)
        walked = self._walk(trace)
        if len(walked[0]) == len(trace) and self._may_end(walked[0]):
            return False
        self._commit(*Matching(self, trace, *walked).find())
        return True

    def _commit(self, path: list[Node], gained: dict[Node, list[Optional[Source]]]) -> None:
        """Links a matched path into the graph."""
        known_before = len(self.nodes)
        for node, extra in gained.items():
            for slot, source in zip(node.slots, extra):
                if source is not None:
                    slot.append(source)
                    self._use(source, node)
        before: dict[Node, list[Node]] = {}
        segment: list[Node] = []
        for node in path:
            if node.id >= known_before:
                self.nodes.append(node)
                segment.append(node)
                for slot in node.slots:
                    self._use(slot[0], node)
            elif segment:
                before[node] = segment
                segment = []
        here = self.start
        for node in (*path, self.end):
            here.link(node)
            here = node
        # New nodes stand right before the node where the trace rejoined (or last): they follow the last known node of
        # the path, whose order is less, and the other nodes keep their relative order.
        if len(self.nodes) > known_before:
            renewed: list[Node] = []
            for node in self.ordered:
                if node in before:
                    renewed += before[node]
                renewed.append(node)
            renewed += segment
            self.ordered = renewed
            for order, node in enumerate(renewed, 1):
                node.order = order
            self.end.order = len(renewed) + 1
            touched = set()
            for node in self.nodes[known_before:]:
                self.by_key.setdefault(node.key, []).append(node)
                touched.add(node.key)
            for key in touched:
                self.by_key[key].sort(key=ORDER)
        self.traces.append(tuple(path))
        bit = 1 << len(self.traces) - 1
        for node in path:
            node.paths |= bit

    def _use(self, source: Source, node: Node) -> None:
        users = self.users.setdefault((source, node.key), [])
        if not users or users[-1] is not node:
            users.append(node)


def _check(trace: Sequence[TraceOp]) -> None:
    for position, op in enumerate(trace):
        for source, _ in op.sources:
            if not 0 <= source < position:
                raise ValueError(f"{op!r}, event {position} of a trace, takes a value from event {source}")
