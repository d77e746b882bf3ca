"""Calls that are skipped though they read values: a jump waits for these, and is taken back if they are not what they were."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests.harness import differ

X = [np.random.default_rng(i).normal(size=(8, 3)).astype("float32") for i in range(5)]
WARM_UP = 15


def given(i):
    return (tf.constant(X[i % 5]),)


class Turning(keras.optimizers.schedules.LearningRateSchedule):
    """Two rates that take turns; which one is decided by a condition on the count of steps."""

    def __init__(self, length):
        self.length = length

    def __call__(self, step):
        turn = keras.ops.cast(step, "int32") // self.length
        return keras.ops.cond(keras.ops.equal(turn % 2, 0), lambda: tf.constant(0.01), lambda: tf.constant(0.002))


def warming_up():
    return keras.optimizers.schedules.CosineDecay(0.01, 300, warmup_target=0.02, warmup_steps=WARM_UP)


OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(warming_up(), weight_decay=0.01),
    "sgd": lambda: keras.optimizers.SGD(warming_up(), momentum=0.9),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=18),
}


def training(optimizer, check=None):
    """`differ`'s make(): a training step and its state."""
    def make():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        own = optimizer()
        scales = hasattr(own, "inner_optimizer")

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
                scaled = own.scale_loss(loss) if scales else loss
            if check is not None:
                check(loss)
            variables = model.trainable_variables
            own.apply_gradients(zip(tape.gradient(scaled, variables), variables))
            return loss

        step.optimizer = own
        return step, lambda: [v.numpy() for v in (*model.variables, *own.variables)]

    return make


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_look_at_a_value(name):
    stats = differ(training(OPTIMIZERS[name]), given, 42)
    assert stats.coexecuted_steps > 30
    assert stats.fast_forwards < 42 * 30, "their operations ran one by one"
    assert 0 < stats.fallbacks <= 6  # the end of the warm-up, the scale that grows
    if name != "loss_scale":
        assert stats.whole_steps > 13


@pytest.mark.one_variant
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_verified(name):
    stats = differ(training(OPTIMIZERS[name]), given, 24, verify=True)
    assert stats.coexecuted_steps > 13 and stats.verified_graphs >= stats.coexecuted_steps


@pytest.mark.one_variant
@pytest.mark.parametrize("length", [7, 1, 20])
def test_a_value_that_keeps_changing(length):
    """Each jump that is taken back costs a step, and makes the next one later."""
    def optimizer():
        return keras.optimizers.AdamW(Turning(length)) if length == 7 else keras.optimizers.SGD(Turning(length), momentum=0.9)

    stats = differ(training(optimizer), given, 64)
    assert stats.coexecuted_steps > 44 and stats.fallbacks <= 15, stats


@pytest.mark.share(2)
@pytest.mark.parametrize("every", [2, 10])
def test_a_condition_of_the_frameworks_that_keeps_changing(every):
    """Gradients that are accumulated are applied every so often: nothing is taken for granted that has not been the same some times in a row."""
    stats = differ(training(lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=every)), given, 48)
    assert stats.coexecuted_steps > 40 and stats.fallbacks <= (0 if every < 4 else 5), stats


def test_in_blocks():
    def make(tape_class):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        optimizer = OPTIMIZERS["adamw"]()

        def step(x):
            with tape_class() as tape:
                loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return float(loss)

        return step, model

    seen = []
    for tape_class in (tf.GradientTape, lambda: terra.GradientTape(wait_for_graph=True)):
        keras.utils.set_random_seed(1)
        step, model = make(tape_class)
        seen.append([[step(*given(i)) for i in range(40)], [v.numpy().tolist() for v in model.variables]])
    assert seen[0] == seen[1]
    stats = [f.stats() for f in terra.runtime.step_function.registry.instances if "test_expected_reads.py" in f.policy.name]
    assert len(stats) == 1 and stats[0].coexecuted_steps > 28 and stats[0].fast_forwards < 40 * 40
    assert stats[0].fetches > 4 * stats[0].coexecuted_steps, "the step ended in the middle of the optimizer, at the first condition behind an update"


def test_a_check_that_fails_raises_where_it_stands():
    """The step that fails has updated nothing; those before and behind it have."""
    def run(wrap):
        keras.utils.set_random_seed(1)
        step, state = training(OPTIMIZERS["sgd"], lambda loss: tf.debugging.assert_less(loss, 100.0, message="too large"))()
        step = wrap(step)
        seen = []
        for i in range(50):
            try:
                seen.append(float(step(tf.constant(X[i % 5] * (1e3 if i in (33, 34) else 1.0)))))
            except tf.errors.InvalidArgumentError as error:
                seen.append(("too large" in str(error), [v.tolist() for v in state()]))
        return seen, [v.tolist() for v in state()], step

    expected, state, _ = run(lambda step: step)
    assert sum(type(x) is tuple for x in expected) == 2
    actual, end, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and end == state
    assert step.stats().coexecuted_steps > 35


def test_reading_twice_what_the_call_itself_computed():
    """A value that was read before the call is not among what a jump compares."""
    def make():
        v, log = tf.Variable([1.0, 2.0]), []

        class Layer(keras.layers.Layer):
            def call(self, x):
                large = tf.reduce_sum(x) > 3.0
                if large and not (large and tf.reduce_sum(x) > 30.0):
                    x = x * 0.5
                return tf.tanh(x)

        layer = Layer()

        def step(x):
            total = tf.reduce_sum(x)
            if total > 0.0:
                log.append(float(total))
            y = layer(x * v)
            if total > 1.0:
                y = y + 1.0
            v.assign_add(0.01 * y[0, :2])
            return y

        return step, lambda: [v.numpy(), np.array(log)]

    scales = (0.1, 1.0, -1.0, 5.0, 1.0, 1.0, 1.0)
    stats = differ(make, lambda i: (tf.constant([[1.0, 2.0]]) * scales[i % 7 if i > 30 else 1],), 80)
    assert stats.coexecuted_steps > 40


def test_seeds_that_a_call_draws_are_not_drawn_twice():
    def make():
        v = tf.Variable(0.0)

        def noisy(x):
            noise = tf.random.uniform([2])
            if tf.reduce_sum(x) > 0.0:
                noise = noise * 2.0
            return noise

        def step(x):
            v.assign_add(tf.reduce_sum(noisy(x)))
            return v + 0.0

        return step, v.numpy

    stats = differ(make, lambda i: (tf.constant([1.0, -3.0 if i % 13 == 12 else 1.0]),), 60)
    assert stats.coexecuted_steps > 40
