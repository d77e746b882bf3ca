"""Shapes that depend on data: what is known of them before Python reads them, and who gets to see that.

In eager execution a tensor's shape is always known, so TensorFlow's Python asks for it freely; in a step it is a value of the graph's, for which Python would
have to wait. Most of that code only wants to know the rank, or a size that is known anyway: it gets a shape that is read when somebody looks at an
unknown size.

The functions that compute an operation's gradient are written for tf.function, too, and can do without sizes. While they run, tensors show what is known and
no more, as symbolic tensors do: then the gradient of `tf.reduce_mean(tf.boolean_mask(x, mask))` reads nothing at all.
"""

import contextlib
import functools
import sys
from threading import get_ident

from terra.runtime.tensors import size_readers
from terra.runtime.tensors.comparing import fictitious_shapes
from terra.tf import private_names as tfi
from terra.tf.private import replacements

OPENS = "PlaceholderWithDefault"  # the operation that passes a tensor on, and hides sizes of it

_ALL = slice(None)
_showing = []  # the threads on which gradient functions run, once for each


class PartialShape(tuple):
    """A shape of which some sizes depend on data: those are None."""

    __slots__ = ()


class PartialValue(tuple):
    """(dtype enum, shape, numbers) of integers of which some are not known: those are None."""

    __slots__ = ()


def shape_of(sizes):
    """The shape with these sizes, None where one is not known: a tuple, or a PartialShape."""
    return (PartialShape if None in sizes else tuple)(sizes)


def common(sizes, known):
    """The sizes that are as they were `known`, None for those that are not."""
    return [b if a == b else None for a, b in zip(sizes, known)]


def fits(sizes, known):
    """Returns whether a shape has all sizes that are known of it."""
    return len(sizes) == len(known) and all([b is None or a == b for a, b in zip(sizes, known)])


def is_shape(key):
    """Returns whether it is a shape of known rank."""
    return type(key) is tuple or type(key) is PartialShape


def _is_known(sizes):
    """Returns whether a size, or all in a slice of a shape, are known."""
    return sizes is not None and (type(sizes) is not tuple or None not in sizes)


class LazyShape(tuple):
    """The shape of a tensor as a tuple, or a part of it: sizes that depend on data are read when they are looked at."""

    def __new__(cls, known, tensor, part=_ALL):
        made = tuple.__new__(cls, known)
        made.tensor, made.part = tensor, part
        return made

    def _read(self):
        return self.tensor._read_shape()[self.part]

    def _fictitious(self):
        return tuple([None if shape is None else shape[self.part] for shape in fictitious_shapes(self.tensor)])

    def _known(self):
        """Its sizes, None for those that are not known."""
        known, (shape, other) = tuple(tuple.__iter__(self)), self._fictitious()
        return known if shape is None else tuple([a if d is None and a == b else d for d, a, b in zip(known, shape, other)])

    def __iter__(self):
        frame, known = sys._getframe(1), self._known()
        seen = known if None not in known else size_readers.seen_by(self.tensor, known, frame) if self.part is _ALL else None
        if seen is None and frame.f_code is _DIMS:
            seen = [LazyDimension(self, k) if d is None else d for k, d in enumerate(known)]
        elif seen is None and frame.f_code is _DEFINED:  # each size is known
            seen = ()
        elif seen is None and frame.f_code is _COMPATIBLE and are_equal(frame.f_locals["self"]._dims, frame.f_locals["other"]._dims):
            seen = known
        return iter(self._read() if seen is None else seen)

    def __getitem__(self, index):
        found = tuple.__getitem__(self, index)
        if not _is_known(found):
            known = self._known()
            found = known[index]
            if not _is_known(found):
                seen = size_readers.item_seen_by(self.tensor, known, index, sys._getframe(1)) if self.part is _ALL else None
                if seen is None and type(index) is slice and self.part is _ALL:
                    return LazyShape(found, self.tensor, index)
                return self._read()[index] if seen is None else seen
        return found

    def __reduce__(self):
        return tuple, (self._read(),)

    def __hash__(self):
        return hash(self._read())


class LazyDimension(tfi.tensor_shape.Dimension):
    """A size that depends on data as a dimension: it is read when it is looked at."""

    __slots__ = ("_shape", "_index")

    def __init__(self, shape, index):
        self._shape, self._index = shape, index

    @property
    def _value(self):
        return self._shape._read()[self._index]


_DIMS, _COMPATIBLE, _DEFINED = (
    tfi.tensor_shape.TensorShape.dims.fget.__code__, tfi.tensor_shape.TensorShape.is_compatible_with.__code__, tfi.tensor_shape.TensorShape.is_fully_defined.__code__)


