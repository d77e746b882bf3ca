"""Values that Python feeds to a graph in the middle of a step: those that lie close to each other share a message."""

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.generation.feeds import CLOSE
from tests import harness

STEPS = 16


def groups(step):
    """How many feeds each channel of the early form takes at a time, in order."""
    generated = step.program.generated
    assert generated.early
    return [n for _, place, n in generated.feed_queues if place == 0]


def compare(make, given, steps=STEPS, fallbacks=0, **options):
    """Run it eagerly and co-executed; returns the co-executed step."""
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True, **options)):
        step, variables = make()
        step = wrap(step)
        found = []
        for i in range(steps):
            try:
                found.append(harness.snapshot(step(*given(i))))
            except ValueError as error:
                found.append(str(error))
            found.append(harness.snapshot(variables))
        seen.append(found)
    for i, (expected, actual) in enumerate(zip(*seen, strict=True)):
        assert repr(expected) == repr(actual), i
    stats = step.stats()
    assert stats.coexecuted_steps >= steps - 8 and stats.fallbacks <= fallbacks, stats
    return step


def numbers(i):
    return [float(x) for x in np.random.default_rng(i).normal(size=8)]


def make(between=0, beside=lambda *given: None, read=True):
    """A step that is fed numbers, with `between` other operations before the last one, on both sides of a value that it looks at."""
    total = tf.Variable(1.0)

    def step(given, *rest):
        a, b, c, d = given[:4]
        x = total * a + b
        beside(x, *rest)
        x = x * c
        for _ in range(between):
            x = tf.sin(x)
        x = x - d
        if read and float(x) > 1000.0:
            raise ValueError("too large")
        for y in given[4:]:
            x = x + y
        total.assign(x / 10.0)
        return x
    return step, [total]


def test_close_ones_share_a_message():
    step = compare(make, lambda i: (numbers(i),))
    assert groups(step) == [4, 4]


def test_far_ones_do_not():
    step = compare(lambda: make(between=CLOSE + 2), lambda i: (numbers(i),))
    assert groups(step) == [3, 1, 4]


def test_so_do_not_all_of_a_long_line():
    def long():
        total = tf.Variable(1.0)

        def step(given):
            x = total + 0.0
            if float(x) > 1e6:
                raise ValueError
            for y in given:
                x = tf.tanh(x * y) + 1.0
            total.assign(x)
            return x
        return step, [total]
    step = compare(long, lambda i: ([*numbers(i), *numbers(-i % 99)],))
    assert sum(groups(step)) == 16 and len(groups(step)) == 3


def test_they_have_types_and_shapes_of_their_own():
    def mixed():
        table = tf.Variable(tf.ones([3, 2]))

        def step(rows, index, word):
            if float(table[0, 0]) < 0:
                raise ValueError
            x = tf.gather(table, index) + rows
            table.assign_add(tf.ones([3, 2]) * tf.reduce_mean(x))
            return x, tf.strings.join([word, "!"])
        return step, [table]

    def given(i):
        rng = np.random.default_rng(i)
        return rng.normal(size=(2 + i % 3, 2)).astype("float32"), rng.integers(0, 3, 2 + i % 3), str(i)
    assert groups(compare(mixed, given)) == [3]


@pytest.mark.parametrize("where", ["between", "behind"])
def test_a_step_leaves_the_path_within_a_group(where):
    """What the graph was to be sent together it never gets: it is cancelled, and the step is done imperatively."""
    def beside(x, leaves):
        if leaves == "between":
            tf.exp(x)

    def given(i):
        return (numbers(i) + [0.5] * (i == 12 and where == "behind"), where if i == 12 else None)
    step = compare(lambda: make(beside=beside), given, fallbacks=1)
    assert step.stats().fallbacks == 1


def test_python_fails_within_a_group():
    def beside(x, fails):
        if fails:
            raise ValueError("between two feeds")
    step = compare(lambda: make(beside=beside), lambda i: (numbers(i), i in (9, 12)), fallbacks=2)
    assert groups(step) == [4, 4]


