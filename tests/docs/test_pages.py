"""README and docs/: what they say can be run, what they point to is there, and they can be read."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from examples.benchmarks.suite import report
from tests import benchmark_picture

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
CELL, SENTENCE = 120, 40  # characters, words


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]


def prose(text):
    """The sentences of a page that are no code, heading or table."""
    lines = [line for line in _BLOCK.sub("", text).splitlines() if not line.startswith(("|", "    ", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. )", "\n".join(lines)):
        yield from re.split(r"(?<=[.:!?;])\s+", " ".join(paragraph.split()))


def test_readme_is_short():
    assert len(README.split()) <= 900


def test_readme_s_program_runs_as_it_stands(tmp_path):
    """And `explain` says of it what README shows: which lines, which causes."""
    (tmp_path / "train.py").write_text(block("python"))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, "-W", "ignore", "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    causes = re.compile(r"^(T\d\d  train\.py:\d+)", re.MULTILINE)
    assert sorted(causes.findall(done.stdout)) == sorted(causes.findall(block("text"))) != []
    assert re.search(r"^train_step  train\.py:15   .* x faster than eager", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.all_variants
@pytest.mark.parametrize("name", ["debugging", "coming_from_tf_function", "timeline"])
def test_blocks_run(name, tmp_path):
    """All Python blocks of a page, one behind the other."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, "-W", "ignore", "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert blocks and done.returncode == 0, done.stderr


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
