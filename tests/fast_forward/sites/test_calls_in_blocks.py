"""Calls in and behind the block of a `terra.GradientTape` are skipped as those of a decorated step are, and as rightly."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from terra.frameworks import framework_objects
from terra.frontends import gradient_tape, script
from terra.frontends.gradient_tape import blocks
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.step_function import registry
from tests.frontends.test_gradient_tape import TerraTape

X = np.random.default_rng(0).normal(size=(28, 8, 5)).astype("f")
Y = np.random.default_rng(1).integers(0, 3, (28, 8))
KERAS = pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
CALLS = []


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Other tests have made steps at the same places: theirs are not counted."""
    monkeypatch.setattr(gradient_tape, "_blocks", {})


class Deep:
    """A stock model, its loss and optimizer."""

    def __init__(self, K, adam=False):
        K.utils.set_random_seed(4)
        self.K = K
        self.layers = [K.layers.Dense(6, "tanh", kernel_regularizer=K.regularizers.L2(0.01)), K.layers.BatchNormalization(),
                       K.layers.Dropout(0.3, seed=2), K.layers.Dense(3)]
        self.model = K.Sequential([K.layers.InputLayer((5,)), *self.layers])
        self.loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = K.optimizers.Adam(0.01) if adam else K.optimizers.SGD(0.01, momentum=0.9)


