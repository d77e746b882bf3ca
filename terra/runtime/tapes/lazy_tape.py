"""Lazy recording on gradient tapes during co-execution.

In the skeleton a tape is wanted for one thing only: that `tape.gradient` issues the backward operations. If that call is skipped (see `fast_forward`), nobody
needs the tape; if layers were skipped, their operations were never issued and could not be recorded. So what would be recorded on a tape is kept in a list,
and told to the tape (*flushed*) when something asks it: a gradient that is not skipped, a query, a fallback. Of several tapes at once, each has such a list.

This is done only for tapes that were begun in the co-executed step while no tape from outside was active; all other recording is immediate, as in TensorFlow.
"""

import sys
from threading import get_ident

from terra.location import current_step, identity
from terra.runtime.tapes import backward, jacobians
from terra.runtime.tensors import open_shapes
from terra.runtime.tensors.comparing import ById
from terra.runtime.tensors.tensor import TerraTensor, record_on_tapes, tell_tapes
from terra.tf import private_names as tfi

_OWN_REFERENCES = 2  # of a tape: the LazyTape, getrefcount's argument


class LazyTape:
    """One tape, and what it has not been told yet."""

    __slots__ = ("tape", "pending", "opaque", "functions", "events", "path", "start", "accessed", "n_told")

    def __init__(self, tape, start, path, accessed):
        self.tape = tape
        self.start = start  # the node after which it began
        self.pending = []  # (op, inputs, attributes, outputs), a backward.TapeRecord, or a skipped CallRecord
        self.n_told = 0  # of these
        self.opaque = 0  # counts recorded Python functions that may be the user's: such a tape's gradient always runs
        self.functions = 0  # a digest of the other ones
        self.events = []  # what was watched explicitly
        self.path = path  # the path taken when it began
        self.accessed = accessed  # how many accesses of variables were noted before it began


