"""Case assignment: from the TraceGraph to an ordered list of switch-cases (Algorithm 1 in section B of the supplement).

The algorithm sweeps a cut over the graph.  The cut is a set of edges: every path that has not ended crosses it exactly
once.  One round turns those edges of the cut whose target has all its incoming edges in the cut into the cases of one
switch-case.  Each such node starts a *basic block*, which takes the linear chain behind it as well; the outgoing edges
of the chain's last node enter the next cut.  A node that more edges will reach later is *deferred*: its edges stay in
the cut.

The supplement gives each deferred node a case of its own, with an empty block.  Here these are one case, *skip*, for all
of them and for paths that have ended already: what it does is the same, and with many deferred nodes in many rounds the
cases, and the work to find them, would grow with the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from terra.graph.nodes import Graph, Node


@dataclass
class Case:
    """A basic block, and the control edges that select it."""

    block: list[Node]
    edges: list[tuple[Node, Node]]


@dataclass
class SwitchCase:
    """Mutually exclusive cases.  If `can_skip`, the choice after the last case executes nothing: a path may be on its way
    to a block of a later switch-case, or have ended."""

    cases: list[Case]
    can_skip: bool = False

    @property
    def n_choices(self) -> int:
        return len(self.cases) + self.can_skip


def assign_cases(graph: Graph) -> list[SwitchCase]:
    """The ordered list of switch-cases; each node is in exactly one basic block."""
    end = graph.end
    switch_cases: list[SwitchCase] = []
    cut: dict[Node, list[tuple[Node, Node]]] = {}  # by target
    ready: list[Node] = []  # targets all of whose incoming edges are in the cut, in the order in which that became so

    def cross(node):
        """The edges from `node` enter the cut; True if the path may end there instead."""
        may_end = False
        for succ in node.succ:
            if succ is end:
                may_end = True
                continue
            edges = cut.setdefault(succ, [])
            edges.append((node, succ))
            if len(edges) == len(succ.pred):
                ready.append(succ)
        return may_end

    ended = cross(graph.start)
    while ready:
        switch_case = SwitchCase([], ended or len(ready) < len(cut))
        switch_cases.append(switch_case)
        first, ready = ready, []
        for node in first:
            edges = cut.pop(node)
            block = [node]
            while len(node.succ) == 1:
                node = node.succ[0]
                if node is end or len(node.pred) != 1:
                    break
                block.append(node)
            switch_case.cases.append(Case(block, edges))
            ended |= cross(block[-1])
    return switch_cases


class Selects(Sequence):
    """The choices that crossing one edge selects, as a sequence that holds no list of them: skip in the switch-cases from `first` to before `last`, then
    `choice` in `last` (None: nothing more)."""

    __slots__ = ("_skips", "first", "last", "choice")

    def __init__(self, skips, first, last, choice):
        self._skips = skips  # of all switch-cases, shared
        self.first, self.last, self.choice = first, last, choice

    def __len__(self):
        return self.last - self.first + (self.choice is not None)

    def __iter__(self):
        for index in range(self.first, self.last):
            yield self._skips[index]
        if self.choice is not None:
            yield self.last, self.choice

    def __getitem__(self, k):
        return tuple(self)[k]


_SHORT = 16  # up to so many selections of one edge are a plain tuple, which is what a runner reads fastest


def select_table(switch_cases: list[SwitchCase]) -> dict[tuple[Node, Node], Sequence[tuple[int, int]]]:
    """Gives, for each edge, the choices that crossing it selects: `(switch-case, choice)` pairs in order, an immutable sequence.

    Edges that select nothing (those inside a basic block, or in switch-cases without a choice) have no entry.  An edge
    selects skip in each switch-case between the blocks that it joins; an edge to `end`, in all later ones.
    """
    table: dict[tuple[Node, Node], Sequence[tuple[int, int]]] = {}
    if not switch_cases:
        return table
    skips = [(index, len(switch_case.cases)) for index, switch_case in enumerate(switch_cases)]
    placed = {switch_cases[0].cases[0].edges[0][0]: -1}  # start, and the last nodes of the blocks: in which switch-case

    def add(edge, last, choice):
        first = placed[edge[0]] + 1
        selects = Selects(skips, first, last, choice)
        if len(selects) <= _SHORT:
            selects = tuple(selects)
        if selects:
            table[edge] = selects

    for index, switch_case in enumerate(switch_cases):
        for choice, case in enumerate(switch_case.cases):
            for edge in case.edges:
                add(edge, index, choice if switch_case.n_choices > 1 else None)
        for case in switch_case.cases:
            placed[case.block[-1]] = index
    for node in placed:
        for succ in node.succ:
            if not succ.succ:  # only `end` has no successor
                add((node, succ), len(switch_cases), None)
    return table
