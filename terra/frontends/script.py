"""Run a script, or a module, as `python` does, with its gradient tapes co-executed: what `python -m terra run` does.

Nothing of the user's is edited. `tf.GradientTape` is replaced by `terra.GradientTape`, so that its blocks are steps (supplement C.2), and the syntax
trees of the user's modules that mention a tape get one more decorator on some of their functions before they are compiled:

    `step`          on a function with a tape's block in it that is in no loop: from its second call on, the function as a whole is the step (then its
                    update is in the step wherever it stands, and its arguments are the graph's); unless its first call showed that it runs more than
                    its own blocks, as a function that trains a whole model does; also on one that calls such a function, which gives it gradients, and updates
    `block`         on functions that were made of a block in a loop, and what follows it, by `terra.transform.rewriting.outline`: each call is a step
    `instrumented`  on other functions with a block, and, in a module with a block at its top level, on all
    `helper`        on other functions at a module's top level (`helping_method` on methods of its classes without a base): outside of any step, one that has turned out
                    to issue operations enough is a step, as what updates a target network or computes an accuracy

Functions that these call are instrumented when they are called. A function with a decorator that is not known to be harmless is left alone.
What is to be done with libraries' modules, such as Keras', is the caller's to say.
"""

import ast
import builtins
import functools
import importlib.machinery
import importlib.util
import os
import sys
import time
import types
from threading import get_ident

from terra import ours
from terra.frontends import gradient_tape, outside_calls
from terra.location import current_step
from terra.options import Options
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.interpreter import tracebacks
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.signatures import standing_in
from terra.tf import private_names as tfi
from terra.transform import STEPS, calls_helper, helpers_of, instrument, is_block, is_outlined, is_step, name_called, outline, own_nodes, policy, rewrites

_HARMLESS = frozenset(["staticmethod", "classmethod", "property", "abstractmethod", "override"])

_LOOKS = 2  # calls of a helper that are looked at before any is a step
_FEWEST, _MOST = 12, 2000  # tensors that a helper makes in a call, for that to be a step
_LONGEST = 0.1  # seconds that it takes: what takes longer is the program's loop

_calls = [0]  # of functions that are steps
_preparations = {}  # name of a library's module -> what to do with it when it has been imported
_seen = {}  # code of a function -> what its first call told: whether it may be a step


class ScriptError(Exception):
    """The script cannot be started; the message is one sentence."""


# -- the decorators ------------------------------------------------------------------------------------------------------------

def instrumented(function):
    """The instrumented form of a function."""
    return instrument(function)


def step(blocks):
    """A decorator for a function with so many tape blocks: from its second call on, each call is a co-executed step."""
    def decorate(function):
        form = instrument(function)
        steps = Coexecuted(function, form, Options.make(gradient_tape.defaults))
        seen = _seen.setdefault(function.__code__, [])

        @functools.wraps(function)
        @ours.calling
        def call(*args, **kwargs):
            if not tfi.tf.executing_eagerly():
                return steps.for_graph()(*args, **kwargs)  # part of somebody's graph
            try:
                if seen and seen[0]:
                    _calls[0] += 1
                    return steps(*args, **kwargs)
                before = gradient_tape.begun() + _calls[0]
                result = form(*args, **kwargs)
            except BaseException as error:
                tracebacks.clean(error)
                raise
            if not seen:
                seen.append(gradient_tape.begun() + _calls[0] - before <= blocks)
            return result

        if is_outlined(function.__name__):
            return call
        made = standing_in(function, call)
        STEPS[made] = steps
        return made
    return decorate


def helper(function):
    """A decorator for a function without a tape: each of its calls outside of any step is a co-executed one, from the third such call on, if the two before have
    issued operations enough, and contained nothing that is a step of its own."""
    return _helper(function, None)


def helping_method(function):
    """A decorator for a method without a tape: as `helper`, and each instance has steps of its own."""
    return _helper(function, outside_calls.Lasting())


class _Helper:
    """The forms of a helper: each is made when it is first needed, as most functions of a program never are one."""

    def __init__(self, function):
        self.__wrapped__ = function

    @functools.cached_property
    def form(self):
        return instrument(self.__wrapped__)

    @functools.cached_property
    def steps(self):
        return Coexecuted(self.__wrapped__, self.form, Options.make(gradient_tape.defaults))

    def within(self, step):
        """Returns the function that is called as a part of another `step`."""
        return self.steps.within(step)


