"""DropBlock: a ResNet whose layers drop whole blocks of the feature maps, with a probability that changes as it trains.

One of Terra's ten programs (there on ImageNet, with ResNet50 as well). The trainer calls `set_keep_prob` in each step; the layers keep the number in an
attribute, compute `gamma` from it in Python, and do nothing as long as it is one.
AutoGraph: wrong. The attribute is read while tracing, when it is one, so no block is ever dropped, and the layers are left as the first step had them.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import ResNet, labelled_patches
from examples.programs.training import class_loss, momentum

SIZES = {
    "test": {"side": 32, "batch": 8, "filters": 4, "blocks": (1,), "block_size": 3, "classes": 2, "ramp": 8},
    "benchmark": {"side": 96, "batch": 8, "filters": 16, "blocks": (2, 2, 2, 2), "block_size": 3, "classes": 2, "ramp": 200},
    "paper": {"side": 224, "batch": 64, "filters": 64, "blocks": (3, 4, 6, 3), "block_size": 7, "classes": 1000, "ramp": 100_000},
}
KEEP_PROB = 0.9  # at the end of the ramp


class DropBlock2D(keras.layers.Layer):
    """Sets squares of `block_size` to zero and scales up what is left."""

    def __init__(self, block_size, keep_prob=1.0, **kwargs):
        super().__init__(**kwargs)
        self.block_size, self.keep_prob = block_size, keep_prob
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, input_shape):
        _, self.h, self.w, _ = input_shape
        after = (self.block_size - 1) // 2
        before = self.block_size - 1 - after
        self.padding = [[0, 0], [before, after], [before, after], [0, 0]]
        self.set_keep_prob()

    def set_keep_prob(self, keep_prob=None):
        """Recomputes `gamma`, the probability with which a block starts at a place."""
        if keep_prob is not None:
            self.keep_prob = keep_prob
        places = (self.h - self.block_size + 1) * (self.w - self.block_size + 1)
        self.gamma = (1.0 - self.keep_prob) * (self.h * self.w) / self.block_size**2 / places

    def call(self, inputs, training=False):
        if not training or self.keep_prob == 1.0:
            return inputs
        mask = self.make_mask(inputs.shape)
        return inputs * mask * (tf.cast(tf.size(mask), tf.float32) / tf.reduce_sum(mask))

    def make_mask(self, shape):
        batch, height, width, channels = shape
        places = (batch, height - self.block_size + 1, width - self.block_size + 1, channels)
        starts = tf.cast(keras.random.uniform(places, seed=self.seed_generator) < self.gamma, tf.float32)
        return 1.0 - tf.nn.max_pool2d(tf.pad(starts, self.padding), self.block_size, 1, "SAME")


class DropBlockResNet(ResNet):
    """Drops blocks behind each residual block of the last two stages."""

    def __init__(self, filters, blocks, block_size, classes):
        self.block_size, self.first_stage = block_size, len(blocks) - 2
        super().__init__(filters, blocks, classes)

    def make_stage(self, stage, filters, number):
        layers = super().make_stage(stage, filters, number)
        if stage < self.first_stage:
            return layers
        return [layer for block in layers for layer in (block, DropBlock2D(self.block_size))]

    def set_keep_prob(self, keep_prob):
        for stage in self.stages:
            for layer in stage:
                if isinstance(layer, DropBlock2D):
                    layer.set_keep_prob(keep_prob)


class Trainer:
    """Lowers the probability of keeping a place in a line from one to its end."""

    def __init__(self, model, optimizer, ramp):
        self.model, self.optimizer, self.ramp = model, optimizer, ramp
        self.loss_fn = class_loss()
        self.steps = 0

    def train_step(self, images, labels):
        self.model.set_keep_prob(1.0 - (1.0 - KEEP_PROB) * min(1.0, self.steps / self.ramp))
        self.steps += 1
        with tf.GradientTape() as tape:
            loss = self.loss_fn(labels, self.model(images))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, filters, blocks, block_size, classes, ramp):
    batches = labelled_patches(seed, side, batch)
    model = DropBlockResNet(filters, blocks, block_size, classes)
    model(batches[0][0])
    return Job(Trainer(model, momentum(model.trainable_variables), ramp).train_step, batches)
