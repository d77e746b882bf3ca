"""Numbers that calls give anew at each step inside of layers, losses and optimizers: operations are given them, the step is skipped, and each is drawn once and in order."""

import io
import itertools
import json
import operator
import random
import statistics
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.purity.facts import lifetimes
from tests import harness
from tests.fast_forward.purity import training
from tests.fast_forward.purity.training import DATA

X, Y = DATA[0], DATA[1]


RATES = [1.0, 0.99, 1.01]


class Held:
    """What layers draw from."""

    def __init__(self):
        self.random, self.generator, self.v, self.last = random.Random(1), np.random.default_rng(1), tf.Variable(1.0, trainable=False), None
        self.numpys = np.random.RandomState(3)
        self.said, self.mean, self.cycle, self.thousands = io.StringIO(), 0.5, itertools.cycle(RATES), itertools.cycle([3000, 4000, 5000])
        self.letters = itertools.cycle("78")


def own(h, x):
    return x * (1.0 + 0.01 * h.random.random())


def pythons(h, x):
    return x * random.uniform(0.9, 1.1)


def numpys(h, x):
    return x - np.random.uniform(-0.1, 0.1)


def of_numpys_type(h, x):
    return np.float64(h.generator.normal()) * x / (1.0 + h.generator.random(dtype=np.float32))


def by_functions(h, x):
    return tf.multiply(x, h.random.random()) + tf.constant(h.random.random()) * tf.cast(h.random.random(), tf.float32)


def assigns(h, x):
    h.v.assign(h.random.random())
    return x * h.v


def keeps(h, x):
    h.last = h.random.random()
    return x + h.last


def stochastic_depth(h, x):
    p = random.random()
    return x if p < 0.3 else x * (1.0 + p)


def adds_in_place(h, x):
    x += h.random.random()
    x *= 1.0 + h.random.random()
    return x


def calculates(h, x):
    return x * (h.random.random() - 0.5) ** 2 + x * -h.random.gauss(0.0, 1.0)


def takes_in_turn(h, x):
    """The same few objects come again and again: a record of a call that holds for one of them is found to hold, too, once it is known that there are others."""
    return x * next(h.cycle)


def takes_integers_in_turn(h, x):
    return x * (next(h.thousands) / 4000.0)


def item_of_a_sample(h, x):
    return x * h.random.sample(RATES, 2)[0]


def takes_letters_in_turn(h, x):
    """Python has one object for each letter, also for those of the program's own."""
    return x * (float(next(h.letters)) / float("7"))


def makes_letters(h, x):
    return x * float(f"{h.random.randint(7, 8)}") / float("7")


def hands_on_twice(h, x):
    """Each call is given a dict that holds what this one does."""
    rates = {"a": next(h.cycle)}
    json.dumps(rates)
    return x * json.loads(json.dumps(rates))["a"]


def averages_and_branches(h, x):
    """The number that is read may be read again where the branch turns out to be another one, the draw must not be made again."""
    h.mean = 0.9 * h.mean + 0.1 * h.random.random()
    return x * h.mean if h.random.random() < 0.5 else x


BODIES = [averages_and_branches, hands_on_twice, takes_in_turn, takes_integers_in_turn, takes_letters_in_turn, makes_letters, item_of_a_sample, own, pythons, numpys, of_numpys_type, by_functions, assigns, keeps, stochastic_depth, calculates, adds_in_place]


def prints_it(h, x):
    print(f"{h.random.random():.3f}", file=h.said)
    return x * 1.5


def looks_at_a_tensor_of_it(h, x):
    return x * 2.0 if float(tf.constant(h.random.random()) * 1.0) < 0.5 else x


def draws_integers(h, x):
    """The first one is always as it was recorded, and is made when it turns out that the second one is not."""
    x = tf.roll(x, h.random.randint(0, 0), 0) * 2.0
    return tf.roll(x, h.random.randint(0, 9), 0)


def shuffles(h, x):
    """Unknown code changes the list that it is given, but not each time: it may give back the order that there was."""
    order = [0, 1, 2]
    h.numpys.shuffle(order)
    return x * RATES[order[0]]


def sorts_within(h, x):
    orders = {"a": [[1, 0]], "b": 2.0}
    h.numpys.shuffle(orders["a"][0])
    return x * RATES[orders["a"][0][0]]


def hands_on_the_same(h, x):
    """What it is given is one list: where that is changed, both are."""
    rates = [next(h.cycle)]
    return x * statistics.mean(operator.concat(rates, rates))


def hands_on_what_holds_itself(h, x):
    rates = [next(h.cycle)]
    rates.append(rates)
    return x * float(repr(rates)[1:4])


