"""An LSTM cell by hand, called in a Python loop over the time steps."""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.data import text_batches
from examples.programs.layers import LSTMCell
from examples.programs.training import classifier


class CharacterModel(keras.Model):
    def __init__(self, alphabet, units=96):
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


def build(seed):
    batches, alphabet = text_batches(seed, length=16)
    return Job(classifier(CharacterModel(alphabet), batches[0][0]), batches)
