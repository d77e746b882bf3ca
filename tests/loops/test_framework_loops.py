"""TensorFlow's own loops, whose trip counts vary: `tf.while_loop`, `tf.scan`, `tf.map_fn`, and the RNN layers of Keras on sequences of many lengths."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests import harness

STEPS = 20
LENGTHS = [2, 4, 3, 5, 2, 1]


def differ(make, given, **more):
    """Forward values are equal; the gradients of rolled loops are summed in another order, and training lets that last bit grow."""
    return harness.differ(make, given, STEPS, functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), **more)


def tokens(i, array=True):
    found = np.random.default_rng(i).integers(1, 20, (4, LENGTHS[i % len(LENGTHS)])).astype("int32")
    for k, row in enumerate(found):
        row[2 + (k + i) % found.shape[1]:] = 0
    return found if array else tf.constant(found)


class Counting(keras.layers.Layer):
    """A cell of the user's, with a side effect at each iteration."""

    calls = 0
    state_size = 6

    def build(self, shape):
        self.dense = keras.layers.Dense(6, activation="tanh")

    def call(self, x, states):
        Counting.calls += 1
        state = self.dense(tf.concat([x, states[0]], 1)) * 0.5
        return state, [state]


L = keras.layers
LAYERS = {
    "lstm": lambda: L.LSTM(6),
    "gru": lambda: L.GRU(6, return_sequences=True),
    "simple": lambda: L.SimpleRNN(6, go_backwards=True),
    "bidirectional": lambda: L.Bidirectional(L.LSTM(6, return_sequences=True)),
    "state": lambda: L.GRU(6, return_state=True),
    "user's cell": lambda: L.RNN(Counting()),
    "two": lambda: keras.Sequential([L.SimpleRNN(6, return_sequences=True), L.SimpleRNN(4)]),
}


@pytest.mark.parametrize("name, mask", [(name, False) for name in LAYERS if name != "bidirectional"] + [(name, True) for name in ("lstm", "bidirectional", "user's cell")])
def test_layers_of_keras(name, mask):
    def make():
        embedding, layer, head = L.Embedding(20, 5, mask_zero=mask), LAYERS[name](), L.Dense(3)
        optimizer = keras.optimizers.SGD(0.1)
        Counting.calls = 0

        def step(x):
            with tf.GradientTape() as tape:
                result = layer(embedding(x), training=True)
                if isinstance(result, (list, tuple)):
                    result = result[0]
                loss = tf.reduce_mean(head(result) ** 2.0)
            variables = embedding.trainable_variables + layer.trainable_variables + head.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss
        return step, lambda: [v.numpy() for v in optimizer.variables + layer.variables + [tf.constant(Counting.calls)]]
    stats = differ(make, lambda i: (tokens(i, i % 2 == 0),))
    assert stats.coexecuted_steps >= STEPS - 9, stats
    if name in ("user's cell", "state"):
        assert stats.rolled_loops >= 1 and stats.recurrent_layers == 0, stats
    else:
        assert stats.rolled_loops == 0 and stats.recurrent_layers >= 1 and stats.fallbacks <= 1, stats


@pytest.mark.parametrize("loops", ["auto", "roll", "unroll"])
def test_options(loops):
    def make():
        layer = L.LSTM(4)

        def step(x):
            return layer(tf.one_hot(x, 20))
        return step, lambda: [v.numpy() for v in layer.variables]
    stats = differ(make, lambda i: (tokens(i),), loops=loops)
    assert stats.recurrent_layers == (loops != "unroll") and stats.rolled_loops == 0 and stats.coexecuted_steps >= STEPS // 3, stats


def test_a_cell_that_changes():
    """What a skipped cell depends on is compared in each iteration."""
    def make():
        layer, seen = L.LSTM(4), []

        def step(x):
            seen.extend([1])
            return layer(tf.one_hot(x, 20))
        step.layer = layer
        return step, lambda: [v.numpy() for v in layer.variables] + [len(seen)]

    def change(i, step):
        layer = getattr(step, "layer", None) or step.__wrapped__.layer
        if i == 12:
            layer.cell.activation = keras.activations.relu
        if i == 15:
            layer.cell.recurrent_activation = lambda x: tf.sigmoid(x) * 0.5
        if i == 18:
            call = layer.cell.call
            layer.cell.call = lambda x, states, training=False: call(x * 0.5, states, training)
    stats = differ(make, lambda i: (tokens(i),), change=change)
    assert stats.rolled_loops >= 1 and stats.coexecuted_steps >= 9, stats


W = tf.constant(np.random.default_rng(0).normal(size=(4, 4)).astype("float32") * 0.3)


