"""The five scripts print under `python -m terra run` what they print under `python`, and are co-executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "examples" / "scripts"
SHARES = {"custom_loop.py": 0.8, "gan.py": 0.8, "reinforcement.py": 0.7, "keras_fit.py": 0.7, "notebook.py": 0.3}  # of the steps; of its few, some run imperatively to compare with


def start(*command):
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    return subprocess.Popen([sys.executable, *command], cwd=SCRIPTS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out, errors


def test_there_are_five_and_none_knows_terra():
    assert {p.name for p in SCRIPTS.glob("*.py")} == set(SHARES)
    assert not any("terra" in p.read_text().lower() for p in SCRIPTS.glob("*.py"))


@pytest.fixture(scope="module")
def plain():
    """{script: what it prints under `python`}, one after the other."""
    code = "import runpy, sys\nfor script in sys.argv[1].split():\n    sys.argv = [script]\n    runpy.run_path(script, run_name='__main__')\n    print('-- end')"
    out, _ = finish(start("-c", code, " ".join(SHARES)))
    return dict(zip(SHARES, out.split("-- end\n"), strict=False))


@pytest.mark.parametrize("script", SHARES)
def test_same_output_and_co_executed(script, plain):
    expected = plain[script]
    actual, statistics = finish(start("-m", "terra", "run", "--stats", "--wait-for-graph", script))  # a busy machine may take long for it
    assert actual == expected
    assert len(expected.splitlines()) >= 4
    steps, done = map(int, re.search(r"^terra: (\d+) steps, (\d+) of them co-executed", statistics, re.MULTILINE).groups())
    assert done >= SHARES[script] * steps, statistics
