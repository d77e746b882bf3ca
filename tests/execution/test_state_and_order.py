"""What the program, its other threads and the end of the interpreter see of a step that is in flight: eager's order, nothing else."""
import _thread
import contextlib
import gc
import io
import logging
import os
import runpy
import signal
import sys
import textwrap
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

import terra
from terra.runtime.execution.graph_runner import GraphRunner, GRAPH_RUNNER
from terra.runtime.execution.step import Counts
from tests import forks
from tests.harness import differ, reset_seeds
from tests.unwaited import unwaited

ENTRY_POINTS = ("TFE_Py_FastPathExecute", "TFE_Py_Execute", "TFE_Py_ExecuteCancelable")
ORIGINALS = {name: getattr(pywrap_tfe, name) for name in ENTRY_POINTS}


def entry_points_are_original():
    return [name for name in ENTRY_POINTS if getattr(pywrap_tfe, name) is not ORIGINALS[name]] == []


@pytest.fixture(autouse=True)
def nothing_left_behind():
    terra.sync()
    assert entry_points_are_original()
    yield
    terra.sync()
    assert not GRAPH_RUNNER.flights
    assert entry_points_are_original()


def slow_work(x, rounds=6):
    """A few milliseconds of graph work that leaves a scalar 0 (so that results are exact)."""
    for _ in range(rounds):
        x = tf.matmul(x, x) * 1e-3
    return tf.reduce_sum(x) * 0.0


BIG = tf.constant(np.random.RandomState(0).standard_normal((300, 300)).astype("float32"))


def slow_counter(**options):
    """(step, v): a step that adds 1 to v after some work, in flight when its call returns."""
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True, **options)
    def step():
        v.assign_add(1.0 + slow_work(BIG))

    for _ in range(4):
        step()
    assert float(v) == 4.0 and step.stats().coexecuted_steps >= 1
    return step, v


def fly(step):
    """Call `step` so that it is in flight."""
    for _ in range(100):
        step()
        if GRAPH_RUNNER.flights:
            return
    pytest.fail("no step was ever in flight")


# ------------------------------------------------------------------------------------- no cost outside

def test_entry_points_outside_of_steps():
    step, v = slow_counter()
    terra.sync()
    assert entry_points_are_original()
    fly(step)
    assert not entry_points_are_original()
    terra.sync()
    assert entry_points_are_original()


def test_entry_points_after_an_exception():
    v = tf.Variable(1.0)

    @terra.coexecute(wait_for_graph=True)
    def step(bad):
        v.assign_add(1.0)
        if bad:
            raise KeyError("bad")
        v.assign_add(1.0)

    for i in range(12):
        if i in (0, 5, 9):
            with pytest.raises(KeyError, match="bad"):
                step(True)
            terra.sync()
            assert entry_points_are_original()
        else:
            step(False)
    assert float(v) == 1.0 + 9 * 2 + 3
    assert step.stats().coexecuted_steps >= 4


# ------------------------------------------------------------------------------------- eager's order right after a step

def test_numpy_right_after_a_step():
    step, v = slow_counter()
    for i in range(5):
        step()
        assert v.numpy() == 5.0 + i
    step(), step()
    assert float(v) == 11.0 and float(v + 1.0) == 12.0


def test_assign_right_after_a_step():
    step, v = slow_counter()
    for i in range(5):
        fly(step)
        v.assign(10.0 * i)
        fly_count = step.stats().steps
        step()
        v.assign_add(0.5)
        assert v.numpy() == 10.0 * i + 1.5, fly_count


def test_checkpoint_right_after_a_step(tmp_path):
    step, v = slow_counter()
    step()
    path = tf.train.Checkpoint(v=v).save(str(tmp_path / "checkpoint"))
    step(), step()
    w = tf.Variable(0.0)
    tf.train.Checkpoint(v=w).restore(path)
    assert w.numpy() == 5.0 and v.numpy() == 7.0
    fly(step)
    tf.train.Checkpoint(v=v).restore(path)
    assert v.numpy() == 5.0


