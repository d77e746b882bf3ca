"""Steps that read a condition which they compute, and Keras' own training step: eager, tf.function and Terra in one run.

    python -m examples.conditions [--steps N] [--quiet]

A multilayer perceptron with Adam, its loss read at each step; medians in ms over the last half of the steps, the three taking turns in chunks. Exits with 1 if what Terra trains differs
from what eager execution trains.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import terra
from examples.benchmark import report
from examples.console import Progress

BATCH, FEATURES, CLASSES, BATCHES = 64, 64, 10, 21
CHUNK = 20  # steps in a row of one of the three


def batches(seed=0):
    """Batches (x, y), each 7th with larger inputs."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(BATCH, FEATURES)).astype("float32") * (3 if k % 7 == 6 else 1), rng.integers(0, CLASSES, BATCH)) for k in range(BATCHES)]


def network(seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((FEATURES,)), *[keras.layers.Dense(64, "relu") for _ in range(2)], keras.layers.Dense(CLASSES)])


def by_hand(options=None, most=None):
    """make(wrap): a training step and its model; `options` are the optimizer's, `most` is the norm of a gradient from which on it is clipped."""
    def make(wrap):
        model, loss_fn = network(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(1e-3, **(options or {}))
        optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            if most is not None:
                norm = tf.linalg.global_norm(gradients)
                if norm > most:
                    gradients = [g * (most / norm) for g in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        step = wrap(step)
        return lambda x, y: float(step(tf.constant(x), tf.constant(y))), model

    return make


def by_keras(wrap):
    """The same by Keras' own step."""
    model = network()
    how = dict(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    if wrap is terra.coexecute:
        terra.compile(model, **how)
    else:
        model.compile(run_eagerly=wrap is not tf.function, jit_compile=False, **how)
    return lambda x, y: float(model.train_on_batch(x, y)[0]), model


PROGRAMS = {
    "gradients clipped by an `if`": by_hand(most=2.0),
    "gradient_accumulation_steps=4": by_hand(dict(gradient_accumulation_steps=4)),
    "ema_overwrite_frequency=10": by_hand(dict(use_ema=True, ema_momentum=0.99, ema_overwrite_frequency=10)),
    "Keras' train_on_batch": by_keras,
}
MODES = {"eager": lambda step: step, "tf.function": tf.function, "Terra": terra.coexecute}


def measure(make, data, steps, advance):
    """({mode: seconds of each step}, whether Terra has trained what eager execution has)."""
    running = {mode: make(wrap) for mode, wrap in MODES.items()}
    times = {mode: [] for mode in MODES}
    for begin in range(0, steps, CHUNK):
        for mode, (step, _) in running.items():
            for k in range(begin, min(begin + CHUNK, steps)):
                advance(mode)
                start = time.perf_counter()
                step(*data[k % len(data)])
                times[mode].append(time.perf_counter() - start)
    eager, ours = (running[mode][1].get_weights() for mode in ("eager", "Terra"))
    return times, all(np.array_equal(a, b) for a, b in zip(eager, ours, strict=True))


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.conditions", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", metavar="N", type=int, default=400, help="of each program (default 400)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be at least 2")

    data, rows, equal = batches(), [], True
    with Progress(len(PROGRAMS) * len(MODES) * options.steps, "measuring", options.quiet) as progress:
        for name, make in PROGRAMS.items():
            times, same = measure(make, data, options.steps, lambda mode: progress.advance(f"{name}, {mode}"))  # noqa: B023  (used at once)
            rows.append((name, same, *[1e3 * statistics.median(times[mode][options.steps // 2:]) for mode in MODES]))
            equal = equal and same
    print(report.machine(), end="\n\n")
    print(f"{'':<32}" + "".join(f"{mode + ' ms':>16}" for mode in MODES) + f"{'tf.fn/Terra':>13}")
    for name, same, *medians in rows:
        print(f"{name:<32}" + "".join(f"{ms:>16.2f}" for ms in medians) + f"{medians[1] / medians[2]:>13.2f}" + ("" if same else "  DIFFERS"))
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
