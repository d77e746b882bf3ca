"""Models one of whose layers does what is not understood: the framework's code around it is not run, but the parts that it would call are called in its order."""

import functools
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

X = [tf.random.stateless_normal([6, 8], [k, 1]) for k in range(50)]
N, SETTLED = 45, 15  # steps, and how many of them at least are walked
register = keras.saving.register_keras_serializable("walks")


@register
class Unknown(keras.layers.Layer):
    """A layer that nobody understands, as it looks at its own variables: `does(layer, x)` gives what it makes of its input."""

    def __init__(self, does=None, **kwargs):
        super().__init__(**kwargs)
        self.does, self.dense, self.seen, self.times = does, keras.layers.Dense(8), [], 0

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x, training=None):
        self.times += 1
        locals()["x"]
        x = self.dense(x)
        return x if self.does is None else self.does(self, x)

    def compute_output_spec(self, x, training=None):
        return keras.KerasTensor((*x.shape[:-1], 8), dtype=x.dtype)


@register
class UnknownCell(keras.layers.SimpleRNNCell):
    def call(self, x, states, training=False):
        locals()["x"]
        return super().call(x, states, training=training)


class WithOwnCall(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.last = inner, keras.layers.Dense(3)

    def call(self, x, training=None):
        return self.last(self.inner(x, training=training))


def sequential(does=None):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="relu"), Unknown(does), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(3)])


def branching(does=None):
    given = keras.Input((8,))
    first = keras.layers.Dense(8)(given)
    second = keras.ops.tanh(Unknown(does)(first) + first)
    third = keras.layers.Dropout(0.3)(keras.layers.Concatenate()([second, first]))
    return keras.Model(given, [keras.layers.Dense(3)(third), keras.layers.Dense(2)(second)])


def nested(does=None):
    given = keras.Input((8,))
    return keras.Model(given, keras.layers.Dense(2)(keras.layers.Dense(4)(sequential(does)(given))))


def masked(does=None):
    given = keras.Input((8,), dtype="int32")
    unknown = Unknown(does)
    unknown.supports_masking = True
    return keras.Model(given, keras.layers.LSTM(3)(unknown(keras.layers.Embedding(9, 8, mask_zero=True)(given))))


def both_ways(does=None):
    given = keras.Input((4, 2))
    rnn = keras.layers.Bidirectional(keras.layers.RNN(UnknownCell(5)), backward_layer=keras.layers.RNN(UnknownCell(5), go_backwards=True))
    return keras.Model(given, keras.layers.Dense(3)(rnn(given)))


def over_time(does=None):
    given = keras.Input((4, 2))
    return keras.Model(given, keras.layers.Dense(3)(keras.layers.TimeDistributed(keras.Sequential([keras.Input((2,)), keras.layers.Dense(8), Unknown(does)]))(given)))


def with_losses(does=None):
    def adds(layer, x):
        layer.add_loss(0.1 * tf.reduce_mean(x**2))
        return x

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, kernel_regularizer="l2"), Unknown(adds), keras.layers.Dense(4, activity_regularizer="l2"), keras.layers.Dense(3)])


def own_call(does=None):
    return WithOwnCall(sequential(does))


MODELS = [sequential, branching, nested, masked, both_ways, over_time, with_losses, own_call]


def unknown_in(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, Unknown)]


def training(make_model, does=None, change=None):
    """`make` for `harness.compare_steps`: a step that trains the model; `change(model, k)` runs before step k."""
    def make():
        keras.utils.set_random_seed(4)
        model, optimizer = make_model(does), keras.optimizers.Adam(0.01)
        model(given(model, 0))

        def step(x):
            with tf.GradientTape() as tape:
                made = tf.nest.flatten(model(x, training=True))
                loss = tf.add_n([tf.reduce_mean((y - 1.0) ** 2) for y in made] + model.losses)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        def call(step, k):
            if change is not None:
                change(model, k)
            return step(given(model, k))

        return step, call, lambda: [[(layer.times, layer.seen) for layer in unknown_in(model)], model.variables, optimizer.variables]

    return make


def given(model, k):
    model = getattr(model, "inner", model)
    x = tf.reshape(X[k], [6, *model.input_shape[1:]])
    return tf.cast(tf.minimum(tf.abs(x) * 3.0, 8.0), "int32") if model.inputs[0].dtype == "int32" else x


