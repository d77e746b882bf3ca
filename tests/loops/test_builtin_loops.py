"""`sum`, `map` and `functools.reduce` are loops like any other, and otherwise Python's own: lengths that vary make no new paths."""

import copy
import functools
import operator

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.sites.builtin_loops import located_map, located_reduce, located_sum
from terra.runtime.step_function import structure_specialisation

RNG = np.random.default_rng(0)
ROWS = tf.constant(RNG.normal(size=(16, 4)).astype("f"))
STEPS = 28


@pytest.fixture(autouse=True)
def structures_recur_too_seldom(monkeypatch):
    """Steps stay in pieces, even where a length comes again (tests/loops/test_recurring_structures.py is about that)."""
    monkeypatch.setattr(structure_specialisation, "TIMES", 1000)


class Own:
    """Its sums are Python's."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Own(self.value + (other.value if isinstance(other, Own) else other))

    __radd__ = __add__


def rows(n):
    return [ROWS[k] * (k + 1.0) for k in range(n)]


class Scaled:
    def __init__(self, w):
        self.w = w
        self.calls = 0

    def method(self, row):
        self.calls += 1
        return tf.tanh(row * self.w)

    __call__ = method


def depth(row, n):
    """Recursion through `map`."""
    if n < 2:
        return row
    return tf.tanh(row + tf.add_n(list(map(depth, [row * 0.5, row * 0.25], [n // 2, n - n // 2]))))


def looped(row):
    for k in range(3):
        row = tf.tanh(row * (k + 0.5))
    return row


MAPS = {
    "lambda": lambda n, w: tf.add_n(list(map(lambda row: row * w, rows(n)))),
    "function with a loop": lambda n, w: sum(map(looped, rows(n))) * w,
    "two lists": lambda n, w: tf.add_n([*map(lambda a, b: tf.tanh(a) * b, rows(n), [w] * n)]),
    "method": lambda n, w: sum(map(Scaled(w).method, rows(n))),
    "object": lambda n, w: sum(map(Scaled(w), rows(n))),
    "partial": lambda n, w: sum(map(functools.partial(operator.mul, w), rows(n))),
    "a function of TensorFlow's": lambda n, w: sum(map(tf.tanh, rows(n))) * w,
    "an operator": lambda n, w: sum(map(operator.mul, rows(n), [w] * n)),
    "numbers": lambda n, w: sum(map(float, range(n))) * w + sum(map(str.count, ["aa"] * n, "a" * n)),
    "lazily": lambda n, w: sum(a * b for a, b in zip(rows(n), map(lambda row: row + w, rows(16)))),
    "twice": lambda n, w: sum(map(looped, map(lambda row: row * w, rows(n)))),
    "recursion": lambda n, w: depth(ROWS[0] * w, n),
    "reduced": lambda n, w: functools.reduce(lambda a, b: tf.tanh(a + b), rows(n)) * w,
    "reduced by an operator": lambda n, w: functools.reduce(operator.add, rows(n), w),
    "reduced by a function of TensorFlow's": lambda n, w: functools.reduce(tf.maximum, rows(n), w),
    "reduced numbers": lambda n, w: functools.reduce(operator.mul, range(1, n)) * w,
    "functions composed": lambda n, w: functools.reduce(lambda f, g: lambda x: g(f(x)), [tf.tanh, looped] * (n // 3 + 1))(ROWS[0] * w),
    "reads": lambda n, w: sum(map(lambda row: row * w if float(row[0] * w[0]) > -0.3 else row, rows(n))),
}
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


@pytest.mark.parametrize("name", [*SUMS, *MAPS])
def test_lengths_vary(name):
    function = SUMS.get(name) or MAPS[name]
    found = []
    for wrap in (lambda step: step), lambda step: terra.coexecute(step, wait_for_graph=True):
        w = tf.Variable([0.5, -1.0, 2.0, 0.25])

        def step(n):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(function(n, tf.convert_to_tensor(w)) ** 2) * 1e-3
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
    if name in ("list", "tuple with a start", "start by name", "lambda", "two lists", "method", "an operator", "reduced", "reduced by an operator"):
        assert stats.rolled_loops >= 1 and stats.coexecuted_steps >= STEPS - 10 and stats.fallbacks <= 2, stats


def test_forward_bits():
    """Without gradients, whose sums may be in another order, all is bit for bit."""
    def step(n, x):
        return sum(rows(n)) * x + sum((row * x for row in rows(n)), 1.0) + sum(map(lambda row: tf.tanh(row) * x, rows(n)))

    steps = terra.coexecute(step, wait_for_graph=True)
    for k in range(STEPS):
        n, x = k * 7 % 6 + 1, tf.constant(k / 8.0)
        np.testing.assert_array_equal(steps(n, x), step(n, x))
    assert steps.stats().coexecuted_steps >= STEPS - 8 and steps.stats().fallbacks <= 2, steps.stats()


def test_constant_lengths_are_unrolled():
    steps = terra.coexecute(lambda x: sum([x * k for k in range(5)]) + functools.reduce(operator.add, map(lambda k: x * k, range(5))), wait_for_graph=True)
    for k in range(12):
        assert float(steps(tf.constant(float(k)))) == 20.0 * k
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


def test_maps_are_maps():
    """Seen by the program, also after the step, and on its way out of it."""
    kept, seen = [], []

    def step(x):
        found = map(lambda k: x * k, [1.0, 2.0, 3.0])
        seen.append((type(found) is map, next(found) is not None, operator.length_hint(found, 7)))
        kept.append(map(lambda row: row + 1.0, [x, x * 2.0]))
        return next(found) + next(found)

    steps = terra.coexecute(step, wait_for_graph=True)
    for k in range(10):
        assert float(steps(tf.constant(float(k)))) == 5.0 * k
        assert list(map(float, kept.pop())) == [k + 1.0, 2.0 * k + 1.0]
    assert set(seen) == {(True, True, 7)} and steps.stats().coexecuted_steps >= 6, steps.stats()


@pytest.mark.parametrize("arguments", [(), (None,), (operator.add,), (None, [1]), (None, [1, 2]), (operator.add, []), (operator.add, 3), (lambda a: a, [1, 2])])
def test_errors_of_reduce(arguments):
    errors = []
    for make in functools.reduce, located_reduce:
        try:
            errors.append(make(*arguments))
        except Exception as error:
            errors.append((type(error), str(error)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("arguments", [(), (len,), (None, [1]), (5, [1]), (lambda a: a, 3), (lambda: 1, [1]), (lambda a: 1 / a, [0])])
def test_errors_of_map(arguments):
    errors = []
    for make in map, located_map:
        with pytest.raises(Exception) as error:
            list(make(*arguments))
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


def test_map_ends_early():
    """What its function raises ends it, StopIteration as well; then the step's location is right again."""
    def stops(row):
        if len(seen) % 5 == 4:
            raise StopIteration
        seen.append(1)
        return row * 2.0

    def raises(row):
        raise KeyError("here")

    seen = []

    def step(x):
        total = sum(map(stops, [x] * 4), x)
        seen.append(0)
        try:
            list(map(raises, [x]))
        except KeyError as error:
            total = total + len(str(error))
        return total * 3.0

    def run(function):
        seen.clear()
        return [float(function(tf.constant(float(k)))) for k in range(20)], copy.copy(seen)

    steps = terra.coexecute(step, wait_for_graph=True)
    assert run(steps) == run(step)
    assert steps.stats().coexecuted_steps >= 8, steps.stats()
