"""What a traced step keeps: the tensors that eager execution would keep, and a few more."""

import gc

import keras
import pytest
import tensorflow as tf

import terra
from terra.runtime.tensors.tensor import TerraTensor
from tests.harness import shown

LENGTH = 400  # operations, of which the program keeps few at a time
ALLOWED = 100


def alive():
    """How many tensors hold a value that operations can use."""
    return sum(type(x) is TerraTensor and x._hidden is not None for x in gc.get_objects())


def chain(probe):
    def step(x):
        for _ in range(LENGTH):
            x = x * 1.01
        probe()
        return x

    return step


def chain_on_a_tape(probe):
    v = tf.Variable(tf.ones(()))

    def step(x):
        with tf.GradientTape() as tape:
            for _ in range(LENGTH // 4):
                x = tf.tanh(x * v)
            loss = tf.reduce_sum(x)
        gradient = tape.gradient(loss, v)
        del tape
        for _ in range(LENGTH):
            gradient = gradient * 1.01
        probe()
        return loss, gradient

    return step


def shape_is_data(probe):
    def step(x):
        for _ in range(LENGTH // 8):
            x = tf.boolean_mask(x, x > 0.0) * 1.01
        probe()
        return x

    return step


def some_are_kept(probe):
    def step(x):
        kept = []
        for k in range(LENGTH):
            x = x * 1.01
            if k % 50 == 0:
                kept.append(x)
        probe()
        return kept, float(kept[1][0])

    return step


PROGRAMS = [chain, chain_on_a_tape, shape_is_data, some_are_kept]
X = tf.constant([1.0, -2.0, 3.0])


@pytest.mark.parametrize("make", PROGRAMS)
def test_dropped_tensors_are_let_go(make):
    expected, counts = shown(make(int)(X)), []
    function = terra.coexecute(make(lambda: counts.append(alive())), max_traces=0)
    for _ in range(3):  # at first, operations are recorded in another way
        assert shown(function(X)) == expected
    assert function.stats().tracing_steps == 3
    assert len(counts) == 3 and max(counts) <= ALLOWED, counts


@pytest.mark.parametrize("make", PROGRAMS)
def test_graphs_of_such_traces(make):
    """What was recorded does not lack the tensors that were let go."""
    expected = shown(make(int)(X))
    function = terra.coexecute(make(int), wait_for_graph=True)
    for _ in range(8):
        assert shown(function(X)) == expected
    assert function.stats().coexecuted_steps >= 4 and function.stats().fallbacks == 0


def test_what_only_a_dropped_tensor_holds_is_dropped():
    """Keras has what an activation gives hold what it was given."""
    w = tf.Variable(tf.ones((3, 3)))

    def step(x):
        y = keras.activations.sigmoid(tf.reshape(x, (1, 3)) @ w)
        return tf.reduce_sum(y)

    function = terra.coexecute(step, wait_for_graph=True, fast_forward=False)
    for _ in range(6):
        assert float(function(X)) == float(step(X))
    assert function.stats().fallbacks == 0
    assert {node.payload.event.info.op_type for node, _ in function.store.live_out} == {"Sum"}
