"""Keras' LSTM layer on lines of many lengths (NumPy arrays, padded to the longest line of a batch, masked), predicting the next character.

The layer's loop over the characters runs another number of times for each length. AutoGraph: runs, and traces again for each length.
"""

import keras

from examples.programs import Job
from examples.programs.data import text_lines
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 16, "batch": 6, "lengths": (3, 9), "count": 5},
    "benchmark": {"units": 64, "batch": 32, "lengths": (8, 40), "count": 8},
    "paper": {"units": 128, "batch": 64, "lengths": (8, 80), "count": 24},
}


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch, lengths, count):
    batches, alphabet = text_lines(seed, batch, *lengths, count)
    model = keras.Sequential(
        [
            keras.layers.Embedding(alphabet, 32, mask_zero=True),
            keras.layers.LSTM(units, return_sequences=True),
            keras.layers.Dense(alphabet),
        ]
    )
    return Job(classifier(model, batches[0][0]), batches)
