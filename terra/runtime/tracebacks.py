"""Tracebacks of exceptions that leave a step, without the frames of Terra's: they show the program's lines as they do in eager execution.

TensorFlow and Keras take their own frames out in the same way; `tf.debugging.disable_traceback_filtering()` keeps these and those.
"""

from terra.runtime import internals as tfi

# Functions that call the program's or the framework's code: where the traceback ends in one, the call has been wrong, or Keras has taken its frames out.
_CALLING = frozenset([
    ("block_calls", "__call__"), ("block_step", "call"), ("coexecution", "_one_step"), ("fast_calls", "call"), ("fast_calls", "operator"), ("location", "call_here"),
    ("observer", "run"), ("user_layers", "__call__"), ("whole_calls", "_attempt"), ("whole_calls", "call"), ("whole_calls", "run_step"),
])
_is_enabled = tfi.tf.debugging.is_traceback_filtering_enabled


def clean(error):
    """Take Terra's frames out of the traceback of an exception, and of those that it was raised because of.

    Where Terra itself is what raised it, and no operation has failed, the frames from there on stay: that may be a defect.
    """
    if not _is_enabled():
        return
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without_ours(one.__traceback__, isinstance(one, (tfi.OpError, tfi.NotOkStatusException)))
            todo += (one.__cause__, one.__context__)


def _without_ours(trace, to_the_end):
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    end = len(entries)
    if entries and not to_the_end:
        frame = entries[-1].tb_frame
        to_the_end = (str(frame.f_globals.get("__name__")).rpartition(".")[2], frame.f_code.co_name) in _CALLING
    while end and not to_the_end and _is_ours(entries[end - 1]):
        end -= 1
    kept = [entry for k, entry in enumerate(entries) if k >= end or not _is_ours(entry)]
    for entry, following in zip(kept, (*kept[1:], None)):
        entry.tb_next = following
    first = kept[0] if kept else None
    if entries and entries[0] is not first:
        entries[0].tb_next = first  # what a bare `raise` goes on with, before Python 3.11
    return first


def _is_ours(entry):
    name = entry.tb_frame.f_globals.get("__name__")
    return type(name) is str and name.startswith("terra.")
