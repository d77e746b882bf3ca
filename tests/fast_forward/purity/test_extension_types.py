"""Objects of the program's own `tf.experimental.ExtensionType`s: a step takes them, makes them and gives them, and is skipped all the same."""

from typing import Tuple

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness


class Graph(tf.experimental.BatchableExtensionType):
    nodes: tf.Tensor
    edges: tf.Tensor
    __batch_encoder__ = tf.experimental.ExtensionTypeBatchEncoder()

    @property
    def total(self):
        return tf.reduce_sum(self.nodes)

    def scaled(self, factor):
        return Graph(nodes=self.nodes * factor, edges=self.edges)


class Named(tf.experimental.ExtensionType):
    graph: Graph
    name: str = "a graph"
    scale: float = 2.0
    pair: Tuple[tf.Tensor, ...] = ()


class Masked(tf.experimental.ExtensionType):
    """It has a constructor, a check, operators and a length of its own."""
    values: tf.Tensor
    mask: tf.Tensor

    def __init__(self, values):
        self.values = values
        self.mask = values > 0.0

    def __validate__(self):
        assert self.mask.dtype == tf.bool

    def __add__(self, other):
        return Masked(self.values + other.values)

    def __len__(self):
        return int(self.values.shape[0])


drawn = np.random.RandomState(0)
NODES = [tf.constant(drawn.randn(6, 4).astype("float32")) for _ in range(5)]
EDGES = tf.constant(drawn.randint(0, 6, (6,)))


def graph(k):
    return Graph(nodes=NODES[k % 5] * (1.0 + k), edges=EDGES)


def parts(x):
    """What can be compared of it."""
    if isinstance(x, tf.experimental.ExtensionType):
        return type(x).__name__, {name: parts(value) for name, value in tf.experimental.extension_type.as_dict(x).items()}
    if isinstance(x, (list, tuple)):
        return [parts(y) for y in x]
    return harness.shown(x)


def compare(make, whole=12, express=4, **options):
    return harness.compare_steps(make, whole, express, **options)


def given_to(function, called=lambda k: (graph(k),)):
    """A step that calls `function`, adds to a variable what it gives first, and gives the rest."""
    def make():
        w = tf.Variable(tf.ones([4]))

        def step(*arguments):
            loss, *rest = function(w, *arguments)
            w.assign_sub(0.001 * loss * w)
            return loss, *rest

        return step, lambda step, k: parts(step(*called(k))), lambda: w
    return make


def takes(w, g):
    return (tf.reduce_sum(tf.gather(g.nodes, g.edges) * w),)


def makes(w, g):
    for _ in range(3):
        g = Graph(nodes=tf.tanh(g.nodes * w + tf.gather(g.nodes, g.edges)), edges=g.edges)
    return tf.reduce_mean(g.nodes), g


def asks_properties_and_methods(w, g):
    return g.total + g.scaled(2.0).total * w[0], g.scaled(w[1]).nodes


def nests(w, g):
    named = Named(graph=Graph(g.nodes * w, g.edges), name="inner", pair=(g.nodes, w * 2.0))
    return named.scale * tf.reduce_sum(named.graph.nodes) + tf.reduce_sum(named.pair[1]), named.name, named


def by_default(w, g):
    named = Named(g)
    return tf.reduce_sum(named.graph.nodes * w) * named.scale, named.name, len(named.pair)


def keeps_in_containers(w, g):
    held = [g, Graph(g.nodes + w, g.edges)]
    held.append(held[0].scaled(0.5))
    return tf.add_n([tf.reduce_sum(x.nodes) for x in held]), held[-1]


@pytest.mark.all_variants
@pytest.mark.parametrize("function", [takes, makes, asks_properties_and_methods, nests, by_default, keeps_in_containers])
def test_steps_are_skipped(function):
    compare(given_to(function))


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}, {"fast_forward": "framework"}, {"reduce_retracing": True}], ids=str)
@pytest.mark.parametrize("function", [makes, nests])
def test_other_options(function, options):
    whole = 0 if options.get("fast_forward") == "framework" else 12
    compare(given_to(function), whole, 0, **options)


