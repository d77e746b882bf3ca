"""`tf.function`s that a step calls: grappler rewrites them as it does eagerly, so that results are eager's bit for bit; lists that only one of them makes."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import differ

X = [np.random.default_rng(i).normal(size=(4, 4)).astype("float32") for i in range(3)]
equal = np.testing.assert_array_equal


@tf.function
def rewritten(x):
    return (x * 2.0 + 1.0) * 3.0 / 7.0 - x / 3.0 + tf.sigmoid(x) * tf.math.rsqrt(tf.abs(x) + 1.0)


@tf.function
def a_power(x):
    return tf.reduce_mean(x ** 3) + tf.reduce_mean(x ** 2)


@tf.function
def with_a_tape(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(x ** 3)
    return tape.gradient(y, x)


@tf.function
def that_calls_another(x):
    return rewritten(x) * 3.0 / 7.0 + a_power(x)


@tf.function
def looped(x, n):
    for _ in tf.range(n):
        x = tf.tanh(x * 1.5 / 7.0 * 3.0)
    return x


def training(function):
    w = tf.Variable(X[0])

    def step(x, i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(w) * x)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    return step, w.numpy


def given(i):
    return tf.constant(X[i % 3]), i


@pytest.mark.all_variants
@pytest.mark.parametrize("function", [rewritten, a_power, with_a_tape, that_calls_another])
def test_results_are_those_of_eager_execution_bit_for_bit(function):
    assert not np.array_equal(function(tf.constant(X[0])), function.python_function(tf.constant(X[0]))) or function is with_a_tape  # grappler did something
    assert differ(lambda: training(function), given, 30, equal=equal).coexecuted_steps > 20


@pytest.mark.parametrize("training", [False, True])
def test_of_variables_grappler_knows_the_shapes(training):
    """Whether it adds up in one go what is added one after the other depends on that."""
    def make():
        layers = keras.layers
        given = layers.Input((8, 8, 16))
        h = layers.BatchNormalization()(layers.Conv2D(16, 1, padding="same", use_bias=False)(given))
        model = keras.Model(given, layers.Add()([layers.Add()([given, h]), h]))
        function = tf.function(lambda x: model(x, training=training))

        def step(x):
            with tf.GradientTape() as tape:
                y = function(x)
                loss = tf.reduce_sum(y * y)
            for w, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
                w.assign_sub(1e-4 * g)
            return y, loss

        return step, lambda: [w.numpy() for w in model.variables]

    assert differ(make, lambda i: (tf.random.stateless_normal([8, 8, 8, 16], [1, i % 3]),), 20, equal=equal).coexecuted_steps > 10


def test_in_branches():
    def make():
        w = tf.Variable(X[0])

        def step(x, i):
            with tf.GradientTape() as tape:
                y = rewritten(w) if i % 3 else that_calls_another(w)
                loss = tf.reduce_sum(y * x)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        return step, w.numpy

    assert differ(make, given, 40, equal=equal).coexecuted_steps > 20


def test_many_calls_of_one_function():
    def make():
        variables = [tf.Variable(x) for x in X]

        def step(x, i):
            with tf.GradientTape() as tape:
                for w in variables:
                    x = rewritten(x @ w)
                loss = tf.reduce_mean(x)
            for w, g in zip(variables, tape.gradient(loss, variables)):
                w.assign_sub(0.1 * g)
            return loss

        return step, lambda: [w.numpy() for w in variables]

    assert differ(make, given, 30, equal=equal).coexecuted_steps > 20


def test_without_grappler_there_is_nothing_to_keep_apart():
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        plain = tf.function(rewritten.python_function)
        assert differ(lambda: training(plain), given, 30, equal=equal).coexecuted_steps > 20
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})


def test_a_loop_of_another_shape_keeps_other_lists_for_its_gradient():
    def make():
        w = tf.Variable(X[0])

        def step(x, n):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(looped(x @ w, n))
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        return step, w.numpy

    stats = differ(make, lambda i: (tf.ones([3 + i % 2, 4]), tf.constant(i % 5)), 40, equal=equal)
    assert stats.coexecuted_steps > 20


@pytest.mark.parametrize("options", [{"optimize": True}, {"jit_compile": True}], ids=str)
def test_what_is_rewritten_anyhow_is_inlined(options):
    stats = differ(lambda: training(that_calls_another), given, 30, equal=functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), **options)
    assert stats.coexecuted_steps > 15
