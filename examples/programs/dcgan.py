"""DCGAN: convolutional generator and discriminator on digits, two tapes and two optimizers in one step.

One of Terra's ten programs (there: TensorFlow's own tutorial on MNIST). Nothing in the step is hard for a graph: two tapes record the same
forward pass, each gives the gradients of one loss, two optimizers apply them. It is in the list as a program that any way to a graph should run.
AutoGraph: runs.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.adversarial import digit_pictures, judged, minimise
from examples.programs.training import adam

SIZES = {
    "test": {"side": 8, "batch": 16, "latent": 16, "filters": 8},
    "benchmark": {"side": 16, "batch": 32, "latent": 100, "filters": 16},
    "paper": {"side": 28, "batch": 500, "latent": 100, "filters": 64},
}


def generator_network(side, latent, filters):
    small = side // 4
    return keras.Sequential(
        [
            keras.Input((latent,)),
            keras.layers.Dense(small * small * 4 * filters, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.LeakyReLU(),
            keras.layers.Reshape((small, small, 4 * filters)),
            keras.layers.Conv2DTranspose(2 * filters, 5, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.LeakyReLU(),
            keras.layers.Conv2DTranspose(filters, 5, strides=2, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.LeakyReLU(),
            keras.layers.Conv2DTranspose(1, 5, strides=2, padding="same", activation="tanh"),
        ]
    )


def discriminator_network(side, filters):
    return keras.Sequential(
        [
            keras.Input((side, side, 1)),
            keras.layers.Conv2D(filters, 5, strides=2, padding="same"),
            keras.layers.LeakyReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Conv2D(2 * filters, 5, strides=2, padding="same"),
            keras.layers.LeakyReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    generator = generator_network(sizes["side"], sizes["latent"], sizes["filters"])
    discriminator = discriminator_network(sizes["side"], sizes["filters"])
    generator_optimizer = adam(generator.trainable_variables, 1e-4)
    discriminator_optimizer = adam(discriminator.trainable_variables, 1e-4)
    random = tf.random.Generator.from_seed(seed)

    def train_step(images):
        noise = random.normal((images.shape[0], sizes["latent"]))
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            generated = generator(noise, training=True)
            on_real = discriminator(images, training=True)
            on_generated = discriminator(generated, training=True)
            generator_loss = judged(on_generated, real=True)
            discriminator_loss = judged(on_real, real=True) + judged(on_generated, real=False)
        minimise(generator_tape, generator_loss, generator.trainable_variables, generator_optimizer)
        minimise(discriminator_tape, discriminator_loss, discriminator.trainable_variables, discriminator_optimizer)
        return generator_loss + discriminator_loss

    return Job(train_step, [(images,) for images in digit_pictures(seed, sizes["side"], sizes["batch"])])
