"""Fast-forward: skip framework code whose outcome is known (design: the light-weight imperative runtime).

The skeleton pays for the framework's own Python, which in a Keras training step is nearly all of it: hundreds of small operations, the same ones at each
step. So at an instrumented call site whose callee is framework code (a stock layer, model, loss, metric or optimizer, `tape.gradient`; in
`fast_calls` functions and operators) the nodes that the call walked are recorded as a *record*. When the same call comes again at the same node of
the program, the cursor jumps over the record, and the call is not entered.

What must hold for a jump (else the call simply runs, and every operation is validated as always):

* the callee is the framework's own code, down to the last part of it; what it reaches of the user's was observed to do nothing but compute (see `user_code`);
* its arguments are the same: tensors by the value of the step that they are, with their shapes, variables by object, Python values by value; of tensors from
  outside of the step dtype and shape, and the value wherever the record takes it as a constant, or Python may look at it (small integers, unused ones);
* nothing that it reads has changed: the attributes of the object and of all its parts, with the contents of lists, dicts and arrays, and the methods
  of their classes (see `guard_set`); device, global seed, default float type, Keras' call context and scopes are the same;
* the recorded call used no value of the step that it was not given, read nothing but conditions that it has computed (for which a jump waits) and numbers that
  it only gives back (see `deferred_fetches`), ran nothing imperatively, drew from no generator of Python's or numpy's, and changed none of that
  Python state itself; what it fed came with its arguments, or was made by the framework out of what is compared anyway;
* for `tape.gradient`: the tape was begun in the step at the same place and in the same way, with the same path since, was told to watch the same at the same
  places, and recorded no Python function but the framework's own (see `backward`); the tensors fed so far, and the arguments of the step, have the same
  shapes, and those that decide shapes the same values.
"""

from types import FunctionType
from typing import Any, Callable, NamedTuple

from terra.frameworks import framework_objects
from terra.location import current_step
from terra.runtime.fast_forward.cache import call_watch, entered, verification
from terra.runtime.fast_forward.cache.arguments import describe, describe_within, is_held, unread
from terra.runtime.fast_forward.cache.replay_record import apply_record
from terra.runtime.fast_forward.cache.inline_cache import entry_fits, add_entry, advance_by_entry
from terra.runtime.fast_forward.cache.inline_cache import polymorphic_hit
from terra.runtime.fast_forward.cache.recording import Recording
from terra.runtime.fast_forward.cache.call_records import FELL_BACK, MISSED, RecordVariants, CallContext, Inputs
from terra.runtime.fast_forward.guards import added_losses, attribute_filter, guard_set, patch_guard
from terra.runtime.fast_forward.sources.effects import StateInput, holds_tensors, leave_natural
from terra.runtime.fast_forward.sources.opaque_calls import outcomes
from terra.runtime.interpreter import profilers
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.tensor import make_tensor
from terra.tf import private_names as tfi

_context_changes = tfi.context_changes
MOST_SIGNATURES = 64  # kept per place: so many combinations of shapes
_MOST_SMALL_SIGNATURES, _MOST_ENTRIES = 1000, 50_000  # the same where the records are small: operations in all of them
_NO_STATES = {}
_MOST_USELESS = 3  # recordings that did not succeed, after which a place is given up
_MOST_RECORDED = 200  # recordings after which a place is given up, too, if they were good for fewer jumps
_MOST_INLINE = 4  # inline cache entries kept per place
_FRUITLESS, _FRUITLESS_SMALL = 40, 12  # recordings after which, at a place (one of a single function) that is seldom jumped over, a call is recorded when it comes again
_MANY_SIGHTED, _MOST_SIGHTED = 64, 1000  # such calls, after which one has to come again once more; after which the place is given up if none has come again
parts_are_sites = None  # makes the methods by which the framework calls itself call sites: set by `substitution.install`
enter_by_parts = None  # makes a call of the framework's that cannot be skipped by those of its parts that can: set by it, too
observe_users = None  # makes a call that may run the program's functions, and observes these: set by `substitution.install`


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
            program.forget_records()
    return runner


