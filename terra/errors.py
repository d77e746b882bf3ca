"""Errors that a user of Terra can meet, each with one clear sentence: what, where, what to do."""

import sys

from terra import ours


class TerraError(Exception):
    """Base class of the errors that Terra raises on its own account."""


class UnsupportedTensorFlowError(TerraError, ImportError):
    """The installed TensorFlow lacks something that Terra builds on."""


class DecorationError(TerraError, TypeError):
    """`terra.coexecute` was given something that can not be a step."""


class OptionError(TerraError, TypeError):
    """An option that does not exist, or a value that it can not have."""


class VerificationError(TerraError):
    """A co-executed step differed from eager execution (see the option `verify`)."""


class FallbackError(TerraError):
    """A step left its graph, which `terra.set_stance("fail_on_fallback")` makes an error."""


class GenerationError(TerraError):
    """A TraceGraph can not be written as a symbolic graph; the step then stays imperative."""


def show(error):
    """Show an uncaught exception as the interpreter does, without the frames around it that are ours."""
    trace = error.__traceback__
    while trace is not None and ours.is_ours(trace.tb_frame):
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and trace is None:
        error.__context__ = None
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(trace), trace)
