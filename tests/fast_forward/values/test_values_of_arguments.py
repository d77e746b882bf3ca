"""Values of tensors that a step is given, or that were there before, read by the program as arrays: they are read anew where the step is skipped."""

import io

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

from tests import harness
from tests.fast_forward.purity import training


class Held(training.Weights):
    def __init__(self):
        super().__init__()
        self.target = np.zeros([4, 6])
        self.said, self.mean, self.kept, self.rows, self.scores = io.StringIO(), 0.0, tf.constant(np.arange(24.0, dtype=np.float32).reshape(4, 6)), [], []


def keeps_a_mean(h, x):
    h.mean = x.numpy().mean()
    return tf.matmul(x, h.w)


def prints(h, x):
    print(x.numpy()[0, :2], x.numpy().shape, x.numpy().max(), file=h.said)
    return tf.matmul(x, h.w)


def feeds(h, x):
    scaled = np.sign(np.asarray(x)) * 0.5
    return tf.matmul(x, h.w) + tf.constant(scaled) + scaled


def loops(h, x):
    total = 0.0
    for row in x.numpy():
        total += float(row[0])
    return tf.matmul(x, h.w) * tf.constant(total, tf.float32)


def branches(h, x):
    y = tf.matmul(x, h.w)
    return y * 2.0 if x.numpy().sum() > 0 else y


def reads_what_was_there(h, x):
    return tf.matmul(x, h.w) * float(h.kept.numpy().mean())


def keeps_the_array(h, x):
    h.rows.append(x.numpy())
    return tf.matmul(x, h.w)


def scores(h, x):
    """By functions of libraries, which look at what they are given in ways that nobody has listed."""
    h.scores.append(metrics.mean_squared_error(x.numpy(), h.target))
    h.scores.append(metrics.r2_score(x.numpy(), h.target))
    return tf.matmul(x, h.w)


def scores_what_it_computes(h, x):
    """A library is given a tensor of the step: it is read behind the graph."""
    y = tf.matmul(x, h.w)
    h.scores.append(metrics.mean_squared_error(x.numpy(), y))
    h.scores.append(metrics.mean_squared_error(y, h.target))
    return y


def scores_and_looks(h, x):
    y = tf.matmul(x, h.w)
    return y if metrics.mean_squared_error(h.target, y) > 3.0 else y * 2.0


def looked_at(h):
    return [h.w, h.said.getvalue(), float(h.mean), *h.rows, *h.scores]


def changes(h, k):
    if k == 16:
        h.kept = tf.constant([[3.0]])


BODIES = [(keeps_a_mean, 12), (prints, 12), (feeds, 12), (loops, 0), (branches, 4), (reads_what_was_there, 8), (keeps_the_array, 0), (scores, 12), (scores_what_it_computes, 12), (scores_and_looks, 0)]


@pytest.mark.all_variants
@pytest.mark.parametrize("change", [None, changes], ids=["", "changes"])
@pytest.mark.parametrize("body, whole", BODIES)
def test_values(body, whole, change):
    harness.compare_steps(training.training(Held, body, looked_at, change), whole=whole, express=0, n=40)


@pytest.mark.parametrize("body", [keeps_a_mean, feeds, branches])
def test_values_of_what_the_step_before_gave(body):
    """The argument is a tensor of an earlier step, which the graph may not have computed yet."""
    def make():
        held = Held()

        def step(x):
            return tf.tanh(body(held, x))

        given = [training.DATA[0]]

        def call(step, k):
            given[0] = step(given[0])
            return given[0]

        return step, call, lambda: looked_at(held)

    harness.compare_steps(make, whole=4, express=0, n=40)
