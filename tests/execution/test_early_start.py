"""Early start: graphs that start with their step though Python reads nothing in its middle, and when they do (`terra.runtime.step_function.tuning.early_start`).

The corpus runs in this form, too (`harness.MODES`); here are the cases that are special to it.
"""
import time
import types

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import trial
from terra.runtime.execution import compiled
from terra.runtime.step_function.tuning.early_start import STEPS, EarlyStart
from terra.trial import BLOCK, ROUNDS
from tests import harness


def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


def early(step, **options):
    return harness.started_early(terra.coexecute(step, wait_for_graph=True, **options))


def both(build, calls, **options):
    """What the calls of a step return or raise, and what its variables are then: eagerly and with early start. `build` gives (step, variables)."""
    seen = []
    for wrap in (lambda step: step, lambda step: early(step, **options)):
        harness.reset_seeds()
        step, variables = build()
        step = wrap(step)
        one = []
        for i in range(calls):
            try:
                value = step(i)
                one.append(harness.snapshot(value))
            except (ValueError, tf.errors.OpError) as error:
                one.append((type(error).__name__, str(error).split("\n")[0]))
            if i % 3 == 1:
                one.append(harness.snapshot(variables))
        terra.sync()
        one.append(harness.snapshot(variables))
        seen.append(one)
    expected, actual = seen
    assert len(expected) == len(actual)
    for k, (a, b) in enumerate(zip(expected, actual)):
        assert repr(a) == repr(b), f"observation {k}"
    return step


# ------------------------------------------------------------------------------------------------- the decision

class Program:
    def __init__(self, early=False):
        self.early = early
        self.generated, self.early_form, self.compiled, self.step_cache = "late", None, None, None


def drive(start, program, steps, skeleton, waited, graph_early=0.0, number=1, now=0.0):
    """Steps of a program that reads its loss after each of them, by a made-up clock."""
    total = 0.0
    for k in range(steps):
        form = start.begins(program, number + k, now, total)
        now += skeleton
        start.ends(now, total)
        wait = waited if form == "late" else graph_early
        now += wait
        total += wait
    return number + steps, now


def test_wanted_where_python_waits_for_what_could_have_run_before():
    start, program = EarlyStart(), Program()
    drive(start, program, STEPS + 2, skeleton=1.0, waited=1.0)
    assert start.wanted and start.lacks_form(program)


@pytest.mark.parametrize("skeleton, waited", [(0.001, 1.0), (1.0, 0.0), (1.0, 0.001)])
def test_not_wanted_where_it_could_not_save_anything(skeleton, waited):
    start = EarlyStart()
    drive(start, Program(), 5 * STEPS, skeleton, waited)
    assert not start.wanted and start.describe() is None


def test_steps_that_do_not_follow_each_other_tell_nothing():
    start, program = EarlyStart(), Program()
    for k in range(5 * STEPS):
        drive(start, program, 1, 1.0, 1.0, number=2 * k, now=2.0 * k)
    assert not start.wanted


def test_where_steps_hardly_have_a_skeleton_it_is_not_wanted():
    start, program = EarlyStart(), Program()
    program.step_cache = types.SimpleNamespace(detached=[object()])
    drive(start, program, 5 * STEPS, 1.0, 1.0)
    assert not start.wanted


def test_where_no_two_steps_follow_each_other_nothing_is_decided():
    """Those in between are express steps, which ask for no form."""
    start, program = EarlyStart(), Program()
    number, now = drive(start, program, STEPS + 2, 1.0, 1.0)
    program.early_form = "early"
    for k in range(5 * BLOCK * ROUNDS):
        assert start.begins(program, number + 2 * k + 2, now + k, 0.0) == "late"
        start.ends(now + k + 0.5, 0.0)
    assert start.trial.second_is_better is None


def test_a_trial_without_any_times_begins_again():
    tried = trial.Trial()
    for now in range(3 * 2 * BLOCK * ROUNDS):
        tried.choose(now, follows=False)
    assert tried.second_is_better is None
    for now in range(2 * BLOCK * ROUNDS + 1):
        tried.choose(now)
    assert tried.second_is_better is not None


