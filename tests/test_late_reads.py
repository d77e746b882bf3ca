"""Steps that read numbers only to give them back are skipped; steps that look at them are not, however they do it."""

import math

import numpy as np
import pytest
import tensorflow as tf

import terra

X = [tf.constant([[0.1 * k, 1.0 - 0.3 * k], [2.0, 0.25 * k * k]]) for k in range(5)]


def run(body):
    """18 steps of `body(total, x)`, eagerly and co-executed: results must be the same. Returns how many were skipped as a whole."""
    results = []
    for coexecuted in (False, True):
        weight = tf.Variable(1.0)

        def step(x):
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(tf.tanh(x) * weight)
            weight.assign_sub(0.01 * tape.gradient(total, weight))
            return body(total, x)

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        results.append([_plain(wrapped(X[k % 5])) for k in range(18)])
    assert repr(results[0]) == repr(results[1])
    assert wrapped.stats().coexecuted_steps >= 8
    return wrapped.stats().whole_steps


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, dict):
        return {k: _plain(x) for k, x in value.items()}
    return value.numpy().tolist() if isinstance(value, tf.Tensor) else (type(value), value.tolist() if isinstance(value, np.ndarray) else value)


def relayed(value):
    return value


def doubled(value):
    return value * 2.0


RETURNED = {
    "float": lambda t, x: float(t),
    "numpy": lambda t, x: t.numpy(),
    "both": lambda t, x: (float(t), t.numpy(), [float(t)]),
    "in containers": lambda t, x: {"loss": float(t), "all": [t.numpy(), t.numpy()], "fixed": 3},
    "by a function": lambda t, x: relayed(float(t)),
    "by map": lambda t, x: [*map(relayed, [float(t)])],
    "then more is computed": lambda t, x: (float(t), tf.sin(x)),
    "appended": lambda t, x: [v for v in [float(t), float(t + 1.0)]],
    "not even returned": lambda t, x: (tf.cos(x), [float(t)][1:])[0],
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_given_back_is_read_late(name):
    assert run(RETURNED[name]) >= 8


LOOKED_AT = {
    "added": lambda t, x: float(t) + 1.0,
    "negated": lambda t, x: -float(t),
    "compared": lambda t, x: float(t) > 1.0,
    "compared and given back": lambda t, x: [v for v in [float(t)] if v > 1.0],
    "tested": lambda t, x: "yes" if float(t) else "no",
    "not": lambda t, x: not float(t - t),
    "or": lambda t, x: float(t) or 1.0,
    "chained": lambda t, x: 0.5 < float(t) < 1.2,
    "rounded": lambda t, x: round(float(t), 2),
    "int": lambda t, x: (int(t), int(float(t) * 10.0)),
    "str": lambda t, x: str(float(t)),
    "repr": lambda t, x: repr(float(t)),
    "f-string": lambda t, x: f"{float(t):.3f}",
    "format": lambda t, x: "{:.2f}".format(float(t)),
    "percent": lambda t, x: "%.2f" % float(t),
    "percent of several": lambda t, x: "%s %.2f" % ("loss", float(t)),
    "math": lambda t, x: math.exp(float(t)),
    "max": lambda t, x: max(float(t), 1.0),
    "sum": lambda t, x: sum([float(t), 1.0]),
    "sorted": lambda t, x: sorted([float(t), 1.0]),
    "key": lambda t, x: {float(t): 1},
    "lookup": lambda t, x: {1.0: "one"}.get(float(t), "other"),
    "index": lambda t, x: ["a", "b", "c"][int(t.numpy()) % 3],
    "searched": lambda t, x: float(t) in [1.0, 2.0],
    "counted": lambda t, x: [float(t), 1.0].count(float(t)),
    "method": lambda t, x: float(t).hex(),
    "attribute": lambda t, x: float(t).real,
    "constant": lambda t, x: tf.constant(float(t)) * 2.0,
    "operand": lambda t, x: x * float(t),
    "argument": lambda t, x: tf.multiply(x, y=float(t)),
    "in a list that is an argument": lambda t, x: tf.stack([float(t), 1.0]),
    "by a function": lambda t, x: doubled(float(t)),
    "by map": lambda t, x: list(map(doubled, [float(t)])),
    "by filter": lambda t, x: list(filter(None, [float(t - t), float(t)])),
    "numpy scalar": lambda t, x: t.numpy() + np.float32(1.0),
    "numpy function": lambda t, x: np.square(t.numpy()).tolist(),
    "np.array": lambda t, x: np.array([float(t)]),
    "item of an array": lambda t, x: tf.exp(x).numpy()[0, 0],
    "sum of an array": lambda t, x: tf.exp(x).numpy().sum().item(),
    "array in an operation": lambda t, x: tf.exp(x).numpy() @ np.ones((2, 2), "f"),
    "number in an operation": lambda t, x: t.numpy() * np.ones(2, "f"),
    "array": lambda t, x: tf.exp(x).numpy(),
    "array that is changed": lambda t, x: _changed(tf.exp(x).numpy()),
    "rows": lambda t, x: [row for row in tf.exp(x).numpy()],
    "unpacked": lambda t, x: _unpacked(tf.exp(x).numpy()[0]),
    "array unpacked": lambda t, x: _unpacked(tf.round(x[0] * 10.0).numpy()),
    "star": lambda t, x: max(*tf.exp(x).numpy()[0].tolist(), 0.5),
    "array starred": lambda t, x: [*tf.exp(x[0]).numpy()][1] > 1.0,
    "swapped": lambda t, x: [(b, a) for a, b in [tf.exp(x[0]).numpy()]],
    "loop": lambda t, x: _counted(tf.exp(x[0]).numpy()),
    "enumerated": lambda t, x: [k for k, v in enumerate(tf.exp(x[0]).numpy()) if v > 1.0],
    "getattr": lambda t, x: getattr(float(t), "real") > 1.0,
    "any": lambda t, x: any(tf.math.greater(x, 1.0).numpy()[0]),
    "length": lambda t, x: len(tf.boolean_mask(x, x > 1.0).numpy()),
    "slice of an array": lambda t, x: tf.exp(x).numpy()[:, 1:],
    "padded": lambda t, x: tf.pad(x, [[0, int(t.numpy() * 2.0) % 3], [0, 1]]),
    "assigned": lambda t, x: tf.Variable(1.0).assign(float(t)) + 0.0,
    "one of two reads": lambda t, x: (float(t), float(t) > 1.0),
    "sliced": lambda t, x: x[:int(float(t)) % 2 + 1],
    "small integer": lambda t, x: (int(tf.round(t)), 1, 2, 0),
    "stored": lambda t, x: _stored(float(t)),
    "array twice": lambda t, x: [tf.exp(x).numpy()] * 2,
    "truth": lambda t, x: ((t > 1.0).numpy(), np.True_, np.False_),
    "bytes": lambda t, x: (tf.strings.substr("ab", tf.cast(t > 1.0, tf.int32), 1).numpy(), b"a", b"b"),
    "augmented": lambda t, x: _augmented(float(t)),
    "in a dict": lambda t, x: _in_a_dict(float(t)),
    "nested": lambda t, x: tf.nest.map_structure(doubled, {"a": float(t)}),
    "cond": lambda t, x: tf.cond(float(t) > 1.0, lambda: x, lambda: -x),
    "by a layer": lambda t, x: LAYER(x, t.numpy()),
    "after what may fail": lambda t, x: _first(x - t),
}


class Scaled(tf.keras.layers.Layer):
    def call(self, x, by):
        return x * by


LAYER = Scaled()


def _first(x):
    try:
        return float(tf.squeeze(tf.boolean_mask(x, x > 0.5)))  # there may be several
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        return "several"


def _changed(array):
    array[0, 0] = 7.0
    return array


def _unpacked(values):
    a, b = values
    return "more" if a > b else "less", tf.zeros(int(abs(b)) % 4 + 1)


def _counted(values):
    n = 0
    for value in values:
        if value > 1.0:
            n += 1
    return n


def _stored(value):
    array = np.ones(2, "f")
    array[0] = value
    return tf.constant(array) * 2.0


def _augmented(value):
    total = 1.0
    total += value
    value += 1.0
    return total, value


def _in_a_dict(value):
    found = {"sum": 0.0, "same": value}
    found["sum"] += value
    found["same"] += 1.0
    return found


@pytest.mark.parametrize("name", LOOKED_AT)
def test_what_is_looked_at_is_right(name):
    run(LOOKED_AT[name])


def test_verified():
    """Both ways at each step."""
    @terra.coexecute(wait_for_graph=True, verify=True)
    def step(x):
        return float(tf.reduce_sum(x)), tf.reduce_max(x).numpy()

    for k in range(16):
        total, array = step(X[k % 5])
        assert total == float(tf.reduce_sum(X[k % 5])) and array == tf.reduce_max(X[k % 5]).numpy()
    assert step.stats().verified_calls >= 3
