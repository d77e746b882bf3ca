"""Sizes that vary, of which Python makes numbers, and hands these on: a size stays unknown in the places where such a number has varied."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from terra.runtime.fast_forward.cache import call_cache
from tests.tracing.test_reduce_retracing import compare, rows, sizes

STEPS = 40


class Attention(keras.layers.Layer):
    """Splits what it is given into heads; `sizes(x)` gives the number of examples."""

    def __init__(self, sizes, joins=False):
        super().__init__()
        self.sizes, self.joins = sizes, joins
        self.made = [keras.layers.Dense(8) for _ in range(4)]

    def split(self, x, n):
        return tf.transpose(tf.reshape(x, (n, -1, 2, 4)), [0, 2, 1, 3])

    def call(self, x, mask):
        n = self.sizes(x)
        queries, keys, values = [self.split(layer(x), n) for layer in self.made[:3]]
        found = tf.nn.softmax(queries @ tf.transpose(keys, [0, 1, 3, 2]) + mask) @ values
        found = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), (n, -1, 8))
        return self.made[3](tf.concat([x, found], -1) if self.joins else found)


def tensor_of(x, axis):
    return tf.shape(x)[axis]


def number_of(x, axis):
    return int(tf.shape(x)[axis])


def item_of(x, axis):
    return x.shape[axis]


def training(size, joins=False, folds=False, cuts=False):
    """`make` for `compare`: a step that trains a model of sequences of any length; `size(x, axis)` gives a size as the program asks for it."""
    def make():
        keras.utils.set_random_seed(1)
        places = tf.constant(np.random.RandomState(0).randn(1, 64, 8), tf.float32)
        attention, norm, last, optimizer = Attention(lambda x: size(x, 0), joins), keras.layers.LayerNormalization(), keras.layers.Dense(5), keras.optimizers.Adam(0.01)
        embedding = keras.layers.Embedding(12, 8)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        layers = [embedding, attention, norm, last]

        def step(x):
            with tf.GradientTape() as tape:
                n = size(x, 1)
                mask = tf.maximum(tf.cast(tf.equal(x, 0), tf.float32)[:, tf.newaxis, tf.newaxis, :], 1 - tf.linalg.band_part(tf.ones((n, n)), -1, 0))
                made = embedding(x) + places[:, :n]
                made = norm(made + attention(made, mask * -1e9))
                if folds:
                    made = tf.reshape(tf.reshape(made, (size(made, 0), size(made, 1) * 2, 4)), (size(made, 0), -1, 8))
                made = last(made)
                if cuts:
                    made = made[:, :size(x, 1), :]
                loss = loss_of(x % 5, made)
            variables = [w for layer in layers for w in layer.trainable_variables]
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        return step, lambda: [w for layer in layers for w in layer.variables] + optimizer.variables

    return make


def sequences(seed=0, steps=STEPS, least=2):
    drawn = np.random.RandomState(seed)
    for _ in range(steps):
        yield (tf.constant(drawn.randint(0, 12, (drawn.randint(least, 5), drawn.randint(5, 60))), tf.int32),)


@pytest.mark.parametrize("how", [{}, {"joins": True}, {"folds": True}, {"cuts": True}], ids=["plain", "joins", "folds", "cuts"])
@pytest.mark.parametrize("size", [tensor_of, number_of, item_of], ids=lambda size: size.__name__)
def test_sequences_of_any_length(size, how, monkeypatch):
    made, recorded, record = [], [], call_cache._record

    def noted(*args):
        recorded.append(args[1])
        return record(*args)

    monkeypatch.setattr(call_cache, "_record", noted)
    whole = size is tensor_of and "joins" not in how
    step = training(size, **how)
    compare(step, sequences, skipped=0.5 if whole else 0, change=lambda k, step: made.append(len(recorded)))
    assert made[-1] - made[-10] == 0 if whole else made[-1] < 900, made[-STEPS:]  # only what is given a number is recorded anew


def test_broadcasts_tell_the_sizes_that_fit():
    """The rows of a table are as many as a sequence is long, or one: nobody knows, but that the other sizes are those of the summands is sure."""
    def make():
        table, dense = tf.Variable(tf.random.stateless_normal([64, 4], [1, 2])), keras.layers.Dense(3)
        dense.build((None, None, 4))

        def step(x):
            with tf.GradientTape() as tape:
                made = dense(tf.reshape(x + table[:tf.shape(x)[1]], (tf.shape(x)[0], -1, 4)))
                loss = tf.reduce_mean(made**2)
            table.assign_sub(tape.gradient(loss, table) * 0.1)
            return loss

        return step, lambda: [table]

    batches = [(tf.random.stateless_normal([2 + n % 3, n, 4], [n, 1]),) for n in sizes(1, STEPS)]
    assert compare(make, lambda: batches, skipped=0.4).fetches == 0


def number_of_places(x, axis):
    return int(tf.shape(x)[axis]) if axis == 1 else tf.shape(x)[axis]


def test_a_number_that_varies_late():
    """What is recorded while a number is taken for known does not hold when it varies: sequences are as long as each other for long, when it is known already that they need not be."""
    def batches():
        drawn = np.random.RandomState(1)
        for n in [20, 21, 22, 23, *[30] * 25, *drawn.randint(5, 60, 20)]:
            yield (tf.constant(drawn.randint(0, 12, (drawn.randint(2, 5), n)), tf.int32),)

    compare(training(number_of_places), batches)


def test_a_size_that_was_a_float():
    """Nobody follows what floats become."""
    def make():
        w = tf.Variable(tf.ones([4, 3]))

        def step(x):
            n = tf.cast(tf.reduce_sum(tf.cast(x[:, 0] > 0, tf.float32)), tf.int32)
            with tf.GradientTape() as tape:
                made = tf.concat([tf.cast(tf.range(n), tf.float32)[:, tf.newaxis] * tf.ones([1, 3]), x @ w], 0)
                kept = tf.TensorArray(tf.float32, 2, infer_shape=True).write(0, made).write(1, made * 2.0).stack()
                loss = tf.reduce_mean(kept**2)
            w.assign_sub(tape.gradient(loss, w) * 0.1)
            return loss

        return step, lambda: [w]

    compare(make, lambda: rows(1, STEPS))
