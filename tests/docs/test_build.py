"""The pages of docs/ as Sphinx builds them, strictly, and what must be on them."""

import dataclasses
import pathlib
import re

import pytest

import terra
from tests import forks

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILDERS = ("sphinx", "myst_parser", "furo", "sphinxcontrib.mermaid")


def documented():
    """The names that docs/api.md has documented."""
    return set(re.findall(r"^\.\. auto\w+:: ([\w.]+)(?:\(\))?$", (DOCS / "api.md").read_text(), re.MULTILINE))


def test_all_that_is_public_is_in_the_api():
    assert {f"terra.{name}" for name in terra.__all__} <= documented()


def test_the_index_has_all_pages():
    """In its text, for those who read it as it is, as in its lists for Sphinx."""
    text = (DOCS / "index.md").read_text()
    lists = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    listed = {line for part in lists for line in part.splitlines() if line and not line.startswith(":")}
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert listed == pages | {"internals/index"}
    assert {target for target in re.findall(r"\]\((\w+)\.md\)", text)} == pages


def test_pages_can_be_read_as_they_are():
    """Directives of Sphinx's are in the lists of pages, and in the page that is made from docstrings."""
    found = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "```{" in page.read_text()}
    assert found == {"index.md", "internals/index.md", "api.md"}


def test_the_pages_are_built_without_a_warning(tmp_path):
    for name in BUILDERS:
        pytest.importorskip(name, reason="the pages are built with what the extra `docs` installs")
    out = tmp_path / "html"
    with forks.Interpreters(tmp_path, "import runpy, sys, tensorflow") as interpreters:
        arguments = ["sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees"), str(DOCS), str(out)]
        done = interpreters.run(f"sys.path.insert(0, {str(ROOT)!r})\nsys.argv[:] = {arguments!r}\nrunpy.run_module('sphinx', run_name='__main__', alter_sys=True)")
    assert done.returncode == 0, done.stderr
    api = (out / "api.html").read_text()
    assert [name for name in documented() if f'id="{name}"' not in api] == []
    without = [name for name in documented() if not re.search(rf'id="{re.escape(name)}".*?</dt>\s*<dd><p>\w', api, re.DOTALL)]
    assert without == []  # each has its docstring
    items = re.findall(r'<li><p><code[^>]*>(?:<span[^>]*>)*(\w+)', api)
    assert {field.name for field in dataclasses.fields(terra.Options)} <= set(items) and {"pure", "full"} <= set(items)  # a list of what can be given
    for page in DOCS.rglob("*.md"):
        if "_build" not in page.parts:
            assert (out / page.relative_to(DOCS)).with_suffix(".html").exists()
