"""Calculations on what varies, NumPy's and of texts: the arrays among the step's arguments, numbers (see `dynamic_values`), what residual calls have given, and what was calculated of these.

`x = images[rows].astype(np.float32) / 255` has no side effects, so it is calculated again before a step is skipped, of what is there then. What comes of it takes the place of what came of it
when the step was recorded, if it is an array of the same type and shape.
"""

import contextlib
import functools
import operator
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from terra.frameworks import numpys
from terra.location.null_observer import formatted_as
from terra.runtime.fast_forward.sources.deferred_fetches import DeferredFetch, DeferredCalculation
from terra.runtime.fast_forward.sources.value_sources import ResidualSource, ArgumentSource, ConstantSource, ContainerSource, FetchSource, NumberSource
from terra.runtime.interpreter import frames
from terra.tf import private_names as tfi

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


class Calculation(NamedTuple):
    """A calculation: what `function` gives for these arguments (of which each is `ResidualSource`, `ArgumentSource`, `NumberSource`, `ConstantSource`, `ContainerSource` or a fixed value), and what identifies the kind of that. A function that is a name
    is a method of the first argument."""

    function: object
    args: tuple
    kwargs: tuple
    kind: tuple
    size = 1
    takes = draws = False

    def make(self, values, arrays, number, read=None):
        """`values`: what residual calls have given; `arrays`: those that the step is given; `number(place)`: one that varies; `read(part)`: what was read of a tensor, or calculated of that."""
        args = [_filled(x, values, arrays, number, read) for x in self.args]
        kwargs = {name: _filled(x, values, arrays, number, read) for name, x in self.kwargs}
        return calculate(self.function, args, kwargs)

    @property
    def parts(self):
        """Returns what it is calculated of, one by one."""
        return _flat((*self.args, *dict(self.kwargs).values()))

    @property
    def takes_arrays(self):
        """Whether an array that the step is given is among its parts."""
        return any(type(part) is ArgumentSource for part in self.parts)

    def with_parts(self, found):
        """Returns an equal calculation with `found(x)` in the place of each `Part(x)`."""
        return self._replace(args=tuple([_with_part(x, found) for x in self.args]), kwargs=tuple([(name, _with_part(x, found)) for name, x in self.kwargs]))


def calculate(function, args, kwargs):
    return getattr(args[0], function)(*args[1:], **kwargs) if type(function) is str else function(*args, **kwargs)


def _with_part(part, found):
    if type(part) is ContainerSource:
        return ContainerSource(part.kind, tuple([_with_part(x, found) for x in part.parts]))
    return found(part.value) if type(part) is FetchSource else part


def _flat(parts):
    for part in parts:
        if type(part) is ContainerSource:
            yield from _flat(part.parts)
        else:
            yield part


def parts_of(calculation):
    """The `DeferredFetch` among its parts, and theirs."""
    for part in calculation.parts:
        if type(part) is DeferredCalculation:
            yield from parts_of(part.calculation)
        elif type(part) is DeferredFetch:
            yield part


def calculate_deferred(deferred, values, arrays, number, read):
    """Returns what a `DeferredCalculation` gives, once all is known."""
    def read_part(part):
        return calculate_deferred(part, values, arrays, number, read) if type(part) is DeferredCalculation else read(part)

    given = values, arrays, number, read_part
    return deferred.calculation.make(*given) if deferred.place is None else warned(deferred.calculation.make, given, {}, deferred.place)


class Line:
    """A line of the user's code that calculates."""

    __slots__ = ("filename", "lineno", "namespace")

    def __init__(self):
        frame = sys._getframe(1)
        while not frames.is_users(frame) and frame.f_back is not None:
            frame = frame.f_back
        self.filename, self.lineno, self.namespace = frame.f_code.co_filename, frame.f_lineno, frame.f_globals


def warned(function, args, kwargs, line=None):
    """Returns what a function of NumPy's gives, which warns as if that line had called it; by default the user's that runs now."""
    told = _Told()
    with np.errstate(call=told, **{name: "log" for name, mode in np.geterr().items() if mode == "warn"}):
        value = function(*args, **kwargs)
    if told:
        line = line or Line()
        for message in told:
            warnings.warn_explicit(
                message, RuntimeWarning, line.filename, line.lineno, line.namespace.get("__name__"), line.namespace.setdefault("__warningregistry__", {}))
    return value


class _Told(list):
    """Holds what NumPy would warn of."""

    def write(self, message):
        self.append(message.removeprefix("Warning: ").rstrip("\n"))


def _filled(part, values, arrays, number, read):
    kind = type(part)
    if kind is ResidualSource:
        return values[part.index]
    if kind is ArgumentSource:
        return arrays[part.index]
    if kind is NumberSource:
        return number(part.index)
    if kind is DeferredFetch or kind is DeferredCalculation:
        return read(part)
    if kind is ConstantSource:
        return part.array
    if kind is ContainerSource:
        parts = [_filled(x, values, arrays, number, read) for x in part.parts]
        return slice(*parts) if part.kind is slice else part.kind(parts)
    return part


