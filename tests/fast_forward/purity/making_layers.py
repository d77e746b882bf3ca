"""Programs that make layers in their steps, for `test_made_layers`."""

import tensorflow as tf

from tests.fast_forward.purity.training import Weights


class Held(Weights):
    """What steps read."""

    def __init__(self):
        super().__init__()
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
        return layers.Concatenate(axis=-1)([x, x])[:, :6]

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


def tracked(held, layer, n):
    held.kept = layer
    return layer


def kept_beside_a_constant(layers, held, x):
    """By a function that is given a constant behind it."""
    y = tracked(held, layers.Add(), 1)([x, x @ held.w])
    held.names.append(held.kept.built)
    return y
