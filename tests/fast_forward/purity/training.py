"""A step that trains a matrix through a body that is tried, as several files here have it."""

import importlib
import inspect
import itertools

import keras
import pytest
import tensorflow as tf

import terra

DATA = [tf.random.stateless_normal([4, 6], [k, 1]) for k in range(50)]


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


def inside(body):
    """The body of a step that calls a layer of Keras', of a class of its own, whose `call` is `body`."""
    layers = {}

    class Layer(keras.layers.Layer):
        def __init__(self, held):
            super().__init__()
            self.held = [held]

        def call(self, x):
            return body(self.held[0], x)

    def called(held, x):
        if id(held) not in layers:
            layers[id(held)] = Layer(held)
        return layers[id(held)](x)

    return called


def trains(model, optimizer, loss_of):
    """Returns a step that trains a Keras model."""
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def around(layer, x, y):
    """(a Keras model with this layer between dense ones, a step that trains it on these examples)"""
    model = keras.Sequential([keras.layers.Dense(6, "tanh"), layer, keras.layers.Dense(6)])
    model.build((None, 6))
    train = trains(model, keras.optimizers.SGD(0.01), lambda p: tf.reduce_mean(tf.square(y - p)))
    return model, lambda: train(x)


def compiled(model, run_eagerly, **how):
    """Compiles a Keras model, eagerly or co-executed: returns what `terra.compile` does, and examples for `fit`."""
    examples = tf.concat(DATA, 0)
    data = tf.data.Dataset.from_tensor_slices((examples, tf.reduce_sum(examples, -1, keepdims=True))).batch(4)
    return model.compile(run_eagerly=True, **how) if run_eagerly else terra.compile(model, wait_for_graph=True, **how), data


def as_library(module):
    """A fixture: a module of programs, or a copy of it that is installed as a library, whose code is observed but not instrumented."""
    @pytest.fixture(params=[False, True], ids=["program", "library"])
    def code(request, tmp_path, monkeypatch):
        if not request.param:
            return module
        folder = tmp_path / "site-packages"
        folder.mkdir()
        name = f"{module.__name__.rpartition('.')[2]}_{next(_numbers)}"
        (folder / f"{name}.py").write_text(inspect.getsource(module))
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module(name)

    return code


_numbers = itertools.count()
