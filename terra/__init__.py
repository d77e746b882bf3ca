"""Terra: imperative TensorFlow programs at graph speed, without giving up any of Python.

A *step* is one call of a function under `terra.coexecute`, one `terra.GradientTape` block, or one
call of a model's step method under `terra.compile`. Its first runs are traced: each operation runs
eagerly and is recorded with its executed location. The traces are merged into the TraceGraph, and a
graph function is generated from that. From then on the step is co-executed: the PythonRunner walks
the program while Python runs, the GraphRunner runs the operations in the graph, and calls whose
outcome is known are skipped. A step that leaves the known paths falls back to eager execution.

`api` and `cli` are what users touch, and `reporting` tells them what happened; `frontends` makes steps and hands them to
`runtime.step_function`. `errors`, `logs`, `options` and `trial` import no other room. docs/architecture.md
has a line on each room, and the rules of what may import what.

What needs TensorFlow is imported when it is first asked for: `terra.__version__`, the options and the errors are there
without. A program that has imported TensorFlow already gets all of Terra at once.
"""

import atexit
import sys

from terra.errors import DecorationError, FallbackError, GenerationError, OptionError, TerraError, UnsupportedTensorFlowError, VerificationError
from terra.options import Options, Stats
from terra.version import __version__

__all__ = [
    "coexecute", "compile", "explain", "imperative", "profile", "report", "set_stance", "sync", "to_code", "Coexecuted", "GradientTape", "Options", "Stats",
    "TerraError", "DecorationError", "FallbackError", "GenerationError", "OptionError", "UnsupportedTensorFlowError", "VerificationError",
]


def _load():
    """Imports the rest, and TensorFlow with it. Raises: UnsupportedTensorFlowError."""
    global coexecute, compile, explain, imperative, profile, report, set_stance, sync, to_code, Coexecuted, GradientTape
    from terra.api import imperative, set_stance, sync, to_code
    from terra.frontends.decorator import coexecute
    from terra.frontends.gradient_tape import GradientTape
    from terra.frontends.keras_support import compile
    from terra.reporting.explanation import explain
    from terra.reporting.page.report import report
    from terra.reporting.profiling import profile
    from terra.runtime.step_function.coexecution import Coexecuted


def __getattr__(name):
    """Gives a name that needs TensorFlow; called where it is not there yet."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def __dir__():
    return sorted({*globals(), *__all__})


def _finish():
    """Waits for the last steps, after all that the program has registered with `atexit` since it imported Terra: that may run steps, too."""
    at_exit = sys.modules.get("terra.frontends.at_exit")
    if at_exit is not None:
        at_exit.wait()


if "tensorflow" in sys.modules:
    _load()
else:
    atexit.register(_finish)
