"""Instruments comprehensions and generator expressions: their iterations are counted where they can issue operations."""

import gast

from terra.transform.rewriting.analysis import Scope, inert
from terra.transform.rewriting.templates import expression


class Comprehensions:
    """The part of the Instrumenter for ``[... for ...]`` and the like."""

    def _visit_comprehension(self, node):
        lazy = isinstance(node, gast.GeneratorExp)
        looped = self._counts_iterations(node)
        chained = looped and lazy and len(node.generators) > 1
        outer = self._own_cursor() if looped else None
        result = node
        for index, generator in enumerate(node.generators):
            if index == 1:
                self._enter_comprehension(lazy)
            generator.iter = self.visit(generator.iter)
            if looped and not chained:
                cursor = outer if index == 0 else self.tls + ".cursor"
                generator.iter = expression(f"{cursor}.{'each_lazily' if lazy else 'each'}(loop, iter)", generator.iter,
                                            loop=self._new_id("loop", generator.iter), iter=generator.iter)
        if len(node.generators) == 1:
            self._enter_comprehension(lazy)
        for generator in node.generators:
            generator.target = self.visit(generator.target)
            generator.ifs = self._visit_list(generator.ifs)
        if isinstance(node, gast.DictComp):
            node.key, node.value = self.visit(node.key), self.visit(node.value)
        else:
            node.elt = self.visit(node.elt)
        self.scopes.pop()
        if chained:
            self._chain(node, outer)
        if looped and lazy:
            keep, done = f"{self.tls}.cursor.keep(it)", f"{self.tls}.cursor.done(it)"
            last = node.generators[-1]
            last.ifs = [expression(keep, c, it=c) for c in last.ifs]
            node.elt = expression(done, node.elt, it=node.elt)
        elif looped:
            result = expression(f"{outer}.after({outer}.current, it)", node, it=node)
        return result

    def _counts_iterations(self, node):
        """Not if nothing in it can issue an operation; nor if it awaits, since its location may then be moved."""
        parts = [node.key, node.value] if isinstance(node, gast.DictComp) else [node.elt]
        everything = parts + [c for g in node.generators for c in g.ifs] + [g.iter for g in node.generators[1:]]
        awaits = any(isinstance(n, gast.Await) for g in everything for n in gast.walk(g))
        return not (awaits or any(g.is_async for g in node.generators) or all(inert(p) for p in everything))

    def _chain(self, node, outer):
        """``(f(x, y) for x in a for y in b(x))``: the last clause counts, with what the first one hands over.

        ``(f(x, y) for (each, x) in cursor.outermost(5, a) for y in each.each(b(x)))``
        """
        first, last = node.generators[0], node.generators[-1]
        loop_id = self._new_id("loop", last.iter)
        each = self._temporary("each")
        pair = expression("(each, 0)", first.target, each=each)
        pair.elts[1] = first.target
        for new in (pair, pair.elts[0]):
            new.ctx = gast.Store()
        first.target = pair
        first.iter = expression(f"{outer}.outermost(loop, iter)", first.iter, loop=loop_id, iter=first.iter)
        last.iter = expression("each.each(iter)", last.iter, each=each, iter=last.iter)

    def _enter_comprehension(self, lazy):
        self.scopes.append(Scope("expression", self.scope.name, None if lazy else self.scope.activation))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension
