"""Objects in whose place layers and steps put others: named tuples, data classes, members of enumerations, arrays, objects of the program's own classes.

What their classes do is observed, what they hold is read anew; and objects that the program finds in two ways stay told apart.
"""

import collections
import copy
import dataclasses
import enum
import random
import types

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness
from tests.fast_forward.purity.test_changes_in_layers import program

Pair = collections.namedtuple("Pair", "new old")


@dataclasses.dataclass(frozen=True)
class Progress:
    steps: int = 0
    mean: float = 0.0


@dataclasses.dataclass(frozen=True)
class Run:
    progress: Progress
    name: str


class Phase(enum.Enum):
    WARM = 1
    HOT = 2

    def other(self):
        return Phase.HOT if self is Phase.WARM else Phase.WARM


class Amount:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Amount(self.value + other.value)

    def __eq__(self, other):
        return isinstance(other, Amount) and self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __len__(self):
        return int(self.value)

    def __bool__(self):
        return self.value % 3 > 0


class Rule:
    by = 1.0

    def __init__(self, used=0):
        self.used = used

    @property
    def doubled(self):
        return self.used * 2

    def scale(self, h):
        h.note = "whole"
        return self.by


class Halves(Rule):
    by = 0.5

    def scale(self, h):
        self.used += 1
        return self.by


class Positive:
    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, it, owner=None):
        return getattr(it, self.name)

    def __set__(self, it, value):
        if value < 0.01:
            raise ValueError(f"{value} is too small")
        setattr(it, self.name, value)


class Settings:
    rate = Positive()

    def __init__(self):
        self.rate, self._count, self.changes = 1.0, 0, []

    @property
    def count(self):
        return self._count

    @count.setter
    def count(self, value):
        self._count = value


class Noting:
    def __init__(self):
        object.__setattr__(self, "changes", [])
        self.rate = 1

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        self.changes.append(name)


class Slots:
    __slots__ = ("rate",)


class Held:
    def __init__(self):
        self.steps, self.pair, self.progress, self.run, self.phase, self.amount, self.seen = 0, Pair(1, 0), Progress(), Run(Progress(), "first"), Phase.WARM, Amount(1), None
        self.rules, self.rule, self.settings, self.noting, self.slots = [Rule(), Halves(), Rule(5)], None, Settings(), Noting(), Slots()
        self.main, self.random, self.array, self.out, self.recent, self.ns = self.rules[1], random.Random(4), np.ones(6, "float32"), np.zeros(3), collections.deque(maxlen=4), types.SimpleNamespace(n=0)
        self.slots.rate, self.known, self.kept, self.also, self.note = 1.0, {}, None, None, ""
        self.flag, self.mean = False, 0.0

    def look(self):
        return [self.steps, self.note, self.flag, self.mean, self.pair, self.progress, self.run, self.phase.name, self.amount.value, self.seen, [rule.used for rule in self.rules], self.settings.rate, self.settings.count,
                self.noting.rate, self.noting.changes, self.slots.rate, self.array.tolist(), self.out.tolist(), [*self.recent], self.ns.n, len(self.known), self.kept is self.also]


def replaces_a_named_tuple(h, x):
    h.pair = h.pair._replace(new=h.pair.new + 1, old=h.pair.new)
    return x * (1.0 + 0.01 * (h.pair.old % 5))


def unpacks_a_named_tuple(h, x):
    new, old = h.pair
    h.pair = Pair(new + old, new)
    h.seen = new
    return x


def replaces_a_data_class(h, x):
    h.progress = dataclasses.replace(h.progress, steps=h.progress.steps + 1)
    h.seen = h.progress.steps
    return x


def makes_a_data_class(h, x):
    h.progress = Progress(h.progress.steps + 1, 0.5 * h.progress.mean + 1.0)
    return x * h.progress.mean


def replaces_one_in_another(h, x):
    h.run = dataclasses.replace(h.run, progress=dataclasses.replace(h.run.progress, steps=h.run.progress.steps + 1))
    return x if h.run.progress.steps % 3 else x * 2.0


def takes_turns(h, x):
    h.phase = Phase.HOT if h.phase is Phase.WARM else Phase.WARM
    return x * (2.0 if h.phase is Phase.HOT else 1.0)


