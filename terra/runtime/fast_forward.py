"""Fast-forward: skip framework code whose outcome is known (design: the light-weight imperative runtime).

The skeleton pays for the framework's own Python, which in a Keras training step is nearly all of it: hundreds of small operations, the same ones at each
step. So at an instrumented call site whose callee is framework code (a stock layer, model, loss, metric or optimizer, `tape.gradient`; in `fast_calls` functions and
operators) the nodes that the call walked are recorded as a *region*. When the same call comes again at the same node of the program, the cursor jumps over the
region, and the call is not entered.

What must hold for a jump (else the call simply runs, and every operation is validated as always):

* the callee is the framework's own code, down to the last part of it; what it reaches of the user's was observed to do nothing but compute (see `user_code`);
* its arguments are the same: tensors by the value of the step that they are, with their shapes, variables by object, Python values by value; of tensors from
  outside of the step dtype and shape, and the value wherever the region takes it as a constant, or Python may look at it (small integers, unused ones);
* nothing that it reads has changed: the attributes of the object and of all its parts, with the contents of lists, dicts and arrays, and the methods
  of their classes (see `guards`); device, global seed, default float type, Keras' call context and scopes are the same;
* the recorded call used no value of the step that it was not given, read nothing but conditions that it has computed (for which a jump waits) and numbers that
  it only gives back (see `late_reads`), ran nothing imperatively, drew from no generator of Python's or numpy's, and changed none of that Python state itself; what it fed came with its
  arguments, or was made by the framework out of what is compared anyway;
* for `tape.gradient`: the tape was begun in the step at the same place and in the same way, with the same path since, was told to watch the same at the same
  places, and recorded no Python function but the framework's own (see `backward`); the tensors fed so far, and the arguments of the step, have the same
  shapes, and those that decide shapes the same values.
"""

import sys
from collections import OrderedDict
from types import FunctionType, MethodType

import numpy as np

from terra.runtime import added_losses, dispatch, guards, jacobians, location, profilers, replaced, stock
from terra.runtime import internals as tfi
from terra.runtime.builtin_loops import located
from terra.runtime.jumps import jump
from terra.runtime.kinds import is_librarys_container, is_named_tuple, is_output, makes_named_tuples, plain
from terra.runtime.recording import Recording
from terra.runtime.regions import FELL_BACK, MISSED, MOST_REGIONS, SCALARS, Alternatives, CallContext, Inputs, Unskippable, scalar
from terra.runtime.tensor import TerraTensor

EagerTensor = tfi.EagerTensor
_OF_ONE_METRIC = frozenset(["update_state_fn", "result_fn"])  # what each metric of tf_keras has functions of its own for
_METHODS = {
    "optimizers": frozenset(["apply", "apply_gradients", "scale_loss"]),
    "trainers": frozenset(["compute_loss", "compute_metrics", "update_state", "result", "reset_state"]),
    "engine": frozenset(["compute_loss", "compute_metrics", "update_state", "reset_state"]),
    "layers": frozenset(["call"]), "models": frozenset(["call"]),  # which a layer, or model, that derives from a stock one calls
    "metrics": frozenset(["update_state", "result", "reset_state", "reset_states", *_OF_ONE_METRIC]),
    "backend": frozenset(["assign", "assign_add", "assign_sub"]),  # of Keras' variables
}
_Generator = tfi.tf.random.Generator
_JACOBIAN, _BATCH_JACOBIAN = tfi.tf.GradientTape.jacobian, tfi.tf.GradientTape.batch_jacobian
_context_changes = tfi.context_changes
# Arguments whose values TensorFlow's Python code does not look at, though they are integers: (position, name).
CLASSES = {  # with which it calculates: on the host, if they are no data
    **dict.fromkeys([tfi.tf.nn.nce_loss, tfi.tf.nn.sampled_softmax_loss], (2, "labels")),
    **dict.fromkeys([tfi.tf.random.log_uniform_candidate_sampler, tfi.tf.random.uniform_candidate_sampler, tfi.tf.nn.compute_accidental_hits], (0, "true_classes"))}
INDICES = {
    tfi.tf.gather: (1, "indices"), tfi.tf.one_hot: (0, "indices"), tfi.tf.nn.embedding_lookup: (1, "ids"),
    tfi.tf.nn.sparse_softmax_cross_entropy_with_logits: (0, "labels"), **CLASSES}
