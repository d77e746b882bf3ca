"""Keras' own `train_step` and `test_step` by the express way: what `fit`, `evaluate` and `train_on_batch` do is what they do with `run_eagerly=True`, whatever
changes between two batches, or two calls of `fit`."""

import cProfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from terra.runtime.fast_forward.guards import guard_set
from terra.runtime.interpreter import profilers
from tests import harness

RNG = np.random.default_rng(0)
N, BATCH = 200, 8
X, Y = RNG.normal(size=(N, 4)).astype("f"), RNG.integers(0, 3, N)
KERAS = [pytest.param(keras, id="keras3"), pytest.param(tf_keras, id="tf_keras")]


def layers(K):
    return [K.layers.Dense(8, "tanh"), K.layers.Dropout(0.3, **({"seed": 1} if K is keras else {})), K.layers.Dense(3)]


def how(K):
    return dict(optimizer=K.optimizers.SGD(0.05, momentum=0.9), loss=K.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


def both(run, K, steps="train", make=None, options=(), key=None, **other):
    """`run(model)` with `run_eagerly=True`, and co-executed: must give the same; returns the `Stats` of the latter. `key` is that of `harness.once`."""
    def run_with(compile_model):
        K.utils.set_random_seed(7)
        model = K.Sequential(layers(K)) if make is None else make()
        model.build((None, 4))
        kept = compile_model(model, **{**how(K), **other})
        return repr((run(model), [w.tolist() for w in model.get_weights()])), kept

    expected = harness.once(key, lambda: run_with(lambda model, **how: model.compile(run_eagerly=True, **how))[0])
    actual, kept = run_with(lambda model, **how: terra.compile(model, wait_for_graph=True, **dict(options), **how))
    assert actual == expected
    return kept.stats()[steps]


def dataset(batch=BATCH, n=N):
    return tf.data.Dataset.from_tensor_slices((X[:n], Y[:n])).batch(batch)


@pytest.mark.one_variant
@pytest.mark.parametrize("K", KERAS)
def test_again_and_again(K):
    """Each `fit` leaves its History, and what it validates with, in the model: steps need not be learned anew for that."""
    counts = []

    def run(model):
        found = []
        for _ in range(3):
            found.append(model.fit(dataset(25), epochs=2, verbose=0, validation_data=dataset(50)).history)
            found.append(model.evaluate(dataset(50), verbose=0))
            counts.append(model.train_step.stats().whole_steps if hasattr(model.train_step, "stats") else 0)
        return found

    stats = both(run, K, optimizer="adam")
    assert counts[-1] - counts[-2] >= 2 * N // 25 - 2, (counts, stats)
    assert stats.express_steps >= 30, stats


@pytest.mark.parametrize("K", KERAS)
def test_many_short_fits(K):
    """What `fit` sets anew in the model goes to the end of its attributes, but is what it was."""
    stats = both(lambda model: [model.fit(dataset(25), verbose=0).history for _ in range(12)], K)
    assert stats.coexecuted_steps - stats.whole_steps <= 4, stats


def test_the_last_batch_is_smaller():
    stats = both(lambda model: model.fit(dataset(24), epochs=3, verbose=0).history, keras, optimizer="adam")
    assert stats.express_steps >= 12, stats
    assert stats.fallbacks <= 2, stats


def rate(K, model, other, n):
    model.optimizer.learning_rate = 0.5 if other else 0.01


def dropout(K, model, other, n):
    model.layers[1].rate = 0.9 if other else 0.3


def activation(K, model, other, n):
    model.layers[0].activation = K.activations.relu if other else K.activations.tanh


def frozen(K, model, other, n):
    model.layers[0].trainable = not other


def assigned(K, model, other, n):
    if n % 7 == 0:
        model.layers[2].bias.assign([1.0, 2.0, float(n)])


def regularizer(K, model, other, n):
    if n == 18:
        model.layers[2].kernel_regularizer = K.regularizers.L2(0.1)


def epsilon(K, model, other, n):
    K.backend.set_epsilon(1e-3 if other else 1e-7)


def seeds(K, model, other, n):
    if n % 10 == 0:
        tf.random.uniform(())
    if n == 21:
        K.utils.set_random_seed(3)


def own_step(K, model, other, n):
    """The model gets a step of its own, between two batches."""
    if n == 21:
        kept = model.train_step
        model.train_step = lambda data: {"loss": kept(data)["loss"] * 2.0}


EVERYWHERE = (assigned, regularizer, seeds, own_step)


def callback(K, change):
    class Changes(K.callbacks.Callback):
        n = 0

        def on_train_batch_end(self, batch, logs=None):
            self.n += 1
            if self.n % 12 in (10, 11) or change in EVERYWHERE:
                change(K, self.model, self.n % 12 == 10, self.n)

    return Changes()


@pytest.mark.parametrize("change, K", [*[(f, keras) for f in (rate, dropout, activation, frozen, assigned, regularizer, epsilon, seeds, own_step)],
                                       *[(f, tf_keras) for f in (rate, dropout, frozen, own_step)]], ids=lambda x: x.__name__.split(".")[0])
def test_something_changes_between_two_batches(change, K):
    try:
        stats = both(lambda model: model.fit(dataset(n=112), epochs=2, verbose=0, callbacks=[callback(K, change)]).history, K)
    finally:
        K.backend.set_epsilon(1e-7)
    assert stats.express_steps >= 12, stats


class LooksAtHistory(keras.Sequential):
    """What a `fit` leaves in the model matters after all: the program reads it."""

    def call(self, x, training=None, mask=None):
        seen = self.history
        return super().call(x, training=training) * (1.0 if seen is None or not seen.params or seen.params["epochs"] == 1 else 3.0)


def test_the_program_reads_what_fit_leaves_behind():
    def run(model):
        return [model.fit(dataset(n=64), epochs=epochs, verbose=0).history for epochs in (1, 1, 2, 1, 2)]

    stats = both(run, keras, make=lambda: LooksAtHistory(layers(keras)))
    assert stats.whole_steps >= 20, stats


class Doubles(keras.Model):
    """A Functional model, whose own call calls the stock one."""

    factor = 2.0

    def call(self, x, training=None, mask=None):
        return super().call(x, training=training) * self.factor


def test_a_model_s_call_calls_the_stock_one():
    def make():
        x = y = keras.Input((4,))
        for layer in layers(keras):
            y = layer(y)
        return Doubles(x, y)

    def other(K, model, other, n):
        model.factor = 3.0 if other else 2.0
        model.layers[2].rate = 0.9 if other else 0.3

    stats = both(lambda model: model.fit(dataset(n=112), epochs=2, verbose=0, callbacks=[callback(keras, other)]).history, keras, make=make)
    assert stats.express_steps >= 12, stats


def test_batches_are_mappings():
    def make():
        inputs = {"b": keras.Input((2,), name="b"), "a": keras.Input((2,), name="a")}
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()([inputs["b"], inputs["a"]])))

    data = tf.data.Dataset.from_tensor_slices(({"a": X[:128, :2], "b": X[:128, 2:]}, Y[:128])).batch(BATCH)
    stats = both(lambda model: model.fit(data, epochs=2, verbose=0).history, keras, make=make)
    assert stats.express_steps >= 20, stats


