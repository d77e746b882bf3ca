"""Whether what calls of unknown code give is the same again: as the program remembers it from run to run."""

from typing import Any

import numpy as np

from terra.runtime.fast_forward.sources.number_sources import differ, is_large
from terra.runtime.fast_forward.sources.opaque_calls import may_be_another

_MOST_GAVE = 10_000  # numbers that are remembered
_MOST_SMALL = 8  # integers, or letters, that a call may give in turn


def is_unsteady(program: Any, key: Any, which: tuple, value: Any) -> bool:
    """Returns whether a call gives another number or text each time: as a record has found, or this run and the one before. `key`: where it stands; `which`: which one it is in the run."""
    if key not in program.unsteady and (isinstance(value, (float, np.number)) or is_large(value)):
        if len(program.gave) >= _MOST_GAVE:
            program.gave.clear()
        if differ(program.gave.setdefault((key, *which), value), value):
            program.unsteady.add(key)
    return key in program.unsteady


def is_of_many(program: Any, key: Any, value: Any) -> bool:
    """Returns whether a call has given too many small integers or letters, which cannot be told from others, for there to be a record for each."""
    if type(value) not in (int, str, bytes) or may_be_another(value):
        return False
    small = program.small.setdefault(key, set())
    small.add(value)
    return len(small) > _MOST_SMALL
