"""The TraceGraph as Graphviz text: one box for each switch-case's basic blocks, dashed edges for dataflow.

A box of the picture stands for one operation, or for all operations of one line, or of one layer, in a basic block. Graphviz needs minutes for thousands of boxes, so
large pictures say where their boxes are (`columns`), and have no edges for dataflow.
"""

from __future__ import annotations

from collections import Counter
from typing import Callable, Optional

from terra.graph import columns, lines
from terra.graph.cases import assign_cases
from terra.graph.nodes import Graph, Node

BY = ("op", "line", "layer")
_LARGE = 300  # boxes from which on Graphviz would take too long to place them
_MOST_KINDS = 3  # of operations in one box


def to_dot(graph: Graph, label: Optional[Callable[[Node], str]] = None, by: str = "op") -> str:
    """Text for `dot -Tsvg`.

    by: what becomes one box: "op" an operation, "line" those of one line of the program, "layer" those of one layer (outside of layers, of one line).
    label: names a node, with `by="op"`; by default its number, its operation and its line do.
    Raises: ValueError for another `by`.
    """
    if by not in BY:
        raise ValueError(f"to_dot's by is one of {', '.join(map(repr, BY))}, not {by!r}.")
    boxes, parts = _boxes(graph, by)
    texts = {box: _title(nodes, by, label) for part in parts for _, held in part for box, nodes in held.items()}
    boxes[graph.start], boxes[graph.end] = "start", "end"
    edges = [(box, succ) for box, succ in dict.fromkeys((boxes[node], boxes[succ]) for node, succ in graph.edges()) if box != succ]
    out = ["digraph TraceGraph {", "  node [shape=box, fontsize=10];"]
    if len(texts) > _LARGE:
        out += _in_columns(parts, texts, edges)
    else:
        out += ["  start [shape=circle];", "  end [shape=circle];"]
        for title, held in (case for part in parts for case in part):
            out += _group(f"cluster_{title.replace(' ', '_')}" if title else "", title, [f"    {box} [label={_quote(texts[box])}];" for box in held])
        out += [f"  {box} -> {succ};" for box, succ in edges]
        out += _dataflow(graph, boxes, by)
    out.append("}")
    return "\n".join(out) + "\n"


def _group(name, title, boxes, attributes=""):
    """A group of boxes; one with a title has a frame."""
    if not title:
        return ["  {", *boxes, "  }"]
    return [f"  subgraph {name} {{", f"    label={_quote(title)}; color=gray; fontsize=8;{attributes}", *boxes, "  }"]


def _in_columns(parts, texts, edges):
    """A large picture, in which all has its place: Graphviz only draws it."""
    texts = {"start": "start", **texts, "end": "end"}
    placed = columns.Columns([[("", ["start"])], *([(title, list(held)) for title, held in part] for part in parts), [("", ["end"])]], texts)
    out = ["  graph [layout=nop2];"]
    for frame in placed.frames:
        left, bottom, right, top = frame.around
        boxes = []
        for name in frame.boxes:
            box = placed.boxes[name]
            size = "shape=circle, fixedsize=true, width=0.5" if name in ("start", "end") else f"width={box.width / 72:.3f}, height={box.height / 72:.3f}"
            boxes.append(f'    {name} [label={_quote(texts[name])}, pos="{box.x:.1f},{box.y:.1f}", {size}];')
        name = f"cluster_{frame.title.replace(' ', '_')}_column_{placed.boxes[frame.boxes[0]].column}"
        out += _group(name, frame.title, boxes, f' bb="{left:.1f},{bottom:.1f},{right:.1f},{top:.1f}"; lp="{(left + right) / 2:.1f},{top - 7:.1f}";')
    return out + [f'  {box} -> {succ} [pos="{columns.curve(placed.way(box, succ))}"];' for box, succ in edges]


def _boxes(graph, by):
    """Returns ({node: name of its box}, parts of the picture): for each switch-case its cases as (title, {name of a box: its nodes})."""
    boxes, parts = {}, []
    for index, switch_case in enumerate(assign_cases(graph)):
        parts.append([])
        for choice, case in enumerate(switch_case.cases):
            held, known = {}, {}
            for node in case.block:
                key = node if by == "op" else (by == "layer" and lines.layer_of(node)) or _line(node)
                box = known.setdefault(key, f"n{node.id}")
                held.setdefault(box, []).append(node)
                boxes[node] = box
            parts[-1].append((f"switch_case {index} case {choice}" if switch_case.n_choices > 1 else "", held))
    return boxes, parts


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
