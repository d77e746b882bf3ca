"""Shapes that depend on data: what is known of them before Python reads them, and who gets to see that.

In eager execution a tensor's shape is always known, so TensorFlow's Python asks for it freely; in a step it is a value of the graph's, for which Python would
have to wait. Most of that code only wants to know the rank, or a size that is known anyway: it gets a shape that is read when somebody looks at an
unknown size.

The functions that compute an operation's gradient are written for tf.function, too, and can do without sizes. While they run, tensors show what is known and
no more, as symbolic tensors do: then the gradient of `tf.reduce_mean(tf.boolean_mask(x, mask))` reads nothing at all.
"""

import contextlib
import sys
from threading import get_ident

from terra.runtime.tensors import size_readers
from terra.tf import private_names as tfi

OPENS = "PlaceholderWithDefault"  # the operation that passes a tensor on, and hides sizes of it

_showing = []  # the threads on which gradient functions run, once for each


class PartialShape(tuple):
    """A shape of which some sizes depend on data: those are None."""

    __slots__ = ()


def shape_of(sizes):
    """The shape with these sizes, None where one is not known: a tuple, or a PartialShape."""
    return (PartialShape if None in sizes else tuple)(sizes)


def is_shape(key):
    """Returns whether it is a shape of known rank."""
    return type(key) is tuple or type(key) is PartialShape


class LazyShape(tuple):
    """The shape of a tensor as a tuple: sizes that depend on data are read when they are looked at."""

    def __new__(cls, known, tensor):
        made = tuple.__new__(cls, known)
        made.tensor = tensor
        return made

    def _read(self):
        return self.tensor._read_shape()

    def __iter__(self):
        seen = size_readers.seen_by(self.tensor, tuple(tuple.__iter__(self)), sys._getframe(1))
        return iter(self._read() if seen is None else seen)

    def __getitem__(self, index):
        known = tuple.__getitem__(self, index)
        is_unknown = known is None if type(known) is not tuple else tuple.__contains__(known, None)
        if not is_unknown:
            return known
        seen = size_readers.item_seen_by(self.tensor, tuple(tuple.__iter__(self)), index, sys._getframe(1))
        return self._read()[index] if seen is None else seen

    def __reduce__(self):
        return tuple, (self._read(),)

    def __hash__(self):
        return hash(self._read())


def _reading(name):
    def method(self, *operands):
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
