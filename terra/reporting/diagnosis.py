"""Finds what is wrong with one step function, in order: the causes of all finders, without those that follow from others."""

import dataclasses
import functools

from terra.location import current_step
from terra.reporting import paths, places, skipping, surroundings, values
from terra.reporting.causes import amount, in_order, plural
from terra.reporting.facts import Facts

_OF_LITTLE = frozenset(["T03", "T05", "T10"])  # beside which something else may be what costs
_AS_FAST = 1.1  # times as fast as eager, which nobody would notice


class Diagnosis:
    """One step function: how fast it is, since when it is co-executed, and why it is not faster."""

    def __init__(self, function):
        self.facts = Facts(function)

    @functools.cached_property
    def causes(self):
        """The causes, those that cost most first; one for each line."""
        facts = self.facts
        if not facts.stats.steps and not facts.function.warnings:
            return []
        found = [*surroundings.find(facts), *paths.find(facts), *values.find(facts), *skipping.find(facts)]
        if all(cause.code in _OF_LITTLE for cause in found):
            found += skipping.operation_by_operation(facts, bool(found))
        kept = {}  # one for each line, but for that of the step's own definition, at which there may be one of each code
        for cause in found or surroundings.small(facts):
            if places.is_librarys(cause.line):
                cause = dataclasses.replace(cause, line=facts.line, statement=None)
            key = cause.line if cause.line != facts.line else (cause.line, cause.code)
            kept[key] = _of_two(kept[key], cause) if key in kept else cause
        return in_order(kept.values())

    @property
    def speedup(self):
        """How many times as fast as eager execution steps are as they come; None if either time is not known."""
        facts = self.facts
        return facts.eager_ms / facts.mean_ms if facts.mean_ms and facts.eager_ms and facts.stats.coexecuted_steps else None

    def verdict(self):
        """One line: the step, where it is, and how fast it is."""
        facts = self.facts
        return "   ".join(["  ".join(filter(None, [facts.name, facts.line if not facts.in_block else None])), self._how_fast()])

    def _how_fast(self):
        facts, speedup, eager = self.facts, self.speedup, self.facts.eager_ms
        if current_step.all_are_left_alone():
            return "runs eagerly, because of TERRA_DISABLE or terra.set_stance('imperative')"
        if not facts.stats.steps and facts.function.warnings:
            return "not co-executed where it is called"
        if not facts.stats.steps:
            outer = facts.function.part_of
            return f"not called by itself: it is part of the step {outer.replace('<locals>.', '')}" if outer else "not called yet"
        if facts.policy.pause_left:
            until = "from now on" if facts.policy.for_good else f"for the next {plural(facts.policy.pause_left, 'step')}"
            return f"runs eagerly {until}" + (f" ({amount(eager)} ms a step)" if eager else "")
        if not facts.stats.coexecuted_steps:
            return "runs eagerly so far" + (f" ({amount(eager)} ms a step)" if eager else "")
        if facts.mean_ms is None:
            took = f"{amount(facts.coexecuted_ms)} ms a step if it is" if facts.coexecuted_ms else "no times yet"
            return f"co-executed in {facts.stats.coexecuted_steps} of {facts.stats.steps} steps ({took}; eager's time is not known)"
        if speedup is None:
            return f"{amount(facts.mean_ms)} ms a step (eager's time is not known: no step ran eagerly beside it)"
        times = f"{amount(speedup)} x faster" if speedup >= 1 else f"{amount(1 / speedup)} x slower"
        how = f"{times} than eager" if not 1 / _AS_FAST < speedup < _AS_FAST else "about as fast as eager"
        bound = "at most " if facts.eager_is_bound else ""
        limit = "" if not bound else "up to " if speedup >= _AS_FAST else "at least " if speedup < 1 / _AS_FAST else ""
        return f"{limit}{how} ({amount(facts.mean_ms)} ms a step, eager {bound}{amount(eager)})"

    def since(self):
        """One line: since which step it is co-executed, and how many steps were."""
        facts, stats = self.facts, self.facts.stats
        if not stats.steps:
            return None
        if facts.policy.pause_left:
            return f"left alone, because {self._reason()}"
        if not stats.coexecuted_steps:
            if facts.function.generation.task is not None:
                return f"its first graph is being built; {stats.steps} steps so far"
            return f"{stats.tracing_steps} of {stats.steps} steps were looked at, {stats.imperative_steps} left alone"
        counted = f"{stats.coexecuted_steps} of {stats.steps} steps" + (f", {stats.whole_steps} of them without running its Python" if stats.whole_steps else ", and its Python runs in each")
        if facts.tail is not None:
            counted += f"; {facts.tail} and what follows runs as Python, behind the step"
        if facts.first is None:
            return f"co-executed: {counted}"
        if facts.last_other is None or facts.last_other < facts.first:
            return f"co-executed from step {facts.first} on: {counted}"
        return f"co-executed from step {facts.first} on, but for some (the last one was step {facts.last_other}): {counted}"

    def _reason(self):
        return skipping.in_plain_words(self.facts.policy.reason or "it was given up")

    def to_dict(self):
        """All of it as plain values."""
        facts = self.facts
        return {"name": facts.name, "line": facts.line, "verdict": self.verdict(), "speedup": self.speedup, "ms_per_step": facts.mean_ms, "coexecuted_ms_per_step": facts.coexecuted_ms,
                "eager_ms_per_step": facts.eager_ms, "coexecuted_from_step": facts.first, "stats": dict(vars(facts.stats)), "causes": [cause.to_dict() for cause in self.causes]}


def _of_two(one, other):
    """Of two causes at one line, the one that says more, with the larger cost."""
    told = one if one.weight >= other.weight else other
    costs = [cause.ms for cause in (one, other) if cause.ms is not None]
    return dataclasses.replace(told, ms=max(costs, default=None))
