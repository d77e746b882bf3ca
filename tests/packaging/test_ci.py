"""The scripts in .ci do what they say, with interpreters that note down what they are asked instead of doing it."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from terra.tf.support import versions

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = r"""#!/usr/bin/env bash
# python -m venv FOLDER, and nothing else
set -e
mkdir -p "$3/bin"
echo "PATH='$3/bin:'\$PATH" >"$3/bin/activate"
for name in pip python; do
    sed "s/VERSION/${0##*python}/; s/NAME/$name/" "$NOTES/stub" >"$3/bin/$name"
    chmod +x "$3/bin/$name"
done
"""
STUB = r"""#!/usr/bin/env bash
if [ "$1" = - ]; then exec "$REAL" -; fi
echo "VERSION NAME $* untested=$TERRA_UNTESTED_TENSORFLOW constraint=$(cat "$PIP_CONSTRAINT" 2>/dev/null)" >>"$NOTES/log"
while [ $# -gt 0 ]; do
    if [ "$1" = -r ]; then cat "$2" >"$NOTES/others"; fi
    shift
done
[ "VERSION NAME" != "$FAILING" ]
"""


@pytest.fixture
def matrix(tmp_path):
    """Runs .ci/matrix for these pairs; returns what it has printed, its status, and what the interpreters were asked."""
    for name, text in ("stub", STUB), ("python3.10", PYTHON), ("python3.12", PYTHON):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(pairs, *words, failing=""):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TERRA_"))}
        environment.update(PATH=f"{tmp_path}:{os.environ['PATH']}", NOTES=str(tmp_path), REAL=sys.executable, MATRIX=pairs, FAILING=failing)
        done = subprocess.run([ROOT / ".ci" / "matrix", *words], env=environment, capture_output=True, text=True, timeout=60)
        return done, (tmp_path / "log").read_text().splitlines()

    return run


def test_a_pair_with_some_tests(matrix):
    done, log = matrix("3.12:2.20", "tests/graph", "-x")
    assert done.returncode == 0, done.stderr
    assert log == [
        "3.12 pip install --quiet -e .[test] untested= constraint=tensorflow==2.20.*",
        "3.12 python -m pytest -q -n 2 --dist loadfile tests/graph -x untested= constraint=tensorflow==2.20.*",
    ]


def test_the_nightly(matrix, tmp_path):
    """The tests run on it behind the doctor; nothing asks for the released TensorFlow."""
    done, log = matrix("3.10:nightly", "tests/graph")
    assert done.returncode == 0, done.stderr
    package, others, doctor, tests = log
    assert package.startswith("3.10 pip install --quiet --no-deps -e . ") and " tf-nightly tf_keras-nightly -r " in others
    assert doctor.startswith("3.10 python -m terra doctor untested=1")
    assert tests.startswith("3.10 python -m pytest -q -n 2 --dist loadfile tests/graph untested=1")
    names = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in (tmp_path / "others").read_text().splitlines()}
    assert {"gast", "astunparse", "numpy", "pytest", "scikit_learn", "hypothesis"} <= names
    assert not {"tensorflow", "tf_keras", "terra", "gpflow"} & names


def test_the_nightly_is_not_tested_where_the_doctor_finds_something(matrix):
    done, log = matrix("3.10:nightly", failing="3.10 python")
    assert done.returncode == 1 and log[-1].startswith("3.10 python -m terra doctor")


def test_all_pairs_are_tried_and_those_named_that_fail(matrix):
    done, log = matrix("3.12:2.20 3.10:2.19", failing="3.12 python")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "== failed: 3.12:2.20"
    assert [line.partition(" ")[0] for line in log] == ["3.12", "3.12", "3.10", "3.10"]
    assert log[-1].endswith("constraint=tensorflow==2.19.*")


def test_the_pairs():
    """Each TensorFlow that Terra takes, each Python, and the nightly."""
    text = (ROOT / ".ci" / "matrix").read_text()
    pairs = [pair.split(":") for pair in re.search(r'^all="([^"]*)"', text, re.MULTILINE)[1].split()]
    (oldest, minor), (newest, last) = versions.OLDEST, versions.NEWEST
    assert oldest == newest and {tensorflow for _, tensorflow in pairs} == {f"{oldest}.{n}" for n in range(minor, last + 1)} | {"nightly"}
    named = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()))
    assert {python for python, _ in pairs} == named and len(named) == 4
