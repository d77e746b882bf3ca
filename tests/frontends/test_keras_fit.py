"""Stock `fit`, `evaluate` and `predict` co-executed: the same history, logs, weights and predictions as with `run_eagerly=True`, bit for bit.

A scenario is a function of the Keras package and of `compile_`, which is `model.compile(..., run_eagerly=True)` in one run and `terra.compile`
in the other; it returns all that a user could see. Both Keras 3 and tf_keras run the scenarios, except where that makes no difference.
"""
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from sklearn.metrics import f1_score

import terra
from tests import harness
from tests.corpus import Spec
from tests.variants import ALL

KERAS = [pytest.param(keras, id="keras3"), pytest.param(tf_keras, id="tf_keras")]
SCENARIOS = []
EXACT = Spec("fit", "keras", None, exact=True)


def scenario(train=1, test=0, predict=0, libraries=KERAS):
    """Register a scenario with the least number of co-executed steps of each kind."""

    def register(f):
        turn = len(SCENARIOS) % len(libraries)
        SCENARIOS.extend(pytest.param(f, {"train": train, "test": test, "predict": predict}, *K.values, id=f"{f.__name__}-{K.id}")
                         for k, K in enumerate(libraries) if ALL or k == turn)
        return f

    return register


class Eager:
    """`run_eagerly=True`: the reference."""

    def __call__(self, model, **arguments):
        model.compile(**arguments, run_eagerly=True)


class Terra:
    """`terra.compile`, which keeps the steps of every model it gets."""

    def __init__(self):
        self.steps = []

    def __call__(self, model, **arguments):
        self.steps.append(terra.compile(model, **arguments, wait_for_graph=True))

    def coexecuted(self, kind):
        return sum(steps.stats()[kind].coexecuted_steps for steps in self.steps)


@pytest.mark.parametrize("run, least, K", SCENARIOS)
def test_equals_run_eagerly(run, least, K):
    harness.reset_seeds()
    expected = harness.snapshot(run(K, Eager()))
    harness.reset_seeds()
    compile_ = Terra()
    actual = harness.snapshot(run(K, compile_))
    assert list(harness.differences(expected, actual, EXACT)) == []
    for kind, n in least.items():
        assert compile_.coexecuted(kind) >= n, (kind, [steps.stats() for steps in compile_.steps])


# --------------------------------------------------------------------------------------------- data and models

def data(n=68, features=6, classes=3):
    rng = np.random.RandomState(0)
    x = rng.randn(n, features).astype("float32")
    return x, (x[:, :classes] + 0.5 * rng.randn(n, classes)).argmax(1).astype("int32")


def classifier(K, *extra):
    """A small classifier with dropout, batch normalisation and a regulariser."""
    inputs = K.Input((6,))
    h = K.layers.Dense(8, activation="relu", kernel_regularizer=K.regularizers.L2(1e-3), use_bias=False)(inputs)
    h = K.layers.Dropout(0.2)(K.layers.BatchNormalization()(h))
    return K.Model(inputs, K.layers.Dense(3)(h))


def loss(K):
    return K.losses.SparseCategoricalCrossentropy(from_logits=True)


def recorder(K):
    """A callback that keeps the logs of every batch, as they are when it is called."""

    class Recorder(K.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append((batch, {k: float(v) for k, v in logs.items()}))

        def on_test_batch_end(self, batch, logs=None):
            self.seen.append((batch, {k: float(v) for k, v in logs.items()}))

    return Recorder()


def seen(model, history=None, **more):
    return {"history": history and history.history, "weights": model.get_weights(), **more}


# ----------------------------------------------------------------------------------------------------- inputs

@scenario(train=6, test=2, predict=3)
def numpy_arrays_with_validation(K, compile_):
    model, (x, y) = classifier(K), data()
    compile_(model, optimizer="adam", loss=loss(K), metrics=["accuracy"])
    record = recorder(K)
    history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:32], y[:32]), verbose=0, callbacks=[record])
    return seen(model, history, predictions=model.predict(x, batch_size=16, verbose=0), logs=record.seen,
                evaluated=model.evaluate(x, y, batch_size=16, verbose=0))


