"""Scopes that the calling thread may be in: AutoGraph's, and those of names."""

from terra import ours
from terra.tf import private_names as tfi


def is_autographs(frame):
    """Returns whether a frame is that in which AutoGraph makes the calls of code that it has converted."""
    return frame.f_globals.get("__name__") == tfi.autograph_api.__name__


def converted(function):
    """AutoGraph's form of a function of the user's, unless that is switched off here."""
    return tfi.tf.__internal__.autograph.tf_convert(function, tfi.tf.__internal__.autograph.control_status_ctx())


# AutoGraph also converts what eager code calls (a function given to `tf.map_fn`, a loss of tf_keras), with all that it calls in turn: this package is none of it.
tfi.autograph.CONVERSION_RULES = (tfi.autograph.DoNotConvert(ours.PACKAGE), *tfi.autograph.CONVERSION_RULES)


def enter_name_scope(name):
    """Begin a name scope of eager operations; returns what `leave_name_scope` wants."""
    data = tfi.context._context._thread_local_data
    outer = data.scope_name
    data.scope_name = f"{outer or ''}{name}/"
    return outer


def name_scope():
    """The name scope that the calling thread's eager operations are in, `net/dense_1/`; empty or None outside of any."""
    return tfi.context._context._thread_local_data.scope_name


def leave_name_scope(outer):
    tfi.context._context._thread_local_data.scope_name = outer
