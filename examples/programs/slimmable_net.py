"""SlimmableNet: one residual network that is trained at four widths in each step.

One of the dissertation's further programs (there on ImageNet, translated from PyTorch). In each step Python sets the width of all layers to one after another
of four: the kernels are sliced, each width has batch normalisations of its own, and the gradients of the four passes are added up.
AutoGraph: the losses are right, because tracing goes through the four widths as the step does; the losses that the trainer keeps for each width are tensors
without a value.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import labelled_patches
from examples.programs.training import class_loss, momentum

SIZES = {
    "test": {"side": 32, "batch": 4, "filters": 8, "blocks": (), "classes": 2},
    "benchmark": {"side": 64, "batch": 8, "filters": 32, "blocks": (1, 1), "classes": 2},
    "paper": {"side": 224, "batch": 256, "filters": 64, "blocks": (3, 4, 6, 3), "classes": 1000},
}
WIDTHS = (1.0, 0.75, 0.5, 0.25)
LEARNING_RATE = 5e-4  # a step adds up four gradients


class SlimmableConvNorm(keras.layers.Layer):
    """A convolution that uses the first filters of all that it has, and a batch normalisation of its own for each width."""

    def __init__(self, filters, kernel_size=1, strides=1, activation=tf.nn.relu, scale="ones", **kwargs):
        super().__init__(**kwargs)
        self.filters, self.kernel_size, self.strides, self.activation = filters, kernel_size, strides, activation
        self.norms = [keras.layers.BatchNormalization(momentum=0.9, gamma_initializer=scale) for _ in WIDTHS]
        self.width = max(WIDTHS)

    def build(self, input_shape):
        shape = (self.kernel_size, self.kernel_size, input_shape[-1], self.filters)
        self.kernel = self.add_weight(shape=shape, initializer="he_normal", name="kernel")

    def call(self, inputs, training=False):
        kernel = self.kernel[:, :, : inputs.shape[-1], : int(self.filters * self.width)]
        x = tf.nn.conv2d(inputs, kernel, self.strides, "SAME")
        x = self.norms[WIDTHS.index(self.width)](x, training=training)
        return x if self.activation is None else self.activation(x)


class SlimmableDense(keras.layers.Layer):
    """A dense layer that uses as many rows of its kernel as it gets inputs."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs):
        return inputs @ self.kernel[: inputs.shape[-1]] + self.bias


class SlimmableBottleneck(keras.layers.Layer):
    def __init__(self, filters, strides, project, **kwargs):
        super().__init__(**kwargs)
        restore = SlimmableConvNorm(4 * filters, activation=None, scale="zeros")
        self.body = [SlimmableConvNorm(filters), SlimmableConvNorm(filters, 3, strides), restore]
        self.project = SlimmableConvNorm(4 * filters, 1, strides, activation=None) if project else None

    def call(self, inputs, training=False):
        x = inputs
        for layer in self.body:
            x = layer(x, training=training)
        shortcut = inputs if self.project is None else self.project(inputs, training=training)
        return tf.nn.relu(x + shortcut)


class SlimmableNet(keras.Model):
    def __init__(self, filters, blocks, classes):
        super().__init__()
        self.stem = SlimmableConvNorm(filters, 7, 2)
        self.pool = keras.layers.MaxPooling2D(3, 2, "same")
        self.blocks = [
            SlimmableBottleneck(filters * 2**stage, strides=2 if stage and not index else 1, project=not index)
            for stage, number in enumerate(blocks)
            for index in range(number)
        ]
        self.average = keras.layers.GlobalAveragePooling2D()
        self.classify = SlimmableDense(classes)

    def set_width(self, width):
        for layer in self._flatten_layers():
            if isinstance(layer, SlimmableConvNorm):
                layer.width = width

    def call(self, images, training=False):
        x = self.pool(self.stem(images, training=training))
        for block in self.blocks:
            x = block(x, training=training)
        return self.classify(self.average(x))


class Trainer:
    """Adds up the gradients of all widths, from the widest to the narrowest, before it applies them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.loss_fn = class_loss()
        self.losses = dict.fromkeys(WIDTHS)

    def train_step(self, images, labels):
        variables = self.model.trainable_variables
        totals = [tf.zeros_like(variable) for variable in variables]
        for width in sorted(WIDTHS, reverse=True):
            self.model.set_width(width)
            with tf.GradientTape() as tape:
                loss = self.loss_fn(labels, self.model(images, training=True))
            gradients = tape.gradient(loss, variables)
            # The normalisations of the other widths have no gradient.
            totals = [total if gradient is None else total + gradient for total, gradient in zip(totals, gradients)]
            self.losses[width] = loss
        self.optimizer.apply_gradients(zip(totals, variables))
        return tf.add_n(list(self.losses.values())) / len(WIDTHS)


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, filters, blocks, classes):
    batches = labelled_patches(seed, side, batch)
    model = SlimmableNet(filters, blocks, classes)
    for width in WIDTHS:
        model.set_width(width)
        model(batches[0][0])
    return Job(Trainer(model, momentum(model.trainable_variables, LEARNING_RATE)).train_step, batches)
