"""Small data sets and the few bits that many programs share."""
import numpy as np
import tensorflow as tf

from . import Program


def floats(*shape, seed=0, dtype="float32"):
    return np.random.RandomState(seed).standard_normal(shape).astype(dtype)


def ints(*shape, high, seed=0, dtype="int64"):
    return np.random.RandomState(seed).randint(0, high, shape).astype(dtype)


def tensor(*shape, seed=0):
    return tf.constant(floats(*shape, seed=seed))


def tensors(*shape):
    """Two input sets of one float tensor each."""
    return [(tensor(*shape, seed=1),), (tensor(*shape, seed=2),)]


def arrays(*shape):
    """Two input sets of one numpy array each."""
    return [(floats(*shape, seed=1),), (floats(*shape, seed=2),)]


def regression(n=6, d=4):
    return [(tensor(n, d, seed=s), tensor(n, 1, seed=s + 10)) for s in (1, 2)]


def classification(n=6, d=4, classes=3):
    return [(tensor(n, d, seed=s), tf.constant(ints(n, high=classes, seed=s))) for s in (1, 2)]


def images(n=3, size=8, channels=2, classes=3):
    return [(tensor(n, size, size, channels, seed=s), tf.constant(ints(n, high=classes, seed=s))) for s in (1, 2)]


def tokens(n=4, length=5, vocabulary=11, classes=3):
    return [(tf.constant(ints(n, length, high=vocabulary, seed=s)), tf.constant(ints(n, high=classes, seed=s + 5)))
            for s in (1, 2)]


def dense_variables(*sizes):
    """Weights and biases of a multi-layer perceptron, as plain variables."""
    layers = []
    for i, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
        layers.append((tf.Variable(floats(rows, columns, seed=20 + i) * 0.5, name=f"w{i}"),
                       tf.Variable(tf.zeros([columns]), name=f"b{i}")))
    return layers


def optimizer_state(optimizer):
    """The variables of a Keras 3, tf_keras or legacy optimizer."""
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def supervised(model, optimizer, loss_fn, inputs, **call_arguments):
    """The usual training step of `model`, with everything it changes as state."""

    def train_step(x, y):
        with tf.GradientTape() as tape:
            prediction = model(x, **call_arguments)
            loss = loss_fn(y, prediction)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return Program(train_step, inputs, lambda: [model.variables, optimizer_state(optimizer)])
