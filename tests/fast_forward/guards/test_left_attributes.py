"""What the program sets in a layer of its own, and the framework's code reads: such calls are not skipped with what was there before."""

import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

SOURCE = """
from keras.src.layers.layer import Layer
NAMES = ["boost"]
class Around(Layer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.boost = 3.0
    def call(self, x):
        return {call}
def of(layer):
    return layer.boost
"""
CALLS = {  # by what the framework's code asks for the attribute, and whether it does so of the program's layer
    "by its name": ("self.inner(x) * self.inner.boost", True),
    "in a function": ("self.inner(x) * of(self.inner)", True),
    "getattr": ("self.inner(x) * getattr(self.inner, 'boost', 1.0)", True),
    "getattr of a name that is held": ("self.inner(x) * sum(map(self.ask, NAMES))", True),
    "vars": ("self.inner(x) * self.attributes(self.inner)['boost']", True),
    "__dict__": ("self.inner(x) * self.inner.__dict__['boost']", True),
    "of itself": ("self.inner(x) * self.boost", False),
    "not at all": ("self.inner(x) * 3.0", False),
}
MORE = """
    def ask(self, name):
        return getattr(self.inner, name)
    def attributes(self, owner):
        return vars(owner)
"""


class Inner(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")
        self.boost = None

    def call(self, x):
        return self.dense(x)


def given(k):
    return tf.constant(np.random.default_rng(k).random((6, 4)), tf.float32)


@pytest.mark.all_variants
@pytest.mark.parametrize("name", CALLS)
def test_what_the_framework_reads(name, monkeypatch):
    call, reads = CALLS[name]
    module = types.ModuleType("keras.src.layers.around")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE.format(call=call).replace("def of(", MORE.strip("\n") + "\ndef of("), vars(module))

    def run(co_executes):
        keras.utils.set_random_seed(1)
        layer = module.Around(Inner())
        layer.inner.boost = 0.5
        layer(given(0))

        def step(x):
            y = layer(x)
            layer.inner.boost = 1.0
            return y

        called, seen = terra.coexecute(step, wait_for_graph=True) if co_executes else step, []
        for k in range(30):
            layer.inner.boost = 0.5 + k // 4 % 3
            seen.append(called(given(k)).numpy())
        return seen, called

    (expected, _), (actual, called) = run(False), run(True)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    if not reads:
        assert called.stats().whole_steps >= 15
