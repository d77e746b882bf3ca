"""Keeps the program's signal handlers out of the middle of Terra's own work.

Python runs a handler between any two bytecodes of the main thread: while an operation is being matched, say, or a graph dispatched. One that uses TensorFlow
there (saves the model because the job is to end, reads a counter) would find a step half changed; one that raises would leave it so. During a step on the
main thread, a handler that comes while Terra is at work is put off until the user's code, or the framework's that it called, goes on: by some
milliseconds, as a rule. A handler that comes in between runs at once; its operations are no part of the step. SIGINT's default handler is the matter
of `interrupts`.
"""

import _signal
import _thread
import contextlib
import signal
import sys
import time
from _signal import getsignal
from _signal import signal as set_handler  # those of the `signal` module turn numbers into enums and back
from threading import get_ident, main_thread

from terra import ours
from terra.location import current_step
from terra.location.location import Cursor
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.interpreter import frames
from terra.tf import interrupts

LATER = 0.0003  # seconds
_SOON = 0.0001
_WATCHED = tuple(int(getattr(_signal, name)) for name in (
    "SIGALRM", "SIGHUP", "SIGINT", "SIGIO", "SIGPROF", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGCHLD", "SIGWINCH") if hasattr(_signal, name))
_MAIN = main_thread().ident
_ANYWHERE = frozenset(getattr(Cursor, name).__code__ for name in ("enter", "leave", "keep", "after", "done"))  # may be left anywhere: who handles the exception puts the location right
_interval = []  # how long threads keep the interpreter lock as a rule, while a handler waits
_none = [None]  # handlers of which none is put off, as they were the last time


class _PutOff:
    """Stands in for a handler."""

    def __init__(self, handler):
        self.handler = handler
        self.waits = None  # (signal, frame) that the handler has yet to be called with
        self.tripped = False  # whether that is to be tried again now

    def __call__(self, number, frame):
        if self.tripped:
            self.tripped = False
            if self.waits is None:
                return  # called meanwhile
        if is_ours(frame):
            self.waits = number, frame
            if not _interval:
                _interval.append(sys.getswitchinterval())
                sys.setswitchinterval(_SOON)  # the thread must get the interpreter lock
            _thread.start_new_thread(self._later, (self.waits,))  # no Thread object: its lock may be held by what was interrupted
            return
        self.waits = None
        _no_hurry()
        step = current_step.active
        if step is None or step.thread != get_ident():
            self.handler(number, frame)
            return
        step.pause()
        try:
            self.handler(number, frame)
        finally:
            step.resume()

    def _later(self, waits):
        time.sleep(LATER)
        if self.waits is waits:
            self.tripped = True
            _thread.interrupt_main(waits[0])


def _no_hurry():
    """No handler waits any more."""
    if _interval:
        sys.setswitchinterval(_interval[0])
        _interval.clear()  # not before: a handler that comes in between must not take the short one for the program's


def is_ours(frame):
    """Returns whether Terra is at work in a frame: in itself, or in what it called there, short of the user's code."""
    if frame is not None and frame.f_code in _ANYWHERE:
        frame = frame.f_back
    while frame is not None and not frames.is_users(frame):
        if ours.is_ours(frame):
            return True
        frame = frame.f_back
    return False


def put_off():
    """Stand in for the program's handlers from now on. Returns what `put_back` wants: nothing to do as a rule."""
    if get_ident() != _MAIN:
        return ()
    now, held = [*map(getsignal, _WATCHED)], ()
    if now == _none[0]:
        return ()
    for number, handler in zip(_WATCHED, now):
        if type(handler) is _PutOff:  # another thread has ended a step
            held += (number, handler),
        elif type(handler) is not int and handler is not None and handler is not signal.default_int_handler and not interrupts.is_held(handler):
            held += (number, _PutOff(handler)),
    if not held:
        _none[0] = now
    for number, own in held:
        set_handler(number, own)
    return held


def put_back(held):
    """Undo `put_off`, except where the program has set another handler meanwhile, and call the handlers that had to wait till now."""
    if get_ident() != _MAIN:
        return  # only the main thread may: it does with the next step
    _no_hurry()
    left = ()
    for number, own in held:
        waits, own.waits = own.waits, None
        while own.tripped:
            pass  # until Python has called it
        if getsignal(number) is own:
            set_handler(number, own.handler)
        waits, own.waits = own.waits or waits, None  # one may have come meanwhile
        if waits is not None:
            left += (own.handler, *waits),
    for handler, number, frame in left:
        handler(number, frame)


@contextlib.contextmanager
def undisturbed():
    """A block of Terra's own work, in a step or between two, that no handler comes into."""
    step = current_step.active
    held = put_off() if step is None or step.thread != get_ident() else ()  # else the step has put them off
    try:
        yield
    finally:
        put_back(held)


GRAPH_RUNNER.undisturbed = undisturbed
