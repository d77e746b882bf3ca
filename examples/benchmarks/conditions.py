"""Steps that branch on what they compute, and Keras' own training step: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.conditions [--steps N] [--quiet]

A multilayer perceptron with Adam, its loss read at each step; medians in ms over the last half of the steps, the three taking turns in chunks. Exits with 1 if what Terra trains differs
from what eager execution trains.
"""

import math

import keras
import numpy as np
import tensorflow as tf

import terra
from examples.benchmarks import turns

BATCH, FEATURES, CLASSES, BATCHES = 64, 64, 10, 21


def batches(seed=0):
    """Batches (x, y), each 7th with larger inputs."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(BATCH, FEATURES)).astype("float32") * (3 if k % 7 == 6 else 1), rng.integers(0, CLASSES, BATCH)) for k in range(BATCHES)]


def network(seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((FEATURES,)), *[keras.layers.Dense(64, "relu") for _ in range(2)], keras.layers.Dense(CLASSES)])


MOST = 2.0  # the norm of a gradient


def scaled(gradients, norm):
    return [g * (MOST / norm) for g in gradients]


def clipped_if(gradients, loss):
    norm = tf.linalg.global_norm(gradients)
    if norm > MOST:
        gradients = scaled(gradients, norm)
    return gradients


def clipped_if_float(gradients, loss):
    norm = tf.linalg.global_norm(gradients)
    return scaled(gradients, norm) if float(norm) > MOST else gradients


def left_out_if_nan(gradients, loss):
    return [tf.zeros_like(g) for g in gradients] if math.isnan(float(loss)) else gradients


def asserted(gradients, loss):
    tf.debugging.assert_all_finite(loss, "the loss")
    tf.debugging.assert_less(tf.linalg.global_norm(gradients), 1e6)
    return gradients


def switched(gradients, loss):
    norm = tf.linalg.global_norm(gradients)
    return tf.switch_case(tf.cast(norm / MOST, tf.int32), [lambda: gradients, lambda: scaled(gradients, norm)], default=lambda: [tf.zeros_like(g) for g in gradients])


def by_hand(options=None, change=None):
    """make(mode): a training step and its model; `options` are the optimizer's, `change` is what is done to the gradients, given the loss."""
    def make(mode):
        model, loss_fn = network(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(1e-3, **(options or {}))
        optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            if change is not None:
                gradients = change(gradients, loss)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        step = turns.MODES[mode](step)
        return lambda x, y: float(step(tf.constant(x), tf.constant(y))), model

    return make


def by_keras(mode):
    """The same by Keras' own step."""
    model = network()
    how = dict(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    if mode == "Terra":
        terra.compile(model, **how)
    else:
        model.compile(run_eagerly=mode == "eager", jit_compile=False, **how)
    return lambda x, y: float(model.train_on_batch(x, y)[0]), model


PROGRAMS = {
    "gradients clipped by an `if`": by_hand(change=clipped_if),
    "the same, `if float(norm) > ...`": by_hand(change=clipped_if_float),
    "the same by tf.switch_case": by_hand(change=switched),
    "`if math.isnan(float(loss))`": by_hand(change=left_out_if_nan),
    "assertions": by_hand(change=asserted),
    "gradient_accumulation_steps=4": by_hand(dict(gradient_accumulation_steps=4)),
    "ema_overwrite_frequency=10": by_hand(dict(use_ema=True, ema_momentum=0.99, ema_overwrite_frequency=10)),
    "Keras' train_on_batch": by_keras,
}


def main(argv=None):
    data = batches()
    return turns.main("examples.benchmarks.conditions", __doc__.splitlines()[0], {title: (make, data) for title, make in PROGRAMS.items()}, 400, argv)


if __name__ == "__main__":
    raise SystemExit(main())
