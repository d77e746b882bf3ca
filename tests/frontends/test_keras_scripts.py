"""Models that a script compiles with `run_eagerly=True`, under `python -m terra run`: as without it, bit for bit, whatever else the script does with them."""
import sys
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from terra.frameworks import keras as names
from terra.frontends import array_batches, keras_support
from terra.runtime.fast_forward.sites import framework_calls
from terra.runtime.step_function import registry
from tests import harness
from tests.frontends.test_keras_fit import EXACT, KERAS, SCENARIOS, Eager


@pytest.fixture
def prepared(monkeypatch):
    """What `python -m terra run` does to Keras."""
    monkeypatch.setattr(array_batches, "_concerned", [])
    monkeypatch.setattr(framework_calls, "outside", None)
    for name, prepare in keras_support.preparations({"wait_for_graph": True}).items():
        module = sys.modules[name]
        if name not in names.TRAINERS:
            prepare(module)
            continue
        trainer = getattr(module, "TensorFlowTrainer", None) or module.Model
        for make in ("make_train_function", "make_test_function", "make_predict_function"):
            monkeypatch.setattr(trainer, make, getattr(trainer, make))
        prepare(module)


class AsScript(Eager):
    """`run_eagerly=True` under `python -m terra run`."""

    def __init__(self):
        self.models = []

    def __call__(self, model, **arguments):
        super().__call__(model, **arguments)
        self.models.append(model)

    def coexecuted(self, kind):
        return sum(vars(model)["_terra_keras_steps"].stats()[kind].coexecuted_steps for model in self.models if model.run_eagerly)


def coexecuted_in_all():
    """Steps that were co-executed in this process, by functions that there are, or were."""
    return sum(stats.coexecuted_steps for stats in [*(f.stats() for f in list(registry.instances)), *(total for _, total in registry.departed.values())])


@pytest.mark.one_variant
@pytest.mark.parametrize("run, least, K", SCENARIOS[::5])
def test_run_eagerly_in_a_script_equals_run_eagerly(run, least, K, request):
    harness.reset_seeds()
    expected = harness.snapshot(run(K, Eager()))
    request.getfixturevalue("prepared")
    harness.reset_seeds()
    compile_ = AsScript()
    actual = harness.snapshot(run(K, compile_))
    assert list(harness.differences(expected, actual, EXACT)) == []
    for kind, n in least.items():
        assert compile_.coexecuted(kind) >= n, kind


SCRIPTS = []


def script(f):
    SCRIPTS.append(pytest.param(f, id=f.__name__))
    return f


def perceptron(kind, K):
    model = kind([K.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def fitted(model, **how):
    x = np.ones((64, 8), "float32")
    return model.fit(x, x[:, :1], batch_size=8, verbose=0, **how).history


@script
def making_is_overridden(K):
    made = []

    class Model(K.Sequential):
        def make_train_function(self, force=False):
            made.append("asked")
            if self.train_function is None or force:
                super().make_train_function(force)
                inner = self.train_function
                self.train_function = lambda iterator: made.append("batch") or inner(iterator)
            return self.train_function

    model = perceptron(Model, K)
    return fitted(model, epochs=3), fitted(model), made


@script
def a_step_is_set(K):
    model = perceptron(K.Sequential, K)
    seen = [fitted(model, epochs=2)]
    model.train_step = types.MethodType(lambda self, data: {"loss": tf.constant(7.0)}, model)
    model.compile("sgd", "mse", run_eagerly=False)
    seen.append(fitted(model))
    del model.train_step
    model.compile("sgd", "mse", run_eagerly=True)
    return seen, fitted(model, epochs=2)


@script
def a_step_is_deleted(K):
    model = perceptron(K.Sequential, K)
    seen = [fitted(model)]
    vars(model).pop("train_step", None)
    model.compile("sgd", "mse", run_eagerly=False)
    return seen, fitted(model)


@script
def the_class_is_patched(K):
    class First(K.Sequential):
        def train_step(self, data):
            return dict(super().train_step(data), a=tf.constant(1.0))

    class Second(First):
        def train_step(self, data):
            return dict(super().train_step(data), b=tf.constant(2.0))

    model = perceptron(First, K)
    seen = [fitted(model, epochs=2)]
    with mock.patch.object(First, "train_step", lambda self, data: {"loss": tf.constant(8.0)}):
        model.train_function = None
        seen.append(fitted(model))
    model.train_function = None
    seen.append(fitted(model))
    model.__class__ = Second
    model.compile("sgd", "mse", run_eagerly=True)
    return seen, fitted(model)


@script
def odd_results(K):
    seen = []
    for odd in ({}, tf.constant(1.0), [tf.constant(1.0)]):
        class Model(K.Sequential):
            def train_step(self, data):
                super().train_step(data)
                return odd  # noqa: B023  (used at once)

        model = perceptron(Model, K)
        try:
            seen.append(fitted(model))
        except Exception as error:  # noqa: BLE001  (whatever Keras raises)
            seen.append(type(error))
        seen.append(int(model.optimizer.iterations))
    return seen


@script
def batches_by_hand(K):
    model = perceptron(K.Sequential, K)
    fitted(model)
    iterator = iter(tf.data.Dataset.from_tensors((tf.ones((8, 8)), tf.ones((8, 1)))).repeat(3))
    seen = []
    for _ in range(4):
        try:
            seen.append({name: float(value) for name, value in model.train_function(iterator).items()})
        except (StopIteration, tf.errors.OutOfRangeError) as error:
            seen.append(type(error))
    return seen


@script
def failures_of_batches_are_caught(K):
    model = K.Sequential([K.layers.Input((3,), dtype="int32"), K.layers.Embedding(40, 1, embeddings_initializer="zeros"), K.layers.Flatten(), K.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    batches = np.repeat(np.arange(32), 24).reshape(256, 3).astype("int32")
    batches[180] = 99
    seen = []
    for k in range(0, 256, 8):
        try:
            model.train_on_batch(batches[k:k + 8], np.ones((8, 1)))
        except tf.errors.InvalidArgumentError:
            seen.append(k)
    return seen, int(model.optimizer.iterations), model.get_weights()


@pytest.mark.share(12)
@pytest.mark.parametrize("K", KERAS)
@pytest.mark.parametrize("run", SCRIPTS)
def test_odd_scripts(run, K, request):
    harness.reset_seeds()
    expected = harness.snapshot(run(K))
    request.getfixturevalue("prepared")
    harness.reset_seeds()
    before = coexecuted_in_all()
    actual = harness.snapshot(run(K))
    assert list(harness.differences(expected, actual, EXACT)) == []
    if run is not odd_results or K.__name__ != "keras":  # which raises after the first step
        assert coexecuted_in_all() - before >= 5
