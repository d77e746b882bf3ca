"""A part of CPython's own tests through the transform, see `tests.cpython`; all of them: ``python -m tests.cpython --all``."""

import pytest

from tests.cpython import suites
from tests.cpython.compare import compare



def compared(name):
    got = compare(name, timeout=60)
    if got is None:
        pytest.skip("not shipped with this Python")
    return got


@pytest.mark.parametrize("name", suites.QUICK)
def test_suite(name):
    got = compared(name)
    assert not isinstance(got, str), got
    assert not got.unexpected, "\n".join(f"{id_}: {text}" for id_, text in got.unexpected)
    assert len(got.instrumented) >= len(got.plain) > 0
    assert got.functions["instrumented"] > len(got.plain) / 4, "the tests were not instrumented"


def test_the_comparison_notices_a_defect(monkeypatch):
    """Did call sites lose their values, these tests would fail."""
    monkeypatch.setenv("TERRA_TEST_DEFECT", "1")
    got = compared("test_generators")
    assert isinstance(got, str) or len(got.unexpected) > 10
