"""Layers that wrap one of Keras' own and put a tensor in the place of its weights in each call, as quantization and pruning do; and how these keep their statistics: variables that
`tf.compat.v1.assign` gives back, moving averages by TensorFlow's distribution strategies. Such steps are skipped."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests.harness import differ

N = 30


def given(k):
    rng = np.random.RandomState(k % 4)
    return tf.constant(rng.rand(6, 4), tf.float32), tf.constant(rng.rand(6, 1), tf.float32)


def rounded(w, low, high):
    return tf.quantization.fake_quant_with_min_max_vars(w, low, high, num_bits=4)


def of_extremes(layer, w, training):
    if not training:
        return rounded(w, layer.low, layer.high)
    return rounded(w, tf.compat.v1.assign(layer.low, tf.minimum(layer.low, tf.reduce_min(w))), tf.compat.v1.assign(layer.high, tf.maximum(layer.high, tf.reduce_max(w))))


def of_averages(layer, w, training):
    low = tf.__internal__.train.assign_moving_average(layer.low, tf.reduce_min(w), 0.9, zero_debias=False)
    high = tf.__internal__.train.assign_moving_average(layer.high, tf.reduce_max(w), 0.9, zero_debias=False)
    return rounded(w, low, high)


def merged(layer, w, training):
    def update(strategy, w):
        mean = strategy.extended.reduce_to(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(w), layer.low)
        strategy.extended.update(layer.low, lambda variable, value: variable.assign_add(0.1 * value), args=(mean,))
        layer.cross = tf.distribute.in_cross_replica_context()
        return w * (1.0 + layer.low)

    return tf.distribute.get_replica_context().merge_call(update, args=(w,))


class Wrapper(tf_keras.layers.Layer):
    """Computes with other weights than those of the layer that it wraps."""

    def __init__(self, layer, others):
        super().__init__()
        self.layer, self.others = layer, others
        self.low, self.high, self.cross = tf.Variable(-0.1, trainable=False), tf.Variable(0.1, trainable=False), None

    def build(self, shape):
        self.layer.build(shape)
        self.own = self.layer.kernel
        self.built = True

    def call(self, x, training=None):
        self.layer.kernel = self.others(self, self.own, bool(training))
        return self.layer.call(x)


def model_of(others):
    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential([Wrapper(tf_keras.layers.Dense(5, activation="tanh"), others), tf_keras.layers.Dense(1)])
    model.build((None, 4))
    return model


def make(others, change=None):
    def made():
        model = made.model = model_of(others)
        optimizer = tf_keras.optimizers.SGD(0.1)
        weights = model.trainable_variables
        optimizer.build(weights)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        return step, lambda: [*model.get_weights(), model.layers[0].layer.kernel]

    return made


WAYS = [of_extremes, of_averages, merged]


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["", "verify"])
@pytest.mark.parametrize("others", WAYS)
def test_in_a_step(others, options):
    stats = differ(make(others), given, N, **options)
    assert stats.coexecuted_steps >= 15, stats
    if not options:
        assert stats.whole_steps >= 10, stats


@pytest.mark.parametrize("others", WAYS)
def test_in_fit(others):
    losses, x, y = [], *(np.concatenate([given(k)[n].numpy() for k in range(4)]) for n in (0, 1))
    for runs_eagerly in (True, False):
        model = model_of(others)
        model.compile("sgd", "mse", run_eagerly=runs_eagerly)
        steps = None if runs_eagerly else terra.compile(model)
        losses.append(model.fit(x, y, batch_size=6, epochs=10, shuffle=False, verbose=0).history["loss"])
    stats = steps.stats()["train"]
    assert losses[0] == losses[1] and stats.whole_steps >= 15, stats


CHANGES = {
    "another function": lambda wrapper: setattr(wrapper.layer, "activation", tf.nn.relu),
    "other weights": lambda wrapper: setattr(wrapper, "own", wrapper.own * 2.0),
    "another way": lambda wrapper: setattr(wrapper, "others", lambda layer, w, training: w * 0.5),
    "a variable": lambda wrapper: wrapper.low.assign(-0.7),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("others", WAYS)
def test_the_program_changes_it_between_steps(others, name):
    made = make(others)

    def change(k, step):
        if k == 18:
            CHANGES[name](made.model.layers[0])

    stats = differ(made, given, N, change=change)
    assert stats.whole_steps >= 6, stats


def test_a_layer_of_keras_3_whose_attribute_is_another_one_within_a_step():
    """It is called with the one, then with the other."""
    def made():
        keras.utils.set_random_seed(1)
        layer = keras.layers.LeakyReLU(0.1)
        w = tf.Variable([[0.5], [-0.5], [0.2], [1.0]])

        def step(x, y):
            with tf.GradientTape() as tape:
                layer.negative_slope = 0.3
                z = layer(x @ w - 0.5)
                layer.negative_slope = 0.7
                loss = tf.reduce_mean((layer(z - 0.2) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, lambda: [w, layer.negative_slope]

    stats = differ(made, given, N)
    assert stats.whole_steps >= 10, stats


class FindsItsRate(keras.layers.Layer):
    """Keras' code looks at what the call before has left in the layer, before this one leaves something else there."""

    def __init__(self):
        super().__init__()
        self.noise = keras.layers.GaussianNoise(0.5, seed=3)

    def call(self, x):
        y = self.noise(x, training=True)
        self.noise.stddev = tf.where(tf.reduce_mean(y) > 0.5, 0.0, 0.25)
        return y


def test_what_keras_finds_before_it_is_set():
    def made():
        keras.utils.set_random_seed(1)
        layer = FindsItsRate()
        model = keras.Sequential([layer, keras.layers.Dense(1)])
        model.build((6, 4))
        layer.noise.stddev = 0.5  # what it was set to is of the graph that was made to build it

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            weights = model.trainable_variables
            for weight, gradient in zip(weights, tape.gradient(loss, weights)):
                weight.assign_sub(0.1 * gradient)
            return loss

        return step, lambda: [*model.get_weights(), float(layer.noise.stddev)]

    stats = differ(made, given, 40)
    assert stats.coexecuted_steps >= 20, stats