def asks_an_enumeration(h, x):
    h.phase = h.phase.other()
    h.known[h.phase] = h.known.get(h.phase, 0) + 1
    return x * float(h.phase.value)


def adds_objects(h, x):
    h.amount = h.amount + Amount(2)
    h.seen = len(h.amount)
    return x


def asks_objects(h, x):
    h.amount = Amount((h.amount.value + 1) % 7)
    h.seen = h.amount == Amount(2)
    return x * 2.0 if h.amount else x


def calls_methods_in_turn(h, x):
    h.steps += 1
    h.rule = h.rules[h.steps % 3]
    return x * h.rule.scale(h)


def asks_rules_in_turn(h, x):
    h.steps += 1
    h.rule = h.rules[h.steps % 3]
    h.seen = h.rule.scale(h)
    return x


def calls_methods_by_chance(h, x):
    h.rule = h.random.choice(h.rules)
    h.seen = h.rule.doubled
    return x * h.rule.scale(h)


def finds_one_in_two_ways(h, x):
    rule = h.random.choice(h.rules)
    h.seen = rule is h.main
    h.main.used += 1
    rule.used += 10
    return x


def chooses_twice(h, x):
    a, b = h.random.choice(h.rules), h.random.choice(h.rules)
    h.seen = a is b, a is not b
    a.used += 1
    b.used += 10
    return x


def keeps_one_twice(h, x):
    h.steps += 1
    h.kept = h.also = Amount(1.0 + h.steps)
    h.kept.value += 1
    h.seen = h.also.value
    return x


def changes_a_copy(h, x):
    ns = copy.copy(h.ns)
    ns.n += 1
    h.ns = ns
    return x


def sets_by_a_descriptor(h, x):
    h.settings.rate *= 0.99
    return x * h.settings.rate


def counts_by_a_property(h, x):
    h.settings.count += 2
    h.seen = h.settings.count
    return x


def sets_in_its_own_way(h, x):
    h.noting.rate = h.steps
    h.steps += 1
    return x


def sets_a_slot(h, x):
    h.slots.rate *= 0.9
    return x * h.slots.rate


def rolls_an_array(h, x):
    h.array = np.roll(h.array, 1)
    h.array[0] += 1.0
    return x * h.array


def writes_into_an_array(h, x):
    np.add(h.out, 1.0, out=h.out)
    h.seen = float(h.out.sum())
    return x


def averages_the_last(h, x):
    h.recent.append(h.random.random())
    h.seen = sum(h.recent) / len(h.recent)
    return x * (1.0 + 0.1 * h.seen)


def turns_a_flag(h, x):
    h.flag = not h.flag
    return x * 2.0 if h.flag else x


def keeps_one_now_and_then(h, x):
    h.rule = None if h.rule is not None else Rule(h.steps)
    h.steps += 1
    return x if h.rule is None else x * 2.0


def keeps_running_statistics(h, x):
    h.steps += 1
    delta = h.random.random()
    delta -= h.mean
    h.mean += delta / h.steps
    return x * (1.0 + 0.01 * h.mean)


def changes_what_it_has_put_there(h, x):
    h.amount = Amount(h.amount.value + 1)
    h.amount.value += 1
    h.seen = h.amount.value
    return x


BODIES = [turns_a_flag, keeps_one_now_and_then, keeps_running_statistics, changes_what_it_has_put_there, replaces_a_named_tuple, unpacks_a_named_tuple, replaces_a_data_class, makes_a_data_class, replaces_one_in_another, takes_turns, asks_an_enumeration, adds_objects, asks_objects, calls_methods_in_turn,
          calls_methods_by_chance, finds_one_in_two_ways, changes_a_copy, sets_by_a_descriptor, counts_by_a_property, sets_in_its_own_way, sets_a_slot, rolls_an_array, writes_into_an_array, averages_the_last]
TOLD_APART = [chooses_twice, keeps_one_twice]  # which are perhaps not skipped each time


@pytest.mark.all_variants
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_in_a_layer(body, verify):
    harness.compare_steps(program(body, held=Held), whole=12, express=0, n=60, verify=verify)


