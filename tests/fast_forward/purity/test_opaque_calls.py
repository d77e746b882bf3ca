"""Calls of code that nothing is known of, in steps that are skipped: they are made again each time, in order, and once."""

import contextlib
import copy
import decimal
import inspect
import io
import itertools
import json
import logging
import marshal
import operator
import os
import pathlib
import random
import re
import threading
import time
import types
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.frameworks import effect_free_calls
from terra.runtime.fast_forward.purity.unknown import calling
from tests.variants import examples

LOCAL = threading.local()
log = logging.getLogger("tests.opaque")
STEPS = 26


class Held:
    """What the programs look at and change."""

    def __init__(self):
        LOCAL.scale = 2.0
        self.calls, self.seen, self.said, self.limit, self.steps = 0, [], io.StringIO(), 10**9, 0
        self.config, self.name = {"units": 3, "sizes": [1, 2]}, "block_1"
        self.lock, self.heap, self.other = threading.Lock(), [3], 1.0
        self.dice = random.Random(4)
        self.w = tf.Variable([1.0, 2.0, 3.0])
        # Code that nothing is known of: made of text, so that there is no source to look at.
        space = {"held": self, "time": time}
        exec(compile(UNKNOWN, "<unknown>", "exec"), space)  # noqa: S102
        self.unknown = types.SimpleNamespace(**{name: value for name, value in space.items() if callable(value)})

    def __repr__(self):
        return f"<held {self.steps} {self.other}>"


UNKNOWN = """
def count(): held.calls += 1; return held.calls > held.limit
def scale(): return LIMITS[0] if held.calls > held.limit else 2.0
LIMITS = [3.0]
def note(*args): held.calls += 1; held.seen.append([str(x) for x in args])
def change(): held.calls += 1; held.other = held.other + 1.0 if held.calls % 5 == 0 else held.other
def now(): return time.perf_counter()
def fail():
    held.calls += 1
    if held.calls % 7 == 0: raise ValueError(f"call {held.calls}")
    return 1.0
def make(): return type("Made", (), {"scale": 2.0, "sizes": (1, 2), "twice": lambda self, x: 2 * x})()
"""


def learn(h, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.tanh(x) * h.w))
    h.w.assign_sub(0.01 * tape.gradient(loss, h.w))
    return loss


def signature(h, x):
    return x if "x" in inspect.signature(learn).parameters else -x


def local(h, x):
    return x * LOCAL.scale


def imports(h, x):
    from math import sqrt  # noqa: PLC0415

    return x * sqrt(4.0)


def texts(h, x):
    return x * float(len(json.dumps(h.config))) if re.match(r"block_\d", h.name) else x


def copies(h, x):
    return x * copy.deepcopy(h.config)["units"]


def prints(h, x):
    print("a step", h.name, x.shape)
    return x


def prints_what_it_counts(h, x):
    h.steps += 1
    print(h)
    h.other = 2.0
    print(h, file=h.said)
    return x


def logs(h, x):
    log.warning("shape %s", x.shape)
    return x


def warns(h, x):
    warnings.warn("old", DeprecationWarning)  # noqa: B028
    return x


def locks(h, x):
    with h.lock:
        return x * 2.0


def counts(h, x):
    return -x if h.unknown.count() else x


def scales(h, x):
    h.unknown.count()
    return x * h.unknown.scale()


def notes(h, x):
    h.unknown.note(h.name, 3, [1, "a"])
    return x


def notes_twice(h, x):
    h.unknown.note("first")
    h.steps += 1
    h.unknown.note("second", h)
    return x


def changes(h, x):
    h.unknown.change()
    return x * h.other


def fails(h, x):
    return x * h.unknown.fail()


def fails_inside(h, x):
    try:
        return x * h.unknown.fail()
    except ValueError as error:
        h.seen.append(str(error))
        return x


def of_an_object(h, x):
    made = h.unknown.make()
    return x * made.scale + float(sum(made.sizes)) + made.twice(1.0)


def raises(h, x):
    try:
        raise KeyError("no")
    except KeyError:
        return x * 2.0


