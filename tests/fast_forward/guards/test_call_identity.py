"""What tells one call of the framework's from another: what is attached to its tensors, what its model and its surroundings hold, and values that only look the same."""

import sys
import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

X = [tf.constant(np.random.RandomState(k).rand(4, 3), tf.float32) for k in range(3)]
Y = [tf.one_hot([k, 1, 2, 0], 3) for k in range(3)]


def compare(make, n=20, skipped=None, tolerance=0.0, **options):
    """`make()` gives (step, arguments of the k-th call, change before call 12 or None)."""
    runs = []
    for coexecuted in (False, True):
        keras.utils.set_random_seed(3)
        tf_keras.utils.set_random_seed(3)
        step, arguments, change = make()
        wrapped = terra.coexecute(step, wait_for_graph=True, **options) if coexecuted else step
        seen = []
        for k in range(n):
            if k == 12 and change is not None:
                change()
            try:
                seen.append(tf.nest.map_structure(np.asarray, wrapped(*arguments(k))))
            except (AttributeError, ValueError) as error:
                seen.append(type(error))
        runs.append(seen)
    np.testing.assert_equal(*runs) if not tolerance else np.testing.assert_allclose(*runs, rtol=tolerance)
    stats = wrapped.stats()
    assert stats.coexecuted_steps >= 8, stats
    assert skipped is None or stats.fast_forwards >= skipped, terra.explain(wrapped)


# -- what Keras and TensorFlow attach to tensors ---------------------------------------------------------------------------------------

def scaled(k):
    return X[k % 3] * (60.0 + k)


LOSSES = [
    (lambda y, p: keras.losses.CategoricalCrossentropy()(y, p), keras.activations.softmax, lambda y: y), (lambda y, p: keras.losses.BinaryCrossentropy()(y, p), keras.activations.sigmoid, lambda y: y),
    (lambda y, p: keras.losses.SparseCategoricalCrossentropy()(y, p), keras.activations.softmax, lambda y: tf.argmax(y, -1)),
    (lambda y, p: tf_keras.losses.CategoricalCrossentropy()(y, p), tf_keras.activations.softmax, lambda y: y),
    (lambda y, p: keras.losses.categorical_crossentropy(y, p), keras.activations.softmax, lambda y: y)]


@pytest.mark.parametrize("forward", [True, "framework"])
@pytest.mark.parametrize("loss, activation, label", LOSSES)
def test_logits_of_an_argument(loss, activation, label, forward):
    """Probabilities that Keras' activations give come with their logits, which its losses take instead."""
    labels = [label(y) for y in Y]
    compare(lambda: (loss, lambda k: (labels[k % 3], activation(scaled(k))), None), fast_forward=forward)
    compare(lambda: (loss, lambda k: (labels[k % 3], activation(scaled(k)) if k >= 12 else tf.identity(activation(X[k % 3]))), None), fast_forward=forward)


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("impure", [True, False])
def test_logits_of_a_tensor_that_is_held(at_first, impure):
    loss, counts = keras.losses.CategoricalCrossentropy(), []

    def make():
        held = keras.activations.softmax(scaled(0)) if at_first else tf.nn.softmax(scaled(0))

        def inner(y):
            return tf.sin(loss(y, held)) + loss(y, held)

        def step(y):
            if impure:
                counts.append(1)
            return inner(y)
        return step, lambda k: (Y[k % 3],), lambda: setattr(held, "_keras_logits", scaled(1))
    compare(make, skipped=8)


def test_logits_of_small_probabilities():
    """They are constants of the graph."""
    loss, target = keras.losses.CategoricalCrossentropy(), tf.constant([[0.0, 1.0]])
    compare(lambda: (lambda p: loss(target, p), lambda k: (keras.activations.softmax(tf.constant([[100.0 + k % 3, 0.0]])),), None))


def test_two_steps():
    model, loss = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")]), keras.losses.CategoricalCrossentropy()
    predict = terra.coexecute(lambda x: model(x), wait_for_graph=True)
    evaluate = terra.coexecute(lambda y, p: loss(y, p), wait_for_graph=True)
    for k in range(12):
        x = X[k % 3] * 500.0
        assert evaluate(Y[k % 3], predict(x)).numpy() == loss(Y[k % 3], model(x)).numpy()
    assert evaluate.stats().coexecuted_steps >= 8


