"""What is logged, where that goes, and what the program may say about how steps run: TERRA_LOG, TERRA_DISABLE, `terra.set_stance`, `terra.imperative`."""

import logging
import pathlib
import re
import textwrap
import threading

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import errors, logs
from terra.runtime.step_function import generation
from tests import forks

ROOT = pathlib.Path(__file__).parents[2]
X = [tf.random.stateless_normal([4, 4], seed=[k, 7]) for k in range(4)]


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("interpreters"), "import os, runpy, sys, tensorflow") as made:
        yield made


@pytest.fixture
def script(interpreters, tmp_path):
    """Runs a program in a process of its own that imports Terra with these variables of the environment; returns what it did."""
    def run(text, *arguments, **environment):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        done = interpreters.run(
            f"os.environ.update({environment!r})\nos.chdir({str(tmp_path)!r})\nsys.path[:1] = {[str(tmp_path), str(ROOT)]!r}\n"
            f"sys.argv[:] = {['train.py', *arguments]!r}\nrunpy.run_path('train.py', run_name='__main__')")
        assert done.returncode == 0, done.stderr
        return done

    return run


def by_terra(text):
    return [line for line in text.splitlines() if line.startswith("terra: ")]


TRAINING = """
    import logging, sys
    import tensorflow as tf
    import terra

    if "basic" in sys.argv:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    v = tf.Variable(tf.ones([4, 4]))

    @terra.coexecute(wait_for_graph=True)
    def step(x, k):
        y = x @ v
        for _ in range(20):
            y = tf.tanh(y @ v)
        if k == 30:
            y = tf.sin(y)
        v.assign_sub(0.001 * y)
        return y

    for k in range(40):
        step(tf.ones([4, 4]) * k, k)
    terra.sync()
    print(float(tf.reduce_sum(v)), step.stats().coexecuted_steps)
"""


def test_what_terra_log_shows(script):
    shown = by_terra(script(TRAINING, TERRA_LOG="info").stderr)
    (first,) = [line for line in shown if "is co-executed" in line]
    assert re.fullmatch(r"terra: step is co-executed from step [3-5] on(, up to [\d.e+]+ x faster than eager)?", first)
    (only,) = [line for line in shown if "fell back" in line]
    assert only.startswith("terra: step 31 of step fell back: ") and "train.py:" in only


def test_choices_of_terra_log(caplog, monkeypatch):
    log = logging.getLogger("terra")
    monkeypatch.setattr(log, "filters", [])
    monkeypatch.setattr(log, "level", log.level)
    logs.choose("fallbacks")
    log.info("step %d of %s fell back: %s", 3, "step", "why")
    log.info("something else")
    log.warning("a warning")
    assert caplog.messages == ["step 3 of step fell back: why", "a warning"]
    logs.choose("debug")
    assert log.level == logging.DEBUG and log.filters == []
    logs.choose("info")
    assert log.level == logging.INFO
    logs.choose("loud")
    assert caplog.messages[-1] == "TERRA_LOG=loud is none of info, debug, fallbacks; it is ignored" and log.level == logging.INFO
    logs.choose("")
    assert log.level == logging.NOTSET


def test_a_program_with_handlers_is_told_once(script):
    done = script(TRAINING, "basic", TERRA_LOG="info")
    told = [line for line in done.stdout.splitlines() if "is co-executed" in line]
    assert len(told) == 1 and told[0].startswith("INFO:terra:step is co-executed from step ") and by_terra(done.stderr) == []


def test_everything_eager(script):
    done = [script(TRAINING, TERRA_DISABLE=value) for value in "10"]
    assert [by_terra(run.stderr) for run in done] == [[], []]  # nothing is shown by itself
    plain, ours = (run.stdout.split() for run in done)
    assert plain[0] == ours[0] and plain[1] == "0" and int(ours[1]) > 30


def test_large_graphs_are_announced(caplog, monkeypatch):
    monkeypatch.setattr(generation, "LARGE", 30)

    @terra.coexecute(wait_for_graph=True)
    def long_step(x):
        for _ in range(40):
            x = tf.tanh(x)
        return x

    with caplog.at_level(logging.INFO, "terra"):
        for k in range(5):
            long_step(X[k % 4])
    assert [record.getMessage() for record in caplog.records if "building" in record.getMessage()] == ["building the graph of test_large_graphs_are_announced.<locals>.long_step (40 operations)"]


