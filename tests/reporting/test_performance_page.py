"""docs/performance.md: `terra.explain` says of its programs what the page says, and the remedies are remedies."""

import re

import pytest

from terra.reporting.causes import TITLES
from terra.runtime.fallback.policy import Policy
from tests import performance_page

PREAMBLE, SECTIONS = performance_page.read()


def test_there_is_a_section_for_each_cause():
    assert {section.code: section.title for section in SECTIONS} == TITLES and len(SECTIONS) == len(TITLES)


TAKES = {"T17": {True: 0.15e-3, False: 0.05e-3}}  # seconds a step takes, co-executed or not, where the cause is how long it took: on a machine with other work to do, that is a matter of chance


def took_given(monkeypatch, code):
    """Steps take what is given here."""
    took = Policy.took
    monkeypatch.setattr(Policy, "took", lambda self, coexecuted, seconds: took(self, coexecuted, TAKES[code][coexecuted]))


def without_times(text):
    """A line of a report without what is measured."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


@pytest.mark.all_variants
@pytest.mark.parametrize("section", SECTIONS, ids=[section.code for section in SECTIONS])
def test_a_cause_and_its_remedy(section, tmp_path, monkeypatch):
    path = tmp_path / f"{section.code.lower()}_before.py"
    with monkeypatch.context() as patched:
        if section.code in TAKES:
            took_given(patched, section.code)
        text, line = performance_page.run(path, f"{PREAMBLE}\n\n{section.before}")
    first = text.causes[0]
    assert first.code == section.code, text
    if line is not None:
        assert first.line == f"{path.name}:{line}", text
    (remedy,) = [line for line in section.says.splitlines() if line.startswith("     do:")]
    assert remedy == f"     do:   {first.remedy}", text
    (seen,) = [line for line in section.says.splitlines() if line.startswith("     seen:")]
    assert without_times(seen).split(",")[0] == without_times(f"     seen: {first.seen}".replace(path.name, "train.py")).split(",")[0], text  # further lines may be others
    assert len(text.splitlines()) <= 25
    text, _ = performance_page.run(tmp_path / f"{section.code.lower()}_after.py", f"{PREAMBLE}\n\n{section.after}")
    assert section.code not in [cause.code for cause in text.causes], text
