"""Loops whose trip count varies, and recursion: co-executed in pieces, equal to eager execution, from a bounded number of graphs."""

import functools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.loops import segment_gradient
from terra.runtime.step_function import structure_specialisation
from tests.variants import ALL

STEPS = 24


class Program:
    """Variables, a step and its inputs; made anew for each run."""

    tolerance = 1e-4
    exact = True  # else gradients of values used in and behind a piece are summed in another order
    steps = STEPS
    most_graphs = 3
    most_fallbacks = 3
    longest = 13

    def __init__(self):
        self.w = self.variable([6, 8])
        self.u = self.variable([8, 8])
        self.b = tf.Variable(tf.zeros([8]))
        self.optimizer = keras.optimizers.SGD(0.05)
        self.seen = []
        self.build()

    def build(self):
        pass

    @staticmethod
    def variable(shape):
        return tf.Variable(tf.random.normal(shape) * 0.3)

    @property
    def variables(self):
        return [v for v in vars(self).values() if isinstance(v, tf.Variable)]

    def train(self, tape, loss, variables=None):
        variables = variables or [v for v in self.variables if v.dtype.is_floating and v.trainable]
        gradients = tape.gradient(loss, variables)
        for v, g in zip(variables, gradients):
            if g is not None:
                v.assign_sub(0.05 * tf.convert_to_tensor(g))

    def inputs(self, rng):
        """The arguments of one step."""
        return (tf.constant(rng.normal(size=(3, rng.integers(1, self.longest + 1), 6)), tf.float32),)

    def cell(self, x, h):
        return tf.tanh(x @ self.w + h @ self.u + self.b)


PROGRAMS = []


def program(cls):
    PROGRAMS.append(cls)
    return cls


@program
class Rnn(Program):
    def step(self, x):
        with tf.GradientTape() as tape:
            h = tf.zeros([3, 8])
            for i in range(x.shape[1]):
                h = tf.tanh(x[:, i] @ self.w + h @ self.u + self.b)
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss)
        return loss


@program
class RnnOfFunction(Program):
    exact = False

    def step(self, x):
        with tf.GradientTape() as tape:
            outs, h = [], tf.zeros([3, 8])
            for t in tf.unstack(x, axis=1):
                h = self.cell(t, h)
                outs.append(h)
            loss = tf.reduce_mean(tf.stack(outs, axis=1) ** 2) + tf.reduce_sum(tf.concat(outs, axis=0)) * 0.01 + tf.reduce_mean(outs[-1])
        self.train(tape, loss)
        return loss, outs


@program
class StoppedGradient(Program):
    """What `tf.stop_gradient` gives is told to no tape as an output; gradients of what it is multiplied with need its value."""

    exact = False

    def step(self, x):
        with tf.GradientTape() as tape:
            h = tf.zeros([3, 8])
            for i in range(x.shape[1]):
                h = self.cell(x[:, i], h)
            advantage = tf.reduce_sum(h, axis=1) - 0.5
            loss = tf.reduce_mean(tf.stop_gradient(advantage) * tf.reduce_mean(h ** 2, axis=1)) + tf.reduce_mean(advantage ** 2)
        self.train(tape, loss)
        return loss


@program
class GivenGradients(Program):
    """Several targets; their gradients begin with ones, with constants of the program's own that take turns, or with values."""

    exact = False

    def step(self, x):
        with tf.GradientTape(persistent=True) as tape:
            h = tf.zeros([3, 8])
            for i in range(x.shape[1]):
                h = self.cell(x[:, i], h)
            loss, other = tf.reduce_mean(h ** 2), tf.reduce_sum(h, axis=1)
        self.seen.append(x.shape[1])
        if len(self.seen) % 3 == 0:
            given = None
        else:
            given = [tf.constant(1.0 if len(self.seen) % 3 == 1 else 0.5), other * 0.1 if len(self.seen) % 2 else tf.ones(3)]
        variables = [self.w, self.u, self.b]
        gradients = [*tape.gradient([loss, other], variables, output_gradients=given), *tape.gradient(loss, variables), *tape.gradient(other, [self.u])]
        for v, g in zip(variables, gradients):
            v.assign_sub(0.05 * g)
        return loss, gradients


