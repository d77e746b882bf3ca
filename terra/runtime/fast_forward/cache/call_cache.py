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

from types import FunctionType
from typing import Any, Callable, NamedTuple

from terra.frameworks import framework_objects
from terra.location import current_step
from terra.runtime.fast_forward.cache import call_watch, verification
from terra.runtime.fast_forward.cache.arguments import describe, unread
from terra.runtime.fast_forward.cache.replay_record import jump
from terra.runtime.fast_forward.cache.inline_cache import fits, learn, walk
from terra.runtime.fast_forward.cache.inline_cache import jump as jump_quickly
from terra.runtime.fast_forward.cache.recording import Recording
from terra.runtime.fast_forward.cache.call_records import FELL_BACK, MISSED, Alternatives, CallContext, Inputs
from terra.runtime.fast_forward.guards import added_losses, guard_set, patch_guard
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.interpreter import profilers
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.tensor import make_tensor
from terra.tf import private_names as tfi

_context_changes = tfi.context_changes
MOST_SIGNATURES = 64  # kept per place: so many combinations of shapes
_MOST_SMALL_SIGNATURES, _MOST_ENTRIES = 1000, 50_000  # the same where the regions are small: operations in all of them
_MOST_USELESS = 3  # recordings that did not succeed, after which a place is given up
_MOST_RECORDED = 200  # recordings after which a place is given up, too, if they were good for fewer jumps
_MOST_QUICK = 4  # quick entries kept per place
_FRUITLESS, _FRUITLESS_SMALL = 40, 12  # recordings after which, at a place (one of a single function) that is seldom jumped over, a call is recorded when it comes again
_MANY_SIGHTED, _MOST_SIGHTED = 64, 1000  # such calls, after which one has to come again once more; after which the place is given up if none has come again
observe_users = None  # makes a call that may run the program's functions, and observes these: set by `fast_forward.install`


def running():
    """The PythonRunner of the step that co-executes on this thread, if a call may be skipped now."""
    step = current_step.active
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
        program, version = runner.program, patch_guard.modules.look()
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
            return enter(runner, call)  # it was never skippable
        known = None
    if known:
        result = jump_quickly(runner, known, args, kwargs)
        if result is not MISSED:
            return result
    result, region = attempt_at(place, known, runner, owner, args, kwargs, call)
    if region is not None:
        learn(runner, place, region, args, kwargs, express=False)
    return result


def attempt_function(runner, function, args, kwargs, call=None, shared=False, may_be_empty=False):
    """Jump over `call()`, which is `function(*args, **kwargs)` as far as anybody can tell; else make the call, and record it.

    shared: whether the first argument is nearly always the same object, which nobody changes, and the call nothing but computes, even if it issues no operation.
    may_be_empty: the latter alone.
    """
    node, location = runner.node, runner.cursor.current
    quick = node.express
    if quick is not None and quick.function is function and quick.location is location and fits(runner, quick, args, kwargs):
        walk(runner, quick)
        made = make_tensor(quick.dtype, quick.enum, quick.made_shape, quick.made_key, runner, None)
        runner.issued.append(made)
        return made
    place = (node, function, location)
    known = runner.program.regions.get(place)
    if known:
        result = jump_quickly(runner, known, args, kwargs)
        if result is not MISSED:
            return result
    if call is None:
        call = lambda: function(*args, **kwargs)  # noqa: E731
    if known is False:
        if not is_another_matter(runner, place):
            if runner.observer is not None:
                runner.observer.entered += 1
            return call()
        known = None
    result, region = attempt_at(place, known, runner, function, args, kwargs, call, None, shared or may_be_empty)
    if region is not None:
        learn(runner, place, region, args, kwargs, shared)
    return result


def is_another_matter(runner, place):
    """Whether a call that was never skippable may be so now, in a run that is observed: where tensors stand for arrays that vary, or what it leaves, or the gradient, is left out with it."""
    shown = runner.step.shown
    return (shown is not None and shown.has_arrays) or (runner.observer is not None and place in runner.program.only_within)


def enter(runner, call):
    """Make a call that is not jumped over."""
    if runner is not None and runner.observer is not None:
        runner.observer.entered += 1
    return call()


def _enter_first(runner, place, call):
    """The same for one that is recorded and has not been before: if that succeeds, nobody will ask for what it calls, else that is recorded the next time."""
    runner.recorded_within = runner.program.failures(place) == 0
    try:
        return enter(runner, call)
    finally:
        runner.recorded_within = False


