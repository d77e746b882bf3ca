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

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any, Callable, Hashable, Iterator, Mapping, Optional, Sequence

_ORDER = attrgetter("order")

# What bounds the work for one operation, so that merging stays near-linear when one key repeats thousands of times: how
# many of the following operations of a trace are looked at before a rejoin skips known nodes, how many candidates are
# tried, and how many steps of searching and renumbering a whole trace may take, per operation.  A worse choice costs
# nodes, never correctness.
_WINDOW = 16
_CANDIDATES = 256
_TELLING = 4  # a source tells nodes apart if no more than so many nodes with one key use it
_EFFORT = 8

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
        self._topological: list[Node] = []
        self._by_key: dict[Hashable, list[Node]] = {}  # in topological order
        self._users: dict[tuple[Source, Hashable], list[Node]] = {}  # the nodes with this key that use this source
        self._effort = 0  # what is left for the trace that is being matched

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        edges = sum(1 for _ in self.edges())
        return f"<TraceGraph: {len(self.nodes)} nodes, {edges} edges, {len(self.traces)} traces>"

    def topological(self) -> list[Node]:
        """The nodes, without start and end, in topological order."""
        return list(self._topological)

    def edges(self) -> Iterator[tuple[Node, Node]]:
        """All edges, those from `start` and to `end` included, in topological order of their first nodes."""
        for node in (self.start, *self._topological):
            for succ in node.succ:
                yield node, succ

    def switch_cases(self):
        """The ordered list of switch-cases of this graph (`terra.graph.cases`)."""
        from terra.graph.cases import assign_cases

        return assign_cases(self)

    def to_dot(self, label: Optional[Callable[[Node], str]] = None) -> str:
        """This graph as Graphviz text (`terra.graph.dot`)."""
        from terra.graph.dot import to_dot

        return to_dot(self, label)

    def successor(
        self, node: Node, key: Hashable, sources: Sequence[Source], when: Mapping[Node, int]
    ) -> Optional[Node]:
        """Where a path at `node` goes if it executes `key` on `sources`; None if that is not a known path.

        `when` gives, for each node that the path has executed, a number that increases along the path.
        """
        for candidate in node.succ if node._followers is None else node.followers(key):
            if candidate.key == key and key is not None and _gives(candidate.slots, sources, when):
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
        path, gained = self._match(trace, *walked)
        self._commit(path, gained)
        return True

    def _match(self, trace, path, when, mapped) -> tuple[list[Node], dict[Node, list[Optional[Source]]]]:
        """The path of a new trace (known nodes, and new ones that are not linked yet) and, for each known node that
        has to learn sources, the new source of each slot or None.  Changes nothing but the topological order.

        The arguments after the first are what `_walk` found; they are extended.
        """
        gained: dict[Node, list[Optional[Source]]] = {}
        next_id = len(self.nodes)
        self._effort = _EFFORT * (len(self.nodes) + len(trace))
        hints, fixed = self._hints(trace, path)
        here = anchor = path[-1] if path else self.start  # anchor: the last known node of the path
        for position in range(len(path), len(trace)):
            op = trace[position]
            sources = [(path[p], out) for p, out in op.sources]
            mapped.append(sources)
            node, extra = self.successor(here, op.key, sources, when), None
            if node is None:
                node, extra = self._rejoin(trace, position, anchor, path, when, mapped, hints[position], fixed[position])
            if node is None:
                node = Node(next_id, op.key, op.payload)
                node.slots = [[source] for source in sources]
                next_id += 1
            else:
                anchor = node
                if extra is not None:
                    gained[node] = extra
            path.append(node)
            when[node] = position
            here = node
        return path, gained

    def _hints(self, trace, path) -> tuple[list[Optional[Node]], list[Optional[Node]]]:
        """What the operations after `path` probably are, and which certain node each of them has next behind it.

        Certain is a node that alone has its key (an update names its variable).  It gives away the nodes that make its
        inputs, these their own, and so on; likewise those that use its outputs.
        """
        first, n = len(path), len(trace)
        hints: list[Optional[Node]] = [*path, *[None] * (n - first)]
        fixed: list[Optional[Node]] = [None] * n
        certain = None
        for position in range(n - 1, first - 1, -1):
            op = trace[position]
            fixed[position] = certain
            known = self._by_key.get(op.key, ())
            if len(known) == 1:
                hints[position] = certain = known[0]
            node = hints[position]
            if node is None or len(node.slots) != len(op.sources):
                continue
            for slot, (at, out) in zip(node.slots, op.sources):
                if hints[at] is None:
                    key = trace[at].key
                    makers = [producer for producer, o in slot if producer.key == key and o == out]
                    if len(makers) == 1:
                        hints[at] = makers[0]
        for position in range(first, n):
            if hints[position] is None:
                op = trace[position]
                for at, out in op.sources:
                    if hints[at] is not None:
                        users = self._users.get(((hints[at], out), op.key), ())
                        if len(users) == 1:
                            hints[position] = users[0]
                            break
        return hints, fixed

    def _rejoin(self, trace, position, anchor, path, when, mapped, hint, fixed):
        """A known node for an operation that no edge leads to, and what it has to learn; (None, None) if none fits.

        Known sources tell repeated keys apart better than the nearness of a node does: so a node that has exactly
        these sources comes first, then one that is told by one of its sources and can learn the others, then a
        successor of the last known node that can learn them all (new operations may have been inserted before it),
        then the only node with this key.
        """
        op, sources = trace[position], mapped[position]
        known = self._by_key.get(op.key)
        if known is None:
            return None, None
        limit = self.end.order
        if len(known) > 1 and fixed is not None and fixed.order > anchor.order:
            limit = fixed.order
        exact = self._exact(op.key, sources, when)
        later = [node for node in exact if anchor.order < node.order < limit]
        if later:
            node = min(later, key=_ORDER)
            if self._worthwhile(trace, position, anchor, node):
                return node, None
        partial = self._partial(op.key, sources, when)
        if hint is not None and hint not in when:
            partial = [hint]
        for node in partial:
            if anchor.order < node.order < limit:
                extra = self._learn(node, path, when, mapped)
                if extra is not None and self._worthwhile(trace, position, anchor, node):
                    return node, extra
        for node in anchor.followers(op.key)[:_CANDIDATES]:
            if node.order < limit:
                extra = self._learn(node, path, when, mapped)
                if extra is not None:
                    return node, extra
        first = bisect_right(known, anchor.order, key=_ORDER)
        if first < len(known):
            node = known[first]
            if first + 1 < len(known):
                node = self._best(trace, position, anchor, known[first : first + _WINDOW])
            if node is not None and node.order < limit:
                extra = self._learn(node, path, when, mapped)
                if extra is not None and self._worthwhile(trace, position, anchor, node):
                    return node, extra
        # Nothing fits behind the last known node.  A node before it may only stand there because no trace has ordered
        # the two yet (optional parts that were never seen together).
        told = exact or partial or known
        if len(told) == 1:
            node = told[0]
            if node not in when and node.order < anchor.order:
                extra = self._learn(node, path, when, mapped)
                if extra is not None and self._move_behind(node, anchor, when):
                    return node, extra
        return None, None

    def _exact(self, key, sources, when) -> list[Node]:
        """Nodes with this key that get exactly these sources, if there are any sources to tell them by."""
        if not sources:
            return []
        # The users of the rarest source: a learning rate, say, has hundreds.
        users = min((self._users.get((source, key), ()) for source in sources), key=len)
        return [node for node in users[:_CANDIDATES] if _gives(node.slots, sources, when)]

    def _partial(self, key, sources, when) -> list[Node]:
        """Nodes with this key that get the most telling of these sources, if it is telling, the nearest first."""
        known = [users for source in sources if (users := self._users.get((source, key)))]
        users = min(known, key=len, default=())
        return sorted((node for node in users if node not in when), key=_ORDER) if len(users) <= _TELLING else []

    def _best(self, trace, position, anchor, candidates) -> Optional[Node]:
        """Of several nodes with the same key, the one after which the graph goes on as the trace does for longest (the
        nearest of these), if that is evidence enough: the more nodes it skips, the more likely is a match by chance."""
        best, longest = None, 0
        for candidate in candidates:
            node, length = candidate, 0
            for op in trace[position + 1 : position + 1 + _WINDOW]:
                followers = node.followers(op.key)
                if not followers:
                    break
                node = followers[0]
                length += 1
            else:
                length += self.end in node.succ
            needed = 1 + (candidate.order - anchor.order).bit_length()
            if length > longest and length >= min(needed, len(trace) - position):
                best, longest = candidate, length
        return best

    def _move_behind(self, node, anchor, when) -> bool:
        """Moves `node`, and what depends on its order, right behind `anchor` in the topological order; False, and
        nothing changes, if the trace has been at one of these nodes."""
        first, last = node.order, anchor.order
        self._effort -= last - first
        if self._effort < 0:
            return False
        moved = {node}
        stack = [node]
        while stack:
            for succ in stack.pop().succ:
                if succ.order <= last and succ not in moved:
                    if succ in when:
                        return False
                    moved.add(succ)
                    stack.append(succ)
        region = self._topological[first - 1 : last]
        known = {n.key: self._by_key[n.key] for n in region}
        parts = [
            (nodes, bisect_left(nodes, first, key=_ORDER), bisect_right(nodes, last, key=_ORDER))
            for nodes in known.values()
        ]
        region = [n for n in region if n not in moved] + [n for n in region if n in moved]
        self._topological[first - 1 : last] = region
        for order, n in enumerate(region, first):
            n.order = order
        for nodes, low, high in parts:
            nodes[low:high] = sorted(nodes[low:high], key=_ORDER)
        return True

    def _worthwhile(self, trace, position, anchor, node) -> bool:
        """Whether to rejoin at `node`: not if it skips known nodes that the next operations of the trace would match,
        unless as many match behind it."""
        gain = 0
        skipped = []
        for op in trace[position + 1 : position + 1 + _WINDOW]:
            known = self._by_key.get(op.key)
            if known is None:
                continue
            if known[-1].order > node.order:
                gain += 1
            elif known[-1].order > anchor.order:
                skipped.append(known[-1])
        if len(skipped) <= gain:
            return True
        # Those that do not lead to `node` only stand before it by chance: they can be moved.
        lowest = min(other.order for other in skipped)
        ancestors = {node}
        stack = [node]
        while stack:
            preds = stack.pop().pred
            self._effort -= len(preds)
            if self._effort < 0:
                return False
            for pred in preds:
                if pred.order >= lowest and pred not in ancestors:
                    ancestors.add(pred)
                    stack.append(pred)
        return sum(other in ancestors for other in skipped) <= gain

    def _learn(self, node, path, when, mapped) -> Optional[list[Optional[Source]]]:
        """What `node` has to learn to be the next node of the trace on `path` (per slot the new source or None); None
        if the latest-source rule, or the walk of some trace, would become wrong."""
        sources = mapped[-1]
        if len(sources) != len(node.slots):
            return None
        extra: list[Optional[Source]] = []
        for slot, source in zip(node.slots, sources):
            latest = when[source[0]]
            for other in slot:
                # Two outputs of one producer could never be told apart; a producer that this trace executed later than
                # the right one would win.
                if other != source and (other[0] is source[0] or when.get(other[0], -1) > latest):
                    return None
            extra.append(None if source in slot else source)
        if not any(source is not None for source in extra):
            return extra
        for slot, source in zip(node.slots, extra):
            if source is not None and self._draws(node, slot, source[0]):
                return None
        slots = [slot if source is None else [*slot, source] for slot, source in zip(node.slots, extra)]
        for before in node.pred:
            for rival in before.followers(node.key):
                if rival is not node and self._draws_from(rival, before, slots):
                    return None
            at = -1 if before is self.start else when.get(before)
            if at is not None and at + 1 < len(path):
                rival = path[at + 1]
                if rival is not node and rival.key == node.key and _gives(slots, mapped[at + 1], when, at + 1):
                    return None
        return extra

    # Both of these ask something of all merged paths at once.  A set of paths is a number with a bit for each (`paths` of
    # a node: those that it is on), and as paths visit nodes in topological order, "executed latest" is "greatest order".

    def _draws(self, node, slot, producer) -> bool:
        """Whether a merged path through `node` would take the value of `producer` if it were a source of `slot`."""
        drawn = node.paths & producer.paths
        for other, _ in slot if drawn else ():
            if other.order > producer.order:
                drawn &= ~other.paths
        return drawn != 0

    def _draws_from(self, rival, before, slots) -> bool:
        """Whether a merged path that goes from `before` to `rival` would fit a sibling of it with these slots."""
        fitting = before.paths & rival.paths
        if len(slots) != len(rival.slots):
            return False
        for own, slot in zip(rival.slots, slots):
            if len(own) == 1 and len(slot) == 1:
                if own[0] != slot[0]:
                    return False
                continue
            common = set(own).intersection(slot)
            known = {producer for producer, _ in own} | {producer for producer, _ in slot}
            agreeing = 0
            for producer, _ in common:
                paths = fitting & producer.paths
                for other in known if paths else ():
                    if producer.order < other.order < rival.order:
                        paths &= ~other.paths
                agreeing |= paths
            fitting = agreeing
            if not fitting:
                return False
        # Some of these may have been elsewhere in between.
        while fitting:
            lowest = fitting & -fitting
            fitting ^= lowest
            path = self.traces[lowest.bit_length() - 1]
            at = bisect_left(path, rival.order, key=_ORDER)
            if (path[at - 1] if at else self.start) is before:
                return True
        return False

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
            for node in self._topological:
                if node in before:
                    renewed += before[node]
                renewed.append(node)
            renewed += segment
            self._topological = renewed
            for order, node in enumerate(renewed, 1):
                node.order = order
            self.end.order = len(renewed) + 1
            touched = set()
            for node in self.nodes[known_before:]:
                self._by_key.setdefault(node.key, []).append(node)
                touched.add(node.key)
            for key in touched:
                self._by_key[key].sort(key=_ORDER)
        self.traces.append(tuple(path))
        bit = 1 << len(self.traces) - 1
        for node in path:
            node.paths |= bit

    def _use(self, source: Source, node: Node) -> None:
        users = self._users.setdefault((source, node.key), [])
        if not users or users[-1] is not node:
            users.append(node)


def _gives(slots, sources, when, before=None) -> bool:
    """Whether the latest-source rule gives exactly `sources` to `slots` on a path that executed `when` (restricted to
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


def _check(trace: Sequence[TraceOp]) -> None:
    for position, op in enumerate(trace):
        for source, _ in op.sources:
            if not 0 <= source < position:
                raise ValueError(f"{op!r}, event {position} of a trace, takes a value from event {source}")
