"""Losses that compare labels with sampled classes: the graph trains with the candidates that eager execution draws."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.tensors import draws
from terra.tf import samplers
from tests import harness
from tests.variants import examples

CLASSES, WIDTH, BATCH = 60, 4, 6
SAMPLERS = {"LogUniformCandidateSampler": tf.random.log_uniform_candidate_sampler, "UniformCandidateSampler": tf.random.uniform_candidate_sampler}
SEEDS = st.integers(1, 2**31 - 1)

differ = functools.partial(harness.differ, equal=functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7))


def labelled(k, batch=BATCH):
    r = np.random.default_rng(k % 5)
    return tf.constant(r.normal(size=(batch, WIDTH)).astype("f")), tf.constant(r.integers(0, CLASSES, (batch, 1)))


def trained(loss, **made):
    """A step that trains a table and what is in front of it; loss(weights, biases, labels, inputs)."""
    r = np.random.default_rng(1)
    variables = [tf.Variable(r.normal(size=shape).astype("f")) for shape in ((CLASSES, WIDTH), (CLASSES,), (WIDTH, WIDTH))]
    weights, biases, w = variables

    def step(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(weights, biases, y, x @ w))
        for v, gradient in zip(variables, tape.gradient(value, variables)):
            v.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return value

    return step, lambda: variables


def nce(weights, biases, labels, inputs, **options):
    return tf.nn.nce_loss(weights, biases, labels, inputs, num_sampled=8, num_classes=CLASSES, **options)


def softmax(weights, biases, labels, inputs, **options):
    return tf.nn.sampled_softmax_loss(weights, biases, labels, inputs, num_sampled=8, num_classes=CLASSES, **options)


def of_own_candidates(weights, biases, labels, inputs, sampler=tf.random.uniform_candidate_sampler, unique=True, sampled=8, **options):
    candidates = sampler(labels, 1, sampled, unique, CLASSES, **options)
    return tf.nn.nce_loss(weights, biases, labels, inputs, sampled, CLASSES, sampled_values=candidates)


LOSSES = {
    "nce": nce,
    "nce without hits": functools.partial(nce, remove_accidental_hits=True),
    "softmax": softmax,
    "softmax with hits": functools.partial(softmax, remove_accidental_hits=False),
    "uniform": of_own_candidates,
    "uniform, twice": functools.partial(of_own_candidates, unique=False),
    "log uniform, twice": functools.partial(of_own_candidates, sampler=tf.random.log_uniform_candidate_sampler, unique=False),
    "labels that are calculated": lambda weights, biases, labels, inputs: nce(weights, biases, tf.reshape(tf.reverse(tf.cast(labels, tf.int32), [0]), [-1, 1]), inputs),
}


@pytest.mark.parametrize("name, options", [
    *[pytest.param(name, {}, id=name) for name in LOSSES],
    pytest.param("nce", {"fast_forward": False}, id="no fast-forward"), pytest.param("softmax", {"verify": True}, id="verify")])
def test_losses(name, options):
    stats = differ(lambda: trained(LOSSES[name]), labelled, 20, **options)
    assert stats.coexecuted_steps >= 15 and not stats.fallbacks, stats
    if not options:
        assert stats.express_steps >= 12, stats


def test_batches_of_other_sizes():
    stats = differ(lambda: trained(nce), lambda k: labelled(k, 4 if k % 4 == 3 else BATCH), 40)
    assert stats.coexecuted_steps >= 30 and stats.express_steps >= 16, stats


def test_seeds_that_are_set_in_between():
    stats = differ(lambda: trained(softmax), labelled, 24, change=lambda k, step: tf.random.set_seed(k) if k % 6 == 5 else None)
    assert stats.coexecuted_steps >= 18 and stats.express_steps >= 6, stats


def test_candidates_are_drawn_anew_where_no_seed_is_set():
    def step(x, y):
        candidates, _, _ = tf.random.log_uniform_candidate_sampler(y, 1, 8, True, CLASSES)
        indices, _, _ = tf.nn.compute_accidental_hits(y, candidates, 1)
        return candidates, tf.size(indices)

    tf.random.set_seed(None)
    step = terra.coexecute(step, wait_for_graph=True)
    found = {tuple(step(*labelled(k))[0].numpy().tolist()) for k in range(20)}
    assert len(found) == 20
    assert step.stats().express_steps >= 12, step.stats()


def test_the_number_of_candidates_changes():
    sampled = [8]
    stats = differ(lambda: trained(lambda *args: of_own_candidates(*args, sampled=sampled[0])), labelled, 30,
                   change=lambda k, step: sampled.__setitem__(0, 8 if k < 15 else 5))
    assert stats.coexecuted_steps >= 22 and stats.express_steps >= 14, stats


@pytest.mark.parametrize("options", [
    {"seed": 3},  # a stream that goes on
    {"sampled": CLASSES // 2},  # too many
    {"sampler": lambda *args, **options: tf.random.fixed_unigram_candidate_sampler(*args, unigrams=[1.0 + k for k in range(CLASSES)], **options)}],
    ids=["seed", "many", "unigrams"])
def test_what_runs_imperatively(options):
    def make():
        tf.random.set_seed(6)  # forgets the kernels
        return trained(functools.partial(of_own_candidates, **options))

    stats = differ(make, labelled, 16)
    assert stats.coexecuted_steps >= 10 and not stats.express_steps, stats


def test_too_many_candidates_are_an_error():
    """Eager's, in the step that asks for them."""
    step, _ = trained(lambda *args: of_own_candidates(*args, sampled=sampled[0]))
    step, sampled = terra.coexecute(step, wait_for_graph=True), [8]
    for k in range(8):
        step(*labelled(k))
    assert step.stats().coexecuted_steps >= 5
    sampled[0] = CLASSES + 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="Sampler's range is too small"):
        step(*labelled(0))


