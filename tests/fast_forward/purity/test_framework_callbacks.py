"""The user's code that the framework calls (layers in a Sequential, schedules, activations, losses): skipped with the call if it is pure, run if not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

RNG = np.random.default_rng(2)
X = [tf.constant(RNG.normal(size=(6, 4)).astype("float32")) for _ in range(3)]
CALLS = []
FACTOR = 1.5


def scaled_tanh(x):
    return tf.tanh(x) * FACTOR


def noted_tanh(x):
    CALLS.extend(["tanh"])
    return tf.tanh(x)


class Scale(keras.layers.Layer):
    """Pure."""

    def __init__(self, by):
        super().__init__()
        self.by = by
        self.options = {"shift": 0.5}

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.w * self.by + self.options["shift"]


class Counting(Scale):
    """Not pure."""

    def __init__(self, by):
        super().__init__(by)
        self.count = 0

    def call(self, x):
        self.count += 1
        CALLS.extend([self.count])
        return super().call(x) * (1.0 + self.count % 2)


def lifted(x):
    return x + FACTOR


class Helped(Scale):
    """Pure, with help of other methods and functions of the user's."""

    def _shifted(self, x):
        return tf.add(x, self.options["shift"]) * FACTOR

    @staticmethod
    def _bounded(x, most=2.0):
        return tf.minimum(x, most)

    @classmethod
    def _name(cls):
        return "Helped"

    @property
    def rate(self):
        return float(self.by) * 1.5

    def call(self, x):
        name = [c for c in self._name()]
        return self._bounded(scaled_tanh(super().call(x)) + lifted(self._shifted(x))) * float(len(name)) * self.rate


class Noting(Helped):
    """Not pure, because a helper is not."""

    def _shifted(self, x):
        CALLS.extend(["shifted"])
        return x


class LegacyScale(tf_keras.layers.Layer):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.w * self.by


