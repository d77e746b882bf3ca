"""What depends on shapes and other static things alone runs no operation: a step that asks for it is skipped as a whole, and knows when it has changed."""
import numpy as np
import pytest
import tensorflow as tf

import terra


def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


HELD = {"list": [1.0, 2.0, 3.0], "axis": 0, "array": floats(3)}
STEPS = {
    "shape": lambda x: tf.tanh(x) + tf.cast(tf.shape(x)[0], tf.float32),
    "noise of this shape": lambda x: x + tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "size": lambda x: tf.reduce_sum(tf.tanh(x)) / tf.cast(tf.size(x), tf.float32),
    "zeros like": lambda x: tf.tanh(x) + tf.zeros_like(x) + tf.ones_like(x),
    "convert a list": lambda x: tf.tanh(x) * tf.convert_to_tensor(HELD["list"]),
    "convert an array": lambda x: tf.tanh(x) * tf.convert_to_tensor(HELD["array"]),
    "expand dims": lambda x: tf.tanh(x) * tf.expand_dims(HELD["list"], HELD["axis"]),
    "squeeze": lambda x: tf.tanh(x) * tf.squeeze([HELD["list"]], HELD["axis"]),
    "is tensor": lambda x: tf.tanh(x) * (2.0 if tf.is_tensor(HELD["list"]) else 3.0),
    "linspace": lambda x: tf.tanh(x) * tf.linspace(0.0, HELD["list"][0], 3),
    "gather": lambda x: tf.tanh(x) * tf.gather(HELD["list"], [HELD["axis"]]),
}


def change(i):
    if i == 14:
        HELD["list"][0] = 5.0
    elif i == 17:
        HELD["array"][1] = -4.0
    elif i == 20:
        HELD["list"].reverse()
    HELD["axis"] = 0


def observe(name, wrap):
    HELD.update(list=[1.0, 2.0, 3.0], axis=0, array=floats(3))
    v = tf.Variable(0.0)
    body = STEPS[name]

    def step(x):
        y = body(x)
        v.assign_add(tf.reduce_mean(y))
        return tf.sin(y)

    step, seen = wrap(step), []
    for i in range(30):
        change(i)
        x = tf.constant(floats(4 if 8 <= i < 11 or i > 24 else 2, 3, seed=i))
        seen.append((step(x).numpy().tolist(), float(v)))
    return seen, step


@pytest.mark.parametrize("name", STEPS)
def test_static_functions(name):
    expected, _ = observe(name, lambda step: step)
    actual, step = observe(name, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().whole_steps >= 8, terra.explain(step)
