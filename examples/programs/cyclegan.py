"""CycleGAN: two generators between two kinds of photographs, two discriminators, and a pool of earlier pictures.

From the dissertation's list of Terra's programs. The pool is a Python list of tensors: a discriminator is shown the new picture, or, when Python's
random numbers say so, an earlier one that the new one then replaces. So tensors of many steps live on in Python.
AutoGraph: fails (InaccessibleTensorError). It makes a graph loop of the loop over the pictures, so the pool would keep symbolic tensors, which mean
nothing outside of that loop.
"""

import random

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.adversarial import Down, PatchDiscriminator, Up, instance_norm, judged_squared, minimise, photo_patches
from examples.programs.training import adam

SIZES = {
    "test": {"side": 8, "batch": 1, "filters": 4, "blocks": 1, "depth": 1, "pool": 1},
    "benchmark": {"side": 32, "batch": 1, "filters": 8, "blocks": 2, "depth": 2, "pool": 4},
    "paper": {"side": 256, "batch": 1, "filters": 64, "blocks": 9, "depth": 3, "pool": 50},
}
CYCLE_WEIGHT, IDENTITY_WEIGHT = 10.0, 5.0


class Mirrored(keras.layers.Layer):
    """A convolution that sees the picture mirrored at its edges."""

    def __init__(self, filters, size, use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.margin = size // 2
        self.convolution = keras.layers.Conv2D(filters, size, use_bias=use_bias)

    def call(self, inputs):
        margin = (self.margin, self.margin)
        return self.convolution(tf.pad(inputs, ((0, 0), margin, margin, (0, 0)), "REFLECT"))


class ResidualBlock(keras.layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.first, self.first_norm = Mirrored(filters, 3), instance_norm()
        self.second, self.second_norm = Mirrored(filters, 3), instance_norm()

    def call(self, inputs):
        x = tf.nn.relu(self.first_norm(self.first(inputs)))
        return inputs + self.second_norm(self.second(x))


class Generator(keras.Model):
    def __init__(self, filters, blocks):
        super().__init__()
        self.enter, self.norm = Mirrored(filters, 7), instance_norm()
        self.middle = [Down(filters * factor, instance_norm, size=3, slope=0.0) for factor in (2, 4)]
        self.middle += [ResidualBlock(4 * filters) for _ in range(blocks)]
        self.middle += [Up(filters * factor, instance_norm, size=3) for factor in (2, 1)]
        self.leave = Mirrored(3, 7, use_bias=True)

    def call(self, inputs):
        x = tf.nn.relu(self.norm(self.enter(inputs)))
        for layer in self.middle:
            x = layer(x)
        return tf.tanh(self.leave(x))


class Pool:
    """Up to `size` earlier pictures."""

    def __init__(self, size, seed):
        self.size, self.pictures, self.random = size, [], random.Random(seed)

    def exchange(self, pictures):
        """The pictures, each of them perhaps in exchange for an earlier one."""
        shown = []
        for picture in pictures:
            if len(self.pictures) < self.size:
                self.pictures.append(picture)
            elif self.random.random() < 0.5:
                place = self.random.randrange(self.size)
                picture, self.pictures[place] = self.pictures[place], picture
            shown.append(picture)
        return tf.stack(shown)


class Trainer:
    def __init__(self, seed, filters, blocks, depth, pool, example):
        self.to_x, self.to_y = Generator(filters, blocks), Generator(filters, blocks)
        self.is_x, self.is_y = (PatchDiscriminator(filters, depth, instance_norm) for _ in range(2))
        self.pool_x, self.pool_y = Pool(pool, seed), Pool(pool, seed + 1)
        for model in (self.to_x, self.to_y, self.is_x, self.is_y):
            model(example)
        self.generator_optimizer = adam(self.to_x.trainable_variables + self.to_y.trainable_variables, 2e-4)
        self.discriminator_optimizer = adam(self.is_x.trainable_variables + self.is_y.trainable_variables, 2e-4)

    def train_generators(self, x, y):
        with tf.GradientTape() as tape:
            fake_x, fake_y = self.to_x(y, training=True), self.to_y(x, training=True)
            cycle = tf.reduce_mean(tf.abs(self.to_x(fake_y, training=True) - x)) + tf.reduce_mean(tf.abs(self.to_y(fake_x, training=True) - y))
            identity = tf.reduce_mean(tf.abs(self.to_x(x, training=True) - x)) + tf.reduce_mean(tf.abs(self.to_y(y, training=True) - y))
            deception = judged_squared(self.is_x(fake_x, training=True), real=True) + judged_squared(self.is_y(fake_y, training=True), real=True)
            loss = deception + CYCLE_WEIGHT * cycle + IDENTITY_WEIGHT * identity
        minimise(tape, loss, self.to_x.trainable_variables + self.to_y.trainable_variables, self.generator_optimizer)
        return fake_x, fake_y, loss

    def train_discriminators(self, x, y, fake_x, fake_y):
        loss = 0.0
        with tf.GradientTape() as tape:
            for discriminator, real, fake in ((self.is_x, x, fake_x), (self.is_y, y, fake_y)):
                on_real, on_fake = discriminator(real, training=True), discriminator(fake, training=True)
                loss += 0.5 * (judged_squared(on_real, real=True) + judged_squared(on_fake, real=False))
        minimise(tape, loss, self.is_x.trainable_variables + self.is_y.trainable_variables, self.discriminator_optimizer)
        return loss

    def train_step(self, x, y):
        fake_x, fake_y, generator_loss = self.train_generators(x, y)
        discriminator_loss = self.train_discriminators(x, y, self.pool_x.exchange(fake_x), self.pool_y.exchange(fake_y))
        return generator_loss + discriminator_loss


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    side, batch, count = sizes.pop("side"), sizes.pop("batch"), 8
    shape = (count, batch, side, side, 3)
    temples, flowers = (photo_patches(seed, name, side, count * batch).reshape(shape) for name in ("china.jpg", "flower.jpg"))
    batches = [(tf.constant(x), tf.constant(y)) for x, y in zip(temples, flowers)]
    return Job(Trainer(seed, **sizes, example=batches[0][0]).train_step, batches)
