"""`terra.GradientTape`: the paper's one-line interface (supplement C.2, Figure 4).

A tape that begins a step with its block, one traced state per `with` statement. Where the step ends is the matter of `terra.frontends.block_step`.
"""

import functools
import os
import sys
import threading
import time
from operator import itemgetter
from threading import get_ident

from terra.frontends.block_step import BlockFunction, BlockStep
from terra.location import current_step
from terra.options import Options
from terra.runtime.execution import interception
from terra.runtime.execution.process import signal_handlers
from terra.runtime.fast_forward.sites import framework_calls, skipping
from terra.runtime.interpreter import frames, tracebacks
from terra.runtime.tensors.object_kinds import add_tapes
from terra.tf import private_names as tfi

_blocks = {}  # location of a `with` -> [BlockFunction], one for each of the threads that are at work there at a time
_forgotten = []  # how many steps those had that were dropped
defaults = {}  # options, by name, of the tapes that are not given them
_errors = []  # errors of steps that ended where nothing could be raised


class GradientTape(tfi.tf.GradientTape):
    """`tf.GradientTape`, and a step that is co-executed: `with terra.GradientTape() as tape:` in any training loop (supplement C.2).

    The step begins with the block. It ends with it if the gradient was taken and a variable was updated in the block; otherwise the gradient
    and the update behind the block belong to it too, and it ends where Python next reads a value, moves its input iterator, begins another step or
    drops the tape: the docstring of `terra.frontends.block_step` has the whole rule. Values never depend on it.

    Each `with` statement (file and line) has a TraceGraph of its own. A block inside another step, or in a graph under construction, is just a tape; so
    is one that begins while another thread is inside a step, that the framework's own code opens, or in which a tape goes on that another `with` statement has begun.

    All of `tf.GradientTape`'s arguments and methods are its own. Keyword arguments beyond them are the options of `terra.coexecute`; those given when
    a `with` statement is first reached count.

    Raises: OptionError for a wrong option. An exception in the block leaves it as it is; what the block did before has happened.
    """

    _step = None
    _left_alone = None  # if the policy leaves the block alone that the tape is in: what says so
    _outside = None  # the state of the `with` statement this tape was last in
    _at = None  # (code, line number) of the first `with` statement that it was in

    def __init__(self, persistent=False, watch_accessed_variables=True, **options):
        self._options = Options.make({**defaults, **options}, "terra.GradientTape", ("persistent", "watch_accessed_variables"))
        super().__init__(persistent=persistent, watch_accessed_variables=watch_accessed_variables)

    # -- the block -------------------------------------------------------------------------------------------------------------

    def __enter__(self):
        step, frame = None, sys._getframe(1)
        here = frame.f_code, frame.f_lineno
        self._at = self._at or here
        if tfi.tf.executing_eagerly() and not current_step.left_alone.depth and self._at == here and not frames.is_frameworks_frame(frame):
            step = self._begin(frame)
        if step is None:
            tape = super().__enter__()  # which raises if the tape is still recording
            if self._left_alone is not None:
                self._left_alone.__enter__()
            return tape
        self._step = step
        try:
            return super().__enter__()
        except BaseException as error:
            self._leave_block(error)
            raise

    def _begin(self, frame):
        active = current_step.active
        if active is not None and active.thread == get_ident() and not active.open_ended:
            return None  # part of the outer step
        if tfi.in_replica():
            return None
        if not current_step.lock.acquire(blocking=active is None or active.open_ended):
            return None
        step, held = None, ()
        try:
            interception.end_open_step()
            raise_late_error()
            framework_calls.prepare()
            self._outside = _block_at(frames.innermost_outside(frame), self._options)
            held = signal_handlers.put_off()
            step = self._outside.lifecycle.begin(functools.partial(BlockStep, frame))
            self._left_alone = current_step.left_alone if step is None else None
        finally:
            if step is None:
                current_step.lock.release()
                signal_handlers.put_back(held)
            else:
                step.handlers = held
        return step

    def __exit__(self, kind, error, trace):
        step = self._step
        if self._left_alone is not None:
            left_alone, self._left_alone = self._left_alone, None
            left_alone.__exit__()
            self._outside.lifecycle.is_over()
        if step is None or step.closed or step.view is not None:
            return super().__exit__(kind, error, trace)
        try:
            super().__exit__(kind, error, trace)
        except BaseException as own:
            self._leave_block(own)
            raise
        self._leave_block(error)

    def _leave_block(self, error):
        step = self._step
        try:
            if error is not None:
                tracebacks.clean(error)
                step.closed = True
                step.function.give_up(step, error)
            elif step.done():
                step.closed = True
                step.function.finish(step)
            else:
                step.stay_open()
        finally:
            step.cursor.frame = None
            current_step.lock.release()

    def __del__(self):
        step = self._step
        if step is None or step.closed or step.view is None:
            return
        self._tape = None  # what it saved does not outlive the step
        step.tape_is_gone = True
        # The garbage collector may come at any time; only between two instructions of the user's code is no operation on its way.
        if step.thread == get_ident() and not step.paused and frames.is_users(sys._getframe(1)) and step.done():
            try:
                step.close()
            except BaseException as failure:  # raised by the next block, or by terra.sync()
                _errors.append(failure)

    # -- differentiation -------------------------------------------------------------------------------------------------------

    def gradient(self, *args, **kwargs):
        view = current_step.active
        if view is None or view.thread != get_ident():
            result = super().gradient(*args, **kwargs)
        elif view.in_block:
            result = view.call(skipping.gradient, self, *args, **kwargs)
        else:
            result = skipping.gradient(self, *args, **kwargs)
        if self._step is not None:
            self._step.gradient_taken()
        return result

    gradient.__doc__ = tfi.tf.GradientTape.gradient.__doc__

    # -- what users ask --------------------------------------------------------------------------------------------------------

    @property
    def block(self):
        """The steps of this tape's `with` statement (`stats()`, `trace_graph`, `graph`); None if it was just a tape so far."""
        return self._outside


