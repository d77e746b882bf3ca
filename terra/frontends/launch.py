"""Starts a script, or a module, as `python` does, with its source compiled for co-execution: what `python -m terra run` does first.

The syntax trees of the user's modules that mention a tape get one more decorator on some of their functions before they are compiled; `script` has the decorators:

    `step`          on a function with a tape's block in it that is in no loop: from its second call on, the function as a whole is the step (then its
                    update is in the step wherever it stands, and its arguments are the graph's); unless its first call showed that it runs more than
                    its own blocks, as a function that trains a whole model does; also on one that calls such a function, which gives it gradients, and updates
    `block`         on functions that were made of a block in a loop, and what follows it, by `terra.transform.rewriting.outline`: each call is a step
    `instrumented`  on other functions with a block, and, in a module with a block at its top level, on all
    `helper`        on other functions at a module's top level (`helping_method` on methods of its classes without a base): outside of any step, one that has turned out
                    to issue operations enough is a step, as what updates a target network or computes an accuracy

Functions that these call are instrumented when they are called. A function with a decorator that is not known to be harmless is left alone.

A script may tell TensorFlow and Keras in `os.environ` how to work, which both look at when they are imported. So neither is imported before the program does it, or comes to a function that is
decorated: then Terra is loaded, which imports them, and what the program imports is what Terra works with.
"""

import ast
import builtins
import functools
import importlib.machinery
import importlib.util
import os
import sys
import types

from terra import ours
from terra.tf.support.versions import FRAMEWORKS
from terra.transform import calls_helper, helpers_of, is_block, is_outlined, is_step, name_called, outline, own_nodes, policy, rewrites

_HARMLESS = frozenset(["staticmethod", "classmethod", "property", "abstractmethod", "override"])

preparations: dict = {}  # name of a library's module -> what to do with it when it has been imported
decorators: dict = {}  # by name, once Terra is loaded
_load = []  # the function that loads Terra, until it is called: it returns (what ends the step that may be open, what waits for the last steps)
_ends = []  # what it has returned


class ScriptError(Exception):
    """The script cannot be started; the message is one sentence."""


# -- when Terra is loaded ------------------------------------------------------------------------------------------------------

def load():
    """Loads Terra, if it is still to be."""
    if _load:
        _ends.append(_load.pop()())


def decorator(name):
    """Returns a decorator of `script`'s."""
    load()
    return decorators[name]


class _FirstImport:
    """Finds the packages before which Terra is loaded, and then gives what that has imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not _load or (name not in FRAMEWORKS and not name.startswith(ours.PACKAGE + ".")):
            return None
        load()
        if name not in sys.modules:
            return None
        module = sys.modules[name]
        module.__spec__ = importlib.machinery.ModuleSpec(name, _Imported(module))  # for that is what Python goes by, whatever it is given here
        return module.__spec__


class _Imported:
    """Loads a module that was imported meanwhile, as the one that it is."""

    def __init__(self, module):
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        module.__spec__ = self._spec


# -- what is decorated ---------------------------------------------------------------------------------------------------------

def _imported(name):
    """The source of an expression for a decorator of `script`'s."""
    return f"__import__({__name__!r}, fromlist=['decorator']).decorator({name!r})"


def rewrite(tree):
    """Add the decorators to a module's syntax tree, in place. Positions stay the user's."""
    everything, helpers, helping = any(is_block(node) for node, _ in own_nodes(tree)), helpers_of(tree), _helping(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not all(map(_harmless, node.decorator_list)):
            continue
        own = list(own_nodes(node))
        blocks = [in_loop for n, in_loop in own if is_block(n)]
        suspends = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n, _ in own)
        if is_outlined(node.name):
            source = _imported("block")
        elif blocks and not any(blocks) and not suspends:
            source = f"{_imported('step')}({len(blocks)})"
        elif not blocks and not suspends and is_step(node, helpers):
            source = f"{_imported('step')}({sum(calls_helper(n, helpers) for n, _ in own)})"
        elif node in helping and not blocks and not suspends:
            source = _imported("helping_method" if helping[node] else "helper")
        elif blocks or everything:
            source = _imported("instrumented")
        else:
            continue
        decorator = ast.parse(source, mode="eval").body
        for part in ast.walk(decorator):
            if hasattr(part, "lineno"):
                ast.copy_location(part, node)
                part.end_lineno, part.end_col_offset = node.lineno, node.col_offset
        node.decorator_list.append(decorator)
    return tree


