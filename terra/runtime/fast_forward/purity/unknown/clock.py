"""How long a call takes while it is observed."""

import sys
import time

try:
    import resource
except ImportError:  # Windows
    resource = None

_SLICE = 0.01  # seconds for which others have the processor at most, as a rule, when they take it from a call that is not long (once or more often: a wait is not counted)
_LONG, _LONG_PROFILED = 2e-3, 5e-3  # seconds; with a profile function, which looks on while calls of the framework's are recorded, Python takes several times as long


class Clock:
    """Tells whether what begins now has taken long: not that another thread or process had the processor meanwhile."""

    def __init__(self) -> None:
        self._interruptions, self._own, self._begin = _interruptions(), time.thread_time(), time.perf_counter()

    def says_long(self) -> bool:
        took, limit = time.perf_counter() - self._begin, _LONG if sys.getprofile() is None else _LONG_PROFILED
        return took > limit and (time.thread_time() - self._own > limit or took > limit + _SLICE * (_interruptions() > self._interruptions))


def _interruptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if resource is not None and hasattr(resource, "RUSAGE_THREAD") else 0
