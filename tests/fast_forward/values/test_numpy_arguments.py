"""Arrays as arguments of stock layers, models and losses, and as indices: another array at each step is no other call."""

import sys
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests.fast_forward.sites.test_custom_gradients import check

RNG = np.random.default_rng(11)
KINDS = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]
EACH = [pytest.param(K, kind, id=f"{K.__name__.split('.')[-1]}-{kind}") for K, kinds in ((keras, KINDS), (tf_keras, ["float32", "float64", "int64", "bool"])) for kind in kinds]


def array(i, shape, kind):
    return (np.random.default_rng(i).normal(size=shape) * 3).astype(kind)


def dense(K):
    return K.layers.Dense(3, kernel_initializer=K.initializers.RandomNormal(seed=1))


def functional(K):
    given = K.Input((5,))
    return K.Model(given, dense(K)(K.layers.Dropout(0.2, seed=3)(given)))


MODELS = {
    "layer": dense,
    "sequential": lambda K: K.Sequential([K.Input((5,)), dense(K), K.layers.BatchNormalization()]),
    "functional": functional,
    "embedding": lambda K: K.layers.Embedding(300, 4, embeddings_initializer=K.initializers.RandomNormal(seed=1)),
    "rescaling": lambda K: K.layers.Rescaling(0.1, 1.0),
    "encoding": lambda K: K.layers.CategoryEncoding(300, output_mode="multi_hot"),
    "hashing": lambda K: K.layers.Hashing(7),
}


@pytest.mark.parametrize("K, kind", EACH)
@pytest.mark.parametrize("name", MODELS)
def test_models(K, name, kind):
    def make():
        K.utils.set_random_seed(2)
        model = MODELS[name](K)
        seen = []

        def step(x, y, given):
            seen.extend([1]), sys._getframe()
            try:
                result = model(given, training=True) if name != "hashing" else model(given)
            except Exception as error:  # noqa: BLE001  (whatever eager raises)
                raised.append(error)
                return tf.constant(type(error).__name__)
            return tf.cast(result, tf.float32) * 2.0, result
        return step, lambda: (*model.variables, tf.constant(len(seen)))

    def given(i):
        found = array(i, (6, 5), kind)
        return (np.abs(found) if name in ("embedding", "encoding", "hashing") and kind != "bool" else found,)
    raised = []
    stats = check(make, extra=given, skipped=0, coexecuted=0)
    assert stats.coexecuted_steps >= 5 or len(raised) == 2 * stats.steps, stats  # some do for some kinds, at each step


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_models_are_skipped(kind):
    """... and their gradients with them, though the step has a side effect."""
    def make():
        keras.utils.set_random_seed(2)
        model, loss_fn, seen = MODELS["functional"](keras), keras.losses.SparseCategoricalCrossentropy(from_logits=True), []

        def step(x, y, given, labels):
            with tf.GradientTape() as tape:
                loss = loss_fn(labels, model(given, training=True))
            seen.extend([1]), sys._getframe()
            gradients = tape.gradient(loss, model.trainable_variables)
            for v, g in zip(model.trainable_variables, gradients):
                v.assign_sub(0.1 * g)
            return loss, gradients
        return step, lambda: (*model.variables, tf.constant(len(seen)))
    stats = check(make, extra=lambda i: (array(i, (60, 5), kind), np.random.default_rng(i).integers(0, 3, size=60)), skipped=0)
    assert stats.fast_forwards >= 5 * stats.coexecuted_steps, stats
    assert stats.fallbacks <= 1, stats


LOSSES = {
    "mean_squared": lambda K: K.losses.MeanSquaredError(),
    "huber": lambda K: K.losses.Huber(),
    "binary": lambda K: K.losses.BinaryCrossentropy(from_logits=True),
    "categorical": lambda K: K.losses.SparseCategoricalCrossentropy(from_logits=True),
}


@pytest.mark.parametrize("name, K, kind", [
    pytest.param(name, *each.values, id=f"{name}-{each.id}") for turn, name in enumerate(LOSSES) for each in EACH[turn % 2::2]])
def test_losses(K, name, kind):
    def make():
        K.utils.set_random_seed(2)
        model, loss_fn, seen = dense(K), LOSSES[name](K), []

        def step(x, y, target, weight):
            seen.extend([1]), sys._getframe()
            with tf.GradientTape() as tape:
                loss = loss_fn(target, model(x), weight)
            return loss, tape.gradient(loss, model.trainable_variables)
        return step, lambda: (*model.variables, tf.constant(len(seen)))

    def given(i):
        target = np.abs(array(i, (6, 3) if name != "categorical" else (6,), "float64")).clip(0, 2)
        return target.astype(kind), array(i + 100, (6,), "float32") if i % 2 else None
    check(make, extra=given, skipped=0, coexecuted=5)


def test_arrays_of_other_things():
    def make():
        lookup, seen = keras.layers.StringLookup(vocabulary=["a", "b", "c"]), []

        def step(x, y, words):
            seen.extend([1]), sys._getframe()
            return lookup(words) + 1
        return step, lambda: tf.constant(len(seen))
    check(make, extra=lambda i: (np.array([["a", "b"], ["c", "d"]])[i % 2],), skipped=0, coexecuted=0)


def test_array_is_overwritten_afterwards():
    """A batch buffer that is used again, while steps are in flight."""
    layer = dense(keras)
    layer.build((None, 5))

    def step(given):
        return layer(given) * 2.0
    wrapped, buffer = terra.coexecute(step, wait_for_graph=True), np.empty((64, 5), np.float32)
    results, expected = [], []
    for i in range(16):
        buffer[:] = array(i, (64, 5), "float32")
        results.append(wrapped(buffer))
        expected.append(step(buffer).numpy())
        buffer[:] = np.nan
    for a, b in zip(results, expected):
        np.testing.assert_array_equal(a, b)
    assert wrapped.stats().coexecuted_steps >= 10


def test_inside_a_traced_function():
    """There an array becomes a constant of the graph, as without Terra."""
    def make():
        layer, seen = dense(keras), []
        layer.build((None, 5))

        @tf.function
        def traced(x):
            return layer(np.ones((2, 5), np.float32)) + tf.reduce_sum(x)

        def step(x, y, given):
            seen.extend([1]), sys._getframe()
            return traced(x) + layer(given)
        return step, lambda: tf.constant(len(seen))
    check(make, extra=lambda i: (array(i, (2, 5), "float32"),), skipped=0)


# -- indices ------------------------------------------------------------------------------------------------------------------------


def _reads_its_indices(w, i):
    y = tf.gather(w, i)
    return y * float(np.asarray(i).sum())


LOOKUPS = {
    "rows": lambda w, i: tf.gather(w, i),
    "by name": lambda w, i: tf.gather(params=w, indices=i),
    "columns": lambda w, i: tf.gather(w, i, axis=1),
    "of each row": lambda w, i: tf.gather(w[:4], i % 3, axis=1, batch_dims=1),
    "of each row, two axes": lambda w, i: tf.gather(tf.reshape(w, [2, 3, 3]), np.stack([i[:2], i[2:]]) % 3, axis=2, batch_dims=1),
    "one hot": lambda w, i: tf.one_hot(i, 3) * tf.reduce_sum(w),
    "one hot, then gathered": lambda w, i: tf.gather(w, tf.argmax(tf.one_hot(i, 3), 1)),
    "twice": lambda w, i: tf.gather(w, i) + tf.gather(w, i[::-1]),
    "reckoned with": lambda w, i: tf.gather(w, i) * tf.cast(tf.constant(i + 1)[:, None], tf.float32),
    "a size, too": lambda w, i: tf.gather(w, i) * tf.reduce_sum(tf.ones([int(i[0]) + 1])),
    "read": _reads_its_indices,
}


@pytest.mark.parametrize("kind, same", [("int32", False), ("int64", True)], ids=["int32-others", "int64-same"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_indices(name, kind, same):
    """They are data, in the operation itself and in its gradient, which reckons with them."""
    lookup = LOOKUPS[name]

    def make():
        w, seen = tf.Variable(tf.random.normal([6, 3])), []

        def step(x, y, i):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(lookup(tf.tanh(w), i) ** 2) * tf.reduce_mean(x ** 2)
            seen.extend([1]), sys._getframe()
            gradient = tf.convert_to_tensor(tape.gradient(loss, w))
            w.assign_sub(0.1 * gradient)
            return loss, gradient
        return step, lambda: (w, tf.constant(len(seen)))

    def given(i):
        return (np.random.default_rng(0 if same else i).integers(0, 3, 4).astype(kind),)
    check(make, extra=given, skipped=8, coexecuted=0 if name == "a size, too" else 8)


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_gradients_of_embeddings(K, kind):
    def make():
        layer, seen = K.layers.Embedding(9, 4, embeddings_initializer=K.initializers.RandomNormal(seed=1)), []
        layer.build((None,))

        def step(x, y, words):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(words) ** 2) * tf.reduce_mean(x ** 2)
            seen.extend([1]), sys._getframe()
            gradient = tf.convert_to_tensor(tape.gradient(loss, layer.trainable_variables[0]))
            layer.trainable_variables[0].assign_sub(0.1 * gradient)
            return loss, gradient
        return step, lambda: (layer.trainable_variables[0].value if K is keras else layer.trainable_variables[0], tf.constant(len(seen)))
    check(make, extra=lambda i: (np.random.default_rng(i).integers(0, 9, (2, 5)).astype(kind),), skipped=20, coexecuted=8)