class CallSiteCache(dict):
    """The records of one place: the call's signature -> records; `inline`: what `inline_cache` looks at first."""

    __slots__ = ("inline", "recorded", "jumps", "sighted", "came_again")

    def __init__(self):
        self.inline = []
        self.recorded = self.jumps = 0
        self.sighted = {}  # hash of a signature that was not recorded -> how often it came
        self.came_again = False  # whether one of them was recorded later

    def add(self, signature, record):
        variants = self.get(signature)
        if variants is None:
            variants = self[signature] = RecordVariants()
            if len(self) > max(MOST_SIGNATURES, min(_MOST_SMALL_SIGNATURES, _MOST_ENTRIES // max(1, len(record.entries)))):
                del self[next(iter(self))]
        variants.learn(record)
        self.recorded += 1

    def add_inline(self, cached):
        self.inline.insert(0, cached)
        for old in self.inline[_MOST_INLINE:]:
            self.jumps += old.jumps
        del self.inline[_MOST_INLINE:]

    def is_worth_recording(self, signature, small):
        """Returns whether a call that is not known yet is to be recorded: always, or, if calls here are recorded again and again but seldom jumped
        over, when it comes again, as batches of some length do. `small`: whether they are calls of a single function."""
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
        """Returns whether there are always other calls."""
        if len(self.sighted) < _MOST_SIGHTED:
            return False
        self.sighted.clear()
        came_again, self.came_again = self.came_again, False
        return not came_again

    def all_variants(self):
        return self.values()

    def jumped(self):
        self.jumps += 1

    def all_jumps(self):
        return self.jumps + sum(cached.jumps for cached in self.inline)


def attempt(runner, function, owner, args, kwargs, call, is_group=False):
    """Jump over the call of a method of `owner` if a record fits; else make the call, and record it. `is_group`: it is several calls, see `sites.walks`."""
    call_site = (runner.node, function, id(owner), runner.cursor.current)
    cache = runner.program.call_sites.get(call_site)
    if cache is False:
        if not is_another_matter(runner, call_site):
            return call() if is_group else enter_by_parts(runner, call_site, owner, args, kwargs, call)  # it was never skippable
        cache = None
    if cache:
        result = polymorphic_hit(runner, cache, args, kwargs)
        if result is not MISSED:
            return result
    result, record = attempt_at(call_site, cache, runner, owner, args, kwargs, call, may_be_empty=is_group)
    if record is not None and not record.states:
        add_entry(runner, call_site, record, args, kwargs, monomorphic=False)
    return result


def attempt_function(runner, function, args, kwargs, call=None, shared=False, may_be_empty=False):
    """Jump over `call()`, which is `function(*args, **kwargs)` as far as anybody can tell; else make the call, and record it.

    shared: whether the first argument is nearly always the same object, which nobody changes, and the call nothing but computes, even if it issues no
        operation.
    may_be_empty: the latter alone.
    """
    node, location = runner.node, runner.cursor.current
    cached = node.monomorphic
    if cached is not None and cached.function is function and cached.location is location and entry_fits(runner, cached, args, kwargs):
        advance_by_entry(runner, cached)
        made = make_tensor(cached.dtype, cached.enum, cached.made_shape, cached.made_key, runner, None)
        runner.issued.append(made)
        return made
    call_site = (node, function, location)
    cache = runner.program.call_sites.get(call_site)
    if cache:
        result = polymorphic_hit(runner, cache, args, kwargs)
        if result is not MISSED:
            return result
    if call is None:
        call = lambda: function(*args, **kwargs)  # noqa: E731
    if cache is False:
        if not is_another_matter(runner, call_site):
            if runner.observer is not None:
                runner.observer.entered += 1
            return call()
        cache = None
    result, record = attempt_at(call_site, cache, runner, function, args, kwargs, call, None, shared or may_be_empty)
    if record is not None:
        add_entry(runner, call_site, record, args, kwargs, shared)
    return result


def is_another_matter(runner, call_site):
    """Returns whether a call that was never skippable may be so now, in a run that is observed: where tensors stand for arrays that vary, or what it
    leaves, or the gradient, is left out with it."""
    shown = runner.step.shown
    return (shown is not None and shown.has_arrays) or (runner.observer is not None and call_site in runner.program.only_within)


def enter(runner, call):
    """Make a call that is not jumped over."""
    if runner is not None and runner.observer is not None:
        runner.observer.entered += 1
    return call()


def enter_parts(runner, owner, call):
    """Make a call that cannot be skipped, of which those parts are that are calls of the framework's, too."""
    parts_are_sites()
    return entered.make(runner.step, entered.Entered(owner), lambda: enter(runner, call))


def _enter_fallen_back(runner, owner, keep, inputs, call):
    """Make a call for which opaque calls were made when the step fell back: they are not made again."""
    if not outcomes.pending:
        return enter(runner, call)
    users = []
    guard = guard_set.GuardSet(owner, keep[1:], users)
    return observe_users(runner, users, guard.containers, inputs, lambda: enter(runner, call)).result


def _enter_first(runner, call_site, call):
    """Makes a call that is recorded for the first time: if that succeeds, nobody will ask for what it calls, else that is recorded the next time."""
    runner.recorded_within = runner.program.failures(call_site) == 0
    try:
        return enter(runner, call)
    finally:
        runner.recorded_within = False


def attempt_at(call_site, cache, runner, owner, args, kwargs, call, more=None, may_be_empty=False):
    """Skips or makes a call at a place that is looked up already. Returns (the call's result, the record if one was recorded).

    more: what else the call depends on, where that includes all that was fed to the step and the shapes of its arguments.
    may_be_empty: whether a call that issues no operation is skipped, too.
    """
    if cache is None and runner.recorded_within:
        return enter(runner, call), None
    if cache is None and len(call_site) == 4 and not runner.program.may_have_owner(call_site):
        return enter_parts(runner, owner, call), None
    inputs = Inputs()
    found = [runner.tapes.recording is not None]
    keep = [owner]
    why, states = None, runner.program.states.get(call_site, _NO_STATES)
    try:
        describe(runner, args, found, keep, inputs)
        describe(runner, kwargs, found, keep, inputs)
        n = len(found)
        for state in states.values():
            describe_within(runner, state.value(), found, keep, inputs, inputs.composites)
    except Unskippable as error:
        why = str(error)
    if why is not None:  # (an error of the user's code would have the exception as its context, were it called above)
        runner.program.note_unskippable(call_site, why)
        return enter(runner, call), None
    held = found[n:]
    if more is not None:
        found += more
    signature, expected = tuple(found), None
    if cache is not None:
        variants, n_external, missed = cache.get(signature, ()), len(inputs.external), False
        for record in variants:
            if record.fits(runner, inputs):
                if runner.step.verifies and (record.opaque or record.effects):  # observed, the call tells of both
                    expected = verification.candidates(runner, record, variants, inputs)
                    break
                if runner.step.verifies:
                    cache.jumped()
                    return verification.make_again(runner, record, variants, inputs, more is not None, unread(runner, owner, args, kwargs), call), None
                result = apply_record(runner, record, inputs, variants)
                if result is MISSED:
                    del inputs.external[n_external:]
                    if outcomes.pending or record.opaque:
                        missed = True
                        continue
                    break
                cache.jumped()
                return (result if result is not FELL_BACK else _enter_fallen_back(runner, owner, keep, inputs, call)), None
        if missed:
            variants.reliability.failed()
    program = runner.program
    if not runner.step.records and expected is None and not outcomes.pending:
        return enter(runner, call), None
    wait = program.back_off.left((call_site, hash(signature)), runner.step.function.n_steps) if expected is None and not outcomes.pending else 0
    if wait and runner.observer is not None:
        runner.observer.waits(wait)
    if wait or (cache is not None and expected is None and not outcomes.pending and variants and not variants.reliability.allows()):
        return (enter_by_parts(runner, call_site, owner, args, kwargs, call) if len(call_site) == 4 else enter(runner, call)), None
    if cache is not None and expected is None and not outcomes.pending and not cache.is_worth_recording(signature, type(owner) is FunctionType and more is None):
        if cache.is_fruitless():
            program.note_unskippable(call_site, "depends on something that is another one nearly each time")
            program.call_sites[call_site] = False
        return enter(runner, call), None
    if not profilers.can_watch() and not outcomes.pending:
        return enter(runner, call), None
    return _record(runner, call_site, cache, _Call(owner, args, kwargs, call, signature, inputs, keep, states, held, more is not None, may_be_empty, expected))


class _Call(NamedTuple):
    """A call that no record fits."""

    owner: Any
    args: tuple
    kwargs: dict
    make: Callable[[], Any]
    signature: tuple
    inputs: Inputs
    keep: list  # what the signature knows by identity
    states: dict  # (id of an object, name) -> `StateInput`: the attributes that count as arguments
    held: list  # what identifies what these hold
    takes_all: bool  # whether it depends on all that was fed to the step, and the shapes of its arguments
    may_be_empty: bool
    expected: list | None  # the records that it is compared with, if it could have been skipped


def _record(runner, place, cache, call):
    """Make a call and record it. Returns (its result, the record or None)."""
    program, owner, inputs, recording, users = runner.program, call.owner, call.inputs, Recording(runner), []
    try:
        guard = guard_set.GuardSet(owner, call.keep[1:], users, call.states)
    except Unskippable as error:
        guard, why = None, str(error)
    context, losses, differentiates, effects, opaque, numbers, passed_on, too_early = None, None, False, (), None, None, (), 0
    before = runner.observer.effects_so_far() if runner.observer is not None else None
    if guard is not None:
        context, losses = CallContext(), added_losses.Before(runner, guard.containers.added_losses.values(), inputs)
    if guard is not None and users:
        result, guard.reads, differentiates, effects, opaque, numbers, why, carries, passed_on, too_early = observe_users(
            runner, users, guard.containers, inputs, lambda: enter(runner, call.make), call.states)
        if carries:
            program.add_states(place, carries)
        if guard.reads is None:
            guard = None
    elif guard is not None:
        result, why, warned = call_watch.watch(lambda: _enter_first(runner, place, call.make) if cache is None else enter(runner, call.make), guard.containers, runner.step.may_be_read)
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
        if not context.without_changes(guard.holds_after_the_call) and not (guard.containers.put_back() and context.without_changes(guard.holds_after_the_call)):
            program.note_varying(guard.reads)
            program.add_states(place, [
                StateInput(effect.owner, effect.name) for effect in effects
                if holds_tensors(effect.value()) and not attribute_filter.is_user_attribute(effect.owner, effect.name)])
            raise Unskippable("changes what it reads")
        if inputs.known_elsewhere(runner, guard):
            raise Unskippable("reads a tensor that is among its arguments as well")
        recording.is_known = lambda x: is_held(x, call.keep, guard.reads)
        record = recording.make_record(
            result, inputs, call.takes_all, call.may_be_empty or framework_objects.may_do_nothing(owner), unread(runner, owner, call.args, call.kwargs), added=added,
            differentiates=differentiates, effects=effects, opaque=opaque, numbers=numbers, passed_on=passed_on)
        record.guard, record.keep, record.context, record.carried, record.states = guard, call.keep, context.changes, call.held, tuple(call.states.values())
        if call.expected is not None:
            cache.jumped()
            verification.compare(runner, call.expected, record)
            return result, None
        runner.note_formatted(record.formatted)
        if (differentiates := differentiates and recording.tells_tapes) and record.opaque:
            raise Unskippable("calls unknown code, and has a tf.custom_gradient of the program's")
        if differentiates:  # then only a run that is observed can leave it out, together with the gradient
            program.only_within.add(place)
            if runner.observer is None:
                raise Unskippable("has a tf.custom_gradient of the program's, of which a tape must be told")
            runner.observer.note_made(record, recording.log_length, before, differentiates)
            return result, None
    except Unskippable as error:
        failures = program.note_unskippable(place, str(error), cache is None and not too_early, bool(users))
        if cache is not None or too_early:
            program.back_off.failed((place, hash(call.signature)), runner.step.function.n_steps, too_early)
        if len(place) == 4:
            program.add_owner(place)
        if failures >= (_MOST_USELESS if not users else 2 * _MOST_USELESS):  # what the user's code calls has to be recorded first
            program.call_sites[place] = False
        return result, None
    finally:
        if runner.observer is None:
            leave_natural(effects)
    if cache is None:
        cache = program.call_sites[place] = CallSiteCache()
        if len(place) == 4:
            program.add_owner(place)
    program.back_off.succeeded((place, hash(call.signature)))
    cache.add(call.signature, record)
    if cache[call.signature].is_hopeless or (cache.recorded > _MOST_RECORDED and cache.all_jumps() < cache.recorded):
        program.note_unskippable(place, "depends on something that is another one nearly each time")
        program.call_sites[place] = False
    return result, record
