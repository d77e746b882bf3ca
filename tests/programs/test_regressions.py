"""Programs that once went wrong: each is compared with eager execution, and must be co-executed."""
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.tf import constants
from tests.harness import reset_seeds


def compare(make, calls, argument=lambda i: (), **options):
    """Run `make()`'s step eagerly and co-executed from the same seeds; results must be bitwise equal. Returns the statistics."""
    reset_seeds()
    step = make()
    expected = [frozen(step(*argument(i))) for i in range(calls)]
    reset_seeds()
    step = terra.coexecute(make(), wait_for_graph=True, **options)
    for i, result in enumerate(expected):
        assert frozen(step(*argument(i))) == result, f"call {i}"
    return step.stats()


def frozen(result):
    return tf.nest.map_structure(lambda t: (t.dtype, tuple(t.shape), t.numpy().tobytes()) if tf.is_tensor(t) else t, result)


def normal(*shape, seed=1):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


# ------------------------------------------------------------------------------------- constants that differ from branch to branch

def alternating_losses(first, second, counts=lambda i: i < 3):
    def make():
        w, seen = tf.Variable(normal(4, 4)), [0]

        def step(x):
            with tf.GradientTape() as tape:
                y = x @ w
                loss = first(y) if counts(seen[0]) else second(y)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            seen[0] += 1
            return loss, w * 1.0
        return step
    return make


def test_a_constant_that_is_fed_elsewhere_in_the_step():
    """The divisor is a constant where it divides the loss; in the gradient, where the other branch has another divisor, it is fed."""
    stats = compare(alternating_losses(tf.reduce_mean, lambda y: tf.reduce_mean(y) / 3), 12, lambda i: (normal(4, 4, seed=2),))
    assert stats.fallbacks <= 1 and stats.traces == 2 and stats.coexecuted_steps >= 8


def test_a_fed_value_where_another_branch_has_a_constant():
    """In one gradient the first division by a constant is the one that in the other is the second: which one it is follows from how often it came before."""
    for counts in (lambda i: i < 3, lambda i: i % 2):
        make = alternating_losses(lambda y: tf.reduce_mean(tf.tanh(y)), lambda y: tf.reduce_mean(tf.nn.relu(y)) / 3, counts)
        stats = compare(make, 14, lambda i: (normal(4, 4, seed=2),))
        assert stats.fallbacks <= 1 and stats.traces == 2 and stats.coexecuted_steps >= 9


# ------------------------------------------------------------------------------------- shapes that depend on data

def kept(i):
    """Data of which another number of rows is to be kept each time."""
    return normal(9, 4, seed=i), tf.constant(np.arange(9) < 1 + (3 * i) % 7)


def test_a_number_of_elements_that_depends_on_data():
    def make():
        w = tf.Variable(normal(4, 4))

        def step(x, keep):
            with tf.GradientTape() as tape:
                y = tf.boolean_mask(x @ w, keep)
                loss = tf.reduce_sum(tf.square(y * 2.0))
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss, y
        return step

    stats = compare(make, 16, kept)
    assert stats.fallbacks == 0 and stats.traces <= 2 and stats.coexecuted_steps >= 13


def test_rows_that_are_compared_with_each_other():
    """As detectors do: what one image holds is broadcast against a grid of boxes."""
    def make():
        grid = tf.Variable(normal(6, 6, 4))

        def step(boxes, present):
            with tf.GradientTape() as tape:
                found = tf.boolean_mask(boxes, present)
                sides = tf.minimum(grid[:, :, tf.newaxis, 2:], found[:, 2:]) - tf.maximum(grid[:, :, tf.newaxis, :2], found[:, :2])
                loss = tf.reduce_mean(tf.reduce_max(tf.reduce_prod(sides, axis=-1), axis=-1))
            grid.assign_sub(0.1 * tape.gradient(loss, grid))
            return loss
        return step

    stats = compare(make, 24, kept)
    assert stats.fallbacks <= 1 and stats.coexecuted_steps >= 19


def test_a_rank_that_depends_on_data():
    """The first time it is a scalar: nothing says that it always is."""
    def make():
        return lambda x, keep: tf.squeeze(tf.boolean_mask(x[:, 0], keep)) * 2.0

    stats = compare(make, 16, kept)
    assert stats.fallbacks == 0 and stats.coexecuted_steps >= 13


def test_python_looks_at_a_shape_that_depends_on_data():
    def make():
        w, seen = tf.Variable(normal(4, 4)), []

        def step(x, keep):
            y = tf.boolean_mask(x @ w, keep)
            seen.append(y.shape[0])
            z = tf.concat([y, y], axis=1) * (1.0 / y.shape[0])
            seen.append((z.ndim, z.shape.as_list()))
            return z, tf.rank(z), tf.shape(z)[0], tuple(seen)
        return step

    stats = compare(make, 16, kept)
    assert stats.fallbacks <= 1 and stats.coexecuted_steps >= 12


