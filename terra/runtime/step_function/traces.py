"""Merges the steps that are traced into what a step function knows, and forgets that again (`trace_eviction` tells which traces nobody needs any more)."""

import logging

from terra.graph import trace
from terra.runtime.execution.step import Step
from terra.runtime.step_function.tuning.early_start import EarlyStart
from terra.runtime.step_function.tuning.single_threaded import SingleThreaded
from terra.tf import private_names as tfi

log = logging.getLogger("terra")

MOST_NODES = 20_000  # of a TraceGraph that new paths may still be merged into, unless one trace is nearly as long


class Traces:
    """Merges the traces of one function, and forgets them."""

    def __init__(self, function):
        self._function = function

    def merge(self, step, raw):
        """A whole step was traced: merge what was recorded, and have a graph made where one is due."""
        function = self._function
        generation, turnover = function.generation, function.eviction
        raw.creates_variables = step.creates_variables
        fell_back = step.fallback_reason is not None
        if function.begins_anew:
            return
        if function.located and type(step) is Step and function.options.loops != "unroll":
            if function.rolling.after_trace({event.location for event in raw.events}):
                return
        is_due = turnover.is_due(function.store, raw, function.store.n_traces >= function.options.max_traces)
        if is_due:
            log.info("step %d of %s uses other variables than those before: their traces are forgotten", function.n_steps, function.policy.name)
            self._forget_trials()
            generation.expect_fixed_shapes()
        if is_due or (function.was_edited and fell_back):  # operations in other code are others, too
            function.was_edited = False
            self.begin_anew()
            if function.begins_anew:
                return
            fell_back = fell_back and is_due and turnover.is_known  # else what was unknown before tells nothing of this path
        store = function.store
        with generation.lock:
            may_grow = store.n_traces < function.options.max_traces and len(store.graph) < max(MOST_NODES, 3 * len(raw.events))
            changed = store.add(raw, may_grow=may_grow)
        if not fell_back:
            function.policy.traced(not changed)
        else:
            function.policy.account.falls_back()
            if changed or not (generation.task is not None or generation.is_due):  # else the graph that knows this path is being generated, or will be
                function.policy.fell_back(step.fallback_reason)
        if (function.store.version != generation.version or generation.lacks_shapes) and (fell_back or not changed) and generation.task is None:
            generation.begin()

    def begin_anew(self):
        """Forget the traces, now if no graph is being generated, else as soon as it is there."""
        function = self._function
        function.begins_anew = function.generation.task is not None
        if not function.begins_anew:
            self.forget()

    def forget(self):
        """Begin anew: there is another way to run the steps. No graph is being generated."""
        function = self._function
        function.store = trace.TraceStore()
        function.generation.version, function.generation.is_due = 0, False
        if function.program is not None:
            function.generation.retired.append(function.program)
            function.program = None

    def forget_everything(self):
        """Determinism was switched on or off: TensorFlow's functions look at that. They may issue other operations now, or raise."""
        function = self._function
        function._deterministic = tfi.is_deterministic()
        function.generation.settle(True)
        if function.segments is None:
            self.forget()
        else:
            function.rolling.unroll()

    def narrow(self):
        """Make a graph of the path alone that all steps take now; until it is there, the old one is used."""
        function = self._function
        log.info("step %d of %s: all steps have taken one path for long; it gets a graph of its own", function.n_steps, function.policy.name)
        function.eviction.narrow()
        version = function.store.version + 1
        function.store = trace.TraceStore()
        function.store.version = function.generation.version = version
        self._forget_trials()

    def _forget_trials(self):
        """How the graph was best run so far may not be best for the next one."""
        self._function.early_start, self._function.single_threaded = EarlyStart(), SingleThreaded()