def test_evaluate_and_predict_right_after_a_step():
    def train(wrap):
        reset_seeds()
        model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300, use_bias=False), keras.layers.Dense(1)])
        model.compile(loss="mse")
        optimizer = keras.optimizers.SGD(0.001)
        y = tf.ones([300, 1])

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(BIG) - y))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

        run = wrap(step)
        seen = []
        for i in range(8):
            run()
            if i % 2:
                seen += [model.evaluate(BIG, y, verbose=0), model.predict(BIG, verbose=0).tobytes(), float(optimizer.iterations)]
        return seen, run

    expected, _ = train(lambda f: f)
    actual, step = train(terra.coexecute(wait_for_graph=True))
    assert expected == actual
    assert step.stats().coexecuted_steps >= 4


def test_another_thread_reads_right_after_a_step():
    step, v = slow_counter()
    for i in range(4):
        step()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(v.numpy()))
        thread.start()
        thread.join()
        assert seen == [5.0 + i]


@pytest.mark.xfail(strict=True, reason="operations of other threads do not see the updates that a running step has only matched so far")
def test_another_thread_inside_a_step():
    """A thread that the step starts and waits for sees what the step did before."""
    v = tf.Variable(0.0)

    def step(read):
        y = v * 2.0
        v.assign_add(1.0)
        if read:
            seen = []
            thread = threading.Thread(target=lambda: seen.append(v.numpy()))
            thread.start()
            thread.join()
            return y, seen[0]
        return y, None

    run = terra.coexecute(step, wait_for_graph=True)
    for i in range(10):
        y, seen = run(True)
        assert (float(y), seen) == (2.0 * i, i + 1.0)


@pytest.mark.parametrize("early", [False, True])
def test_plain_eager_code_inside_a_step_overwrites_what_was_read(early):
    """The graph reads late what `imperative` code overwrites now (and, started early, might read too soon what it wrote)."""
    v, w = tf.Variable(1.0), tf.Variable(0.0)

    def step():
        y = v * 3.0
        with terra.imperative():
            v.assign_add(1.0)
            w.assign_add(1.0)
        z = y + v
        return z + float(z) if early else z

    run = terra.coexecute(step, wait_for_graph=True)
    for i in range(14):
        assert float(run()) == (1 + early) * (3.0 * (i + 1) + i + 2)
    assert (float(v), float(w)) == (15.0, 14.0)


def test_an_imperative_function_inside_a_step_overwrites_what_was_read():
    v = tf.Variable(1.0)

    @tf.function
    def printing():
        tf.print("", end="", output_stream="file://" + os.devnull)
        v.assign_add(1.0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        y = v * 3.0
        printing()
        return y

    assert [float(step()) for _ in range(12)] == [3.0 * (i + 1) for i in range(12)]


def test_plain_eager_code_with_other_variables_keeps_coexecution():
    v, total = tf.Variable(1.0), tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        y = v * 3.0
        v.assign_add(1.0)
        with terra.imperative():
            total.assign_add(y)
        return y

    assert [float(step()) for _ in range(12)] == [3.0 * (i + 1) for i in range(12)]
    assert float(total) == 3.0 * 78 and step.stats().coexecuted_steps >= 8 and step.stats().fallbacks == 0


# ------------------------------------------------------------------------------------- threads

def run_threads(*targets):
    errors = []

    def guarded(target):
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(t,), daemon=True) for t in targets]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "deadlock"
    assert not errors, errors


def test_two_threads_call_the_same_step():
    step, v = slow_counter()
    run_threads(*[lambda: [step() for _ in range(20)]] * 3)
    assert float(v) == 64.0
    stats = step.stats()
    assert stats.steps == 64 == stats.coexecuted_steps + stats.tracing_steps + stats.imperative_steps
    assert stats.coexecuted_steps > 50


