"""The graphs of a step function: made of its traces in a helper thread, while training goes on, and removed when they are used no more."""

import functools
import logging
import threading
import time

from terra import errors
from terra.location import current_step
from terra.runtime.execution import interception
from terra.runtime.execution.compiled import GROWN, Compiled, NotingQueue
from terra.runtime.execution.graph_runner import Queue, GRAPH_RUNNER
from terra.runtime.execution.program import Program
from terra.runtime.execution.registered import Registered
from terra.runtime.generation import speculated_branches
from terra.runtime.generation.generator import GraphGenerator
from terra.runtime.generation.kernels import rewrites
from terra.runtime.generation.node_order import to_register
from terra.runtime.interpreter import spans
from terra.runtime.step_function.tuning.single_threaded import EXECUTOR, calls_functions
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import dummy
from terra.tf.helper_threads import Task
from terra.tf.private import runtime_functions

log = logging.getLogger("terra")

MOST_REFUSED = 4  # times that an operation may be refused because of other shapes while no graph for them is made (twice in a step, as a rule)
MOST_OTHERS = 60  # steps with other shapes, less three times those with the first ones, after which the first ones were not the ones that count
LARGE = 500  # operations from which on a graph may take a second to build, and the log says so
_REFUSED = errors.GenerationError, tfi.tf.errors.OpError, ValueError, TypeError