@scenario(train=5, test=1)
def sample_weights_and_validation_split(K, compile_):
    model, (x, y) = classifier(K), data(100)
    compile_(model, optimizer=K.optimizers.SGD(0.1, momentum=0.9, nesterov=True), loss=loss(K), weighted_metrics=["accuracy"])
    history = model.fit(x, y, sample_weight=np.linspace(0.1, 2.0, len(x)), batch_size=16, epochs=2, validation_split=0.2, verbose=0)
    return seen(model, history)


@scenario(train=5, libraries=KERAS[:1])
def class_weights(K, compile_):
    model, (x, y) = classifier(K), data(80)
    compile_(model, optimizer="rmsprop", loss=loss(K), metrics=["accuracy"])
    return seen(model, model.fit(x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, batch_size=16, epochs=2, verbose=0))


@scenario(train=6, test=1, predict=1, libraries=KERAS[:1])
def datasets(K, compile_):
    model, (x, y) = classifier(K), data(64)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=5).batch(16, drop_remainder=True).repeat()
    compile_(model, optimizer="adam", loss=loss(K), metrics=["accuracy"])
    history = model.fit(train, steps_per_epoch=5, epochs=2, verbose=0, validation_data=tf.data.Dataset.from_tensor_slices((x, y)).batch(32))
    return seen(model, history, predictions=model.predict(tf.data.Dataset.from_tensor_slices(x).batch(16), verbose=0))


@scenario(train=6, libraries=KERAS[1:])
def python_generator(K, compile_):
    model, (x, y), served = classifier(K), data(64), []

    def batches():
        i = 0
        while True:
            served.append(i)
            yield x[i:i + 16], y[i:i + 16]
            i = (i + 16) % 64

    compile_(model, optimizer="sgd", loss=loss(K))
    return seen(model, model.fit(batches(), steps_per_epoch=5, epochs=2, verbose=0), order=served[:10])


@scenario(train=4, test=2, predict=2)
def one_batch_at_a_time(K, compile_):
    model, (x, y) = classifier(K), data(160)
    compile_(model, optimizer="adam", loss=loss(K), metrics=["accuracy"])
    trained = [model.train_on_batch(x[i:i + 16], y[i:i + 16], return_dict=True) for i in range(0, 128, 16)]
    tested = [model.test_on_batch(x[i:i + 16], y[i:i + 16]) for i in range(0, 96, 16)]
    predicted = [model.predict_on_batch(x[i:i + 16]) for i in range(0, 96, 16)]
    return seen(model, trained=trained, tested=tested, predicted=predicted)


@scenario(train=5)
def several_steps_per_execution(K, compile_):
    model, (x, y) = classifier(K), data(64)
    compile_(model, optimizer="adam", loss=loss(K), metrics=["accuracy"], steps_per_execution=2)
    return seen(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0))


@scenario(train=5, predict=1, libraries=KERAS[:1])
def several_inputs_and_outputs(K, compile_):
    a, b = K.Input((6,), name="a"), K.Input((6,), name="b")
    h = K.layers.Concatenate()([a, b])
    model = K.Model({"a": a, "b": b}, {"label": K.layers.Dense(3, name="label")(h), "sum": K.layers.Dense(1, name="sum")(h)})
    x, y = data(80)
    compile_(model, optimizer="adam", loss={"label": loss(K), "sum": "mse"}, loss_weights={"label": 1.0, "sum": 0.1}, metrics={"label": "accuracy"})
    inputs, outputs = {"a": x, "b": -x}, {"label": y, "sum": x.sum(1, keepdims=True)}
    return seen(model, model.fit(inputs, outputs, batch_size=16, epochs=2, verbose=0), predictions=model.predict(inputs, batch_size=16, verbose=0))


# -------------------------------------------------------------------------------------------------- callbacks

