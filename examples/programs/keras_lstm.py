"""Keras' own LSTM layer, predicting the next character of the standard library's text.

The layer has a loop of its own over the characters: one by one eagerly, a while operation in a graph. AutoGraph: runs.
"""

import keras

from examples.programs import Job
from examples.programs.data import text_batches
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 32, "batch": 8, "length": 12},
    "benchmark": {"units": 96, "batch": 32, "length": 24},
    "paper": {"units": 96, "batch": 32, "length": 24},
}


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch, length):
    batches, alphabet = text_batches(seed, size=batch, length=length)
    model = keras.Sequential(
        [
            keras.layers.Embedding(alphabet, 32),
            keras.layers.LSTM(units, return_sequences=True),
            keras.layers.Dense(alphabet),
        ]
    )
    return Job(classifier(model, batches[0][0]), batches)
