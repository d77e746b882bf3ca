"""The arguments of a detached step: what those of another step must be like, and which tensors and arrays are among them."""

from operator import is_

import numpy as np

from terra.runtime.execution.graph_runner import Flight
from terra.runtime.fast_forward.steps.early_effects import Refused
from terra.runtime.fast_forward.steps.running import Ran
from terra.runtime.tensors.comparing import OTHER, SCALARS, attached
from terra.runtime.tensors.open_shapes import PartialShape, fits
from terra.runtime.tensors.tensor import TerraTensor, holds_numbers
from terra.runtime.tracing.tracer import real
from terra.tf.private import composites
from terra.tf import opschema, private_names as tfi
from terra.tf.constants import RESOURCE_ENUM, const_key

EagerTensor = tfi.EagerTensor
OWNERS = frozenset([Flight, Ran])  # of tensors that earlier steps gave, until their values are known
_TENSOR, _SAME, _SCALAR, _NESTED, _MAPPING, _ARRAY, _NUMBER, _COMPOSITE, _SHAPE, _OPEN = range(10)


class GivenArguments:
    """Keeps what is known of the arguments `given` of a step. Raises `Refused` if others cannot be told to be like them.

    numbers: the positions of those that are numbers which vary. keep: what the step's record tells apart by its identity. once: whether an array must
    come once only.

    equal: pairs of (index of a tensor, axis) whose sizes, which are unknown, must be equal.
    pattern: for `fit`. n_tensors, n_arrays: how many are among them. open_uses: (number among the arrays with unknown sizes, type) of each tensor that is made of one. by_value: [(False, index of a tensor, what identifies its value)].
    """

    def __init__(self, step, given, numbers, keep, once):
        self._keep, self._once, self._open = keep, once, []
        self._tensors, self._arrays, self.by_value = [], [], []
        self.pattern = [self._pattern_of(x, step) if k not in numbers else (_NUMBER, None, None) for k, x in enumerate(given)]
        uses, n = [*step.open_uses.values()], len(self._tensors)
        if not (_are(self._tensors, step.arg_list[:n]) and _are([use.tensor for use in uses], step.arg_list[n:])) or len(self._arrays) + len(self._open) != len(step.arrays):
            raise Refused
        self.open_uses = [(_number_of(use.array, self._open), use.dtype) for use in uses]
        self.n_tensors, self.n_arrays = len(step.arg_list), len(self._arrays)
        self.equal = [(first, place) for place, first in step.same_sizes.items() if first != place]

    def _pattern_of(self, x, step):
        kind = type(x)
        if kind is EagerTensor or kind is TerraTensor:
            index = _number_of(x, self._tensors)
            enum, shape = x._datatype_enum(), x._shape_tuple()
            marked = attached(vars(x))
            if marked is OTHER or type(shape) is not tuple or enum == RESOURCE_ENUM:
                raise Refused
            if index == len(self._tensors):
                self._tensors.append(x)
                if shape == () and enum in opschema.HOST_KNOWN_ENUMS and index not in step.partial_values:  # Python may branch on it
                    self.by_value.append((False, index, const_key(real(x), enum, shape)))
            return _TENSOR, index, (enum, step.partial_shapes.get(index, shape), marked)
        if kind is np.ndarray and (shape := next((step.partial_shapes.get(k) for k, use in step.open_uses.items() if use.array is x), None)) is not None:
            index = _number_of(x, self._open)
            if index == len(self._open):
                self._open.append(x)
            return _OPEN, index, (x.dtype, shape)
        if kind is np.ndarray and holds_numbers(x):
            index = _number_of(x, self._arrays)
            if index == len(self._arrays):
                self._arrays.append(x)
            elif self._once:  # Keras' step makes two tensors of it
                raise Refused
            return _ARRAY, index, (x.dtype, x.shape)
        if kind in SCALARS:
            if kind is float and x == 0.0:  # 0.0 == -0.0
                raise Refused
            return _SCALAR, kind, x
        if kind is tuple or kind is list:
            return _NESTED, kind, [self._pattern_of(y, step) for y in x]
        if kind is dict and all(type(name) is str for name in x):
            return _MAPPING, tuple(x), [self._pattern_of(y, step) for y in x.values()]
        if composites.is_composite(kind):
            parts = [self._pattern_of(y, step) for y in composites.composite_parts(x)]
            for sizes in composites.vectors_of_sizes([x]):
                known = step.partial_values.get(_number_of(sizes, step.arg_list))
                if known is not None:
                    parts[-1] = *parts[-1][:2], known
            return _COMPOSITE, kind, parts
        if kind is tfi.tensor_shape.TensorShape and x.rank is not None:
            return _SHAPE, kind, x.as_list()
        if x is None or kind is bool or any(x is kept for kept in self._keep):  # it was told apart by its identity
            return _SAME, x, None
        raise Refused


def _are(found, expected):
    return len(found) == len(expected) and all(map(is_, found, expected))


def fit(pattern, open_uses, given, tensors, arrays):
    """Whether these are the arguments that were prepared for; appends the tensors and the arrays among them, each once, and the tensors that are made of arrays with unknown sizes."""
    opened = []
    if not _match(pattern, given, tensors, arrays, opened):
        return False
    tensors += [tfi.eager_constant(opened[k], dtype) for k, dtype in open_uses]
    return True


def _match(pattern, given, tensors, arrays, opened):
    if len(pattern) != len(given):
        return False
    for (kind, a, b), x in zip(pattern, given):
        if kind == _TENSOR:
            if type(x) is EagerTensor:
                shape, enum = x._shape_tuple(), x._datatype_enum()
            elif type(x) is TerraTensor and type(x._shp) is tuple and (x._value is not None or type(x._owner) in OWNERS):
                shape, enum = x._shp, x._enum
            else:
                return False
            if (shape != b[1] and not _is_one_of(shape, b[1])) or enum != b[0] or attached(x.__dict__) is not b[2]:
                return False
            if not _is_number(a, x, tensors):
                return False
        elif kind == _SAME:
            if x is not a:
                return False
        elif kind == _SCALAR:
            if type(x) is not a or x != b:
                return False
        elif kind == _ARRAY:
            if type(x) is not np.ndarray or x.dtype != b[0] or x.shape != b[1] or not _is_number(a, x, arrays):
                return False
        elif kind == _OPEN:
            if type(x) is not np.ndarray or x.dtype != b[0] or not _is_one_of(x.shape, b[1]) or not _is_number(a, x, opened):
                return False
        elif kind == _NESTED:
            if type(x) is not a or not _match(b, x, tensors, arrays, opened):
                return False
        elif kind == _COMPOSITE:
            if type(x) is not a or not _match(b, composites.composite_parts(x), tensors, arrays, opened):
                return False
        elif kind == _SHAPE:
            if type(x) is not a or x.rank != len(b) or not fits(x.as_list(), b):
                return False
        elif kind == _NUMBER:
            pass  # it is looked at later
        elif type(x) is not dict or tuple(x) != a or not _match(b, x.values(), tensors, arrays, opened):
            return False
    return True


def _is_one_of(shape, known):
    """Whether it is a shape that fits this PartialShape."""
    return type(known) is PartialShape and fits(shape, known)


def _number_of(x, found):
    """The place of an object among those that were found, or behind them."""
    return next((k for k, other in enumerate(found) if other is x), len(found))


def _is_number(index, x, found):
    """Whether an object is the one of this number; a new one is appended."""
    if index < len(found):
        return found[index] is x
    for other in found:
        if other is x:
            return False
    found.append(x)
    return True
