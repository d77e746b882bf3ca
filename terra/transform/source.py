"""From a function object to its node in the syntax tree of the file it was written in.

The whole file is parsed, not only the function's lines: line and column numbers are then the user's without any
arithmetic, lambdas can be told apart by their columns, and the classes and functions around a function are at hand (they
decide what private names and ``__class__`` mean). One parsed file is kept per file.
"""

import ast
import dis
import linecache
import os
import time
import types
import warnings

from terra.transform import policy
from terra.transform.rewriting import assertions

__all__ = ["NoSource", "compiled", "find", "find_code", "globals_read", "has_changed", "rewrites", "says"]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAX_FILES = 64
_files = {}
_rewritten = {}  # file name -> what was done to its tree before it was compiled
_changed = set()  # names of files that may not say what runs
_SHAPE_OF_CODE = 0x3FF  # the flags of a code object that say what kind of function it is of, not how it was compiled
_SLACK = 1.0  # seconds that the clock of a file system may be off


def _started():
    """When this process began, in seconds since the epoch; or some time before."""
    try:
        with open("/proc/self/stat") as own, open("/proc/stat") as all_of_them:
            ticks = int(own.read().rpartition(")")[2].split()[19])
            booted = next(int(line.split()[1]) for line in all_of_them if line.startswith("btime"))
        return booted + ticks / os.sysconf("SC_CLK_TCK") - _SLACK
    except (OSError, ValueError, StopIteration):  # no Linux
        return time.time() - max(time.process_time(), 60.0)


_STARTED = _started()


class NoSource(Exception):
    """The source of a function is not available, or does not say which function it is."""