def test_two_threads_call_different_steps():
    def make(scale):
        v = tf.Variable(np.full(3, scale, "float32"))

        @terra.coexecute(wait_for_graph=True)
        def step(i):
            v.assign(v * 0.9 + float(i))
            total = float(tf.reduce_sum(v)) if scale > 1 else 0.0
            return v * 2.0 + total

        def eager(i):
            v.assign(v * 0.9 + float(i))
            total = float(tf.reduce_sum(v)) if scale > 1 else 0.0
            return v * 2.0 + total

        return v, step, eager

    made = [make(1.0), make(2.0)]
    expected = []
    for v, _, eager in made:
        expected.append([eager(i % 3).numpy().tolist() for i in range(30)])
        v.assign(np.full(3, 1.0 + len(expected) - 1, "float32"))
    actual = [None, None]

    def loop(k):
        actual[k] = [made[k][1](i % 3).numpy().tolist() for i in range(30)]

    run_threads(lambda: loop(0), lambda: loop(1))
    assert actual == expected
    assert all(step.stats().coexecuted_steps > 10 for _, step, _ in made)


def test_a_step_called_from_a_worker_thread():
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        v.assign_add(1.0)
        return v * 2.0

    results = []
    run_threads(lambda: results.extend(step() for _ in range(10)))
    assert [float(r) for r in results] == [2.0 * i for i in range(1, 11)]
    assert step.stats().coexecuted_steps >= 7


def test_a_thread_in_a_step_calls_another_step():
    """The inner step can not wait for the outer one, which waits for it."""
    v, w = tf.Variable(0.0), tf.Variable(0.0)

    @terra.coexecute
    def inner():
        w.assign_add(1.0)

    @terra.coexecute
    def outer():
        y = v * 2.0
        thread = threading.Thread(target=inner, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "deadlock"
        return y

    for _ in range(2):
        outer()
    assert float(w) == 2.0 and inner.stats().steps == 2


def test_a_decorated_function_inside_another():
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def inner(x):
        v.assign_add(x)
        return v * 2.0

    @terra.coexecute(wait_for_graph=True)
    def outer(x):
        y = inner(x)
        return y + inner(y)

    def eager(x, state):
        state += x
        y = state * 2
        state += y
        return y + state * 2, state

    state = np.float32(0)
    for i in range(8):
        expected, state = eager(np.float32(1 + i % 2), state)
        assert float(outer(tf.constant(float(1 + i % 2)))) == expected
    assert outer.stats().coexecuted_steps >= 5 and inner.stats().steps == 0
    state += np.float32(1)
    assert float(inner(tf.constant(1.0))) == state * 2 and inner.stats().steps == 1


# ------------------------------------------------------------------------------------- run-ahead

def test_run_ahead_changes_no_result(uncut):
    def train(run_ahead):
        v, kept = tf.Variable(np.ones((4, 4), "float32")), []
        loop = [tf.zeros([4, 4])]

        def step(i):
            y = tf.matmul(v, v) * 0.1 + loop[0]
            if i % 4 == 3:
                y = y + float(tf.reduce_sum(y))
            v.assign_sub(0.01 * tf.sin(y))
            loop[0] = y * 0.5
            kept.append(y)
            return tf.reduce_mean(y)

        run = step if run_ahead is None else terra.coexecute(step, wait_for_graph=True, run_ahead=run_ahead)
        results = [run(i) for i in range(24)]
        if run_ahead is not None:
            assert run.stats().coexecuted_steps >= 18
        return [x.numpy().tobytes() for x in results + kept + loop + [v]]

    expected = train(None)
    for run_ahead in (0, 1, 2, 8):
        assert train(run_ahead) == expected, run_ahead


def test_run_ahead_bounds_the_steps_in_flight():
    for run_ahead in (0, 1, 3):
        step, v = slow_counter(run_ahead=run_ahead)
        most = 0
        for _ in range(12):
            step()
            most = max(most, len(GRAPH_RUNNER.flights))
        assert most <= run_ahead
        assert float(v) == 16.0


# ------------------------------------------------------------------------------------- kernel failures

def failing_step(run_ahead, early=False):
    v, w = tf.Variable(0.0), tf.Variable(tf.ones([3]))
    table = tf.constant([1.0, 2.0, 4.0])

    @terra.coexecute(wait_for_graph=True, run_ahead=run_ahead)
    def step(index):
        v.assign_add(1.0)
        if early:
            float(v)
        x = tf.gather(table, index) + slow_work(BIG)  # fails on a bad index, on the graph's own time
        w.assign_add(x * tf.ones([3]))
        v.assign_add(1.0)
        return x

    good = tf.constant([1])
    for _ in range(4):
        step(good)
    assert step.stats().coexecuted_steps >= 1
    return step, v, w, good, tf.constant([7])


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_a_failing_kernel_leaves_what_eager_leaves(run_ahead, early):
    step, v, w, good, bad = failing_step(run_ahead, early)
    for round_ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            step(bad)
            terra.sync()
        # As in eager execution: what came before the failing operation is done, what comes after it is not.
        assert float(v) == 8.0 + 5 * round_ + 1
        assert w.numpy().tolist() == [9.0 + 4 * round_] * 3
        for _ in range(2):
            result = step(good)
        assert result.numpy().tolist() == [2.0]
        assert float(v) == 8.0 + 5 * (round_ + 1)
    stats = step.stats()
    assert stats.coexecuted_steps >= 5, stats


def test_a_failing_kernel_surfaces_when_its_result_is_read():
    step, v, w, good, bad = failing_step(2)
    result = unwaited(step, bad)
    with pytest.raises(tf.errors.InvalidArgumentError):
        result.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError):
        result.numpy()  # again, and no hang
    assert float(v) == 9.0
    assert step(good).numpy().tolist() == [2.0]


