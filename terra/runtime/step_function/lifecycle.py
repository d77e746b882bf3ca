"""The life of one step: how it begins on its thread, and what is to be done when the code has returned or raised."""

import contextlib
import logging
import time

from terra.location import current_step, location
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.process.garbage import collect_as_before, collect_rarely
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.execution.registered import remove_left
from terra.runtime.execution.step import Step
from terra.runtime.fallback.replay import destroy
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.fast_forward.sources import deferred_fetches
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.interpreter import frames, spans
from terra.runtime.loops import segments, recurrent_layers
from terra.runtime.step_function import structure_specialisation
from terra.runtime.tracing.tracer import Tracer
from terra.tf import private_names as tfi

log = logging.getLogger("terra")

SETTLED = 24  # traces in a row, nothing new to a segment, after which it gets a graph while others of the step are not yet known
_NOTHING = contextlib.nullcontext()


class Lifecycle:
    """Begins the steps of one function, and ends them."""

    def __init__(self, function):
        self._function = function

    # -- the beginning ---------------------------------------------------------------------------------------------------------

    def begin(self, kind, args=(), kwargs=None):
        """Begin a step of class `kind` on this thread, whose operations belong to it until `leave`. Returns None if the step is to run imperatively."""
        function = self._function
        stats, generation = function._stats, function.generation
        stats.steps += 1
        function.current()
        generation.settle(function.options.wait_for_graph)
        if tfi.is_deterministic() is not function._deterministic:
            function.traces.forget_everything()
        if function.begins_anew:
            function.traces.begin_anew()
        remove_left()
        if generation.retired:
            try:
                generation.remove_retired()
            except BaseException:  # of an earlier step: this one has not begun
                stats.steps -= 1
                raise
        generation.resume()
        if function.program is not None and function.program.compiled is not None:
            function.program.compiled.advance(function.options.wait_for_graph)
        if function.segments is not None and kind is Step:
            kind = segments.SegmentedStep
            waiting = generation.task is not None and not function.segments.ready
        else:
            waiting = function.program is None and (generation.task is not None or generation.is_due or not (
                outcomes.pending or function.options.wait_for_graph or function.options.verify or function.policy.may_trace()))
        step = self._begun(kind, args, kwargs) if kind is Step and function.dynamic_arguments.is_undecided else None  # each step tells whether new sizes keep coming
        if waiting or self._cannot_be_ordered() or self._is_looked_at() or (not outcomes.pending and function.policy.imperative()) or (
                not function.options.wait_for_graph and not outcomes.pending and not function.options.verify and (function.policy.wants_sample() or self._waits_for_sizes())):
            stats.imperative_steps += 1
            return None
        if step is None:
            step = self._begun(kind, args, kwargs)
        try:
            if step.mode is not None:
                GRAPH_RUNNER.limit(max(function.options.run_ahead - 1, 0))
            elif function.program is None or (not function.keeps_last and function.eviction.traces()):
                GRAPH_RUNNER.sync()
                recurrent_layers.replace()
                deferred_fetches.replace(call_cache.running)
                step.mode = Tracer(step)
            else:
                program, form, single_threaded = function.program, None, False
                if not function.keeps_last:
                    now = time.perf_counter()
                    form = function.early_start.begins(program, stats.steps, now, function.counts.python_stall)
                    single_threaded = function.single_threaded.begins(program, form, stats.steps, now)
                GRAPH_RUNNER.limit(max(function.options.run_ahead - 1, 0))
        except BaseException:  # of an earlier step: this one has not begun
            stats.steps -= 1
            raise
        collect_rarely(step)
        step.came_from = location.begin_step()
        current_step.active = step
        interception.install()
        tfi.note_drawn_seeds(step.drawn_seeds)
        tfi.flush_zeros_cache()
        if step.mode is None:
            try:
                step.mode = PythonRunner(step, program, form, single_threaded)
            except BaseException:
                stats.steps -= 1
                self.leave(step)
                raise
        step.begins()
        return step

    def _begun(self, kind, args, kwargs):
        """Returns a new step, whose sizes were looked at."""
        step = kind(self._function, args, kwargs)
        if self._function.dynamic_arguments.look_at(step):
            self._function.traces.begin_anew()
        return step

    def _waits_for_sizes(self):
        """Returns whether it is to be seen yet which sizes are to be left unknown: a graph that knows them all would be in vain."""
        function = self._function
        return function.program is None and function.segments is None and not function.lengths and function.dynamic_arguments.may_turn  # (loops of RNN layers have a way of their own)

    def _cannot_be_ordered(self):
        """Returns whether the program's own eager operations are queued on another executor than ours, where they could be overtaken."""
        return tfi.executes_asynchronously() and self._function.warn_once(
            "runs imperatively, because TensorFlow executes asynchronously on this thread; leave that off (see "
            "tf.config.experimental.set_synchronous_execution): co-executed steps are asynchronous anyway.")

    def _is_looked_at(self):
        """Returns whether each operation is to be shown to somebody, which a graph does not do."""
        return tfi.has_callbacks() and self._function.warn_once(
            "runs imperatively as long as TensorFlow shows each operation to a callback, which tf.debugging.enable_check_numerics, say, has asked for.")

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def leave(self, step):
        """The step's thread leaves the step, however that ended."""
        current_step.active = None
        collect_as_before(step)
        location.end_step(step.came_from)
        if type(step.cursor) is frames.FrameCursor:
            step.cursor.frame = None  # the frame would keep the step's tensors alive
        tfi.note_drawn_seeds(None)
        tfi.flush_zeros_cache()
        interception.remove_if_idle()

    def end(self, step):
        """The function has returned."""
        with step.lock if current_step.active is not step else _NOTHING:  # other threads may be at work in it
            step.ends()
            self._end_alone(step)

    def _end_alone(self, step):
        function = self._function
        tfi.flush_zeros_cache()  # which would keep tensors of the step alive
        if step.error is not None:
            raise step.error
        if isinstance(step, segments.SegmentedStep):
            self._end_rolled(step)
            return
        mode = step.mode
        if isinstance(mode, PythonRunner) and mode.complete():
            function._stats.early_steps += not mode.late
            function.early_start.ends(time.perf_counter() - mode.waited, function.counts.python_stall - mode.waited)
            function.note_coexecuted(
                mode.program, mode.form, mode.path, step.shapes(), mode.single_threaded, mode.other_shapes_at >= 0, function.generation.lacks_form(function.program))
            step.mode = None
            if function.policy.first is None:
                function.policy.first = function._stats.steps
            return
        function._stats.tracing_steps += 1
        function.policy.last_other = function._stats.steps
        self._look_for_failure(step)
        raw = step.mode.finish()
        destroy(step.deferred_destroys)
        function.traces.merge(step, raw)
        step.mode = None  # the two hold each other, and all that was recorded

    def _end_rolled(self, step):
        function = self._function
        step.finish()
        destroy(step.deferred_destroys)
        fell_back = step.fallback_reason is not None
        self._look_for_failure(step)
        if not step.traced:
            function._stats.coexecuted_steps += 1
            function.policy.coexecuted()
            if function.policy.first is None:
                function.policy.first = function._stats.steps
            if step.operations <= structure_specialisation.LARGEST:
                function.structures.path = step.path
                if function.options.loops == "auto" and function.eviction.has_settled(step.path) and function.generation.task is None:
                    function.rolling.unroll_settled()
            if function.keeps_last:
                function.last = segments.LastSegments(step.kept)
        else:
            function._stats.tracing_steps += 1
            function.policy.last_other = function._stats.steps
            if fell_back:
                function.policy.fell_back(step.fallback_reason)
            else:
                function.policy.traced(True)
        step.mode = None
        of, generation = function.segments, function.generation
        if of is None or function.rolling.after_segments(step) or not of.dirty or generation.task is not None:
            return
        if fell_back or not step.learned:
            of.due = set(of.dirty)
        elif not of.ready:  # iterations of a loop need not wait for what comes once in a step
            of.due = {segment for segment in of.dirty if segment.quiet >= SETTLED}
        if of.due:
            generation.begin()

    def abort(self, step, error):
        """The function raised: what it did before is done, as in eager execution."""
        with step.lock if current_step.active is not step else _NOTHING:
            step.ends()
            self._abort_alone(step, error)

    def _abort_alone(self, step, error):
        function, mode = self._function, step.mode
        if mode is None:
            return
        function.policy.raised(error)
        function.policy.last_other = function._stats.steps
        line = frames.line_of_error(error)
        why = f"the step raised {type(error).__name__}" + (f" ({line})" if line else "")
        if step.fallback_reason is None and not isinstance(mode, PythonRunner):
            function.raised[why] = function.raised.get(why, 0) + 1
        if isinstance(step, segments.SegmentedStep):
            function._stats.tracing_steps += 1
            try:
                step.abort()
            finally:
                destroy(step.deferred_destroys)
                step.mode = None
            return
        if isinstance(mode, PythonRunner) and GRAPH_RUNNER.has_raised(error):
            mode.drop(error)
            destroy(step.deferred_destroys)
            function._stats.tracing_steps += 1
        elif isinstance(mode, PythonRunner):
            mode.diverge(why)
        if isinstance(step.mode, Tracer):
            step.mode.finish()
            destroy(step.deferred_destroys)
            function._stats.tracing_steps += 1
        step.mode = None

    def _look_for_failure(self, step):
        if step.failed is not None:
            self._function.policy.never(f"it goes on when an operation has failed ({step.failed}), which a graph would tell only after its code has moved on")

    # -- in the middle ---------------------------------------------------------------------------------------------------------

    def note_fallback(self, reason):
        """The step at hand has left the graph."""
        function = self._function
        function._stats.fallbacks += 1
        function.eviction.note_fallback()
        compiled = function.program.compiled if function.program is not None else None
        if compiled is not None and compiled.used and "kernel failed" in reason:
            compiled.failed()
        recorder = spans.recorder
        if recorder is not None:
            recorder.instant(spans.FALLBACK, function.counts.name, {"reason": reason})
        reasons = function.fallback_reasons
        reasons[reason] = reasons.get(reason, 0) + 1
        while len(reasons) > 200:
            del reasons[next(iter(reasons))]
        log.info("step %d of %s fell back: %s", function._stats.steps, function.policy.name, reason)
