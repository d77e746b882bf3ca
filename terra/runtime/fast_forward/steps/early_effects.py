"""Early effects: what a prepared step does before its graph starts: opaque calls (see `opaque_calls`), and the effects that come before them."""

from typing import Any, Callable

from terra.runtime.fast_forward.cache.call_records import RESULT, WithAttributes
from terra.runtime.fast_forward.sites.writers import Traced, changed
from terra.runtime.fast_forward.sources.opaque_calls import OpaqueCall
from terra.runtime.tracing.tracer import host_value

# Marks, in how a result is made: an argument that the step gives back; a number that varies; what a residual call, or an opaque one, has given; what is calculated in the end.
GIVEN, NUMBER_OF, DRAWN, OPAQUE, LATER = object(), object(), object(), object(), object()


class Refused(Exception):
    """A step of this kind takes its ordinary way."""


def prepare(record: Any, result_of: Callable, made: list) -> tuple[list[OpaqueCall], list]:
    """Returns the opaque calls of a record that come before its graph and the effects before them, as `result_of(record, template)` says how each is made; `made` lists what is made of the graph's outputs.

    Raises Refused if others than those that may come behind all else are given what the graph computes.
    """
    n = len(made)
    calls = [call.described(result_of(record, call.parts)) for call in record.opaque[:record.n_early]]
    if not all(call.is_behind for call in record.opaque[record.n_early:]):
        raise Refused
    before = max([call.n_effects for call in calls], default=0)
    if any(effect.template is RESULT for effect in record.effects[:before]):
        raise Refused
    effects = [effect.described(None if effect.added is not None else result_of(record, effect.template)) for effect in record.effects[:before]]
    if len(made) != n or any(map(_comes_late, [*[call.parts for call in calls], *[effect.template for effect in effects]])):
        raise Refused
    return calls, effects


def behind(record: Any) -> tuple[list, Callable]:
    """Returns what the calls of a record that come behind all else are made of, [(function, arguments, keyword arguments)], and what makes them."""
    parts = [changed(lambda x: x.value if type(x) is WithAttributes else x, call.parts) for call in record.opaque[record.n_early:]]
    functions = [function.value for function, _, _ in parts]
    if len(parts) <= 1 or not all(function.writes_summaries for function in functions):
        return parts, _make_each

    def write(*given: tuple) -> None:
        for function, (args, kwargs) in zip(functions, given):
            function(*args, **kwargs)

    together = Traced(write, _OFTEN)
    return parts, lambda made: together(*[(args, kwargs) for _, args, kwargs in changed(host_value, made)])


def _make_each(made: list) -> None:
    for function, args, kwargs in made:
        function(*args, **kwargs)


_OFTEN = 20  # steps, from which on summaries are written together


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
