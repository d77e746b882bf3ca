"""Keras' `fit`, `evaluate` and `predict` of a few arrays, without a pipeline: the same histories, logs, predictions and weights, bit for bit."""
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.frameworks import keras as names
from terra.frontends import array_batches
from tests import harness
from tests.corpus import Spec

EXACT = Spec("fit", "keras", None, exact=True)
RUNS, KEPT = [], []


@pytest.fixture
def taken(monkeypatch):
    """Returns a list with an entry for each epoch whose batches are taken without a pipeline, and a function from which on they may be."""
    epochs = []
    iterate = array_batches._Batches.__iter__

    def counted(self):
        epochs.append(len(self._order.batches()))
        return iterate(self)

    monkeypatch.setattr(array_batches._Batches, "__iter__", counted)
    monkeypatch.setattr(array_batches, "_concerned", [])
    monkeypatch.setattr(array_batches, "_orders", {})

    def begin():
        array_batches.concern(lambda model: True)
        array_batches.prepare_adapter(sys.modules[names.ARRAY_ADAPTERS])
        array_batches.prepare_iterator(sys.modules[names.TENSORFLOW_TRAINER])

    return epochs, begin


def run(f):
    RUNS.append(pytest.param(f, id=f.__name__))
    return f


def kept(f):
    KEPT.append(pytest.param(f, id=f.__name__))
    return f


def arrays(rows=20, columns=4):
    rng = np.random.RandomState(3)
    return rng.rand(rows, columns).astype("float32"), rng.rand(rows, 2).astype("float32")


def net(columns=4, **how):
    model = keras.Sequential([keras.Input((columns,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **how})
    return model


@run
def predict_one_row_at_a_time():
    model, (x, _) = net(), arrays()
    return [model.predict(x[k:k + 1], verbose=0) for k in range(6)]


@run
def predict_in_several_batches():
    model, (x, _) = net(), arrays(70)
    return model.predict(x, batch_size=32, verbose=0), model.predict(x, batch_size=35, verbose=0), model.predict(x[:0 + 32], verbose=0)


@run
def evaluate_between_updates():
    model, (x, y) = net(), arrays()
    return [(model.evaluate(x, y, verbose=0, return_dict=True), model.train_on_batch(x, y)) for _ in range(4)]


@run
def fit_with_one_batch_in_a_loop():
    model, (x, y) = net(), arrays()
    return [model.fit(x, y, verbose=0).history for _ in range(5)], model.get_weights()


@run
def fit_with_batches_that_are_shuffled_and_a_smaller_last_one():
    model, (x, y) = net(), arrays(45)
    return [model.fit(x, y, batch_size=16, epochs=3, verbose=0).history for _ in range(3)], model.get_weights()


@run
def fit_in_order_and_shuffled_within_batches():
    model, (x, y) = net(), arrays(40)
    return [model.fit(x, y, batch_size=16, epochs=2, shuffle=how, verbose=0).history for how in (False, "batch", True, "batch")], model.get_weights()


@run
def other_seeds_give_other_orders():
    model, (x, y) = net(), arrays()
    found = []
    for seed in (1, 1, 1, 2, 1, 2):
        tf.random.set_seed(seed)
        found.append(model.fit(x, y, batch_size=4, epochs=3, verbose=0).history)
    return found, model.get_weights()


@run
def validation_data_and_weights_of_classes_and_samples():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    x, labels = arrays()[0], np.arange(20) % 3
    return [
        model.fit(x, labels, epochs=2, validation_split=0.25, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0).history,
        model.fit(x, labels, sample_weight=np.linspace(0, 1, 20), validation_data=(x[:7], labels[:7]), validation_batch_size=3, verbose=0).history,
        model.get_weights()]


@run
def several_inputs_and_outputs_by_name_and_position():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b", dtype="int32")
    both = keras.layers.Concatenate()([a, keras.layers.Flatten()(keras.layers.Embedding(5, 2)(b))])
    model = keras.Model([a, b], {"one": keras.layers.Dense(1, name="one")(both), "two": keras.layers.Dense(2, name="two")(both)})
    model.compile("adam", {"one": "mse", "two": "mae"})
    x, y = arrays()
    whole = np.arange(60).reshape(20, 3) % 5
    goal = {"one": y[:, :1], "two": y}
    return [
        model.fit({"a": x, "b": whole}, goal, verbose=0).history, model.fit([x, whole], goal, verbose=0).history,
        model.predict([x, whole], verbose=0), model.predict({"a": x, "b": whole}, verbose=0), model.get_weights()]


@run
def tensors_lists_of_numbers_and_other_dtypes():
    model, (x, y) = net(), arrays()
    return [
        model.fit(tf.constant(x), tf.constant(y), verbose=0).history, model.predict(x.astype("float64"), verbose=0),
        model.predict((x * 9).astype("int64"), verbose=0), model.predict(x.astype("float16"), verbose=0),
        model.evaluate(tf.constant(x), y.astype("float64"), verbose=0), model.get_weights()]


@run
def texts():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    model = keras.Sequential([keras.Input((), dtype="string"), lookup, keras.layers.Dense(2)])
    return model.predict(np.array(["a", "b", "c"], dtype=object), verbose=0), model.predict(tf.constant(["b", "c"]), verbose=0)


class Writes(keras.callbacks.Callback):
    """Changes the arrays, and the rate, in the middle of a `fit`."""

    def __init__(self, *given):
        super().__init__()
        self.given, self.seen = given, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, dict(logs)))
        self.model.optimizer.learning_rate = 0.01 * (batch + 1)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(dict(logs))


