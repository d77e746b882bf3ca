"""Functions whose source is not there: they run, with the right results, `reason` says why, and steps made of them co-execute."""

import code
import linecache
import math

import pytest
import tensorflow as tf

import terra
from terra.transform import instrument, is_instrumented, reason

X = [tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])]


def coexecutes(function, expected, options=None):
    """Runs `function(x)` as a step, for two inputs in turn; the results must be right, and some steps co-executed."""
    step = terra.coexecute(function, wait_for_graph=True, **(options or {}))
    for i in range(8):
        assert step(X[i % 2]).numpy().tolist() == expected(X[i % 2].numpy()).tolist()
    terra.sync()
    stats = step.stats()
    assert stats.coexecuted_steps > 0 and stats.fallbacks == 0, step.fallback_reasons
    return step


LOOP = """
def f(x):
    for i in range(3):
        x = g(x) * 2.0
    return x

def g(x):
    return x + 1.0
"""


def looped(x):
    for _ in range(3):
        x = (x + 1.0) * 2.0
    return x


def test_exec():
    space = {}
    exec(LOOP, space)
    assert "no source for <string>" in reason(space["f"])
    assert instrument(space["f"]) is space["f"]
    coexecutes(space["f"], looped)


def test_exec_called_from_an_instrumented_step():
    space = {}
    exec(LOOP, space)

    def step(x):
        return space["f"](x) + space["g"](x)

    coexecutes(step, lambda x: looped(x) + (x + 1.0))


def test_a_branch_without_source():
    space = {}
    exec("def f(x, flag):\n    if flag:\n        return x * 2.0\n    return x - 1.0", space)
    step = terra.coexecute(space["f"], wait_for_graph=True)
    for i in range(12):
        flag = i % 3 == 0
        x = X[i % 2]
        assert step(x, flag).numpy().tolist() == (x.numpy() * 2.0 if flag else x.numpy() - 1.0).tolist()
    assert step.stats().coexecuted_steps > 0


def test_interactive_interpreter():
    console = code.InteractiveInterpreter({"tf": tf})
    for source in ("def f(x):\n    return tf.nn.relu(x - 1.5)\n", "h = lambda x: f(x) + 1.0\n"):
        assert not console.runsource(source, "<input>", "exec")
    f, h = console.locals["f"], console.locals["h"]
    assert "no source for <input>" in reason(f)
    coexecutes(f, lambda x: (x - 1.5).clip(0))
    coexecutes(h, lambda x: (x - 1.5).clip(0) + 1.0)


def test_a_cell_with_lines_in_linecache_is_instrumented():
    name = "<ipython-input-7-terra>"
    linecache.cache[name] = (len(LOOP), None, LOOP.splitlines(True), name)
    space = {}
    exec(compile(LOOP, name, "exec"), space)
    assert is_instrumented(instrument(space["f"]))
    coexecutes(space["f"], looped)


def test_several_lambdas_on_a_line():
    first, second = (lambda x: tf.square(x) + 1.0), (lambda x: tf.square(x) - 1.0)
    coexecutes(first, lambda x: x * x + 1)
    coexecutes(second, lambda x: x * x - 1)
    same = [lambda x: x + 1.0, lambda x: x + 1.0]
    for f in same:
        coexecutes(f, lambda x: x + 1)


def test_generated_functions():
    import dataclasses

    @dataclasses.dataclass
    class Affine:
        weight: float
        bias: float = 0.0

    def step(x):
        return x * Affine(2.0, 1.0).weight + Affine(2.0, 1.0).bias

    assert "no source" in reason(Affine.__init__)
    coexecutes(step, lambda x: x * 2 + 1)


def test_functions_of_c_and_of_libraries():
    assert reason(math.sqrt) == "is not a Python function"

    def step(x):
        return sum(map(tf.square, [x, x])) * math.sqrt(4.0)

    coexecutes(step, lambda x: x * x * 4)
    coexecutes(tf.nn.relu, lambda x: x.clip(0))
    coexecutes(tf.square, lambda x: x * x)


def test_a_changed_file_is_noticed(tmp_path):
    path = tmp_path / "changing.py"
    path.write_text("def f(x):\n    return abs(x)\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    path.write_text("# a new line\n\n\ndef other(x, y):\n    return x\n")
    assert "was changed after it was imported" in reason(space["f"])
    assert instrument(space["f"])(-1) == 1


@pytest.mark.parametrize("value", [3, None, "text", print, int, object()])
def test_what_is_no_function(value):
    assert instrument(value) is value
    assert reason(value) == "is not a Python function"
