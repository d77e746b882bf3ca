"""Quoted code with holes: what the instrumenter writes can be read as Python.

    expression("cursor.leave(call)", at=node, cursor="_terra_cursor", call=node)

A name of the template that is given as a keyword is a hole: a string renames it, a number becomes a literal, a node takes
its place. All new nodes get the position of `at`, so that the user's line numbers stay; `at=None` means no line at all
(the compiler accepts line -1 as "artificial"): debuggers do not stop there and coverage does not count it.
"""

import gast

_NOWHERE = {"lineno": -1, "end_lineno": -1, "col_offset": -1, "end_col_offset": -1}
_POSITION = tuple(_NOWHERE)


def position(node):
    """The position attributes of `node`, as a dict."""
    if node is None:
        return _NOWHERE
    return {name: getattr(node, name) for name in _POSITION}


def head_of(node):
    """The position of the head line of a compound statement: its first character only."""
    return {"lineno": node.lineno, "end_lineno": node.lineno, "col_offset": node.col_offset,
            "end_col_offset": node.col_offset}


class _Fill(gast.NodeTransformer):
    def __init__(self, where, holes):
        self.where = where
        self.holes = holes

    def visit(self, node):
        if isinstance(node, gast.Name) and node.id in self.holes:
            value = self.holes[node.id]
            if isinstance(value, gast.AST):
                return value  # the user's own node keeps its own position
            if isinstance(value, str):
                node.id = value
            else:
                node = gast.Constant(value, None)
        node = self.generic_visit(node)
        if "lineno" in getattr(node, "_attributes", ()):
            node.__dict__.update(self.where)
        return node


def _where(at):
    return at if isinstance(at, dict) else position(at)


def expression(source, at, **holes):
    """The expression that `source` stands for."""
    return _Fill(_where(at), holes).visit(gast.parse(source, mode="eval").body)


def statements(source, at, **holes):
    """The list of statements that `source` stands for."""
    fill = _Fill(_where(at), holes)
    return [fill.visit(statement) for statement in gast.parse(source).body]
