"""Steps whose graph Python runs on its own thread, because it has waited for the steps before as soon as they were dispatched."""
import time

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.execution import graph_runner
from terra.runtime.execution.graph_runner import ENOUGH, GRAPH_RUNNER


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """A busy machine may pause Python anywhere for longer than what counts as at once."""
    monkeypatch.setattr(graph_runner, "AT_ONCE", 5.0)


def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


def training():
    """A step with state, and its variables."""
    w, count = tf.Variable(floats(20, 20) * 0.1), tf.Variable(0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        count.assign_add(1)
        return loss

    return step, [w, count]


def values(variables):
    terra.sync()
    return [v.numpy().tolist() for v in variables]


def run(step, x, calls, between=lambda i, loss: float(loss)):
    seen = []
    for i in range(calls):
        loss = step(x)
        seen.append(between(i, loss))
    return seen


X = tf.constant(floats(20, 20, seed=1))


def test_steps_that_are_read_at_once():
    step, variables = training()
    expected = run(step, X, 30), values(variables)
    step, variables = training()
    step = terra.coexecute(step, wait_for_graph=True)
    assert (run(step, X, 30), values(variables)) == expected
    stats = step.stats()
    # on a slow machine they begin to count anew once
    assert stats.coexecuted_steps - 2 * ENOUGH <= stats.waited_steps + stats.early_steps <= stats.coexecuted_steps - ENOUGH, stats
    assert stats.coexecuted_steps - ENOUGH >= 20 and stats.waited_steps > 10, stats
    assert stats.python_stall_s > 0.0


def test_steps_that_are_read_later(monkeypatch):
    """Python's work between a step and the reading of its loss overlaps the graph, as ever."""
    monkeypatch.setattr(graph_runner, "AT_ONCE", 0.001)

    def work(i, loss):
        time.sleep(0.002)
        return float(loss)

    step, _ = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, X, 20, work)
    assert step.stats().coexecuted_steps > 15 and step.stats().waited_steps == 0


def test_steps_that_are_not_read():
    step, variables = training()
    run(step, X, 40, lambda i, loss: float(loss) if i % 5 == 4 else None)
    expected = values(variables)
    step, variables = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, X, 40, lambda i, loss: float(loss) if i % 5 == 4 else None)
    assert values(variables) == expected
    assert step.stats().coexecuted_steps > 35 and step.stats().waited_steps == 0


def test_a_program_that_stops_reading_at_once():
    """The first step that is not read at once is the last one that runs on Python's thread."""
    step, _ = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, X, 20)
    before = step.stats().waited_steps
    assert before > 5
    run(step, X, 10, lambda i, loss: None)
    assert step.stats().waited_steps <= before + 1
    run(step, X, 20)
    assert step.stats().waited_steps > before + 5


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_kernel_that_fails(run_ahead):
    def build():
        v = tf.Variable(floats(3))

        def step(k):
            v.assign_add([1.0, 1.0, 1.0])
            return tf.gather(v, k) * 2.0

        return step, v

    def observe(step, v):
        seen = []
        for i in range(24):
            try:
                seen.append(float(step(tf.constant(7 if i in (13, 18) else i % 3))))
            except tf.errors.InvalidArgumentError:
                seen.append("error")
            seen.append(v.numpy().tolist())
        return seen

    expected = observe(*build())
    step, v = build()
    step = terra.coexecute(step, wait_for_graph=True, run_ahead=run_ahead)
    failures = GRAPH_RUNNER.failures
    assert observe(step, v) == expected
    assert GRAPH_RUNNER.failures == failures + 2 and step.stats().waited_steps > 3


def test_another_program_is_in_flight():
    """A graph must not overtake another one."""
    v = tf.Variable(0.0)
    big = tf.constant(floats(600, 600))

    def slow(x):
        for _ in range(6):
            x = tf.tanh(x @ big)
        v.assign(tf.reduce_sum(x) * 0.0 + v + 1.0)

    def fast(x):
        v.assign(v * 2.0)
        return x + v

    slow, fast = terra.coexecute(slow, wait_for_graph=True), terra.coexecute(fast, wait_for_graph=True)
    one, expected = tf.constant(1.0), 0.0
    for _ in range(12):
        slow(big)
        assert float(fast(one)) == 2.0 * (expected + 1.0) + 1.0
        v.assign(0.0)
    for _ in range(8):
        float(fast(one))
    assert fast.stats().waited_steps > 2
    v.assign(expected)
    slow(big)
    assert float(fast(one)) == 2.0 * (expected + 1.0) + 1.0