def train(K, tape_class, change=lambda i, parts: None, read_every=4, adam=False):
    """28 steps written out in a loop; gives (what it computes, the stats of the blocks)."""
    parts, found = Deep(K, adam), []
    model, optimizer = parts.model, parts.optimizer
    for i in range(len(X)):
        change(i, parts)
        with tape_class() as tape:
            loss = parts.loss(Y[i], model(tf.constant(X[i]), training=True)) + sum(model.losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        found.append(loss)
        if i % read_every == 0:
            found.append(float(loss))
    return [float(x) for x in found] + [v.numpy().tolist() for v in model.weights], tape


@KERAS
@pytest.mark.parametrize("instruments", [False, True], ids=["", "instrumented"])
def test_model_loss_gradient_and_optimizer_are_skipped(K, instruments):
    expected, _ = train(K, tf.GradientTape, adam=True)
    jumps = []
    actual, tape = (script.instrumented(train) if instruments else train)(K, TerraTape, lambda i, parts: jumps.append(of_blocks().fast_forwards), adam=True)
    assert actual == expected
    assert jumps[24] - jumps[16] >= 8 * 4 and tape.block.stats().coexecuted_steps >= 18
    if K is keras:  # whose gradient is skipped as a whole; tf_keras draws the numbers of a Dropout that is given a seed imperatively
        assert jumps[24] - jumps[16] <= 8 * 7


def of_blocks():
    """The sum of the stats of all blocks."""
    total = terra.Stats()
    for block in blocks().values():
        total.add(block.stats())
    return total


def freeze(i, parts):
    parts.layers[0].trainable = not 12 <= i < 19


def change_rate(i, parts):
    if i == 15:
        parts.layers[2].rate = 0.6


def change_learning_rate(i, parts):
    if i % 7 == 6:
        parts.optimizer.learning_rate = 0.1 / i


def change_activation(i, parts):
    if i == 15:
        parts.layers[0].activation = tf.nn.relu


def replace_method(i, parts):
    if i == 14:
        call = parts.layers[3].call
        parts.layers[3].call = lambda x, **more: call(x, **more) * 2.0


def swap_weights(i, parts):
    if i == 13:
        parts.model.set_weights([w * 0.5 for w in parts.model.get_weights()])


def replace_function(i, parts):
    function = parts.K.layers.Dense.call
    if i == 13:
        parts.K.layers.Dense.call = lambda self, x, **more: function(self, x, **more) + 1.0
        parts.original = function
    if i == 20:
        parts.K.layers.Dense.call = parts.original


@pytest.mark.share(8)
@pytest.mark.parametrize("change, K", [
    *[(f, keras) for f in (freeze, change_rate, change_learning_rate, change_activation, replace_method, swap_weights, replace_function)],
    *[(f, tf_keras) for f in (freeze, change_learning_rate, replace_function)]], ids=lambda f: f.__name__)
def test_changes_are_seen(change, K):
    expected, _ = train(K, tf.GradientTape, change)
    actual, tape = train(K, TerraTape, change)
    assert actual == expected
    stats = tape.block.stats()
    assert stats.coexecuted_steps >= 11 and stats.fast_forwards > 21


class Counting(keras.Model):
    """Python code that must run at each step, round layers that need not."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)
        self.calls, self.large = 0, []

    def call(self, x):
        self.calls += 1
        x = self.inner(x)
        if self.calls % 7 == 0:
            self.large.append(float(tf.reduce_max(x)))
        return self.last(x)


@pytest.mark.share(2)
@pytest.mark.parametrize("read", [True, False])
def test_the_user_s_own_call_runs(read):
    def run(tape_class):
        keras.utils.set_random_seed(4)
        net, optimizer = Counting(), keras.optimizers.SGD(0.1)
        for x, y in zip(X, Y):
            with tape_class() as tape:
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, net(x), from_logits=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
            if read:
                float(loss)
        return [net.calls, *net.large, *[w.tolist() for w in net.get_weights()]], tape

    expected, _ = run(tf.GradientTape)
    actual, tape = run(TerraTape)
    assert actual == expected
    stats = tape.block.stats()
    assert stats.coexecuted_steps >= 17 and stats.fast_forwards >= 3 * (stats.coexecuted_steps - 10)


class Scaled(keras.layers.Layer):
    """Nothing but computes."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = keras.layers.Dense(5, "tanh"), 1.0

    def call(self, x):
        return x + self.scale * self.inner(x)


class Pure(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = [Scaled() for _ in range(4)], keras.layers.Dense(3)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def rescale(net):
    net.blocks[2].scale = 0.5


def drop_block(net):
    net.blocks = list(net.blocks)[:3]


def other_call(net):
    Scaled.call = lambda self, x: x * 1.5 + self.scale * self.inner(x)


@pytest.mark.parametrize("change", [rescale, drop_block, other_call], ids=lambda f: f.__name__)
def test_the_user_s_own_call_is_skipped_where_it_is_pure(change, monkeypatch):
    def run(tape_class):
        monkeypatch.setattr(Scaled, "call", Scaled.call)
        keras.utils.set_random_seed(4)
        net, optimizer, found, jumps = Pure(), keras.optimizers.SGD(0.1), [], []
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        for i, (x, y) in enumerate(zip(X, Y)):
            if i == 17:
                change(net)
            with tape_class() as tape:
                loss = loss_of(y, net(tf.constant(x)))
            variables = net.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            found.append(float(loss))
            if tape_class is TerraTape:
                jumps.append(tape.block.stats().fast_forwards)
        monkeypatch.undo()
        return found + [w.tolist() for w in net.get_weights()], jumps, tape

    expected, _, _ = run(tf.GradientTape)
    actual, jumps, tape = run(TerraTape)
    assert actual == expected
    assert jumps[15] - jumps[14] == 4  # the model as a whole, the loss, the gradient, the optimizer
    assert tape.block.stats().coexecuted_steps >= 19


def test_tapes_that_outlive_their_step():
    """Asked for gradients when everything they were told of has been skipped, and the graph has run."""
    def run(tape_class):
        parts, kept, found = Deep(keras), [], []
        weights = parts.model.trainable_variables
        for i, (x, y) in enumerate(zip(X, Y)):
            with tape_class(persistent=i % 2 == 0) as tape:
                loss = parts.loss(y, parts.model(tf.constant(x), training=True))
            parts.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            found.append(float(loss))
            if i % 2 == 0:
                kept.append((tape, loss))
        for tape, loss in kept:
            found += [g.numpy().tolist() for g in tape.gradient(loss, weights)]
        return found, kept[-1][0]

    expected, _ = run(tf.GradientTape)
    actual, tape = run(TerraTape)
    np.testing.assert_equal(actual, expected)
    assert tape.block.stats().fast_forwards > 34


def test_gradients_that_are_taken_when_the_step_is_over():
    def run(tape_class):
        parts, found = Deep(keras), []
        weights = parts.model.trainable_variables
        for x, y in zip(X, Y):
            with tape_class() as tape:
                loss = parts.loss(y, parts.model(tf.constant(x), training=True))
            terra.sync()  # ends the step
            gradients = tape.gradient(loss, weights)
            parts.optimizer.apply_gradients(zip(gradients, weights))
            found.append(float(loss))
        return found + [w.tolist() for w in parts.model.get_weights()], tape

    expected, _ = run(tf.GradientTape)
    actual, tape = run(TerraTape)
    assert actual == expected
    stats = tape.block.stats()
    assert stats.coexecuted_steps > 20 and stats.fast_forwards > 34


def test_evaluation_behind_the_update():
    """Stock objects are called while the step is still open, and what they give is printed."""
    def run(tape_class):
        parts, found = Deep(keras), []
        model, accuracy, mean, jumps = parts.model, keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean(), []
        for i, (x, y) in enumerate(zip(X, Y)):
            with tape_class() as tape:
                loss = parts.loss(y, model(x, training=True))
            parts.optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            accuracy.update_state(y, model(X[0], training=False))
            mean.update_state(loss)
            if i % 5 == 4:
                found += [float(accuracy.result()), float(mean.result()), float(loss)]
                accuracy.reset_state()
            if tape_class is TerraTape:
                jumps.append(tape.block.stats().fast_forwards)
        return found + [w.tolist() for w in model.get_weights()], jumps, tape

    expected, _, _ = run(tf.GradientTape)
    actual, jumps, tape = run(TerraTape)
    assert actual == expected
    stats = tape.block.stats()
    assert stats.coexecuted_steps > 16 and stats.fast_forwards >= 6 * (stats.coexecuted_steps - 10)
    assert jumps[23] - jumps[22] == 7  # the model twice, loss, gradient, optimizer, accuracy and mean


class Looking(keras.metrics.Metric):
    """Its Python looks at the labels."""

    def __init__(self):
        super().__init__()
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y, predictions, sample_weight=None):
        self.seen.assign_add(keras.ops.sum(keras.ops.max(predictions, -1) * float(np.asarray(y)[0])))

    def result(self):
        return self.seen


METRICS = {
    "sparse": (keras.metrics.SparseCategoricalAccuracy, lambda y: y, 1),
    "top": (lambda: keras.metrics.SparseTopKCategoricalAccuracy(2), lambda y: y, 1),
    "arrays": (keras.metrics.SparseCategoricalAccuracy, lambda y: y.numpy(), 1),
    "one hot": (keras.metrics.CategoricalAccuracy, lambda y: tf.one_hot(y, 3), 1),
    "weights": (lambda: keras.metrics.MeanIoU(3, sparse_y_pred=False), lambda y: y, 0),
    "looks": (Looking, lambda y: y, 0),
}


@pytest.mark.share(8)
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("make, labels, jumps_at_least", METRICS.values(), ids=METRICS)
def test_metrics_are_given_labels_behind_the_block(make, labels, jumps_at_least, closes):
    """`closes`: something ends the step between the update and the metric, now and then."""
    def run(tape_class, made):
        keras.utils.set_random_seed(4)
        model, optimizer = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)]), keras.optimizers.SGD(0.1)
        loss_of, metric, found, jumps = keras.losses.SparseCategoricalCrossentropy(from_logits=True), make(), [], []
        for i in range(30):
            x, y = np.concatenate([X[i % 28], X[i // 2]]), tf.constant(np.random.default_rng(i).integers(0, 3, 16))
            with tape_class() as tape:
                logits = model(x, training=True)
                loss = loss_of(y, logits)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            if closes and i % 7 == 3:
                found.append(float(loss))
            before = tape.block.stats().fast_forwards if made else 0
            metric.update_state(labels(y), logits)
            jumps.append(tape.block.stats().fast_forwards - before if made else 0)
            found.append(float(metric.result()) if i % 5 == 4 else None)
        return found, jumps, tape

    expected, _, _ = run(tf.GradientTape, False)
    actual, jumps, tape = run(TerraTape, True)
    assert actual == expected
    assert tape.block.stats().coexecuted_steps > 21
    assert not jumps_at_least or sum(jump >= jumps_at_least for jump in jumps[14:]) > (7 if closes else 11), jumps


BATCHES = {
    "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "function": lambda y, logits: tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)),
    "operation": lambda y, logits: tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)),
    "one_hot": lambda y, logits: -tf.reduce_mean(tf.one_hot(y, 3) * tf.nn.log_softmax(logits)),
    "arithmetic": lambda y, logits: tf.reduce_mean((tf.cast(y + 1, tf.float32)[:, None] - logits) ** 2),
    "python_looks": lambda y, logits: tf.reduce_mean(logits[:int(tf.reduce_sum(y)) % 4 + 1] ** 2),
}


@pytest.mark.parametrize("loss_of, how", [pytest.param(loss_of, how, id=f"{name}-{how}") for k, (name, loss_of) in enumerate(BATCHES.items())
                                          for how in ["dataset", "tensors", "made before", "used twice"][k % 2::2]])
def test_batches_of_integers(loss_of, how):
    """Small as they are, they are not taken for constants."""
    x, y = np.reshape(X, (14, 16, 5)), np.reshape(Y, (14, 16))

    def run(tape_class):
        keras.utils.set_random_seed(4)
        model, optimizer = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3)]), keras.optimizers.SGD(0.1)
        found, jumps, weights = [], [], model.trainable_variables
        batches = ((tf.constant(a), tf.constant(b)) for a, b in zip(x, y))
        if how == "dataset":
            batches = tf.data.Dataset.from_tensor_slices((x, y))
        elif how == "made before":
            batches = list(batches)
        elif how == "used twice":
            batches = (batch for batch in batches for _ in range(2))
        for a, b in batches:
            with tape_class() as tape:
                loss = loss_of(b, model(a))
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            found.append(float(loss))
            if tape_class is TerraTape:
                jumps.append(tape.block.stats().fast_forwards)
        return found + [w.tolist() for w in model.get_weights()], jumps, tape

    expected, _, _ = run(tf.GradientTape)
    actual, jumps, tape = run(TerraTape)
    assert actual == expected
    assert tape.block.stats().coexecuted_steps >= 8
    if loss_of is BATCHES["loss"]:
        assert jumps[-1] - jumps[-2] == 4  # the loss, too
    if loss_of is not BATCHES["python_looks"]:
        assert 3 <= jumps[-1] - jumps[-2] <= 6 and jumps[-2] - jumps[-3] == jumps[-1] - jumps[-2]


