"""A language model of one transformer block: attention, residuals, layer normalisation, dropout.

The user's own layers around stock ones. AutoGraph: runs.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.data import text_batches
from examples.programs.layers import CausalSelfAttention, ResidualDense
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 16, "batch": 8, "length": 12},
    "benchmark": {"units": 64, "batch": 32, "length": 24},
    "paper": {"units": 64, "batch": 32, "length": 24},
}


class LanguageModel(keras.Model):
    def __init__(self, alphabet, length, units, heads=4):
        super().__init__()
        self.length = length
        self.characters = keras.layers.Embedding(alphabet, units)
        self.places = keras.layers.Embedding(length, units)
        self.norm = keras.layers.LayerNormalization()
        self.attention = CausalSelfAttention(heads, units)
        self.dropout = keras.layers.Dropout(0.1)
        self.feed_forward = ResidualDense(units)
        self.logits = keras.layers.Dense(alphabet)

    def call(self, inputs, training=False):
        x = self.characters(inputs) + self.places(tf.range(self.length))
        x = x + self.dropout(self.attention(self.norm(x)), training=training)
        return self.logits(self.feed_forward(x))


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch, length):
    batches, alphabet = text_batches(seed, size=batch, length=length)
    model = LanguageModel(alphabet, length, units)
    return Job(classifier(model, batches[0][0]), batches)
