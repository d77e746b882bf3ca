"""Opaque calls in the record of a call (see `opaque_calls`): which of them are made before anything is read of the graph."""

import bisect
from typing import Any, Callable

from terra.runtime.fast_forward.cache.call_records import RESULT, ExternalInput, Instance, Named
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation, FetchedTensor
from terra.runtime.fast_forward.sources.effects import space_of
from terra.runtime.fast_forward.sources.late_values import OpaqueNumbers
from terra.runtime.fast_forward.sources.expectations import ANYTHING, OfKind
from terra.runtime.fast_forward.sources.opaque_calls import Held, OpaqueCall, Result
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import opschema


def note(record: Any, calls: list[OpaqueCall], template: Callable[[Any], Any], numbers: OpaqueNumbers, start: int) -> None:
    """Notes the calls in a record whose effects and operations are noted already; `template(parts)` describes what a call is made of; `numbers`: those that they give; `start`: how many operations come
    before the record. Raises Unskippable."""
    record.opaque = [call.described(template(call.parts), start) for call in calls]
    for k, effect in enumerate(record.effects):
        _put_behind(record, k, effect)
    reads = [k for k, (node, *_) in enumerate(record.entries) if node.category == opschema.FETCH]
    decisive = min([k for k, (_, expected, *_) in zip(reads, record.fetches) if expected is not None], default=len(record.entries))  # another value leads another way, to other calls
    deferred = [k for k, call in enumerate(record.opaque) if holds_late(call.parts) or (call.place > decisive and not call.is_blind)]
    record.n_early = deferred[0] if deferred else len(calls)
    late = record.opaque[record.n_early:]
    record.late_feeds = tuple(numbers.late_feeds)
    matter = any(call.expected is not ANYTHING and type(call.expected) is not OfKind for call in late) or any(feed.of.index >= record.n_early for feed in record.late_feeds)
    record.stages = tuple([bisect.bisect_left(reads, call.place) if matter else len(reads) for call in late])
    if any(holds_late(effect.template) for effect in record.effects[:max([call.n_effects for call in calls[:record.n_early]], default=0)]):
        raise Unskippable("sets an attribute to what it has read, before it calls unknown code")
    if any(effect.template is RESULT for effect in record.effects[:max(call.n_effects for call in calls)]):
        raise Unskippable("sets an attribute to what it gives, before it calls unknown code")


def _put_behind(record: Any, k: int, effect: Any) -> None:
    """Puts the k-th effect, and those behind it, behind the last call that has given part of what it leaves: a list, say, that was set before it was filled. Raises Unskippable if a call may have seen it before."""
    for call in record.opaque[:_last_result(effect.template) + 1]:
        if call.n_effects <= k:
            continue
        function = call.parts[0].value if type(call.parts[0]) is Held else None
        sees_nothing = call.is_blind or residual_calls.is_residual(getattr(function, "__self__", None), getattr(function, "__name__", ""))
        if not sees_nothing or any(call.key == ("reads", id(space_of(other.owner)), other.name) for other in record.effects[k:call.n_effects]):
            raise Unskippable("changes what it has set, after a call of unknown code that may have seen it")
        call.n_effects = k


def _last_result(template: Any) -> int:
    """Returns the largest number of a call of whose result something is made; -1 if it is made of none."""
    kind = type(template)
    if kind is list or kind is tuple or kind is dict:
        return max(map(_last_result, template.values() if kind is dict else template), default=-1)
    return template.index if kind is Result else _last_result(template.attributes) if kind is Instance else _last_result(template.parts) if kind is Named else -1


def refuse_late_checks(record: Any) -> None:
    """Raises Unskippable if it matters what a number is that an opaque call gives, as it is not known yet when that is asked."""
    places = {feed.place for feed in record.late_feeds}
    if any(kind is ExternalInput and index in places for kind, index, _ in record.checks):
        raise Unskippable("looks at a number that unknown code gives")


def holds_late(template: Any) -> bool:
    """Returns whether a template stands for something that is read of a tensor of the step, or for such a tensor."""
    kind = type(template)
    if kind is list or kind is tuple:
        return any(map(holds_late, template))
    if kind is dict:
        return any(map(holds_late, template.values()))
    return kind in (DeferredFetch, DeferredCalculation, FetchedTensor)