def attempt_at(place, known, runner, owner, args, kwargs, call, more=None, may_be_empty=False):
    """The same for a place that is looked up already: returns (the call's result, the region if one was recorded).

    more: what else the call depends on, where that includes all that was fed to the step and the shapes of its arguments.
    may_be_empty: whether a call that issues no operation is skipped, too.
    """
    if known is None and (runner.recorded_within or (len(place) == 4 and not runner.program.may_have_owner(place))):
        return enter(runner, call), None
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
        return enter(runner, call), None
    if more is not None:
        found += more
    signature, expected = tuple(found), None
    if known is not None:
        regions = known.get(signature, ())
        for region in regions:
            if region.fits(runner, inputs):
                if runner.step.verifies and (region.opaque or region.effects):  # observed, the call tells of both
                    expected = verification.candidates(runner, region, regions, inputs)
                    break
                if runner.step.verifies:
                    known.jumped()
                    return verification.make_again(runner, region, regions, inputs, more is not None, unread(runner, owner, args, kwargs), call), None
                result = jump(runner, region, inputs, regions)
                if result is MISSED:
                    if outcomes.pending:
                        continue
                    break
                known.jumped()
                return (result if result is not FELL_BACK else enter(runner, call)), None
    program = runner.program
    if known is not None and expected is None and not outcomes.pending and not known.is_worth_recording(signature, type(owner) is FunctionType and more is None):
        if known.is_fruitless():
            program.note_unskippable(place, "depends on something that is another one nearly each time")
            program.regions[place] = False
        return enter(runner, call), None
    if not profilers.can_watch() and not outcomes.pending:
        return enter(runner, call), None
    return _record(runner, place, known, _Call(owner, args, kwargs, call, signature, inputs, keep, more is not None, may_be_empty, expected))


class _Call(NamedTuple):
    """A call that no record fits."""

    owner: Any
    args: tuple
    kwargs: dict
    make: Callable[[], Any]
    signature: tuple
    inputs: Inputs
    keep: list  # what the signature knows by identity
    takes_all: bool  # whether it depends on all that was fed to the step, and the shapes of its arguments
    may_be_empty: bool
    expected: list | None  # the records that it is compared with, if it could have been skipped


def _record(runner, place, known, call):
    """Make a call and record it. Returns (its result, the region or None)."""
    program, owner, inputs = runner.program, call.owner, call.inputs
    recording, users = Recording(runner), []
    try:
        guard = guard_set.Guard(owner, call.keep[1:], users)
    except Unskippable as error:
        guard, why = None, str(error)
    context = losses = None
    differentiates, effects, opaque = False, (), None
    before = runner.observer.effects_so_far() if runner.observer is not None else None
    if guard is not None:
        context, losses = CallContext(), added_losses.Before(runner, guard.containers.added_losses.values(), inputs)
    if guard is not None and users:
        result, guard.reads, differentiates, effects, opaque, why = observe_users(runner, users, guard.containers, inputs.composites, lambda: enter(runner, call.make))
        if guard.reads is None:
            guard = None
    elif guard is not None:
        result, why, warned = call_watch.watch(lambda: _enter_first(runner, place, call.make) if known is None else enter(runner, call.make), guard.containers)
        if why is not None:
            guard = None
        elif warned:
            call_watch.note_filters(guard.containers.add)
    else:
        result = enter(runner, call.make)
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
        may_be_empty = call.may_be_empty or framework_objects.may_do_nothing(owner)
        region = recording.region(
            result, inputs, call.takes_all, may_be_empty, unread(runner, owner, call.args, call.kwargs), added=added, differentiates=differentiates, effects=effects, opaque=opaque)
        region.guard, region.keep, region.context = guard, call.keep, context.changes
        if call.expected is not None:
            known.jumped()
            verification.compare(runner, call.expected, region)
            return result, None
        runner.note_formatted(region.formatted)
        differentiates = differentiates and recording.tells_tapes
        if differentiates and region.opaque:
            raise Unskippable("calls unknown code, and has a tf.custom_gradient of the program's")
        if differentiates:  # then only a run that is observed can leave it out, together with the gradient
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
    known.add(call.signature, region)
    if known[call.signature].is_hopeless or (known.recorded > _MOST_RECORDED and known.all_jumps() < known.recorded):
        program.note_unskippable(place, "depends on something that is another one nearly each time")
        program.regions[place] = False
    return result, region