@scenario(train=8, test=1, libraries=KERAS[1:])
def early_stopping(K, compile_):
    model, (x, y) = classifier(K), data(96)
    compile_(model, optimizer=K.optimizers.Adam(0.5), loss=loss(K))
    stop = K.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    history = model.fit(x, y, batch_size=16, epochs=12, validation_data=(x[:32], y[:32]), verbose=0, callbacks=[stop])
    assert len(history.epoch) < 12
    return seen(model, history, stopped=stop.stopped_epoch)


@scenario(train=8)
def learning_rate_changed_by_callbacks(K, compile_):
    model, (x, y) = classifier(K), data(64)
    rates = []

    class Warmup(K.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rate = self.model.optimizer.learning_rate
            rate.assign(0.02 * (batch + 1))
            rates.append(float(rate))

    compile_(model, optimizer=K.optimizers.SGD(0.1, momentum=0.9), loss=loss(K))
    callbacks = [Warmup(), K.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5), K.callbacks.ReduceLROnPlateau("loss", patience=1)]
    return seen(model, model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=callbacks), rates=rates)


@scenario(train=5, libraries=KERAS[1:])
def learning_rate_schedule(K, compile_):
    model, (x, y) = classifier(K), data(80)
    schedule = K.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.7)
    compile_(model, optimizer=K.optimizers.Adam(schedule, clipnorm=1.0), loss=loss(K))
    return seen(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0))


@scenario(train=5, libraries=KERAS[:1])
def weights_changed_between_batches(K, compile_):
    """A callback reads and writes weights while steps may be in flight."""
    model, (x, y) = classifier(K), data(80)
    norms = []

    class Decay(K.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.layers[1].kernel
            kernel.assign(kernel * 0.9)
            norms.append(float(np.linalg.norm(kernel.numpy())))

    compile_(model, optimizer="sgd", loss=loss(K))
    return seen(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[Decay()]), norms=norms)


@scenario(train=8)
def layer_frozen_by_a_callback(K, compile_):
    model, (x, y) = classifier(K), data(96)
    kernels = []

    class Freeze(K.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[1].trainable = epoch < 1
            kernels.append(self.model.layers[1].kernel.numpy())

    compile_(model, optimizer=K.optimizers.SGD(0.1), loss=loss(K))
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Freeze()])
    assert (kernels[1] == kernels[2]).all() and (kernels[0] != kernels[1]).any()
    return seen(model, history, kernels=kernels)


# ------------------------------------------------------------------------------------- metrics and losses in Python

@scenario(train=5, test=1, libraries=KERAS[:1])
def metric_from_scikit_learn(K, compile_):
    calls = []

    @tf.autograph.experimental.do_not_convert  # tf_keras would convert scikit-learn, which takes it a minute
    def f1(y, logits):
        calls.append(len(calls))
        return f1_score(y.numpy().ravel(), logits.numpy().argmax(1), average="macro")

    model, (x, y) = classifier(K), data(80)
    compile_(model, optimizer="sgd", loss=loss(K), metrics=[f1])
    history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:32], y[:32]), verbose=0)
    return seen(model, history, calls=calls)


@scenario(train=5)
def metric_object_with_python_state(K, compile_):
    class Confusion(K.metrics.Metric):
        """Counts in a numpy array, with a history of its own."""

        def __init__(self):
            super().__init__(name="confusion")
            self.counts = np.zeros((3, 3))
            self.kept = []

        def update_state(self, y_true, y_pred, sample_weight=None):
            np.add.at(self.counts, (y_true.numpy().ravel(), np.asarray(y_pred).argmax(1)), 1)

        def result(self):
            return tf.constant(np.trace(self.counts) / max(self.counts.sum(), 1), tf.float32)

        def reset_state(self):
            self.kept.append(self.counts.copy())
            self.counts[:] = 0

    model, (x, y) = classifier(K), data(80)
    metric = Confusion()
    compile_(model, optimizer=K.optimizers.SGD(0.1), loss=loss(K), metrics=[metric])
    return seen(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0), kept=metric.kept)