def test_a_shape_that_python_has_seen_before_a_skipped_call():
    """The metric divides by the number of values, which it reads in Python: skipped, it would go on with the number of the step that was recorded."""
    def make():
        mean, seen = keras.metrics.Mean(), []

        def step(x, keep):
            values = tf.boolean_mask(x[:, 0], keep)
            seen.append(values.shape[0])
            mean.update_state(values)
            return mean.result(), tuple(seen)
        return step

    stats = compare(make, 20, lambda i: (normal(9, 4, seed=i), tf.constant(np.arange(9) < (7 if i < 12 else 3 + i % 3))))
    assert stats.coexecuted_steps >= 14 and stats.fallbacks <= 1


def test_random_numbers_for_a_batch_of_another_size():
    def make():
        return lambda x: tf.nn.dropout(x * 1.0, 0.5)

    stats = compare(make, 16, lambda i: (normal(3 + i, 4),))
    assert stats.fallbacks <= 1 and stats.coexecuted_steps >= 10  # two are traced anew when the sizes are left unknown


# ------------------------------------------------------------------------------------- random operations whose seeds are attributes

@pytest.mark.share(2)
@pytest.mark.parametrize("loss_function", [tf.nn.sampled_softmax_loss, tf.nn.nce_loss])
def test_candidate_samplers(loss_function):
    def make():
        weights, bias = tf.Variable(normal(50, 4)), tf.Variable(normal(50))

        def step(inputs, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_function(weights, bias, labels, inputs, num_sampled=5, num_classes=50, remove_accidental_hits=True))
            for v, g in zip((weights, bias), tape.gradient(loss, (weights, bias))):
                v.assign_sub(0.1 * tf.convert_to_tensor(g))
            return loss, weights * 1.0
        return step

    stats = compare(make, 14, lambda i: (normal(3, 4, seed=i), tf.constant([[i % 7], [2], [3 + i]])))
    assert stats.fallbacks <= 1 and stats.traces <= 3 and stats.coexecuted_steps >= 10


def test_fractional_pooling():
    def make():
        v = tf.Variable(normal(1, 9, 9, 2))

        def step():
            with tf.GradientTape() as tape:
                pooled = tf.nn.fractional_max_pool(v * 2.0, 1.5, pseudo_random=True, seed=5)[0]
                loss = tf.reduce_sum(tf.square(pooled))
            v.assign_sub(0.01 * tape.gradient(loss, v))
            return loss, pooled
        return step

    stats = compare(make, 12)
    assert stats.fallbacks <= 1 and stats.coexecuted_steps >= 8


# ------------------------------------------------------------------------------------- rewrites of the graph

@pytest.mark.parametrize("pool, shape", [(tf.nn.max_pool2d, (4, 16, 16, 8)), (tf.nn.max_pool3d, (2, 8, 8, 8, 4))])
def test_gradients_of_overlapping_pools_are_summed_in_the_same_order(pool, shape):
    def make():
        v = tf.Variable(normal(*shape))
        weights = normal(shape[0], *[n // 2 for n in shape[1:-1]], shape[-1], seed=2)

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(pool(tf.nn.relu(v), 3, 2, "SAME") * weights)
            gradient = tape.gradient(loss, v)
            v.assign_sub(0.01 * gradient)
            return loss, gradient
        return step

    stats = compare(make, 6)
    assert stats.fallbacks == 0 and stats.coexecuted_steps >= 4


# ------------------------------------------------------------------------------------- several tapes at once

def networks():
    generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    critic = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    optimizers = [keras.optimizers.SGD(0.01, momentum=0.9), keras.optimizers.Adam()]
    for optimizer, model in zip(optimizers, (generator, critic)):
        optimizer.build(model.trainable_variables)
    return generator, critic, *optimizers


def update(optimizer, tape, loss, model):
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def adversarial():
    """The step of TensorFlow's GAN tutorial."""
    generator, critic, of_generator, of_critic = networks()

    def step(x):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            on_real, on_fake = critic(x, training=True), critic(generator(x[:, :4], training=True), training=True)
            loss, critic_loss = tf.reduce_mean(on_fake), tf.reduce_mean(on_real) - tf.reduce_mean(on_fake)
        update(of_generator, first, loss, generator)
        update(of_critic, second, critic_loss, critic)
        return loss, critic_loss
    return step


def gradient_penalty():
    """The gradient of a gradient: the inner tape is asked while the outer one records."""
    _, critic, _, optimizer = networks()

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = critic(x, training=True)
            slope = inner.gradient(value, x)
            loss = tf.reduce_mean(value) + tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1.0))
        update(optimizer, outer, loss, critic)
        return loss, slope
    return step


def overlapping():
    """Tapes that begin and end one after the other, one of which is asked twice, and in between does not record."""
    generator, critic, *_ = networks()

    def step(x):
        first, second = tf.GradientTape(persistent=True), tf.GradientTape()
        first.__enter__()
        y = generator(x[:, :4])
        second.__enter__()
        z = critic(y)
        with first.stop_recording():
            penalty = tf.reduce_sum(z * z)
        first.__exit__(None, None, None)
        loss = tf.reduce_sum(z) + penalty
        second.__exit__(None, None, None)
        gradients = first.gradient([z, penalty], generator.trainable_variables), second.gradient(loss, critic.trainable_variables)
        return loss, gradients, first.gradient(y, generator.trainable_variables)
    return step


