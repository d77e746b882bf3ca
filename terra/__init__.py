"""Terra: imperative TensorFlow programs at graph speed, without giving up any of Python."""

from terra.api import imperative, sync, to_code
from terra.errors import DecorationError, GenerationError, OptionError, TerraError, UnsupportedTensorFlowError, VerificationError
from terra.frontends.decorator import coexecute
from terra.frontends.gradient_tape import GradientTape
from terra.frontends.keras_support import compile
from terra.options import Options, Stats
from terra.report import explain

__version__ = "0.1.0"
__all__ = [
    "coexecute", "compile", "explain", "imperative", "sync", "to_code", "GradientTape", "Options", "Stats",
    "TerraError", "DecorationError", "GenerationError", "OptionError", "UnsupportedTensorFlowError", "VerificationError",
]
