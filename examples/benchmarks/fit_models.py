"""The models that `examples.benchmarks.fit` trains, written as Keras' guides write them; all look at scikit-learn's digits."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

ROWS = 1010
CROSS_ENTROPY = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def images():
    """(1010 images of 64 numbers in [0, 1], their labels)."""
    digits = load_digits()
    return (digits.data[:ROWS] / 16.0).astype("float32"), digits.target[:ROWS]


def mlp():
    return keras.Sequential([
        layers.Input((64,)), layers.Dense(128, "relu"), layers.Dropout(0.2), layers.Dense(128, "relu"), layers.Dense(10, "softmax")]), CROSS_ENTROPY


def cnn():
    return keras.Sequential([
        layers.Input((64,)), layers.Reshape((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(32, 3, activation="relu"), layers.Flatten(),
        layers.Dense(64, "relu"), layers.Dropout(0.2), layers.Dense(10, "softmax")]), CROSS_ENTROPY


def lstm():
    """The rows of an image one after another, from both ends; empty ones are masked."""
    return keras.Sequential([
        layers.Input((64,)), layers.Reshape((8, 8)), layers.Masking(), layers.Bidirectional(layers.LSTM(16, return_sequences=True)),
        layers.Bidirectional(layers.LSTM(16)), layers.Dense(10, "softmax")]), CROSS_ENTROPY


class Block(layers.Layer):
    """A block of a transformer."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)
        self.dense = keras.Sequential([layers.Dense(inner, "relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [layers.Dropout(0.1) for _ in range(2)]

    def call(self, x):
        y = self.norms[0](x + self.dropouts[0](self.attention(x, x)))
        return self.norms[1](y + self.dropouts[1](self.dense(y)))


class Positions(layers.Layer):
    def __init__(self, n, width):
        super().__init__()
        self.inner, self.table = layers.Dense(width), layers.Embedding(n, width)

    def call(self, x):
        return self.inner(x) + self.table(ops.arange(0, ops.shape(x)[1], 1))


def transformer():
    """The rows of an image are its tokens."""
    x = keras.Input((64,))
    y = layers.GlobalAveragePooling1D()(Block(16, 2, 32)(Positions(8, 16)(layers.Reshape((8, 8))(x))))
    return keras.Model(x, layers.Dense(10, "softmax")(layers.Dropout(0.1)(y))), CROSS_ENTROPY


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)


class VAE(keras.Model):
    """A variational autoencoder with a `train_step` of its own."""

    def __init__(self):
        super().__init__()
        x = keras.Input((64,))
        hidden = layers.Dense(64, "relu")(x)
        mean, log_var = layers.Dense(4)(hidden), layers.Dense(4)(hidden)
        self.encoder = keras.Model(x, [mean, log_var, Sampling()([mean, log_var])])
        self.decoder = keras.Sequential([layers.Input((4,)), layers.Dense(64, "relu"), layers.Dense(64, "sigmoid")])
        self.total, self.reconstruction, self.divergence = (keras.metrics.Mean(name=name) for name in ("loss", "reconstruction", "divergence"))

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.divergence]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(x)
            reconstruction = ops.mean(ops.sum(keras.losses.binary_crossentropy(x[..., None], self.decoder(z)[..., None]), axis=1))
            divergence = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
            total = reconstruction + divergence
        self.optimizer.apply_gradients(zip(tape.gradient(total, self.trainable_weights), self.trainable_weights))
        for metric, value in zip(self.metrics, (total, reconstruction, divergence)):
            metric.update_state(value)
        return {metric.name: metric.result() for metric in self.metrics}


class GAN(keras.Model):
    """A generator and a discriminator, each with an optimizer."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential([layers.Input((64,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Input((16,)), layers.Dense(64), layers.LeakyReLU(), layers.Dense(64, "sigmoid")])
        self.optimizers_of = [keras.optimizers.Adam(3e-4) for _ in range(2)]
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.seeds = keras.random.SeedGenerator(1)
        self.losses_seen = [keras.metrics.Mean(name=name) for name in ("discriminator", "generator")]

    @property
    def metrics(self):
        return self.losses_seen

    def train_step(self, real):
        n = ops.shape(real)[0]
        x = ops.concatenate([self.generator(keras.random.normal((n, 16), seed=self.seeds)), real], axis=0)
        y = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))], axis=0) + 0.05 * keras.random.uniform((2 * n, 1), seed=self.seeds)
        losses = []
        for part, optimizer in zip((self.discriminator, self.generator), self.optimizers_of):
            with tf.GradientTape() as tape:
                if part is self.generator:
                    x, y = self.generator(keras.random.normal((n, 16), seed=self.seeds)), ops.zeros((n, 1))
                losses.append(self.loss_of(y, self.discriminator(x)))
            optimizer.apply(tape.gradient(losses[-1], part.trainable_weights), part.trainable_weights)
        for metric, loss in zip(self.metrics, losses):
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def vae():
    return VAE(), {}


def gan():
    return GAN(), {}


CLASSIFIERS = {"MLP": mlp, "CNN": cnn, "bidirectional LSTM": lstm, "transformer": transformer}
OTHERS = {"VAE": vae, "GAN": gan}  # which take no labels
