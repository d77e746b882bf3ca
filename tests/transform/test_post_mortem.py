"""Debuggers after a step has raised: pdb, `pytest --pdb`, and a notebook's tracebacks, `%debug`, edited cells and `%timeit`."""

import io
import os
import pathlib
import pdb
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

import terra


def fails_in_a_loop(x, fail):
    y = tf.reduce_sum(x)
    if fail:
        for k in range(2):
            raise ValueError(f"bad batch {k}")
    return y


def fails_in_a_helper(x, fail):
    def check(value, limit):
        for factor in (1.0, 2.0):
            if limit:
                raise ValueError(f"too large: {factor}")
        return value * 2.0

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = check(tf.reduce_sum(x), fail)
    return tape.gradient(y, x)


def fails_with_a_handler(x, fail):
    try:
        y = tf.exp(x)
        if fail:
            {}["missing"]
    except KeyError as error:
        for _ in range(1):
            tf.abs(x)
        raise ValueError("no entry") from error
    finally:
        tf.abs(x)
    return y


def fails_in_a_comprehension(x, fail):
    return tf.add_n([tf.abs(x) * (k if not fail else int("no number"))
                     for k in range(2)])


def fails_in_an_operation(x, fail):
    y = tf.tanh(x)
    z = tf.ones([2, 3]) @ tf.ones([2 if fail else 3, 4])
    return y, z


PROGRAMS = [fails_in_a_loop, fails_in_a_helper, fails_with_a_handler, fails_in_a_comprehension, fails_in_an_operation]


def failure(step):
    """The exception that leaves the 15th call."""
    for k in range(15):
        try:
            step(tf.ones(3), k >= 13)
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            last = error
    return last


def frames(error):
    """(name, line of the frame, line where it has raised) of the program's frames."""
    found, trace = [], error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name != "failure":
            found.append((frame.f_code.co_name, frame.f_lineno, trace.tb_lineno))
        trace = trace.tb_next
    return found


def debugged(trace, commands):
    """What pdb shows after the failure."""
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=out, nosigint=True, readrc=False)
    debugger.reset()
    debugger.interaction(None, trace)
    return out.getvalue()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_frames_have_lines(program):
    step = terra.coexecute(program, wait_for_graph=True)
    expected, error = failure(program), failure(step)
    assert step.stats().coexecuted_steps >= 8
    assert frames(error) == frames(expected) and all(line is not None for _, line, _ in frames(error))
    while error is not None and expected is not None:  # those that it was raised because of
        assert frames(error) == frames(expected)
        error, expected = error.__context__, expected.__context__


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program is not fails_in_an_operation], ids=lambda f: f.__name__)
def test_pdb_lists_the_lines(program):
    expected, error = failure(program), failure(terra.coexecute(program, wait_for_graph=True))
    commands = "l\np fail if 'fail' in dir() else limit\nup\nl\ndown\nll\nw\nq\n"
    shown = [debugged(e.__traceback__, commands) for e in (expected, error)]
    assert "Traceback" not in shown[1] and "->" in shown[1]
    assert shown[1] == shown[0]


def test_pytest_s_debugger(tmp_path):
    """`pytest --pdb` enters the debugger where the step has raised, and goes on with the next test."""
    path = tmp_path / "test_of_a_step.py"
    path.write_text(textwrap.dedent("""
        import tensorflow as tf
        import terra

        @terra.coexecute(wait_for_graph=True)
        def train(x, fail):
            y = tf.reduce_sum(x)
            for k in range(2):
                if fail:
                    raise ValueError(f"bad batch {k}")
            return y

        def test_training():
            for i in range(8):
                train(tf.ones(3), i >= 7)

        def test_what_follows():
            assert float(train(tf.ones(3), False)) == 3.0
    """))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), "--pdb", str(path)],
        input="l\np k\nup\nl\nc\n", capture_output=True, text=True, cwd=tmp_path, env=_environment())
    assert "INTERNALERROR" not in run.stdout, run.stdout
    assert "1 failed, 1 passed" in run.stdout and '-> raise ValueError(f"bad batch {k}")' in run.stdout, run.stdout + run.stderr
    assert "train(tf.ones(3), i >= 7)" in run.stdout


def _environment():
    root = str(pathlib.Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])), "TF_CPP_MIN_LOG_LEVEL": "3"}


CELLS = {
    "setup": """
        import tensorflow as tf, terra
        x = tf.ones(3)
    """,
    "step": """
        @terra.coexecute(wait_for_graph=True)
        def train(x, fail=False):
            y = tf.reduce_sum(x)
            for k in range(2):
                if fail:
                    raise ValueError(f"bad batch {k}")
            return y * 2.0
        print([float(train(x)) for _ in range(8)], train.stats().coexecuted_steps > 2)
    """,
    "failing": "train(x, fail=True)",
    "debugged": """
        import builtins
        commands = iter(["l", "p k", "p fail", "up", "q"])
        import IPython.core.debugger as debugger
        get_ipython().kernel.raw_input = lambda prompt="": next(commands)
        debugger.Pdb.cmdloop, debugger.Pdb.use_rawinput = __import__("cmd").Cmd.cmdloop, True
        builtins.input = lambda prompt="": next(commands)
        %debug
    """,
    "edited": """
        @terra.coexecute(wait_for_graph=True)
        def train(x, fail=False):
            y = tf.reduce_sum(x)
            for k in range(3):
                y = y + 1.0
            assert not fail, "edited"
            return y
        print([float(train(x)) for _ in range(8)], train.stats().coexecuted_steps > 2)
    """,
    "failing again": "train(x, fail=True)",
    "timed": """
        result = %timeit -n 5 -r 2 -q -o train(x)
        print(len(result.all_runs), train.stats().steps, float(train(x)))
    """,
}


def test_a_notebook():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(text).strip()) for text in CELLS.values()])
    client = nbclient.NotebookClient(book, timeout=120, allow_errors=True, resources={"metadata": {"path": str(_environment()["PYTHONPATH"].split(":")[0])}})
    with client.setup_kernel(env=_environment()):
        for number, cell in enumerate(book.cells):
            client.execute_cell(cell, number)
    outputs = dict(zip(CELLS, (cell.outputs for cell in book.cells)))

    def text(name):
        return "".join(output.text for output in outputs[name] if output.output_type == "stream" and output.name == "stdout")

    def error(name):
        (found,) = [output for output in outputs[name] if output.output_type == "error"]
        return found.ename, found.evalue, _without_colours("\n".join(found.traceback))

    assert text("step") == f"{[6.0] * 8} True\n", outputs["step"]
    name, value, trace = error("failing")
    assert (name, value) == ("ValueError", "bad batch 0")
    assert 'raise ValueError(f"bad batch {k}")' in trace and "----> 1 train(x, fail=True)" in trace and "Traceback (most recent call last)" in trace
    assert "terra" not in trace.replace("terra.coexecute", ""), trace
    debugged = _without_colours(text("debugged"))
    assert "raise ValueError" in debugged and "\n0\n" in debugged.replace("ipdb> ", "") and "True" in debugged, outputs["debugged"]
    assert text("edited") == f"{[6.0] * 8} True\n", outputs["edited"]
    name, value, trace = error("failing again")
    assert (name, value) == ("AssertionError", "edited") and 'assert not fail, "edited"' in trace
    assert text("timed") == "2 19 6.0\n", outputs["timed"]
    everything = str(book)
    assert "crash" not in everything and "Unexpected exception formatting" not in everything


def _without_colours(text):
    import re
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