def deletes(h, x):
    h.passing = 2.0
    x = x * h.passing
    del h.passing
    return x


def pushes(h, x):
    import heapq  # noqa: PLC0415

    heapq.heappush(h.heap, 1)
    return x * float(heapq.heappop(h.heap))


def keeps_the_time(h, x):
    h.when = h.unknown.now()
    return x


def redirects(h, x):
    with contextlib.redirect_stdout(h.said):
        print("a step", h.name)
    return x * 2.0


def scaled(x, scale, shift):
    return x * scale + shift


def merges(h, x):
    """What unknown code gives is given on as keyword arguments, and put into a dict."""
    made = marshal.loads(OPTIONS)
    return scaled(x, **made) + {"more": 1.0, **made}["shift"]


OPTIONS = marshal.dumps({"scale": 2.0, "shift": 0.5})
PROGRAMS = [signature, local, imports, texts, copies, prints, prints_what_it_counts, logs, warns, locks, counts, scales, notes, notes_twice, changes, fails, fails_inside, of_an_object, raises,
            deletes, pushes, keeps_the_time, redirects, merges]


def as_step(h, body):
    return lambda x: learn(h, body(h, x))


def as_layer(h, body):
    class Layer(keras.layers.Layer):
        def call(self, x):
            return body(h, x)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(3), Layer(), keras.layers.Dense(3)])
    model.build((2, 3))
    h.calls, h.seen, h.steps, h.other = 0, [], 0, 1.0  # (the model was tried out)
    h.said.truncate(0)
    h.said.seek(0)

    def step(x):
        return learn(h, model(x))

    return step


def run(make, body, wrap, change=None, steps=STEPS):
    """(what each step gives or raises, what is left, what was printed, logged and warned of; the wrapped step)"""
    h, out = Held(), io.StringIO()
    step = wrap(make(h, body))
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s:%(lineno)d %(funcName)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    given = []
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for k in range(steps):
                if change is not None:
                    change(h, k)
                try:
                    given.append(float(step(tf.constant([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0]]))))
                except ValueError as error:
                    given.append(str(error))
    finally:
        log.removeHandler(handler)
    left = h.calls, h.seen, h.said.getvalue(), h.steps, h.other, h.heap, hasattr(h, "passing"), hasattr(h, "when"), h.w.numpy().tolist()
    return (given, left, out.getvalue(), [(str(w.message), w.category, w.filename, w.lineno) for w in warned if "old" in str(w.message)]), step


def compare(make, body, change=None, **options):
    expected, _ = run(make, body, lambda step: step, change)
    actual, step = run(make, body, lambda step: terra.coexecute(step, wait_for_graph=True, **options), change)
    assert actual == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= STEPS // 2, terra.explain(step)
    return stats, step


# What these make is of a class that says in no module what it does: it may come to anything.
RUN = frozenset([of_an_object])


@pytest.mark.share(6)
@pytest.mark.parametrize("make", [as_step, as_layer])
@pytest.mark.parametrize("body", PROGRAMS)
def test_they_are_made_in_each_step(body, make):
    stats, step = compare(make, body)
    assert (stats.whole_steps >= 8) is (body not in RUN), terra.explain(step)


@pytest.mark.parametrize("make", [as_step, as_layer])
@pytest.mark.parametrize("body", [counts, scales, local, notes, changes, fails, prints_what_it_counts, of_an_object])
def test_they_give_something_else(body, make):
    def change(h, k):
        if k == 15:
            h.limit = h.calls + 2
        if k == 20:
            LOCAL.scale = 5.0
            h.name = "other"

    compare(make, body, change)


@pytest.mark.parametrize("body", [texts, local, prints, copies, redirects, merges])
def test_verified(body):
    stats, _ = compare(as_step, body, verify=True)
    assert stats.verified_calls, stats


def looks_at_its_frame(h, x):
    return x * float(len(inspect.currentframe().f_code.co_name))


def evaluates(h, x):
    return eval("x * 2.0")  # noqa: S307


def says_that_it_is_old(text, *place, **named):
    warnings.warn(f"old: {text}", *place, **named)
    log.warning("old", stacklevel=2)


