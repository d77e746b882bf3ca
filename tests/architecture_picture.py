"""Draws the rooms of Terra and the arrows between them, as Mermaid text: `python -m tests.architecture_picture` puts it into docs/architecture.md.

An arrow stands for imports; one that follows from others is left out.
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "```mermaid\n", "```\n"
TOP = "api, cli"
GROUND = "errors, logs, options, ours, trial, version"


def room_of(module):
    """The package of a module, as one word; those that lie in `terra` itself are the ground or the top."""
    parts = module.split(".")[1:]
    if len(parts) == 1:
        return GROUND if parts[0] in GROUND.split(", ") else TOP
    parts = parts[:-1]
    if parts[0] == "runtime":
        return parts[1] if parts[1] != "fast_forward" else f"fast_forward.{parts[2]}"
    return parts[0]


def arrows():
    """{room: the rooms that it imports from}."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "terra").rglob("*.py") if path.stem != "__init__"}
    found = {}
    for name, path in modules.items():
        imported = found.setdefault(room_of(name), set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                base = name.rsplit(".", node.level)[0] + "." + node.module if node.level else node.module
                imported.update(room_of(target) for target in [base, *(f"{base}.{alias.name}" for alias in node.names)] if target in modules)
    return {room: imported - {room} for room, imported in found.items()}


def reduced(graph):
    """Without the arrows that follow from others."""
    reach = {}

    def reachable(room):
        if room not in reach:
            reach[room] = set().union(*(reachable(x) | {x} for x in graph[room]))
        return reach[room]

    return {room: {x for x in below if not any(x in reachable(other) for other in below - {x})} for room, below in graph.items()}


def picture():
    graph = reduced(arrows())
    ids = {room: room.replace(".", "_").replace(", ", "_") for room in graph}
    lines = ["flowchart TD", *(f'    {ids[room]}["{room}"]' for room in sorted(graph)), *(f"    {ids[room]} --> {ids[x]}" for room in sorted(graph) for x in sorted(graph[room]))]
    return "\n".join(lines) + "\n"


def main():
    text = DOCUMENT.read_text()
    begin = text.index(BEGIN) + len(BEGIN)
    DOCUMENT.write_text(text[:begin] + picture() + text[text.index(END, begin):])


if __name__ == "__main__":
    sys.exit(main())
