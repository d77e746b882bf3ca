"""The account of a step function: tracing and graphs never cost more than two seconds, twelve steps' time and a tenth of eager execution, whatever the program does."""

import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.fallback import account, policy
from terra.runtime.fast_forward.cache import call_cache
from tests import harness

times = st.floats(1e-4, 5.0)


class Run:
    """A run whose steps take what they are said to; what it has taken is compared with eager execution at each moment."""

    def __init__(self):
        self.account = account.Account()
        self.took = self.eager = 0.0
        self.dearest = 0.0  # of the traced steps, which nobody foresees

    def step(self, eager, traced, builds=0.0):
        """One that would be traced: whether it was."""
        may = self.account.may_trace()
        seconds = traced if may else eager
        self.account.note(seconds, traced=may, alone=not may)
        self.account.building += builds
        self.took += seconds + builds
        self.eager += eager
        self.dearest = max(self.dearest, traced - eager)
        return may

    def coexecuted(self, eager, seconds):
        self.account.note(seconds)
        self.took += seconds
        self.eager += eager

    @property
    def excess(self):
        """How far it is beyond what is promised."""
        return self.took - 1.1 * self.eager - account.GRACE - account.LEARNING * (self.account.eager or 0.0)


@given(eager=times, factor=st.floats(1.0, 8.0), n=st.integers(5, 300))
@settings(max_examples=100, deadline=None)
def test_steps_that_always_take_new_paths(eager, factor, n):
    run = Run()
    for _ in range(n):
        run.step(eager, eager * factor)
        assert run.excess <= account.FIRST * (factor - 1) * eager + 1e-6  # the first steps make variables: they do not count


@given(st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(1.0, 8.0), st.booleans()), min_size=5, max_size=200), times)
@settings(max_examples=100, deadline=None)
def test_steps_of_several_kinds(steps, eager):
    """Some are co-executed, and take half as long; others are traced, and nobody knows beforehand how long that takes."""
    run = Run()
    for share, factor, coexecuted in steps:
        if coexecuted:
            run.coexecuted(eager * share, eager * share / 2)
        else:
            run.step(eager * share, eager * share * factor)
        known = run.account.eager
        slack = 0.25 * run.eager if known is not None else 0.0  # what a step takes eagerly is known within a tenth, either way
        assert run.excess <= (account.FIRST + 1) * run.dearest + slack + 1e-6


def test_a_run_is_not_held_up_where_tracing_is_cheap():
    run = Run()
    assert all(run.step(0.02, 0.05) for _ in range(40))


@pytest.mark.parametrize("first, then", [(5.0, 0.05), (5.0, 5.0)])
def test_a_long_first_step_says_little_of_tracing(first, then):
    """It makes variables and kernels, and what Terra needs once: the next ones are traced as soon as it is known how long they take eagerly."""
    run = Run()
    assert run.step(0.01, first)
    assert [run.step(0.01, then) for _ in range(4)] == [False, False, True, then < 1.0]


def test_what_was_saved_may_be_spent():
    run = Run()
    while run.step(1.0, 3.0):
        pass
    assert not run.step(1.0, 3.0)
    for _ in range(20):
        run.coexecuted(1.0, 0.1)
    assert run.step(1.0, 3.0)


@pytest.mark.parametrize("operations, run, may", [(100, 0.0, True), (1500, 0.0, True), (7500, 5.0, False), (7500, 10.0, True)])
def test_a_large_graph_waits_until_the_run_has_taken_as_long(operations, run, may):
    made = account.Account()
    made.note(run / 2)
    made.note(run / 2)
    assert made.may_build(operations) is may
    made.building += 20.0
    assert not made.may_build(operations) or operations < 100


def test_fallbacks_are_given_up_sooner_when_too_much_was_spent():
    decided = policy.Policy("a step")
    for seconds, alone in [(0.1, False), (0.1, False), (0.1, True), (7.0, False)]:
        decided.note_eager(seconds, alone)
    assert decided.account.is_overdrawn()
    for _ in range(policy.FEW_IF_OVERDRAWN):
        assert not decided.pause_left
        decided.fell_back("a reason")
    assert decided.pause_left == policy.FIRST_PAUSE


