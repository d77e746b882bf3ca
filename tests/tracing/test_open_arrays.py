"""NumPy arrays and sparse tensors of ever new sizes among the arguments of a step: what is recorded of it holds for all of them, unless the step's code looks at a size."""

import copy
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import harness
from tests.tracing.test_reduce_retracing import SAME, STEPS, sizes, trained
from tests.variants import examples


def rows(kind="float32", seed=0):
    drawn = np.random.RandomState(seed + 1)
    return [((drawn.randn(n, 4) * 3).astype(kind),) for n in sizes(seed)]


def sentences(seed=0):
    drawn = np.random.RandomState(seed)
    return [(drawn.randint(0, 20, (4, n)), drawn.randint(0, 3, (4, n))) for n in sizes(seed)]


def sparse(seed=0):
    drawn = np.random.RandomState(seed)
    for n in sizes(seed):
        places = np.unique(drawn.randint(0, n, (n, 2)), axis=0)
        yield drawn.randn(n, 4).astype("float32"), tf.SparseTensor(places, drawn.randn(len(places)).astype("float32"), (n, n))


def compare(make, batches, skipped=0.6, coexecuted=0.6, **options):
    """Run the step that `make()` gives eagerly and co-executed. At least so many of the steps must be skipped as a whole; with `skipped=None`, none may."""
    batches = [*batches]
    stats = harness.differ(make, lambda k: copy.deepcopy(batches[k]), len(batches), SAME, reduce_retracing=True, **options)
    assert stats.coexecuted_steps >= coexecuted * len(batches), stats
    assert stats.whole_steps >= skipped * len(batches) if skipped is not None else stats.whole_steps == 0, stats
    return stats


def stepping(forward):
    """A step that trains a variable through `forward(w, ...)`."""
    def make():
        w, seen = tf.Variable(tf.reshape(tf.linspace(-1.0, 1.0, 16), (4, 4))), []

        def step(*args):
            with tf.GradientTape() as tape:
                loss = forward(w, *args)
                loss = tf.reduce_mean(loss * loss) if isinstance(loss, tf.Tensor) else tf.reduce_mean(loss[0])
            gradient = tape.gradient(loss, w)
            if gradient is not None:
                w.assign_sub(tf.clip_by_value(1e-3 * gradient, -0.1, 0.1))
            return loss

        return step, lambda: [w, seen]
    return make


# -- arrays ----------------------------------------------------------------------------------------------------------------------

USES = {
    "operator": lambda w, x: x @ w,
    "operator of another type": lambda w, x: (w[0] * x.astype("float32"))[:, 1],
    "twice": lambda w, x: x @ w - x,
    "three times": lambda w, x: tf.matmul(x, w) * tf.constant(x) - tf.convert_to_tensor(x),
    "constant": lambda w, x: tf.constant(x, tf.float32) @ w,
    "converted": lambda w, x: tf.convert_to_tensor(x, tf.float32) @ w + tf.convert_to_tensor(x),
    "reduced": lambda w, x: tf.reduce_sum(tf.tanh(x), axis=0)[None] @ w,
    "shape of the tensor": lambda w, x: tf.reshape(x, (tf.shape(x)[0], 2, 2)) @ w[:2, :2],
}


@pytest.mark.parametrize("name", USES)
def test_uses(name):
    compare(stepping(USES[name]), rows(), skipped=0.5 if name != "operator of another type" else 0.0)


@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "int64", "uint8", "bool"])
def test_types(kind):
    compare(stepping(lambda w, x: tf.cast(x, tf.float32) @ w), rows(kind))
    compare(stepping(lambda w, x: tf.convert_to_tensor(x, tf.float32) @ w if kind in ("float64", "float16", "uint8", "int32", "int64") else tf.cast(x, tf.float32) @ w), rows(kind), skipped=0.0)


@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_model(K):
    def make():
        K.utils.set_random_seed(0)
        model = K.Sequential([K.layers.Embedding(20, 6), K.layers.Dense(8, "relu"), K.layers.Dense(3)])
        return trained(model, K.optimizers.Adam(0.01), K.losses.SparseCategoricalCrossentropy(from_logits=True))
    compare(make, sentences(), skipped=0.6 if K is keras else 0.0)  # tf_keras' losses treat arrays otherwise than tensors


def test_in_containers_and_by_name():
    compare(stepping(lambda w, batch: batch["x"][0] @ w * batch["y"]), [({"x": [x], "y": np.abs(x)},) for x, in rows()])


def test_one_array_that_is_two_arguments():
    compare(stepping(lambda w, x, y: x @ w - y), [(x, x) for x, in rows()])
    compare(stepping(lambda w, x, y: x @ w - y), [(x, x if k % 3 else x.copy()) for k, (x,) in enumerate(rows())], skipped=0.2)


