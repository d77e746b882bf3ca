"""`import terra` has TensorFlow imported when it is first needed, and at once where it is there already."""

import os
import pathlib
import subprocess
import sys
import textwrap

import terra

ROOT = pathlib.Path(__file__).parents[2]


def python(directory, program):
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=str(ROOT))
    (directory / "program.py").write_text(textwrap.dedent(program))
    return subprocess.run([sys.executable, "-W", "ignore", "program.py"], cwd=directory, env=environment, capture_output=True, text=True, timeout=100)


def test_what_needs_no_tensorflow(tmp_path):
    (tmp_path / "model.py").write_text("def step(x):\n    return x\n")
    done = python(tmp_path, """
        import runpy, sys
        import terra
        import terra.transform
        print(terra.__version__, terra.Options(run_ahead=2).run_ahead, issubclass(terra.OptionError, terra.TerraError))
        assert set(terra.__all__) <= set(dir(terra))
        assert not hasattr(terra, "nothing")
        for words in ["--help"], ["run", "--help"], ["run"], ["code", "model.py:step"]:
            sys.argv[1:] = words
            try:
                runpy.run_module("terra", run_name="__main__", alter_sys=True)
            except SystemExit:
                pass
        assert "tensorflow" not in sys.modules and "numpy" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{terra.__version__} 2 True\n") and "usage: python -m terra" in done.stdout and "def step(x)" in done.stdout


def test_tensorflow_is_imported_when_it_is_needed(tmp_path):
    """All that is asked for later is there, calls are skipped, and steps that a function of `atexit` begins are waited for: the last one's error is not lost."""
    done = python(tmp_path, """
        import atexit, sys
        import terra

        def last():
            for number in 1.0, 2.0, float("inf"):
                print("at exit", train(tf.fill([300, 300], number)).shape)

        atexit.register(last)
        before = set(dir(terra))
        from terra import *
        assert "tensorflow" in sys.modules
        assert set(dir(terra)) >= before and all(hasattr(terra, name) for name in terra.__all__)
        assert terra.coexecute is coexecute and terra.transform and terra.runtime

        import tensorflow as tf
        v = tf.Variable(0.0)

        def own(x):
            return x * v

        @coexecute(wait_for_graph=True)
        def train(x):
            y = own(x)
            v.assign_add(1.0)
            for _ in range(30):
                y = tf.matmul(y, x) / 1e6
            return tf.debugging.check_numerics(y, "no number")

        for i in range(8):
            train(tf.zeros([2, 2]))
        stats = train.stats()
        print("skipped", stats.whole_steps > 0, stats.coexecuted_steps)
    """)
    assert "skipped True" in done.stdout and done.stdout.count("at exit (300, 300)") == 3, done.stdout + done.stderr
    assert "no number" in done.stderr and done.returncode != 0, done.stderr
