"""MelGAN: waveforms from mel spectrograms, judged at several scales, with feature matching over lists of lists.

From the dissertation's list of Terra's programs (there: TensorFlowTTS), one of the two with the widest gap to AutoGraph. The discriminators return all their
features in Python lists, and the trainer decides by its own count of steps when the adversarial part begins: before, a spectral loss warms the generator up.
AutoGraph: wrong. The branch on the count is decided once, while tracing, so the warm-up never ends.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.adversarial import judged_squared, minimise
from examples.programs.training import adam

SIZES = {
    "test": {"batch": 2, "mels": 8, "frames": 16, "scales": (4,), "filters": 8, "stacks": 1, "critics": 2, "critic_filters": 8, "strides": (4,), "warm_up": 3},
    "benchmark": {
        "batch": 4, "mels": 40, "frames": 16, "scales": (4, 4, 2), "filters": 64, "stacks": 2, "critics": 3, "critic_filters": 8, "strides": (4,), "warm_up": 3,
    },
    "paper": {
        "batch": 16, "mels": 80, "frames": 32, "scales": (8, 8, 2, 2), "filters": 512, "stacks": 3, "critics": 3, "critic_filters": 16, "strides": (4, 4, 4, 4),
        "warm_up": 1000,
    },
}  # fmt: skip
MATCHING_WEIGHT, RATE = 10.0, 8000


class NormalizedConv1D(keras.layers.Layer):
    """A convolution whose kernel is kept as direction and length (weight normalisation), mirrored at the ends."""

    def __init__(self, filters, size, strides=1, dilation=1, groups=1, **kwargs):
        super().__init__(**kwargs)
        self.filters, self.size, self.strides, self.dilation, self.groups = filters, size, strides, dilation, groups

    def build(self, input_shape):
        self.direction = self.add_weight(shape=(self.size, input_shape[-1] // self.groups, self.filters), name="direction")
        self.length = self.add_weight(shape=(self.filters,), initializer="ones", name="length")
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, inputs):
        kernel = self.length * tf.nn.l2_normalize(self.direction, axis=(0, 1))
        margin = self.dilation * (self.size - 1) // 2
        padded = tf.pad(inputs, ((0, 0), (margin, margin), (0, 0)), "REFLECT")
        return tf.nn.conv1d(padded, kernel, self.strides, "VALID", dilations=self.dilation) + self.bias


class NormalizedUpsampling1D(keras.layers.Layer):
    """The transposed convolution of the same kind: as many times as long."""

    def __init__(self, filters, factor, **kwargs):
        super().__init__(**kwargs)
        self.filters, self.factor = filters, factor

    def build(self, input_shape):
        self.direction = self.add_weight(shape=(2 * self.factor, self.filters, input_shape[-1]), name="direction")
        self.length = self.add_weight(shape=(self.filters, 1), initializer="ones", name="length")
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, inputs):
        batch, steps, _ = inputs.shape
        kernel = self.length * tf.nn.l2_normalize(self.direction, axis=(0, 2))
        return tf.nn.conv1d_transpose(inputs, kernel, (batch, steps * self.factor, self.filters), self.factor) + self.bias


class ResidualStack(keras.layers.Layer):
    def __init__(self, filters, dilation, **kwargs):
        super().__init__(**kwargs)
        self.wide, self.narrow = NormalizedConv1D(filters, 3, dilation=dilation), NormalizedConv1D(filters, 1)
        self.shortcut = NormalizedConv1D(filters, 1)

    def call(self, inputs):
        x = self.wide(tf.nn.leaky_relu(inputs))
        return self.shortcut(inputs) + self.narrow(tf.nn.leaky_relu(x))


class Generator(keras.Model):
    def __init__(self, filters, scales, stacks):
        super().__init__()
        self.enter = NormalizedConv1D(filters, 7)
        self.levels = []
        for scale in scales:
            filters //= 2
            self.levels.append((NormalizedUpsampling1D(filters, scale), [ResidualStack(filters, 3**power) for power in range(stacks)]))
        self.leave = NormalizedConv1D(1, 7)

    def call(self, mels):
        x = self.enter(mels)
        for upsampling, stacks in self.levels:
            x = upsampling(tf.nn.leaky_relu(x))
            for stack in stacks:
                x = stack(x)
        return tf.tanh(self.leave(tf.nn.leaky_relu(x)))


class Critic(keras.Model):
    """Gives all its features, the last of them the scores."""

    def __init__(self, filters, strides):
        super().__init__()
        self.hidden = [NormalizedConv1D(filters, 15)]
        for stride in strides:
            groups, filters = filters // 4, min(4 * filters, 1024)
            self.hidden.append(NormalizedConv1D(filters, 10 * stride + 1, stride, groups=groups))
        self.hidden.append(NormalizedConv1D(filters, 5))
        self.scores = NormalizedConv1D(1, 3)

    def call(self, waves):
        features, x = [], waves
        for layer in self.hidden:
            x = tf.nn.leaky_relu(layer(x))
            features.append(x)
        return features + [self.scores(x)]


class MultiScaleCritic(keras.Model):
    """The same judgement of the waves, of the waves at half the rate, and so on."""

    def __init__(self, critics, filters, strides):
        super().__init__()
        self.critics = [Critic(filters, strides) for _ in range(critics)]
        self.halve = keras.layers.AveragePooling1D(4, strides=2, padding="same")

    def call(self, waves):
        judgements = []
        for critic in self.critics:
            judgements.append(critic(waves))
            waves = self.halve(waves)
        return judgements


def spectrum(waves, size=32):
    magnitudes = tf.abs(tf.signal.stft(waves[..., 0], size, size // 4))
    return tf.math.log(magnitudes + 1e-3)


class Trainer:
    def __init__(self, example, filters, scales, stacks, critics, critic_filters, strides, warm_up):
        mels, waves = example
        self.generator = Generator(filters, scales, stacks)
        self.critic = MultiScaleCritic(critics, critic_filters, strides)
        self.generator(mels)
        self.critic(waves)
        self.generator_optimizer = adam(self.generator.trainable_variables, 1e-4)
        self.critic_optimizer = adam(self.critic.trainable_variables, 1e-4)
        self.means = {name: keras.metrics.Mean() for name in ("spectral", "adversarial", "matching", "critic")}
        self.steps, self.warm_up = 0, warm_up

    def generator_loss(self, waves, generated):
        if self.steps < self.warm_up:
            spectral = tf.reduce_mean(tf.abs(spectrum(waves) - spectrum(generated)))
            self.means["spectral"].update_state(spectral)
            return spectral
        adversarial = matching = 0.0
        for on_real, on_generated in zip(self.critic(waves), self.critic(generated)):
            adversarial += judged_squared(on_generated[-1], real=True) / len(self.critic.critics)
            for real, made in zip(on_real[:-1], on_generated[:-1]):
                matching += tf.reduce_mean(tf.abs(real - made)) / (len(on_real) - 1)
        self.means["adversarial"].update_state(adversarial)
        self.means["matching"].update_state(matching)
        return adversarial + MATCHING_WEIGHT * matching

    def critic_loss(self, waves, generated):
        loss = 0.0
        for on_real, on_generated in zip(self.critic(waves), self.critic(generated)):
            loss += judged_squared(on_real[-1], real=True) + judged_squared(on_generated[-1], real=False)
        self.means["critic"].update_state(loss)
        return loss / len(self.critic.critics)

    def train_step(self, mels, waves):
        with tf.GradientTape() as tape:
            loss = self.generator_loss(waves, self.generator(mels))
        minimise(tape, loss, self.generator.trainable_variables, self.generator_optimizer)
        if self.steps >= self.warm_up:
            generated = self.generator(mels)
            with tf.GradientTape() as tape:
                critic_loss = self.critic_loss(waves, generated)
            minimise(tape, critic_loss, self.critic.trainable_variables, self.critic_optimizer)
            loss += critic_loss
        self.steps += 1
        return loss


def sung_notes(rng, number, samples):
    """Tones of some harmonics with a little vibrato, each louder or softer in time."""
    time = np.arange(samples) / RATE
    waves = np.zeros((number, samples))
    for harmonic, pitch in enumerate(np.outer((1, 2, 3), rng.uniform(110, 440, number)), start=1):
        vibrato = 2.0 * np.sin(2 * np.pi * 5.0 * time)
        waves += np.sin(2 * np.pi * (pitch[:, np.newaxis] * time + vibrato * harmonic / 100)) * rng.uniform(0.2, 1.0, (number, 1)) / harmonic
    loudness = np.linspace(rng.uniform(0.2, 1.0, number), rng.uniform(0.2, 1.0, number), samples, axis=1)
    return (waves / 2.0 * loudness).astype(np.float32)


def mel_spectrogram(waves, mels, size, hop):
    spectra = tf.abs(tf.signal.stft(waves, size, hop))
    weights = tf.signal.linear_to_mel_weight_matrix(mels, size // 2 + 1, RATE, 50.0, RATE / 2)
    return tf.math.log(spectra @ weights + 1e-3)


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batch, mels, frames = (sizes.pop(name) for name in ("batch", "mels", "frames"))
    hop = int(np.prod(sizes["scales"]))
    window = max(4 * hop, 256)
    rng, batches = np.random.default_rng(seed), []
    for _ in range(8):
        waves = sung_notes(rng, batch, (frames - 1) * hop + window)
        batches.append((mel_spectrogram(waves, mels, window, hop), tf.constant(waves[:, : frames * hop, np.newaxis])))
    return Job(Trainer(batches[0], **sizes).train_step, batches)