class Decay(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.start = 0.1

    def __call__(self, step):
        return self.start / (tf.cast(step, tf.float32) + 1.0)


class NotedDecay(Decay):
    def __call__(self, step):
        CALLS.extend(["rate"])
        return super().__call__(step)


class Huber(keras.losses.Loss):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def call(self, y_true, y_pred):
        return keras.ops.minimum(keras.ops.square(y_true - y_pred), self.delta)


def loss_function(y_true, y_pred):
    return tf.reduce_mean(tf.abs(y_true - y_pred) * FACTOR)


def program(layers, optimizer=lambda: keras.optimizers.SGD(0.1), loss=lambda: keras.losses.MeanSquaredError(), library=keras):
    """make() for `check`: a Sequential of these layers, trained."""
    def make():
        model = library.Sequential([library.layers.Input((4,)), *layers(), library.layers.Dense(2)])
        trained, measure = optimizer(), loss()
        trained.build(model.trainable_variables)
        target = tf.ones((6, 2))

        def step(x):
            with tf.GradientTape() as tape:
                value = measure(target, model(x, training=True))
            variables = model.trainable_variables
            trained.apply_gradients(zip(tape.gradient(value, variables), variables))
            return value

        return step, model.get_weights, model, trained, measure

    return make


def check(make, change=None):
    """20 steps; `change(model, optimizer, loss)` before the tenth. Results, weights and Python's traces must be eager's. Returns the statistics."""
    runs = []
    for coexecuted in (False, True):
        keras.utils.set_random_seed(4)
        tf_keras.utils.set_random_seed(4)
        CALLS.clear()
        step, state, *parts = make()
        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        seen = []
        for k in range(20):
            if k == 10 and change is not None:
                change(*parts)
            seen.append(np.asarray(wrapped(X[k % 3])))
        runs.append([*seen, *map(np.asarray, state()), list(CALLS)])
    for expected, actual in zip(*runs, strict=True):
        np.testing.assert_array_equal(expected, actual)
    stats = wrapped.stats()
    assert stats.coexecuted_steps >= 8, stats
    return stats


PURE = {
    "layer": program(lambda: [Scale(2.0)]),
    "two layers": program(lambda: [Scale(2.0), keras.layers.Dense(4), Scale(0.5)]),
    "helpers": program(lambda: [Helped(2.0), keras.layers.Dense(4, activation=scaled_tanh)]),
    "activation": program(lambda: [keras.layers.Dense(4, activation=scaled_tanh)]),
    "lambda": program(lambda: [keras.layers.Lambda(lambda x: x * FACTOR)]),
    "schedule": program(lambda: [], lambda: keras.optimizers.Adam(Decay())),
    "loss class": program(lambda: [], loss=lambda: Huber(0.5)),
    "loss function": program(lambda: [], loss=lambda: keras.src.losses.losses.LossFunctionWrapper(loss_function)),
    "everything": program(
        lambda: [Scale(2.0), keras.layers.Dense(4, activation=scaled_tanh)], lambda: keras.optimizers.Adam(Decay()), lambda: Huber(0.5)),
    "tf_keras": program(
        lambda: [LegacyScale(2.0)], lambda: tf_keras.optimizers.SGD(0.1), lambda: tf_keras.losses.MeanSquaredError(), tf_keras),
}


@pytest.mark.share(8)
@pytest.mark.parametrize("name", PURE)
def test_pure_code_is_skipped(name):
    stats = check(PURE[name])
    assert stats.whole_steps >= 5 and stats.fallbacks == 0, stats


IMPURE = {
    "layer": program(lambda: [Counting(2.0)]),
    "helper": program(lambda: [Noting(2.0)]),
    "activation": program(lambda: [keras.layers.Dense(4, activation=noted_tanh)]),
    "lambda": program(lambda: [keras.layers.Lambda(lambda x: CALLS.extend([1]) or x * FACTOR)]),
    "schedule": program(lambda: [], lambda: keras.optimizers.SGD(NotedDecay())),
}


@pytest.mark.parametrize("name", IMPURE)
def test_impure_code_runs(name):
    stats = check(IMPURE[name])
    assert len(CALLS) >= 20, stats  # (as often as eagerly, as the calls that note this are made in each step)


def _global(value):
    global FACTOR
    FACTOR = value


def _method(model, *_):
    def call(x):
        CALLS.append("mine")
        return x * 3.0

    model.layers[0].call = call


CHANGES = {
    "attribute": ("layer", lambda model, *_: setattr(model.layers[0], "by", 3.0)),
    "dict": ("layer", lambda model, *_: model.layers[0].options.update({"shift": 0.1})),
    "weight": ("layer", lambda model, *_: model.layers[0].w.assign([1.0, 2.0, 3.0, 4.0])),
    "method": ("layer", _method),
    "inner layer": ("two layers", lambda model, *_: setattr(model.layers[2], "by", 3.0)),
    "global of an activation": ("activation", lambda *_: _global(0.5)),
    "activation": ("activation", lambda model, *_: setattr(model.layers[0], "activation", noted_tanh)),
    "global of a lambda": ("lambda", lambda *_: _global(0.5)),
    "schedule": ("schedule", lambda model, optimizer, _: setattr(optimizer._learning_rate, "start", 0.5)),
    "loss": ("loss class", lambda model, optimizer, loss: setattr(loss, "delta", 0.1)),
    "global of a loss": ("loss function", lambda *_: _global(0.5)),
    "tf_keras": ("tf_keras", lambda model, *_: setattr(model.layers[0], "by", 3.0)),
    "global of a helper": ("helpers", lambda *_: _global(0.5)),
    "dict of a helper": ("helpers", lambda model, *_: model.layers[0].options.update({"shift": 0.1})),
    "default of a helper": ("helpers", lambda *_: setattr(Helped._bounded, "__defaults__", (0.5,))),
    "helper": ("helpers", lambda model, *_: setattr(model.layers[0], "_shifted", lambda x: CALLS.append("mine") or x)),
    "attribute of the base": ("helpers", lambda model, *_: setattr(model.layers[0], "by", 3.0)),
    "code of a helper": ("helpers", lambda *_: setattr(lifted, "__code__", noted_tanh.__code__)),
    "code": ("activation", lambda *_: setattr(scaled_tanh, "__code__", noted_tanh.__code__)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name):
    which, change = CHANGES[name]
    code, lifts = scaled_tanh.__code__, lifted.__code__

    def make():
        _global(1.5)
        scaled_tanh.__code__, lifted.__code__ = code, lifts
        Helped._bounded.__defaults__ = (2.0,)
        return PURE[which]()

    try:
        stats = check(make, change)
    finally:
        _global(1.5)
        scaled_tanh.__code__, lifted.__code__ = code, lifts
        Helped._bounded.__defaults__ = (2.0,)
    assert stats.whole_steps >= 2, stats


def test_the_users_functions_keep_their_code():
    code = scaled_tanh.__code__, Scale.build.__code__, Decay.__call__.__code__
    check(PURE["everything"])
    assert scaled_tanh.__code__ is code[0] and Scale.build.__code__ is code[1] and Decay.__call__.__code__ is code[2]
