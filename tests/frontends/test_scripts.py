"""The five scripts print under `python -m terra run` what they print under `python`, and are co-executed."""

import re
from pathlib import Path

import pytest

from tests import forks

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
ARGUMENTS = {"custom_loop.py": ["--batch", "96"]}  # fewer steps
SHARES = {"custom_loop.py": 0.8, "gan.py": 0.8, "reinforcement.py": 0.7, "keras_fit.py": 0.7, "notebook.py": 0.3}  # of the steps; of its few, some run imperatively to compare with


def test_there_are_five_and_none_knows_terra():
    assert {p.name for p in SCRIPTS.glob("*.py")} == set(SHARES)
    assert not any("terra" in p.read_text().lower() for p in SCRIPTS.glob("*.py"))


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("scripts"), "import runpy, sys, tensorflow", SCRIPTS) as made:
        yield made


def finish(done):
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.all_variants
@pytest.mark.parametrize("script", SHARES)
def test_same_output_and_co_executed(script, interpreters):
    arguments = ARGUMENTS.get(script, [])
    expected, _ = finish(interpreters.run_script(script, *arguments))
    actual, statistics = finish(interpreters.run_script(script, *arguments, options=["--stats", "--wait-for-graph"]))  # a busy machine may take long for the graph
    assert actual == expected
    assert len(expected.splitlines()) >= 4
    steps, done = map(int, re.search(r"^terra: (\d+) steps, (\d+) of them co-executed", statistics, re.MULTILINE).groups())
    assert done >= SHARES[script] * steps, statistics


LOOP = '''
import tensorflow as tf

v = tf.Variable(tf.ones((4, 3)))


def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.tanh(x @ v) ** 2)
    v.assign_sub(0.1 * tape.gradient(loss, v))
    return loss


if __name__ == "__main__":
    for k in range(60):
        loss = train(tf.ones((2, 4)) * (k % 5 + 1.0))
    print(float(loss), v.numpy().tolist())
'''


@pytest.mark.all_variants
@pytest.mark.parametrize("module", ["tensorflow", "tensorflow.compat.v1"])
def test_a_function_round_a_tape_is_skipped_as_a_whole(interpreters, tmp_path, module):
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("import tensorflow as", f"import {module} as"))
    expected, _ = finish(interpreters.run_script(script))
    actual, statistics = finish(interpreters.run_script(script, options=["--stats", "--wait-for-graph"]))
    assert actual == expected
    header, row, *_ = [line.split() for line in statistics.splitlines() if line.startswith(" ")]
    found = dict(zip(header, row))
    assert found["step"] == "train" and int(found["skipped"]) >= 40, statistics
