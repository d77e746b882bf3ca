"""An epoch over sequences of many lengths, by a plain Python loop over time: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.lengths [--steps N] [--longest L] [--units U] [--no-tf-function] [--quiet]

Each step has a batch of another length between 5 and L. The times are those of the whole epoch, generation and tracing included; of a second epoch over the same batches;
and of the steps alone. tf.function traces its unrolled loop again for each length. Exits with 1 if Terra's losses differ from eager's.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

import terra
from examples.benchmarks.console import Progress
from examples.benchmarks.suite import report

TOLERANCE = 1e-4  # of the losses, relative to eager's: rolled steps sum some gradients in another order
FEATURES, CLASSES, BATCH, LAYERS = 16, 4, 16, 2


def build(units, seed=1):
    """A new training step `step(sequences, labels)` for a recurrent classifier."""
    keras.utils.set_random_seed(seed)
    cell = keras.layers.StackedRNNCells([keras.layers.LSTMCell(units) for _ in range(LAYERS)])
    logits = keras.layers.Dense(CLASSES)
    cell.build((BATCH, FEATURES))
    logits.build((BATCH, units))
    variables = cell.trainable_variables + logits.trainable_variables
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    def step(sequences, labels):
        with tf.GradientTape() as tape:
            state = [[tf.zeros((BATCH, units)), tf.zeros((BATCH, units))] for _ in range(LAYERS)]
            for t in range(sequences.shape[1]):
                output, state = cell(sequences[:, t], state)
            loss = loss_fn(labels, logits(output))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def batches(steps, longest, seed=2):
    """`steps` batches (sequences, labels): noisy waves whose frequency is the class, each batch of another length."""
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.resize(np.arange(5, longest + 1), max(steps, longest - 4)))[:steps]
    made = []
    for length in lengths:
        labels = rng.integers(0, CLASSES, BATCH)
        phase = rng.uniform(0, 6.3, (BATCH, 1, FEATURES))
        waves = np.sin(phase + (labels[:, None, None] + 1) * 0.3 * np.arange(length)[None, :, None])
        made.append((tf.constant(waves + rng.normal(size=waves.shape) * 0.3, tf.float32), tf.constant(labels)))
    return made


def epoch(step, data, progress, name):
    """(seconds, losses) of one pass; the loss is read at each step."""
    losses = []
    start = time.perf_counter()
    for sequences, labels in data:
        progress.advance(name)
        losses.append(float(step(sequences, labels)))
    return time.perf_counter() - start, losses


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.lengths", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", metavar="N", type=int, default=196, help="batches in an epoch (default 196: each length once)")
    parser.add_argument("--longest", metavar="L", type=int, default=200, help="largest length (default 200)")
    parser.add_argument("--units", metavar="U", type=int, default=64, help="of each LSTM cell (default 64)")
    parser.add_argument("--no-tf-function", action="store_true", help="leave tf.function out: its tracing takes most of the run")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    options = parser.parse_args(argv)
    if options.longest < 5 or options.steps < 1:
        parser.error("--longest must be at least 5 and --steps at least 1")

    data = batches(options.steps, options.longest)
    coexecuted = terra.coexecute(build(options.units))
    modes = {"eager": build(options.units), "Terra": coexecuted}
    if not options.no_tf_function:
        modes["tf.function"] = tf.function(build(options.units))
    print(report.machine())
    print(f"{options.steps} batches of {len({x.shape[1] for x, _ in data})} lengths from {min(x.shape[1] for x, _ in data)} to "
          f"{max(x.shape[1] for x, _ in data)}; {LAYERS} LSTM cells of {options.units} units in a Python loop\n")
    found = {}
    with Progress(2 * len(modes) * options.steps, "measuring", options.quiet) as progress:
        for number in range(2):
            for name, step in modes.items():
                found.setdefault(name, []).append(epoch(step, data, progress, f"{name}, epoch {number + 1}"))

    print(f"{'':<12}{'1st epoch s':>12}{'2nd epoch s':>12}{'x eager':>9}{'x eager':>9}")
    for name, epochs in found.items():
        ratios = [found["eager"][k][0] / epochs[k][0] for k in range(2)]
        print(f"{name:<12}" + "".join(f"{seconds:>12.2f}" for seconds, _ in epochs) + "".join(f"{ratio:>9.1f}" for ratio in ratios))
    stats = coexecuted.stats()
    print(f"\nTerra: {stats.coexecuted_steps} of {stats.steps} steps co-executed, {stats.graphs} graphs generated, {stats.fallbacks} fallbacks")
    difference = max(
        abs(a - b) / abs(a) for k in range(2) for a, b in zip(found["eager"][k][1], found["Terra"][k][1], strict=True))
    print(f"largest relative difference of a loss from eager's: {difference:.1e}")
    return 0 if difference <= TOLERANCE and stats.coexecuted_steps else 1


if __name__ == "__main__":
    raise SystemExit(main())
