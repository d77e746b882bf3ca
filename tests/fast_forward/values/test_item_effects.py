"""Items of lists and dicts that a step sets, counts with, and takes up again, as in `state["h"] = h` and `count[0] += 1`: such steps are skipped, and the items are what they would be."""

import collections
import linecache

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from tests.variants import examples

X = [tf.constant(np.random.RandomState(k).rand(2, 3), tf.float32) for k in range(3)]


def plain(x):
    if isinstance(x, dict):
        return [(k, plain(v)) for k, v in x.items()]
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return x.numpy().tolist() if tf.is_tensor(x) else x.tolist() if isinstance(x, np.ndarray) else x


class Base:
    def __init__(self):
        self.w = tf.Variable(tf.ones((3, 3)) / 3.0)
        self.state = {"h": tf.zeros((2, 3)), "n": 0, "mode": "a", "log": []}
        self.cells = [0, tf.zeros((2, 3)), 1.5]

    def learn(self, h, x):
        h = tf.tanh(x @ self.w + 0.5 * h)
        self.w.assign_sub(0.01 * tf.matmul(h, h, transpose_a=True))
        return h

    def arguments(self, k):
        return (X[k % 3],)


class State(Base):
    def step(self, x):
        h = self.learn(self.state["h"], x)
        self.state["h"] = h
        self.state["n"] += 1
        return tf.reduce_sum(h)


class Cells(Base):
    def step(self, x):
        h = self.learn(self.cells[1] * self.cells[2], x)
        self.cells[1] = h
        self.cells[0] += 1
        if self.cells[0] % 10 == 0:
            self.state["log"].append(tf.reduce_sum(h))
        return h


class Asks(Base):
    def step(self, x):
        count = self.state
        if count["n"] % 5 == 0 and count["n"] > 3:
            x = x * 2.0
        count["n"] += 1
        return self.learn(x, x)


class NewEntry(Base):
    """The entry is made by the first step."""

    def step(self, x):
        h = self.learn(x, x)
        self.state["new"] = tf.reduce_sum(h)
        self.state["mode"] = "b" if self.state["mode"] == "a" else "a"
        return h


class ReadsOne(Base):
    def step(self, x):
        return self.learn(x * self.cells[2], x)


class InPlace(Base):
    def step(self, x):
        self.cells[1] += x
        self.cells[1] *= 0.5
        return self.learn(self.cells[1], x)


class Inner(Base):
    """Of a list in a dict."""

    def __init__(self):
        super().__init__()
        self.state["inner"] = [tf.zeros((2, 3)), 0]

    def step(self, x):
        self.state["inner"][0] = self.learn(self.state["inner"][0], x)
        self.state["inner"][1] += 1
        return self.state["inner"][0]


PURE = [State, Cells, Asks, ReadsOne, InPlace, Inner]


class Alternates(NewEntry):
    pass


class LooksAtAll(State):
    def step(self, x):
        n = len(self.state)
        total = super().step(x)
        return total * float(n), [k for k in self.state]


class AddsAll(Base):
    def step(self, x):
        self.cells[0] += 1
        return self.learn(x, x) * float(sum(c for c in self.cells if isinstance(c, int)))


class UsesTheCounter(Base):
    def step(self, x):
        self.state["n"] += 1
        return self.learn(x, x) * float(self.state["n"] % 4)


class Negative(Base):
    def step(self, x):
        self.cells[-2] = self.learn(self.cells[-2], x)
        return self.cells[1]


class ByName(Base):
    def step(self, x):
        key = "h" if x.shape[0] == 2 else "mode"
        self.state[key] = self.learn(self.state[key], x)
        return self.state["h"]


class Get(Base):
    def step(self, x):
        self.state["h"] = self.learn(self.state.get("h"), x)
        return self.state["h"]


class Deletes(Base):
    def step(self, x):
        self.state["tmp"] = x * 2.0
        h = self.learn(self.state["tmp"], x)
        del self.state["tmp"]
        return h


class Argument(Base):
    """The container comes as an argument: another one may come the next time."""

    def step(self, x, counts):
        counts["n"] += 1
        counts["last"] = 5
        return self.learn(x, x)

    def arguments(self, k):
        self.state["counts"] = getattr(self, "counts", [{"n": 0}, {"n": 0}])
        self.counts = self.state["counts"]
        return X[k % 3], self.counts[k % 4 == 0]


class Ordered(Base):
    def __init__(self):
        super().__init__()
        self.state = collections.OrderedDict(self.state)

    def step(self, x):
        self.state["h"] = self.learn(self.state["h"], x)
        return self.state["h"]


class Missing(Base):
    def step(self, x):
        h = self.learn(x, x)
        try:
            return h * self.state["nothing"]
        except KeyError:
            return h


class TwoNames(Base):
    """The same list under two names."""

    def __init__(self):
        super().__init__()
        self.other = self.cells

    def step(self, x):
        self.cells[0] += 1
        before = self.other[1]
        self.cells[1] = self.learn(self.other[1], x)
        return before + self.other[1] * float(self.other[0] % 3)


