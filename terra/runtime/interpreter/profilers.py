"""Calls that are watched while a profiler of the program's is at work.

A call is watched by a profile function (`sys.setprofile`), of which a thread has one. One that is written in Python is called from ours. Of those
written in C, cProfile (up to Python 3.11; from then on it needs none) and pyinstrument are suspended for as long as the call takes, which is once or
a few times in a program, and go on where they
were: they count its time as that of this module. Other ones can be neither called nor taken up again: beside them no call is watched, and the program
    is told so, once.
"""

import cProfile
import logging
import sys
from typing import Any, Callable

from terra.frameworks import libraries

__all__ = ["can_watch", "in_the_way", "is_watching", "unwatched", "watched"]

log = logging.getLogger("terra")

_own = set()  # the profile functions of ours that are set now
_C_PROFILE = cProfile.Profile.__mro__[1]  # the class in C
_told = []  # names of the profilers beside which no call can be watched


def can_watch():
    """Returns whether a call can be watched on this thread: if a profiler must not be suspended, that is said once."""
    outer = sys.getprofile()
    if outer is None or callable(outer) or isinstance(outer, _C_PROFILE) or _pyinstruments(outer) is not None:
        return True
    name = f"{type(outer).__module__}.{type(outer).__qualname__}"
    if name not in _told:
        _told.append(name)
        log.warning("the profiler %s looks on, and no other profile function can be set beside it: steps are co-executed, but nothing is recorded that could be skipped, which makes "
                    "them much slower. Start the profiler when the steps have run some 20 times, or use cProfile or pyinstrument.", name)
    return False


def in_the_way():
    """The names of the profilers beside which calls were not recorded so far."""
    return list(_told)


def is_watching(profile):
    """Returns whether this profile function is one of ours."""
    return any(profile is own for own in list(_own))


def unwatched(look: Callable, *args: Any) -> Any:
    """Returns `look(*args)`, while nobody looks out for what that does."""
    profile = sys.getprofile()
    looks_out = is_watching(profile)
    try:
        if looks_out:
            sys.setprofile(None)
        return look(*args)
    finally:
        if looks_out and sys.getprofile() is None:  # else it has set one of its own
            sys.setprofile(profile)


def watched(call, own):
    """Make `call` while the profile function `own` is set: (its result, whether it was set to the end).

    The program's profile function is replaced and taken up again in one and the same frame: cProfile goes through a stack of the calls that it was told of.
    """
    outer = sys.getprofile()
    _own.add(own)
    sys.setprofile(own)
    try:
        result = call()
    finally:
        _own.discard(own)
        lasted = sys.getprofile() is own
        if lasted:  # else the program has started or stopped a profiler in the call
            if outer is None or callable(outer):
                sys.setprofile(outer)
            elif isinstance(outer, _C_PROFILE):
                outer.enable()
            else:
                sys.setprofile(None)
                _take_up(_pyinstruments(outer))
    return result, lasted


def _pyinstruments(profile):
    """Returns the sampler of pyinstrument on this thread if `profile` is its profile function, and it can be taken up again; else None."""
    module = sys.modules.get(libraries.PYINSTRUMENT_SAMPLER)
    if module is None or libraries.package_of(type(profile).__module__) != libraries.PYINSTRUMENT:
        return None
    sampler = getattr(getattr(module, "thread_locals", None), "stack_sampler", None)
    return sampler if hasattr(sampler, "_update") and getattr(sampler, "current_sampling_interval", None) is not None else None


def _take_up(sampler):
    """Makes the sampler set its profile function again, as it was."""
    sampler.current_sampling_interval = None
    sampler._update()