def test_a_few_new_paths_say_nothing_of_sizes_that_are_left_unknown():
    decided, closed = policy.Policy("a step"), []
    decided.closes = lambda: closed.append(True) or True
    for seconds, alone in [(0.1, False), (0.1, False), (0.1, True), (7.0, False)]:
        decided.note_eager(seconds, alone)
    for _ in range(policy.FEW_IF_OVERDRAWN):
        decided.fell_back("a reason")
    assert not closed and decided.pause_left == policy.FIRST_PAUSE
    decided.pause_left = 0
    decided.account = account.Account()
    for _ in range(policy.TOO_MANY):
        decided.fell_back("a reason")
    assert closed


# -- programs ------------------------------------------------------------------------------------------------------------------

def new_paths():
    operations, drawn, v = [tf.sin, tf.cos, tf.tanh, tf.square, tf.abs], random.Random(0), tf.Variable(tf.ones([4]))

    def step(k):
        x = v
        for _ in range(12):
            x = drawn.choice(operations)(x)
        v.assign(v * 0.99 + 0.01 * tf.tanh(x))
        return v * 1.0

    return step, lambda: [v]


def new_sizes():
    dense = keras.layers.Dense(4, kernel_initializer="ones")
    dense.build([None, 3])

    def step(k):
        x = tf.ones([2 + k, 3])
        return tf.reduce_sum(dense(x[:x.shape[0] // 2])) + float(x.shape[0])

    return step, lambda: dense.weights


def rebuilt_model():
    made = []

    def step(k):
        if k % 5 == 0:
            made[:] = [keras.layers.Dense(3, kernel_initializer="ones")]
            made[0].build([None, 3])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made[0](tf.ones([2, 3])) ** 2)
        for w, slope in zip(made[0].trainable_variables, tape.gradient(loss, made[0].trainable_variables)):
            w.assign(w - 0.01 * slope)
        return loss

    return step, lambda: made[0].weights


@pytest.mark.all_variants
@pytest.mark.parametrize("make", [new_paths, new_sizes, rebuilt_model])
def test_programs_that_never_win_keep_to_it(make, monkeypatch):
    """With a hundredth of a second to spend, they soon have no credit: at no step has the account spent more than it may, but for a step that took longer than the one before."""
    monkeypatch.setattr(account, "GRACE", 0.01)
    monkeypatch.setattr(account, "LEARNING", 0)
    found, answers, ask = [], [], account.Account.may_trace
    monkeypatch.setattr(account.Account, "may_trace", lambda own: answers.append(ask(own)) or answers[-1])
    for wrap in (harness.eager, terra.coexecute):
        step, state = make()
        step, seen = wrap(step), []
        for k in range(80):
            answers.clear()
            traced = step.stats().tracing_steps if wrap is not harness.eager else 0
            has_graph = wrap is not harness.eager and step.program is not None  # a step that leaves its graph is traced from there
            fallbacks = step.stats().fallbacks if wrap is not harness.eager else 0  # so is one whose graph was ready just as it began
            seen.append(harness.shown(step(k)))
            assert wrap is harness.eager or has_graph or any(answers) or step.stats().tracing_steps == traced or step.stats().fallbacks > fallbacks
        found.append((seen, harness.shown(state())))
    assert found[0] == found[1]
    stats = step.stats()
    assert stats.imperative_steps > 0 and stats.tracing_steps < 80, stats
    assert "eagerly they would have taken about" in terra.explain(step, full=True)


def test_a_large_graph_in_a_short_run_is_not_built(monkeypatch):
    monkeypatch.setattr(account, "GRACE", 0.0)
    monkeypatch.setattr(account, "SECONDS_PER_OPERATION", 1.0)
    v = tf.Variable(1.0)

    def step():
        v.assign_add(0.5)
        return v * 2.0

    step = terra.coexecute(step)
    monkeypatch.setattr(step.policy.account, "may_trace", lambda: True)
    for k in range(10):
        assert float(step()) == 3.0 + k
    assert step.generation.is_due and step.stats().graphs == 0 and step.stats().imperative_steps >= 5
    assert "is built as soon as" in terra.explain(step, full=True)
    monkeypatch.setattr(account, "SECONDS_PER_OPERATION", 0.0)
    for k in range(10, 400):
        assert float(step()) == 3.0 + k
        if step.stats().coexecuted_steps > 5:
            break
    assert step.stats().coexecuted_steps > 5 and not step.generation.is_due


@given(recording=st.floats(0.01, 20.0), eager=times, fallback=st.floats(1.0, 6.0), n=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_a_path_that_comes_now_and_then(recording, eager, fallback, n):
    """A graph that knows it is built once fallbacks have cost as much as recording anew: never more than twice what was needed, but for the last fallback."""
    known = account.Account()
    known.note(eager)
    known.note(eager)
    known.note(eager, alone=True)
    known.note_coexecuted(eager + recording)
    known.note_coexecuted(eager / 10)
    spent = 0.0
    for _ in range(n):
        if known.may_replace():
            break
        known.falls_back()
        known.note(eager * fallback, traced=True)
        known.note_coexecuted(eager / 10)
        spent += eager * fallback
    needed = min(recording, n * eager * fallback)  # what is cheaper, in hindsight
    assert spent <= needed + eager * fallback + 1e-6
    assert known.may_replace() or spent < recording + 1e-6
    known.note_graph()
    assert known.may_replace()  # nothing is lost that was recorded


def test_a_path_that_all_steps_take_from_now_on():
    """The records of a graph are not worth anything to steps that fall back, one after the other."""
    known = account.Account()
    for alone in (False, False, True):
        known.note(0.1, alone=alone)
    known.note_coexecuted(100.0)
    for k in range(3 * account.IN_A_ROW):
        assert not known.may_replace()
        if k % account.IN_A_ROW == account.IN_A_ROW - 1:
            known.note_coexecuted(0.1)
        else:
            known.falls_back()
            known.note(0.2, traced=True)
    for _ in range(account.IN_A_ROW):
        assert not known.may_replace()
        known.falls_back()
        known.note(0.2, traced=True)
    known.note(0.1, alone=True)  # it was left alone
    assert known.may_replace()
    known.note_coexecuted(0.1)
    assert not known.may_replace()


@given(st.lists(st.tuples(st.floats(1.0, 8.0), st.booleans()), min_size=3, max_size=100), times)
@settings(max_examples=100, deadline=None)
def test_as_long_as_eager_execution_is_not_known(steps, eager):
    """It takes at most what the shortest traced step did: too much was spent for sure, or nobody can say so."""
    known, took = account.Account(), 0.0
    for k, (factor, coexecuted) in enumerate(steps):
        seconds = eager * factor
        known.note_coexecuted(seconds) if coexecuted else known.note(seconds, traced=True)
        took += seconds * (k >= account.FIRST)
        n = k + 1 - account.FIRST
        if not known.may_record():
            assert took - eager * n > account.GRACE + (account.LEARNING + account.SHARE * n) * eager - 1e-6


@pytest.mark.parametrize("may", [True, False])
def test_nothing_is_recorded_where_that_was_too_dear(may, monkeypatch):
    monkeypatch.setattr(account.Account, "may_record", lambda self: may)
    monkeypatch.setattr(policy, "SLOWER", 1000.0)  # whatever else runs on the machine
    monkeypatch.setattr(policy, "CLOSE", 1000.0)
    recorded, original = [], call_cache._record
    monkeypatch.setattr(call_cache, "_record", lambda *args: (recorded.append(args), original(*args))[1])
    given = [tf.constant(np.random.RandomState(k).randn(3 + k, 4).astype("float32")) for k in range(60)]  # no arguments: their sizes are known
    results = []
    for wrap in (harness.eager, terra.coexecute):
        v = tf.Variable(tf.ones([4]))

        def step(k):
            x = given[k] * v
            for _ in range(30):
                x = tf.tanh(x) + 0.1
            v.assign_add(0.01 * tf.reduce_mean(x, 0))
            return tf.reduce_sum(x)

        step = wrap(step)
        results.append([float(step(k)) for k in range(60)])
    assert results[0] == results[1]
    assert step.stats().coexecuted_steps >= 20, terra.explain(step)
    assert bool(recorded) is may


@pytest.mark.parametrize("pays", [False, True])
def test_a_graph_that_knows_one_path_more_waits_until_it_pays(pays, monkeypatch):
    v = tf.Variable(1.0)

    def step(k):
        x = v + 1.0
        for _ in range(40):
            x = tf.sin(x)
        v.assign_add(0.5)
        return x * 2.0 if k % 10 else tf.cos(x)

    results = []
    for wrap in (harness.eager, terra.coexecute):
        v.assign(1.0)
        step_here = wrap(step)
        if wrap is terra.coexecute:
            monkeypatch.setattr(step_here.policy.account, "may_replace", lambda: pays)
        found = []
        for k in range(1, 400):
            found.append(float(step_here(k)))
            time.sleep(0.001 if wrap is terra.coexecute and k < 60 else 0)  # graphs are built meanwhile
        results.append(found)
    assert results[0] == results[1]
    stats = step_here.stats()
    assert stats.coexecuted_steps >= 300 and not step_here.policy.pauses, (stats, terra.explain(step_here))
    if pays:
        assert stats.fallbacks <= 5 and stats.graphs == 2
    else:
        assert stats.fallbacks >= 30 and stats.graphs == 1
        assert "A graph that knows its new paths is built as soon as" in terra.explain(step_here, full=True)


def test_with_wait_for_graph_nothing_waits(monkeypatch):
    monkeypatch.setattr(account, "GRACE", -1.0)
    monkeypatch.setattr(account, "SECONDS_PER_OPERATION", 1.0)
    v = tf.Variable(1.0)
    step = harness.coexecuted(lambda: v.assign_add(1.0) * 1.0)
    for k in range(12):
        assert float(step()) == 2.0 + k
    assert step.stats().coexecuted_steps >= 8


@given(recording=st.lists(times, min_size=1, max_size=5), n=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_calls_are_recorded_anew_once_steps_have_taken_as_long(recording, n):
    """Then going over costs no more than twice what was needed, as with `may_replace`."""
    ours = account.Account()
    for _ in range(account.FIRST + 1):
        ours.note(1e-5, alone=True)
    for seconds in recording:
        ours.note_coexecuted(seconds)
    spent, steps = sum(seconds - 1e-5 for seconds in recording), 0
    while not ours.may_record_anew(n):
        assert sum(recording) + steps * 1e-5 <= n * spent + 1e-5
        ours._coexecuted += 1e-5 * max(1, round(spent / 1e-3))
        steps += max(1, round(spent / 1e-3))
    assert sum(recording) + (steps + 1) * 1e-5 >= n * spent - 1e-5
    ours.note_graph()
    assert ours.may_record_anew(n)  # nothing was recorded for this one


@given(operations=st.integers(1, 50_000), seconds=times, more=st.integers(1, 50_000))
@settings(max_examples=100, deadline=None)
def test_how_long_a_graph_takes_is_learned_from_the_last_one(operations, seconds, more):
    """No graph is built that will take longer than the run has, if it takes as long as the last one for each operation; graphs of few operations that were built quickly may be."""
    ours = account.Account()
    ours.note(10.0)
    ours.note_built(operations, seconds)
    will_take = seconds * more / operations
    if seconds + will_take > 10.0 and seconds + will_take > account.GRACE:
        assert not ours.may_build(more)
    if seconds + max(account.will_take(more), will_take * max(1.0, more / operations)) <= account.GRACE:
        assert ours.may_build(more)
