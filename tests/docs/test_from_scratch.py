"""docs/terra_from_scratch.py: what it trains, and programs that branch in other ways, give what eager execution gives."""

import importlib.util
import pathlib

import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "docs" / "terra_from_scratch.py"


@pytest.fixture
def scratch():
    spec = importlib.util.spec_from_file_location("terra_from_scratch", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs(scratch, capsys):
    scratch.main()
    printed = capsys.readouterr().out
    assert "57 co-executed, 1 fell back" in printed and "case 1:" in printed and "equal to eager execution, bit for bit" in printed


def ways(scratch, w, log):
    """Ways that part, join, part anew and end early; a loop; a value that is read twice."""
    def step(x, k):
        y = scratch.Tensor(x) * w.read()
        for _ in range(2):
            y = scratch.tanh(y)
        if k % 3 == 0:
            y = y + 1.0
            if k % 2:
                y = y * y
        if float(scratch.mean(y)) > 0.9:
            w.assign(w.read() * 0.5)
            return y
        log.append((float(scratch.mean(y)), np.asarray(y).tolist(), float(scratch.mean(y))))
        z = y - 0.5 if k % 4 == 0 else y
        w.assign(z + w.read())
        return scratch.mean(z * y)

    return step


def updates(scratch, w, log):
    """The step changes its variable, and falls back behind that: nothing is changed twice."""
    def step(x, k):
        w.assign(w.read() + 1.0)
        log.append(float(scratch.mean(w.read())))
        return scratch.tanh(scratch.Tensor(x)) if k % 5 == 4 else scratch.Tensor(x) * 2.0

    return step


@pytest.mark.parametrize("program", [ways, updates])
def test_programs(scratch, program):
    results = []
    for wrap in (lambda step: step, scratch.coexecute):
        w, log = scratch.Variable([0.5, 1.0, 2.0]), []
        step = wrap(program(scratch, w, log))
        given = np.random.default_rng(1).normal(size=(60, 3))
        results.append(([np.asarray(step(x, k)).tolist() for k, x in enumerate(given)], log, w.value.tolist()))
    assert results[1] == results[0]
    assert step.coexecuted >= 40 and step.fallbacks >= 1
