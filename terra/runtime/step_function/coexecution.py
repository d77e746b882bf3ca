"""A co-executed function: its phases, its steps, its traces and its programs."""

import functools
import logging
import sys
import threading
import time
import types
import weakref
from threading import get_ident

from terra import ours
from terra.graph import trace
from terra.location import current_step
from terra.options import Stats
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.arguments.dynamic_arguments import DynamicArguments, OpenArguments
from terra.runtime.execution.process import signal_handlers
from terra.runtime.execution.step import Counts, Step
from terra.runtime.fallback import stance
from terra.runtime.fallback.policy import Policy
from terra.runtime.fast_forward.cache import verification
from terra.runtime.fast_forward.sites import framework_loops
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.fast_forward.steps import step_cache, pure_functions
from terra.runtime.interpreter import frames, spans, tracebacks
from terra.runtime.step_function import recorded, registry, structure_specialisation
from terra.runtime.step_function.generation import Generation
from terra.runtime.step_function.lifecycle import Lifecycle
from terra.runtime.step_function.methods import GIVES_CLASSES, BoundStep, Instances
from terra.runtime.step_function.rolling import Rolling
from terra.runtime.step_function.signatures import AsWritten
from terra.runtime.step_function.structures import Structures
from terra.runtime.step_function.tuning.tails import Tails
from terra.runtime.step_function.traces import Traces
from terra.runtime.step_function.tuning.early_start import EarlyStart
from terra.runtime.step_function.tuning.single_threaded import SingleThreaded
from terra.runtime.step_function.trace_eviction import TraceEviction
from terra.runtime.tracing import catching
from terra.tf import private_names as tfi
from terra.tf import interrupts
from terra.tf.private import runtime_functions, scopes
from terra.transform import edits, instrument, reason

log = logging.getLogger("terra")

FOR_USERS = ("graph", "options", "run_graph_alone", "stats", "trace_graph")  # the attributes that are shown, those of functions aside

framework_loops.replace()


def _is_special(name):
    return name.startswith("__") and name.endswith("__")


