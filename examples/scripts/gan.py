"""A small GAN on points along a circle: two tapes over one forward pass, two optimizers, one loop."""

import keras
import numpy as np
import tensorflow as tf

LATENT, BATCH, STEPS = 4, 64, 80


def network(n_in, n_out):
    return keras.Sequential([
        keras.Input((n_in,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(n_out)])


def real_points(rng):
    angle = rng.uniform(0, 2 * np.pi, BATCH)
    return np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32) + rng.normal(0, 0.05, (BATCH, 2)).astype(np.float32)


def train():
    rng = np.random.default_rng(0)
    generator, discriminator = network(LATENT, 2), network(2, 1)
    g_optimizer, d_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    history = []
    for step in range(STEPS):
        real = tf.constant(real_points(rng))
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            fake = generator(tf.random.normal((BATCH, LATENT)))
            on_real, on_fake = discriminator(real), discriminator(fake)
            g_loss = cross_entropy(tf.ones_like(on_fake), on_fake)
            d_loss = cross_entropy(tf.ones_like(on_real), on_real) + cross_entropy(tf.zeros_like(on_fake), on_fake)
        g_gradients = g_tape.gradient(g_loss, generator.trainable_variables)
        d_gradients = d_tape.gradient(d_loss, discriminator.trainable_variables)
        g_optimizer.apply_gradients(zip(g_gradients, generator.trainable_variables))
        d_optimizer.apply_gradients(zip(d_gradients, discriminator.trainable_variables))
        history.append((float(g_loss), float(d_loss)))
        if step % 20 == 19:
            radius = np.linalg.norm(fake.numpy(), axis=1).mean()
            g_mean, d_mean = np.mean(history[-20:], axis=0)
            print(f"step {step + 1:3d}: generator {g_mean:.5f}, discriminator {d_mean:.5f}, mean radius {radius:.4f}")


if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    train()