def warns_of_its_caller(h, x):
    says_that_it_is_old("by name", stacklevel=2)
    says_that_it_is_old("by place", DeprecationWarning, 2)
    return x * 2.0


class Box:
    pass


def keeps_it_weakly(h, x):
    made = Box()
    held = weakref.WeakValueDictionary(a=made)
    made = None
    return x * float(1 + len(held))


@pytest.mark.parametrize("body", [looks_at_its_frame, evaluates, warns_of_its_caller, keeps_it_weakly])
def test_what_looks_at_frames_runs(body):
    stats, step = compare(as_step, body)
    assert stats.whole_steps == 0, terra.explain(step)


def logs_an_object(h, x):
    log.warning("held %s", h)
    return x


@pytest.mark.parametrize("make", [as_step, as_layer])
def test_a_caller_is_found_behind_code_that_is_observed(make):
    """`logging` is given an object of the program's, which it asks for its text: its own code is observed, and finds the line of the program behind it."""
    compare(make, logs_an_object, lambda h, k: setattr(h, "steps", k))


def test_a_caller_is_found():
    """`logging` finds the line of the program in a skipped step: see the format in `run`."""
    (_, _, out, _), step = run(as_step, logs, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert step.stats().whole_steps >= 8 and out.count(f"{logs.__code__.co_filename.rpartition('/')[2]}:{logs.__code__.co_firstlineno + 1} logs shape") == STEPS


def test_a_model_that_is_compiled():
    def train(compiled):
        h = Held()

        class Layer(keras.layers.Layer):
            def call(self, x):
                print(self.name, x.shape, file=h.said)
                return x * LOCAL.scale

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(3), Layer(name="noting"), keras.layers.Dense(1)])
        model.build((4, 3))
        h.said.truncate(0)
        h.said.seek(0)
        model.compile("sgd", "mse", run_eagerly=True)
        found = terra.compile(model, wait_for_graph=True) if compiled else None
        x = np.linspace(0, 1, 96, dtype="f4").reshape(32, 3)
        losses = model.fit(x, x[:, :1], batch_size=4, epochs=4, shuffle=False, verbose=0).history["loss"]
        return losses, h.said.getvalue(), found and found.stats()["train"]

    *expected, _ = train(False)
    *actual, stats = train(True)
    assert actual == expected
    assert stats.whole_steps >= 10, stats


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.sampled_from(["note", "count", "change", "scale", "counter", "set", "read", "print", "made"]), min_size=1, max_size=6), st.integers(5, 40), st.booleans())
def test_any_order(acts, limit, inside):
    def body(h, x):
        for act in acts:
            if act == "note":
                h.unknown.note(h)
            elif act == "count":
                x = x * (0.5 if h.unknown.count() else 1.0)
            elif act == "change":
                h.unknown.change()
            elif act == "scale":
                x = x * h.unknown.scale()
            elif act == "counter":
                h.steps += 1
            elif act == "set":
                h.last = x.shape[0]
            elif act == "read":
                x = x + h.other
            elif act == "print":
                print(h)
            else:
                x = x * h.unknown.make().scale
        return x

    def change(h, k):
        h.limit = limit

    compare(as_layer if inside else as_step, body, change)


class CallableTable:
    """Has methods of its own for what operators do, though it can be called like a function."""

    def __call__(self):
        return None

    def __getitem__(self, key):
        return key

    def __bool__(self):
        return True


def test_operators_may_be_made_twice_of_numbers_and_texts_alone():
    for call in ((operator.getitem, ("text", 0)), (operator.contains, ("text", "t")), (bool, ("text",))):
        assert effect_free_calls.is_blind(*call, {})
    for call in ((operator.getitem, (CallableTable(), 0)), (operator.contains, (CallableTable(), "t")), (bool, (CallableTable(),))):
        assert not effect_free_calls.is_blind(*call, {})


class Plain(Exception):
    pass


class Told(Exception):
    def __init__(self, *args):
        super().__init__(*args)
        LOCAL.told = args