def test_what_passes_between_steps_that_do_not_follow_each_other_is_no_time_of_theirs():
    tried = trial.Trial()
    for now in range(4):
        tried.choose(now)
    assert tried.times[0] == [1]
    tried.interrupt(1000.0, follows=False)
    tried.choose(1001.0)
    tried.choose(2000.0, follows=False)
    assert tried.times == ([1], [])


@pytest.mark.parametrize("slowed, better", [(9, False), (16, True)])
def test_steps_that_something_else_makes_longer_do_not_decide(slowed, better):
    """The second form takes 1.2 times as long; but the first `slowed` counted steps of the first one take 1.5 times as long as they would."""
    tried, now, taken, counted = trial.Trial(), 0.0, 1.0, 0
    while tried.second_is_better is None:
        second = tried.choose(now)
        taken = 1.2 if second else 1.0
        if not second and tried._last is not None:
            counted += 1
            taken = 1.5 if counted <= slowed else 1.0
        now += taken
    assert tried.second_is_better is better


@pytest.mark.parametrize("graph_early, better", [(0.1, True), (1.0, False), (1.5, False)])
def test_the_faster_form_stays(graph_early, better):
    start, program = EarlyStart(), Program()
    number, now = drive(start, program, STEPS + 2, 1.0, 1.0)
    program.early_form = "early"
    number, now = drive(start, program, 2 * BLOCK * ROUNDS + 2, 1.0, 1.0, graph_early, number, now)
    assert start.trial.second_is_better is better
    assert start.begins(program, number, now, 0.0) == ("early" if better else "late")
    assert start.describe().startswith("The graph starts" if better else "The graph does not start")


def test_the_trial_begins_anew_with_a_new_program():
    start, program = EarlyStart(), Program()
    number, now = drive(start, program, STEPS + 2, 1.0, 1.0)
    program.early_form = "early"
    number, now = drive(start, program, BLOCK * ROUNDS, 1.0, 1.0, 0.1, number, now)
    trial, other = start.trial, Program()
    other.early_form = "early"
    number, now = drive(start, other, BLOCK * ROUNDS, 1.0, 1.0, 0.1, number, now)
    assert start.trial is not trial and start.trial.second_is_better is None


def test_found_out_in_a_program_that_reads_its_loss(monkeypatch):
    monkeypatch.setattr(trial, "HOPELESS", 1e9)  # the machine may be busy
    w = tf.Variable(floats(300, 300))

    def step(x):
        time.sleep(0.003)  # Python work
        for _ in range(10):
            x = tf.tanh(x @ w)
        return tf.reduce_sum(x)

    coexecuted, x = terra.coexecute(step, wait_for_graph=True, fast_forward=False), tf.constant(floats(300, 300, seed=1))
    expected, left = float(step(x)), 1500  # far more steps than the trials take, of which another comes first, and begins again where something else takes the time
    while left and (coexecuted.early_start.trial is None or coexecuted.early_start.trial.second_is_better is None):
        assert float(coexecuted(x)) == expected
        left -= 1
    stats = coexecuted.stats()
    assert left and stats.early_steps >= BLOCK * ROUNDS and stats.fallbacks == 0 and stats.graphs == 1
    assert coexecuted.early_start.describe() in terra.explain(coexecuted, full=True)


def test_no_early_form_for_a_compiled_graph():
    def step(x):
        for _ in range(12):
            x = tf.tanh(x) * 2.0
        return x

    coexecuted = harness.started_early(terra.coexecute(step, wait_for_graph=True, jit_compile=True))
    for _ in range(compiled.LEARNED + 2 * compiled.BLOCK):
        coexecuted(tf.ones([3]))
    assert coexecuted.stats().compiled_steps > 0 and coexecuted.compiled.reason is None and coexecuted.stats().early_steps == 0


# --------------------------------------------------------------------------------------------- equal to eager