def test_a_failing_kernel_surfaces_when_a_variable_is_read():
    step, v, w, good, bad = failing_step(2)
    unwaited(step, bad)
    with pytest.raises(tf.errors.InvalidArgumentError):
        w.numpy()
    assert float(v) == 9.0
    step(good)
    assert float(v) == 11.0


def test_statistics_add_up_after_failing_kernels():
    step, v, w, good, bad = failing_step(2)
    for i in range(12):
        try:
            step(bad if i % 4 == 1 else good)
        except tf.errors.InvalidArgumentError:
            pass
    try:
        terra.sync()
    except tf.errors.InvalidArgumentError:
        pass
    stats = step.stats()
    assert stats.steps == stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps


def test_steps_behind_a_failed_one_that_is_caught_are_not_lost():
    """A program that catches the error of each step goes on."""
    step, v, w, good, bad = failing_step(4)
    caught = 0
    for x in [good, bad, good, good]:
        try:
            step(x)
        except tf.errors.InvalidArgumentError:
            caught += 1
    terra.sync()
    assert caught == 1
    assert float(v) == 8.0 + 2 + 1 + 2 + 2
    assert w.numpy().tolist() == [9.0 + 2 + 2 + 2] * 3


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("run_ahead", [1, 2, 5])
def test_steps_behind_a_failed_one_are_dropped(run_ahead, early):
    """Eager execution would not have come to them: what they give cannot be read, what they update stays."""
    step, v, w, good, bad = failing_step(run_ahead, early)
    results = []

    def epoch(batches):
        for x in batches:
            results.append(step(x))
        terra.sync()

    for round_ in range(3):
        results.clear()
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            epoch([good, good, bad] + [good] * 8)
        assert [x.numpy().tolist() for x in results[:2]] == [[2.0], [2.0]]
        for x in results[2:]:
            with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
                x.numpy()
        assert float(v) == 8.0 + 5 * (round_ + 1)
        assert w.numpy().tolist() == [9.0 + 4 * (round_ + 1)] * 3
    results.clear()
    epoch([good] * 3)
    assert [x.numpy().tolist() for x in results] == [[2.0]] * 3 and float(v) == 8.0 + 15 + 6
    assert step.stats().coexecuted_steps >= 10


