"""What the convolutional classifiers share: patches of photographs, normalised convolutions, ResNet, a trainer that evaluates on the way."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from examples.programs.blocks.adversarial import photo_patches
from examples.programs.training import class_loss, momentum

PHOTOS = ("china.jpg", "flower.jpg")


def labelled_patches(seed, side, batch, count=8):
    """`count` batches of (patches of scikit-learn's sample photographs, the number of the photograph)."""
    half = -(-batch * count // 2)
    patches = np.concatenate([photo_patches(seed, name, side, half) for name in PHOTOS])
    rows = np.random.default_rng(seed).permutation(len(patches))[: batch * count].reshape(count, batch)
    return [(tf.constant(patches[row]), tf.constant((row // half).astype(np.int32))) for row in rows]


def enlarged_digits(seed, side, batch, count=8):
    """`count` batches of (scikit-learn's digits scaled to `side` by `side`, their classes)."""
    digits = load_digits()
    rows = np.random.default_rng(seed).permutation(len(digits.target))[: batch * count].reshape(count, batch)
    images = (digits.images[..., np.newaxis] / 16.0).astype(np.float32)
    return [(tf.image.resize(images[row], (side, side)), tf.constant(digits.target[row].astype(np.int32))) for row in rows]


class ConvNorm(keras.layers.Layer):
    """Convolution, batch normalisation and, unless it is None, an activation."""

    def __init__(self, filters, kernel_size=1, strides=1, padding="same", activation=tf.nn.relu, scale="ones", **kwargs):
        super().__init__(**kwargs)
        # The normalisation takes the mean away, so a bias before it would do nothing.
        self.convolution = keras.layers.Conv2D(filters, kernel_size, strides, padding, use_bias=False, kernel_initializer="he_normal")
        self.norm = keras.layers.BatchNormalization(momentum=0.9, gamma_initializer=scale)
        self.activation = activation

    def call(self, inputs, training=False):
        x = self.norm(self.convolution(inputs), training=training)
        return x if self.activation is None else self.activation(x)


class Bottleneck(keras.layers.Layer):
    """ResNet's block of three convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, filters, strides, project, **kwargs):
        super().__init__(**kwargs)
        self.reduce = ConvNorm(filters)
        self.spatial = ConvNorm(filters, 3, strides)
        # With a scale of zero the block starts as the identity, and a deep stack of them learns from the first step.
        self.restore = ConvNorm(4 * filters, activation=None, scale="zeros")
        self.project = ConvNorm(4 * filters, 1, strides, activation=None) if project else None

    def call(self, inputs, training=False):
        x = self.reduce(inputs, training=training)
        x = self.spatial(x, training=training)
        x = self.restore(x, training=training)
        shortcut = inputs if self.project is None else self.project(inputs, training=training)
        return self.finish(x + shortcut)

    def finish(self, x):
        return tf.nn.relu(x)


class ResNet(keras.Model):
    """A residual network of bottlenecks: ResNet50 has 64 filters and stages of 3, 4, 6 and 3 blocks.

    Whether the batch normalisations use the batch or their moving averages is up to the attribute `is_training`.
    """

    block = Bottleneck

    def __init__(self, filters, blocks, classes):
        super().__init__()
        self.is_training = True
        self.stem = ConvNorm(filters, 7, 2)
        self.pool = keras.layers.MaxPooling2D(3, 2, "same")
        self.stages = [self.make_stage(stage, filters * 2**stage, number) for stage, number in enumerate(blocks)]
        self.average = keras.layers.GlobalAveragePooling2D()
        self.classify = keras.layers.Dense(classes)

    def make_stage(self, stage, filters, number):
        """The layers of a stage; the first block of each but the first stage halves the sides."""
        return [self.block(filters, strides=2 if stage and not index else 1, project=not index) for index in range(number)]

    def call(self, images):
        x = self.pool(self.stem(images, training=self.is_training))
        for stage in self.stages:
            for layer in stage:
                x = layer(x, training=self.is_training)
        return self.classify(self.average(x))


class EvaluatingTrainer:
    """Trains, and every few steps notes the accuracy on held-out images before it does."""

    def __init__(self, model, held_out, evaluate_every, learning_rate=2e-3):
        self.model, self.held_out, self.evaluate_every = model, held_out, evaluate_every
        self.model(held_out[0])
        self.optimizer = momentum(model.trainable_variables, learning_rate)
        self.loss_fn = class_loss()
        self.steps, self.accuracies = 0, []

    def evaluate(self):
        """The accuracy of the model in its evaluation mode."""
        images, labels = self.held_out
        self.model.is_training = False
        hits = tf.argmax(self.model(images), axis=-1, output_type=tf.int32) == labels
        self.model.is_training = True
        return tf.reduce_mean(tf.cast(hits, tf.float32)).numpy()

    def train_step(self, images, labels):
        if self.steps % self.evaluate_every == 0:
            self.accuracies.append(self.evaluate())
        self.steps += 1
        with tf.GradientTape() as tape:
            loss = self.loss_fn(labels, self.model(images))
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss
