"""Sizes that are not known, and are equal all the same: code that compares them reads none. And those that only look equal are told apart."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.tensors.open_shapes import LazyShape, are_equal
from tests import harness
from tests.frontends.test_keras_fit import EXACT
from tests.tracing.test_reduce_retracing import compare, sizes
from tests.variants import examples


def as_image(x):
    return tf.reshape(x, (1, tf.shape(x)[0], tf.shape(x)[1], 1))


# Of matrices of unknown sizes: such as keep sizes, add and multiply them, and such as do anything else to them.
OPERATIONS = {
    "tanh": lambda x, y: tf.tanh(x), "add": lambda x, y: x + x, "outer": lambda x, y: x[:, :1] + tf.transpose(x)[:1], "transpose": lambda x, y: tf.transpose(x),
    "product": lambda x, y: x @ tf.transpose(x), "tile": lambda x, y: tf.tile(x, [2, 1]), "twice": lambda x, y: tf.concat([x, x], 0), "both": lambda x, y: tf.concat([tf.reshape(x, (-1, 1)), tf.reshape(y, (-1, 1))], 0),
    "flat": lambda x, y: tf.reshape(x, (-1, 1)), "shaped": lambda x, y: tf.reshape(tf.reshape(x, (-1,)), tf.shape(x)), "zeros": lambda x, y: tf.zeros((tf.shape(x)[0], tf.shape(y)[0])),
    "ones": lambda x, y: tf.ones([tf.shape(x)[1], 3]), "fill": lambda x, y: tf.fill((tf.shape(x)[0] * 2, tf.shape(x)[1]), 1.0), "first": lambda x, y: x[:7], "last": lambda x, y: x[-9:], "all_but_one": lambda x, y: x[:-1],
    "every_other": lambda x, y: x[::2], "half": lambda x, y: x[:tf.shape(x)[0] // 2], "halved": lambda x, y: tf.reshape(tf.concat([x, x], 0), (-1, 2 * tf.shape(x)[1])),
    "strided": lambda x, y: tf.nn.conv2d(as_image(x), tf.ones((1, 1, 1, 1)), 2, "SAME")[0, :, :, 0], "pooled": lambda x, y: tf.nn.max_pool2d(as_image(x), 3, 1, "VALID")[0, :, :, 0] if min(x.shape) > 2 else x,
    "upsampled": lambda x, y: tf.repeat(x, 2, 0), "padded": lambda x, y: tf.pad(x, [[1, 0], [0, 0]]), "diagonal": lambda x, y: tf.linalg.diag_part(x)[:, None], "masked": lambda x, y: tf.boolean_mask(x, x[:, 0] > 0),
    "gathered": lambda x, y: tf.gather(x, tf.range(tf.shape(y)[0]) % tf.shape(x)[0]), "reduced": lambda x, y: tf.reduce_sum(x, 1, keepdims=True), "softmax": lambda x, y: tf.nn.softmax(x), "stacked": lambda x, y: tf.unstack(tf.stack([x, x]))[0],
    "least": lambda x, y: x[:tf.minimum(tf.shape(x)[0], tf.shape(y)[0])], "other": lambda x, y: y,
}


def claims(tensors):
    """For each two tensors, whether their shapes are known to be equal, and whether those of their transposed forms are."""
    for a, b in itertools.combinations(tensors, 2):
        shapes = a.shape._dims, b.shape._dims
        if any(type(shape) is LazyShape for shape in shapes):
            yield are_equal(*shapes), lambda a=a, b=b: (tuple(a.shape), tuple(b.shape))
            yield are_equal(a.shape[:1]._dims, b.shape[1:]._dims), lambda a=a, b=b: (tuple(a.shape)[:1], tuple(b.shape)[1:])


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from([*OPERATIONS]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7), st.integers(0, 1000))
def test_what_is_said_of_shapes_is_so(chosen, seed):
    found, drawn = [], np.random.RandomState(seed)

    def step(x, y):
        tensors = [x, y]
        for name, a, b in chosen:
            tensors.append(OPERATIONS[name](tensors[a % len(tensors)], tensors[b % len(tensors)]))
        said = [(equal, shapes) for equal, shapes in claims(tensors) if equal is not None]
        found.extend((equal, *shapes()) for equal, shapes in said)  # this reads them
        return tensors[-1]

    coexecuted = terra.coexecute(step, reduce_retracing=True, wait_for_graph=True, fast_forward=False)
    for k in range(10):
        n, m = drawn.randint(1, 14, 2)
        try:
            coexecuted(tf.constant(drawn.randn(n, 3), tf.float32), tf.constant(drawn.randn(m, 3 if k < 6 else drawn.randint(1, 5)), tf.float32))
        except (tf.errors.InvalidArgumentError, ValueError):  # of operations that cannot be chained
            return
    assert all(equal is (shape == other) for equal, shape, other in found)
    assert coexecuted.stats().coexecuted_steps >= 2


def test_which_are_known_to_be_equal():
    seen = {}

    def step(x, y):
        shapes = {name: OPERATIONS[name](x, y).shape._dims for name in OPERATIONS if name not in ("pooled", "masked")}
        seen.update({a: {b for b in shapes if b != a and are_equal(shapes[a], shapes[b])} for a in shapes})
        return x + 1.0

    coexecuted = terra.coexecute(step, reduce_retracing=True, wait_for_graph=True, fast_forward=False)
    for n in (4, 7, 9, 5, 8, 6, 11):
        coexecuted(tf.constant(np.ones((n, 3), np.float32)), tf.constant(np.ones((n + 2, 3), np.float32)))
    assert {"add", "softmax", "shaped", "stacked"} <= seen["tanh"] and seen["tile"] == {"fill", "twice", "upsampled"} and {"tile", "both", "other", "half"}.isdisjoint(seen["tanh"])
    assert coexecuted.stats().coexecuted_steps >= 3


@pytest.mark.parametrize("framework", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_model_of_many_sizes_reads_none(framework):
    """Normalisation, specifications of inputs, a loss that clips, masks of ones: all of these look at sizes."""
    layers = framework.layers

    def make():
        framework.utils.set_random_seed(0)
        inner = framework.Sequential([framework.Input((4,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3, activation="softmax")])
        weights = inner.trainable_variables

        def step(x, y):
            n = tf.shape(x)[0]
            with tf.GradientTape() as tape:
                mixed = tf.linalg.band_part(tf.ones((n, n)), -1, 0) @ x / tf.cast(n, tf.float32)
                loss = tf.reduce_mean(framework.losses.sparse_categorical_crossentropy(y, inner(mixed, training=True)))
                loss += tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.clip_by_value(x, -1.0, 1.0)))
            for w, g in zip(weights, tape.gradient(loss, weights)):
                w.assign_sub(0.1 * g)
            return loss
        return step, lambda: weights

    def batches():
        drawn = np.random.RandomState(0)
        for n in sizes(1, 40):
            yield tf.constant(drawn.randn(n, 4), tf.float32), tf.constant(drawn.randint(0, 3, n))

    stats = compare(make, batches, 0.5)
    assert stats.fetches == 0, stats


def test_arguments_that_were_as_long_as_each_other():
    """What was recorded rests on it, also where the step's code does not run any more: then it holds no longer."""
    def make():
        w = tf.Variable(tf.ones((3, 2)))

        def step(x, y):
            same = x.shape[:1] == y.shape[:1]
            w.assign_add(tf.reduce_mean(x) * tf.ones((3, 2)) if same else -tf.reduce_mean(y) * tf.ones((3, 2)))
            return tf.reduce_sum(x @ w) + (1.0 if same else 2.0)
        return step, lambda: [w]

    def batches():
        drawn = np.random.RandomState(0)
        for k, n in enumerate(sizes(1, 60)):
            yield tf.constant(drawn.randn(n, 3), tf.float32), tf.constant(drawn.randn(n + (k % 3 if k > 35 else 0), 3), tf.float32)

    given = [*batches()]
    stats = harness.differ(make, given.__getitem__, 34, np.testing.assert_array_equal, reduce_retracing=True)
    assert stats.fetches == 0 and stats.whole_steps >= 20, stats
    stats = harness.differ(make, given.__getitem__, len(given), np.testing.assert_array_equal, reduce_retracing=True)
    assert stats.fetches > 0 and stats.whole_steps >= 20, stats


def test_dimensions_are_read_when_they_are_looked_at():
    seen = []

    def step(x):
        y = tf.boolean_mask(x, x[:, 0] > 0)
        dims = y.shape.dims
        seen.append((dims[1].value, y.shape.is_fully_defined(), dims[0].value if len(seen) % 5 == 4 else None))
        return tf.reduce_sum(y)

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    data = [np.random.RandomState(k).randn(9, 4).astype("float32") for k in range(20)]
    for x in data:
        coexecuted(tf.constant(x))
    assert seen == [(4, True, int((x[:, 0] > 0).sum()) if k % 5 == 4 else None) for k, x in enumerate(data)]
    assert coexecuted.stats().coexecuted_steps >= 10


def test_sizes_beside_operations_that_are_run_for_their_shapes():
    """Nothing is run for a fictitious size, which no memory has room for; and numbers that no tensor holds are not followed."""
    scale, offset = tf.ones(3), tf.zeros(3)
    seen = []

    def step(x):
        n = tf.shape(x)[0]
        image = tf.reshape(x, (1, n, 2, 3))
        y = tf.compat.v1.nn.fused_batch_norm(image, scale, offset)[0]
        product = n * n * n
        seen.append((are_equal(y.shape._dims, image.shape._dims), are_equal(tf.tanh(y).shape._dims, y.shape._dims)))
        return tf.reduce_sum(y), product

    def run(step):
        return [tuple(map(float, step(tf.constant(np.random.RandomState(n).randn(n, 6), tf.float32)))) for n in (4, 7, 9, 5, 8, 6, 11, 3, 12)]

    coexecuted = terra.coexecute(step, reduce_retracing=True, wait_for_graph=True, fast_forward=False)
    assert run(coexecuted) == run(step)
    assert all(second for first, second in seen) and coexecuted.stats().coexecuted_steps >= 5


