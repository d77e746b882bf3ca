"""Classes of the user's that derive from those of Keras, optimizers above all: the framework calls their methods, and these call the framework's in turn."""

import os
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

import keras
import terra
from tests import harness

tf_keras = pytest.importorskip("tf_keras")
O = keras.optimizers
STEPS = 18


class Momentum(O.Optimizer):
    """Written anew, as Keras' own are."""

    def __init__(self):
        super().__init__(learning_rate=0.05)
        self.decay = 0.9

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slots = [self.add_variable_from_reference(v, "m") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        m = self.slots[self._get_variable_index(variable)]
        lr = tf.cast(learning_rate, variable.dtype) / tf.cast(self.iterations + 1, variable.dtype) ** 0.5
        self.assign(m, self.decay * m + gradient)
        self.assign_sub(variable, lr * m)


class ById(Momentum):
    """Finds what belongs to a variable by its identity."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.of = {id(v.value): m for v, m in zip(variables, self.slots)}

    def update_step(self, gradient, variable, learning_rate):
        m = self.of[id(variable)]
        m.assign(self.decay * m + gradient)
        variable.assign_sub(learning_rate * m)


class ByOperations(Momentum):
    """As for any backend."""

    def update_step(self, gradient, variable, learning_rate):
        ops = keras.ops
        lr, g = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        m = self.slots[self._get_variable_index(variable)]
        self.assign_sub(variable, ops.multiply(lr, ops.sign(ops.add(ops.multiply(m, self.decay), ops.multiply(g, 1.0 - self.decay)))))
        self.assign(m, ops.add(ops.multiply(m, 0.99), ops.multiply(g, 0.01)))


class Centralized(O.Adam):
    """Hands on other gradients, one by one."""

    decay = 1.0

    def update_step(self, gradient, variable, learning_rate):
        if len(gradient.shape) > 1:
            gradient = gradient - self.decay * tf.reduce_mean(gradient, axis=0, keepdims=True)
        super().update_step(gradient, variable, learning_rate)


class Normalized(O.SGD):
    """Hands on other gradients, all at once."""

    decay = 1.0

    def apply(self, grads, trainable_variables=None):
        norm = self.decay * tf.linalg.global_norm(grads) + 1e-6
        super().apply([g / norm for g in grads], trainable_variables)


class Rescaled(O.RMSprop):
    decay = 1.0

    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(g * self.decay, v) for g, v in grads_and_vars])


class OfTfKeras(tf_keras.optimizers.Optimizer):
    def __init__(self):
        super().__init__("momentum")
        self._learning_rate = self._build_learning_rate(0.05)
        self.decay = 0.9

    def build(self, variables):
        super().build(variables)
        if not getattr(self, "_built", False):
            self._built, self.slots = True, [self.add_variable_from_reference(v, "m") for v in variables]

    def update_step(self, gradient, variable):
        m = self.slots[self._index_dict[self._var_key(variable)]]
        m.assign(self.decay * m + gradient)
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * m)

    def get_config(self):
        return {}


KINDS = {"written anew": Momentum, "by identity": ById, "for any backend": ByOperations, "one by one": Centralized, "all at once": Normalized, "in pairs": Rescaled, "tf_keras": OfTfKeras}


def training(kind):
    """(a step that trains a small model, its state, the optimizer)."""
    harness.reset_seeds()
    K = tf_keras if kind is OfTfKeras else keras
    model = K.Sequential([K.layers.Dense(6, "relu"), K.layers.Dense(3)])
    model.build((None, 4))
    optimizer = kind()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    return step, lambda: [*model.variables, *(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)], optimizer


def run(kind, coexecute, change=None, at=10, steps=STEPS):
    """Losses and state at the end, and the step."""
    step, state, optimizer = training(kind)
    if coexecute:
        step = terra.coexecute(step, wait_for_graph=True)
    losses = []
    for i in range(steps):
        if change is not None and i == at:
            change(optimizer)
        rng = np.random.default_rng(i)
        losses.append(step(tf.constant(rng.normal(size=(8, 4)).astype("float32")), tf.constant(rng.integers(0, 3, 8))).numpy())
    return [np.stack(losses), *[np.array(v.numpy()) for v in state()]], step


def compare(kind, change=None, **more):
    expected, _ = run(kind, False, change, **more)
    actual, step = run(kind, True, change, **more)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_skipped(kind):
    step = compare(KINDS[kind])
    assert step.stats().whole_steps >= STEPS - 9 and step.stats().express_steps > 0, terra.explain(step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_its_own_changes(kind):
    step = compare(KINDS[kind], lambda optimizer: setattr(optimizer, "decay", 0.5))
    assert step.stats().whole_steps >= 4, terra.explain(step)


def _other_rate(optimizer):
    optimizer.learning_rate = 0.5


def _other_method(optimizer):
    def update_step(gradient, variable, learning_rate=None):
        variable.assign_sub(gradient)
    optimizer.update_step = update_step


def _other_lookup(optimizer):
    own = type(optimizer)._get_variable_index
    optimizer._get_variable_index = lambda variable: own(optimizer, variable) if len(variable.shape) > 1 else _reversed(own(optimizer, variable))


def _reversed(index):
    return index  # as before, but by a function of the user's


@pytest.mark.parametrize("kind", ["written anew", "one by one", "tf_keras"])
@pytest.mark.parametrize("change", [_other_rate, _other_method])
def test_something_else_changes(kind, change):
    compare(KINDS[kind], change)


def test_how_it_looks_things_up_changes():
    compare(Momentum, _other_lookup)


def test_what_it_looks_up_changes():
    def swap(optimizer):
        optimizer.slots = [tf.Variable(m + 1.0) for m in optimizer.slots]
        optimizer.decay = 0.9
    compare(Momentum, swap)


class Counts(Momentum):
    calls = 0

    def update_step(self, gradient, variable, learning_rate):
        type(self).calls += 1
        super().update_step(gradient, variable, learning_rate)


class Keeps(Momentum):
    kept = None

    def update_step(self, gradient, variable, learning_rate):
        self.kept.append(self._get_variable_index(variable))
        super().update_step(gradient, variable, learning_rate)


def test_what_it_does_besides_is_done():
    seen = []
    for coexecute in (False, True):
        Counts.calls, Keeps.kept = 0, []
        for kind in (Counts, Keeps):
            results, step = run(kind, coexecute)
            seen.append(results[0].tolist())
            assert not coexecute or step.stats().coexecuted_steps >= STEPS - 6
        seen.append((Counts.calls, list(Keeps.kept)))
    assert seen[2] == seen[5] and seen[2][0] == 4 * STEPS and seen[2][1] == [0, 1, 2, 3] * STEPS
    np.testing.assert_allclose(seen[:2], seen[3:5], rtol=1e-5)


class Sized(keras.layers.Layer):
    """Asks itself how many weights it has, which runs no operation."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3))
        super().build(shape)

    def call(self, x):
        return x @ self.w / self.count_params()


def test_a_layer_looks_at_itself():
    seen = []
    for coexecute in (False, True):
        harness.reset_seeds()
        layer = Sized()
        model = keras.Sequential([keras.layers.Dense(4), layer])
        model.build((None, 5))
        step = lambda x: model(x)
        step = terra.coexecute(step, wait_for_graph=True) if coexecute else step
        found = []
        for i in range(STEPS):
            if i == 10:
                layer._trainable_variables.append(keras.Variable(np.ones((2, 3), "float32")))  # so it has 18
            found.append(step(tf.constant(np.random.default_rng(i).normal(size=(2, 5)).astype("float32"))).numpy())
        seen.append(found)
    np.testing.assert_array_equal(*seen)
    assert np.abs(seen[0][9]).sum() > 0 and step.stats().whole_steps >= 8, terra.explain(step)


def test_an_object_of_another_kind_looks_at_itself():
    """Of a model that a function only uses, nothing is known but what that reads."""
    model = keras.Sequential([keras.layers.Dense(4)])
    model.build((None, 5))

    def step(x):
        x = x * float(model.count_params())
        for _ in range(12):
            x = x + 1.0
        return x
    step = terra.coexecute(step, wait_for_graph=True)
    for i in range(STEPS):
        if i == 10:
            model.layers[0]._trainable_variables.append(keras.Variable(np.ones((2, 3), "float32")))
        assert float(step(tf.constant(1.0))) == (36.0 if i < 10 else 42.0)


def test_identities_of_tensors():
    def step(x):
        for _ in range(12):
            y = tf.sin(x)
        return y, id(x)
    step = terra.coexecute(step, wait_for_graph=True)
    batches = [tf.constant(float(i)) for i in range(STEPS)]
    assert [step(x)[1] for x in batches] == list(map(id, batches))


class Attention(keras.layers.MultiHeadAttention):
    """What it overrides gives two tensors."""

    def _compute_attention(self, *args, **kwargs):
        output, scores = super()._compute_attention(*args, **kwargs)
        return output * 0.5, scores


class Cell(keras.layers.GRUCell):
    """What it overrides gives a tensor and a list."""

    def call(self, x, states, training=False):
        output, states = super().call(x, states, training=training)
        return output * 0.5, [states[0] * 1.5] if isinstance(states, list) else states


class Pieces(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention, self.loop = Attention(2, 3), keras.layers.RNN(Cell(4))

    def call(self, x):
        return self.loop(self.attention(x, x))


def test_layers_with_parts_overridden():
    seen = []
    for coexecute in (False, True):
        harness.reset_seeds()
        model = keras.Sequential([Pieces(), keras.layers.Dense(2)])
        model.build((None, 3, 4))
        weights = [v.value for v in model.trainable_variables]

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2.0)
            for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
                variable.assign_sub(0.01 * gradient)
            return loss
        step = terra.coexecute(step, wait_for_graph=True) if coexecute else step
        losses = [step(tf.constant(np.random.default_rng(i).normal(size=(2, 3, 4)).astype("float32"))).numpy() for i in range(14)]
        seen.append([losses, *[v.numpy() for v in weights]])
    for a, b in zip(*seen):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert step.stats().whole_steps >= 5, terra.explain(step)


ASKED = []


class Counting(keras.Model):
    """Overrides what a property of the framework's calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(2)

    def call(self, x):
        return self.second(self.first(x))

    def _flatten_layers(self, *args, **kwargs):
        ASKED.append(1)
        return super()._flatten_layers(*args, **kwargs)


def test_what_a_property_calls_is_overridden():
    seen = []
    for coexecute in (False, True):
        harness.reset_seeds()
        model = Counting()
        model(tf.ones([2, 4]))
        ASKED.clear()

        def step(x):
            for layer in model.layers:
                x = tf.tanh(x @ layer.kernel) + layer.bias
            return x
        step = terra.coexecute(step, wait_for_graph=True) if coexecute else step
        results = [step(tf.constant(np.random.default_rng(i).normal(size=(2, 4)).astype("float32"))).numpy() for i in range(14)]
        seen.append((np.stack(results).tolist(), len(ASKED)))
    assert seen[0] == seen[1] and seen[0][1] >= 14
    assert step.stats().coexecuted_steps >= 10


class Writing(keras.Model):
    """Has the framework write something when it is called."""

    def __init__(self, write):
        super().__init__()
        self.dense, self.write = keras.layers.Dense(3), write

    def call(self, x):
        x = self.dense(x)
        if self.write == "weights":
            self.save_weights(PATH[0])
        elif self.write == "summary":
            self.summary()
        elif self.write == "print":
            self.print_params()
        return tf.tanh(x)


PATH = []


@pytest.mark.parametrize("write", ["weights", "summary", "print", "nothing"])
def test_what_the_framework_writes(write, tmp_path, capsys, monkeypatch):
    PATH[:] = [str(tmp_path / "of.weights.h5")]
    code = compile("lambda self: print('Total params')", "model.py", "eval").co_consts[0]
    monkeypatch.setattr(keras.Model, "print_params", types.FunctionType(code, vars(sys.modules[keras.Model.__module__])), raising=False)  # as if it were Keras' own
    seen = []
    for coexecute in (False, True):
        harness.reset_seeds()
        inner = Writing("nothing")
        model = keras.Sequential([inner, keras.layers.Dense(2)])
        model(tf.ones([1, 4]))
        inner.write = write
        step = terra.coexecute(lambda x: model(x), wait_for_graph=True) if coexecute else model
        found = []
        capsys.readouterr()
        for i in range(14):
            y = step(tf.constant(np.random.default_rng(i).normal(size=(2, 4)).astype("float32"))).numpy().tolist()
            found.append((y, os.path.exists(PATH[0]), capsys.readouterr().out.count("Total params")))
            if os.path.exists(PATH[0]):
                os.remove(PATH[0])
        seen.append(found)
    assert seen[0] == seen[1] and (seen[0][-1][1], seen[0][-1][2]) == (write == "weights", write in ("summary", "print"))
    assert step.stats().whole_steps > 0 or write != "nothing"
