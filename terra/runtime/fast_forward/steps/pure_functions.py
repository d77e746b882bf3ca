"""Fast-forward of the user's own code: calls of pure functions, and whole steps.

A user's function runs in the skeleton, as it must: it may do anything. But where an `Observer` has seen it do nothing but compute, there is nothing that
the program could miss: the next call at the same node of the program, with the same arguments, while all that was read still holds, is jumped over like one
of the framework's. A training step without prints, counters and reads of values then costs a few comparisons.

The step's own function comes first. Only where that is not pure, the functions and layers that it calls are tried. What has turned out impure is
observed again a few times, further and further apart: a step that prints at every tenth call is pure at the others.
"""

import contextlib
import dis
import functools
import weakref
from operator import is_
from types import FunctionType, MethodType


from terra import ours
from terra.frameworks import framework_objects
from terra.location import current_step
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.cache import arguments, call_cache, verification
from terra.runtime.fast_forward.cache.arguments import describe_within
from terra.runtime.fast_forward.cache.replay_record import apply_record
from terra.runtime.fast_forward.cache.call_records import FELL_BACK, MISSED, Inputs
from terra.runtime.fast_forward.guards import guard_set
from terra.runtime.fast_forward.purity.facts.bytecode import SUSPENDED
from terra.runtime.fast_forward.sites import skipping, user_layers
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.fast_forward.sources.dynamic_values import A_NUMBER, DynamicValues
from terra.runtime.fast_forward.sources.number_sources import evaluate
from terra.runtime.fast_forward.steps.observed_runs import Described, observe, run_with_outcomes
from terra.runtime.fast_forward.steps.purity_trial import PurityTrial
from terra.runtime.interpreter import frames
from terra.runtime.interpreter.integers import make_natural
from terra.runtime.tensors.comparing import Unskippable
from terra.transform import instrument, policy

_MOST_TRIALS = 10_000  # places and shapes that are remembered
_MOST_OWNERS = 4  # layers that are called at one place
_FEWEST_JUMPS = 2  # that a call of the user's must replace, to be worth it
_forms = weakref.WeakKeyDictionary()  # instrumented form -> what jumps over its calls


@ours.calling
def run_step(step, function, args, kwargs):
    """The result of the step's function, whose code is jumped over if that is possible."""
    if type(function) is MethodType and is_keras_step(function):
        result, skipped = run_keras_step(function.__func__, function.__self__, args, kwargs)
        step.counts.whole_steps += skipped
        return result
    runner = call_cache.running()
    if runner is None or type(step) is not Step or not step.function.located or step.function.options.fast_forward == "framework" or guard_set.is_traced():
        return function(*args, **kwargs)
    if type(function) is MethodType:
        function, args = function.__func__, (function.__self__, *args)
    if type(function) is not FunctionType or function.__code__.co_flags & SUSPENDED:
        return function(*args, **kwargs)
    return _attempt(runner, function, function, args, kwargs, function, 1)


def is_keras_step(method):
    """Whether it is the `train_step`, say, of a Keras model, not one of the user's; or one of a library's that does nothing but compute."""
    function = method.__func__
    return getattr(function, "__name__", None) in framework_objects.STEPS and (framework_objects.stock_package(function.__module__) in ("backend", "engine") or policy.is_pure(function.__module__))


def run_keras_step(form, model, args, kwargs):
    """A step of Keras' own, which is a call of the framework's like others, on batches of arrays or tensors: (its result, whether it was skipped). `form`: what it is if it
    is not."""
    step = current_step.active
    if step is not None and any(map(arguments.holds_array, args)) and step.takes_tensors() and _is_stock_throughout(step.function, model):
        args = arguments.with_tensors(step, model, args, {})[0]
    runner = call_cache.running()
    if runner is None and step is not None:
        skipping.prepare_users(model)
    if runner is None or not framework_objects.derives_from_stock(type(model)):
        return form(model, *args, **kwargs), False
    calls = []
    call = functools.partial(_noted, calls, form, model, args, kwargs)
    return call_cache.attempt(runner, form, model, args, kwargs, call), not calls


