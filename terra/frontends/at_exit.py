"""The end of the program: what is still in flight is waited for, and a failure in it makes the process fail, as an uncaught exception does."""

import atexit
import sys

from terra import errors
from terra.frontends.gradient_tape import raise_late_error
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.interpreter import tracebacks


class _Failed:
    """Stands for `sys.stdout` when all is over: once it cannot be flushed, the interpreter's exit status is not 0. (It ignores what a function of `atexit` raises.)"""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def flush(self):
        self._file.flush()
        sys.unraisablehook = lambda _: None  # the exception itself was shown already
        raise RuntimeError("a step has failed")


@atexit.register
def wait():
    """Finish the steps that have begun."""
    try:
        interception.end_open_step()
        GRAPH_RUNNER.sync()
        raise_late_error()
    except Exception as error:
        tracebacks.clean(error)
        errors.show(error)
        if sys.stdout is not None:
            sys.stdout = _Failed(sys.stdout)
