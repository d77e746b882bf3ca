"""Errors of failed steps that come late: how they are remembered, and those that the framework's own code has met in a read, and may have swallowed.

Eagerly the operation itself would have raised, before that code. So such an error stays pending until the program has seen it: it is raised again where control
comes back to the program's code, in a function that the framework calls or behind the framework's call, and by whatever uses a variable or starts a
step before that.
"""

import sys
import threading
import weakref

from terra import ours
from terra.runtime.interpreter import frames, tracebacks
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi

_FOR_OPERATION = TerraTensor._tf_should_use_wrapped_value.fget.__code__


class Remembered:
    """The error of a failed step, for those who ask later: the same object as long as there is one, then an equal one.

    What holds this may be held by the frames in the error's traceback: none of them must keep the other alive, and with it what the program's functions hold.
    """

    __slots__ = ("_error", "_making")

    def __init__(self, error):
        remade = isinstance(error, tfi.OpError)
        self._error = weakref.ref(error) if remade else lambda: error
        self._making = (error.__reduce__(), getattr(error, "__notes__", ())) if remade else None

    def __call__(self):
        error = self._error()
        if error is None:
            (kind, arguments), notes = self._making
            error = kind(*arguments)
            for text in notes:
                error.add_note(text)
            self._error = weakref.ref(error)
        return error


class Swallowed:
    """The last such error of the process, until it is known that the program has seen it."""

    def __init__(self):
        self._found = None  # (the error, the thread that has met it)

    @property
    def pending(self):
        return self._found is not None

    def note_read_failed(self, error):
        """A read raises the error of a step. If code of the framework's reads, that may swallow it. A tensor's own methods do not."""
        reader = sys._getframe(1)
        while (ours.is_ours(reader) or reader.f_globals.get("__name__") == tfi.ops.__name__) and reader.f_back is not None:
            if reader.f_code is _FOR_OPERATION:
                return  # which raises the error itself
            reader = reader.f_back
        if isinstance(error, tfi.OpError) and frames.is_frameworks_frame(reader):
            self._found = error, threading.get_ident()
            if sys.getprofile() is None:  # a profiler of the program's cannot be taken up again behind an error
                sys.setprofile(self._look_out)

    def raise_again(self):
        """Raise it, on the thread that has met it, unless it was seen outside of the framework's code."""
        error = self._unseen()
        if error is not None:
            raise error

    def _unseen(self):
        """The error that is to be raised on this thread, or None."""
        if self._found is None:
            return None
        error, thread = self._found
        if thread != threading.get_ident():
            if thread not in sys._current_frames():  # it has ended
                self._found = None
            return None
        trace = error.__traceback__
        if trace is not None and (frames.is_frameworks_frame(trace.tb_frame) or ours.is_ours(trace.tb_frame)):  # nobody outside of it has seen the error
            tracebacks.clean(error)
            return error
        self._found = None
        return None

    def _look_out(self, frame, event, arg):
        """A profile function, set while an error is pending: raises it where control comes back to the program's code."""
        if self._found is not None and not _comes_to_the_program(frame, event):
            return
        sys.setprofile(None)
        error = self._unseen()
        if error is not None:
            raise error  # also in the place of another error, which came of this one


def _comes_to_the_program(frame, event):
    """Returns whether the program's code runs next: a function of its own that the framework calls, or that has called the framework."""
    if event == "call":
        return frames.is_users(frame)
    if event != "return" or frames.is_users(frame) or ours.is_ours(frame) or frame.f_back is None:
        return False
    return frames.is_users(frames.around_ours(frame.f_back))
