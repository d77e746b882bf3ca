"""AutoGraph's own list: every feature of tables 4 to 6 of its paper, and of its lists of limitations, as a small program.

`python -m tests.programs.test_autograph_features` runs each program eagerly, under `tf.function` and under Terra, and writes docs/autograph.md. The tests check
that Terra gives what eager execution gives, and that the committed table is what the programs give.
"""
import collections
import contextlib
import dataclasses
import functools
import inspect
import io
import os
import pathlib
import pdb
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import terra  # noqa: E402
from tests import harness  # noqa: E402

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "autograph.md"
VERSION = ".".join(tf.__version__.split(".")[:2])
N = 8  # calls of a step
X = tf.constant([1.0, 2.0, 3.0])


@dataclasses.dataclass
class Row:
    """A feature: where it is listed, its name, what AutoGraph says it does with it, and a program that uses it."""

    section: str
    name: str
    says: str
    program: object


ROWS = []


def row(section, name, says):
    """Register a program. It gets a decorator for its step, and returns what a user would look at."""

    def register(program):
        ROWS.append(Row(section, name, says, program))
        return program

    return register


def called(step, *inputs):
    """The results of N calls of `step`, with each of `inputs` in turn (X and -X by default), as plain values."""
    inputs = inputs or (X, -X)
    results = [step(inputs[k % len(inputs)]) for k in range(N)]
    return plain(results[-len(inputs):])


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tf.Tensor) and value.dtype == tf.string:
        return value.numpy().decode()
    if isinstance(value, tf.Tensor):
        return np.round(value.numpy().astype(float), 3).tolist()
    return value


# --------------------------------------------------------------------------------------------------- outcomes

def outcome(program, decorate):
    """What a program gives: a value, or the exception that it raises."""
    harness.reset_seeds()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return program(decorate)
        except Exception as error:
            return error


def in_words(value, expected=None):
    if isinstance(value, Exception):
        return f"raises `{type(value).__name__}`"
    if expected is not None and value == expected:
        return "same"
    text = repr(value)
    return f"`{text if len(text) <= 44 else text[:40] + ' ...'}`"


@functools.cache
def run(index):
    """(what eager execution gives, what Terra gives, the line of the table) for a row."""
    r = ROWS[index]
    made = []

    def decorate(fn):
        made.append(terra.coexecute(fn, wait_for_graph=True))
        return made[-1]

    eager = outcome(r.program, lambda fn: fn)
    graph = outcome(r.program, tf.function)
    ours = outcome(r.program, decorate)
    coexecuted = sum(step.stats().coexecuted_steps for step in made)
    how = "co-executed" if coexecuted else "imperative"
    other = "silently wrong: " if not isinstance(graph, Exception) and graph != eager else ""
    cells = (r.name, r.says, in_words(eager), other + in_words(graph, eager), f"{in_words(ours, eager)}, {how}")
    return eager, ours, "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


# ---------------------------------------------------------------------------------------- table 4: control flow

CONTROL, OPERATORS = "Table 4: control flow", "Table 4: operators"
FUNCTIONS, COLLECTIONS = "Table 5: functions", "Table 5: collections"
VARIABLES, POWER = "Table 6: variables, classes, decorators", "Table 6: generators and power features"
LIMITS, GUIDE = "Limitations in the paper", "Limitations in AutoGraph's reference"


@row(CONTROL, "`if` on a tensor", "`tf.cond`; both ways must give consistent values")
def if_(decorate):
    @decorate
    def step(x):
        if tf.reduce_sum(x) > 0:
            y = x * 2
        else:
            y = x - 1
        return y

    return called(step)


@row(CONTROL, "`for` over a tensor", "`tf.while_loop`")
def for_tensor(decorate):
    @decorate
    def step(x):
        total = tf.constant(0.0)
        for v in x:
            total += v * v
        return total

    return called(step)


