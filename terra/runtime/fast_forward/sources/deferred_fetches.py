"""Deferred fetches: numbers and arrays that a step reads of tensors only to give them back, as in `return float(loss)`.

They are others at each step, so a step that reads them could never be skipped, if it looked at them. Where it does not, they are read when it is skipped,
too. The observer is shown the operands of nearly all that the step's code does: a number that becomes one, other than to be bound, returned or put into a list,
tuple or dict, is not late any more. An array is given back once: it can be changed.

What NumPy calculates of them, as in `return np.argmax(logits.numpy(), -1)`, is late as well.

One that is compared with a number that stays the same, as in `if float(loss) > 10.0`, stays late, too: what comes of that is the same as long as the number is within some bounds. The same
goes for `math.isnan` and the like.

Keras 3.12, as others before 3.15, reads the metrics at the end of each step of its own, where later versions give the tensors; no code of the framework's that
runs in a step looks at these numbers, so they are late, too.

A library that does nothing but compute (see `terra.transform.configure`) makes a text of a tensor for a message only, as those of Hugging Face's models do in case an index is too large.
"""

import functools
import math
import operator
import sys
from typing import NamedTuple

import numpy as np

from terra.frameworks import keras
from terra.runtime.fast_forward.sources.value_sources import ResidualSource, FetchSource
from terra.runtime.generation.speculated_branches import Within
from terra.runtime.interpreter import frames
from terra.runtime.tensors.tensor import TerraTensor, holds_numbers
from terra.tf.private import replacements
from terra.transform import policy


class DeferredFetch(NamedTuple):
    """A number that a call has read, and gives back without a look at it."""

    node: object  # of the fetch
    how: object
    key: object = None  # of the tensor, if the framework has read it


class DeferredCalculation(NamedTuple):
    """Stands for what NumPy calculates of what a call has read, and gives back without a look at it: an `array_calculations.Calculation`, with `DeferredFetch` and `DeferredCalculation` among its parts, and where it
    stands in the program."""

    calculation: object
    place: object

    def __eq__(self, other):
        return type(other) is DeferredCalculation and self.calculation == other.calculation

    __hash__ = None


class FetchedTensor(NamedTuple):
    """A tensor of which a call has read the value, and which it gives as well."""

    key: object
    node: object  # of the fetch


