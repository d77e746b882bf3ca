"""Detached steps: one step that was skipped as a whole, and all that is needed to make another one like it.

Which of them a call is like, `express_steps` finds out. Where Python waits for each step at once, the graph runs on Python's own thread (see `graph_runner`): then the step is done when it
returns, nothing is in flight, and what it returns has its values.
"""

import functools
import gc
import time
from types import MethodType

from terra.graph.trace import ARG
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.placeholders import unwaited
from terra.runtime.fallback.replay import StepRecord
from terra.runtime.fast_forward.cache.call_cache import CallSiteCache
from terra.runtime.fast_forward.cache.replay_record import bind_inputs
from terra.runtime.fast_forward.cache.call_records import RESULT, CompositeTemplate, Constant, StepArgument, ExternalInput, Instance, DynamicNumber
from terra.runtime.fast_forward.sources import residual_calls, opaque_calls
from terra.runtime.fast_forward.sources.array_calculations import calculate_deferred, parts_of
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation, FetchedTensor
from terra.runtime.fast_forward.sources.value_sources import ResidualSource
from terra.runtime.fast_forward.sources.dynamic_values import tensor_for
from terra.runtime.fast_forward.sources.late_values import make_late_feeds
from terra.runtime.fast_forward.sources.number_sources import StorageSource, evaluate
from terra.runtime.fast_forward.steps import early_effects, pure_functions
from terra.runtime.fast_forward.steps.detached_arguments import OWNERS, GivenArguments, fit
from terra.runtime.fast_forward.steps.running import Feeds, Ran
from terra.runtime.fast_forward.steps.early_effects import DRAWN, GIVEN, LATER, NUMBER_OF, OPAQUE, Refused
from terra.runtime.generation import speculated_branches
from terra.runtime.tensors.comparing import SCALARS, attached, scalar
from terra.runtime.tensors.object_kinds import is_librarys_container, plain
from terra.runtime.tensors import open_shapes
from terra.runtime.tensors.tensor import TerraTensor, make_tensor
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real
from terra.tf.private import composites
from terra.tf import interrupts, private_names as tfi
from terra.tf.constants import const_key, dummy

EagerTensor = tfi.EagerTensor
MISSED = object()  # instead of a result: the step is to take its ordinary way
SURPRISES, TIMES_AS_MANY = 4, 4  # steps that branched as none that is prepared does, after which nothing is expected any more, unless so many times as many did not
_NOTHING = residual_calls.NO_RESULTS, (), (), None, 0
_GRAPH_ERRORS = tfi.NotOkStatusException, tfi.OpError


