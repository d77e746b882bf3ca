"""Options of `coexecute`, what `stats()` counts, and the policy that bounds the cost of a function that keeps diverging."""
import logging
import time

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fallback import policy


def adds_up(stats):
    assert stats.steps == stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps, stats
    return stats


def counting_step(**options):
    v = tf.Variable(0.0)

    @terra.coexecute(**options)
    def step(extra=0, read=False, fed=None):
        v.assign_add(1.0)
        y = v * 2.0
        for _ in range(extra):
            y = tf.sin(y)
        if read:
            y = y + float(y)
        if fed is not None:
            y = y + tf.constant(fed)
        return y

    return step, v


# ------------------------------------------------------------------------------------- statistics

def test_statistics_of_a_simple_step():
    step, v = counting_step(wait_for_graph=True)
    assert step.stats() == terra.Stats()
    for i in range(10):
        step()
        adds_up(step.stats())
        assert step.stats().steps == i + 1
    stats = step.stats()
    assert (stats.tracing_steps, stats.coexecuted_steps, stats.imperative_steps) == (2, 8, 0)
    assert (stats.traces, stats.graphs, stats.fallbacks, stats.feeds, stats.fetches) == (1, 1, 0, 0, 0)
    assert stats.generation_s > 0


def test_statistics_are_a_snapshot():
    step, v = counting_step(wait_for_graph=True)
    before = step.stats()
    step()
    assert before.steps == 0 and step.stats().steps == 1
    before.steps = 99
    assert step.stats().steps == 1


def test_fetches_and_feeds_are_counted():
    step, v = counting_step(wait_for_graph=True)
    for i in range(12):
        fed = np.full(100, i, "float32")
        assert step(read=True, fed=fed).numpy().tolist() == [4.0 * (i + 1) + i] * 100
    stats = adds_up(step.stats())
    assert stats.coexecuted_steps >= 9
    assert stats.fetches == stats.coexecuted_steps
    assert stats.feeds == 2 * stats.coexecuted_steps  # the array, and the number that was read


def test_a_fallback_counts_once_and_as_tracing():
    step, v = counting_step(wait_for_graph=True)
    for _ in range(5):
        step()
    before = step.stats()
    step(extra=1)
    after = adds_up(step.stats())
    assert after.fallbacks == before.fallbacks + 1 == 1
    assert after.tracing_steps == before.tracing_steps + 1
    assert after.traces == 2
    step(extra=1)
    step()
    final = adds_up(step.stats())
    assert final.coexecuted_steps == after.coexecuted_steps + 2 and final.graphs == 2 and final.fallbacks == 1


def test_two_decorated_functions_count_apart():
    (a, _), (b, _) = counting_step(wait_for_graph=True), counting_step(wait_for_graph=True)
    for _ in range(5):
        a(), a(), b()
    assert a.stats().steps == 10 and b.stats().steps == 5
    assert adds_up(a.stats()).coexecuted_steps == 8 and adds_up(b.stats()).coexecuted_steps == 3


# ------------------------------------------------------------------------------------- options

def test_without_wait_for_graph_the_program_goes_on_imperatively():
    step, v = counting_step()
    for i in range(400):
        step(extra=i % 3)
        if step.stats().coexecuted_steps > 20:
            break
        time.sleep(0.002)
    assert float(v) == step.stats().steps
    stats = adds_up(step.stats())
    assert stats.coexecuted_steps > 20 and stats.graphs >= 1


def test_wait_for_graph_leaves_no_imperative_step():
    step, v = counting_step(wait_for_graph=True)
    for i in range(30):
        step(extra=i % 3)
    stats = adds_up(step.stats())
    assert stats.imperative_steps == 0 and stats.coexecuted_steps >= 24