@row(CONTROL, "`for` over a `tf.data.Dataset`", "`Dataset.reduce`")
def for_dataset(decorate):
    batches = tf.data.Dataset.range(4)

    @decorate
    def step(x):
        total = x[0]
        for i in batches:
            total += tf.cast(i, tf.float32) * x[1]
        return total

    return called(step)


@row(CONTROL, "loop over a queue", "`tf.while_loop` with the queue's ops")
def for_queue(decorate):
    queue = tf.queue.FIFOQueue(10, [tf.float32], shapes=[[]])

    @decorate
    def step(x):
        queue.enqueue_many(x)
        total = tf.constant(0.0)
        while queue.size() > 0:
            total += queue.dequeue()
        return total

    return called(step)


@row(CONTROL, "`while` on a tensor", "`tf.while_loop`; consistent values")
def while_(decorate):
    @decorate
    def step(x):
        while tf.reduce_sum(x) < 20.0:
            x = x * 2 + 5
        return x

    return called(step)


@row(CONTROL, "`while` whose condition has a side effect", "the condition is evaluated twice")
def while_condition(decorate):
    tests = []

    def more(x):
        tests.append(1)
        return tf.reduce_sum(x) < 20.0

    @decorate
    def step(x):
        while more(x):
            x = x * 2
        return x

    called(step, X)
    return len(tests)


@row(CONTROL, "`break`", "lowered to conditionals")
def break_(decorate):
    @decorate
    def step(x):
        total = tf.constant(0.0)
        for v in x:
            if v > 1.5:
                break
            total += v
        return total

    return called(step)


@row(CONTROL, "`continue`", "lowered to conditionals")
def continue_(decorate):
    @decorate
    def step(x):
        total = tf.constant(0.0)
        for v in x:
            if tf.equal(v, 2.0):
                continue
            total += v
        return total

    return called(step)


