"""`tf.autodiff.ForwardAccumulator` in a step: such a step is skipped as a whole, though none of the calls in it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.frontends.gradient_tape import blocks
from tests import harness

Accumulator = tf.autodiff.ForwardAccumulator


def close(a, b, err_msg=""):
    """Eager TensorFlow computes derivatives of this kind in functions of its own, each optimised by itself: last bits differ from those of a larger graph."""
    np.testing.assert_allclose(a, b, 2e-4, 2e-5, err_msg=err_msg)


def differ(make, **options):
    return harness.differ(make, given, 24, equal=close, **options)


def given(k):
    return (tf.constant(np.random.RandomState(k % 4).rand(6, 3), tf.float32),)


class Scaled(keras.layers.Layer):
    """A layer of the program's, with a stock layer in it."""

    def __init__(self):
        super().__init__()
        self.inner, self.factor = keras.layers.Dense(3, activation="tanh"), 0.5

    def call(self, x):
        return self.inner(x) * self.factor + x


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Scaled(), Scaled(), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.second(self.first(x)))


def network(*layers):
    model = keras.Sequential(layers or [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 3))
    return model


def of_model(model, **named):
    """A step that wants the directional derivative of a model to be small."""
    optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
    weights = model.trainable_variables
    optimizer.build(weights)

    def step(x):
        with tf.GradientTape() as tape:
            with Accumulator(x, x * x) as forward:
                y = model(x, **named)
            slope = forward.jvp(y)
            loss = tf.reduce_mean((slope - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss, slope

    return step, lambda: weights


def made_user_model():
    model = Model()
    model(tf.ones((6, 3)))
    return model


def hessian_times_vector():
    w = tf.Variable(tf.random.normal((3, 2)))

    def step(x):
        with Accumulator(w, tf.ones_like(w)) as forward:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
            gradient = tape.gradient(loss, w)
        product = forward.jvp(gradient)
        w.assign_sub(0.1 * gradient + 0.01 * product)
        return loss, product

    return step, lambda: w


def several_primals():
    v, w = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(0.5)

    def step(x):
        with Accumulator([v, w], [tf.ones_like(v), tf.constant(2.0)]) as forward:
            y = tf.sin(x * v) * w
            z = y[:, 0] + 1.0
            unconnected = tf.ones(3)
        none, zero = forward.jvp(unconnected), forward.jvp(unconnected, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        a, b = forward.jvp([y, z])
        v.assign_sub(0.01 * tf.reduce_mean(a, 0))
        w.assign_add(0.01 * tf.reduce_mean(b))
        return a, b, none is None, zero

    return step, lambda: [v, w]


def second_derivative():
    def step(x):
        with Accumulator(x, tf.ones_like(x)) as outer:
            with Accumulator(x, tf.ones_like(x)) as inner:
                y = tf.reduce_sum(tf.sin(x) ** 3, axis=1)
            first = inner.jvp(y)
        return first, outer.jvp(first), outer.jvp(y)

    return step, lambda: ()


def with_noise():
    w = tf.Variable(tf.ones(3))

    def step(x):
        with Accumulator(w, tf.ones(3)) as forward:
            y = tf.nn.dropout(x * w, 0.3) + tf.random.normal((6, 3)) * w
            w.assign_add(tf.fill([3], 0.01))
        return y, forward.jvp(y)

    return step, lambda: w


def on_the_way():
    """Python reads a derivative, and branches on it."""
    w, taken = tf.Variable(tf.ones(3)), []

    def step(x):
        with Accumulator(w, tf.ones(3)) as forward:
            y = tf.reduce_mean(tf.square(x * w))
        slope = float(forward.jvp(y))
        taken.append(slope > 1.0)
        w.assign_sub(tf.fill([3], 0.1 if slope > 1.0 else -0.1))
        return y, slope

    return step, lambda: [w, tf.constant(taken)]


CASES = {
    "a model": lambda: of_model(network()),
    "layers with state": lambda: of_model(
        network(keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Activation("gelu"), keras.layers.Dropout(0.2, seed=3), keras.layers.Dense(1)),
        training=True),
    "the program's layers": lambda: of_model(made_user_model()),
    "Hessian times vector": hessian_times_vector,
    "several primals": several_primals,
    "second derivative": second_derivative,
    "noise and an update": with_noise,
    "read on the way": on_the_way,
}


@pytest.mark.parametrize("name, options", [
    *[pytest.param(name, {}, id=name) for name in CASES],
    *[pytest.param(name, options, id=f"{name}, {option}") for name in ("a model", "several primals", "noise and an update")
      for option, options in (("no fast-forward", {"fast_forward": False}), ("verify", {"verify": True}))]])
def test_like_eager(name, options):
    stats = differ(CASES[name], **options)
    assert stats.coexecuted_steps >= 16, stats
    if not options and name != "layers with state":  # there TensorFlow wants a shape that one of its functions computes
        assert stats.whole_steps >= 10, stats


def changes_of_a_layer():
    dropout, dense = keras.layers.Dropout(0.5, seed=2), keras.layers.Dense(3, activation="tanh")
    model = network(dense, dropout)
    model.dropout, model.dense = dropout, dense
    step, weights = of_model(model, training=True)
    return model, step, weights


CHANGES = {
    "rate": lambda model, w: setattr(model.dropout, "rate", 0.2),
    "activation": lambda model, w: setattr(model.dense, "activation", tf.nn.relu),
    "weights": lambda model, w: model.set_weights([v * 0.5 for v in model.get_weights()]),
    "kernel": lambda model, w: setattr(model.dense, "_kernel", model.dense._kernel + 0.0),
    "trainable": lambda model, w: setattr(model, "trainable", False),
    "call": lambda model, w: setattr(model.dense, "call", lambda x, training=None: x @ model.dense.kernel),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_in_its_scope_reads_is_guarded(name):
    """Nothing in the scope is skipped by itself, but all of it with the step: a change of the layer must be noticed."""
    models = []

    def make():
        model, step, weights = changes_of_a_layer()
        models.append(model)
        return step, weights

    def change(k, step):
        if k == 12:
            CHANGES[name](models[-1], None)

    stats = differ(make, change=change)
    assert stats.whole_steps >= 8, stats


class Trainer:
    factor, count, kept = 1.0, 0, None

    def __init__(self, w):
        self.w = w

    def step(self, x):
        with Accumulator(self.w, tf.ones(3)) as forward:
            y = tf.reduce_sum(self.scaled(x))
        slope = forward.jvp(y)
        self.w.assign_sub(0.01 * slope * tf.ones(3))
        return y, slope

    def scaled(self, x):
        return tf.sin(x * self.w) * self.factor


class Counting(Trainer):
    def scaled(self, x):
        self.count += 1
        return super().scaled(x) * float(self.count % 3)


class Keeping(Trainer):
    """The accumulator outlives the step."""

    def step(self, x):
        if self.kept is not None:
            with self.kept:
                y = tf.reduce_sum(self.scaled(x))
            self.w.assign_sub(0.001 * self.kept.jvp(y) * tf.ones(3))
        self.kept = Accumulator(self.w, tf.ones(3))
        return tf.reduce_sum(x)


class Printing(Trainer):
    log = []

    def scaled(self, x):
        self.log.append(x.shape[0])
        return super().scaled(x)


@pytest.mark.parametrize("kind", [Trainer, Counting, Keeping, Printing])
def test_the_program_around_it(kind):
    trainers = []

    def make():
        trainers.append(kind(tf.Variable([0.5, 1.0, 1.5])))
        trainer = trainers[-1]
        return trainer.step, lambda: [trainer.w, trainer.count, len(getattr(trainer, "log", ()))]

    def change(k, step):
        trainers[-1].factor = 2.0 if k > 13 else 1.0
        if k == 0 and kind is Printing:
            kind.log.clear()

    stats = differ(make, change=change)
    assert stats.coexecuted_steps >= 15, stats
    if kind is Trainer:
        assert stats.whole_steps >= 10, stats


def test_one_from_outside():
    """Made, and entered, by the program that calls the step."""
    def make():
        w = tf.Variable([0.5, 1.0, 1.5])
        forward = []

        def step(x):
            y = tf.sin(x * w)
            return y, forward[0].jvp(y)

        def outer(x):
            forward[:] = [Accumulator(w, tf.ones(3))]
            with forward[0]:
                y, slope = outer.step(x)
                z = y * 2.0
            w.assign_sub(0.1 * tf.reduce_mean(slope, 0))
            return y, slope, forward[0].jvp(z)

        outer.step = step
        return outer, w

    results = []
    for coexecute in (False, True):
        outer, w = make()
        if coexecute:
            outer.step = terra.coexecute(outer.step, wait_for_graph=True)
        results.append([[np.asarray(t) for t in outer(*given(k))] for k in range(20)] + [[w.numpy()]])
    for expected, actual in zip(*results, strict=True):
        for a, b in zip(expected, actual, strict=True):
            close(a, b)
    assert outer.step.stats().coexecuted_steps >= 10, outer.step.stats()


def test_a_gradient_of_the_programs():
    """What `tf.custom_gradient` decorates is differentiated forward as well: by its gradient function, transposed."""
    @tf.custom_gradient
    def clipped(x):
        return tf.sin(x), lambda upstream: tf.clip_by_value(upstream, -0.2, 0.2) * x

    def make():
        w = tf.Variable([0.5, 1.0, 1.5])

        def step(x):
            with Accumulator(w, tf.ones(3)) as forward:
                y = clipped(x * w)
            slope = forward.jvp(y)
            w.assign_sub(0.1 * tf.reduce_mean(slope, 0))
            return y, slope

        return step, lambda: w

    stats = differ(make)
    assert stats.coexecuted_steps >= 15, stats


def test_a_block_of_terras_tape():
    results, known = [], set(blocks())
    for tape_class, options in ((tf.GradientTape, {}), (terra.GradientTape, {"wait_for_graph": True})):
        w, found = tf.Variable([0.5, 1.0, 1.5]), []
        for k in range(30):
            x, = given(k)
            with tape_class(**options) as tape:
                with Accumulator(w, tf.ones(3)) as forward:
                    y = tf.reduce_mean(tf.sin(x * w))
                loss = y + forward.jvp(y)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            found.append(loss.numpy())
        results.append([*found, w.numpy()])
    for a, b in zip(*results, strict=True):
        close(a, b)
    block, = [block for key, block in blocks().items() if key not in known]
    assert block.stats().coexecuted_steps >= 20, block.stats()
