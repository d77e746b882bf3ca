"""Cuts a function in two between two of its statements: its head, which gives what the rest needs, and its tail, which is given that.

    def step(self, x, y):                       def step(self, x, y):
        with tf.GradientTape() as tape:             with tf.GradientTape() as tape:
            loss = self.loss(x, y)                      loss = self.loss(x, y)
        self.update(tape, loss)           →         self.update(tape, loss)
        self.meter.add(float(loss))                 return loss
        return loss
                                                def step(given, /, self, x, y):
                                                    loss = given
                                                    self.meter.add(float(loss))
                                                    return loss

Parameters reach both, as both are called with the function's own arguments. What the head binds, and the tail may read before it binds that itself, is given. A function is
cut only where no program can tell: control does not leave the head but at its end, all that is given is sure to be bound, and is no tape; nothing declares names or looks at
them, and no function that the head makes reads what the tail binds.
"""

import ast
import copy

from terra.transform.rewriting.blocks import is_tape, own_nodes, passes
from terra.transform.rewriting.names import bound_after, looks_at_names, names_of, parameters

__all__ = ["cut"]

_GIVEN = "_terra_given"
_SUSPENDS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


def cut(function, k):
    """Returns (the head, the tail) of the `ast` node of a function, cut before its statement of this number; None if the program could tell."""
    if not isinstance(function, ast.FunctionDef) or not 0 < k < len(function.body) or all(map(_is_given, function.body[k:])):
        return None
    first, rest = function.body[:k], function.body[k:]
    if any(map(looks_at_names, ast.walk(function))) or any(isinstance(node, _SUSPENDS) for node, _ in own_nodes(function)):
        return None
    if any(isinstance(node, ast.Return) for node, _ in own_nodes(ast.Module(first, []))) or any(map(_asks_for_class, rest)):
        return None
    before, after, unbound, bound = names_of(first), names_of(rest), set(), parameters(function)
    if before.declared or after.declared or not before.captured.isdisjoint(after.stores | after.deletes):
        return None
    if not before.loads.isdisjoint((after.stores | after.deletes) - before.stores - bound):  # which are no names outside of the function
        return None
    bound_after(rest, (), passes, unbound)
    given = sorted(unbound & (before.stores | before.deletes))
    if not set(given) <= bound_after(first, bound, passes) or any(map(_is_private, given)) or not _tapes(first).isdisjoint(given):
        return None
    return _head(function, first, given), _tail(function, rest, given)


def _is_given(statement):
    """Returns whether a statement only returns names or constants."""
    return isinstance(statement, ast.Return) and all(
        isinstance(node, (ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.expr_context)) for node in ast.walk(statement.value or ast.Constant(None)))


def _asks_for_class(statement):
    return any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(statement))  # which looks at the first argument


def _tapes(statements):
    """The names that these statements bind to tapes, which belong to the step."""
    found = set()
    for statement in statements:
        for node, _ in own_nodes(ast.Module([statement], [])):
            if isinstance(node, (ast.With, ast.AsyncWith)):
                found |= names_of([item.optional_vars for item in node.items if is_tape(item.context_expr) and item.optional_vars is not None]).stores
            elif isinstance(node, ast.Assign) and is_tape(node.value):
                found |= names_of(node.targets).stores
    return found


def _is_private(name):
    return name.startswith("__") and not name.endswith("__")


def _head(function, statements, given):
    head = copy.deepcopy(_with(function, statements))
    if given:
        back = ast.Return(_names(given, ast.Load()))
        head.body.append(ast.fix_missing_locations(ast.copy_location(back, statements[-1])))
    return head


def _tail(function, statements, given):
    tail = copy.deepcopy(_with(function, statements))
    place = tail.args.posonlyargs[0] if tail.args.posonlyargs else tail.body[0]
    tail.args.posonlyargs.insert(0, ast.copy_location(ast.arg(_GIVEN, None), place))
    if given:
        taken = ast.Assign([_names(given, ast.Store())], ast.Name(_GIVEN, ast.Load()))
        tail.body.insert(0, ast.fix_missing_locations(ast.copy_location(taken, statements[0])))
    return tail


def _with(function, statements):
    """The function with this body."""
    made = copy.copy(function)
    made.args = copy.copy(function.args)
    made.args.posonlyargs = list(function.args.posonlyargs)
    made.body = list(statements)
    return made


def _names(names, context):
    found = [ast.Name(name, context) for name in names]
    return found[0] if len(found) == 1 else ast.Tuple(found, context)
