"""README and docs/: what they say can be run, what they point to is there, and they can be read."""

import pathlib
import re

import pytest

from examples.benchmarks.suite import report
from tests import benchmark_picture, forks

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)])
_BLOCK = re.compile(r"^```[\w{}-]*\n.*?^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_THEIR_OWN = ("README.md", "docs/performance.md")  # whose programs have tests of their own: below, and tests/reporting/test_performance_page.py
PROGRAMS = [page for page in PAGES if _PYTHON.search(page.read_text()) and page.relative_to(ROOT).as_posix() not in OF_THEIR_OWN]
CELL, SENTENCE = 120, 40  # characters, words


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]


def prose(text):
    """The sentences of a page that are no code, heading or table."""
    lines = [line for line in _BLOCK.sub("", text).splitlines() if not line.startswith(("|", "    ", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. )", "\n".join(lines)):
        yield from re.split(r"(?<=[.:!?;])\s+", " ".join(paragraph.split()))


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("interpreters"), "import os, runpy, sys, tensorflow") as made:
        yield made


def test_readme_is_short():
    assert len(README.split()) <= 900


def test_readme_s_program_runs_as_it_stands(tmp_path, interpreters):
    """And `explain` says of it what README shows: which lines, which causes."""
    (tmp_path / "train.py").write_text(block("python"))
    done = interpreters.run(f"os.chdir({str(tmp_path)!r})\nsys.path[:1], sys.argv[:] = {[str(tmp_path), str(ROOT)]!r}, ['train.py']\nrunpy.run_path('train.py', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    causes = re.compile(r"^(T\d\d  train\.py:\d+)", re.MULTILINE)
    assert sorted(causes.findall(done.stdout)) == sorted(causes.findall(block("text"))) != []
    assert re.search(r"^train_step  train\.py:15   .* x faster than eager", done.stdout, re.MULTILINE), done.stdout


def test_pages_with_programs():
    """Those of which a reader copies programs."""
    assert {"start", "keras", "scripts", "debugging", "coming_from_tf_function"} <= {page.stem for page in PROGRAMS}


# Steps wait for their graphs, so that the programs, which are short, are co-executed on any machine.
RUN = """
os.chdir({folder!r})
sys.path[:0], sys.argv[:] = [{folder!r}, {root!r}], ["page.py"]
import dataclasses, terra
from terra.reporting import explanation
terra.Options.__init__.__defaults__ = tuple(field.name == "wait_for_graph" or field.default for field in dataclasses.fields(terra.Options))
space = runpy.run_path("page.py", run_name="__main__")
print("co-executed steps:", sum(function.stats().coexecuted_steps for function in explanation.used()))
"""


@pytest.mark.all_variants
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path, interpreters):
    """All Python blocks of a page, one behind the other."""
    (tmp_path / "page.py").write_text("\n".join(_PYTHON.findall(page.read_text())))
    done = interpreters.run(RUN.format(folder=str(tmp_path), root=str(ROOT)))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rpartition("co-executed steps: ")[2]) >= 10, done.stdout


@pytest.mark.all_variants
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text())):
        path, _, heading = target.partition("#")
        if "://" not in target:
            there = (page.parent / path) if path else page
            assert there.exists(), target
            if heading:
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                assert heading in [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings], target


@pytest.mark.all_variants
@pytest.mark.parametrize("page", [page for page in PAGES if "internals" not in page.parts], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_can_be_read(page):
    text = page.read_text()
    cells = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    assert [cell for cell in cells if len(cell) > CELL] == []
    assert [sentence for sentence in prose(text) if len(sentence.split()) > SENTENCE] == []


def test_the_picture_is_of_the_table():
    """As `python -m tests.benchmark_picture` draws it."""
    rows, picture = benchmark_picture.rows(), (ROOT / "docs" / "benchmark.svg").read_text()
    assert len(rows) == 43
    for row in rows:
        assert f">{row.program}<" in picture and f">{report.bar_text(row, 'Terra', row.eager_ms / row.terra_ms)}<" in picture
