"""TensorFlow's own loops: `tf.while_loop` and what is made of it (`tf.scan`, `tf.foldl`, `tf.map_fn`, the RNN layers of Keras).

Run eagerly, `tf.while_loop` is a Python loop in TensorFlow's code, which is not instrumented. Its iterations are given locations all the same, so
that such a loop is rolled like one of the user's where its trip count varies (sentences of different lengths, for instance), instead of being one
more path with each new length.

A layer whose loop is in segments cannot be skipped as a whole. So the cell of a stock RNN layer is, in each iteration.
"""

import ast
import functools
from threading import get_ident
from types import FunctionType, ModuleType

import numpy as np

from terra.frameworks import keras, framework_objects
from terra.location import current_step, location
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.tapes import jacobians
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, is_frameworks_function, is_librarys
from terra.tf import private_names as tfi
from terra.tf.private import replacements
from terra.transform import convert, source

_loop_ids = {}  # id of the call site around a loop -> id of the loop


def replace():
    """Put these in the place of TensorFlow's loops."""
    replacements.replace_while_loop(located)
    replacements.replace_map_fn(mapping)
    replacements.replace_pfor(vectorizing)


def located(original):
    """`tf.while_loop`, given the original, with a location for each iteration."""
    @functools.wraps(original)
    def while_loop(cond, body, *args, **kwargs):
        step = issuing_step()
        if step is None or not step.function.located or not callable(cond):
            return original(cond, body, *args, **kwargs)
        cursor = location.tls.cursor
        here = cursor.current
        iteration = here.loop(_loop_id(here.id))

        def next_cond(*loop_vars):
            nonlocal iteration
            cursor.current = iteration = iteration.next or iteration.grow()
            return cond(*loop_vars)

        holder = step_function = None
        if step.function.segments is not None:
            holder = _step_holder(body)
        try:
            if holder is not None:
                step_function = holder.cell_contents
                holder.cell_contents = _skipping(step_function)
            return original(next_cond, body, *args, **kwargs)
        finally:
            cursor.current = here
            if step_function is not None:
                holder.cell_contents = step_function

    return while_loop


def mapping(original):
    """`tf.map_fn`, given the original. It has AutoGraph convert the function that it calls, even where it runs eagerly; one that would stay the same
    is left as it is, so that its operations have locations."""
    @functools.wraps(original)
    def map_fn(fn, *args, **kwargs):
        if issuing_step() is not None and autograph_leaves(fn):
            fn = unconverted(functools.partial(fn))
        return original(fn, *args, **kwargs)

    return map_fn


def vectorizing(original):
    """`pfor`, given the original, which `tf.vectorized_map` runs through: the function that TensorFlow makes for it at each call is to be the same at
    each step, see `jacobians`."""
    @functools.wraps(original)
    def pfor(*args, **kwargs):
        step = issuing_step()
        if step is None:
            return original(*args, **kwargs)
        with jacobians.inside(step):
            return original(*args, **kwargs)

    return pfor


def unconverted(partial):
    """Marks a partial function so that AutoGraph leaves it alone, and returns it."""
    partial.autograph_info__ = {}  # it takes what has this attribute for its own
    return partial


def autograph_leaves(function):
    """Returns whether a function does the same if AutoGraph has converted it: it computes in a straight line, and calls nothing but what is the framework's."""
    if type(function) is not FunctionType:
        return False
    if is_frameworks_function(function):
        return True
    code = function.__code__
    known = _straight.get(id(code))
    if known is None:
        names = [_names_used(own, function.__globals__) for own in convert.own_codes(code) if own.co_freevars == tuple(name for name in code.co_freevars if not name.startswith(location.RESERVED))]
        known = _straight[id(code)] = code, None if not names or None in names else set().union(*names)
    names, space, cells = known[1], function.__globals__, closure(function)
    if names is None:
        return False
    try:
        return all(_is_left(cells[name].cell_contents if name in cells else space[name]) for name in names)
    except (KeyError, ValueError):  # a builtin, for some of which AutoGraph has its own, or none; an empty cell
        return False


def _is_left(value, within=()):
    """Returns whether there is no function of the program's in a value; `within`: ids of the containers that it is in."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        return value.__name__.split(".", 1)[0] in tfi.FRAMEWORKS
    if kind in (list, tuple, dict):
        within = (*within, id(value))
        return len(within) <= _DEEPEST and id(value) not in within[:-1] and all(_is_left(x, within) for x in (value.values() if kind is dict else value))
    return is_frameworks_function(value) if kind is FunctionType else kind in PLAIN or kind is np.ndarray or kind in TENSORS or tfi.is_variable(value) or is_librarys(kind)


_straight = {}  # id of a code object -> (it, the names that it uses, or None if AutoGraph would change what it does)
_DEEPEST = 20  # of the containers that are looked into
_PLAIN_NODES = (
    ast.arguments, ast.arg, ast.Return, ast.Assign, ast.Expr, ast.With, ast.withitem, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.UnaryOp,
    ast.Invert, ast.UAdd, ast.USub, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.expr_context)


def _names_used(code, space):
    """The names from outside that a function uses, if nothing but straight lines of calculations and calls is in it; else None."""
    try:
        function, _ = source.find_code(code, space)
    except source.NoSource:
        return None
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    nodes = [node for part in body for node in ast.walk(part)]
    if not all(isinstance(node, _PLAIN_NODES) for node in nodes):
        return None
    return {node.id for node in nodes if isinstance(node, ast.Name)}.difference(code.co_varnames, code.co_cellvars)


def issuing_step():
    """The step to which eager operations of this thread belong now, or None."""
    step = current_step.active
    if not isinstance(step, Step) or step.thread != get_ident() or step.paused or not tfi.executing_eagerly():
        return None
    return step


def _loop_id(around):
    known = _loop_ids.get(around)
    if known is None:
        place = location.site(around)
        filename, lineno = (place.filename, place.lineno) if place is not None else ("", 0)
        # The name is no function's: nothing recurses by running a loop.
        known = _loop_ids.setdefault(around, location.register_site("loop", filename, lineno, f"<tf.while_loop {around}>"))
    return known


def _step_holder(body):
    """Where `body`, if it is that of a stock RNN layer with a stock cell, keeps the function that calls the cell; else None."""
    if type(body) is not FunctionType or body.__module__ != keras.RNN_LOOP:
        return None
    holder = closure(body).get("step_function")
    return holder if holder is not None and calls_stock_cell(holder.cell_contents) else None


def calls_stock_cell(function):
    """Returns whether `function` is what a stock RNN layer calls its cell with, and that is a stock one, too."""
    if type(function) is not FunctionType or function.__module__ != keras.RNN_LAYER:
        return False
    held = closure(function)
    return {"self", "cell_kwargs"} <= held.keys() and framework_objects.is_stock_object(held["self"].cell_contents.cell)


def closure(function):
    """{name: cell} of the variables of the functions around it that a function uses."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or ()))


def _skipping(step_function):
    """`step_function`, which calls a layer's cell with (inputs, states), but jumping where it can."""
    held = closure(step_function)
    cell, options = held["self"].cell_contents.cell, held["cell_kwargs"].cell_contents

    def step(inputs, states):
        runner = call_cache.running()
        if runner is None:
            return step_function(inputs, states)
        return call_cache.attempt(runner, step_function.__code__, cell, (inputs, states), options, lambda: step_function(inputs, states))

    return step
