"""Output shapes of the commonest operations, told in Python where all input shapes are known.

A new batch size or sequence length asks for the shapes of each operation of a step once; TensorFlow's own shape functions (see `shape_inference`) take some
100 to 300 us for each, these rules a few. A rule says the same as the shape function, or nothing (None): then that is asked, which also finds what is wrong.
It is entered in `_RULES`, below. An attribute that was left out is not in `attrs`: `attrs["x"]` then says nothing, `attrs.get("x", default)` goes on.

The key of an input is its shape, or (dtype enum, shape, bytes) where its value is known, or None or a list-like where its shape depends on data.
"""

import math

import numpy as np

from terra.graph.trace import is_value
from terra.tf import private_names as tfi

_INTEGERS = {tfi.dtypes.int32.as_datatype_enum: np.int32, tfi.dtypes.int64.as_datatype_enum: np.int64}
_NOTHING = np.zeros(())


class _Unknown(Exception):
    """The rule does not cover the case."""


def output_shapes(op_type, attrs, keys):
    """The shapes of an operation's outputs, tuples of ints; None if no rule tells them."""
    rule = _RULES.get(op_type)
    if rule is None:
        return None
    try:
        return rule(attrs, keys)
    except (_Unknown, KeyError):  # an attribute that was left out has its default
        return None


def covered():
    """Returns the operations that there are rules for."""
    return frozenset(_RULES)


def _need(holds):
    if not holds:
        raise _Unknown


def _shape(key):
    _need(type(key) is tuple)
    return key[1] if is_value(key) else key


def _flat_integers(key):
    """The value of a tensor of integers, as a list of all of them."""
    _need(is_value(key) and key[0] in _INTEGERS)
    return np.frombuffer(key[2], _INTEGERS[key[0]]).tolist()


def _integers(key):
    """The value of a vector or scalar of integers, as a list."""
    _need(is_value(key) and len(key[1]) < 2)
    return _flat_integers(key)


def _integer(key):
    values = _integers(key)
    _need(len(values) == 1)
    return values[0]


def _axis(axis, rank):
    _need(-rank <= axis < rank)
    return axis % rank


def _broadcast(*shapes):
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return first
    result = []
    for k in range(max(map(len, shapes))):
        sizes = {shape[-1 - k] for shape in shapes if k < len(shape)}
        sizes.discard(1)
        _need(len(sizes) < 2)
        result.append(sizes.pop() if sizes else 1)
    return tuple(result[::-1])


def _same(attrs, keys):
    return (_shape(keys[0]),)


def _all_the_same(attrs, keys):
    shape = _shape(keys[0])
    _need(all(_shape(key) == shape for key in keys[1:]))
    return (shape,)


def _elementwise(attrs, keys):
    return (_broadcast(*map(_shape, keys)),)


def _comparison(attrs, keys):
    _need(attrs.get("incompatible_shape_error", True))
    return _elementwise(attrs, keys)


def _last_axis(attrs, keys):
    shape = _shape(keys[0])
    _need(len(shape) > 0)
    return (shape,)


def _reduction(attrs, keys):
    shape = _shape(keys[0])
    axes = [_axis(axis, len(shape)) for axis in _integers(keys[1])]
    _need(len(set(axes)) == len(axes))
    if attrs["keep_dims"]:
        return (tuple([1 if k in axes else d for k, d in enumerate(shape)]),)
    return (tuple([d for k, d in enumerate(shape) if k not in axes]),)


def _matmul(attrs, keys):
    a, b = map(_shape, keys)
    _need(len(a) == len(b) == 2)
    rows, inner = a[::-1] if attrs["transpose_a"] else a
    other, columns = b[::-1] if attrs["transpose_b"] else b
    _need(inner == other)
    return ((rows, columns),)


def _batch_matmul(attrs, keys):
    a, b = map(_shape, keys)
    _need(len(a) > 1 and len(b) > 1)
    rows, inner = a[:-3:-1] if attrs["adj_x"] else a[-2:]
    other, columns = b[:-3:-1] if attrs["adj_y"] else b[-2:]
    _need(inner == other)
    return ((*_broadcast(a[:-2], b[:-2]), rows, columns),)


def _bias(attrs, keys):
    shape, bias = map(_shape, keys)
    _need(_is_channels_last(attrs) and len(shape) > 1 and bias == shape[-1:])
    return (shape,)


def _bias_gradient(attrs, keys):
    shape = _shape(keys[0])
    _need(_is_channels_last(attrs) and len(shape) > 1)
    return (shape[-1:],)