@ours.calling
def _noted(calls, form, model, args, kwargs):
    calls.append(form)
    return form(model, *args, **kwargs)


def _is_stock_throughout(function, model):
    """Whether no code of the program's can see the arrays that the model is given: none is in its layers, losses and metrics."""
    parts = [model, getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)]
    known, guard = function.batches_of
    if not all(map(is_, parts, known)) or (guard is not None and not guard.containers.holds()):
        guard = None
        if framework_objects.is_stock_object(model):
            with contextlib.suppress(Unskippable):
                guard = guard_set.GuardSet(model, ())
        function.batches_of = parts, guard
    return guard is not None


def keras_step(function):
    """Returns what to call in place of a step of Keras' own, where the user's step does."""
    form = instrument(function)

    def method(model, *args, **kwargs):
        return run_keras_step(form, model, args, kwargs)[0]

    return method


def of_function(there, callee, form):
    """Returns what a call site at the location `there` calls in place of the instrumented `form` of the user's function or method `callee`."""
    if type(callee) is FunctionType:
        function = form
    elif type(form) is MethodType and type(callee) is MethodType:
        function = form.__func__
    else:
        return form
    if type(function) is not FunctionType or function.__closure__ is not None or function.__code__.co_flags & SUSPENDED \
            or frames.looks_at_frames(function.__code__) or _lets_go(function.__code__):
        return form  # a closure may be made anew at each step
    made = _wrap(function)
    if there.target is function:
        there.target = made
    return made if type(callee) is FunctionType else MethodType(made, form.__self__)


_DELETES, _STORES = frozenset(["DELETE_FAST", "DELETE_DEREF"]), frozenset(["STORE_FAST", "STORE_DEREF"])


@functools.lru_cache(maxsize=1000)
def _lets_go(code):
    """Whether a function drops an argument of its own, by `del` or None: it may ask whether that is gone, and what calls it must not hold it."""
    parameters = set(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])
    before = None
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        drops = name in _DELETES or (name in _STORES and before is not None and before.opname == "LOAD_CONST" and before.argval is None)
        if drops and instruction.argval in parameters:
            return True
        before = instruction
    return False


def _wrap(form):
    """Returns what to call in place of an instrumented form: it jumps where it can."""
    made = _forms.get(form)
    if made is None:
        reference = weakref.ref(form)

        @ours.calling
        def call(*args, **kwargs):
            function = reference()
            runner = call_cache.running()
            if runner is None or function in runner.attempted or not _is_inner(runner) or guard_set.is_traced():
                return function(*args, **kwargs)  # within a call of itself, more frames would count
            runner.attempted.add(function)
            try:
                return _attempt(runner, function, function, args, kwargs, function, _FEWEST_JUMPS)
            finally:
                runner.attempted.discard(function)

        call.__name__, call.__qualname__, call.__wrapped__ = form.__name__, form.__qualname__, form
        made = _forms[form] = call
    return made


def call_layer(runner, wrapped, args, kwargs):
    """Jump over the call of a user's layer whose wrapper does nothing; or make it."""
    if not _is_inner(runner) or guard_set.is_traced():
        return user_layers.call_directly(wrapped, args, kwargs)
    return _attempt(
        runner, id(wrapped.layer), wrapped, args, kwargs, lambda *args, **kwargs: user_layers.call_directly(wrapped, args, kwargs), _FEWEST_JUMPS,
        wrapped.layer)


def _is_inner(runner):
    """Whether parts of the step are to be tried: its function as a whole is known to be impure, or it is a block, and has none."""
    step = runner.step
    if runner.observer is not None or step.function.options.fast_forward == "framework":
        return False
    if type(step) is not Step:
        return step.in_block
    whole = runner.program.whole
    return whole is not None and whole.tries > 1 and not whole.variants