class Tapes:
    """The lazy tapes of one step: those that record, and closed ones, which may still be asked.

    While one is recording, all active tapes are. `several`: whether more than one may be.
    """

    def __init__(self, owner, enabled, several=False):
        self.owner = owner  # the PythonRunner
        self.step = owner.step
        self.enabled = enabled
        self.several = several
        self.open = ()
        self.recording = None  # the first of them
        self.closed = {}
        self.accessed = []  # variables that the tapes were told of, in order
        self.watched_ids = set()  # of what the program watches explicitly

    def set_open(self, lazies):
        self.open = lazies
        self.recording = lazies[0] if lazies else None

    def may_join(self):
        """Returns whether one more tape may record lazily now."""
        return self.several if self.open else tfi.tape_set_is_empty()

    def begun(self, tape, watches_variables):
        """The lazy tape for a new one."""
        made = LazyTape(tape, self.owner.node, self.owner.path, len(self.accessed))
        made.events.append(("begun", watches_variables))
        return made

    def record(self, op, inputs, attrs, outputs):
        """An operation that the active tapes are to know of."""
        if self.open:
            for lazy in self.open:
                lazy.pending.append((op, inputs, attrs, outputs))
        else:
            record_on_tapes(op, inputs, attrs, outputs)

    def record_function(self, op, outputs, inputs, function):
        """An operation with a custom gradient: True if it is one of the framework's, so that the tapes need not be told of it now."""
        try:
            record = backward.record(self.owner, op, outputs, inputs, function)
        except backward.Unknown:
            return False
        for lazy in self.open:
            lazy.pending.append(record)
            lazy.functions = hash((lazy.functions, record.signature))
        return True

    def skipped(self, record):
        """A record was jumped over."""
        if self.open:
            if record.records:
                for lazy in self.open:
                    lazy.pending.append(record)
                    for signature in record.functions:
                        lazy.functions = hash((lazy.functions, signature))
            for variable in record.accessed:
                tfi.variable_accessed(variable)
        for variable in record.accessed:
            tfi.watcher_variable_accessed(variable)
        self.accessed += record.accessed

    def state(self, differentiates=False):
        """Lists what must not change while a call is recorded that is to be skipped; differentiates: the tapes may be told of functions of the program's."""
        return [x for lazy in self.open for x in (lazy, differentiates or lazy.opaque, len(lazy.events))]

    def of(self, tape):
        for lazy in self.open:
            if lazy.tape is tape:
                return lazy
        return self.closed.get(id(tape))

    def flush(self, lazy):
        """Tell a tape what it has missed."""
        pending = lazy.pending[lazy.n_told:]
        if not pending:
            return
        lazy.n_told = len(lazy.pending)
        add, remove = tfi.tape_originals["TFE_Py_TapeSetAdd"], tfi.tape_originals["TFE_Py_TapeSetRemove"]
        others = [other for other in self.open if other is not lazy]
        closed = lazy not in self.open
        stopped = tfi.tape_is_stopped()
        if stopped:
            tfi.tape_restart()
        for other in others:
            remove(other.tape)
        if closed:
            add(lazy.tape)
        try:
            for item in pending:
                self._tell(item)
        finally:
            if closed:
                remove(lazy.tape)
            for other in others:
                add(other.tape)
            if stopped:
                tfi.tape_stop()

    def _tell(self, item):
        if type(item) is tuple:
            record_on_tapes(*item)
        elif type(item) is backward.TapeRecord:
            item.tell()
        else:
            for record in self.owner.expand(item):
                self._tell(record)

    def flush_recording(self):
        for lazy in self.open:
            self.flush(lazy)

    def record_elsewhere(self):
        """See the function of this name: the tapes must be up to date, and what they hold then is not known."""
        self.flush_recording()
        for lazy in self.open:
            lazy.opaque += 1

    def give_up(self):
        """From here on all recording is immediate."""
        for lazy in list(self.closed.values()):
            self.flush(lazy)
        self.flush_recording()
        self.set_open(())
        self.closed = {}

    def diverged(self, runner):
        """The step falls back."""
        self.give_up()

    def watched(self, lazy, name, thing):
        """The program watches a tensor or variable."""
        self.flush(lazy)
        self.watched_ids.add(id(thing))
        lazy.events.append((name, self.owner.node, ById(thing)))

    def told(self, lazy):
        """Returns what was done with a tape explicitly, and where, in a form that can be compared with other steps."""
        return tuple([(*event[:-1], self._identity(event[-1].thing)) if type(event[-1]) is ById else event for event in lazy.events])

    def _identity(self, thing):
        """Returns what tells a tensor that is watched from others, in all steps that took the same path; a variable, or what was not used, tells itself."""
        if type(thing) is TerraTensor and thing._owner is self.owner:
            return thing._key
        argument, known = self.step.args.get(id(thing)), self.owner.fed.get(id(thing))
        return argument[0] if argument is not None else known[0] if known is not None else ById(thing)

    def gradient(self, lazy, tape, *args):
        """Computes the gradients that `tape.gradient` asks the tape for, after telling it what is still pending."""
        if lazy is not None:
            self.flush(lazy)
        return tfi.tape_originals["TFE_Py_TapeGradient"](tape, *args)

    def finish(self):
        """The step is over: a tape that the program still holds is told everything, the others are forgotten."""
        for lazy in [*self.closed.values(), *self.open]:
            if sys.getrefcount(lazy.tape) > _OWN_REFERENCES:
                self.flush(lazy)
            lazy.pending, lazy.n_told = [], 0
        self.set_open(())
        self.closed = {}


def _tapes():
    """The lazy tapes of the step that co-executes on this thread, or None."""
    step = current_step.active
    if step is None or step.thread != get_ident():
        return None
    return getattr(step.skeleton, "tapes", None)


def record_elsewhere():
    """Operations of this thread will be recorded that the step's tapes are not told of."""
    tapes = _tapes()
    if tapes is not None:
        tapes.record_elsewhere()


def _tape_new(persistent, watch_accessed_variables):
    tapes = _tapes()
    lazily = tapes is not None and tapes.enabled and not tapes.step.paused and not tfi.tape_is_stopped() and tapes.may_join()
    if tapes is not None and not lazily:
        tapes.give_up()
    tape = tfi.tape_originals["TFE_Py_TapeSetNew"](persistent, watch_accessed_variables)
    if lazily:
        tapes.set_open((*tapes.open, tapes.begun(tape, watch_accessed_variables)))
    return tape


def _tape_add(tape):
    tapes = _tapes()
    if tapes is not None:
        lazy = tapes.closed.pop(id(tape), None)
        if lazy is not None and tapes.may_join():
            lazy.events.append(("recording again", tapes.owner.node))
            tapes.set_open((*tapes.open, lazy))
        else:
            if lazy is not None:
                tapes.flush(lazy)
            tapes.give_up()
    return tfi.tape_originals["TFE_Py_TapeSetAdd"](tape)


