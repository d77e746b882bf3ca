"""The observed form of assignments: their values are shown, and what of the program's they change."""

import gast

from terra.transform.rewriting.templates import expression
from terra.transform.observing.value_sources import name_of, refuse_calls, starred, structure

__all__ = ["Assignments"]


class Assignments:
    """The part of Observed for assignments."""

    def _sets_names(self, value, targets):
        """A value that is assigned to these targets: it is shown that names which are not the function's own are set."""
        for target in targets:
            if isinstance(target, gast.Name) and target.id in self.shown:
                key, owner = self.variable(target)
                value = self._show("sets_name", value, owner=owner, name=key)
        return value

    def visit_ExceptHandler(self, node):
        """An exception is caught, and may have a name."""
        node = self.generic_visit(node)
        held = gast.Constant(None, None) if node.name is None else gast.Name(node.name.id, gast.Load(), None, None)
        node.body.insert(0, gast.copy_location(gast.Expr(self._show("caught", gast.copy_location(held, node))), node))
        return node

    def _visit_import(self, node):
        """It is shown which modules, or names of one, are imported."""
        imported = [(name.name, 0, ()) for name in node.names] if isinstance(node, gast.Import) else [(node.module, node.level, tuple(name.name for name in node.names))]
        shown = []
        for name, level, names in imported:
            call = expression(
                "tls.observer.imports(name, level, names)", node, tls=self.tls, name=gast.Constant(name, None), level=gast.Constant(level, None),
                names=gast.Tuple([gast.Constant(x, None) for x in names], gast.Load()))
            shown.append(gast.copy_location(gast.Expr(call), node))
        return [*shown, node]

    visit_Import = visit_ImportFrom = _visit_import

    def visit_Assign(self, node):
        if self.is_own(node.targets[0]):
            return node
        node.value = self.visit(node.value)
        for shape in map(structure, node.targets):
            if shape is not None:
                node.value = self._show("unpacked", node.value, shape=shape)
        rest = self._born(starred(node.targets))
        named = ["value"] if any(isinstance(target, gast.Subscript) for target in node.targets) else []
        node.value, node.targets = self._assigned(node.value, node.targets)
        return [node, *rest, *self._let_go(*named)]

    def _unpack_first(self, node):
        """Makes the first statement within a context unpack what it gives, or store that elsewhere than in a name of the function's own."""
        for k, item in enumerate(node.items):
            target, rest = item.optional_vars, node.items[k + 1:]
            if target is not None and (not isinstance(target, gast.Name) or target.id in self.shown):
                item.optional_vars = gast.Name(self._prefix + "context", gast.Store(), None, None)
                first = gast.Assign([target], gast.copy_location(gast.Name(self._prefix + "context", gast.Load(), None, None), node))
                inner = [gast.copy_location(gast.With(rest, node.body, None), node)] if rest else node.body
                node.items, node.body = node.items[:k + 1], [gast.copy_location(first, node), *self._let_go("context"), *inner]
                return

    def _let_go(self, *names):
        """Statements by which the names of Terra's, that a statement has used, keep nothing alive behind it."""
        return [gast.Assign([gast.Name(self._prefix + name, gast.Store(), None, None)], gast.Constant(None, None)) for name in names]

    def _assigned(self, value, targets):
        """(a shown value, the targets that it is assigned to): it has a name where one of them is an item."""
        if any(isinstance(target, gast.Subscript) for target in targets):
            value = self._named(self._prefix + "value", value)
        name = gast.Name(self._prefix + "value", gast.Load(), None, None)
        value = self._sets_names(value, targets)
        return value, [self._target(target, name) for target in targets]

    def _target(self, target, value):
        if isinstance(target, gast.Subscript):
            return self._stored(target, value)
        return target if isinstance(target, gast.Name) else self.visit(target)

    def visit_AugAssign(self, node):
        node.value = self.visit(node.value)
        if isinstance(node.target, gast.Name) and node.target.id in self.shown:
            key, owner = self.variable(node.target)
            node.value = self._show("inplace_attribute", node.value, owner=owner, name=key, operator=name_of(node.op))
            return [node, gast.Expr(self._show("item", gast.copy_location(gast.Constant(None, None), node.target)))]
        if isinstance(node.target, gast.Name):
            held = gast.Name(node.target.id, gast.Load(), None, None)
            held.__dict__.update({name: getattr(node.target, name) for name in node.target._attributes if hasattr(node.target, name)})
            node.value = self._show("inplace", node.value, held=held, operator=name_of(node.op))
            return [node, gast.Expr(self._show("item", held))]
        if isinstance(node.target, gast.Subscript) and not isinstance(node.target.slice, gast.Slice):
            container, key = self._prefix + "container", self._prefix + "key"
            node.value = self._show(
                "inplace_item", node.value, container=gast.Name(container, gast.Load(), None, None), key=gast.Name(key, gast.Load(), None, None),
                operator=name_of(node.op))
            target = node.target
            target.value, target.slice = self._named(container, self._shown("augmented", target.value)), self._named(key, self._index(target.slice))
            return [node, gast.Expr(self._show("item", gast.copy_location(gast.Constant(None, None), node.target))), *self._let_go("container", "key")]
        if isinstance(node.target, gast.Attribute):
            owner = self._prefix + "owner"
            node.value = self._show(
                "inplace_attribute", node.value, owner=gast.Name(owner, gast.Load(), None, None), name=self.attribute(node.target),
                operator=name_of(node.op))
            node.target.value = self._named(owner, self._show("owner_to_change", self.visit(node.target.value), name=self.attribute(node.target)))
            return [node, gast.Expr(self._show("item", gast.copy_location(gast.Constant(None, None), node.target))), *self._let_go("owner")]
        node.target.value = self._shown("changed", node.target.value)
        node.target.slice = self._index(node.target.slice)
        return node

    @staticmethod
    def _named(name, value):
        return gast.copy_location(gast.NamedExpr(gast.Name(name, gast.Store(), None, None), value), value)

    def visit_AnnAssign(self, node):
        refuse_calls(node.annotation)
        if node.value is None:
            node.target = self.visit(node.target)
        else:
            node.value, (node.target,) = self._assigned(self.visit(node.value), [node.target])
        return node