def test_one_row_and_none():
    compare(stepping(lambda w, x: tf.reduce_sum(x @ w - x, axis=0)), [(x if k % 4 else x[:k // 4 % 2],) for k, (x,) in enumerate(rows())])


def test_not_contiguous():
    compare(stepping(lambda w, x: x @ w), [(np.asfortranarray(x)[::-1],) for x, in rows()])


LOOKS = {
    "calculation beside": lambda w, x: tf.constant(x * 2) + x @ w,
    "calculation behind": lambda w, x: x @ w - tf.constant(x * 2) + tf.constant(x),
    "shape": lambda w, x: x @ w / x.shape[0],
    "len": lambda w, x: x @ w / len(x),
    "size": lambda w, x: x @ w * (2.0 if x.size > 100 else 1.0),
    "items": lambda w, x: x @ w * float(x[0, 0]),
    "calculation": lambda w, x: (x / 2 + x.sum()) @ w,
    "rows": lambda w, x: tf.stack([tf.reduce_sum(row) for row in x]) * w[0, 0],
    "gives it back": lambda w, x: (x @ w, x),
    "padded": lambda w, x: np.pad(x, ((0, 70 - x.shape[0]), (0, 0))) @ w,
}


@pytest.mark.parametrize("name", LOOKS)
def test_code_that_looks_at_an_array(name):
    compare(stepping(LOOKS[name]), rows(), skipped=0.0, coexecuted=0.4 if name != "rows" else 0.0)


def test_a_size_that_is_looked_at_is_the_step_s():
    """No record may hold for another size."""
    def make():
        w, seen = tf.Variable(tf.ones((4, 4))), []

        def step(x):
            seen.append(x.shape[0] % 3)
            w.assign_add(tf.ones((4, 4)) * len(x))
            return tf.reduce_sum(x @ w)

        return step, lambda: [w, seen]
    compare(make, rows(), skipped=None)


@pytest.mark.parametrize("when", ["before", "between", "behind"])
def test_arrays_that_the_step_changes(when):
    def forward(w, x):
        if when == "before":
            x *= 0.5
        loss = x @ w
        if when == "between":
            x -= 1.0
        loss = loss - x
        if when == "behind":
            x[:] = 0.0
        return loss
    compare(stepping(forward), rows(), skipped=0.0)


def test_a_buffer_that_is_used_again():
    buffer = np.zeros((70, 4), "float32")

    def given(k):
        x, = batches[k]
        buffer[:len(x)] = x
        return (buffer[:len(x)],)
    batches = rows()
    stats = harness.differ(stepping(lambda w, x: x @ w - x), given, STEPS, SAME, reduce_retracing=True)
    assert stats.whole_steps >= STEPS // 2, stats


def test_other_arguments_in_between():
    batches = [(x,) if k % 3 else (x, x[:, 0].astype("float64")) for k, (x,) in enumerate(rows())]
    compare(stepping(lambda w, x, y=None: x @ w if y is None else x @ w * tf.cast(y, tf.float32)[:, None]), batches, skipped=0.3)


def test_sizes_that_turn_out_to_vary():
    """Without `reduce_retracing`: as with tensors, they are left unknown once new ones keep coming."""
    batches = [(np.random.RandomState(k).randn(3 + k, 4).astype("float32"),) for k in range(40)]
    stats = harness.differ(stepping(lambda w, x: x @ w - x), batches.__getitem__, len(batches), SAME)
    assert stats.whole_steps >= 20, stats


_PARTS = ["x @ w", "x", "tf.constant(x)", "tf.tanh(x)", "tf.convert_to_tensor(x, tf.float32)", "tf.reduce_mean(x, 0)", "x.shape[1]", "tf.cast(tf.shape(x)[0], tf.float32)", "tf.zeros_like(x)", "w[0]"]


@settings(max_examples=examples(6), deadline=None)
@given(parts=st.lists(st.sampled_from(_PARTS), min_size=1, max_size=4), kind=st.sampled_from(["float32", "float32", "float64"]), seed=st.integers(0, 99))
def test_random_expressions(parts, kind, seed):
    expression = " + ".join(f"tf.cast({part}, tf.float32)" for part in ["w[1]", *parts])
    forward = eval(f"lambda w, x: {expression}", {"tf": tf}) if kind == "float32" else functools.partial(_calculated, expression.replace("x @ w", "x"))
    compare(stepping(forward), rows(kind, seed), skipped=0.0, coexecuted=0.3)


def _calculated(expression, w, x):
    return eval(expression, {"tf": tf, "w": w, "x": x})


# -- sparse tensors ----------------------------------------------------------------------------------------------------------------

SPARSE = {
    "matmul": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w),
    "transposed": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w, adjoint_a=True),
    "values": lambda w, x, a: tf.reduce_sum(a.values) * w,
}
LOOKING = {
    "scaled": lambda w, x, a: tf.sparse.sparse_dense_matmul(a * 2.0, x @ w),
    "cast": lambda w, x, a: tf.sparse.sparse_dense_matmul(tf.cast(tf.cast(a, tf.float64), tf.float32), x @ w),
    "mapped": lambda w, x, a: tf.sparse.sparse_dense_matmul(tf.sparse.map_values(tf.tanh, a), x @ w),
    "shape": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) / a.shape[0],
    "dense shape": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) / tf.cast(a.dense_shape[0], tf.float32),
    "is square": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) * (2.0 if a.shape[0] == a.shape[1] else 1.0),
    "text": lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) * len(str(a.shape)),
    "to dense": lambda w, x, a: tf.sparse.to_dense(a) @ (x @ w),
    "reduced": lambda w, x, a: tf.sparse.reduce_sum(a, axis=1)[:, None] * (x @ w),
    "added": lambda w, x, a: tf.sparse.sparse_dense_matmul(tf.sparse.add(a, a), x @ w),
    "made anew": lambda w, x, a: tf.sparse.sparse_dense_matmul(tf.SparseTensor(a.indices, a.values * 2.0, a.dense_shape), x @ w),
    "reshaped": lambda w, x, a: tf.sparse.to_dense(tf.sparse.reshape(a, (-1,))) * w[0, 0],
    "gives it back": lambda w, x, a: (tf.sparse.sparse_dense_matmul(a, x @ w), a),
}


