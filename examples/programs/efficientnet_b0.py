"""EfficientNet-B0 on patches of photographs: inverted bottlenecks, squeeze and excite, stochastic depth.

One of the dissertation's further programs (there on ImageNet, from TensorFlow's model garden). Python decides while the model is built which parts a block
has; what stochastic depth leaves out is drawn for each image by an operation, as in the original, so the step itself has nothing dynamic.
AutoGraph: runs.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import ConvNorm, labelled_patches
from examples.programs.training import class_loss, momentum, supervised

SIZES = {
    "test": {"side": 16, "batch": 4, "width": 0.25, "stages": 2, "classes": 2},
    "benchmark": {"side": 64, "batch": 8, "width": 0.5, "stages": 5, "classes": 2},
    "paper": {"side": 224, "batch": 64, "width": 1.0, "stages": 7, "classes": 1000},
}
# of each stage: how much its blocks expand, their filters and number, the strides of the first, the size of their kernels
STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
STEM, HEAD, DROPOUT, DROP_CONNECT = 32, 1280, 0.2, 0.2


class DepthwiseNorm(keras.layers.Layer):
    """Depthwise convolution, batch normalisation, swish."""

    def __init__(self, kernel_size, strides, **kwargs):
        super().__init__(**kwargs)
        self.convolution = keras.layers.DepthwiseConv2D(kernel_size, strides, "same", use_bias=False)
        self.norm = keras.layers.BatchNormalization(momentum=0.9)

    def call(self, inputs, training=False):
        return tf.nn.silu(self.norm(self.convolution(inputs), training=training))


class SqueezeExcite(keras.layers.Layer):
    """Weighs the channels by what the whole image has in them."""

    def __init__(self, filters, squeezed, **kwargs):
        super().__init__(**kwargs)
        self.squeeze = keras.layers.Dense(squeezed, activation="silu")
        self.excite = keras.layers.Dense(filters, activation="sigmoid")

    def call(self, inputs):
        means = tf.reduce_mean(inputs, axis=(1, 2), keepdims=True)
        return inputs * self.excite(self.squeeze(means))


class MBConv(keras.layers.Layer):
    """Expands the channels, filters each by itself, weighs them, and projects them to fewer."""

    def __init__(self, before, after, expansion, kernel_size, strides, drop_rate, **kwargs):
        super().__init__(**kwargs)
        wide = before * expansion
        self.expand = ConvNorm(wide, activation=tf.nn.silu) if expansion > 1 else None
        self.depthwise = DepthwiseNorm(kernel_size, strides)
        self.squeeze_excite = SqueezeExcite(wide, max(1, before // 4))
        self.project = ConvNorm(after, activation=None)
        self.residual = strides == 1 and before == after
        # Stochastic depth: for a random part of the images the block is left out.
        self.drop = keras.layers.Dropout(drop_rate, noise_shape=(None, 1, 1, 1)) if self.residual and drop_rate else None

    def call(self, inputs, training=False):
        x = inputs
        if self.expand is not None:
            x = self.expand(x, training=training)
        x = self.squeeze_excite(self.depthwise(x, training=training))
        x = self.project(x, training=training)
        if self.residual:
            if self.drop is not None:
                x = self.drop(x, training=training)
            x += inputs
        return x


class EfficientNet(keras.Model):
    def __init__(self, width, stages, classes):
        super().__init__()
        self.stem = ConvNorm(round(STEM * width), 3, 2, activation=tf.nn.silu)
        self.blocks = []
        total = sum(number for _, _, number, _, _ in STAGES[:stages])
        before = round(STEM * width)
        for expansion, filters, number, strides, kernel_size in STAGES[:stages]:
            after = round(filters * width)
            for index in range(number):
                drop_rate = DROP_CONNECT * len(self.blocks) / total
                self.blocks.append(MBConv(before, after, expansion, kernel_size, 1 if index else strides, drop_rate))
                before = after
        self.head = ConvNorm(round(HEAD * width), activation=tf.nn.silu)
        self.average = keras.layers.GlobalAveragePooling2D()
        self.dropout = keras.layers.Dropout(DROPOUT)
        self.classify = keras.layers.Dense(classes)

    def call(self, images, training=False):
        x = self.stem(images, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        x = self.average(self.head(x, training=training))
        return self.classify(self.dropout(x, training=training))


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, width, stages, classes):
    batches = labelled_patches(seed, side, batch)
    model = EfficientNet(width, stages, classes)
    model(batches[0][0])
    return Job(supervised(model, class_loss(), momentum(model.trainable_variables)), batches)