@pytest.mark.share(2)
@pytest.mark.parametrize("weights", [{"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}, {"sample_weight": np.linspace(0.1, 2.0, N)}], ids=["class", "sample"])
def test_weights(weights):
    stats = both(lambda model: model.fit(X, Y, batch_size=20, epochs=2, verbose=0, **weights).history, keras, optimizer="adam")
    assert stats.express_steps >= 10, stats


def floats_of(logs):
    return [float(x) for x in logs]


def test_batches_of_arrays():
    """Of other sizes and types, too, and tensors among them."""
    def run(model):
        found = []
        for k in range(32):
            x, y = X[k:k + (8 if k % 14 != 10 else 5)], Y[k:k + (8 if k % 14 != 10 else 5)]
            if k % 14 == 12:
                x = x.astype("float64")
            if k % 14 == 13:
                x = tf.constant(x)
            found.append(floats_of(model.train_on_batch(x, y)))
        return found

    stats = both(run, keras)
    assert stats.express_steps >= 14, stats


def test_an_array_is_given_twice():
    """A step that was prepared with two arrays is given one, as its input and as its target."""
    def run(model):
        return [floats_of(model.train_on_batch(X[k:k + 8], X[k:k + 8] if k % 3 else Z[k:k + 8])) if k % 10 else twice(model, X[k:k + 8]) for k in range(40)]

    def twice(model, x):
        return floats_of(model.train_on_batch(x, x))

    Z = X + 1.0
    stats = both(run, keras, make=lambda: keras.Sequential([keras.layers.Dense(4)]), loss="mse", metrics=["mae"])
    assert stats.express_steps >= 16, stats


def test_a_profiler_is_told_of_no_more_than_without_it():
    """What is known is skipped as before."""
    def run(model):
        model.fit(dataset(n=88), epochs=2, verbose=0)
        profile = cProfile.Profile()
        profile.enable()
        try:
            history = model.fit(dataset(n=88), epochs=1, verbose=0).history
        finally:
            profile.disable()
        return history

    stats = both(run, keras)
    assert stats.express_steps >= 24, stats  # more than two epochs give


def test_an_unknown_profiler_makes_nothing_be_prepared_in_vain(monkeypatch):
    """Calls cannot be watched beside it, so that they could not be recorded: not even the guard is made, which takes as long as the step, but for once, to find the program's classes."""
    made, original = [], guard_set.GuardSet.__init__
    monkeypatch.setattr(guard_set.GuardSet, "__init__", lambda *args: made.append(1) or original(*args))
    monkeypatch.setattr(profilers, "can_watch", lambda: False)
    stats = both(lambda model: model.fit(dataset(n=128), epochs=1, verbose=0).history, keras)
    assert stats.coexecuted_steps >= 10 and stats.express_steps == 0 and len(made) <= 1, (stats, made)


@pytest.mark.parametrize("K", KERAS)
def test_evaluate(K):
    stats = both(lambda model: [model.evaluate(dataset(n=120), verbose=0) for _ in range(3)], K, "test")
    assert stats.express_steps >= 25, stats


class LooksAtNumbers(keras.Sequential):
    """What Keras 3.12 has made numbers of is looked at by the user's code, in the step or in what Keras' step calls."""

    def __init__(self, where):
        super().__init__(layers(keras))
        self.where, self.found = where, []

    def train_step(self, data):
        logs = super().train_step(data)
        if self.where == "step" and float(logs["loss"]) > 1.0:
            self.found.append(round(float(logs["loss"]), 3))
        if self.where == "calculates":
            logs["twice"] = float(logs["loss"]) * 2.0
        return {**logs, "kind": 1.0} if self.where == "gives" else logs

    def compute_metrics(self, *args, **kwargs):
        logs = super().compute_metrics(*args, **kwargs)
        if self.where == "metrics":
            logs["above"] = 1.0 if float(logs["loss"]) > 1.0 else 0.0
        if self.where == "metrics calculates":
            logs["half"] = logs["loss"] / 2.0
        return dict(reversed(logs.items())) if self.where == "metrics gives" else logs


WAYS = ["nowhere", "step", "calculates", "gives", "metrics", "metrics calculates", "metrics gives"]


@pytest.mark.share(6)
@pytest.mark.parametrize("where, options", [(where, options) for k, where in enumerate(WAYS) for options in ({}, {"verify": True})[:2 - bool(k % 3)]], ids=str)
def test_numbers_of_metrics_are_looked_at(where, options):
    def run(model):
        found = []
        for k in range(0, 64, BATCH):
            logs = model.train_on_batch(X[k:k + BATCH], Y[k:k + BATCH], return_dict=True)
            found.append({name: float(value) for name, value in logs.items()})
        return found, model.fit(dataset(n=68), epochs=2, verbose=0).history, model.found

    stats = both(run, keras, make=lambda: LooksAtNumbers(where), options=options, key=("numbers", where))
    assert stats.coexecuted_steps >= 17, stats
    if where == "nowhere" and not options:
        assert stats.whole_steps >= 8, stats
