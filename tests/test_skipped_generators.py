"""Calls of a `tf.random.Generator` are skipped like other calls of the framework's, and draw the numbers that they would draw."""
import pytest
import tensorflow as tf

import terra

CALLS = {
    "normal": lambda g: g.normal((4,), 1.0, 2.0),
    "uniform": lambda g: g.uniform((4,), -1.0, 1.0),
    "uniform ints": lambda g: tf.cast(g.uniform((4,), 0, 100, tf.int64), tf.float32),
    "uniform_full_int": lambda g: tf.cast(g.uniform_full_int((4,)) % 1000, tf.float32),
    "truncated_normal": lambda g: g.truncated_normal((4,)),
    "binomial": lambda g: tf.cast(g.binomial((4,), 10.0, 0.5), tf.float32),
}


class Shifted(tf.random.Generator):
    def normal(self, *args, **kwargs):
        return super().normal(*args, **kwargs) + self.shift


def nothing(g):
    return g


def reset(g):
    g.reset_from_seed(5)
    return g


def skip(g):
    g.skip(3)
    return g


def other(g):
    return tf.random.Generator.from_seed(9)


def subclass(g):
    made = Shifted.from_seed(9)
    made.shift = 100.0
    return made


def patched_instance(g):
    g.normal = lambda shape, mean, stddev: tf.zeros(shape) + 7.0
    return g


def losses(draw, change, wrap):
    held = [tf.random.Generator.from_seed(1)]
    w = tf.Variable([1.0, 2.0, 3.0, 4.0])

    def step(x):
        noise = draw(held[0])
        loss = tf.reduce_sum(tf.tanh(x + noise * w))
        w.assign_sub(0.01 * noise)
        return loss

    step = wrap(step)
    seen = []
    for i in range(24):
        if i == 12:
            held[0] = change(held[0])
        seen.append(float(step(tf.constant([1.0, 2.0, 3.0, float(i)]))))
    return seen, step


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("change", [nothing, reset, skip, other], ids=lambda f: f.__name__)
def test_draws(name, change):
    expected, _ = losses(CALLS[name], change, lambda step: step)
    actual, step = losses(CALLS[name], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().coexecuted_steps >= 18
    if name != "binomial":  # which runs imperatively
        assert step.stats().whole_steps >= 12


@pytest.mark.parametrize("change", [subclass, patched_instance], ids=lambda f: f.__name__)
def test_replaced_methods(change):
    expected, _ = losses(CALLS["normal"], change, lambda step: step)
    actual, step = losses(CALLS["normal"], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 5


def test_a_replaced_method_of_the_class(monkeypatch):
    def change(g):
        original = tf.random.Generator.normal
        monkeypatch.setattr(tf.random.Generator, "normal", lambda self, *args: original(self, *args) + 1.0)
        return g

    expected, _ = losses(CALLS["normal"], change, lambda step: step)
    monkeypatch.undo()
    actual, step = losses(CALLS["normal"], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 5