def _is_channels_last(attrs):
    return attrs.get("data_format", "NHWC") in ("NHWC", b"NHWC")


def _reshape(attrs, keys):
    shape, sizes = _shape(keys[0]), _integers(keys[1])
    _need(len(keys[1][1]) == 1)
    n, given = math.prod(shape), math.prod([size for size in sizes if size != -1])
    if -1 in sizes:
        _need(sizes.count(-1) == 1 and given > 0 and n % given == 0)
        sizes[sizes.index(-1)] = n // given
    else:
        _need(given == n)
    _need(all(size >= 0 for size in sizes))
    return (tuple(sizes),)


def _broadcast_to(attrs, keys):
    shape, target = _shape(keys[0]), tuple(_integers(keys[1]))
    _need(len(keys[1][1]) == 1 and all(size >= 0 for size in target) and _broadcast(shape, target) == target)
    return (target,)


def _fill(attrs, keys):
    sizes = _integers(keys[0])
    _need(len(keys[0][1]) == 1 and all(size >= 0 for size in sizes))
    return (tuple(sizes),)


def _expand_dims(attrs, keys):
    shape = _shape(keys[0])
    k = _axis(_integer(keys[1]), len(shape) + 1)
    return ((*shape[:k], 1, *shape[k:]),)


def _squeeze(attrs, keys):
    shape = _shape(keys[0])
    axes = {_axis(axis, len(shape)) for axis in attrs["squeeze_dims"]} or {k for k, d in enumerate(shape) if d == 1}
    _need(all(shape[k] == 1 for k in axes))
    return (tuple([d for k, d in enumerate(shape) if k not in axes]),)


def _tile(attrs, keys):
    shape, multiples = _shape(keys[0]), _integers(keys[1])
    _need(len(multiples) == len(shape) and len(keys[1][1]) == 1 and all(m >= 0 for m in multiples))
    return (tuple([d * m for d, m in zip(shape, multiples)]),)


def _transpose(attrs, keys):
    shape, order = _shape(keys[0]), _integers(keys[1])
    _need(len(keys[1][1]) == 1 and sorted(order) == list(range(len(shape))))
    return (tuple([shape[k] for k in order]),)


def _gather(attrs, keys):
    shape, indices = map(_shape, keys[:2])
    _need(len(shape) > 0 and attrs["batch_dims"] == 0)
    k = _axis(_integer(keys[2]), len(shape))
    return ((*shape[:k], *indices, *shape[k + 1:]),)


def _segments(attrs, keys):
    shape, of = map(_shape, keys[:2])
    n = _integer(keys[2])
    _need(shape[:len(of)] == of and n >= 0)
    return ((n, *shape[len(of):]),)


def _concat(attrs, keys):
    shapes = [_shape(key) for key in keys[:-1]]
    k = _axis(_integer(keys[-1]), len(shapes[0]))
    before, after = shapes[0][:k], shapes[0][k + 1:]
    _need(all(len(shape) == len(shapes[0]) and shape[:k] == before and shape[k + 1:] == after for shape in shapes))
    return ((*before, sum(shape[k] for shape in shapes), *after),)


def _pack(attrs, keys):
    (shape,) = _all_the_same(attrs, keys)
    k = _axis(attrs["axis"], len(shape) + 1)
    return ((*shape[:k], len(keys), *shape[k:]),)


