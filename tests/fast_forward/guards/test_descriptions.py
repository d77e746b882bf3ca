"""Objects of the framework's that only describe something (the specification of a layer's input), and are made anew in each call: where they are like those before, the call is skipped."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from terra.runtime.fast_forward.guards.container_guard import ContainerGuard

DATA = np.random.RandomState(0).randn(40, 6, 5, 3).astype("float32")


def run(wrap, change):
    tf_keras.utils.set_random_seed(0)
    rnn, dense, optimizer = tf_keras.layers.GRU(4, return_sequences=True), tf_keras.layers.Dense(1), tf_keras.optimizers.legacy.SGD(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            states = rnn(x, initial_state=tf.zeros((x.shape[0], 4)))
            loss = tf.reduce_mean((dense(states) - 1.0) ** 2)
        variables = rnn.trainable_variables + dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    step, losses = wrap(step), []
    for k, x in enumerate(DATA):
        if k == 25:
            x = change(rnn, x)
        try:
            losses.append(float(step(tf.constant(x))))
        except ValueError as error:
            losses.append(str(error).splitlines()[-1][-60:])
    return losses, [(spec.shape, spec.ndim) for spec in rnn.state_spec], rnn.state_spec, step


def nothing(rnn, x):
    return x


def fewer(rnn, x):
    return x[:4]


def specified(rnn, x):
    rnn.input_spec = [tf_keras.layers.InputSpec(shape=(None, None, 7))]
    return x


def stateful(rnn, x):
    rnn.stateful = True
    return x


@pytest.mark.parametrize("change", [nothing, fewer, specified, stateful])
def test_a_recurrent_layer_with_its_state(change):
    expected, actual = run(lambda step: step, change), run(lambda step: terra.coexecute(step, wait_for_graph=True), change)
    assert actual[:2] == expected[:2]
    assert actual[3].stats().whole_steps >= (14 if change in (specified, stateful) else 24), actual[3].stats()


class Other:
    pass


@pytest.mark.parametrize("old, new, alike", [
    (tf.TensorSpec((2, None)), tf.TensorSpec((2, None)), False),  # (its attributes are slots, or what it has made of them)
    (tf_keras.layers.InputSpec(ndim=3), tf_keras.layers.InputSpec(ndim=3), True), (tf_keras.layers.InputSpec(ndim=3), tf_keras.layers.InputSpec(ndim=2), False),
    ([tf_keras.layers.InputSpec(axes={-1: 3})], [tf_keras.layers.InputSpec(axes={-1: 3})], True), ([tf_keras.layers.InputSpec(axes={-1: 3})], [tf_keras.layers.InputSpec(axes={-1: 4})], False),
    (tf.TensorShape((2, None)), tf.TensorShape((2, None)), True), (tf.TensorShape((2, None)), tf.TensorShape((2, 3)), False), (0.0, -0.0, False), (Other(), Other(), False), ([1], (1,), False),
    (tf.constant(1.0), tf.constant(1.0), False), ({1: "a"}, {1: "a"}, True), ({1: "a"}, {1: "b"}, False), ([[]], [[], []], False)])
def test_which_are_alike(old, new, alike):
    held = {"first": 1, "spec": old}
    guard = ContainerGuard()
    guard.add(held)
    assert guard.holds() and not guard.put_back()
    held["spec"] = new
    put_back = guard.put_back()
    assert put_back is guard.holds() is (held["spec"] is old)
    assert put_back is alike or type(old) is tf.TensorSpec


def test_something_else_has_changed():
    held, other = {"spec": tf_keras.layers.InputSpec(ndim=3)}, [1]
    guard = ContainerGuard()
    guard.add(held)
    guard.add(other)
    held["spec"] = new = tf_keras.layers.InputSpec(ndim=3)
    other.append(2)
    assert not guard.put_back() and held["spec"] is new