class DetachedStep:
    """A step that is like the one it was made of. Making one raises `NotDetachable` if there is no such thing.

    `skeleton`: the PythonRunner of that step, which has jumped over one record, with the arguments `args` and `kwargs`.
    """

    def __init__(self, function, step, skeleton, args, kwargs):
        record = skeleton._jumps[0][1]
        program = skeleton.program
        self.branches = record.depends_on_values
        form = program.general if record.has_other_shapes else program.conditional if self.branches else program.late_form
        if not form or step.verifies or step.device:
            raise Refused
        self._steps = self._surprises = 0  # steps; those after which it turned out that they branch otherwise, and as none that is prepared does
        if self.branches and (record.has_other_shapes or any(node.condition < 0 for node, value, *_ in record.fetches if value is not None)):
            raise Refused
        if len(skeleton.opens) != len(step.partial_shapes) or any(node.op_type != open_shapes.OPENS or node.slots[0].kind is not ARG for node, *_ in skeleton.opens):
            raise Refused
        self._opens = [(node, (node.slots[0].arg,), attrs) for node, _, attrs in skeleton.opens]
        if record.masks or record.losses or record.context or record.needs:
            raise Refused
        self._reads = bool(record.fetches)  # then the step waits for the graph
        self.function, self.program, self.form, self.record = function, program, form, record
        self.known = self._where_known()
        self.path, self.shapes = skeleton.path, step.shapes()
        self._names, given = tuple(kwargs), (*args, *kwargs.values())
        self._owner = (function._python.__self__,) if type(function._python) is MethodType else ()
        numbers = {place.key - len(self._owner) for place in record.numbers if type(place) is StorageSource and place.holder is None}  # among the arguments
        asked = GivenArguments(step, given, numbers, record.keep, type(self.known) is CallSiteCache)
        self._pattern, self._carried = asked.pattern, record.states
        self._equal, self._open_uses, self._n_tensors, self._n_arrays = asked.equal, asked.open_uses, asked.n_tensors, asked.n_arrays
        self._n_carried = sum(type(x) is tuple and len(x) == 4 for x in record.carried)  # tensors among it, see `Inputs.describe`
        self._checks = asked.by_value + self._checks_of(record)
        if any(is_array and index >= self._n_arrays + self._n_carried for is_array, index, _ in self._checks):
            raise Refused
        self._varies = bool(record.calls or record.numbers or record.repeated)
        self._feeds = bool(record.feeds or record.patches or record.draws)
        self._template, self._places, self._fed = self._arguments(skeleton, step)
        self._made = []  # (dtype, enum, shape, key, index among the outputs) of the tensors that it gives; (how, None, None, None, index) of numbers that it reads
        self._templates = []  # of these
        self._result = self._result_of(record, record.result)
        self._only = type(self._result) is int  # it gives one tensor
        self._calls, self._before = early_effects.prepare(record, self._result_of, self._made) if record.opaque else ((), ())
        self._effects = [(effect, RESULT if effect.template is RESULT else self._result_of(record, effect.template)) for effect in record.effects]
        behind, make = early_effects.behind(record)
        self._behind = self._result_of(record, behind), make
        self._ran = Ran(function.counts)

    # -- preparation -----------------------------------------------------------------------------------------------------------

    def _where_known(self):
        """The place where the record is recorded: what is known of the step's own function, or of Keras' step."""
        record, program, python = self.record, self.program, self.function._python
        if type(python) is MethodType and pure_functions.is_keras_step(python):
            places = [known for place, known in program.call_sites.items() if known and len(place) == 4 and place[2] == id(python.__self__)]
        else:
            places = [program.whole] if program.whole is not None else []
        for known in places:
            if any(record is other for records in known.all_variants() for other in records):
                return known
        raise Refused

    @staticmethod
    def _checks_of(record):
        """Returns what `CallRecord.fits` compares beyond types and shapes: [(whether it is an array, index, what identifies its value)]."""
        # A tensor (EagerTensor) must not have been fed before: nothing was.
        return [(kind is ExternalInput, index, expected) for kind, index, expected in record.checks if kind is not EagerTensor]

    def _arguments(self, skeleton, step):
        """(what the graph is given in each step; the positions of the step's tensors in that, and their indices; the same of what is fed)."""
        selects = [0] * len(self.form.select_index)
        for chosen in skeleton.chosen:
            for switch_case, case in chosen:
                index = self.form.select_index.get(switch_case)
                if index is not None:
                    selects[index] = case
        if self.form.lasting is None:
            self.form.lasting = skeleton.lasting_arguments(self.form)
        lasting, others = self.form.lasting
        template, places, fed = lasting.copy(), [], []
        for k, spec in others:
            if spec[0] == "arg" and spec[1] < len(step.arg_list) and step.arg_list[spec[1]]._datatype_enum() == spec[2]:
                places.append((k, spec[1]))
            elif spec[0] in ("arg", "feed"):
                template[k] = dummy(spec[2])
                if spec[0] == "feed":
                    fed.append((k, spec[1]))
            elif spec[0] == "expected":
                template[k] = self._expected()
            else:
                template[k] = tfi.eager_constant(selects, tfi.dtypes.int32)
        return template, places, fed

    def _expected(self):
        """Returns what the graph is told of the values on which the step branches."""
        told = [*speculated_branches.ANYTHING] * len(self.form.conditions)
        for node, value, *_ in self.record.fetches:
            if value is not None:
                told[2 * node.condition:2 * node.condition + 2] = speculated_branches.integers(value, node.info.key[1])
        return tfi.eager_constant(told, tfi.dtypes.int64)

    def _result_of(self, record, template):
        """How the result is made: the number of a tensor, a list, tuple or dict (kind, parts), an argument, or the object itself in a list."""
        kind = type(template)
        if kind is ValueKey or kind is FetchedTensor or kind is DeferredFetch:
            for number, other in enumerate(self._templates):
                if other is template:
                    return number
            index, key = (template.result, template) if kind is ValueKey else (template.node.fetched, template[0])
            if kind is DeferredFetch:
                made = template.how, None, None, None
            else:
                made = *record.shapes.get(key, (None, None, None)), key
            if index < 0 or (kind is not DeferredFetch and type(made[2]) is not tuple):
                raise Refused
            self._made.append((*made, index))
            self._templates.append(template)
            return len(self._made) - 1
        if kind is DeferredCalculation:
            if any(part.node.fetched < 0 for part in parts_of(template.calculation)):
                raise Refused
            return LATER, template
        if kind is ResidualSource:
            return DRAWN, template.index
        if kind is tuple or kind is list:
            return kind, [self._result_of(record, x) for x in template]
        if kind is dict:
            return kind, [(key, self._result_of(record, x)) for key, x in template.items()]
        if kind is Instance:
            return template.filled, self._result_of(record, template.attributes)
        if kind is CompositeTemplate:
            return functools.partial(composites.composite, template.kind), self._result_of(record, tuple(template.parts))
        if kind is StepArgument:
            return GIVEN, template.index
        if kind is ExternalInput and 0 <= template.index - self._n_arrays < self._n_carried:
            return GIVEN, template.index - self._n_arrays + self._n_tensors
        if kind is DynamicNumber:
            return NUMBER_OF, template.index
        if kind is opaque_calls.Held:
            return [template.value]
        if kind is opaque_calls.Result:
            return OPAQUE, template.index
        if kind is Constant and not vars(template.tensor):
            return [template.tensor]
        if template is None or kind in SCALARS or tfi.is_variable(template):
            return [template]
        raise Refused

    # -- a step ----------------------------------------------------------------------------------------------------------------

    def fits(self, names, given, tensors, arrays, held):
        """Whether a step with these arguments is like this one; its tensors, tensors that hold what its arrays `held`, and these are appended."""
        if names != self._names or not fit(self._pattern, self._open_uses, given, tensors, held):
            return False
        if self._equal and any([tensors[j]._shape_tuple()[a] != tensors[k]._shape_tuple()[b] for (j, a), (k, b) in self._equal]):
            return False
        record = self.record
        if held:
            arrays += [tfi.eager_constant(x, None) for x in held]
        if self._carried:
            found = []
            for carried in self._carried:
                if not self._describe(carried.value(), found, tensors):
                    return False
            if found != record.carried:
                return False
            arrays += tensors[self._n_tensors:]
        for is_array, index, expected in self._checks:
            x = arrays[index] if is_array else tensors[index]
            if (x._datatype_enum(), x._shape_tuple()) != expected[:2] or (len(expected) == 3 and const_key(real(x), *expected[:2]) != expected):
                return False
        return (not record.draws or record.draws[1] == tfi.global_seed()) and record.guard.holds()

    def makes(self, given, tensors, arrays, held):
        """Makes the residual calls, whose tensors are appended to those of the arrays, and the opaque calls. It is asked once all else fits.

        Returns (residual calls, the numbers that vary, what opaque calls have given, what takes back the effects before them, how many these are); None if the step is another one.
        """
        if not self._varies and not self._calls:
            return _NOTHING
        if self._calls and self.record.reliability.pauses:
            return None
        found = residual_calls.run_residual(self.record, (*self._owner, *given), held)
        if found is None:
            return None
        made, numbers = found
        for use in self.record.repeated:
            arrays.append(tensor_for(use, arrays, numbers, made.values))
        if not self._calls:
            return made, numbers, (), None, 0
        results = []
        known = (), tensors, numbers, made.values, held, (), results
        done = opaque_calls.make_all(
            self._calls, self._before, lambda how: None if how is None else _build(how, known), results, self.program.unsteady,
            still_holds=lambda: self.record.guard.holds() and (not numbers or evaluate(self.record.numbers, (*self._owner, *given), made.values) == numbers),
            changes=self.record.guard.changes)
        if done is None:
            made.undo()
            return None
        had, take_back = done
        make_late_feeds(self.record, arrays, results, None)
        return made, numbers, results, take_back, had

    def is_surprised(self):
        """A step branched as none that is prepared does: whether that happens too often."""
        self._surprises += 1
        return self._surprises >= SURPRISES and self._surprises * TIMES_AS_MANY > self._steps

    def _describe(self, x, found, tensors):
        """Append what identifies a value that a carried attribute holds, as `describe_within` does for a recorded call; False if that is not done here."""
        kind = type(x)
        if kind is TerraTensor or kind is EagerTensor:
            if attached(x.__dict__) is not None or (kind is TerraTensor and x._value is None and type(x._owner) not in OWNERS):
                return False
            for k, other in enumerate(tensors):
                if other is x:
                    found.append(("again", k - self._n_tensors + self._n_arrays))
                    return k >= self._n_tensors
            tensors.append(x)
            found.append((x._datatype_enum(), x._shape_tuple(), True, None))
        elif kind in SCALARS:
            found.append(scalar(x))
        elif kind is tuple or kind is list or kind is dict or is_librarys_container(kind):
            found.append((kind, len(x)))
            if isinstance(x, dict):
                if not all(type(name) is str for name in x):
                    return False
                found += map(scalar, x)
            return all([self._describe(y, found, tensors) for y in (plain(x).values() if isinstance(x, dict) else x)])
        else:
            return False
        return True

    def step(self, function, program, options, start, tensors, arrays, given, called, numbers, opaque, take_back, had):
        """Make the step, which began at `start` and for which `makes` has made its calls; returns its result."""
        stats, counts, ran = function._stats, function.counts, self._ran
        self._steps += 1
        held, collects = interrupts.hold(), gc.isenabled()
        gc.disable()  # a finalizer must not find a graph that was started, but is not in flight yet
        try:
            if GRAPH_RUNNER.flights or GRAPH_RUNNER.has_left_over:
                try:
                    GRAPH_RUNNER.limit(0 if self._reads else max(options.run_ahead - 1, 0))
                except BaseException:
                    called.undo()
                    if take_back is not None:
                        take_back()
                    raise
            if not ran.read:  # Python has gone on without a look at the last step
                ran.read, counts.waited_at_once = True, 0
            stats.steps += 1
            form = self.form
            single_threaded = function.single_threaded.begins(program, form, stats.steps, start)
            arguments = self._template.copy()
            for k, index in self._places:
                arguments[k] = unwaited(tensors[index])
            entries, seeds = self.record.entries, tfi.seed_state() if self._reads and self.record.draws else None
            if self._feeds:
                feeds = Feeds(program.n_feeds, counts.name)
                entries = bind_inputs(feeds, self.record, arrays)
                counts.feeds += len(self.record.feeds)
                for k, index in self._fed:
                    if feeds.values[index] is not None:
                        arguments[k] = feeds.values[index]
            if self._opens:
                entries = [*self._opens, *entries]
            attrs = program.single_threaded_attrs if single_threaded else None
            try:
                outputs, manager, took = self._read(arguments, counts, attrs) if self._reads else GRAPH_RUNNER.start(program, arguments, form, counts, attrs)
            except BaseException as error:  # of an earlier step, whose failure took this one with it; or of this one, which does nothing then
                stats.steps -= 1
                GRAPH_RUNNER.forget_dispatched()
                called.undo()
                if take_back is not None:
                    take_back()
                if self._reads and isinstance(error, _GRAPH_ERRORS):
                    if seeds is not None:
                        tfi.set_seed_state(seeds)
                    return MISSED
                raise
            if took:
                GRAPH_RUNNER.forget_dispatched()
                if not self._reads:
                    ran.at, ran.read = time.perf_counter(), False
                made = [make_tensor(how, enum, shape, key, ran, outputs[k]) if enum is not None else how(outputs[k]) for how, enum, shape, key, k in self._made]
            else:
                made = [make_tensor(dtype, enum, shape, key, None, outputs[k]) for dtype, enum, shape, key, k in self._made]
                flight = GRAPH_RUNNER.launch(outputs, StepRecord(entries, tensors, made, form.undo, (), ()), manager, counts)
                for t in made:
                    t._owner = flight
                interception.install()
            self._note(function, stats, counts, single_threaded)
            known = made, tensors, numbers, called.values, given, outputs, opaque
            result = made[self._result] if self._only else _build(self._result, known)
            left = [result if how is RESULT else _build(how, known) for _, how in self._effects]
            for (effect, _), value in zip(self._effects[had:], left[had:]):
                effect.apply(value)
            if opaque:
                opaque_calls.made_for_good(self._calls)
                self.record.reliability.succeeded()
        finally:
            if collects:
                gc.enable()
            interrupts.release(held)
        self._behind[1](_build(self._behind[0], known))
        if not took and (options.run_ahead == 0 or function._is_guarded()):
            GRAPH_RUNNER.limit(0)
        function._took = True, time.perf_counter() - start, counts.python_stall
        return result

    def _read(self, arguments, counts, attrs):
        """Run the graph, whose outputs Python is going to read: (the outputs, its cancellation manager, how long it took). Raises what a kernel has raised; nothing was done then."""
        manager = tfi.new_cancellation_manager()
        outputs, took = GRAPH_RUNNER.run_and_wait(self.program, arguments, manager, self.form, counts, attrs)
        counts.fetches += len(self.record.fetches)
        return outputs, manager, took

    def _note(self, function, stats, counts, single_threaded):
        """Count the step as one that was skipped as a whole."""
        self.known.jumped()
        counts.fast_forwards += 1
        counts.whole_steps += 1
        stats.express_steps += 1
        # (Its early form is not missed.)
        function.note_coexecuted(
            self.program, self.program.generated, self.path, self.shapes, single_threaded, self.record.has_other_shapes, function.single_threaded.lacks_attrs(self.program))


def _build(how, known):
    """Returns what a step gives or leaves; `known`: the tensors that it has made, those that it was given, numbers that vary, what residual calls have given, its arrays, and the graph's outputs."""
    kind = type(how)
    if kind is int:
        return known[0][how]
    if kind is list:
        return how[0]
    kind, parts = how
    if kind is GIVEN:
        return known[1][parts]
    if kind is NUMBER_OF:
        return known[2][parts]
    if kind is DRAWN:
        return known[3][parts]
    if kind is OPAQUE:
        return known[6][parts]
    if kind is LATER:
        _, _, numbers, drawn, arrays, outputs, _ = known
        return calculate_deferred(parts, drawn, arrays, numbers.__getitem__, lambda part: part.how(outputs[part.node.fetched]))
    if kind is dict:
        return {key: _build(x, known) for key, x in parts}
    if kind is tuple or kind is list:
        return kind([_build(x, known) for x in parts])
    return kind(_build(parts, known))