@run
def callbacks_that_look_at_batches_and_stop():
    model, (x, y) = net(), arrays(40)
    writes = Writes()
    stops = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=10)
    history = model.fit(x, y, batch_size=16, epochs=6, validation_data=(x, y), callbacks=[writes, stops], verbose=0).history
    return history, writes.seen, model.get_weights()


@run
def arrays_that_are_written_to_between_calls():
    model, (x, y) = net(), arrays()
    found = []
    for _ in range(4):
        found.append((model.predict(x, verbose=0), model.fit(x, y, verbose=0).history))
        x[:, 0] += 1
    return found


class Own(keras.Model):
    """A model with a step of its own, whose batches are all that `fit` hands over."""

    def __init__(self):
        super().__init__()
        self.dense, self.shapes = keras.layers.Dense(2), []

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss, "sum": tf.reduce_sum(x)}


@run
def a_step_of_the_programs_own():
    model, (x, y) = Own(), arrays(40)
    model.compile("sgd")
    return [model.fit(x, y, batch_size=16, epochs=2, verbose=0).history for _ in range(3)], model.get_weights()


@run
def an_error_in_a_batch_is_the_same():
    model, (x, _) = net(), arrays()
    with pytest.raises(ValueError) as caught:
        model.predict(x[:, :3], verbose=0)
    return str(caught.value).splitlines()[0], model.predict(x, verbose=0)


def values(f):
    harness.reset_seeds()
    return harness.snapshot(f())


@pytest.mark.all_variants
@pytest.mark.parametrize("f", RUNS)
def test_equals_keras_pipeline(f, taken):
    epochs, begin = taken
    expected = values(f)
    assert not epochs
    begin()
    assert list(harness.differences(expected, values(f), EXACT)) == []
    assert epochs
    assert list(harness.differences(expected, values(f), EXACT)) == []  # with the orders that are known by now


# -- what needs the pipeline ---------------------------------------------------------------------------------------------------

@kept
def a_function_of_the_programs_own_reads_the_iterator():
    model, (x, y) = net(), arrays()
    step = tf.function(lambda iterator: model.train_step(next(iterator)))
    model.make_train_function = lambda force=False: setattr(model, "train_function", step)
    return [model.fit(x, y, batch_size=8, verbose=0).history for _ in range(2)], model.get_weights()


@kept
def a_function_for_a_batch_that_was_put_there():
    model, (x, y) = net(), arrays()
    model.train_function = tf.function(lambda iterator: model.train_step(next(iterator)))
    return model.fit(x, y, batch_size=8, verbose=0).history, model.get_weights()