def _split(attrs, keys):
    _need(len(keys) == 2)
    shape, n = _shape(keys[1]), attrs["num_split"]
    k = _axis(_integer(keys[0]), len(shape))
    _need(shape[k] % n == 0)
    return ((*shape[:k], shape[k] // n, *shape[k + 1:]),) * n


def _split_by_sizes(attrs, keys):
    shape, sizes = _shape(keys[0]), _integers(keys[1])
    k = _axis(_integer(keys[2]), len(shape))
    _need(len(keys[1][1]) == 1 and all(size >= 0 for size in sizes) and sum(sizes) == shape[k])
    return tuple([(*shape[:k], size, *shape[k + 1:]) for size in sizes])


def _unpack(attrs, keys):
    shape = _shape(keys[0])
    k = _axis(attrs["axis"], len(shape))
    _need(shape[k] == attrs["num"])
    return ((*shape[:k], *shape[k + 1:]),) * attrs["num"]


def _pad(attrs, keys):
    shape = _shape(keys[0])
    paddings = _flat_integers(keys[1])
    _need(keys[1][1] == (len(shape), 2) and all(padding >= 0 for padding in paddings))
    return (tuple([d + before + after for d, before, after in zip(shape, paddings[::2], paddings[1::2])]),)


def _range(attrs, keys):
    start, limit, delta = map(_integer, keys)
    _need(delta == 1 and start <= limit)
    return ((limit - start,),)


def _slice(attrs, keys):
    shape, begin, sizes = _shape(keys[0]), _integers(keys[1]), _integers(keys[2])
    _need(len(shape) == len(begin) == len(sizes) and len(keys[1][1]) == len(keys[2][1]) == 1)
    sizes = [d - first if size == -1 else size for d, first, size in zip(shape, begin, sizes)]
    _need(all(first >= 0 and size >= 0 and first + size <= d for d, first, size in zip(shape, begin, sizes)))
    return (tuple(sizes),)


def _index_of_largest(attrs, keys):
    shape = _shape(keys[0])
    _need(len(shape) > 0)
    k = _axis(_integer(keys[1]), len(shape))
    return ((*shape[:k], *shape[k + 1:]),)


def _sparse_cross_entropy(attrs, keys):
    logits, labels = map(_shape, keys)
    _need(len(logits) == 2 and labels == logits[:1])
    return labels, logits


def _einsum(attrs, keys):
    equation = attrs["equation"]
    inputs, _, output = (equation.decode() if type(equation) is bytes else equation).replace(" ", "").partition("->")
    inputs = inputs.split(",")
    _need(len(inputs) == len(keys) and len(set(output)) == len(output) and "." not in output)
    sizes = {}
    for labels, key in zip(inputs, keys):
        shape = _shape(key)
        _need(len(labels) == len(shape) == len(set(labels)) and "." not in labels)
        for label, size in zip(labels, shape):
            _need(sizes.setdefault(label, size) == size)
    _need(sizes.keys() >= set(output))
    return (tuple([sizes[label] for label in output]),)


def _strided_slice(attrs, keys):
    shape = _shape(keys[0])
    begin, end, strides = map(_integers, keys[1:])
    _need(len(begin) == len(end) == len(strides))
    index = []
    for k, (first, last, stride) in enumerate(zip(begin, end, strides)):
        bit = 1 << k
        if attrs["ellipsis_mask"] & bit:
            index.append(Ellipsis)
        elif attrs["new_axis_mask"] & bit:
            index.append(None)
        elif attrs["shrink_axis_mask"] & bit:
            _need(stride > 0)
            index.append(first)
        else:
            index.append(slice(None if attrs["begin_mask"] & bit else first, None if attrs["end_mask"] & bit else last, stride))
    try:
        return (np.broadcast_to(_NOTHING, shape)[tuple(index)].shape,)
    except (IndexError, ValueError):  # eager execution will say what is wrong with it
        raise _Unknown from None


_RULES = {
    "AddN": _all_the_same, "BatchMatMulV2": _batch_matmul, "BiasAdd": _bias, "BiasAddGrad": _bias_gradient, "BroadcastTo": _broadcast_to, "ConcatV2": _concat,
    "Einsum": _einsum, "Equal": _comparison, "ExpandDims": _expand_dims, "GatherV2": _gather, "MatMul": _matmul, "NotEqual": _comparison, "Pack": _pack, "Pad": _pad, "PadV2": _pad,
    "Range": _range,    "Reshape": _reshape, "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy, "Slice": _slice, "Split": _split, "SplitV": _split_by_sizes,
    "Squeeze": _squeeze, "StridedSlice": _strided_slice, "Tile": _tile, "Transpose": _transpose, "Unpack": _unpack, "UnsortedSegmentSum": _segments,
    **dict.fromkeys(("ArgMax", "ArgMin"), _index_of_largest),
    **dict.fromkeys(("Fill", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "StatelessRandomNormalV2", "StatelessRandomUniformV2"), _fill),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _last_axis),
    **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _reduction),
    **dict.fromkeys((
        "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Identity", "LeakyRelu", "Log", "Log1p", "LogicalNot", "Neg", "OnesLike",
        "Reciprocal", "Relu", "Relu6", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Square", "StopGradient", "Tanh",
        "ZerosLike"), _same),
    **dict.fromkeys((
        "EluGrad", "LeakyReluGrad", "ReciprocalGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad", "SeluGrad", "SigmoidGrad", "SoftplusGrad", "SqrtGrad", "TanhGrad"),
        _all_the_same),
    **dict.fromkeys((
        "AddV2", "DivNoNan", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mul",
        "MulNoNan", "Pow", "RealDiv", "SelectV2", "SquaredDifference", "Sub", "Xdivy", "Xlogy"), _elementwise),
}
ELEMENTWISE = frozenset(op for op, rule in _RULES.items() if rule in (_elementwise, _comparison))
