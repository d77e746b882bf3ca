"""The option `verify`: every step is run both ways, and a step that would not have been like eager execution is an error."""

import importlib
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.location import current_step
from terra.runtime.fast_forward.guards import guard_set
from terra.tf.private import runtime_functions
from tests.harness import differ

X = [np.random.default_rng(i).normal(size=(4, 3)).astype("float32") for i in range(3)]
STEPS = 20


def given(i):
    return tf.constant(X[i % 3]), i


class Trainer:
    """A model with dropout, and a step whose loss is read every fourth time."""

    def __init__(self):
        keras.utils.set_random_seed(0)
        self.model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)
        self.dropout = self.model.layers[1]
        self.losses = []

    def state(self):
        return [v.numpy() for v in (*self.model.variables, *self.optimizer.variables)], self.losses

    def step(self, x, i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x, training=True) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        if i % 4 == 0:
            self.losses.append(float(loss))
        return loss


def trained():
    trainer = Trainer()
    return trainer.step, trainer.state


def looped():
    """A loop that runs another number of times each time: steps in pieces."""
    w = tf.Variable([[1.0, 0.5, 0.1], [0.2, 0.9, 0.3], [0.0, 0.1, 0.8]])

    def step(x, i):
        with tf.GradientTape() as tape:
            h = x
            for _ in range(i % 7):
                h = tf.tanh(h @ w)
            loss = tf.reduce_sum(h)
        gradient = tape.gradient(loss, w)
        if gradient is not None:
            w.assign_sub(0.01 * gradient)
        return loss

    return step, w.numpy


def grouped():
    """Generators of random numbers, integers, strings, a variable made in the step, two updates of one variable."""
    total, generator = tf.Variable(0.0), tf.random.Generator.from_seed(1)

    def step(x, i):
        total.assign_add(tf.reduce_sum(x))
        noise = generator.normal([2]) + tf.random.uniform([2])
        text = tf.strings.as_string(tf.argmax(x, 1))
        total.assign_add(tf.reduce_sum(noise))
        return text, total + 1.0, tf.cast(noise, tf.bfloat16)

    return step, total.numpy


@pytest.mark.parametrize("make", [trained, looped, grouped])
def test_what_is_right_passes_and_equals_eager(make):
    equal = np.testing.assert_allclose if make is looped else np.testing.assert_array_equal
    stats = differ(make, given, STEPS if make is not looped else 36, equal=equal, verify=True)
    assert stats.coexecuted_steps > 10
    assert stats.verified_graphs >= stats.coexecuted_steps and stats.verified_calls > stats.coexecuted_steps
    assert stats.fast_forwards == stats.whole_steps == 0


def branching(drawn):
    """A step that branches on a number that is another one each time, and reads a value, which is the same for both branches."""
    w, generator = tf.Variable([0.1, 0.2, -0.3]), random.Random(1)

    def step(x, rate):
        scale = 0.1
        if (generator.random() if drawn else rate) > 0.4:
            scale += 0.1
        w.assign(tf.tanh(w * 0.9 + tf.reduce_sum(x) * scale))
        return float(w[0])

    return step, w.numpy


@pytest.mark.share(2)
@pytest.mark.parametrize("drawn", [False, True])
def test_what_two_branches_read_alike_is_not_taken_for_the_other(drawn):
    stats = differ(lambda: branching(drawn), lambda i: (tf.constant(X[i % 3]), 0.001 * i if i % 3 else 0.5 + 0.001 * i), 60, verify=True)
    assert stats.coexecuted_steps > 40 and stats.verified_calls > 40
    assert differ(lambda: branching(drawn), lambda i: (tf.constant(X[i % 3]), 0.001 * i if i % 3 else 0.5 + 0.001 * i), 60).whole_steps > 20


@pytest.mark.one_variant
@pytest.mark.parametrize("name", ["keras_cnn", "lines_of_text", "tree_lstm"])
def test_programs_pass(name):
    job = importlib.import_module(f"examples.programs.{name}").build(0, "test")
    step = terra.coexecute(job.step, wait_for_graph=True, verify=True)
    for i in range(20):
        step(*job.batches[i % len(job.batches)])
    assert step.stats().coexecuted_steps > 8 and step.stats().verified_calls > 300


def test_steps_without_code_that_must_run_are_compared_as_a_whole(monkeypatch):
    compared = []
    from terra.runtime.fast_forward.cache import verification
    from terra.runtime.fast_forward.steps import pure_functions
    original = verification.compare
    monkeypatch.setattr(pure_functions.verification, "compare", lambda *args: (compared.append(len(args)), original(*args)))
    trainer = Trainer()

    def step(x):
        return trainer.step(x, 1)

    coexecuted = terra.coexecute(step, wait_for_graph=True, verify=True)
    for i in range(STEPS):
        coexecuted(given(i)[0])
    assert compared.count(3) > STEPS // 2  # without a place: that of the user's code is the step


