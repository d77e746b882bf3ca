"""TreeRNN: the sentiment of phrases, by recursion over their parse trees.

One of Janus' eleven programs and one of the three of the recursion chapter (there on sentiment tree banks; here the tree bank is generated):
a Python recursion whose shape is that of a Python object, another one for each sentence.
AutoGraph: runs, but traces the step anew for each batch of trees, since it unrolls them.
"""

import keras
import tensorflow as tf

from examples.programs.blocks.trees import TreeModel, tree_job

SIZES = {
    "test": {"units": 8, "batch": 2, "words": (3, 4)},
    "benchmark": {"units": 32, "batch": 4, "words": (5, 12)},
    "paper": {"units": 100, "batch": 25, "words": (5, 40)},
}


class TreeRNN(TreeModel):
    """The state of a phrase is one dense layer on those of its two parts."""

    def __init__(self, units):
        super().__init__(units)
        self.compose = keras.layers.Dense(units, activation="tanh")

    def node(self, left, right):
        return self.compose(tf.concat([left, right], axis=-1))


def build(seed, size="benchmark"):
    return tree_job(seed, TreeRNN, **SIZES[size])
