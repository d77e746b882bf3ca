"""TreeLSTM: a long short-term memory that grows up along a parse tree instead of along a sentence.

One of Janus' eleven programs, one of the recursion chapter's and the example of AutoGraph's Lantern back end: recursion over Python objects, whose
states are pairs of tensors.
AutoGraph: runs, but traces the step anew for each batch of trees, since it unrolls them.
"""

import keras
import tensorflow as tf

from examples.programs.blocks.trees import TreeModel, tree_job

SIZES = {
    "test": {"units": 8, "batch": 2, "words": (3, 4)},
    "benchmark": {"units": 32, "batch": 4, "words": (5, 10)},
    "paper": {"units": 150, "batch": 25, "words": (5, 40)},
}


class TreeLSTM(TreeModel):
    """A state is (hidden, memory); a node has a forget gate for each of its two parts."""

    def __init__(self, units):
        super().__init__(units)
        self.leaf_gates = keras.layers.Dense(3 * units)
        self.node_gates = keras.layers.Dense(5 * units)

    def leaf(self, word):
        enter, leave, candidate = tf.split(self.leaf_gates(word), 3, axis=-1)
        memory = tf.sigmoid(enter) * tf.tanh(candidate)
        return tf.sigmoid(leave) * tf.tanh(memory), memory

    def node(self, left, right):
        gates = self.node_gates(tf.concat([left[0], right[0]], axis=-1))
        enter, leave, candidate, keep_left, keep_right = tf.split(gates, 5, axis=-1)
        memory = tf.sigmoid(enter) * tf.tanh(candidate) + tf.sigmoid(keep_left + 1.0) * left[1] + tf.sigmoid(keep_right + 1.0) * right[1]
        return tf.sigmoid(leave) * tf.tanh(memory), memory

    def output(self, state):
        hidden, _ = state
        return hidden


def build(seed, size="benchmark"):
    return tree_job(seed, TreeLSTM, **SIZES[size])
