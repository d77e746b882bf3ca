"""Constructs of Python in a training step: what each costs where the rest of the step could be skipped.

    python -m examples.benchmarks.constructs [--places layer,step,tail,loss,metric,optimizer,callback] [--only NAME,NAME] [--steps 216]

One small program, with one construct at one place of it, runs eagerly, as a tf.function (where that gives the same) and co-executed, in turns. The table has the CPU time of a step (median, in
microseconds), that of the same program without the construct, and what the construct takes by itself: a construct that cannot be understood should cost the time of running itself, and little more.
What the program prints, returns and leaves in objects is compared with eager execution. A tail is what a step does last, with the loss.
"""

import argparse
import bisect
import collections
import contextlib
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import heapq
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import pathlib
import random
import re
import statistics
import string
import sys
import textwrap
import threading
import time
import types
import urllib.parse
import uuid
import warnings
import weakref
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf

import terra

log = logging.getLogger("examples.benchmarks.constructs")
LOCAL, CONTEXT, LOCK = threading.local(), contextvars.ContextVar("scale", default=1.0), threading.Lock()
LOCAL.scale = 1.0
COUNTS = {"n": 0}
CONSTRUCTS: dict[str, Callable[[Any, Any], Any]] = {}


def construct(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    CONSTRUCTS[function.__name__.removeprefix("c_")] = function
    return function


class Mode(enum.Enum):
    ONE, TWO = 1, 2


@dataclasses.dataclass
class Settings:
    scale: float = 1.0
    names: tuple = ("a", "b")


Pair = collections.namedtuple("Pair", "left right")


class Describes:
    def __get__(self, owner: Any, kind: type | None = None) -> float:
        return 1.0


class Schedule:
    def __call__(self, x: Any) -> Any:
        return x * 1.0


class Computed:
    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):
            raise AttributeError(name)
        return 1.0


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Refused(Exception):
    pass


class Timed:
    def __enter__(self) -> "Timed":
        return self

    def __exit__(self, *error: Any) -> None:
        pass


@contextlib.contextmanager
def scoped(name: str) -> Any:
    yield name


@functools.lru_cache(None)
def cached(n: int) -> float:
    return float(n) / n


@functools.singledispatch
def dispatched(x: Any) -> float:
    return 1.0


@dispatched.register
def _(x: int) -> float:
    return float(x) / x


class Ranked:
    def __init__(self, value: float) -> None:
        self.value = value

    def __lt__(self, other: "Ranked") -> bool:
        return self.value < other.value


class Meter:
    def __init__(self) -> None:
        self.sum, self.count, self.mean = 0.0, 0, 0.0

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n
        self.mean = self.sum / self.count


def numbers() -> Any:
    for k in itertools.count():
        yield k % 5


class Owner:
    """What constructs look at and change."""

    described = Describes()
    made = 0

    def __init__(self) -> None:
        self.scale, self.name, self.mode, self.training = 1.0, "block_1", Mode.ONE, True
        self.steps, self.seen, self.parts, self.table, self.names = 0, None, [], {}, set()
        self.last: collections.deque = collections.deque(maxlen=3)
        self.counter: collections.Counter = collections.Counter()
        self.config, self.settings = {"units": 8, "activation": "relu", "sizes": [1, 2]}, Settings()
        self.schedule, self.computed, self.slotted = Schedule(), Computed(), Slotted(1.0)
        self.random, self.generator = random.Random(1), np.random.default_rng(1)
        self.heap: list = [5]
        self.many, self.rate, self.array, self.ranked, self.view = 1000, 1.0, np.ones(8, "float32"), [Ranked(2.0), Ranked(1.0)], types.MappingProxyType({"scale": 1.0})
        self.weak: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary({self: 1.0})
        self.meter, self.mean, self.best, self.waited, self.kept, self.buffer = Meter(), 0.0, 1e9, 0, None, np.zeros(10)
        self.order, self.numbers = [3, 1, 2], numbers()
        self.history: collections.defaultdict = collections.defaultdict(list)

    def helper(self, x: Any, training: bool = False) -> Any:
        return x

    @property
    def factor(self) -> float:
        return 2.0 if self.mode is Mode.TWO else 1.0

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def static(x: Any) -> Any:
        return x * 1.0


