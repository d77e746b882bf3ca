"""The five scripts print under `python -m terra run` what they print under `python`, and are co-executed."""

import re
from pathlib import Path

import forks
import pytest

SCRIPTS = Path(__file__).parents[1] / "examples" / "scripts"
ARGUMENTS = {"custom_loop.py": ["--batch", "96"]}  # fewer steps
SHARES = {"custom_loop.py": 0.8, "gan.py": 0.8, "reinforcement.py": 0.7, "keras_fit.py": 0.7, "notebook.py": 0.3}  # of the steps; of its few, some run imperatively to compare with


def test_there_are_five_and_none_knows_terra():
    assert {p.name for p in SCRIPTS.glob("*.py")} == set(SHARES)
    assert not any("terra" in p.read_text().lower() for p in SCRIPTS.glob("*.py"))


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("scripts"), "import runpy, sys, tensorflow", SCRIPTS) as made:
        yield made


def finish(interpreters, argv, run):
    done = interpreters.run(f"sys.argv[:] = {argv!r}\n{run}")
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("script", SHARES)
def test_same_output_and_co_executed(script, interpreters):
    arguments = ARGUMENTS.get(script, [])
    expected, _ = finish(interpreters, [script, *arguments], "runpy.run_path(sys.argv[0], run_name='__main__')")
    terra = ["terra", "run", "--stats", "--wait-for-graph", script, *arguments]  # a busy machine may take long for the graph
    actual, statistics = finish(interpreters, terra, "runpy.run_module('terra', run_name='__main__', alter_sys=True)")
    assert actual == expected
    assert len(expected.splitlines()) >= 4
    steps, done = map(int, re.search(r"^terra: (\d+) steps, (\d+) of them co-executed", statistics, re.MULTILINE).groups())
    assert done >= SHARES[script] * steps, statistics
