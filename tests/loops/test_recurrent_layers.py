"""The loop of an RNN layer as one operation, where lengths vary: one graph for all of them, and its gradient."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.loops import recurrent_layers
from terra.runtime.step_function import registry
from tests import harness

L = keras.layers
STEPS = 15
LENGTHS = [3, 5, 4, 2, 3, 4, 6, 2]


def differ(make, given=None, steps=STEPS, **more):
    """Gradients are summed in another order than eagerly."""
    return harness.differ(make, given or (lambda i: (sequences(i),)), steps, functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), **more)


def sequences(i, batch=4):
    return tf.constant(np.random.default_rng(i).normal(size=(batch, LENGTHS[i % len(LENGTHS)], 3)).astype("float32"))


def built(layer, *shapes):
    layer.build(*(shapes or [(None, None, 3)]))
    return layer


def trained(layers, forward):
    """A step that updates the weights of `layers` with the gradients of what `forward` gives, which it returns."""
    variables = [v.value for layer in layers for v in layer.trainable_variables]

    def step(*given):
        with tf.GradientTape() as tape:
            result = forward(*given)
            loss = tf.add_n([tf.reduce_mean(tf.cast(x, tf.float32) ** 2.0) for x in tf.nest.flatten(result)])
        for variable, gradient in zip(variables, tape.gradient(loss, variables, unconnected_gradients="zero")):
            variable.assign_sub(tf.cast(0.3 * tf.convert_to_tensor(gradient), variable.dtype))
        return result
    return step, lambda: [*variables, *[v for layer in layers for v in layer.non_trainable_variables if "seed" not in v.path]]


def in_one(stats, layers=1, fewest=STEPS - 8):
    assert stats.recurrent_layers == layers and stats.rolled_loops == 0 and stats.coexecuted_steps >= fewest and stats.fallbacks <= 1, stats
    assert stats.traces <= 3, stats


LAYERS = {
    "lstm": lambda: L.LSTM(5, return_sequences=True),
    "gru": lambda: L.GRU(5, reset_after=False),
    "backwards": lambda: L.GRU(5, go_backwards=True, return_sequences=True, kernel_regularizer="l2"),
    "dropout": lambda: L.LSTM(5, dropout=0.4, recurrent_dropout=0.3, seed=3, return_sequences=True),
    "simple": lambda: L.SimpleRNN(5, activation="relu", use_bias=False),
    "stacked": lambda: L.RNN([L.LSTMCell(5), L.GRUCell(4, dropout=0.2, seed=1)]),
    "float64": lambda: L.LSTM(5, dtype="float64"),
    "frozen": lambda: L.LSTM(5, trainable=False),
}


@pytest.mark.parametrize("name, training", [*[(name, True) for name in LAYERS], ("dropout", False)])
def test_layers(name, training):
    def make():
        layer, dense = built(LAYERS[name]()), built(L.Dense(3))
        return trained([layer, dense], lambda x: layer(dense(x), training=training))
    in_one(differ(make))


def test_many_batches_and_lengths():
    """Shapes that are all new, step after step, make no new trace."""
    def make():
        layer = built(L.GRU(4, return_sequences=True))
        return trained([layer], layer)
    rng = np.random.default_rng(1)
    batches = [tf.constant(rng.normal(size=(2 + i % 7, 1 + (5 * i) % 9, 3)).astype("float32")) for i in range(18)]
    stats = differ(make, lambda i: (batches[i],), 18)
    in_one(stats, fewest=9)
    assert stats.traces <= 2, stats  # those of one number of sequences are forgotten


def test_the_last_batch_is_smaller():
    """The function for one number of sequences is given up with its traces, so that no paths join and what gradients need can still be handed on."""
    def make():
        layer = built(L.GRU(4, return_sequences=True))
        return trained([layer], layer)
    held = []
    stats = differ(make, lambda i: (sequences(i, 4 if i % 6 < 5 else 2),), 24, change=lambda i, step: held.append(step))
    assert stats.recurrent_layers == 1 and stats.rolled_loops == 0 and stats.coexecuted_steps >= 12, stats
    assert not held[-1].recurrences.computes_again


@pytest.mark.parametrize("mask", ["tensor", "of an embedding", "zero output"])
def test_masks(mask):
    def make():
        layer = L.LSTM(5, return_sequences=True, zero_output_for_mask=mask == "zero output")
        layer.build((None, None, 4))
        embedding = L.Embedding(12, 4, mask_zero=mask != "tensor")
        embedding.build()

        def forward(words):
            return layer(embedding(words), mask=words > 4 if mask == "tensor" else None)
        return trained([embedding, layer], forward)

    def words(i):
        return (np.random.default_rng(i).integers(0, 12, (4, LENGTHS[i % 8])),)
    in_one(differ(make, words))


def test_states_are_given_and_their_gradients_asked():
    def make():
        encoder, decoder, dense = built(L.LSTM(5, return_state=True)), built(L.LSTM(5, return_sequences=True)), built(L.Dense(3), (None, 5))

        def forward(x):
            _, *state = encoder(x)
            return dense(decoder(x[:, ::-1], initial_state=state))
        return trained([encoder, decoder, dense], forward)
    stats = differ(make)
    assert stats.recurrent_layers == 1 and stats.coexecuted_steps >= STEPS - 9, stats  # see the next one


@pytest.mark.parametrize("of", [1, 2])
def test_gradients_of_the_output_for_a_state(of):
    """The output is computed from the state that a layer gives."""
    def make():
        layer = built(L.LSTM(3, return_state=True))

        def step(x):
            with tf.GradientTape() as tape:
                given = layer(x)
                loss = tf.reduce_sum(given[0] ** 2.0) + tf.reduce_sum(given[1] ** 3.0)
            return loss, tape.gradient(loss, given[of])
        return step, lambda: layer.weights
    assert differ(make).recurrent_layers == 0


def test_states_without_a_tape():
    def make():
        layer = built(L.LSTM(3, return_state=True))
        return (lambda x: layer(x)), lambda: layer.weights
    in_one(differ(make))


@pytest.mark.parametrize("what", ["input", "mask", "state"])
def test_variables_are_given(what):
    def make():
        layer = built(L.GRU(3))
        variables = {"input": tf.Variable(sequences(0)), "mask": tf.Variable([[True, False, True]] * 4), "state": tf.Variable(tf.ones([4, 3]))}

        def forward(x):
            x = variables["input"] if what == "input" else x
            return layer(x, mask=variables["mask"] if what == "mask" else None, initial_state=[variables["state"]] if what == "state" else None)
        return trained([layer], forward)
    stats = differ(make, lambda i: (sequences(0),) if what == "mask" else (sequences(i),))
    assert stats.coexecuted_steps >= STEPS - 8 and stats.fallbacks <= 1, stats


def test_weights_that_the_loop_does_not_use():
    """Their gradient is None, and not 0."""
    def make():
        layer = built(L.LSTM(3))
        layer.cell.use_bias = False
        weights = [v.value for v in layer.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x) ** 2.0)
            gradients = tape.gradient(loss, weights)
            return loss, [g is None for g in gradients], [g for g in gradients if g is not None]
        return step, lambda: weights
    in_one(differ(make))


def test_layers_are_let_go():
    refs, now = [], {}

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(now["layer"](x) ** 2.0)
        return tape.gradient(loss, now["layer"].trainable_variables)
    made = terra.coexecute(step, wait_for_graph=True)
    for i in range(48):
        if i % 12 == 0:
            now["layer"] = built(L.GRU(2))
            refs.append(weakref.ref(now["layer"]))
        made(sequences(i))
    assert made.stats().recurrent_layers
    terra.sync()
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 2


def test_stateful():
    def make():
        layer = L.GRU(5, stateful=True)
        layer.build((4, None, 3))
        return trained([layer], layer)
    in_one(differ(make))


def test_mixed_precision():
    def make():
        layer = built(L.LSTM(5, dtype="mixed_float16"))
        return trained([layer], layer)
    in_one(harness.differ(make, lambda i: (sequences(i),), STEPS, functools.partial(np.testing.assert_allclose, rtol=2e-2, atol=2e-2)))


@pytest.mark.parametrize("way", ["persistent", "twice", "second order", "inputs", "jacobian", "accumulator", "custom"])
def test_gradients(way):
    def make():
        layer = built(L.SimpleRNN(2, return_sequences=True))
        weights = [v.value for v in layer.trainable_variables]

        def step(x):
            if way == "accumulator":
                with tf.autodiff.ForwardAccumulator(weights[0], tf.ones_like(weights[0])) as accumulator:
                    y = tf.reduce_sum(layer(x) ** 2.0)
                return y, accumulator.jvp(y)
            if way == "second order":
                with tf.GradientTape() as outer:
                    with tf.GradientTape() as tape:
                        y = tf.reduce_sum(layer(x) ** 2.0)
                    first = tape.gradient(y, weights)
                    norm = tf.add_n([tf.reduce_sum(g ** 2.0) for g in first])
                return y, first, outer.gradient(norm, weights)
            with tf.GradientTape(persistent=way in ("persistent", "jacobian")) as tape:
                tape.watch(x)
                y = layer(x)
                last = layer(y[..., :1] * x) if way == "twice" else y[:, -1]
                loss = tf.reduce_sum(last ** 2.0)
                total = tf.reduce_sum(y, 1)
            if way == "jacobian":
                return tape.jacobian(total, weights[0])
            if way == "inputs":
                return tape.gradient(loss, x)
            if way == "custom":
                return tape.gradient(last, weights, output_gradients=tf.ones_like(last) * 0.5)
            return (tape.gradient(y, weights), tape.gradient(loss, [x])) if way == "persistent" else tape.gradient(loss, weights)
        return step, lambda: weights
    steps, fewest = {"jacobian": (16, 4), "second order": (20, 9), "accumulator": (20, 9)}.get(way, (STEPS, STEPS - 8))
    stats = differ(make, lambda i: (sequences(i)[:, {"jacobian": slice(1, 4), "accumulator": slice(4)}.get(way, slice(None))],), steps)
    assert stats.recurrent_layers == (way != "jacobian") and stats.coexecuted_steps >= fewest, stats
    assert stats.rolled_loops == (way in ("jacobian", "second order")), stats


def test_losses_of_a_cell():
    """Each time step adds one: the loop is run."""
    def make():
        layer = built(L.RNN(L.GRUCell(4, activity_regularizer="l2")))
        step, state = trained([layer], lambda x: (layer(x), tf.add_n(layer.losses), tf.constant(len(layer.losses))))
        return step, state
    stats = differ(make, steps=18)
    assert stats.recurrent_layers == 0 and stats.coexecuted_steps >= 8, stats


def test_new_layers_at_each_step(monkeypatch):
    monkeypatch.setattr(recurrent_layers, "_MOST", 3)

    def make():
        kernel, lasting = tf.Variable(tf.ones((3, 3))), built(L.SimpleRNN(3, return_sequences=True))

        def step(x):
            layer = L.SimpleRNN(4, kernel_initializer="ones", recurrent_initializer="identity")
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(layer(lasting(x) @ kernel * 0.1))
            kernel.assign_sub(0.1 * tape.gradient(y, kernel))
            return y
        return step, lambda: kernel
    stats = differ(make, steps=16)
    assert stats.recurrent_layers == 3, stats


CHANGES = {
    "activation": lambda layer, i: setattr(layer.cell, "activation", keras.activations.relu if i % 2 else keras.activations.tanh),
    "user's activation": lambda layer, i: setattr(layer.cell, "activation", lambda x: x * 0.5),
    "call": lambda layer, i: setattr(layer.cell, "call", functools.partial(_halved, layer.cell.call)),
    "direction": lambda layer, i: setattr(layer, "go_backwards", not layer.go_backwards),
    "trainable": lambda layer, i: setattr(layer, "trainable", not layer.trainable),
    "weights": lambda layer, i: layer.set_weights([w * 0.9 for w in layer.get_weights()]),
    "variable": lambda layer, i: layer.cell.kernel.assign(layer.cell.kernel.numpy() + 0.1),
    "dropout": lambda layer, i: setattr(layer.cell, "dropout", 0.5 if layer.cell.dropout == 0.0 else 0.0),
}


def _halved(call, x, states, training=False):
    output, states = call(x, states, training)
    return output * 0.5, states


@pytest.mark.parametrize("name", CHANGES)
def test_the_layer_changes(name):
    held = []

    def make():
        layer = built(L.GRU(4, return_sequences=True, seed=2))
        held[:] = [layer]
        return trained([layer], lambda x: layer(x, training=True))

    def change(i, step):
        if i in (10, 13, 16):
            CHANGES[name](held[0], i)
    stats = differ(make, steps=18, change=change)
    assert stats.coexecuted_steps >= 6, stats


def test_a_loop_of_the_users_beside():
    """That one is rolled; the layer's stays one operation of its piece."""
    def make():
        layer, cell = built(L.GRU(4, return_sequences=True)), built(L.GRUCell(4), (None, 4))

        def forward(x):
            y = layer(x)
            state = y[:, -1]
            for t in range(x.shape[1]):
                state, _ = cell(y[:, t], [state])
            return state
        return trained([layer, cell], forward)
    stats = differ(make, steps=24)
    assert stats.recurrent_layers == 1 and stats.rolled_loops >= 1 and stats.coexecuted_steps >= 8, stats


