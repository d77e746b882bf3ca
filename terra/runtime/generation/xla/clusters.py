"""Which nodes of a graph may be compiled together.

A compiled cluster is one node to the rest of the graph: it starts when all its inputs are there and gives all its outputs at the end.  So a cluster must be
*convex* (no path leaves it and comes back), and the clusters together must not wait for each other in a circle.  Python is part of such circles: it may
send a value, or choose a case, only after it has read another one.  Its order is given as `order`: the nodes that talk to Python, as they come in the program.

Each node gets two numbers that never fall along an edge (edges of `order` included):

* its *phase* counts how often the way to it went from compiled nodes through others back to compiled ones; a node that is not compiled has a higher phase
  than the compiled ones before it;
* its *level* is the number of the first read that needs it, so that a value which Python waits for does not wait for what nobody needs yet.

Compiled nodes with the same two numbers are a cluster.  A path that leaves a cluster for a node that is not compiled goes up in phase and never comes down;
one that leaves it for another cluster goes up in phase or level and never comes down.  Hence clusters are convex, and no circle of clusters exists.
"""

from __future__ import annotations

from typing import Sequence

YES, ALONG, NO = "yes", "along", "no"  # ALONG: only where it works on what a cluster computes, else it stays outside


def find_clusters(
    before: Sequence[Sequence[int]], may: Sequence[str], order: Sequence[int] = (), reads: Sequence[int] = (), smallest: int = 1,
    sizes: Sequence[int] | None = None,
) -> list[list[int]]:
    """The clusters of a graph, each a list of nodes in order.

    before: for each node the nodes it depends on, all of which have smaller numbers.
    may: for each node YES, ALONG or NO, whether it may be compiled.
    order: nodes that talk to Python, in program order; none of them may be compiled.
    reads: those of them whose values Python waits for.
    smallest: a cluster of fewer nodes is left as it is. sizes: how many nodes each one counts for, if not 1.
    """
    previous = dict(zip(order[1:], order))
    inside, phase = [], []
    for node, sources in enumerate(before):
        sources = _with(sources, previous.get(node))
        taken = may[node] == YES or (may[node] == ALONG and any(inside[s] for s in sources))
        inside.append(taken)
        phase.append(max((phase[s] + (inside[s] and not taken) for s in sources), default=0))
    level = [len(reads)] * len(before)
    for number, read in enumerate(sorted(reads)):
        _lower(before, previous, level, read, number)
    found: dict[tuple[int, int], list[int]] = {}
    for node, taken in enumerate(inside):
        if taken:
            found.setdefault((level[node], phase[node]), []).append(node)
    return [members for _, members in sorted(found.items()) if (len(members) if sizes is None else sum(sizes[k] for k in members)) >= smallest]


def _with(sources, one):
    return sources if one is None else [*sources, one]


def _lower(before, previous, level, node, number):
    """Give everything that `node` depends on the level `number`, unless an earlier read needed it."""
    pending = [node]
    while pending:
        node = pending.pop()
        if level[node] > number:
            level[node] = number
            pending += _with(before[node], previous.get(node))