def test_other_static_fields_are_other_steps():
    def function(w, named):
        return (tf.reduce_sum(named.graph.nodes * w) * named.scale * (2.0 if named.name == "one" else 1.0),)

    compare(given_to(function, lambda k: (Named(graph(k), name=("one", "other")[k // 3 % 2], scale=(1.0, 3.0)[k % 2]),)))


def test_other_sizes_and_types():
    def called(k):
        n = 2 + k % 3
        return (Graph(nodes=NODES[k % 5][:n] if k % 4 else tf.cast(NODES[k % 5][:n], tf.float64), edges=EDGES[:n] % n),)

    compare(given_to(lambda w, g: (tf.reduce_sum(tf.cast(tf.gather(g.nodes, g.edges), tf.float32) * w),), called), whole=4, express=0, n=60)


def test_given_in_containers_and_by_name():
    def make():
        w = tf.Variable(tf.ones([4]))

        def step(batch, *, more):
            loss = tf.reduce_sum(batch["graphs"][0].nodes * w) + more.graph.total
            w.assign_add(loss * 0.0001 * w)
            return loss

        return step, lambda step, k: step({"graphs": (graph(k), None), "n": 1}, more=Named(graph(k + 1))), lambda: w

    compare(make)


def test_gradients_with_respect_to_its_parts():
    def function(w, g):
        with tf.GradientTape() as tape:
            tape.watch(g.nodes)
            y = tf.reduce_sum(tf.sin(makes(w, g)[1].nodes) * w)
        slope = tape.gradient(y, [g.nodes, w])
        return y, *slope

    compare(given_to(function))


def test_a_layer_of_the_users():
    import tf_keras

    def make():
        class Convolution(tf_keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.dense = tf_keras.layers.Dense(4, "tanh")

            def call(self, g):
                return Graph(nodes=self.dense(g.nodes + tf.gather(g.nodes, g.edges)), edges=g.edges)

        class Model(tf_keras.Model):
            def __init__(self):
                super().__init__()
                self.convolutions = [Convolution() for _ in range(3)]

            def call(self, g):
                for convolution in self.convolutions:
                    g = convolution(g)
                return tf.reduce_mean(g.nodes, 1)

        tf_keras.utils.set_random_seed(1)
        model, optimizer = Model(), tf_keras.optimizers.SGD(0.1)

        def step(g, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(g) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        return step, lambda step, k: step(graph(k), NODES[k % 5][:, 0]), lambda: [w.numpy().tolist() for w in model.trainable_variables]

    compare(make)


# -- what is not known to do nothing is run --------------------------------------------------------------------------------------

def test_a_constructor_and_operators_of_its_own():
    seen = []

    class Counted(tf.experimental.ExtensionType):
        values: tf.Tensor

        def __validate__(self):
            seen.append("checked")

        def __mul__(self, other):
            seen.append("multiplied")
            return Counted(self.values * other)

    def make():
        seen.clear()

        def step(x):
            made = Masked(x) + Masked(x * 2.0)
            return tf.reduce_sum(tf.where(made.mask, made.values, 0.0)) + len(made), (Counted(x) * 2.0).values

        return step, lambda step, k: step(NODES[k % 5]), lambda: list(seen)

    compare(make, whole=0, express=0)


def test_a_function_that_is_called_in_place_of_tensorflows():
    seen = []

    class Boxed(tf.experimental.ExtensionType):
        values: tf.Tensor

    @tf.experimental.dispatch_for_unary_elementwise_apis(Boxed)
    def of_boxes(function, x):
        seen.append(function.__name__)
        return Boxed(function(x.values))

    try:
        def make():
            seen.clear()
            return lambda b: tf.reduce_sum(tf.abs(tf.sin(b).values)), lambda step, k: step(Boxed(NODES[k % 5])), lambda: list(seen)

        compare(make, whole=0, express=0)
        assert seen == ["sin"] * 30
    finally:
        tf.experimental.unregister_dispatch_for(of_boxes)


def test_attributes_that_a_class_computes():
    seen = []

    class Lazy(tf.experimental.ExtensionType):
        values: tf.Tensor

        def __getattr__(self, name):
            seen.append(name)
            return self.values * 2.0

    def make():
        seen.clear()
        return lambda x: tf.reduce_sum(x.twice), lambda step, k: step(Lazy(NODES[k % 5])), lambda: len([name for name in seen if name == "twice"])

    compare(make, whole=0, express=0)


def test_it_is_the_same_object_or_another_as_eagerly():
    """A step gives what it was given, keeps what it was given, or makes one of it."""
    held = []

    def step(g, k):
        held.append(g)
        return g if k else Graph(g.nodes, g.edges)

    step = harness.coexecuted(step)
    for k in range(30):
        given = graph(k)
        result = step(given, k % 2)
        assert (result is given) is bool(k % 2) and held[-1] is given
    assert step.stats().coexecuted_steps > 15


def test_a_class_that_is_changed():
    class Scaled(tf.experimental.ExtensionType):
        values: tf.Tensor

        def total(self):
            return tf.reduce_sum(self.values)

    step = harness.coexecuted(lambda x: Scaled(x * 1.0).total())
    for k in range(40):
        if k == 25:
            Scaled.total = lambda self: tf.reduce_max(self.values)
        expected = tf.reduce_sum(NODES[k % 5]) if k < 25 else tf.reduce_max(NODES[k % 5])
        np.testing.assert_array_equal(step(NODES[k % 5]), expected)
    assert step.stats().whole_steps > 10, terra.explain(step)