def test_feeds_and_branches():
    def build():
        w, n = tf.Variable(floats(4, 3)), tf.Variable(0)

        def step(i):
            y = tf.constant(floats(2, 4, seed=i)) @ w
            y = y * np.float32(i) if i % 3 else y - floats(2, 3, seed=i)
            n.assign_add(i % 2)
            w.assign_sub(0.01 * tf.reduce_mean(y) * w)
            return tf.reduce_sum(y), y if i % 2 else None

        return step, [w, n]

    stats = both(build, 30).stats()
    assert stats.early_steps == stats.coexecuted_steps >= 15 and stats.feeds > 20


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_step_that_raises(run_ahead):
    def build():
        w, log = tf.Variable(1.0), []

        def step(i):
            w.assign_add(1.0)
            log.append(i)
            if i % 5 == 4:
                raise ValueError(f"no {i}")
            w.assign(w * 0.5)
            return w + 1.0

        return step, [w, log]

    stats = both(build, 30, run_ahead=run_ahead).stats()
    assert stats.early_steps == stats.coexecuted_steps >= 20


def test_a_kernel_that_fails():
    def build():
        w, n = tf.Variable(floats(4, 2)), tf.Variable(0.0)

        def step(i):
            n.assign_add(1.0)
            row = tf.gather(w, tf.constant([1, 9 if i % 6 == 5 else i % 4]))
            w.assign_sub(0.1 * w)
            return tf.reduce_sum(row)

        return step, [w, n]

    step = both(build, 30, run_ahead=0)
    assert step.stats().early_steps >= 15
    assert any("failed" in reason for reason in step.fallback_reasons) or step.stats().fallbacks == 0


def test_a_step_started_behind_one_that_fails():
    """The error comes later, where it is waited for; what was started behind it runs as in a program that goes on."""
    w, n = tf.Variable(floats(4, 2)), tf.Variable(0.0)
    index = tf.Variable(0)

    def step():
        n.assign_add(1.0)
        return tf.reduce_sum(tf.gather(w, index))

    coexecuted = early(step)
    for _ in range(6):
        coexecuted()
    index.assign(7)
    try:
        coexecuted()
        index.assign(1)
    except tf.errors.InvalidArgumentError:
        index.assign(1)
    for _ in range(3):
        coexecuted()
    terra.sync()
    assert float(n) == 10.0  # the failing step has counted, too
    assert coexecuted.stats().early_steps >= 6


def random_function(body):
    """A `tf.function` that Terra runs imperatively, because it draws numbers of its own."""
    return tf.function(lambda: body(0.0 * tf.random.normal([])))


def test_imperative_updates_of_what_the_graph_uses_later():
    """Late, this is co-executed: when the update runs, the graph has not begun. Early it would come too late: such steps start late from then on."""
    def build():
        v, w = tf.Variable(1.0), tf.Variable(2.0)
        bump = random_function(lambda zero: v.assign_add(1.0 + zero))

        def step(i):
            y = w * 2.0
            bump()
            w.assign(w * 0.9)
            return y + v

        return step, [v, w]

    step = both(build, 20)
    stats = step.stats()
    assert stats.fallbacks == 1 and stats.early_steps == 0 and stats.coexecuted_steps >= 10
    assert "run imperatively" in step.early_start.describe()


@pytest.mark.parametrize("read", [False, True], ids=["early_by_choice", "early_by_need"])
def test_imperative_reads_of_what_the_graph_updates_in_its_place(read):
    def build():
        table, w = tf.Variable(floats(5, 3)), tf.Variable(floats(5))
        total = random_function(lambda zero: tf.reduce_sum(table) + zero)
        log = []

        def step(i):
            y = tf.reduce_sum(w)
            if read:
                log.append(float(y))
            time.sleep(0.002)  # the graph would long have updated the table
            before = total()
            table.scatter_nd_add([[1]], [[1.0, 1.0, 1.0]])
            w.assign(w * 0.9)
            return before, tf.reduce_sum(tf.gather(table, [1, 2])), y

        return step, [table, w, log]

    both(build, 20)


def test_the_graph_alone_is_the_late_one():
    n = tf.Variable(0.0)
    coexecuted = early(lambda x: n.assign_add(x) * 2.0)
    for _ in range(5):
        coexecuted(tf.constant(1.0))
    before = coexecuted.stats().early_steps
    coexecuted.run_graph_alone(tf.constant(1.0))
    coexecuted.run_graph_alone(tf.constant(1.0))
    terra.sync()
    assert coexecuted.stats().early_steps == before > 0 and float(n) == 8.0
