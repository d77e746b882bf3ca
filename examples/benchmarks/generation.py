"""What it costs to make a step's graph: `python -m examples.benchmarks.generation [PROGRAM ...]`.

For each program: writing Terra's graph function and the program that the skeleton walks, against tf.function's tracing of the same step; then, with grappler
off (the default, bitwise equal to eager) and on (`optimize=True`), the instantiation by the runtime, of a graph that is not the first one, and the time of the graph alone.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import sys
import time

import tensorflow as tf

import terra
from examples.programs import load
from terra.runtime.execution.graph_runner import Queue
from terra.runtime.execution.program import Program
from terra.runtime.generation.generator import GraphGenerator

DEFAULT = ["keras_mlp", "keras_cnn", "transformer_block", "lstm_cell_python_loop"]


def milliseconds(function, times):
    """Median time of `function()` in ms."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def ready(name, **options):
    """A co-executed step of program `name` that has its graph, and one batch."""
    job = load(name).build(0)
    step = terra.coexecute(job.step, wait_for_graph=True, **options)
    for k in range(6):
        step(*job.batches[k % len(job.batches)])
    terra.sync()
    return step, job.batches[0]


def tracing_ms(name):
    """One tracing by tf.function, of a step whose variables exist."""
    job = load(name).build(0)
    job.step(*job.batches[0])
    return milliseconds(lambda: tf.function(job.step).get_concrete_function(*job.batches[0]), 3)


def main(names):
    print(f"{'program':24}{'nodes':>7}{'Terra ms':>10}{'tf.function ms':>16}{'ratio':>7}   instantiation and graph alone, ms: exact, optimize=True")
    for name in names:
        step, _ = ready(name)

        def write():
            Program(step.store, GraphGenerator(step.store, step.program.early, Queue).generate())

        ours, theirs = milliseconds(write, 9), tracing_ms(name)
        figures = []
        for optimize in (False, True):
            made, arguments = ready(name, optimize=optimize)  # TensorFlow has looked up the kernels, for the graph before
            made.run_graph_alone(*arguments)
            whole = 1e3 * made.stats().generation_s
            figures.append(f"{whole - ours:6.0f} {milliseconds(lambda: made.run_graph_alone(*arguments), 50):6.2f}")
        print(f"{name:24}{len(step.trace_graph):7}{ours:10.1f}{theirs:16.1f}{theirs / ours:7.1f}   " + "   ".join(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or DEFAULT)