def writes(function, args, kwargs):
    """Whether a function of NumPy's, or a method of the first argument, may be given an array to write into."""
    if not {"out", "where"}.isdisjoint(kwargs):
        return True
    if type(function) is str:
        return len(args) > 2 and function not in _SHAPED_BY
    return len(args) > (function.nin if isinstance(function, np.ufunc) else _OUT.get(function.__name__, 10) if id(function) in FUNCTIONS else 10)


# What raises nothing but for the shapes and types that it is given: it may be calculated when the step is over.
_NEVER_RAISING = frozenset(map(id, [
    int, float, bool, np.float32, np.float64, operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pos, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge, operator.and_, operator.or_, np.prod, np.sum, np.mean, np.max, np.min, np.argmax, np.argmin, np.concatenate, np.stack, np.reshape, np.transpose, np.clip, np.expand_dims,
    np.squeeze, np.flip, np.std, np.var, np.median, np.isclose, np.allclose, np.array_equal, np.any, np.all, np.round, np.add, np.subtract, np.multiply, np.divide, np.exp, np.log, np.sqrt,
    np.abs, np.square, np.maximum, np.minimum, np.equal, np.not_equal, np.greater, np.less, np.isnan, np.isfinite, np.sign, np.tanh])) | {
    "all", "any", "argmax", "argmin", "astype", "copy", "flatten", "max", "mean", "min", "prod", "round", "std", "sum", "var"}


def never_raises(function, args):
    """Whether a calculation raises no error for the sake of what is in the arrays."""
    return id(function) in _NEVER_RAISING or function in _NEVER_RAISING or (
        function is operator.getitem and all(map(is_plain_value, args[1] if type(args[1]) is tuple else args[1:])))


_OF_FLOATS = frozenset([operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, min, max, float])  # what of Python's raises no error, whatever numbers it is given


def never_raises_for_floats(function, args, parts):
    """Whether what Python calculates of its numbers (`parts`: what stands for them in a `Calculation`) raises no error whatever those are that vary."""
    if function is not float and not all(type(x) in (int, float, bool) for x in args):
        return False
    return function in _OF_FLOATS or (function is operator.truediv and type(parts[1]) in (int, float)) or (function is round and len(parts) == 2 and type(parts[1]) is int and parts[1] >= 0)


def is_plain_value(x):
    """Whether an argument can be kept as it is: it is known by its value."""
    kind = type(x)
    if kind is slice:
        return is_plain_value(x.start) and is_plain_value(x.stop) and is_plain_value(x.step)
    return kind in _FIXED or isinstance(x, (np.dtype, np.generic))


def is_filtered(action, but=None, module=None):
    """Whether a warning of NumPy's calculations may be treated so, by the filters that there are, not counting those for the category `but`, nor those for other modules than `module`, if that
    is given: the one that calculates."""
    return any(
        f[0] == action and f[2] is not but and (issubclass(RuntimeWarning, f[2]) or _is_numpys(f[2])) and (module is None or f[3] is None or f[3].match(module)) for f in warnings.filters)


def _is_numpys(category):
    """Whether a category of warnings is one of NumPy's own, of those that calculations may give; other libraries have theirs."""
    return issubclass(category, RuntimeWarning) and category.__module__.split(".", 1)[0] == "numpy"


def numpys_errors(module):
    """Returns what NumPy does about errors where a module calculates, which has this name; None if the program might notice each of them."""
    modes = np.geterr().values()
    return None if not _MODES.issuperset(modes) or is_filtered("always", numpys.RankWarning, module) else " ".join(modes)


_MODES = frozenset(["ignore", "warn", "raise"])


@functools.lru_cache(None)
def _raising(modes):
    return {name: "raise" if mode == "warn" else mode for name, mode in modes}


def strictly():
    """A context in which NumPy raises what it would warn of: then the step's own code is to run, and to be warned."""
    return np.errstate(**_raising(tuple(np.geterr().items())))


NOT_STRICTLY = contextlib.nullcontext()


# -- texts --------------------------------------------------------------------------------------------------------------------------


def text_of_tensor(value: Any, conversion: int, spec: str) -> str:
    """Returns the text that an f-string makes of the tensor with this value, an array or a number of NumPy's."""
    return formatted_as(tfi.eager_constant(value, None), conversion, spec)


def formatted(text: str, *args: Any) -> str:
    return text.format(*args)


def joined_by(separator: Any, pieces: tuple) -> Any:
    """Returns `separator.join(pieces)`: a text, or bytes."""
    return separator.join(pieces)


def joined(pieces: tuple) -> str:
    return "".join(pieces)
