"""What the adversarial programs share: pictures, losses on logits, convolution blocks and a discriminator of patches."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits, load_sample_image


def digit_pictures(seed, side, batch, count=8):
    """`count` batches of scikit-learn's digits as pictures in [-1, 1], each of them `side` by `side`."""
    images = load_digits().images[..., np.newaxis].astype(np.float32) / 8.0 - 1.0
    chosen = np.random.default_rng(seed).integers(0, len(images), (count, batch))
    return [tf.image.resize(images[rows], (side, side)) for rows in chosen]


def photo_patches(seed, name, side, number):
    """`number` patches, `side` by `side`, from random places of a sample photograph of scikit-learn, in [-1, 1]."""
    photo = load_sample_image(name).astype(np.float32) / 127.5 - 1.0
    rng = np.random.default_rng(seed)
    tops = rng.integers(0, photo.shape[0] - side, number)
    lefts = rng.integers(0, photo.shape[1] - side, number)
    return np.stack([photo[top : top + side, left : left + side] for top, left in zip(tops, lefts)])


def judged(logits, real):
    """How far the logits of a discriminator are from calling everything real, or everything false."""
    labels = tf.ones_like(logits) if real else tf.zeros_like(logits)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def judged_squared(score, real):
    """The same by least squares, for scores that are no logits."""
    return tf.reduce_mean(tf.square(score - 1.0 if real else score))


def minimise(tape, loss, variables, optimizer):
    """One update of the variables."""
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def instance_norm():
    """Each channel of each picture by itself."""
    return keras.layers.GroupNormalization(groups=-1)


class Down(keras.layers.Layer):
    """Halves the sides (or not, with a stride of one): convolution, perhaps normalisation, leaky ReLU."""

    def __init__(self, filters, norm=keras.layers.BatchNormalization, size=4, strides=2, slope=0.2, **kwargs):
        super().__init__(**kwargs)
        # A normalisation takes the mean away, so a bias before it would do nothing.
        self.convolution = keras.layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=norm is None)
        self.norm = norm() if norm else None
        self.slope = slope

    def call(self, inputs):
        x = self.convolution(inputs)
        if self.norm is not None:
            x = self.norm(x)
        return tf.nn.leaky_relu(x, self.slope)


class Up(keras.layers.Layer):
    """Doubles the sides: transposed convolution, normalisation, perhaps dropout, ReLU."""

    def __init__(self, filters, norm=keras.layers.BatchNormalization, size=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.convolution = keras.layers.Conv2DTranspose(filters, size, strides=2, padding="same", use_bias=False)
        self.norm = norm()
        self.dropout = keras.layers.Dropout(dropout) if dropout else None

    def call(self, inputs):
        x = self.norm(self.convolution(inputs))
        if self.dropout is not None:
            x = self.dropout(x)
        return tf.nn.relu(x)


class PatchDiscriminator(keras.Model):
    """One score for each patch of a picture; without normalisation in the first block, as its authors have it."""

    def __init__(self, filters, depth, norm=keras.layers.BatchNormalization):
        super().__init__()
        self.blocks = [Down(filters, norm=None)]
        self.blocks += [Down(filters * 2 ** min(level, 3), norm, strides=2 if level < depth else 1) for level in range(1, depth + 1)]
        self.score = keras.layers.Conv2D(1, 4, padding="same")

    def call(self, inputs):
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.score(x)