def test_metrics_and_what_is_not_known():
    def make():
        metric = keras.metrics.CategoricalCrossentropy()

        def step(y, p):
            metric.update_state(y, p)
            return metric.result()

        def arguments(k):
            p = keras.activations.softmax(scaled(k))
            p.of_the_program = object()
            return Y[k % 3], p
        return step, arguments, None
    compare(make)


@pytest.mark.parametrize("forward", [True, "framework"])
def test_zeros(forward):
    """The gradient of a loss whose second output gets zeros leaves a term out, if `tf.zeros` has made them."""
    def step(z, label, gradient):
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss, back = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=z, labels=label)
        return tape.gradient([loss, back], z, output_gradients=[tf.ones_like(loss), gradient])

    zeros, others = tf.zeros((4, 3)), tf.constant(np.arange(12.0).reshape(4, 3), tf.float32)
    compare(lambda: (step, lambda k: (X[k % 3], Y[k % 3], zeros if k < 12 else others), None), fast_forward=forward)
    compare(lambda: (step, lambda k: (X[k % 3], Y[k % 3], others if k < 12 else zeros), None), fast_forward=forward)


# -- Functional models -----------------------------------------------------------------------------------------------------------------

def _operation(name, attribute, value):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(3)(inputs)
    outputs = {
        "Mean": lambda: keras.ops.mean(hidden, axis=1, keepdims=True), "Clip": lambda: keras.ops.clip(hidden, -0.1, 0.1), "LeakyRelu": lambda: keras.ops.leaky_relu(hidden, 0.2),
        "Softmax": lambda: keras.ops.softmax(hidden, -1)}[name]() * 2.0
    model = keras.Model(inputs, outputs)
    changed, = [op for op in model.operations if type(op).__name__ == name]
    return lambda x: model(x), lambda k: (X[k % 3],), lambda: setattr(changed, attribute, value)


@pytest.mark.parametrize("change", [("Mean", "axis", 0), ("Clip", "x_max", 0.01), ("LeakyRelu", "negative_slope", 0.5), ("Softmax", "axis", 0)], ids=lambda change: change[0])
def test_operations_of_a_model(change):
    compare(lambda: _operation(*change), skipped=6)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_constants_of_a_model(library):
    def make():
        constant = np.array([1.0, 2.0, 3.0], "f")
        inputs = library.Input((3,))
        hidden = library.layers.Dense(3)(inputs)
        model = library.Model(inputs, tf.add(hidden, constant) if library is tf_keras else hidden * constant)
        return lambda x: model(x), lambda k: (X[k % 3],), lambda: constant.fill(100.0)
    compare(make, skipped=6)


# -- surroundings ----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("call", ["apply", "loss"])
def test_scopes_of_strategies(call):
    """In one, Keras' optimizers and losses ask for a replica context: they raise, eagerly."""
    strategy, runs = tf.distribute.OneDeviceStrategy("/cpu:0"), []
    for coexecuted in (False, True):
        weight, optimizer, loss, seen = tf.Variable(1.0), keras.optimizers.SGD(0.1), tf_keras.losses.MeanSquaredError(), []
        optimizer.build([weight])

        def step(x):
            if call == "loss":
                return loss(x, x * weight)
            optimizer.apply([tf.reduce_sum(x)], [weight])
            return weight + 0.0

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        for k in range(16):
            try:
                if k < 12:
                    seen.append(wrapped(X[k % 3]).numpy())
                else:
                    with strategy.scope():
                        seen.append(wrapped(X[k % 3]).numpy())
            except (AttributeError, ValueError) as error:
                seen.append(type(error))
        runs.append([*seen, weight.numpy()])
    assert runs[0] == runs[1] and wrapped.stats().coexecuted_steps >= 8


def test_dropout_masks_of_cells_of_tf_keras():
    """A cell in a loop of the program's uses one mask until it is told to make another."""
    def make():
        cell = tf_keras.layers.SimpleRNNCell(3, dropout=0.5, kernel_initializer="identity", recurrent_initializer="zeros", activation=None, use_bias=False)
        cell(X[0], [tf.zeros((4, 3))])

        def step(x):
            cell.reset_dropout_mask()
            return [cell(x, [tf.zeros((4, 3))], training=True)[0] for _ in range(3)]
        return step, lambda k: (X[k % 3],), None
    compare(make)