@pytest.mark.parametrize("name", [*SPARSE, *LOOKING])
def test_sparse_arguments(name):
    compare(stepping({**SPARSE, **LOOKING}[name]), sparse(), skipped=0.6 if name in SPARSE else 0.0, coexecuted=0.6 if name in SPARSE else 0.0)


def test_a_shape_of_which_one_size_varies():
    drawn = np.random.RandomState(0)
    batches = [(drawn.randn(7, 4).astype("float32"), tf.SparseTensor([[0, 1], [n - 1, 6]], drawn.randn(2).astype("float32"), (n, 7))) for n in sizes(0)]
    compare(stepping(lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) / a.shape[1]), batches, skipped=0.0)


def test_a_shape_that_stays_the_same():
    drawn = np.random.RandomState(0)
    batches = []
    for n in sizes(0):
        places = np.unique(drawn.randint(0, 7, (n, 2)), axis=0)
        batches.append((drawn.randn(7, 4).astype("float32"), tf.SparseTensor(places, drawn.randn(len(places)).astype("float32"), (7, 7))))
    compare(stepping(lambda w, x, a: tf.sparse.sparse_dense_matmul(a, x @ w) / a.shape[0]), batches)


def test_sparse_tensors_that_steps_have_given():
    def make():
        w, held = tf.Variable(tf.ones((4, 4))), []

        def step(x, a):
            w.assign_sub(0.01 * tf.ones((4, 4)))
            return tf.reduce_sum(tf.sparse.sparse_dense_matmul(a, x @ w)), list(vars(tf.sparse.map_values(tf.tanh, a)).values())

        return step, lambda: [w, held]
    compare(make, sparse(), skipped=0.0)


# -- numbers -----------------------------------------------------------------------------------------------------------------------

NUMBERS = {
    "rows": lambda w, x, n: tf.math.unsorted_segment_sum(x @ w, tf.range(tf.shape(x)[0]) % tf.cast(n, tf.int32), n),
    "shape": lambda w, x, n: tf.reshape(x @ w, (n, 2, 2)),
    "filled": lambda w, x, n: (x @ w) * tf.zeros((n, 1)) + x,
    "scaled": lambda w, x, n: x @ w / tf.cast(n, tf.float32),
    "product": lambda w, x, n: x @ w * tf.cast(n * 2 - 1, tf.float32),
}
READ = {
    "int": lambda w, x, n: x @ w * int(n),
    "condition": lambda w, x, n: x @ w if n > 30 else w[:2] * 2.0,
    "loop": lambda w, x, n: tf.add_n([x @ w * float(k) for k in range(int(n) % 3 + 1)]),
    "index": lambda w, x, n: x[n - 1] * w,
    "slice": lambda w, x, n: x[:n // 2 + 1] @ w,
    "text": lambda w, x, n: x @ w * len(f"{n}"),
}


@pytest.mark.parametrize("name", [*NUMBERS, *READ])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_numbers_beside_sizes(name, dtype):
    batches = [(tf.constant(x), tf.constant(len(x), dtype)) for x, in rows()]
    compare(stepping({**NUMBERS, **READ}[name]), batches, skipped=0.5 if name in ("rows", "shape", "scaled", "product") else 0.0, coexecuted=0.5 if name in NUMBERS else 0.0)