def check(make, walked=SETTLED, n=N):
    step = harness.compare_steps(make, whole=0, express=0, n=n)
    stats = step.stats()
    assert stats.walked_calls >= walked, (stats, terra.explain(step))
    return step


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_with_a_layer_that_is_not_understood(model):
    check(training(model))


def test_layers_in_a_row_are_one_call():
    few, many = [keras.Sequential([keras.Input((8,)), Unknown(), *[keras.layers.Dense(8) for _ in range(n)]]) for n in (2, 12)]

    def jumps(model):
        step = harness.coexecuted(lambda x: model(x))
        for k in range(N):
            step(X[k])
        before = step.stats().fast_forwards
        for k in range(5):
            step(X[k])
        assert step.stats().walked_calls > SETTLED
        return step.stats().fast_forwards - before

    assert jumps(few) == jumps(many)


# -- parts that give something else ------------------------------------------------------------------------------------------------


def branches(layer, x):
    return x * 2.0 if layer.times % 3 == 0 else x


def branches_by_a_value(layer, x):
    return x * 2.0 if float(tf.reduce_sum(x)) > 0 else tf.nn.relu(x)


def gives_its_input(layer, x):
    return tf.identity(x) if layer.times % 4 else x


def grows(layer, x):
    return tf.concat([x, x], 0) if layer.times % 5 == 0 else x


@pytest.mark.parametrize("does", [branches, branches_by_a_value, gives_its_input, grows], ids=lambda does: does.__name__)
@pytest.mark.parametrize("model", [sequential, branching], ids=lambda model: model.__name__)
def test_a_part_that_gives_something_else_now_and_then(model, does):
    if model is branching and does is grows:
        pytest.skip("its layers are given what has as many rows")
    check(training(model, does))


