"""Steps that are noted as spans of time: which way a step took is told when it is over, by what was counted meanwhile."""

import time

from terra.runtime.interpreter import spans


class RecordedStep:
    """A step that has begun while spans are noted."""

    __slots__ = ("_function", "_span", "_start", "_before")

    def __init__(self, function, recorder):
        self._function, self._before = function, _counted(function)
        self._span = recorder.begin(spans.PYTHON, function.counts.name)
        self._start = time.perf_counter()

    def end(self):
        """The step is over: it was skipped as a whole, co-executed, traced, or ran imperatively; or it has raised before that could be told."""
        end = time.perf_counter()
        skipped, coexecuted, fell_back, traced, imperative = (now - before for now, before in zip(_counted(self._function), self._before))
        how = "skipped" if skipped and coexecuted else "co-executed" if coexecuted else "fell back" if fell_back else "traced" if traced else "imperative" if imperative else "raised"
        self._span.end(self._start, end, {"step": self._function.n_steps, "how": how}, spans.SKIPPED if how == "skipped" else None)


def _counted(function):
    stats = function._stats
    return function.counts.whole_steps, stats.coexecuted_steps, stats.fallbacks, stats.tracing_steps, stats.imperative_steps