@scenario(train=8, libraries=KERAS[:1])
def loss_that_branches_on_its_value(K, compile_):
    taken = []

    def huber(y, predicted):
        error = tf.cast(y, tf.float32) - tf.reduce_mean(predicted, -1)
        if float(tf.reduce_max(tf.abs(error))) > 2.0:  # Python's branch, on a value
            taken.append("linear")
            return tf.abs(error)
        taken.append("square")
        return error ** 2

    model, (x, y) = classifier(K), data(64)
    compile_(model, optimizer="adam", loss=huber)
    history = model.fit(x, y, batch_size=16, epochs=4, verbose=0)
    assert len(set(taken)) == 2
    return seen(model, history, taken=taken)


# ------------------------------------------------------------------------------------------- steps of the user's

@scenario(train=8, test=1)
def overridden_train_step(K, compile_):
    class Model(K.Model):
        def __init__(self):
            super().__init__()
            self.dense = K.layers.Dense(3)
            self.log = []
            self.seen_batches = 0

        def call(self, x, training=False):
            return self.dense(x)

        def train_step(self, batch):
            self.seen_batches += 1
            if self.seen_batches % 4 == 0:  # every fourth batch is trained with noise from numpy
                x, y = batch
                batch = x + np.random.randn(*x.shape).astype("float32"), y
            logs = super().train_step(batch)
            self.log.append({k: float(v) for k, v in logs.items()})
            return {**logs, "batches": self.seen_batches}

    model, (x, y) = Model(), data(128)
    compile_(model, optimizer="sgd", loss=loss(K), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:64], y[:64]), validation_batch_size=16)
    return seen(model, history, log=[dict(entry) for entry in model.log], batches=model.seen_batches)


@scenario(train=5, libraries=KERAS[1:])
def adversarial_training(K, compile_):
    class Gan(K.Model):
        def __init__(self):
            super().__init__()
            self.generator = K.Sequential([K.layers.Dense(8, activation="tanh"), K.layers.Dense(6)])
            self.discriminator = K.Sequential([K.layers.Dense(8, activation="relu"), K.layers.Dense(1)])
            self.optimizers = [K.optimizers.Adam(1e-2), K.optimizers.Adam(1e-2)]
            self.entropy = K.losses.BinaryCrossentropy(from_logits=True)

        def call(self, x):
            return self.discriminator(self.generator(x))

        def train_step(self, real):
            noise = tf.random.normal([16, 4])
            with tf.GradientTape() as tape:
                scores = self.discriminator(tf.concat([self.generator(noise), real], 0))
                d_loss = self.entropy(tf.concat([tf.zeros([16, 1]), tf.ones([16, 1])], 0), scores)
            variables = self.discriminator.trainable_variables
            self.optimizers[0].apply_gradients(zip(tape.gradient(d_loss, variables), variables))
            g_loss = 0.0
            while g_loss == 0.0 or (g_loss > 2.0 and d_loss < 0.1):
                with tf.GradientTape() as tape:
                    g_loss = self.entropy(tf.ones([16, 1]), self.discriminator(self.generator(noise)))
                variables = self.generator.trainable_variables
                self.optimizers[1].apply_gradients(zip(tape.gradient(g_loss, variables), variables))
            return {"d": d_loss, "g": g_loss}

    model, (x, _) = Gan(), data(80)
    compile_(model, optimizer="sgd", loss=None)
    record = recorder(K)
    model.fit(tf.data.Dataset.from_tensor_slices(x).batch(16), epochs=2, verbose=0, callbacks=[record])
    return seen(model, logs=record.seen)


# --------------------------------------------------------------------------------- decorated steps, and the interface