def _tape_remove(tape):
    tapes = _tapes()
    if tapes is not None:
        for lazy in tapes.open:
            if lazy.tape is tape:
                lazy.events.append(("closed", tapes.owner.node))
                tapes.closed[id(tape)] = lazy
                tapes.set_open(tuple([other for other in tapes.open if other is not lazy]))
                break
    return tfi.tape_originals["TFE_Py_TapeSetRemove"](tape)


def _watch(name):
    def watch(tape, thing):
        tapes = _tapes()
        lazy = tapes.of(tape) if tapes is not None else None
        pair = identity.pairs.get(id(thing))
        if lazy is not None:
            tapes.watched(lazy, name, thing if pair is None else pair[1])
        if pair is not None:
            return _watch_pair(tape, *pair)
        return tfi.tape_originals[name](tape, thing)
    return watch


def _watch_pair(tape, argument, stand_in):
    """The program watches an argument of a step, or what stands for it: the tape takes the one for computed from the other, whichever operations are given."""
    tfi.tape_originals["TFE_Py_TapeWatch"](tape, argument)
    records = tfi.tape_originals["TFE_Py_TapeSetShouldRecordBackprop"]([argument])
    if not records:
        tfi.tape_originals["TFE_Py_TapeSetAdd"](tape)
    try:
        record_on_tapes(open_shapes.OPENS, (argument,), (), [stand_in])
    finally:
        if not records:
            tfi.tape_originals["TFE_Py_TapeSetRemove"](tape)


def _ask(name, opaque=False):
    """An entry point that needs the recording tapes to be up to date."""
    def ask(*args):
        tapes = _tapes()
        if tapes is not None and tapes.open:
            if opaque:
                tapes.record_elsewhere()
            else:
                tapes.flush_recording()
        return tell_tapes(tfi.tape_originals[name], *args) if opaque else tfi.tape_originals[name](*args)
    return ask


def _tape_gradient(tape, *args):
    tapes = _tapes()
    if identity.pairs:
        target, sources, *rest = args
        args = target, [*map(identity.itself, sources)], *rest
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


_record_unknown = _ask("TFE_Py_TapeSetRecordOperation", True)


def _record_function(op, outputs, inputs, function, forward=None):
    tapes = _tapes()
    if tapes is not None and tapes.open:
        if tfi.tape_set_is_empty() or (forward is None and tapes.record_function(op, outputs, inputs, function)):
            return None
        if jacobians.inside.depth and not any(type(t) is TerraTensor for t in outputs):  # of the function that is traced: nothing outside depends on them
            tapes.flush_recording()
            return tfi.tape_originals["TFE_Py_TapeSetRecordOperation"](op, outputs, inputs, function, forward)
    return _record_unknown(op, outputs, inputs, function, forward)


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


def _accumulator_watch(accumulator, primal, tangent):
    for x in identity.pairs.get(id(primal), (primal,)):
        tfi.tape_originals["TFE_Py_ForwardAccumulatorWatch"](accumulator, x, tangent)


HOOKS = {
    "TFE_Py_TapeSetNew": _tape_new,
    "TFE_Py_TapeSetAdd": _tape_add,
    "TFE_Py_TapeSetRemove": _tape_remove,
    "TFE_Py_TapeWatch": _watch("TFE_Py_TapeWatch"),
    "TFE_Py_TapeWatchVariable": _watch("TFE_Py_TapeWatchVariable"),
    "TFE_Py_TapeSetShouldRecordBackprop": _ask("TFE_Py_TapeSetShouldRecordBackprop"),
    "TFE_Py_TapeSetPossibleGradientTypes": _ask("TFE_Py_TapeSetPossibleGradientTypes"),
    "TFE_Py_TapeSetRecordOperation": _record_function,
    "TFE_Py_TapeSetRecordOperationBackprop": _ask("TFE_Py_TapeSetRecordOperationBackprop", True),
    "TFE_Py_TapeSetRecordOperationForwardprop": _ask("TFE_Py_TapeSetRecordOperationForwardprop", True),
    "TFE_Py_TapeGradient": _tape_gradient,
    "TFE_Py_RecordGradient": _record_gradient,
    "TFE_Py_TapeVariableAccessed": _variable_accessed,
    "TFE_Py_ForwardAccumulatorSetAdd": _accumulator_add,
    "TFE_Py_ForwardAccumulatorWatch": _accumulator_watch,
}
