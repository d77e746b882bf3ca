"""Planted causes beyond those of docs/performance.md: `terra.explain` names the line, and says nothing that a user of Terra need not know."""

import inspect
import io
import logging
import os
import random
import re
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.interpreter import profilers

BATCHES = [(tf.random.stateless_normal([32, 20], seed=[k, 1]), tf.random.stateless_normal([32, 1], seed=[k, 2])) for k in range(10)]
WORDS = re.compile(r"skeleton|TraceGraph|fetch|\bfed\b|\bfeed|express|record|purity|impure|opaque|trial|segment|\bpieces\b|_terra|<locals>|unskippable|substitut")


def line_of(text):
    """`test_causes.py:N` of the first line of this file that contains `text`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines(keepends=True)
    return f"test_causes.py:{next(k for k, line in enumerate(lines, 1) if text in line)}"


def make_training(*layers):
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)

    def train(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return train


def explained(step, *args, n=60, **options):
    """Runs n steps; returns what is said of them, which is short and plain."""
    step = terra.coexecute(step, **options)
    for k in range(n):
        step(*BATCHES[k % 10], *[a(k) for a in args])
    return looked_at(terra.explain(step))


def looked_at(text):
    assert len(text.splitlines()) <= 25 and not WORDS.search(text.replace("test_causes", "")), text
    assert len({(cause.code, cause.line) for cause in text.causes}) == len(text.causes), text
    return text


def first(text, code, line):
    """The first cause of the text, which is to have this code and line."""
    cause = text.causes[0]
    assert (cause.code, cause.line) == (code, line), text
    return cause


class Holder:
    scale = 1.0


SCALE = 1.0


@pytest.mark.parametrize("where", ["attribute", "global", "closure", "time"])
@pytest.mark.all_variants
def test_a_number_that_changes(where):
    train, holder, cell = make_training(), Holder(), 1.0

    def of_attribute(x, y):
        return train(x * holder.scale, y)  # of an attribute

    def of_global(x, y):
        return train(x * SCALE, y)  # of a global

    def of_closure(x, y):
        return train(x * cell, y)  # of a closure

    def of_time(x, y):
        return train(x * (1.0 + time.time() % 1.0), y)  # of the time

    def change(k):
        nonlocal cell
        globals()["SCALE"] = holder.scale = cell = 1.0 + k / 100

    step = terra.coexecute({"attribute": of_attribute, "global": of_global, "closure": of_closure, "time": of_time}[where])
    for k in range(60):
        change(k)
        step(*BATCHES[k % 10])
    cause = first(looked_at(terra.explain(step)), "T03", line_of({"time": "# of the time", "attribute": "# of an attribute"}.get(where, f"# of a {where}")))
    assert {"attribute": "keep scale in a tf.Variable", "global": "keep SCALE in a tf.Variable", "closure": "in a tf.Variable", "time": "in an argument"}[where] in cause.remedy


def test_an_integer_that_grows_is_named():
    """Not another argument, a tensor, that happens to come last."""
    train = make_training()

    def step(k, x, y):  # counts
        return train(x * (1.0 + k / 1000), y)

    step = terra.coexecute(step)
    for k in range(30):
        step(k, *BATCHES[k % 10])
    for cause in terra.explain(step).causes:
        assert cause.code != "T03" or (": k" in cause.seen and "y" not in cause.remedy.split("give ")[-1].split(" ")[0]), cause
    assert looked_at(terra.explain(step))


class Logging(keras.layers.Layer):
    def call(self, x):
        logging.getLogger("mine").info("a batch of %s", x.shape)  # logs
        return x * 2.0


def test_a_layer_that_logs():
    train = make_training(Logging())

    def step(x, y):
        return train(x, y)

    assert "behind the step" in first(explained(step), "T05", line_of("# logs")).remedy


def test_an_object_that_the_step_finds_anew():
    train, held = make_training(), {}

    class Settings:
        def __init__(self, scale):
            self.scale = scale

    def step(x, y):
        return train(x * held["settings"].scale, y)

    step = terra.coexecute(step)
    for k in range(60):
        held["settings"] = Settings(2.0)
        step(*BATCHES[k % 10])  # the call
    cause = first(looked_at(terra.explain(step)), "T13", line_of("# the call"))
    assert "an object of type Settings" in cause.seen


def test_a_list_that_grows():
    train, kept = make_training(), []

    def step(x, y):
        kept.append(tf.reduce_mean(x))
        return train(x, y) * tf.add_n(kept)  # grows

    assert "behind the step" in first(explained(step), "T12", line_of("# grows")).remedy


def helper(x):
    names = dir(x)  # the reason
    assert names
    return tf.tanh(x)


def test_the_statement_of_a_function_that_is_not_skipped():
    train = make_training()

    def step(x, y):
        return train(helper(x), y)

    cause = first(explained(step), "T09", line_of("# the reason"))
    assert cause.statement == "names = dir(x)" and "helper" in cause.seen and "step" in cause.seen


def written(x, y, train):
    open(os.devnull, "a", encoding="ascii").write("a step\n")  # written
    return train(x, y)


def slept(x, y, train):
    time.sleep(0.02)  # slept
    return train(x, y)


def written_by_tensorflow(x, y, train):
    tf.io.write_file(os.devnull, "a step")  # written_by_tensorflow
    return train(x, y)


def printed_with_a_value(x, y, train):
    loss = train(x, y)
    print("loss", loss, file=io.StringIO())  # printed_with_a_value
    return loss


def made_a_layer(x, y, train):
    return train(x, y) + tf.reduce_sum(keras.layers.Dense(2)(x))  # made_a_layer


def halved(x, y, train):
    q = tf.reduce_sum(x * x)
    while q > 1.0:  # halved
        q = q / (2.0 + tf.abs(x[0, 0]))
    return train(x * q, y)


PLANTED = {written: "T09", slept: "T09", written_by_tensorflow: "T06", printed_with_a_value: "T02", made_a_layer: "T09", halved: "T02"}


@pytest.mark.all_variants
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_statement_of_the_step(planted):
    """The same function eagerly gives the same losses: what is said is said of a step that is right."""
    keras.utils.set_random_seed(3)
    train, step, seen = make_training(), terra.coexecute(planted), []
    for k in range(40):
        seen.append(float(step(*BATCHES[k % 10], train)))
    if planted is not made_a_layer:  # which draws random numbers
        keras.utils.set_random_seed(3)
        train = make_training()
        assert seen == [float(planted(*BATCHES[k % 10], train)) for k in range(40)]
    cause = first(looked_at(terra.explain(step)), PLANTED[planted], line_of(f"# {planted.__name__}"))
    assert cause.statement and cause.remedy


def test_an_error_in_a_function_that_the_step_calls():
    train = make_training()

    def check(k):
        if k % 3 == 2:
            raise ValueError("no")  # raises

    def step(x, y, k):
        check(k)
        return train(x, y)

    step = terra.coexecute(step)
    for k in range(60):
        try:
            step(*BATCHES[k % 10], k)
        except ValueError:
            assert k % 3 == 2
    cause = first(looked_at(terra.explain(step)), "T08", line_of("# raises"))
    assert re.fullmatch(r"at least (1[5-9]|20) of 60 steps raised \(ValueError\)", cause.seen)


class Unknown:
    """The type of a profile function in C that is no profiler which is known."""


def test_a_profiler(monkeypatch):
    monkeypatch.setattr(profilers, "_told", [])
    monkeypatch.setattr(profilers.sys, "getprofile", lambda: Unknown())
    monkeypatch.setattr(profilers.sys, "setprofile", lambda _: pytest.fail("it would be lost"))
    train = make_training()

    def step(x, y):
        return train(x, y)

    cause = explained(step).causes[0]
    assert cause.code == "T11" and "Unknown" in cause.seen and "cProfile or pyinstrument" in cause.remedy


def test_a_model_of_keras_whose_batches_differ():
    model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
    steps = terra.compile(model, "sgd", "mse", reduce_retracing=False)

    def batches():
        for k in range(120):
            yield tuple(x[:8 + 7 * k % 20] for x in BATCHES[k % 10])

    model.fit(batches(), verbose=0)
    model.predict(BATCHES[0][0], verbose=0)
    text = looked_at(terra.explain(steps.train))
    cause = text.causes[0]
    assert text.startswith(f"Sequential.train_step ({model.name})   ") and cause.code == "T01" and cause.line is None and "20 sizes" in cause.seen, text
    assert cause.remedy == "terra.compile(..., reduce_retracing=True)"
    assert [diagnosis.facts.name.partition(" ")[0] for diagnosis in terra.explain(model).diagnoses] == ["Sequential.train_step", "Sequential.predict_step"]
    assert terra.explain(steps) == terra.explain(model)
    steps.undo()
    with pytest.raises(TypeError, match="terra.explain takes"):
        terra.explain(model)


def test_a_layer_of_the_user_in_a_model_of_keras():
    model = keras.Sequential([keras.layers.Dense(16), Logging(), keras.layers.Dense(1)])
    steps = terra.compile(model, "sgd", "mse")
    model.fit(np.concatenate([x for x, _ in BATCHES]), np.concatenate([y for _, y in BATCHES]), batch_size=32, epochs=5, verbose=0)
    assert first(looked_at(terra.explain(steps.train)), "T05", line_of("# logs")).statement.startswith("logging.")


def fitted(*layers, loss="mse", metrics=(), callbacks=()):
    """Trains a model of Keras with these layers; returns what is said of its training step."""
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), *layers, keras.layers.Dense(1)])
    steps = terra.compile(model, "sgd", loss, metrics=list(metrics))
    model.fit(np.concatenate([x for x, _ in BATCHES]), np.concatenate([y for _, y in BATCHES]), batch_size=32, epochs=8, verbose=0, callbacks=list(callbacks))
    return looked_at(terra.explain(steps.train))


def spread(y, p):
    return np.mean(np.abs(y.numpy() - p.numpy()))  # looks in a metric's function


def largest(y, p):
    return float(tf.reduce_max(p).numpy())  # gives a number


class Worst(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="worst")
        self.worst = self.add_weight(name="w", initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.worst.assign(float(np.max(p.numpy())))  # looks in a metric

    def result(self):
        return self.worst


class Adaptive(keras.losses.Loss):
    def call(self, y, p):
        e = tf.abs(y - p)
        if tf.reduce_max(e).numpy() > 50.0:  # looks in a loss
            e = tf.sqrt(e)
        return tf.reduce_mean(e ** 2, axis=-1)


class Peeking(keras.layers.Layer):
    def call(self, x):
        return x * self.factor(x)

    def factor(self, x):
        return 0.5 if hasattr(x, "numpy") and x.numpy().max() > 1e9 else 1.0  # looks in a layer


READING = {
    "# looks in a metric's function": dict(metrics=[spread]), "# gives a number": dict(metrics=[largest]), "# looks in a metric": dict(metrics=[Worst()]),
    "# looks in a loss": dict(loss=Adaptive()), "# looks in a layer": dict()}


@pytest.mark.all_variants
@pytest.mark.parametrize("where", READING)
def test_a_read_in_what_keras_calls(where):
    text = fitted(*[Peeking()] * (where == "# looks in a layer"), **READING[where])
    first(text, "T02", line_of(where + "\n" if where.endswith("metric") else where))
    assert len(text.causes) == 1 and "in the step  " not in text, text


class Annealed(keras.layers.Layer):
    temperature = 1.0

    def call(self, x):
        return x / self.temperature  # of a layer's attribute


def test_a_number_of_a_layer_in_a_model_of_keras():
    layer = Annealed()

    class Anneal(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            layer.temperature *= 0.999

    text = fitted(layer, callbacks=[Anneal()])
    assert "in a tf.Variable" in first(text, "T03", line_of("# of a layer's attribute")).remedy and len(text.causes) == 1, text


class Dropping(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(16, activation="relu")

    def call(self, x, training=False):
        if training and random.random() < 0.3:  # leaves out a layer
            return x
        return x + self.dense(x)


def test_a_branch_on_random_numbers_in_a_model_of_keras():
    random.seed(3)
    text = fitted(*[Dropping() for _ in range(4)])
    first(text, "T04", line_of("# leaves out a layer"))
    assert "trainer.py" not in text and "warnings.py" not in text and len(text.causes) == 1, text


class Remembering(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.history = {"means": []}

    def call(self, x):
        self.history["means"].append(tf.reduce_mean(x))  # remembers
        return x - tf.reduce_mean(x)


def test_a_list_that_a_layer_makes_longer():
    train = make_training(Remembering())

    def step(x, y):
        return train(x, y)

    assert "behind the step" in first(explained(step), "T12", line_of("# remembers")).remedy


def test_a_function_of_tensorflow_that_is_not_known():
    train, space = make_training(), {"__name__": "tensorflow.python.ops.none", "tf": tf}
    exec("def xw_plus_b(x, w, b): return tf.matmul(x, w) + b", space)  # there is no source to look at
    eye, xw_plus_b = tf.eye(20), space["xw_plus_b"]

    def step(x, y):
        return train(xw_plus_b(x, eye, tf.zeros(20)), y)  # an old name

    cause = first(explained(step), "T14", line_of("# an old name"))
    assert "xw_plus_b" in cause.seen and "in its place" in cause.remedy


def test_random_numbers_of_numpy():
    train, generator = make_training(), np.random.default_rng(3)

    def step(x, y):
        if generator.integers(0, 2):  # draws
            x = tf.tanh(x)
        return train(x, y)

    assert all("tf.random" in cause.remedy and cause.line == line_of("# draws") for cause in explained(step).causes)


def test_a_step_within_a_step():
    train = make_training()

    @terra.coexecute
    def inner(x, y):
        return train(x, y)

    @terra.coexecute
    def outer(x, y):
        return inner(x, y) * 2.0  # calls it

    for k in range(60):
        outer(*BATCHES[k % 10])
    assert "it is part of the step test_a_step_within_a_step.outer" in terra.explain(inner)
    assert looked_at(terra.explain(outer)).causes == [] and outer.stats().whole_steps >= 30


def test_a_step_that_nothing_is_wrong_with():
    train = make_training()

    def step(x, y):
        return train(x, y)

    text = explained(step, wait_for_graph=True)
    assert text.causes == [] and text.splitlines()[-1] == "Nothing was seen that should be changed."
    assert re.match(r"test_a_step_that_nothing_is_wrong_with.step  test_causes.py:\d+   (up to )?[\d.]+ x faster than eager \([\d.]+ ms a step, eager (at most )?[\d.]+\)", text), text
    assert re.match(r"co-executed from step [3-9] on: 5\d of 60 steps, \d+ of them without running its Python", text.splitlines()[1]), text


def test_what_is_not_known_is_not_said():
    """No step runs eagerly where each waits for the graph; what traced steps took is the most that eager execution takes."""
    train = make_training()

    def step(x, y):
        return train(x, y)

    assert re.search(r"up to [\d.]+ x faster than eager \([\d.]+ ms a step, eager at most [\d.]+\)", explained(step, wait_for_graph=True))


def test_plain_values():
    train = make_training()

    def step(x, y):  # to be told
        return float(train(x, y))  # reads

    text = explained(step)
    (plain,) = text.to_dict()["steps"]
    assert plain["line"] == line_of("def step(x, y):  # to be told") and plain["name"] == "test_plain_values.step"
    assert plain["stats"]["steps"] == 60 and plain["coexecuted_from_step"] in range(3, 10) and plain["verdict"] == text.splitlines()[0]
    assert plain["speedup"] == pytest.approx(plain["eager_ms_per_step"] / plain["ms_per_step"])
    (cause,) = plain["causes"]
    assert (cause["code"], cause["line"], cause["statement"]) == ("T02", line_of("# reads"), "return float(train(x, y))") and cause["ms_per_step"] > 0


def test_many_steps_in_a_few_lines():
    made = []
    for number in range(12):
        weights = tf.Variable(float(number))

        @terra.coexecute
        def step(x, weights=weights):
            weights.assign_add(tf.reduce_sum(x))
            return float(weights)

        for k in range(20 + number):
            step(BATCHES[k % 10][0])
        made.append(step)
    text = terra.explain()
    assert len(text.splitlines()) <= 25 and "terra.explain(full=True) has all of them" in text
    assert len(terra.explain(full=True).diagnoses) >= 12


def test_a_cause_costs_nothing_before_it_is_asked_for():
    """What explains is imported, and not called, by steps."""
    train, calls = make_training(), []

    def note(frame, event, argument):
        if event == "call" and "reporting" in frame.f_globals.get("__name__", ""):
            calls.append(frame.f_code.co_name)

    def step(x, y):
        return train(x, y)

    step = terra.coexecute(step)
    for k in range(30):
        step(*BATCHES[k % 10])
    sys.setprofile(note)
    try:
        for k in range(10):
            step(*BATCHES[k % 10])
    finally:
        sys.setprofile(None)
    assert calls == []
