"""Tracebacks of exceptions that leave a step, without the frames of Terra's: they show the program's lines as they do in eager execution.

TensorFlow and Keras take their own frames out in the same way; `tf.debugging.disable_traceback_filtering()` keeps these and those.
"""

import builtins

from terra import ours
from terra.tf import private_names as tfi

_is_enabled = tfi.tf.debugging.is_traceback_filtering_enabled
# The program's classes of exceptions may have attributes of these names that are others, or that cannot be set.
_trace_of, _cause_of, _context_of = (getattr(BaseException, name).__get__ for name in ("__traceback__", "__cause__", "__context__"))
_OF_OPERATIONS = tfi.OpError, tfi.NotOkStatusException
_Group = getattr(builtins, "BaseExceptionGroup", ())  # new in Python 3.11


def clean(error):
    """Take Terra's frames out of the traceback of an exception, of those that it was raised because of, and of its parts.

    Where Terra itself is what raised it, and no operation has failed, the frames from there on stay: that may be a defect.
    """
    if not _is_enabled():
        return
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            BaseException.with_traceback(one, _without_ours(_trace_of(one), isinstance(one, _OF_OPERATIONS)))
            todo += _cause_of(one), _context_of(one)
            if isinstance(one, _Group):
                todo += _Group.exceptions.__get__(one)


def _without_ours(trace, to_the_end):
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    if not entries:
        return None
    end = len(entries)
    if not to_the_end:
        to_the_end = ours.calls(entries[-1].tb_frame)
    while end and not to_the_end and ours.is_ours(entries[end - 1].tb_frame):
        end -= 1
    kept = [entry for k, entry in enumerate(entries) if (k >= end or not ours.is_ours(entry.tb_frame)) and not ours.stands_in(entry.tb_frame)]
    first = kept[0] if kept else None
    for entry in entries:
        entry.tb_next = None  # setting another one goes through all that follow it
    for entry, following in zip(kept, kept[1:]):
        entry.tb_next = following
    if entries[0] is not first:
        entries[0].tb_next = first  # what a bare `raise` goes on with, before Python 3.11
    return first