def test_a_step_in_whose_middle_an_earlier_one_fails_is_dropped():
    """What it has updated by then is not done either."""
    v, w, table = tf.Variable(0.0), tf.Variable(0.0), tf.constant([1.0, 2.0, 4.0])

    @terra.coexecute(wait_for_graph=True, run_ahead=5, fast_forward=False)
    def step(index):
        v.assign_add(1.0)
        if waits:
            terra.sync()
        w.assign_add(tf.gather(table, index) + slow_work(BIG))
        return w + 1.0

    def epoch(indices):
        nonlocal waits
        for k, index in enumerate(indices):
            waits = k == 4
            step(tf.constant(index))

    waits = False
    for k in range(4):
        epoch([1] * 4)
    terra.sync()
    before, coexecuted = (float(v), float(w)), step.stats().coexecuted_steps
    assert before == (16.0, 32.0) and coexecuted > 10
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        epoch([1, 1, 1, 7, 1, 1])
    assert (float(v), float(w)) == (20.0, 38.0)
    assert step.stats().coexecuted_steps == coexecuted + 4
    epoch([1] * 4)
    terra.sync()
    assert (float(v), float(w)) == (24.0, 46.0)


def test_steps_of_another_thread_behind_a_failed_one_are_not_dropped():
    done = []

    class Record:
        def __init__(self, name, error=None):
            self.name, self.error = name, error

        def replay(self):
            done.append(self.name)
            if self.error is not None:
                raise self.error

        def drop(self):
            done.append(f"{self.name} dropped")

        def landed(self):
            pass

    error = tf.errors.InvalidArgumentError(None, None, "a bad index")
    runner = GraphRunner()
    runner._executors = types.SimpleNamespace(wait=lambda: error)
    for thread, record in ((1, Record("a", error)), (2, Record("b")), (1, Record("c")), (2, Record("d"))):
        runner.launch((), record, None, Counts()).thread = thread
    flights = list(runner.flights)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        runner._recover(flights[0])
    assert caught.value is error and runner.has_raised(error) and not runner.flights
    assert done == ["a", "b", "c dropped", "d"]
    assert [flight.error and flight.error() for flight in flights] == [error, None, error, None] and all(flight.done for flight in flights)


def test_a_failing_kernel_before_a_fetch():
    """The error is raised in the step, where eager execution raises it: the program can catch it."""
    v, table = tf.Variable(0.0), tf.constant([1.0, 2.0, 4.0])

    def step(index):
        v.assign_add(1.0)
        try:
            return float(tf.gather(table, index))
        except tf.errors.InvalidArgumentError:
            v.assign_add(100.0)
            return -1.0

    run = terra.coexecute(step, wait_for_graph=True)
    seen = [run(tf.constant(7 if i in (8, 11) else i % 3)) for i in range(14)]
    assert seen == [-1.0 if i in (8, 11) else [1.0, 2.0, 4.0][i % 3] for i in range(14)]
    assert float(v) == 214.0 and run.stats().coexecuted_steps >= 8


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("run_ahead", [1, 2, 4])
def test_an_early_step_behind_a_failing_one(run_ahead, slow):
    """The graph of the second step has started, or tries to, when the first one fails: no hang, and the steps after it work."""
    v, w, table = tf.Variable(0.0), tf.Variable(0.0), tf.constant([1.0, 2.0])

    @terra.coexecute(wait_for_graph=True, run_ahead=run_ahead)
    def step(index, fetch):
        v.assign_add(1.0)
        if fetch:
            float(v)
        if slow:
            index = index + tf.cast(slow_work(BIG, 30), tf.int32)
        w.assign_add(tf.gather(table, index))
        return v * 1.0

    good, bad = tf.constant(0), tf.constant(5)
    for i in range(8):
        step(good, i % 2 == 0)
    terra.sync()
    before, raised = step.stats().coexecuted_steps, 0
    for index, fetch in [(bad, False), (good, True), (good, False), (good, True)] * 2:
        try:
            step(index, fetch)
        except tf.errors.InvalidArgumentError:
            raised += 1
    terra.sync()
    assert raised == 2
    assert w.numpy() in (12.0, 14.0)  # the step in which the error surfaced may be cut short by it
    assert step.stats().coexecuted_steps >= before + 4
    step(good, True)
    assert w.numpy() in (13.0, 15.0)


