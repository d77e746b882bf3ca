"""Numbers that a step reads of its tensors, calculates with, and keeps, as in `self.mean += 0.1 * (float(loss) - self.mean)`: such steps are skipped, and what is kept is what it would be."""

import linecache
import math

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from tests.harness import check_skipped
from tests.variants import examples

X = [tf.constant([[0.1 * k, 1.0 - 0.3 * k], [2.0, 0.25 * k * k]]) for k in range(5)]
N = 40


class Trainer:
    def __init__(self):
        self.weight = tf.Variable(1.0)
        self.mean, self.best, self.n = 2.0, math.inf, 0
        self.kept, self.table = [], {"a": 0.5, 0.25: 1.0, True: 2.0}

    def learn(self, x):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.tanh(x) * self.weight)
        self.weight.assign_sub(0.01 * tape.gradient(total, self.weight))
        return total

    def left(self):
        return repr((self.weight.numpy(), self.mean, self.best, self.n, self.kept, list(self.table.items())))


class RunningMean(Trainer):
    def step(self, x):
        total = self.learn(x)
        self.mean += 0.1 * (float(total) - self.mean)
        return total


class OfALocal(Trainer):
    def step(self, x):
        total = float(self.learn(x))
        self.mean = 0.9 * self.mean + 0.1 * total
        return {"total": total, "twice": 2 * total}


class Best(Trainer):
    def step(self, x):
        total = self.learn(x)
        self.best = min(self.best, float(total))
        self.kept.append(max(float(total), 1.0, self.mean))
        return total


class InPlace(Trainer):
    def step(self, x):
        total = float(self.learn(x))
        self.mean -= total
        self.mean *= 0.5
        total /= 4
        self.kept.append(total)


class Counts(Trainer):
    """Writes now and then."""

    def step(self, x):
        total = self.learn(x)
        self.n += 1
        self.mean += 0.05 * (float(total) - self.mean)
        if self.n % 9 == 0:
            self.kept.append(f"{self.n}: {math.exp(self.mean):.3f}")
        return total


class OfTwo(Trainer):
    def step(self, x):
        total = self.learn(x)
        low, high = float(tf.reduce_min(x)), float(total)
        self.kept.append((low, high - low, -(low + high) * 0.5))
        return total


class InADict(Trainer):
    def step(self, x):
        total = float(self.learn(x))
        self.table["a"] += total
        self.table["a"] *= 0.5
        return total


class FromAnother(Trainer):
    """What one statement has set, the next one reads."""

    def step(self, x):
        self.mean = float(self.learn(x)) * 2.0
        self.best = max(self.mean, 0.5) - self.mean
        return self.mean


class Perplexity(Trainer):
    """Calculations that raise an error for some numbers."""

    def step(self, x):
        total = self.learn(x)
        self.kept.append((math.exp(float(total)), 1 / float(total), float(total) ** 0.5))
        self.mean = math.log(float(total)) + math.tanh(float(total)) - float(total) ** 2
        return f"{math.exp(float(total)):.3f}"


PURE = [Perplexity, RunningMean, OfALocal, Best, InPlace, Counts, OfTwo, InADict, FromAnother]


def nothing(trainer):
    pass


def another_number(trainer):
    trainer.mean, trainer.table["a"] = -3.0, 7.5


def no_number(trainer):
    trainer.mean = trainer.best = None


def an_integer(trainer):
    trainer.mean = trainer.best = 3


def not_a_number(trainer):
    trainer.mean, trainer.best = math.nan, -0.0


def zero(trainer):
    trainer.weight.assign(0.0)


def negative(trainer):
    trainer.weight.assign(-2.0)


def large(trainer):
    trainer.weight.assign(1e3)


def run(kind, change, wrap, n=N):
    trainer, seen = kind(), []
    step = wrap(trainer.step)
    for k in range(n):
        if k == 26:
            change(trainer)
        try:
            given = step(X[k % 5])
            seen.append(repr(given.numpy() if tf.is_tensor(given) else given))
        except (TypeError, ValueError, ArithmeticError) as error:
            seen.append(f"{type(error).__name__}: {error}")
        seen.append(trainer.left() if k > 12 and k % 4 == 0 else "")  # (in between, steps may be in flight)
    return seen + [trainer.left()], step


@pytest.mark.parametrize("change", [nothing, another_number, no_number, an_integer, not_a_number, zero, negative, large])
@pytest.mark.parametrize("kind", PURE)
def test_equals_eager(kind, change):
    eager, _ = run(kind, change, lambda f: f)
    found, step = run(kind, change, lambda f: terra.coexecute(f, wait_for_graph=True))
    assert found == eager
    check_skipped(step, N, 6, 3, None)


