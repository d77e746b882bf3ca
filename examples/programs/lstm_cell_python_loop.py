"""An LSTM cell by hand, called in a Python loop over the time steps.

The loop runs in Python, over a number that the shape gives. AutoGraph: runs, with the loop unrolled.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.data import text_batches
from examples.programs.layers import LSTMCell
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 32, "batch": 8, "length": 6},
    "benchmark": {"units": 96, "batch": 32, "length": 16},
    "paper": {"units": 96, "batch": 32, "length": 16},
}


class CharacterModel(keras.Model):
    def __init__(self, alphabet, units):
        super().__init__()
        self.characters = keras.layers.Embedding(alphabet, 32)
        self.cell = LSTMCell(units)
        self.logits = keras.layers.Dense(alphabet)

    def call(self, inputs):
        embedded = self.characters(inputs)
        zeros = tf.zeros((embedded.shape[0], self.cell.units))
        state = (zeros, zeros)
        outputs = []
        for moment in range(embedded.shape[1]):
            output, state = self.cell(embedded[:, moment], state)
            outputs.append(output)
        return self.logits(tf.stack(outputs, axis=1))


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch, length):
    batches, alphabet = text_batches(seed, size=batch, length=length)
    return Job(classifier(CharacterModel(alphabet, units), batches[0][0]), batches)
