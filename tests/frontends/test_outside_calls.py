"""Calls of models, losses and metrics outside of any step, as steps of their own: what the program sees is what it sees without."""
import copy
import gc
import pickle
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from terra.frameworks import framework_objects
from terra.frontends import gradient_tape, outside_calls
from terra.runtime.fast_forward.sites import framework_calls
from tests import harness
from tests.corpus import Spec

EXACT = Spec("calls", "keras", None, exact=True)
MADE, LEFT = [], []


@pytest.fixture
def begin(monkeypatch):
    """What has such calls be steps, which wait for their graphs."""
    monkeypatch.setattr(framework_calls, "outside", None)
    monkeypatch.setattr(outside_calls, "_steps", weakref.WeakKeyDictionary())
    monkeypatch.setattr(gradient_tape, "defaults", {"wait_for_graph": True})
    return outside_calls.install


def made(*names):
    """A program whose calls of these are steps."""
    def register(f):
        MADE.append(pytest.param(f, names, id=f.__name__))
        return f

    return register


def left(f):
    """A program whose calls are no steps."""
    LEFT.append(pytest.param(f, id=f.__name__))
    return f


def steps_of(name):
    return sum(steps.stats().coexecuted_steps for steps in all_steps() if steps.__qualname__ == name)


def all_steps():
    return [steps.coexecuted for of_kind in list(outside_calls._steps.values()) for steps in of_kind.values()]


def rows(k, n=4, columns=3):
    return np.random.RandomState(k).rand(n, columns).astype("float32")


class Net(keras.Model):
    """A model with all that may change from call to call."""

    def __init__(self):
        super().__init__()
        self.wide, self.norm, self.drop, self.out = keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(2)
        self.calls, self.seen = 0, []

    def call(self, x, training=False, scale=1.0):
        self.calls += 1
        self.seen.append(tuple(x.shape))
        return self.out(self.drop(self.norm(self.wide(x), training=training), training=training)) * scale


def dense(K=keras):
    return K.Sequential([K.Input((3,)) if K is keras else K.layers.InputLayer((3,)), K.layers.Dense(8, "relu"), K.layers.Dense(2)])


@made("Sequential.__call__")
def an_agent_that_acts_by_what_it_reads():
    model, state, found = dense(), np.ones([1, 3], "float32"), []
    for _ in range(16):
        p = tf.nn.softmax(model(state)).numpy()[0]
        action = int(np.argmax(p))
        state = state + (0.5 if action else -0.25)
        found.append((p, action))
    return found


@made("Sequential.__call__", "MeanSquaredError.__call__", "MeanAbsoluteError.update_state")
def a_validation_loop():
    model, loss, metric = dense(), keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
    found = []
    for epoch in range(4):
        for k in range(6):
            y = model(rows(k), training=False)
            found.append(loss(rows(k)[:, :2], y))
            metric.update_state(rows(k)[:, :2], y)
        found.append(metric.result())
        metric.reset_state()
        model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)
    return found


@made("Mean.__call__", "SparseCategoricalAccuracy.__call__", "SparseCategoricalAccuracy.result", "Own.__call__")
def metrics_that_are_called_and_asked():
    class Own(keras.metrics.Mean):
        def result(self):
            return super().result() * 2

    mean, accuracy, own, found = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy(), Own(), []
    for k in range(24):
        found += [mean(float(k)), mean(tf.constant([k, 1.0])), accuracy(np.arange(4) % 3, rows(k)), own(float(k))]
        if k % 4 == 3:
            found += [mean.result(), float(accuracy.result()), accuracy.result(), own.result().numpy()]
        if k % 8 == 7:
            mean.reset_state()
            accuracy.reset_state()
    return found, mean.variables, accuracy.variables, own.variables


@left
def methods_of_the_programs_own_that_call_the_frameworks():
    class Counting(keras.metrics.Mean):
        updates = results = calls = 0

        def update_state(self, values):
            self.updates += 1
            super().update_state(values)

        def result(self):
            self.results += 1
            return super().result()

        def __call__(self, values):
            self.calls += 1
            return super().__call__(values)

    metric, found = Counting(), []
    for k in range(16):
        metric.update_state(float(k))
        found += [metric(float(k)), metric.result()]
    return found, metric.updates, metric.results, metric.calls


