"""Dynamic values: what a step is given that is another one each time without being a tensor: arrays among its arguments, and numbers.

A run of the step's code that gives an array to nothing but calls that make a tensor of it first thing, and with a number does nothing but to calculate, until it is an operand of a tensor,
would do the same with any other. So tensors stand for them, which are among the inputs of what is recorded (see `pure_functions`).

A number is a float, Python's or NumPy's, or an integer: an argument, an attribute, an item of a list or dict, or what a closure holds. That it varies is known once it has. Python gives no account of what becomes of a
float, but each calculation makes a new object: before a run that is observed, each number is replaced by an object of its own with the same value, so that it is known again
wherever the run uses it; and so are those that are calculated of it. (So it is with integers, also with those of which Python has one object each: see `integers`.)
"""

from typing import NamedTuple

import numpy as np

from terra.runtime.execution.arguments.open_arrays import stand_in
from terra.runtime.fast_forward.sources.number_sources import KINDS, ComputedSource, ConstantNumber, CounterSource, NumberPredicate, StorageSource, can_be_told, is_large
from terra.runtime.fast_forward.sources.late_values import OpaqueNumbers
from terra.runtime.fast_forward.sources.opaque_calls import Result
from terra.runtime.fast_forward.sources.value_sources import ResidualSource, ArgumentSource, NumberSource
from terra.runtime.interpreter import integers
from terra.runtime.tensors.tensor import alias_of, is_unread, noted, tensor_of
from terra.tf import private_names as tfi

A_NUMBER = object()  # in a signature, in the place of a number's value


def may_vary(value):
    """Whether it is a number of a kind that is followed wherever it is given to."""
    return type(value) in KINDS or is_large(value)


class ArrayAsIs(NamedTuple):
    """A residual call that gives one of these arrays as it is."""

    given: ArgumentSource
    kind: tuple
    size = 1
    takes = draws = False

    def make(self, values, arrays, number):
        return arrays[self.given.index]


class Becomes:
    """The right operand of an assignment in place whose result is known: it gives that to whatever number or array is on the left."""

    __slots__ = ("value",)
    __array_priority__ = float("inf")  # arrays leave it to this, too

    def __init__(self, value):
        self.value = value

    def __radd__(self, other):
        return self.value

    __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __radd__


def tensor_for(use, tensors, numbers, drawn):
    """The tensor of an entry of `DynamicValues.repeated`; None if it is known later only."""
    if type(use) is int:
        return tensors[use]
    if type(use) is ResidualSource:
        x = drawn[use.index]
        return x if type(x) is tfi.EagerTensor else tfi.eager_constant(x, None)
    of, dtype = use
    if type(of) is Result:
        return None
    return tfi.eager_constant(drawn[of.index] if type(of) is ResidualSource else numbers[of], dtype)


