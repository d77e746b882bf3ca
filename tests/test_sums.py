"""`sum` of tensors is a loop like any other, and otherwise Python's own: lengths that vary make no new paths."""

import operator

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime import recurring
from terra.runtime.sums import located_sum

RNG = np.random.default_rng(0)
ROWS = tf.constant(RNG.normal(size=(16, 4)).astype("f"))
STEPS = 40


@pytest.fixture(autouse=True)
def structures_recur_too_seldom(monkeypatch):
    """Steps stay in pieces, even where a length comes again (tests/test_recurring.py is about that)."""
    monkeypatch.setattr(recurring, "TIMES", 1000)


class Own:
    """Its sums are Python's."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Own(self.value + (other.value if isinstance(other, Own) else other))

    __radd__ = __add__


def rows(n):
    return [ROWS[k] * (k + 1.0) for k in range(n)]


SUMS = {
    "list": lambda n, w: sum(rows(n)) * w,
    "tuple with a start": lambda n, w: sum(tuple(rows(n)), w),
    "start by name": lambda n, w: sum(rows(n), start=w * 2.0),
    "generator": lambda n, w: sum(ROWS[k] * w for k in range(n)),
    "generator that reads": lambda n, w: sum(ROWS[k] * w for k in range(n) if float(ROWS[k, 0] * w[0]) > -1.0),
    "numbers": lambda n, w: sum(range(n)) * w + sum([0.1] * n) + sum((), 0.5) + float(sum(np.float32(k) for k in range(n))),
    "numbers, then tensors": lambda n, w: sum([0.5, *rows(n)]) + w,
    "empty at times": lambda n, w: w + sum(rows(n if n > 3 else 0)),
    "two of them": lambda n, w: sum(rows(n)) + sum([w] * (9 - n)),
    "sum of sums": lambda n, w: sum([sum(rows(k + 1)) * w for k in range(n)]),
    "objects": lambda n, w: sum([Own(row) for row in rows(n)]).value * w,
    "arrays": lambda n, w: sum(np.full(4, k, "f") for k in range(n)) * w,
    "by another name": lambda n, w: (lambda add: add(rows(n)))(sum) * w,
}


@pytest.mark.parametrize("name", SUMS)
def test_lengths_vary(name):
    found = []
    for wrap in (lambda step: step), lambda step: terra.coexecute(step, wait_for_graph=True):
        w = tf.Variable([0.5, -1.0, 2.0, 0.25])

        def step(n):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(SUMS[name](n, tf.convert_to_tensor(w)) ** 2) * 1e-3
            w.assign_sub(0.001 * tf.clip_by_norm(tape.gradient(loss, w), 1.0))
            return loss

        step = wrap(step)
        lengths = np.random.default_rng(1).integers(2, 9, STEPS)
        found.append(([step(int(n)).numpy() for n in lengths], w.numpy()))
    (losses, end), (own, own_end) = found
    np.testing.assert_allclose(own, losses, rtol=1e-5)
    np.testing.assert_allclose(own_end, end, rtol=1e-5)
    stats = step.stats()
    assert stats.coexecuted_steps >= STEPS * 0.6, stats
    if name in ("list", "tuple with a start", "start by name"):
        assert stats.rolled_loops >= 2 and stats.coexecuted_steps >= STEPS - 8 and stats.fallbacks <= 2, stats


def test_forward_bits():
    """Without gradients, whose sums may be in another order, all is bit for bit."""
    def step(n, x):
        return sum(rows(n)) * x + sum((row * x for row in rows(n)), 1.0)

    steps = terra.coexecute(step, wait_for_graph=True)
    for k in range(STEPS):
        n, x = k * 7 % 6 + 1, tf.constant(k / 8.0)
        np.testing.assert_array_equal(steps(n, x), step(n, x))
    assert steps.stats().coexecuted_steps >= STEPS - 8 and steps.stats().fallbacks <= 2, steps.stats()


def test_constant_lengths_are_unrolled():
    steps = terra.coexecute(lambda x: sum([x * k for k in range(5)]), wait_for_graph=True)
    for k in range(12):
        assert float(steps(tf.constant(float(k)))) == 10.0 * k
    assert steps.stats().rolled_loops == 0 and steps.stats().coexecuted_steps >= 8 and steps.stats().whole_steps >= 4, steps.stats()


@pytest.mark.parametrize("arguments", [(5,), ([], "a"), (["a"],), ([[1], [2]],), ([tf.ones(2)], "a"), ([tf.ones(2), "a"],), ([tf.ones(2), None],), ([tf.ones([2]), tf.ones([3])],), (None, 1)])
def test_errors(arguments):
    errors = []
    for add in sum, located_sum:
        with pytest.raises(Exception) as error:
            add(*arguments)
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


def test_values():
    for arguments in ([0.1] * 10,), ([1, 2, 3], 4.5), ((), None), ([[1], [2]], []), (range(4),), ({2: 3, 4: 5},), ([np.ones(2), np.ones(2)],), ([], [tf.ones(2)]):
        own, known = located_sum(*arguments), sum(*arguments)
        assert type(own) is type(known) and np.all(np.equal(own, known) if isinstance(known, np.ndarray) else own == known)
    with pytest.raises(TypeError):
        located_sum(iterable=[1])


def test_sum_is_replaced(monkeypatch):
    """A name of the program's own that hides the builtin, from some step on."""
    def step(x):
        return sum([x, x * 2.0, x * 3.0])

    steps = terra.coexecute(step, wait_for_graph=True)
    for k in range(10):
        assert float(steps(tf.constant(2.0))) == 12.0
    monkeypatch.setitem(globals(), "sum", lambda xs: operator.mul(*xs[:2]))
    for k in range(10):
        assert float(steps(tf.constant(2.0))) == 8.0
    monkeypatch.delitem(globals(), "sum")
    for k in range(10):
        assert float(steps(tf.constant(2.0))) == 12.0
    assert steps.stats().coexecuted_steps >= 20, steps.stats()
