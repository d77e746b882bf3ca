"""What runs imperatively while graphs are in flight, or while a step has updates that are not done yet, uses variables in the order of the program.

Each program updates a variable behind so much work that whoever does not wait finds the old value.
"""

import pathlib
import signal
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from tests import forks

ROOT = pathlib.Path(__file__).parents[2]
BIG = tf.random.stateless_uniform([400, 400], [1, 2]) / 200.0
ONE = tf.constant(1.0)


def slowly(x):
    """x, after some work."""
    a = BIG * x
    for _ in range(6):
        a = a @ BIG
    return x + 0.0 * tf.reduce_sum(a)


def check(case, coexecuted=3):
    """The same results of `case(wrap)`, eagerly and co-executed. `coexecuted`: how many steps at least; 0 where each must fall back, after it began so."""
    made = []

    def coexecute(step):
        made.append(terra.coexecute(step, wait_for_graph=True, run_ahead=5))
        return made[-1]

    expected = case(lambda step: step)
    actual = case(coexecute)
    terra.sync()
    assert repr(actual) == repr(expected)
    stats = made[-1].stats()
    assert stats.coexecuted_steps >= coexecuted and stats.coexecuted_steps + stats.fallbacks >= 3, stats


# -- datasets and Python code that use variables without being given them ------------------------------------------------------


@tf.function
def total(dataset):
    s = tf.constant(0.0)
    for x in dataset:
        s += x
    return s


get_next = tf.function(lambda iterator: next(iterator))
READS = {
    "reduce": lambda three, one, many: three.reduce(0.0, lambda a, b: a + b),
    "single element": lambda three, one, many: one.get_single_element(),
    "function over a dataset": lambda three, one, many: total(three),
    "iterator in a function": lambda three, one, many: get_next(many),
    "next": lambda three, one, many: next(many),
}


def datasets(v):
    plain = tf.data.Options()
    plain.experimental_optimization.inject_prefetch = False  # which would read ahead, eagerly, too
    plain.autotune.enabled = False
    made = [tf.data.Dataset.range(n).map(lambda i: v * tf.cast(i + 1, tf.float32)).with_options(plain) for n in (3, 1)]
    return *made, iter(tf.data.Dataset.range(100).map(lambda i: v * 1.0).with_options(plain))


@pytest.mark.share(8)
@pytest.mark.parametrize("where, name", [*[(where, name) for where in ("between", "inside") for name in READS],
                                         *[("imperative", name) for name in ("single element", "next")], *[("pieces", name) for name in ("reduce", "iterator in a function")]])
def test_datasets(name, where):
    read = READS[name]

    def case(wrap):
        v = tf.Variable(1.0)
        given = datasets(v)

        def step(x, times=1):
            for _ in range(times):
                v.assign(slowly(v + x))
            if where == "between":
                return None
            if where == "imperative":
                with terra.imperative():
                    return read(*given) + 0.0
            return read(*given) * 2.0

        step = wrap(step)
        results = []
        for n in (5, 6, 7, 8, 5, 6, 7, 2) if where == "pieces" else [1] * 8:
            result = step(ONE, n)
            results.append(float(read(*given) if result is None else result))
        return results

    check(case, 0 if where in ("inside", "imperative") else 3)


@pytest.mark.parametrize("kind", ["py_function", "numpy_function", "in a function", "numpy in a function"])
@pytest.mark.parametrize("writes", [False, True])
def test_python_code(kind, writes):
    """Inside of a tf.function, Python code runs on one of TensorFlow's threads."""
    def case(wrap):
        v = tf.Variable(1.0)

        def python(x):
            if writes:
                v.assign_add(10.0)
            return np.float32(v.numpy())

        def plain(x):
            if "numpy" in kind:
                return tf.numpy_function(python, [x], tf.float32)
            return tf.py_function(python, [x], tf.float32)

        call = tf.function(plain) if "in a function" in kind else plain

        def step(x):
            y = v * 3.0
            if not writes:
                v.assign(slowly(v + x))
            return call(x) * 2.0 + y

        step = wrap(step)
        return [float(step(ONE)) for _ in range(8)]

    check(case, 0)


def test_function_with_python_code_behind_a_block():
    def run(tape_class):
        v, results = tf.Variable(1.0), []
        read = tf.function(lambda x: tf.numpy_function(lambda x: np.float32(v.numpy()), [x], tf.float32))
        read(ONE)
        for _ in range(8):
            with tape_class() as tape:
                loss = v * v * 1.0
            v.assign_add(slowly(ONE))  # before the gradient: the step is still open
            results.append(float(read(ONE)))
            v.assign_sub(0.01 * tape.gradient(loss, v))
        return results

    start = time.perf_counter()
    expected = run(tf.GradientTape)
    assert run(terra.GradientTape) == expected
    assert time.perf_counter() - start < 60  # no thread waits for another