@made("Sequential.__call__")
def of_tf_keras():
    model = dense(tf_keras)
    return [model(tf.constant(rows(k))) for k in range(16)]


@made("Net.__call__")
def attributes_random_numbers_and_moving_averages():
    model = Net()
    found = [model(rows(k), training=k % 3 > 0, scale=1.0 + (k > 9)) for k in range(24)]
    return found, model.calls, model.seen, [v.numpy() for v in model.variables]


@made("Net.__call__")
def sizes_that_vary():
    model = Net()
    return [model(rows(k, 1 + k % 5)) for k in range(30)], model.seen


@made("Masked.__call__")
def masks_stay_with_what_is_returned():
    class Masked(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm = keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.LSTM(3, return_sequences=True)

        def call(self, x):
            return self.lstm(self.embedding(x))

    model, sums = Masked(), keras.layers.GRU(2)
    found = []
    for k in range(12):
        h = model(np.array([[1, 2, 3 + k % 3, 0, 0], [4, 0, 0, 0, 0]]))
        found += [h, h._keras_mask, sums(h)]
    return found


@made("Two.__call__")
def structures_in_and_out():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.a = keras.layers.Dense(2)

        def call(self, parts):
            return {"a": self.a(parts["x"]), "rest": [parts["y"] * 2, None, "text"]}

    model = Two()
    return [model({"x": rows(k), "y": tf.constant(float(k))}) for k in range(12)]


@made("Net.__call__")
def weights_that_are_set_between_calls():
    model, other = Net(), Net()
    other(rows(0))
    found = [model(rows(0))]
    for k in range(16):
        if k % 4 == 3:
            model.set_weights([w + 0.1 for w in other.get_weights()])
        if k == 9:
            model.out.activation = keras.activations.tanh
        found.append(model(rows(k)))
    return found


@made("Net.__call__")
def arrays_that_are_written_to_behind_the_call():
    model, x, found = Net(), rows(0), []
    for k in range(16):
        y = model(x)
        x[:, 1] = k
        found.append(y)
    return found


@made("Net.__call__")
def errors():
    model, found = Net(), []
    for k in range(14):
        try:
            found.append(model(rows(k, columns=3 + (k in (5, 11))), training=False))
        except Exception as error:
            found.append((type(error).__name__, str(error).splitlines()[0]))
    return found, model.calls


@made("Outer.__call__")
def models_within_models_and_plain_classes():
    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.out = Net(), keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.inner(x)) + self.inner(x)

    class Plain:
        def __init__(self):
            self.outer = Outer()

        def __call__(self, x):
            return tf.reduce_sum(self.outer(x), axis=1)

    plain = Plain()
    return [plain(rows(k)) for k in range(14)], plain.outer.inner.calls


