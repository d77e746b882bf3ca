"""What cannot be co-executed is refused with one clear sentence, at once, and leaves nothing broken."""
import asyncio
import functools
import inspect

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

import terra
from tests import forks

ORIGINAL = pywrap_tfe.TFE_Py_FastPathExecute


@pytest.fixture(autouse=True)
def nothing_broken():
    """After whatever happened, Terra still works and TensorFlow is as it was."""
    yield
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        v.assign_add(x)
        return v * 2.0

    results = [float(step(tf.constant(1.0))) for _ in range(5)]
    assert results == [2.0, 4.0, 6.0, 8.0, 10.0] and step.stats().coexecuted_steps >= 2
    terra.sync()
    assert pywrap_tfe.TFE_Py_FastPathExecute is ORIGINAL


def one_sentence(error, *words):
    text = str(error.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 250, text
    for word in words:
        assert word in text, text
    return text


# ------------------------------------------------------------------------------------- what is decorated

def generator_step(x):
    yield x


async def async_step(x):
    return x


async def async_generator_step(x):
    yield x


class Callable:
    def __call__(self, x):
        return x * 2.0


class GeneratorCallable:
    def __call__(self, x):
        yield x


class AsyncCallable:
    async def __call__(self, x):
        return x


@pytest.mark.parametrize("fn, word", [
    (generator_step, "generator"), (async_step, "async"), (async_generator_step, "async"),
    (functools.partial(generator_step, 1), "generator"), (functools.partial(async_step, 1), "async"),
    (GeneratorCallable(), "generator"), (AsyncCallable(), "async"),
    (Callable, "class"), (int, "class"),
    (5, "callable"), ("train", "callable"), ([len], "callable"),
])
def test_what_cannot_be_a_step(fn, word):
    for decorate in (terra.coexecute, terra.coexecute(run_ahead=1)):
        with pytest.raises(terra.DecorationError) as error:
            decorate(fn)
        one_sentence(error, word)
        assert isinstance(error.value, TypeError) and isinstance(error.value, terra.TerraError)


def test_decorated_twice():
    @terra.coexecute
    def step(x):
        return x

    with pytest.raises(terra.DecorationError) as error:
        terra.coexecute(step)
    one_sentence(error, "step", "once")
    assert float(step(tf.constant(2.0))) == 2.0


def test_none_alone_is_the_decorator_with_options():
    assert callable(terra.coexecute(None))


@pytest.mark.parametrize("make", [
    lambda: Callable(), lambda: Callable().__call__, lambda: functools.partial(lambda x, y: x * y, y=2.0), lambda: (lambda x: x * 2.0),
    lambda: functools.partial(tf.multiply, y=2.0), lambda: tf.function(lambda x: x * 2.0),
    lambda: functools.wraps(generator_step)(lambda x: x * 2.0).__wrapped__ and (lambda x: x * 2.0),
])
def test_what_can_be_a_step(make):
    step = terra.coexecute(wait_for_graph=True)(make())
    assert [float(step(tf.constant(float(i)))) for i in range(6)] == [2.0 * i for i in range(6)]
    assert step.stats().coexecuted_steps >= 3


def test_methods_of_all_kinds():
    class Trainer:
        total = tf.Variable(0.0)

        def __init__(self):
            self.w = tf.Variable(1.0)

        @terra.coexecute(wait_for_graph=True)
        def method(self, x):
            self.w.assign_add(x)
            return self.w * 1.0

        @staticmethod
        @terra.coexecute(wait_for_graph=True)
        def static(x):
            return x * 3.0

        @classmethod
        @terra.coexecute(wait_for_graph=True)
        def cls(cls, x):
            cls.total.assign_add(x)
            return cls.total * 1.0

    a, b = Trainer(), Trainer()
    one = tf.constant(1.0)
    for i in range(8):
        assert float(a.method(one)) == 2.0 + i
        assert float(b.method(one)) == 2.0 + i
        assert float(a.static(one)) == 3.0
        assert float(Trainer.cls(one)) == 1.0 + i
    assert Trainer.method.stats().steps == 16 and Trainer.method.stats().coexecuted_steps > 8
    assert Trainer.static.stats().coexecuted_steps > 4
    assert list(inspect.signature(Trainer.method).parameters) == ["self", "x"]


def test_a_step_that_returns_a_generator_or_a_coroutine():
    """No generator function, but its result runs after the step."""
    v = tf.Variable(2.0)

    async def later():
        return v * 2.0

    lazy = terra.coexecute(lambda x: (v * x * k for k in range(3)), wait_for_graph=True)
    awaited = terra.coexecute(lambda: later(), wait_for_graph=True)
    for i in range(6):
        assert [float(y) for y in lazy(tf.constant(float(i)))] == [0.0, 2.0 * i, 4.0 * i]
        assert float(asyncio.run(awaited())) == 4.0


# ------------------------------------------------------------------------------------- options

@pytest.mark.parametrize("options, words", [
    ({"run_aheads": 1}, ("run_aheads", "did you mean 'run_ahead'")),
    ({"optimise": True}, ("optimise", "optimize")),
    ({"zzz": 1}, ("zzz", "the options are", "run_ahead")),
    ({"run_ahead": -1}, ("run_ahead", "a whole number from 0 on", "-1")),
    ({"fast_forward": "all"}, ("fast_forward", "True, False or 'framework'", "'all'")),
    ({"run_ahead": 1.5}, ("run_ahead", "1.5")),
    ({"run_ahead": True}, ("run_ahead", "True")),
    ({"run_ahead": None}, ("run_ahead", "None")),
    ({"optimize": 1}, ("optimize", "bool", "1")),
    ({"max_traces": "many"}, ("max_traces", "'many'")),
])
def test_wrong_options(options, words):
    with pytest.raises(terra.OptionError) as error:
        terra.coexecute(**options)
    text = str(error.value)
    assert "\n" not in text and text[-1] in ".?" and all(w in text for w in words), text
    with pytest.raises(terra.OptionError):
        terra.coexecute(lambda x: x, **options)


# ------------------------------------------------------------------------------------- steps that go wrong

def test_a_step_that_always_raises():
    v, calls = tf.Variable(0.0), []

    @terra.coexecute(wait_for_graph=True)
    def step():
        v.assign_add(1.0)
        calls.append(1)
        raise RuntimeError(f"call {len(calls)}")

    for i in range(1, 8):
        with pytest.raises(RuntimeError, match=f"^call {i}$"):
            step()
        assert float(v) == i
    stats = step.stats()
    assert stats.steps == 7 == stats.tracing_steps + stats.imperative_steps + stats.coexecuted_steps


def test_wrong_arguments_of_a_step():
    @terra.coexecute(wait_for_graph=True)
    def step(x, *, scale):
        return x * scale

    for i in range(8):
        if i % 3 == 2:
            with pytest.raises(TypeError, match="scale"):
                step(tf.constant(1.0))
            with pytest.raises(tf.errors.InvalidArgumentError):
                step(tf.ones([2]), scale=tf.ones([3]))
        else:
            assert float(step(tf.constant(1.0), scale=2.0)) == 2.0
    assert step.stats().coexecuted_steps >= 2


def test_a_wrong_shape_raises_at_the_users_line():
    @terra.coexecute(wait_for_graph=True)
    def step(x):
        y = x + 1.0
        return tf.matmul(y, tf.ones([3, 2]))   # the line

    for _ in range(4):
        step(tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        step(tf.ones([2, 4]))
        terra.sync()
    assert any("# the line" in str(entry.statement) for entry in error.traceback)
    assert step(tf.ones([2, 3])).shape == (2, 2)


def test_recursion_of_a_decorated_function():
    v = tf.Variable(1.0)

    @terra.coexecute(wait_for_graph=True)
    def step(n):
        v.assign_add(1.0)
        return v * 1.0 if n == 0 else step(n - 1) + 1.0

    assert [float(step(2)) for _ in range(6)] == [3.0 * (i + 1) + 3.0 for i in range(6)]
    assert step.stats().steps == 6 and step.stats().coexecuted_steps >= 3


def test_a_step_inside_a_tf_function_is_part_of_its_graph():
    v = tf.Variable(1.0)
    inner = terra.coexecute(lambda x: v * x)
    outer = tf.function(lambda x: inner(x) + 1.0)
    assert [float(outer(tf.constant(float(i)))) for i in range(3)] == [1.0, 2.0, 3.0]
    assert inner.stats().steps == 0


# ------------------------------------------------------------------------------------- unsupported TensorFlow

def test_an_unsupported_tensorflow(tmp_path):
    """One part or another of it is missing."""
    missing = [("tensorflow.python.pywrap_tfe", "TFE_Py_RecordGradient"), ("tensorflow.python.framework.ops", "_EagerTensorBase")]
    code = f"""
import importlib
import tensorflow as tf
for name, part in {missing!r}:
    module = importlib.import_module(name)
    kept = getattr(module, part)
    delattr(module, part)
    for attempt in range(2):
        try:
            import terra
        except ImportError as error:
            print(type(error).__name__, error)
    setattr(module, part, kept)
"""
    with forks.Interpreters(tmp_path, "import tensorflow") as interpreters:
        done = interpreters.run(code)
    lines = [line for line in done.stdout.splitlines() if line]
    assert len(lines) == 4 and lines[0] == lines[1] and lines[2] == lines[3], done.stdout + done.stderr[-500:]
    for line, (_, part) in zip(lines[::2], missing):
        assert line.startswith("UnsupportedTensorFlowError Terra needs TensorFlow 2.16 to 2.21") and part in line