def decorated_class(K, decorate):
    class Model(K.Model):
        def __init__(self):
            super().__init__()
            self.dense = K.layers.Dense(3)
            self.losses_seen = []

        def call(self, x, training=False):
            return self.dense(x)

        @decorate
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, self(x, training=True)))
            self.optimizer.apply_gradients(zip(tape.gradient(value, self.trainable_variables), self.trainable_variables))
            self.losses_seen.append(float(value))
            return {"loss": value, "least": min(self.losses_seen)}

        @decorate
        def test_step(self, batch):
            x, y = batch
            return {"f1": f1_score(tf.reshape(y, [-1]).numpy(), self(x).numpy().argmax(1), average="micro")}

    return Model


@pytest.mark.share(2)
@pytest.mark.parametrize("K, models", [(keras, 2), (tf_keras, 1)], ids=["keras3", "tf_keras"])
def test_decorated_steps(K, models):
    """`@terra.coexecute` on `train_step` and `test_step` of a class; its instances share the steps, not their states."""
    def run(decorate):
        harness.reset_seeds()
        cls, results, (x, y) = decorated_class(K, decorate), [], data(96)
        for _ in range(models):
            model = cls()
            model.compile(optimizer="adam", run_eagerly=True)
            history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:64], y[:64]), validation_batch_size=16)
            results.append(seen(model, history, losses=list(model.losses_seen)))
        return cls, harness.snapshot(results)

    _, expected = run(lambda f: f)
    cls, actual = run(lambda f: terra.coexecute(f, wait_for_graph=True))
    assert list(harness.differences(expected, actual, EXACT)) == []
    assert cls.train_step.stats().coexecuted_steps >= 7
    assert cls.test_step.stats().coexecuted_steps >= 5


@pytest.mark.parametrize("K", KERAS)
def test_decorated_steps_need_no_run_eagerly_with_terra_compile(K):
    cls, (x, y) = decorated_class(K, terra.coexecute(wait_for_graph=True)), data(96)
    model = cls()
    steps = terra.compile(model, optimizer="adam")
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    assert "train_step" not in vars(model)  # the class's own step is used
    assert steps.stats()["train"].coexecuted_steps == cls.train_step.stats().coexecuted_steps > 5
    steps.undo()
    assert not model.run_eagerly


@pytest.mark.parametrize("K", KERAS)
def test_progress_bar_shows_each_steps_values(K, capsys):
    def run(compile_):
        harness.reset_seeds()
        model, (x, y) = classifier(K), data(64)
        compile_(model, optimizer="sgd", loss=loss(K), metrics=["accuracy"])
        model.fit(x, y, batch_size=16, epochs=3, verbose=1)
        return re.findall(r"(\w+): ([\d.]+(?:e-?\d+)?)", re.sub("\x08+", "\n", capsys.readouterr().out))

    compile_ = Terra()
    expected, actual = run(Eager()), run(compile_)
    # Keras throttles by time how often it draws the bar: the last values of each epoch are always drawn.
    assert len(expected) >= 6 and set(expected[-2:]) == set(actual[-2:])
    assert compile_.coexecuted("train") > 5


@pytest.mark.parametrize("K", KERAS)
def test_tf_function_cannot_do_it(K):
    """Why `run_eagerly=True` is needed: in a tf.function, the metric gets symbolic tensors."""
    model, (x, y) = classifier(K), data(32)
    model.compile(optimizer="adam", loss=loss(K), metrics=[lambda y, logits: f1_score(y.numpy(), logits.numpy().argmax(1), average="micro")])
    with pytest.raises((AttributeError, NotImplementedError)):
        model.fit(x, y, batch_size=16, verbose=0)


