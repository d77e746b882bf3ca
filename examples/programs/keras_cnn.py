"""A Keras functional convolutional network on digits, with batch normalisation.

Stock Keras with state that a step updates: moving averages, seeds of dropout. AutoGraph: runs.
"""

import keras

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import classifier

SIZES = {
    "test": {"filters": (8, 16), "batch": 16},
    "benchmark": {"filters": (32, 64), "batch": 64},
    "paper": {"filters": (32, 64), "batch": 64},
}


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, filters, batch):
    batches = digit_batches(seed, size=batch)
    inputs = keras.Input((8, 8, 1))
    x = inputs
    for width in filters:
        # Batch normalisation takes the mean away, so a bias before it would do nothing.
        x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.3)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    return Job(classifier(model, batches[0][0]), batches)