def leaves_the_graph(layer, x):
    """Takes a path in it that is new, so that the step falls back there: what it gives is no value of the graph's, and nothing more can be noted, or walked."""
    for _ in range(layer.times // 9):
        x = x * 1.01
    return x


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_part_that_leaves_the_graph(model):
    assert check(training(model, leaves_the_graph), walked=0).stats().fallbacks >= 2


def fails(layer, x):
    if layer.times % 6 == 0:
        raise ValueError(f"call {layer.times}")
    return x


def test_a_part_that_raises_is_called_once():
    check(training(sequential, fails))


def test_an_error_has_the_lines_that_it_has_eagerly():
    shown = []
    for wrap in (lambda f: f, harness.coexecuted):
        keras.utils.set_random_seed(4)
        model, lines = sequential(fails), []
        step = wrap(lambda x, model=model: model(x, training=True))
        for k in range(N):
            try:
                step(X[k])
            except ValueError as error:
                lines.append([*traceback.format_exception(error)])
        shown.append(lines)
    assert step.stats().walked_calls > SETTLED
    assert len(shown[0]) > 6 and shown[1][-1] == shown[0][-1] and shown[1] == shown[0]


# -- what the framework's code reads ------------------------------------------------------------------------------------------------


def sets_a_rate(layer, x):
    layer.others[0].rate = 0.5 if layer.times % 7 == 0 else 0.2
    return x


def sets_in_front(layer, x):
    layer.others[1].activation = tf.nn.tanh if layer.times % 7 == 0 else tf.nn.relu
    return x


def freezes(layer, x):
    layer.others[2].trainable = layer.times % 7 != 0
    return x


def regularizes(layer, x):
    layer.others[3].activity_regularizer = keras.regularizers.L2(0.1) if layer.times % 7 == 0 else None
    return x


def asks_to_be_built(layer, x):
    layer.others[3].built = layer.times % 7 != 0
    return x


@pytest.mark.parametrize("does", [sets_a_rate, sets_in_front, freezes, regularizes, asks_to_be_built], ids=lambda does: does.__name__)
def test_a_part_that_changes_other_layers(does):
    def make_model(does):
        model = sequential(does)
        first, unknown, norm, dropout, _ = model.layers
        vars(unknown)["others"] = [dropout, first, norm, model]
        return model

    check(training(make_model, does), walked=5)


def replaces_a_layer(model, k):
    if k == 30:
        model.layers[-1].activation = tf.nn.sigmoid


def sets_a_method(model, k):
    if k == 30:
        unknown = unknown_in(model)[0]
        vars(unknown)["call"] = lambda x, training=None: unknown.dense(x) * 3.0


def sets_a_method_of_keras(model, k):
    if k == 30:
        vars(model)["compute_mask"] = lambda *_: None
        vars(model)["call"] = lambda x, training=None, mask=None: tf.reduce_sum(x, -1, keepdims=True) * model.layers[0].kernel[0, 0]


def sets_a_flag(model, k):
    unknown_in(model)[0].flag = k


@pytest.mark.parametrize("change", [replaces_a_layer, sets_a_method, sets_a_method_of_keras, sets_a_flag], ids=lambda change: change.__name__)
def test_changes_from_outside(change):
    check(training(sequential, change=change), walked=10)


def test_a_class_that_is_changed():
    class Own(keras.Sequential):
        pass

    def make():
        if "call" in vars(Own):
            del Own.call

        def change(model, k):
            if k == 30:
                Own.call = lambda self, x, training=None, mask=None: super(Own, self).call(x, training=training) * 2.0

        return training(lambda does: Own([keras.Input((8,)), *sequential(does).layers]), change=change)()

    check(make, walked=5)


# -- what is set around the parts ----------------------------------------------------------------------------------------------------


def looks_around(layer, x):
    context, scopes = layer._get_call_context(), keras.src.backend.common.global_state.get_global_attribute("name_scope_stack")
    path = keras.src.backend.common.name_scope.current_path()
    layer.seen.append((context.training, context.entry_layer.name == layer.model_name, len(scopes), [scope.caller is layer for scope in scopes], path.split("/")[-1] == layer.name))
    return x


def test_a_part_finds_the_call_context_and_name_scopes():
    def make_model(does):
        model = sequential(does)
        vars(unknown_in(model)[0])["model_name"] = model.name
        return model

    check(training(make_model, looks_around))


def test_the_argument_training():
    def make():
        model = sequential(lambda layer, x: x)

        def step(x, training):
            return model(x, training=training)

        return step, lambda step, k: step(X[k], (True, False, None)[k // 2 % 3]), lambda: model.variables

    check(make, walked=10)


def test_a_tape_inside():
    def does(layer, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x**2)
        return x + 0.01 * tape.gradient(y, x)

    check(training(sequential, does))


def test_fit():
    def run(compile):
        keras.utils.set_random_seed(4)
        model = sequential()
        steps = compile(model)
        history = model.fit(tf.concat(X, 0), tf.ones([300, 3]), batch_size=6, epochs=2, verbose=0)
        return [history.history, [v.numpy().tolist() for v in model.variables], unknown_in(model)[0].times], steps

    how = dict(optimizer="adam", loss="mse", metrics=["mae"])
    eager, _ = run(lambda model: model.compile(run_eagerly=True, **how))
    ours, steps = run(lambda model: terra.compile(model, wait_for_graph=True, **how))
    assert ours == eager
    assert steps.stats()["train"].walked_calls > SETTLED


def test_blocks():
    def run(tape_class):
        keras.utils.set_random_seed(4)
        model, optimizer, losses, tapes = sequential(), keras.optimizers.SGD(0.1), [], []
        for k in range(N):
            with tape_class() as tape:
                loss = tf.reduce_mean(model(X[k], training=True) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            losses.append(float(loss))
            tapes.append(tape)
        return [losses, [v.numpy().tolist() for v in model.variables]], tapes[-1]

    ours, tape = run(functools.partial(terra.GradientTape, wait_for_graph=True))
    assert ours == run(tf.GradientTape)[0]
    assert tape.block.stats().walked_calls > SETTLED


def test_what_is_walked_keeps_no_tensors():
    """An output that a walk's own objects kept beyond the step would have to be given by the graph."""
    step = check(training(sequential))
    assert step.stats().fallbacks <= 1 and step.stats().fetches == 0


def test_stock_models_are_not_walked():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    step = harness.coexecuted(lambda x: model(x))
    for k in range(N):
        np.testing.assert_array_equal(step(X[k]), model(X[k]))
    assert step.stats().walked_calls == 0 and step.stats().whole_steps > SETTLED
