"""Python that training steps are written in: objects made on the way, context managers, caches, configurations. A step that uses them is skipped, and gives what it gives eagerly."""

import argparse
import collections
import contextlib
import dataclasses
import functools
import operator
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from terra.runtime.fast_forward.purity.facts.plain_classes import is_plain_class
from tests.harness import differ

N = 28
events = []


def given(k):
    return (tf.constant(np.random.RandomState(k % 4).rand(6, 3), tf.float32),)


class State:
    """What programs below have outside of their steps."""

    scale, calls, kept, mode = 2.0, 0, None, "plain"


class Categorical:
    """A distribution, written by hand."""

    temperature = 1.0

    def __init__(self, logits):
        self.logits = logits / self.temperature
        self.log_probs = tf.nn.log_softmax(self.logits)

    @property
    def probs(self):
        return tf.nn.softmax(self.logits)

    def sample(self):
        return tf.random.categorical(self.logits, 1)[:, 0]

    def log_prob(self, action):
        return tf.reduce_sum(tf.one_hot(action, 3) * self.log_probs, -1)

    def entropy(self):
        return -tf.reduce_sum(self.probs * self.log_probs, -1)


class Tempered(Categorical):
    def __init__(self, logits, temperature):
        self.temperature = temperature
        super().__init__(logits)
        self.made_by = "tempered"


class Base:
    def __init__(self):
        super().__init__()
        self.parts = []


class Vector(Base):
    def __init__(self, x):
        super().__init__()
        self.x = x
        self.parts.append(x)

    def __add__(self, other):
        return Vector(self.x + other.x)

    def __mul__(self, factor):
        if isinstance(factor, Scale):
            return NotImplemented
        return Vector(self.x * factor)

    def __rmul__(self, factor):
        return Vector(factor * self.x)

    def __neg__(self):
        return Vector(-self.x)


class Scale:
    def __rmul__(self, vector):
        return Vector(vector.x * 4.0)


class Counted:
    made = 0

    def __init__(self, x):
        Counted.made += 1
        self.x = x


class Logged:
    def __init__(self, x):
        events.append("made")
        self.x = x


class Finalised:
    def __init__(self, x):
        self.x = x

    def __del__(self):
        events.append("gone")


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class WithSetter:
    def __init__(self, x):
        self.x = x

    @property
    def x(self):
        return self._x

    @x.setter
    def x(self, value):
        events.append("set")
        self._x = value * 2.0


class Scope:
    """A context manager that says what holds inside of it."""

    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        self.outer, state.mode = state.mode, self.mode
        return self

    def __exit__(self, kind, error, trace):
        state.mode = self.outer
        return kind is ArithmeticError


@contextlib.contextmanager
def scoped(mode):
    outer, state.mode = state.mode, mode
    try:
        yield mode + "!"
    finally:
        state.mode = outer


class Timer:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *error):
        state.seconds = time.perf_counter() - self.start


class AttrDict(dict):
    __getattr__ = dict.__getitem__


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclasses.dataclass
class Options:
    rate: float
    factor: float = 1.0


Point = collections.namedtuple("Point", "x factor")


@functools.lru_cache(None)
def weights_of(n):
    events.append("computed")
    return [state.scale * k for k in range(n)]


state = State()
shared = Scope("shared")
attr_dict, config = AttrDict(rate=0.5, inner=AttrDict(factor=2.0)), Config(rate=0.5)
namespace, parsed = types.SimpleNamespace(rate=0.5), argparse.Namespace(rate=0.5)
ordered = collections.OrderedDict(a=1.0, b=2.0)
lists = collections.defaultdict(list, a=[1.0])
losses, values = {"a": None, "b": None}, [1.0, 2.0, 3.0]


def distribution(y):
    d = Categorical(y)
    action = d.sample()
    return d.log_prob(action) + 0.01 * d.entropy()


def tempered(y):
    d = Tempered(y, 0.5)
    return d.entropy() * len(d.made_by)


def vectors(y):
    v = Vector(y) + Vector(y * 2.0)
    return (v * 3.0).x + (-v).x


def reflected(y):
    return (Vector(y) * Scale()).x + (2.0 * Vector(y)).x


