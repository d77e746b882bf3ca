"""Layers with a `tf.custom_gradient`, inside of a model whose call is the framework's: such steps are skipped as a whole, and right when something changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

RNG = np.random.default_rng(0)
X = [tf.constant(RNG.normal(size=(8, 6)).astype("f")) for _ in range(3)]
Y = [tf.constant(RNG.integers(0, 3, 8)) for _ in range(3)]
WORLD = {"factor": 0.5, "seen": []}


@tf.custom_gradient
def binarized(x):
    def gradient(dy):
        return tf.where(tf.abs(x) <= 1.0, dy, tf.zeros_like(dy))

    return tf.sign(x), gradient


@tf.custom_gradient
def scaled_by_a_global(x):
    return tf.tanh(x), lambda dy: dy * WORLD["factor"]


@tf.custom_gradient
def noted(x):
    def gradient(dy):
        WORLD["seen"].append(len(WORLD["seen"]))
        return dy * 0.5

    return tf.tanh(x), gradient


class Function(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Binarized(keras.layers.Layer):
    def call(self, x):
        return binarized(x)


class Reversal(keras.layers.Layer):
    """As it is found in many a notebook: the function is made anew at each call, and its gradient reads an attribute."""

    def __init__(self, factor=0.7):
        super().__init__()
        self.factor = factor

    def call(self, x):
        @tf.custom_gradient
        def reverse(x):
            def gradient(dy):
                return -self.factor * dy

            return tf.identity(x), gradient

        return reverse(x)


class WithVariables(keras.layers.Layer):
    """A dense layer whose gradient is written by hand."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 5), initializer="glorot_uniform", name="kernel")

    def call(self, x):
        kernel = self.kernel.value

        @tf.custom_gradient
        def product(x):
            def gradient(dy, variables=None):
                return dy @ tf.transpose(kernel), [tf.clip_by_norm(tf.transpose(x) @ dy, 1.0)]

            return x @ kernel, gradient

        return product(x)


class Quantizer(keras.layers.Layer):
    """Two functions, one in the other's gradient."""

    def call(self, x):
        @tf.custom_gradient
        def rounded(x):
            return tf.round(x * 4.0) / 4.0, lambda dy: binarized(dy) * 0.1 + dy

        return rounded(x) + binarized(x * 0.3) * 0.2


def sequential(layer):
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), layer, keras.layers.Dense(3)])


def functional(layer):
    given = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="relu")(given)
    return keras.Model(given, [keras.layers.Dense(3)(hidden), keras.layers.Dense(3)(layer(hidden))])


class Subclass(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.inner, self.last = sequential(layer), keras.layers.Dense(3)

    def call(self, x):
        return self.last(tf.nn.relu(self.inner(x)))


def training(model_of, layer_of, change=None, every=11, also=lambda: None, persistent=False, after=lambda loss: loss):
    """A job for `harness.compare_steps`. `change(k, model)` is made every so many steps."""

    def make():
        WORLD.update(factor=0.5, seen=[])
        model = model_of(layer_of())
        optimizer, loss_function = keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def step(x, y):
            with tf.GradientTape(persistent=persistent) as tape:
                loss = tf.add_n([loss_function(y, out) for out in tf.nest.flatten(model(x, training=True))])
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return after(loss), tf.linalg.global_norm(gradients)

        def call(step, k):
            if change is not None and k % every == every - 1:
                change(k, model)
            return step(X[k % 3], Y[k % 3])

        return step, call, lambda: (model.variables, optimizer.variables, also())

    return make


LAYERS = {
    "binarized": Binarized, "reversal": Reversal, "variables": WithVariables, "quantizer": Quantizer, "global": lambda: Function(scaled_by_a_global),
    "activation": lambda: keras.layers.Activation(binarized), "dense": lambda: keras.layers.Dense(5, activation=binarized), "twice": lambda: keras.Sequential([keras.layers.Dense(4, activation=binarized), keras.layers.Dense(5, activation=binarized)]),
    "lambda": lambda: keras.layers.Lambda(lambda x: binarized(x) * 2.0),
}


@pytest.mark.share(8)
@pytest.mark.parametrize("model_of, name", [(model_of, name) for k, name in enumerate(LAYERS) for model_of in (sequential, (functional, Subclass)[k % 2])],
                         ids=lambda x: x if isinstance(x, str) else x.__name__.lower())
def test_such_steps_are_skipped(model_of, name):
    harness.compare_steps(training(model_of, LAYERS[name]), whole=8, n=24)


def test_a_persistent_tape():
    harness.compare_steps(training(sequential, Binarized, persistent=True), n=24)


def test_they_are_verified():
    harness.compare_steps(training(sequential, Reversal), n=24, verify=True)


def test_the_model_alone():
    """Without a tape nobody is told of the gradient function."""

    def make():
        model = sequential(Binarized())
        return lambda x: model(x), lambda step, k: step(X[k % 3]), lambda: model.variables

    harness.compare_steps(make)


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["terra.compile", "run_eagerly"])
def test_fit(kind):
    """Keras' own step is one call of the framework's, with the gradient in it."""
    results = []
    for ours in (False, True):
        harness.reset_seeds()
        model = sequential(Reversal())
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        steps = terra.compile(model, wait_for_graph=True) if ours else None
        model.fit(np.concatenate(X), np.concatenate(Y), batch_size=4, epochs=4, shuffle=False, verbose=0)
        results.append([v.numpy() for v in model.variables])
    assert all((a == b).all() for a, b in zip(*results))
    stats = steps.stats()["train"]
    assert stats.coexecuted_steps > 17 and stats.whole_steps > 10, (stats, terra.explain(steps))


