"""Assertions in decorated steps of a test file fail with the messages that pytest gives those of any function."""

import os
import pathlib
import re
import textwrap

from tests import forks

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
FILE = """
    import os
    import pytest
    import tensorflow as tf
    import terra

    LIMIT = 2

    def check(values, expected):
        assert values == expected, f"after {len(values)}"

    def comparison(x, k):
        y = tf.abs(x)
        assert int(k) < 5
        return y

    def call(x, k):
        y = tf.abs(x)
        numbers = [k + 2, 2, 1]
        assert sorted(numbers) == [1, 2, k + 2 if k < 5 else 3]
        return y

    def attribute(x, k):
        assert x.shape[0] == (3 if k < 5 else 4) and x.dtype is tf.float32
        return tf.tanh(x)

    def message(x, k):
        text = f"step {k}"
        assert k != 6, text + "!"
        return tf.tanh(x)

    def of_a_helper(x, k):
        y = x * 2.0
        check([1, 2, 3], [1, 2, 3 if k < 5 else 4])
        return y

    def of_a_tensor(x, k):
        y = tf.reduce_sum(x)
        assert float(y) == (3.0 if k < 5 else 2.5)
        return y

    def membership(x, k):
        names = dict(a=1, b=LIMIT)
        for name in "ab" if k < 5 else "abc":
            assert name in names
        return x + 1.0

    def boolean(x, k):
        assert k < 5 or not LIMIT or (k > 100 and x is None)
        return x + 1.0

    def nested(x, k):
        def inner(value):
            assert [v for v in range(value)] == [0] * value
            return x * 2.0
        return inner(1 if k < 5 else 2)

    def conversion(x, k):
        assert (walrus := k + LIMIT) < 7, (walrus, k)
        return x * float(LIMIT)

    def method(x, k):
        class Checked:
            def run(self, value):
                assert self.limit > value
                return tf.abs(x)
            limit = 5
            def __repr__(self):
                return "<checked>"
        return Checked().run(k)

    STEPS = [comparison, call, attribute, message, of_a_helper, of_a_tensor, membership, boolean, nested, conversion, method]

    @pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
    def test_plain(step):
        for k in range(8):
            step(tf.ones(3), k if k < 5 else 0)
        step(tf.ones(3), 6)

    @pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
    def test_decorated(step):
        run = terra.coexecute(wait_for_graph=True)(step)
        for k in range(8):
            run(tf.ones(3), k if k < 5 else 0)
        print("STEPS", step.__name__, run.stats().coexecuted_steps > 1, run.located)
        run(tf.ones(3), 6)
"""


def test_messages_of_an_old_file(tmp_path, tmp_path_factory):
    path = tmp_path / "test_of_steps.py"
    path.write_text(textwrap.dedent(FILE))
    os.utime(path, (1.5e9, 1.5e9))
    words = ["-q", "-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-vv", str(path)]
    with forks.Interpreters(tmp_path_factory.mktemp("interpreter"), "import sys, tensorflow", tmp_path) as interpreters:
        run = interpreters.run(f"sys.path[:1] = ['', {ROOT!r}]\nimport pytest\nsys.exit(pytest.main({words!r}))")
    found, name = {}, None  # (how, step) -> the lines of the explanation
    for line in run.stdout.splitlines():
        if match := re.match(r"_+ test_(\w+)\[(\w+)\] _+", line):
            name = match[1], match[2]
        elif name is not None and line.startswith(("E  ", ">")) and "run(tf.ones" not in line and " step(tf.ones" not in line:
            found.setdefault(name, []).append(line)
    steps = {step for _, step in found}
    assert len(steps) == 11, run.stdout + run.stderr
    for step in steps:
        assert found["decorated", step] == found["plain", step], run.stdout
        assert any(line.startswith("E") and "assert" in line for line in found["plain", step])
    assert len(re.findall(r"STEPS \w+ True True", run.stdout)) == 11, run.stdout  # all of them were instrumented, and co-executed
