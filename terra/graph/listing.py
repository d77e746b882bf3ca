"""The TraceGraph as a listing by the user's lines: what stands where, which lines loop, where paths part, and where values go to Python and come from there."""

from __future__ import annotations

import html
from collections import Counter
from typing import Iterator, Optional

from terra.graph import lines
from terra.graph.cases import SwitchCase, assign_cases
from terra.graph.nodes import Graph, Node

MOST_LINES = 200
_MOST_CASES = 8  # of one switch-case
_MOST_KINDS = 4  # of operations at one line
_DEEPEST = 8  # calls and loops in one another, where not all of them can be shown


class _Entry:
    """One line of the program within what is around it: its operations, and the lines that are called from it."""

    __slots__ = ("place", "within", "kinds", "reads", "fed", "layers", "iterations")

    def __init__(self, place: Optional[lines.Place]):
        self.place = place
        self.within: list[_Entry] = []
        self.kinds: Counter[str] = Counter()
        self.reads = self.fed = 0
        self.layers: dict[str, None] = {}
        self.iterations: set[int] = set()

    def child(self, place: Optional[lines.Place], merges: bool) -> _Entry:
        """The entry of a line within this one: the last one if that is it, with `merges` any one, else a new one."""
        known = self.within if merges or (self.place is not None and self.place.loop is not None) else self.within[-1:]
        for entry in known:
            if entry.place == place:
                return entry
        self.within.append(_Entry(place))
        return self.within[-1]

    def add(self, node: Node) -> None:
        """Counts a node's operation at this line."""
        self.fed += lines.fed(node)
        if lines.is_read(node):
            self.reads += 1
            return
        self.kinds[lines.operation_of(node)] += 1
        layer = lines.layer_of(node)
        if layer is not None:
            self.layers.setdefault(layer)

    def text(self) -> str:
        """This line, as it is listed."""
        head = "(in the step)" if self.place is None else f"{self.place}  {self.place.statement}".rstrip()
        parts = [f"{len(self.iterations)} times"] if len(self.iterations) > 1 else []
        if self.kinds:
            kinds = [name if count == 1 else f"{count} {name}" for name, count in self.kinds.most_common(_MOST_KINDS)]
            rest = sum(self.kinds.values()) - sum(count for _, count in self.kinds.most_common(_MOST_KINDS))
            parts.append(", ".join(kinds) + (f" and {rest} more" if rest else ""))
        if self.layers:
            first, *others = self.layers
            parts.append(f"[{first}]" if not others else f"[{first} ... {others[-1]}, {len(others) + 1} layers]" if len(others) > 1 else f"[{first}, {others[0]}]")
        if self.fed:
            parts.append(f"<- {_values(self.fed)} from Python")
        if self.reads:
            parts.append(f"-> Python reads {_values(self.reads)}")
        return "   ".join([head, *parts])

    def listed(self, depth: int) -> Iterator[str]:
        """The lines on this entry and on those within it, each with its indentation."""
        yield "  " * depth + self.text()
        for entry in self.within:
            yield from entry.listed(depth + 1)


def _values(count: int) -> str:
    return f"{count} value{'s' * (count != 1)}"


def _of_block(block: list[Node], depth: int, merges: bool, deepest: Optional[int]) -> list[str]:
    """The lines on a sequence of nodes. deepest: how many lines in one another are told apart; None for all."""
    top = _Entry(None)
    for node in block:
        entry = top
        for place, counter in lines.way_to(node)[:deepest] or [(None, None)]:
            entry = entry.child(place, merges)
            if counter is not None:
                entry.iterations.add(counter)
        entry.add(node)
    return [line for entry in top.within for line in entry.listed(depth)]


def _blocks(graph: Graph, merges: bool, deepest: Optional[int]) -> list[str]:
    """The lines on all switch-cases in order; those with one case only, and no way around it, run into one another."""
    found: list[str] = []
    straight: list[Node] = []
    for switch_case in assign_cases(graph):
        if switch_case.n_choices == 1:
            straight += switch_case.cases[0].block
            continue
        found += _of_block(straight, 0, merges, deepest)
        straight = []
        found += _of_cases(graph, switch_case, merges, deepest)
    return found + _of_block(straight, 0, merges, deepest)


def _of_cases(graph: Graph, switch_case: SwitchCase, merges: bool, deepest: Optional[int]) -> list[str]:
    """The lines on cases of which each path takes one at most."""
    found: list[str] = []
    shown = switch_case.cases if len(switch_case.cases) <= _MOST_CASES else switch_case.cases[:_MOST_CASES - 1]
    for k, case in enumerate(shown):
        some = case.block[0].paths.bit_count()
        found.append(f"{'or' if k else 'either' if switch_case.n_choices > 1 and len(switch_case.cases) > 1 else 'perhaps'}, on {some} of {len(graph.traces)} paths:")
        found += _of_block(case.block, 1, merges, deepest)
    rest = switch_case.cases[len(shown):]
    if rest:
        found.append(f"or one of {len(rest)} more cases, with {sum(len(case.block) for case in rest)} operations in all")
    if switch_case.can_skip and len(switch_case.cases) > 1:
        found.append("or nothing")
    found.append("then:")
    return found


def summary(graph: Graph) -> str:
    """One line: how many operations there are, on how many lines of the program, and how many paths."""
    places = {place[:2] for place in map(lines.place_of, graph.nodes) if place is not None}
    parts = sum(switch_case.n_choices > 1 for switch_case in assign_cases(graph))
    ways = f"{len(graph.traces)} paths" if len(graph.traces) > 1 else "one path" if graph.traces else "no path"
    return (f"TraceGraph: {len(graph)} operations" + (f" from {len(places)} lines" if places else "") + f", {ways}"
            + (f", which part in {parts} place{'s' * (parts != 1)}" if parts else ""))


def listing(graph: Graph, most: Optional[int] = MOST_LINES) -> str:
    """The graph by the lines of the program, in the order in which they run.

    A line comes with what calls it, or loops around it, above it; with its operations; with the layers that they belong to; and with the values that Python gives or
    reads there. Iterations of a loop are one. Where paths part, each case is indented under `either`, `or`, `perhaps`; `then:` is where they meet.

    most: how many lines there may be, None for all. Equal lines are counted together, and deep calls left out, until it is as short; what is still too long is cut.
    """
    head = summary(graph)
    ways = [(False, None), (True, None), *((True, deepest) for deepest in range(_DEEPEST, 0, -1))]
    for merges, deepest in ways:
        found = _blocks(graph, merges, deepest)
        if found and found[-1] == "then:":
            found.pop()
        if most is None or len(found) < most:
            return "\n".join([head, *found])
    cut = found[:max(most - 2, 0)]
    return "\n".join([head, *cut, f"... and {len(found) - len(cut)} more lines: listing(most=None) has all of them"])


def to_html(graph: Graph) -> str:
    """The listing as a piece of HTML, as notebooks show it."""
    head, *rest = listing(graph).split("\n")
    return f"<details open><summary>{html.escape(head)}</summary><pre style=\"overflow-x: auto\">{html.escape(chr(10).join(rest))}</pre></details>"
