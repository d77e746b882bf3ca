"""Objects of the program's own classes of variables, which stand for a variable and make something of it (as libraries for quantisation have them): what their code does is observed where the
framework calls it, and where the step makes such an object."""

import threading

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

SCOPE = threading.local()
SCOPE.rounds = True
DATA = np.random.RandomState(0).randn(40, 8, 5).astype("float32")


@tf.custom_gradient
def rounded(x):
    return tf.sign(x) * tf.round(4.0 * tf.abs(x)) / 4.0, lambda upstream: upstream * tf.cast(tf.abs(x) < 1.0, x.dtype)


class Rounded(tf.Variable):
    """Stands for a variable, and gives it rounded."""

    def __init__(self, variable, scale=1.0):
        self.variable, self.scale = variable, scale

    def __tf_tensor__(self, dtype=None, name=None):
        value = tf.convert_to_tensor(self.variable, dtype=dtype, name=name)
        return rounded(value) * self.scale if getattr(SCOPE, "rounds", False) else value

    def __getattr__(self, name):
        return getattr(self.variable, name)

    shape = property(lambda self: self.variable.shape)
    dtype = property(lambda self: self.variable.dtype)
    handle = property(lambda self: self.variable.handle)
    trainable = property(lambda self: self.variable.trainable)

    def assign_sub(self, value, **options):
        return Rounded(self.variable.assign_sub(value, **options), self.scale)


class Layer(tf_keras.layers.Layer):
    def build(self, shape):
        self.own = self.add_weight(name="own", shape=(shape[-1], 3))
        self.kernel = Rounded(self.own)

    def call(self, x):
        return x @ tf.clip_by_value(self.kernel, -0.9, 0.9) + tf.reduce_mean(tf.matmul(x, self.kernel), 1, keepdims=True)


def run(wrap, change):
    tf_keras.utils.set_random_seed(0)
    layer, SCOPE.rounds = Layer(), True
    layer.build((8, 5))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(x) - 1.0) ** 2)
        layer.kernel.assign_sub(0.1 * tape.gradient(loss, layer.own))
        return loss

    step, losses = wrap(step), []
    for k, x in enumerate(DATA):
        if k == 25:
            change(layer)
        losses.append(float(step(tf.constant(x))))
    return losses, layer.own.numpy().tolist(), step


def nothing(layer):
    pass


def scaled(layer):
    layer.kernel.scale = 0.5


def in_full(layer):
    SCOPE.rounds = False


def forgotten(layer):
    del SCOPE.rounds


def exchanged(layer):
    layer.kernel = Rounded(layer.own, 0.25)


@pytest.mark.parametrize("change", [nothing, scaled, in_full, forgotten, exchanged])
def test_a_layer_with_such_a_variable(change):
    expected, actual = run(lambda step: step, change), run(lambda step: terra.coexecute(step, wait_for_graph=True), change)
    assert actual[:2] == expected[:2]
    assert actual[2].stats().whole_steps >= (30 if change is nothing else 15), actual[2].stats()


def test_an_attribute_of_a_thread():
    """What one thread has set another one does not see."""
    local = threading.local()

    def step(x):
        before = getattr(local, "scale", 1.0)
        local.scale = 3.0
        try:
            x = x * local.scale
        finally:
            local.scale = before
        for _ in range(4):
            x = tf.tanh(x + before)
        return x

    coexecuted, found = terra.coexecute(step, wait_for_graph=True), {}

    def work(name, function):
        seen = []
        for k in range(20):
            if k in (8, 14):
                local.scale = float(len(name)) + k
            seen.append((float(function(tf.constant(float(k)))), dict(vars(local))))
        found[name] = seen

    for name, function in (("one", step), ("first", step)):
        thread = threading.Thread(target=work, args=(name, function))
        thread.start()
        thread.join()
    expected, found = found, {}
    for name in ("one", "first"):
        thread = threading.Thread(target=work, args=(name, coexecuted))
        thread.start()
        thread.join()
    assert found == expected
    assert coexecuted.stats().whole_steps >= 20, coexecuted.stats()
