"""The parts of a TraceGraph: operations of traces, and the nodes that stand for them."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Hashable, Iterator, Optional, Protocol, Sequence

ORDER = attrgetter("order")
_WIDE = 8  # a node with more successors than this finds them by key


class TraceOp:
    """One event of a trace: an operation that the program issued."""

    __slots__ = ("key", "sources", "payload")

    def __init__(self, key: Hashable, sources: Sequence[tuple[int, int]] = (), payload: Any = None):
        """`sources` holds, per value input, `(position, output_index)` of the earlier event that produced it."""
        self.key = key
        self.sources = tuple(sources)
        self.payload = payload

    def __repr__(self) -> str:
        return f"TraceOp({self.key!r}, {self.sources!r})"


class Node:
    """An operation of the TraceGraph.  Nodes are compared by identity."""

    __slots__ = ("id", "key", "payload", "slots", "succ", "pred", "order", "paths", "_followers", "__weakref__")

    def __init__(self, id: int, key: Hashable, payload: Any = None):
        self.id = id
        self.key = key
        self.payload = payload
        self.slots: list[list[Source]] = []  # per value input: all known producers, usually one
        self.succ: list[Node] = []
        self.pred: list[Node] = []
        self.order = 0  # topological number; renewed by each merge
        self.paths = 0  # bit i: it is on path i of `TraceGraph.traces`
        self._followers: Optional[dict[Hashable, list[Node]]] = None  # successors by key, if there are many

    def __repr__(self) -> str:
        return f"<Node {self.id}: {self.key!r}>"

    def followers(self, key: Hashable) -> Sequence[Node]:
        """The successors with this key, oldest edge first."""
        if self._followers is not None:
            return self._followers.get(key, ())
        return [succ for succ in self.succ if succ.key == key and key is not None]

    def link(self, succ: Node) -> None:
        """Adds the edge to `succ` if it is not there."""
        if self in succ.pred if len(succ.pred) < len(self.succ) else succ in self.succ:
            return
        self.succ.append(succ)
        succ.pred.append(self)
        if self._followers is None:
            if len(self.succ) <= _WIDE:
                return
            self._followers = {}
            new = self.succ
        else:
            new = [succ]
        for node in new:
            if node.key is not None:  # not the end of the graph
                self._followers.setdefault(node.key, []).append(node)


Source = tuple[Node, int]  # (producer, output index)


class Graph(Protocol):
    """A TraceGraph as those know it that only read it, so that they need not import `terra.graph.tracegraph`, which gives their results."""

    start: Node
    end: Node
    nodes: list[Node]
    traces: list[tuple[Node, ...]]

    def __len__(self) -> int: ...

    def topological(self) -> list[Node]: ...

    def edges(self) -> Iterator[tuple[Node, Node]]: ...


def gives(slots, sources, when, before=None) -> bool:
    """Returns whether the latest-source rule gives exactly `sources` to `slots` on a path that executed `when` (restricted to
    numbers less than `before`)."""
    if len(slots) != len(sources):
        return False
    for slot, source in zip(slots, sources):
        if len(slot) == 1:
            if slot[0] != source:
                return False
        elif source not in slot:
            return False
        else:
            latest = when[source[0]]
            for producer, _ in slot:
                at = when.get(producer, -1)
                if at > latest and (before is None or at < before):
                    return False
    return True
