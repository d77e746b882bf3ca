"""Records walks: makes a call of the framework's that cannot be skipped by its parts, if they are known, and notes them if not (see `walks`)."""

import sys
from operator import is_
from typing import Any, Callable

from terra import ours
from terra.frameworks import keras
from terra.frameworks.settings import settings
from terra.runtime.fast_forward.cache import call_cache, call_watch, entered
from terra.runtime.fast_forward.cache.arguments import describe, is_held
from terra.runtime.fast_forward.cache.call_records import CallContext, Inputs
from terra.runtime.fast_forward.cache.recording import Recording
from terra.runtime.fast_forward.guards.guard_set import GuardSet
from terra.runtime.fast_forward.sites import user_layers
from terra.runtime.fast_forward.sites.walks import NOT_WALKED, Part, Walk, grouped
from terra.runtime.interpreter import profilers
from terra.runtime.tensors.comparing import Unskippable, equal
from terra.runtime.tensors.object_kinds import containers_in, is_librarys

_MOST_VARIANTS = 8  # of a signature: other values that the parts have given
_MOST_SIGNATURES = 64  # of a place
_MOST_USELESS = 4  # walks that could not be recorded, or did not come to their ends, more than have: then the place is given up


class _Place(dict):
    """The walks at a place: signature -> its variants."""

    __slots__ = ("useless",)

    def __init__(self):
        self.useless = 0

    def add(self, signature: tuple, walk: Walk) -> None:
        variants = self.setdefault(signature, [])
        variants.insert(0, walk)
        del variants[_MOST_VARIANTS:]
        if len(self) > _MOST_SIGNATURES:
            del self[next(iter(self))]


def enter(runner: Any, place: tuple, owner: Any, args: tuple, kwargs: dict, call: Callable[[], Any]) -> Any:
    """Makes `call()`, which is one of `owner`, or of its method `place[1]`, with these arguments, and cannot be skipped: by its parts, if these are known."""
    step, program = runner.step, runner.program
    known = program.walks.get(place)
    if known is False or runner.observer is not None or step.verifies:
        return call_cache.enter_parts(runner, owner, call)
    inputs, found = Inputs(), [runner.tapes.recording is not None]
    try:
        describe(runner, (args, kwargs), found, [], inputs)
    except Unskippable:
        return call_cache.enter_parts(runner, owner, call)
    if known is None:
        known = program.walks[place] = _Place()
    signature, outcomes = tuple(found), []
    variants = known.get(signature, ())
    walk = next((walk for walk in variants if walk.begins(runner, inputs)), None)
    if walk is not None:
        result = walk.take(runner, inputs, kwargs, outcomes, variants)
        if result is not NOT_WALKED:
            known.useless = max(0, known.useless - 1)
            step.counts.walked_calls += 1
            return result
    key = place, hash(signature)
    if step.skeleton is not runner or not step.records or sys.getprofile() is not None or program.back_off.left(key, step.function.n_steps):
        return entered.make(step, _Walking(runner, owner, outcomes), call)
    known.useless += bool(outcomes)
    walking = _Walking(runner, owner, outcomes)
    result, walk = _record(runner, walking, place[1], args, kwargs, call)
    if walk is not None:
        program.back_off.succeeded(key)
        known.add(signature, walk)
        return result
    known.useless += _MOST_USELESS if walking.is_hopeless else 1
    program.back_off.failed(key, step.function.n_steps)
    if known.useless > _MOST_USELESS:
        program.walks[place] = False
    return result


def _record(runner, walking, function, args, kwargs, call):
    """Makes the call, and notes its parts. Returns (its result, the walk or None)."""
    guard, context = None, CallContext()
    call_cache.parts_are_sites()
    try:
        inputs, keep = Inputs(), [walking.owner]
        describe(runner, (args, kwargs), [], keep, inputs)
        users = []
        guard = GuardSet(walking.owner, keep[1:], users, loose=True)
        for base in {base for cls in users if isinstance(cls, type) for base in cls.__mro__[:-1] if not is_librarys(base)}:
            guard.containers.add(vars(base), base)
        walking.begin(inputs, keep, guard, _Surroundings(walking.owner, function, args, kwargs))
    except Unskippable:
        return entered.make(runner.step, walking, call), None
    walking.give_containers(args, kwargs)
    result, why, warned = call_watch.watch(lambda: entered.make(runner.step, walking, call), guard.containers)
    if warned:
        call_watch.note_filters(guard.containers.add)
    walk = walking.conclude(result) if why is None else None
    return result, walk if walk is not None and context.without_changes(guard.holds_after_the_call) else None


class _Unguarded:
    """The guard of a stretch behind a part that changes nothing."""

    def holds(self) -> bool:
        return True


class _GuardWithin:
    """The guard of a stretch behind a part that may have changed something: of a walk, with the settings of that moment."""

    __slots__ = ("_guard", "_settings")

    def __init__(self, guard: GuardSet, found: list):
        self._guard, self._settings = guard, found

    def holds(self) -> bool:
        return self._guard.holds_within(self._settings)


_UNGUARDED = _Unguarded()


