"""The observed form of `match`: the tests of an `if`, in which the observer takes the subject apart (see `terra.location.observed_patterns`).

    match point:                    subject = point
        case (0, y) if y > 1:       if (parts := o.sequence(subject, 2, 0, None)) is not None and o.truth(o.comparison('Eq', parts[0], 0)) and <y := parts[1]> and ...

As in the interpreter, names are bound when all of a pattern has matched, and before its guard is asked (PEP 634).
"""

import gast

from terra.transform.rewriting.templates import expression, statements

__all__ = ["MatchStatements"]


class MatchStatements:
    """The part of Observed for `match`."""

    _held = 0  # names that were made for subjects and their parts

    def visit_Match(self, node):
        subject = self._new_name()
        chain = []
        for case in reversed(node.cases):
            names = {}
            tests = self._tests(case.pattern, subject, names)
            tests += [self._binding(name, held, case.pattern) for name, held in names.items()]
            if case.guard is not None:
                tests.append(self._truth(case.guard))
            chain = [gast.copy_location(gast.If(_all_of(tests), self._visit_list(case.body), chain), case.pattern)]
        return [*statements("subject = value", node.subject, subject=subject, value=self.visit(node.subject)), *chain]

    def _new_name(self):
        self._held += 1
        return f"{self._prefix}part{self._held}"

    def _binding(self, name, held, at):
        """An expression that is true, and binds a name."""
        target = self.visit(gast.copy_location(gast.Name(name, gast.Store(), None, None), at))  # refused, if the name is not the function's own
        return expression("((name := held) is None) is not None", at, name=target, held=held)

    def _tests(self, pattern, held, names):
        """Expressions that are all true if the pattern matches what has the name `held`; to `names` is added {name: the name that has what it is to be bound to}."""
        return getattr(self, "_of_" + type(pattern).__name__)(pattern, held, names)

    def _of_MatchAs(self, pattern, held, names):
        tests = [] if pattern.pattern is None else self._tests(pattern.pattern, held, names)
        if pattern.name is not None:
            names[pattern.name] = held
        return tests

    def _of_MatchStar(self, pattern, held, names):
        if pattern.name is not None:
            names[pattern.name] = held
        return []

    def _of_MatchValue(self, pattern, held, names):
        compared = expression("tls.observer.comparison('Eq', held, value)", pattern, tls=self.tls, held=held, value=self._value(pattern.value))
        return [self._show("truth", compared)]

    def _value(self, node):
        """Returns the expression that a value pattern, or a key, is compared with: a literal, or an attribute of something that has a name."""
        return self.visit(node) if isinstance(node, gast.Attribute) else node

    def _of_MatchSingleton(self, pattern, held, names):
        return [expression("held is value", pattern, held=held, value=pattern.value)]

    def _of_MatchOr(self, pattern, held, names):
        common, alternatives = {}, []
        for alternative in pattern.patterns:
            own = {}
            tests = self._tests(alternative, held, own)
            for name, part in own.items():
                if name not in common:
                    common[name] = self._new_name()
                tests.append(self._binding(common[name], part, alternative))
            alternatives.append(_all_of(tests))
        names.update(common)
        return [gast.copy_location(gast.BoolOp(gast.Or(), alternatives), pattern)]

    def _of_MatchSequence(self, pattern, held, names):
        stars = [k for k, part in enumerate(pattern.patterns) if isinstance(part, gast.MatchStar)]
        before = stars[0] if stars else len(pattern.patterns)
        after = len(pattern.patterns) - before - len(stars)
        wanted = pattern.patterns[before].name is not None if stars else None
        taken = expression("tls.observer.sequence(held, before, after, wanted)", pattern, tls=self.tls, held=held, before=before, after=after, wanted=wanted)
        return self._parts(pattern, taken, pattern.patterns, names)

    def _of_MatchMapping(self, pattern, held, names):
        keys = gast.Tuple([*map(self._value, pattern.keys)], gast.Load())
        taken = expression("tls.observer.mapped(held, keys, rest)", pattern, tls=self.tls, held=held, keys=keys, rest=pattern.rest is not None)
        rest = [] if pattern.rest is None else [gast.copy_location(gast.MatchStar(pattern.rest), pattern)]
        return self._parts(pattern, taken, [*pattern.patterns, *rest], names)

    def _of_MatchClass(self, pattern, held, names):
        wanted = gast.Tuple([gast.Constant(self.mangled(name), None) for name in pattern.kwd_attrs], gast.Load())
        taken = expression(
            "tls.observer.instance(held, cls, positions, wanted)", pattern, tls=self.tls, held=held, cls=self.visit(pattern.cls), positions=len(pattern.patterns),
            wanted=wanted)
        return self._parts(pattern, taken, [*pattern.patterns, *pattern.kwd_patterns], names)

    def _parts(self, pattern, taken, patterns, names):
        """The tests for what the expression `taken` gives: None, or a tuple of what the patterns are to match."""
        parts = self._new_name()
        tests = [expression("(parts := taken) is not None", pattern, parts=parts, taken=taken)]
        for k, part in enumerate(patterns):
            held = self._new_name()
            inner = self._tests(part, held, names)
            if inner or held in names.values():
                tests += [self._binding(held, expression("parts[k]", part, parts=parts, k=k), part), *inner]
        return tests


def _all_of(tests):
    if len(tests) < 2:
        return tests[0] if tests else gast.Constant(True, None)
    return gast.copy_location(gast.BoolOp(gast.And(), tests), tests[0])
