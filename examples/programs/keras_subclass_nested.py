"""A subclassed Keras model whose layers are the user's own, nested three deep.

Stock layers called from the user's layers, in Python loops. AutoGraph: runs; over hundreds of steps its rounding drifts from eager's.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.layers import ResidualDense, Stack
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 16, "batch": 16},
    "benchmark": {"units": 64, "batch": 64},
    "paper": {"units": 64, "batch": 64},
}


class Network(keras.Model):
    def __init__(self, units, stacks=2, depth=2):
        super().__init__()
        self.enter = keras.layers.Dense(units)
        self.stacks = [Stack(ResidualDense(units) for _ in range(depth)) for _ in range(stacks)]
        self.leave = keras.layers.Dense(10)

    def call(self, inputs):
        x = self.enter(inputs)
        skipped = x
        for stack in self.stacks:
            x = stack(x)
        return self.leave(tf.nn.relu(x + skipped))


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch):
    batches = digit_batches(seed, size=batch, shape=(64,))
    return Job(classifier(Network(units), batches[0][0]), batches)
