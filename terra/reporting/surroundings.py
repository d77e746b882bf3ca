"""Finders of what lies outside of the step's code: where it is called, options, profilers, what was decided about it."""

import sys

from terra.reporting import places
from terra.reporting.causes import FIRST, Cause, plural
from terra.runtime.interpreter.profilers import in_the_way

_REMEDIES = (
    ("replica", "call the step without strategy.run"),
    ("asynchronously", "leave out tf.config.experimental.set_synchronous_execution(False)"),
    ("callback", "call tf.debugging.disable_check_numerics() when you have found what you look for"),
    ("traced into a graph", "call the step from Python, not from a tf.function; with Keras, use terra.compile"),
)


def find(facts):
    """The causes around a step."""
    return [*_refused(facts), *_where_it_runs(facts), *_options(facts), *_watched(facts), *_block(facts), *_loops(facts)]


def small(facts):
    """That eager execution is as fast, if nothing else explains it."""
    reason = facts.policy.reason or ""
    if "co-execution took" not in reason:
        return []
    count = len(facts.nodes) - len(facts.reads)
    return [Cause("T17", facts.line, f"{reason}: a step with {plural(count, 'operation')}", "put more into one step, or leave it undecorated", None, 1.0)]


def _refused(facts):
    policy = facts.policy
    if facts.function.generation.error is not None:
        return [Cause("T15", facts.line, f"no graph could be made of it: {facts.function.generation.error}", "put what this names under terra.imperative(), or out of the step", None, FIRST)]
    if policy.for_good:
        remedy = "leave out the try statement around the operation that fails, or put it behind the step" if facts.function.located else \
            "keep the function in a file or a cell, where Terra finds its try statement"
        return [Cause("T15", facts.line, policy.reason, remedy, None, FIRST)]
    return []


def _where_it_runs(facts):
    return [Cause("T16", facts.line, "it " + text.rstrip(".").split(";")[0], next((remedy for word, remedy in _REMEDIES if word in text), "call it elsewhere"), None, FIRST)
            for text in sorted(facts.function.warnings)]


def _options(facts):
    options, found = facts.options, []
    if options.verify:
        found.append(("verify=True: each step runs in both ways, and is compared", "leave out verify=True when you have seen that it is right"))
    if options.fast_forward is not True:
        found.append((f"fast_forward={options.fast_forward!r}: Python code runs that could be skipped", "leave out this option"))
    if not options.transform:
        found.append(("transform=False: where the code is can be told from the step's own lines only", "leave out transform=False"))
    if options.run_ahead == 0:
        found.append(("run_ahead=0: Python waits for each step", "leave out run_ahead=0 when you have found the error"))
    if options.jit_compile and facts.function.compiled is not None and facts.function.compiled.reason is not None:
        found.append((f"jit_compile=True is of no use: {facts.function.compiled.reason}", "leave out jit_compile=True"))
    lost = {"run_ahead": facts.stall_ms}
    return [Cause("T18", facts.line, seen, remedy, lost.get(seen.partition("=")[0], facts.python_ms), 9.0) for seen, remedy in found]


def _watched(facts):
    """Profilers and debuggers beside which nothing can be skipped."""
    names = in_the_way()
    if names and facts.skipped < 0.6:
        return [Cause("T11", facts.line, f"the profiler {' or '.join(names)} looked on, and nothing was learned that could be skipped", "start it when the steps have run some 20 times, "
                      "or use cProfile or pyinstrument", facts.python_ms, 30.0)]
    if sys.gettrace() is not None:
        return [Cause("T11", facts.line, "a trace function is set (a debugger, or coverage): all of the step's Python runs for it", "run it without the debugger to see how fast it is",
                      facts.python_ms, 30.0)]
    return []


def _block(facts):
    if not facts.in_block:
        return []
    fed = len(facts.fed)
    what = f", and {plural(fed, 'tensor')} from outside of it {'is' if fed == 1 else 'are'} handed over one by one" if fed else ""
    return [Cause("T10", facts.line, f"its Python runs in each step, as a block has no arguments by which it could be known{what}",
                  "make a function of the block and the update, with @terra.coexecute", facts.python_ms, 2.0, places.statement(facts.line))]


def _loops(facts):
    if not facts.stats.rolled_loops or facts.function.segments is None:
        return []
    lines = sorted(filter(None, map(places.of_id, facts.function.segments.places.varying)))
    seen = f"{plural(len(lines) or facts.stats.rolled_loops, 'loop')} of the step: each round is co-executed by itself"
    return [Cause("T19", lines[0] if lines else facts.line, seen, "pad to a few lengths, or write the loop over tensors (tf.scan, an RNN layer)", facts.python_ms, 4.0,
                  places.statement(lines[0] if lines else None))]
