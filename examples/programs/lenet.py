"""LeNet-5 on scikit-learn's digits, enlarged to the size it was made for.

One of Janus' eleven programs (there on MNIST), and one of its small ones, where the framework's Python takes longer than the kernels. There is nothing dynamic
in the step. AutoGraph: runs.
"""

import keras

from examples.programs import Job
from examples.programs.blocks.convolutional import enlarged_digits
from examples.programs.training import class_loss, momentum, supervised

SIZES = {
    "test": {"side": 16, "batch": 8},
    "benchmark": {"side": 32, "batch": 50},
    "paper": {"side": 32, "batch": 50},
}


class LeNet(keras.Model):
    def __init__(self):
        super().__init__()
        self.convolution_1 = keras.layers.Conv2D(6, 5, activation="tanh")
        self.pool_1 = keras.layers.AveragePooling2D(2)
        self.convolution_2 = keras.layers.Conv2D(16, 5, activation="tanh")
        self.pool_2 = keras.layers.AveragePooling2D(2)
        self.flatten = keras.layers.Flatten()
        self.dense_1 = keras.layers.Dense(120, activation="tanh")
        self.dense_2 = keras.layers.Dense(84, activation="tanh")
        self.classify = keras.layers.Dense(10)

    def call(self, images):
        x = self.pool_1(self.convolution_1(images))
        x = self.pool_2(self.convolution_2(x))
        x = self.dense_2(self.dense_1(self.flatten(x)))
        return self.classify(x)


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch):
    batches = enlarged_digits(seed, side, batch)
    model = LeNet()
    model(batches[0][0])
    return Job(supervised(model, class_loss(), momentum(model.trainable_variables, 0.01)), batches)