@pytest.mark.parametrize("kinds", [("int32", "int32"), ("int64", "int32"), ("int32", "int64"), ("int32", "numpy"), ("int32", "negative")])
def test_shapes_to_be_filled(kinds):
    """`tf.zeros` and `tf.ones` convert shapes with tensors in them, of 32 bits; integers of other kinds are read, as ever."""
    def size(x, axis, kind):
        return np.int64(3) if kind == "numpy" else tf.constant(-1) * tf.shape(x)[0] if kind == "negative" else tf.cast(tf.shape(x)[axis], kind)

    def step(x):
        y = tf.boolean_mask(x, x[:, 0] > 0)
        sizes = [size(y, axis, kind) for axis, kind in enumerate(kinds)]
        return tf.zeros(sizes) + tf.ones(tuple(sizes)), tf.zeros((sizes[0], 2), tf.int64)

    def attempted(step, x):
        try:
            return step(x)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return type(error).__name__

    given = [(tf.constant(np.random.RandomState(k).randn(9, 3), tf.float32),) for k in range(20)]
    coexecuted, seen = terra.coexecute(step, wait_for_graph=True), []
    for x, in given:
        assert not [*harness.differences(harness.snapshot(attempted(step, x)), harness.snapshot(attempted(coexecuted, x)), EXACT)]
        seen.append(coexecuted.stats().fetches)
    assert coexecuted.stats().coexecuted_steps >= 8 or "negative" in kinds
    assert kinds != ("int32", "int32") or seen[-1] == 0
