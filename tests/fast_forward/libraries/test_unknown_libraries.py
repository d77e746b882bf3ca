"""Libraries of which nothing is known: their code is not instrumented, but a step is skipped only if it does nothing but compute."""

import importlib
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra.transform
from terra.transform import policy
from tests.harness import differ

N = 28
SOURCE = """
    import random

    import keras
    import tensorflow as tf

    LOG, FACTOR, STATE = [], 1.0, {"calls": 0}


    class Settings:
        scale = 1.0


    class Computes(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense, self.calls = keras.layers.Dense(4), 0

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return helper(self.dense(x))


    class Logs(Computes):
        def call(self, x):
            LOG.append(len(LOG))
            return self.dense(x)


    class ReadsGlobal(Computes):
        def call(self, x):
            return self.dense(x) * FACTOR


    class ReadsClass(Computes):
        def call(self, x):
            return self.dense(x) * Settings.scale


    class Draws(Computes):
        def call(self, x):
            return self.dense(x) * random.random()


    class Counts(Computes):
        def call(self, x):
            self.calls += 1
            return self.dense(x)


    class CountsElsewhere(Computes):
        def call(self, x):
            STATE["calls"] += 1
            return self.dense(x)


    class Prints(Computes):
        def call(self, x):
            print("called")
            return self.dense(x)


    class Guarded(Computes):
        @property
        def doubled(self):
            return helper(self.dense.kernel)

        def call(self, x):
            return x @ self.doubled


    def helper(x):
        return tf.nn.relu(x) * 2.0 - x * FACTOR


    def counted(x):
        STATE["calls"] += 1
        return helper(x)


    def logged(x):
        LOG.append(1)
        return helper(x)


    def apply(function, x):
        return function(x) + 1.0
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A module of a library that was installed."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    name = f"stranger_{tmp_path.name.replace('-', '_')}"
    (directory / f"{name}.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(str(directory))
    importlib.invalidate_caches()
    yield importlib.import_module(name)
    del sys.modules[name]


def given(k):
    return (tf.constant(np.random.RandomState(k % 4).rand(6, 4), tf.float32),)


def of_layer(stranger, name, around=lambda layer: keras.Sequential([keras.layers.Dense(4), layer, keras.layers.Dense(1)])):
    def make():
        stranger.FACTOR, stranger.Settings.scale = 1.0, 1.0
        layer = getattr(stranger, name)()
        model = around(layer)
        model.build((None, 4))
        stranger.LOG.clear()
        stranger.STATE["calls"] = layer.calls = 0
        weights = model.trainable_variables
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(weights)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        return step, lambda: [*weights, len(stranger.LOG), stranger.STATE["calls"], layer.calls]

    return make


LAYERS = {
    "Computes": 16, "Logs": 0, "ReadsGlobal": 8, "ReadsClass": 8, "Draws": 16, "Counts": 16, "CountsElsewhere": 10, "Prints": 10, "Guarded": 0}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_theirs_in_a_model(name, stranger, capfd):
    def change(k, step):
        if k == 18:
            stranger.FACTOR, stranger.Settings.scale = 2.0, 3.0

    stats = differ(of_layer(stranger, name), given, N, change=change)
    assert stats.coexecuted_steps >= 15 and stats.whole_steps >= LAYERS[name], stats
    if not LAYERS[name] and name != "Guarded":
        assert not stats.whole_steps
    assert capfd.readouterr().out.count("called") in ((0,) if name != "Prints" else (2 * N, 2 * N + 2, 2 * N + 4))  # (it is called to be built, too)


@pytest.mark.parametrize("name", ["Computes", "Counts", "Logs"])
def test_by_itself(name, stranger):
    stats = differ(of_layer(stranger, name, lambda layer: layer), given, N)
    assert stats.coexecuted_steps >= 15 and stats.whole_steps >= (16 if LAYERS[name] else 0), stats


def of_function(stranger, call):
    def make():
        stranger.LOG.clear()
        stranger.FACTOR, stranger.STATE["calls"] = 1.0, 0
        w = tf.Variable(tf.ones(4))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(call(x * w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, lambda: [w, len(stranger.LOG), stranger.STATE["calls"]]

    return make


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["", "verify"])
@pytest.mark.parametrize("name, whole", [("helper", 16), ("counted", 10), ("logged", 10), ("apply", 16)])
def test_a_function_of_theirs(name, whole, options, stranger):
    call = getattr(stranger, name) if name != "apply" else lambda x: stranger.apply(tf.sin, x)

    def change(k, step):
        if k == 18:
            stranger.FACTOR = 2.0

    stats = differ(of_function(stranger, call), given, N, change=change, **options)
    assert stats.coexecuted_steps >= 15, stats
    if not options:
        assert stats.whole_steps >= whole, stats


def test_code_that_must_not_be_changed(stranger):
    """Of a module that was excluded nothing is observed: a step that runs its code is not skipped."""
    before = dict(policy.settings.prefixes)
    try:
        terra.transform.configure(exclude=stranger.__name__)
        stats = differ(of_layer(stranger, "CountsElsewhere"), given, N)
        assert stats.coexecuted_steps >= 15 and not stats.whole_steps, stats
    finally:
        policy.settings.prefixes.clear()
        policy.settings.prefixes.update(before)
        terra.transform.configure()


def test_who_is_a_stranger():
    is_strange = policy.is_strange
    assert is_strange("somepackage.module", "/usr/lib/python3/dist-packages/somepackage/module.py")
    assert not is_strange("keras.src.layers", "/venv/site-packages/keras/src/layers/__init__.py")
    assert not is_strange("optree.ops", "/venv/site-packages/optree/ops.py")
    assert not is_strange("einops.einops", "/venv/site-packages/einops/einops.py")
    assert not is_strange("contextlib", importlib.import_module("contextlib").__file__)
    assert not is_strange("__main__", "/home/user/train.py")