def differences_of(step, steps=STEPS):
    """Call the step often; returns the errors that say that it differed."""
    errors = []
    for i in range(steps):
        try:
            step(*given(i))
        except terra.VerificationError as error:
            errors.append(str(error))
    return errors


def test_a_guard_that_fails_to_see_a_change_is_found(monkeypatch):
    """The call that would have been skipped wrongly is named; the run itself is right."""
    def run(wrap):
        trainer = Trainer()
        step = wrap(trainer.step)
        assert not differences_of(step, 12)
        trainer.dropout.rate = 0.25
        monkeypatch.setattr(guard_set.GuardSet, "holds", lambda self: True)
        errors = differences_of(step, 6)
        return trainer.state(), errors

    expected, none = run(lambda step: step)
    assert not none
    monkeypatch.undo()
    actual, errors = run(lambda step: terra.coexecute(step, wait_for_graph=True, verify=True))
    assert errors and "would have been skipped" in errors[0] and "test_verification.py:" in errors[0] and "Trainer.step" in errors[0]
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_call_that_does_something_else_on_a_known_path_is_found(monkeypatch):
    """Both activations are known, so that no step falls back: it is the comparison with what was recorded that tells."""
    trainer = Trainer()
    step, layer = terra.coexecute(trainer.step, wait_for_graph=True, verify=True), trainer.model.layers[0]
    for activation in (keras.activations.tanh, keras.activations.sigmoid) * 2:
        layer.activation = activation
        assert not differences_of(step, 9)
    fallbacks = step.stats().fallbacks
    monkeypatch.setattr(guard_set.GuardSet, "holds", lambda self: True)
    errors = []
    for activation in (keras.activations.tanh, keras.activations.sigmoid):
        layer.activation = activation
        errors += differences_of(step, 6)
    assert errors and "issues" in errors[0] and "was recorded (test_verification.py:" in errors[0]
    assert step.stats().fallbacks == fallbacks


def wrong_graphs(monkeypatch, op, other):
    """Have all graphs made from now on run another operation in the place of `op`."""
    original = runtime_functions.add_function

    def add(fdef):
        for node in fdef.node_def:
            if node.op == op:
                node.op = other
        original(fdef)

    monkeypatch.setattr(runtime_functions, "add_function", add)


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [trained, looped])
def test_a_graph_that_computes_something_else_is_found(make, monkeypatch):
    step, state = make()
    for i in range(STEPS):
        step(*given(i))
    expected = state()
    wrong_graphs(monkeypatch, "Tanh" if make is looped else "Relu", "Sigmoid" if make is looped else "Relu6")
    if make is trained:
        wrong_graphs(monkeypatch, "Square", "Neg")
    step, state = make()
    coexecuted = terra.coexecute(step, wait_for_graph=True, verify=True)
    errors = differences_of(coexecuted)
    assert errors and "in the graph" in errors[0] and "eagerly (test_verification.py:" in errors[0]
    for a, b in zip(tf.nest.flatten(state()), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6) if make is looped else np.testing.assert_array_equal(a, b)


def test_blocks_are_verified(monkeypatch):
    trainer = Trainer()

    def step(x):
        with terra.GradientTape(wait_for_graph=True, verify=True) as tape:
            loss = tf.reduce_mean(trainer.model(x, training=True) ** 2)
        variables = trainer.model.trainable_variables
        trainer.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return float(loss)

    def train():
        for i in range(STEPS):
            step(given(i)[0])
        terra.sync()

    train()
    wrong_graphs(monkeypatch, "Relu", "Elu")
    trainer.model.add(keras.layers.Dense(1))  # another path, which gets another graph
    trainer.optimizer = keras.optimizers.SGD(0.01)
    with pytest.raises(terra.VerificationError, match="in the graph"):
        train()
    assert current_step.active is None


def test_errors_of_the_program_are_its_own():
    """A failing operation raises what it raises eagerly, at its step."""
    table = tf.constant([1.0, 2.0])

    def step(i):
        return tf.reduce_sum(tf.gather(table, i))

    coexecuted = terra.coexecute(step, wait_for_graph=True, verify=True)
    for _ in range(8):
        assert coexecuted(tf.constant([0, 1])).numpy() == 3.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        coexecuted(tf.constant([0, 5]))
    assert coexecuted(tf.constant([1, 1])).numpy() == 4.0
    assert coexecuted.stats().verified_graphs >= 6


def test_it_goes_on_though_it_is_slow():
    """Steps that are run both ways take longer than eager ones, which is no reason to leave them alone."""
    trainer = Trainer()
    step = terra.coexecute(trainer.step, verify=True)
    for i in range(50):
        step(*given(i))
        if i == 10:
            while step.generation.runs:
                time.sleep(0.01)
    stats = step.stats()
    assert stats.coexecuted_steps > 32 and stats.verified_graphs == stats.coexecuted_steps
