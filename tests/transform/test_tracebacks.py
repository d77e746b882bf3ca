"""Tracebacks of what a step raises: the lines that eager execution shows, and none of Terra's."""

import dataclasses
import gc
import inspect
import subprocess
import sys
import traceback

import keras
import pytest
import tensorflow as tf

import terra
from terra import ours
from terra.runtime.fast_forward.sites import framework_calls
from terra.runtime.fast_forward.steps import pure_functions
from terra.runtime.interpreter import tracebacks
from terra.runtime.step_function import coexecution, methods
from tests.unwaited import unwaited


class Doubling(keras.layers.Layer):
    def call(self, x, fails=False):
        if fails:
            raise ValueError("in a layer")
        return x * 2.0


def check(fails):
    if fails:
        raise KeyError("in a function")


def chained():
    try:
        check(True)
    except KeyError as error:
        raise RuntimeError("because of another one") from error


TAKING_OUT = [module.__file__ for module in (coexecution, framework_calls, methods)]
FAILURES = ["a function", "a layer", "an operation", "a chain", "an iteration", "Keras' own check", "a check of TensorFlow's", "a list", "arguments"]


def failing(tape_class):
    """A step that fails in the way that it is told."""
    keras.utils.set_random_seed(1)
    model, doubling = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)]), Doubling()
    w = tf.Variable([1.0, 2.0])

    def step(x, how):
        with tape_class() as tape:
            loss = tf.reduce_mean(doubling(model(x), fails=how == "a layer")) + tf.reduce_sum(w)
            check(how == "a function")
            if how == "an operation":
                tf.ones([2, 3]) @ tf.ones([2, 3])
            if how == "a chain":
                chained()
            if how == "an iteration":
                list(loss)
            if how == "Keras' own check":
                model(tf.ones([2, 7]))
            if how == "a check of TensorFlow's":
                tf.debugging.assert_less(loss, -1e9, message="too large")
            if how == "a list":
                [check(k > 1) for k in range(3)]
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    return step


def raised(step, *args):
    try:
        step(*args)
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def entries(error):
    """(file, line, function) of all entries of a traceback. Before Python 3.11, the frames that take the others out stay."""
    found = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return [entry for entry in found if sys.version_info >= (3, 11) or entry[0] not in TAKING_OUT]


def shown(step, how):
    """The entries of the traceback, and of those of the errors behind it."""
    error, found = raised(step, tf.ones([2, 4]), *([] if how == "arguments" else [how])), []
    while error is not None:
        found += entries(error)
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.all_variants
@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("way", ["decorated", "block"])
def test_they_are_those_of_eager_execution(way, how):
    if how == "Keras' own check" and sys.version_info < (3, 11):
        pytest.skip("Keras leaves out its own innermost frame, if one of ours stays around it")
    step = failing(tf.GradientTape if way == "decorated" else terra.GradientTape)
    if way == "decorated":
        step = terra.coexecute(step, wait_for_graph=True)
    eager = shown(failing(tf.GradientTape), how)
    assert eager and shown(step, how) == eager  # while it is traced
    for _ in range(30):
        step(tf.ones([2, 4]), None)
    assert shown(step, how) == eager
    if way == "decorated":
        assert step.stats().coexecuted_steps > 20 and step.stats().whole_steps > 0