class DeferredFetches:
    """Numbers and arrays that were read of tensors and, so far, not looked at: (it, the tensor's key, how it was read, how many reads that took) by id.

    `dynamic`: the numbers that the run was given (see `DynamicValues`): it is noted which of them are looked at. `of_framework`: those that the framework has read.
    `held`: those to begin with, and where to note others.
    """

    def __init__(self, dynamic, of_framework, held=None):
        self.held = {} if held is None else held
        self.bounds = {}  # key of a tensor -> the bounds that its number is within, if that was compared
        self.calculated = {}  # id -> (it, its `Calculation`, where that stands, what of these it was calculated of)
        self.originals = {}  # id of a number that was calculated -> the one, among those that it was calculated of, that it is
        self.last = None  # (what the run gives, {place in it: (as in `held`, or None; as in `calculated`)} of integers and truth values that were not looked at); None: it is one
        self._lasts = {}  # the same, of what it is about to give
        self._open = set()  # ids of arrays whose shapes depend on data
        self.of_framework = of_framework
        self._dynamic = dynamic
        self._numbers = dynamic.numbers
        self._seen = set()
        self.unsteady = {}  # id -> what an opaque call has given, another number or text each time
        self.seen_unsteady = []  # those of them that were looked at

    def read(self, runner, tensor, how):
        """`how(tensor)`"""
        value, n = _read(runner, tensor, how)
        if n and (holds_numbers(value) if type(value) is np.ndarray else isinstance(value, (float, np.number))):  # others, such as `np.True_`, may be shared
            self.held[id(value)] = value, tensor._key, how, n
            if type(tensor._shp) is not tuple:
                self._open.add(id(value))
        return value

    def knows(self, it):
        """Whether it is a number or array that was read, or calculated of such, or a text that was."""
        return id(it) in self.calculated or (id(it) in self.held and type(it) is not str)

    def read_array(self, runner, tensor):
        """`tensor.numpy()`"""
        return self.read(runner, tensor, _numpy)

    def read_as(self, runner, function, tensor):
        """Returns what a function that asks a question about numbers makes of a tensor first; any other is given the tensor."""
        if function not in _OF_ONE or tensor._shp != () or not tensor.dtype.is_floating:
            return tensor
        return self.read(runner, tensor, _numpy if isinstance(function, np.ufunc) else float)

    def read_last(self, runner, tensor, how, place):
        """Reads what the run gives, at this place, as a function that asks a question about numbers makes of it."""
        value, n = _read(runner, tensor, how)
        self.note_last(place, (value, tensor._key, how, n), None)
        return value

    def note_last(self, place, held, calculated):
        self._lasts[place] = held, calculated

    def forget_last(self, place):
        """Forgets what was read there, as it was not given: something was raised meanwhile."""
        self._lasts.pop(place, None)

    def gives(self, it, places):
        """The run gives `it`, if nothing comes in between, with what was read at these places."""
        self.last = it, {place: self._lasts[place] for place in places if place in self._lasts}

    def compares(self, function, parts):
        """Returns what a comparison of numbers gives, one of which was read and not looked at; None if what it gives does not follow from bounds of that."""
        places = [k for k, x in enumerate(parts) if id(x) in self.held]
        if len(places) != 1 or any(id(x) in self._numbers or id(x) in self.calculated for x in parts):
            return None
        value, key, how, _ = self.held[id(parts[places[0]])]
        if not isinstance(value, (float, np.floating)) or how not in (float, _numpy):
            return None
        answer = function(*parts)
        return answer if self._keeps_within(key, value, _bounds(function, places[0], parts, value, answer)) else None

    def _keeps_within(self, key, value, found):
        """Notes that what was read has to be within bounds that were found, if there are any, and it is."""
        if found is None or not found.low <= float(value) <= found.high:
            return False
        self.bounds[key] = found.meets(self.bounds.get(key, found))
        return True

    def calculates_within(self, function, parts):
        """Returns whether Python calculates this of a number that was read and not looked at, and raises no error as long as that is within some bounds: these are noted then."""
        place = int(function is operator.truediv)  # of the operand on which that depends
        known = self.held.get(id(parts[place])) if place < len(parts) else None
        if known is None or not all(type(x) in (int, float, bool) for k, x in enumerate(parts) if k != place) or not isinstance(known[0], float if function in _OPERATORS else (float, np.floating)) \
                or known[2] not in (float, _numpy) or (function is operator.pow and (self.knows(parts[1]) or id(parts[1]) in self._numbers)):
            return False
        return self._keeps_within(known[1], known[0], _domain(function, parts, float(known[0])))

    def part_for(self, x):
        """Returns what a number, or an array of a known shape, that was not looked at is in a calculation; None if it was."""
        return FetchSource(x) if id(x) in self.calculated or (id(x) in self.held and id(x) not in self._open) else None

    def looked_at(self, value):
        if self.held.pop(id(value), None) is None and id(value) in self.calculated:
            for part in self.calculated.pop(id(value))[3]:
                self.looked_at(part)
        self.of_framework.pop(id(value), None)
        if id(value) in self.unsteady:
            self.seen_unsteady.append(value)
        if id(value) in self._numbers:
            self._seen.add(id(value))

    def all_looked_at(self):
        self.held.clear()
        self.of_framework.clear()

    def drawn(self, array):
        """Where residual calls have given an array that the run gives or keeps; None if they have not."""
        part = self._dynamic.part_for(array)
        return part if type(part) is ResidualSource else None

    def number(self, value):
        """The place, among those that vary, of a number that the run gives or keeps; None if it is none of them."""
        known = self._numbers.get(id(value))
        return None if known is None else known[1]

    def looks_at_numbers(self):
        return self._dynamic.is_looked_at(self._seen)

    def places(self):
        """Where the numbers are that were looked at."""
        return self._dynamic.looked_at(self._seen)

    def times(self, key):
        """How often the value of this key was read so."""
        reads = [*self.held.values()]
        if self.last is not None:
            reads += [held for held, _ in self.last[1].values() if held is not None]
        return sum(n for _, k, _, n in reads if k is key)


_LARGEST = sys.float_info.max
_FINITE, _ORDERED = Within(-_LARGEST, _LARGEST), Within(-math.inf, math.inf)
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}
_OF_ONE = {
    **{f: (False, _ORDERED) for f in (math.isnan, np.isnan)}, **{f: (True, _FINITE) for f in (math.isfinite, np.isfinite)}, **{f: (False, _FINITE) for f in (math.isinf, np.isinf)}}