@pytest.fixture
def every_interrupt():
    """Interrupts that Python swallows, because they arrive in a finalizer or a weak reference's callback (of `WeakSet`, for one). Those of the garbage
    collector (hypothesis has one) are taken out meanwhile, and a process in the background would ignore all interrupts."""
    swallowed = []
    kept, hook = gc.callbacks[:], sys.unraisablehook
    gc.callbacks.clear()
    sys.unraisablehook = lambda failure: swallowed.append(failure.exc_type) if failure.exc_type is KeyboardInterrupt else hook(failure)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield swallowed
    signal.signal(signal.SIGINT, handler)
    gc.callbacks[:], sys.unraisablehook = kept, hook


def test_interrupts_at_any_moment(every_interrupt):
    """Ctrl-C between any two bytecodes: the next steps work, and no update is done twice or out of order."""
    v, w = tf.Variable(0.0), tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        v.assign_add(1.0)
        y = v * 2.0
        if i % 2:
            y = y + 0.0 * float(y)
        w.assign_add(y - y + 1.0)
        return y

    for i in range(12):
        step(i)
    before, interrupted = step.stats().coexecuted_steps, 0
    randomness = np.random.RandomState(0)
    for _ in range(60):
        v.assign(0.0), w.assign(0.0)
        timer = threading.Timer(randomness.uniform(0.0, 0.004), _thread.interrupt_main)
        calls = 0
        try:
            timer.start()
            for i in range(1000):
                calls += 1
                step(i)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        terra.sync()
        done = (float(v), float(w))
        assert calls - 1 <= done[0] <= calls and done[0] - 1 <= done[1] <= done[0], (calls, done)
        step(0)
        assert (float(v), float(w)) == (done[0] + 1, done[1] + 1)
    terra.sync()
    assert entry_points_are_original() and interrupted + len(every_interrupt) == 60
    assert step.stats().coexecuted_steps > before


# ------------------------------------------------------------------------------------- growth

def test_many_steps_leave_nothing_behind():
    v = tf.Variable(np.ones(3, "float32"))

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        y = v * 2.0
        if i % 2:
            y = y + float(tf.reduce_sum(y))
        v.assign(y * 0.1)
        return y

    def census():
        terra.sync()
        gc.collect()
        return len(gc.get_objects()), threading.active_count()

    for i in range(60):
        step(i)
    before = census()
    fetched = step.stats().coexecuted_steps
    for i in range(400):
        step(i)
    after = census()
    assert after[1] <= before[1]
    assert after[0] - before[0] < 300, (before, after)
    assert step.stats().coexecuted_steps - fetched == 400


