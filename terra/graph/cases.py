"""Case assignment: from the TraceGraph to an ordered list of switch-cases (Algorithm 1 in section B of the supplement).

The algorithm sweeps a cut over the graph.  The cut is a set of edges (`next_edges`): every path that has not ended
crosses it exactly once.  One round turns the edges of the cut, grouped by the node they point to, into the cases of one
switch-case.  A node all of whose incoming edges are in the cut starts a *basic block*, which takes the linear chain
behind it as well; the outgoing edges of the chain's last node enter the next cut.  A node that more edges will reach
later is *deferred*: its case has an empty block and its edges stay in the cut.

A path that ends early crosses no edge of the later cuts.  So a switch-case that some path may not reach any more has
one more, empty, case: "already ended".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from terra.graph.tracegraph import Node, TraceGraph


@dataclass
class Case:
    """A basic block, perhaps empty, and the control edges that select it."""

    block: list[Node]
    edges: list[tuple[Node, Node]]


@dataclass
class SwitchCase:
    """Mutually exclusive cases.  If `can_be_ended`, the choice after the last case means "already ended"."""

    cases: list[Case]
    can_be_ended: bool = False

    @property
    def n_choices(self) -> int:
        return len(self.cases) + self.can_be_ended


def assign_cases(graph: TraceGraph) -> list[SwitchCase]:
    """The ordered list of switch-cases; each node is in exactly one basic block."""
    end = graph.end
    switch_cases: list[SwitchCase] = []
    ended = end in graph.start.succ
    # next_edges, grouped by target; the groups and the edges in them stand in the order in which they were found.
    next_edges = {succ: [(graph.start, succ)] for succ in graph.start.succ if succ is not end}
    while next_edges:
        switch_case = SwitchCase([], ended)
        new_edges: dict[Node, list[tuple[Node, Node]]] = {}
        for node, edges in next_edges.items():
            block: list[Node] = []
            if len(node.pred) == len(edges):
                block.append(node)
                while len(node.succ) == 1:
                    succ = node.succ[0]
                    if succ is end or len(succ.pred) != 1:
                        break
                    node = succ
                    block.append(node)
                for succ in node.succ:
                    if succ is end:
                        ended = True
                    else:
                        new_edges.setdefault(succ, []).append((node, succ))
            else:
                new_edges.setdefault(node, []).extend(edges)
            switch_case.cases.append(Case(block, edges))
        switch_cases.append(switch_case)
        next_edges = new_edges
    return switch_cases


def select_table(switch_cases: list[SwitchCase]) -> dict[tuple[Node, Node], tuple[tuple[int, int], ...]]:
    """What crossing an edge selects: `(switch-case, choice)` pairs in order.

    Edges that select nothing (those inside a basic block, or in switch-cases without a choice) have no entry.  The edge
    of a deferred node selects a case of each switch-case that it stays in; an edge to `end` selects "already ended" in
    all later ones.
    """
    table: dict[tuple[Node, Node], list[tuple[int, int]]] = {}
    last_nodes = []  # (switch-case, a node whose successors are outside its block)
    if switch_cases:
        last_nodes.append((-1, switch_cases[0].cases[0].edges[0][0]))  # start
    for index, switch_case in enumerate(switch_cases):
        for choice, case in enumerate(switch_case.cases):
            if switch_case.n_choices > 1:
                for edge in case.edges:
                    table.setdefault(edge, []).append((index, choice))
            if case.block:
                last_nodes.append((index, case.block[-1]))
    for index, node in last_nodes:
        for succ in node.succ:
            if not succ.succ:  # only `end` has no successor
                selected = [(later, len(switch_cases[later].cases)) for later in range(index + 1, len(switch_cases))]
                if selected:
                    table[node, succ] = selected
    return {edge: tuple(selected) for edge, selected in table.items()}
