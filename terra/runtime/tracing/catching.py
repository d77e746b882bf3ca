"""Where the program would catch the failure of an operation: the statements around it, from the syntax tree of the user's source.

A kernel of a graph fails after Python has gone on. Where the program means to catch that and to do something else, Python must not have gone on: an
operation that may fail because of a value is waited for at once if it runs inside of such a `try` statement, and so is a step that is called in one of its
own, which catches the failure of this step and goes on with the next, or in a loop in one, which may be left before a later step could tell.
"""

import ast
import dis
import linecache
import sys
from types import ModuleType

from terra import ours
from terra.graph.nonfailing_ops import CANNOT_FAIL, ON_INTEGERS, is_harmless, may_not_fit
from terra.graph.trace import CONST, VALUE
from terra.runtime.interpreter import frames
from terra.runtime.tensors.tensor import TerraTensor, has_open_shape
from terra.runtime.tracing import managers
from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.transform import convert, source
from terra.transform.rewriting.names import TRIES

SAFE = CANNOT_FAIL | frozenset(variable_use.FORWARDABLE)
_TRY, _LOOP, _SCOPE = "try", "loop", "scope"
_ANYWHERE, _IN_LOOP, _ALONE = "anywhere", "in a loop", "alone"  # where in a statement: _IN_LOOP is one of the same function, _ALONE in none
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SUPPRESSING = frozenset(["suppress", "raises", "assertRaises", "assertRaisesRegex"])  # functions that make context managers which catch what they are given
_files = {}  # name -> (its lines, what `_statements` found in them)
_places = {}  # what `_is_caught` was asked -> (what it has told, the code object whose id is part of the question)
_LONGEST = 100_000  # lines of a file that is looked into
_ANY_STATEMENT = _TRY, float("inf"), float("inf"), [None]  # one that catches everything, wherever it is


def would_catch(step, schema, flat):
    """Returns whether the operation of `step` that is issued now may fail because of a value among its flat inputs, where the program would catch that."""
    return _may_fail(step, schema, flat) and _around_operation(step)


def _may_fail(step, schema, flat):
    """A tensor from outside counts as a constant: if it decides about a shape, the skeleton will know its value, too."""
    name = schema.name
    if schema.category not in (opschema.GRAPH, opschema.VARIABLE):
        return False
    if any(map(has_open_shape, flat)) and may_not_fit(name, len(flat)):
        return True
    if name in SAFE:
        return False
    if name in ON_INTEGERS:
        return not any(map(_is_of_floats, flat))
    return not is_harmless(name, [(VALUE,) if type(x) is TerraTensor or id(x) in step.args else (CONST,) for x in flat])


def _is_of_floats(x):
    dtype = getattr(x, "dtype", None)  # (numbers of Python's have none)
    return type(x) is float or (dtype is not None and (dtype.is_floating or dtype.is_complex))


def _around_operation(step):
    """Returns whether an operation that is issued now runs inside of a statement, in the step, that would catch its failure."""
    if step.guarded:
        return True
    stop, begun = step.began_in()
    if stop is None:
        return False  # behind a block
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not stop:
        if frames.is_users(frame) and _is_caught(frame, begun if frame is stop else 0):
            return True
        if frame is stop:
            break
        frame = frame.f_back
    return False


_ON_BATCH = frozenset(["train_on_batch", "test_on_batch", "predict_on_batch"])
_DEEPEST_CALLER = 12  # frames between a step and Keras' function for one batch that calls it


def around_step(frame):
    """Returns whether a step that is called from `frame`, by the user's code, or by Keras for one batch of it, is in a statement that would catch its
    failure, and in no loop of another function inside of that."""
    if frame is not None and not frames.is_users(frame):
        if _is_unknown(frame):
            return True  # it may catch what it calls: unittest's `assertRaises`, a pool of threads, a decorator that tries again
        frame = _caller_of_batch(frame)
    return _is_caught_further_out(frame, _IN_LOOP, True)


def around_block(frame):
    """Returns whether the program would catch an error of a tape's block in `frame`, with no loop at all inside of the statement."""
    return _is_caught_further_out(frame, _ALONE)


def _is_caught_further_out(frame, loops, by_unknown=False):
    """by_unknown: whether a library that calls the outermost of these functions counts as a statement that catches."""
    while frame is not None and frames.is_users(frame):
        caught = _is_caught(frame, loops=loops)
        if caught is not None:
            return caught
        if frame.f_code.co_name == "<module>":
            return False  # it is run, or imported
        frame = frames.around_ours(frame.f_back) if frame.f_back is not None else None
    return by_unknown and frame is not None and _is_unknown(frame)


def _is_unknown(frame):
    """Returns whether a frame runs code that is neither the program's, nor the framework's, nor Terra's: it may catch what it calls."""
    return not frames.is_users(frame) and not ours.is_ours(frame) and not frames.is_frameworks_frame(frame)


