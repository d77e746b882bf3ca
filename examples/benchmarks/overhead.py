"""What Terra costs where it does not win: a step that it leaves alone, a step that it traces, and what it takes to make a graph.

    python -m examples.benchmarks.overhead [PROGRAM ...] [--size S] [--rounds N] [--steps N] [--quiet]

For each program, the median time of a step in ms, and its ratio to eager's:

    eager       the program's own step
    idle        the same behind a decorator whose policy has given up, so that it runs imperatively
    traced      each step is traced, and no graph is ever made (max_traces=0)
    first two   the first two steps of a newly decorated function: traced and merged; the graph is generated in the background after them
    generation  what the helper thread took for the graph, in ms

All take turns, a round of a few steps each, in an order that rotates; each has a job of its own from the same seed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the progress

import argparse
import statistics
import time

import keras

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
        return terra.coexecute(step, max_traces=0)


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


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"programs to measure (default: {' '.join(PROGRAMS)})")
    parser.add_argument("--size", default="benchmark", choices=("test", "benchmark"), help="how large they are (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="steps of a mode in a round (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
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