@program
class Lookups(Program):
    """Indices that Python makes, another one in each iteration: layers look them up, and the program works with them on."""

    exact = False

    def build(self):
        self.words, self.masked = keras.layers.Embedding(7, 6), keras.layers.Embedding(7, 6, mask_zero=True)
        self.words.build(), self.masked.build()
        self.table, self.other = self.words.embeddings.value, self.masked.embeddings.value

    def inputs(self, rng):
        return ([int(x) for x in rng.integers(-1, 7, size=rng.integers(1, 9))],)

    def step(self, words):
        with tf.GradientTape() as tape:
            h = tf.zeros([1, 8])
            for k, word in enumerate(words):
                index = tf.constant([word])
                x = self.words(index) + self.masked(tf.constant([abs(word)])) * tf.cast(index, tf.float32)
                if int(index[0]) == 3:
                    x = x + self.words(tf.constant([[k % 7, word % 7]]))[:, 0]
                x = x + tf.reduce_sum(tf.one_hot(index + 1, 8)[:, :6] * tf.ones(tf.abs(index) + 6)[:6], axis=0)
                h = self.cell(x, h)
            loss = tf.reduce_mean(h ** 2) + tf.reduce_mean(tf.gather(self.w, tf.constant([len(words) % 6, len(words) % 5])))
        self.train(tape, loss, [self.w, self.u, self.b, self.table, self.other])
        return loss


@program
class AddN(Program):
    exact = False

    def step(self, x):
        with tf.GradientTape() as tape:
            parts = [tf.reduce_sum(x[:, i] @ self.w) for i in range(x.shape[1])]
            loss = tf.add_n(parts) / len(parts)
        self.train(tape, loss)
        return loss


@program
class Lstm(Program):
    exact = False

    def build(self):
        self.kernel = self.variable([14, 32])

    def lstm(self, x, state):
        h, c = state
        i, f, o, g = tf.split(tf.concat([x, h], 1) @ self.kernel, 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, (h, c)

    def step(self, x):
        with tf.GradientTape() as tape:
            state = tf.zeros([3, 8]), tf.zeros([3, 8])
            outs = []
            for i in range(x.shape[1]):
                out, state = self.lstm(x[:, i], state)
                outs.append(out)
            loss = tf.reduce_mean(tf.stack(outs) ** 2)
        self.train(tape, loss)
        return loss


@program
class KerasCells(Program):
    exact = False
    longest = 7
    tolerance = 1e-2  # Adam makes much of last bits

    def build(self):
        self.lstm, self.gru, self.dense = keras.layers.LSTMCell(8), keras.layers.GRUCell(8), keras.layers.Dense(4, activation="relu")
        self.lstm.build((3, 6)), self.gru.build((3, 8)), self.dense.build((3, 8))
        self.weights = self.lstm.trainable_weights + self.gru.trainable_weights + self.dense.trainable_weights
        self.adam = keras.optimizers.Adam(1e-3)
        self.adam.build(self.weights)

    @property
    def variables(self):
        return [v.value for v in self.weights]

    def step(self, x):
        with tf.GradientTape() as tape:
            s, g = [tf.zeros([3, 8]), tf.zeros([3, 8])], [tf.zeros([3, 8])]
            total = 0.0
            for i in range(x.shape[1]):
                y, s = self.lstm(x[:, i], s)
                y, g = self.gru(y, g)
                total = total + tf.reduce_mean(self.dense(y))
            loss = total / x.shape[1]
        gradients = tape.gradient(loss, self.weights)
        self.adam.apply_gradients(zip(gradients, self.weights))
        return loss


@program
class WhileWithReads(Program):
    def step(self, x):
        value = tf.reduce_sum(tf.abs(x))
        count = 0
        while float(value) > 1.0:
            value = value * 0.6
            count += 1
            self.b.assign_add(tf.fill([8], value))
        self.seen.append(count)
        return value


@program
class Nested(Program):
    exact = False
    most_graphs = 9
    most_fallbacks = 6
    minimum = 4  # it has many paths

    def inputs(self, rng):
        return tf.constant(rng.normal(size=(3, 6)), tf.float32), [int(n) for n in rng.integers(0, 4, rng.integers(1, 6))]

    def step(self, x, counts):
        with tf.GradientTape() as tape:
            h = x @ self.w
            for n in counts:
                inner = h
                for _ in range(n):
                    inner = tf.sin(inner @ self.u)
                h = h + 0.1 * inner
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss)
        return loss


