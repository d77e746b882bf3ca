"""`python -m terra doctor` finds what a TensorFlow lacks that Terra relies on, and versions that Terra was not tried on are refused unless nothing is found."""

import pytest
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

import terra
from terra.cli import main
from terra.reporting import doctor
from terra.runtime.tensors import size_readers
from terra.tf.support import behaviours, names, versions


def test_all_is_well_here(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"terra {terra.__version__}" in shown and "a step: co-executed, with eager's results" in shown
    assert f"behaviours: {len(behaviours.CHECKS)} of {len(behaviours.CHECKS)} " in shown


def test_names_are_those_of_the_source():
    paths = {name.path for name in names.all_names()}
    for path in ("tensorflow.python.pywrap_tfe.TFE_Py_FastPathExecute", "tensorflow.python.pywrap_tfe.TFE_Py_TapeSetAdd", "tensorflow.python.eager.context.Context._mode",
                 "tensorflow.python.framework.ops._EagerTensorBase", "tensorflow.distribute.has_strategy", "tensorflow.core.framework.attr_value_pb2"):
        assert path in paths and names.exists(path)
    for path in "tensorflow.python.nothing", "tensorflow.python.eager.context.Context._nothing", "no_such_package_at_all.x":
        assert not names.exists(path)


def test_a_missing_name_is_told_with_its_line(monkeypatch, capsys):
    monkeypatch.delattr(context.Context, "_mode")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "missing: tensorflow.python.eager.context.Context._mode (terra/tf/private_names.py:" in shown and "a step" not in shown


def test_a_behaviour_that_is_another(monkeypatch):
    kept = pywrap_tfe.TFE_Py_TapeSetNew
    with monkeypatch.context() as patch:
        patch.setattr(pywrap_tfe, "TFE_Py_TapeSetNew", lambda *words: kept())
        assert any("TFE_Py_TapeSetNew" in found and "the check raised TypeError" in found for found in behaviours.failing())
    monkeypatch.setattr(behaviours, "CHECKS", [lambda: False])
    assert len(behaviours.failing()) == 1


def test_a_step_that_differs(monkeypatch):
    monkeypatch.setattr(terra, "coexecute", lambda function, **options: lambda w, x: function(w, x) + 1.0)
    assert doctor._step() == ["a small step: its results differ from eager execution"]


@pytest.mark.parametrize("version, supported", [("2.15.1", False), ("2.16.0", True), ("2.21.3", True), ("2.22.0-rc1", False), ("2.23.0-dev20260101", False), ("nonsense", False)])
def test_versions(version, supported, monkeypatch):
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    assert versions.is_supported(version) == supported
    if supported:
        return versions.require(version)
    with pytest.raises(terra.UnsupportedTensorFlowError, match=f"Terra needs TensorFlow 2.16 to 2.21, and this is TensorFlow {version}; install a supported version"):
        versions.require(version)


def test_a_newer_version_may_run_if_all_checks_pass(monkeypatch):
    monkeypatch.setenv(versions.VARIABLE, "1")
    versions.require("2.23.0")
    with pytest.raises(terra.UnsupportedTensorFlowError):
        versions.require("2.15.0")
    monkeypatch.setattr(names, "missing", lambda: [names.Name("tensorflow.gone", "terra/a.py", 3)])
    with pytest.raises(terra.UnsupportedTensorFlowError, match=r"Terra relies on tensorflow.gone \(terra/a.py:3\), which is not so here"):
        versions.require("2.23.0")


def test_special_cases_that_do_not_apply(monkeypatch):
    assert any(applies for _, _, applies in size_readers.special_cases())
    monkeypatch.setitem(size_readers._rules, ("keras/src/layers/layer.py", "no_such_function"), {"0": None})
    found = doctor.special_cases()
    assert any("no_such_function" in case for case in found) and len(found) < len(size_readers._rules)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"terra {terra.__version__}\n"
