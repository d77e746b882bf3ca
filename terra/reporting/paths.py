"""Finders of what makes a step take other paths than before: branches, lists that grow, errors, operations that no graph has."""

import re
from collections import Counter

from terra.reporting import places
from terra.reporting.causes import Cause, a_few, plural

_FEW = 3  # fallbacks that nothing is made of: they teach
_NEW_PATH = re.compile("never followed|from a source that was never seen|the step ended after")
_GROWS = re.compile(r"^(Pack|ConcatV2|AddN|Concat) .*another (N|.* and N)\b")


def find(facts):
    """The causes that fallbacks tell of, and branches."""
    kinds = {"raised": Counter(), "variables": Counter(), "grows": Counter(), "path": Counter()}
    for reasons in (facts.function.fallback_reasons, facts.function.raised):
        for reason, count in reasons.items():
            text, line = places.split(reason)
            kind = _kind_of(text)
            if kind is not None:
                kinds[kind][text, line] += count
    return [*_raising(facts, kinds["raised"]), *_using_variables(facts, kinds["variables"]), *_growing(facts, kinds["grows"]), *_branching(facts, kinds["path"])]


def _kind_of(text):
    if "the step raised" in text:
        return "raised"
    if "variables" in text and "runs" in text or "uses variables" in text:
        return "variables"
    if _GROWS.search(text):
        return "grows"
    return "path" if _NEW_PATH.search(text) else None


def _raising(facts, found):
    if not found:
        return []
    (text, line), _ = found.most_common(1)[0]
    count = found.total()
    if count < 2:
        return []
    seen = f"at least {count} of {facts.stats.steps} steps raised ({text.removeprefix('the step raised ')})"
    return [Cause("T08", line or facts.line, seen, "give back what tells that something is wrong, and raise behind the step", facts.lost(count), 20.0, places.statement(line))]


def _using_variables(facts, found):
    if found.total() < _FEW:
        return []
    (text, line), _ = found.most_common(1)[0]
    return [Cause("T06", line, f"{plural(found.total(), 'step')} began anew, because {text}", "move it to the beginning of the step, or out of it",
                  facts.lost(found.total() + facts.paused), 15.0, places.statement(line))]


def _growing(facts, found):
    if found.total() < _FEW:
        return []
    (_, line), _ = found.most_common(1)[0]
    return [Cause("T12", line, f"another number of tensors is put together each time: {plural(found.total(), 'step')} began anew because of that",
                  "keep what is needed of the earlier ones in a tf.Variable, or do this behind the step", facts.lost(found.total() + facts.paused), 18.0, places.statement(line))]


def branches(facts):
    """[(line of the branch or None, lines of what follows it)] wherever paths part for good."""
    return [(places.parting(ways) or places.branch_around(ways[-1]), ways) for ways in facts.partings]


def _branching(facts, found):
    fallbacks, parted = found.total(), branches(facts)
    if fallbacks < _FEW and not (parted and facts.stats.traces > 2 and facts.skipped < 0.5):
        return []
    lines = Counter(line for line, _ in parted if line is not None)
    for (_, line), count in found.items():
        around = places.branch_around(line) if line else None
        if around is not None:
            lines[around] += count
    ms = facts.lost(fallbacks + facts.paused)
    if facts.python_ms is not None and facts.skipped < 0.5:
        ms = (ms or 0.0) + facts.python_ms
    paths = plural(facts.stats.traces, "path")
    full = f", and {facts.options.max_traces} (max_traces) are the most that are learned" if facts.stats.traces >= facts.options.max_traces else ""
    if not lines:
        if fallbacks < _FEW:
            return []
        (_, line), _ = found.most_common(1)[0]
        return [Cause("T07", line or facts.line, f"{plural(fallbacks, 'step')} did something new here" + (f"; {paths} so far{full}" if facts.stats.traces > 1 else ""), "take what differs in each step out of the step", ms, 17.0,
                      places.statement(line))]
    first = min(lines, key=lambda line: (-lines[line], line))
    if len(lines) > 1:  # those that stand first in the source are where a reader begins
        first = min(lines, key=lambda line: (line.rpartition(":")[0], int(line.rpartition(":")[2])))
    others = [line for line in lines if line != first and not places.is_librarys(line)]
    also = f", and at {a_few(sorted(others))}" if others else ""
    return [Cause("T04", first, f"the program goes on here in one way or another{also}: {paths} so far{full}, {plural(fallbacks, 'step')} took a new one",
                  "compute both, and choose with tf.where or tf.cond on a tensor (random numbers: tf.random in place of Python's)", ms, 16.0, places.statement(first))]

