"""Where a step begins in code that is not decorated: at a gradient tape's block, or at the call of a function that has one and gives the gradients back, for its
caller to update with."""

import ast

__all__ = ["UPDATES", "begins", "calls_helper", "helpers_of", "is_block", "is_step", "is_tape", "name_called", "own_nodes", "passes"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
UPDATES = frozenset(["apply_gradients", "apply", "assign", "assign_add", "assign_sub", "update_state", "minimize", "scatter_update", "scatter_add", "scatter_sub"])
_OF_OPTIMIZERS = frozenset(["apply_gradients", "apply", "minimize"])
_OF_TAPES = frozenset(["gradient", "jacobian", "batch_jacobian"])  # methods of theirs, which are no helpers
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def name_called(node):
    """Returns the name of the function or method that an expression calls; None if that has none, or it is no call."""
    return (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) if isinstance(node, ast.Call) else None


def is_tape(node):
    """Returns whether an expression makes a tape."""
    return isinstance(node, ast.Call) and "GradientTape" in (getattr(node.func, "attr", None), getattr(node.func, "id", None))


def is_block(node):
    """Returns whether it is a `with` statement with a tape."""
    return isinstance(node, ast.With) and any(is_tape(item.context_expr) for item in node.items)


def passes(node):
    """Returns whether what follows a `with` statement always follows its whole body: other context managers may swallow an exception."""
    return isinstance(node, ast.With) and all(is_tape(item.context_expr) for item in node.items)


def own_nodes(scope):
    """(node, whether it is in a loop) for the nodes of a module or a function, without those of functions and classes inside it."""
    todo = [(child, False) for child in scope.body]
    while todo:
        node, in_loop = todo.pop()
        yield node, in_loop
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            inside = in_loop or isinstance(node, LOOPS + _COMPREHENSIONS)
            todo.extend((child, inside) for child in ast.iter_child_nodes(node))


def helpers_of(tree):
    """Returns the names of a module's functions and methods that have a tape's block, in no loop, and return gradients, or the tape, but have no optimizer update."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and node.name not in _OF_TAPES and node.name.isidentifier():
            own = list(own_nodes(node))
            blocks = [in_loop for part, in_loop in own if is_block(part)]
            names = {name_called(part) for part, _ in own}
            gives = "gradient" in names and any(isinstance(part, ast.Return) and part.value is not None for part, _ in own)
            if blocks and not any(blocks) and (gives or _give_tape([part for part, _ in own])) and _OF_OPTIMIZERS.isdisjoint(names):
                found.add(node.name)
    return found


def _give_tape(own):
    """Returns whether a function of these nodes returns a tape of one of its blocks."""
    tapes = {item.optional_vars.id for part in own if is_block(part) for item in part.items if isinstance(item.optional_vars, ast.Name) and is_tape(item.context_expr)}
    return any(isinstance(name, ast.Name) and name.id in tapes for part in own if isinstance(part, ast.Return) and part.value is not None
               for name in (part.value.elts if isinstance(part.value, ast.Tuple) else [part.value]))


def calls_helper(node, helpers):
    """Returns whether an expression is the call of one of these functions."""
    return bool(helpers) and name_called(node) in helpers


def begins(statement, helpers):
    """Returns whether a step begins with a statement: a tape's block, or one that does nothing but call a helper, and bind names to what that gives."""
    return is_block(statement) or (isinstance(statement, (ast.Assign, ast.Expr)) and calls_helper(statement.value, helpers))


def is_step(function, helpers):
    """Returns whether a function as a whole is a step: it has a tape's block in no loop, or calls a helper and then updates, once each."""
    own = list(own_nodes(function))
    if any(is_block(part) and not in_loop for part, in_loop in own):
        return True
    calls = [in_loop for part, in_loop in own if calls_helper(part, helpers)]
    return bool(calls) and not any(calls) and not any(is_block(part) for part, _ in own) and any(
        name_called(part) in _OF_OPTIMIZERS and not in_loop for part, in_loop in own)