class _Surroundings:
    """Tells what the framework sets around the parts of a call: of layers of Keras', the call context and a name scope; of anything else, nothing."""

    def __init__(self, owner, function, args, kwargs):
        self._layer, self.plan, self._before = owner, None, self._now()
        base = getattr(sys.modules.get(keras.BASE_LAYER), "Layer", None)
        if base is not None and isinstance(owner, base) and function is type(owner).__call__:
            self.plan = user_layers.plan_of(owner, args, kwargs)
            if self.plan is None:
                raise Unskippable
            self._noted = user_layers.inner(self.plan, owner, self._before[0], kwargs)[1]

    def _now(self):
        """(Call context, name scopes, scope of automatic casts) of this thread."""
        state = keras.global_state()
        return getattr(state, "current_call_ctx", None), [*(getattr(state, "name_scope_stack", None) or ())], getattr(state, "autocast_scope", None)

    def are_known(self, found, before):
        """Returns whether they are, at a part, what they will be in a walk. `found`, `before`: the settings at the part, and before the call."""
        if self.plan is None:
            return equal(found, before)
        (context, scopes, cast), (outer, around, cast_before) = self._now(), self._before
        return cast is cast_before and scopes[:len(around)] == around and len(scopes) - len(around) in (0, 1) and scopes[-1].caller is self._layer \
            and scopes[-1].override_parent == self._layer._parent_path and all(getattr(context, name, None) is value for name, value in self._noted.items()) \
            and (context is outer if outer is not None else getattr(context, "entry_layer", None) is self._layer)


class _Walking(entered.Entered):
    """A call that is made by the framework's own code. It is told of the parts, of which the first ones may have been called in a walk that did not come to its end; and notes them, once it `begin`s."""

    __slots__ = ("_runner", "_outcomes", "_notes", "_inputs", "_keep", "_guard", "_surroundings", "_parts", "_recording", "_losses", "_containers", "is_hopeless")

    def __init__(self, runner, owner, outcomes):
        super().__init__(owner)
        self._runner, self._outcomes, self._notes = runner, outcomes, False
        self.is_hopeless = False  # whether no other call of it will have a walk, either

    def begin(self, inputs, keep, guard, surroundings):
        self._inputs, self._keep, self._guard, self._surroundings = inputs, keep, guard, surroundings
        self._notes, self._parts, self._containers, self._losses = True, [], {}, None
        self._recording = Recording(self._runner)

    @ours.calling
    def part(self, step, call, owner, args, kwargs):
        if not self._notes:
            return self._made(step, call, owner, args, kwargs)
        return profilers.unwatched(self._noted, step, call, owner, args, kwargs)

    @ours.calling
    def _made(self, step, call, owner, args, kwargs):
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if outcome is not None and outcome.function is owner:
            outcome.leave()
            return outcome.give()
        self._outcomes.clear()
        return super().part(step, call, owner, args, kwargs)

    @ours.calling
    def _noted(self, step, call, owner, args, kwargs):
        found = settings(self._guard.root)
        try:
            stretch = self._stretch((args, kwargs))
            if not self._surroundings.are_known(found, self._guard.settings):
                raise Unskippable
            if not stretch.does_nothing:
                self.is_hopeless = True  # (should the walk not come to its end, that would be done twice)
                raise Unskippable
        except Unskippable:
            self._notes = False
        value = self._made(step, call, owner, args, kwargs)
        self._notes &= self._runner.step.skeleton is self._runner  # else the step has fallen back
        if not self._notes:
            return value
        gave, n_external = [], len(self._inputs.external)
        try:
            describe(self._runner, value, gave, self._keep, self._inputs)
            is_own = _is_own(owner)
            self._parts.append(Part(stretch, call, owner, tuple(gave), None if is_own else settings(self._guard.root), is_own and not keras.is_embedding(owner) and len(self._inputs.external) == n_external))
            self._losses = self._losses_now()
            self._recording = Recording(self._runner)
            self.give_containers(value)
        except Unskippable:
            self._notes = False
        return value

    def _stretch(self, given):
        """The record of what the framework's code has done since the last part; `given`: what comes of it."""
        if any(id(x) in self._containers for x in containers_in(given)):
            raise Unskippable  # a list that somebody may hold: another one would take its place
        if self._losses is not None and not all(map(_are_same, self._losses_now(), self._losses)):
            raise Unskippable
        self.give_containers(given)
        keep = self._keep
        self._recording.is_known = lambda x: is_held(x, keep, None)  # (a reference to this object would keep tensors beyond the step)
        unread = frozenset(map(id, self._inputs.external))  # by the framework's code (see `call_watch.watch`); what the parts read, they look at themselves
        stretch = self._recording.make_record(given, self._inputs, False, may_be_empty=True, passed_on=unread)
        if stretch.masks:
            raise Unskippable
        changes = self._parts[-1].settings if self._parts else None
        stretch.guard = _UNGUARDED if changes is None else _GuardWithin(self._guard, changes)
        return stretch

    def _losses_now(self):
        return [tuple(held) for held in self._guard.containers.added_losses.values()]

    def give_containers(self, *values):
        """Notes lists and dicts that the program's code may hold."""
        for value in values:
            self._containers.update({id(x): x for x in containers_in(value)})

    def conclude(self, result):
        """Returns the walk of this call, which has given `result`; None if it has none."""
        if self._notes and not self._parts:
            self.is_hopeless = True
        if not self._notes or not self._parts:
            return None
        try:
            last = self._stretch(result)
        except Unskippable:
            return None
        if last.fetches:
            return None
        return Walk(self.owner, self._guard, self._keep, self._surroundings.plan, grouped(self._parts), last)


def _are_same(a, b):
    return len(a) == len(b) and all(map(is_, a, b))


def _is_own(owner):
    """Returns whether a call of an object runs none of the program's code."""
    users = []
    try:
        GuardSet(owner, (), users)
    except Unskippable:
        return False
    return not users