class Making(keras.Sequential):
    """A model that makes the function of a batch itself."""

    def make_predict_function(self, force=False):
        self.predict_function = lambda data: self(data[0], training=False) * 2
        return self.predict_function


@kept
def a_class_that_makes_its_functions():
    model = Making([keras.Input((4,)), keras.layers.Dense(2)])
    return model.predict(arrays()[0], verbose=0)


@kept
def several_steps_in_one_execution():
    model, (x, y) = net(steps_per_execution=2), arrays(40)
    return model.fit(x, y, batch_size=8, epochs=2, verbose=0).history, model.predict(x, batch_size=8, verbose=0), model.get_weights()


@kept
def a_strategy():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = net()
    x, y = arrays()
    return model.fit(x, y, batch_size=8, verbose=0).history, model.get_weights()


@kept
def steps_of_an_epoch():
    model, (x, y) = net(), arrays(40)
    return model.fit(x, y, batch_size=8, steps_per_epoch=2, epochs=2, verbose=0).history, model.get_weights()


@kept
def sparse_and_ragged():
    model = keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(2)])
    return model.predict(tf.sparse.from_dense(arrays()[0]), verbose=0)


@kept
def datasets_and_generators():
    model, (x, y) = net(), arrays()
    return (model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), verbose=0).history, model.predict(((x[k:k + 4],) for k in (0, 4)), verbose=0),
            model.get_weights())


@kept
def many_batches():
    model, (x, _) = net(), arrays(array_batches.MOST_BATCHES + 1)
    return model.predict(x, batch_size=1, verbose=0)


@pytest.mark.all_variants
@pytest.mark.parametrize("f", KEPT)
def test_what_needs_a_pipeline_has_keras_own(f, taken):
    epochs, begin = taken
    expected = values(f)
    begin()
    assert list(harness.differences(expected, values(f), EXACT)) == []
    assert not epochs


@pytest.mark.parametrize("seeded", [True, False])
def test_orders_without_a_seed_stay_random(seeded, taken, monkeypatch):
    _, begin = taken
    begin()
    harness.reset_seeds()
    model, (x, y) = net(), arrays()
    if not seeded:
        monkeypatch.setattr(array_batches.tfi, "global_seed", lambda: None)
    for _ in range(4):
        model.fit(x, y, batch_size=8, verbose=0)
    order, = array_batches._orders.values()
    assert (order._kept is not None) == seeded


def test_not_for_models_that_terra_was_not_asked_for(taken):
    epochs, begin = taken
    begin()
    array_batches._concerned.clear()
    stock, compiled, (x, y) = net(), net(), arrays()
    steps = terra.compile(compiled, wait_for_graph=True)
    stock.predict(x, verbose=0)
    stock.fit(x, y, verbose=0)
    assert not epochs
    compiled.fit(x, y, batch_size=2, epochs=3, verbose=0)
    assert epochs and steps.stats()["train"].coexecuted_steps > 15
    epochs.clear()
    with terra.set_stance("imperative"):
        compiled.predict(x, verbose=0)
    steps.undo()
    compiled.predict(x, verbose=0)
    assert not epochs


def in_steps():
    """A step that predicts, and a block whose update is still under way when the program predicts."""
    model, (x, y) = net(), arrays()
    found = []

    @terra.coexecute(wait_for_graph=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for _ in range(16):
        found.append(float(step(x, y)))
        with terra.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        found += [model.predict(x[:3], verbose=0)]
    return harness.snapshot([found, model.get_weights()]), step.stats().coexecuted_steps, tape.block and tape.block.stats().coexecuted_steps


def test_between_and_behind_steps(taken):
    epochs, begin = taken
    with terra.set_stance("imperative"):
        harness.reset_seeds()
        expected, *_ = in_steps()
    begin()
    harness.reset_seeds()
    actual, of_steps, of_blocks = in_steps()
    assert list(harness.differences(expected, actual, EXACT)) == []
    assert epochs and of_steps > 5 and of_blocks > 5