def test_the_graph_fails_behind_a_group():
    """The step is replayed, with what was fed."""
    def checked():
        total = tf.Variable(1.0)

        def step(a, b, c):
            x = total * a + b
            tf.debugging.assert_less(x, 100.0)
            x = x + c
            if float(x) > 1e6:
                raise ValueError
            total.assign(x / 10.0)
            return x
        return step, [total]

    def given(i):
        return 2.0 if i == 11 else numbers(i)[0], numbers(i)[1], 1000.0 if i in (5, 10) else 0.5
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        step, variables = checked()
        step, found = wrap(step), []
        for i in range(STEPS):
            try:
                found.append(harness.snapshot(step(*given(i))))
            except tf.errors.InvalidArgumentError as error:
                found.append(type(error).__name__)
                variables[0].assign(1.0)
            found.append(harness.snapshot(variables))
        seen.append(found)
    assert repr(seen[0]) == repr(seen[1]) and "InvalidArgumentError" in seen[0][2 * 10:], "a step that is co-executed by then"
    assert step.stats().coexecuted_steps >= STEPS - 8 and max(groups(step)) > 1, step.stats()


def test_each_branch_has_its_own():
    def branching():
        total = tf.Variable(1.0)

        def step(given, which):
            x = tf.identity(total)
            if float(x) > 1e6:
                raise ValueError
            if which:
                x = (x + given[0]) * given[1]
            else:
                x = tf.sin(x * given[2]) - given[3]
            x = x + given[4]
            total.assign(tf.tanh(x))
            return x
        return step, [total]
    step = compare(branching, lambda i: (numbers(i), i % 3 != 2), steps=24, fallbacks=3)
    assert groups(step) == [2, 2, 1]


def test_a_jump_that_is_taken_back(monkeypatch):
    """A step that looks at a value is skipped as it went before; when it goes otherwise, the graph has had what came before that."""
    taken_back, go_back = [], PythonRunner.go_back
    monkeypatch.setattr(PythonRunner, "go_back", lambda self, place, feeds: taken_back.append(len(feeds)) or go_back(self, place, feeds))

    def looking():
        total = tf.Variable(1.0)

        def step(a, b, c):
            x = tf.tanh(total) * a + b
            if float(x) > 0:
                x = x - c
            else:
                x = x * c
            x = x + a
            total.assign(tf.tanh(x))
            return x
        return step, [total]
    step = compare(looking, lambda i: numbers(i)[:3], steps=60, fallbacks=3)
    assert len(taken_back) >= 5 and set(taken_back) == {2} and max(groups(step)) == 2


def test_lengths_vary_where_xla_compiles():
    """The shapes of fed values are part of what is compiled for, each of those that come together."""
    def make():
        w = tf.Variable(tf.ones([3, 3]))

        def step(i):
            if float(w[0, 0]) > 1e6:
                raise ValueError
            a = tf.tanh(tf.constant(batches[i][:2]) @ w)
            b = tf.tanh(tf.constant(batches[i][:2 + i % 2]) @ w)
            w.assign_add(tf.eye(3) * (tf.reduce_mean(a) + tf.reduce_mean(b)))
            return tf.reduce_sum(a) + tf.reduce_sum(b)
        return step, w

    batches = np.random.default_rng(1).normal(size=(90, 4, 3)).astype("float32")
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, jit_compile=True, wait_for_graph=True)):
        step, w = make()
        step = wrap(step)
        seen.append([[float(step(i)) for i in range(90)], w.numpy().tolist()])
    np.testing.assert_allclose(seen[0][0], seen[1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen[0][1], seen[1][1], rtol=1e-4, atol=1e-5)
    assert step.stats().compiled_steps > 10 and groups(step) == [2], step.stats()
    assert len(step.program.compiled._current[1]) == 2, "two combinations of shapes"
