"""Texts are split, and functions of the values of ragged tensors called, without a look at how many there are: what eager execution compares holds, or the graph compares it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from terra.tf.private import replacements
from tests import harness

WORDS = np.array(["tea", "milk", "an egg", "two eggs", "bread and butter", "", "salt"])


def texts(k, n=6):
    return tf.constant(np.random.RandomState(k).choice(WORDS, n))


def training(forward, called=lambda k: (texts(k),), state=lambda: None):
    """A step that trains what `forward(w, x)` gives; it makes what it needs besides with `state`."""
    def make():
        w, held = tf.Variable([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0], [9.0], [10.0]]), state()

        def step(x):
            with tf.GradientTape() as tape:
                found = forward(w, x) if held is None else forward(w, x, held)
                loss = tf.reduce_sum(found * found)
            w.assign_sub(0.001 * tf.convert_to_tensor(tape.gradient(loss, w)))
            return loss

        return step, lambda step, k: step(*called(k)), lambda: (w, held)
    return make


def lengths_of(split):
    return tf.strings.length(split) % 10


def values(w, x):
    return tf.gather(w, lengths_of(tf.strings.split(x).values))


def rows(w, x):
    split = tf.strings.split(x)
    assert split.shape.as_list() == [x.shape[0], None] and split.nrows() == x.shape[0]
    return tf.gather(w, tf.ragged.map_flat_values(lengths_of, split).to_tensor(shape=[None, 3]))


def separated(w, x):
    return tf.reduce_sum(tf.ragged.map_flat_values(lambda flat: tf.gather(w, lengths_of(flat)), tf.strings.split(x, sep="e")), 1)


def named(w, x):
    return tf.reduce_sum(tf.ragged.map_flat_values(lambda scale, flat: tf.gather(w, lengths_of(flat)) * scale, 2.0, flat=tf.strings.split(x, maxsplit=1)), 1)


@pytest.mark.all_variants
@pytest.mark.parametrize("forward", [values, rows, separated, named])
def test_steps_are_skipped(forward):
    harness.compare_steps(training(forward), express=0)


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}, {"fast_forward": False}, {"reduce_retracing": True}], ids=str)
def test_other_options(options):
    harness.compare_steps(training(rows), 10 if options.get("fast_forward", True) and "verify" not in options else 0, 0, **options)


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("mode", ["int", "ragged", "multi_hot"])
def test_layers_that_vectorize_texts(library, mode):
    def vectorizer():
        keyword = {"output_mode": "int", "output_sequence_length": 3} if mode == "int" else {"output_mode": "int", "ragged": True} if mode == "ragged" else {"output_mode": "multi_hot"}
        return library.layers.TextVectorization(vocabulary=["tea", "milk", "egg", "eggs", "bread"], **keyword)

    def forward(w, x, vectorize):
        found = vectorize(x)
        return tf.cast(found, tf.float32) @ w[:found.shape[1]] if mode == "multi_hot" else tf.reduce_sum(tf.gather(w, found), 1)

    make = training(forward, state=vectorizer)

    def without_state():
        step, call, look = make()
        return step, call, lambda: look()[0]

    harness.compare_steps(without_state, 10 if mode == "int" else 0, 0)


def test_other_numbers_of_texts():
    harness.compare_steps(training(rows, lambda k: (texts(k, 3 + k % 4),)), 0, 0)


@pytest.mark.parametrize("given", ["scalar", "matrix", "list", "ragged"])
def test_other_ranks(given):
    def forward(w, x):
        x = {"scalar": lambda: x[0], "matrix": lambda: tf.reshape(x, (2, 3)), "list": lambda: ["a b", "c"], "ragged": lambda: tf.RaggedTensor.from_row_lengths(x, [2, 4])}[given]()
        split = tf.strings.split(x)
        return tf.gather(w, lengths_of(split.flat_values if isinstance(split, tf.RaggedTensor) else split))

    harness.compare_steps(training(forward), 0, 0)


def test_a_function_that_gives_another_number_of_values():
    """It is called once, and eager execution's error is raised."""
    def forward(w, x, calls):
        def of(flat):
            calls.append(flat.shape[0])
            return tf.gather(w, lengths_of(flat)[:-1] if tf.reduce_any(flat == "salt") else lengths_of(flat))

        try:
            return tf.ragged.map_flat_values(of, tf.strings.split(x)).values
        except ValueError as error:
            calls.append(str(error))
            return w

    step = harness.compare_steps(training(forward, state=list), 0, 0)
    assert step.stats().coexecuted_steps >= 5


def test_a_function_that_fails():
    def forward(w, x):
        def of(flat):
            raise KeyError("wrong")

        try:
            return tf.ragged.map_flat_values(of, tf.strings.split(x))
        except KeyError:
            return w * 2.0

    harness.compare_steps(training(forward), 0, 0)


def test_several_ragged_tensors():
    def forward(w, x):
        split = tf.strings.split(x)
        return tf.ragged.map_flat_values(lambda a, b: tf.gather(w, lengths_of(a)) * tf.cast(b, tf.float32)[:, None], split, split.with_values(lengths_of(split.values))).values

    harness.compare_steps(training(forward), 0, 0)


def test_a_function_without_dispatch_is_left():
    assert not replacements.replace_behind_dispatch(test_a_function_that_fails, lambda original: None)
    assert replacements.replace_behind_dispatch(tf.strings.split, lambda original: None)  # once only