@row(CONTROL, "`return` from a branch", "lowered to conditionals")
def return_branch(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            return x * 2
        return x

    return called(step)


@row(CONTROL, "`return` from a loop", "lowered to conditionals")
def return_loop(decorate):
    @decorate
    def step(x):
        for v in x:
            if v > 1.5:
                return v
        return x[0]

    return called(step)


@row(CONTROL, "`for ... else`", "not listed")
def for_else(decorate):
    @decorate
    def step(x):
        for v in x:
            if v > 1.5:
                result = v
                break
        else:
            result = tf.constant(-1.0)
        return result

    return called(step)


@row(CONTROL, "`try`, `except`", "not converted")
def try_except(decorate):
    @decorate
    def step(x):
        try:
            tf.debugging.assert_positive(x)
            return tf.reduce_sum(x)
        except tf.errors.InvalidArgumentError:
            return tf.reduce_sum(-x) * 10

    return called(step)


@row(CONTROL, "`finally`", "not converted")
def finally_(decorate):
    done = []

    @decorate
    def step(x):
        try:
            return x * 2
        finally:
            done.append(1)

    called(step)
    return len(done)


@row(CONTROL, "`raise` on a value", "not converted")
def raise_(decorate):
    @decorate
    def step(x):
        if x[0] < 0:
            raise ValueError("negative")
        return x * 2

    def safely(x):
        try:
            return step(x)
        except ValueError:
            return "raised"

    return called(safely)


@row(CONTROL, "`with`", "not converted")
def with_(decorate):
    depth = []

    @contextlib.contextmanager
    def level():
        depth.append(len(depth))
        yield

    @decorate
    def step(x):
        with level():
            return x * float(len(depth))

    return called(step)


@row(CONTROL, "`yield`", "not allowed")
def yield_(decorate):
    def rows(x):
        for v in tf.unstack(x):
            if v > 1.5:
                yield v

    @decorate
    def step(x):
        return tf.add_n([x[0], *rows(x)])

    return called(step)


# ------------------------------------------------------------------------------------------- table 4: operators

@row(OPERATORS, "unary", "the TensorFlow op")
def unary(decorate):
    return called(decorate(lambda x: -x + abs(x)))


@row(OPERATORS, "binary arithmetic", "the TensorFlow op")
def arithmetic(decorate):
    return called(decorate(lambda x: x ** 2 - x % 3 + x // 2 / 4))


@row(OPERATORS, "comparison", "the TensorFlow op")
def comparison(decorate):
    return called(decorate(lambda x: tf.cast(x > 1, tf.int32) + tf.cast(x <= 2, tf.int32)))


@row(OPERATORS, "chained comparison", "not listed")
def chained(decorate):
    @decorate
    def step(x):
        return x * 2 if 0 < x[0] < 2 else x

    return called(step)


@row(OPERATORS, "equality", "the TensorFlow op")
def equality(decorate):
    return called(decorate(lambda x: tf.cast(x == 2.0, tf.int32) + tf.cast(x != -2.0, tf.int32)))


@row(OPERATORS, "`and`, `or`, `not`", "`tf.cond`, lazily")
def boolean(decorate):
    @decorate
    def step(x):
        if (x[0] > 0 and x[1] > 1) or not x[2] < 0:
            return x + 1
        return x

    return called(step)


@row(OPERATORS, "`a or b` as a value", "boolean tensors")
def or_value(decorate):
    return called(decorate(lambda x: (x[0] - 1.0) or x[1]))


@row(OPERATORS, "conditional expression", "`tf.cond`")
def ternary(decorate):
    @decorate
    def step(x):
        return x * 2 if x[0] > 0 else x - 1

    return called(step)


@row(OPERATORS, "`in`", "not converted")
def in_(decorate):
    @decorate
    def step(x):
        return x * 2 if any(v in (2.0, 5.0) for v in tf.unstack(x)) else x

    return called(step)


@row(OPERATORS, "attribute and item changes inside a loop", "preserved where it can be seen")
def mutation(decorate):
    class Counter:
        n = 0

    counter = Counter()

    @decorate
    def step(x):
        for v in x:
            if v > 1:
                counter.n += 1
        return x

    called(step)
    return int(counter.n)


# ------------------------------------------------------------------------------------------- table 5: functions

def helper(x):
    if x[0] > 0:
        return x * 2
    return x * 3


@row(FUNCTIONS, "user functions", "converted, recursively")
def user_function(decorate):
    @decorate
    def step(x):
        return helper(x) + 1

    return called(step)


@row(FUNCTIONS, "recursion on a value", "not supported")
def recursion(decorate):
    def grow(x):
        return x if tf.reduce_sum(x) > 30 else grow(x + 5)

    @decorate
    def step(x):
        return grow(x) * 1.0

    return called(step)


@row(FUNCTIONS, "`lambda`", "converted")
def lambda_(decorate):
    @decorate
    def step(x):
        f = lambda v: v * 2 if v > 1 else v  # noqa: E731
        return tf.stack([f(v) for v in tf.unstack(x)])

    return called(step)


@row(FUNCTIONS, "constructors", "not converted")
def constructor(decorate):
    class Pair:
        def __init__(self, x):
            self.best = x[0] if x[0] > x[2] else x[2]

    @decorate
    def step(x):
        return Pair(x).best * 1.0

    return called(step)


@row(FUNCTIONS, "instance methods", "converted")
def methods(decorate):
    class Model:
        calls = 0

        def double(self, x):
            self.calls += 1
            return x * 2 if x[0] > 0 else x

        @decorate
        def step(self, x):
            return self.double(x)

    model = Model()
    return called(lambda x: model.step(x)), model.calls


@row(FUNCTIONS, "class methods", "converted")
def class_methods(decorate):
    class Model:
        calls = 0

        @classmethod
        def double(cls, x):
            cls.calls += 1
            return x * 2

        def step(self, x):
            return self.double(x)

    step = decorate(Model().step)
    return called(step), Model.calls


@row(FUNCTIONS, "built-ins: `print`", "`tf.print`")
def print_(decorate):
    @decorate
    def step(x):
        print("total", tf.reduce_sum(x))
        return x

    with contextlib.redirect_stdout(io.StringIO()) as out:
        called(step)
    return out.getvalue().count("total tf.Tensor(6.0, shape=(), dtype=float32)")


@row(FUNCTIONS, "built-ins: `len`, `range`", "TensorFlow ops")
def len_range(decorate):
    @decorate
    def step(x):
        total = 0.0
        for i in range(len(tf.where(x > 0))):
            total += x[i]
        return total * x[0]

    return called(step, X, X + 1)


@row(FUNCTIONS, "built-ins: `int`, `float`", "TensorFlow ops")
def int_float(decorate):
    @decorate
    def step(x):
        n = int(x[1])
        return x * float(x[2]), "ab" * n

    return called(step, X)


@row(FUNCTIONS, "built-ins: `sorted`, `max`, `zip`, `enumerate`", "not converted, except the last two")
def other_builtins(decorate):
    @decorate
    def step(x):
        return max(tf.unstack(x)) - sorted(tf.unstack(x))[1] * 1.0

    return called(step)


@row(FUNCTIONS, "TensorFlow's own functions", "called as they are")
def native(decorate):
    return called(decorate(lambda x: tf.nn.softmax(tf.math.cumsum(x))))


@row(FUNCTIONS, "third-party functions (NumPy)", "not listed")
def third_party(decorate):
    return called(decorate(lambda x: x * np.median(x.numpy())))


# ----------------------------------------------------------------------------------------- table 5: collections

@row(COLLECTIONS, "list literals", "low-level tensor lists, as an experiment")
def list_literals(decorate):
    return called(decorate(lambda x: [x[0], [x[1] * 2, 3]]))


@row(COLLECTIONS, "`list.append` in a loop over a tensor", "low-level tensor lists, as an experiment")
def list_append(decorate):
    @decorate
    def step(x):
        out = []
        for v in x:
            out.append(v * 2)
        return tf.stack(out)

    return called(step)


@row(COLLECTIONS, "`list.pop` while values say so", "low-level tensor lists, as an experiment")
def list_pop(decorate):
    @decorate
    def step(x):
        stack = tf.unstack(x)
        while stack and stack[-1] > 1:
            stack.pop()
        return tf.constant(len(stack)) + tf.cast(x[0], tf.int32)

    return called(step)


@row(COLLECTIONS, "list item by a tensor", "low-level tensor lists, as an experiment")
def list_get(decorate):
    names = ["low", "middle", "high"]
    return called(decorate(lambda x: names[tf.argmax(x)]))


@row(COLLECTIONS, "list item set in a branch", "low-level tensor lists, as an experiment")
def list_set(decorate):
    @decorate
    def step(x):
        values = [x[0], "nothing"]
        if x[0] > 0:
            values[1] = x[1] * 2
        return values

    return called(step)


@row(COLLECTIONS, "other list methods", "not converted")
def list_other(decorate):
    log = []

    @decorate
    def step(x):
        log.insert(0, x * 2)
        del log[3:]
        return x

    called(step)
    return plain(log)


@row(COLLECTIONS, "tensor item, get", "`tf.Tensor` op")
def tensor_get(decorate):
    return called(decorate(lambda x: x[tf.argmin(x)] + x[-1]))


@row(COLLECTIONS, "`tf.TensorArray`", "its own ops")
def tensor_array(decorate):
    @decorate
    def step(x):
        array = tf.TensorArray(tf.float32, size=3)
        for i in tf.range(3):
            array = array.write(i, x[i] * 2)
        return array.stack()

    return called(step)


@row(COLLECTIONS, "`dict`, `set`, other collections", "not converted")
def dictionaries(decorate):
    counts = collections.Counter()

    @decorate
    def step(x):
        for v in x:
            counts["big" if v > 1 else "small"] += 1
        return x

    called(step)
    return dict(counts)


@row(COLLECTIONS, "comprehensions", "not converted")
def comprehensions(decorate):
    @decorate
    def step(x):
        return {k: [v for v in tf.unstack(x * k) if v > 1] for k in (1, 2)}

    return called(step)


# ----------------------------------------------------------------- table 6: variables, classes, decorators

@row(VARIABLES, "undefined in one branch", "reified; an error when used")
def undefined(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            extra = x * 2
        y = x + 1
        if x[0] > 0:
            y = y + extra
        return y

    return called(step)


_total = 0


@row(VARIABLES, "`global`", "not converted")
def global_(decorate):
    global _total
    _total = 0

    @decorate
    def step(x):
        global _total
        if x[0] > 0:
            _total += 1
        return x * _total

    called(step)
    return int(_total)


@row(VARIABLES, "`nonlocal`", "not converted")
def nonlocal_(decorate):
    total = 0

    @decorate
    def step(x):
        nonlocal total
        if x[0] > 0:
            total += 1
        return x * total

    called(step)
    return int(total)


@row(VARIABLES, "literals, returned", "preserved")
def literals(decorate):
    step = decorate(lambda x: (x, 3, "text", {"k": None}))
    return called(lambda x: [type(v).__name__ for v in step(x)[1:]])


@row(VARIABLES, "objects of user classes", "allowed, not converted")
def user_classes(decorate):
    @dataclasses.dataclass
    class Result:
        value: object

    step = decorate(lambda x: Result(x * 2))
    return called(lambda x: step(x).value)


@row(VARIABLES, "a class defined in the step", "not allowed")
def class_inside(decorate):
    @decorate
    def step(x):
        class Scale:
            by = 3.0

            def __call__(self, v):
                return v * self.by if v[0] > 0 else v

        return Scale()(x)

    return called(step)


@row(VARIABLES, "callable objects", "converted")
def callables(decorate):
    class Scale:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            return x * self.calls

    scale = Scale()
    called(decorate(lambda x: scale(x)))
    return scale.calls


@row(VARIABLES, "`keras.Model` subclass", "its methods are converted, with conditions")
def keras_model(decorate):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.deep = 0

        def call(self, x):
            y = self.dense(x)
            if tf.reduce_sum(x) > 0:
                self.deep += 1
            return y

    model = Model()
    called(decorate(lambda x: model(x)), X[None], -X[None])
    return model.deep


@row(VARIABLES, "user decorators", "allowed, erased where the code is converted")
def decorators(decorate):
    calls = []

    def logged(f):
        @functools.wraps(f)
        def wrapper(*args):
            calls.append(f.__name__)
            return f(*args)
        return wrapper

    @logged
    def double(x):
        return x * 2 if x[0] > 0 else x

    called(decorate(lambda x: double(x)))
    return len(calls)


@row(VARIABLES, "`functools.lru_cache`", "keeps graph values, with undefined results")
def lru_cache(decorate):
    @functools.lru_cache
    def table(n):
        return tf.range(n) * 2

    step, other = decorate(lambda x: x + tf.cast(table(3), tf.float32)), decorate(lambda x: tf.reduce_sum(table(3)))
    return called(step), called(other)


# -------------------------------------------------------------------- table 6: generators and power features

@row(POWER, "generators", "not converted; plans none")
def generators(decorate):
    def running():
        total = 0.0
        while True:
            total += yield total

    averages = running()
    next(averages)
    return called(decorate(lambda x: x * averages.send(2.0)), X)


@row(POWER, "`inspect`", "sees the generated code")
def inspect_(decorate):
    def line():
        return inspect.currentframe().f_back.f_code.co_name

    @decorate
    def step(x):
        return x, line(), inspect.getsource(helper).count("\n")

    return called(step, X)


@row(POWER, "`pdb`", "stops in the generated code")
def pdb_(decorate):
    stops = []

    class Debugger(pdb.Pdb):
        def interaction(self, frame, *_):
            stops.append(frame.f_code.co_filename == __file__ and frame.f_code.co_name == "step")
            self.set_continue()

    debugger = Debugger(nosigint=True)

    @decorate
    def step(x):
        breakpoint()
        y = helper(x)
        return y

    sys.breakpointhook = lambda: debugger.set_trace(sys._getframe(1))
    try:
        called(step)
    finally:
        sys.breakpointhook = sys.__breakpointhook__
        sys.settrace(None)
    return len(stops), all(stops)


@row(POWER, "`exec`, `eval`", "not converted")
def exec_(decorate):
    @decorate
    def step(x):
        names = {"x": x}
        exec("y = x * 2 if x[0] > 0 else x", names)
        return names["y"] + eval("x")

    return called(step)


@row(POWER, "`getattr`, `setattr`, `type`", "what they give is not converted")
def reflection(decorate):
    class Model:
        pass

    model = Model()

    @decorate
    def step(x):
        setattr(model, "n", getattr(model, "n", 0) + 1)
        return x * model.n, type(model).__name__

    called(step)
    return model.n


# -------------------------------------------------------------------------------- limitations in the paper

@row(LIMITS, "associative data structures", "missing")
def associative(decorate):
    cache = {}

    @decorate
    def step(x):
        key = round(float(tf.reduce_sum(x).numpy()))
        if key not in cache:
            cache[key] = x * 2
        return cache[key] + 1

    return called(step), sorted(cache)


@row(LIMITS, "a Python boolean in a condition is not staged", "silent; hard to notice")
def python_condition(decorate):
    class Flags:
        on = False

    @decorate
    def step(x):
        return x * 2 if Flags.on else x

    results = []
    for k in range(N):
        Flags.on = k % 2 == 0
        results.append(step(X))
    return plain(results[-2:])


@row(LIMITS, "nullable values", "every path must initialise a variable")
def nullable(decorate):
    @decorate
    def step(x):
        best = None
        for v in tf.unstack(x):
            if v > 1 and (best is None or v < best):
                best = v
        return best

    return called(step)


@row(LIMITS, "lists of mixed types", "elements must be of one type")
def mixed_lists(decorate):
    @decorate
    def step(x):
        out = []
        for v in x:
            out.append(v if v > 1 else "small")
        return out

    return called(step)


@row(LIMITS, "functions without source code", "cannot be converted")
def no_source(decorate):
    names = {}
    exec("def step(x):\n    return x * 2 if x[0] > 0 else x", names)
    return called(decorate(names["step"]))


@row(LIMITS, "errors point at the user's line", "rewritten traces of generated code")
def error_line(decorate):
    @decorate
    def step(x):
        if x[0] < 0:
            return tf.matmul(x[None], x[None])
        return x

    lines = []
    for x in (X, X, X, X, -X):
        try:
            step(x)
        except Exception as error:
            tb = error.__traceback__
            while tb is not None:
                lines.append(tb.tb_frame.f_code.co_filename == __file__ and tb.tb_frame.f_code.co_name == "step")
                tb = tb.tb_next
    return any(lines)


# ------------------------------------------------------------------------- limitations in AutoGraph's reference

@row(GUIDE, "changes made by another function", "not detected")
def hidden_change(decorate):
    seen = []

    def note(v):
        seen.append(v)

    @decorate
    def step(x):
        for v in x:
            note(v)
        return x

    called(step, X)
    return plain(seen[-3:])


@row(GUIDE, "changes made by a method", "not detected")
def hidden_method(decorate):
    class Total:
        value = tf.constant(0.0)

        def add(self, v):
            self.value = self.value + v

    @decorate
    def step(x):
        total = Total()
        for v in x:
            total.add(v)
        return total.value

    return called(step)


@row(GUIDE, "a lambda that closes over a loop variable", "sees the value from before the loop")
def late_lambda(decorate):
    @decorate
    def step(x):
        a = tf.constant(0.0)
        last = lambda: a * 1.0  # noqa: E731
        for v in x:
            a = v
        return last()

    return called(step)


@row(GUIDE, "`dict` items changed under a changing key", "illegal capture")
def dynamic_key(decorate):
    @decorate
    def step(x):
        d = {"a": x[0], "b": x[1]}
        for v in x:
            for key in d:
                d[key] += v
        return d

    return called(step)


@row(GUIDE, "index out of bounds in the way not taken", "an error while tracing")
def bounds(decorate):
    @decorate
    def step(x):
        if tf.shape(x)[0] > 4:
            y = x[4]
        else:
            y = x[0] * 1.0
        return y

    return called(step)


@row(GUIDE, "dtype differs between branches", "an error")
def dtypes(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            y = x
        else:
            y = tf.cast(x, tf.int32)
        return y

    return called(lambda x: step(x).dtype.name)


@row(GUIDE, "shape changes inside a loop", "an error without shape invariants")
def shapes(decorate):
    @decorate
    def step(x):
        y = x[:1]
        for v in x:
            y = tf.concat([y, v[None]], 0)
        return y

    return called(step)


@row(GUIDE, "`None` out of a branch", "an error")
def none_branch(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            y = x * 2
        else:
            y = None
        return y

    return called(step)


@row(GUIDE, "nested lambdas with the same arguments", "an error or a wrong source")
def nested_lambdas(decorate):
    make = lambda x: lambda x: x * 2 if x[0] > 0 else x  # noqa: E731
    return called(decorate(make(0)))


@row(GUIDE, "a lambda among others on a line", "its source cannot be told")
def lambda_on_a_line(decorate):
    steps = (lambda x: x * 2 if x[0] > 0 else x, lambda x: x * 3 if x[0] > 0 else x)
    return called(decorate(steps[1]))


# ------------------------------------------------------------------------------------------- table and tests

HEAD = """# AutoGraph's list

The features of tables 4 to 6 of the AutoGraph paper (Moldovan et al., 2019), and the limitations that it and AutoGraph's reference name, each as a
program that calls its step {n} times; see `tests/programs/test_autograph_features.py`. "AutoGraph says" sums up the source; rows that are "not listed" there
are added for contrast. The other columns are what the program gave on TensorFlow {tf}, and are written by

    python -m tests.programs.test_autograph_features

"same" is the value that eager execution gives. "co-executed" says that steps of that program ran as a graph beside Python; "imperative", that none did.

{summary}
"""


def summary():
    eager = [run(k) for k in range(len(ROWS))]
    graph = [line.split(" | ")[3] for _, _, line in eager]
    same, wrong = graph.count("same"), sum(g.startswith("silently") for g in graph)
    ours = sum(not list_of_differences(e, t) for e, t, _ in eager)
    both = sum(line.endswith("same, co-executed |") for _, _, line in eager)
    return (f"Of {len(ROWS)} programs, `tf.function` gives eager's result for {same}, raises for {len(ROWS) - same - wrong} and is silently wrong for "
            f"{wrong}. Terra gives eager's result for {ours}, co-executed for {both}.")


def list_of_differences(eager, ours):
    if isinstance(eager, Exception) or isinstance(ours, Exception):
        return [] if type(eager) is type(ours) else [f"{eager!r} and {ours!r}"]
    return [] if eager == ours else [f"{eager!r} and {ours!r}"]


def table():
    """The text of docs/autograph.md."""
    text = [HEAD.format(n=N, tf=VERSION, summary=summary())]
    for section in dict.fromkeys(r.section for r in ROWS):
        text.append(f"## {section}\n\n| feature | AutoGraph says | eager | `tf.function` | Terra |\n| --- | --- | --- | --- | --- |")
        text += [run(k)[2] for k, r in enumerate(ROWS) if r.section == section]
        text.append("")
    return "\n".join(text).rstrip() + "\n"


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[r.program.__name__ for r in ROWS])
def test_terra_is_eager(index):
    eager, ours, _ = run(index)
    assert list_of_differences(eager, ours) == []


def test_table_is_what_the_rows_give():
    """If this fails, run `python -m tests.programs.test_autograph_features` and look at what has changed."""
    committed = TABLE.read_text()
    if VERSION not in committed:
        pytest.skip(f"the table is not of TensorFlow {VERSION}")
    assert table() == committed


if __name__ == "__main__":
    tf.autograph.set_verbosity(0)
    tf.get_logger().setLevel("ERROR")
    TABLE.write_text(table())
    print(f"wrote {TABLE.name}: {summary()}")