# -- variables that conflict() must find -----------------------------------------------------------------------------------------


def test_lists_of_variables():
    def case(wrap):
        a, b = tf.Variable(1.0), tf.Variable(0.0)

        def step(x):
            a.assign(slowly(a + x))
            b.assign_sub(a)
            with terra.imperative():
                both = tf.stack([a, b])
            return both * 1.0

        step = wrap(step)
        return [step(ONE).numpy().tolist() for _ in range(8)]

    check(case, 0)


def _imperative_read(t, x):
    with terra.imperative():
        value = t.numpy()
    return t * 1.0 + value


def _imperative_write(t, x):
    with terra.imperative():
        t.assign_add(100.0)
    return t * 1.0


def _printing(t, x):
    @tf.function
    def shown():
        tf.print("", end="")
        return t * 1.0
    return shown()


OF_NEW_VARIABLES = {
    "read": _imperative_read,
    "written": _imperative_write,
    "is it initialized": lambda t, x: tf.cast(tf.raw_ops.VarIsInitializedOp(resource=t.handle), tf.float32),
    "function that prints": _printing,
    "python": lambda t, x: tf.py_function(lambda x: t.read_value() + 0 * x, [x], tf.float32),
}


@pytest.mark.parametrize("name", OF_NEW_VARIABLES)
@pytest.mark.parametrize("reads_early", [False, True])
def test_variable_of_the_step_itself(name, reads_early):
    def case(wrap):
        v = tf.Variable(1.0)

        def step(x):
            t = tf.Variable(0.0)
            if reads_early:
                float(x + v)
            v.assign(slowly(v + x))
            t.assign(v * 2.0)
            return OF_NEW_VARIABLES[name](t, x)

        step = wrap(step)
        return [float(step(ONE)) for _ in range(8)]

    check(case, 0)


# -- other threads, signals, executors ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
def test_signal_handler_uses_a_variable():
    """It runs while Python waits for the steps in flight, and waits for them, too."""
    v, seen = tf.Variable(0.0), []

    def step(x):
        for _ in range(3):
            v.assign(slowly(v + x))

    step = terra.coexecute(step, wait_for_graph=True, run_ahead=5)
    for _ in range(6):
        step(ONE)
    terra.sync()
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(v.numpy()))
    try:
        for k in range(6):
            for _ in range(3):
                step(ONE)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            assert float(v) == 18 + 9 * (k + 1)
            while len(seen) == k:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert step.stats().coexecuted_steps >= 20


@pytest.mark.parametrize("next_is", ["a read", "a step"])
def test_another_thread_replays_a_failed_step(next_is):
    v = tf.Variable(0.0)

    def step(i, x):
        for _ in range(3):
            x = slowly(x)
        v.assign_add(x)
        return tf.gather(tf.constant([1.0, 2.0]), i)

    step = terra.coexecute(step, wait_for_graph=True, run_ahead=5)
    for k in range(6):
        step(tf.constant(k % 2), ONE)
    terra.sync()
    failures, raised = GRAPH_RUNNER.failures, []
    from tests.unwaited import unwaited  # not at the top: a program of this file's imports it as part of a package

    result = unwaited(step, tf.constant(7), tf.constant(100.0))

    def read():
        try:
            float(result)
        except tf.errors.InvalidArgumentError:
            raised.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    while GRAPH_RUNNER.failures == failures:
        time.sleep(0.001)
    if next_is == "a step":
        step(tf.constant(0), ONE)
        assert v.numpy() == 107.0
    else:
        assert v.numpy() == 106.0
    thread.join()
    assert raised == [True]
    assert step.stats().coexecuted_steps >= 4


def test_an_executor_of_the_users(tmp_path):
    """Eager operations that TensorFlow queues elsewhere have no order with ours: steps run imperatively, and Terra says so."""
    code = """
        import logging
        import tensorflow as tf
        import terra
        from tests.execution.test_order_of_variables import slowly, ONE

        tf.config.experimental.set_synchronous_execution(False)
        v = tf.Variable(1.0)
        step = terra.coexecute(lambda x: v.assign(slowly(v + x)) and None, wait_for_graph=True)
        expected = 1.0
        for _ in range(6):
            v.assign_add(slowly(ONE * 10.0))
            step(ONE)
            v.assign(slowly(v * 2.0))
            step(ONE)
            expected = (expected + 10.0 + 1.0) * 2.0 + 1.0
        assert float(v) == expected, (float(v), expected)
        assert step.stats().coexecuted_steps == 0
        tf.config.experimental.set_synchronous_execution(True)
        for _ in range(6):
            step(ONE)
        assert float(v) == expected + 6.0
        assert step.stats().coexecuted_steps >= 3, step.stats()
    """
    with forks.Interpreters(tmp_path, "import tensorflow", ROOT) as interpreters:
        done = interpreters.run(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("TensorFlow executes asynchronously on this thread") == 1, done.stderr