@pytest.mark.parametrize("computes_again", [False, True])
def test_branches(computes_again):
    """What the gradient needs of a loop that only one of two paths runs cannot be handed on where they have joined again: it is computed again."""
    def make():
        first, second = built(L.LSTM(4, return_sequences=True)), built(L.LSTM(4, return_sequences=True, go_backwards=True))
        turns = []

        def forward(x):
            turns.append(1)
            if computes_again:
                return first(x) if len(turns) % 3 else second(x)
            return first(x) * (2.0 if len(turns) % 3 else 3.0)
        return trained([first, second], forward)
    stats = differ(make, steps=22)
    assert stats.recurrent_layers == 1 + computes_again and stats.rolled_loops == 0 and stats.coexecuted_steps >= 9, stats


def test_inside_a_model_of_the_users():
    def make():
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.second = L.Bidirectional(L.LSTM(3, return_sequences=True)), L.GRU(4)
                self.head, self.calls = L.Dense(2), 0

            def call(self, x, training=False):
                self.calls += 1
                return self.head(self.second(self.first(x), training=training))

        model = Model()
        model(sequences(0))
        step, state = trained([model], lambda x: model(x, training=True))
        return step, lambda: (state(), tf.constant(model.calls))
    in_one(differ(make), 3)


def test_a_step_that_falls_back_afterwards():
    """The operation has run in no graph, and is replayed; its gradient is taken imperatively."""
    def make():
        layer = built(L.LSTM(4))
        turns = []

        def forward(x):
            turns.append(1)
            y = layer(x)
            return tf.sin(y) if len(turns) in (12, 16) else y * 2.0
        return trained([layer], forward)
    stats = differ(make, steps=22)
    assert stats.recurrent_layers == 1 and stats.fallbacks >= 1 and stats.coexecuted_steps >= 9, stats


