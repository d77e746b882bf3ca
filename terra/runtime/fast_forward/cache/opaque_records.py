"""Opaque calls in the record of a call (see `opaque_calls`): which of them are made before anything is read of the graph."""

from typing import Any, Callable

from terra.runtime.fast_forward.cache.call_records import RESULT
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation, FetchedTensor
from terra.runtime.fast_forward.sources.opaque_calls import ANYTHING, OpaqueCall
from terra.runtime.tensors.comparing import Unskippable


def note(record: Any, calls: list[OpaqueCall], template: Callable[[Any], Any]) -> None:
    """Notes the calls in a record whose effects are noted already; `template(parts)` describes what a call is made of. Raises Unskippable."""
    record.opaque = [call.described(template(call.parts)) for call in calls]
    deferred = [k for k, call in enumerate(record.opaque) if holds_late(call.parts)]
    record.n_early = deferred[0] if deferred else len(calls)
    if any(call.expected is not ANYTHING for call in calls[record.n_early:]):
        raise Unskippable("looks at what unknown code gives, after it has given that what it has read")
    if any(holds_late(effect.template) for effect in record.effects[:max([call.n_effects for call in calls[:record.n_early]], default=0)]):
        raise Unskippable("sets an attribute to what it has read, before it calls unknown code")
    if any(effect.template is RESULT for effect in record.effects[:max(call.n_effects for call in calls)]):
        raise Unskippable("sets an attribute to what it gives, before it calls unknown code")


def holds_late(template: Any) -> bool:
    """Returns whether a template stands for something that is read of a tensor of the step, or for such a tensor."""
    kind = type(template)
    if kind is list or kind is tuple:
        return any(map(holds_late, template))
    if kind is dict:
        return any(map(holds_late, template.values()))
    return kind in (DeferredFetch, DeferredCalculation, FetchedTensor)