class Generation:
    """Makes the programs of one step function, on a helper thread."""

    def __init__(self, function):
        self._function = function
        self.task = None  # of a helper thread, which generates or has just done so
        self.version = 0  # of the traces that the last graph was made of
        self.error = None  # why there is none
        self.lock = threading.Lock()  # of the traces, between a step and the thread
        self.registered = Registered(function)
        self.retired = []  # programs that are used no more
        self.expect_fixed_shapes()
        self._failures = 0  # of graphs, before those of now
        self.is_due = False  # whether it waits until it pays
        self.given_up = None  # (a program's `Compiled` that was not worth it, the nodes of the TraceGraph then)

    def expect_fixed_shapes(self):
        """Graphs may be right for some shapes only, as long as that turns out well."""
        self.fixes_shapes = True
        self._refused = 0  # how often an operation was refused because of other shapes
        self._others = 0  # how many ran a general form, less three times those that did not

    # -- the thread ------------------------------------------------------------------------------------------------------------

    def begin(self):
        """Generate what is due."""
        if current_step.left_alone.depth:
            return  # at the end of a step that has forked, in the child
        function = self._function
        account, replaces = function.policy.account, function.program is not None and function.store.version != self.version
        self.is_due = not function.options.wait_for_graph and not (account.may_build(len(function.store.graph)) and (not replaces or account.may_replace()))
        if self.is_due:
            return
        self._function.eviction.has_traced()
        self.task = Task(self._run)

    @property
    def runs(self):
        return self.task is not None and self.task.runs

    def resume(self):
        """Between two steps: generate what had to wait, if it need not any longer."""
        if self.is_due and self.task is None:
            self.begin()

    def settle(self, wait):
        """Between two steps: notice that the thread is through."""
        if self.task is not None and (wait or not self.task.runs):
            self.task.join()
            self.task = None

    def _run(self):
        function, start, made = self._function, time.perf_counter(), 0
        recorder = spans.recorder
        mark = None if recorder is None else spans.mark(spans.BUILDER, function.counts.name)
        try:
            with interception.internal_thread():
                if function.segments is not None:
                    self._generate_segments(function.segments)
                    made = 1
                    return
                current = function.program
                if self._lacks_deferred_form(current) and self._add_form(current, self._make_deferred_form, current.set_deferred):
                    return
                if self._lacks_conditional_form(current) and self._add_form(current, self._make_conditional_form, current.set_conditional):
                    return
                if function.single_threaded.lacks_attrs(current) and function.store.version == current.version:
                    self._make_single_threaded(current)
                    return
                if self._lacks_early_form(current) and self._add_form(current, self._make_early_form, lambda form: setattr(current, "early_form", form)):
                    return
                if self._may_fix():
                    with self.lock:
                        questions = rewrites.questions(function.store.graph)
                    rewrites.settle(questions)  # not with the lock: steps that are traced would wait
                if len(function.store.graph) >= LARGE:
                    log.info("building the graph of %s (%d operations)", function.policy.name, len(function.store.graph))
                with self.lock:
                    program = self._make_program(function.store)
                    self.version = program.version
                for form in program.forms:
                    self._instantiate(program, form)
                if function.single_threaded.lacks_attrs(program) and not self._compiles():
                    self._make_single_threaded(program)
                made = 1
        except _REFUSED as error:
            if function.recurrences is not None and not function.recurrences.computes_again:
                log.info("no graph for %s: %s; its RNN layers compute their loops again for gradients", function.policy.name, error)
                function.recurrences.computes_again = function.begins_anew = True
                return
            self.error = error
            self.version = function.store.version
            log.warning("no graph for %s: %s", function.policy.name, error)
            function.policy.cannot(f"its graph could not be generated ({error})")
            return
        finally:
            end = time.perf_counter()
            function.note_generated(made, end - start)
            function.policy.account.note_built(len(function.store.graph), end - start)
            if recorder is not None:
                recorder.add(spans.BUILDER, function.counts.name, start, end, {"operations": len(function.store.graph)}, mark)
        before = function.program
        if before is not None:
            self.retired.append(before)
        if self._compiles():
            program.compiled = Compiled(program, functools.partial(self._instantiate, program, None), None if before is None else before.compiled)
        function.program = program
        function.policy.account.note_graph()

    def _generate_segments(self, of):
        """Programs for the segments that are due: one generation."""
        while of.due:
            segment = of.due.pop()
            of.dirty.discard(segment)
            with self.lock:
                program = self._make_program(segment.store)
                segment.version = program.version
            self._instantiate(program)
            if segment.program is not None:
                self.retired.append(segment.program)
            segment.program = program

    def _make_program(self, store):
        early = any(node.payload.event.info.category == opschema.FETCH for node in store.graph.nodes)
        compiles, optimize = self._compiles(), self._function.options.optimize
        generator = GraphGenerator(store, early, NotingQueue if compiles else Queue, optimize, compiles, {} if self._may_fix() else None)
        generated = generator.generate()
        program = Program(store, generated)
        program.step = self._function.counts.name
        program.handles = dict(generator.handles)
        program.attrs = ("executor_type", "", "config_proto", runtime_functions.call_config(optimize))
        self.registered.hold(generated.library)
        if generated.varies:
            generator = GraphGenerator(store, False, Queue, optimize)
            program.general = generator.generate()
            program.handles.update(generator.handles)
            if program.general.arg_specs != generated.arg_specs:
                raise errors.GenerationError("its two forms take other arguments")
        for node in store.graph.nodes:
            node.payload.fixed = next(iter(generated.fixed[node])) if node in generated.fixed and program.general is None else None
        self._others, self._failures = 0, GRAPH_RUNNER.failures
        for form in program.forms:
            for fdef in form.fdefs:
                self.registered.add(to_register(fdef))
        if self._function.segments is None and not compiles and self._lacks_early_form(program):
            program.early_form = self._make_early_form(program, store)
        current = self._function.program
        if current is not None and current.wants_deferred and early:
            program.wants_deferred = True
            program.set_deferred(self._make_deferred_form(program, store))
        if current is not None and current.wants_conditional and early:
            program.wants_conditional = True
            program.set_conditional(self._make_conditional_form(program, store))
        return program

    def _may_fix(self):
        return self.fixes_shapes and self._function.segments is None

    def note_other_shapes(self):
        """A step falls back because the graph is not right for its shapes: that should happen once."""
        self._refused += self.task is None
        if self._refused > MOST_REFUSED:
            self.fixes_shapes = False

    def note_completed(self, general):
        """A step was co-executed, by the general form of a graph or not."""
        self._others = self._others + 1 if general else max(0, self._others - 3)
        if self._others > MOST_OTHERS or GRAPH_RUNNER.failures != self._failures:
            self.fixes_shapes = False

    @property
    def lacks_shapes(self):
        """Whether the graph in use is right for some shapes only, and is to be replaced by one that is not."""
        program = self._function.program
        return not self.fixes_shapes and program is not None and bool(program.generated.fixed)

    @property
    def may_compile(self):
        """Whether XLA has not been given up, and steps are not in segments, which it is not given."""
        return self._function.options.jit_compile and self.given_up is None and self._function.segments is None

    def _compiles(self):
        """Returns whether XLA may compile what is generated now."""
        function = self._function
        return function.options.jit_compile and (self.given_up is None or len(function.store.graph.nodes) >= GROWN * self.given_up[1])

    # -- other forms -----------------------------------------------------------------------------------------------------------

    def lacks_form(self, program):
        """Returns whether another form of this program's graph is due."""
        return self._lacks_early_form(program) or self._lacks_deferred_form(program) or self._lacks_conditional_form(program) or self._function.single_threaded.lacks_attrs(program)

    def _lacks_early_form(self, program):
        """Returns whether the early one is: it is compared with the better way to run the late one."""
        return self._function.early_start.lacks_form(program) and self._function.single_threaded.is_decided()

    def _lacks_deferred_form(self, program):
        return program is not None and program.wants_deferred and program.deferred is None

    def _lacks_conditional_form(self, program):
        return program is not None and program.wants_conditional and program.conditional is None

    def _make_early_form(self, program, store):
        """The early form of a graph that has a late one; None if there is none."""
        try:
            return self._make_form(program, store)
        except _REFUSED as error:
            self._function.early_start.cannot(error)
            return None

    def _make_deferred_form(self, program, store, conditional=False):
        """The deferred form of a graph that is early, or the one with conditions; False if there is none."""
        try:
            return self._make_form(program, store, True, conditional)
        except _REFUSED as error:
            log.info("no form of the graph of %s that reads in the end: %s", self._function.policy.name, error)
            return False

    def _make_conditional_form(self, program, store):
        return self._make_deferred_form(program, store, True)

    def _make_form(self, program, store, deferred=False, conditional=False):
        """The deferred form, that with conditions, or the early one."""
        fixed = None if program.general else program.generated.fixed or None
        generator = GraphGenerator(store, not deferred, Queue, self._function.options.optimize, fixed=fixed, deferred=deferred, conditional=conditional)
        form = generator.generate()
        program.handles.update(generator.handles)
        for fdef in form.fdefs:
            self.registered.add(to_register(fdef))
        return form

    def _add_form(self, program, make, keep):
        """Give the program in use another form. False if there are new traces, so that a new program is due."""
        store = self._function.store
        with self.lock:
            if store.version != program.version:
                return False
            form = make(program, store)
        if form:
            self._instantiate(program, form)
            if program.single_threaded_attrs is not None and not form.early:
                self._make_single_threaded(program, form)
        keep(form)
        return True

    def _make_single_threaded(self, program, *forms):
        """Makes the runtime build the program's functions, or those of these forms, for one thread, if that is possible."""
        single_threaded = self._function.single_threaded
        forms, program.single_threaded_attrs = forms or [form for form in {program.late_form, program.conditional} if form], None
        if any(calls_functions(form.fdefs[-1]) for form in forms):
            single_threaded.cannot("it calls functions (branches among them)")
            return
        attrs = ("executor_type", EXECUTOR, *program.attrs[2:])
        try:
            for form in forms:
                self._instantiate(program, form, attrs=attrs)
        except tfi.tf.errors.OpError as error:
            single_threaded.cannot(f"TensorFlow refuses ({error.message})")
            return
        program.single_threaded_attrs = attrs

    @staticmethod
    def _instantiate(program, form=None, name=None, n_outputs=None, attrs=None):
        """Makes the runtime build the function of a form of the program's graph, or another one with the arguments of that form."""
        form = form or program.generated
        args = []
        for spec in form.arg_specs:
            kind = spec[0]
            if kind in ("arg", "feed"):
                args.append(dummy(spec[2]))
            elif kind == "res":
                args.append(program.handles[spec[1]])
            elif kind == "queue":
                args.append(spec[1].ref)
            elif kind == "expected":
                args.append(tfi.eager_constant([*speculated_branches.ANYTHING] * len(form.conditions), tfi.dtypes.int64))
            else:
                args.append(tfi.tf.constant([0] * len(form.select_index), dtype=tfi.tf.int32))
        runtime_functions.instantiate(name or form.name, args, attrs or program.attrs, n_outputs or form.n_outputs)

    # -- programs that are used no more ----------------------------------------------------------------------------------------

    def retire(self):
        """The step function itself is used no more: gives all its programs."""
        self.settle(True)
        program = self._function.program
        return [*self.retired, *([] if program is None else [program])]

    def remove_retired(self):
        """Remove the functions of programs that are used no more, once the steps in flight have landed (some may use them): that is waited for, which
        is as rare as new graphs are."""
        busy = [program for program in self.retired if program.compiled is not None and program.compiled.busy]
        if len(busy) == len(self.retired):
            return
        GRAPH_RUNNER.limit(0)
        retired, self.retired = [program for program in self.retired if program not in busy], busy
        for program in retired:
            if program.compiled is not None:
                program.compiled.remove()
            for form in program.forms:
                self.registered.remove(form.fdefs)
