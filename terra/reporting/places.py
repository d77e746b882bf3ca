"""Lines of the program: where they are, and which statements stand there."""

import ast
import functools
import linecache
import os
import re

from terra.location import location
from terra.transform import is_outlined, policy

_TERRAS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEFINES = re.compile(r"^(async )?def |\blambda\b")
_AT_END = re.compile(r"^(.*) \(([^()\s]+:\d+)\)$", re.DOTALL)


def split(reason):
    """A reason with its line at the end as (the reason, `file.py:12`); None in place of the line if it has none."""
    found = _AT_END.match(reason)
    return (found[1], found[2]) if found else (reason, None)


def brief(filename, number):
    """A line as messages name it, `file.py:12`."""
    return f"{os.path.basename(filename)}:{number}"


def definition(code):
    """The line with the `def` of a code object: what it calls its first line may be a decorator's."""
    number = code.co_firstlineno
    if is_outlined(code.co_name):  # which stands in a loop, without a `def`
        return number
    for k in range(number, number + 50):
        text = linecache.getline(code.co_filename, k).lstrip()
        if _DEFINES.search(text):
            return k
    return number


def statement(line):
    """The source text at `file.py:12`, without its indentation and comment; None where that cannot be told."""
    filename, number = file_of(line)
    text = linecache.getline(filename, number).strip() if filename else ""
    text = text.split("  #")[0].strip()
    return text if len(text) <= 80 else text[:77] + "..." if text else None


def call_of(name, line):
    """The first line in the function that is defined at `line` where something of this name is called, `file.py:12`; None if there is none."""
    filename, number = file_of(line)
    for node in _nodes(filename, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.lineno == number:
            lines = [inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Call) and ast.unparse(inner.func).rpartition(".")[2] == name]
            return brief(filename, min(lines)) if lines else None
    return None


def is_librarys(line):
    """Whether a line is known to be a library's, or Terra's, and not the program's own."""
    filename, _ = file_of(line)
    return filename is not None and (filename.startswith(_TERRAS) or not policy.is_user_module("", filename))


def parting(lines):
    """The line of the `if` (or `while`, `for`, conditional expression) that lets the program go on at one or another of these lines, `file.py:12`.

    It is the outermost one that holds some of them and not all, or holds them in different arms; None if there is none in the source.
    """
    by_file = {}
    for line in lines:
        filename, number = file_of(line)
        if filename:
            by_file.setdefault(filename, set()).add(number)
    for filename, numbers in by_file.items():
        others = len(by_file) > 1
        for node in sorted(_nodes(filename, (ast.If, ast.While, ast.IfExp)), key=lambda node: node.lineno):
            arms = {_arm(node, number) for number in numbers} | ({None} if others else set())
            if len(arms) > 1:
                return brief(filename, node.lineno)
    return None


def branch_around(line):
    """The line of the innermost `if` or conditional expression around a line, or just before it; None if there is none."""
    filename, number = file_of(line)
    branches = _nodes(filename, (ast.If, ast.IfExp, ast.While))
    around = [node for node in branches if node.lineno <= number <= node.end_lineno]
    if around:
        return brief(filename, max(around, key=lambda node: node.lineno).lineno)
    function = [node for node in _nodes(filename, (ast.FunctionDef, ast.AsyncFunctionDef)) if node.lineno <= number <= node.end_lineno]
    if not function:
        return None
    start = max(function, key=lambda node: node.lineno).lineno
    before = [node for node in branches if start <= node.lineno and node.end_lineno < number]
    return brief(filename, max(before, key=lambda node: node.lineno).lineno) if before else None


def _arm(node, number):
    """In which arm of a branch a line is: None for neither."""
    if not node.lineno <= number <= node.end_lineno:
        return None
    arms = (node.body, node.orelse) if type(node) is not ast.IfExp else ([node.body], [node.orelse])
    for k, arm in enumerate(arms):
        if arm and arm[0].lineno <= number <= arm[-1].end_lineno:
            return k
    return "test"


def file_of(line):
    """(path, number) of `file.py:12`; (None, 0) if no file of this name is known, or several are."""
    name, _, number = (line or "").rpartition(":")
    paths = {site.filename for site in location.sites() if os.path.basename(site.filename) == name}
    return (paths.pop(), int(number)) if len(paths) == 1 and number.isdigit() else (None, 0)


def _nodes(filename, kinds):
    return [node for node in _tree(filename) if isinstance(node, kinds)] if filename else []


@functools.lru_cache(maxsize=64)
def _tree(filename):
    try:
        return tuple(ast.walk(ast.parse("".join(linecache.getlines(filename)))))
    except (SyntaxError, ValueError):
        return ()


def of_id(site_id):
    """The line of a call or loop by its id, `file.py:12`; None if it has none."""
    found = location.site(site_id)
    return str(found) if found is not None and os.path.exists(found.filename) else None
