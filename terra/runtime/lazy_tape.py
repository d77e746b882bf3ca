"""Lazy recording on gradient tapes during co-execution.

In the skeleton a tape is wanted for one thing only: that `tape.gradient` issues the backward operations. If that call is skipped (see `fast_forward`), nobody
needs the tape; if layers were skipped, their operations were never issued and could not be recorded. So what would be recorded on a tape is kept in a list,
and told to the tape (*flushed*) when something asks it: a gradient that is not skipped, a query, a nested tape, a fallback.

This is done only for a tape that was begun in the co-executed step while no other tape was active; all other recording is immediate, as in TensorFlow.
"""

import sys
from threading import get_ident

from terra.runtime import internals as tfi
from terra.runtime.tensor import record_on_tapes

_OWN_REFERENCES = 2  # of a tape: the LazyTape, getrefcount's argument


class LazyTape:
    """One tape, and what it has not been told yet."""

    __slots__ = ("tape", "pending", "opaque", "events", "path", "start", "accessed", "flushes")

    def __init__(self, tape, start, path, accessed):
        self.tape = tape
        self.start = start  # the node after which it began
        self.pending = []  # (op, inputs, attributes, outputs), or a skipped Region
        self.opaque = 0  # counts recorded Python functions (custom gradients, nested functions): such a tape's gradient always runs
        self.events = []  # what was watched explicitly
        self.path = path  # the path taken when it began
        self.accessed = accessed  # how many accesses of variables were noted before it began
        self.flushes = 0


class Tapes:
    """The lazy tapes of one step: at most one is recording, others are closed and may still be asked."""

    def __init__(self, owner, enabled):
        self.owner = owner  # the PythonRunner
        self.enabled = enabled
        self.recording = None
        self.closed = {}
        self.accessed = []  # variables that the tapes were told of, in order

    def begun(self, tape, watches_variables):
        """The lazy tape for a new one."""
        return LazyTape(tape, self.owner.node, self.owner.path, len(self.accessed))

    def record(self, op, inputs, attrs, outputs):
        """An operation that the active tapes are to know of."""
        if self.recording is not None:
            self.recording.pending.append((op, inputs, attrs, outputs))
        else:
            record_on_tapes(op, inputs, attrs, outputs)

    def of(self, tape):
        lazy = self.recording
        if lazy is not None and lazy.tape is tape:
            return lazy
        return self.closed.get(id(tape))

    def flush(self, lazy):
        """Tell a tape what it has missed."""
        pending = lazy.pending
        if not pending:
            return
        lazy.pending = []
        lazy.flushes += 1
        other = self.recording
        stopped = tfi.tape_is_stopped()
        if stopped:
            tfi.tape_restart()
        if lazy is not other:
            if other is not None:
                tfi.tape_originals["TFE_Py_TapeSetRemove"](other.tape)
            tfi.tape_originals["TFE_Py_TapeSetAdd"](lazy.tape)
        try:
            for item in pending:
                if type(item) is tuple:
                    record_on_tapes(*item)
                else:
                    for record in self.owner.expand(item):
                        record_on_tapes(*record)
        finally:
            if lazy is not other:
                tfi.tape_originals["TFE_Py_TapeSetRemove"](lazy.tape)
                if other is not None:
                    tfi.tape_originals["TFE_Py_TapeSetAdd"](other.tape)
            if stopped:
                tfi.tape_stop()

    def flush_recording(self):
        if self.recording is not None:
            self.flush(self.recording)

    def give_up(self):
        """From here on all recording is immediate."""
        for lazy in list(self.closed.values()):
            self.flush(lazy)
        self.flush_recording()
        self.recording = None
        self.closed = {}

    def diverged(self, runner):
        """The step falls back."""
        self.give_up()

    def watched(self, lazy, name, thing):
        """The program watches a tensor or variable."""
        self.flush(lazy)
        lazy.events.append((name, getattr(thing, "_key", None) or id(thing)))

    def gradient(self, lazy, tape, *args):
        """What `tape.gradient` asks of the tape itself."""
        if lazy is not None:
            self.flush(lazy)
        return tfi.tape_originals["TFE_Py_TapeGradient"](tape, *args)

    def finish(self):
        """The step is over: a tape that the program still holds is told everything, the others are forgotten."""
        for lazy in [*self.closed.values(), *([self.recording] if self.recording is not None else [])]:
            if sys.getrefcount(lazy.tape) > _OWN_REFERENCES:
                self.flush(lazy)
            lazy.pending = []
        self.recording = None
        self.closed = {}