def test_fallbacks_leave_nothing_in_the_channels():
    """Steps that are left half-way, in turn with steps that are not."""
    v = tf.Variable(1.0)

    class Stop(Exception):
        pass

    @terra.coexecute(wait_for_graph=True)
    def step(i, stop):
        y = v * float(i)
        a = float(y)
        z = y * a + tf.constant(np.full((3,), i, "float32"))
        if stop:
            raise Stop
        v.assign_add(float(z[0]) * 0.0 + 1.0)
        return z

    for i in range(60):
        try:
            z = step(i % 7, i % 3 == 2)
            assert z.numpy().tolist() == [(1 + i - (i + 1) // 3) ** 1 * 1.0 * (i % 7) * (1 + i - (i + 1) // 3) * (i % 7) + i % 7] * 3
        except Stop:
            pass
    assert float(v) == 41.0
    assert step.stats().coexecuted_steps > 15
    assert threading.active_count() < 50


# ------------------------------------------------------------------------------------- the end of the interpreter

PRELUDE = """
import os, sys, threading, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf, terra
big = tf.ones([400, 400])
v = tf.Variable(0.0)
table = tf.constant([1.0, 2.0])

def body(early, index):
    v.assign_add(1.0)
    if early:
        float(v)
    x = big
    for _ in range(8):
        x = tf.matmul(x, x) * 1e-3
    v.assign_add(tf.gather(table, index) * tf.reduce_sum(x) * 0.0)
    return v * 1.0

step = terra.coexecute(body, wait_for_graph=True)
zero, bad = tf.constant(0), tf.constant(5)
early = {early}
for _ in range(5):
    r = step(early, zero)
assert step.stats().coexecuted_steps >= 2, step.stats()
"""


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("ends"), "import numpy, tensorflow, terra") as made:
        yield made


@pytest.fixture
def interpreter(interpreters):
    """Runs a program after the prelude, in an interpreter of its own."""
    return lambda code, early=False: interpreters.run(PRELUDE.format(early=early) + textwrap.dedent(code))


@pytest.mark.parametrize("early", [False, True])
def test_exit_with_a_step_in_flight(early, interpreter):
    done = interpreter("step(early, zero); print('end')", early)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_exit_from_within_an_early_step(interpreter):
    """`sys.exit` in the middle of a step whose graph runs already."""
    done = interpreter("""
        def leave(i):
            y = v * 2.0
            float(y)
            if i == 6:
                sys.exit(3)
            v.assign_add(1.0)
        run = terra.coexecute(leave, wait_for_graph=True)
        for i in range(8):
            run(i)
        """)
    assert done.returncode == 3, done.stderr


def test_exit_while_another_thread_is_in_a_step(interpreter):
    """A daemon thread hangs in the middle of an early step."""
    done = interpreter("""
        inside = threading.Event()
        def hang(i):
            y = v * 2.0
            float(y)
            if i == 6:
                inside.set()
                time.sleep(1000)
            v.assign_add(1.0)
        run = terra.coexecute(hang, wait_for_graph=True)
        threading.Thread(target=lambda: [run(i) for i in range(8)], daemon=True).start()
        inside.wait(30)
        print("end")
        """)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_exit_with_a_failed_step_in_flight_says_so(interpreter):
    """An error that nobody has seen when the interpreter ends is not swallowed."""
    done = interpreter("step(early, bad); print('end')")
    assert done.stdout == "end\n"
    assert "indices" in done.stderr, done.stderr


def test_no_log_records_from_a_plain_run(caplog):
    with caplog.at_level(logging.INFO, "terra"):
        step, v = slow_counter()
        for _ in range(5):
            step()
        terra.sync()
    assert caplog.records == []


def test_lists_that_the_program_changes_after_an_operation_was_given_them():
    """The trace has the operation as it was."""

    def step(x):
        values = [x]
        first = tf.stack(values)
        values.append(x + 1.0)
        second = tf.stack(values)
        pooled = tf.raw_ops.MaxPool(input=tf.reshape(second, (1, 2, 2, 1)), ksize=(window := [1, 2, 1, 1]), strides=[1, 1, 1, 1], padding="SAME")
        window[1] = 1
        values.clear()
        return first, second, pooled

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for k in range(5):
        x = tf.constant([1.0, 2.0]) * k
        for ours, eager in zip(coexecuted(x), step(x)):
            assert ours.numpy().tolist() == eager.numpy().tolist()
    assert coexecuted.stats().coexecuted_steps >= 3


def test_indexing_outside_of_steps():
    """It changes nothing that fast-forward has recorded."""
    step = terra.coexecute(lambda x: x[0] * 2.0 + tf.reduce_sum(x), wait_for_graph=True)
    x = tf.constant([1.0, 2.0])
    for k in range(60):  # results are seldom read, so that steps stay in flight
        row = x[1]
        result = step(x)
        if k % 10 == 9:
            assert float(row) == 2.0 and float(result) == 5.0
    stats = step.stats()
    assert stats.coexecuted_steps >= 57 and stats.whole_steps >= 50


def test_results_that_are_kept_are_concatenated_outside_of_steps():
    w = tf.Variable(2.0)
    step = terra.coexecute(lambda x: x * w, wait_for_graph=True)
    kept = [step(tf.ones([1, 3])) for _ in range(10)]
    terra.sync()
    assert step.stats().coexecuted_steps >= 7
    for old in kept:
        x = tf.ones([1, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.concat([x * 2.0, old], 0)
            loss = tf.reduce_sum(y * y)
        assert tape.gradient(loss, x).numpy().tolist() == [[8.0] * 3]


FIRST_IN_A_SCOPE = """
import sys
import tensorflow as tf
import terra

data = tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([160, 8], [1, 2])).batch(4)
w, total = tf.Variable(tf.ones([8, 2])), tf.Variable(0.0)
tape_class = tf.GradientTape if sys.argv[1] == "eager" else lambda: terra.GradientTape(wait_for_graph=True)
for epoch in range(4):
    for k, x in enumerate(data):  # which moves on inside of TensorFlow's execution_mode(SYNC), and ends the step there
        with tape_class() as tape:
            loss = tf.reduce_mean(tf.nn.relu(x @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        total.assign_add(loss)
        if k % 5 == 0:
            print(float(loss))
print(float(total))
if sys.argv[1] != "eager":
    assert tape.block.stats().coexecuted_steps >= 140
"""


def test_the_first_graph_is_dispatched_in_a_scope_of_tensorflows(tmp_path, monkeypatch):
    """Its executor goes away with the scope."""
    (tmp_path / "train.py").write_text(FIRST_IN_A_SCOPE)
    with forks.Interpreters(tmp_path, "import runpy, sys, tensorflow") as interpreters:
        ours = interpreters.run_script(tmp_path / "train.py", "terra")
    monkeypatch.setattr(sys, "argv", ["train.py", "eager"])
    with contextlib.redirect_stdout(io.StringIO()) as eager:
        runpy.run_path(str(tmp_path / "train.py"))
    assert ours.returncode == 0 and eager.getvalue().count("\n") == 33, ours.stderr
    assert ours.stdout == eager.getvalue()


def test_indexing_that_somebody_replaces_between_steps(monkeypatch):
    """And puts back what was there."""
    step = terra.coexecute(lambda x: x[0] * 2.0, wait_for_graph=True)
    x, calls = tf.constant([1.0, 2.0]), []
    for _ in range(6):
        step(x)
    before = tf.Tensor.__getitem__

    def other(tensor, spec):
        calls.append(spec)
        return before(tensor, spec) + 10.0

    with monkeypatch.context() as patch:
        patch.setattr(tf.Tensor, "__getitem__", other)
        assert [float(step(x)) for _ in range(6)] == [22.0] * 6
        assert calls == [0] * 6 and float(x[1]) == 12.0
    for _ in range(6):
        assert float(step(x)) == 2.0
    assert float(x[1]) == 2.0 and step.stats().coexecuted_steps >= 8 and len(calls) == 7


@pytest.mark.parametrize("inside", ["nothing", "a function"])
@pytest.mark.parametrize("what", ["the file", "which files there are"])
def test_files_are_read_when_the_program_reads_them(what, inside, tmp_path):
    """TensorFlow does not say of these operations that they depend on anything but their inputs."""
    def make():
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        count = [0]

        def read():
            if what == "the file":
                return tf.io.read_file(str(directory / "0"))
            return tf.strings.as_string(tf.size(tf.io.matching_files(str(directory / "*"))))

        read_now = tf.function(read) if inside == "a function" else read

        def write():
            count[0] += 1
            (directory / ("0" if what == "the file" else str(count[0]))).write_text(str(count[0]))

        def step(x):
            write()
            first = read_now()
            write()
            return tf.strings.join([first, read_now()]), tf.sin(x) * 2.0

        return step, lambda: count

    stats = differ(make, lambda i: (tf.constant(float(i)),), 8)
    assert stats.coexecuted_steps >= 5
