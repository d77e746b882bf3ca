"""Checkpoints that a step writes: they have what eager execution would have written, and the step falls back a few times only, to learn how."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests import harness

rng = np.random.RandomState(0)
X = [tf.constant(rng.randn(4, 3).astype("float32")) for _ in range(5)]


def checkpoint(model, optimizer, folder):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer), str(folder), max_to_keep=100)
    return lambda k: manager.save(checkpoint_number=k)


def weights(model, optimizer, folder):
    return lambda k: model.save_weights(str(folder / f"{k}"))


def one_file(model, optimizer, folder):
    saved = tf.train.Checkpoint(model=model)
    return lambda k: saved.write(str(folder / "last"))


@pytest.mark.parametrize("saving", [checkpoint, weights, one_file])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_saves_now_and_then(saving, when, tmp_path):
    """Before it has updated the model, or afterwards."""
    def run(wrap, folder):
        folder.mkdir()
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential([tf_keras.layers.Dense(3, "tanh"), tf_keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = tf_keras.optimizers.legacy.Adam(0.1)
        save, found = saving(model, optimizer, folder), []

        def step(x, k):
            if when == "before" and k % 5 == 0:
                save(k)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            if when == "after" and k % 5 == 0:
                save(k)
            return loss

        step = wrap(step)
        for k in range(60):
            found.append(float(step(X[k % 5], k)))
        for name in sorted({path.name.split(".")[0] for path in folder.glob("*.index")}):
            values = {key: tf.train.load_variable(str(folder / name), key).tolist() for key, _ in tf.train.list_variables(str(folder / name))
                      if "VARIABLE_VALUE" in key}
            assert values
            found.append((name, values))
        return found, step

    expected, _ = run(harness.eager, tmp_path / "eager")
    found, step = run(lambda step: terra.coexecute(step, wait_for_graph=True), tmp_path / "terra")
    assert found == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 45, (stats, terra.explain(step))
    if when == "before":
        assert stats.fallbacks <= 6, terra.explain(step, full=True)  # what is written is read before the step updates it


def test_a_variable_that_the_step_initialises():
    """Whether it is initialised is asked before and after."""
    runs = itertools.count()

    def make():
        w, run = tf.Variable(1.0), next(runs)

        def step(k):
            before = after = read = None
            w.assign_add(0.5)
            if k % 6 == 5:
                made = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=f"made {run} {k}")
                before = tf.raw_ops.VarIsInitializedOp(resource=made)
                tf.raw_ops.AssignVariableOp(resource=made, value=w * 2.0)
                after = tf.raw_ops.VarIsInitializedOp(resource=made)
                read = tf.raw_ops.ReadVariableOp(resource=made, dtype=tf.float32)
            return before, after, read, tf.raw_ops.VarIsInitializedOp(resource=w.handle)

        return step, lambda step, k: step(k), lambda: w

    harness.compare_steps(make, 0, 0)
