"""What the observer makes of calculations on arrays that vary, see `array_calculations`."""

import operator

import numpy as np

from terra.runtime.array_calculations import Calculation, Kept, Nested, calculate, is_fixed, strictly, writes
from terra.runtime.live_calls import kind_of
from terra.runtime.step import holds_numbers
from terra.runtime.varying import KINDS

_NOT_KNOWN = object()
_NUMBERS = frozenset([np.float64, np.float32])


class Arrays:
    """The part of the Observer for arrays that vary."""

    def by_numpy(self, function, args, kwargs={}):  # noqa: B006 (it is not changed)
        """What a function that does nothing but calculate, or a method of the first argument, gives of arrays and numbers of which one varies: an array, or a number, that varies, too. None if that
        is not known."""
        varying = self._varying
        if self.reason is not None or not (varying.has_arrays or varying.numbers) or writes(function, args, kwargs):
            return None
        found, sources = [], []
        parts = tuple([self._part_of(x, found, sources) for x in args])
        named = tuple([(name, self._part_of(x, found, sources)) for name, x in kwargs.items()])
        if not sources or any(part is _NOT_KNOWN for part in (*parts, *dict(named).values())):
            return None
        try:
            with strictly():
                value = calculate(function, args, kwargs)
        except Exception:  # the code itself is to raise it, or to be warned
            return None
        if type(value) not in KINDS and (type(value) is not np.ndarray or not holds_numbers(value) or not value.size):
            return None
        self._numpy()
        for x in found:
            self.late.looked_at(x)
        if any(value is x for x in found):
            return value
        return varying.drawn(Calculation(function, parts, named, kind_of(value)), [value])[0]

    def is_numpys(self, x):
        """Whether it is an array, or a number of NumPy's that varies."""
        kind = type(x)
        return kind is np.ndarray or (kind in _NUMBERS and self._varying.part_for(x) is not None)

    def looks_at_shape(self, array):
        """Python looks at the shape or the type of an array: those of arrays that vary are the same in each run."""
        self.late.looked_at(array)
        if array not in self._varying and id(array) not in self._born:
            self.reads.asked(_type_and_shape, array, _type_and_shape(array))

    def item_of_array(self, array, index):
        """An item or slice of an array."""
        value = self.by_numpy(operator.getitem, (array, index))
        if value is None:
            self.container(array)
            return array[index]
        self._varying.given -= sum(type(x) is np.ndarray and x in self._varying for x in (index if type(index) is tuple else (index,)))  # `index` has counted them
        return value

    def _part_of(self, x, found, sources):
        """What stands for an argument in a `Calculation`. Arrays and fixed values in it are appended to what was found, whatever varies to the sources."""
        kind = type(x)
        if kind is list or kind is tuple:
            self._look_into(x)
            parts = tuple([self._part_of(y, found, sources) for y in x])
            return _NOT_KNOWN if any(part is _NOT_KNOWN for part in parts) else Nested(kind, parts)
        source = self._varying.part_for(x)
        if source is not None:
            sources.append(source)
        elif kind is np.ndarray:
            source = Kept(x)
        else:
            source = x if is_fixed(x) else _NOT_KNOWN
        if source is x or kind is np.ndarray:
            found.append(x)
        return source


def _type_and_shape(array):
    return f"{array.dtype.str}{array.shape}"


class Indexed:
    """Stands in for an array of which an item or slice is taken."""

    __slots__ = ("_observer", "_array")

    def __init__(self, observer, array):
        self._observer, self._array = observer, array

    def __getitem__(self, index):
        return self._observer.item_of_array(self._array, index)
