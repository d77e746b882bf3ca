"""That whatever is drawn of Python's and NumPy's own generators is noticed, whichever generator NumPy has been given."""

import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.tf.random_state import random_state
from tests.harness import coexecuted


@pytest.fixture(autouse=True)
def restored():
    python, generator, state = random.getstate(), np.random.get_bit_generator(), np.random.get_state(legacy=False)
    yield
    random.setstate(python)
    np.random.set_bit_generator(generator)
    np.random.set_state(state)


SEEDS = itertools.count(5)
DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "rand": np.random.rand,
    "as many words as there are": lambda: np.random.randint(0, 2**32, 624, dtype=np.uint32),
    "shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "randn": np.random.randn,
    "seed": lambda: np.random.seed(next(SEEDS)),
    "another generator": lambda: np.random.set_bit_generator(np.random.MT19937(next(SEEDS))),
    "one of another kind": lambda: np.random.set_bit_generator(np.random.PCG64(next(SEEDS))),
}


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64, np.random.SFC64])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_noticed(draw, bits):
    np.random.set_bit_generator(bits(2))
    for _ in range(4):  # of two normal numbers, the second one was kept for this draw
        before = random_state()
        assert before == random_state()
        draw()
        after = random_state()
        assert before != after == random_state()


def test_nothing_kept_is_taken_for_something_kept():
    """The words are the same with and without a number that is kept."""
    np.random.seed(1)
    np.random.randn()
    kept = np.random.get_state()
    before = random_state()
    np.random.randn()
    without = random_state()
    assert before != without == random_state()
    np.random.set_state(kept)
    np.random.randn()
    assert random_state() == without


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_steps_that_draw(bits):
    """Numbers that NumPy draws, two of them normal ones, and a number of a pair that is kept."""
    outcomes = []
    for run in (False, True):
        np.random.set_bit_generator(bits(7))
        matrix = tf.Variable(np.ones((3, 3), "float32"))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.tanh(tf.matmul(x, matrix))) * np.random.randn() + float(np.random.standard_normal())
            matrix.assign_sub(0.1 * tape.gradient(loss, matrix))
            return loss

        call = coexecuted(step) if run else step
        outcomes.append([float(call(tf.ones((2, 3)) * i)) for i in range(12)] + [matrix.numpy().tolist(), np.random.rand()])
    assert outcomes[0] == outcomes[1]
    assert call.stats().coexecuted_steps >= 9, terra.explain(call)
