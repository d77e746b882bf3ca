"""The TraceGraph as Graphviz text: one box for each switch-case's basic blocks, dashed edges for dataflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

from terra.graph.cases import assign_cases

if TYPE_CHECKING:
    from terra.graph.nodes import Node
    from terra.graph.tracegraph import TraceGraph


def to_dot(graph: TraceGraph, label: Optional[Callable[[Node], str]] = None) -> str:
    """Text for `dot -Tsvg`.  `label(node)` names a node; by default its number and key do."""
    label = label or (lambda node: f"{node.id}: {node.key}")

    def name(node):
        return "start" if node is graph.start else "end" if node is graph.end else f"n{node.id}"

    lines = ["digraph TraceGraph {", "  node [shape=box, fontsize=10];"]
    lines += ["  start [shape=circle];", "  end [shape=circle];"]
    for index, switch_case in enumerate(assign_cases(graph)):
        for choice, case in enumerate(switch_case.cases):
            if not case.block:
                continue
            lines.append(f"  subgraph cluster_{index}_{choice} {{")
            lines.append(f"    label={_quote(f'switch-case {index}, case {choice}')}; color=gray; fontsize=8;")
            lines += [f"    {name(node)} [label={_quote(label(node))}];" for node in case.block]
            lines.append("  }")
    for node, succ in graph.edges():
        lines.append(f"  {name(node)} -> {name(succ)};")
    for node in graph.topological():
        for k, sources in enumerate(node.slots):
            for producer, out in sources:
                color = "gray" if len(sources) == 1 else "red"
                lines.append(
                    f"  {name(producer)} -> {name(node)} [style=dashed, constraint=false, color={color},"
                    f" fontsize=8, label={_quote(f'{out}>{k}')}];"
                )
    lines.append("}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