_DRAWING = frozenset(getattr(_Generator, name) for name in ("binomial", "normal", "truncated_normal", "uniform", "uniform_full_int"))
MOST_SIGNATURES = 64  # kept per place: so many combinations of shapes
_MOST_SMALL_SIGNATURES, _MOST_ENTRIES = 1000, 50_000  # the same where the regions are small: operations in all of them
_MOST_USELESS = 3  # recordings that did not succeed, after which a place is given up
_MOST_RECORDED = 200  # recordings after which a place is given up, too, if they were good for fewer jumps
_MOST_QUICK = 4  # quick entries kept per place
_MOST_BYTES = 1_000  # of an array among the arguments, which is compared by value
_FRUITLESS, _FRUITLESS_SMALL = 40, 12  # recordings after which, at a place (one of a single function) that is seldom jumped over, a call is recorded when it comes again
_MANY_SIGHTED, _MOST_SIGHTED = 64, 1000  # such calls, after which one has to come again once more; after which the place is given up if none has come again
_replacements = {}
_variable_kinds = set()  # classes of variables


def substitute(callee):
    """The function to call in place of the method `callee` at a call site, or None: one that jumps if it can."""
    if type(callee) is MethodType:
        function = callee.__func__
        made = fast_calls.substitute_method(callee)
        if made is not None:
            return made
        if function in _OF_TAPES:
            return _OF_TAPES[function]
        make = whole_calls.keras_step if whole_calls.is_keras_step(callee) else skipping
        if make is skipping and function not in _DRAWING:
            package = stock.stock_package(function.__module__)
            if package is None or function.__name__ not in _METHODS.get(package, ()):
                return None
        made = _replacements.get(function)
        if made is None:
            made = make(function)
            if function.__name__ not in _OF_ONE_METRIC:
                _replacements[function] = made
        return made
    return None


def skipping(function):
    """The method `function` of a stock class, but jumping where it can."""
    converts = function.__name__ == "update_state"

    def method(self, *args, **kwargs):
        if converts and dispatch.active is not None:
            args, kwargs = with_tensors(dispatch.active, self, args, kwargs)
        runner = running()
        if runner is None or not (stock.is_stock_kind(type(self)) or type(self) is _Generator):
            return _enter(runner, lambda: function(self, *args, **kwargs))
        if args and type(args[0]) not in (list, tuple) and hasattr(args[0], "__next__"):
            args = (list(args[0]), *args[1:])  # a zip can be read only once
        if loss_scaling.is_one(self):
            loss_scaling.prepare()
        return attempt(runner, function, self, args, kwargs, lambda: function(self, *args, **kwargs))

    method.__name__, method.__qualname__ = function.__name__, function.__qualname__
    return method


class Skipping:
    """A stock layer, model or loss in the place of a callee: calls it, jumping where it can."""

    __slots__ = ("callee",)

    def __init__(self, callee):
        self.callee = callee

    def __call__(self, *args, **kwargs):
        callee = self.callee
        step = dispatch.active
        if step is not None:
            args, kwargs = with_tensors(step, callee, args, kwargs)
            if args and _looks_up(callee):
                step.note_indices(args[0])
        runner = running()
        if runner is None:
            return callee(*args, **kwargs)
        return attempt(runner, type(callee).__call__, callee, args, kwargs, lambda: callee(*args, **kwargs))


def with_tensors(step, callee, args, kwargs):
    """The arguments of a call of the stock object `callee`, with tensors in the place of the arrays that it would make tensors of itself, first thing."""
    if any(map(holds_array, args)) or any(map(holds_array, kwargs.values())):
        n = _number_converted(callee) if step.takes_tensors() else 0
        args = (*[tensors_for(step, x) for x in args[:n]], *args[n:])
        if n == sys.maxsize:
            kwargs = {name: tensors_for(step, x) for name, x in kwargs.items()}
    return args, kwargs


def holds_array(x):
    """Whether an argument is an array, or a container with arrays in it."""
    kind = type(x)
    return kind is np.ndarray or ((kind is list or kind is tuple) and np.ndarray in map(type, x)) or (kind is dict and np.ndarray in map(type, x.values()))


