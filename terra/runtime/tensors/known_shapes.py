"""Learns more of the shape of a result of the framework's than its last operation tells.

Keras writes products of tensors as a product of matrices and reshapes that; where one of its sizes is not known, the reshaping hides the others. And
TensorFlow fills a shape with ones, which is one tensor for the operation.
"""

import functools

from terra.frameworks import keras
from terra.runtime.tensors.open_shapes import is_shape, merged, shape_of
from terra.runtime.tensors.tensor import TerraTensor, has_open_shape
from terra.tf.private import replacements


def replace():
    """Replaces Keras' `einsum` and `reshape`, and TensorFlow's `ones_like`, by ones that tell what they know of their results' shapes."""
    replacements.replace_in(keras.BACKEND_NUMPY, einsum=_einsum, reshape=_reshape)
    replacements.replace_ones_like(_ones_like)


def _reshape(original):
    @functools.wraps(original)
    def reshape(x, newshape):
        result = original(x, newshape)
        if has_open_shape(result) and isinstance(newshape, (list, tuple)):
            result._shp = merged(result._shp, shape_of([size if type(size) is int and size >= 0 else None for size in newshape]))
        return result

    return reshape


def _ones_like(original):
    @functools.wraps(original)
    def ones_like(tensor, *args, **kwargs):
        result = original(tensor, *args, **kwargs)
        if has_open_shape(result) and type(tensor) is TerraTensor:
            result._shp = merged(result._shp, tensor._shp)
        return result

    return ones_like


def _einsum(original):
    @functools.wraps(original)
    def einsum(subscripts, *operands, **kwargs):
        result = original(subscripts, *operands, **kwargs)
        if has_open_shape(result) and type(subscripts) is str and "->" in subscripts and "." not in subscripts:
            inputs, _, output = subscripts.replace(" ", "").partition("->")
            sizes = {}
            for labels, x in zip(inputs.split(","), operands):
                for label, size in zip(labels, known_sizes(x)):
                    sizes.setdefault(label, set()).add(size)
            result._shp = merged(result._shp, shape_of([_common(sizes.get(label, ())) for label in output]))
        return result

    return einsum


def _common(sizes):
    """Returns the size of a result where those of the factors are these (None for one that is not known); None if that cannot be told: a size of 1 fits any."""
    known = set(sizes) - {None, 1}
    return known.pop() if len(known) == 1 else 1 if sizes == {1} else None


def known_sizes(x):
    """The sizes of a tensor as far as they are known."""
    shape = x._shp if type(x) is TerraTensor else tuple(x.shape)
    return shape if is_shape(shape) else ()
