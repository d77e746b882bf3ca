"""Each private name of TensorFlow that Terra mentions, found in Terra's own source, and whether the installed TensorFlow has it.

`private_names.py` imports modules and names of TensorFlow, and Terra reaches everything else from these: as `tfi.context.Context._mode`, say. So the
source tells all that is needed, and there is no second list that could be forgotten.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib

PACKAGE = pathlib.Path(__file__).parents[2]
SOURCE = PACKAGE / "tf" / "private_names.py"
_ALIAS = "tfi"  # by which the rest of Terra knows `private_names`
_ENTRY_POINTS = "tensorflow.python.pywrap_tfe"  # the module of the C entry points; their names begin with:
_PREFIX = "TFE_"


@dataclasses.dataclass(frozen=True, order=True)
class Name:
    """A name that Terra relies on: its path in TensorFlow, and where Terra's source mentions it first."""

    path: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.path} ({self.file}:{self.line})"


def all_names() -> list[Name]:
    """Lists the names that Terra mentions, each once, in the order of their paths."""
    imported = _imported()
    found: dict[str, Name] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file == SOURCE or _ALIAS in text or _PREFIX in text:
            for path, line in _mentioned(ast.parse(text), imported, file == SOURCE):
                found.setdefault(path, Name(path, file.relative_to(PACKAGE.parent).as_posix(), line))
    return sorted(found.values())


def missing() -> list[Name]:
    """Lists those of the names that the installed TensorFlow has not."""
    return [name for name in all_names() if not exists(name.path)]


def exists(path: str) -> bool:
    """Returns whether TensorFlow has the module, class, function or attribute of this path.

    Attributes of objects that are neither modules nor classes are taken to be there, since they may come later.
    """
    words = path.split(".")
    try:
        it = importlib.import_module(words[0])
    except ImportError:
        return False
    for number, word in enumerate(words[1:], 2):
        if not hasattr(it, word):
            if not inspect.ismodule(it):
                return not inspect.isclass(it)
            try:
                it = importlib.import_module(".".join(words[:number]))  # a module that is no attribute of its package (yet)
            except ImportError:
                return False
        else:
            it = getattr(it, word)
    return True


def _imports() -> list[tuple[str, str, int]]:
    """(name in `private_names`, path in TensorFlow, line) of all that is imported there when the module is."""
    found = []
    tried = [node for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(node, ast.Try)]
    for node in [node for block in tried for node in block.body]:
        if isinstance(node, ast.Import):
            found += [(alias.asname or alias.name, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _imported() -> dict[str, str]:
    return {name: path for name, path, _ in _imports()}


def _mentioned(tree: ast.Module, imported: dict[str, str], is_source: bool) -> list[tuple[str, int]]:
    """(path, line) of the names in a module of Terra's."""
    found = [(path, line) for _, path, line in _imports()] if is_source else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words = _words(node)
            if words and not is_source:
                words = words[1:] if words[0] == _ALIAS else []
            if words and words[0] in imported:
                found.append((".".join([imported[words[0]], *words[1:]]), node.lineno))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > len(_PREFIX) and node.value.startswith(_PREFIX) and node.value.isidentifier():
            found.append((f"{_ENTRY_POINTS}.{node.value}", node.lineno))
    return found


def _words(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; none if that begins with something else than a name."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return [*reversed([*words, node.id])] if isinstance(node, ast.Name) else []