add_tapes(GradientTape, {GradientTape.gradient: tfi.tape_gradient_method})


def _block_at(frame, options):
    code = frame.f_code
    key = code.co_filename, frame.f_lineno, code.co_name, code.co_code if code.co_filename.startswith("<") else None
    thread, functions = threading.current_thread(), _blocks.setdefault(key, [])
    for function in functions:
        if function.used_by is thread:
            return function
    for function in functions:
        if not function.used_by.is_alive():
            function.used_by = thread
            return function
    if not os.path.exists(code.co_filename):
        _forget_cells()
    # Two threads at work in one block as a rule have variables of their own. Each has its graph, so that none writes what the other one has just updated.
    function = BlockFunction(f"the block at {os.path.basename(code.co_filename)}:{frame.f_lineno}", options)
    function.used_by = thread
    functions.append(function)
    return function


_MOST_CELLS, _UNUSED = 4, 60.0  # a script has some blocks that take turns; a cell of a notebook is edited, and its old version does not come back


def _forget_cells():
    """Drop the blocks of code without a file that have not been used for a while: they hold variables."""
    cells = [
        (max(function.lifecycle.last_use for function in functions), key) for key, functions in list(_blocks.items()) if functions and not os.path.exists(key[0])]
    for used, key in sorted(cells, key=itemgetter(0))[:-_MOST_CELLS]:
        if used < time.perf_counter() - _UNUSED:
            _forgotten.append(_steps_of(_blocks.pop(key)))


def set_defaults(options):
    """Options, by name, of the tapes that are not given them. Raises: OptionError."""
    Options.make(options)
    defaults.clear()
    defaults.update(options)


def blocks():
    """{(file, line): steps} of all `with` statements that were steps so far; where several threads were at work in one, those of the first."""
    return {key[:2]: functions[0] for key, functions in _blocks.items()}


def begun():
    """How many blocks were steps so far."""
    return sum(map(_steps_of, list(_blocks.values()))) + sum(_forgotten)


def _steps_of(functions):
    return sum(function.stats().steps for function in functions)


def raise_late_error():
    """Raise the error of a step that ended where nothing could be raised."""
    if _errors:
        raise _errors.pop(0)
