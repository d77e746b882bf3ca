"""The house: which module may import which (`.importlinter`), and how large modules, functions and classes are."""

import ast
import collections
import configparser
import os
import pathlib
import subprocess
import sys

import pytest

from tests import architecture_picture


ROOT = pathlib.Path(__file__).parent.parent
LINES, FUNCTION, BASES, MOST = 400, 80, 4, 13  # MOST: modules in one package
# What is larger still, and how large: a number may fall, and an entry go, but neither may rise or come.
MODULES = {}
FUNCTIONS = {}
OPENINGS = ("The same", "What", "Have", "Has")  # a docstring says what its function does or gives: no word that points elsewhere comes first
# How many still begin so, room by room.
UNCLEAR = {}
CLASSES = {}


def modules():
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in sorted((ROOT / "terra").rglob("*.py"))}


def test_imports():
    run = "from importlinter.cli import lint_imports_command; lint_imports_command(['--config', '.importlinter', '--no-cache'])"  # (it closes standard output)
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_module_has_its_room():
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    rooms = parser["importlinter:contract:rooms"]["layers"].replace(":", " ").split()
    assert sorted(rooms) == sorted(name for name in modules() if not name.endswith("__init__"))


def _sizes():
    lines, functions, classes = {}, {}, {}
    for name, text in modules().items():
        lines[name] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions[f"{name}.{node.name}"] = node.end_lineno - node.lineno + 1
            elif isinstance(node, ast.ClassDef):
                classes[f"{name}.{node.name}"] = len(node.bases)
    return lines, functions, classes


@pytest.mark.all_variants
@pytest.mark.parametrize("kind, most, known", [(0, LINES, MODULES), (1, FUNCTION, FUNCTIONS), (2, BASES, CLASSES)], ids=["lines of modules", "lines of functions", "bases of classes"])
def test_sizes(kind, most, known):
    too_large = {name: size for name, size in _sizes()[kind].items() if size > most}
    assert {name: size for name, size in too_large.items() if size > known.get(name, most)} == {}
    assert known.keys() - too_large.keys() == set(), "no longer too large: to be taken from the list"


def test_docstrings_say_what_is_done():
    found = collections.Counter()
    for name, text in modules().items():
        room = next((room for room in UNCLEAR if name == room or name.startswith(room + ".")), name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                words = (ast.get_docstring(node) or "").replace("\n", " ")
                found[room] += any(words.startswith(opening + " ") for opening in OPENINGS)
    assert {room: n for room, n in found.items() if n > UNCLEAR.get(room, 0)} == {}
    assert {room for room in UNCLEAR if not found[room]} == set(), "none is left: to be taken from the list"


def test_packages():
    for folder in [ROOT / "terra", *(path.parent for path in (ROOT / "terra").rglob("__init__.py"))]:
        assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= MOST, folder
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_the_picture_is_of_today():
    text = architecture_picture.DOCUMENT.read_text()
    assert architecture_picture.picture() in text, "python -m tests.architecture_picture"


def test_ruff():
    pytest.importorskip("ruff")
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