def _tapes():
    """The lazy tapes of the step that co-executes on this thread, or None."""
    from terra.runtime import dispatch  # it installs what is defined here
    step = dispatch.active
    if step is None or step.thread != get_ident():
        return None
    return getattr(step.skeleton, "tapes", None)


def _tape_new(persistent, watch_accessed_variables):
    tapes = _tapes()
    alone = tapes is not None and tapes.enabled and tfi.tape_set_is_empty() and not tfi.tape_is_stopped()
    if tapes is not None and not alone:
        tapes.give_up()
    tape = tfi.tape_originals["TFE_Py_TapeSetNew"](persistent, watch_accessed_variables)
    if alone:
        tapes.recording = tapes.begun(tape, watch_accessed_variables)
    return tape


def _tape_add(tape):
    tapes = _tapes()
    if tapes is not None:
        lazy = tapes.closed.pop(id(tape), None)
        if tapes.recording is None and tfi.tape_set_is_empty() and lazy is not None:
            tapes.recording = lazy
        else:
            if lazy is not None:
                tapes.flush(lazy)
            tapes.give_up()
    return tfi.tape_originals["TFE_Py_TapeSetAdd"](tape)


def _tape_remove(tape):
    tapes = _tapes()
    if tapes is not None and tapes.recording is not None and tapes.recording.tape is tape:
        tapes.closed[id(tape)] = tapes.recording
        tapes.recording = None
    return tfi.tape_originals["TFE_Py_TapeSetRemove"](tape)


def _watch(name):
    def watch(tape, thing):
        tapes = _tapes()
        lazy = tapes.of(tape) if tapes is not None else None
        if lazy is not None:
            tapes.watched(lazy, name, thing)
        return tfi.tape_originals[name](tape, thing)
    return watch


def _ask(name, opaque=False):
    """An entry point that needs the recording tape to be up to date."""
    def ask(*args):
        tapes = _tapes()
        if tapes is not None and tapes.recording is not None:
            tapes.flush_recording()
            tapes.recording.opaque += opaque
        return tfi.tape_originals[name](*args)
    return ask


def _tape_gradient(tape, *args):
    tapes = _tapes()
    if tapes is None:
        return tfi.tape_originals["TFE_Py_TapeGradient"](tape, *args)
    return tapes.gradient(tapes.of(tape), tape, *args)


def _record_gradient(op_name, inputs, attrs, outputs, name):
    tapes = _tapes()
    if tapes is not None and tapes.recording is not None:
        if not tfi.tape_set_is_empty():
            tapes.record(op_name, list(inputs), attrs, list(outputs))
        return None
    record_on_tapes(op_name, inputs, attrs, outputs, name)
    return None


def _variable_accessed(variable):
    tapes = _tapes()
    if tapes is not None:
        tapes.accessed.append(variable)
    return tfi.tape_originals["TFE_Py_TapeVariableAccessed"](variable)


def _accumulator_add(accumulator):
    tapes = _tapes()
    if tapes is not None:
        tapes.give_up()
    return tfi.tape_originals["TFE_Py_ForwardAccumulatorSetAdd"](accumulator)


HOOKS = {
    "TFE_Py_TapeSetNew": _tape_new,
    "TFE_Py_TapeSetAdd": _tape_add,
    "TFE_Py_TapeSetRemove": _tape_remove,
    "TFE_Py_TapeWatch": _watch("TFE_Py_TapeWatch"),
    "TFE_Py_TapeWatchVariable": _watch("TFE_Py_TapeWatchVariable"),
    "TFE_Py_TapeSetShouldRecordBackprop": _ask("TFE_Py_TapeSetShouldRecordBackprop"),
    "TFE_Py_TapeSetPossibleGradientTypes": _ask("TFE_Py_TapeSetPossibleGradientTypes"),
    "TFE_Py_TapeSetRecordOperation": _ask("TFE_Py_TapeSetRecordOperation", True),
    "TFE_Py_TapeSetRecordOperationBackprop": _ask("TFE_Py_TapeSetRecordOperationBackprop", True),
    "TFE_Py_TapeSetRecordOperationForwardprop": _ask("TFE_Py_TapeSetRecordOperationForwardprop", True),
    "TFE_Py_TapeGradient": _tape_gradient,
    "TFE_Py_RecordGradient": _record_gradient,
    "TFE_Py_TapeVariableAccessed": _variable_accessed,
    "TFE_Py_ForwardAccumulatorSetAdd": _accumulator_add,
}
