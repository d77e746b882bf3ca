"""A co-executed function: its phases, its steps, its traces and its programs."""

import functools
import logging
import os
import sys
import threading
import time
import types
import weakref
from threading import get_ident

from terra import errors
from terra.fallback.policy import Policy
from terra.fallback.replay import destroy
from terra.graph import trace
from terra.graph.generator import GraphGenerator
from terra.options import Stats
from terra.runtime import dispatch, frames, interrupts, location, opschema
from terra.runtime import internals as tfi
from terra.runtime.graph_runner import Queue, runner
from terra.runtime.program import Program
from terra.runtime.python_runner import PythonRunner
from terra.runtime.tracer import Tracer, collect_args
from terra.runtime.values import dummy

log = logging.getLogger("terra")
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE


class Counts:
    """What a step counts."""

    __slots__ = ("feeds", "fetches", "fast_forwards", "python_stall")

    def __init__(self):
        self.feeds = self.fetches = self.fast_forwards = 0
        self.python_stall = 0.0


class Step:
    """One call of a co-executed function, in whatever phase."""

    clock = staticmethod(time.perf_counter)
    open_ended = False  # whether anything that must not be part of the step may end it: see `terra.runtime.block_step`

    def __init__(self, function, args, kwargs):
        self.function = function
        self.store = function.store
        self.counts = function.counts
        self.thread = get_ident()
        self.cursor = location.tls.cursor if function.located else frames.FrameCursor(location.tls.cursor, sys._getframe(2))
        self.lock = function.read_lock
        self.paused = 0
        self.data = {}  # id -> tensors that imperative-only operations gave: data, though Python holds them
        self.args = {}  # id -> (index, tensor) of the tensors among the arguments
        collect_args(args, self.args)
        if kwargs:
            collect_args(kwargs, self.args)
        self.arg_list = [t for _, t in self.args.values()]
        self._args_signature = None
        self.lazy_tapes = function.options.fast_forward
        self.creates_variables = False
        self.new_handles = {}  # id -> handle of the variables that the step created
        self.drawn_seeds = set()  # op seeds that TensorFlow drew during the step
        self.deferred_destroys = []  # of such variables, until the graph has used them
        self.fallback_reason = None
        self.mode = None

    def pause(self):
        self.paused += 1

    def resume(self):
        self.paused -= 1

    def is_running_here(self):
        return dispatch.active is self and self.thread == get_ident()

    def before_read(self):
        """Python is about to read a value; True if the step ended because of that."""
        return False

    @property
    def skeleton(self):
        """The Tracer or PythonRunner of the step."""
        return self.mode

    def may_fast_forward(self):
        """Whether a call on this thread may be skipped now."""
        return self.thread == get_ident() and not self.paused and self.function.options.fast_forward and isinstance(self.mode, PythonRunner)

    def args_signature(self):
        """(dtype enum, shape, ...) of the tensor arguments."""
        if self._args_signature is None:
            flat = []
            for t in self.arg_list:
                flat.append(t._datatype_enum())
                flat.append(t._shape_tuple())
            self._args_signature = flat
        return self._args_signature

    def random_is_host(self, op, attrs):
        """Whether a stateful random op must run imperatively: an eager kernel with the same seeds goes on in its stream when it is used again, so only
        seeds that TensorFlow itself has drawn for this one op (never the user's own) have a stateless twin."""
        found = dict(zip(attrs[::2], attrs[1::2]))
        return found["seed2"] not in self.drawn_seeds and (found["seed"] != 0 or found["seed2"] != 0)

    def note_host_outputs(self, schema, outputs):
        for t in outputs:
            self.data[id(t)] = t
        if schema.name == "VarHandleOp":
            self.creates_variables = True
            self.new_handles[id(outputs[0])] = outputs[0]

    def touches_variables(self, schema, flat):
        """Whether an imperative-only op works on variables (not on an iterator, a queue or a table)."""
        for x in flat:
            if x._datatype_enum() == RESOURCE_ENUM:
                handle_data = x._handle_data
                if handle_data is not None and handle_data.is_set:
                    return True
        return False

    def before_outside_access(self, op, inputs):
        """Plain eager code inside the step is about to use a variable: it must see what eager execution would have left."""
        mode = self.mode
        if isinstance(mode, PythonRunner) and mode.conflicts(opschema.get_schema(op.decode() if type(op) is bytes else op), inputs):
            mode.diverge(f"plain eager code ({op}) uses variables that the step has updated, or updates some that it has read")
        runner.sync()

    def note_fallback(self, reason):
        origin = location.tls.cursor.current.origin()
        if origin:
            reason = f"{reason} ({os.path.basename(origin[0])}:{origin[1]})"
        self.fallback_reason = reason
        self.function.note_fallback(reason)