def falling_back():
    """Now and then the step goes another way while both tapes record."""
    step_of, calls = adversarial(), []
    v = tf.Variable(1.0)

    def step(x):
        calls.append(1)
        with tf.GradientTape() as first, tf.GradientTape() as second:
            y = v * tf.reduce_sum(x)
            if len(calls) in (5, 7):
                y = tf.sin(y)
            z = tf.square(y) * v
        v.assign(0.5 + 0.1 * tf.sin(first.gradient(y, v) + second.gradient(z, v)))
        return y, z, v * 1.0, step_of(x)
    return step


@pytest.mark.parametrize("make, jumps", [(adversarial, 5), (gradient_penalty, 2), (overlapping, 3), (falling_back, 3)])
def test_several_tapes_at_once(make, jumps):
    compare(make, 16, lambda i: (normal(4, 8, seed=i),))
    stats = compare(make, 16, lambda i: (normal(4, 8, seed=i),), fast_forward="framework")
    assert stats.coexecuted_steps >= 10 and stats.fallbacks <= 2
    assert stats.fast_forwards >= jumps * (stats.coexecuted_steps - 4)


def test_arguments_that_contain_themselves_or_are_very_deep():
    def run(wrap):
        circular, deep = [1.0], ()
        circular.append(circular)
        for _ in range(1500):
            deep = (deep, 1)
        step = wrap(lambda x, c, d: x * c[0] + c[1][1][0] + d[1])
        return [float(step(tf.constant(1.0 * k), circular, deep)) for k in range(8)], step

    expected, _ = run(lambda step: step)
    actual, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().coexecuted_steps >= 4, step.stats()


def test_dummy_of_every_type():
    """What stands for an argument that the taken path does not use."""
    for dtype in (tf.variant, tf.resource, tf.string, tf.bool, tf.float32, tf.int64):
        assert constants.dummy(dtype.as_datatype_enum).dtype == dtype


@pytest.mark.one_variant
@pytest.mark.parametrize("seed", [1, 2])
def test_calls_that_were_recorded_on_other_paths(seed):
    """Layers are dropped at random, so where two paths meet, an operation takes what was made last on the one that led there. A call that was recorded on another path would take something else."""
    def make():
        drawn = random.Random(seed)
        layers = [keras.layers.Dense(4, "tanh") for _ in range(10)]
        for layer in layers:
            layer.build((None, 4))
        weights = [v.value for layer in layers for v in layer.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                for layer in layers:
                    if drawn.random() < 0.8:
                        x = x + layer(x)
                loss = tf.reduce_mean(x ** 2.0)
            gradients = tape.gradient(loss, weights)
            for v, gradient in zip(weights, gradients):
                if gradient is not None:
                    v.assign_sub(0.01 * gradient)
            return loss, gradients
        return step
    stats = compare(make, 55, lambda i: (normal(3, 4, seed=i),), loops="unroll")
    assert stats.coexecuted_steps >= 15 and stats.fast_forwards >= 750, stats


@pytest.mark.parametrize("name", ["unpack", "squeeze", "bitcast"])
def test_a_single_input_whose_shape_does_not_fit(name):
    """The operation cannot fail where shapes are known; one that depends on data may not fit."""
    operation = {
        "unpack": lambda t: tf.raw_ops.Unpack(value=t, num=2, axis=0)[1], "squeeze": lambda t: tf.squeeze(t[1:], 0),
        "bitcast": lambda t: tf.bitcast(t, tf.float64),
    }[name]

    def make():
        v, caught = tf.Variable(tf.ones(4)), []

        def step(x):
            t = tf.boolean_mask(v * x, x > 0)
            try:
                found = operation(t)
            except tf.errors.InvalidArgumentError:
                caught.append(1)
                found = t
            v.assign_add(tf.ones(4) * 0.1)
            return found, v * 1.0, len(caught)
        return step

    counts = {15: 3, 18: 1, 22: 3, 26: 0}
    stats = compare(make, 30, lambda i: (tf.constant([1.0 + i] * counts.get(i, 2) + [-1.0] * (4 - counts.get(i, 2))),))
    assert stats.coexecuted_steps >= 12, stats


def test_arrays_of_tensors_may_be_written_to_where_eagers_may():
    ways = [np.asarray, np.asanyarray, np.array, np.ascontiguousarray, lambda t: np.asarray(t, np.float64), lambda t: np.asarray(t, np.float32), lambda t: t.numpy()]

    def make():
        def step(x):
            t, found = x * 2.0, []
            for part in (t, tf.reduce_sum(t), tf.cast(t, tf.int32)):
                arrays = [way(part) for way in ways]
                found.append([(a.dtype.name, a.tobytes(), getattr(getattr(a, "flags", None), "writeable", None)) for a in arrays])
            return repr(found), bytes(t)
        return step
    assert compare(make, 10, lambda i: (normal(3, seed=i),)).coexecuted_steps >= 5
