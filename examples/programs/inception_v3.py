"""Inception-v3 on patches of photographs: modules of branches side by side, normalisations that an attribute switches.

One of Janus' eleven programs (there on ImageNet). As in ResNet50 an attribute of the model decides in Python what its batch normalisations do, and the trainer
switches it to evaluate on the way.
AutoGraph: fails ('SymbolicTensor' has no `numpy`). Without the reading it would evaluate in each step, and the list would hold one tensor without a value.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.convolutional import ConvNorm, EvaluatingTrainer, labelled_patches

# modules: how many there are at full, half and quarter resolution
SIZES = {
    "test": {"side": 75, "batch": 2, "width": 1 / 32, "modules": (1, 0, 0), "classes": 2},
    "benchmark": {"side": 139, "batch": 4, "width": 1 / 8, "modules": (1, 1, 1), "classes": 2},
    "paper": {"side": 299, "batch": 64, "width": 1.0, "modules": (3, 4, 2), "classes": 1000},
}
POOLED = (32, 64, 64)  # filters behind the pool of each module at full resolution
FACTORISED = (128, 160, 160, 192)  # filters between the long convolutions of each module at half resolution
EVALUATE_EVERY = 4
LEARNING_RATE = 5e-4


class Chain(keras.layers.Layer):
    """Layers one after another."""

    def __init__(self, *links, **kwargs):
        super().__init__(**kwargs)
        self.links = list(links)

    def call(self, inputs, training=False):
        for link in self.links:
            inputs = link(inputs, training=training)
        return inputs


class Branches(keras.layers.Layer):
    """Layers side by side on the same input, their outputs concatenated."""

    def __init__(self, *branches, **kwargs):
        super().__init__(**kwargs)
        self.branches = list(branches)

    def call(self, inputs, training=False):
        return tf.concat([branch(inputs, training=training) for branch in self.branches], axis=-1)


def average_pool():
    return keras.layers.AveragePooling2D(3, 1, "same")


def halve():
    return keras.layers.MaxPooling2D(3, 2)


def body(conv, full, half, quarter):
    """The layers from the image to the features, in order; `conv` makes a normalised convolution."""
    yield from (conv(32, 3, 2, "valid"), conv(32, 3, 1, "valid"), conv(64, 3), halve(), conv(80, 1), conv(192, 3, 1, "valid"), halve())
    for filters in POOLED[:full]:
        yield Branches(
            conv(64, 1),
            Chain(conv(48, 1), conv(64, 5)),
            Chain(conv(64, 1), conv(96, 3), conv(96, 3)),
            Chain(average_pool(), conv(filters, 1)),
        )
    if half:
        yield Branches(conv(384, 3, 2, "valid"), Chain(conv(64, 1), conv(96, 3), conv(96, 3, 2, "valid")), halve())
    for filters in FACTORISED[:half]:
        yield Branches(
            conv(192, 1),
            Chain(conv(filters, 1), conv(filters, (1, 7)), conv(192, (7, 1))),
            Chain(conv(filters, 1), conv(filters, (7, 1)), conv(filters, (1, 7)), conv(filters, (7, 1)), conv(192, (1, 7))),
            Chain(average_pool(), conv(192, 1)),
        )
    if quarter:
        yield Branches(
            Chain(conv(192, 1), conv(320, 3, 2, "valid")),
            Chain(conv(192, 1), conv(192, (1, 7)), conv(192, (7, 1)), conv(192, 3, 2, "valid")),
            halve(),
        )
    for _ in range(quarter):
        yield Branches(
            conv(320, 1),
            Chain(conv(384, 1), Branches(conv(384, (1, 3)), conv(384, (3, 1)))),
            Chain(conv(448, 1), conv(384, 3), Branches(conv(384, (1, 3)), conv(384, (3, 1)))),
            Chain(average_pool(), conv(192, 1)),
        )


class InceptionV3(keras.Model):
    """Without the auxiliary classifier. Whether the normalisations use the batch is up to the attribute `is_training`."""

    def __init__(self, width, modules, classes):
        super().__init__()
        self.is_training = True

        def conv(filters, *arguments):
            return ConvNorm(max(1, round(filters * width)), *arguments)

        self.body = Chain(*body(conv, *modules))
        self.average = keras.layers.GlobalAveragePooling2D()
        self.dropout = keras.layers.Dropout(0.2)
        self.classify = keras.layers.Dense(classes)

    def call(self, images):
        x = self.average(self.body(images, training=self.is_training))
        return self.classify(self.dropout(x, training=self.is_training))


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, width, modules, classes):
    *batches, held_out = labelled_patches(seed, side, batch, count=9)
    trainer = EvaluatingTrainer(InceptionV3(width, modules, classes), held_out, EVALUATE_EVERY, LEARNING_RATE)
    return Job(trainer.train_step, batches)
