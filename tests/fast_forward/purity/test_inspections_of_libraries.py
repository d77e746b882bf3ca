"""What libraries ask of functions, structures and objects before they compute: a step that does so is skipped all the same."""

import inspect
import warnings

import keras
import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity import inspections, training

BODIES = [
    inspections.unpacks_what_a_context_gives, inspections.asks_for_identities, inspections.goes_over_structures, inspections.makes_named_tuples, inspections.names_objects,
    inspections.asks_for_parameters, inspections.compares_arrays, inspections.uses_older_losses, inspections.calls_a_network, inspections.reads_a_local_of_its_own_class,
    inspections.chains, inspections.looks_at_a_spec, inspections.uses_what_is_no_number]
CHANGES = [
    (inspections.asks_for_identities, inspections.changes_the_empty_one), (inspections.asks_for_parameters, inspections.changes_the_defaults),
    (inspections.asks_for_parameters, inspections.decorates), (inspections.asks_for_parameters, inspections.gives_another_signature),
    (inspections.compares_arrays, inspections.changes_the_array), (inspections.reads_a_local_of_its_own_class, inspections.changes_the_local),
    (inspections.calls_a_network, inspections.changes_the_network),
    (inspections.uses_what_is_no_number, inspections.sets_a_limit), (inspections.asks_for_what_is_not_there, inspections.adds_the_name), (inspections.asks_for_what_is_not_there, inspections.adds_the_name_to_tensorflow),
    (inspections.chains, inspections.changes_the_parts), (inspections.looks_at_a_spec, inspections.changes_the_spec), (inspections.names_objects, inspections.names_the_class)]

code = training.as_library(inspections)


def made(body, change=None, code=inspections):
    return training.training(code.Held, getattr(code, body.__name__), lambda held: [held.w], change)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_inspections(body, verify, code):
    harness.compare_steps(made(body, code=code), whole=12, express=0, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body, change", CHANGES)
def test_what_is_asked_for_changes(body, change):
    try:
        harness.compare_steps(made(body, change), whole=6, express=0)
    finally:
        change(inspections.Held(), 0)


def test_what_is_no_number_is_the_same_each_time():
    step = harness.compare_steps(made(inspections.uses_what_is_no_number), whole=12, express=0)
    assert step.stats().feeds == 0 and step.stats().traces == 1


class Inspects(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(6)

    def call(self, x, scale=2.0):
        parameters = inspect.getfullargspec(self.call)
        return self.dense(x) * dict(zip(parameters.args[-1:], parameters.defaults))["scale"]


def test_a_layer_that_asks_for_its_own_parameters():
    """Its code is exchanged for the observed form meanwhile."""
    losses = []
    for eagerly in (True, False):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([Inspects(), keras.layers.Dense(1)])
        steps, data = training.compiled(model, eagerly, optimizer="sgd", loss="mse")
        losses.append(model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert losses[0] == losses[1] and steps.stats()["train"].whole_steps >= 20, steps.stats()


def test_asking_for_what_is_not_there_is_no_call():
    harness.compare_steps(made(inspections.asks_for_what_is_not_there), whole=12, express=8)


class Strange(RuntimeWarning):
    """A library's own."""


@pytest.mark.parametrize("filters", [{"category": Strange}, {"category": RuntimeWarning, "module": "no_such_module"}], ids=["category", "module"])
def test_warnings_that_numpy_does_not_give(filters):
    with warnings.catch_warnings():
        warnings.filterwarnings("always", **filters)
        harness.compare_steps(made(inspections.compares_arrays), whole=12, express=0)


def test_warnings_that_numpy_gives_each_time():
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=RuntimeWarning)
        step = harness.compare_steps(made(inspections.compares_arrays), whole=0, express=0)
    assert step.stats().whole_steps == 0


def test_a_summary_that_nobody_writes():
    """TensorBoard's function unpacks what a context gives, and is given a tensor."""
    pytest.importorskip("tensorboard")

    def summarizes(held, x):
        y = x @ held.w
        tf.summary.scalar("loss", tf.reduce_sum(y), step=1)
        return y

    harness.compare_steps(training.training(inspections.Held, summarizes, lambda held: [held.w]), whole=12, express=0)