@program
class BreakContinueElse(Program):
    most_fallbacks = 8
    most_graphs = 6

    def inputs(self, rng):
        return tf.constant(rng.normal(size=(3, 6)), tf.float32), [int(n) for n in rng.integers(0, 9, rng.integers(0, 9))]

    def step(self, x, kinds):
        with tf.GradientTape() as tape:
            h = x @ self.w
            for k in kinds:
                if k == 0:
                    continue
                if k == 8:
                    break
                h = tf.sin(h @ self.u) if k % 2 else tf.cos(h)
            else:
                h = h * 2.0
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss)
        return loss


@program
class Generator(Program):
    exact = False

    def states(self, x):
        h = tf.zeros([3, 8])
        for i in range(x.shape[1]):
            h = self.cell(x[:, i], h)
            yield h

    def step(self, x):
        with tf.GradientTape() as tape:
            total = tf.zeros([])
            for h in self.states(x):
                total = total + tf.reduce_mean(h)
            loss = total * total
        self.train(tape, loss)
        return loss


@program
class Comprehension(Program):
    exact = False

    def step(self, x):
        with tf.GradientTape() as tape:
            hidden = [tf.nn.relu(x[:, i] @ self.w) for i in range(x.shape[1])]
            best = max(hidden, key=lambda h: float(tf.reduce_sum(h)))
            loss = tf.reduce_mean(tf.stack(hidden)) + tf.reduce_mean(best)
        self.train(tape, loss)
        return loss


@program
class GrowingAttention(Program):
    exact = False
    tolerance = 1e-3

    def step(self, x):
        with tf.GradientTape() as tape:
            memory, h = [], tf.zeros([3, 8])
            for i in range(x.shape[1]):
                h = self.cell(x[:, i], h)
                memory.append(h)
                keys = tf.stack(memory, axis=1)
                weights = tf.nn.softmax(tf.einsum("bd,btd->bt", h, keys))
                h = h + tf.einsum("bt,btd->bd", weights, keys)
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss)
        return loss


@program
class Tree(Program):
    exact = False
    most_graphs = 4  # leaves, nodes, and trees that are one leaf
    minimum = 6

    def inputs(self, rng):
        def tree(n):
            return int(rng.integers(0, 5)) if n == 1 else (tree(k := int(rng.integers(1, n))), tree(n - k))

        return (tree(int(rng.integers(1, 9))),)

    def build(self):
        self.words = self.variable([5, 8])
        self.both = self.variable([16, 8])

    def encode(self, tree):
        if isinstance(tree, int):
            return tf.gather(self.words, [tree])
        return tf.tanh(tf.concat([self.encode(tree[0]), self.encode(tree[1])], 1) @ self.both + self.b)

    def step(self, tree):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.encode(tree) ** 2)
        self.train(tape, loss)
        return loss


@program
class Episode(Program):
    exact = False

    def build(self):
        self.policy = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
        self.rng = np.random.default_rng(3)

    @property
    def variables(self):
        return [v.value for v in self.policy.trainable_variables]

    def step(self, x):
        state = x[:1, 0]
        with tf.GradientTape() as tape:
            logs = []
            while True:
                logits = self.policy(state)
                p = tf.nn.softmax(logits).numpy()[0]
                action = int(self.rng.random() < p[1])
                logs.append(tf.nn.log_softmax(logits)[0, action])
                state = state * (0.8 if action else 1.1) + tf.constant(self.rng.normal(size=(1, 6)), tf.float32)
                if self.rng.random() < 0.15 or len(logs) == 15:
                    break
            loss = -tf.reduce_mean(tf.stack(logs))
        weights = self.policy.trainable_variables
        for v, g in zip(weights, tape.gradient(loss, weights)):
            v.assign_sub(0.05 * g)
        self.seen.append(len(logs))
        return loss


