"""Check one program: the same losses, variables and Python state co-executed as eagerly, from the same seed.

    python -m examples.benchmarks.check NAME [NAME ...] [--blocks] [--size test] [--steps 12] [--explain] [--no-tf-function]

For each program: the differences, Terra's statistics, ms per step, and what tf.function does with the step as it is.
Exits with 1 where Terra differs from eager or has co-executed nothing.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notes would hide the result

import argparse
import contextlib
import dataclasses
import functools
import importlib
import statistics
import time
import traceback
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import terra
from examples.benchmarks.console import error_line
from examples.benchmarks.suite.measure import TF_FUNCTION_TOLERANCE, TOLERANCE, finish, max_rel_diff, tolerance_of, within_tolerance
from examples.benchmarks.suite.state import python_state, state_difference
from examples.programs import Job
from terra.frontends.gradient_tape import blocks

FIRST_MEASURED = 6  # a step before is a part of the warm-up, if there are enough of them


@dataclasses.dataclass
class Run:
    """What a number of steps gave."""

    job: Job
    step: Callable  # of the job, as it was run
    losses: list
    seconds: list  # of each step, its work in the graph included
    variables: list  # (name, value) at the end, in the order of their creation
    state: dict  # what the program's Python objects hold at the end

    @property
    def ms(self):
        return 1e3 * statistics.median(self.seconds[min(FIRST_MEASURED, len(self.seconds) // 2) :])


def run(module, size, seed, steps, wrap, progress=lambda: None):
    """A new job from the seed makes its first steps, under `wrap`; `progress` is called after each."""
    keras.utils.set_random_seed(seed)
    variables = []

    def keep(creator, **arguments):
        variables.append(creator(**arguments))
        return variables[-1]

    with tf.variable_creator_scope(keep):
        job = module.build(seed, size)
    step = wrap(job.step)
    losses, seconds = [], []
    for index in range(steps):
        start = time.perf_counter()
        loss = step(*job.batches[index % len(job.batches)])
        losses.append(float(loss))
        finish()
        seconds.append(time.perf_counter() - start)
        progress()
    values = [(variable.name, variable.numpy()) for variable in variables]
    return Run(job, step, losses, seconds, values, python_state(job.step))


def variable_differences(ours, eager):
    """(difference, name) of the variables that differ; a variable's difference is relative to its largest element."""
    for (name, value), (_, right) in zip(ours, eager, strict=True):
        if value.dtype.kind == "f" and value.shape == right.shape:
            difference = float(np.max(np.abs(value - right), initial=0.0) / max(float(np.max(np.abs(right), initial=0.0)), 1e-30))
        else:
            difference = 0.0 if np.array_equal(value, right) else np.inf
        if difference:  # not a number counts as a difference where eager has a number
            if not (np.isnan(difference) and np.array_equal(np.isnan(value), np.isnan(right))):
                yield difference, name


def check(name, options):
    """Print what was found; True if Terra does what eager does."""
    module = importlib.import_module(f"examples.programs.{name}")  # also one that is not listed yet
    eager = run(module, options.size, options.seed, options.steps, lambda step: step)
    try:
        with blocks_are_steps() if options.blocks else contextlib.nullcontext([]) as steps:
            wrap = (lambda step: step) if options.blocks else functools.partial(terra.coexecute, wait_for_graph=True)
            ours = run(module, options.size, options.seed, options.steps, wrap)
    except Exception:
        traceback.print_exc()
        print(f"{name}: TERRA IS WRONG: it raises where eager does not")
        return False

    steps = steps or [(ours.step, ours.step.stats())]
    stats = terra.Stats()
    for _, of_step in steps:
        stats.add(of_step)
    difference = max_rel_diff(ours.losses, eager.losses)
    tolerance = TOLERANCE if options.blocks else tolerance_of(ours.step)
    in_state = state_difference(ours.state, eager.state, tolerance)
    variables = sorted(variable_differences(ours.variables, eager.variables), reverse=True)
    print(f"{name}, size {options.size}, {options.steps} steps")
    print(f"  losses         {eager.losses[0]:.6g} ... {eager.losses[-1]:.6g}; largest relative difference {difference:.1e}")
    print(f"  variables      {len(variables)} of {len(eager.variables)} differ" + "".join(f"; {name} by {d:.1e}" for d, name in variables[:3]))
    print(f"  ms per step    eager {eager.ms:.1f}, Terra {ours.ms:.1f}: {eager.ms / ours.ms:.2f} times as fast")
    for field, value in dataclasses.asdict(stats).items():
        print(f"  {field:<18} {value:.3f}" if isinstance(value, float) else f"  {field:<18} {value}")
    if options.explain:
        for step, _ in steps:
            print(terra.explain(step, full=True))

    # A gradient that is zero but for rounding moves its variable under Adam: then only the losses tell.
    wrong = []
    if not within_tolerance(ours.losses, eager.losses, tolerance):
        step = first_different(ours.losses, eager.losses, TOLERANCE)
        wrong.append(f"step {step} gave {ours.losses[step]!r}, not {eager.losses[step]!r}")
    if in_state:
        wrong.append(in_state)
    if not stats.coexecuted_steps:
        wrong.append("no step was co-executed")
    for text in wrong:
        print(f"  TERRA IS WRONG: {text}")
    if options.tf_function:
        print(f"  tf.function    {tf_function_outcome(module, options, eager)}", flush=True)
    return not wrong


@contextlib.contextmanager
def blocks_are_steps():
    """While it lasts, `tf.GradientTape` is `terra.GradientTape`; gives a list, which then has (block, what its `Stats` have grown by) of all that were run."""
    original, steps, before = tf.GradientTape, [], {place: block.stats() for place, block in blocks().items()}
    tf.GradientTape = functools.partial(terra.GradientTape, wait_for_graph=True)
    try:
        yield steps
    finally:
        tf.GradientTape = original
        for place, block in blocks().items():
            grown, old = block.stats(), before.get(place, terra.Stats())
            if grown.steps > old.steps:
                steps.append((block, terra.Stats(**{name: value - getattr(old, name) for name, value in dataclasses.asdict(grown).items()})))


def first_different(losses, expected, tolerance):
    return next(index for index, pair in enumerate(zip(losses, expected)) if max_rel_diff(*([loss] for loss in pair)) > tolerance)


def tf_function_outcome(module, options, eager):
    try:
        traced = run(module, options.size, options.seed, options.steps, tf.function)
    except Exception as error:
        return f"fails: {error_line(error)}"
    difference = max_rel_diff(traced.losses, eager.losses)
    other = difference > TF_FUNCTION_TOLERANCE
    in_state = state_difference(traced.state, eager.state, None if other else TF_FUNCTION_TOLERANCE)
    if in_state:
        return f"wrong: {in_state}"
    if other:
        step = first_different(traced.losses, eager.losses, TF_FUNCTION_TOLERANCE)
        return f"other losses from step {step} on (wrong, or other random numbers): by {difference:.1e}, {traced.ms:.1f} ms"
    return f"runs: {traced.ms:.1f} ms, {traced.step.experimental_get_tracing_count()} tracings, difference {difference:.1e}"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.check", description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="NAME", nargs="+", help="module in examples/programs")
    parser.add_argument("--blocks", action="store_true", help="the step as it is, with terra.GradientTape in the place of its tapes")
    parser.add_argument("--size", default="test", help="test, benchmark or paper (default %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--explain", action="store_true", help="print terra.explain's report")
    parser.add_argument("--no-tf-function", dest="tf_function", action="store_false", help="leave tf.function out")
    options = parser.parse_args(argv)
    return 0 if all([check(name, options) for name in options.names]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