def _caller_of_batch(frame):
    """The user's frame that has called Keras' `train_on_batch`, say, which has called `frame`; None if there is none."""
    found = False
    for _ in range(_DEEPEST_CALLER):
        if frame is None or frames.is_users(frame):
            break
        found = found or frame.f_code.co_name in _ON_BATCH
        frame = frame.f_back
    return frame if found else None


def _is_caught(frame, begun=0, loops=_ANYWHERE):
    """Returns whether what runs where a frame is would be caught by a statement behind the line `begun` of its function; None if the caller's
    statements may. Not by one that has other loops round this place than `loops` says."""
    place = id(frame.f_code), frame.f_lasti, begun, loops
    known = _places.get(place)
    if known is None:
        known = _places[place] = _look_around(frame, begun, loops), frame.f_code
    return known[0]


def _look_around(frame, begun, loops):
    otherwise = None
    for kind, first, _, caught in _around(frame):
        if kind is _SCOPE:
            break
        if kind is _LOOP:
            if loops is _ALONE:
                return False
            if loops is _IN_LOOP:
                otherwise = False
        elif first > begun and _could_catch(caught, frame):
            return True
    return otherwise


def _around(frame):
    """The statements around the line that a frame is at, innermost first."""
    line = frame.f_lineno
    if line is None:
        return []
    code = frame.f_code
    if source.has_changed(code.co_filename) and not any(source.says(own, frame.f_globals) for own in convert.own_codes(code)):
        return [_ANY_STATEMENT] if _has_handlers(code) else []
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    known = _files.get(code.co_filename)
    if known is None or known[0] is not lines:
        known = _files[code.co_filename] = lines, _statements(lines)
    return [found for found in known[1] if found[1] <= line <= found[2]]


def _has_handlers(code):
    """Returns whether some statement of a function catches, or only cleans up: all that can be told if the file is another one now."""
    if hasattr(code, "co_exceptiontable"):
        return bool(code.co_exceptiontable)
    return any(instruction.opname.startswith("SETUP_") for instruction in dis.get_instructions(code))  # Python 3.10


def _statements(lines):
    """[(kind, first line, last line, what is caught)] of a file: bodies of statements that catch, loops and functions, inner ones before outer ones."""
    found = []
    if len(lines) > _LONGEST:
        return found
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):  # a cell of a notebook with magic in it
        return found
    for node in ast.walk(tree):
        if isinstance(node, TRIES) and node.handlers:
            caught = [handler.type for handler in node.handlers if not _is_autographs(handler)]
            found.append((_TRY, node.body[0].lineno, node.body[-1].end_lineno, caught))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                call = item.context_expr
                suppresses = isinstance(call, ast.Call) and (getattr(call.func, "attr", None) or getattr(call.func, "id", None)) in _SUPPRESSING
                found.append((_TRY, node.body[0].lineno, node.body[-1].end_lineno, call.args[:1] if suppresses else [managers.Manager(call)]))
        elif isinstance(node, _LOOPS):
            found.append((_LOOP, node.body[0].lineno, node.body[-1].end_lineno, None))
        elif isinstance(node, _COMPREHENSIONS):
            found.append((_LOOP, node.lineno, node.end_lineno, None))
        elif isinstance(node, _SCOPES):
            found.append((_SCOPE, node.lineno, node.end_lineno, None))
    return sorted(found, key=lambda item: (-item[1], item[2], item[0] is _TRY))


def _is_autographs(handler):
    """Returns whether a handler is the one that AutoGraph puts round what returns: it does no more than to unset a flag of its own."""
    if handler.type is not None or len(handler.body) != 2:
        return False
    flag, raises = handler.body
    return (isinstance(raises, ast.Raise) and raises.exc is None and isinstance(flag, ast.Assign) and isinstance(flag.targets[0], ast.Name)
            and flag.targets[0].id.startswith("do_return") and isinstance(flag.value, ast.Constant))


def _could_catch(caught, frame):
    return any(kind is None or _is_failure(kind, frame) for kind in caught)


def _is_failure(expression, frame):
    """Returns whether an expression names a class of exceptions that the failure of a kernel may be of; True if it cannot be told."""
    if type(expression) is managers.Manager:
        return expression.looks_at_errors(frame)
    if isinstance(expression, ast.Tuple):
        return any(_is_failure(part, frame) for part in expression.elts)
    kind = _value(expression, frame)
    for cls in kind if isinstance(kind, tuple) else (kind,):
        if not isinstance(cls, type) or (
                (issubclass(tfi.OpError, cls) or issubclass(cls, tfi.OpError)) and cls is not tfi.tf.errors.OutOfRangeError):  # the end of a dataset
            return True
    return False


def _value(expression, frame):
    """Returns what a global name, or an attribute of a module, stands for; None if the expression is anything else."""
    if isinstance(expression, ast.Name):
        return None if frames.is_local(frame, expression.id) else frames.global_value(frame, expression.id)
    if isinstance(expression, ast.Attribute):
        module = _value(expression.value, frame)
        return getattr(module, expression.attr, None) if isinstance(module, ModuleType) else None
    return None