class _File:
    """A parsed file: its scopes by the line their code objects begin at."""

    def __init__(self, text, filename, rewriting=None):
        self.text = text
        self._filename = filename
        self.rewriting = rewriting  # what pytest has done to its assertions
        self._lambdas = self._codes = None
        self.by_line = {}
        try:
            tree = self._parse()
        except (SyntaxError, ValueError) as error:
            raise NoSource(f"{filename} cannot be parsed: {error}") from None
        self._collect(tree, ())

    def _parse(self):
        tree = ast.parse(self.text, self._filename)
        if self._filename in _rewritten:
            _rewritten[self._filename](tree)
        if self.rewriting is not None:
            self.rewriting(tree, self.text, self._filename)
        return tree

    def _compiled(self, tree):
        return codes_within(compiled(tree, self._filename, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _collect(self, node, ancestors):
        for child in ast.iter_child_nodes(node):
            inside = ancestors
            if isinstance(child, _SCOPES):
                if not isinstance(child, ast.ClassDef):
                    self.by_line.setdefault(first_line(child), []).append((child, ancestors))
                inside = ancestors + (child,)
            self._collect(child, inside)

    def holds(self, code):
        """Returns whether the file, as it is, compiles to a function like this one on the same line."""
        if self._codes is None:
            self._codes = {}
            try:
                codes = list(self._compiled(self._parse()))
            except (SyntaxError, ValueError):  # it can be parsed, but not compiled: it was edited
                codes = ()
            for found in codes:
                self._codes.setdefault((found.co_name, found.co_firstlineno), []).append(found)
        return any(_alike(found, code) for found in self._codes.get((code.co_name, code.co_firstlineno), ()))

    def code_of_lambda(self, node):
        """Returns the code that Python compiles a lambda of the file to, at another line; None if it does not compile it (a constant condition)."""
        if self._lambdas is None:
            tree = self._parse()  # another one, since it is changed
            far, places, self._lambdas = self.text.count("\n") + 2, [], {}
            for found in ast.walk(tree):
                if isinstance(found, ast.Lambda):  # each is put on lines of its own, where its code is found
                    line, column = _span(found)[0]
                    places.append((line % far, column))
                    for part in ast.walk(found):  # with its body, or an instruction would mark the way to another line
                        if "lineno" in part._attributes:
                            part.lineno = part.lineno % far + far * len(places)
                            part.end_lineno = part.end_lineno % far + far * len(places)
            for code in self._compiled(tree):
                if code.co_firstlineno >= far:
                    self._lambdas[places[code.co_firstlineno // far - 1]] = code
        return self._lambdas.get(_span(node)[0])


def rewrites(filename, rewrite):
    """A file is compiled after `rewrite` has changed its syntax tree in place."""
    _rewritten[filename] = rewrite
    _files.pop(filename, None)


def first_line(node):
    """The ``co_firstlineno`` of a function: the line of its first decorator, if there is one."""
    return min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", ())])


def _parsed(filename, module_globals):
    linecache.checkcache(filename)
    # All that `exec` compiles from a string has the name "<string>". From Python 3.13 on so has what `python -c` runs, and only the source of that is kept.
    lines = linecache.getlines(filename, module_globals) if filename != "<string>" else ()
    if not lines:
        raise NoSource(f"no source for {filename}")
    text = "".join(lines)
    entry, rewriting = _files.get(filename), assertions.rewriting(module_globals)
    if entry is None or entry.text != text or (entry.rewriting is None) != (rewriting is None):
        if entry is not None and entry.text != text:
            _changed.add(filename)
        if len(_files) >= _MAX_FILES:
            _files.clear()
        entry = _files[filename] = _File(text, filename, rewriting)
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
              if _span(node.body)[0] <= low and high <= _span(node.body)[1]]
    innermost = [c for c in around if not any(c[0] is not o[0] and _span(c[0])[0] <= _span(o[0])[0]
                                              and _span(o[0])[1] <= _span(c[0])[1] for o in around)]
    return innermost


def compiled(tree, filename, flags):
    """The code of a module."""
    # The user's own syntax warnings have been given already. (`catch_warnings` would make Python forget all warnings that it has given, and give them again.)
    filters, warnings.filters = warnings.filters, [("ignore", None, Warning, None, 0)]
    try:
        return compile(tree, filename, "exec", flags=flags, dont_inherit=True)
    finally:
        warnings.filters = filters


def codes_within(code):
    """`code` and all code objects nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_within(const)


def _alike(a, b):
    """Returns whether two code objects do the same, wherever they are."""
    if type(a) is not types.CodeType or type(b) is not types.CodeType:
        return type(a) is type(b) and repr(a) == repr(b)  # 0.0 is not -0.0
    return (a.co_code, a.co_names, a.co_varnames, a.co_freevars, a.co_cellvars, a.co_flags & _SHAPE_OF_CODE) == (
        b.co_code, b.co_names, b.co_varnames, b.co_freevars, b.co_cellvars, b.co_flags & _SHAPE_OF_CODE) \
        and len(a.co_consts) == len(b.co_consts) and all(map(_alike, a.co_consts, b.co_consts))


def find(function):
    """(node, ancestors) of a function: an `ast` node and the scopes around it, outermost first."""
    return find_code(function.__code__, function.__globals__)


def has_changed(filename):
    """Returns whether the file was found to have been edited: what was compiled of it is perhaps no longer there."""
    return filename in _changed


def says(code, module_globals):
    """Returns whether the file of a function, as it is now, compiles to this code."""
    try:
        return _parsed(code.co_filename, module_globals).holds(code)
    except NoSource:
        return False


def _is_trusted(code, module_globals):
    """Returns whether the file need not be compiled to know that it says what runs: of a library, it is as it was when this process began, and so is
    what is no file."""
    try:
        status = os.stat(code.co_filename)
    except OSError:
        return True
    if max(status.st_mtime, status.st_ctime) >= _STARTED:
        return False
    return not policy.is_user_module(module_globals.get("__name__"), code.co_filename)


def find_code(code, module_globals):
    """Finds the source of the function that has this code, and was defined in a module with these globals.

    The file may have been edited after Python has read it, and an import hook may have compiled something else than what is there.
    """
    file = _parsed(code.co_filename, module_globals)
    if not _is_trusted(code, module_globals) and not file.holds(code):
        _changed.add(code.co_filename)
        raise NoSource(f"{code.co_filename} was changed after it was imported, or something else was compiled of it")
    candidates = file.by_line.get(code.co_firstlineno, [])
    name = code.co_name
    if name == "<lambda>":
        candidates = [c for c in candidates if isinstance(c[0], ast.Lambda) and _same_arguments(c[0], code)]
        if len(candidates) > 1:
            candidates = _narrowest(code, candidates)
        if len(candidates) > 1:  # as long as no two of them do the same
            candidates = [c for c in candidates if _alike(file.code_of_lambda(c[0]), code)]
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


_globals_known = {}  # id of a code object -> (it, names)


def globals_read(code):
    """The names that a code object, or one nested in it, looks up among the globals."""
    known = _globals_known.get(id(code))
    if known is None:
        names = {i.argval for c in codes_within(code) for i in dis.get_instructions(c) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        known = _globals_known[id(code)] = code, tuple(names)
    return known[1]