@pytest.mark.share(2)
@pytest.mark.parametrize("tape_class", [tf.GradientTape, terra.GradientTape])
def test_gradients_in_a_decorated_step(tape_class):
    """There it is just a tape; it is skipped as TensorFlow's."""
    parts = Deep(keras)

    def step(x, y):
        exec("seen.append(1)", {"seen": seen})  # so that the step as a whole is not skipped
        with tape_class() as tape:
            loss = parts.loss(y, parts.model(x, training=True))
        parts.optimizer.apply_gradients(zip(tape.gradient(loss, parts.model.trainable_variables), parts.model.trainable_variables))
        return loss

    seen = []
    coexecuted = terra.coexecute(step, wait_for_graph=True)
    losses = [float(coexecuted(tf.constant(x), tf.constant(y))) for x, y in zip(X, Y)]
    stats = coexecuted.stats()
    assert stats.coexecuted_steps > 20 and stats.fast_forwards >= 4 * (stats.coexecuted_steps - 5)
    parts = Deep(keras)
    assert losses == [float(step(tf.constant(x), tf.constant(y))) for x, y in zip(X, Y)]


@KERAS
def test_what_looks_for_blocks_is_still_the_framework_s(K):
    """In traced functions, for guards, and for whoever looks at the class."""
    train(K, TerraTape)
    layer = K.layers.Dense(3)
    assert layer.__call__.__name__ == "__call__" and layer.__call__.__doc__ == vars(K.layers.Layer)["__call__"].__wrapped__.__doc__
    assert not framework_objects.is_foreign(vars(K.layers.Layer)["__call__"])
    traced = tf.function(lambda x: layer(x))
    np.testing.assert_array_equal(traced(X[0]), layer(X[0]))
    with pytest.raises((ValueError, TypeError)) as error:
        layer(None)
    with pytest.raises(type(error.value)) as again:
        with TerraTape():
            layer(None)
    assert str(again.value) == str(error.value)


