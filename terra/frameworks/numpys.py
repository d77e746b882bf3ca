"""Which classes are NumPy's own."""

import numpy as np

# NumPy itself has it always shown; it is Python code of NumPy's that gives it, which is seen.
RankWarning = (np.exceptions if hasattr(getattr(np, "exceptions", None), "RankWarning") else np).RankWarning


MAKES_ARRAYS = frozenset(map(id, [np.array, np.asarray]))  # ids of functions that make an array of what they are given, be it a tensor


def is_own(kind):
    """Returns whether a class is one of numbers, or of their types, of NumPy's own or of ml_dtypes."""
    return issubclass(kind, (np.generic, np.dtype)) and not issubclass(kind, np.void) and kind.__module__.split(".", 1)[0] in ("numpy", "ml_dtypes")


def is_number(kind):
    """Returns whether a class is one of NumPy's own of numbers or truth values."""
    return issubclass(kind, (np.number, np.bool_)) and kind.__module__ == "numpy"


def is_scalar(kind):
    """Returns whether a class is one of NumPy's own of scalars, texts and dates included."""
    return issubclass(kind, np.generic) and kind.__module__ == "numpy"
