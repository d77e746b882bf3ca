"""A few training steps, measured as eager, tf.function and Terra take turns in one run: what `examples.conditions`, `examples.numbers` and `examples.shapes` do with theirs."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import functools
import statistics
import time

import numpy as np
import tensorflow as tf

import terra
from examples.benchmark import report
from examples.console import Progress

CHUNK = 20  # steps in a row of one of the three
MODES = {"eager": lambda step: step, "tf.function": functools.partial(tf.function, reduce_retracing=True), "Terra": terra.coexecute}


def measure(make, data, steps, advance):
    """({mode: seconds of each step}, whether Terra has trained what eager execution has, whether tf.function has, nearly).

    make(mode): a function for one step, and what `get_weights()` tells of the model that it trains.
    """
    running = {mode: make(mode) for mode in MODES}
    times = {mode: [] for mode in MODES}
    for begin in range(0, steps, CHUNK):
        for mode, (step, _) in running.items():
            for k in range(begin, min(begin + CHUNK, steps)):
                advance(mode)
                start = time.perf_counter()
                step(*data[k % len(data)])
                times[mode].append(time.perf_counter() - start)
    eager, function, ours = (running[mode][1].get_weights() for mode in MODES)
    return times, all(map(np.array_equal, eager, ours)), all(np.allclose(a, b, atol=2e-3) for a, b in zip(eager, function))


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
            times, same, right = measure(make, data, options.steps, lambda mode: progress.advance(f"{title}, {mode}"))  # noqa: B023  (used at once)
            rows.append((title, same, right, *[1e3 * statistics.median(times[mode][options.steps // 2:]) for mode in MODES]))
            equal = equal and same
    print(report.machine(), end="\n\n")
    print(f"{'':<34}" + "".join(f"{mode + ' ms':>16}" for mode in MODES) + f"{'tf.fn/Terra':>13}")
    for title, same, right, *medians in rows:
        notes = ("" if same else "  DIFFERS") + ("" if right else "  tf.function is wrong")
        print(f"{title:<34}" + "".join(f"{ms:>16.2f}" for ms in medians) + f"{medians[1] / medians[2]:>13.2f}" + notes)
    return 0 if equal else 1