def test_tapes_and_what_they_hold_are_freed():
    parts = Deep(keras)
    for x, y in zip(X, Y):
        with TerraTape() as tape:
            loss = parts.loss(y, parts.model(x, training=True))
        parts.optimizer.apply_gradients(zip(tape.gradient(loss, parts.model.trainable_variables), parts.model.trainable_variables))
        float(loss)
    tape_type = type(tape)
    del tape
    gc.collect()
    assert not [x for x in gc.get_objects() if type(x) is tape_type]


@pytest.mark.parametrize("instruments", [False, True], ids=["", "instrumented"])
def test_updates_by_hand(instruments):
    """Operators and methods of variables behind the block; somebody replaces one of them in between."""
    def run(tape_class):
        w, average, jumps, found = tf.Variable(tf.fill((5, 3), 0.1)), tf.Variable(tf.zeros((5, 3))), [], []
        original = type(w).assign_sub
        for i, x in enumerate(X):
            if i == 17:
                type(w).assign_sub = lambda self, delta, **more: original(self, delta * 0.5, **more)
            if i == 22:
                type(w).assign_sub = original
            with tape_class() as tape:
                loss = tf.reduce_mean(tf.tanh(tf.matmul(x, w)) ** 2)
            gradient = tape.gradient(loss, w)
            w.assign_sub(0.1 * gradient + 0.01 * w)
            average.assign(0.9 * average + 0.1 * w)
            if i % 3 == 0:
                found.append(float(loss))
            if tape_class is TerraTape:
                jumps.append(tape.block.stats().fast_forwards)
        assert type(w).assign_sub is original
        return found + [w.numpy().tolist(), average.numpy().tolist()], jumps, tape

    expected, _, _ = run(tf.GradientTape)
    actual, jumps, tape = (script.instrumented(run) if instruments else run)(TerraTape)
    assert actual == expected
    assert tape.block.stats().coexecuted_steps >= 19
    assert jumps[16] - jumps[15] >= 10  # `** 2`, the gradient, and for each update three operators and the method


