"""A Keras Sequential of dense layers on digits, with Adam: the smallest ordinary step."""

import keras

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import classifier


def build(seed):
    batches = digit_batches(seed, shape=(64,))
    model = keras.Sequential(
        [
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    return Job(classifier(model, batches[0][0]), batches)
