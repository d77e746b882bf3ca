"""Steps that are noted as spans of time: which way a step took is told when it is over, by what was counted meanwhile."""

import time

from terra.runtime.interpreter import spans


def step(function, make, args, kwargs):
    """Returns `make(args, kwargs)`, a step of this co-executed function, and notes it."""
    begun = begin(function)
    try:
        return make(args, kwargs)
    finally:
        if begun is not None:
            note(*begun)


def begin(function):
    """A step of this co-executed function begins. Returns what `note` takes when it is over; None if nobody keeps spans."""
    recorder = spans.look()
    return None if recorder is None else (recorder, function, _counted(function), spans.mark(spans.PYTHON, function.counts.name), time.perf_counter())


def _counted(function):
    """Returns how many steps there were of each kind so far."""
    stats = function._stats
    return function.counts.whole_steps, stats.coexecuted_steps, stats.fallbacks, stats.tracing_steps, stats.imperative_steps


def note(recorder, function, before, mark, start):
    """Notes a step that is over: it was skipped as a whole, co-executed, traced, or ran imperatively; or it has raised before that could be told."""
    end, stats, kind = time.perf_counter(), function._stats, spans.PYTHON
    whole, coexecuted, fallbacks, traced, imperative = before
    if stats.coexecuted_steps != coexecuted:
        how = "co-executed"
        if function.counts.whole_steps != whole:
            kind = how = spans.SKIPPED
    elif stats.fallbacks != fallbacks:
        how = "fell back"
    else:
        how = "traced" if stats.tracing_steps != traced else "imperative" if stats.imperative_steps != imperative else "raised"
    if mark is not None:
        mark.set_metadata(step=stats.steps, how=how)
    recorder.add(kind, function.counts.name, start, end, (how, stats.steps), mark)