instances = weakref.WeakSet()  # all co-executed functions, for reports


class Coexecuted:
    """What `terra.coexecute` returns: call it like the function it wraps."""

    def __init__(self, fn, python, options, located=True):
        functools.update_wrapper(self, fn)
        self.located = located  # whether its code keeps its own location; else locations come from the interpreter's frames
        instances.add(self)
        self._python = python  # the instrumented function
        self.options = options
        self.store = trace.TraceStore()
        self.counts = Counts()
        self.policy = Policy(getattr(fn, "__qualname__", repr(fn)))
        self.program = None
        self.fallback_reasons = {}  # reason with its line -> how often
        self.generation_error = None
        self._stats = Stats()
        self._generating = None
        self._generated_version = 0
        self._lock = threading.Lock()  # of the store, between a step and the generating thread
        self.read_lock = threading.RLock()
        self._retired = []
        self._instances = {}  # id of an instance -> its own Coexecuted, where this is a method
        self._gone = Stats()  # the sum over instances that are no more
        self._in_graph = False  # whether it was ever called while a graph is built
        self.keeps_last = False
        self.last = None  # what the last co-executed step gave its graph, if it is kept

    # -- calls -----------------------------------------------------------------------------------------------------------------

    def __get__(self, instance, owner=None):
        """A method: each instance has traces and a graph of its own, as long as it lives."""
        if instance is None:
            return self
        made = self._instances.get(id(instance))
        if made is None:
            made = Coexecuted(self.__wrapped__, self._python, self.options, self.located)
            try:
                weakref.finalize(instance, self._forget, id(instance))
            except TypeError:  # it cannot be referred to weakly: all such instances share
                made = self
            else:
                self._instances[id(instance)] = made
        return BoundStep(made, instance)

    def __call__(self, *args, **kwargs):
        active = dispatch.active
        if active is not None and active.thread == get_ident() and not active.open_ended:
            return self._python(*args, **kwargs)  # part of the outer step
        if dispatch.left_alone.depth:
            return self._python(*args, **kwargs)  # part of an imperative step
        if not tfi.tf.executing_eagerly():
            self._warn_graph()
            return self._python(*args, **kwargs)  # part of somebody's graph
        if not dispatch.step_lock.acquire(timeout=dispatch.LONGEST_WAIT):
            self._stats.steps += 1
            self._stats.imperative_steps += 1
            return self._python(*args, **kwargs)
        try:
            dispatch.end_open_step()
            return self._step(args, kwargs)
        finally:
            dispatch.step_lock.release()

    def _warn_graph(self):
        if not self._in_graph:
            self._in_graph = True
            log.warning(
                "terra: %s is traced into a graph by its caller, where nothing is co-executed; with Keras, compile the model with run_eagerly=True "
                "(or use terra.compile).", self.policy.name)

    def _step(self, args, kwargs):
        held = interrupts.hold()
        try:
            step = self.begin(Step, args, kwargs)
            if step is not None:
                try:
                    held = interrupts.release(held)
                    result = self._python(*args, **kwargs)
                    held = interrupts.hold()
                    self._end(step)
                except BaseException as error:
                    held = held or interrupts.hold()
                    self._abort(step, error)
                    raise
                finally:
                    self._leave(step)
        finally:
            interrupts.release(held)
        if step is None:
            with dispatch.left_alone:
                return self._python(*args, **kwargs)
        if step.fallback_reason is None and self.options.run_ahead == 0:
            runner.limit(0)
        return result

    def begin(self, kind, args=(), kwargs=None):
        """Begin a step of class `kind` on this thread, whose operations belong to it until `_leave`; None if it is to run imperatively."""
        stats = self._stats
        stats.steps += 1
        if self._generating is not None and (self.options.wait_for_graph or not self._generating.is_alive()):
            self._generating.join()
            self._generating = None
        if self._retired:
            self._remove_retired()
        waiting = self.program is None and self._generating is not None
        if waiting or self.policy.imperative():
            stats.imperative_steps += 1
            return None
        step = kind(self, args, kwargs)
        try:
            if self.program is None:
                runner.sync()
                step.mode = Tracer(step)
            else:
                runner.limit(max(self.options.run_ahead - 1, 0))
        except BaseException:  # of an earlier step: this one has not begun
            stats.steps -= 1
            raise
        if not tfi.tape_set_is_empty():
            tfi.keep_shape_slice()
        step.came_from = location.begin_step()
        dispatch.active = step
        dispatch.install()
        tfi.note_drawn_seeds(step.drawn_seeds)
        tfi.flush_zeros_cache()
        if step.mode is None:
            try:
                step.mode = PythonRunner(step, self.program)
            except BaseException:
                stats.steps -= 1
                self._leave(step)
                raise
        return step

    @staticmethod
    def _leave(step):
        dispatch.active = None
        location.end_step(step.came_from)
        if type(step.cursor) is frames.FrameCursor:
            step.cursor.frame = None  # the frame would keep the step's tensors alive
        tfi.note_drawn_seeds(None)
        tfi.flush_zeros_cache()
        dispatch.remove_if_idle()

    def _end(self, step):
        """The function has returned."""
        tfi.flush_zeros_cache()  # which would keep tensors of the step alive
        if isinstance(step.mode, PythonRunner) and step.mode.complete():
            self._stats.coexecuted_steps += 1
            self.policy.coexecuted()
            step.mode = None
            return
        self._stats.tracing_steps += 1
        raw = step.mode.finish()
        destroy(step.deferred_destroys)
        self._merge(step, raw)

    def _abort(self, step, error):
        """The function raised: what it did before is done, as in eager execution."""
        if step.mode is None:
            return
        if isinstance(step.mode, PythonRunner):
            step.mode.diverge(f"the step raised {type(error).__name__}")
        if isinstance(step.mode, Tracer):
            step.mode.finish()
            destroy(step.deferred_destroys)
            self._stats.tracing_steps += 1
        step.mode = None

    # -- traces and graphs -----------------------------------------------------------------------------------------------------

    def _merge(self, step, raw):
        raw.creates_variables = step.creates_variables
        fell_back = step.fallback_reason is not None
        with self._lock:
            changed = self.store.add(raw, may_grow=self.store.n_traces < self.options.max_traces)
            self._stats.traces = self.store.n_traces
        if fell_back:
            self.policy.fell_back(step.fallback_reason)
        else:
            self.policy.traced(not changed)
        if self.store.version != self._generated_version and (fell_back or not changed) and self._generating is None:
            self._generate()

    def note_fallback(self, reason):
        self._stats.fallbacks += 1
        self.fallback_reasons[reason] = self.fallback_reasons.get(reason, 0) + 1
        while len(self.fallback_reasons) > 200:
            del self.fallback_reasons[next(iter(self.fallback_reasons))]
        log.info("terra: step %d of %s fell back: %s", self._stats.steps, self.policy.name, reason)

    def _generate(self):
        self._generating = threading.Thread(target=self._generate_in_thread, name="terra-generate", daemon=True)
        self._generating.start()

    def _generate_in_thread(self):
        start = time.perf_counter()
        try:
            with dispatch.internal_thread():
                with self._lock:
                    program = self._make_program()
                    self._generated_version = program.version
                self._instantiate(program)
        except (errors.GenerationError, tfi.tf.errors.OpError, ValueError, TypeError) as error:
            self.generation_error = error
            self._generated_version = self.store.version
            log.warning("terra: no graph for %s: %s", self.policy.name, error)
            self.policy.cannot(f"its graph could not be generated ({error})")
            return
        finally:
            self._stats.generation_s += time.perf_counter() - start
        if self.program is not None:
            self._retired.append(self.program)
        self._stats.graphs += 1
        self.program = program

    def _make_program(self):
        store = self.store
        early = any(node.payload.event.info.category == opschema.FETCH for node in store.graph.nodes)
        generator = GraphGenerator(store, early, Queue, self.options.optimize)
        generated = generator.generate()
        program = Program(store, generated, early)
        program.handles = dict(generator.handles)
        program.attrs = ("executor_type", "", "config_proto", tfi.call_config(self.options.optimize))
        for name, fdef in generated.library.items():
            if tfi.function_def(name) is None:  # the user's function is gone; its graph is still needed
                tfi.add_function(fdef)
        for fdef in generated.fdefs:
            tfi.add_function(fdef)
        return program

    def _instantiate(self, program):
        args = []
        for spec in program.generated.arg_specs:
            kind = spec[0]
            if kind in ("arg", "feed"):
                args.append(dummy(spec[2]))
            elif kind == "res":
                args.append(program.handles[spec[1]])
            elif kind == "queue":
                args.append(spec[1].ref)
            else:
                args.append(tfi.tf.constant(program.late_selects_default, dtype=tfi.tf.int32))
        tfi.instantiate(program.name, args, program.attrs, program.generated.n_outputs)

    def _remove_retired(self):
        if runner.flights:
            return
        retired, self._retired = self._retired, []
        for program in retired:
            for fdef in program.generated.fdefs:
                tfi.remove_function(fdef.signature.name)

    # -- what users ask --------------------------------------------------------------------------------------------------------

    def stats(self):
        """A snapshot of the `Stats` of this function; of a method asked through its class, the sum over the instances."""
        snapshot = Stats(**vars(self._stats))
        snapshot.feeds, snapshot.fetches = self.counts.feeds, self.counts.fetches
        snapshot.fast_forwards = self.counts.fast_forwards
        snapshot.python_stall_s = self.counts.python_stall
        for own in (self._gone, *(made.stats() for made in list(self._instances.values()))):
            snapshot.add(own)
        return snapshot

    def _forget(self, key):
        self._gone.add(self._instances.pop(key).stats())

    def run_graph_alone(self, *args, **kwargs):
        """Run the graph of a step without its skeleton, and wait: the physical limit of a step, for benchmarks. Variables change as by a step.

        The first call runs a whole step with the arguments given, whose inputs later calls give to the graph again.
        Raises: RuntimeError if that step was not co-executed.
        """
        if self.last is None:
            self.keeps_last = True
            self(*args, **kwargs)
            self.keeps_last = False
            if self.last is None:
                raise RuntimeError(f"{self.policy.name} was not co-executed just now, so there is no graph to run alone; call it more often first.")
        runner.sync()
        self.last.run()

    @property
    def trace_graph(self):
        """The TraceGraph that the traces of this function were merged into."""
        return self.store.graph

    @property
    def graph(self):
        """The symbolic graph in use as a `tf.Graph` (for TensorBoard), or None before there is one."""
        if self.program is None:
            return None
        return tfi.graph_of_function(self.program.generated.fdefs[-1])


class BoundStep:
    """A co-executed method of one instance; everything but the call is that of its `Coexecuted`."""

    def __init__(self, function, instance):
        self._function = function
        self.__self__ = instance
        self.__func__ = function
        self.__wrapped__ = types.MethodType(function.__wrapped__, instance)

    def __call__(self, *args, **kwargs):
        return self._function(self.__self__, *args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._function, name)