class CountsItself(keras.layers.Dense):
    def __init__(self):
        super().__init__(3)
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return super().__call__(*args, **kwargs)


def test_a_user_s_own_way_to_be_called():
    """It calls the framework's in turn."""
    def run(tape_class):
        keras.utils.set_random_seed(4)
        layer, optimizer, found = CountsItself(), keras.optimizers.SGD(0.1), []
        for x in X[:20]:
            with tape_class() as tape:
                loss = tf.reduce_mean(layer(tf.constant(x)) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))
            found.append(float(loss))
        return found, layer.calls, tape

    expected, actual = run(tf.GradientTape), run(TerraTape)
    assert actual[:2] == expected[:2]
    assert actual[2].block.stats().coexecuted_steps >= 15


def watch_one_of_two(i, tape, x, y):
    tape.watch(x if i % 3 else y)


def watch_early_or_late(i, tape, x, y):
    if i % 3:
        tape.watch(x)


def watch_what_is_computed(i, tape, x, y):
    if i % 3 == 1:
        tape.watch(y)


@pytest.mark.parametrize("in_step", [False, True], ids=["block", "step"])
@pytest.mark.parametrize("watch", [watch_one_of_two, watch_early_or_late, watch_what_is_computed], ids=lambda f: f.__name__)
def test_what_a_tape_watches_and_when(watch, in_step):
    """Tensors that are made anew each time, perhaps where another one was."""
    w = tf.Variable(tf.fill((5, 3), 0.2))

    def part(i, tape_class, x, y):
        with tape_class() as tape:
            watch(i, tape, x, y)
            loss = tf.reduce_sum(tf.matmul(x * 2.0, w) ** 2) + tf.reduce_sum(tf.sin(y))
            if watch is watch_early_or_late and not i % 3:
                tape.watch(x)
            loss = loss + tf.reduce_sum(x ** 3)
        gradients = tape.gradient(loss, [x, y, w])
        return loss, [None if g is None else g + 0.0 for g in gradients], tape

    def run(tape_class, step):
        found = []
        for i, x in enumerate(X):
            loss, gradients, tape = step(i, tape_class, tf.constant(x), tf.constant(x[:1] * 0.5))
            found.append([float(loss), *[None if g is None else g.numpy().tolist() for g in gradients]])
        return found, tape

    if in_step:
        step = terra.coexecute(lambda i, *args: (len(seen), *part(i, *args))[1:], wait_for_graph=True)
        seen = []
        actual, _ = run(tf.GradientTape, step)
        stats = step.stats()
    else:
        actual, tape = run(TerraTape, part)
        stats = tape.block.stats()
    assert actual == run(tf.GradientTape, part)[0]
    assert stats.coexecuted_steps >= 11