@program
class SamplesInTheLoop(Program):
    """Operations that stay imperative (that one has a seed of its own) are given what the tape records: nothing flows through a sample of a distribution, but something does through a `py_function`."""

    exact = False
    longest = 7
    through_python = False

    def step(self, x):
        with tf.GradientTape() as tape:
            h, losses = tf.zeros([3, 8]), []
            for i in range(x.shape[1]):
                h = self.cell(x[:, i], h)
                action = tf.random.categorical(h, 1)[:, 0]
                noise = tf.random.categorical(h * 2.0, 2, seed=9)
                chosen = tf.gather(tf.nn.log_softmax(h), action, axis=1, batch_dims=1)
                if self.through_python:
                    chosen = tf.py_function(lambda y: y * 2.0, [chosen], tf.float32)
                losses.append(tf.reduce_mean(chosen) + 0.01 * tf.reduce_mean(tf.cast(noise, tf.float32)) * tf.reduce_mean(h))
                self.seen.append(int(action[0]))
            loss = tf.add_n(losses)
        self.train(tape, loss)
        return loss


@program
class PythonInTheLoop(SamplesInTheLoop):
    through_python = True


@program
class StateAndRandomness(Program):
    def build(self):
        self.count = tf.Variable(0, dtype=tf.int32)
        self.dropout = keras.layers.Dropout(0.4, seed=3)

    def step(self, x):
        total = tf.zeros([3, 6])
        for i in range(x.shape[1]):
            self.count.assign_add(1)
            total = total + self.dropout(x[:, i], training=True) + tf.random.uniform([3, 6])
            if i % 3 == 2:
                self.b.assign(tf.reduce_mean(total) + self.b * 0.5)
        return total, self.count.read_value()


@program
class TrainingInTheLoop(Program):
    def step(self, x):
        losses = []
        for i in range(x.shape[1]):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x[:, i] @ self.w + self.b) ** 2)
            self.train(tape, loss, [self.w, self.b])
            losses.append(loss)
        return losses


@program
class PersistentTape(Program):
    exact = False

    def step(self, x):
        with tf.GradientTape(persistent=True) as tape:
            h = tf.zeros([3, 8])
            states = []
            for i in range(x.shape[1]):
                h = self.cell(x[:, i], h)
                states.append(h)
            first, second = tf.reduce_mean(h ** 2), tf.reduce_sum(tf.sin(states[0]))
        a = tape.gradient(first, [self.w, self.u])
        b = tape.gradient(second, [self.w, self.u, states[0]])
        c = tape.gradient(first, states[0])
        return a, b, c


@program
class SecondOrder(Program):  # TensorFlow's own tapes do the work; what varies is traced, until the policy leaves the steps alone
    exact = False
    steps = 20
    most_graphs = most_fallbacks = 20

    def step(self, x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                h = tf.zeros([3, 8])
                for i in range(x.shape[1]):
                    h = self.cell(x[:, i], h)
                loss = tf.reduce_mean(h ** 2)
            g = inner.gradient(loss, self.w)
            penalty = loss + tf.reduce_sum(g ** 2)
        self.train(outer, penalty, [self.w, self.u])
        return penalty

    minimum = 0


@program
class CustomGradient(Program):
    minimum = 0

    def step(self, x):
        @tf.custom_gradient
        def clipped(t):
            return t * 1.0, lambda dy: tf.clip_by_value(dy, -0.01, 0.01)

        with tf.GradientTape() as tape:
            h = tf.zeros([3, 8])
            for i in range(x.shape[1]):
                h = clipped(self.cell(x[:, i], h))
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss, [self.w, self.u])
        return loss


@program
class WatchedConstants(Program):
    exact = False

    def step(self, x):
        scale, shift = tf.constant(2.0), tf.constant([0.5, 0.25, 1.0])
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([scale, shift, self.w])
            total = tf.constant(0.0)
            for i in range(x.shape[1]):
                total += scale * tf.reduce_sum(shift[:, None] * (x[:, i] @ self.w))
            loss = total * scale
        a, b, c, d = tape.gradient(loss, [scale, shift, self.w, self.u])
        self.w.assign_sub(0.001 * c)
        return a, b, c, d is None


@program
class Embeddings(Program):
    exact = False

    def build(self):
        self.table = self.variable([11, 6])

    def inputs(self, rng):
        return (tf.constant(rng.integers(0, 11, (3, rng.integers(1, 9)))),)

    def step(self, ids):
        with tf.GradientTape() as tape:
            h = tf.zeros([3, 8])
            whole = tf.nn.embedding_lookup(self.table, ids)
            for i in range(ids.shape[1]):
                h = self.cell(tf.gather(self.table, ids[:, i]) + whole[:, i], h)
            loss = tf.reduce_mean(h ** 2)
        self.train(tape, loss)
        return loss


