"""pix2pix: a U-Net paints photographs over their label maps, judged by a discriminator of patches.

One of Janus' eleven programs (there on façades): the step changes global state to watch the progress. Here the generator keeps its skips in a
Python list, and the trainer counts its steps, keeps the losses as Python numbers and every few steps a sample that the generator painted.
AutoGraph: fails ('SymbolicTensor' has no `numpy`). Without the reading the counter, and so the branch on it, would stand still.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.adversarial import Down, PatchDiscriminator, Up, judged, minimise, photo_patches
from examples.programs.training import adam

SIZES = {
    "test": {"side": 8, "batch": 1, "filters": 8, "depth": 3, "patch_depth": 1},
    "benchmark": {"side": 64, "batch": 1, "filters": 16, "depth": 6, "patch_depth": 3},
    "paper": {"side": 256, "batch": 1, "filters": 64, "depth": 8, "patch_depth": 3},
}
L1_WEIGHT, SAMPLE_EVERY = 100.0, 5


class UNet(keras.Model):
    """Down to one pixel and up again; what was on the way down comes back in on the way up."""

    def __init__(self, filters, depth):
        super().__init__()
        widths = [filters * 2 ** min(level, 3) for level in range(depth)]
        # One pixel per picture, as the innermost level has with a batch of one, leaves a normalisation nothing but zero.
        self.downs = [Down(width, keras.layers.BatchNormalization if 0 < level < depth - 1 else None) for level, width in enumerate(widths)]
        self.ups = [Up(width, dropout=0.5 if level < 3 else 0.0) for level, width in enumerate(reversed(widths[:-1]))]
        self.paint = keras.layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh")

    def call(self, inputs):
        x, skips = inputs, []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        skips.pop()
        for up in self.ups:
            x = tf.concat([up(x), skips.pop()], axis=-1)
        return self.paint(x)


class Trainer:
    def __init__(self, filters, depth, patch_depth, example):
        labels, photos = example
        self.generator = UNet(filters, depth)
        self.discriminator = PatchDiscriminator(filters, patch_depth)
        self.generator(labels)
        self.discriminator(tf.concat([labels, photos], axis=-1))
        self.generator_optimizer = adam(self.generator.trainable_variables, 2e-4)
        self.discriminator_optimizer = adam(self.discriminator.trainable_variables, 2e-4)
        self.steps, self.losses, self.samples = 0, [], []

    def judge(self, labels, photos):
        return self.discriminator(tf.concat([labels, photos], axis=-1), training=True)

    def train_step(self, labels, photos):
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            painted = self.generator(labels, training=True)
            on_real, on_painted = self.judge(labels, photos), self.judge(labels, painted)
            distance = tf.reduce_mean(tf.abs(photos - painted))
            generator_loss = judged(on_painted, real=True) + L1_WEIGHT * distance
            discriminator_loss = 0.5 * (judged(on_real, real=True) + judged(on_painted, real=False))
        minimise(generator_tape, generator_loss, self.generator.trainable_variables, self.generator_optimizer)
        minimise(discriminator_tape, discriminator_loss, self.discriminator.trainable_variables, self.discriminator_optimizer)

        self.losses.append((float(generator_loss.numpy()), float(discriminator_loss.numpy())))
        if self.steps % SAMPLE_EVERY == 0:
            self.samples.append((painted[0].numpy() + 1.0) / 2.0)
        self.steps += 1
        return generator_loss + discriminator_loss


def label_maps(photos, levels=4):
    """What a person would have drawn: each colour channel in a few flat levels."""
    return (np.round((photos + 1.0) / 2.0 * (levels - 1)) / (levels - 1) * 2.0 - 1.0).astype(np.float32)


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    side, batch, count = sizes.pop("side"), sizes.pop("batch"), 8
    photos = photo_patches(seed, "china.jpg", side, batch * count).reshape(count, batch, side, side, 3)
    batches = [(tf.constant(label_maps(photo)), tf.constant(photo)) for photo in photos]
    return Job(Trainer(**sizes, example=batches[0]).train_step, batches)
