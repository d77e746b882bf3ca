"""The five scripts print under `python -m terra run` what they print under `python`, and are co-executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "examples" / "scripts"
SHARES = {"custom_loop.py": 0.8, "gan.py": 0.8, "reinforcement.py": 0.7, "keras_fit.py": 0.7, "notebook.py": 0.3}  # of the steps; of its few, some run imperatively to compare with


# Each script is the rest of a process of its own, in which TensorFlow has been imported; and Terra, as by `python -m terra`, where that runs it.
PROCESSES = """
import gc, os, runpy, sys
import tensorflow
place, *scripts = sys.argv[1:]

def begins(name, *arguments):
    process = os.fork()
    if process:
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
        return False
    for stream, kind in (sys.stdout, "out"), (sys.stderr, "err"):
        os.dup2(os.open(f"{place}/{name}.{kind}", os.O_CREAT | os.O_WRONLY), stream.fileno())
    sys.argv[:] = arguments
    return True

gc.freeze()  # else each of them goes through all of TensorFlow when it ends
if any(begins(f"plain {script}", script) for script in scripts):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    import terra
    gc.freeze()
    options = "--stats", "--wait-for-graph"  # a busy machine may take long for it
    if any(begins(script, "terra", "run", *options, script) for script in map(str.strip, sys.stdin)):
        runpy.run_module("terra", run_name="__main__", alter_sys=True)
"""


def test_there_are_five_and_none_knows_terra():
    assert {p.name for p in SCRIPTS.glob("*.py")} == set(SHARES)
    assert not any("terra" in p.read_text().lower() for p in SCRIPTS.glob("*.py"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that runs a script under Terra, and gives its output and that of `python`, and what is written of errors and statistics."""
    place = tmp_path_factory.mktemp("scripts")
    command, environment = [sys.executable, "-c", PROCESSES, place, *SHARES], dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    with subprocess.Popen(command, cwd=SCRIPTS, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def finish(name):
            assert process.stdout.readline() == "0\n", (place / f"{name}.err").read_text()
            return (place / f"{name}.out").read_text()

        def run(script):
            print(script, file=process.stdin, flush=True)
            return plain[script], finish(script), (place / f"{script}.err").read_text()

        plain = {script: finish(f"plain {script}") for script in SHARES}
        yield run


@pytest.mark.parametrize("script", SHARES)
def test_same_output_and_co_executed(script, run):
    expected, actual, statistics = run(script)
    assert actual == expected
    assert len(expected.splitlines()) >= 4
    steps, done = map(int, re.search(r"^terra: (\d+) steps, (\d+) of them co-executed", statistics, re.MULTILINE).groups())
    assert done >= SHARES[script] * steps, statistics
