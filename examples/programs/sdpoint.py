"""SDPoint: a ResNet that, at a random point of its own choice, goes on at half the resolution in each step.

One of Terra's ten programs (there on ImageNet, with ResNet50 as well). In each step the model draws the point with Python's `random` and writes it into the
attributes of its blocks, so the shapes change from that block on. The original may draw any block; here the ends of the stages are the points, so that all of
them come up in a short run.
AutoGraph: wrong. The draw happens while tracing, so every step goes the way of the first.
"""

import random

import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import Bottleneck, ResNet, labelled_patches
from examples.programs.training import class_loss, momentum, supervised

SIZES = {
    "test": {"side": 64, "batch": 8, "filters": 4, "blocks": (1, 1), "classes": 2},
    "benchmark": {"side": 64, "batch": 8, "filters": 16, "blocks": (2, 2, 2, 2), "classes": 2},
    "paper": {"side": 224, "batch": 32, "filters": 64, "blocks": (3, 4, 6, 3), "classes": 1000},
}


def window_means(size, target):
    """The matrix that takes `size` values to the means of `target` windows, as adaptive pooling has them."""
    matrix = np.zeros((target, size), np.float32)
    for row in range(target):
        start, end = row * size // target, -(-(row + 1) * size // target)
        matrix[row, start:end] = 1.0 / (end - start)
    return matrix


def adaptive_average_pool(x, target):
    """Averages an image to `target` by `target`, whatever its size."""
    _, height, width, _ = x.shape
    return tf.einsum("th,nhwc,sw->ntsc", window_means(height, target), x, window_means(width, target))


class SDBottleneck(Bottleneck):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.downsampling_ratio = 1.0

    def finish(self, x):
        if self.downsampling_ratio < 1.0:
            x = adaptive_average_pool(x, round(x.shape[1] * self.downsampling_ratio))
        return super().finish(x)


class SDResNet(ResNet):
    """Its points are the ends of its stages, except for the last one."""

    block = SDBottleneck

    def __init__(self, filters, blocks, classes, seed):
        super().__init__(filters, blocks, classes)
        self.random = random.Random(seed)

    def stochastic_downsampling(self, ratio=0.5):
        chosen = self.random.randrange(len(self.stages))
        for number, stage in enumerate(self.stages, 1):
            stage[-1].downsampling_ratio = ratio if number == chosen else 1.0

    def call(self, images):
        self.stochastic_downsampling()
        return super().call(images)


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, filters, blocks, classes):
    batches = labelled_patches(seed, side, batch)
    model = SDResNet(filters, blocks, classes, seed)
    model(batches[0][0])
    return Job(supervised(model, class_loss(), momentum(model.trainable_variables)), batches)