def _make_constructs() -> None:
    def add(name: str, function: Callable[[Any, Any], Any]) -> None:
        CONSTRUCTS[name] = function

    add("nothing", lambda o, x: x)
    add("inspect.signature", lambda o, x: x if "x" in inspect.signature(o.helper).parameters else -x)
    add("inspect.getfullargspec", lambda o, x: x if "training" in inspect.getfullargspec(o.helper).args else -x)
    add("inspect.isfunction", lambda o, x: x if not inspect.isfunction(o) else -x)
    add("threading.local", lambda o, x: x * LOCAL.scale)
    add("ContextVar.get", lambda o, x: x * CONTEXT.get())
    add("os.environ.get", lambda o, x: x if os.environ.get("NO_SUCH_NAME", "") == "" else -x)
    add("os.path.join", lambda o, x: x if os.path.join("a", o.name) else -x)
    add("json.dumps", lambda o, x: x if len(json.dumps(o.config)) > 3 else -x)
    add("re.match", lambda o, x: x if re.match(r"block_\d+", o.name) else -x)
    add("str.format", lambda o, x: x if "{}-{}".format(o.name, o.steps) != "" else -x)  # noqa: UP032
    add("f-string of a shape", lambda o, x: x if f"{x.shape}" else -x)
    add("str.join", lambda o, x: x if "/".join(["a", o.name]) else -x)
    add("string.Template", lambda o, x: x if string.Template("$n").substitute(n=o.name) else -x)
    add("textwrap.shorten", lambda o, x: x if textwrap.shorten("some text", 6) else -x)
    add("copy.copy", lambda o, x: x if copy.copy(o.config)["units"] == 8 else -x)
    add("copy.deepcopy", lambda o, x: x if copy.deepcopy(o.config)["sizes"] == [1, 2] else -x)
    add("a data class made", lambda o, x: x * Settings().scale)
    add("dataclasses.asdict", lambda o, x: x * dataclasses.asdict(o.settings)["scale"])
    add("dataclasses.replace", lambda o, x: x * dataclasses.replace(o.settings, scale=1.0).scale)
    add("a named tuple made", lambda o, x: Pair(x, 1).left)
    add("enum compared", lambda o, x: x if o.mode is Mode.ONE else -x)
    add("enum by value", lambda o, x: x if Mode(1) is o.mode else -x)
    add("isinstance of an ABC", lambda o, x: x if isinstance(o.config, collections.abc.Mapping) else -x)
    add("hasattr and getattr", lambda o, x: x * getattr(o, "missing", 1.0) if not hasattr(o, "other") else -x)
    add("callable", lambda o, x: x if callable(o.schedule) else -x)
    add("functools.partial", lambda o, x: functools.partial(operator.mul, x)(1.0))
    add("lru_cache", lambda o, x: x * cached(3))
    add("singledispatch", lambda o, x: x * dispatched(3))
    add("functools.reduce", lambda o, x: x * float(functools.reduce(operator.mul, [1, 1, 1])))
    add("operator.attrgetter", lambda o, x: x * operator.attrgetter("scale")(o))
    add("itertools.chain", lambda o, x: x * float(sum(itertools.chain([1], [0]))))
    add("sorted by a key", lambda o, x: x * sorted([2.0, 1.0], key=lambda v: v)[0])
    add("any of a generator", lambda o, x: x if any(n == "a" for n in o.settings.names) else -x)
    add("a dict comprehension", lambda o, x: x if {k: v for k, v in o.config.items() if k == "units"} else -x)  # noqa: C416
    add("math.log", lambda o, x: x * math.exp(0.0))
    add("np.sqrt of a number", lambda o, x: x * float(np.sqrt(1.0)))
    add("np.prod of a shape", lambda o, x: x if int(np.prod(x.shape)) else -x)
    add("id", lambda o, x: x if id(o) else -x)
    add("hash", lambda o, x: x if hash("a") else -x)
    add("type name", lambda o, x: x if type(o).__name__ == "Owner" else -x)
    add("pathlib", lambda o, x: x if pathlib.PurePath("a/b").name == "b" else -x)
    add("urllib.parse", lambda o, x: x if urllib.parse.quote("a b") else -x)
    add("hashlib", lambda o, x: x if hashlib.md5(b"a").hexdigest() else -x)
    add("decimal", lambda o, x: x * float(decimal.Decimal("1.0")))
    add("fractions", lambda o, x: x * float(fractions.Fraction(2, 2)))
    add("statistics.mean", lambda o, x: x * statistics.mean([1.0, 1.0]))
    add("bisect", lambda o, x: x if bisect.bisect([1, 2, 3], 2) else -x)
    add("SimpleNamespace", lambda o, x: x * types.SimpleNamespace(scale=1.0).scale)
    add("a slotted object", lambda o, x: x * o.slotted.value)
    add("sys.version_info", lambda o, x: x if sys.version_info >= (3, 8) else -x)
    add("an object with __call__", lambda o, x: o.schedule(x))
    add("__getattr__", lambda o, x: x * o.computed.scale)
    add("a property", lambda o, x: x * o.factor)
    add("a descriptor", lambda o, x: x * o.described)
    add("a class method", lambda o, x: o.of_class(x))
    add("a static method", lambda o, x: o.static(x))
    add("keras.ops.array", lambda o, x: x * keras.ops.array(1.0))
    add("tf.constant", lambda o, x: x * tf.constant(1.0))
    add("tf.nest.map_structure", lambda o, x: tf.nest.map_structure(lambda t: t * 1.0, [x])[0])
    add("keras.backend.floatx", lambda o, x: x if keras.backend.floatx() == "float32" else -x)
    add("a loss object made", lambda o, x: x + 0.0 * keras.losses.MeanSquaredError()(x, x))
    add("objects sorted", lambda o, x: x * sorted(o.ranked)[0].value)
    add("the largest object", lambda o, x: x * (max(o.ranked).value - 1.0))
    add("vars", lambda o, x: x * vars(o)["scale"])
    add("a mapping proxy", lambda o, x: x * o.view["scale"])
    add("a weak dictionary", lambda o, x: x * o.weak[o])
    add("an initializer made", lambda o, x: x * keras.initializers.Ones()((1,)))

    @construct
    def c_import(o: Any, x: Any) -> Any:
        import colorsys  # noqa: PLC0415

        return x * (3.0 * colorsys.ONE_THIRD)

    @construct
    def c_from_import(o: Any, x: Any) -> Any:
        from math import sqrt  # noqa: PLC0415

        return x * sqrt(1.0)

    @construct
    def c_sets_a_size(o: Any, x: Any) -> Any:
        o.seen = x.shape[-1]
        return x

    @construct
    def c_sets_a_tensor(o: Any, x: Any) -> Any:
        o.seen = x
        return x

    @construct
    def c_setattr(o: Any, x: Any) -> Any:
        setattr(o, "seen", 3)  # noqa: B010
        return x

    @construct
    def c_deletes_an_attribute(o: Any, x: Any) -> Any:
        o.passing = 1.0
        x = x * o.passing
        del o.passing
        return x

    @construct
    def c_counts(o: Any, x: Any) -> Any:
        o.steps += 1
        return x

    @construct
    def c_counts_globally(o: Any, x: Any) -> Any:
        COUNTS["n"] += 1
        return x

    @construct
    def c_prints_a_count(o: Any, x: Any) -> Any:
        o.many += 1
        print(f"step {o.many}")
        return x

    @construct
    def c_prints_now_and_then(o: Any, x: Any) -> Any:
        o.many += 1
        if o.many % 10 == 0:
            print("step", o.many)
        return x

    @construct
    def c_decays_with_a_count(o: Any, x: Any) -> Any:
        o.many += 1
        return x * (1.0 / (1.0 + 1e-4 * o.many))

    @construct
    def c_scales_in_place(o: Any, x: Any) -> Any:
        o.rate *= 0.9999
        return x * o.rate

    @construct
    def c_array_in_place(o: Any, x: Any) -> Any:
        o.array += 1.0
        return x

    @construct
    def c_appends(o: Any, x: Any) -> Any:
        o.last.append(len(x.shape))
        return x

    @construct
    def c_list_made_and_appended(o: Any, x: Any) -> Any:
        o.parts = []
        o.parts.append(x)
        return x

    @construct
    def c_sets_an_item(o: Any, x: Any) -> Any:
        o.table["size"] = x.shape[-1]
        return x

    @construct
    def c_setdefault(o: Any, x: Any) -> Any:
        return x * o.table.setdefault("scale", 1.0)

    @construct
    def c_cache_in_a_dict(o: Any, x: Any) -> Any:
        if x.shape[-1] not in o.table:
            o.table[x.shape[-1]] = 1.0
        return x * o.table[x.shape[-1]]

    @construct
    def c_set_add(o: Any, x: Any) -> Any:
        o.names.add(o.name)
        return x

    @construct
    def c_counter_update(o: Any, x: Any) -> Any:
        o.counter.update([o.name])
        return x

    @construct
    def c_dict_update(o: Any, x: Any) -> Any:
        o.table.update(size=3)
        return x

    @construct
    def c_heappush(o: Any, x: Any) -> Any:
        heapq.heappush(o.heap, 1)
        heapq.heappop(o.heap)
        return x

    @construct
    def c_logging_debug(o: Any, x: Any) -> Any:
        log.debug("shape %s", x.shape)
        return x

    @construct
    def c_logging_warning(o: Any, x: Any) -> Any:
        log.warning("step of %s", o.name)
        return x

    @construct
    def c_get_logger(o: Any, x: Any) -> Any:
        logging.getLogger("examples.other").debug("x")
        return x

    @construct
    def c_print(o: Any, x: Any) -> Any:
        print("a step")
        return x

    @construct
    def c_print_of_a_shape(o: Any, x: Any) -> Any:
        print("shape", x.shape)
        return x

    @construct
    def c_warn(o: Any, x: Any) -> Any:
        warnings.warn("deprecated", DeprecationWarning)  # noqa: B028
        return x

    @construct
    def c_time_dropped(o: Any, x: Any) -> Any:
        time.time()
        return x

    @construct
    def c_time_kept(o: Any, x: Any) -> Any:
        o.when = time.perf_counter() * 0.0
        return x

    @construct
    def c_time_measured(o: Any, x: Any) -> Any:
        begin = time.perf_counter()
        x = x * 1.0
        o.took = (time.perf_counter() - begin) * 0.0
        return x

    @construct
    def c_uuid(o: Any, x: Any) -> Any:
        uuid.uuid4()
        return x

    @construct
    def c_datetime(o: Any, x: Any) -> Any:
        datetime.datetime.now()  # noqa: DTZ005
        return x

    @construct
    def c_random(o: Any, x: Any) -> Any:
        return x * (1.0 + 0.01 * o.random.random())

    @construct
    def c_random_choice(o: Any, x: Any) -> Any:
        return x if o.random.choice("aaa") == "a" else -x

    @construct
    def c_np_random(o: Any, x: Any) -> Any:
        return x * float(o.generator.normal())

    @construct
    def c_try(o: Any, x: Any) -> Any:
        try:
            return x * o.config["scale"]
        except KeyError:
            return x

    @construct
    def c_raise_and_catch(o: Any, x: Any) -> Any:
        try:
            raise Refused("no")
        except Refused:
            return x

    @construct
    def c_finally(o: Any, x: Any) -> Any:
        try:
            return x * 1.0
        finally:
            o.steps += 1

    @construct
    def c_context_class(o: Any, x: Any) -> Any:
        with Timed():
            return x * 1.0

    @construct
    def c_contextmanager(o: Any, x: Any) -> Any:
        with scoped("a"):
            return x * 1.0

    @construct
    def c_suppress(o: Any, x: Any) -> Any:
        with contextlib.suppress(KeyError):
            x = x * o.config["missing"]
        return x

    @construct
    def c_lock(o: Any, x: Any) -> Any:
        with LOCK:
            return x * 1.0

    @construct
    def c_redirect_stdout(o: Any, x: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            print("hidden")
        return x

    @construct
    def c_errstate(o: Any, x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return x * float(np.float32(1.0))

    @construct
    def c_name_scope(o: Any, x: Any) -> Any:
        with tf.name_scope("inner"):
            return x * 1.0

    @construct
    def c_generator(o: Any, x: Any) -> Any:
        def parts() -> Any:
            yield 1.0
            yield 1.0

        for part in parts():
            x = x * part
        return x

    @construct
    def c_closure(o: Any, x: Any) -> Any:
        scale = 1.0

        def inner(y: Any) -> Any:
            return y * scale

        return inner(x)

    @construct
    def c_nonlocal(o: Any, x: Any) -> Any:
        n = 0

        def count() -> None:
            nonlocal n
            n += 1

        count()
        return x * float(n)

    @construct
    def c_arguments(o: Any, x: Any) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            return args[0] * kwargs["scale"]

        return inner(*[x], **{"scale": 1.0})

    @construct
    def c_walrus(o: Any, x: Any) -> Any:
        return x if (n := x.shape[-1]) and n > 0 else -x

    @construct
    def c_match(o: Any, x: Any) -> Any:
        match o.config:
            case {"units": 8}:
                return x
        return -x

    @construct
    def c_assertion(o: Any, x: Any) -> Any:
        tf.debugging.assert_rank(x, 2)
        return x

    @construct
    def c_count_variables(o: Any, x: Any) -> Any:
        return x if len(o.model.trainable_variables) > 0 else -x

    @construct
    def c_count_params(o: Any, x: Any) -> Any:
        return x if o.dense.count_params() > 0 else -x

    @construct
    def c_get_config(o: Any, x: Any) -> Any:
        return x if o.dense.get_config()["units"] == 8 else -x

    @construct
    def c_layers_by_name(o: Any, x: Any) -> Any:
        return x if [layer for layer in o.model.layers if "dense" in layer.name] else -x

    @construct
    def c_sort_by_a_lambda(o: Any, x: Any) -> Any:
        o.order.sort(key=lambda v: -v)
        return x

    @construct
    def c_sub_by_a_lambda(o: Any, x: Any) -> Any:
        o.name = re.sub(r"\d", lambda match: str((int(match[0]) + 1) % 10), o.name)
        return x

    @construct
    def c_next_of_a_generator(o: Any, x: Any) -> Any:
        o.steps = next(o.numbers)
        return x

    @construct
    def c_counts_in_a_class(o: Any, x: Any) -> Any:
        type(o).made += 1
        return x

    @construct
    def c_sets_twice(o: Any, x: Any) -> Any:
        o.training = False
        print("training", o.training)
        o.training = True
        return x

    @construct
    def c_writes_a_file(o: Any, x: Any) -> Any:
        with open(os.devnull, "a") as file:
            file.write(o.name)
        return x

    @construct
    def c_numpy_function(o: Any, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), x.shape)


def _make_tails() -> None:
    """What steps do with their loss in the end."""
    def tail(function: Callable[[Any, Any], Any]) -> None:
        CONSTRUCTS[name := function.__name__.removeprefix("t_")] = function
        TAILS.append(name)

    @tail
    def t_a_meter(o: Any, loss: Any) -> None:
        o.meter.update(float(loss), 16)

    @tail
    def t_a_moving_average(o: Any, loss: Any) -> None:
        o.mean = 0.9 * o.mean + 0.1 * float(loss)

    @tail
    def t_mean_of_the_last(o: Any, loss: Any) -> None:
        o.last.append(float(loss))
        o.mean = sum(o.last) / len(o.last)

    @tail
    def t_early_stopping(o: Any, loss: Any) -> None:
        value = loss.numpy()
        if value < o.best:
            o.best, o.waited = value, 0
        else:
            o.waited += 1

    @tail
    def t_best_weights(o: Any, loss: Any) -> None:
        if float(loss) < o.best:
            o.best, o.kept = float(loss), o.dense.get_weights()

    @tail
    def t_buffer(o: Any, loss: Any) -> None:
        o.buffer[o.steps % 10] = loss
        o.steps += 1

    @tail
    def t_history(o: Any, loss: Any) -> None:
        o.history["loss"].append(round(float(loss), 4))

    @tail
    def t_a_line_now_and_then(o: Any, loss: Any) -> None:
        o.steps += 1
        if o.steps % 10 == 0:
            print(f"step {o.steps}: {float(loss):.4f}")

    @tail
    def t_a_file(o: Any, loss: Any) -> None:
        with open(os.devnull, "a") as file:
            file.write(json.dumps({"loss": float(loss)}) + "\n")

    @tail
    def t_unknown_code(o: Any, loss: Any) -> None:
        exec("o.mean = value * 0.5", {"o": o, "value": float(loss)})  # noqa: S102


TAILS: list[str] = []
_make_constructs()
_make_tails()
PLACES = ["layer", "step", "tail", "loss", "metric", "optimizer", "callback"]
# Constructs that are tried at places other than a layer: those that differ most in kind.
ELSEWHERE = (
    "nothing,inspect.signature,threading.local,import,sets_a_tensor,counts,appends,set_add,logging_debug,print,time_kept,lock,contextmanager,json.dumps,copy.deepcopy,"
    "an object with __call__,raise_and_catch,setdefault,random,get_config").split(",")


ROUNDS = 27


class Program:
    """The model, and a step that trains it: `how` stands at `place`."""

    def __init__(self, place: str, how: Callable[[Any, Any], Any]):
        keras.utils.set_random_seed(1)
        COUNTS["n"] = Owner.made = 0
        owner = self.owner = Owner()

        class Block(keras.layers.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.parts = [keras.layers.Dense(8, activation="relu") for _ in range(4)]

            def call(self, x: Any) -> Any:
                x = how(owner, x) if place == "layer" else x
                for part in self.parts:
                    x = part(x)
                return x

        class Loss(keras.losses.Loss):
            def call(self, y: Any, p: Any) -> Any:
                p = how(owner, p) if place == "loss" else p
                return tf.reduce_mean(tf.square(y - p), -1)

        class Metric(keras.metrics.Mean):
            def update_state(self, x: Any, sample_weight: Any = None) -> Any:
                x = how(owner, x) if place == "metric" else x
                return super().update_state(x, sample_weight)

        class Optimizer(keras.optimizers.SGD):
            def apply_gradients(self, pairs: Any) -> Any:
                pairs = list(pairs)
                if place == "optimizer":
                    pairs[0] = how(owner, pairs[0][0]), pairs[0][1]
                return super().apply_gradients(pairs)

        class Callback(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                how(owner, ones)

        ones = tf.ones([2, 2])
        block = Block()
        model = self.model = keras.Sequential([keras.layers.Dense(8), block, keras.layers.Dense(8)])
        owner.__dict__.update(model=model, dense=model.layers[0])  # which constructs look at, also when the model is built
        model.build((16, 8))
        self.place, self.loss, self.metric, self.optimizer, self.callback = place, Loss(), Metric(), Optimizer(0.01), Callback()
        self.optimizer.build(model.trainable_variables)
        self.how = how

    def step(self, x: Any, y: Any) -> Any:
        if self.place == "step":
            x = self.how(self.owner, x)
        with tf.GradientTape() as tape:
            p = self.model(x, training=True)
            loss = self.loss(y, p)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.metric.update_state(loss)
        if self.place == "tail":
            self.how(self.owner, loss)
        return loss

    def runner(self, mode: str) -> Callable[[int], Any]:
        """A function that makes so many steps, and gives the last loss."""
        x, y = tf.random.stateless_normal([16, 8], [1, 2]), tf.random.stateless_normal([16, 8], [3, 4])
        if self.place == "callback":
            self.model.compile(self.optimizer, self.loss, run_eagerly=mode == "eager")
            if mode == "terra":
                self.compiled = terra.compile(self.model)
            xs, ys = np.tile(x, [64, 1]), np.tile(y, [64, 1])

            def fit(n: int) -> Any:
                return self.model.fit(xs[:16 * n], ys[:16 * n], batch_size=16, epochs=1, verbose=0, shuffle=False, callbacks=[self.callback]).history["loss"][-1]

            return fit
        self.made = step = {"eager": lambda f: f, "tf.function": tf.function, "terra": terra.coexecute}[mode](self.step)

        def run(n: int) -> Any:
            for _ in range(n):
                loss = step(x, y)
            return float(loss)

        return run

    def left(self) -> dict[str, str]:
        """What is to be compared: weights, and what the owner holds."""
        found = {name: repr(value) for name, value in vars(self.owner).items()
                 if not isinstance(value, (keras.Model, keras.layers.Layer, Schedule, Computed, Slotted, random.Random, np.random.Generator, types.GeneratorType, tf.Tensor, weakref.WeakKeyDictionary))
                 and name not in ("parts", "ranked", "meter")}
        return {**found, "meter": repr(vars(self.owner.meter)), "weights": repr([w.numpy().tolist() for w in self.model.weights]), "draws": repr(self.owner.random.getstate()), "count": repr((COUNTS["n"], Owner.made))}


def _cpu(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(place: str, name: str, steps: int) -> dict[str, Any]:
    """Runs the program in all ways: {way: microseconds of CPU a step}, "own": those of the construct, "same": whether all that was left is as eagerly."""
    row: dict[str, Any] = {"place": place, "name": name}
    few = 24
    results = {}
    for mode in ("eager", "terra"):
        program = Program(place, CONSTRUCTS[name])
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(lineno)d %(funcName)s %(message)s"))
        log.addHandler(handler)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = program.runner(mode)
            loss = [run(4) for _ in range(few // 4)]
        log.removeHandler(handler)
        results[mode] = loss, program.left(), said.getvalue()
    row["same"] = results["eager"] == results["terra"]
    if not row["same"]:
        row["differs"] = [key for key in results["eager"][1] if results["eager"][1][key] != results["terra"][1].get(key)] or (
            "losses" if results["eager"][0] != results["terra"][0] else "output")
    runs: dict[str, Callable[[int], Any]] = {}
    programs = {}
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode, which in (("eager", name), ("tf.function", name), ("terra", name), ("without", "nothing")):
            programs[mode] = Program(place, CONSTRUCTS[which])
            runs[mode] = programs[mode].runner("terra" if mode == "without" else mode)
            try:
                for _ in range(2 if mode == "eager" else 12):
                    runs[mode](10)
            except Exception as error:
                runs.pop(mode)
                row[mode] = type(error).__name__
        times: dict[str, list[float]] = {mode: [] for mode in runs}
        for k in range(ROUNDS):
            for mode, run in (list(runs.items()) if k % 2 else reversed(runs.items())):
                if mode == "eager" and k % 3:
                    continue
                n = max(2, steps // 60) if mode == "eager" else max(1, steps // ROUNDS)
                run(2)  # whose caches are those of another program
                times[mode].append(_cpu(functools.partial(run, n)) / n * 1e6)
        owner, x = programs["eager"].owner, tf.ones([]) if place == "tail" else tf.ones([16, 8])
        n = 200
        row["own"] = min(_cpu(lambda: [CONSTRUCTS[name](owner, x) for _ in range(n)]) / n * 1e6 for _ in range(5))
    logging.disable(logging.NOTSET)
    row.update({mode: statistics.median(found) for mode, found in times.items()})
    row["more"] = statistics.median([a - b for a, b in zip(times["terra"], times["without"])]) - row["own"]  # (in each round, one comes right behind the other)
    made = programs["terra"]
    stats = made.compiled.stats()["train"] if place == "callback" else made.made.stats()
    row["whole"] = stats.whole_steps / max(1, stats.coexecuted_steps)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=216)
    options = parser.parse_args()
    print(f"{'place':10}{'construct':28}{'eager':>9}{'function':>9}{'terra':>9}{'without':>9}{'own':>7}{'more':>7}  skipped  equal")
    slow = wrong = n = 0
    for place in options.places.split(","):
        for name in TAILS if place == "tail" else [name for name in CONSTRUCTS if name not in TAILS] if place == "layer" else ELSEWHERE:
            if options.only and name not in options.only.split(","):
                continue
            row = measure(place, name, options.steps)
            n += 1
            more = row["more"]
            slow += more > 50
            wrong += not row["same"]
            times = "".join(f"{row[mode]:9.0f}" if isinstance(row.get(mode), float) else f"{str(row.get(mode))[:8]:>9}" for mode in ("eager", "tf.function", "terra", "without"))
            print(f"{place:10}{name:28}{times}{row['own']:7.0f}{more:7.0f}  {row['whole']:6.0%}   {'yes' if row['same'] else 'NO: ' + str(row['differs'])}", flush=True)
            keras.backend.clear_session()
    print(f"{n} constructs; {slow} cost over 50 us more than the program without them and their own time; {wrong} differ from eager execution")


if __name__ == "__main__":
    main()
