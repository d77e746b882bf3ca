"""A Keras Sequential of dense layers on digits, with Adam: the smallest ordinary step.

All of the step is stock Keras: nothing in it is hard for a graph. AutoGraph: runs.
"""

import keras

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import classifier

SIZES = {
    "test": {"units": 64, "batch": 16},
    "benchmark": {"units": 256, "batch": 64},
    "paper": {"units": 256, "batch": 64},
}


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch):
    batches = digit_batches(seed, size=batch, shape=(64,))
    model = keras.Sequential(
        [
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    return Job(classifier(model, batches[0][0]), batches)