def test_optimize_is_close():
    def train(wrap):
        w = tf.Variable(np.linspace(-1, 1, 12).reshape(4, 3).astype("float32"))
        x = tf.constant(np.linspace(0, 1, 20).reshape(5, 4).astype("float32"))

        def step(i):
            with tf.GradientTape() as tape:
                y = tf.nn.softmax(tf.matmul(x, w) + tf.matmul(x, w) * 0.0)
                loss = tf.reduce_mean(tf.square(y - 0.3)) + 0.1 * tf.reduce_sum(tf.abs(w))
                if i % 3 == 2:
                    loss = loss * float(loss)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        run = wrap(step)
        return [run(i).numpy() for i in range(15)] + [w.numpy()], run

    expected, _ = train(lambda f: f)
    actual, step = train(terra.coexecute(optimize=True, wait_for_graph=True))
    for a, b in zip(expected, actual):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert adds_up(step.stats()).coexecuted_steps >= 10
    exact, _ = train(terra.coexecute(wait_for_graph=True))
    assert all((a == b).all() for a, b in zip(expected, exact))


def test_without_transform():
    """Locations are coarse: loops and calls are told apart by their operations alone. Results are the same."""
    def make(wrap):
        v = tf.Variable(1.0)

        def helper(y):
            return tf.sin(y) * 2.0

        def step(i):
            y = v * 1.0
            for _ in range(i % 3):
                y = helper(y)
            if float(y) > 0.5:
                v.assign_sub(0.1)
            else:
                v.assign_add(0.3)
            return y

        return wrap(step), v

    (eager, v), (step, w) = make(lambda f: f), make(terra.coexecute(transform=False, wait_for_graph=True))
    for i in range(40):
        assert float(eager(i)) == float(step(i)) and float(v) == float(w)
    assert adds_up(step.stats()).coexecuted_steps >= 15


def test_max_traces_keeps_the_working_graph():
    step, v = counting_step(max_traces=2, wait_for_graph=True, loops="unroll")
    for i in range(8):
        step(extra=i % 2)
    known = step.stats()
    assert known.coexecuted_steps >= 4
    for i in range(30):
        value = step(extra=5 if i % 5 == 0 else i % 2)
        expected = np.float32(2.0 * float(v))
        if i % 5 and i % 2 == 0:
            assert value.numpy() == expected
    stats = adds_up(step.stats())
    assert stats.traces == 2 and stats.fallbacks == known.fallbacks + 6
    assert stats.coexecuted_steps == known.coexecuted_steps + 24
    assert stats.graphs == known.graphs


@pytest.mark.parametrize("max_traces", [0, 1])
def test_very_small_max_traces(max_traces):
    step, v = counting_step(max_traces=max_traces, wait_for_graph=True)
    for i in range(20):
        step(extra=i % 2)
    assert float(v) == 20.0
    adds_up(step.stats())


# ------------------------------------------------------------------------------------- imperative

def test_imperative_block_inside_a_step():
    v, seen = tf.Variable(0.0), []

    @terra.coexecute(wait_for_graph=True)
    def step():
        y = v * 2.0
        with terra.imperative():
            z = y + 1.0
            seen.append(type(z).__name__ == "EagerTensor")
            seen.append(float(z))
        w = z * 3.0
        v.assign_add(1.0)
        return w

    assert [float(step()) for _ in range(10)] == [3.0 * (2.0 * i + 1.0) for i in range(10)]
    assert seen[1::2] == [2.0 * i + 1.0 for i in range(10)] and all(seen[::2])
    stats = adds_up(step.stats())
    assert stats.coexecuted_steps >= 7 and stats.fallbacks == 0


