"""Graphs that run on one thread: chosen by measurement, equal to eager, with the same errors; where one thread could wait for itself, several are used."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import trial
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.step_function import generation
from terra.runtime.step_function.tuning import single_threaded
from terra.runtime.step_function.tuning.single_threaded import EXECUTOR, LEARNED
from terra.tf.private import hardware
from terra.trial import BLOCK, ROUNDS
from tests import harness

TRIAL = 2 * BLOCK * ROUNDS


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def made(step, **options):
    return harness.on_one_thread(terra.coexecute(step, wait_for_graph=True, **options))


def adam(w, m, v, rate=0.01):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w) - y))
        gradient = tape.gradient(loss, w)
        m.assign(0.9 * m + 0.1 * gradient)
        v.assign(0.99 * v + 0.01 * gradient * gradient)
        w.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))
        return loss

    return step


def variables():
    return tf.Variable(numbers(4, 3)), tf.Variable(tf.zeros((4, 3))), tf.Variable(tf.zeros((4, 3)))


def test_equals_eager():
    batches = [(tf.constant(numbers(5, 4, seed=k)), tf.constant(numbers(5, 3, seed=k + 9))) for k in range(3)]
    seen = []
    for wrap in (lambda step: step, made):
        held = variables()
        step = wrap(adam(*held))
        losses = [step(*batches[i % 3]) for i in range(20)]
        seen.append([x.numpy().tolist() for x in (*losses, *held)])
    assert seen[0] == seen[1]
    stats = step.stats()
    assert stats.single_threaded_steps == stats.coexecuted_steps >= 16 and stats.fallbacks == 0


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_way_is_kept(monkeypatch, faster):
    monkeypatch.setattr(trial, "FASTER", 1e9 if faster else 0.0)
    monkeypatch.setattr(trial, "HOPELESS", 1e9)
    step = terra.coexecute(adam(*variables()), wait_for_graph=True)
    x, y = tf.constant(numbers(5, 4)), tf.constant(numbers(5, 3))
    for _ in range(LEARNED + TRIAL + 40):
        step(x, y)
    terra.sync()
    stats = step.stats()
    assert step.single_threaded.trial.second_is_better is faster
    assert "one after another on one thread: steps took" in terra.explain(step, full=True)
    if faster:
        assert stats.single_threaded_steps > TRIAL // 2
    else:
        assert 0 < stats.single_threaded_steps <= TRIAL // 2


def test_the_choice_holds_for_the_next_graph():
    w = tf.Variable(numbers(3))

    def step(x):
        return x * w

    step = made(step)
    for i in range(12):
        step(tf.ones(3))
    first = step.program
    step.store.version += 1  # as if there were more to know
    step.generation.begin()
    for i in range(6):
        step(tf.ones(3))
    stats = step.stats()
    assert step.program is not first and stats.graphs == 2 and stats.single_threaded_steps == stats.coexecuted_steps == 16


def test_making_it_ready_runs_nothing():
    """The function is built by a call that is cancelled before it begins."""
    count = tf.Variable(0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        return count.assign_add(1)

    for _ in range(6):
        step()
    program = step.program
    attrs = ("executor_type", EXECUTOR, *program.attrs[2:])
    terra.sync()
    for _ in range(3):
        step.generation._instantiate(program, attrs=attrs)
    assert count.numpy() == 6


def test_a_kernel_that_fails():
    table, used = tf.Variable(numbers(4, 2)), tf.Variable(0.0)

    def step(i):
        used.assign_add(1.0)
        return tf.gather(table, i)

    step = made(step)
    for k in range(10):
        step(tf.constant([k % 4]))
    terra.sync()
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant([7])).numpy()
    assert used.numpy() == 11.0  # as in eager execution: the update came before
    np.testing.assert_array_equal(step(tf.constant([2])).numpy(), table.numpy()[[2]])
    assert step.stats().single_threaded_steps >= 6


def test_not_where_python_reads_in_the_middle():
    w = tf.Variable(1.0)

    def step(x):
        y = x * w
        w.assign(y + 0.0 * float(y))
        return y

    step = made(step)
    for _ in range(8):
        step(tf.constant(1.0))
    stats = step.stats()
    assert stats.coexecuted_steps >= 5 and stats.single_threaded_steps == 0 and stats.early_steps == stats.coexecuted_steps


@tf.function
def halved(x):
    return tf.cond(tf.reduce_sum(x) > 2.0, lambda: x / 2.0, lambda: x)


def pooled(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.nn.max_pool2d(x * x, 2, 2, "VALID"))  # its gradient is a branch, where oneDNN has a kernel for it
    return tape.gradient(y, x)


@pytest.mark.parametrize("step", [lambda x, k: halved(x) + 1.0, lambda x, k: tf.sin(x) if k % 3 == 1 else x * 2.0, lambda x, k: pooled(x)],
                         ids=["function", "branch", "pooling"])
def test_not_where_it_calls_functions(step):
    x = tf.constant(numbers(8, 32, 32, 16))
    coexecuted, before = made(step), GRAPH_RUNNER.failures
    for k in range(14):
        np.testing.assert_array_equal(coexecuted(x, k).numpy(), step(x, k).numpy())
    stats = coexecuted.stats()
    assert stats.coexecuted_steps >= 6 and GRAPH_RUNNER.failures == before
    if step(x, 0).shape.rank != 4 or hardware.has_onednn():
        assert stats.single_threaded_steps <= 4  # before the graph had a branch
        assert "calls functions" in coexecuted.single_threaded.reason and coexecuted.single_threaded.is_decided()
        assert "does not run on one thread: it calls functions" in terra.explain(coexecuted, full=True)


def test_given_up_when_a_step_fails(monkeypatch):
    w = tf.Variable(1.0)
    step = made(lambda x: x * w)
    for _ in range(6):
        step(tf.ones(3))
    assert step.stats().single_threaded_steps == 4
    step.program.single_threaded_attrs = ("executor_type", "NO_SUCH_EXECUTOR", *step.program.attrs[2:])
    for _ in range(6):
        np.testing.assert_array_equal(step(tf.ones(3)).numpy(), np.ones(3))
    terra.sync()
    assert step.single_threaded.reason == "a step failed" and step.stats().single_threaded_steps <= 6


def test_tensorflow_refuses(monkeypatch):
    instantiate = generation.Generation._instantiate

    def refuses(program, form=None, name=None, n_outputs=None, attrs=None):
        if attrs is not None:
            raise tf.errors.InvalidArgumentError(None, None, "no")
        instantiate(program, form, name, n_outputs)

    monkeypatch.setattr(generation.Generation, "_instantiate", staticmethod(refuses))
    w = tf.Variable(1.0)
    step = made(lambda x: x * w)
    for _ in range(6):
        np.testing.assert_array_equal(step(tf.ones(3)).numpy(), np.ones(3))
    assert "TensorFlow refuses (no)" in step.single_threaded.reason and step.generation.error is None
    assert step.stats().single_threaded_steps == 0 and step.stats().coexecuted_steps == 4


def test_not_on_several_devices(monkeypatch):
    monkeypatch.setattr(hardware, "has_one_device", lambda: False)
    step = terra.coexecute(adam(*variables()), wait_for_graph=True)
    x, y = tf.constant(numbers(5, 4)), tf.constant(numbers(5, 3))
    for _ in range(LEARNED + 20):
        step(x, y)
    assert not step.single_threaded.wanted and step.single_threaded.is_decided() and step.stats().single_threaded_steps == 0


@pytest.mark.parametrize("first, later, stays", [((1.0, 0.8), (0.7, 0.8), False), ((1.0, 0.8), (0.78, 0.8), True), ((0.8, 1.0), (0.8, 0.7), False), ((0.8, 1.0), (0.8, 0.79), True)])
def test_it_is_found_out_again_what_is_faster(first, later, stays):
    """The times of steps in either form: at first, and once a trial has decided; a difference must be clear then."""
    decided, now = single_threaded.SingleThreaded(), 0.0
    program = SimpleNamespace(conditional=None, late_form="form", single_threaded_attrs=())
    seen = []
    for number in range(TRIAL + 2 * single_threaded.AGAIN + 100):
        is_decided = decided.trial.second_is_better is not None
        on_one = decided.begins(program, "form", number, now)
        seen.append(on_one)
        now += (later if is_decided else first)[on_one]
    better = first[1] < first[0]
    assert seen[TRIAL + 10:TRIAL + single_threaded.AGAIN - 1] == [better] * (single_threaded.AGAIN - 11)
    assert (seen[-1] is better) is stays
    assert better in seen[TRIAL + single_threaded.AGAIN:][:30] and (not better) in seen[TRIAL + single_threaded.AGAIN:][:30]
    assert seen.count(not better) <= TRIAL // 2 + 4 * trial.BLOCK or not stays


def test_it_is_found_out_more_and_more_rarely():
    decided, now, tried = single_threaded.SingleThreaded(), 0.0, []
    program = SimpleNamespace(conditional=None, late_form="form", single_threaded_attrs=())
    for number in range(20000):
        on_one = decided.begins(program, "form", number, now)
        if on_one and number > TRIAL:
            tried.append(number)
        now += 2.0 if on_one else 1.9
    starts = [b for a, b in zip([0, *tried], tried) if b - a > 100]
    gaps = [b - a for a, b in zip(starts, starts[1:])]
    assert gaps[0] < 600 and gaps[-1] > 3900 and gaps == sorted(gaps)


def test_it_is_not_found_out_again_once_a_step_has_failed(monkeypatch):
    decided, program = single_threaded.SingleThreaded(), SimpleNamespace(conditional=None, late_form="form", single_threaded_attrs=())
    for number in range(TRIAL + 10):
        decided.begins(program, "form", number, float(number))
    monkeypatch.setattr(GRAPH_RUNNER, "failures", GRAPH_RUNNER.failures + 1)
    assert not any(decided.begins(program, "form", number, float(number)) for number in range(TRIAL + 10, TRIAL + 10 + 4 * single_threaded.AGAIN))
    assert decided.reason == "a step failed"


def test_a_step_in_another_form_counts_for_neither_way():
    """Nor does one of another program: what was being found out begins anew."""
    decided, program = single_threaded.SingleThreaded(), SimpleNamespace(conditional=None, late_form="form", single_threaded_attrs=())
    number = 0
    while decided._again is None:
        decided.begins(program, "form", number, float(number))
        number += 1
    for k in range(number, number + 4):
        decided.begins(program, "form", k, float(k))
    decided.begins(program, "general", number + 4, float(number + 4))
    decided.begins(program, "form", number + 5, float(number + 100))
    assert max(x for times in decided._again.times for x in times) == 1.0
    decided.begins(SimpleNamespace(conditional=None, late_form="other", single_threaded_attrs=()), "other", number + 6, float(number + 101))
    assert decided._again is None and 0 < decided._left < single_threaded.LATEST
