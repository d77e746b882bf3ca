"""What layers change in objects, lists, arrays and modules that were there before, and numbers that they count up: it is changed again where the step is skipped. And where something cannot be understood,
all around it is skipped."""

import collections
import sys
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness
from tests.fast_forward.purity import training
from tests.fast_forward.purity.training import DATA

X, Y = DATA[0], DATA[1]
RATE = 1.0


class Slotted:
    __slots__ = ("last",)


class Items:
    """Something of a program's own that is changed by a method."""

    def __init__(self):
        self.held = {}

    def __setitem__(self, key, value):
        self.held[key] = value


class Held:
    """What layers change."""

    def __init__(self):
        self.numbers, self.last, self.table, self.bytes, self.array = [1.0, 2.0], collections.deque([1.0, 2.0, 3.0], maxlen=3), {"a": 1}, bytearray(3), np.ones(6, "float32")
        self.slotted, self.items, self.mean, self.steps, self.rates = Slotted(), Items(), 0.5, 0, {"rate": 1.0}

    def look(self):
        return [self.numbers, list(self.last), self.table, bytes(self.bytes), self.array, getattr(self.slotted, "last", None), self.items.held, self.mean, self.steps, self.rates, RATE,
                getattr(sys, "tests_flag", None)]


def extends(h, x):
    h.numbers += [len(x.shape)]
    return x


def deletes(h, x):
    h.numbers.append(3.0)
    del h.numbers[-1]
    return x * h.numbers[0]


def rotates(h, x):
    h.last.rotate(1)
    return x * float(len(h.last))


def sets_by_a_key(h, x):
    h.table[x.shape[-1], "size"] = h.steps
    del h.table[x.shape[-1], "size"]
    return x


def sets_in_an_array(h, x):
    h.array[2] = 1.5
    h.bytes[1] = 7
    return x * h.array


def sets_a_slot(h, x):
    h.slotted.last = x.shape[-1]
    return x


def sets_in_a_module(h, x):
    sys.tests_flag = "set"
    return x


def averages(h, x):
    h.mean = 0.9 * h.mean + 0.25
    return x * h.mean


def averages_twice(h, x):
    h.mean = 0.9 * h.mean + 0.25
    x = x * h.mean
    h.mean = h.mean * 0.5
    return x + h.mean


def anneals(h, x):
    h.rates["rate"] = min(2.0, h.rates["rate"] * 1.05)
    return x * h.rates["rate"] if h.rates["rate"] < 1.5 else x


def anneals_globally(h, x):
    global RATE
    RATE = RATE * 0.99
    return x * RATE


def asks_for_a_protocol(h, x):
    return x if isinstance(h.table, typing.Mapping) else -x


def goes_on(h, x):
    """Another item each time."""
    h.last.rotate(1)
    return x * h.last[0]


SKIPPED = [extends, deletes, rotates, sets_by_a_key, sets_in_an_array, sets_a_slot, sets_in_a_module, averages, averages_twice, anneals, anneals_globally, asks_for_a_protocol,
           goes_on]


def by_a_method(h, x):
    h.items["a"] = h.steps
    return x


def keeps_tensors(h, x):
    h.numbers += [x]
    h.numbers = h.numbers[-2:]
    return x


def multiplies(h, x):
    h.numbers *= 1
    h.table |= {"b": 2}
    return x


def counts(h, x):
    h.steps += 1
    h.array[0] += 0.01
    return x * h.array


def evaluates(h, x):
    return x * eval("2.0")  # noqa: S307


def has_a_class(h, x):
    class Scale:
        by = 2.0

    return x * Scale.by


NOT_UNDERSTOOD = [by_a_method, keeps_tensors, multiplies, counts, evaluates, has_a_class]


def program(body, inside=True, change=None):
    """`make` for `harness.compare_steps`: a step that trains a model of which a layer, or that itself, has this body; `change(held, k)` runs before step k."""
    def make():
        global RATE
        RATE, h = 1.0, Held()
        sys.tests_flag = None

        class Layer(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.parts = [keras.layers.Dense(6) for _ in range(3)]

            def build(self, shape):
                for part in self.parts:
                    part.build(shape)

            def call(self, x):
                x = body(h, x) if inside else x
                for part in self.parts:
                    x = part(x)
                return x

            def compute_output_shape(self, shape):  # so that Keras does not try it out
                return shape

        model = keras.Sequential([keras.layers.Dense(6, "tanh"), Layer(), keras.layers.Dense(6)])
        model.build((None, 6))
        train = training.trains(model, keras.optimizers.SGD(0.01), lambda p: tf.reduce_mean(tf.square(Y - p)))

        def step(x):
            return train(x if inside else body(h, x))

        def call(step, k):
            if change is not None:
                change(h, k)
            return step(X)

        return step, call, lambda: [model.weights, h.look()]

    return make


@pytest.mark.all_variants
@pytest.mark.parametrize("body", SKIPPED)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_in_a_layer(body, verify):
    harness.compare_steps(program(body), whole=12, express=0, n=40, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", SKIPPED)
def test_in_a_step(body):
    harness.compare_steps(program(body, inside=False), whole=10, express=0, n=40)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [deletes, rotates, sets_in_an_array, averages, averages_twice, anneals, asks_for_a_protocol])
def test_what_they_change_is_changed_by_others(body):
    def change(h, k):
        if k == 25:
            h.numbers, h.mean, h.rates["rate"], h.array = [3.0], 2.5, 0.5, np.full(6, 2.0, "float32")
            h.last.append(1.0)
            h.last.pop()
        elif k == 32:
            h.mean, h.rates["rate"], h.table = tf.constant(0.25), 1, [1]

    harness.compare_steps(program(body, change=change), whole=5, express=0, n=40)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", NOT_UNDERSTOOD)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_what_is_around_is_skipped(body, verify):
    """The layer runs, and so does the model around it; the other layers of the model and those within the layer, the gradient and the optimizer are skipped."""
    step = harness.compare_steps(program(body), whole=0, express=0, n=60, verify=verify)
    stats = step.stats()
    assert stats.whole_steps == 0 and (verify or stats.fast_forwards >= 7 * 30), terra.explain(step)


class Evaluates(keras.layers.Layer):
    """Here, and in `fit`."""

    def call(self, x):
        return x * eval("0.5")  # noqa: S307


def fitted(run_eagerly):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(6, "relu"), Evaluates(), keras.layers.Dense(6, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    how = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    steps, data = training.compiled(model, run_eagerly, **how)
    history = model.fit(data, epochs=2, verbose=0).history
    return steps, [history, [w.numpy().tolist() for w in model.weights], [w.numpy().tolist() for w in model.optimizer.variables]]


@pytest.mark.all_variants
def test_what_keras_calls_in_a_step_of_its_own_is_skipped():
    """The layers, the losses, the metrics and the optimizer, each for itself."""
    _, expected = fitted(True)
    steps, found = fitted(False)
    assert found == expected
    stats = steps.train.stats()
    assert stats.whole_steps == 0 and stats.fast_forwards >= 6 * 40, terra.explain(steps.train)


def test_an_error_within_what_is_entered():
    """What the layer raises reaches the program, and the next steps are as before."""
    def body(h, x):
        h.steps += 1
        if h.steps % 7 == 0:
            raise ValueError(f"step {h.steps}")
        return x * eval("2.0")  # noqa: S307

    harness.compare_steps(program(body), whole=0, express=0, n=40)
