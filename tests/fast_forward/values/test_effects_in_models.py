"""Layers of the program's that keep something in attributes when they are called, within a stock model: the step is skipped with what they leave."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import differ


N = 28
log, SEEN = [], {"calls": 0}


def given(k):
    rng = np.random.RandomState(k % 4)
    return tf.constant(rng.rand(6, 4), tf.float32), tf.constant(rng.rand(6, 1), tf.float32)


class Kept(keras.layers.Layer):
    """The base of these layers: `left()` is what one has in its attributes."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")
        self.kept, self.calls, self.total = None, 0, 0.0
        self.history = []

    def left(self):
        return [self.kept, self.calls, self.total, len(self.history), *self.history[-2:]]


class Scores(Kept):
    def call(self, x):
        self.kept = tf.nn.softmax(self.dense(x))
        return x * self.kept


class Counts(Kept):
    def call(self, x):
        self.calls += 1
        return self.dense(x)


class CountsAndAsks(Kept):
    """It does something else now and then."""

    def call(self, x):
        self.calls += 1
        y = self.dense(x)
        return y * 0.5 if self.calls % 12 == 0 else y


class UsesItsCount(Kept):
    def call(self, x):
        self.calls += 1
        return self.dense(x) / float(self.calls)


class Several(Kept):
    def call(self, x):
        y = self.dense(x)
        self.kept = {"mean": tf.reduce_mean(y), "parts": [y[:, :2], y[:, 2:]]}
        self.total = 2.5
        return y


class Appends(Kept):
    """A list of a layer's counts as part of what the framework looks at: the step is not skipped."""

    def call(self, x):
        y = self.dense(x)
        self.history.append(tf.reduce_max(y))
        return y


class GoesOn(Kept):
    """What it left the last time is part of what it gives."""

    def call(self, x):
        y = self.dense(x)
        self.kept = y if self.kept is None else 0.9 * self.kept + 0.1 * y
        return self.kept


class ReadsBack(Kept):
    def call(self, x):
        self.kept = self.dense(x)
        return self.kept * 2.0 + tf.stop_gradient(self.kept)


class Elsewhere(Kept):
    def call(self, x):
        SEEN["calls"] += 1
        return self.dense(x)


class Prints(Kept):
    def call(self, x):
        log.append(x.shape[0])
        self.calls += 1
        return self.dense(x)


class OfTheFrameworks(Kept):
    """The attribute is one that Keras' own code looks at."""

    def call(self, x):
        self.supports_masking = not self.supports_masking
        return self.dense(x)


class Trainable(Kept):
    def call(self, x):
        self.calls += 1
        self.dense.trainable = self.calls % 2 == 0
        return self.dense(x)


LAYERS = {
    kind.__name__: (kind, whole) for kind, whole in (
        (Scores, 14), (Counts, 14), (CountsAndAsks, 7), (UsesItsCount, 0), (Several, 14), (Appends, 0), (GoesOn, 10), (ReadsBack, 14), (Elsewhere, 7), (Prints, 7),
        (OfTheFrameworks, 0), (Trainable, 0))}


def sequential(layer):
    return keras.Sequential([keras.layers.Dense(4), layer, keras.layers.Dense(1)])


def functional(layer):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(1)(layer(keras.layers.Dense(4)(inputs)) + inputs))


def nested(layer):
    return keras.Sequential([keras.layers.Dense(4), keras.Sequential([layer, keras.layers.LayerNormalization()]), keras.layers.Dense(1)])


def make(kind, around, looks=False):
    def made():
        log.clear()
        SEEN["calls"] = 0
        layer = kind()
        model = around(layer)
        model.build((None, 4))
        layer.calls, layer.kept, layer.dense.trainable = 0, None, True  # which was called with a symbolic tensor
        layer.history.clear()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        model(tf.zeros((6, 4)))

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
                if looks:
                    loss = loss + 0.1 * tf.reduce_mean(layer.kept ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        made.layer, made.model = layer, model
        return step, lambda: [*model.get_weights(), *layer.left(), len(log), SEEN["calls"]]
    return made


def watched(made):
    """The same, but each step gives what the layer has then, too."""
    def make_watched():
        step, state = made()
        outer = watched.steps = []

        def change(k, step):
            outer.append(made.layer.left()[1:3])

        make_watched.change = change
        return step, lambda: [*state(), *map(float, np.ravel(outer))]
    make_watched.change = lambda k, step: None
    return make_watched


@pytest.mark.share(12)
@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["", "verify"])
@pytest.mark.parametrize("name", LAYERS)
def test_in_a_sequential_model(name, options):
    kind, whole = LAYERS[name]
    made = watched(make(kind, sequential))
    stats = differ(made, given, N, change=lambda k, step: made.change(k, step), key=kind, **options)
    assert stats.coexecuted_steps >= (16 if name != "UsesItsCount" else 5), stats
    if not options:
        assert stats.whole_steps >= whole, stats