@ours.calling
def _attempt(runner, name, called, args, kwargs, call, fewest, *owner):
    """Jump over a call of the user's function or layer `called`, or make it, `call`, and observe it where that may help."""
    program = runner.program
    call_site = (runner.node, name, runner.cursor.current, runner.step.shapes())
    trial = program.trials.get(call_site)
    if trial is None:
        trial = _first_attempt(program, call_site, called, owner)
    if fewest == 1:
        program.whole = trial
    if trial.given_up:
        return call(*args, **kwargs)
    inputs, found, keep, given = Inputs(), [runner.tapes.recording is not None, runner.path, tuple(kwargs)], [*owner], set()
    arguments = (*args, *kwargs.values())
    dynamic = DynamicValues(runner.step, inputs, trial.numbers, trial.integers, arguments) if fewest == 1 else None
    skippable = True
    try:
        for k, x in enumerate(arguments):
            if dynamic is not None and (id(None), k) in dynamic.places:
                found.append(A_NUMBER)
            else:
                describe_within(runner, x, found, keep, inputs, given, dynamic)
        if dynamic is not None:
            found += [(identity, place.kind) for identity, place in dynamic.places.items()]  # those that are numbers now
        n = len(found)
        for carried in trial.carried.values():
            describe_within(runner, carried.value(), found, keep, inputs, given)
    except Unskippable:
        skippable = False
    if not skippable:  # (what the user's code raises would have the exception as its context, were it called above)
        return call(*args, **kwargs)
    held = found[n:]
    found += runner.fed_signature()
    found += runner.step.args_signature()
    signature, expected = tuple(found), None
    variants = trial.variants.get(signature, ())
    missed = failed = False
    for record in variants:
        made = residual_calls.NO_RESULTS
        if dynamic is not None:
            if record.calls and not record.guard.holds():
                continue  # nothing is to be taken in vain
            now = residual_calls.run_residual(record, arguments, dynamic.arrays())
            if now is None:
                continue
            made, numbers = now
            dynamic.repeat(record.repeated, numbers, made.values)
            if record.opaque and numbers:
                inputs.evaluate = functools.partial(evaluate, record.numbers, arguments, made.values)
        if record.fits(runner, inputs):
            if runner.step.verifies:
                made.undo()
                expected = verification.candidates(runner, record, variants, inputs)
                break
            result = _jump(trial, runner, record, inputs, variants, fewest, call, called, args, kwargs, made)
            if result is not MISSED:
                return result
            missed, failed = not outcomes.pending and not record.opaque, bool(record.opaque)
        made.undo()
        if missed:
            break
    if failed:
        variants.reliability.failed()
    if expected is None and not missed and not outcomes.pending and not (trial.is_due(arguments) and runner.step.records):
        return call(*args, **kwargs)
    return make_natural(observe(runner, trial, called, args, kwargs, fewest, Described(arguments, signature, inputs, keep, held, given, dynamic), expected))


def _first_attempt(program, place, called, owner):
    if len(program.trials) >= _MOST_TRIALS:
        program.trials.clear()
        program.tried.clear()
    trial = program.trials[place] = PurityTrial(called)
    if owner:
        _forget_others(program, place)
    return trial


def _forget_others(program, call_site):
    """Forgets records of other layers: each keeps its layer, so there is a limit for layers that are called at one place in turn."""
    node, name, location, _ = call_site
    names = program.tried.setdefault((node, location), [])
    if name not in names:
        names.append(name)
    if len(names) > _MOST_OWNERS:
        gone = names.pop(0)
        for other in [other for other in program.trials if other[0] is node and other[1] == gone and other[2] is location]:
            del program.trials[other]


def _jump(trial, runner, record, inputs, variants, fewest, call, called, args, kwargs, made=residual_calls.NO_RESULTS):
    result = apply_record(runner, record, inputs, variants)
    if result is FELL_BACK:
        made.undo()
        return call(*args, **kwargs) if not outcomes.pending else run_with_outcomes(runner, called, args, kwargs)
    if result is MISSED:
        return MISSED
    trial.jumped()
    runner.step.counts.whole_steps += fewest == 1
    return result