@program
class Exceptions(Program):
    def step(self, x):
        total = tf.zeros([3])
        for i in range(x.shape[1]):
            try:
                if i % 4 == 3:
                    raise KeyError(i)
                total = total + x[:, i, 0]
            except KeyError:
                total = total - 1.0
            finally:
                self.seen.append(i)
        return total


@program
class StateOnSelf(Program):
    def build(self):
        self.h = tf.zeros([3, 8])

    def step(self, x):
        with tf.GradientTape() as tape:
            for i in range(x.shape[1]):
                self.h = self.cell(x[:, i], self.h)
            loss = tf.reduce_mean(self.h ** 2)
        self.train(tape, loss)
        return loss


def frozen(value):
    return [t.numpy() if hasattr(t, "numpy") else t for t in tf.nest.flatten(value)]


def run(cls, wrap, late):
    keras.utils.set_random_seed(5)
    random.seed(5)
    made = cls()
    step = wrap(made.step)
    rng = np.random.default_rng(11)
    results, kinds = [], ""
    for _ in range(made.steps):
        before = step.stats() if hasattr(step, "stats") else None
        value = step(*made.inputs(rng))
        results.append(value if late else frozen(value))
        if before is not None:
            after = step.stats()
            kinds += "C" if after.coexecuted_steps > before.coexecuted_steps else "F" if after.fallbacks > before.fallbacks else "."
    if late:
        results = [frozen(value) for value in results]
    return results, [v.numpy() for v in made.variables], made.seen, step, kinds


@functools.cache
def eager_run(cls):
    """What is read later is the same."""
    return run(cls, lambda step: step, False)


@pytest.fixture(autouse=True)
def structures_recur_too_seldom(monkeypatch):
    """Steps stay in pieces, even where a length comes again by chance (tests/loops/test_recurring_structures.py is about that)."""
    monkeypatch.setattr(structure_specialisation, "TIMES", 1000)


@pytest.mark.parametrize("cls, late", [pytest.param(cls, late, id=f"{cls.__name__}-{'late' if late else 'now'}") for k, cls in enumerate(PROGRAMS)
                                       for late in ([False, True] if ALL else [k % 2 == 1])])
def test_equal_to_eager(cls, late):
    expected = eager_run(cls)
    actual = run(cls, lambda step: terra.coexecute(step, wait_for_graph=True), late)
    step, kinds = actual[3:]
    for number, (a, b) in enumerate(zip(expected[0], actual[0], strict=True)):
        for x, y in zip(a, b, strict=True):
            if cls.exact:
                np.testing.assert_array_equal(x, y, err_msg=f"step {number} ({kinds})")
            else:
                np.testing.assert_allclose(x, y, rtol=cls.tolerance, atol=0.01 * cls.tolerance, err_msg=f"step {number} ({kinds})")
    for x, y in zip(expected[1], actual[1], strict=True):
        np.testing.assert_allclose(x, y, rtol=0 if cls.exact else cls.tolerance, atol=0 if cls.exact else 0.01 * cls.tolerance)
    assert expected[2] == actual[2]
    stats = step.stats()
    report = f"{kinds}\n{stats}\n{terra.explain(step)}"
    assert stats.graphs <= cls.most_graphs, report
    assert stats.fallbacks <= cls.most_fallbacks, report
    assert kinds[-10:].count("C") >= getattr(cls, "minimum", 8), report


@pytest.mark.parametrize("cls", [cls for cls in PROGRAMS if cls.__name__ in ("Rnn", "StoppedGradient", "GivenGradients", "SamplesInTheLoop")], ids=lambda cls: cls.__name__)
def test_gradients_follow_plans(cls, monkeypatch):
    """In the end no gradient is taken by TensorFlow's tape, that of the loss itself (which begins with a constant) included."""
    taken = []
    original = segment_gradient._Backward._learn

    def noted(self, *args):
        taken.append(1)
        return original(self, *args)

    monkeypatch.setattr(segment_gradient._Backward, "_learn", noted)

    def counted(step):
        step = terra.coexecute(step, wait_for_graph=True)

        def run_step(*args):
            taken.append(0)
            return step(*args)
        run_step.stats = step.stats
        return run_step

    run(cls, counted, False)
    assert sum(taken) > 0
    in_the_end = taken[len(taken) - taken[::-1].index(0) - 1:]
    assert sum(in_the_end) == 0, taken