def test_a_step_that_is_given_up_is_told_with_a_remedy(caplog):
    history = []

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        history.append(x)
        return tf.add_n(history)  # grows

    with caplog.at_level(logging.WARNING, "terra"):
        for k in range(40):
            np.testing.assert_array_equal(step(X[k % 4]), tf.add_n(history))
    (record,) = [record for record in caplog.records if "runs imperatively" in record.getMessage()]
    assert re.search(r"it is tried again later\. T12 \(test_logs_and_stances\.py:\d+\): keep what is needed of the earlier ones in a tf\.Variable", record.getMessage()), record.getMessage()


def counting():
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True)
    def step(x, k=0):
        y = tf.reduce_sum(x) + v
        if k:
            y = tf.sin(y)
        v.assign_add(y)
        return y

    return step, v


def settled():
    """Two such steps with their variables, after six calls each: the second one runs eagerly."""
    (step, v), (other, w) = counting(), counting()
    for k in range(6):
        other.__wrapped__(X[k % 4])
        step(X[k % 4])
    return (step, v), (other, w)


def test_stances():
    (step, v), (other, w) = settled()
    before = step.stats().steps
    terra.set_stance("imperative")
    try:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(step(X[0])))
        for k in range(4):
            other.__wrapped__(X[k])
            step(X[k])
            with terra.GradientTape() as tape:
                loss = v * v
            assert type(tape.gradient(loss, v)) is type(X[0])
        other.__wrapped__(X[0])
        thread.start()
        thread.join()
        assert step.stats().steps == before and tape.block is None and "terra.set_stance('imperative')" in terra.explain(step)
    finally:
        terra.set_stance("default")
    for k in range(4):
        other.__wrapped__(X[k])
        step(X[k])
    assert float(v) == float(w) and step.stats().steps == before + 4 and step.stats().coexecuted_steps >= 6


def test_a_stance_for_a_while():
    step, v = counting()
    with terra.set_stance("imperative") as outer:
        with terra.set_stance("default"):
            step(X[0])
        step(X[1])
        assert repr(outer) == "<terra stance 'imperative'>"
    step(X[2])
    assert step.stats().steps == 2


def test_fallbacks_as_errors():
    (step, v), (other, w) = settled()
    with terra.set_stance("fail_on_fallback"):
        step(X[0])
        with pytest.raises(errors.FallbackError, match=r"left its graph: Sin never followed .* \(test_logs_and_stances.py:\d+\)\. The step was finished eagerly"):
            step(X[1], 1)
    other.__wrapped__(X[0])
    other.__wrapped__(X[1], 1)
    assert float(v) == float(w)  # it was done once, and wholly
    step(X[1], 1)


def test_a_block_that_leaves_its_graph_as_an_error():
    v = tf.Variable(1.0)

    def block(k):
        with terra.GradientTape(wait_for_graph=True) as tape:
            loss = v * v
            if k == 8:
                loss = tf.sin(loss)
            gradient = tape.gradient(loss, v)
            v.assign_sub(0.1 * gradient)

    for k in range(7):
        block(k)
    with terra.set_stance("fail_on_fallback"):
        block(7)
        with pytest.raises(terra.FallbackError):
            block(8)


def test_unknown_stances():
    with pytest.raises(terra.OptionError, match="terra.set_stance knows no 'imperativ'; did you mean 'imperative'?"):
        terra.set_stance("imperativ")
    with pytest.raises(terra.OptionError, match="it takes 'default', 'imperative', 'fail_on_fallback'"):
        terra.set_stance(3)


def test_imperative_without_parentheses():
    @terra.imperative
    def shown(x):
        """Its text."""
        return type(x * 2.0)

    @terra.imperative()
    def also(x):
        return type(x * 2.0)

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        y = x + 1.0
        return y, shown(x), also(x), type(x * 3.0)

    for k in range(8):
        _, first, second, third = step(X[k % 4])
    assert first is second is type(X[0]) and third is not first and shown.__name__ == "shown" and shown.__doc__ == "Its text."
    with pytest.raises(terra.DecorationError, match="terra.imperative takes a function"):
        terra.imperative(3)


def test_the_handler_writes_what_nobody_else_shows(capsys):
    record = logging.LogRecord("terra", logging.WARNING, "", 0, "a message", (), None)
    handler, logger, root = logs.ToStandardError(), logging.getLogger("terra"), logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        handler.emit(record)
        root.addHandler(logging.NullHandler())
        handler.emit(record)
        logger.propagate = False  # as under `python -m terra run`
        handler.emit(record)
    finally:
        root.handlers, logger.propagate = handlers, True
    assert capsys.readouterr().err == "terra: a message\n" * 2
