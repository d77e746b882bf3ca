"""Executed locations of code that is not instrumented, from the interpreter's frames.

The body of a `with` statement in a script runs in a frame that exists already: nothing can be put in its place. So the location of an operation is
taken from the frames at the moment it is issued: one call id per frame of the user's code on the way, which stands for the instruction that the frame
is at. Coarser than what instrumented code keeps (loops have no counters here), and good enough: the TraceGraph also looks at the operation and at where
its inputs come from. A walk costs 30 ns a frame.
"""

import builtins
import os
import sys

from terra import ours
from terra.location import location
from terra.tf import private_names as tfi
from terra.transform import policy, source

_codes = {}  # id(code) -> _Code, or None for library code
_sites = {}  # (file, first line, name, instruction) -> call id: the same for a notebook's cell that is run again
_kept = []  # code objects in `_codes`, so that their ids stay theirs


class _Code(dict):
    """Instruction offset -> call id, for one code object of the user's."""

    def __init__(self, code):
        super().__init__()
        self.code = code

    def site(self, frame):
        code = self.code
        key = code.co_filename, code.co_firstlineno, code.co_name, frame.f_lasti
        found = _sites.get(key)
        if found is None:
            found = _sites[key] = location.register_site("call", code.co_filename, frame.f_lineno, code.co_name)
        self[frame.f_lasti] = found
        return found


def is_users(frame):
    """Returns whether a frame runs the user's code, not a library's."""
    return _look_up(frame) is not None


def line_inside(stop):
    """`file.py:12`: where the user's code is, in frames inside of the one that runs the code object `stop`; None if there is none of it."""
    found = place_inside(stop)
    return found and f"{os.path.basename(found[0])}:{found[1]}"


def place_inside(stop):
    """(path, line number): where the user's code is, in frames inside of the one that runs the code object `stop`; None if there is none of it."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not stop:
        if _look_up(frame) is not None:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def outermost_line(stop):
    """Returns the line number at which the user's code is that was called first inside of the frame which runs the code object `stop`; None if there is none of it."""
    frame, found = sys._getframe(1), None
    while frame is not None and frame.f_code is not stop:
        if _look_up(frame) is not None:
            found = frame.f_lineno
        frame = frame.f_back
    return found


def line_of_error(error):
    """`file.py:12`: the innermost line of the user's code that an exception has come through; None if there is none."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if is_users(trace.tb_frame):
            found = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _look_up(frame):
    code = frame.f_code
    try:
        return _codes[id(code)]
    except KeyError:
        _kept.append(code)
        users = policy.is_user_module(frame.f_globals.get("__name__"), code.co_filename)
        entry = _codes[id(code)] = _Code(code) if users else None
        return entry


class FrameCursor:
    """Stands in for a thread's Cursor: where instrumented code keeps the location it is asked, elsewhere the frames are.

    `frame` is the outermost frame to look at; without one, only the innermost frame of the user's code counts.
    """

    __slots__ = ("cursor", "frame")

    def __init__(self, cursor, frame):
        self.cursor = cursor
        self.frame = frame

    @property
    def current(self):
        here = self.cursor.current
        if here is not location.ROOT and here is not location.OUTSIDE:
            return here
        frame, stop = sys._getframe(1), self.frame
        path = []
        while frame is not None:
            entry = _look_up(frame)
            if entry is not None:
                path.append(entry.get(frame.f_lasti) or entry.site(frame))
                if stop is None:
                    break
            if frame is stop:
                break
            frame = frame.f_back
        there = location.ROOT
        for call_id in reversed(path):
            there = there.children.get(call_id) or there.call(call_id)
        return there


def is_frameworks_frame(frame):
    """Returns whether a frame runs code of TensorFlow's or Keras'."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in tfi.FRAMEWORKS


def around_ours(frame):
    """The first frame, from `frame` outwards, that is not Terra's; the outermost one if all are."""
    while ours.is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def around_call(frame, least):
    """Returns [(code, line, globals)] of the frames from `frame` outwards that are not Terra's, innermost first: up to the first one of the program's, and so many at `least`."""
    found, within = [], True
    while frame is not None and (within or len(found) < least):
        if not ours.is_ours(frame):
            found.append((frame.f_code, frame.f_lineno, frame.f_globals))
            within = within and not is_users(frame)
        frame = frame.f_back
    return found


def is_local(frame, name):
    """Returns whether the code that a frame runs has a variable of its own, or of a function around it, by this name."""
    code = frame.f_code
    return name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars


def global_value(frame, name, default=None):
    """Returns what a name that is not local stands for in a frame: a global or a builtin; `default` if there is none."""
    return frame.f_globals.get(name, vars(builtins).get(name, default))


def innermost_outside(frame, modules=("contextlib",)):
    """The first frame, from `frame` outwards, that is in none of `modules`."""
    while frame.f_globals.get("__name__") in modules and frame.f_back is not None:
        frame = frame.f_back
    return frame


_FRAMES = frozenset(["_getframe", "currentframe", "stack", "warn", "warnings", "inspect", "traceback", "f_back", "stacklevel"])
_looking = {}  # id of a code object -> (it, whether it may look at the frame that has called it)


def looks_at_frames(code):
    """Returns whether a function may want to know who has called it: it must not find us."""
    known = _looking.get(id(code))
    if known is None:
        known = _looking[id(code)] = code, any(not _FRAMES.isdisjoint(c.co_names) for c in source.codes_within(code))
    return known[1]