def test_choice_by_option():
    def make(**options):
        w = tf.Variable(2.0)

        def step(n):
            total = tf.constant(0.0)
            for k in range(n):
                total = total * w + float(k)
            return total

        return terra.coexecute(step, wait_for_graph=True, **options)

    expected = [sum(k * 2.0 ** (n - 1 - k) for k in range(n)) for n in range(9)]
    for options, counts, pieces in (
        ({"loops": "unroll"}, (6, 6, 7, 7, 8, 8, 6, 7), False),
        ({"loops": "roll"}, (2, 2, 3, 3, 2, 3, 2, 3), True),
        ({}, (2, 2, 3, 3, 2, 3, 2, 3), False),  # short, and two counts only
        ({}, (2, 3, 4, 2, 3, 4, 5, 6), True),
        ({}, (7, 7, 8, 8, 8, 7, 8, 7), True),
    ):
        step = make(**options)
        for n in counts:
            assert float(step(n)) == expected[n]
        assert (step.stats().pieces > 0) is pieces, (options, counts, step.stats())
        assert step.stats().rolled_loops == pieces
        assert step.stats().coexecuted_steps >= 2, (options, counts, step.stats())
    with pytest.raises(terra.errors.OptionError, match="'auto', 'roll', 'unroll', not 'no'"):
        make(loops="no")


def test_explain_tells_about_pieces():
    step = terra.coexecute(Rnn().step, wait_for_graph=True)
    rng = np.random.default_rng(0)
    for n in (5, 6, 7, 8, 9, 10, 11):
        step(tf.constant(rng.normal(size=(3, n, 6)), tf.float32))
    assert "cut into pieces, because 1 loops" in terra.explain(step, full=True)


