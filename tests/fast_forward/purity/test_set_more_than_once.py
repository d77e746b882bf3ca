"""What a layer or a step sets more than once, with calls of unknown code in between: these find in each skipped step what was there when they were called."""

import collections
import json
import types

import keras
import pytest

from tests import harness
from tests.fast_forward.purity import training
from tests.fast_forward.purity.test_changes_in_layers import X, Y, program

Progress = collections.namedtuple("Progress", "steps mean")


class Amount:
    def __init__(self, value):
        self.value = value


UNKNOWN = """
def notes(held): held.seen.append((held.n, held.mean, held.busy, held.table["n"], tuple(held.state), [*held.items], held.amount.value, held.passing))
def scales(held): held.calls += 1; notes(held); return held.scale if held.calls > held.limit else 1.0
"""
SPACE = {}
exec(UNKNOWN, SPACE)


class Held:
    passing = None

    def __init__(self):
        self.n, self.mean, self.busy, self.table, self.state, self.items, self.amount = 0, 0.5, False, {"n": 0}, Progress(0, 0.0), [], Amount(0)
        self.seen, self.calls, self.limit, self.scale = [], 0, 10**9, 1.0
        self.notes, self.scales = types.MethodType(SPACE["notes"], self), types.MethodType(SPACE["scales"], self)

    def __repr__(self):
        return f"<{self.n} {self.busy} {self.table}>"

    def enter(self):
        self.n += 1
        self.busy = True

    def leave(self):
        self.n += 1
        self.busy = False

    def look(self):
        return self.seen, self.n, self.mean, self.busy, self.table, self.state, self.items, self.amount.value, self.passing


def marks_what_it_does(h, x):
    h.busy = True
    h.notes()
    h.busy = False
    return x


def counts_twice(h, x):
    h.n += 1
    h.notes()
    h.n += 2
    h.notes()
    return x


def counts_in_two_methods(h, x):
    h.enter()
    h.notes()
    h.leave()
    return x * 0.5


def prints_in_between(h, x):
    h.enter()
    print(h)
    h.leave()
    print(h)
    return x


def counts_in_a_loop(h, x):
    for k in range(3):
        h.n += k
        h.notes()
    return x


def counts_and_sets(h, x):
    h.n += 1
    h.notes()
    h.n = 5
    h.notes()
    h.n += 1
    return x


def counts_items(h, x):
    h.table["n"] += 1
    h.notes()
    h.table["n"] += 1
    return x


def means_twice(h, x):
    h.mean = 0.9 * h.mean + 0.1
    h.notes()
    h.mean = 0.9 * h.mean - 0.05
    return x * (1.0 + 0.01 * h.mean)


def replaces_twice(h, x):
    h.state = Progress(h.state.steps + 1, 0.5)
    h.notes()
    h.state = Progress(h.state.steps + 1, 0.25)
    return x


def deletes_in_between(h, x):
    h.passing = 1
    h.notes()
    del h.passing
    h.notes()
    h.passing = 2
    return x


def depends_on_what_it_is_told(h, x):
    h.n += 1
    h.busy = True
    x = x * h.scales()
    h.n += 1
    h.busy = False
    return x * h.scales()


PROGRAMS = [marks_what_it_does, counts_twice, counts_in_two_methods, prints_in_between, counts_in_a_loop, counts_and_sets, counts_items, means_twice, replaces_twice, deletes_in_between,
            depends_on_what_it_is_told]


@pytest.mark.share(3)
@pytest.mark.parametrize("inside", [True, False], ids=["in a layer", "in a step"])
@pytest.mark.parametrize("body", PROGRAMS)
def test_calls_in_between_find_what_was_set_by_then(body, inside):
    harness.compare_steps(program(body, inside, held=Held), whole=12, express=0, n=60)


@pytest.mark.parametrize("inside", [True, False], ids=["in a layer", "in a step"])
def test_both_are_taken_back(inside):
    """The second call gives something else in some steps: the code around runs then, and finds what was there before the step."""
    def change(h, k):
        if k == 40:
            h.limit, h.scale = h.calls + 1, 2.0
        if k == 50:
            h.limit = 10**9

    harness.compare_steps(program(depends_on_what_it_is_told, inside, change, held=Held), whole=12, express=0, n=60)


def fills_what_it_has_set(h, x):
    items = [h.n]
    h.items = items
    h.notes()
    items.append(2.0)
    return x


def changes_what_it_has_set(h, x):
    amount = Amount(1)
    h.amount = amount
    h.notes()
    amount.value = 3
    return x


def changes_what_it_sets_again(h, x):
    h.items = items = [1]
    h.notes()
    items.append(2)
    h.items = [3]
    h.notes()
    return x


def writes_down_what_it_has_set(h, x):
    items = [1]
    h.table["items"] = items
    h.seen.append(json.dumps(h.table))
    items.append(2)
    return x


@pytest.mark.parametrize("body", [writes_down_what_it_has_set, fills_what_it_has_set, changes_what_it_has_set, changes_what_it_sets_again])
def test_what_is_changed_after_it_was_seen(body):
    step = harness.compare_steps(program(body, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 40


def test_a_step_and_a_layer_in_it_set_it():
    def make():
        h = Held()

        class Layer(keras.layers.Layer):
            def call(self, x):
                h.n += 1
                h.busy = False
                return x * 2.0

        model, train = training.around(Layer(), X, Y)
        h.n = 0

        def step():
            h.n += 1
            h.busy = True
            print("before", h.n, h.busy)
            loss = train()
            print("behind", h.n, h.busy)
            return loss

        return step, lambda step, k: step(), lambda: [model.weights, h.look()]

    harness.compare_steps(make, whole=12, express=0, n=60)
