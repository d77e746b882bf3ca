"""Keras' own LSTM layer, predicting the next character of the standard library's text."""

import keras

from examples.programs import Job
from examples.programs.data import text_batches
from examples.programs.training import classifier


def build(seed):
    batches, alphabet = text_batches(seed)
    model = keras.Sequential(
        [
            keras.layers.Embedding(alphabet, 32),
            keras.layers.LSTM(96, return_sequences=True),
            keras.layers.Dense(alphabet),
        ]
    )
    return Job(classifier(model, batches[0][0]), batches)
