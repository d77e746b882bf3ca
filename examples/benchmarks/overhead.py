"""What Terra costs where it does not win: a step that it leaves alone, a step that it traces, and what it takes to make a graph.

    python -m examples.benchmarks.overhead [PROGRAM ...] [--size S] [--rounds N] [--steps N] [--quiet]
    python -m examples.benchmarks.overhead --regret [--quiet]

For each program, the median time of a step in ms, and its ratio to eager's:

    eager       the program's own step
    idle        the same behind a decorator whose policy has given up, so that it runs imperatively
    traced      each step is traced, and no graph is ever made (max_traces=0)
    first two   the first two steps of a newly decorated function: traced and merged; the graph is generated in the background after them
    generation  what the helper thread took for the graph, in ms

All take turns, a round of a few steps each, in an order that rotates; each has a job of its own from the same seed.

With `--regret`, programs that co-execution cannot make faster, each run eagerly and with Terra from its first step on: seconds of the whole run, the most that Terra was behind at any
moment (eager's time to the same step, a tenth more of it, taken off its own), in wall and in CPU time, and how many steps were co-executed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import random
import statistics
import time

import keras
import tensorflow as tf

import terra
from examples.benchmarks.console import Progress
from examples.programs import NAMES, load

PROGRAMS = ("keras_mlp", "keras_cnn", "transformer_block", "hand_written_variables")
MODES = ("eager", "idle", "traced", "first two")


class Mode:
    def __init__(self, module, size):
        keras.utils.set_random_seed(1)
        self.job = module.build(1, size)
        self.step = self.wrap(self.job.step)
        self.seconds = []
        self.done = 0
        self.run(2)  # makes slots and kernels

    def wrap(self, step):
        return step

    def run(self, steps):
        loss = None
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step(*self.job.batches[self.done % len(self.job.batches)])
            self.done += 1
        float(loss)
        return time.perf_counter() - start

    def run_round(self, steps):
        self.seconds.append(self.run(steps) / steps)


class Idle(Mode):
    def wrap(self, step):
        function = terra.coexecute(step)
        function.policy.pause_left = 10**9  # as if it had given up
        return function


class Traced(Mode):
    def wrap(self, step):
        return terra.coexecute(step, max_traces=0, wait_for_graph=True)  # else it would soon not be traced any more


class First(Mode):
    def __init__(self, module, size):
        self.generation = []
        super().__init__(module, size)

    def run_round(self, steps):
        self.step = terra.coexecute(self.job.step)
        self.seconds.append(self.run(2) / 2)
        while self.step.stats().graphs == 0 and self.step.generation.error is None:
            time.sleep(0.001)
        self.generation.append(self.step.stats().generation_s)


def measure(name, size, rounds, steps, progress):
    """{mode: seconds of a step in each round} and the seconds of each generation."""
    module = load(name)
    modes = [kind(module, size) for kind in (Mode, Idle, Traced, First)]
    for k in range(rounds):
        for shift in range(len(modes)):
            modes[(k + shift) % len(modes)].run_round(steps)
        progress.advance(name)
    return {name: mode.seconds for name, mode in zip(MODES, modes)}, modes[-1].generation


# -- programs that are not made faster ---------------------------------------------------------------------------------------------

def new_paths():
    """Each step runs other operations."""
    operations = tf.sin, tf.cos, tf.tanh, tf.exp, tf.square, tf.abs, tf.sigmoid
    v, drawn = tf.Variable(tf.ones([256, 256]) * 0.1), random.Random(0)

    def step(k):
        x = v
        for _ in range(60):
            x = drawn.choice(operations)(tf.matmul(x, v) * 0.01)
        v.assign(v * 0.999 + 0.0001 * tf.clip_by_value(x, -1.0, 1.0))
        return tf.reduce_sum(v)

    return step, 150


def new_sizes():
    """Each batch has another size, and the step's code looks at it."""
    model = keras.Sequential([keras.layers.Dense(128, "relu") for _ in range(8)] + [keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()

    def step(k):
        x = tf.ones([8 + 7 * k % 1009, 32])
        rows = [tf.reduce_mean(part) for part in tf.split(x, [x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2) + sum(rows)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, 150


def rebuilt_model():
    """Each ten steps a new model is made."""
    made = []

    def step(k):
        if k % 10 == 0:
            made[:] = [keras.Sequential([keras.layers.Dense(64, "relu") for _ in range(6)]), keras.optimizers.Adam()]
            made[0].build([None, 32])
        model, optimizer = made
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([64, 32])) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, 150


def short_run():
    """7,000 operations, and 30 steps."""
    weights = [tf.Variable(tf.ones([16, 16]) * 0.1) for _ in range(50)]

    def step(k):
        with tf.GradientTape() as tape:
            x = tf.ones([16, 16])
            for _ in range(23):
                for w in weights:
                    x = tf.tanh(tf.matmul(x, w))
            loss = tf.reduce_mean(x)
        for w, slope in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.01 * slope)
        return loss

    return step, 30


REGRETTABLE = {"new path in each step": new_paths, "new sizes in each step": new_sizes, "a model that is rebuilt": rebuilt_model, "7,000 operations, 30 steps": short_run}


def moments(make, coexecuted):
    """[(wall, CPU) seconds from the first step to each], and the step."""
    keras.utils.set_random_seed(1)
    step, n = make()
    step = terra.coexecute(step) if coexecuted else step
    wall, cpu, found = time.perf_counter(), time.process_time(), []
    for k in range(n):
        float(step(k))
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return found, step


def regret(progress):
    """The lines of the table."""
    lines = [f"{'':28}{'eager s':>9}{'Terra s':>9}{'behind s':>10}{'eager CPU':>11}{'Terra CPU':>11}{'behind CPU':>12}{'steps':>7}{'co-executed':>13}"]
    for name, make in REGRETTABLE.items():
        moments(make, False)  # kernels
        eager, _ = moments(make, False)
        ours, step = moments(make, True)
        line = f"{name:28}"
        for k, width in ((0, 9), (1, 11)):
            behind = max(0.0, *[b[k] - 1.1 * a[k] for a, b in zip(eager, ours)])
            line += f"{eager[-1][k]:{width}.2f}{ours[-1][k]:{width}.2f}{behind:{width + 1}.2f}"
        lines.append(line + f"{len(ours):7}{step.stats().coexecuted_steps:13}")
        progress.advance(name)
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"programs to measure (default: {' '.join(PROGRAMS)})")
    parser.add_argument("--size", default="benchmark", choices=("test", "benchmark"), help="how large they are (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="steps of a mode in a round (default: %(default)s)")
    parser.add_argument("--regret", action="store_true", help="programs that are not made faster, from their first step on")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    if args.regret:
        with Progress(len(REGRETTABLE), "measuring", args.quiet) as progress:
            lines = regret(progress)
        print("\n".join(lines))
        return
    unknown = [name for name in args.programs if name not in NAMES]
    if unknown or args.rounds < 1 or args.steps < 1:
        parser.error(f"no program {unknown[0]!r}" if unknown else "rounds and steps must be above 0")
    programs = args.programs or PROGRAMS
    lines = [f"{'':24}{'eager':>8}" + "".join(f"{mode:>18}" for mode in MODES[1:]) + f"{'generation':>12}"]
    with Progress(args.rounds * len(programs), "measuring", args.quiet) as progress:
        for name in programs:
            seconds, generation = measure(name, args.size, args.rounds, args.steps, progress)
            eager = statistics.median(seconds["eager"])
            line = f"{name:24}{eager * 1e3:8.2f}"
            for mode in MODES[1:]:
                ratio = statistics.median(other / own for other, own in zip(seconds[mode], seconds["eager"]))
                line += f"{statistics.median(seconds[mode]) * 1e3:10.2f} {ratio:6.2f}x"
            lines.append(line + f"{statistics.median(generation) * 1e3:12.1f}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
