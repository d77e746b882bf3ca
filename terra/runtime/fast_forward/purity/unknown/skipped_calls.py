"""Opaque calls of calls that were skipped in a run: those are the run's own, too."""

from typing import Any

from terra.runtime.fast_forward.sources.expectations import ANYTHING, OfClass, OfKind, Raises
from terra.runtime.fast_forward.sources.opaque_calls import Held, OpaqueCall, Result
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.object_kinds import TENSORS


def take_over(run: Any, call: OpaqueCall, made_of: tuple, value: Any, start: int) -> None:
    """A call was skipped in this run, which has made this opaque call: (function, arguments, keyword arguments), and what it gave; its operations begin with that of this number."""
    if run.reason is not None:
        return
    opaque = run.opaque
    try:
        parts = _taken(run, call.parts, made_of)
    except Unskippable as error:
        run.impure(f"skips a call of {call.key[0]}, which is given {error}")
        return
    dropped, assumed = call.expected is ANYTHING or type(call.expected) in (OfKind, Raises), call.expected if call.assumes_a_number() else None
    opaque.note(made_of[0], parts, value, call.key, call.caller, dropped, call.is_blind, f"calls {call.key[0]}", *made_of[1:], call.keeps_guards, assumed)
    if run.reason is not None:
        return
    opaque.calls[-1].place = start + call.place
    if type(call.expected) in (OfClass, OfKind, Raises):
        opaque.calls[-1].expected = call.expected
    if type(call.expected) is OfKind:
        opaque.note_unsteady(value, len(opaque.calls) - 1)


def _taken(run: Any, template: Any, value: Any) -> Any:
    """Returns what `value`, which was made of a template, is in a record of this run. Raises Unskippable."""
    kind = type(template)
    if kind is Held or kind is Result:
        return run.opaque.part(value)
    if type(value) in TENSORS:
        return run.library_code.has_read(value)
    if kind is tuple or kind is list:
        return kind([_taken(run, a, b) for a, b in zip(template, value)])
    if kind is dict:
        return {name: _taken(run, x, value[name]) for name, x in template.items()}
    raise Unskippable("what it has read, or a number that varies")