def test_printing_and_reading():
    def make():
        layer = built(L.LSTM(4))
        seen = []

        def forward(x):
            y = layer(x)
            seen.append(float(tf.reduce_sum(y)))
            return y * (2.0 if seen[-1] > 0 else 0.5)
        step, state = trained([layer], forward)
        return step, lambda: (state(), tf.constant(seen))
    stats = differ(make, steps=24)
    assert stats.recurrent_layers == 1 and stats.coexecuted_steps >= 12, stats


def test_nothing_is_left():
    """A step function that is gone leaves neither its layers nor its functions behind."""
    layer = built(L.LSTM(4))
    step = terra.coexecute(trained([layer], layer)[0], wait_for_graph=True)
    for i in range(12):
        step(sequences(i))
    assert step.stats().recurrent_layers == 1
    reference = weakref.ref(layer)
    step.generation.retire()  # the thread that generates graphs is done
    del step, layer
    other = terra.coexecute(tf.identity)
    other(tf.ones(())), other(tf.ones(()))
    terra.sync()
    for _ in range(5):  # TensorFlow's functions have finalizers
        gc.collect()
    assert reference() is None


@pytest.mark.parametrize("lengths", [(5, 5, 5), (3, 4, 3)], ids=["one", "two short ones"])
def test_unrolled_as_long_as_that_is_better(lengths):
    layer = built(L.LSTM(4))
    step = terra.coexecute(trained([layer], layer)[0], wait_for_graph=True)
    for i in range(12):
        step(tf.ones((2, lengths[i % 3], 3)))
    stats = step.stats()
    assert stats.recurrent_layers == 0 and stats.coexecuted_steps > 2, stats


