"""The observed form of f-strings: the observer makes the text, piece by piece, in the order in which the interpreter does.

    f"loss: {x:.{n}f}"      o.text(("loss: ", o.piece(x, -1, o.text((".", o.piece(n, -1, ""), "f")))))
"""

import gast

from terra.transform.rewriting.templates import expression

__all__ = ["Texts"]


class Texts:
    """The part of Observed for f-strings."""

    def visit_JoinedStr(self, node):
        if not any(isinstance(x, gast.FormattedValue) for x in node.values):
            return node
        return self._show("text", gast.copy_location(gast.Tuple([self.visit(x) if isinstance(x, gast.FormattedValue) else x for x in node.values], gast.Load()), node))

    def visit_FormattedValue(self, node):
        spec = gast.copy_location(gast.Constant("", None), node) if node.format_spec is None else self.visit(node.format_spec)
        return expression(
            "tls.observer.piece(it, conversion, spec)", node, tls=self.tls, it=self.visit(node.value), conversion=gast.copy_location(gast.Constant(node.conversion, None), node), spec=spec)
