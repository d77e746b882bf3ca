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
"""

from terra.api import imperative, set_stance, sync, to_code
from terra.errors import DecorationError, FallbackError, GenerationError, OptionError, TerraError, UnsupportedTensorFlowError, VerificationError
from terra.frontends.decorator import coexecute
from terra.frontends.gradient_tape import GradientTape
from terra.frontends.keras_support import compile
from terra.options import Options, Stats
from terra.reporting.explanation import explain
from terra.runtime.step_function.coexecution import Coexecuted

__version__ = "0.1.0"
__all__ = [
    "coexecute", "compile", "explain", "imperative", "set_stance", "sync", "to_code", "Coexecuted", "GradientTape", "Options", "Stats",
    "TerraError", "DecorationError", "FallbackError", "GenerationError", "OptionError", "UnsupportedTensorFlowError", "VerificationError",
]
