"""Slices of variables: taken without TensorFlow's Python, skipped like other values, and assigned to as TensorFlow lets one do it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

X = tf.constant(np.random.RandomState(0).rand(5, 3), tf.float32)
START = np.arange(24, dtype=np.float32).reshape(8, 3)


class Embedding(keras.layers.Layer):
    """A layer that adds the first rows of its weights."""

    def __init__(self):
        super().__init__()
        self.rows = self.add_weight(shape=(8, 3), initializer=keras.initializers.Constant(0.5), name="rows")
        self.first = 0

    def call(self, x):
        return x + self.rows[self.first:self.first + x.shape[0]]


def run(make, wrap, n=24):
    """What the calls give and leave; `make` gives (step, change before call 12, what is left)."""
    step, change, left = make()
    step = wrap(step)
    seen = []
    for k in range(n):
        if k == 12:
            change()
        try:
            seen.append(tf.nest.map_structure(lambda x: np.asarray(x).tolist(), step(X + k)))
        except (tf.errors.InvalidArgumentError, AttributeError, TypeError, ValueError) as error:
            seen.append((type(error).__name__, str(error).partition(" name: ")[0]))
    return seen, tf.nest.map_structure(lambda x: np.asarray(x).tolist(), left()), step


def compare(make, skipped=0, whole=None, **options):
    *expected, _ = run(make, lambda step: step)
    *actual, step = run(make, lambda step: terra.coexecute(step, wait_for_graph=True, **options))
    assert actual == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 10, stats
    assert stats.fast_forwards >= skipped, terra.explain(step)
    if whole is not None:
        assert (stats.whole_steps > 0) == whole, terra.explain(step)
    return step


def nothing():
    pass


SPECS = {
    "rows": np.s_[2:7], "columns": np.s_[:, 1:], "one": np.s_[3], "ellipsis": np.s_[..., :2], "new axis": np.s_[tf.newaxis, 1:6], "steps": np.s_[::2, ::-1], "negative": np.s_[-5:-1],
    "nothing": np.s_[4:4]}


@pytest.mark.parametrize("name", SPECS)
def test_slices(name):
    spec = SPECS[name]

    def make():
        v = tf.Variable(START)

        def step(x):
            with tf.GradientTape() as tape:
                part = v[spec]
                loss = tf.reduce_sum(tf.square(part)) * tf.reduce_mean(x)
            v.assign_sub(0.001 * tf.convert_to_tensor(tape.gradient(loss, v)))
            return part, loss

        return step, nothing, lambda: v

    compare(make, skipped=10)


@pytest.mark.parametrize("spec", [lambda x: tf.constant(2), lambda x: tf.cast(x[0, 0], tf.int32) % 3, lambda x: slice(tf.constant(1), tf.constant(4))], ids=["constant", "computed", "bounds"])
def test_indices_that_are_tensors(spec):
    def make():
        v = tf.Variable(START)
        return (lambda x: v[spec(x)] + 1.0), nothing, lambda: v

    compare(make)


def test_a_mask():
    def make():
        v = tf.Variable(START)
        return (lambda x: v[v > 3.0] * 2.0), nothing, lambda: v

    compare(make)


def test_a_slice_is_assigned_to():
    def make():
        v = tf.Variable(START)

        def step(x):
            before = v[1:3]
            v[1:6].assign(x + before[0])
            v[0, 1:].assign(tf.reduce_sum(x, 0)[:2], name="first")
            assert callable(before.assign)
            return v[0], v[2, 1]

        return step, nothing, lambda: v

    compare(make)


def test_a_slice_that_was_made_elsewhere_is_assigned_to():
    """In a function that is given it, in the next step, outside of any step."""
    def make():
        v, held = tf.Variable(START), []

        def put(part, x):
            part.assign(x)

        def step(x):
            put(v[1:6], x)
            if held:
                held.pop().assign(x[:, :2] * 2.0)
            held.append(v[3:, 1:])
            return v[3]

        return step, (lambda: held[-1].assign(tf.zeros((5, 2)))), lambda: v

    compare(make)


def test_an_error_in_assigning():
    def make():
        v, rows = tf.Variable(START), [5]

        def step(x):
            v[:rows[0]].assign(x)
            return v[1]

        return step, (lambda: rows.__setitem__(0, 4)), lambda: v

    compare(make)


class Holder:
    """A function of the user's that gives a slice."""

    def __init__(self):
        self.table, self.other, self.n = tf.Variable(START), tf.Variable(START * 3.0), 5

    def part(self):
        return self.table[:self.n]


@pytest.mark.parametrize("assigns", [False, True])
@pytest.mark.parametrize("change", [lambda h: None, lambda h: setattr(h, "n", 1), lambda h: setattr(h, "table", h.other), lambda h: h.table.assign(START + 1.0)],
                         ids=["nothing", "n", "variable", "value"])
def test_a_function_that_gives_a_slice(change, assigns):
    def make():
        holder = Holder()

        def step(x):
            part = holder.part()
            result = tf.tanh(part * 0.1) + x
            if assigns:
                part.assign(part * 0.5)
            return result, part

        return step, lambda: change(holder), lambda: [holder.table, holder.other]

    compare(make, skipped=10)


@pytest.mark.parametrize("forward", [True, "framework"])
@pytest.mark.parametrize("change", [lambda m: None, lambda m: setattr(m, "first", 2), lambda m: m.rows.assign(START * 0.01)], ids=["nothing", "attribute", "value"])
def test_in_a_layer(change, forward):
    def make():
        layer, dense = Embedding(), keras.layers.Dense(1, kernel_initializer="ones")
        optimizer = keras.optimizers.SGD(0.01)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(dense(layer(tf.sin(x)))))
            weights = [layer.rows.value, dense.kernel.value]
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), [layer.rows, dense.kernel]))
            return loss

        return step, lambda: change(layer), lambda: layer.rows

    compare(make, skipped=10, whole=forward is True, fast_forward=forward)


def test_slicing_that_somebody_has_replaced(monkeypatch):
    original = tf.Variable.__getitem__

    def make():
        v = tf.Variable(START)
        return (lambda x: v[1:6] + x), lambda: monkeypatch.setattr(tf.Variable, "__getitem__", lambda v, spec: original(v, spec) + 100.0), lambda: v

    *expected, _ = run(make, lambda step: step)
    monkeypatch.undo()
    *actual, step = run(make, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().coexecuted_steps >= 8


def test_outside_of_steps():
    v = tf.Variable(START)
    part = v[1:3, 1]
    part.assign([50.0, 60.0])
    assert v.numpy()[1:3, 1].tolist() == [50.0, 60.0] and part.numpy().tolist() == [4.0, 7.0]


def test_verified():
    def make():
        v = tf.Variable(START)
        return (lambda x: (v[1:6] * x, v[2:, 1:])), nothing, lambda: v

    assert compare(make, verify=True).stats().verified_calls > 0
