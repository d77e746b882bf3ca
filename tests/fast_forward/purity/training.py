"""A step that trains a matrix through a body that is tried, as several files here have it."""

import pytest
import tensorflow as tf

from terra.transform import policy

DATA = [tf.random.stateless_normal([4, 6], [k, 1]) for k in range(30)]


class Weights:
    """What steps train."""

    def __init__(self):
        self.w = tf.Variable(tf.random.stateless_normal([6, 6], [2, 3]), name="weights")


def training(begin, body, look, change=None, rate=0.01):
    """`make` for `harness.compare_steps`: `begin()` gives what `body(held, x)` reads and trains, `look(held)` what is to be compared; `change(held, k)` runs before step k."""
    def make():
        held = begin()

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(body(held, x) ** 2)
            held.w.assign_sub(rate * tape.gradient(loss, held.w))
            return loss

        def call(step, k):
            if change is not None:
                change(held, k)
            return step(DATA[k])

        return step, call, lambda: look(held)

    return make


def as_library(module):
    """A fixture: whether the code of a module is a library's, which is not instrumented."""
    @pytest.fixture(params=[False, True], ids=["program", "library"])
    def of_library(request, monkeypatch):
        if request.param:
            monkeypatch.setitem(policy.settings.prefixes, module.__name__, False)
            policy.configure()  # what was decided for its code is forgotten
        yield
        monkeypatch.undo()
        policy.configure()

    return of_library