KEEPING = [
    (getattr, inspect.signature(lambda: 0), "parameters"), (json.dumps, {"a": 1}), (random.Random(1).random,), (keras.layers.Add,),
    (decimal.Decimal, "1.5"), (len, [1]), (list, {}.values()), ({"a": 1}.get, "a"), (operator.getitem, [1], 0), (copy.deepcopy, {"a": []}),
    (hash, "a"), (round, 1.5), (sum, [1, 2.0]), (os.path.join, "a", "b"), (pathlib.PurePath, "a"), (types.SimpleNamespace,), (Plain, "no"), (KeyError, "a")]
CHANGING = [
    (list, iter([1])), ({}.update, {"a": 1}), (random.Random(1).shuffle, [1, 2]), (list.append, [], 1), ([].append, 1), (setattr, Held, "x", 1), (getattr, Held, "x"), (setattr, LOCAL, "x", 1), (print, "a"),
    (threading.Lock().acquire,), (keras.layers.Activation, Held), (map, len, "ab"), (hash, Held), (sum, [Held]), (max, iter([1])), (threading.Lock().__enter__,), (Told, "no"), (Plain, Held)]


def test_calls_behind_which_guards_need_not_be_asked():
    """What may change a container, an object or a stream of the program's, or lets another thread run, is none of them."""
    for calls, keeps in ((KEEPING, True), (CHANGING, False)):
        for function, *args in calls:
            assert effect_free_calls.keeps_guards(function, tuple(args), {}) is keeps, (function, args)


def waiting(seconds):
    """A training step that waits in a call, as it is run 30 times."""
    w = tf.Variable([1.0, 2.0])

    @terra.coexecute
    def step(x):
        time.sleep(seconds)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w * x) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    for _ in range(30):
        step(tf.constant([1.0, 2.0])).numpy()
    assert step.stats().coexecuted_steps > 15
    return step


def test_a_call_that_waits_takes_long_also_where_others_had_the_processor(monkeypatch):
    count = itertools.count(0, 5)
    monkeypatch.setattr(calling, "_interruptions", lambda: next(count))
    step = waiting(0.02)
    assert step.stats().whole_steps == 0 and "sleep, which takes long" in step.program.whole.reason


@pytest.mark.parametrize("k", [1, 20])
def test_a_call_takes_long_for_once(k, monkeypatch):
    """Something else had the processor, say: the last observation before the place would be given up must not be lost by that."""
    calls = itertools.count(1)
    monkeypatch.setattr(calling.Clock, "says_long", lambda self: next(calls) == k)
    stats, step = compare(as_step, prints_what_it_counts)
    assert stats.whole_steps >= 8, terra.explain(step)


def test_steps_that_are_skipped_take_as_long_as_the_calls_that_they_make(monkeypatch):
    monkeypatch.setattr(calling, "_LONG", 1.0)
    step = waiting(0.005)
    assert step.stats().whole_steps > 10 and step.policy.times()[0] >= 0.005


def reads_nanoseconds(h, x):
    begin = time.perf_counter_ns()
    y = x * h.w
    h.other = 1.0 if time.perf_counter_ns() >= begin else 2.0
    return y


def throws_a_die(h, x):
    return x * h.w * (1.0 if os.getrandom(1)[0] % 4 >= 0 else 2.0) * float(h.dice.randint(1, 3))


def draws_from_many(h, x):
    return x * h.w * float(h.dice.randint(1, 200) / 100)


def draws_large_ones(h, x):
    return x * h.w * (1.0 if h.dice.getrandbits(40) % 2 else 0.5)


def ignores_warnings(h, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("it is old", stacklevel=1)
        y = x * h.w
    warnings.warn("it is older", stacklevel=1)
    return y


@pytest.mark.parametrize("make", [as_step, as_layer])
@pytest.mark.parametrize("body, skipped", [(reads_nanoseconds, True), (throws_a_die, False), (draws_from_many, False), (draws_large_ones, True), (ignores_warnings, True)])
def test_integers_that_vary_and_filters_that_are_put_back(body, skipped, make):
    stats, step = compare(make, body)
    assert not skipped or stats.whole_steps >= 8, terra.explain(step)
