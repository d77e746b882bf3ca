"""Calculations of NumPy's on what varies: the arrays among the step's arguments, numbers (see `varying`), what live calls have given, and what was calculated of these.

`x = images[rows].astype(np.float32) / 255` has no side effects, so it is calculated again before a step is skipped, of what is there then. What comes of it takes the place of what came of it
when the step was recorded, if it is an array of the same type and shape.
"""

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from terra.runtime.varying import Drawn, Given, Varies

_FIXED = frozenset([int, float, bool, complex, type(None), str, type, type(Ellipsis)])
FUNCTIONS = frozenset(map(id, [
    np.zeros, np.ones, np.full, np.arange, np.eye, np.linspace, np.array, np.asarray, np.prod, np.sum, np.mean, np.max, np.min, np.cumsum, np.concatenate,
    np.stack, np.reshape, np.transpose, np.repeat, np.tile, np.meshgrid, np.where, np.clip, np.argmax, np.expand_dims, np.squeeze, np.sqrt, np.isscalar,
    np.ndim, np.shape, np.zeros_like, np.ones_like, np.full_like, np.flip, np.flipud, np.fliplr, np.roll, np.rot90, np.pad, np.std, np.var, np.argmin, np.argsort,
    np.sort, np.dot, np.outer, np.vstack, np.hstack, np.column_stack, np.moveaxis, np.swapaxes, np.broadcast_to, np.ravel, np.ascontiguousarray, np.copy,
    np.atleast_1d, np.atleast_2d, np.atleast_3d, np.take, np.take_along_axis, np.diff, np.cumprod, np.any, np.all, np.round, np.around, np.median, np.isclose,
    np.allclose, np.array_equal, np.nonzero, np.bincount, np.triu, np.tril, np.identity, np.diag, np.linalg.norm]))
METHODS = frozenset(
    "all any argmax argmin argsort astype clip copy cumprod cumsum dot flatten item max mean min prod ravel repeat reshape round squeeze std sum swapaxes take tolist "
    "transpose var".split())
_SHAPED_BY = frozenset(["reshape", "transpose"])  # methods whose arguments may be many
# The place of the argument `out`, where it is not the fourth or a later one that nobody gives by its place.
_OUT = {
    "prod": 3, "sum": 3, "mean": 3, "cumsum": 3, "cumprod": 3, "clip": 3, "std": 3, "var": 3, "take": 3, "max": 2, "amax": 2, "min": 2, "amin": 2, "argmax": 2, "argmin": 2,
    "concatenate": 2, "stack": 2, "any": 2, "all": 2, "round": 2, "around": 2, "median": 2, "dot": 2, "outer": 2}


class Kept:
    """An array that is the same object each time, whatever is in it."""

    __slots__ = ("array",)

    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return type(other) is Kept and self.array is other.array

    __hash__ = None


class Nested(NamedTuple):
    """A list or tuple of such parts."""

    kind: type
    parts: tuple


class Calculation(NamedTuple):
    """What `function` gives for these arguments (of which each is `Drawn`, `Given`, `Varies`, `Kept`, `Nested` or a fixed value), and what identifies the kind of that. A function that is a name
    is a method of the first argument."""

    function: object
    args: tuple
    kwargs: tuple
    kind: tuple
    size = 1
    takes = draws = False

    def make(self, values, arrays, number):
        args = [_filled(x, values, arrays, number) for x in self.args]
        kwargs = {name: _filled(x, values, arrays, number) for name, x in self.kwargs}
        return calculate(self.function, args, kwargs)


def calculate(function, args, kwargs):
    return getattr(args[0], function)(*args[1:], **kwargs) if type(function) is str else function(*args, **kwargs)


def _filled(part, values, arrays, number):
    kind = type(part)
    if kind is Drawn:
        return values[part.place]
    if kind is Given:
        return arrays[part.index]
    if kind is Varies:
        return number(part.place)
    if kind is Kept:
        return part.array
    return part.kind([_filled(x, values, arrays, number) for x in part.parts]) if kind is Nested else part


def writes(function, args, kwargs):
    """Whether a function of NumPy's, or a method of the first argument, may be given an array to write into."""
    if not {"out", "where"}.isdisjoint(kwargs):
        return True
    if type(function) is str:
        return len(args) > 2 and function not in _SHAPED_BY
    return len(args) > (function.nin if isinstance(function, np.ufunc) else _OUT.get(getattr(function, "__name__", None), 10))


def is_fixed(x):
    """Whether an argument can be kept as it is: it is known by its value."""
    kind = type(x)
    if kind is slice:
        return is_fixed(x.start) and is_fixed(x.stop) and is_fixed(x.step)
    return kind in _FIXED or isinstance(x, (np.dtype, np.generic))


@functools.lru_cache(None)
def _raising(modes):
    return {name: "raise" if mode == "warn" else mode for name, mode in modes}


def strictly():
    """A context in which NumPy raises what it would warn of: then the step's own code is to run, and to be warned."""
    return np.errstate(**_raising(tuple(np.geterr().items())))


NOT_STRICTLY = contextlib.nullcontext()