def _helper(function, lasting):
    forms, seen, left_out = _Helper(function), [], []

    @functools.wraps(function)
    @ours.calling
    def call(*args, **kwargs):
        active = current_step.active
        if not tfi.executing_eagerly():
            return forms.steps.for_graph()(*args, **kwargs)
        if active is not None:
            return (forms.form if active.thread == get_ident() else function)(*args, **kwargs)
        if left_out or not outside_calls.may_begin():
            return function(*args, **kwargs)
        try:
            if len(seen) == _LOOKS:
                if lasting is None:
                    _calls[0] += 1
                    return forms.steps(*args, **kwargs)
                if not args or not _may_last(args[0]) or not lasting.begin(args[0]):
                    return function(*args, **kwargs)
                _calls[0] += 1
                return forms.steps.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
            before, tensors, start = _steps_begun(), tfi.next_tensor_id(), time.perf_counter()
            result = function(*args, **kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise
        is_short = not seen or time.perf_counter() - start < _LONGEST  # the first call may well be what loads kernels
        is_one = is_short and _steps_begun() == before and _FEWEST <= tfi.next_tensor_id() - tensors <= _MOST
        _calls[0] += is_one  # so that what calls it is none
        (seen if is_one else left_out).append(True)
        return result

    made = standing_in(function, call)
    STEPS[made] = forms
    return made


def _may_last(instance):
    """Returns whether an instance can have steps that live as long as it does."""
    return type(getattr(instance, "__dict__", None)) is dict and hasattr(type(instance), "__weakref__")


def _steps_begun():
    return gradient_tape.begun() + outside_calls.made() + _calls[0]


def steps_of(function):
    """Returns the co-executed function behind one with a tape in it, or a helper; None if `function` is another one."""
    found = STEPS.get(function) if type(function) is types.FunctionType else None
    return found.steps if type(found) is _Helper else found


def block(function):
    """A decorator for a function that was made of a block and what follows it: each call is a co-executed step."""
    code = function.__code__
    function.__qualname__ = f"the block at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    _seen[code] = [True]
    return step(1)(function)


# -- what is decorated ---------------------------------------------------------------------------------------------------------

def _imported(name):
    """The source of an expression for a decorator of this module."""
    return f"__import__({__name__!r}, fromlist=[{name!r}]).{name}"


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
        _preparations[module.__name__](module)


class _Finder:
    """Finds modules as the usual finder does, and has the user's own compiled by `_Loader`."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            if name in _preparations:
                spec.loader = _PreparingLoader(spec.loader.name, spec.loader.path)
            elif policy.is_user_module(name, spec.origin):
                spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install(options, preparations):
    """Make the tapes of all modules steps, with these options, and have modules imported from now on compiled with the decorators.

    preparations: {name of a library's module: what to do with it when it has been imported}.
    """
    gradient_tape.set_defaults(options)
    _preparations.update(preparations)
    for name, prepare in preparations.items():
        if name in sys.modules:
            prepare(sys.modules[name])
    tf = tfi.tf
    for home in (tf, tf.autodiff, tf.compat.v2, tf.compat.v2.autodiff):
        home.GradientTape = gradient_tape.GradientTape
    if _Finder not in sys.meta_path:
        finders = sys.meta_path
        usual = finders.index(importlib.machinery.PathFinder) if importlib.machinery.PathFinder in finders else len(finders)
        finders.insert(usual, _Finder)


# -- running -------------------------------------------------------------------------------------------------------------------

def run_path(path, arguments, options, preparations):
    """Run a file as `python path arguments` does, its steps with these options of `terra.coexecute`; `preparations` as for `install`.

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
    install(options, preparations)
    loader = importlib.machinery.SourceFileLoader("__main__", filename)
    _run(lambda: compiled(source, filename), __file__=filename, __loader__=loader, __package__=None, __spec__=None, __cached__=None)


def run_module(name, arguments, options, preparations):
    """Run a module or a package as `python -m name arguments` does, as `run_path` runs a file."""
    install(options, preparations)
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


def _run(code, **attributes):
    main = types.ModuleType("__main__")
    vars(main).update(attributes, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        exec(code(), vars(main))
    except BaseException:
        interception.end_open_step()
        raise
    finish()


def finish():
    """End the step that may be open, wait for what is in flight, and raise what was not raised yet."""
    interception.end_open_step()
    GRAPH_RUNNER.sync()
    gradient_tape.raise_late_error()