def test_an_error_that_comes_late():
    v = tf.Variable(tf.ones([5]))

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        return tf.gather(v, i)

    for _ in range(12):
        step(tf.constant([1]))
    result = unwaited(step, tf.constant([9]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        result.numpy()
    frames = traceback.extract_tb(caught.value.__traceback__)
    line = step.__wrapped__.__code__.co_firstlineno + 2
    assert (frames[-1].filename, frames[-1].lineno) == (__file__, line)
    assert len([f for f in frames if "terra/runtime" in f.filename.replace("\\", "/")]) <= 1 + (sys.version_info < (3, 11))  # that of reading the value, which is still below


def test_all_frames_stay_where_tensorflows_do():
    step = terra.coexecute(failing(tf.GradientTape))
    tf.debugging.disable_traceback_filtering()
    try:
        assert any(name == "one_step" for _, _, name in shown(step, "a function"))
    finally:
        tf.debugging.enable_traceback_filtering()


def test_a_defect_shows_its_frames(monkeypatch):
    space = {"__name__": "terra.runtime.fast_forward.steps.pure_functions"}
    exec("def raise_it():\n    raise AttributeError('of ours')\ndef run_step(*args):\n    raise_it()", space)
    monkeypatch.setattr(pure_functions, "run_step", space["run_step"])
    step = terra.coexecute(lambda x: x + 1.0)
    with pytest.raises(AttributeError) as caught:
        step(tf.ones([2]))
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][-3:] == ["one_step", "run_step", "raise_it"]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int = 1


class WithACause(Exception):
    @property
    def __cause__(self):
        return "the weather"


@pytest.mark.parametrize("way", ["decorated", "block"])
@pytest.mark.parametrize("kind", [Frozen, WithACause])
def test_exceptions_with_attributes_of_their_own(kind, way):
    def step(x, fails):
        with (tf.GradientTape if way == "decorated" else terra.GradientTape)():
            y = x * 2.0
            if fails:
                raise kind()
        return y

    if way == "decorated":
        step = terra.coexecute(step, wait_for_graph=True)
    for i in range(20):
        step(tf.ones([2]), False)
    assert way == "block" or step.stats().coexecuted_steps > 10
    error = raised(step, tf.ones([2]), True)
    assert type(error) is kind and traceback.extract_tb(BaseException.__traceback__.__get__(error))[-1].line == "raise kind()"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are new in Python 3.11")
def test_the_parts_of_a_group():
    @terra.coexecute
    def step(x):
        errors = []
        for _ in range(2):
            try:
                check(True)
            except KeyError as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    for part in raised(step, tf.ones([2])).exceptions:
        assert [f.name for f in traceback.extract_tb(part.__traceback__)] == ["step", "check"]


def test_wrong_arguments_of_a_step_in_a_step():
    inner = terra.coexecute(lambda x: x)
    step = terra.coexecute(lambda x: inner(x, x))
    assert [name for _, _, name in entries(raised(step, tf.ones([2])))] == ["raised", "<lambda>"]


def test_a_method():
    class Program:
        @terra.coexecute
        def step(self, x):
            check(True)

    assert [name for _, _, name in entries(raised(Program().step, tf.ones([2])))] == ["raised", "step", "check"]


def test_what_a_builtin_raises():
    step = terra.coexecute(lambda x: sum([x, "a"]))
    assert traceback.extract_tb(raised(step, 1.0).__traceback__)[-1].name == "<lambda>"


def test_functions_that_call():
    """Closures are found by the code that they share, and code that is gone is forgotten."""
    def make():
        space = {}
        exec("def call():\n    return inspect.currentframe()", {"inspect": inspect}, space)
        return ours.calling(space["call"])

    def closure(x):
        return ours.calling(lambda: (x, inspect.currentframe())[1])

    known = len(ours._calling)
    assert all(ours.calls(closure(x)()) for x in range(3)) and not ours.calls(inspect.currentframe())
    assert ours.calls(make()())
    gc.collect()
    assert len(ours._calling) == known + 1


def test_deep_recursion():
    def deep(n):
        if n == 0:
            raise KeyError
        deep(n - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        error = raised(deep, 5_000)
    finally:
        sys.setrecursionlimit(limit)
    tracebacks.clean(error)
    assert len(traceback.extract_tb(error.__traceback__)) == 5_002


def test_what_is_not_on_the_stack_is_left_alone():
    error = ValueError("never raised")
    error.__context__ = error.__cause__ = KeyError("neither")
    error.__cause__.__context__ = error  # in a circle
    tracebacks.clean(error)
    assert error.__traceback__ is None and error.__cause__.__traceback__ is None


SCRIPT = """
import tensorflow as tf
v = tf.Variable([1.0, 2.0])
def check(i):
    if i == 30:
        raise KeyError("in a function")
def step(x, i):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * x)
        check(i)
    v.assign_sub(0.01 * tape.gradient(loss, v))
for i in range(40):
    step(tf.ones([2]), i)
"""


def test_a_script_ends_with_the_traceback_of_eager_execution(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    printed = [subprocess.run([sys.executable, *how, str(path)], capture_output=True, text=True, timeout=300) for how in ([], ["-m", "terra", "run"])]
    eager, ours = (text[text.index("Traceback"):] for text in (run.stderr for run in printed))
    assert eager == ours and printed[0].returncode == printed[1].returncode == 1


CATCHING = """
import traceback
import keras
import tensorflow as tf
class Doubling(keras.layers.Layer):
    def call(self, x, fails=False):
        if fails:
            raise ValueError("in a layer")
        return x * 2.0
doubling, mean = Doubling(), keras.metrics.Mean()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
def helper(x, fails):
    for _ in range(15):
        x = doubling(x) + 1.0
    return doubling(x, fails=fails)
def calls(fails):
    yield lambda: doubling(tf.ones([2]), fails=fails)
    yield lambda: model(tf.ones([2, 3 + fails]))
    yield lambda: mean.update_state(tf.ones([2, 4]), tf.ones([3 + fails]))
    yield lambda: helper(tf.ones([2]), fails)
for k in range(14):
    for call in calls(k in (0, 1, 2, 3, 12)):
        try:
            call()
        except Exception:
            print(k, traceback.format_exc())
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the frame that takes the others out stays")
def test_what_a_script_catches_and_prints(tmp_path):
    """Calls of layers, models, metrics and functions, outside of any step."""
    path = tmp_path / "script.py"
    path.write_text(CATCHING)
    eager, ours = (subprocess.run([sys.executable, *how, str(path)], capture_output=True, text=True, timeout=300) for how in ([], ["-m", "terra", "run", "--explain"]))
    assert eager.stdout.count("Traceback") > 15 and ours.stdout.startswith(eager.stdout)
    assert "Doubling.__call__" in ours.stdout + ours.stderr


def test_the_programs_code_is_not_called_while_an_error_of_terras_is_handled():
    """What it raises would have that as its context, and a bare `raise` would raise it."""
    seen = []

    def look(x):
        seen.append(sys.exc_info()[0])
        return x

    class Looking(keras.layers.Layer):
        def call(self, x, other=None):
            return look(x)

    layer, w = Looking(), tf.Variable([1.0, 2.0])

    @terra.coexecute(wait_for_graph=True)
    def step(x, other):
        look(x)
        y = layer(x, other=other) + tf.map_fn(look, x) + tf.while_loop(lambda k, y: k < 2, lambda k, y: (k + 1, look(y)), (0, x))[1]
        return y + tf.py_function(look, [x], tf.float32)

    for i in range(40):
        x = tf.ones([2]) * i
        if i > 20:
            x.attached = object()
        step(x, w[:1] if i > 30 else None)
    assert len(seen) > 100 and set(seen) == {None}
    assert step.stats().coexecuted_steps > 20