@pytest.mark.parametrize("in_step", [False, True], ids=["block", "step"])
def test_variables_are_watched_in_some_steps_only(in_step):
    parts = Deep(keras)
    weights = parts.model.trainable_variables

    def part(i, tape_class):
        with tape_class(watch_accessed_variables=i % 2 == 0) as tape:
            loss = tf.reduce_mean(parts.model(X[i]) ** 2)
        return tape.gradient(loss, weights), tape

    def run(tape_class, step):
        found = []
        for i in range(len(X)):
            gradients, tape = step(i, tape_class)
            found.append([g is None for g in gradients])
        return found, tape

    step = terra.coexecute(part, wait_for_graph=True)
    actual, tape = run(tf.GradientTape, step) if in_step else run(TerraTape, part)
    assert actual == run(tf.GradientTape, part)[0]
    assert (step if in_step else tape.block).stats().coexecuted_steps >= 11


@pytest.mark.parametrize("in_step", [False, True], ids=["block", "step"])
def test_values_that_decide_shapes(in_step):
    """Paddings of ten elements, others in each step: as many as a batch has."""
    w = tf.Variable(tf.ones((1, 1, 1, 2, 2)))

    def part(tape_class, paddings):
        with tape_class() as tape:
            padded = tf.pad(w * 2.0, paddings)
            loss = tf.reduce_sum(padded * padded)
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.01 * gradient)
        return loss, tf.shape(padded), tape

    def run(tape_class, step):
        w.assign(tf.ones(w.shape))
        found = []
        for i in range(30):
            paddings = tf.constant([[0, i % 2], [i % 3, 0], [0, 0], [1, i % 2], [0, 1]])
            loss, shape, tape = step(tape_class, paddings)
            found.append((float(loss), shape.numpy().tolist()))
        return found, tape

    step = terra.coexecute(part, wait_for_graph=True)
    actual, tape = run(tf.GradientTape, step) if in_step else run(TerraTape, part)
    assert actual == run(tf.GradientTape, part)[0]
    assert (step if in_step else tape.block).stats().coexecuted_steps >= 14