@pytest.mark.parametrize("K", KERAS)
def test_compile_is_reversible(K):
    model, (x, y) = classifier(K), data(96)
    model.compile(optimizer="adam", loss=loss(K))
    before, kind = set(vars(model)), type(model)
    with terra.compile(model, wait_for_graph=True) as steps:
        assert model.run_eagerly and type(model) is kind
        model.fit(x, y, batch_size=16, verbose=0)
        predicted = model.predict(x, verbose=0)
        weights = model.get_weights()
    assert {name for name in set(vars(model)) - before if not name.startswith("_eval")} <= {"history", "optimizer", "stop_predicting"}
    assert not model.run_eagerly and steps.train.stats().coexecuted_steps > 0
    assert all((a == b).all() for a, b in zip(weights, model.get_weights(), strict=True))
    np.testing.assert_allclose(model.predict(x, verbose=0), predicted, rtol=1e-5, atol=1e-6)
    n = steps.train.stats().steps
    model.fit(x, y, batch_size=16, verbose=0)  # in a tf.function again, with the same optimizer
    assert steps.train.stats().steps == n
    steps.undo()  # nothing to do


@pytest.mark.parametrize("K", KERAS)
def test_compiled_again(K):
    """The latest call counts, and `model.compile` in between does not unsettle it."""
    model, (x, y) = classifier(K), data(96)
    first = terra.compile(model, optimizer="adam", loss=loss(K), wait_for_graph=True)
    model.compile(optimizer="sgd", loss=loss(K))
    second = terra.compile(model, wait_for_graph=True)
    assert not first.active and second.active
    model.fit(x, y, batch_size=16, verbose=0)
    assert first.train.stats().steps == 0 and second.train.stats().coexecuted_steps > 0


@pytest.mark.parametrize("K", KERAS)
def test_saved_while_coexecuted(K, tmp_path):
    model, (x, y) = classifier(K), data(64)
    steps = terra.compile(model, optimizer="adam", loss=loss(K), wait_for_graph=True)
    checkpoint = K.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[checkpoint])
    loaded = K.models.load_model(str(tmp_path / "model.keras"))
    assert steps.train.stats().coexecuted_steps > 0
    assert not loaded.run_eagerly and "train_step" not in vars(loaded)
    np.testing.assert_array_equal(loaded(x[:4]), model(x[:4]))
    clone = K.models.clone_model(model)
    assert "train_step" not in vars(clone)


@pytest.mark.parametrize("K", KERAS)
def test_options_and_errors(K):
    model = classifier(K)
    steps = terra.compile(model, optimizer="adam", loss="mse", run_ahead=0, max_traces=3)
    assert (steps.train.options.run_ahead, steps.predict.options.max_traces) == (0, 3)
    with pytest.raises(terra.OptionError, match="run_ahead"):
        terra.compile(model, optimizer="adam", run_ahead="two")
    with pytest.raises(terra.OptionError, match="run_eagerly=False"):
        terra.compile(model, optimizer="adam", run_eagerly=False)
    with pytest.raises(terra.OptionError, match="terra.coexecute"):
        terra.compile(lambda x: x)
    assert steps.active  # none of them changed anything
    with pytest.raises((TypeError, ValueError)):
        terra.compile(model, optimiser="adam")  # Keras' own complaint


