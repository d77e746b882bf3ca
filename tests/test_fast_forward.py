"""Fast-forward of optimizers: it happens, and each of its guards, broken, gives eager's result."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

RNG = np.random.default_rng(0)
X = [tf.constant(RNG.normal(size=(6, 4)).astype("float32")) for _ in range(3)]
Y = [tf.constant(RNG.normal(size=(6, 2)).astype("float32")) for _ in range(3)]


def build(library, optimizer):
    """(step, model, optimizer) from the same seed each time."""
    keras.utils.set_random_seed(3)
    tf_keras.utils.set_random_seed(3)
    model = library.Sequential([library.layers.Dense(5, activation="tanh"), library.layers.Dense(2)])
    model.build((None, 4))
    made = optimizer(library)

    def step(x, y, change=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        if change is not None:
            change(made, model)
        made.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step, model, made


def run(library, optimizer, change, when, coexecute):
    """14 steps; `change(optimizer, model)` runs before step 7 (outside) or within it. Returns what a user sees, and the statistics."""
    step, model, made = build(library, optimizer)
    wrapped = terra.coexecute(step, wait_for_graph=True) if coexecute else step
    losses = []
    for i in range(14):
        inside = None
        if change is not None and i == 7:
            if when == "between":
                change(made, model)
            else:
                inside = change
        losses.append(wrapped(X[i % 3], Y[i % 3], inside))
    seen = [np.asarray(v) for v in losses] + [np.asarray(w) for w in model.get_weights()]
    seen += [np.asarray(v) for v in (made.variables if not callable(made.variables) else made.variables())]
    return seen, (wrapped.stats() if coexecute else None)


def check(library, optimizer, change=None, when="between"):
    expected, _ = run(library, optimizer, change, when, False)
    actual, stats = run(library, optimizer, change, when, True)
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual):
        np.testing.assert_array_equal(a, b)
    assert stats.coexecuted_steps >= 4, stats
    return stats


OPTIMIZERS = {
    "keras3_adam": (keras, lambda k: k.optimizers.Adam(0.01)),
    "keras3_sgd_momentum": (keras, lambda k: k.optimizers.SGD(0.05, momentum=0.9, nesterov=True)),
    "keras3_adamw_clipnorm_ema": (keras, lambda k: k.optimizers.AdamW(0.01, clipnorm=0.5, use_ema=True)),
    "keras3_schedule": (keras, lambda k: k.optimizers.RMSprop(k.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7))),
    "tfkeras_adam": (tf_keras, lambda k: k.optimizers.Adam(0.01)),
    "tfkeras_legacy_adam": (tf_keras, lambda k: k.optimizers.legacy.Adam(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_jumps_and_equals_eager(name):
    stats = check(*OPTIMIZERS[name])
    assert stats.fast_forwards >= 8, stats
    assert stats.fallbacks == 0, stats


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_off_by_option(name):
    library, optimizer = OPTIMIZERS[name]
    step, _, _ = build(library, optimizer)
    wrapped = terra.coexecute(step, wait_for_graph=True, fast_forward=False)
    for i in range(8):
        wrapped(X[i % 3], Y[i % 3])
    assert wrapped.stats().coexecuted_steps > 0 and wrapped.stats().fast_forwards == 0


def set_rate(optimizer, model):
    optimizer.learning_rate = 0.5


def assign_rate(optimizer, model):
    optimizer.learning_rate.assign(0.3)


def set_clipnorm(optimizer, model):
    optimizer.clipnorm = 0.01


def set_beta(optimizer, model):
    optimizer.beta_1 = 0.5


def set_weight_decay(optimizer, model):
    optimizer.weight_decay = 0.1


def add_constraint(optimizer, model):
    variable = model.trainable_variables[0]
    if isinstance(variable, tf.Variable):
        variable._constraint = lambda w: w * 0.5
    else:
        variable.constraint = lambda w: w * 0.5


def patch_instance(optimizer, model):
    original = optimizer.update_step
    optimizer.update_step = lambda gradient, variable, *rest: original(gradient * 2.0, variable, *rest)


@pytest.mark.parametrize("when", ["between", "within"])
@pytest.mark.parametrize("change", [set_rate, assign_rate, set_clipnorm, set_beta, set_weight_decay, add_constraint, patch_instance])
def test_keras3_state_changes_between_or_within_a_step(change, when):
    check(keras, lambda k: k.optimizers.Adam(0.01), change, when)


@pytest.mark.parametrize("change", [set_rate, assign_rate, set_clipnorm, set_beta, patch_instance])
def test_tfkeras_state_changes(change):
    check(tf_keras, lambda k: k.optimizers.Adam(0.01), change)


def test_method_of_the_class_replaced(monkeypatch):
    original = keras.optimizers.Adam.update_step

    def change(optimizer, model):
        monkeypatch.setattr(keras.optimizers.Adam, "update_step", lambda self, g, v, lr: original(self, g * 3.0, v, lr))

    expected, _ = run(keras, lambda k: k.optimizers.Adam(0.01), change, "between", False)
    monkeypatch.undo()
    actual, stats = run(keras, lambda k: k.optimizers.Adam(0.01), change, "between", True)
    for a, b in zip(expected, actual):
        np.testing.assert_array_equal(a, b)
    assert stats.fast_forwards > 0


def test_a_user_subclass_always_runs():
    calls = []

    class Counting(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            calls.append(len(calls))
            return super().apply(grads, trainable_variables)

    step, _, _ = build(keras, lambda k: Counting(0.1))
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for i in range(10):
        wrapped(X[i % 3], Y[i % 3])
    assert calls == list(range(10))
    assert wrapped.stats().coexecuted_steps > 0


def test_a_variable_swapped_and_a_gradient_dropped():
    keras.utils.set_random_seed(1)

    def make():
        variables = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.full(3, 2.0, "float32"))]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(variables)

        def step(order, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * (variables[0] ** 2 + variables[1] ** 3))
            gradients = tape.gradient(loss, [v.value for v in variables])
            chosen = [(gradients[i], variables[i]) for i in order]
            optimizer.apply_gradients(chosen)
            return loss

        return step, variables

    orders = [(0, 1)] * 6 + [(1, 0), (0,), (1,), (0, 1), (1, 0), (0,)] + [(0, 1)] * 3
    x = tf.constant([1.0, 0.5, 0.25])
    eager_step, eager_variables = make()
    expected = [float(eager_step(order, x)) for order in orders]
    step, variables = make()
    wrapped = terra.coexecute(step, wait_for_graph=True)
    assert [float(wrapped(order, x)) for order in orders] == expected
    for a, b in zip(eager_variables, variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert wrapped.stats().fast_forwards > 0


def test_a_divergence_after_a_jump_replays_the_region():
    step, model, optimizer = build(keras, lambda k: k.optimizers.Adam(0.01))
    eager_step, eager_model, eager_optimizer = build(keras, lambda k: k.optimizers.Adam(0.01))

    def with_tail(inner, owner):
        def train(x, y, late):
            loss = inner(x, y)
            if late:
                owner.trainable_variables[0].assign(owner.trainable_variables[0] * 0.5)
            return loss
        return train

    wrapped = terra.coexecute(with_tail(step, model), wait_for_graph=True)
    plain = with_tail(eager_step, eager_model)
    for i in range(12):
        a, b = plain(X[i % 3], Y[i % 3], i == 8), wrapped(X[i % 3], Y[i % 3], i == 8)
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(eager_model.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(eager_optimizer.variables, optimizer.variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert wrapped.stats().fallbacks == 1 and wrapped.stats().fast_forwards > 0
