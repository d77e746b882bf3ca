"""What layers change in objects, lists, arrays and modules that were there before, and numbers that they count up: it is changed again where the step is skipped. And where something cannot be understood,
all around it is skipped."""

import array
import collections
import io
import sys
import types
import typing
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.cache import call_cache
from terra.trial import BackOff, Reliability
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


class Ranked:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value

    def __add__(self, other):
        return Ranked(self.value + other.value)


class Held:
    """What layers change."""

    def __init__(self):
        self.numbers, self.last, self.table, self.bytes, self.array = [1.0, 2.0], collections.deque([1.0, 2.0, 3.0], maxlen=3), {"a": 1}, bytearray(3), np.ones(6, "float32")
        self.slotted, self.items, self.mean, self.steps, self.rates = Slotted(), Items(), 0.5, 0, {"rate": 1.0}
        self.many, self.said, self.ranked, self.digits = 1000, io.StringIO(), [Ranked(2.0), Ranked(0.5), Ranked(1.0)], array.array("d", [1.5, 0.5])
        self.weak, self.options = weakref.WeakKeyDictionary({self: 1.5}), {"a": 0.5}
        self.view = types.MappingProxyType(self.options)

    def look(self):
        return [self.many, self.said.getvalue(), self.numbers, list(self.last), self.table, bytes(self.bytes), self.array, getattr(self.slotted, "last", None), self.items.held, self.mean, self.steps, self.rates, RATE,
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


def tells_of_a_count(h, x):
    h.many += 1
    h.said.write(f"{h.many:5d} {h.mean} " + str(h.many) + " %d {}".format(h.many) % h.many)
    return x


def tells_now_and_then(h, x):
    h.many += 1
    if h.many % 5 == 0:
        h.said.write(f"{h.many}\n")
    return x


def decays_with_a_count(h, x):
    h.many += 1
    return x * (1.0 / (1.0 + 0.001 * h.many))


def scales_in_place(h, x):
    h.mean *= 0.9
    h.rates["rate"] *= 0.99
    return x * (h.mean + h.rates["rate"])


def adds_to_an_array(h, x):
    h.array += 0.5
    h.array *= [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    return x


def looks_up_elsewhere(h, x):
    return x * (h.weak[h] + h.view["a"] + h.digits[0] + sum(v for v in h.digits)) if h in h.weak and "a" in h.view else x


def ranks(h, x):
    return x * (sorted(h.ranked)[0].value + max(h.ranked).value + min(h.ranked).value + sum(h.ranked, Ranked(0.0)).value + max(h.ranked, key=lambda r: -r.value).value)


def looks_at_its_attributes(h, x):
    return x * (vars(h)["mean"] + len([name for name in vars(h) if name.startswith("s")]))


def by_a_method(h, x):
    h.items["a"] = h.steps
    return x


NEW = [tells_of_a_count, tells_now_and_then, decays_with_a_count, scales_in_place, adds_to_an_array, looks_up_elsewhere, ranks, looks_at_its_attributes]
SKIPPED = [*NEW, extends, deletes, rotates, sets_by_a_key, sets_in_an_array, sets_a_slot, sets_in_a_module, averages, averages_twice, anneals, anneals_globally, asks_for_a_protocol,
           goes_on, by_a_method]


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


NOT_UNDERSTOOD = [keeps_tensors, multiplies, counts, evaluates, has_a_class]


def program(body, inside=True, change=None, held=Held):
    """`make` for `harness.compare_steps`: a step that trains a model of which a layer, or that itself, has this body; `change(h, k)` runs before step k, where `h` is what `held` makes."""
    def make():
        global RATE
        RATE, h = 1.0, held()
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
@pytest.mark.parametrize("body", [deletes, rotates, sets_in_an_array, averages, averages_twice, anneals, asks_for_a_protocol, *NEW])
def test_what_they_change_is_changed_by_others(body):
    def change(h, k):
        if k == 25:
            h.numbers, h.mean, h.rates["rate"], h.array = [3.0], 2.5, 0.5, np.full(6, 2.0, "float32")
            h.last.append(1.0)
            h.last.pop()
            h.many, h.ranked[0].value, h.weak[h], h.options["a"], h.digits[0] = 2000, 0.25, 2.5, 1.5, 3.5
        elif k == 32:
            h.many, h.ranked[1:], h.special = 5, [Ranked(0.125)], 1
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


@pytest.mark.parametrize("inside", [True, False], ids=["a layer", "a step"])
def test_small_counts(inside):
    """An observed run has objects of its own for small integers, of which Python has one each."""
    harness.compare_steps(program(tells_of_a_count, inside, lambda h, k: setattr(h, "many", -20) if k == 0 else None), whole=60, express=0, n=100)


def test_what_is_not_understood_now_and_then_is_seldom_recorded(monkeypatch):
    def evaluates_now_and_then(h, x):
        h.steps += 1
        return x * eval("2.0") if h.steps % 4 == 0 else x

    recorded, record = [], call_cache._record
    monkeypatch.setattr(call_cache, "_record", lambda runner, place, *args: (recorded.append(place[1].__qualname__), record(runner, place, *args))[1])
    step = harness.compare_steps(program(evaluates_now_and_then), whole=60, express=0, n=240)
    assert step.stats().whole_steps > 100 and recorded.count("Layer.__call__") < 40, recorded


def test_what_fails_too_often_is_not_tried_for_a_while():
    reliability = Reliability()
    for _ in range(40):
        assert reliability.allows()
        reliability.failed()
        for _ in range(8):
            reliability.succeeded()  # as much as the failure has cost
    for _ in range(17):
        assert reliability.allows()
        reliability.failed()
    assert [reliability.allows() for _ in range(1000)] == 1000 * [False] and reliability.allows()
    reliability.failed()
    assert not reliability.allows()


def test_the_pause_after_failures_grows():
    pauses, step = BackOff(), 10
    for _ in range(3):
        pauses.failed("a", step)
        assert pauses.left("a", step) == 1
    found = []
    for _ in range(14):
        pauses.failed("a", step)
        found.append(pauses.left("a", step))
        step += found[-1]
    assert found == [1 + 2 ** min(k, 10) for k in range(1, 15)] and pauses.left("b", step) == 0
    pauses.failed("b", step, 50)
    assert pauses.left("b", step) == 51 and pauses.left("b", step + 51) == 0
    pauses.succeeded("a")
    assert pauses.left("a", step) == 0


def test_calls_in_a_row_end_the_pause():
    pauses = BackOff()
    for _ in range(10):
        pauses.failed("a", 0)
    assert [k for k in range(3, 120, 3) if not pauses.left("a", k)] == []
    assert not any(pauses.left("a", k) for k in range(1000, 1020))  # the pause is over by then
    pauses.failed("a", 2000)
    assert [k - 2000 for k in range(2010, 2045) if not pauses.left("a", k)] == [11, 13, 17, 25, 41]


def test_what_has_changed_is_observed_soon():
    """Though steps before were observed in vain now and then."""
    def evaluates_now_and_then(h, x):
        h.steps += 1
        return x * eval("2.0") if h.steps % 4 == 0 and h.mean < 1.0 else x * h.mean

    def change(h, k):
        h.mean = 0.5 if k < 200 else 1.5

    step = harness.compare_steps(program(evaluates_now_and_then, inside=False, change=change), whole=100, express=0, n=240)
    assert step.stats().whole_steps > 150 + 25


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