def test_objects_made_anew_in_each_step_are_freed():
    parts, losses = Deep(keras), []
    for i in range(200):
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        losses.append(weakref.ref(loss_of))
        with TerraTape() as tape:
            loss = loss_of(Y[i % 28], parts.model(X[i % 28]))
        parts.optimizer.apply_gradients(zip(tape.gradient(loss, parts.model.trainable_variables), parts.model.trainable_variables))
    float(loss)
    del loss_of
    gc.collect()
    assert sum(loss_of() is not None for loss_of in losses) <= 40
    assert None in tape.block.program.owners.values()  # no more of them are recorded
    assert tape.block.stats().coexecuted_steps > 190


class Decay(tf_keras.layers.Layer):
    """A recurrent cell without variables, which keeps a tensor."""

    state_size = output_size = 5

    def call(self, x, states):
        self.last = tf.tanh(x + 0.5 * states[0])
        return self.last, [self.last]


def test_objects_made_anew_in_each_step_that_cannot_be_recorded(monkeypatch):
    """Nothing is recorded in vain for long, and what their calls are made of is skipped all the same."""
    recorded, record = [], call_cache._record
    monkeypatch.setattr(call_cache, "_record", lambda runner, place, cache, call: (recorded.append(type(call.owner).__name__), record(runner, place, cache, call))[1])
    w = tf.Variable(tf.ones((5, 3)) * 0.1)

    def step(x):
        with tf.GradientTape() as tape:
            states = tf_keras.layers.RNN(Decay(), return_sequences=True)(x)
            loss = tf.reduce_mean((states @ w - 1.0) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    def run(step):
        w.assign(tf.ones((5, 3)) * 0.1)
        return [float(step(tf.constant(X[k % 28][None]))) for k in range(40)]

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert run(coexecuted) == run(step)
    assert coexecuted.stats().coexecuted_steps >= 30 and 3 <= recorded.count("RNN") <= 20, recorded.count("RNN")


def test_threads_at_work_in_one_block():
    """With variables of their own."""
    together = threading.Barrier(3)

    def work(k, tape_class, results, meet=lambda: None):
        w = tf.Variable(tf.fill((5, 3), 0.1 * k))
        for x in X:
            with tape_class() as tape:
                loss = tf.reduce_mean(tf.tanh(tf.matmul(x, w)) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
        results[k] = w.numpy().tolist()
        meet()

    expected, actual = {}, {}
    for k in range(3):
        work(k, tf.GradientTape, expected)
    before = set(registry.instances)
    threads = [threading.Thread(target=work, args=(k, TerraTape, actual, together.wait)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == expected
    stats = [function.stats() for function in set(registry.instances) - before]
    assert len(stats) == 3 and sum(s.coexecuted_steps for s in stats) > 0


def test_lines_with_the_number_of_the_step(tmp_path):
    def run(tape_class, path):
        parts = Deep(keras)
        for i, (x, y) in enumerate(zip(X, Y)):
            with tape_class() as tape:
                loss = parts.loss(y, parts.model(x))
                tf.print(f"step {i}:", loss, output_stream=f"file://{path}")
            parts.optimizer.apply_gradients(zip(tape.gradient(loss, parts.model.trainable_variables), parts.model.trainable_variables))
        terra.sync()
        return path.read_text(), tape

    expected, _ = run(tf.GradientTape, tmp_path / "eager")
    actual, tape = run(TerraTape, tmp_path / "terra")
    assert actual == expected and actual.count("\n") == 28
    assert tape.block.stats().coexecuted_steps > 20
