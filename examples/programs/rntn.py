"""RNTN: recursive neural tensor network; as TreeRNN, with a product of the two parts for each unit.

One of the three programs of the recursion chapter: few operations for each node, one of them large.
AutoGraph: runs, but traces the step anew for each batch of trees, since it unrolls them.
"""

import keras
import tensorflow as tf

from examples.programs.blocks.trees import TreeModel, tree_job

SIZES = {
    "test": {"units": 8, "batch": 2, "words": (3, 4)},
    "benchmark": {"units": 25, "batch": 4, "words": (5, 12)},
    "paper": {"units": 25, "batch": 25, "words": (5, 40)},
}


class TensorComposition(keras.layers.Layer):
    """tanh(x V x + W x + b) of the parts' states x, V being a matrix for each unit."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.tensor = self.add_weight(shape=(2 * units, units, 2 * units), initializer=keras.initializers.RandomUniform(-0.1, 0.1), name="tensor")
        self.dense = keras.layers.Dense(units)

    def call(self, parts):
        return tf.tanh(tf.einsum("bi,ikj,bj->bk", parts, self.tensor, parts) + self.dense(parts))


class RNTN(TreeModel):
    def __init__(self, units):
        super().__init__(units)
        self.compose = TensorComposition(units)

    def node(self, left, right):
        return self.compose(tf.concat([left, right], axis=-1))


def build(seed, size="benchmark"):
    return tree_job(seed, RNTN, **SIZES[size])
