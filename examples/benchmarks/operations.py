"""What an operation costs Python that the program issues itself, in microseconds.

    python -m examples.benchmarks.operations [--rounds N] [--quiet]

A step whose own code must run (it looks at its frame) issues each kind of operation a hundred times, on tensors so small that kernels hardly count. The columns:

    Python      the same loop over objects whose operators and functions return at once: what Python itself takes
    eager       TensorFlow's eager execution
    validated   the skeleton with fast_forward=False: TensorFlow's Python runs up to the kernel, which Terra's check of the operation replaces
    Terra       the skeleton as it is by default
    Terra-Py    what Terra adds to Python

Figures are medians over the rounds; all take turns. Terra's graph runs after the step, so that it does not take the processor away.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import statistics
import sys
import time

import tensorflow as tf

import terra
from examples.benchmarks.console import Progress

TIMES = 100
SETTLING = 40  # steps until everything that can be skipped is
KINDS = ("x * y", "x * 2.0", "x + variable", "tf.nn.relu(x)", "x[1:]")


class Inert:
    """An operand that does nothing."""

    def __mul__(self, other):
        return self

    __add__ = __mul__

    def __getitem__(self, key):
        return self

    @staticmethod
    def relu(x):
        return x


def make_step(x, variable, relu):
    """A step that times each kind of operation; gives the seconds that each took."""
    def step():
        sys._getframe()  # so that the step is never skipped as a whole
        y = x * x
        moments = [time.perf_counter()]
        for _ in range(TIMES):
            y = y * x
        moments.append(time.perf_counter())
        for _ in range(TIMES):
            y = y * 2.0
        moments.append(time.perf_counter())
        for _ in range(TIMES):
            y = y + variable
        moments.append(time.perf_counter())
        for _ in range(TIMES):
            y = relu(y)
        moments.append(time.perf_counter())
        for _ in range(TIMES):
            z = y[1:]
        moments.append(time.perf_counter())
        return [later - earlier for earlier, later in zip(moments, moments[1:])], y, z

    return step


def measure(rounds, progress):
    """{column: for each kind of operation the median of its microseconds}"""
    x, variable = tf.zeros((4, 4)), tf.Variable(tf.zeros((4, 4)))
    steps = {
        "Python": make_step(Inert(), Inert(), Inert.relu),
        "eager": make_step(x, variable, tf.nn.relu),
        "validated": terra.coexecute(make_step(x, variable, tf.nn.relu), wait_for_graph=True, fast_forward=False),
        "Terra": terra.coexecute(make_step(x, variable, tf.nn.relu), wait_for_graph=True),
    }
    seconds = {name: [] for name in steps}
    for k in range(SETTLING + rounds):
        for name, step in steps.items():
            took = step()[0]
            terra.sync()
            if k >= SETTLING:
                seconds[name].append(took)
        progress.advance("settling" if k < SETTLING else "measuring")
    for name in ("validated", "Terra"):
        stats = steps[name].stats()
        if stats.coexecuted_steps < rounds:
            raise SystemExit(f"{name}: only {stats.coexecuted_steps} steps were co-executed: {stats.fallback_reasons}")
    return {name: [statistics.median(kind) / TIMES * 1e6 for kind in zip(*took)] for name, took in seconds.items()}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.operations", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="rounds of a step each (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("rounds must be above 0")
    with Progress(SETTLING + args.rounds, "settling", args.quiet) as progress:
        found = measure(args.rounds, progress)
    found["Terra-Py"] = [terra_us - python_us for terra_us, python_us in zip(found["Terra"], found["Python"])]
    print(f"{'us per operation':18}" + "".join(f"{column:>11}" for column in found))
    for k, kind in enumerate(KINDS):
        print(f"{kind:18}" + "".join(f"{us[k]:11.2f}" for us in found.values()))


if __name__ == "__main__":
    main()
