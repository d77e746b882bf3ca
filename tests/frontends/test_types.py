"""What editors and type checkers see: signatures that are kept, options with types, attributes that are for users."""

import ast
import dataclasses
import inspect
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

import terra
from terra.frontends import keras_support
from terra.reporting.explanation import Explanation
from terra.runtime.step_function.coexecution import FOR_USERS

ROOT = pathlib.Path(terra.__file__).parent
STUB = ast.parse((ROOT / "__init__.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def fields(name):
    return [node.target.id for node in CLASSES[name].body if isinstance(node, ast.AnnAssign)]


def methods(name):
    return {node.name for node in CLASSES[name].body if isinstance(node, ast.FunctionDef) and not node.name.startswith("__")}


def test_the_stub_has_all_names():
    found = {node.name for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    found |= {alias.asname for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    assert set(terra.__all__) <= found and (ROOT / "py.typed").exists()
    assert all(hasattr(terra, name) for name in terra.__all__)


def test_the_stub_has_all_options_and_figures():
    assert fields("Options") == fields("_Options") == [field.name for field in dataclasses.fields(terra.Options)]
    assert fields("Stats") == [field.name for field in dataclasses.fields(terra.Stats)]


def test_the_stub_has_what_is_for_users():
    assert methods("Coexecuted") | {"options"} == set(FOR_USERS)
    for name, cls in {"KerasSteps": keras_support.KerasSteps, "Explanation": Explanation, "GradientTape": terra.GradientTape, "Stats": terra.Stats}.items():
        assert methods(name) <= set(dir(cls)), name


def test_signatures_of_functions():
    stubs = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
    for name in "explain", "sync", "to_code", "compile":
        arguments = stubs[name].args
        given = [a.arg for a in (*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg) if a is not None]
        assert given == list(inspect.signature(getattr(terra, name)).parameters), name


def test_what_a_step_shows():
    @terra.coexecute
    def step(x: float, *, scale: float = 1.0) -> float:
        """What it does."""
        return x * scale

    class Trainer:
        @terra.coexecute
        def step(self, x):
            return x

    for shown in step, Trainer.step, Trainer().step:
        names = [name for name in dir(shown) if not name.startswith("_")]
        assert names == sorted(FOR_USERS) and all(hasattr(shown, name) for name in names)
    assert inspect.signature(step) == inspect.signature(step.__wrapped__) and step.__doc__ == "What it does." and "__call__" in dir(step)
    assert terra.Coexecuted[[float], float].__origin__ is terra.Coexecuted
    stats = step.stats()
    assert repr(stats).startswith("Stats(steps=0, tracing_steps=0, coexecuted_steps=0, imperative_steps=0, traces=0, graphs=0, fallbacks=0, feeds=0, fetches=0, python_stall_s=0.0, details={")
    assert stats.details["whole_steps"] == stats.whole_steps and "steps" not in stats.details


def test_texts_of_tensors():
    kept = []

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        kept.append(x + 1.0)
        return kept[-1]

    for _ in range(6):
        tensor = step(tf.ones([2]))
    assert type(tensor) is not type(tf.constant(1.0))
    for name in "shape", "device", "backing_device", "numpy", "set_shape", "ndim", "ref", "consumers":
        assert inspect.getdoc(getattr(type(tensor), name)) == inspect.getdoc(getattr(type(tf.constant(1.0)), name)), name


PROGRAM = """
    import terra

    class Trainer:
        @terra.coexecute(run_ahead=0, loops="roll")
        def step(self, x: float, times: int = 1) -> float:
            return x * times

    @terra.coexecute
    def step(x: float, name: str) -> list[float]:
        return [x, float(len(name))]

    @terra.imperative
    def shown(x: int) -> str:
        return str(x)

    trainer = Trainer()
    result: float = trainer.step(1.0, times=2)
    listed: list[float] = step(1.0, name="a")
    made: terra.Coexecuted[[float, str], list[float]] = step
    count: int = step.stats().coexecuted_steps
    text: str = terra.explain(step, full=True)
    with terra.set_stance("imperative"), terra.imperative():
        shown(1)
    step(1.0, 2)  # 1: a number for a text
    wrong: str = trainer.step(1.0)  # 2: a number for a text
    terra.coexecute(run_ahed=1)  # 3: no such option
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the types are those of the newest mypy")
def test_mypy_finds_the_errors_that_are_there(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "MYPYPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "train.py"],
                          cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = path.read_text().splitlines()
    assert [lines[int(line.split(":")[1]) - 1].partition("  # ")[2][:1] for line in errors] == ["1", "2", "3"], done.stdout + done.stderr
