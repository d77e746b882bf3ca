"""Steps with Python numbers that are others each time, NumPy's calculations, and calls that give something else each time: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.numbers [--steps N] [--quiet]

A multilayer perceptron with Adam, its loss read at each step; medians in ms over the last half of the steps, the three taking turns in chunks. Exits with 1 if what Terra trains differs
from what eager execution trains; where what `tf.function` trains does, the line says so. It traces anew for each value of a Python argument, and sees attributes, counters and draws as they
were when it traced.
"""

import math
import random

import keras
import numpy as np
import tensorflow as tf

from examples.benchmarks import turns
from examples.benchmarks.conditions import batches, network

STEPS = 200


class Trainer:
    """A training step, in the variants of its subclasses."""

    def __init__(self):
        self.model, self.loss_fn = network(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.model.trainable_variables)
        self.steps, self.beta, self.random, self.numpy = 0, 0.0, random.Random(1), np.random.default_rng(1)
        self.batches = iter(tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, zip(*batches())))).repeat())

    def gradients(self, x, y, weight=1.0):
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self.model(x, training=True)) * weight
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def train(self, x, y, weight=1.0):
        loss, gradients = self.gradients(x, y, weight)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss

    def before(self, k):
        """What the training loop does before step k."""


class RateAsArgument(Trainer):
    def step(self, x, y, rate):
        loss, gradients = self.gradients(x, y)
        for gradient, variable in zip(gradients, self.model.trainable_variables):
            variable.assign_sub(rate * gradient)
        return loss


class AnnealedWeight(Trainer):
    def before(self, k):
        self.beta = min(1.0, k / 150)

    def step(self, x, y, rate):
        return self.train(x, y, 1.0 + self.beta)


class CosineSchedule(Trainer):
    def step(self, x, y, rate):
        self.steps += 1
        self.optimizer.learning_rate = 5e-4 * (1 + math.cos(math.pi * self.steps / 400))
        return self.train(x, y)


class RandomFlip(Trainer):
    def step(self, x, y, rate):
        return self.train(tf.reverse(x, [1]) if self.random.random() < 0.5 else x, y)


class NumpyNoise(Trainer):
    def step(self, x, y, rate):
        noise = tf.constant((self.numpy.normal(size=(64, 64)) * 0.1).astype("float32"))
        return self.train(x + noise, y)


class SampledBatch(Trainer):
    """A batch that NumPy picks out of all examples, and scales."""

    def __init__(self):
        super().__init__()
        self.images, self.labels = map(np.concatenate, zip(*batches()))
        self.images = (self.images * 255).astype(np.uint8)

    def step(self, x, y, rate):
        rows = self.numpy.integers(0, len(self.images), 64)
        return self.train((self.images[rows] / 255).astype(np.float32), self.labels[rows])


class Mixup(Trainer):
    def step(self, x, y, rate):
        share, order = self.numpy.beta(0.4, 0.4), self.numpy.permutation(64)
        mixed = share * x + (1.0 - share) * tf.gather(x, order)
        with tf.GradientTape() as tape:
            logits = self.model(mixed, training=True)
            loss = share * self.loss_fn(y, logits) + (1.0 - share) * self.loss_fn(tf.gather(y, order), logits)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables))
        return loss


class Generated(Trainer):
    """The parts of a batch come out of a generator."""

    def parts(self, x, y):
        for k in range(4):
            scale = self.numpy.uniform(0.9, 1.1)
            yield x[16 * k:16 * k + 16] * scale, y[16 * k:16 * k + 16]

    def step(self, x, y, rate):
        with tf.GradientTape() as tape:
            loss = tf.add_n([self.loss_fn(labels, self.model(images, training=True)) for images, labels in self.parts(x, y)]) / 4.0
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables))
        return loss


class Action(Trainer):
    """What an agent does: an observation in, an integer out."""

    def step(self, x, y, rate):
        return int(tf.argmax(self.model(x[:1])[0]))


class NextBatch(Trainer):
    def step(self, x, y, rate):
        x, y = next(self.batches)
        return self.train(x, y)


PROGRAMS = {
    "a learning rate as an argument": RateAsArgument,
    "a weight annealed in an attribute": AnnealedWeight,
    "a schedule computed of a counter": CosineSchedule,
    "a branch on random.random()": RandomFlip,
    "noise of NumPy's": NumpyNoise,
    "next(iterator) in the step": NextBatch,
    "a batch sampled by NumPy": SampledBatch,
    "mixup": Mixup,
    "a generator": Generated,
    "an action, as an integer": Action,
}


def make(kind):
    def made(mode):
        trainer = kind()
        step, done = turns.MODES[mode](trainer.step), [0]

        def call(x, y, rate):
            trainer.before(done[0])
            done[0] += 1
            return float(step(tf.constant(x), tf.constant(y), rate if kind is RateAsArgument else 0.0))

        return call, trainer.model
    return made


def main(argv=None):
    known = batches()
    data = [(*known[k % len(known)], 0.05 / (1 + k / 50)) for k in range(STEPS)]
    return turns.main("examples.benchmarks.numbers", __doc__.splitlines()[0], {title: (make(kind), data) for title, kind in PROGRAMS.items()}, STEPS, argv)


if __name__ == "__main__":
    raise SystemExit(main())
