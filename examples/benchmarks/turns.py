"""Training steps, and epochs of `fit`, measured as eager, tf.function and Terra take turns in one run: what most programs of `examples.benchmarks` do with theirs."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import functools
import math
import statistics
import time

import numpy as np
import tensorflow as tf

import terra
from examples.benchmarks.console import Progress
from examples.benchmarks.suite import report

CHUNK = 20  # steps in a row of one of the three
MODES = {"eager": lambda step: step, "tf.function": functools.partial(tf.function, reduce_retracing=True), "Terra": terra.coexecute}


def measure(make, data, steps, advance):
    """({mode: seconds of each step}, whether Terra has trained what eager execution has, what is wrong with tf.function: "" if nothing is, nearly).

    make(mode): a function for one step, and what `get_weights()` tells of the model that it trains.
    """
    running = {mode: make(mode) for mode in MODES}
    times, fails = {mode: [] for mode in MODES}, ""
    for begin in range(0, steps, CHUNK):
        for mode, (step, _) in running.items():
            for k in range(begin, min(begin + CHUNK, steps)):
                advance(mode)
                if mode == "tf.function" and fails:
                    continue
                start = time.perf_counter()
                try:
                    step(*data[k % len(data)])
                except (TypeError, AttributeError, ValueError) as error:  # code that AutoGraph cannot do
                    if mode != "tf.function":
                        raise
                    fails = f"tf.function fails: {type(error).__name__}"
                times[mode].append(time.perf_counter() - start)
    eager, function, ours = (running[mode][1].get_weights() for mode in MODES)
    wrong = fails or ("" if all(np.allclose(a, b, atol=2e-3) for a, b in zip(eager, function)) else "tf.function is wrong")
    return times, all(map(np.array_equal, eager, ours)), wrong


def measure_fits(make, modes, batches, warm_up, rounds, epochs, advance):
    """({mode: median of ms per batch}, whether Terra has trained what eager execution has).

    make(mode): a function that trains for so many epochs, and one that gives the weights. `epochs`: of a round; of eager execution, one.
    """
    running = {}
    for mode in modes:
        train, _ = running[mode] = make(mode)
        train(warm_up)  # at once: some make their weights when they are called for the first time, from the seed
        advance(mode)
    eager, ours = (running[mode][1]() for mode in ("eager", "Terra"))
    times = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, (train, _) in running.items():
            n = 1 if mode == "eager" else epochs
            start = time.perf_counter()
            train(n)
            times[mode].append(1e3 * (time.perf_counter() - start) / (n * batches))
            advance(mode)
    return {mode: statistics.median(found) for mode, found in times.items()}, all(np.array_equal(a, b) for a, b in zip(eager, ours, strict=True))


def main(name, description, programs, default_steps, argv):
    """The command line `python -m name`: measures `programs`, {title: (make, data)}, and prints a table. Returns 1 if Terra trains anything else than eager execution."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--steps", metavar="N", type=int, default=default_steps, help=f"of each program (default {default_steps})")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be at least 2")

    rows, equal = [], True
    with Progress(len(programs) * len(MODES) * options.steps, "measuring", options.quiet) as progress:
        for title, (make, data) in programs.items():
            times, same, wrong = measure(make, data, options.steps, lambda mode: progress.advance(f"{title}, {mode}"))  # noqa: B023  (used at once)
            rows.append((title, same, wrong, *[1e3 * statistics.median(times[mode][options.steps // 2:] or [math.nan]) for mode in MODES]))
            equal = equal and same
    print(report.machine(), end="\n\n")
    print(f"{'':<34}" + "".join(f"{mode + ' ms':>16}" for mode in MODES) + f"{'tf.fn/Terra':>13}")
    for title, same, wrong, *medians in rows:
        notes = ("" if same else "  DIFFERS") + (f"  {wrong}" if wrong else "")
        print(f"{title:<34}" + "".join(f"{'' if math.isnan(ms) else format(ms, '.2f'):>16}" for ms in medians)
              + f"{'' if math.isnan(medians[1]) else format(medians[1] / medians[2], '.2f'):>13}" + notes)
    return 0 if equal else 1
