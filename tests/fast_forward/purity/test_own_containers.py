"""Containers that a step makes of classes that derive from dict or list (`OrderedDict`, `defaultdict`, the program's own), and namespaces: such steps are skipped, and give what they give eagerly."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests.harness import check_skipped

N = 28
X = [tf.constant(np.random.RandomState(k).rand(3, 4), tf.float32) for k in range(4)]
events = []


class Items(dict):
    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__


class Looks(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Itself(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Batch(dict):
    scale = 2.0

    def __init__(self, x, **more):
        super().__init__([("x", x)], **more)
        self.made = len(self)

    def total(self):
        return tf.reduce_sum(self["x"]) * self.scale


class Meters(collections.OrderedDict):
    def note(self, name, value):
        self[name] = value


class Stack(list):
    def top(self):
        return self[-1]


def items(h):
    found = Items()
    found.mean, found.total = tf.reduce_mean(h), tf.reduce_sum(h)
    found.mean *= 2.0
    return sum(found.values()) + found["total"]


def items_given(h):
    found = Items(mean=tf.reduce_mean(h), by=3.0)
    return found.mean * found.by


def looks(h):
    found = Looks()
    found.mean = tf.reduce_mean(h)
    found.twice = found.mean * 2.0
    return found.twice + (0.0 if hasattr(found, "other") else found["mean"])


def itself(h):
    found = Itself(mean=tf.reduce_mean(h))
    found.more = found["mean"] * 2.0
    return found.mean + found["more"]


def batch(h):
    found = Batch(h, y=2.0)
    return found.total() * found["y"] + float(found.made)


def meters(h):
    found = Meters()
    found.note("b", tf.reduce_mean(h))
    found.note("a", tf.reduce_sum(h))
    found.move_to_end("b")
    return tf.stack(list(found.values()))


def stack(h):
    found = Stack([h])
    found.append(h * 2.0)
    found.extend([found.top() + 1.0])
    return tf.add_n(list(found)) + found.top()


def ordered(h):
    found = collections.OrderedDict([("b", tf.reduce_mean(h))])
    found["a"] = found["b"] * 2.0
    found.update(c=found["a"] + 1.0)
    return tf.stack([found.pop("b"), *found.values()])


def default_lists(h):
    found = collections.defaultdict(list)
    for k in range(3):
        found[k % 2].append(tf.reduce_mean(h[k]))
    found["more"] += [tf.reduce_sum(h)]
    return tf.add_n(found[0]) + tf.add_n(found[1]) * found["more"][0] + float(len(found))


def default_numbers(h):
    found = collections.defaultdict(float, other=1.0)
    for name in "abca":
        found[name] += tf.reduce_mean(h)
    return found["a"] * 2.0 + found["b"] + found["other"] + found["none"]


def namespace(h):
    found = types.SimpleNamespace(mean=tf.reduce_mean(h))
    found.twice = found.mean * 2.0
    found.mean += 1.0
    return found.mean * found.twice


SKIPPED = [items, items_given, looks, itself, batch, meters, stack, ordered, default_lists, default_numbers, namespace]


class SetsItems(dict):
    def __setitem__(self, key, value):
        events.append(key)
        super().__setitem__(key, value)


class Missing(dict):
    def __missing__(self, key):
        events.append(key)
        return 1.0


class Goes(dict):
    def __del__(self):
        events.append("gone")


def sets_items(h):
    found = SetsItems()
    found["mean"] = tf.reduce_mean(h)
    return found["mean"]


def missing(h):
    found = Missing(mean=tf.reduce_mean(h))
    return found["mean"] * found["by"]


def made_by_the_program(h):
    found = collections.defaultdict(lambda: events.append("made") or 2.0)
    return tf.reduce_mean(h) * found["by"]


def goes(h):
    return Goes(mean=tf.reduce_mean(h))["mean"]


def given_back(h):
    return collections.OrderedDict(mean=tf.reduce_mean(h), items=Items(a=tf.reduce_sum(h)))


def not_there(h):
    try:
        return Items(mean=tf.reduce_mean(h)).total
    except KeyError as error:
        return tf.reduce_sum(h), repr(error)


def compared(h):
    one, other = Items(a=1), Items(a=1)
    return tf.reduce_mean(h) * float(one == other), repr(one), other is one, {"a": 1} == one


OTHERS = [sets_items, missing, made_by_the_program, goes, given_back, not_there, compared]


def plain(value):
    if isinstance(value, dict):
        return type(value).__name__, [(key, plain(x)) for key, x in value.items()]
    return [*map(plain, value)] if isinstance(value, tuple) else value.numpy().tolist() if tf.is_tensor(value) else value


def run(compute, wrap, change=None):
    events.clear()
    weight = tf.Variable(tf.ones((4, 4)) / 4.0)

    def step(x):
        h = tf.tanh(x @ weight)
        weight.assign_sub(0.01 * tf.matmul(h, h, transpose_a=True))
        return compute(h)

    step, found = wrap(step), []
    for k in range(N):
        if k == 20 and change is not None:
            change()
        found.append(plain(step(X[k % 4])))
    return [*found, weight.numpy().tolist(), events[:]], step


def compare(compute, change=None, undo=None, **options):
    try:
        eager, _ = run(compute, lambda f: f, change)
    finally:
        if undo is not None:
            undo()
    try:
        ours, step = run(compute, lambda f: terra.coexecute(f, wait_for_graph=True, **options), change)
    finally:
        if undo is not None:
            undo()
    assert ours == eager
    return step


@pytest.mark.parametrize("compute", SKIPPED)
def test_skipped(compute):
    check_skipped(compare(compute), N, 12, 6)


@pytest.mark.parametrize("compute", SKIPPED)
def test_verified(compute):
    check_skipped(compare(compute, verify=True), N, 0, 0, True)


@pytest.mark.parametrize("compute", OTHERS)
def test_others_are_right(compute):
    assert compare(compute).stats().coexecuted_steps >= 12


def another_method():
    Batch.total = lambda self: tf.reduce_mean(self["x"])


def another_constant():
    Batch.scale = 3.0


def another_way_to_set():
    Batch.__setitem__ = lambda self, key, value: events.append(key)


def another_beginning():
    Batch.__init__ = lambda self, x, **more: dict.__init__(self, x=x * 2.0, y=1.0) or setattr(self, "made", 7)


@pytest.mark.parametrize("change", [another_method, another_constant, another_way_to_set, another_beginning])
def test_the_class_is_changed(change):
    before = dict(vars(Batch))

    def undo():
        for name in ("total", "scale", "__init__"):
            setattr(Batch, name, before[name])
        if "__setitem__" in vars(Batch):
            del Batch.__setitem__

    check_skipped(compare(batch, change, undo), N, 6, 3)
