"""Models of libraries that do nothing but compute, such as Hugging Face's transformers: steps that train them are skipped as a whole."""

import collections

import keras
import numpy as np
import pure_models as lib
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests import harness
from tests.frontends.test_gradient_tape import TerraTape

STEPS = 24
KERAS = [pytest.param(keras, id="keras3"), pytest.param(tf_keras, id="tf_keras")]


@pytest.fixture(autouse=True)
def declared():
    with harness.declared_pure("pure_models"):
        yield


def batch(i):
    r = np.random.default_rng(i)
    return tf.constant(r.normal(size=(4, 5)).astype("f")), tf.constant(r.integers(0, 3, 4))


def use_all(model, x, y):
    output = model({"inputs": x, "keep": tf.constant([True, True, False, True])}, labels=y, training=True)
    return output.loss + tf.reduce_mean(output[1]) + tf.reduce_sum(output["logits"]) * 0.1 + (0.0 if output.hidden is None else tf.reduce_sum(output.hidden[0]))


def use_loss(model, x, y):
    return model(x, labels=y, training=True).loss


def training(model, use):
    """A step that trains it."""
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = use(model, x, y)
        variables = model.trainable_variables
        for v, gradient in zip(variables, tape.gradient(loss, variables)):
            v.assign_sub(0.1 * gradient)
        return loss

    return step


def compare(K, use=use_loss, change=None, whole=STEPS - 9, begin=None, steps=STEPS, **options):
    held = {}

    def make():
        K.utils.set_random_seed(3)
        if K is tf_keras:
            tf_keras.backend.clear_session()
        if begin is not None:
            begin()
        model = held["model"] = lib.models(K)[1](lib.Config())
        model(batch(0)[0])
        return training(model, use), lambda: [v.numpy() for v in model.trainable_variables]

    def before(i, step):
        held["step"] = step
        if change is not None and i == 10:
            change(held["model"])

    stats = harness.differ(make, batch, steps, change=before, **options)
    assert stats.coexecuted_steps >= steps - 10 and stats.whole_steps >= whole, terra.explain(held["step"])
    return stats


@pytest.mark.parametrize("use", [use_loss, use_all])
@pytest.mark.parametrize("K", KERAS)
def test_trained(K, use):
    compare(K, use)


@pytest.mark.parametrize("K", KERAS)
def test_verified(K):
    assert compare(K, use_all, whole=0, verify=True).verified_calls > 0