def while_loop(x, v):
    return tf.while_loop(lambda i, s: i < tf.shape(x)[0], lambda i, s: (i + 1, tf.tanh(tf.matmul(s, v) + x[i])), (tf.constant(0), tf.zeros((1, 4))))[1]


LOOPS = {
    "while_loop": while_loop,
    "compat": lambda x, v: tf.compat.v1.while_loop(
        lambda i, s: i < x.shape[0], lambda i, s: (i + 1, tf.tanh(tf.matmul(s, v) + x[i])), (0, tf.zeros((1, 4))))[1],
    "of values": lambda x, v: tf.while_loop(lambda s: tf.reduce_sum(s) < float(x.shape[0]), lambda s: [s + tf.abs(tf.matmul(s, v)) + 0.1], [tf.zeros((1, 4))])[0],
    "maximum": lambda x, v: tf.while_loop(
        lambda s: True, lambda s: [tf.tanh(tf.matmul(s, v) + 0.1)], [tf.zeros((1, 4))], maximum_iterations=x.shape[0])[0],
    "scan": lambda x, v: tf.scan(lambda s, e: tf.tanh(tf.matmul(s, v) + e), x, tf.zeros((1, 4)))[-1],
    "foldl": lambda x, v: tf.foldl(lambda s, e: tf.tanh(tf.matmul(s, v) + e), x, tf.zeros((1, 4))),
    "map_fn": lambda x, v: tf.reduce_sum(tf.map_fn(lambda e: tf.tanh(tf.matmul(e[None], v)), x), 0),
    "nested": lambda x, v: tf.foldl(lambda s, e: s + tf.reduce_sum(tf.map_fn(lambda f: tf.tanh(f * e * v), x), 0), x, tf.zeros((4, 4))),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_tensorflow(name):
    def make():
        v = tf.Variable(W)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(LOOPS[name](x, v) ** 2.0)
            v.assign_sub(0.001 * tf.convert_to_tensor(tape.gradient(loss, v)))
            return loss
        return step, lambda: v.numpy()

    def given(i):
        return (tf.constant(np.random.default_rng(i).normal(size=(LENGTHS[i % 6], 4)).astype("float32")),)
    stats = differ(make, given)
    assert stats.rolled_loops >= 1 and stats.coexecuted_steps >= STEPS - 15, stats


def test_tf_keras():
    """Its layers call a function of TensorFlow's, or run such a loop."""
    def make():
        tf_keras.utils.set_random_seed(3)
        layers = [tf_keras.layers.GRU(4, return_sequences=True), tf_keras.layers.RNN(tf_keras.layers.SimpleRNNCell(3))]

        def step(x):
            y = tf.one_hot(x, 20)
            for layer in layers:
                y = layer(y)
            return y
        return step, lambda: [v.numpy() for layer in layers for v in layer.variables]
    stats = differ(make, lambda i: (tokens(i, False),))
    assert stats.coexecuted_steps >= 10, stats


def test_errors_are_tensorflows():
    """... with the location put right afterwards."""
    def make():
        v = tf.Variable(1.0)

        def step(n):
            messages = []
            for cond, body in ((None, lambda i: i + 1), (lambda i: i < n, lambda i: (i, i)), (lambda i: i < n, lambda i: {}[i])):
                try:
                    tf.while_loop(cond, body, [tf.constant(0)])
                except (TypeError, ValueError, KeyError) as error:
                    messages.append(type(error).__name__ + str(error)[:30])
            v.assign_add(1.0)
            return v * 2.0, tf.constant(len(messages)), tf.constant("".join(messages)[:40])
        return step, lambda: v.numpy()
    seen = []
    for coexecute in (False, True):
        step, state = make()
        if coexecute:
            step = terra.coexecute(step, wait_for_graph=True)
        seen.append([[x.numpy() for x in step(2 + i % 3)] for i in range(20)] + [state()])
    assert seen[0] == seen[1]


def test_outside_and_in_graphs():
    """Where no step runs, and in graphs, it is TensorFlow's."""
    @tf.function
    def graph(n):
        return tf.while_loop(lambda i: i < n, lambda i: [i + 1], [tf.constant(0)])[0]

    @terra.coexecute(wait_for_graph=True)
    def step(n):
        return graph(n) + tf.while_loop(lambda i: i < 2, lambda i: [i + 1], [tf.constant(0)])[0]
    for i in range(20):
        assert int(step(tf.constant(i))) == i + 2
        assert int(tf.while_loop(lambda i: i < 4, lambda i: [i + 1], [tf.constant(0)])[0]) == 4
    assert step.stats().coexecuted_steps >= 10
    assert tf.while_loop.__module__.startswith("tensorflow") and tf.compat.v1.while_loop.__name__ == "while_loop"
