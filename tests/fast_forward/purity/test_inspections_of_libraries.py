"""What libraries ask of functions, structures and objects before they compute: a step that does so is skipped all the same."""

import warnings

import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity import inspections, training

BODIES = [
    inspections.unpacks_what_a_context_gives, inspections.asks_for_identities, inspections.goes_over_structures, inspections.makes_named_tuples, inspections.names_objects,
    inspections.asks_for_parameters, inspections.compares_arrays, inspections.uses_older_losses, inspections.calls_a_network, inspections.reads_a_local_of_its_own_class,
    inspections.chains, inspections.looks_at_a_spec]
CHANGES = [
    (inspections.asks_for_identities, inspections.changes_the_empty_one), (inspections.asks_for_parameters, inspections.changes_the_defaults),
    (inspections.asks_for_parameters, inspections.decorates), (inspections.asks_for_parameters, inspections.gives_another_signature),
    (inspections.compares_arrays, inspections.changes_the_array), (inspections.reads_a_local_of_its_own_class, inspections.changes_the_local),
    (inspections.calls_a_network, inspections.changes_the_network),
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
