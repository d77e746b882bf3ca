"""Steps, and what they call, that are made inside of a function which is itself instrumented: their own code is skipped as that of others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.transform import convert
from terra.transform.observing.value_sources import Unobservable

X = [tf.constant(np.random.RandomState(k).rand(4, 3), tf.float32) for k in range(3)]
N = 30


def of_a_closure(wrap, change):
    weight, settings = tf.Variable(tf.ones((3, 2))), {"rate": 0.1}

    def loss_of(y):
        return tf.reduce_mean(y * y) * settings["rate"]

    @wrap
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.matmul(x, weight))
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(gradient)
        return loss

    seen = []
    for k in range(N):
        if k == 20 and change:
            settings["rate"] = 0.5
        seen.append(float(step(X[k % 3])))
    return seen, weight.numpy().tolist(), step


def of_a_class(wrap, change):
    class Model(keras.Model):
        scale = 2.0

        def __init__(self):
            super().__init__()
            self.__dense = keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, x):
            return self.__dense(x) * self.scale

    model, optimizer = Model(), keras.optimizers.SGD(0.1)

    class Trainer:
        def __init__(self):
            self.__seen = 0

        def step(self, x):
            self.__seen += 1
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        @property
        def seen(self):
            return self.__seen

    trainer = Trainer()
    step = wrap(trainer.step)
    seen = []
    for k in range(N):
        if k == 20 and change:
            Model.scale = 1.5
        seen.append(float(step(X[k % 3])))
    return seen, [v.numpy().tolist() for v in model.variables], trainer.seen, step


def of_lambdas(wrap, change):
    weight = tf.Variable(tf.ones((3, 2)))
    activation = lambda y: tf.tanh(y)  # noqa: E731
    losses = [lambda y: tf.reduce_sum(y * y)]
    if change is None:
        losses.append(None)
    step = wrap(lambda x: weight.assign_sub(tf.matmul(x, tf.ones_like(activation(tf.matmul(x, weight))) * losses[0](x) * 0.01, transpose_a=True)) * 1.0)
    seen = []
    for k in range(N):
        if k == 20 and change:
            losses[0] = lambda y: tf.reduce_mean(y)
        seen.append(step(X[k % 3]).numpy().tolist())
    return seen, step


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("make", [of_a_closure, of_a_class, of_lambdas])
def test_what_is_made_inside_of_instrumented_code_is_skipped_too(make, change):
    expected = make(lambda f: f, change)[:-1]
    *actual, step = convert.function_form(make)(lambda f: terra.coexecute(f, wait_for_graph=True), change)
    assert tuple(actual) == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= N // 2, stats
    assert stats.whole_steps >= 8, terra.explain(step)


def test_a_step_whose_place_is_not_known_is_run():
    """Two functions of a name at one line cannot be told apart."""
    def make():
        return [lambda x: tf.abs(x) * 2.0, lambda x: tf.abs(x) * 3.0]

    two, three = convert.function_form(make)()
    with pytest.raises(Unobservable, match="no source"):
        convert.observed_form(two)
    for function, factor in ((two, 2.0), (three, 3.0)):
        step = terra.coexecute(function, wait_for_graph=True)
        for k in range(12):
            np.testing.assert_array_equal(step(X[k % 3]), X[k % 3] * factor)
        assert step.stats().coexecuted_steps >= 6


def test_tracebacks_of_what_is_made_inside_name_the_line():
    def make():
        @terra.coexecute(wait_for_graph=True)
        def step(x, bad):
            y = tf.reduce_sum(x)
            if bad:
                raise ValueError("bad")
            return y
        return step

    step = convert.function_form(make)()
    for k in range(14):
        step(X[k % 3], False)
    with pytest.raises(ValueError) as caught:
        step(X[0], True)
    frame = caught.traceback[-1]
    assert frame.name == "step" and 'raise ValueError("bad")' in str(frame.statement)
    assert step.stats().whole_steps >= 4
