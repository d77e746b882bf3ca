"""Arrays and integers that unknown code gives in a layer or a step, others each time, and arrays of any function of TensorFlow's: they are data, and what is computed with them is skipped."""

import functools
import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity import training


class Held(training.Weights):
    def __init__(self):
        super().__init__()
        self.generator, self.dice, self.count, self.cycle = np.random.default_rng(3), random.Random(5), itertools.count(300), itertools.cycle([0.5, 1.5, 2.5])
        self.seen = []


def noise(h, x):
    return tf.matmul(x, h.w) + 0.1 * h.generator.normal(size=(4, 6)).astype("float32")


def masks(h, x):
    y = tf.matmul(x, h.w)
    return tf.where(np.random.rand(*y.shape) < 0.7, y, 0.5 * y)


def gathers(h, x):
    return tf.gather(tf.matmul(x, h.w), np.random.permutation(4))


def mixes(h, x):
    y, share = tf.matmul(x, h.w), h.generator.beta(0.4, 0.4)
    return share * y + (1.0 - share) * y[::-1]


def calculates(h, x):
    """NumPy's functions and methods, attributes, items and operators."""
    drawn = np.clip(np.abs(h.generator.normal(size=(8, 6))), 0.1, 1.0) * 0.5 + 0.25
    rows = drawn[2:6].astype(np.float32)
    return tf.matmul(x, h.w) * tf.constant(rows) * (1.0 if rows.shape == (4, 6) and rows.dtype == np.float32 else 0.0)


def gives_arrays_to_functions(h, x):
    y, drawn = tf.matmul(x, h.w), h.generator.uniform(size=(4, 6)).astype("float32")
    y = tf.concat([y, drawn], 0)[2:6] + tf.stop_gradient(drawn) + tf.add_n([y, drawn])
    return tf.clip_by_value(y, -drawn, drawn + 1.0) + tf.reduce_mean(drawn)


def gives_other_types(h, x):
    """TensorFlow makes of an array of another type what it is used beside."""
    drawn = h.generator.uniform(size=(4, 6))
    return tf.concat([tf.matmul(x, h.w), drawn], 0)[2:6] + drawn


def looks_at(h, x):
    drawn = h.generator.normal(size=3)
    return tf.matmul(x, h.w) * (1.0 if drawn[0] > 0.0 else 2.0)


def keeps(h, x):
    drawn = h.generator.normal(size=(4, 6)).astype("float32")
    h.seen.append(drawn)
    return tf.matmul(x, h.w) + drawn


def changes_its_array(h, x):
    drawn = h.generator.normal(size=(4, 6)).astype("float32")
    drawn[0] = 1.0
    return tf.matmul(x, h.w) + drawn


def changes_it_behind(h, x):
    """What was computed with it was computed with what it held by then."""
    drawn = h.generator.normal(size=(4, 6)).astype("float32")
    y = tf.matmul(x, h.w) + drawn
    h.generator.shuffle(drawn)
    z = y + drawn
    drawn[1] = 3.0
    return z * drawn


def throws_a_die(h, x):
    return tf.matmul(x, h.w) * float(h.dice.randint(1, 3)) * float(h.generator.integers(1, 3))


def goes_on(h, x):
    return tf.matmul(x, h.w) * next(h.cycle) * (1.0 if next(h.count) % 2 >= 0 else 2.0)


def looked_at(h):
    return [h.w, h.dice.random(), float(h.generator.normal()), next(h.count), next(h.cycle), *h.seen]


SKIPPED = [noise, masks, gathers, mixes, calculates, gives_arrays_to_functions, goes_on]
OTHERS = [gives_other_types, looks_at, keeps, changes_its_array, changes_it_behind, throws_a_die]


@pytest.mark.all_variants
@pytest.mark.parametrize("inside", [True, False], ids=["layer", "step"])
@pytest.mark.parametrize("body", [*SKIPPED, *OTHERS])
def test_arrays(body, inside):
    made = training.training(Held, training.inside(body) if inside else body, looked_at)
    harness.compare_steps(made, whole=12 if body in SKIPPED else 0, express=0)


def changes_its_mind(h, k):
    """The draws are of other shapes, and types."""
    if k == 16:
        h.generator = Other(3)


class Other:
    def __init__(self, seed):
        self.drawn = np.random.default_rng(seed)

    def normal(self, size=None):
        return self.drawn.normal(size=size) if size is None or size == 3 else self.drawn.normal(size=(1, size[1]))


@pytest.mark.parametrize("inside", [True, False], ids=["layer", "step"])
def test_arrays_of_another_shape(inside):
    harness.compare_steps(training.training(Held, training.inside(noise) if inside else noise, looked_at, changes_its_mind), whole=4, express=0, n=50)


def counted(function):
    @functools.wraps(function)
    def call(*args):
        call.calls += 1
        call.last = args[1].shape
        return function(*args)

    call.calls = 0
    return call


@counted
def computes(h, x):
    return tf.matmul(x, h.w)


def branches(h, x):
    y = computes(h, x)
    y = keras.ops.cond(keras.ops.sum(y) > 0.0, lambda: y * 2.0, lambda: y)
    y = keras.ops.switch(1, [lambda v: v, lambda v: v * 0.5], y)
    return keras.ops.vectorized_map(lambda row: row * 0.5, y)


@pytest.mark.parametrize("inside", [True, False], ids=["layer", "step"])
def test_branches_of_keras_and_functions_with_attributes(inside):
    def begin():
        computes.calls, computes.last = 0, None
        return Held()

    harness.compare_steps(training.training(begin, training.inside(branches) if inside else branches, lambda h: [h.w, computes.calls, str(computes.last)]), whole=6, express=0, n=40)