_OPERATORS = frozenset([operator.truediv, operator.pow])  # of which NumPy's numbers have their own, that warn
_SMALLEST = 5e-324
_DOMAINS = {
    **dict.fromkeys((math.exp, math.expm1), Within(-math.inf, 709.0)), **dict.fromkeys((math.log, math.log2, math.log10), Within(_SMALLEST, math.inf)),
    math.log1p: Within(math.nextafter(-1.0, 0.0), math.inf), math.sqrt: Within(0.0, math.inf), **dict.fromkeys((math.sin, math.cos, math.tan), _FINITE),
    **dict.fromkeys((math.tanh, math.atan, math.fabs, math.erf, math.erfc), _ORDERED)}
_MOST_POWER, _MOST_BASE = 8, 1e38
_KEEPS_PRECISION = int(np.__version__.partition(".")[0]) >= 2  # whether a Python number becomes one of the type of NumPy's number that it is compared with


def _bounds(function, place, parts, value, answer):
    """The bounds within which a number gives this answer, when it is number `place` of the parts; None if that is not so simple, as for one that is no number."""
    if len(parts) == 1:
        expected, bounds = _OF_ONE.get(function, (None, None))
        return bounds if expected is not None and bool(answer) is expected else None
    other = parts[1 - place]
    if function not in _MIRRORED or len(parts) != 2 or type(other) not in (int, float) or math.isnan(value):
        return None
    function = function if place == 0 else _MIRRORED[function]
    try:
        with np.errstate(over="ignore"):
            limit = float(type(value)(other)) if _KEEPS_PRECISION and isinstance(value, np.floating) else float(other)
    except OverflowError:
        return None
    if not math.isfinite(limit) or (limit != other and type(value) is float):  # an integer that is too large
        return None
    if function is operator.gt or function is operator.le:
        above, at = function is operator.gt, limit
    else:  # at least, or less than
        above, at = function is operator.ge, math.nextafter(limit, -math.inf)
    return Within(math.nextafter(at, math.inf), math.inf) if bool(answer) is above else Within(-math.inf, at)


def _domain(function, parts, value):
    """The bounds of numbers like this one, for which such a calculation raises no error and gives a number of the same kind; None if they are not known."""
    if function is operator.truediv:
        return Within(_SMALLEST, math.inf) if value > 0 else Within(-math.inf, -_SMALLEST)
    if function is operator.pow:
        power = parts[1]
        return Within(-_MOST_BASE if power == int(power) else 0.0, _MOST_BASE) if 0 < power <= _MOST_POWER else None
    return _DOMAINS.get(function) if len(parts) == 1 else None


def _numpy(tensor):
    return tensor.numpy()


def _read(runner, tensor, how):
    """(`how(tensor)`, how many reads that takes)"""
    before = runner.step.counts.fetches + len(runner.read_twice)
    value = how(tensor)
    return value, runner.step.counts.fetches + len(runner.read_twice) - before


def replace(running):
    """Makes the function by which Keras makes numbers of its metrics tell of them, and tensors of which a library makes texts; `running()`: the PythonRunner that may skip a call now, or None."""
    if not hasattr(TerraTensor.__format__, "running"):
        TerraTensor.__format__ = _formatting(running)
    if keras.tells_of_metrics():
        replacements.replace_in(keras.PYTHON_UTILS, pythonify_logs=functools.partial(_telling, running))


def _formatting(running):
    def __format__(tensor, spec):
        runner = running()
        if runner is None or tensor._owner is not runner or not policy.is_pure(frames.around_ours(sys._getframe(1)).f_globals.get("__name__")):
            return format(tensor._eager(), spec)

        def how(value):
            return format(value._eager() if type(value) is TerraTensor else value, spec)

        text, n = _read(runner, tensor, how)
        if n:
            runner.note_deferred(text, tensor._key, how, n)
        return text

    __format__.running = running
    return __format__


def _telling(running, original):
    @functools.wraps(original)
    def pythonify_logs(logs):
        runner = running()
        if runner is not None and type(logs) is dict:
            logs = {name: _number(runner, logs[name]) for name in sorted(logs)}  # in the order in which Keras reads them
        return original(logs)

    return pythonify_logs


def _number(runner, x):
    """The number that Keras makes of a metric, if that is late; else the metric itself."""
    if type(x) is not TerraTensor or x._owner is not runner or x._shp != () or not x.dtype.is_floating:
        return x
    value, n = _read(runner, x, float)
    if n:
        runner.note_deferred(value, x._key, float, n)
    return value
