"""Operations that finalizers run, at any moment: the garbage collector may free a queue, a summary writer or an iterator wherever Python allocates, in the
middle of Terra's own work too."""

import gc
import random
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_data_flow_ops

import terra


class Collector:
    """Frees a queue, which runs an operation, at the end of each garbage collection; collections come often, at moments that are drawn."""

    def __init__(self, amount):
        self.queues = [tf.queue.FIFOQueue(2, [tf.float32]) for _ in range(amount)]
        self.freed, self.failed = [], []
        self._randomness = random.Random(0)
        self._busy = False

    def __enter__(self):
        self._hook, sys.unraisablehook = sys.unraisablehook, lambda failure: self.failed.append(repr(failure.exc_value))
        self._threshold = gc.get_threshold()
        gc.freeze()  # else each collection looks at all of TensorFlow
        gc.callbacks.append(self._collected)
        gc.set_threshold(20)
        return self

    def __exit__(self, *exc):
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._threshold)
        sys.unraisablehook = self._hook

    def _collected(self, phase, info):
        if phase == "stop" and self.queues and not self._busy:
            self._busy = True
            self.freed.append(self.queues[-1].queue_ref)
            self.queues.pop()
            gc.set_threshold(self._randomness.randint(1, 15))
            self._busy = False

    def left(self):
        """How many of the freed queues are still there."""
        left = 0
        for handle in self.freed:
            try:
                gen_data_flow_ops.queue_size_v2(handle)
                left += 1
            except tf.errors.OpError:
                pass
        return left


def call_program(wrap):
    matrix, total, results = tf.Variable(np.ones((3, 3), "float32")), tf.Variable(0.0), []

    @wrap
    def step(i):
        y = tf.reduce_sum(tf.matmul(matrix, matrix) * 0.1)
        if i % 7 == 3:
            y = y + tf.Variable(float(i))
        if i % 5 == 0:
            y = y + float(y) * 0.01
        for _ in range(i % 3):
            y = y * 1.01
        total.assign_add(y * 0.1)
        matrix.assign(matrix * 0.99)
        return y

    for i in range(60):
        results.append(step(i))
    return results, matrix, total


def block_program(tape_class):
    matrix, total, results = tf.Variable(np.ones((3, 3), "float32")), tf.Variable(0.0), []
    for i in range(60):
        with tape_class() as tape:
            y = tf.reduce_sum(tf.matmul(matrix, matrix) * 0.1)
            if i % 5 == 0:
                y = y + float(y) * 0.01
        matrix.assign_sub(0.01 * tape.gradient(y, matrix))
        total.assign_add(y)
        if i % 4 == 0:
            results.append(float(total))
        results.append(y)
    if tape_class is not tf.GradientTape:
        assert tape.block.stats().coexecuted_steps >= 12
    return results, matrix, total


def values(outcome):
    terra.sync()
    results, matrix, total = outcome
    return [float(x) for x in results], matrix.numpy().tolist(), float(total)


@pytest.mark.parametrize("options", [{}, {"fast_forward": "framework"}, {"loops": "roll"}], ids=["whole", "framework", "pieces"])
def test_in_calls(options):
    made = []

    def wrap(step):
        made.append(terra.coexecute(step, wait_for_graph=True, **options))
        return made[0]

    expected = values(call_program(lambda step: step))
    with Collector(3000) as collector:
        outcome = values(call_program(wrap))
    assert outcome == expected and not collector.failed
    assert made[0].stats().coexecuted_steps >= 28
    assert len(collector.freed) >= 100
    # What is freed while a graph is dispatched is queued behind that graph, and forgotten with it if the step falls back.
    assert collector.left() <= made[0].stats().fallbacks


def test_in_blocks():
    expected = values(block_program(tf.GradientTape))
    with Collector(3000) as collector:
        outcome = values(block_program(lambda: terra.GradientTape(wait_for_graph=True)))
    assert outcome == expected and not collector.failed
    assert len(collector.freed) >= 80 and collector.left() <= 10