def gives_it_to_what_looks(h, x):
    return x * tf.cast(tf.size(tf.range(0.0, tf.constant(h.random.random()), 0.1)), tf.float32)


def gives_an_array(h, x):
    return x + np.random.normal(size=(6,)).astype("float32")


OTHERS = [shuffles, sorts_within, hands_on_the_same, hands_on_what_holds_itself, prints_it, looks_at_a_tensor_of_it, gives_it_to_what_looks, draws_integers, gives_an_array]


def program(body, place="layer", around=None):
    """`make` for `harness.compare_steps`: a step that trains a model in which `body` stands at this place; `around(held, loss)` runs in the step itself."""
    def make():
        h = Held()

        class Layer(keras.layers.Layer):
            def call(self, x):
                return body(h, x)

            def compute_output_shape(self, shape):  # so that Keras does not try it out
                return shape

        class Loss(keras.losses.Loss):
            def call(self, y, p):
                return tf.reduce_mean(tf.square(y - (body(h, p) if place == "loss" else p)), -1)

        class SGD(keras.optimizers.SGD):
            def apply_gradients(self, pairs):
                return super().apply_gradients([(body(h, g) if place == "optimizer" else g, v) for g, v in pairs])

        model = keras.Sequential([keras.layers.Dense(6), Layer() if place == "layer" else keras.layers.ReLU(), keras.layers.Dense(6)])
        model.build((None, 6))
        loss_of = Loss()
        train = training.trains(model, SGD(0.01), lambda p: loss_of(Y, p))

        def step(x):
            loss = train(x)
            return loss if around is None else around(h, loss)

        return step, lambda step, k: step(X), lambda: [model.weights, h.v, str(h.numpys.get_state()), h.last, h.mean, h.said.getvalue(), str(h.random.getstate()), str(h.generator.bit_generator.state)]

    return make


@pytest.mark.all_variants
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_in_a_layer(body, verify):
    harness.compare_steps(program(body), whole=12, express=0, n=40, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("place", ["loss", "optimizer"])
def test_elsewhere(place):
    harness.compare_steps(program(own, place), whole=12, express=0)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", OTHERS)
def test_what_matters_is_made_again(body):
    """What is drawn decides what the layer does, or is an array: it runs, and draws once."""
    harness.compare_steps(program(body), whole=0, express=0, n=40)


def test_the_order_of_draws():
    """The step draws before the layers where it is skipped: it is not, if both draw from one generator."""
    harness.compare_steps(program(own, around=lambda h, loss: loss * h.random.random()), whole=0, express=0)
    harness.compare_steps(program(numpys, around=lambda h, loss: loss * np.random.random()), whole=0, express=0)


def test_numbers_that_vary_in_calls_that_are_not_skipped():
    """That a number is another one each time is found even where nothing was recorded that it could have been missed in."""
    harness.compare_steps(program(lambda h, x: tf.maximum(x, h.random.random())), whole=12, express=0)


class Scales(keras.optimizers.SGD):
    """An optimizer that looks at what it is given: Keras hands it a zip."""

    def apply_gradients(self, pairs):
        pairs = list(pairs)
        self.seen = len(pairs)
        return super().apply_gradients([(g * 0.5, v) for g, v in pairs])


def fitted(run_eagerly, optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    how = {"optimizer": optimizer(0.01), "loss": "mse"}
    steps, data = training.compiled(model, run_eagerly, **how)
    history = model.fit(data, epochs=2, verbose=0).history
    return steps, [history, [w.numpy().tolist() for w in model.weights], model.optimizer.seen]


@pytest.mark.all_variants
def test_an_optimizer_that_is_handed_a_zip():
    _, expected = fitted(True, Scales)
    steps, found = fitted(False, Scales)
    assert found == expected
    assert steps.train.stats().whole_steps >= 40, terra.explain(steps.train)


def test_who_holds_an_iterator():
    """What only running functions hold can be read once; what anything else holds, the next call may go on with."""
    def asks(*iterators):
        return [lifetimes.is_held_by_frames_only(it, sys._getframe()) for it in iterators]

    def asks_of_one(it):
        return lifetimes.is_held_by_frames_only(it, sys._getframe())

    assert asks_of_one(zip([1], (2,))) and asks_of_one(enumerate([1])) and asks_of_one(zip(enumerate([1]), reversed([2])))
    assert not asks_of_one(zip(map(abs, [1]))) and not asks_of_one(zip({1: 2}))  # which run code, or are not looked into
    kept, inner = zip([1]), iter([1])
    held = [kept, {"a": zip([2])}, types.SimpleNamespace(it=zip([3])), inner]
    assert not any(map(asks_of_one, [held[0], held[1]["a"], held[2].it, zip(held[3])]))
    assert asks(zip([1])) == [False]  # (a tuple holds it)
