"""Kinds of objects that the observer knows to be harmless."""

import itertools
from types import GeneratorType

from terra.runtime import internals as tfi
from terra.runtime.regions import SCALARS
from terra.runtime.tensor import TerraTensor

TENSORS = frozenset([TerraTensor, tfi.EagerTensor])
PLAIN = frozenset([*SCALARS, complex, slice, range, type(Ellipsis), type(NotImplemented), tfi.tensor_shape.TensorShape, tfi.tf.DType])  # immutable
LISTS = frozenset([list, dict, set, frozenset])
ITERATORS = frozenset([
    zip, enumerate, map, filter, reversed, GeneratorType, itertools.chain, itertools.islice, itertools.product, itertools.repeat,
    *(type(iter(x)) for x in ([], (), {}, range(0), "", {}.items(), {}.values())), type(reversed([])), type({}.keys()), type({}.values()), type({}.items())])


def is_frameworks(function):
    """Whether a Python function is TensorFlow's or Keras' own."""
    space = getattr(function, "__globals__", None)
    return space is not None and str(space.get("__name__")).split(".", 1)[0] in ("tensorflow", "keras", "tf_keras")
