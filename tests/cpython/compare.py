"""Both runs of a module, compared."""

import json
import os
import subprocess
import sys
import tempfile
import time

from .expected import EXPECTED

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Comparison:
    """What became of a module's tests: `plain` and `instrumented` are verdicts by test id."""

    def __init__(self, name, plain, instrumented, seconds):
        self.name = name
        self.plain = plain["tests"]
        self.instrumented = instrumented["tests"]
        self.functions = instrumented["functions"]
        self.seconds = seconds

    def passes(self, verdicts):
        return sum(verdict in ("ok", "expected") for verdict in verdicts.values())

    @property
    def worse(self):
        """Tests that pass plain and not instrumented: (id, what happened)."""
        return [(id_, self.instrumented.get(id_, "did not run")) for id_, verdict in self.plain.items()
                if verdict in ("ok", "expected") and self.instrumented.get(id_) != verdict]

    @property
    def unexpected(self):
        return [(id_, text) for id_, text in self.worse if id_ not in EXPECTED]

    @property
    def expected(self):
        return [id_ for id_, _ in self.worse if id_ in EXPECTED]


def _run(name, mode, timeout):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        environment = dict(os.environ, PYTHONPATH=ROOT, PYTHONHASHSEED="0")
        try:
            done = subprocess.run([sys.executable, "-m", "tests.cpython.child", name, mode, path], cwd=folder,
                                  env=environment, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return None, f"took longer than {timeout:g} s"
        if not os.path.exists(path):
            return None, done.stderr[-2000:]
        with open(path) as file:
            return json.load(file), done.stderr


def compare(name, timeout=300):
    """The Comparison of one module, or the text of what went wrong; None if this Python does not ship it."""
    plain, error = _run(name, "plain", timeout)
    if plain is None:
        return None if f"No module named 'test.{name}'" in error else f"{name} (plain): {error}"
    begin = time.perf_counter()
    instrumented, error = _run(name, "instrumented", timeout)
    if instrumented is None:
        return f"{name} (instrumented): {error}"
    return Comparison(name, plain, instrumented, time.perf_counter() - begin)