@pytest.mark.parametrize("body", BODIES)
def test_in_a_step(body):
    harness.compare_steps(program(body, inside=False, held=Held), whole=0, express=0, n=60)


@pytest.mark.parametrize("body", TOLD_APART)
def test_objects_are_told_apart(body):
    harness.compare_steps(program(body, held=Held), whole=0, express=0, n=60)


def test_another_class_comes():
    """From then on its methods are called; before, those of the class that was there."""
    class Thirds(Rule):
        def scale(self, h):
            h.note = "third"
            return 0.3

    def change(h, k):
        if k in (20, 40):
            h.rules[k // 20] = Thirds(k)

    harness.compare_steps(program(asks_rules_in_turn, held=Held, change=change), whole=12, express=0, n=80)


def test_a_class_changes():
    """A method that was observed is another one from then on."""
    def change(h, k):
        Halves.scale = was if k < 30 or k > 60 else lambda self, h: 2.0

    was = Halves.scale
    try:
        harness.compare_steps(program(asks_rules_in_turn, held=Held, change=change), whole=12, express=0, n=80)
    finally:
        Halves.scale = was


def test_an_object_that_is_seldom_replaced():
    """It is read like any other."""
    def body(h, x):
        h.steps += 1
        if h.steps % 25 == 0:
            h.rule = Rule(h.steps)
        return x * (h.rule or h.main).by

    harness.compare_steps(program(body, held=Held), whole=40, express=0, n=80)


def test_an_object_that_holds_tensors():
    """Where the next step takes them up, its code runs."""
    def make():
        w, held = tf.Variable([1.0, 2.0, 3.0]), types.SimpleNamespace(last=None)

        def step(x):
            y = tf.tanh(w * x)
            if held.last is not None:
                y += 0.1 * held.last.value
            held.last = Amount(y)
            w.assign_sub(0.1 * y)
            return y

        return step, lambda step, k: step(tf.constant([1.0, 2.0, float(k % 3)])), lambda: [w, held.last.value]

    step = harness.compare_steps(make, whole=0, express=0, n=40)
    assert step.stats().coexecuted_steps >= 30


def test_values_before_an_object_are_known_in_the_step_around():
    """A layer leaves an object before it calls unknown code: what the step finds then is that very object."""
    def body(h, x):
        h.progress = Progress(h.progress.steps + 1, 1.0)
        h.seen = h.random.choice([1, 2, 3]) + h.progress.steps
        return x * (1.0 + 0.001 * h.seen)

    harness.compare_steps(program(body, held=Held), whole=12, express=0, n=60)


@pytest.mark.parametrize("reads", [lambda queue, n: queue.append(n), lambda queue, n: queue.appendleft(n) if n > 1 else queue.append(-n)], ids=["a value", "a way"])
def test_unknown_code_behind_a_value_that_is_read(reads):
    """It is called when the value is known to be the one that was recorded: another one leads to another call."""
    def make():
        queue, w = collections.deque(maxlen=9), tf.Variable([1.0, 2.0])

        class Queue:  # so that nothing is known of its methods
            append = types.MethodType(exec_append, queue)
            appendleft = types.MethodType(exec_appendleft, queue)

        def step(x):
            with tf.GradientTape() as tape:
                n = int(tf.reduce_sum(tf.cast(x > 0, tf.int32)))
                reads(Queue, n)
                loss = tf.reduce_sum(x * w) / n
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        batches = [tf.constant(x) for x in ([1.0, 1.0], [1.0, -1.0], [2.0, 3.0])]
        return step, lambda step, k: step(batches[k * k % 3]), lambda: [w, [*queue]]

    step = harness.compare_steps(make, whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 50


SPACE = {}
exec("def append(queue, n): queue.append(n)\ndef appendleft(queue, n): queue.appendleft(n)", SPACE)
exec_append, exec_appendleft = SPACE["append"], SPACE["appendleft"]


def test_explain_says_nothing_is_left():
    make = program(makes_a_data_class, held=Held)
    step, call, _ = make()
    step = terra.coexecute(step, wait_for_graph=True)
    for k in range(60):
        call(step, k)
    assert "runs as Python" not in terra.explain(step)
