"""A Keras functional convolutional network on digits, with batch normalisation."""

import keras

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import classifier


def build(seed):
    batches = digit_batches(seed)
    inputs = keras.Input((8, 8, 1))
    x = inputs
    for filters in (32, 64):
        # Batch normalisation takes the mean away, so a bias before it would do nothing.
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.3)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    return Job(classifier(model, batches[0][0]), batches)
