"""Calls that are watched: a profile function looks out for code of the program's that runs in them, and for what they write."""

import contextlib
import logging
import sys
import warnings

from terra import ours
from terra.frameworks.tensorflow import READS
from terra.runtime.fast_forward.guards import attribute_filter
from terra.runtime.fast_forward.guards.asked import GIVING, Asked
from terra.runtime.interpreter import profilers
from terra.runtime.tapes import jacobians
from terra.transform import convert, policy
from terra.transform.observing.value_sources import Unobservable

_libraries = {}  # id of a code object that is no user's -> it, and whether it is a stranger's
_OPENING, _WRITING = (print, open), ("write", "writelines")  # builtins, and methods
WRITERS = frozenset([*(function.__name__ for function in _OPENING), *_WRITING])  # names of both
_WARN = frozenset([warnings.warn.__name__])
ASKS_FOR = "has the framework's code ask for {}, which the program sets"
_TOLD = (warnings._showwarnmsg.__code__, logging.Logger._log.__code__)  # run for what the user is told, not for what is filtered out


@contextlib.contextmanager
def observed_in_place(functions):
    """While it lasts, these functions have the code of their observed forms, where there is one: gives [(function, that code)]."""
    exchanged, own = [], []
    try:
        for function in dict.fromkeys(functions):
            try:
                code = function.__code__ if convert.is_observed(function.__code__) else convert.observed_code(function)
            except Unobservable:
                continue
            if code.co_freevars == function.__code__.co_freevars:
                own.append(function.__code__)
                exchanged.append((function, code))
                function.__code__ = code
        yield exchanged
    finally:
        for (function, code), before in zip(exchanged, own, strict=True):
            if function.__code__ is code:
                function.__code__ = before


def note_filters(add):
    """Gives `add` the containers that say which warnings are shown: that of a call was not, but may be the next time."""
    add(vars(warnings))
    add(warnings.filters)


def writes(function):
    """Returns whether a builtin writes something, or opens a file."""
    return function in _OPENING or function.__name__ in _WRITING


def watch(call, covered, may_read=None):
    """Make `call`, which should run nothing of the user's: (its result, why it cannot be skipped or None, whether it has warned).

    covered: a Snapshot of the containers that it may read. may_read: whether it may look at the value of this tensor; None: of none.

    What the guards' walk does not see (a method that was put into a class of the framework's, a function held in some closure) is seen here.
    """
    seen, warned, wanted, read = [], [], [], []
    result = look_out(
        call, lambda frame: seen.append(frame.f_code), warned.append, lambda frame, function: (may_read is not None and may_read(function.__self__)) or ours.is_ours(frame) or read.append(function.__name__),
        covered=covered, wanted=wanted, builtins={READS})  # (a frame, or a bound method, would keep what the code works with)
    why = "runs functions of the user's that were not looked for" if seen else ASKS_FOR.format(", ".join(wanted)) if wanted else "looks at the values of tensors" if read else None
    return result, why, bool(warned)


def look_out(call, note, note_warning, note_builtin=None, strangers=True, covered=None, wanted=None, builtins=frozenset(), is_known=None):
    """Make `call`, and give its result. `note` is given the frame of each call of the user's code, observed or not, and of what warns or logs;
    `note_builtin` the frame and the function of each call of a builtin that has one of the names `builtins`.

    strangers: whether `note` is given those of libraries of which nothing is known, too (see `policy`).
    note_warning: told of a warning that is filtered out.
    covered: a Snapshot of the containers that the call may read. wanted: a list to which the names of attributes are appended that it reads, though
        the Snapshot leaves them out; but for those of which `is_known` says, given (id of an object, name), that they do not count.
    """
    outer = sys.getprofile()
    if not callable(outer):
        outer = None
    left = covered.left_out() if covered is not None else None
    asks = Asked(left, is_known) if left else None
    looked_for = builtins | _WARN if asks is None else builtins | _WARN | GIVING

    def profile(frame, event, argument):  # it runs at each call and return of any code: what is common comes first
        if outer is not None:
            outer(frame, event, argument)
        if event == "call":
            known = _libraries.get(id(frame.f_code))
            if known is None:
                meet(frame)
            elif known[1] and strangers:
                note(frame)
            if asks is not None:
                asks.called(frame)
        elif event == "c_call":
            if argument.__name__ in looked_for:
                called(frame, argument)
        elif asks is not None and asks.setter is not None and event == "return":
            asks.returns(frame)

    def meet(frame):
        code = frame.f_code
        if jacobians.is_generated(code):
            return
        name = frame.f_globals.get("__name__")
        if convert.is_observed(code) or code in _TOLD or (policy.is_user_module(name, code.co_filename) and not _makes_named_tuple(frame)):
            note(frame)
            return
        strange = policy.is_strange(name, code.co_filename)
        _libraries[id(code)] = code, strange
        if strange and strangers:
            note(frame)

    def called(frame, function):
        name = function.__name__
        if function is warnings.warn:
            note_warning(name)
        if name in builtins:
            note_builtin(frame, function)
        if asks is not None and name in GIVING:
            asks.given(frame, function)

    result, lasted = profilers.watched(call, profile)
    if asks is not None and asks.found:
        attribute_filter.note_asked(asks.found)
        wanted += sorted(name for _, name in asks.found)
    if not lasted:  # nobody knows what was called since
        note(sys._getframe())
    return result


def _makes_named_tuple(frame):
    return frame.f_code.co_filename.startswith("<string>") and frame.f_globals.get("__name__", "").startswith("namedtuple_")
