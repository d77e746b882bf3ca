"""Steps that set variables which are not their own, `global` and `nonlocal` ones: counters, the last result, state, numbers that decay. They are skipped like those that set attributes."""

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.transform import convert
from terra.transform.observing.value_sources import Unobservable
from tests.harness import check_skipped

X = [tf.constant(np.random.RandomState(k).rand(2, 3), tf.float32) for k in range(3)]
N = 36
count, last, state, decay, history, rate = 0, None, None, 1.0, [], 0.5


def plain(x):
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return (x.dtype.name, x.numpy().tolist()) if tf.is_tensor(x) else (type(x).__name__, repr(x))


def reset():
    globals().update(count=0, last=None, state=tf.zeros((2, 3)), decay=1.0, history=[], rate=0.5)


def compare(make, whole=10, express=4, change=lambda k: None, n=N, **options):
    """Co-executed as eagerly. `make()` gives (a step, what it leaves, to be looked at after each step)."""
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True, **options)):
        reset()
        tf.random.set_seed(1)
        step, look = make()
        step, seen = wrap(step), []
        for k in range(n):
            change(k)
            try:
                result = step(X[k % 3])
            except (NameError, TypeError) as error:
                result = type(error).__name__, str(error)
            seen.append((plain(result), plain(look())))
        results.append(seen)
    assert results[1] == results[0]
    return check_skipped(step, n, whole, express, options.get("verify"))


def looks():
    return [globals().get(name) for name in ("count", "last", "state", "decay", "history", "rate")]


def counts():
    def step(x):
        global count
        count += 1
        return tf.abs(x)
    return step, looks


def keeps_and_asks():
    def step(x):
        global count, last
        count += 1
        y = tf.abs(x)
        if count % 10 == 0:
            y = y * 2.0
        last = y
        return y
    return step, looks


def carries():
    def step(x):
        global state
        state = tf.tanh(state * 0.5 + x)
        return state
    return step, looks


def decays():
    def step(x):
        global decay, rate
        decay *= 0.9
        rate = max(0.1, rate - 0.01)
        return tf.abs(x) * decay + rate
    return step, looks


def in_functions():
    """One that is called sets it, a lambda reads it."""
    def tick():
        global count
        count += 2

    def step(x):
        global rate
        tick()
        rate = 0.25
        return (lambda y: tf.abs(y) * rate)(x)
    return step, looks


def of_a_function_around():
    n, held, seen, weight = 0, None, tf.zeros((2, 3)), 1.0

    def step(x):
        nonlocal n, held, seen, weight
        n += 1
        held = tf.abs(x)
        seen = seen + held
        weight *= 0.95
        if n % 12 == 0:
            return seen * weight
        return seen
    return step, lambda: (n, held, seen, weight)


def inner_ones():
    """`nonlocal` of the step's own variable is its own affair."""
    def step(x):
        n = 0

        def add():
            nonlocal n
            n += 1
            return x * 2.0
        return add() + add() + float(n)
    return step, lambda: ()


def private():
    class Trainer:
        def make(self):
            __n = 0

            def step(x):
                nonlocal __n
                __n += 1
                return tf.abs(x)
            return step, lambda: __n
    return Trainer().make()


ALL = [counts, keeps_and_asks, carries, decays, in_functions, of_a_function_around, private]


@pytest.mark.parametrize("make", ALL)
def test_steps_that_set_outer_variables_are_skipped(make):
    compare(make)


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}])
@pytest.mark.parametrize("make", [keeps_and_asks, of_a_function_around])
def test_with_options(make, options):
    compare(make, **options)


def test_variables_of_a_function_inside():
    compare(inner_ones, whole=0, express=0)


def read_elsewhere():
    """Another function looks at the counter, without a declaration."""
    def seldom():
        return count % 7 == 0

    def step(x):
        global count
        count += 1
        return tf.abs(x) * 2.0 if seldom() else tf.abs(x)
    return step, looks


def read_before():
    def step(x):
        global count
        before = count
        count = before + 1
        return tf.abs(x) * float(before)
    return step, looks


def read_by_a_lambda():
    def step(x):
        global count
        count += 1
        return tf.abs(x) * (lambda: float(count))()
    return step, looks


def read_by_a_comprehension():
    def step(x):
        global count
        count += 1
        return [tf.abs(x) * float(count + k) for k in range(2)]
    return step, looks


def appended():
    def step(x):
        global history
        history += [1]
        history = [*history, 2]
        return tf.abs(x) + float(len(history))
    return step, looks


def unpacked():
    def step(x):
        global count, last
        count, last = count + 1, tf.abs(x)
        return last * float(count)
    return step, looks


def bound_otherwise():
    def step(x):
        global count, last
        for count in range(3):
            x = x + 1.0
        with tf.name_scope("a") as last:
            x = tf.abs(x)
        if (rate := 0.5) and (last := 3):
            pass
        return x * rate + float(count)
    return step, looks


def deleted():
    def step(x):
        global last
        last = tf.abs(x)
        del last
        return x * 2.0
    return step, lambda: "last" in globals()


def named_like_another():
    """A variable of a function inside has the name of a global one."""
    def step(x):
        global count
        count += 1

        def inner(count):
            count += 5
            return tf.abs(x) * float(count)
        return inner(1) + inner(2)
    return step, looks


def a_builtins_name():
    def step(x):
        global max
        try:
            return tf.abs(x) * float(max(1, 2))
        finally:
            max = min
            del max
    return step, looks


def two_closures():
    """They share a variable."""
    n = 0

    def more():
        nonlocal n
        n += 1

    def step(x):
        more()
        return tf.abs(x) * float(n)
    return step, lambda: n


@pytest.mark.parametrize("make", [
    read_elsewhere, read_before, read_by_a_lambda, read_by_a_comprehension, appended, unpacked, bound_otherwise, deleted, named_like_another, a_builtins_name, two_closures])
def test_other_ways(make):
    """Whether or not they are skipped: as eagerly."""
    compare(make, whole=0, express=0)


def test_changes_from_outside():
    """The counter becomes a float, a string, goes away; the state has another shape, the rate another type."""
    def change(k):
        if k in (15, 16):
            globals().update(count=0.5, state=tf.ones((1, 3)), rate=tf.constant(2.0))
        if k == 20:
            globals().update(count="a", state=tf.zeros((2, 3)))
        if k == 22:
            del globals()["count"]
        if k == 24:
            reset()
        if k == 30:
            globals().update(count=100, decay=7)

    for make in (keeps_and_asks, carries, decays):
        compare(make, whole=0, express=0, change=change, n=48)


def test_a_name_that_is_declared_in_one_function_and_bound_in_another():
    form = convert.function_form(named_like_another()[0])
    with pytest.raises(Unobservable, match="declared global or nonlocal elsewhere"):
        convert.observed_form(form)
