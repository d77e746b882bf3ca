"""Keeps Ctrl-C out of the moments in which a step begins or ends.

An interrupt between giving a step to the graph and noting that it was given would leave it half counted. While such code runs on the main thread, SIGINT is
only noted; whoever handled it before gets it right after. It costs about a microsecond.
"""

import signal
import threading
from _signal import signal as set_handler  # `signal.signal` turns numbers into enums and back, which takes longer than all the rest
from threading import get_ident

_SIGINT = int(signal.SIGINT)
_MAIN = threading.main_thread().ident
_noted = []


def _note(signum, frame):
    _noted.append((signum, frame))


def hold():
    """Note interrupts from now on; returns what `release` wants, None on any thread but the main one."""
    if get_ident() != _MAIN:
        return None
    return (set_handler(_SIGINT, _note),)


def is_held(handler):
    """Returns whether a handler of SIGINT is the one that only notes."""
    return handler is _note


def release(held):
    """Let interrupts through again, and those that came meanwhile (as a rule this raises KeyboardInterrupt)."""
    if held is None:
        return
    handler = held[0]
    if handler is _note:
        return  # an outer hold will let them through
    set_handler(_SIGINT, handler if handler is not None else signal.SIG_DFL)
    if _noted:
        signum, frame = _noted[-1]
        _noted.clear()
        if callable(handler):
            handler(signum, frame)