class CountsCalls(keras.Model):
    """`call` does more than compute; the step's own code runs."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop, self.out, self.n = keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(3), 0

    def call(self, x, training=False):
        self.n += 1
        return self.out(self.drop(self.inner(x), training=training))


class OwnStep(CountsCalls):
    def call(self, x, training=False):
        return self.out(self.drop(self.inner(x), training=training))

    def train_step(self, data):
        logs = super().train_step(data)
        self.n += 1
        return logs


class CountsOutside(CountsCalls):
    """What it counts is no attribute of the model."""

    def call(self, x, training=False):
        return self.out(self.drop(self.inner(x), training=training))

    def train_step(self, data):
        COUNTED.append(1)
        return super().train_step(data)


COUNTED = []


class Pure(OwnStep):
    train_step = keras.Model.train_step


class ChangesAll(keras.callbacks.Callback):
    """Whatever a step depends on is another one after some batches."""

    def on_train_batch_end(self, batch, logs=None):
        model = self.model
        if batch == 7:
            model.optimizer.learning_rate = 0.5
        if batch == 9:
            model.layers[0].trainable = False
        if batch == 11:
            model.layers[1].rate = 0.9
        if batch == 13:
            model.layers[0].activation = keras.activations.relu
        if batch == 15:
            model.layers[2].bias.assign([1.0, 2.0, 3.0])


def stock():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(3)])


@pytest.mark.parametrize("make, whole, batches", [
    (CountsCalls, 8, False), (OwnStep, 8, False), (Pure, 12, False), (stock, 12, False), (OwnStep, 0, True), (stock, 12, True)])
def test_steps_of_keras_own_are_skipped(make, whole, batches):
    x, y = np.random.default_rng(0).normal(size=(144, 4)).astype("f"), np.random.default_rng(1).integers(0, 3, 144)

    def run(compile_model):
        keras.utils.set_random_seed(7)
        model = make()
        model(x[:8])
        steps = compile_model(model)
        if batches:
            found, callback = [], ChangesAll()
            callback.set_model(model)
            for k in range(0, 144, 8):
                found.append([float(value) for value in model.train_on_batch(x[k:k + 8], y[k:k + 8])])
                callback.on_train_batch_end(k // 8)
        else:
            found = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[ChangesAll()]).history
        return found, [w.tolist() for w in model.get_weights()], getattr(model, "n", None), steps

    def compiling(compile_model, **more):
        optimizer = "adam" if make is stock else keras.optimizers.SGD(0.05, momentum=0.9)
        return run(lambda model: compile_model(model, optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], **more))

    expected = compiling(keras.Model.compile, run_eagerly=True)
    actual = compiling(terra.compile, wait_for_graph=True)
    assert actual[:3] == expected[:3]
    stats = actual[3].train.stats()
    assert stats.coexecuted_steps >= (10 if batches else 26), (stats, terra.explain(actual[3].train))
    assert stats.whole_steps >= (0 if batches else whole) or stats.fetches, (stats, terra.explain(actual[3].train))  # an older Keras reads the metrics in the step
    assert whole or stats.whole_steps == 0


def test_the_program_s_metrics_are_given_what_they_are_given_eagerly():
    """`train_on_batch` hands arrays on; a metric that is a function sees them."""
    kinds = []

    def largest(y, predictions):
        kinds.append(type(y).__name__)
        return float(y.max() if isinstance(y, np.ndarray) else tf.reduce_max(y))

    x, y = np.random.default_rng(0).normal(size=(192, 40)).astype("f"), np.random.default_rng(1).integers(0, 3, 192)

    def run(compile_model):
        kinds.clear()
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.layers.Input((40,)), keras.layers.Dense(3)])
        steps = compile_model(model)
        found = [[float(value) for value in model.train_on_batch(x[k:k + 16], y[k:k + 16])] for k in range(0, 192, 16)]
        return found, [*kinds], [w.tolist() for w in model.get_weights()], steps

    how = dict(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[largest])
    expected = run(lambda model: model.compile(run_eagerly=True, **how))
    actual = run(lambda model: terra.compile(model, wait_for_graph=True, **how))
    assert actual[:3] == expected[:3] and "ndarray" in expected[1]
    assert actual[3].train.stats().coexecuted_steps >= 8


def test_keras_own_step_is_skipped_where_the_program_s_calls_it():
    x, y = np.random.default_rng(0).normal(size=(80, 4)).astype("f"), np.random.default_rng(1).integers(0, 3, 80)

    def run(compile_model):
        COUNTED.clear()
        keras.utils.set_random_seed(7)
        model = CountsOutside()
        steps = compile_model(model)
        found = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False).history
        return found, [w.tolist() for w in model.get_weights()], len(COUNTED), steps

    how = dict(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    expected = run(lambda model: model.compile(run_eagerly=True, **how))
    actual = run(lambda model: terra.compile(model, wait_for_graph=True, **how))
    assert actual[:3] == expected[:3] and actual[2] == 20
    stats = actual[3].train.stats()
    assert stats.coexecuted_steps >= 15, stats
    assert stats.fast_forwards <= 6 * stats.coexecuted_steps or stats.fetches, stats  # else each operation's gradient would be skipped by itself
