"""Stand-ins for the framework's methods and objects: a call of one jumps where it can."""

import weakref

from terra.frameworks import framework_objects
from terra.frameworks.keras import is_embedding, scales_losses
from terra.location import current_step
from terra.runtime.fast_forward.cache.arguments import with_tensors
from terra.runtime.fast_forward.cache.call_cache import attempt, attempt_at, enter, running
from terra.runtime.fast_forward.cache.call_records import MOST_RECORDS
from terra.runtime.fast_forward.guards.guard_set import GuardSet
from terra.runtime.fast_forward.sites import loss_scaling
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.object_kinds import is_iterator
from terra.tf import private_names as tfi
from terra.transform import classes

Generator = tfi.tf.random.Generator
_JACOBIAN, _BATCH_JACOBIAN = tfi.tf.GradientTape.jacobian, tfi.tf.GradientTape.batch_jacobian


def prepare_users(owner):
    """Instruments the classes of the program's whose methods an object of the framework's calls, as no call site names these: from the first steps on, as what is traced has to be found again."""
    key = id(owner)
    known = _tries.get(key)
    if known is None:
        known = _tries[key] = [weakref.ref(owner, lambda _: _tries.pop(key, None)), _MOST_TRIES]
    if not known[1]:
        return
    users = []
    try:
        GuardSet(owner, (), users)
        known[1] = 0
    except Unskippable:  # it may not be built yet
        known[1] -= 1
    for thing in users:
        if isinstance(thing, type):
            classes.prepare(thing)


_MOST_TRIES = 3
_tries = {}  # id of an object of the framework's -> [a weak reference to it, how often it is to be looked at still]


def skipping(function):
    """The method `function` of a stock class, but jumping where it can."""
    converts = function.__name__ == "update_state"

    def method(self, *args, **kwargs):
        if converts and current_step.active is not None:
            args, kwargs = with_tensors(current_step.active, self, args, kwargs)
        runner = running()
        if runner is None or not (framework_objects.is_stock_kind(type(self)) or type(self) is Generator):
            return enter(runner, lambda: function(self, *args, **kwargs))
        if args and is_iterator(args[0]):
            args = (list(args[0]), *args[1:])  # a zip can be read only once
        for name, x in kwargs.items():
            if is_iterator(x):
                kwargs[name] = list(x)
        if scales_losses(self):
            loss_scaling.prepare(skipping)
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
        step = current_step.active
        if step is not None:
            args, kwargs = with_tensors(step, callee, args, kwargs)
            if args and is_embedding(callee):
                step.note_indices(args[0])
        runner = running()
        if runner is None:
            if step is not None:
                prepare_users(callee)
            return callee(*args, **kwargs)
        return attempt(runner, type(callee).__call__, callee, args, kwargs, lambda: callee(*args, **kwargs))


def gradient(tape, *args, **kwargs):
    """`tape.gradient`, skipped where what the tape recorded is known."""
    return _differentiate(tfi.tape_gradient_method, tape, args, kwargs)


def _differentiate(method, tape, args, kwargs):
    """Call `method` of the tape, which gives a gradient or Jacobian."""
    runner = running()
    lazy = runner.tapes.of(tape._tape._tape) if runner is not None and tape._tape is not None else None
    if lazy is not None and tape._recording and not tape._persistent:
        tape._pop_tape()  # as the method does first, where it is called in the tape's own block
    if lazy is None or lazy.opaque or tape._recording:
        return enter(runner, lambda: method(tape, *args, **kwargs))
    jumps = runner.step.counts.fast_forwards
    more = ("gradient", lazy.start, lazy.path, runner.path, lazy.functions, runner.tapes.told(lazy), tape._persistent,
            *runner.by_value, *runner.fed_signature(),
            *runner.step.args_signature(), *[x for v in runner.tapes.accessed[lazy.accessed:] for x in (id(v), v.trainable)])
    place = runner.node, method, runner.cursor.current
    known = runner.program.call_sites.get(place)

    def call():
        # Where the gradient as a whole will hardly be skipped, its parts are.
        runner.takes_gradients_by_function = known is False or runner.program.failures(place) or (
            known is not None and len(known) > MOST_RECORDS)
        try:
            return method(tape, *args, **kwargs)
        finally:
            runner.takes_gradients_by_function = True

    if known is False:
        result = enter(runner, call)  # it was never skippable
    else:
        result, _ = attempt_at(place, known, runner, gradient, args, kwargs, call, more)
    if runner.step.counts.fast_forwards != jumps and not tape._persistent and tape._tape is not None:
        tape._watched_variables = tape._tape.watched_variables()  # as the method leaves its tape behind
        tape._tape = None
    return result


def jacobian(tape, *args, **kwargs):
    """Does what `tape.jacobian` does; the call is skipped if it can be."""
    return _differentiate(_JACOBIAN, tape, args, kwargs)


def batch_jacobian(tape, *args, **kwargs):
    """Does what `tape.batch_jacobian` does; the call is skipped if it can be."""
    return _differentiate(_BATCH_JACOBIAN, tape, args, kwargs)


OF_TAPES = {tfi.tape_gradient_method: gradient, _JACOBIAN: jacobian, _BATCH_JACOBIAN: batch_jacobian}