def _helping(tree):
    """Returns {function: whether it is a method of instances} for the functions at a module's top level, and those of its classes without a base, that call
    something, but not, by way of each other, themselves: a decorator's frames would count towards Python's limit of recursion."""
    found = []
    for node in tree.body:
        plain = isinstance(node, ast.ClassDef) and not node.bases and not node.keywords and not node.decorator_list
        for function in node.body if plain else [node]:
            if isinstance(function, ast.FunctionDef) and function.name != "__init__" and not any(map(_is_property, function.decorator_list)):
                found.append((function, plain and not function.decorator_list, {name_called(part) for part, _ in own_nodes(function)} - {None}))
    called = {}
    for function, _, names in found:
        called.setdefault(function.name, set()).update(names)
    return {function: is_method for function, is_method, names in found if names and function.name not in _reached(names, called)}


def _reached(names, called):
    """Returns the names that are called by functions of these names, and so on."""
    reached, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += called.get(name, ())
    return reached


def _is_property(decorator):
    return getattr(decorator, "id", None) not in ("staticmethod", "classmethod")


def _harmless(decorator):
    name = getattr(decorator, "attr", None) or getattr(decorator, "id", None)
    return name in _HARMLESS


def compiled(source, filename, is_main=True):
    """The code object of a module, given as bytes, with the decorators in place."""
    if b"GradientTape" not in source:
        return compile(source, filename, "exec", dont_inherit=True)

    def parse():
        return compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)

    tree, change = parse(), functools.partial(outline, is_main=is_main)
    try:
        change(tree)
    except RecursionError:  # an expression is nested too deeply for code in Python
        tree = parse()
    else:
        rewrites(filename, change)
    return compile(rewrite(tree), filename, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path)
        if b"GradientTape" not in source:
            return super().get_code(fullname)
        return compiled(source, self.path, False)  # not from, nor into, the cache of bytecode


class _PreparingLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        preparations[module.__name__](module)


class _Finder:
    """Finds modules as the usual finder does, and has the user's own compiled by `_Loader`."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            if name in preparations:
                spec.loader = _PreparingLoader(spec.loader.name, spec.loader.path)
            elif policy.is_user_module(name, spec.origin):
                spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def look_for_modules():
    """From now on, modules that are imported are compiled with the decorators, and prepared."""
    if _Finder not in sys.meta_path:
        finders = sys.meta_path
        usual = finders.index(importlib.machinery.PathFinder) if importlib.machinery.PathFinder in finders else len(finders)
        finders.insert(usual, _Finder)


# -- running -------------------------------------------------------------------------------------------------------------------

def run_path(path, arguments, start):
    """Run a file as `python path arguments` does. `start()`: loads Terra, and returns (what ends the step that may be open, what waits for the last steps).

    Raises: ScriptError if it cannot be started, and what the script raises.
    """
    if os.path.isdir(path):
        raise ScriptError(f"{path} is a directory; name a script in it, or use -m for a package.")
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise ScriptError(f"cannot read {path}: {error.strerror}.") from None
    filename = os.path.join(os.getcwd(), path)  # as Python does: not made shorter
    sys.argv[:] = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _begin(start)
    loader = importlib.machinery.SourceFileLoader("__main__", filename)
    _run(lambda: compiled(source, filename), __file__=filename, __loader__=loader, __package__=None, __spec__=None, __cached__=None)


def run_module(name, arguments, start):
    """Run a module or a package as `python -m name arguments` does, as `run_path` runs a file."""
    _begin(start)
    sys.argv[:] = ["-m", *arguments]
    spec = _find_module(name)
    sys.argv[0] = spec.origin
    _run(lambda: compiled(spec.loader.get_data(spec.origin), spec.origin), __file__=spec.origin, __loader__=spec.loader,
         __package__=spec.parent, __spec__=spec, __cached__=spec.cached)


def _find_module(name):
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, name + ".__main__"
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ScriptError(f"the package {package} has no __main__ module, so it cannot be run.")
    except (ImportError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and not (name + ".").startswith(error.name + "."):
            raise  # a module that a package of the user's imports
        raise ScriptError(f"no module named {name}.") from None
    if spec is None:
        raise ScriptError(f"no module named {name}.")
    if not hasattr(spec.loader, "get_data") or spec.origin is None:
        raise ScriptError(f"the module {name} has no source that could be run.")
    return spec


def _begin(start):
    look_for_modules()
    _load[:] = [start]
    if any(name in sys.modules for name in FRAMEWORKS):
        load()
    elif _FirstImport not in sys.meta_path:
        sys.meta_path.insert(0, _FirstImport)


def _run(code, **attributes):
    main = types.ModuleType("__main__")
    vars(main).update(attributes, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        exec(code(), vars(main))
    except BaseException:
        if _ends:
            _ends[-1][0]()
        raise
    if _ends:
        _ends[-1][1]()
