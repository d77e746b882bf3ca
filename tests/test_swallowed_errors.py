"""Batches that fail in Keras' loops raise what they raise eagerly, also where Keras' own code swallows what a late read raises."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra


def outcome(compile, verbose, method):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(10, 8), keras.layers.Flatten(), keras.layers.Dense(1)])
    x, y = np.zeros((160, 4), "int32"), np.zeros((160, 1), "float32")
    x[125] = 77
    steps = compile(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="77 is not in"):
        if method == "fit":
            model.fit(x, y, batch_size=8, shuffle=False, verbose=verbose)
        else:
            model.evaluate(x, y, batch_size=8, verbose=verbose)
    return int(model.optimizer.iterations), steps


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_batch_that_fails(method, verbose):
    expected, _ = outcome(lambda model: model.compile("adam", "mse", run_eagerly=True), verbose, method)
    found, steps = outcome(lambda model: terra.compile(model, "adam", "mse", wait_for_graph=True), verbose, method)
    assert found == expected
    assert steps.stats()["train" if method == "fit" else "test"].coexecuted_steps >= 8
