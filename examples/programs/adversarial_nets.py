"""Adversarial nets: Goodfellow's dense generator and maxout discriminator on digits, k updates of one for each of the other.

One of Janus' eleven programs (AN): the step changes global state to watch the progress. Here the trainer keeps running means of both losses as Python
numbers on `self`, counts its steps, and says when the discriminator was best.
AutoGraph: fails ('SymbolicTensor' has no `numpy`). Without the reading it would count one step and freeze the rest.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.adversarial import digit_pictures, judged, minimise
from examples.programs.training import adam

SIZES = {
    "test": {"side": 8, "batch": 16, "latent": 8, "units": 32, "k": 1},
    "benchmark": {"side": 16, "batch": 128, "latent": 64, "units": 128, "k": 2},
    "paper": {"side": 28, "batch": 128, "latent": 100, "units": 1200, "k": 1},
}


class Maxout(keras.layers.Layer):
    """The greatest of several linear pieces, for each unit."""

    def __init__(self, units, pieces=5, **kwargs):
        super().__init__(**kwargs)
        self.units, self.segments = units, pieces
        self.dense = keras.layers.Dense(units * pieces)

    def call(self, inputs):
        return tf.reduce_max(tf.reshape(self.dense(inputs), (-1, self.units, self.segments)), axis=-1)


class Trainer:
    def __init__(self, seed, side, latent, units, k):
        self.latent, self.k = latent, k
        pixels = side * side
        dense, dropout = keras.layers.Dense, keras.layers.Dropout
        self.generator = keras.Sequential(
            [keras.Input((latent,)), dense(units, activation="relu"), dense(units, activation="relu"), dense(pixels, activation="tanh")]
        )
        self.discriminator = keras.Sequential([keras.Input((pixels,)), dropout(0.2), Maxout(units), dropout(0.5), Maxout(units), dropout(0.5), dense(1)])
        self.generator_optimizer = adam(self.generator.trainable_variables, 2e-4)
        self.discriminator_optimizer = adam(self.discriminator.trainable_variables, 2e-4)
        self.random = tf.random.Generator.from_seed(seed)
        self.steps, self.means, self.best = 0, {}, (float("inf"), 0)

    def noise(self, number):
        return self.random.uniform((number, self.latent), -1.0, 1.0)

    def watch(self, **losses):
        """Running means of the losses, and the step at which the discriminator's was least."""
        for name, loss in losses.items():
            value = float(loss.numpy())
            self.means[name] = 0.9 * self.means.get(name, value) + 0.1 * value
        self.best = min(self.best, (self.means["discriminator"], self.steps))
        self.steps += 1

    def train_discriminator(self, real):
        generated = self.generator(self.noise(real.shape[0]), training=True)
        with tf.GradientTape() as tape:
            on_real = self.discriminator(real, training=True)
            on_generated = self.discriminator(generated, training=True)
            loss = judged(on_real, real=True) + judged(on_generated, real=False)
        minimise(tape, loss, self.discriminator.trainable_variables, self.discriminator_optimizer)
        return loss

    def train_generator(self, number):
        with tf.GradientTape() as tape:
            generated = self.generator(self.noise(number), training=True)
            loss = judged(self.discriminator(generated, training=True), real=True)
        minimise(tape, loss, self.generator.trainable_variables, self.generator_optimizer)
        return loss

    def train_step(self, images):
        real = tf.reshape(images, (images.shape[0], -1))
        for _ in range(self.k):
            discriminator_loss = self.train_discriminator(real)
        generator_loss = self.train_generator(real.shape[0])
        self.watch(discriminator=discriminator_loss, generator=generator_loss)
        return generator_loss + discriminator_loss


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    side, batch = sizes["side"], sizes.pop("batch")
    return Job(Trainer(seed, **sizes).train_step, [(images,) for images in digit_pictures(seed, side, batch)])