class DynamicValues(OpaqueNumbers):
    """Holds what varies of one call of the step's function, and the tensors that stand for it.

    Each use has a tensor of its own: there are as many for an array, or a number, as the run uses it times.

    `numbers`: {identity: Place} of those that are known to vary, `integers`: the same of integers; `given`: the arguments.
    """

    def __init__(self, step, inputs, numbers, integers, given):
        super().__init__(step, inputs)
        self._tensors = {}  # id of an array -> (it, its first tensor, place of that among the `Inputs`)
        self._open = {}  # id -> array, of those whose sizes are left unknown: what stands for them is there when the step begins (see `open_arrays`)
        self._used = set()  # these places, of those that were used already
        # In `repeated`, there is for each further use one of these, or `ResidualSource`, or (`ResidualSource`, `Result` or the place of a number among the sources, type of the tensor).
        self.calls = []  # the live ones
        self._n_drawn = 0  # how much they have given
        self._drawn = {}  # id of an array that they have given -> (it, `ResidualSource`)
        self._given = given
        self.places = {identity: place for identity, place in numbers.items() if place.holds_number(given)}
        self.integers = integers
        self.numbers = {}  # id of a float that varies -> (it, its place among the sources)
        self.sources = []  # a `StorageSource` or `ComputedSource` for each, and each `CounterSource` that they are calculated of

    def __contains__(self, array):
        return id(array) in self._tensors or id(array) in self._open or id(array) in self._drawn or super().__contains__(array)

    def is_open(self, array):
        return id(array) in self._open

    def ids(self):
        return {*self._tensors, *self._open}

    @property
    def has_arrays(self):
        """Whether arrays vary."""
        return bool(self._tensors or self._open or self._drawn or self._late)

    def arrays(self):
        """The arrays among the arguments, each once."""
        return [array for array, _, _ in self._tensors.values()]

    def part_for(self, x):
        """Returns what an array, or a number, that varies is in a calculation; None if it is none."""
        if id(x) in self._drawn:
            return self._drawn[id(x)][1]
        if id(x) in self._tensors:
            return ArgumentSource(list(self._tensors).index(id(x)))
        known = self.numbers.get(id(x))
        if known is None:
            return None
        source = self.sources[known[1]]
        return source if type(source) is ResidualSource else NumberSource(known[1])

    def describe(self, runner, array, found):
        known = self._tensors.get(id(array))
        if known is not None:
            found.append(("again", known[2]))
            return
        stand_ins = [use.stand_in for use in self._step.open_uses.values() if use.array is array]
        if stand_ins:
            self._open[id(array)] = array
            for made in stand_ins:
                self._inputs.describe(runner, made, found)
            return
        made = self._step.hold_data(tensor_of(array))
        self._tensors[id(array)] = array, made, len(self._inputs.external)
        self._inputs.describe(runner, made, found)

    def repeat(self, uses, numbers, drawn):
        """Gives the inputs what a run had that used the arrays, these numbers, and what residual calls have given, in these ways."""
        external = self._inputs.external
        del external[len(external) - len(self.repeated):]
        self.repeated = list(uses)
        self._inputs.numbers, self._inputs.drawn, self._inputs.arrays = numbers, drawn, self.arrays()
        for use in uses:
            made = tensor_for(use, external, numbers, drawn)
            external.append(alias_of(made) if type(use) is int else made if made is None else self._step.hold_data(noted(made)))

    def tensor_of(self, array, dtype=None):
        """The same; None also if the contents of the array have changed."""
        if id(array) in self._open:
            made = stand_in(self._step, array, dtype)
            self._converted += made is not None
            return made
        if id(array) in self._tensors and dtype is not None:
            self.drawn(ArrayAsIs(ArgumentSource(list(self._tensors).index(id(array))), (np.ndarray, array.dtype, array.shape)), [array])
        if id(array) in self._drawn:
            self._converted += 1
            use = self._drawn[id(array)][1]
            made = self._stand_in(tfi.eager_constant(array, dtype), use if dtype is None else (use, dtype))
            self._made.append((made, None))
            return made
        known = self._tensors.get(id(array))
        if known is None:
            return super().tensor_of(array, dtype)
        self._converted += 1
        _, made, place = known
        if made._value._numpy_internal().tobytes() != array.tobytes():
            return None  # a tensor that is made of it now makes the run one of its own
        if place in self._used:
            made = self._step.hold_data(alias_of(made))
            self._inputs.external.append(made)
            self.repeated.append(place)
        self._used.add(place)
        return made

    # -- numbers ---------------------------------------------------------------------------------------------------------------

    def renewed(self):
        """The arguments, with numbers that are objects of their own; those elsewhere are replaced where they are."""
        given = list(self._given)
        for place in self.places.values():
            number = self._number(place.value(given), place)
            if place.holder is None:
                given[place.key] = number
            else:
                place.put(number)
        return given

    def _number(self, value, source):
        """An object of its own for a number."""
        number = value * 1.0 if type(value) is float else integers.own(value) if type(value) is int else value.copy()
        self.numbers[id(number)] = number, len(self.sources)
        self.sources.append(source)
        return number

    def _part(self, x):
        """Returns what a number is calculated of; None if it is not known to be one."""
        known = self.numbers.get(id(x)) if type(x) is float or type(x) is int else None
        return known[1] if known is not None else ConstantNumber(type(x), x) if type(x) is float or type(x) is int else None

    def calculates(self, function, parts):
        """Returns what `function`, without side effects, gives for these numbers, if some of them vary, and it is a number; else None."""
        if not any(id(x) in self.numbers for x in parts):
            return None
        known = tuple(map(self._part, parts))
        if None in known:
            return None
        try:
            value = function(*parts)
        except (ArithmeticError, ValueError, TypeError):
            return None  # it will be raised again
        return self._number(value, ComputedSource(function, known, type(value))) if type(value) is float or can_be_told(value) else None

    def answers(self, function, parts):
        """Returns what `function` tells of these numbers, if one of them varies and it is True or False; else None."""
        if not any(id(x) in self.numbers for x in parts):
            return None
        known = tuple(map(self._part, parts))
        answer = function(*parts) if None not in known else None
        if type(answer) is not bool:
            return None
        self.sources.append(NumberPredicate(function, known, answer))
        return answer

    def counter(self, owner, name, value, more):
        """A number that stands for what a counter is now, which is handed on; None if it cannot be told from others."""
        return self._number(value, CounterSource(owner, name, more)) if can_be_told(value) else None

    def is_place(self, holder, key):
        """Whether a number that varies is there."""
        return (id(holder), key) in self.places or (id(holder), key) in self.integers

    def counts(self, function, asked):
        """Returns what `function` gives of counters, and numbers that vary, see `Observer._what_varies`, if it is a float or an integer; else None."""
        parts, counts = [], []
        for value, place in asked:
            if place is None:
                parts.append(self._part(value))
            elif place[2] is None:
                parts.append(self._part(value))  # it stands there itself
            else:
                counts.append(CounterSource(*place))
                parts.append(len(self.sources) + len(counts) - 1)
        try:
            value = function(*[value for value, _ in asked])
        except (ArithmeticError, ValueError, TypeError):
            return None
        if type(value) is not float and not can_be_told(value):
            return None
        self.sources += counts
        return self._number(value, ComputedSource(function, tuple(parts), type(value)))

    def tensor(self, number, dtype):
        """A tensor of this type that stands for a number that varies; anything else is given back."""
        known = self.numbers.get(id(number))
        if known is None or not dtype.is_floating or tfi.promotes():
            return number
        made = self._stand_in(tfi.eager_constant(number, dtype), (known[1], dtype))
        self._made.append((made, known[1]))
        return made

    def _stand_in(self, tensor, use):
        made = self._step.hold_data(noted(tensor))
        self._inputs.external.append(made)
        self.repeated.append(use)
        return made

    def drawn(self, call, given):
        """A residual call gave these values: what stands for them."""
        self.calls.append(call)
        parts = []
        for x in given:
            place = ResidualSource(self._n_drawn)
            self._n_drawn += 1
            if type(x) in KINDS:
                x = self._number(x, place)
            elif type(x) is tfi.EagerTensor:
                x = self._stand_in(x, place)
                self._made.append((x, None))
            else:
                self._drawn[id(x)] = x, place
            parts.append(x)
        return parts

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def is_looked_at(self, ids):
        """Whether it matters what a number is, or what is in an element: Python has looked at these objects, or at a tensor of one."""
        return not ids.isdisjoint(self.numbers) or not all(is_unread(made) for made, _ in self._made)

    def looked_at(self, ids):
        """Places of the numbers that matter."""
        found = []
        todo = [k for key, (_, k) in self.numbers.items() if key in ids] + [k for made, k in self._made if k is not None and not is_unread(made)]
        while todo:
            source = self.sources[todo.pop()]
            if type(source) is StorageSource:
                found.append(source)
            elif type(source) is ComputedSource:
                todo += [part for part in source.parts if type(part) is int]
        return found

    def why_needed(self):
        if not all(is_unread(made) for _, made, _ in self._tensors.values()):  # aliases have the same owner
            return "reads the value of a tensor made of an array that is an argument"
        return super().why_needed()
