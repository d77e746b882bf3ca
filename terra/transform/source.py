"""From a function object to its node in the syntax tree of the file it was written in.

The whole file is parsed, not only the function's lines: line and column numbers are then the user's without any
arithmetic, lambdas can be told apart by their columns, and the classes and functions around a function are at hand (they
decide what private names and ``__class__`` mean). One parsed file is kept per file.
"""

import ast
import linecache

__all__ = ["NoSource", "find"]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAX_FILES = 64
_files = {}


class NoSource(Exception):
    """The source of a function is not available, or does not say which function it is."""


class _File:
    """A parsed file: its scopes by the line their code objects begin at."""

    def __init__(self, text, filename):
        self.text = text
        self.by_line = {}
        try:
            tree = ast.parse(text, filename)
        except (SyntaxError, ValueError) as error:
            raise NoSource(f"{filename} cannot be parsed: {error}") from None
        self._collect(tree, ())

    def _collect(self, node, ancestors):
        for child in ast.iter_child_nodes(node):
            inside = ancestors
            if isinstance(child, _SCOPES):
                if not isinstance(child, ast.ClassDef):
                    self.by_line.setdefault(first_line(child), []).append((child, ancestors))
                inside = ancestors + (child,)
            self._collect(child, inside)


def first_line(node):
    """The ``co_firstlineno`` of a function: the line of its first decorator, if there is one."""
    return min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", ())])


def _parsed(filename, module_globals):
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, module_globals)
    if not lines:
        raise NoSource(f"no source for {filename}")
    text = "".join(lines)
    entry = _files.get(filename)
    if entry is None or entry.text != text:
        if len(_files) >= _MAX_FILES:
            _files.clear()
        entry = _files[filename] = _File(text, filename)
    return entry


def _span(node):
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _narrowest(code, candidates):
    """Of several lambdas on a line, those whose body spans what the code's instructions span (Python 3.11 on)."""
    if not hasattr(code, "co_positions"):
        return candidates
    # Column 0 on the first line is the function's own bookkeeping; a real body never begins before its `lambda`.
    starts = [(line, column) for line, _, column, _ in code.co_positions() if column]
    ends = [(line, column) for _, line, _, column in code.co_positions() if column]
    if not starts:
        return candidates
    low, high = min(starts), max(ends)
    around = [(node, ancestors) for node, ancestors in candidates
              if _span(node)[0] <= low and high <= _span(node)[1]]
    innermost = [c for c in around if not any(c[0] is not o[0] and _span(c[0])[0] <= _span(o[0])[0]
                                              and _span(o[0])[1] <= _span(c[0])[1] for o in around)]
    return innermost


def find(function):
    """(node, ancestors) of a function: an `ast` node and the scopes around it, outermost first."""
    code = function.__code__
    candidates = _parsed(code.co_filename, function.__globals__).by_line.get(code.co_firstlineno, [])
    name = code.co_name
    if name == "<lambda>":
        candidates = [c for c in candidates if isinstance(c[0], ast.Lambda) and _same_arguments(c[0], code)]
        if len(candidates) > 1:
            candidates = _narrowest(code, candidates)
        if len(candidates) > 1:
            raise NoSource(f"{code.co_filename}:{code.co_firstlineno} has several lambdas that look the same")
    else:
        candidates = [c for c in candidates if getattr(c[0], "name", None) == name]
    if not candidates:
        raise NoSource(f"{code.co_filename}:{code.co_firstlineno} holds no {name}: has the file changed?")
    return candidates[-1]


def _same_arguments(node, code):
    args = node.args
    names = [a.arg for a in args.posonlyargs + args.args + args.kwonlyargs + [a for a in (args.vararg, args.kwarg) if a]]
    # Private names are mangled in the code object; compare the ends.
    own = code.co_varnames[:len(names)]
    return (len(args.args) + len(args.posonlyargs), len(args.kwonlyargs)) == (code.co_argcount, code.co_kwonlyargcount) \
        and all(o.endswith(n) for o, n in zip(own, names))
