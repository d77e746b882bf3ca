"""Walks: which parts a call of the framework's has, where it cannot be skipped as a whole.

One layer of a model may do what is not understood. Then the model's own code would have to run, too, though it does the same each time: it finds out which
layers there are, and gives each what others have made. A walk knows these calls, its *parts*, in their order, where their arguments come from, and where the
result does. Where nothing has changed that the framework's code reads, the parts are called directly, each as a call site of its own.

What a part gives must be what it gave: the same values of the step, of the same shapes, with the same attached to them. If it is not, if a part raises, or has changed what
the framework's code reads, that code runs after all, from its beginning; but parts that were called already are not called again there: they give what they gave. A walk
issues no operations but in its parts, and behind the last one, so that nothing else has to be done only once.
"""

import itertools
from functools import partial
from typing import Any, Callable, NamedTuple

from terra import ours
from terra.frameworks import keras
from terra.runtime.fast_forward.cache.arguments import describe
from terra.runtime.fast_forward.cache.call_cache import attempt
from terra.runtime.fast_forward.cache.call_records import CallRecord, ExternalInput, FedValue, Inputs, StepArgument
from terra.runtime.fast_forward.cache.replay_record import apply_record, build
from terra.runtime.fast_forward.guards import added_losses
from terra.runtime.fast_forward.guards.guard_set import Several
from terra.runtime.fast_forward.sites import user_layers
from terra.runtime.fast_forward.sources.opaque_calls import Outcome, taken_back
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.runtime.tensors.value_key import ValueKey

NOT_WALKED = object()  # what a walk gives that did not come to its end


class Part(NamedTuple):
    """A call that the framework's code makes."""

    stretch: CallRecord  # from the part before to this one; what it gives are the arguments
    call: Callable | None
    owner: Any
    gave: tuple  # what identifies the result
    settings: list | None  # those behind it, if it may have changed what the framework's code reads
    is_plain: bool  # whether it runs none of the program's code, and gives nothing but values of the step

    @ours.calling
    def perform(self, runner: Any, inputs: Inputs, outcomes: list) -> Any:
        """Makes the call; `outcomes` gets what comes of it."""
        args, kwargs = build(self.stretch.result, runner, self.stretch, inputs)
        try:
            value = self.call(self.owner, args, kwargs)
        except BaseException as error:
            outcomes.append(Outcome.of(self.owner, None, error))
            raise
        outcomes.append(Outcome.of(self.owner, value))
        return value

    def is_like(self, other: "Part") -> bool:
        return self.is_of_like(other) and self.gave == other.gave

    def is_of_like(self, other: "Part") -> bool:
        return self.owner is other.owner if self.call is not None else other.call is None and self.owner.is_like(other.owner)


class _Group:
    """Several parts in a row that run none of the program's code: together they are one call, which may be skipped. A walk takes it for a part, the `owner` of one that has no `call`."""

    __slots__ = ("_owners", "_parts", "_given")

    def __init__(self, parts, given):
        self._owners, self._parts, self._given = Several([part.owner for part in parts]), parts, given

    def is_like(self, other):
        return len(self._parts) == len(other._parts) and all(map(Part.is_like, self._parts, other._parts))

    @ours.calling
    def call(self, runner, inputs, outcomes):
        """Returns what the parts give, in a list; `outcomes` gets that, too."""
        given, n = build(self._given, runner, self._parts[0].stretch, inputs), len(outcomes)
        results = attempt(runner, self, self._owners, given, {}, partial(self._make, runner, inputs, outcomes), is_group=True)
        if len(outcomes) == n:
            outcomes += [Outcome.of(part.owner, value) for part, value in zip(self._parts, results)]
        return results

    @ours.calling
    def _make(self, runner, inputs, outcomes):
        results = []
        for part in self._parts:
            results.append(part.perform(runner, inputs, outcomes))
            if runner.step.skeleton is not runner:
                raise Unskippable
            gave = []
            describe(runner, results[-1], gave, [], inputs)
            if tuple(gave) != part.gave:
                raise Unskippable
        return results


