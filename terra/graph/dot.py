"""The TraceGraph as Graphviz text: one box for each switch-case's basic blocks, dashed edges for dataflow.

A box of the picture stands for one operation, or for all operations of one line, or of one layer, in a basic block. Graphviz needs minutes for thousands of boxes with
curved edges, so large pictures have straight ones, and no edges for dataflow.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable, Optional

from terra.graph import lines
from terra.graph.cases import assign_cases
from terra.graph.nodes import Graph, Node

BY = ("op", "line", "layer")
_LARGE = 300  # boxes from which on a picture is drawn roughly
_MOST_KINDS = 3  # of operations in one box


def to_dot(graph: Graph, label: Optional[Callable[[Node], str]] = None, by: str = "op") -> str:
    """Text for `dot -Tsvg`.

    by: what becomes one box: "op" an operation, "line" those of one line of the program, "layer" those of one layer (outside of layers, of one line).
    label: names a node, with `by="op"`; by default its number, its operation and its line do.
    Raises: ValueError for another `by`.
    """
    if by not in BY:
        raise ValueError(f"to_dot's by is one of {', '.join(map(repr, BY))}, not {by!r}.")
    boxes, clusters = _boxes(graph, by)
    n_boxes = sum(len(held) for _, held in clusters)
    titles = {box: _title(nodes, by, label) for _, held in clusters for box, nodes in held.items()}
    out = ["digraph TraceGraph {", "  node [shape=box, fontsize=10];"]
    if n_boxes > _LARGE:
        out.append("  graph [splines=line, nslimit=1, nslimit1=1, mclimit=0.1];")
    out += ["  start [shape=circle];", "  end [shape=circle];"]
    for title, held in clusters:
        out.append(f"  subgraph cluster_{title.replace(' ', '_')} {{" if title else "  {")
        if title:
            out.append(f"    label={_quote(title)}; color=gray; fontsize=8;")
        out += [f"    {box} [label={_quote(titles[box])}];" for box in held]
        out.append("  }")
    boxes[graph.start], boxes[graph.end] = "start", "end"
    edges = dict.fromkeys((boxes[node], boxes[succ]) for node, succ in graph.edges())
    out += [f"  {box} -> {succ};" for box, succ in edges if box != succ]
    if n_boxes <= _LARGE:
        out += _dataflow(graph, boxes, by)
    out.append("}")
    return "\n".join(out) + "\n"


def _boxes(graph, by):
    """Returns ({node: name of its box}, [(title of a case, {name of a box: its nodes})])."""
    boxes, clusters = {}, []
    for index, switch_case in enumerate(assign_cases(graph)):
        for choice, case in enumerate(switch_case.cases):
            held, known = {}, {}
            for node in case.block:
                key = node if by == "op" else (by == "layer" and lines.layer_of(node)) or _line(node)
                box = known.setdefault(key, f"n{node.id}")
                held.setdefault(box, []).append(node)
                boxes[node] = box
            clusters.append((f"switch_case {index} case {choice}" if switch_case.n_choices > 1 else "", held))
    return boxes, clusters


def _line(node):
    place = lines.place_of(node)
    return "in the step" if place is None else f"{place}  {place.statement}".rstrip()


def _title(nodes, by, label):
    first = nodes[0]
    if by == "op":
        if label is not None:
            return label(first)
        place = lines.place_of(first)
        return f"{first.id}: {lines.operation_of(first)}" + (f"\n{place}" if place is not None else "")
    name = (by == "layer" and lines.layer_of(first)) or _line(first)
    kinds = Counter(map(lines.operation_of, nodes)).most_common()
    told = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds[:_MOST_KINDS])
    rest = sum(count for _, count in kinds[_MOST_KINDS:])
    return f"{name}\n{told}" + (f" and {rest} more" if rest else "")


def _dataflow(graph, boxes, by):
    """The dashed edges, from the box that gives a value to those that take it; red if it may come from several."""
    found = {}
    for node in graph.topological():
        for k, sources in enumerate(node.slots):
            for producer, out in sources:
                color = "gray" if len(sources) == 1 else "red"
                if boxes[producer] != boxes[node]:
                    found.setdefault((boxes[producer], boxes[node], color, f"{out}>{k}" if by == "op" else ""))
    return [f"  {producer} -> {taker} [style=dashed, constraint=false, color={color}, fontsize=8, label={_quote(text)}];" for producer, taker, color, text in found]


def _quote(text: str) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
