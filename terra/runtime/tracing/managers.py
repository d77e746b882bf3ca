"""Context managers of the program's that look at the error which ends their `with` statement: they catch it, or take something back.

Which manager a statement has is told from what its expression names in the frame; nothing of the program's is called for it. Those of libraries only
clean up, but for the few that `catching` knows by name.
"""

import ast
import contextlib
import dis
import inspect
import textwrap
from types import FunctionType

from terra.runtime.interpreter import frames
from terra.transform import policy

_MAKING = contextlib.contextmanager(lambda: None).__code__, contextlib.asynccontextmanager(lambda: None).__code__
_EXITS = "__exit__", "__aexit__"
_LOADS = "LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE"
_MISSING = object()


class Manager:
    """The expression of one manager in a `with` statement."""

    __slots__ = ("_expression",)

    def __init__(self, expression):
        self._expression = expression

    def looks_at_errors(self, frame):
        """Returns whether the manager that it makes, in this frame, is one of the program's and does something else if there is an error."""
        called = isinstance(self._expression, ast.Call)
        value = _value(self._expression.func if called else self._expression, frame)
        if value is _MISSING:
            return False
        if not called:
            begun = vars(value).get("gen") if isinstance(value, contextlib._GeneratorContextManagerBase) else None
            return _exit_looks(type(value)) if begun is None else _catches(begun.gi_code if hasattr(begun, "gi_code") else begun.ag_code, None)
        if isinstance(value, type):
            return issubclass(value, (contextlib.ExitStack, contextlib.AsyncExitStack)) or _exit_looks(value)
        value = getattr(value, "__func__", value)
        if type(value) is FunctionType and value.__code__ in _MAKING:
            made = inspect.unwrap(value)
            return type(made) is FunctionType and _catches(made.__code__, made.__module__)
        return False


def _value(expression, frame):
    """Returns what a name, or an attribute of what one stands for, is, without running code of the program's; `_MISSING` for anything else."""
    if isinstance(expression, ast.Name):
        if not frames.is_local(frame, expression.id):
            return frames.global_value(frame, expression.id, _MISSING)
        held = frame.f_locals
        value = held.get(expression.id, _MISSING)
        if type(held) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            held.clear()  # a copy, up to Python 3.12, which the frame would keep
        return value
    if isinstance(expression, ast.Attribute):
        owner = _value(expression.value, frame)
        return owner if owner is _MISSING else inspect.getattr_static(owner, expression.attr, _MISSING)
    return _MISSING


def _exit_looks(cls):
    """Returns whether the method of a class that ends a `with` statement is the program's, and uses what it is told of the error."""
    for name in _EXITS:
        method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if type(method) is FunctionType and policy.is_user_module(method.__module__, method.__code__.co_filename):
            code = method.__code__
            parameters = inspect.getargs(code)
            told = {*parameters.args[1:], *([parameters.varargs] if parameters.varargs else [])}
            return any(instruction.opname.startswith(_LOADS) and not told.isdisjoint(instruction.argval if type(instruction.argval) is tuple else (instruction.argval,))
                       for instruction in dis.get_instructions(code))
    return False


def _catches(code, module):
    """Returns whether the code of a generator which `contextlib.contextmanager` was given is the program's, and has a statement that catches."""
    if not policy.is_user_module(module, code.co_filename):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):  # its source is not known
        return True
    return any(isinstance(node, ast.ExceptHandler) for node in ast.walk(tree))