CHANGES = {
    "configuration": lambda model: setattr(model.config, "scale", 0.5),
    "within the configuration": lambda model: model.config.extra.__setitem__("shift", 0.5),
    "what is given": lambda model: setattr(model.config, "output_hidden", True),
    "another configuration": lambda model: setattr(model.encoder, "config", lib.Config(scale=2.0)),
    "rate": lambda model: setattr(model.encoder.dropout, "rate", 0.5),
    "frozen": lambda model: setattr(model.encoder, "trainable", False),
    "activation": lambda model: setattr(model.encoder.first, "activation", tf.nn.relu),
    "method of the object": lambda model: setattr(model, "loss_of", lambda labels, logits: tf.reduce_mean(logits ** 2.0)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("K", KERAS)
def test_something_changes(K, name):
    compare(K, use_all, CHANGES[name], whole=STEPS - 16, steps=STEPS + 12 * (name == "frozen"))


@pytest.mark.parametrize("K", KERAS)
def test_a_method_of_the_class_is_replaced(K, monkeypatch):
    def change(model):
        monkeypatch.setattr(type(model), "loss_of", lambda self, labels, logits: tf.reduce_mean(logits ** 2.0))

    compare(K, use_loss, change, whole=STEPS - 16, begin=monkeypatch.undo)


@pytest.mark.parametrize("K", KERAS)
def test_outputs_are_given_back(K):
    """Such an object is the one that eager execution gives: its items are its attributes."""
    model = lib.models(K)[1](lib.Config(output_hidden=True))
    step = terra.coexecute(lambda x, y: model(x, labels=y), wait_for_graph=True)
    for k in range(STEPS):
        expected, output = model(*batch(k)[:1], labels=batch(k)[1]), step(*batch(k))
        assert type(output) is type(expected) is lib.Classified and list(output) == list(expected) == ["loss", "logits", "hidden"]
        assert isinstance(output, collections.OrderedDict) and all(output[name] is getattr(output, name) for name in output)
        for a, b in zip(tf.nest.flatten(expected.to_tuple()), tf.nest.flatten(output.to_tuple()), strict=True):
            np.testing.assert_array_equal(a, b)
    assert step.stats().whole_steps >= 8, terra.explain(step)


def test_an_output_is_handed_on():
    """To another layer (Keras 3 would take it for a dict of tensors), and what it holds to a function of TensorFlow's."""
    K = tf_keras
    Encoder = lib.models(K)[0]

    class Second(K.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = K.layers.Dense(2)

        def call(self, encoded):
            return self.dense(encoded["last"])

    def make():
        K.utils.set_random_seed(2)
        first, second = Encoder(lib.Config(output_hidden=True)), Second()
        second(first(batch(0)[0]))

        def step(x, y):
            encoded = first(x)
            return second(encoded), tf.concat(encoded.hidden, 1)

        return step, lambda: []

    stats = harness.differ(make, batch, STEPS)
    assert stats.coexecuted_steps >= STEPS - 8, stats


@pytest.mark.parametrize("K", KERAS)
def test_a_model_of_the_users_counts(K):
    """What the user's own code does besides is done at each step."""
    calls = []

    class Counting(lib.models(K)[1]):
        def loss_of(self, labels, logits):
            calls.append(len(calls))
            return super().loss_of(labels, logits) * (1.0 + 0.1 * (len(calls) % 3))

    def change(i, step):
        if i == 0:
            calls.clear()

    made = []

    def make():
        K.utils.set_random_seed(3)
        model = Counting(lib.Config())
        model(batch(0)[0])

        def step(x, y):
            return use_loss(model, x, y)

        made.append(step)
        return step, lambda: [tf.constant(calls)]

    stats = harness.differ(make, batch, STEPS, change=change)
    assert stats.coexecuted_steps >= STEPS - 8, stats


@pytest.mark.parametrize("K", KERAS)
def test_messages_for_errors(K):
    """What an assertion would say has a value in it that is another one each time; when it fails it says what it says eagerly."""
    def make():
        K.utils.set_random_seed(3)
        model = lib.models(K)[1](lib.Config(labels=1000))
        model(batch(0)[0])
        return training(model, use_loss), lambda: [v.numpy() for v in model.trainable_variables]

    def given(k):
        return batch(k)[0], tf.constant(np.random.default_rng(k).integers(0, 1000, 4))

    stats = harness.differ(make, given, 40)
    assert stats.coexecuted_steps >= 30 and stats.whole_steps >= 25, stats
    step, _ = make()
    expected = []
    for step in (step, terra.coexecute(step, wait_for_graph=True)):
        for k in range(12):
            step(*given(k))
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            step(given(0)[0], tf.constant([1, 2, 4321, 3]))
        expected.append([line for line in str(error.value).splitlines() if "too large" in line])
    assert expected[0] == expected[1] != [] and "4321 of 1000" in expected[0][0]


@pytest.mark.parametrize("function", [lib.described, lib.joined])
def test_texts_are_used(function):
    """A text in which there is a value is not taken for the one of another step."""
    step = terra.coexecute(lambda x, y: function(x), wait_for_graph=True)
    for k in range(20):
        expected, given = function(batch(k)[0]), step(*batch(k))
        if function is lib.described:
            assert given[0] == expected[0]
        else:
            assert given.numpy() == expected.numpy()
    assert step.stats().coexecuted_steps >= 14, step.stats()


@pytest.mark.parametrize("K", KERAS)
def test_a_train_step_of_the_librarys(K):
    """`fit` with the step of such a library's model, while the program changes the model's configuration."""
    r = np.random.default_rng(0)
    data = tf.data.Dataset.from_tensor_slices((r.normal(size=(60, 5)).astype("f"), r.integers(0, 3, 60))).batch(4)
    results = []
    for compile_model in (lambda model, **how: model.compile(run_eagerly=True, **how), lambda model, **how: terra.compile(model, wait_for_graph=True, **how)):
        K.utils.set_random_seed(5)
        model = lib.models(K)[1](lib.Config())
        model(batch(0)[0])
        steps = compile_model(model, optimizer=K.optimizers.SGD(0.1))

        class Changes(K.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                model.config.scale = 0.5 if batch > 8 else 1.0

        results.append([model.fit(data, epochs=3, verbose=0, callbacks=[Changes()]).history, *[v.tolist() for v in model.get_weights()]])
    assert results[0] == results[1]
    assert steps.stats()["train"].whole_steps >= 18, steps.stats()["train"]


def test_an_item_is_not_the_attribute():
    step = terra.coexecute(lambda x, y: lib.twofold(x), wait_for_graph=True)
    for k in range(16):
        expected, output = lib.twofold(batch(k)[0]), step(*batch(k))
        np.testing.assert_array_equal(output["last"], expected["last"])
        np.testing.assert_array_equal(output.last, expected.last)
    assert step.stats().coexecuted_steps >= 10, step.stats()


def test_the_step_looks_at_a_text():
    """The program branches on a text that the library has put a value into."""
    def make():
        w = tf.Variable(1.0)

        def step(x, y):
            text, z = lib.described(x)
            if text.startswith("largest: 2"):
                w.assign_add(1.0)
            return tf.reduce_sum(z) * w

        return step, lambda: [w]

    stats = harness.differ(make, batch, 40)
    assert stats.coexecuted_steps >= 20, stats


@pytest.mark.parametrize("K", KERAS)
def test_in_a_block(K):
    """The labels of a batch, integers, are given to the model: other ones each time, which nobody looks at."""
    seen, jumps = [], []
    for kind in (tf.GradientTape, TerraTape):
        K.utils.set_random_seed(3)
        model = lib.models(K)[1](lib.Config())
        model(batch(0)[0])
        optimizer, found = K.optimizers.SGD(0.1), []
        for k in range(32):
            r = np.random.default_rng(k)
            x, y = tf.constant(r.normal(size=(16, 5)).astype("f")), tf.constant(r.integers(0, 3, 16))
            with kind() as tape:
                loss = model(x, labels=y, training=True).loss
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            found.append(float(loss))
            jumps.append(tape.block.stats().fast_forwards if kind is TerraTape else 0)
        seen.append([found, [v.tolist() for v in model.get_weights()]])
    assert seen[0] == seen[1]
    assert tape.block.stats().coexecuted_steps >= 24
    assert 8 * 3 <= jumps[-1] - jumps[-9] <= 8 * 6, jumps  # the model, the gradient, the optimizer


def test_integers_of_a_batch_decide_shapes():
    seen = []
    for kind in (tf.GradientTape, TerraTape):
        w, found = tf.Variable(tf.ones(16)), []
        for k in range(32):
            r = np.random.default_rng(k // 2)
            sizes = tf.constant(r.permutation(np.arange(16) % 5))
            with kind() as tape:
                parts = tf.split(tf.range(30.0), sizes)
                sums = tf.stack([tf.reduce_sum(part) for part in parts])
                loss = tf.reduce_sum(sums * w * tf.reduce_mean(tf.sequence_mask(sizes, dtype=tf.float32), 1)) + tf.reduce_sum(tf.repeat(w, sizes))
            w.assign_sub(0.001 * tape.gradient(loss, w))
            found.append((float(loss), [part.shape[0] for part in parts]))
        seen.append((found, w.numpy().tolist()))
    assert seen[0] == seen[1]
    assert tape.block.stats().coexecuted_steps >= 10
