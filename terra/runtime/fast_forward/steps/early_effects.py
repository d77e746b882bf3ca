"""Early effects: what a prepared step does before its graph starts: opaque calls (see `opaque_calls`), and the effects that come before them."""

from typing import Any, Callable

from terra.runtime.fast_forward.cache.call_records import RESULT
from terra.runtime.fast_forward.sources.opaque_calls import OpaqueCall

# Marks, in how a result is made: an argument that the step gives back; a number that varies; what a residual call, or an opaque one, has given; what is calculated in the end.
GIVEN, NUMBER_OF, DRAWN, OPAQUE, LATER = object(), object(), object(), object(), object()


class Refused(Exception):
    """A step of this kind takes its ordinary way."""


def prepare(record: Any, result_of: Callable, made: list) -> tuple[list[OpaqueCall], list]:
    """Returns the opaque calls of a record and the effects before them, as `result_of(record, template)` says how each is made; `made` lists what is made of the graph's outputs.

    Raises Refused if they are given what the graph computes.
    """
    n = len(made)
    calls = [call.described(result_of(record, call.parts)) for call in record.opaque]
    before = max(call.n_effects for call in calls)
    if any(effect.template is RESULT for effect in record.effects[:before]):
        raise Refused
    effects = [effect.described(None if effect.added is not None else result_of(record, effect.template)) for effect in record.effects[:before]]
    if len(made) != n or any(map(_comes_late, [*[call.parts for call in calls], *[effect.template for effect in effects]])):
        raise Refused
    return calls, effects


def _comes_late(how):
    """Whether what is made so is made of what the graph computes."""
    kind = type(how)
    if kind is int:
        return True
    if kind is tuple:
        kind, parts = how
        if kind is dict:
            return any(_comes_late(x) for _, x in parts)
        return kind is LATER or (kind not in (GIVEN, NUMBER_OF, DRAWN, OPAQUE) and (any(map(_comes_late, parts)) if kind in (tuple, list) else _comes_late(parts)))
    return False