@pytest.mark.parametrize("layer", [tf_keras.layers.SimpleRNN, tf_keras.layers.GRU, tf_keras.layers.LSTM])
def test_layers_that_reset_dropout_masks_are_skipped(layer):
    def make():
        it = layer(3, dropout=0.5, recurrent_dropout=0.2)
        it(tf.zeros((4, 2, 3)))
        return lambda x: it(tf.stack([x, x], 1), training=True), lambda k: (X[k % 3],), None
    compare(make, skipped=6)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_containers_that_a_layer_gives(library, nested):
    """What the program does to one that was there before must be done to that one."""
    left = []
    for coexecuted in (False, True):
        history = {"all": []} if nested else []

        class Layer(library.layers.Layer):
            def call(self, xs):
                return xs[0] * 2.0 + xs[1], history

        layer = Layer()

        def step(x):
            y, given = layer([x, x])
            (given["all"] if nested else given).append(1.0)
            return y

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        for k in range(20):
            wrapped(X[k % 3])
        left.append(history)
    assert left[0] == left[1] and wrapped.stats().coexecuted_steps >= 8


def test_recursion_as_deep_as_eagerly():
    counts = []

    def rec(x, n):
        return x if n == 0 else rec(tf.multiply(x, 1.001), n - 1)

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        counts.append(1)
        return rec(x, 380)

    for k in range(12):
        step(X[k % 3])
    assert len(counts) == 12 and step.stats().coexecuted_steps >= 8


def test_layers_that_are_called_in_turn_are_let_go():
    class Layer(keras.layers.Layer):
        def call(self, x):
            return tf.sin(tf.cos(x) * 2.0)

    def step(layer, x):
        sys._getframe()
        return layer(x)

    layers = [Layer() for _ in range(10)]
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for layer in layers:
        for k in range(6):
            wrapped(layer, X[k % 3])
    held = [weakref.ref(layer) for layer in layers]
    del layers, layer
    gc.collect()
    assert sum(x() is not None for x in held) <= 6 and wrapped.stats().coexecuted_steps >= 30


# -- values that look the same -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("forward", [True, False])
def test_zeros_among_attributes(forward):
    """0.0 == -0.0"""
    held = [0.0]
    compare(lambda: (lambda x: 1.0 / tf.nn.leaky_relu(-x, alpha=held[0]), lambda k: (held.__setitem__(0, (0.0, -0.0)[k // 3 % 2]) or X[k % 3],), None), n=24, fast_forward=forward)


def test_numbers_of_numpys_that_are_printed_alike():
    options = np.get_printoptions()
    np.set_printoptions(legacy="1.13")
    try:
        one, other = np.float64(1.0), np.float64(1.0 + 1e-14)
        assert str(one) == str(other)
        compare(lambda: (lambda x, by: tf.multiply(tf.cast(x, tf.float64), by), lambda k: (X[k % 3], one if k < 12 else other), None))
    finally:
        np.set_printoptions(**{**options, "legacy": False})


def test_records():
    def make():
        table = np.rec.array([(2.0,)], dtype=[("rate", "f8")])
        held = [table[0]]
        return lambda x: tf.multiply(x, float(held[0].rate)), lambda k: (X[k % 3],), lambda: table.rate.__setitem__(0, 5.0)
    compare(make)


def test_warnings_that_are_always_shown():
    shown = []
    for coexecuted in (False, True):
        held, messages = [np.complex64(2 + 1j)], []

        def step(x):
            return tf.multiply(x, float(np.float32(held[0])))

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        with warnings.catch_warnings():
            warnings.simplefilter("always", getattr(np, "exceptions", np).ComplexWarning)
            warnings.showwarning = lambda *args, **kwargs: messages.append(1)
            for k in range(20):
                wrapped(X[k % 3])
        shown.append(len(messages))
    assert shown == [20, 20] and wrapped.stats().coexecuted_steps >= 8


def test_calls_with_too_few_arguments():
    def step(x):
        try:
            isinstance(x)
        except TypeError as error:
            message = str(error)
        return x * 2.0, len(message)

    compare(lambda: (step, lambda k: (X[k % 3],), None))
