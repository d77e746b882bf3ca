"""Questions to the observer: comparisons and arithmetic of numbers, and of attributes and items, whose answer it may know for a counter."""

import gast

from terra.transform.observing.value_sources import constant_key, is_of_integers
from terra.transform.rewriting.templates import expression

COMPARING = (gast.Eq, gast.NotEq, gast.Lt, gast.LtE, gast.Gt, gast.GtE)
_CALCULATING = (gast.Add, gast.Sub, gast.Mult, gast.Div, gast.FloorDiv, gast.Mod)


class Questions:
    """Makes the questions for one tree, which `observed` visits."""

    def __init__(self, observed):
        self._observed = observed

    def about(self, node):
        """A call that asks the observer about a comparison, or the truth, of arithmetic with attributes: it may know one for a counter. None if it is none."""
        found = []
        if isinstance(node, gast.Compare):
            if not all(isinstance(op, COMPARING) for op in node.ops):
                return None
            parts = [self._arithmetic(x, found) for x in (node.left, *node.comparators)]
            asked = None if None in parts else gast.Compare(parts[0], node.ops, parts[1:])
        else:
            part = self._arithmetic(node, found) if isinstance(node, gast.BinOp) else None
            asked = part and gast.UnaryOp(gast.Not(), gast.UnaryOp(gast.Not(), part))
        return self._asking("question", node, asked, found)

    def counted(self, node):
        """A call that asks the observer about arithmetic with attributes, where it may know what a counter is: it gives a list with the result, or
        None. None if it is none."""
        found = []
        return self._asking("counted", node, self._arithmetic(node, found), found)

    def _asking(self, how, node, asked, found):
        if asked is None or (all(isinstance(x, gast.Name) and x.id not in self._observed.shown for x in found) and not (found and is_of_integers(how, asked))):
            return None
        arguments = [gast.Name(f"x{k}", gast.Param(), None, None) for k in range(len(found))]
        function = gast.Lambda(gast.arguments(arguments, [], None, [], [], None, []), asked)
        names, owners = map(list, zip(*map(self._place, found)))
        return expression(
            f"tls.observer.{how}(function, names, owners)", node, tls=self._observed.tls, function=function, names=gast.Tuple(names, gast.Load()),
            owners=gast.Tuple(owners, gast.Load()))

    def _place(self, node):
        """(what of a named object is meant: None for itself, the name of an attribute, [key] of an item, [name, key] of an item of an attribute; the
        object's name)."""
        path = []
        if isinstance(node, gast.Name) and node.id in self._observed.shown:
            key, owner = self._observed.variable(node)
            return gast.List([key], gast.Load()), owner
        while not isinstance(node, gast.Name):
            path.insert(0, self._observed.attribute(node) if isinstance(node, gast.Attribute) else constant_key(node.slice))
            is_item, node = isinstance(node, gast.Subscript) or len(path) > 1, node.value
        what = gast.Constant(None, None) if not path else gast.List(path, gast.Load()) if is_item else path[0]
        return what, gast.Name(node.id, gast.Load(), None, None)

    def _arithmetic(self, node, found):
        """A copy of an expression of numbers, names, and attributes and items of what has a name, in which `x0`, `x1` ... stand for these; None if it
        is another one."""
        if isinstance(node, gast.Constant):
            return gast.Constant(node.value, None) if type(node.value) in (int, float) else None
        inner = node
        if isinstance(inner, gast.Subscript) and constant_key(inner.slice) is not None:
            inner = inner.value
        if isinstance(inner, gast.Attribute):
            inner = inner.value
        if isinstance(inner, gast.Name) and not self._observed.is_own(node) and (inner is node or inner.id not in self._observed.shown):
            found.append(node)
            return gast.Name(f"x{len(found) - 1}", gast.Load(), None, None)
        if isinstance(node, gast.BinOp) and isinstance(node.op, _CALCULATING):
            left, right = self._arithmetic(node.left, found), self._arithmetic(node.right, found)
            return None if left is None or right is None else gast.BinOp(left, node.op, right)
        return None
