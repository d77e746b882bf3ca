"""Whether what calls of unknown code give is the same again: as the program remembers it from run to run."""

from typing import Any

import numpy as np

from terra.runtime.fast_forward.sources.number_sources import can_be_told, differ, is_large
from terra.runtime.fast_forward.sources.expectations import may_be_another

_MOST_GAVE = 10_000  # numbers that are remembered
_MOST_SMALL = 8  # integers, or letters, that a call may give in turn


def is_unsteady(program: Any, key: Any, which: tuple, value: Any) -> bool:
    """Returns whether a call gives another number, text or tuple of these each time: as a record has found, or this run and the one before. `key`: where it stands; `which`: which one it is in the run."""
    is_followed = isinstance(value, (float, np.number)) or is_large(value) or ((can_be_told(value) or type(value) is tuple) and key not in program.looked_at)
    if key not in program.unsteady and is_followed:
        if len(program.gave) >= _MOST_GAVE:
            program.gave.clear()
        if differ(program.gave.setdefault((key, *which), value), value):
            program.unsteady.add(key)
    return key in program.unsteady and not (key in program.looked_at and type(value) in (str, bytes))


def is_of_many(program: Any, key: Any, value: Any) -> bool:
    """Returns whether a call has given too many small integers or letters, of which Python has one object each, or texts that were looked at, for there to be a record for each."""
    if type(value) not in (int, str, bytes) or (may_be_another(value) and not (key in program.looked_at and type(value) in (str, bytes))):
        return False
    small = program.small.setdefault(key, set())
    small.add(value)
    return len(small) > _MOST_SMALL
