"""Matching: which nodes of a TraceGraph a new trace takes, which nodes it needs anew, and what known nodes have to learn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Optional

from terra.graph.nodes import ORDER, Node, Source, gives

# What bounds the work for one operation, so that merging stays near-linear when one key repeats thousands of times: how
# many of the following operations of a trace are looked at before a rejoin skips known nodes, how many candidates are
# tried, and how many steps of searching and renumbering a whole trace may take, per operation.  A worse choice costs
# nodes, never correctness.
_WINDOW = 16
_CANDIDATES = 256
_TELLING = 4  # a source tells nodes apart if no more than so many nodes with one key use it
_EFFORT = 8


class Matching:
    """Finds the nodes for one trace that the graph does not cover."""

    def __init__(self, graph, trace, path, when, mapped):
        """`path`, `when` and `mapped` are what `TraceGraph` has found by walking; they are extended."""
        self.graph, self.trace = graph, trace
        self.path, self.when, self.mapped = path, when, mapped
        self.effort = _EFFORT * (len(graph.nodes) + len(trace))  # what is left of it

    def find(self) -> tuple[list[Node], dict[Node, list[Optional[Source]]]]:
        """Returns the path of the trace (known nodes, and new ones that are not linked yet) and, for each known node
        that has to learn sources, the new source of each slot or None.  Changes nothing but the topological order."""
        trace, path, when = self.trace, self.path, self.when
        gained: dict[Node, list[Optional[Source]]] = {}
        next_id = len(self.graph.nodes)
        hints, fixed = self._hints()
        here = anchor = path[-1] if path else self.graph.start  # anchor: the last known node of the path
        for position in range(len(path), len(trace)):
            op = trace[position]
            sources = [(path[p], out) for p, out in op.sources]
            self.mapped.append(sources)
            node, extra = self.graph.successor(here, op.key, sources, when), None
            if node is None:
                node, extra = self._rejoin(position, anchor, hints[position], fixed[position])
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

    def _hints(self) -> tuple[list[Optional[Node]], list[Optional[Node]]]:
        """Guesses the nodes of the operations after `path`; gives them, and for each operation the certain node that comes next behind it.

        Certain is a node that alone has its key (an update names its variable).  It gives away the nodes that make its
        inputs, these their own, and so on; likewise those that use its outputs.
        """
        trace, path = self.trace, self.path
        first, n = len(path), len(trace)
        hints: list[Optional[Node]] = [*path, *[None] * (n - first)]
        fixed: list[Optional[Node]] = [None] * n
        certain = None
        for position in range(n - 1, first - 1, -1):
            op = trace[position]
            fixed[position] = certain
            known = self.graph.by_key.get(op.key, ())
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
                        users = self.graph.users.get(((hints[at], out), op.key), ())
                        if len(users) == 1:
                            hints[position] = users[0]
                            break
        return hints, fixed

    def _rejoin(self, position, anchor, hint, fixed):
        """A known node for an operation that no edge leads to, and what it has to learn; (None, None) if none fits.

        Known sources tell repeated keys apart better than the nearness of a node does: so a node that has exactly
        these sources comes first, then one that is told by one of its sources and can learn the others, then a
        successor of the last known node that can learn them all (new operations may have been inserted before it),
        then the only node with this key.
        """
        op, sources, when = self.trace[position], self.mapped[position], self.when
        known = self.graph.by_key.get(op.key)
        if known is None:
            return None, None
        limit = self.graph.end.order
        if len(known) > 1 and fixed is not None and fixed.order > anchor.order:
            limit = fixed.order
        exact = self._exact(op.key, sources)
        later = [node for node in exact if anchor.order < node.order < limit]
        if later:
            node = min(later, key=ORDER)
            if self._worthwhile(position, anchor, node):
                return node, None
        partial = self._partial(op.key, sources)
        if hint is not None and hint not in when:
            partial = [hint]
        for node in partial:
            if anchor.order < node.order < limit:
                extra = self._learn(node)
                if extra is not None and self._worthwhile(position, anchor, node):
                    return node, extra
        for node in anchor.followers(op.key)[:_CANDIDATES]:
            if node.order < limit:
                extra = self._learn(node)
                if extra is not None:
                    return node, extra
        first = bisect_right(known, anchor.order, key=ORDER)
        if first < len(known):
            node = known[first]
            if first + 1 < len(known):
                node = self._best(position, anchor, known[first : first + _WINDOW])
            if node is not None and node.order < limit:
                extra = self._learn(node)
                if extra is not None and self._worthwhile(position, anchor, node):
                    return node, extra
        # Nothing fits behind the last known node.  A node before it may only stand there because no trace has ordered
        # the two yet (optional parts that were never seen together).
        told = exact or partial or known
        if len(told) == 1:
            node = told[0]
            if node not in when and node.order < anchor.order:
                extra = self._learn(node)
                if extra is not None and self._move_behind(node, anchor):
                    return node, extra
        return None, None

    def _exact(self, key, sources) -> list[Node]:
        """Nodes with this key that get exactly these sources, if there are any sources to tell them by."""
        if not sources:
            return []
        # The users of the rarest source: a learning rate, say, has hundreds.
        users = min((self.graph.users.get((source, key), ()) for source in sources), key=len)
        return [node for node in users[:_CANDIDATES] if gives(node.slots, sources, self.when)]

    def _partial(self, key, sources) -> list[Node]:
        """Nodes with this key that get the most telling of these sources, if it is telling, the nearest first."""
        known = [users for source in sources if (users := self.graph.users.get((source, key)))]
        users = min(known, key=len, default=())
        return sorted((node for node in users if node not in self.when), key=ORDER) if len(users) <= _TELLING else []

    def _best(self, position, anchor, candidates) -> Optional[Node]:
        """Of several nodes with the same key, the one after which the graph goes on as the trace does for longest (the
        nearest of these), if that is evidence enough: the more nodes it skips, the more likely is a match by chance."""
        best, longest = None, 0
        for candidate in candidates:
            node, length = candidate, 0
            for op in self.trace[position + 1 : position + 1 + _WINDOW]:
                followers = node.followers(op.key)
                if not followers:
                    break
                node = followers[0]
                length += 1
            else:
                length += self.graph.end in node.succ
            needed = 1 + (candidate.order - anchor.order).bit_length()
            if length > longest and length >= min(needed, len(self.trace) - position):
                best, longest = candidate, length
        return best

    def _move_behind(self, node, anchor) -> bool:
        """Moves `node`, and what depends on its order, right behind `anchor` in the topological order; False, and
        nothing changes, if the trace has been at one of these nodes."""
        first, last = node.order, anchor.order
        self.effort -= last - first
        if self.effort < 0:
            return False
        moved = {node}
        stack = [node]
        while stack:
            for succ in stack.pop().succ:
                if succ.order <= last and succ not in moved:
                    if succ in self.when:
                        return False
                    moved.add(succ)
                    stack.append(succ)
        region = self.graph.ordered[first - 1 : last]
        known = {n.key: self.graph.by_key[n.key] for n in region}
        parts = [
            (nodes, bisect_left(nodes, first, key=ORDER), bisect_right(nodes, last, key=ORDER))
            for nodes in known.values()
        ]
        region = [n for n in region if n not in moved] + [n for n in region if n in moved]
        self.graph.ordered[first - 1 : last] = region
        for order, n in enumerate(region, first):
            n.order = order
        for nodes, low, high in parts:
            nodes[low:high] = sorted(nodes[low:high], key=ORDER)
        return True

    def _worthwhile(self, position, anchor, node) -> bool:
        """Returns whether to rejoin at `node`: not if it skips known nodes that the next operations of the trace would match,
        unless as many match behind it."""
        gain = 0
        skipped = []
        for op in self.trace[position + 1 : position + 1 + _WINDOW]:
            known = self.graph.by_key.get(op.key)
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
            self.effort -= len(preds)
            if self.effort < 0:
                return False
            for pred in preds:
                if pred.order >= lowest and pred not in ancestors:
                    ancestors.add(pred)
                    stack.append(pred)
        return sum(other in ancestors for other in skipped) <= gain

    def _learn(self, node) -> Optional[list[Optional[Source]]]:
        """Gives what `node` has to learn to be the next node of the trace on `path` (per slot the new source or None); None
        if the latest-source rule, or the walk of some trace, would become wrong."""
        path, when, sources = self.path, self.when, self.mapped[-1]
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
            at = -1 if before is self.graph.start else when.get(before)
            if at is not None and at + 1 < len(path):
                rival = path[at + 1]
                if rival is not node and rival.key == node.key and gives(slots, self.mapped[at + 1], when, at + 1):
                    return None
        return extra

    # Both of these ask something of all merged paths at once.  A set of paths is a number with a bit for each (`paths` of
    # a node: those that it is on), and as paths visit nodes in topological order, "executed latest" is "greatest order".

    def _draws(self, node, slot, producer) -> bool:
        """Returns whether a merged path through `node` would take the value of `producer` if it were a source of `slot`."""
        drawn = node.paths & producer.paths
        for other, _ in slot if drawn else ():
            if other.order > producer.order:
                drawn &= ~other.paths
        return drawn != 0

    def _draws_from(self, rival, before, slots) -> bool:
        """Returns whether a merged path that goes from `before` to `rival` would fit a sibling of it with these slots."""
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
            path = self.graph.traces[lowest.bit_length() - 1]
            at = bisect_left(path, rival.order, key=ORDER)
            if (path[at - 1] if at else self.graph.start) is before:
                return True
        return False