def with_scope(y):
    with Scope("double") as s:
        y = y * (2.0 if state.mode == "double" else 1.0)
    return y + len(s.mode)


def with_shared_scope(y):
    with shared:
        return y * (2.0 if state.mode == "shared" else 1.0)


def with_generator(y):
    with scoped("double") as name:
        y = y * (2.0 if state.mode == "double" else 1.0)
    return y * len(name)


def swallows(y):
    with Scope("risky"):
        y = y + 1.0
        raise ArithmeticError
    return y * 2.0


def timed(y):
    with Timer("forward"):
        y = y * 2.0
    return y


def clocked(y):
    start = time.time()
    y = y * 2.0
    state.seconds = time.time() - start
    return y


def escapes(y):
    state.kept = Vector(y)
    return y * 2.0


def kept_from_before(y):
    before, state.kept = state.kept, Vector(tf.stop_gradient(y))
    return y if before is None else y + 0.1 * before.x


def replaced(y):
    p = Point(y, 2.0)._replace(factor=3.0)
    o = dataclasses.replace(Options(0.5), factor=4.0)
    return p.x * p.factor * o.rate * o.factor


def new_order(y):
    total = y
    for name, factor in ordered.items():
        total = total * factor + len(name) * factor
    return total


def asks_for_what_is_not_there(y):
    return y * (2.0 if hasattr(config, "missing") else 1.0) * getattr(config, "rate", 3.0)


def named_items(y):
    for name in ("a", "b"):
        losses[name] = tf.reduce_mean(y)
        y = y * 1.5
    return y + losses["a"]


def indexed_items(y):
    for i in range(3):
        y = y * values[i]
    return y


def sorted_by_value(y):
    rows = sorted([y[0], y[1], y[2]], key=lambda row: float(tf.reduce_sum(row)))
    return rows[0] - rows[-1]


PROGRAMS = {  # name -> (what the step does, how many of the steps are skipped as a whole, what the program changes between steps)
    "distribution": (distribution, 16, lambda: setattr(Categorical, "temperature", 3.0)),
    "derived": (tempered, 16, lambda: setattr(Tempered, "entropy", lambda self: -tf.reduce_sum(self.log_probs, -1))),
    "operators": (vectors, 16, lambda: setattr(Vector, "__neg__", lambda self: Vector(self.x * 0.5))),
    "reflected operators": (reflected, 0, None),
    "a counter of the class": (lambda y: Counted(y).x * 2.0, 0, None),
    "logs": (lambda y: Logged(y).x * 2.0, 10, None),
    "finalised": (lambda y: Finalised(y).x * 2.0, 0, None),
    "slots": (lambda y: Slotted(y).x * 2.0, 0, None),
    "setter": (lambda y: WithSetter(y).x * 2.0, 0, None),
    "scope": (with_scope, 10, lambda: setattr(state, "mode", "other")),
    "shared scope": (with_shared_scope, 10, lambda: setattr(Scope, "__enter__", lambda self: self)),
    "generator scope": (with_generator, 10, lambda: setattr(state, "mode", "other")),
    "swallows": (swallows, 0, None),
    "timer": (timed, 0, None),
    "clock": (clocked, 0, None),
    "escapes": (escapes, 0, None),
    "kept": (kept_from_before, 0, None),
    "replaced": (replaced, 16, None),
    "cache": (lambda y: y * weights_of(3)[2], 12, lambda: (weights_of.cache_clear(), setattr(state, "scale", 5.0))),
    "cache that is not cleared": (lambda y: y * weights_of(3)[2], 16, lambda: setattr(state, "scale", 5.0)),
    "cache, its list changed": (lambda y: y * weights_of(3)[2], 12, lambda: weights_of(3).__setitem__(2, 7.0)),
    "attributes of a dict": (lambda y: y * attr_dict.rate * attr_dict.inner.factor, 12, lambda: attr_dict.inner.update(factor=3.0)),
    "attributes by code": (lambda y: y * config.rate, 12, lambda: config.update(rate=3.0)),
    "attributes that are not there": (asks_for_what_is_not_there, 0, lambda: config.update(missing=1)),
    "namespace": (lambda y: y * namespace.rate, 12, lambda: setattr(namespace, "rate", 3.0)),
    "parsed": (lambda y: y * parsed.rate, 12, lambda: setattr(parsed, "rate", 3.0)),
    "ordered": (new_order, 12, lambda: ordered.move_to_end("a")),
    "ordered anew": (lambda y: (ordered.move_to_end("a"), new_order(y))[1], 0, None),
    "default": (lambda y: y * lists["a"][0], 12, lambda: lists["a"].__setitem__(0, 3.0)),
    "default that is made": (lambda y: y * (1.0 + len(lists[f"new {state.calls // 8}"])), 0, lambda: setattr(state, "calls", state.calls + 9)),
    "named items": (named_items, 16, lambda: losses.update(c=1)),
    "indexed items": (indexed_items, 12, lambda: values.__setitem__(1, 5.0)),
    "reduce": (lambda y: functools.reduce(operator.add, [y, y * 2.0, y * 3.0], tf.zeros_like(y)), 16, None),
    "reduce by code": (lambda y: functools.reduce(lambda a, b: a * 0.5 + b * state.scale, [y, y * 2.0]), 12, lambda: setattr(state, "scale", 3.0)),
    "functions of operators": (lambda y: operator.mul(operator.neg(y), operator.truediv(1.0, 4.0)), 16, None),
    "sorted": (lambda y: y * sorted([3.0, 1.0, 2.0], key=lambda v: -v)[0] + max(["a", "bcd"], key=len).count("c"), 16, None),
    "sorted by value": (sorted_by_value, 0, None),
}