def test_imperative_decorator_inside_a_step():
    v, calls = tf.Variable(0.0), []

    @terra.imperative()
    def plain(y):
        calls.append(1)
        if float(y) > 4.0:
            raise OverflowError("too much")
        return y * 10.0

    @terra.coexecute(wait_for_graph=True)
    def step():
        v.assign_add(1.0)
        try:
            return plain(v * 1.0 if len(calls) % 2 else tf.identity(v))
        except OverflowError:
            v.assign(0.0)
            return tf.constant(-1.0)

    def eager_values(n):
        value, found = 0.0, []
        for _ in range(n):
            value += 1.0
            if value > 4.0:
                value = 0.0
                found.append(-1.0)
            else:
                found.append(value * 10.0)
        return found

    assert [float(step()) for _ in range(22)] == eager_values(22)
    assert len(calls) == 22
    adds_up(step.stats())


def test_imperative_outside_of_a_step_and_nested():
    with terra.imperative(), terra.imperative():
        assert float(tf.constant(2.0) * 2.0) == 4.0
    block = terra.imperative()
    v = tf.Variable(1.0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        with block:
            with block:
                a = tf.constant(1.0) + 1.0
            b = a + 1.0
        return v * b

    assert [float(step()) for _ in range(6)] == [3.0] * 6
    assert step.stats().coexecuted_steps >= 4


def test_a_whole_step_that_is_imperative():
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step():
        with terra.imperative():
            v.assign_add(1.0)
            return v * 2.0

    assert [float(step()) for _ in range(8)] == [2.0 * i for i in range(1, 9)]
    adds_up(step.stats())


# ------------------------------------------------------------------------------------- policy

def test_a_function_that_always_diverges_is_left_alone(caplog):
    """It runs imperatively, says so once, and is tried again later."""
    v = tf.Variable(0.0)
    operations = [tf.sin, tf.cos, tf.tanh, tf.square, tf.abs, tf.negative, tf.sigmoid]

    def body(y, n):
        for _ in range(8):  # another order of operations in each step
            y = operations[n % 7](y)
            n //= 7
        return y

    @terra.coexecute(wait_for_graph=True, loops="unroll")
    def step(n):
        v.assign_add(1.0)
        return tf.clip_by_value(body(v * 0.01, n), -1.0, 1.0)

    numbers = np.random.RandomState(0).randint(0, 7 ** 8, 150)
    with caplog.at_level(logging.WARNING, "terra"):
        values = [step(int(n)).numpy() for n in numbers]
    v.assign(0.0)
    expected = []
    for n in numbers:
        v.assign_add(1.0)
        expected.append(tf.clip_by_value(body(v * 0.01, int(n)), -1.0, 1.0).numpy())
    assert values == expected
    warnings = [r.getMessage() for r in caplog.records if r.name == "terra" and r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "step" in warnings[0] and "imperatively" in warnings[0], warnings
    stats = adds_up(step.stats())
    assert stats.imperative_steps > 60 and stats.tracing_steps > 25


def test_a_function_is_tried_again_after_a_pause(caplog, monkeypatch):
    monkeypatch.setattr(policy, "SLOWER", 1000.0)  # so small a step does not pay
    step, v = counting_step(wait_for_graph=True, max_traces=1)
    for _ in range(4):
        step()
    for i in range(30):  # always a path that is not known and is not merged
        step(extra=1)
    stats = adds_up(step.stats())
    assert stats.imperative_steps > 0
    for _ in range(200):
        step()
    after = adds_up(step.stats())
    assert after.coexecuted_steps > stats.coexecuted_steps + 50
    assert float(v) == after.steps


def test_co_execution_that_does_not_pay_is_given_up(caplog):
    """Some imperative steps are made to compare with; the faster way goes on."""
    decided = policy.Policy("step")
    for _ in range(policy.SAMPLES):
        decided.took(True, 1.0)
    assert decided.wants_sample() and not decided.pause_left
    for _ in range(policy.FEW_SAMPLES):
        decided.took(False, 0.5)
    assert not decided.wants_sample()
    with caplog.at_level(logging.WARNING, "terra"):
        decided.took(True, 1.0)
    assert decided.pause_left == policy.FIRST_PAUSE and "co-execution took 1e+03 ms a step, imperative execution 5e+02" in caplog.text


def test_pauses_are_short_again_after_it_went_well():
    decided, pauses = policy.Policy("step"), []
    for well in (0, 0, 100, 20 * 4 * policy.FIRST_PAUSE, 0):
        for _ in range(well):
            decided.coexecuted()
        for _ in range(policy.TOO_MANY):
            decided.fell_back("because")
        pauses.append(decided.pause_left)
        while decided.imperative():
            pass
    assert pauses == [policy.FIRST_PAUSE * n for n in (1, 2, 4, 8, 16)]
    for _ in range(policy.WELL * 32 * policy.FIRST_PAUSE):
        decided.coexecuted()
    for _ in range(policy.TOO_MANY):
        decided.fell_back("because")
    assert decided.pause_left == policy.FIRST_PAUSE


def test_two_imperative_steps_are_enough_if_co_execution_is_far_shorter():
    for before in range(4):
        decided, made = policy.Policy("step"), 0
        for _ in range(before):
            decided.took(False, 1.0)
        for k in range(8 * policy.SAMPLES):
            slower = k > 5 * policy.SAMPLES  # from then on there is something to compare
            if decided.wants_sample():
                made += 1
                decided.took(False, 1.0)
            else:
                decided.took(True, 2.0 if slower else 0.05)
            if k == 5 * policy.SAMPLES:
                assert made == max(0, 2 - before)
        assert decided.pauses and made >= policy.FEW_SAMPLES - before


def test_imperative_steps_of_the_beginning_do_not_count():
    """They had little to do, or were slowed down by the generation of a graph: others are made before anything is decided by them."""
    for first, later, gives_up in ((0.1, 2.0, False), (2.0, 0.5, True), (2.0, 2.0, False)):
        decided = policy.Policy("step")
        for _ in range(policy.FEW_SAMPLES):
            decided.took(False, first)
        for k in range(4 * policy.SAMPLES):
            if decided.wants_sample():
                decided.took(False, later)
            else:
                decided.took(True, 1.01)
            if decided.pause_left:
                break
        assert bool(decided.pause_left) is gives_up


def test_steps_that_do_unlike_things_are_compared_by_what_they_take_in_all():
    """Three of four do next to nothing."""
    decided = policy.Policy("step")
    for k in range(6 * policy.SAMPLES):
        if decided.wants_sample():
            decided.took(False, 5.0 if k % 4 == 0 else 0.001)
        else:
            decided.took(True, 1.0 if k % 4 == 0 else 0.1)
    assert not decided.pause_left


def test_co_execution_that_pays_goes_on():
    decided = policy.Policy("step")
    for _ in range(5 * policy.SAMPLES):
        decided.took(False, 1.0)
        decided.took(True, 1.1)
    assert not decided.pause_left


def test_fallbacks_name_the_users_line(caplog):
    step, v = counting_step(wait_for_graph=True)
    for _ in range(4):
        step()
    with caplog.at_level(logging.INFO, "terra"):
        step(extra=1)
    messages = [r.getMessage() for r in caplog.records if r.name == "terra"]
    assert len(messages) == 1 and "fell back" in messages[0] and "test_options.py" in messages[0], messages


def test_what_a_step_takes_includes_the_wait_for_its_result(monkeypatch):
    """The graph may run when the step has returned; Python waits where it reads the result. What else it does between two steps does not count."""
    told = []
    monkeypatch.setattr(policy.Policy, "took", lambda self, coexecuted, seconds: told.append((coexecuted, seconds)))

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        return x @ x

    for _ in range(8):
        step(tf.ones([3, 3]))
    assert step.stats().coexecuted_steps >= 5 and len(told) >= 4
    took, told[:] = step._took, []
    step.counts.python_stall += 2.0  # as where Python waits
    step(tf.ones([3, 3]))
    assert took[0] and told == [(True, pytest.approx(took[1] + 2.0))]