def test_run_ahead_over_rolled_steps():
    """Nothing is read until the end: the steps' pieces queue up, their order is that of the program."""
    def run_with(wrap):
        keras.utils.set_random_seed(3)
        program = RnnOfFunction()
        step = wrap(program.step)
        rng = np.random.default_rng(4)
        losses = [step(*program.inputs(rng))[0] for _ in range(28)]
        return [float(loss) for loss in losses], [v.numpy() for v in program.variables]

    expected = run_with(lambda step: step)
    actual = run_with(lambda step: terra.coexecute(step, wait_for_graph=True, run_ahead=5))
    np.testing.assert_allclose(expected[0], actual[0], rtol=1e-4)
    for a, b in zip(expected[1], actual[1]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("new", ["reads", "writes"])
def test_new_piece_waits_for_pieces_in_flight(new):
    """A piece that has no graph yet runs imperatively: not before those in flight have changed, or read, the variables that it uses."""
    def run_with(wrap):
        v, other = tf.Variable(tf.ones([300, 300])), tf.Variable(1.0)

        def step(n, kind):
            for _ in range(n):
                long = tf.constant(1.0) * other
                for _ in range(4):  # of one trip count: part of the iteration's piece
                    long = long + tf.reduce_mean(v @ v @ v) * 1e-9
                v.assign(v * 0.99 + 1e-3 * long)
                other.assign(long)
            if kind == "reads":
                return other * 2.0
            if kind == "writes":
                other.assign_sub(3.0)
                v.assign_add(tf.ones_like(v))
            return tf.constant(0.0)

        step = wrap(step)
        values = [step(n, "neither") for n in (5, 6, 7, 8, 5, 6, 7, 2)]
        values += [step(2, new), step(3, "neither")]
        return [float(value) for value in values] + [float(other), *v.numpy()[0, :2]], step

    expected, _ = run_with(lambda step: step)
    actual, step = run_with(lambda step: terra.coexecute(step, wait_for_graph=True, run_ahead=5))
    np.testing.assert_allclose(expected, actual, rtol=1e-5)
    assert step.stats().coexecuted_steps >= 3, step.stats()


@pytest.mark.parametrize("where", [2, 9])
def test_kernel_failure_in_an_iteration(where):
    """What iterations before the failing one have assigned stays, nothing behind it happens."""
    def run_with(wrap):
        v = tf.Variable(0.0)

        def step(n, bad):
            for k in range(n):
                v.assign_add(1.0)
                tf.debugging.assert_less(v * 0.0, 1.0)
                tf.gather([1.0, 2.0], 5 if k == bad else 0)
            return v.read_value()

        step = wrap(step)
        seen = []
        for n in (4, 5, 6, 7, 8, 10, 11, 12):
            seen.append(float(step(n, -1)))
        try:
            step(12, where)
            terra.sync()
        except tf.errors.InvalidArgumentError as error:
            seen.append(type(error).__name__)
        seen.append(float(v))
        seen.append(float(step(5, -1)))
        return seen

    assert run_with(lambda step: step) == run_with(lambda step: terra.coexecute(step, wait_for_graph=True, run_ahead=0))


def test_exception_between_pieces():
    def run_with(wrap):
        v = tf.Variable(0.0)

        def step(n, bad):
            for k in range(n):
                v.assign_add(float(k))
                if k == bad:
                    raise KeyError(k)
                v.assign(v * 0.5)
            return v.read_value()

        step = wrap(step)
        seen = []
        for n in range(3, 16):
            try:
                seen.append(float(step(n, 2 if n % 4 == 3 else -1)))
            except KeyError as error:
                seen.append(repr(error))
            seen.append(float(v))
        return seen, step

    expected, _ = run_with(lambda step: step)
    actual, step = run_with(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert expected == actual
    assert step.stats().coexecuted_steps > 2 and step.stats().pieces


def test_shapes_along_a_known_path_are_no_fallback():
    """Batch sizes, image sizes and lengths at random: one graph, and no fallback once it is there."""
    def run_with(wrap):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((None, None, 2)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(),
                                  keras.layers.GlobalMaxPooling2D(), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(3)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

        def step(images, labels):
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) + tf.reduce_mean(images[:, ::2]) * 0.1
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss, tf.shape(logits), tf.concat([images, images], axis=1)

        step = wrap(step)
        rng = np.random.default_rng(1)
        seen = []
        for _ in range(16):
            batch, height, width = rng.integers(2, 9), rng.integers(5, 17), rng.integers(5, 17)
            seen.append(frozen(step(tf.constant(rng.normal(size=(batch, height, width, 2)), tf.float32), tf.constant(rng.integers(0, 3, batch)))))
        return seen, step

    expected, _ = run_with(lambda step: step)
    actual, step = run_with(lambda step: terra.coexecute(step, wait_for_graph=True, reduce_retracing=False))
    for a, b in zip(expected, actual, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    stats = step.stats()
    assert stats.graphs == 1 and stats.fallbacks == 0 and stats.coexecuted_steps >= 12, stats


@pytest.mark.parametrize("loops, reads", [("auto", True), ("unroll", False), *[("auto", False)] * ALL])
def test_branches_in_each_iteration(loops, reads):
    """Scheduled sampling: paths multiply with each iteration, until the loop is rolled."""
    def run_with(wrap):
        choose, table = random.Random(0), tf.Variable(tf.random.stateless_normal((10, 4), [1, 2]))

        def step(tokens):
            given, loss = tf.zeros((8,), tf.int32), 0.0
            with tf.GradientTape() as tape:
                for i in range(7):
                    logits = tf.matmul(tf.gather(table, given), table, transpose_b=True)
                    loss += tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, i], logits))
                    if choose.random() < 0.5:
                        given = tokens[:, i]
                    elif not reads or float(loss) > 0:
                        given = tf.argmax(logits, -1, output_type=tf.int32)
            table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
            return loss

        step, rng = wrap(step), np.random.default_rng(0)
        losses = [float(step(tf.constant(rng.integers(0, 10, (8, 7)), tf.int32))) for _ in range(16 if loops == "unroll" else 36)]
        return losses, table.numpy(), choose.random(), step

    *expected, _ = run_with(lambda step: step)
    *actual, step = run_with(terra.coexecute(wait_for_graph=True, loops=loops))
    np.testing.assert_allclose(expected[0], actual[0], rtol=1e-5)
    np.testing.assert_allclose(expected[1], actual[1], atol=1e-5)
    assert expected[2] == actual[2]
    stats = step.stats()
    assert stats.rolled_loops == (loops == "auto"), stats
    assert loops == "unroll" or stats.coexecuted_steps >= 10, stats