class Coexecuted(AsWritten):
    """The callable that `terra.coexecute` returns: call it like the function it wraps, which is its `__wrapped__`; its `options` are a `terra.Options`.

    Of a method, each instance has one of its own, with its own traces and graph.
    """

    # It holds what its parts share: the options, the traces (`store`), the program made of them, the segments of rolled steps, the policy.
    # Its parts do the work: `lifecycle` begins and ends steps, `traces` merges what was traced, `generation` makes programs of that, `rolling` cuts loops,
    # `structures` and `instances` have the functions for single structures of arguments, and for the instances of a class.

    may_roll = True  # whether its steps can be cut into segments
    lifecycle_class = Lifecycle

    def __init__(self, fn, python, options, located=True):
        functools.update_wrapper(self, fn)
        self.located = located  # whether its code keeps its own location; else locations come from the interpreter's frames
        registry.instances.add(self)
        self._python = python  # the instrumented function
        self._deterministic = tfi.is_deterministic()  # what the traces were made with
        self._edits = edits.look()  # of functions, when it was instrumented
        self.was_edited = False  # whether there were some since the last step that was co-executed
        self.options = options
        self.store = trace.TraceStore()
        self.policy = Policy(getattr(fn, "__qualname__", repr(fn)))
        self.counts = Counts(self.policy.name)
        self.program = None
        self.early_start = EarlyStart()
        self.single_threaded = SingleThreaded()
        self.lengths = {}  # (id of an RNN layer, location) -> lengths of the sequences that it was given there
        self.recurrences = None  # once the loops of RNN layers are one operation each: those
        self.segments = None  # once loops are rolled: what takes the place of `store` and `program`
        self.specialisation = None  # then: the structures of arguments that come again and again, each with a function of its own
        self.rolling = Rolling(self)
        self.policy.otherwise, self.policy.owner, self.policy.closes = self.rolling.roll_branching, weakref.ref(self), self.rolling.know_sizes
        self.fallback_reasons = {}  # reason with its line -> how often
        self.raised = {}  # the same, of the steps that raised while they were traced
        self._stats = Stats()
        self.generation = Generation(self)
        self.begins_anew = False  # whether the traces are to be forgotten before the next step
        self.changes_tables = False  # whether a step has changed a lookup table
        self.eviction = TraceEviction()
        self.read_lock = threading.RLock()
        self._took = None  # of the last step: (whether it was co-executed, seconds, how long Python had waited for graphs by then)
        self.lifecycle, self.traces = self.lifecycle_class(self), Traces(self)
        self.structures, self.instances, self.tails = Structures(self), Instances(self), Tails(self)
        self._departs = weakref.finalize(self, registry.depart, self.policy.name, self._stats, self.counts)
        self._departs.atexit = False
        self.warnings = set()  # that were given: each comes once
        self.part_of = None  # the name of the first step that has called it as a part of itself
        self.batches_of = (None, None, None), None  # ([Keras model, its compiled loss and metrics], what makes sure that no code of the program's sees its batches)
        chooses = options.reduce_retracing == "auto"  # sizes that are not known make nothing cheaper where nothing is skipped, or compiled
        self.dynamic_arguments = DynamicArguments(options.reduce_retracing if not chooses or (options.fast_forward and not options.jit_compile) else False)
        self.keeps_last = False
        self.last = None  # what the last co-executed step gave its graph, if it is kept

    def another(self, options):
        """Returns another one for the same function, which is counted as part of this one."""
        made = Coexecuted(self.__wrapped__, self.current(), options, self.located)
        registry.instances.discard(made)
        made._departs.detach()
        return made

    def __get__(self, instance, owner=None):
        """A method: each instance has traces and a graph of its own, as long as it lives."""
        if instance is None:
            return self
        made = self.instances.table.get(id(instance))
        if made is None or made.instances.belongs_to() is not instance:
            made = self.instances.make(instance)
        return BoundStep(made, instance)

    def __reduce__(self):
        if self.instances.belongs_to is not None:
            return type(None), ()  # a copy of the instance gets one of its own
        return self.__qualname__  # copied and pickled as functions are

    def __repr__(self):
        code = getattr(getattr(self.__wrapped__, "__func__", self.__wrapped__), "__code__", None)
        return f"<co-executed {self.policy.name}" + (f" at {code.co_filename}:{code.co_firstlineno}>" if code else ">")

    __class_getitem__ = classmethod(types.GenericAlias)  # `Coexecuted[[tf.Tensor], tf.Tensor]`, for type checkers

    def __dir__(self):
        return sorted({*filter(_is_special, object.__dir__(self)), *FOR_USERS})

    # -- calls -----------------------------------------------------------------------------------------------------------------

    @ours.calling
    def __call__(self, *args, **kwargs):
        if GIVES_CLASSES:
            own = self.instances.for_arguments(args)
            if own is not self:
                return own(*args, **kwargs)
        active = current_step.active
        if active is not None and active.thread == get_ident() and not active.open_ended:
            return self.within(active)(*args, **kwargs)
        if current_step.left_alone.depth:
            return (self.__wrapped__ if current_step.all_are_left_alone() else self._as_part())(*args, **kwargs)  # part of an imperative step
        step_cache = self.program and self.program.step_cache
        known = step_cache is not None and step_cache.may_run_here()
        if not known and not tfi.executing_eagerly():
            self.warn_once("is traced into a graph by its caller, where nothing is co-executed; with Keras, compile the model with run_eagerly=True "
                            "(or use terra.compile).")
            return self.for_graph()(*args, **kwargs)  # part of somebody's graph
        if (not known and self._runs_in_replica()) or not current_step.lock.acquire(timeout=interception.LONGEST_WAIT):
            self._stats.steps += 1
            self._stats.imperative_steps += 1
            return self.current()(*args, **kwargs)
        held, tail = (), self.tails.now()
        try:
            try:
                interception.end_open_step()
                held = signal_handlers.put_off()
                result = self._step(args, kwargs) if spans.recorder is None and not tfi.is_profiling() else recorded.step(self, self._step, args, kwargs)
            finally:
                current_step.lock.release()
                if held:
                    signal_handlers.put_back(held)
            return result if tail is None else tail.run(result, args, kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise

    def _runs_in_replica(self):
        """Returns whether a distribution strategy calls it on a replica's thread."""
        return tfi.in_replica() and self.warn_once(
            "runs imperatively, because a distribution strategy runs it as a replica, on a thread of its own; without `strategy.run` it is co-executed.")

    def warn_once(self, text):
        """Returns True: it is the case, whether or not that was said before."""
        if text not in self.warnings:
            self.warnings.add(text)
            log.warning("%s %s", self.policy.name, text)
        return True

    def _step(self, args, kwargs):
        if self.policy.pause_left and self.generation.task is None and not self.generation.retired:
            return self._leave_alone(args, kwargs)
        if self.specialisation is not None and not self.policy.pause_left and self.tails.current is None:
            return self.structures.step(args, kwargs)
        return self.one_step(args, kwargs)

    @ours.calling
    def one_step(self, args, kwargs):
        if outcomes.pending:
            outcomes.pending.clear()
        program = self.program  # another thread may put a new one in its place
        if program is not None and program.step_cache is not None and program.step_cache.detached:
            result = program.step_cache.attempt(args, kwargs)
            if result is not step_cache.MISSED:
                return result
        self._note_last_step()
        start = time.perf_counter()
        before, whole = self._stats.coexecuted_steps, self.counts.whole_steps
        held, skeleton, lifecycle, tail = interrupts.hold(), None, self.lifecycle, self.tails.current
        try:
            step = lifecycle.begin(Step, args, kwargs)
            python = self._python if tail is None else tail.head
            if step is not None:
                try:
                    held = interrupts.release(held)
                    if step.partial_shapes:
                        with OpenArguments(step, args, kwargs) as given:
                            result = pure_functions.run_step(step, python, *given)
                    else:
                        result = pure_functions.run_step(step, python, args, kwargs)
                    held = interrupts.hold()
                    if self.counts.whole_steps != whole:
                        skeleton = step.mode
                    else:
                        self.tails.look_at(step)
                    lifecycle.end(step)
                except BaseException as error:
                    held = held or interrupts.hold()
                    lifecycle.abort(step, error)
                    raise
                finally:
                    lifecycle.leave(step)
        finally:
            interrupts.release(held)
        if step is None:
            with current_step.left_alone:
                result = python(*args, **kwargs)
        elif step.verifies:
            GRAPH_RUNNER.limit(0)
            verification.finish(step)
        elif step.fallback_reason is None and (self.options.run_ahead == 0 or self._is_guarded()):
            GRAPH_RUNNER.limit(0)
        coexecuted = self._stats.coexecuted_steps > before
        if coexecuted and skeleton is not None:
            step_cache.detach(self, step, skeleton, args, kwargs)
        if (coexecuted or step is None) and not self.options.verify:
            self._took = coexecuted, time.perf_counter() - start, self.counts.python_stall
        if not coexecuted and not self.options.verify:
            self.policy.note_eager(time.perf_counter() - start, step is None and self.generation.task is None)
        if not coexecuted and step is not None:
            stance.check(step)
        return result

    def _note_last_step(self):
        """A step begins: tell the policy what the last one took, with what Python has waited since for what it returned."""
        if self._took is not None:
            coexecuted, seconds, stall = self._took
            self._took = None
            self.policy.took(coexecuted, seconds + self.counts.python_stall - stall)

    step_code = one_step.__code__  # of the frame around the code of a step

    def _is_guarded(self):
        """Returns whether the program would catch the failure of this very step."""
        if self.program is not None and not self.program.may_fail:
            return False
        return catching.around_step(frames.around_ours(sys._getframe(2)))

    @ours.calling
    def _leave_alone(self, args, kwargs):
        """A step while the policy has given up: the user's own function, so that it costs next to nothing."""
        self._note_last_step()
        start = time.perf_counter()
        self._stats.steps += 1
        self._stats.imperative_steps += 1
        self.policy.imperative()
        with current_step.left_alone:
            result = (self.__wrapped__ if self.tails.current is None else self.tails.current.plain_head)(*args, **kwargs)
        took = time.perf_counter() - start
        self._took = False, took, self.counts.python_stall
        self.policy.note_eager(took, True)
        return result

    def current(self, look=True):
        """The instrumented function, as it is now; `look`: whether nobody has just looked for edits."""
        if self.located and self._edits != (edits.look() if look else edits.found()):
            self._edits, self.was_edited = edits.found(), True
            self._python, self.located = instrument(self.__wrapped__), reason(self.__wrapped__) is None
        return self._python

    def within(self, step):
        """Returns the function that is called as a part of another `step`."""
        if self.part_of is None:
            self.part_of = step.function.policy.name
        return self._as_part(False)

    def _as_part(self, look=True):
        """Returns the function that is called where another step, or an imperative one, or a graph that either makes, calls this one."""
        return self.current(look) if tfi.executing_eagerly() else self.for_graph()

    def for_graph(self):
        """Returns the function that is called while a graph is made: AutoGraph's form of the function, if AutoGraph has converted what calls this one."""
        return scopes.converted(self.__wrapped__) if scopes.is_autographs(frames.around_ours(sys._getframe(1))) else self.__wrapped__

    def note_coexecuted(self, program, form, path, shapes, single_threaded, general, lacks_form):
        """A step with arguments of these shapes was co-executed along `path`, by a form of the graph of `program` or, for other shapes, by its
        `general` one; `lacks_form`: whether another form is due."""
        self._stats.coexecuted_steps += 1
        self._stats.single_threaded_steps += single_threaded
        self.was_edited = False
        if self.specialisation is not None and len(self.store.graph) <= structure_specialisation.LARGEST:
            self.structures.path = path
        if form.fixed:
            self.generation.note_completed(general)
        if self.generation.task is None and (self.generation.lacks_shapes or lacks_form):
            self.generation.begin()
        compiled = program.compiled
        if compiled is not None:
            self._stats.compiled_steps += compiled.used
            if compiled.reason is not None and self.generation.task is None and program is self.program:
                self.generation.given_up = compiled, len(self.store.graph.nodes)
                if not self.rolling.unroll_layers():
                    self.generation.begin()  # graphs that XLA may compile are somewhat slower if it does not
        self.policy.coexecuted()
        if self.store.n_traces > 1 and self.eviction.has_settled((path, shapes)) and self.generation.task is None and not self.options.jit_compile:
            self.traces.narrow()

    def note_rolled(self, loops):
        """So many loops are rolled from now on."""
        self._stats.rolled_loops = loops

    def note_generated(self, graphs, seconds):
        """So many graphs were made, in so long a time."""
        self._stats.graphs += graphs
        self._stats.generation_s += seconds

    @property
    def n_steps(self):
        """How many steps there were, with this one."""
        return self._stats.steps

    @property
    def compiled(self):
        """The compiled form of the program in use (`jit_compile`), or why that was given up; None without it."""
        of_program = None if self.program is None else self.program.compiled
        return of_program if of_program is not None or self.generation.given_up is None else self.generation.given_up[0]

    # -- what users ask --------------------------------------------------------------------------------------------------------

    def of_instances(self):
        """Of a method asked through its class: the functions of the instances that are still there."""
        return list(self.instances.table.values())

    def stats(self):
        """A snapshot of the `Stats` of this function; of a method asked through its class, the sum over the instances.

        Of a class method it is, from Python 3.13 on, the sum over the classes: Python does not tell which one it was asked through.
        """
        snapshot = registry.snapshot(self._stats, self.counts)
        snapshot.traces = self.store.n_traces
        snapshot.pieces = 0 if self.segments is None else len(self.segments.table)
        snapshot.recurrent_layers = 0 if self.recurrences is None else len(self.recurrences)
        for own in (self.instances.gone, *(made.stats() for made in self.of_instances())):
            snapshot.add(own)
        return snapshot

    def run_graph_alone(self, *args, **kwargs):
        """Run the graph of a step without its skeleton, and wait: the physical limit of a step, for benchmarks. Variables change as by a step.

        The first call runs a whole step with the arguments given, whose inputs later calls give to the graph again.
        Raises: RuntimeError if that step was not co-executed.
        """
        own = self.instances.for_arguments(args)
        if own is not self:
            return own.run_graph_alone(*args, **kwargs)
        if self.last is None:
            self.keeps_last = True
            self(*args, **kwargs)
            self.keeps_last = False
            if self.last is None:
                raise RuntimeError(f"{self.policy.name} was not co-executed just now, so there is no graph to run alone; call it more often first.")
        GRAPH_RUNNER.sync()
        self.last.run()

    @property
    def trace_graph(self):
        """The TraceGraph that the traces of this function were merged into."""
        return self.instances.in_use().store.graph

    @property
    def graph(self):
        """The symbolic graph in use as a `tf.Graph` (for TensorBoard), or None before there is one."""
        program = self.instances.in_use().program
        return None if program is None else runtime_functions.graph_of_function(program.generated.fdefs[-1])
