"""The rules for output shapes say what TensorFlow's shape functions say, or nothing."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terra.runtime.tensors import shape_rules
from tests.variants import examples

FLOAT, INT32, INT64, BOOL = tf.float32, tf.int32, tf.int64, tf.bool


class Known:
    """An input whose value is known."""

    def __init__(self, value, dtype=INT32):
        self.value, self.dtype = np.array(value, dtype.as_numpy_dtype), dtype

    @property
    def key(self):
        return self.dtype.as_datatype_enum, self.value.shape, self.value.tobytes()

    def __repr__(self):
        return f"Known({self.value.tolist()}, {self.dtype.name})"


def key_of(x):
    return x.key if isinstance(x, Known) else x


def asked(op_type, attrs, inputs, dtypes):
    """The shapes that TensorFlow tells, None if it refuses."""
    arguments = tf.raw_ops.__dict__[op_type].__signature__.parameters
    with tf.Graph().as_default():
        tensors = [tf.constant(x.value) if isinstance(x, Known) else tf.compat.v1.placeholder(dtype, x) for x, dtype in zip(inputs, dtypes)]
        attrs = {"axis" if name == "squeeze_dims" else name: value for name, value in attrs.items()}
        names = [name for name in arguments if name not in attrs and name != "name"]
        if op_type in ("AddN", "Pack", "Einsum"):
            tensors = [tensors]
        elif op_type == "ConcatV2":
            tensors = [tensors[:-1], tensors[-1]]
        try:
            made = tf.raw_ops.__dict__[op_type](**dict(zip(names, tensors)), **attrs)
        except (ValueError, tf.errors.InvalidArgumentError):
            return None
        made = made if isinstance(made, (list, tuple)) else [made]
        return tuple(tuple(t.shape.as_list()) for t in made)


def told(op_type, attrs, inputs, dtypes=(FLOAT,) * 5):
    """What the rule says, which is what TensorFlow says."""
    shapes = shape_rules.output_shapes(op_type, attrs, [key_of(x) for x in inputs])
    if shapes is not None:
        assert shapes == asked(op_type, attrs, inputs, dtypes)
    return shapes


sizes = st.integers(0, 4)
shapes = st.lists(sizes, max_size=4).map(tuple)
axes = st.integers(-5, 4)
several = st.lists(axes, max_size=4)
integers = st.sampled_from([INT32, INT64])


def known(values):
    return st.builds(Known, values, integers)


UNARY = "Abs Ceil Cos Elu Erf Erfc Exp Expm1 Floor Identity Log Log1p Neg OnesLike Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid Sign Sin " \
    "Softmax LogSoftmax Softplus Sqrt Square StopGradient Tanh ZerosLike".split()
BINARY = "AddV2 DivNoNan FloorDiv FloorMod Greater GreaterEqual Less LessEqual Maximum Minimum Mul MulNoNan Pow RealDiv SquaredDifference Sub " \
    "Xdivy Xlogy Equal NotEqual".split()
GRADIENTS = "EluGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SqrtGrad TanhGrad".split()


@given(st.sampled_from(UNARY), shapes)
@settings(max_examples=examples(150), deadline=None)
def test_one_input(op_type, shape):
    assert told(op_type, {}, [shape]) is not None or "Softmax" in op_type


@given(shapes)
@settings(max_examples=examples(20), deadline=None)
def test_one_input_of_its_own_type(shape):
    assert told("Cast", {"DstT": INT32}, [shape]) == told("LogicalNot", {}, [shape], (BOOL,)) == told("LeakyRelu", {"alpha": 0.1}, [shape]) == (shape,)


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_operands_are_broadcast(data):
    op_type = data.draw(st.sampled_from([*BINARY, "SelectV2", "LogicalAnd", "LogicalOr"]))
    full = data.draw(shapes)
    inputs = []
    for _ in range(3 if op_type == "SelectV2" else 2):
        shape = list(full[data.draw(st.integers(0, len(full))):])
        for k in range(len(shape)):
            shape[k] = data.draw(st.sampled_from([shape[k], shape[k], 1, 3]))
        inputs.append(tuple(shape))
    dtypes = {"SelectV2": (BOOL, FLOAT, FLOAT)}.get(op_type, (BOOL,) * 2 if op_type.startswith("Logical") else (FLOAT,) * 2)
    if data.draw(st.booleans()) and dtypes[-1] is FLOAT:
        inputs[-1] = Known(2.5, FLOAT)
    result = told(op_type, {}, inputs, dtypes)
    assert (result is None) == (asked(op_type, {}, inputs, dtypes) is None)


@given(shapes, known(axes), st.integers(1, 3), known(st.lists(st.integers(-1, 4), max_size=3)), axes)
@settings(max_examples=examples(200), deadline=None)
def test_parts(shape, axis, n, parts, unpacked):
    axis = Known(axis.value)
    told("Split", {"num_split": n}, [axis, shape], (None, FLOAT))
    if parts.value.size:
        told("SplitV", {"num_split": parts.value.size}, [shape, parts, axis], (FLOAT, None, None))
    if -len(shape) <= unpacked < len(shape):
        assert told("Unpack", {"num": shape[unpacked], "axis": unpacked}, [shape]) is not None
    told("Unpack", {"num": n, "axis": unpacked}, [shape])
    told("ArgMax", {"output_type": INT64}, [shape, axis])
    assert told("Split", {"num_split": 2}, [Known(1), (3, 4)], (None, FLOAT)) == ((3, 2),) * 2
    assert told("SplitV", {"num_split": 2}, [(3, 4), Known([1, 3]), Known(-1)]) == ((3, 1), (3, 3))


@given(shapes, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_borders_and_slices(shape, data):
    paddings = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=len(shape), max_size=len(shape)))
    padded = Known(np.reshape(paddings, (len(shape), 2)), data.draw(integers))
    assert told("Pad", {}, [shape, padded]) == told("PadV2", {}, [shape, padded, ()]) == (tuple(d + a + b for d, (a, b) in zip(shape, paddings)),)
    begin, size = (data.draw(st.lists(st.integers(-1, 4), min_size=len(shape), max_size=len(shape))) for _ in range(2))
    kind = data.draw(integers)
    told("Slice", {}, [shape, Known(begin, kind), Known(size, kind)])
    assert told("Slice", {}, [(4, 5), Known([1, 0]), Known([2, -1])]) == ((2, 5),)


@given(known(st.lists(st.integers(-1, 4), max_size=3)), known(st.integers(-3, 5)), st.integers(-3, 5), st.integers(-2, 2), integers)
@settings(max_examples=examples(100), deadline=None)
def test_shapes_by_value(shape, start, limit, delta, kind):
    told("Fill", {}, [shape, ()])
    told("RandomUniform", {"dtype": FLOAT}, [shape])
    told("Range", {}, [Known(start.value, kind), Known(limit, kind), Known(delta, kind)])
    assert told("Fill", {}, [Known([2, 3]), ()]) == ((2, 3),) and told("Range", {}, [Known(1), Known(4), Known(1)]) == ((3,),)


def test_operands_that_may_differ():
    assert shape_rules.output_shapes("Equal", {"incompatible_shape_error": False}, [(2,), (3,)]) is None
    assert shape_rules.output_shapes("Equal", {"incompatible_shape_error": False}, [(2,), (2,)]) is None
    assert told("Equal", {"incompatible_shape_error": True}, [(2,), (2,)]) == ((2,),)


@given(st.sampled_from(GRADIENTS), shapes, shapes)
@settings(max_examples=examples(100), deadline=None)
def test_gradients_of_activations(op_type, a, b):
    attrs = {"alpha": 0.1} if op_type == "LeakyReluGrad" else {}
    told(op_type, attrs, [a, b])
    assert told(op_type, attrs, [a, a]) == (a,)


@given(st.sampled_from("All Any Max Mean Min Prod Sum".split()), shapes, known(st.one_of(several, axes)), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_reductions(op_type, shape, reduced, keep):
    told(op_type, {"keep_dims": keep}, [shape, reduced], (BOOL if op_type in ("All", "Any") else FLOAT, None))
    assert told("Sum", {"keep_dims": keep}, [shape, Known(list(range(len(shape))))]) is not None


@given(shapes, shapes, st.booleans(), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_products(a, b, first, second):
    told("MatMul", {"transpose_a": first, "transpose_b": second}, [a, b])
    told("BatchMatMulV2", {"adj_x": first, "adj_y": second}, [a, b])
    if len(a) > 1:
        other = (*a[:-2], *((5, a[-1]) if second else (a[-1], 5)))
        assert told("BatchMatMulV2", {"adj_x": False, "adj_y": second}, [a, other]) == ((*a[:-1], 5),)
        other = (*a[:-2], *((5, a[-2]) if second else (a[-2], 5)))
        assert told("BatchMatMulV2", {"adj_x": True, "adj_y": second}, [a, other]) == ((*a[:-2], a[-1], 5),)
        pair = (a[-2], 5), (5, 7)
        rows = told("MatMul", {"transpose_a": first, "transpose_b": second}, [pair[0][::-1] if first else pair[0], pair[1][::-1] if second else pair[1]])
        assert rows == ((a[-2], 7),)


@given(shapes, sizes, st.sampled_from(["NHWC", "NCHW"]))
@settings(max_examples=examples(100), deadline=None)
def test_biases(shape, n, layout):
    told("BiasAdd", {"data_format": layout}, [shape, (n,)])
    told("BiasAddGrad", {"data_format": layout}, [shape])
    if len(shape) > 1:
        assert told("BiasAdd", {"data_format": "NHWC"}, [shape, shape[-1:]]) == (shape,)
        assert told("BiasAddGrad", {"data_format": b"NHWC"}, [shape]) == (shape[-1:],)


@given(shapes, known(st.lists(st.integers(-1, 6), max_size=4)), st.integers(0, 3))
@settings(max_examples=examples(300), deadline=None)
def test_given_sizes(shape, target, k):
    told("Reshape", {}, [shape, target])
    told("BroadcastTo", {}, [shape, target])
    told("Tile", {}, [shape, target])
    sizes = [*shape[1:], *shape[:1]]
    if 0 not in sizes and sizes:
        sizes[k % len(sizes)] = -1
    assert told("Reshape", {}, [shape, Known(sizes)]) == ((*shape[1:], *shape[:1]),)
    assert told("BroadcastTo", {}, [shape, Known([k, *shape])]) == ((k, *shape),)
    assert told("Tile", {}, [shape, Known([k] * len(shape))]) == (tuple(k * d for d in shape),)


@given(shapes, known(st.one_of(axes, st.lists(axes, min_size=1, max_size=2))), known(several), several)
@settings(max_examples=examples(300), deadline=None)
def test_axes(shape, axis, order, squeezed):
    told("ExpandDims", {}, [shape, axis])
    told("Transpose", {}, [shape, order])
    told("Squeeze", {"squeeze_dims": squeezed}, [shape])
    assert told("ExpandDims", {}, [shape, Known(-1)]) == ((*shape, 1),)
    assert told("Transpose", {}, [shape, Known(list(range(len(shape)))[::-1])]) == (shape[::-1],)
    assert told("Squeeze", {"squeeze_dims": []}, [shape]) == (tuple(d for d in shape if d != 1),)
    assert told("Squeeze", {"squeeze_dims": [-1]}, [(*shape, 1)]) == (shape,)


@given(shapes, shapes, known(axes), sizes)
@settings(max_examples=examples(200), deadline=None)
def test_looking_up(shape, indices, axis, n):
    told("GatherV2", {"batch_dims": 0}, [shape, indices, axis], (FLOAT, INT32, None))
    told("UnsortedSegmentSum", {}, [shape, indices, Known(n)], (FLOAT, INT32, None))
    told("SparseSoftmaxCrossEntropyWithLogits", {}, [shape, indices], (FLOAT, INT32))
    if shape:
        assert told("GatherV2", {"batch_dims": 0}, [shape, indices, Known(0)], (FLOAT, INT32, None)) == ((*indices, *shape[1:]),)
    assert told("UnsortedSegmentSum", {}, [(*indices, *shape), indices, Known(n)], (FLOAT, INT32, None)) == ((n, *shape),)
    assert shape_rules.output_shapes("GatherV2", {"batch_dims": 1}, [(2, 3), (2, 1), Known(1).key]) is None
    assert told("SparseSoftmaxCrossEntropyWithLogits", {}, [(n, 3), (n,)], (FLOAT, INT32)) == ((n,), (n, 3))


@given(shapes, shapes, known(axes), axes, sizes)
@settings(max_examples=examples(200), deadline=None)
def test_several_inputs(a, b, axis, k, n):
    told("ConcatV2", {}, [a, b, axis], (FLOAT, FLOAT, None))
    told("Pack", {"axis": k}, [a, b])
    told("AddN", {}, [a, b])
    if a:
        assert told("ConcatV2", {}, [a, (*a[:-1], n), Known(-1)], (FLOAT, FLOAT, None)) == ((*a[:-1], a[-1] + n),)
    assert told("Pack", {"axis": 0}, [a, a, a]) == ((3, *a),)
    assert told("AddN", {}, [a, a]) == (a,)


@given(st.lists(st.text("abc.", max_size=3), min_size=1, max_size=2), st.text("abc.", max_size=3), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_einsum(inputs, output, data):
    equation = ",".join(inputs) + "->" + output
    chosen = data.draw(st.fixed_dictionaries({label: st.integers(1, 3) for label in "abc."}))
    given_shapes = [tuple(chosen[label] if data.draw(st.integers(0, 9)) else 2 for label in labels) for labels in inputs]
    told("Einsum", {"equation": equation}, given_shapes)
    assert told("Einsum", {"equation": b"ab,bc->ca"}, [(2, 3), (3, n := chosen["a"])]) == ((n, 2),)


@given(shapes, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_slices(shape, data):
    n = data.draw(st.integers(0, len(shape) + 1))
    masks = {name: data.draw(st.integers(0, 2 ** n - 1)) if data.draw(st.booleans()) else 0 for name in (
        "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")}
    bounds = [data.draw(st.lists(axes, min_size=n, max_size=n)) for _ in range(2)] + [data.draw(st.lists(st.sampled_from([1, 1, 2, -1]), min_size=n, max_size=n))]
    kind = data.draw(integers)
    told("StridedSlice", masks, [shape, *[Known(x, kind) for x in bounds]], (FLOAT, None, None, None))


@pytest.mark.parametrize("op_type", sorted(shape_rules._RULES))
def test_nothing_is_said_of_what_is_unknown(op_type):
    attrs = {"keep_dims": False, "transpose_a": False, "transpose_b": False, "adj_x": False, "adj_y": False, "equation": "a->a", "squeeze_dims": [], "axis": 0,
             "batch_dims": 0, "begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
    for n in (1, 2, 4):
        assert shape_rules.output_shapes(op_type, attrs, [None] * n) is None
    assert shape_rules.output_shapes(op_type, {}, [[2, None]]) is None  # a list: its shape depends on data
