"""Layers of Keras' own that a step makes and calls: `Add()([x, y])`, `keras.layers.concatenate([x, y])`. Where they have no weights, the step is skipped, though it makes them each time."""

import keras
import pytest
import tensorflow as tf
import tf_keras

from terra.transform import policy
from tests import harness

DATA = [tf.random.stateless_normal([4, 6], [k, 1]) for k in range(30)]


class Held:
    """What steps read."""

    def __init__(self):
        self.w = tf.Variable(tf.random.stateless_normal([6, 6], [2, 3]))
        self.names, self.kind = [], "relu"


def adds(layers, held, x):
    return layers.Add(name="sum")([x, x @ held.w])


def adds_by_function(layers, held, x):
    return layers.add([layers.multiply([x, x @ held.w]), x])


def several(layers, held, x):
    """Of one kind, with the same and with other arguments and shapes."""
    for _ in range(3):
        x = layers.Activation("tanh")(x @ held.w)
    return layers.Flatten()(layers.Reshape((2, 3))(x)) + layers.Activation("relu")(x) + tf.reduce_sum(layers.Activation("tanh")(x[:2]))


def in_a_function(layers, held, x):
    def block(x):
        return layers.LayerNormalization(center=False, scale=False)(x) if layers is None else layers.Concatenate(axis=-1)([x, x])[:, :6]

    return block(block(x @ held.w))


def reads_a_setting(layers, held, x):
    return layers.Activation(held.kind)(x @ held.w)


def names_itself(layers, held, x):
    layer = layers.Add()
    held.names.append(layer.name)
    return layer([x, x @ held.w])


def asks_afterwards(layers, held, x):
    layer = layers.Add()
    y = layer([x, x @ held.w])
    held.names.append(layer.built)
    return y


def has_weights(layers, held, x):
    return layers.Dense(3, kernel_initializer="ones")(x @ held.w)


def calls_twice(layers, held, x):
    layer = layers.Activation("tanh")
    return layer(layer(x @ held.w))


def kept(layers, held, x):
    """By a function that gives it back."""
    def keep(layer):
        held.kept = layer
        return layer

    y = keep(layers.Add())([x, x @ held.w])
    held.names.append(held.kept.built)
    return y


class Tracks:
    """A library's, say, that is not instrumented: it stands beside a constant."""

    def __init__(self):
        self.kept = []

    def track(self, layer, n):
        self.kept.append(layer)
        return layer


def kept_beside_a_constant(layers, held, x):
    tracks = Tracks()
    y = tracks.track(layers.Add(), 1)([x, x @ held.w])
    held.names.append(tracks.kept[0].built)
    return y


def made(body, layers, kept=None):
    def make():
        for package in (keras, tf_keras):
            package.backend.clear_session()
        held = Held()

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(body(layers, held, x) ** 2)
            held.w.assign_sub(0.1 * tape.gradient(loss, held.w))
            return loss

        def call(step, k):
            if kept is not None:
                kept(held, k)
            return step(DATA[k])

        # What is made later has the names that it has eagerly.
        return step, call, lambda: [held.w, held.names, layers.Add().name, layers.Activation("relu").name]

    return make


@pytest.mark.all_variants
@pytest.mark.parametrize("layers", [keras.layers, tf_keras.layers], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("body", [adds, adds_by_function, several, in_a_function, reads_a_setting])
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_layers_that_a_step_makes(body, layers, verify):
    harness.compare_steps(made(body, layers), whole=14, express=0, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [has_weights, calls_twice, asks_afterwards, names_itself, kept, kept_beside_a_constant])
@pytest.mark.parametrize("instrumented", [True, False], ids=["program", "library"])
def test_what_is_not_skipped(body, instrumented, monkeypatch):
    """New weights are others each time; of a layer that was called more may be asked than of one that was not."""
    if not instrumented:
        monkeypatch.setitem(policy.settings.prefixes, __name__, False)
    harness.compare_steps(made(body, tf_keras.layers), whole=0, express=0)


def test_a_setting_that_changes():
    harness.compare_steps(made(reads_a_setting, keras.layers, lambda held, k: setattr(held, "kind", "tanh" if k >= 22 else "relu")), whole=10, express=0)


def test_the_type_that_layers_compute_with_changes():
    """It is what a layer is made with, though nothing of it stands in the program."""
    def change(held, k):
        keras.config.set_dtype_policy("mixed_float16" if k >= 22 else "float32")

    try:
        harness.compare_steps(made(adds, keras.layers, change), whole=10, express=0)
    finally:
        keras.config.set_dtype_policy("float32")