def are_equal(a, b):
    """Whether two shapes, tuples or `LazyShape`s, are equal; None if that cannot be told without reading a size."""
    if not (isinstance(a, tuple) and isinstance(b, tuple)):
        return None
    if len(a) != len(b):
        return False
    known, other = (x._known() if type(x) is LazyShape else x for x in (a, b))
    if any(x is not None and y is not None and x != y for x, y in zip(known, other)):
        return False
    if _is_known(known) and _is_known(other):
        return True
    if type(a) is not LazyShape or type(b) is not LazyShape or a.tensor._owner is not b.tensor._owner:
        return None
    shapes = a._fictitious()
    return True if (a.tensor is b.tensor and a.part == b.part) or (None not in shapes and shapes == b._fictitious()) else None


def _reading(name):
    def method(self, *operands):
        if name in ("__eq__", "__ne__") and len(operands) == 1:
            equal = are_equal(self, operands[0])
            if equal is not None:
                return equal is (name == "__eq__")
        if operands == (None,) and name in ("__eq__", "__ne__"):  # the sizes of no shape at all
            return NotImplemented
        return getattr(self._read(), name)(*[x._read() if type(x) is LazyShape else x for x in operands])

    method.__name__ = name
    return method


for _name in ("contains", "eq", "ne", "lt", "le", "gt", "ge", "add", "mul", "rmul", "repr", "str"):
    setattr(LazyShape, f"__{_name}__", _reading(f"__{_name}__"))
for _name in ("count", "index"):
    setattr(LazyShape, _name, _reading(_name))
LazyShape.__radd__ = lambda self, other: other + self._read()


def tensor_shape(dims):
    """The TensorShape with these sizes, which may be a `LazyShape`."""
    made = tfi.tensor_shape.TensorShape(None)
    made._dims = dims
    return made


class _Sizes:
    """A vector of integers whose values are sizes, for a `LazyShape`."""

    __slots__ = ("_vector",)
    _owner = None

    def __init__(self, vector):
        self._vector = vector

    def _read_shape(self):
        return tuple(self._vector.numpy().tolist())


def shape_given_by(vector, known):
    """The TensorShape whose sizes a tensor holds: `known`, None for those that are read when they are looked at."""
    return tensor_shape(LazyShape(known, _Sizes(vector), slice(None)) if None in known else tuple(known))


def known_sizes(shape):
    """The sizes of a TensorShape, None for those that are not known; None if its rank is not known."""
    return shape._dims._known() if type(shape._dims) is LazyShape else shape._dims


def _item(original):
    @functools.wraps(original)
    def __getitem__(self, key):
        if type(self._dims) is not LazyShape:
            return original(self, key)
        found = self._dims[key]
        return tensor_shape(found) if type(key) is slice else found

    return __getitem__


replacements.replace_shape_items(_item)


def shows_unknown_sizes():
    """Returns whether unknown sizes are None now, and not read."""
    return bool(_showing) and get_ident() in _showing


@contextlib.contextmanager
def shown():
    """Unknown sizes are None inside."""
    _showing.append(get_ident())
    try:
        yield
    finally:
        _showing.remove(get_ident())


@contextlib.contextmanager
def read():
    """Unknown sizes are read inside, as they are elsewhere, also if they are None around."""
    ident = get_ident()
    times = _showing.count(ident)
    for _ in range(times):
        _showing.remove(ident)
    try:
        yield
    finally:
        _showing.extend([ident] * times)


def has_for_sure(tensor, shape):
    """Returns whether a tensor of this step, of whose shape not all is known, has the `shape`, given as a TensorShape or a list, for sure."""
    if type(shape) is tfi.tensor_shape.TensorShape and type(shape._dims) is LazyShape:
        return tensor._shp is not None and are_equal(shape._dims, LazyShape(tensor._shp, tensor)) is True
    return is_known_to_be(tensor._shp, shape)


def is_known_to_be(known, shape):
    """Returns whether a tensor of which this is known has the `shape`, given as a TensorShape or a list, for sure."""
    if type(known) is not PartialShape or not (type(shape) is tfi.tensor_shape.TensorShape and shape.rank is not None or isinstance(shape, (list, tuple))):
        return False
    return len(known) == len(shape) and all(b is None or (type(b) is int and a == b) for a, b in zip(known, shape))


def merged(known, other):
    """Joins two descriptions of one shape to all that is known of it: a tuple, or a PartialShape or None. (`known` is the PartialShape or None that
    was known before.)"""
    if known is None or other is None or len(known) != len(other):
        return other if known is None else known
    return shape_of([b if a is None else a for a, b in zip(known, other)])