def tensors_for(step, x):
    """An argument, with tensors in the place of the array that it is, or of those in it."""
    if not holds_array(x):
        return x
    if type(x) is np.ndarray:
        return step.as_data(x)
    tensors = [step.as_data(y) if type(y) is np.ndarray else y for y in (x.values() if type(x) is dict else x)]
    return dict(zip(x, tensors)) if type(x) is dict else type(x)(tensors)


def _number_converted(callee):
    """Of how many arguments `callee` first thing makes tensors, if they are arrays: the next time they may be others, and the call is skipped all the same."""
    module = type(callee).__module__
    package = stock.stock_package(module)
    if package != "metrics" and not stock.is_stock_object(callee):
        return 0
    if module.startswith("tf_keras."):
        return int(package not in ("losses", "metrics"))  # those treat arrays and tensors differently
    return sys.maxsize if package != "layers" or callee._convert_input_args else 0


def _looks_up(callee):
    """Whether `callee` is a stock layer that is given indices."""
    return type(callee).__name__ == "Embedding" and stock.is_stock_object(callee)


def _unread(runner, owner, args, kwargs):
    """The tensors among a call's arguments at whose values its Python code does not look."""
    if type(owner) is FunctionType:
        position, name = INDICES.get(owner, (None, None))
        found = () if name is None else args[position:position + 1] or (kwargs.get(name),)
        return found if owner not in CLASSES else [x for x in found if id(x) in runner.step.args or runner.step.is_data(x)]
    return [x for x in args[:1] if _looks_up(owner) and runner.step.is_data(x)]  # the layer's operations on other ones run on the host


def form_of(callee):
    """What is called in place of `callee` where it is not called at an instrumented site."""
    if type(callee) is MethodType:
        made = substitute(callee)
        return callee if made is None else MethodType(made, callee.__self__)
    if stock.is_stock_object(callee) or stock.is_stock_function(callee):
        return Skipping(callee)
    return fast_calls.substitute(callee) or _form_of_derived(callee) or callee


def _form_of_derived(callee):
    """The same for an object of a class of the user's; None if that is not derived from one of the framework's."""
    return user_layers.wrap(callee) or (Skipping(callee) if stock.is_derived_object(callee) else None)


def running():
    """The PythonRunner of the step that co-executes on this thread, if a call may be skipped now."""
    step = dispatch.active
    if step is None:
        return None
    runner = step.skipping()
    if runner is None:
        return None
    step = runner.step
    if step.settings_seen != _context_changes[0]:
        step.look_at_settings()
    if not step.is_eager:
        return None
    if (runner.tapes.recording is None) is not tfi.tape_set_is_empty():
        return None  # a tape that records at once would miss what is skipped; one that is stopped must not be told of it
    if not runner.modules_checked:
        runner.modules_checked = True
        program, version = runner.program, replaced.modules.look()
        if program.modules_version != version:  # somebody has replaced a function of the framework
            program.modules_version = version
            program.forget_regions()
    return runner