@pytest.fixture(autouse=True)
def as_it_was():
    """Programs change these."""
    held = [(cls, dict(vars(cls))) for cls in (Categorical, Tempered, Vector, Scope)]

    def put_back():
        for cls, names in held:
            for name, value in names.items():
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)
            for name in set(vars(cls)) - set(names):
                delattr(cls, name)

    yield put_back
    put_back()


def begin():
    for name in [*vars(state)]:
        delattr(state, name)
    events.clear()
    weights_of.cache_clear()
    attr_dict.inner["factor"], config["rate"], namespace.rate, parsed.rate = 2.0, 0.5, 0.5, 0.5
    config.pop("missing", None)
    ordered.clear()
    ordered.update(a=1.0, b=2.0)
    lists.clear()
    lists["a"] = [1.0]
    losses.clear()
    losses.update(a=None, b=None)
    values[:] = [1.0, 2.0, 3.0]
    Counted.made = 0
    shared.mode = "shared"


def told():
    """What programs leave behind, but for times."""
    kept = state.kept.x if state.kept is not None else 0
    return [w for w in (kept, state.mode, state.scale, len(events), events.count("computed"), Counted.made, len(lists), *losses.values(), len(losses)) if w is not None]


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["", "verify"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name, options, as_it_was):
    compute, whole, change = PROGRAMS[name]

    def make():
        begin()
        as_it_was()
        w = tf.Variable(tf.ones((3, 3)))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(compute(x @ w))
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        return step, lambda: [w, *[x if not isinstance(x, str) else len(x) for x in told()]]

    def between(k, step):
        if change is not None and k == 18:
            change()

    stats = differ(make, given, N, change=between, key=("idioms", name), **options)
    assert stats.coexecuted_steps >= (12 if name != "sorted by value" else 5), stats
    if not options:
        assert stats.whole_steps >= whole, stats
    if compute is timed or compute is clocked:  # the clock is looked at in each step, also where that is skipped
        assert state.seconds > 0.0


def test_which_classes_are_plain():
    class Meta(type):
        pass

    class WithMeta(metaclass=Meta):
        pass

    class Asked(type):
        def __instancecheck__(cls, it):
            return True

    class WithAsked(metaclass=Asked):
        pass

    class New:
        def __new__(cls):
            return super().__new__(cls)

    class Getter:
        def __getattribute__(self, name):
            return 1

    class Setter:
        def __setattr__(self, name, value):
            pass

    assert all(map(is_plain_class, (Categorical, Tempered, Vector, Scope, Timer, New, WithMeta)))
    assert not any(map(is_plain_class, (
        Finalised, Slotted, WithAsked, Getter, Setter, Config, AttrDict, Options, Point, dict, ValueError, tf.Module, tf.keras.layers.Dense)))