def grouped(parts):
    """Returns the parts of a walk, with groups in the place of several in a row."""
    found = []
    for is_plain, several in itertools.groupby(parts, lambda part: part.is_plain):
        several, leaves = list(several), {}
        checks = several[0].stretch.checks
        if is_plain and len(several) > 1 and all([_leaves(part.stretch.result, leaves) for part in several]) \
                and all([not part.stretch.needs and all(check in checks for check in part.stretch.checks) for part in several[1:]]):
            made = {x for part in several for x in part.gave if type(x) is ValueKey}
            group = _Group(several, tuple([x for x in leaves.values() if x not in made]))
            gave = (list, len(several)), *itertools.chain.from_iterable(part.gave for part in several)
            found.append(Part(several[0].stretch, None, group, gave, None, True))
        else:
            found += several
    return found


def _leaves(template, found):
    """Appends the values of which a template makes something to the dict `found`; returns whether it knows all of the template."""
    kind = type(template)
    if kind is tuple or kind is list or kind is dict:
        return all([_leaves(x, found) for x in (template.values() if kind is dict else template)])
    if kind is ValueKey:
        found[template] = template
    elif kind is StepArgument or kind is ExternalInput:
        found[kind, template.index] = template
    elif kind is FedValue:
        found[kind, template.key] = template
    else:
        return kind in SCALARS
    return True


class Walk:
    """The parts of a call, and what must hold."""

    __slots__ = ("guard", "_owner", "_keep", "_plan", "_parts", "_last")

    def __init__(self, owner, guard, keep, plan, parts, last):
        self._owner, self.guard, self._keep, self._plan, self._parts, self._last = owner, guard, keep, plan, parts, last

    @ours.calling
    def take(self, runner, inputs, kwargs, outcomes, variants):
        """Returns the call's result; or NOT_WALKED, and `outcomes` has what the parts have given that were called."""
        step = runner.step
        around, step.enters = step.enters, None
        try:
            if self._plan is None:
                result = self._take(runner, inputs, outcomes, variants)
            else:
                result = user_layers.call_within(self._owner, keras.global_state(), self._plan, (), kwargs, lambda *_, **__: self._take(runner, inputs, outcomes, variants))
        finally:
            step.enters = around
        if result is NOT_WALKED and outcomes:
            self._go_back(outcomes[-1].left)
        return result

    def _go_back(self, left):
        """Takes back what parts have changed of what the framework's code reads: that runs from its beginning. `left` gets what puts it there again."""
        left += taken_back(self.guard.changes())
        left += [partial(added_losses.leave, held, [*held]) for held in self.guard.containers.added_losses.values()]

    @ours.calling
    def _take(self, runner, inputs, outcomes, variants):
        walk, k = self, 0
        while k < len(walk._parts):
            stretch, call, owner, expected, *_ = walk._parts[k]
            if k > 0 and not stretch.fits(runner, inputs):
                return NOT_WALKED
            gave = []
            try:
                value = owner.call(runner, inputs, outcomes) if call is None else walk._parts[k].perform(runner, inputs, outcomes)
                if runner.step.skeleton is not runner:
                    return NOT_WALKED  # the step has fallen back: its runner knows nothing any more
                describe(runner, value, gave, [], inputs)
            except Unskippable:
                return NOT_WALKED
            except BaseException as error:
                if outcomes and outcomes[-1].error is error:
                    return NOT_WALKED
                raise
            if tuple(gave) != expected:
                walk = next((other for other in variants if other.continues(walk, k, tuple(gave))), None)
                if walk is None:
                    return NOT_WALKED
            k += 1
        last = walk._last
        if not last.fits(runner, inputs):
            return NOT_WALKED
        return build(last.result, runner, last, inputs) if last.does_nothing else apply_record(runner, last, inputs, ())

    def begins(self, runner, inputs):
        """Returns whether nothing has changed, and the first part is to be called."""
        return self.guard.holds() and self._parts[0].stretch.fits(runner, inputs)

    def continues(self, other, k, gave):
        """Returns whether this walk is as the other one up to the part of this number, which has given `gave` now."""
        return self.guard.holds_as(other.guard) and len(self._parts) > k and all(map(Part.is_like, self._parts[:k], other._parts[:k])) \
            and self._parts[k].is_of_like(other._parts[k]) and self._parts[k].gave == gave