OTHERS = [NewEntry, LooksAtAll, AddsAll, UsesTheCounter, Negative, ByName, Get, Deletes, Argument, Ordered, Missing, TwoNames]


def nothing(trainer):
    pass


def other_values(trainer):
    trainer.state["h"], trainer.state["n"], trainer.cells[0], trainer.cells[1] = tf.ones((2, 3)), 9, 9, tf.ones((2, 3))


def other_kinds(trainer):
    trainer.state["h"], trainer.state["n"], trainer.cells[0], trainer.cells[1] = tf.ones((1, 3)), 2.5, 7.5, np.ones((2, 3), np.float32)


def replaced(trainer):
    trainer.state, trainer.cells = dict(trainer.state), list(trainer.cells)


def other_order(trainer):
    trainer.state["h"] = trainer.state.pop("h")
    trainer.cells.reverse()


def emptied(trainer):
    trainer.state.clear()
    del trainer.cells[1:]


def one_more(trainer):
    trainer.state["more"] = 1
    trainer.cells.append(3)


CHANGES = [nothing, other_values, other_kinds, replaced, other_order, emptied, one_more]


def run(kind, wrap, change, n=30):
    trainer = kind()
    step, seen = wrap(trainer.step), []
    for k in range(n):
        if k in (14, 20):
            change(trainer)
        try:
            result = step(*trainer.arguments(k))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            result = type(error).__name__
        seen.append((plain(result), plain(trainer.state), plain(trainer.cells), trainer.w.numpy().tolist()))
        if isinstance(result, str):
            fresh = kind()
            trainer.state.update(fresh.state)
            trainer.cells[:] = fresh.cells
    return seen, step


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", PURE + OTHERS)
def test_equals_eager(kind, change):
    expected, _ = run(kind, lambda step: step, change)
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True), change)
    assert actual == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 15, stats
    if kind in PURE:
        assert stats.whole_steps >= (2 if change is other_kinds else 6), terra.explain(step)


@pytest.mark.parametrize("kind", PURE)
def test_verified(kind):
    expected, _ = run(kind, lambda step: step, other_values)
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, verify=True), other_values)
    assert actual == expected and step.stats().verified_calls > 0


@pytest.mark.parametrize("read", [True, False], ids=["read", "late"])
def test_of_a_closure(read):
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        state, count, w = {"h": tf.zeros((2, 3))}, [0], tf.Variable(tf.ones((3, 3)) / 4.0)

        def step(x):
            h = state["h"]  # noqa: B023
            h = state["h"] = tf.tanh(x @ w + h)  # noqa: B023
            count[0] += 1  # noqa: B023
            if count[0] % 8 == 0:  # noqa: B023
                w.assign(w * 0.9)  # noqa: B023
            return tf.reduce_sum(h)

        wrapped, found = wrap(step), []
        for k in range(60):
            result = wrapped(X[k % 3])
            if read or k % 20 == 0:
                found.append((float(result), plain(state), list(count)))
        seen.append((found, plain(state), count))
    assert seen[0] == seen[1]
    assert wrapped.stats().express_steps >= 20, terra.explain(wrapped)


def test_explained():
    trainer = State()
    step = terra.coexecute(trainer.step, wait_for_graph=True)
    for k in range(20):
        step(X[k % 3])
    assert "set ['h'], count ['n']" in terra.explain(step, full=True)


LINES = ["d['a'] = d['a'] * 0.5 + x", "d['b'] = d['a']", "d['n'] += 1", "c[0] += 2", "c[1] = x + c[1] * 0.5", "y = y + (2.0 if d['n'] % 3 == 0 else 1.0)",
         "y = y * (1.5 if c[0] > 9 else 0.5)", "d['a'] += c[1]", "c[1] = d['a']", "d['n'] = 0", "y = y + float(len(d))", "c[0] -= d['n']", "l.append(y)", "d['new'] = y",
         "y = y + float(c[0] % 5)", "d['k'] = d['n']"]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=6), st.lists(st.tuples(st.integers(4, 26), st.sampled_from(["d['a'] = d['b'] + 1.0", "d['n'] = 5", "c[0] = 3", "d['z'] = 1"])), max_size=3))
def test_any_order(lines, changes):
    source = "def step(x):\n    y = tf.reduce_sum(w * x)\n    w.assign_add(x * 0.01)\n" + "".join(f"    {line}\n" for line in lines) + "    return y\n"
    name = f"<items {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        d, c, kept = {"a": tf.zeros(2), "b": tf.ones(2), "n": 0}, [0, tf.ones(2)], []
        space = {"tf": tf, "d": d, "c": c, "l": kept, "w": tf.Variable([1.0, 2.0]), "__name__": __name__}
        exec(compile(source, name, "exec"), space)
        step, found = wrap(space["step"]), []
        for k in range(28):
            for at, text in changes:
                if at == k:
                    exec(text, space)
            found.append((plain(step(tf.constant([float(k % 3), 0.5]))), plain(d), plain(c), plain(kept[-1:]), len(kept)))
        seen.append(found)
    assert seen[0] == seen[1]
    assert step.stats().coexecuted_steps >= 8
