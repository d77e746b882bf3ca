"""AutoGraph at work round a co-executed function: Terra's own code is none that it converts, the user's is where a graph is made."""

import functools

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import terra
from tests.harness import differ


@pytest.fixture
def converted(monkeypatch):
    """The modules of what AutoGraph converts."""
    modules, transform = [], api._TRANSPILER.transform

    def note(function, *args):
        modules.append(function.__module__)
        return transform(function, *args)

    monkeypatch.setattr(api._TRANSPILER, "transform", note)
    return modules


def coexecuted(function):
    return terra.coexecute(function, wait_for_graph=True)


def doubled(x):
    """One that eager code may call, and AutoGraph must convert for a graph."""
    if tf.reduce_sum(x) > 0:
        x = x * 2
    for i in tf.range(3):
        x = x + tf.cast(i, tf.float32)
    return x


class Callable:
    def __call__(self, x):
        return doubled(x)

    def method(self, x):
        return doubled(x) if tf.reduce_sum(x) > 1 else x


FUNCTIONS = {"function": doubled, "partial": functools.partial(doubled), "callable": Callable(), "method": Callable().method}


def test_map_fn_does_not_convert_terra(converted):
    step = coexecuted(lambda x: tf.tanh(x) * 2)
    for i in range(8):
        tf.debugging.assert_equal(tf.map_fn(step, tf.ones([3, 2]) * i), tf.tanh(tf.ones([3, 2]) * i) * 2)
    assert step.stats().coexecuted_steps > 10
    assert not [name for name in converted if name.partition(".")[0] == "terra"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_a_graph_the_users_function_is_converted(name, converted):
    own = coexecuted(FUNCTIONS[name])
    graph = tf.function(lambda x: own(x))
    for i in range(-2, 3):
        tf.debugging.assert_equal(graph(tf.ones([3]) * i), FUNCTIONS[name](tf.ones([3]) * i))
    assert not [name for name in converted if name.partition(".")[0] == "terra"]


@pytest.mark.one_variant
@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_a_graph_that_another_step_makes(name):
    def make():
        own = coexecuted(FUNCTIONS[name])
        graph = tf.function(lambda x: own(x))

        def step(x):
            mapped = tf.data.Dataset.from_tensor_slices(tf.ones([2, 3])).map(lambda e: own(e))
            return graph(x), [e.numpy() for e in mapped], tf.map_fn(own, tf.stack([x, -x])), tf.cond(tf.reduce_sum(x) > 0.0, lambda: own(x), lambda: x)

        return step, lambda: None

    stats = differ(make, lambda i: (tf.ones([3]) * (i - 2),), 12)
    assert stats.coexecuted_steps > 4


def test_in_a_graph_without_autograph():
    own = coexecuted(doubled)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(lambda x: own(x), autograph=False)(tf.ones([3]))


def test_in_an_imperative_step():
    own = coexecuted(doubled)
    with terra.imperative():
        tf.debugging.assert_equal(tf.function(lambda x: own(x))(tf.ones([3])), doubled(tf.ones([3])))


def test_in_a_plain_graph_nothing_is_converted():
    own = coexecuted(doubled)
    with tf.Graph().as_default(), pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        own(tf.constant([1.0]))
