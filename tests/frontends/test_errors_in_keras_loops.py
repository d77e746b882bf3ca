"""Batches that fail in Keras' loops raise what they raise eagerly, also where Keras' own code swallows what a late read raises; and the program's callbacks do not run behind it."""

import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests import forks

BATCHES, BATCH = 12, 8
LOOPS = ["fit", "fit with validation", "evaluate", "predict"]
ON_BATCH = ["train_on_batch", "test_on_batch", "predict_on_batch"]
WAYS = [("batch", 1, 2, False), (None, 1, 2, True), ("epoch", 2, 0, True), ("batch", 0, 2, True), (None, 0, 0, False), ("epoch", 1, 2, True)]  # callbacks, verbose, run_ahead, whether the last batch fails


def made(K):
    K.utils.set_random_seed(1)
    return K.Sequential([K.Input((4,), dtype="int32"), K.layers.Embedding(10, 8), K.layers.Flatten(), K.layers.Dense(1)])


def recorder(K, which, seen):
    class OfBatches(K.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(("train", batch, sorted(logs)))

        def on_test_batch_end(self, batch, logs=None):
            seen.append(("test", batch))

        def on_predict_batch_end(self, batch, logs=None):
            seen.append(("predict", batch))

    class OfEpochs(K.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(("epoch", epoch, float(logs["loss"])))

        def on_test_end(self, logs=None):
            seen.append("test")

    return {"batch": [OfBatches()], "epoch": [OfEpochs()], None: []}[which]


def outcome(K, compile, method, which, verbose, last):
    model = made(K)
    x, y = np.zeros((BATCHES * BATCH, 4), "int32"), np.zeros((BATCHES * BATCH, 1), "float32")
    x[-1 if last else 77] = 77
    steps, seen = compile(model), []
    callbacks = recorder(K, which, seen)
    with pytest.raises(tf.errors.InvalidArgumentError, match="77 is not in"):
        if method == "fit":
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=verbose, callbacks=callbacks, epochs=2)
        elif method == "fit with validation":
            model.fit(x[:64], y[:64], validation_data=(x, y), batch_size=BATCH, shuffle=False, verbose=verbose, callbacks=callbacks, epochs=2)
        elif method == "evaluate":
            model.evaluate(x, y, batch_size=BATCH, verbose=verbose, callbacks=callbacks)
        elif method == "predict":
            model.predict(x, batch_size=BATCH, verbose=verbose, callbacks=callbacks)
        else:
            for k in range(BATCHES):
                seen.append(k)
                batch = slice(k * BATCH, (k + 1) * BATCH)
                seen.append(np.sum(getattr(model, method)(*([x[batch]] if method == "predict_on_batch" else [x[batch], y[batch]]))))
    return (int(model.optimizer.iterations), seen), steps


def compare(K, method, which, verbose, run_ahead, last):
    expected, _ = outcome(K, lambda model: model.compile("adam", "mse", run_eagerly=True), method, which, verbose, last)
    found, steps = outcome(K, lambda model: terra.compile(model, "adam", "mse", wait_for_graph=True, run_ahead=run_ahead), method, which, verbose, last)
    assert found == expected
    kind = {"fit": "train", "predict": "predict", "train_on_batch": "train", "predict_on_batch": "predict"}.get(method, "test")
    assert steps.stats()[kind].coexecuted_steps >= 4, steps.stats()
    assert sys.getprofile() is None


@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("method", LOOPS)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_batch_that_fails(K, method, way):
    which, verbose, run_ahead, last = way
    compare(K, method, which, verbose, run_ahead, last)


@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("method", ON_BATCH)
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_call_for_one_batch_that_fails(K, method, run_ahead):
    compare(K, method, None, 0, run_ahead, False)


SCRIPT = """
import sys
import keras
import numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(10, 8), keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("adam", "mse", run_eagerly=True)
x, y = np.zeros((96, 4), "int32"), np.zeros((96, 1), "float32")
model.fit(x, y, batch_size=8, verbose=0)
x[-1] = 77
for call in (lambda: model.fit(x, y, batch_size=8, shuffle=False, verbose=1), lambda: model.evaluate(x, y, batch_size=8, verbose=2), lambda: model.predict(x, batch_size=8)):
    try:
        call()
        print("no error")
    except Exception as error:
        print(type(error).__name__, "77 is not in" in str(error), int(model.optimizer.iterations))
"""


def test_under_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with forks.Interpreters(tmp_path, "import runpy, sys, tensorflow") as interpreters:
        ran = interpreters.run_script(path, options=[])
    assert re.findall(r"[A-Z]\w+Error (?:True|False) \d+|no error", ran.stdout) == ["InvalidArgumentError True 23"] * 3, ran.stderr[-2000:]  # (a progress bar may stand before it)
    assert ran.returncode == 0


def test_what_another_error_came_of():
    """Keras prints the logs of a batch, which swallows the error of a read, and raises another one behind: the program gets the first."""
    steps = None

    def ends(model, decorate):
        nonlocal steps
        x = np.zeros((96, 4), "int32")
        x[-1] = 77
        steps = decorate(model)
        with pytest.raises(tf.errors.InvalidArgumentError) as found:
            model.predict(x, batch_size=8, verbose=1)
        assert "77 is not in" in str(found.value) and "Op:Shape" not in str(found.value)
        return model.predict(x[:8], batch_size=8, verbose=0).tolist()  # the error was raised, and is not again

    expected = ends(made(keras), lambda model: model.compile("adam", "mse", run_eagerly=True))
    assert ends(made(keras), lambda model: terra.compile(model, "adam", "mse", wait_for_graph=True)) == expected
    assert steps.stats()["predict"].coexecuted_steps >= 4