@pytest.mark.parametrize("kind", PURE)
def test_verified(kind):
    eager, _ = run(kind, nothing, lambda f: f)
    found, step = run(kind, nothing, lambda f: terra.coexecute(f, wait_for_graph=True, verify=True))
    assert found == eager and step.stats().verified_calls >= 3


class Widths(Trainer):
    """Items by keys that a loop gives, all of which are looked at then."""

    def __init__(self):
        super().__init__()
        self.losses = dict.fromkeys([1.0, 0.5, 0.25])

    def step(self, x):
        for width in (1.0, 0.5, 0.25):
            self.losses[width] = self.learn(x * width)
        return tf.add_n(list(self.losses.values()))

    def left(self):
        return repr([(width, None if loss is None else float(loss)) for width, loss in self.losses.items()])


class SomeWidths(Widths):
    """One item is left as it is."""

    def step(self, x):
        for width in (0.5, 1.0):
            self.losses[width] = self.learn(x * width)
        return tf.add_n([loss for loss in self.losses.values() if loss is not None])


def other_order(trainer):
    trainer.losses = {key: trainer.losses[key] for key in reversed(trainer.losses)}


def order_in_place(trainer):
    first = next(iter(trainer.losses))
    trainer.losses[first] = trainer.losses.pop(first)


def one_more(trainer):
    trainer.losses[2] = tf.constant(3.0)


def another_item(trainer):
    trainer.losses[0.25] = tf.constant(5.0)


def one_less(trainer):
    del trainer.losses[1.0]


@pytest.mark.parametrize("change", [nothing, other_order, order_in_place, one_more, another_item, one_less])
@pytest.mark.parametrize("kind", [Widths, SomeWidths])
def test_items_that_are_set_and_looked_at(kind, change):
    def left(trainer):
        for width, loss in trainer.losses.items():
            trainer.losses[width] = tf.constant(0.0) if loss is None and kind is Widths else loss
        change(trainer)

    eager, _ = run(kind, left, lambda f: f)
    found, step = run(kind, left, lambda f: terra.coexecute(f, wait_for_graph=True))
    assert found == eager
    check_skipped(step, N, 6, 3, None)


EXPRESSIONS = st.recursive(
    st.sampled_from(["total", "low", "self.mean", "self.best", "self.table['a']", "0.5", "2", "-0.0", "1e300"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"), inner.map(lambda x: f"({x} / 3)"), inner.map(lambda x: f"-{x}"),
        st.lists(inner, min_size=2, max_size=3).map(lambda x: f"min({', '.join(x)})"), st.lists(inner, min_size=2, max_size=3).map(lambda x: f"max({', '.join(x)})"),
        st.tuples(st.sampled_from(["math.exp({})", "1 / {}", "math.sqrt(abs({}))", "{} ** 2.0", "{} ** 0.5", "math.log({})"]), inner).map(lambda x: f"({x[0].format(x[1])})"),
        inner.map(lambda x: f"abs({x})"), inner.map(lambda x: f"round({x}, 2)"), inner.map(lambda x: f"float({x})")),
    max_leaves=5)
STATEMENTS = st.one_of(
    st.tuples(st.sampled_from(["self.mean", "self.best", "self.table['a']", "total", "low"]), st.sampled_from(["=", "=", "+=", "-=", "*="]), EXPRESSIONS).map(" ".join),
    EXPRESSIONS.map(lambda x: f"self.kept.append({x})"), EXPRESSIONS.map(lambda x: f"if {x} > 1.0: self.n += 1"), EXPRESSIONS.map(lambda x: f'self.kept.append(f"{{{x}:.2f}}")'))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=5))
def test_any_statements(lines):
    source = "def step(self, x):\n    t = self.learn(x)\n    total, low = float(t), float(tf.reduce_min(x))\n" + "".join(f"    {line}\n" for line in lines) + "    return total\n"
    filename = f"<kept {abs(hash(source))}>"
    linecache.cache[filename] = len(source), None, source.splitlines(True), filename
    space = {"tf": tf, "math": math}
    exec(compile(source, filename, "exec"), space)
    kind = type("Any", (Trainer,), {"step": space["step"]})
    eager, _ = run(kind, another_number, lambda f: f)
    found, step = run(kind, another_number, lambda f: terra.coexecute(f, wait_for_graph=True))
    assert found == eager
    assert step.stats().coexecuted_steps >= 8 or sum("Error: " in x for x in eager) >= 8  # (a step that raises always is left alone)