@pytest.mark.parametrize("op_type", SAMPLERS)
@given(seed=SEEDS, seed2=SEEDS, sampled=st.integers(1, 40), classes=st.integers(1, 10**6), unique=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_candidates_and_counts_are_those_of_the_kernel(op_type, seed, seed2, sampled, classes, unique):
    attrs = {"num_true": 1, "num_sampled": sampled, "unique": unique, "range_max": classes, "seed": seed, "seed2": seed2}
    if not samplers.can_draw(attrs):
        return
    tf.random.set_seed(1)  # forgets the kernels, which go on in their streams
    kernel = getattr(tf.raw_ops, op_type)
    candidates, _, _ = kernel(true_classes=[[0]], **attrs)
    found = draws.seed_tensor(op_type, [x for pair in attrs.items() for x in pair]).numpy()
    np.testing.assert_array_equal(found[:-1], candidates)
    assert found[-1] >= sampled if unique else found[-1] == sampled


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("op_type", SAMPLERS)
def test_expected_counts(op_type, unique):
    """In the graph, those of many classes are at most one unit in the last place off the kernel's."""
    def make():
        return (lambda x, y: SAMPLERS[op_type](tf.range(5000, dtype=tf.int64)[:, None] + y[0], 1, 50, unique, 6000)), lambda: []

    def equal(a, b, err_msg):
        if a.dtype == np.int64:
            np.testing.assert_array_equal(a, b, err_msg)
        else:
            np.testing.assert_array_max_ulp(a, b, 1)

    stats = harness.differ(make, labelled, 12, equal)
    assert stats.whole_steps >= 5, stats


Pair = collections.namedtuple("Pair", "first second")
Other = collections.namedtuple("Other", "first second")


def test_calls_of_the_framework_that_are_given_named_tuples():
    kind = [Pair]

    def make():
        w = tf.Variable(2.0)

        def step(x, y):
            pair = kind[0](x, tf.cast(y, tf.float32))
            w.assign_add(tf.reduce_mean(tf.concat(pair, 1)))
            return tf.nest.map_structure(lambda t: t * w, pair)

        return step, lambda: w

    stats = differ(make, labelled, 20, change=lambda k, step: kind.__setitem__(0, Pair if k < 10 else Other))
    assert stats.coexecuted_steps >= 14 and stats.whole_steps >= 8, stats


def test_labels_that_the_step_makes():
    """TensorFlow's Python calculates with such small tensors on the host: what comes of them are constants, so that they are compared."""
    labels = [1]

    def make():
        return trained(lambda weights, biases, y, inputs: nce(weights, biases, tf.constant([[label] for label in labels] * BATCH), inputs))

    stats = differ(make, labelled, 40, change=lambda k, step: labels.__setitem__(0, k // 10))
    assert stats.coexecuted_steps >= 16, stats
