"""In-loop training: one call trains a linear layer for many steps of gradient descent.

AutoGraph's example of training inside the graph (there on MNIST): the loop over the steps, not only the step, is what shall run as a graph.
AutoGraph: runs, since the length of the loop is known, and unrolls it.
"""

import tensorflow as tf

from examples.programs import Job
from examples.programs.data import digit_batches

SIZES = {
    "test": {"steps": 4, "batch": 16},
    "benchmark": {"steps": 30, "batch": 200},
    "paper": {"steps": 1000, "batch": 200},
}
LEARNING_RATE = 0.1


def build(seed, size="benchmark"):
    steps, batch = SIZES[size]["steps"], SIZES[size]["batch"]
    batches = digit_batches(seed, size=batch, shape=(64,))
    weights = tf.Variable(tf.zeros((64, 10)), name="weights")
    bias = tf.Variable(tf.zeros(10), name="bias")

    def descend(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights + bias)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias))):
            variable.assign_sub(LEARNING_RATE * gradient)
        return loss

    def train(images, labels):
        for _ in range(steps):
            loss = descend(images, labels)
        return loss

    return Job(train, batches)