# -- what the guards are for -------------------------------------------------------------------------------------------------------


def test_an_attribute_that_only_the_gradient_reads():
    def change(k, model):
        model.layers[1].factor += 0.5

    harness.compare_steps(training(sequential, Reversal, change), n=33, express=0, whole=8)


def test_a_global_that_only_the_gradient_reads():
    def change(k, model):
        WORLD["factor"] += 0.5

    harness.compare_steps(training(sequential, lambda: Function(scaled_by_a_global), change), n=33, express=0, whole=8)


def test_another_function():
    def change(k, model):
        model.layers[1].function = binarized if k % 2 else scaled_by_a_global

    harness.compare_steps(training(sequential, lambda: Function(scaled_by_a_global), change), n=33, express=0, whole=8)


def test_another_rate_of_dropout_beside_it():
    def model_of(layer):
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dropout(0.2), layer, keras.layers.Dense(3)])

    def change(k, model):
        model.layers[1].rate = 0.5 - model.layers[1].rate

    harness.compare_steps(training(model_of, Binarized, change), n=33, express=0, whole=8)


def test_a_layer_that_is_no_longer_trained():
    def change(k, model):
        model.layers[0].trainable = not model.layers[0].trainable

    harness.compare_steps(training(sequential, Binarized, change), n=33, express=0, whole=8)


def test_a_gradient_that_notes_something():
    steps = harness.compare_steps(training(sequential, lambda: Function(noted), also=lambda: WORLD["seen"]), whole=15, express=0)
    assert steps.stats().coexecuted_steps > 20


def test_a_gradient_that_prints(capsys):
    def layer_of():
        @tf.custom_gradient
        def printing(x):
            def gradient(dy):
                print("gradient")
                return dy

            return tf.identity(x), gradient

        return Function(printing)

    steps = harness.compare_steps(training(sequential, layer_of), whole=0, express=0)
    out = capsys.readouterr().out
    assert out.count("gradient\n") == 2 * steps.stats().steps


def test_a_step_that_must_run(uncut):
    """The model's call cannot be left out by itself: the tape would not know of the gradient function."""
    seen = []

    def note(loss):
        exec("print(len(seen))", {"seen": seen})
        return loss

    steps = harness.compare_steps(training(sequential, Binarized, after=note), whole=0, express=0)
    assert steps.stats().whole_steps == 0 and steps.stats().coexecuted_steps > 20
    assert "tf.custom_gradient of the program's" in terra.explain(steps, full=True)


def test_a_gradient_that_is_asked_for_after_the_step():
    def make():
        model = sequential(Binarized())

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2.0)
            return tape, loss

        def call(step, k):
            tape, loss = step(X[k % 3])
            return loss, tape.gradient(loss, model.trainable_variables)

        return step, call, lambda: model.variables

    harness.compare_steps(make, whole=0, express=0)


def test_an_error_in_the_gradient():
    def layer_of():
        @tf.custom_gradient
        def strange(x):
            return tf.identity(x), lambda dy: (dy, dy) if WORLD["factor"] > 1.0 else dy

        return Function(strange)

    def change(k, model):
        WORLD["factor"] = 2.0 if k in (14, 22) else 0.5

    harness.compare_steps(training(sequential, layer_of, change, every=1), n=34, express=0)


def test_a_step_that_is_skipped_only_later():
    """While it must run, the model's call is given up by itself; that is no matter for a run that is observed."""

    def make():
        step, call, look = training(sequential, Binarized)()
        seen = []

        def noting(x, y, notes):
            if notes:
                seen.append(len(seen))
            return step(x, y)

        return noting, lambda noting, k: noting(X[k % 3], Y[k % 3], k < 14), lambda: (look(), seen)

    harness.compare_steps(make, n=40, express=0)


def test_what_the_decorated_object_holds():
    def change(k, model):
        model.layers[1].activation._f = (binarized if k % 2 else scaled_by_a_global)._f

    def layer_of():
        return keras.layers.Activation(tf.custom_gradient(lambda x: (tf.tanh(x), lambda dy: dy * 0.5)))

    harness.compare_steps(training(sequential, layer_of, change), n=40, express=0)
