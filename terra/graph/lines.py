"""Where in the user's program the nodes of a TraceGraph come from, as listings and pictures tell it: lines, loops, layers, and what goes to Python and comes from there."""

from __future__ import annotations

import linecache
import os
from typing import NamedTuple, Optional

from terra.graph.nodes import Node
from terra.transform import policy

_FETCH, _CHECK, _FEED = "OutputFetching", "OutputChecking", "f"  # as `terra.graph.trace` has them, which needs this package's graph
_WIDTH = 64  # of a statement


class Place(NamedTuple):
    """A line of the program; in a loop's head, `loop` is the loop's id."""

    path: str
    number: int
    loop: Optional[int] = None

    def __str__(self) -> str:
        return f"{os.path.basename(self.path)}:{self.number}"

    @property
    def statement(self) -> str:
        """The source at this line, without indentation and comment, cut after some 60 characters; empty if there is none."""
        text = linecache.getline(self.path, self.number).strip().split("  #")[0].rstrip()
        return text if len(text) <= _WIDTH else text[:_WIDTH - 3] + "..."


def operation_of(node: Node) -> str:
    """The type of the operation that a node stands for; its key as text if the graph is none of TensorFlow's operations."""
    return str(node.key) if node.payload is None else node.payload.event.info.op_type


def way_to(node: Node) -> list[tuple[Place, Optional[int]]]:
    """The way to a node's operation, outermost first: (line of a call, None) or (head of a loop, the number of the iteration). Code of libraries is left out."""
    if node.payload is None:
        return []
    event = node.payload.event
    way: list[tuple[Place, Optional[int]]] = []
    for id_, counter, site in event.location.origins():
        if site is not None and policy.is_user_module("", site.filename):
            here = Place(site.filename, site.lineno, None if counter is None else id_)
            if not way or counter is not None or way[-1][0][:2] != here[:2]:  # calls in one another on one line are one
                way.append((here, counter))
    if event.origin is not None and event.origin[0] is not None:
        here = Place(*event.origin[0])
        if not way or way[-1][0][:2] != here[:2]:
            way.append((here, None))
    return way


def place_of(node: Node) -> Optional[Place]:
    """The line of the program that issued a node's operation: the innermost one; None if that is not known."""
    way = way_to(node)
    return way[-1][0] if way else None


def layer_of(node: Node) -> Optional[str]:
    """The layer or optimizer that issued a node's operation (`net/dense_1`); None outside of any."""
    origin = None if node.payload is None else node.payload.event.origin
    return (origin[1] or "").rstrip("/") or None if origin is not None else None


def is_read(node: Node) -> bool:
    """Returns whether Python takes a value from the graph here, or waits for one."""
    return operation_of(node) in (_FETCH, _CHECK)


def fed(node: Node) -> int:
    """How many values Python gives to a node's operation in each step."""
    return 0 if node.payload is None else sum(kind[0] == _FEED for kind in node.payload.kinds)
