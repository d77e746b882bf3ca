"""Steps that hand functions of their own to TensorFlow (loops, custom gradients), or fill a TensorArray: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.functionals [--steps N] [--quiet]

Small models with Adam, their loss read at each step; medians in ms over the last half of the steps, the three taking turns in chunks. Exits with 1 if what Terra trains differs from what
eager execution trains.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.benchmarks import turns

BATCH, TIME, FEATURES, UNITS, CLASSES, BATCHES = 32, 12, 16, 32, 5, 21


def batches(seed=0):
    """Batches (x, y) of sequences and their classes."""
    rng = np.random.default_rng(seed)
    return [(tf.constant(rng.normal(size=(BATCH, TIME, FEATURES)).astype("float32")), tf.constant(rng.integers(0, CLASSES, BATCH))) for _ in range(BATCHES)]


class Network(tf.Module):
    """A recurrent cell, written by hand, and a classifier."""

    def __init__(self, seed=1):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.inner = tf.Variable(tf.random.normal((FEATURES, UNITS), stddev=FEATURES ** -0.5))
        self.outer = tf.Variable(tf.random.normal((UNITS, UNITS), stddev=UNITS ** -0.5))
        self.classifier = tf.Variable(tf.random.normal((UNITS, CLASSES), stddev=UNITS ** -0.5))

    def cell(self, h, x):
        return tf.tanh(x @ self.inner + h @ self.outer)

    def get_weights(self):
        return [v.numpy() for v in self.trainable_variables]


def mapped(net, x):
    """`tf.map_fn` over the examples of a batch."""
    inner, outer = net.inner, net.outer
    return tf.map_fn(lambda row: tf.reduce_mean(tf.tanh(row @ inner) @ outer, 0), x)


def vectorized(net, x):
    """`tf.vectorized_map` over the examples of a batch."""
    inner = net.inner
    return tf.vectorized_map(lambda row: tf.tanh(tf.linalg.matvec(inner, tf.reduce_mean(row, 0), transpose_a=True)), x)


def scanned(net, x):
    """A recurrent network by `tf.scan`."""
    return tf.scan(net.cell, tf.transpose(x, (1, 0, 2)), initializer=tf.zeros((BATCH, UNITS)))[-1]


def folded(net, x):
    """The same by `tf.foldl`."""
    return tf.foldl(net.cell, tf.transpose(x, (1, 0, 2)), initializer=tf.zeros((BATCH, UNITS)))


def looped(net, x):
    """A fixed point, by `tf.while_loop`."""
    first = tf.reduce_mean(x, 1) @ net.inner
    return tf.while_loop(lambda i, h: i < 10, lambda i, h: (i + 1, tf.tanh(h @ net.outer + first)), (0, first))[1]


def written(net, x):
    """A recurrent network that writes its states to a `tf.TensorArray`."""
    states, h = tf.TensorArray(tf.float32, size=TIME), tf.zeros((BATCH, UNITS))
    for t in range(TIME):
        h = net.cell(h, x[:, t])
        states = states.write(t, h)
    return tf.reduce_mean(states.stack(), 0)


@tf.custom_gradient
def clipped(x):
    """The identity, with a gradient of bounded norm."""
    return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.1)


@tf.custom_gradient
def rounded(x):
    """Rounding, with the gradient of the identity."""
    return tf.round(x * 8.0) / 8.0, lambda dy: dy


def quantized(net, x):
    """Two `tf.custom_gradient`s: a straight-through estimator, and clipped gradients."""
    return rounded(tf.tanh(clipped(tf.reduce_mean(x, 1) @ net.inner) @ net.outer))


class Reversal(keras.layers.Layer):
    """Turns gradients round, for domain-adversarial training."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        @tf.custom_gradient
        def reverse(x):
            return tf.identity(x), lambda dy: -self.factor * dy

        return reverse(x)


def in_a_model(mode):
    """A Keras model with a `tf.custom_gradient` in one of its layers."""
    keras.utils.set_random_seed(1)
    given = keras.Input((TIME, FEATURES))
    hidden = keras.layers.Dense(UNITS, activation="tanh")(keras.layers.Flatten()(given))
    model = keras.Model(given, [keras.layers.Dense(CLASSES)(hidden), keras.layers.Dense(2)(Reversal(0.3)(hidden))])
    optimizer, loss_function = keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            classes, domains = model(x, training=True)
            loss = loss_function(y, classes) + loss_function(y % 2, domains)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    step = turns.MODES[mode](step)
    return lambda x, y: float(step(x, y)), model


def training(forward):
    def make(mode):
        net, optimizer = Network(), keras.optimizers.Adam(1e-3)
        optimizer.build(net.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                logits = forward(net, x) @ net.classifier
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
            return loss

        step = turns.MODES[mode](step)
        return lambda x, y: float(step(x, y)), net

    return make


PROGRAMS = {
    "tf.map_fn": training(mapped),
    "tf.vectorized_map": training(vectorized),
    "tf.scan": training(scanned),
    "tf.foldl": training(folded),
    "tf.while_loop": training(looped),
    "tf.TensorArray": training(written),
    "tf.custom_gradient": training(quantized),
    "tf.custom_gradient in a layer": in_a_model,
}


def main(argv=None):
    data = batches()
    return turns.main("examples.benchmarks.functionals", __doc__.splitlines()[0], {title: (make, data) for title, make in PROGRAMS.items()}, 200, argv)


if __name__ == "__main__":
    raise SystemExit(main())