@made("Net.__call__")
def between_steps_with_tapes():
    model, optimizer, found = Net(), keras.optimizers.SGD(0.1), []
    for k in range(24):
        with terra.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(rows(k), training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        found.append(float(loss))
        if k % 2:
            found += [model(rows(k)), model(rows(k + 1)).numpy()]
    return found, model.calls


@made("Net.__call__")
def in_a_thread():
    import threading
    model, found = Net(), []

    def work():
        found.extend(model(rows(k)).numpy() for k in range(12))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found, model.calls


def values(f):
    harness.reset_seeds()
    return harness.snapshot(f())


@pytest.mark.all_variants
@pytest.mark.parametrize("f, names", MADE)
def test_equals_eager(f, names, begin):
    with terra.set_stance("imperative"):
        expected = values(f)
    begin()
    assert list(harness.differences(expected, values(f), EXACT)) == []
    for name in names:
        assert steps_of(name) >= 4, name


# -- what is no step -----------------------------------------------------------------------------------------------------------

@left
def a_tape_that_records():
    model, x = Net(), tf.Variable(rows(0))
    found = []
    for _ in range(8):
        with tf.GradientTape(persistent=True) as tape:
            y = model(x)
        found += [tape.gradient(y, x), tape.gradient(y, model.trainable_variables)]
    return found


@left
def an_accumulator_that_records():
    model, x, found = Net(), tf.constant(rows(0)), []
    model(x)
    for _ in range(8):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            y = model(x)
        found.append(forward.jvp(y))
    return found


@left
def a_graph_of_the_programs_own():
    model = Net()
    call = tf.function(lambda x: model(x))
    return [call(tf.constant(rows(k))) for k in range(8)]


@left
def a_functional_model_is_made():
    shared = dense()
    found = []
    for k in range(8):
        a, b = keras.Input((3,)), keras.Input((3,))
        found.append(keras.Model([a, b], keras.layers.Concatenate()([shared(a), shared(inputs=b)])).output_shape)
    return found


@left
def stock_layers():
    layer = keras.layers.Dense(2)
    return [layer(rows(k)) for k in range(8)]


@left
def functions_of_datasets():
    model = dense()

    def call(x):
        return model(x).numpy()

    def through(x):
        return tf.numpy_function(call, [x], tf.float32)

    return list(tf.data.Dataset.from_tensor_slices(np.stack([rows(k) for k in range(8)])).map(through))


@left
def calls_of_a_library():
    model = dense()
    model.compile("sgd", "mse", run_eagerly=True)
    return model.fit(rows(0), rows(0)[:, :2], epochs=8, verbose=0).history, model.evaluate(rows(1), rows(1)[:, :2], verbose=0)


@left
def with_a_call_of_its_own():
    class Own(keras.layers.Layer):
        def __call__(self, x):
            return super().__call__(x) + 1

        def call(self, x):
            return x * 2

    layer = Own()
    return [layer(rows(k)) for k in range(8)]


@pytest.mark.all_variants
@pytest.mark.parametrize("f", LEFT)
def test_what_is_no_step(f, begin):
    with terra.set_stance("imperative"):
        expected = values(f)
    begin()
    outside_calls._steps.clear()
    assert list(harness.differences(expected, values(f), EXACT)) == []
    gc.collect()  # the steps of models that are gone are counted when their functions are
    assert sum(steps.stats().steps for steps in all_steps()) <= 1  # that which builds a model


def test_only_where_it_was_asked_for(begin):
    model = Net()
    for k in range(8):
        model(rows(k))
    assert not outside_calls._steps
    begin()
    with terra.set_stance("imperative"):
        model(rows(0))
    assert steps_of("Net.__call__") == 0


def test_methods_are_replaced_once(begin):
    begin()
    begin()  # as where both Keras 3 and tf_keras are imported
    for method in (keras.metrics.Metric.__call__, keras.metrics.Mean.result, keras.layers.Layer.__call__, keras.metrics.Mean.update_state):
        assert framework_objects.original(method) is not method
        assert not hasattr(framework_objects.original(method), "terra_stands_for")


def test_objects_that_are_made_anew_all_the_time_are_left_alone(begin):
    begin()

    def epoch(metric, steps):
        for k in range(steps):
            metric.update_state(float(k))
        return float(metric.result())

    for _ in range(20):
        assert epoch(keras.metrics.Mean(), 5) == 2.0
        gc.collect()
    (update,) = [steps for steps in all_steps() if steps.__qualname__ == "Mean.update_state"]
    assert update.stats().steps == 5  # of the first one
    lasting = keras.metrics.Mean()
    epoch(lasting, 60)
    assert update.stats().coexecuted_steps > 20


def test_models_are_dropped_copied_and_saved_as_others(begin, tmp_path):
    begin()
    model = dense()
    for k in range(12):
        expected = model(rows(k)).numpy()
    assert steps_of("Sequential.__call__") >= 4
    model.save(tmp_path / "model.keras")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.load_model(tmp_path / "model.keras")):
        assert all(np.array_equal(other(rows(11)).numpy(), expected) for _ in range(8))
    gone = weakref.ref(model)
    terra.sync()
    del model, other
    gc.collect()
    assert gone() is None