def test_one_layer_at_two_places():
    """Each place has one length: there is nothing to gain."""
    def make():
        layer = built(L.GRU(4, return_sequences=True))
        return trained([layer], lambda x: layer(x)[:, :2] + sum(layer(x[:, :k])[:, :2] for k in (3, 2)))
    stats = differ(make, lambda i: (tf.constant(np.random.default_rng(i).normal(size=(4, 4, 3)).astype("float32")),), 14)
    assert stats.recurrent_layers == 0 and stats.coexecuted_steps > 8, stats


def test_blocks():
    """`with terra.GradientTape()`, whose steps know no loops."""
    def run(tape_of):
        layer = built(L.LSTM(4))
        for v in layer.trainable_variables:
            v.assign(tf.reshape(tf.range(float(np.prod(v.shape))), v.shape) / 100.0)
        found = []
        for i in range(28):
            with tape_of() as tape:
                loss = tf.reduce_sum(layer(tf.ones((2, 2 + (7 * i) % 11, 3)) * 0.1) ** 2.0)
            for v, g in zip(layer.trainable_variables, tape.gradient(loss, [v.value for v in layer.trainable_variables])):
                v.assign_sub(0.1 * g)
            found.append(float(loss))
        return found

    before = set(registry.instances)
    np.testing.assert_allclose(run(tf.GradientTape), run(lambda: terra.GradientTape(wait_for_graph=True)), rtol=1e-4)
    (block,) = set(registry.instances) - before
    stats = block.stats()
    assert stats.recurrent_layers == 1 and stats.coexecuted_steps > 11 and stats.fallbacks <= 3, stats


