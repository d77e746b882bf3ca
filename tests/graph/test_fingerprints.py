"""What traced functions compute: the same for any order of their operations and any names, other for anything else."""

import random

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terra.tf import fingerprints
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions
from tests.variants import examples

F = tf.TensorSpec((2, 2), tf.float32)


def fdef_of(function, *specs):
    """Like TensorFlow's own: the functions that it calls are known to the context."""
    concrete = tf.function(function).get_concrete_function(*specs)
    return runtime_functions.function_def(runtime_functions.function_name(concrete)), concrete


def fingerprint(function, *specs):
    fdef, concrete = fdef_of(function, *(specs or (F, F)))
    del concrete
    return fingerprints.of_function(fdef)


@tf.function
def helper(x, y):
    return tf.tanh(x) @ y


@tf.function
def other_helper(x, y):
    return tf.tanh(x) @ tf.transpose(y)


def program(x, y):
    a, b = tf.sin(x), tf.cos(y)
    n = tf.random.uniform((2, 2), seed=3)
    c = helper(a, b) + n
    return tf.cond(tf.reduce_sum(c) > 0.0, lambda: c * 2.0, lambda: c), a


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_names_and_order_do_not_matter(seed):
    fdef, concrete = fdef_of(program, F, F)
    draw = random.Random(seed)
    other = tfi.function_pb2.FunctionDef()
    other.CopyFrom(fdef)
    other.signature.name = f"another_{seed}"
    names = {node.name: f"node_{draw.random()}" for node in fdef.node_def}
    nodes = [*fdef.node_def]
    draw.shuffle(nodes)
    del other.node_def[:]

    def renamed(reference):
        mark = "^" if reference.startswith("^") else ""
        name, colon, output = reference[len(mark):].partition(":")
        return mark + names.get(name, name) + colon + output

    for node in nodes:
        added = other.node_def.add()
        added.CopyFrom(node)
        added.name = names[node.name]
        added.input[:] = map(renamed, node.input)
    for held in other.ret, other.control_ret:
        for key in [*held]:
            held[key] = renamed(held[key])
    assert fingerprints.of_function(other) == fingerprints.of_function(fdef)
    del concrete


class Independent:
    """Two operations on each side, made in either order."""

    def __init__(self, first):
        self.first = first

    def __call__(self, x, y):
        made = {name: getattr(tf, name)(x) for name in (self.first, *{"sin", "cos"} - {self.first})}
        return made["sin"] - made["cos"] + y


def test_order_in_which_operations_are_made_does_not_matter():
    assert fingerprint(Independent("sin").__call__) == fingerprint(Independent("cos").__call__)


def _twice(x, y):
    n = tf.random.uniform((2, 2))
    tf.random.uniform((2, 2))
    return x + n - n


def _two(x, y):
    return x + tf.random.uniform((2, 2)) - tf.random.uniform((2, 2))


@pytest.mark.parametrize("one, other", [
    (lambda x, y: x - y, lambda x, y: y - x),
    (lambda x, y: (x, y), lambda x, y: (y, x)),
    (lambda x, y: tf.sin(x), lambda x, y: tf.sin(y)),
    (lambda x, y: x * 2.0, lambda x, y: x * 3.0),
    (lambda x, y: tf.matmul(x, y), lambda x, y: tf.matmul(x, y, transpose_b=True)),
    (lambda x, y: helper(x, y), lambda x, y: other_helper(x, y)),
    (lambda x, y: tf.cond(x[0, 0] > 0.0, lambda: x, lambda: y), lambda x, y: tf.cond(x[0, 0] > 0.0, lambda: y, lambda: x)),
    (lambda x, y: tf.unstack(x)[0], lambda x, y: tf.unstack(x)[1]),
    (_twice, _two),
    (lambda x, y: tf.random.uniform((2, 2), seed=1), lambda x, y: tf.random.uniform((2, 2), seed=2)),
], ids=["inputs", "results", "argument", "constant", "attribute", "called function", "branches", "output", "random numbers", "seed"])
def test_what_is_computed_matters(one, other):
    tf.random.set_seed(1)
    assert fingerprint(one) != fingerprint(other)
    tf.random.set_seed(1)
    first = fingerprint(one)
    tf.random.set_seed(1)
    assert fingerprint(one) == first


def test_types_and_compilation_matter():
    D = tf.TensorSpec((2, 2), tf.float64)
    assert fingerprint(lambda x, y: x - y) != fingerprint(lambda x, y: x - y, D, D)
    compiled = tf.function(lambda x, y: x - y, jit_compile=True).get_concrete_function(F, F)
    assert fingerprints.of_function(runtime_functions.function_def(runtime_functions.function_name(compiled))) != fingerprint(lambda x, y: x - y)


def test_effects_are_kept_in_their_order():
    a, b = tf.Variable(1.0), tf.Variable(1.0)

    def forward(x, y):
        a.assign(2.0)
        b.assign(a + 1.0)
        return x

    def backward(x, y):
        b.assign(a + 1.0)
        a.assign(2.0)
        return x

    assert fingerprint(forward) != fingerprint(backward)


def test_loops_of_edges_keep_their_name():
    """TensorFlow 1 makes them."""
    fdef = tfi.function_pb2.FunctionDef()
    fdef.signature.name = "loop"
    for name, producer in ("merge", "next"), ("next", "merge"):
        fdef.node_def.add(name=name, op="Identity", input=[producer + ":output:0"])
    assert fingerprints.of_function(fdef) == "loop"