class Known(dict):
    """What is recorded at one place: the call's signature -> regions; `quick`: what `quick_entries` looks at first."""

    __slots__ = ("quick", "recorded", "jumps", "sighted", "came_again")

    def __init__(self):
        self.quick = []
        self.recorded = self.jumps = 0
        self.sighted = {}  # hash of a signature that was not recorded -> how often it came
        self.came_again = False  # whether one of them was recorded later

    def add(self, signature, region):
        regions = self.get(signature)
        if regions is None:
            regions = self[signature] = Alternatives()
            if len(self) > max(MOST_SIGNATURES, min(_MOST_SMALL_SIGNATURES, _MOST_ENTRIES // max(1, len(region.entries)))):
                del self[next(iter(self))]
        regions.learn(region)
        self.recorded += 1

    def add_quick(self, quick):
        self.quick.insert(0, quick)
        for old in self.quick[_MOST_QUICK:]:
            self.jumps += old.jumps
        del self.quick[_MOST_QUICK:]

    def is_worth_recording(self, signature, small):
        """Whether a call that is not known yet is to be recorded: always, or, if calls here are recorded again and again but seldom jumped over, when it comes
        again, as batches of some length do. `small`: whether they are calls of a single function."""
        if self.recorded <= (_FRUITLESS_SMALL if small else _FRUITLESS) or self.recorded <= self.all_jumps():
            return True
        identity = hash(signature)
        times = self.sighted[identity] = self.sighted.get(identity, 0) + 1
        if times < (2 if len(self.sighted) <= _MANY_SIGHTED else 3):
            return False
        del self.sighted[identity]
        self.came_again = True
        return True

    def is_fruitless(self):
        """Whether there are always other calls."""
        if len(self.sighted) < _MOST_SIGHTED:
            return False
        self.sighted.clear()
        came_again, self.came_again = self.came_again, False
        return not came_again

    def alternatives(self):
        return self.values()

    def jumped(self):
        self.jumps += 1

    def all_jumps(self):
        return self.jumps + sum(quick.jumps for quick in self.quick)


def attempt(runner, function, owner, args, kwargs, call):
    """Jump over the call of a method of `owner` if a recorded region fits; else make the call, and record it."""
    place = (runner.node, function, id(owner), runner.cursor.current)
    known = runner.program.regions.get(place)
    if known is False:
        if not is_another_matter(runner, place):
            return _enter(runner, call)  # it was never skippable
        known = None
    if known:
        result = quick_entries.jump(runner, known, args, kwargs)
        if result is not quick_entries.MISSED:
            return result
    result, region = attempt_at(place, known, runner, owner, args, kwargs, call)
    if region is not None:
        quick_entries.learn(runner, place, region, args, kwargs, express=False)
    return result


def is_another_matter(runner, place):
    """Whether a call that was never skippable may be so now, in a run that is observed: where tensors stand for arrays that vary, or what it leaves, or the gradient, is left out with it."""
    shown = runner.step.shown
    return (shown is not None and shown.has_arrays) or (runner.observer is not None and place in runner.program.only_within)


def _enter(runner, call):
    """Make a call that is not jumped over."""
    if runner is not None and runner.observer is not None:
        runner.observer.entered += 1
    return call()


def _enter_first(runner, place, call):
    """The same for one that is recorded and has not been before: if that succeeds, nobody will ask for what it calls, else that is recorded the next time."""
    runner.recorded_within = runner.program.failures(place) == 0
    try:
        return _enter(runner, call)
    finally:
        runner.recorded_within = False


def attempt_at(place, known, runner, owner, args, kwargs, call, more=None, may_be_empty=False):
    """The same for a place that is looked up already: returns (the call's result, the region if one was recorded).

    more: what else the call depends on, where that includes all that was fed to the step and the shapes of its arguments.
    may_be_empty: whether a call that issues no operation is skipped, too.
    """
    if known is None and (runner.recorded_within or (len(place) == 4 and not runner.program.may_have_owner(place))):
        return _enter(runner, call), None
    inputs = Inputs()
    found = [runner.tapes.recording is not None]
    keep = [owner]
    why = None
    try:
        describe(runner, args, found, keep, inputs)
        describe(runner, kwargs, found, keep, inputs)
    except Unskippable as error:
        why = str(error)
    if why is not None:  # (an error of the user's code would have the exception as its context, were it called above)
        runner.program.note_unskippable(place, why)
        return _enter(runner, call), None
    if more is not None:
        found += more
    signature = tuple(found)
    if known is not None:
        regions = known.get(signature, ())
        for region in regions:
            if region.fits(runner, inputs):
                if runner.step.verifies:
                    known.jumped()
                    return verification.make_again(runner, region, regions, inputs, more is not None, _unread(runner, owner, args, kwargs), call), None
                result = jump(runner, region, inputs, regions)
                if result is MISSED:
                    break
                known.jumped()
                return (result if result is not FELL_BACK else _enter(runner, call)), None
    program = runner.program
    if known is not None and not known.is_worth_recording(signature, type(owner) is FunctionType and more is None):
        if known.is_fruitless():
            program.note_unskippable(place, "depends on something that is another one nearly each time")
            program.regions[place] = False
        return _enter(runner, call), None
    if not profilers.can_watch():
        return _enter(runner, call), None
    recording, users = Recording(runner), []
    try:
        guard = guards.Guard(owner, keep[1:], users)
    except Unskippable as error:
        guard, why = None, str(error)
    context = losses = None
    differentiates = changes = False
    before = runner.observer.effects_so_far() if runner.observer is not None else None
    if guard is not None:
        context, losses = CallContext(), added_losses.Before(runner, guard.containers.added_losses.values(), inputs)
    if guard is not None and users:
        result, guard.reads, differentiates, changes = user_code.observe(runner, users, guard.containers, inputs.composites, lambda: _enter(runner, call))
        if guard.reads is None:
            guard, why = None, "runs functions of the user's that do more than compute"
            if changes:  # (these are effects of a run around it)
                program.only_within.add(place)
    elif guard is not None:
        result, alone, warned = user_code.watch(lambda: _enter_first(runner, place, call) if known is None else _enter(runner, call))
        if not alone:
            guard, why = None, "runs functions of the user's that were not looked for"
        elif warned:
            user_code.note_filters(guard.containers.add)
    else:
        result = _enter(runner, call)
    try:
        if guard is None:
            raise Unskippable(why)
        added = losses.changed(guard.containers)
        if added is None:
            raise Unskippable("adds losses to those of another step")
        if not context.without_changes(guard.holds):
            raise Unskippable("changes what it reads")
        if inputs.known_elsewhere(runner, guard):
            raise Unskippable("reads a tensor that is among its arguments as well")
        may_be_empty = may_be_empty or stock.may_do_nothing(owner)
        region = recording.region(
            result, inputs, more is not None, may_be_empty, _unread(runner, owner, args, kwargs), added=added, differentiates=differentiates)
        region.guard, region.keep, region.context = guard, keep, context.changes
        runner.note_formatted(region.formatted)
        differentiates = differentiates and recording.tells_tapes
        if differentiates or changes:  # then only a run that is observed can leave it out, together with the gradient, or with what it changes
            program.only_within.add(place)
            if runner.observer is None:
                raise Unskippable("has a tf.custom_gradient of the program's, of which a tape must be told")
            runner.observer.note_made(region, recording.log_length, before, differentiates)
            return result, None
    except Unskippable as error:
        failures = program.note_unskippable(place, str(error), known is None)
        if failures >= (_MOST_USELESS if not users else 2 * _MOST_USELESS):  # what the user's code calls has to be recorded first
            program.regions[place] = False
        return result, None
    if known is None:
        known = program.regions[place] = Known()
        if len(place) == 4:
            program.add_owner(place)
    known.add(signature, region)
    if known[signature].is_hopeless or (known.recorded > _MOST_RECORDED and known.all_jumps() < known.recorded):
        program.note_unskippable(place, "depends on something that is another one nearly each time")
        program.regions[place] = False
    return result, region


def gradient(tape, *args, **kwargs):
    """`tape.gradient`, skipped where what the tape recorded is known."""
    return _differentiate(tfi.tape_gradient_method, tape, args, kwargs)


def _differentiate(method, tape, args, kwargs):
    """Call `method` of the tape, which gives a gradient or Jacobian."""
    runner = running()
    lazy = runner.tapes.of(tape._tape._tape) if runner is not None and tape._tape is not None else None
    if lazy is None or lazy.opaque or tape._recording:
        return _enter(runner, lambda: method(tape, *args, **kwargs))
    jumps = runner.step.counts.fast_forwards
    more = ("gradient", lazy.start, lazy.path, runner.path, lazy.functions, runner.tapes.told(lazy), tape._persistent,
            *runner.by_value, *runner.fed_signature(),
            *runner.step.args_signature(), *[x for v in runner.tapes.accessed[lazy.accessed:] for x in (id(v), v.trainable)])
    place = runner.node, method, runner.cursor.current
    known = runner.program.regions.get(place)

    def call():
        # Where the gradient as a whole will hardly be skipped, its parts are.
        runner.takes_gradients_by_function = known is False or runner.program.failures(place) or (
            known is not None and len(known) > MOST_REGIONS)
        try:
            return method(tape, *args, **kwargs)
        finally:
            runner.takes_gradients_by_function = True

    if known is False:
        result = _enter(runner, call)  # it was never skippable
    else:
        result, _ = attempt_at(place, known, runner, gradient, args, kwargs, call, more)
    if runner.step.counts.fast_forwards != jumps and not tape._persistent and tape._tape is not None:
        tape._watched_variables = tape._tape.watched_variables()  # as the method leaves its tape behind
        tape._tape = None
    return result


def jacobian(tape, *args, **kwargs):
    """The same of `tape.jacobian`."""
    return _differentiate(_JACOBIAN, tape, args, kwargs)


def batch_jacobian(tape, *args, **kwargs):
    """The same of `tape.batch_jacobian`."""
    return _differentiate(_BATCH_JACOBIAN, tape, args, kwargs)


_OF_TAPES = {tfi.tape_gradient_method: gradient, _JACOBIAN: jacobian, _BATCH_JACOBIAN: batch_jacobian}


def describe(runner, value, found, keep, inputs):
    """Append what identifies an argument to `found`. Raises Unskippable if it cannot be told cheaply."""
    kind = type(value)
    if kind is TerraTensor or kind is EagerTensor:
        inputs.describe(runner, value, found)
    elif kind in SCALARS:
        found.append(scalar(value))
    elif kind is tuple or kind is list:
        found.append((kind, len(value)))
        for x in value:
            describe(runner, x, found, keep, inputs)
    elif kind is dict:
        if not all(type(x) in SCALARS for x in value):  # comparing other keys may run the user's code
            raise Unskippable("is given a dict with keys of a special type")
        found.append((kind, *map(scalar, value)))
        for x in value.values():
            describe(runner, x, found, keep, inputs)
    elif tfi.is_composite(kind):
        found.append(kind)
        inputs.composites.add(id(value))
        for x in tfi.composite_parts(value):
            inputs.enclosed.add(id(x))
            describe(runner, x, found, keep, inputs)
    elif kind in _variable_kinds or tfi.is_variable(value) or stock.is_seed_generator(kind):
        _variable_kinds.add(kind)
        found.append(id(value))
        keep.append(value)
    elif is_named_tuple(kind) and makes_named_tuples(kind):
        found.append((kind, len(value)))
        for x in value:
            describe(runner, x, found, keep, inputs)
    elif kind is slice:
        found.append(kind)
        for x in (value.start, value.stop, value.step):
            describe(runner, x, found, keep, inputs)
    elif kind is tfi.tensor_shape.TensorShape:
        found.append((kind, tuple(value.as_list()) if value.rank is not None else None))
    elif kind is tfi.tf.UnconnectedGradients or kind is tfi.tf.DType or value is Ellipsis:
        found.append(value)
    elif kind is np.ndarray and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
        found.append((kind, value.dtype.str, value.shape, value.tobytes()))
    elif issubclass(kind, (np.number, np.bool_)) and kind.__module__ == "numpy":
        found.append((kind, value.tobytes()))
    elif issubclass(kind, type) and issubclass(value, np.generic):
        found.append((kind, str(value)))
    elif issubclass(kind, type) and tfi.is_composite(value):
        found.append(value)
    elif is_output(value):
        found.append((kind, tuple(OrderedDict.keys(value))))
        describe(runner, vars(value), found, keep, inputs)
    elif is_librarys_container(kind):
        describe(runner, plain(value), found, keep, inputs)
        found.append(kind)
    else:
        raise Unskippable(f"is given an object of type {kind.__name__}" if kind is not np.ndarray else "is given an array that is too large to be compared")


def install():
    """Make instrumented call sites ask `substitute` before anything else."""
    inner = location._resolve

    def resolve(there, callee):
        made = substitute(callee)
        if made is not None:
            if callee.__func__.__name__ not in _OF_ONE_METRIC:
                there.callee, there.target = callee.__func__, made
            return MethodType(made, callee.__self__)
        if stock.is_stock_object(callee) or stock.is_stock_function(callee):
            there.callee = there.target = None  # the answer is cheap, and the location would keep the object alive
            return Skipping(callee)
        made = fast_calls.substitute(callee)
        if made is not None:
            there.callee, there.target = callee, made
            return made
        made = located(callee)
        if made is not None and there is not location.OUTSIDE:
            there.callee, there.target = callee, made
            return made
        form = inner(there, callee)
        if form is callee:
            return _form_of_derived(callee) or form
        return whole_calls.of_function(there, callee, form)

    location.set_resolver(resolve)
    user_layers.set_calling(whole_calls.call_layer)
    dispatch.gradient_hook = gradient_functions.gradient_function
    fast_calls.install()
    jacobians.install()


from terra.runtime import (  # noqa: E402  (they build on this module)
    fast_calls, gradient_functions, loss_scaling, quick_entries, user_code, user_layers, verification, whole_calls,
)
