"""What libraries do around their operations, so that one version of them works with several of TensorFlow, or in several ways: a step that does so is skipped all the same."""

import collections

import keras
import pytest
import tensorflow as tf

import terra
from tests import harness
from tests.fast_forward.purity import habits, training
from tests.fast_forward.purity.habits import Held
from tests.fast_forward.purity.training import DATA

BODIES = [
    habits.sets_a_thread_local, habits.catches_a_wrong_name, habits.asks_for_a_name, habits.asks_a_variable, habits.sets_a_property, habits.merges_dicts, habits.maps_leaves,
    habits.goes_over_a_tuple, habits.uses_what_assign_gives, habits.ignores_errors, habits.has_a_class_elsewhere,
    habits.asks_a_class]
CHANGES = [
    (habits.sets_a_thread_local, habits.changes_the_thread), (habits.asks_for_a_name, habits.adds_to_tensorflow), (habits.asks_a_variable, habits.adds_to_the_variable),
    (habits.maps_leaves, habits.changes_a_leaf), (habits.goes_over_a_tuple, habits.replaces_the_tuple),
    (habits.ignores_errors, habits.changes_what_numpy_does), (habits.has_a_class_elsewhere, habits.goes_the_other_way), (habits.asks_a_class, habits.changes_the_class)]


code = training.as_library(habits)


def made(body, change=None, code=habits):
    return training.training(code.Held, getattr(code, body.__name__), lambda held: [held.w, held.low, held.high, held.changes, held.rate, code.MODE.scale], change)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_habits(body, verify, code):
    harness.compare_steps(made(body, code=code), whole=15, express=0, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body, change", CHANGES)
def test_what_is_asked_for_changes(body, change):
    harness.compare_steps(made(body, change), whole=8, express=0)


def test_a_setter_that_changes():
    """The function of a property is looked up each time."""
    def change(held, k):
        if k == 22:
            Held.rate = Held.rate.setter(lambda self, value: setattr(self, "_rate", value * 2.0))
        elif k == 0:
            Held.rate = original

    original = Held.rate
    try:
        harness.compare_steps(made(habits.sets_a_property, change), whole=8, express=0)
    finally:
        Held.rate = original


@pytest.mark.all_variants
def test_all_calls_are_recorded_in_one_run(code):
    """A run that comes to nothing as calls were not known yet is observed to its end: that there are many levels does not take many runs."""
    def make():
        model = code.Deep(9)
        model(DATA[0])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            for w, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
                w.assign_sub(0.1 * g)
            return loss

        return step, lambda step, k: step(DATA[k]), lambda: model.trainable_variables

    harness.compare_steps(make, whole=18, express=0)


class Searched(collections.UserList):
    """Something of a program's that a model holds, and that looks like a sequence."""


class Overrides(keras.Sequential):
    """A model with a `__call__`, and what looks like metrics, of its own."""

    def __init__(self, layers):
        super().__init__(layers)
        self.steps, self.searched = [], Searched([1.0, 2.0])

    def __call__(self, x, *args, **kwargs):
        if isinstance(x, str):
            raise ValueError("no text")
        return super().__call__(x * self.searched[0], *args, **kwargs)

    def compile(self, *args, scale=1.0, **kwargs):
        """It passes on what it does not know."""
        super().compile(*args, **kwargs)
        self.scale = scale


class Trains(Overrides):
    """With a step of its own, which asks for what Keras would have to search the model for."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * self.scale
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {name: loss for name in self.metrics_names if name == "loss"} | {"twice": loss * 2.0}


def fitted(kind, run_eagerly):
    keras.utils.set_random_seed(1)
    model = kind([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    how = {"optimizer": "sgd", "scale": 0.5, "loss": "mse", "metrics": ["mae"] if kind is Overrides else None}
    steps, data = training.compiled(model, run_eagerly, **how)
    history = model.fit(data, epochs=1, verbose=0).history
    model.searched[0] = 2.0
    return model, steps, [history, model.fit(data, epochs=1, verbose=0).history, [w.numpy().tolist() for w in model.weights]]


@pytest.mark.all_variants
@pytest.mark.parametrize("kind", [Overrides, Trains])
def test_a_model_with_methods_of_its_own(kind):
    _, _, expected = fitted(kind, True)
    _, steps, found = fitted(kind, False)
    assert found == expected
    stats = steps.train.stats()
    assert stats.whole_steps >= 40, terra.explain(steps.train)