@pytest.mark.share(6)
@pytest.mark.parametrize("around", [functional, nested])
@pytest.mark.parametrize("kind", [Scores, Counts, GoesOn])
def test_in_other_models(kind, around):
    stats = differ(make(kind, around), given, N)
    assert stats.whole_steps >= 10, stats


def test_the_step_uses_what_was_left():
    stats = differ(make(Scores, functional, looks=True), given, N)
    assert stats.whole_steps >= 14, stats


class AsksWhatTheStepCounts(Kept):
    def call(self, x):
        self.kept = self.dense(x)
        return self.kept * 0.5 if SEEN["calls"] % 10 == 0 else self.kept


def test_a_layer_asks_about_what_the_step_counts_before():
    def make_counting():
        step, state = make(AsksWhatTheStepCounts, sequential)()

        def counting(x, y):
            SEEN["calls"] += 1
            return step(x, y)

        return counting, state

    stats = differ(make_counting, given, 44)
    assert stats.whole_steps >= 14, stats


@pytest.mark.parametrize("kind", [Counts, Scores, CountsAndAsks, Appends])
def test_the_step_changes_the_same(kind):
    def make_both():
        made = make(kind, sequential)
        step, state = made()
        layer = made.layer

        def both(x, y):
            layer.calls += 5
            layer.kept = tf.reduce_sum(x)
            loss = step(x, y)
            layer.calls += 2
            return loss, layer.kept

        return both, state

    stats = differ(make_both, given, 32)
    assert stats.whole_steps >= (14 if kind in (Counts, Scores) else 0), stats


def test_the_model_is_called_where_the_step_is_not_skipped():
    """What the layer asks about counts from where its own call begins."""
    def make_printing():
        step, state = make(AsksWhatTheStepCounts, sequential)()

        def printing(x, y):
            SEEN["calls"] += 1
            loss = step(x, y)
            sys._getframe()
            return loss

        return printing, state

    stats = differ(make_printing, given, 44)
    assert not stats.whole_steps and stats.coexecuted_steps >= 35, stats


CHANGES = {
    "the count": lambda layer: setattr(layer, "calls", 100),
    "another kind of count": lambda layer: setattr(layer, "calls", 0.5),
    "none is kept": lambda layer: setattr(layer, "kept", None),
    "a tensor of another shape": lambda layer: setattr(layer, "kept", tf.ones(4)),
    "what is kept": lambda layer: setattr(layer, "kept", "nothing"),
    "a list": lambda layer: layer.history.append(1.0),
    "the inner layer": lambda layer: setattr(layer.dense, "activation", tf.nn.relu),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", [Counts, Scores, Several, GoesOn])
def test_the_program_changes_it_between_steps(kind, name):
    made = make(kind, sequential)

    def change(k, step):
        if k in (14, 15, 21):
            CHANGES[name](made.layer)

    if kind is GoesOn and name == "what is kept":
        return  # it cannot go on with a text
    stats = differ(made, given, N, change=change)
    assert stats.whole_steps >= 6, stats


def test_a_method_of_the_layer_is_replaced():
    made = make(Counts, sequential)

    def change(k, step):
        if k == 14:
            made.layer.call = lambda x: x * 2.0

    stats = differ(made, given, N, change=change)
    assert stats.whole_steps >= 8, stats


def test_with_a_gradient_of_the_programs_own():
    @tf.custom_gradient
    def clipped(x):
        return tf.sin(x), lambda upstream: tf.clip_by_value(upstream, -0.1, 0.1)

    class Clips(Kept):
        def call(self, x):
            self.kept = clipped(self.dense(x))
            return self.kept

    stats = differ(make(Clips, functional), given, N)
    assert stats.whole_steps >= 10, stats
