"""`jit_compile=True` and recurrent layers: XLA compiles the loop of a layer, and that of its gradient, in one cluster with the rest of the step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import trial
from terra.runtime.generation.xla import inlining, xla_form
from terra.tf import variable_use
from terra.tf.private import runtime_functions
from tests.graph.test_jit_compile import compare, jit, kept  # noqa: F401  (a fixture)
from tests.loops.test_recurrent_layers import LAYERS, built, trained

L = keras.layers


def sequences(length=3, batch=4, count=3):
    return [(tf.constant(np.random.default_rng(i).normal(size=(batch, length, 3)).astype("float32")),) for i in range(count)]


def wrapping(make):
    def wrapped(wrap):
        step, variables = make()
        return wrap(step), variables
    return wrapped


def small():
    layer = built(L.LSTM(4))
    return trained([layer], layer)


def assert_loops_inside(step, loops, clusters=1):
    """So many loops are compiled, and none is called from the top."""
    form = step.program.compiled._current[0]
    inside = [node.op for cluster in form.clusters for node in cluster.fdef.node_def]
    assert sum(op in ("While", "StatelessWhile") for op in inside) == loops, inside
    assert len(form.clusters) == clusters and [node.op for node in form.top.node_def].count("PartitionedCall") == (0 if form.whole else clusters)
    assert step.stats().recurrent_layers and "XLA may compile them so" in terra.explain(step, full=True)


@pytest.mark.one_variant
@pytest.mark.parametrize("name", ["lstm", "backwards", "simple", "stacked"])
def test_layers(name):
    def make():
        layer, dense = built(LAYERS[name]()), built(L.Dense(3))
        return trained([layer, dense], lambda x: layer(dense(x), training=True))
    step = compare(wrapping(make), sequences(), rtol=1e-3)
    assert_loops_inside(step, 2)
    assert step.stats().traces == 1


def test_both_directions_and_masks():
    def make():
        layers = [built(L.Bidirectional(L.LSTM(4, return_sequences=True))), built(L.SimpleRNN(3), (None, None, 8))]

        def forward(x):
            mask = tf.reduce_sum(x, 2) > -1.0
            return layers[1](layers[0](x, mask=mask), mask=mask)
        return trained(layers, forward)
    assert_loops_inside(compare(wrapping(make), sequences(), rtol=1e-3), 6)


def test_prediction():
    """Without a gradient there is no list to keep."""
    def make():
        layer = built(L.LSTM(5))
        return (lambda x: layer(x)), lambda: layer.weights
    assert_loops_inside(compare(wrapping(make), sequences()), 1)


def test_states_that_stay():
    def make():
        layer = L.GRU(4, stateful=True, return_sequences=True)
        layer.build((4, 3, 3))
        return trained([layer], layer)
    assert_loops_inside(compare(wrapping(make), sequences(), rtol=1e-3), 2)


def test_lengths_and_batches_that_vary():
    """Each combination is compiled for itself; the trace is one, but for the first batch of another size."""
    varied = [batch for length, size in ((2, 4), (4, 4), (3, 2)) for batch in sequences(length, size, 1)]
    step = compare(wrapping(small), varied, steps=36, rtol=1e-3)
    assert_loops_inside(step, 2)
    assert len(step.program.compiled._current[1]) == 3


def test_a_gradient_in_another_part():
    """Python reads the loss before the gradient is computed: the lists that the loop keeps for it cannot go from one cluster to another."""
    def make():
        layer, seen = built(L.LSTM(4)), []
        variables = [v.value for v in layer.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(x) ** 2.0)
            seen.append(float(loss))
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(0.3 * gradient)
            return loss, seen[-1]
        return step, lambda: variables
    step = compare(wrapping(make), sequences(), rtol=1e-3)
    form = step.program.compiled._current[0]
    assert "lists of tensors would be handed on between parts" in form.left_out
    assert not [node.op for cluster in form.clusters for node in cluster.fdef.node_def if "While" in node.op]


def test_a_branch_round_the_layer():
    """What only some paths have cannot hand lists on either: the gradient computes the loop again."""
    def make():
        layer, dense = built(L.LSTM(4)), built(L.Dense(4))
        return trained([layer, dense], lambda x: layer(x) if tf.reduce_sum(x) > 0 else tf.reduce_mean(dense(x), 1))
    compare(wrapping(make), sequences(count=5), steps=30, rtol=1e-3)


LOOPS = {
    "sums": (lambda x: tf.tanh(x) + 1.0, None),
    "looks up": (lambda x: tf.gather(x, tf.cast(tf.abs(x), tf.int32)), "its kernel checks the values that it is given, XLA's does not"),
    "draws": (lambda x: x + tf.random.stateless_uniform([3], [1, 2]), "XLA would draw other random numbers"),
    "changes state": (lambda x: x + tf.random.uniform([3]), inlining.xla_ops.CALLS),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_may_be_in_a_loop(name):
    body, expected = LOOPS[name]

    def run(x):
        return tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, tf.ensure_shape(body(x), [3])), (0, x), maximum_iterations=4)[1]
    spec = [tf.TensorSpec([3])]
    with runtime_functions.tracing_for_xla():
        fdef = tf.function(run, autograph=False, input_signature=spec).get_concrete_function().function_def
    assert inlining.why_not(fdef, variable_use.reachable_functions(fdef)) == expected
    ordinary = tf.function(run, autograph=False, input_signature=spec).get_concrete_function().function_def
    assert inlining.why_not(ordinary, variable_use.reachable_functions(ordinary)) == inlining.xla_ops.CALLS


def test_loops_are_unrolled_again_if_xla_is_given_up(monkeypatch):
    """The ordinary graph of a loop is no better than the unrolled one."""
    monkeypatch.setattr(trial, "FASTER", 0.0)

    made = jit(small()[0])
    for i in range(45):
        made(*sequences()[i % 3])
    stats = made.stats()
    assert stats.recurrent_layers == 0 and stats.coexecuted_steps >= 30 and stats.fallbacks == 0, stats
    assert "XLA's compiled form is not used" in terra.explain(made, full=True)
    assert len(made.trace_graph) > 120


def test_unrolled_if_asked_for():
    step = compare(wrapping(small), sequences(), rtol=1e-3, loops="unroll")
    assert step.stats().recurrent_layers == 0


def test_loops_too_large_to_compile(monkeypatch):
    monkeypatch.setattr(xla_form, "LARGEST", 5)

    made = jit(small()[0])
    for i in range(30):
        made(*sequences()[i % 3])
    assert made.stats().compiled_steps == 0 and made.stats().coexecuted_steps >= 20