def test_fit():
    def run(compile_):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([L.Embedding(20, 4, mask_zero=True), L.LSTM(5), L.Dense(1)])
        steps = compile_(model)
        rng = np.random.default_rng(0)
        losses = []
        for i in range(18):
            x = rng.integers(1, 20, (8, LENGTHS[i % 8]))
            losses.append(model.train_on_batch(x, rng.normal(size=(8, 1)).astype("float32")))
        return losses, [w.copy() for w in model.get_weights()], steps
    expected, weights, _ = run(lambda model: model.compile("sgd", "mse", run_eagerly=True))
    actual, found, steps = run(lambda model: terra.compile(model, "sgd", "mse", wait_for_graph=True))
    np.testing.assert_allclose(expected, actual, rtol=1e-4, atol=1e-5)
    for a, b in zip(weights, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    stats = steps.stats()["train"]
    assert stats.recurrent_layers == 1 and stats.coexecuted_steps >= 9, stats



REFUSED = {
    "shorter state": lambda x: (L.GRU(4), dict(initial_state=tf.zeros((1, 4)))),
    "losses": lambda x: (L.RNN(L.GRUCell(4, activation=L.ActivityRegularization(0.1))), {}),
    "moving averages": lambda x: (L.SimpleRNN(4, activation=L.BatchNormalization()), dict(training=True)),
    "states of a stack": lambda x: (L.RNN([L.GRUCell(4), L.GRUCell(3)], return_state=True), {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_are_left_to_the_step(name):
    def make():
        layer, more = REFUSED[name](None)
        built(layer)
        variables = [v.value for v in layer.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                result = layer(x[:1] if name == "shorter state" else x, **more)
                loss = tf.reduce_sum(result[1] if isinstance(result, (list, tuple)) else result)
            gradients = tape.gradient(loss, variables)
            for v, g in zip(variables, gradients):
                if g is not None:
                    v.assign_sub(0.01 * g)
            return loss, [g is None for g in gradients], len(layer.losses)
        return step, lambda: layer.variables
    stats = differ(make, steps=14)
    assert stats.recurrent_layers == (name == "shorter state") and stats.coexecuted_steps >= 5, stats


def test_indexed_slices():
    def make():
        layer = built(L.LSTM(4))
        return trained([layer], lambda x: tf.gather(layer(x), [0, 2, 2]))
    in_one(differ(make))


def test_stateless_calls():
    def make():
        layer = built(L.LSTM(4))
        weights = [tf.Variable(v * 0.5) for v in layer.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                y, _ = layer.stateless_call(weights, [v.value for v in layer.non_trainable_variables], x)
                loss = tf.reduce_sum(y)
            for v, g in zip(weights, tape.gradient(loss, weights)):
                v.assign_sub(0.1 * g)
            return loss
        return step, lambda: weights
    stats = differ(make, steps=18)
    assert stats.recurrent_layers == 0 and stats.coexecuted_steps >= 7, stats


@pytest.mark.parametrize("wrong", ["features", "mask", "states"])
def test_errors_are_eagers(wrong):
    def make():
        layer, caught = built(L.LSTM(4)), []

        def step(x):
            try:
                if len(caught) % 2:
                    return layer(x)
                more = {"mask": tf.ones((4, 12), tf.bool)} if wrong == "mask" else {"initial_state": [tf.zeros((3, 4))] * 2} if wrong == "states" else {}
                return layer(x[..., :2] if wrong == "features" else x, **more)
            except Exception as error:
                return float(sum(map(ord, type(error).__name__)))  # numbers are compared
            finally:
                caught.append(1)
        return step, lambda: layer.variables
    stats = differ(make, steps=14)
    assert stats.recurrent_layers == 1 and stats.coexecuted_steps >= 2, stats


def test_a_class_is_patched(monkeypatch):
    call = L.LSTMCell.call

    def make():
        monkeypatch.undo()
        layer = built(L.LSTM(4))
        return trained([layer], layer)

    def change(i, step):
        if i == 10:
            monkeypatch.setattr(L.LSTMCell, "call", lambda self, x, states, training=False: call(self, x * 0.5, states, training))
    stats = differ(make, change=change)
    assert stats.recurrent_layers == 1, stats
