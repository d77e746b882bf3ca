"""The questions that the instrumenter asks about a tree before it changes it, and the scopes that it keeps while it does."""

import gast

__all__ = ["Scope", "bound_names", "inert", "own_nodes", "suspends"]

_FUNCTIONS = (gast.FunctionDef, gast.AsyncFunctionDef, gast.Lambda)
# An expression made of these only cannot issue an operation.
_INERT = (gast.Name, gast.Attribute, gast.Constant, gast.Tuple, gast.List, gast.Set, gast.Dict, gast.BoolOp, gast.IfExp,
          gast.Starred, gast.JoinedStr, gast.FormattedValue, gast.expr_context, gast.boolop, gast.NamedExpr)


def own_nodes(function):
    """The nodes of a function's own body, without those of functions, classes and generator expressions inside it."""
    todo = list(function.body) if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _FUNCTIONS + (gast.ClassDef, gast.GeneratorExp)):
            todo.extend(gast.iter_child_nodes(node))


def suspends(function):
    """Is it a generator, a coroutine, or both?"""
    return isinstance(function, gast.AsyncFunctionDef) or any(
        isinstance(node, (gast.Yield, gast.YieldFrom, gast.Await)) for node in own_nodes(function))


def inert(node):
    if isinstance(node, gast.UnaryOp) and isinstance(node.op, gast.Not):
        return inert(node.operand)
    return isinstance(node, _INERT) and all(inert(child) for child in gast.iter_child_nodes(node))


def bound_names(tree):
    """Every name that is bound anywhere in the tree, roughly: more than needed does no harm."""
    names = set()
    for node in gast.walk(tree):
        if isinstance(node, gast.Name) and not isinstance(node.ctx, gast.Load):
            names.add(node.id)
        elif isinstance(node, (gast.FunctionDef, gast.AsyncFunctionDef, gast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, gast.alias):
            names.add((node.asname or node.name).split(".")[0])
        else:  # match captures, except names on some versions, global declarations
            for field in ("name", "rest"):
                if isinstance(getattr(node, field, None), str):
                    names.add(getattr(node, field))
    return names


class Scope:
    """A scope of the user's code while it is being visited.

    `kind` is "function", "generator" (anything that can be suspended), "class" or "expression" (lambda, comprehension).
    """

    def __init__(self, kind, name, activation=None):
        self.kind = kind
        self.name = name  # for the registry of sites
        self.activation = activation  # name of the Activation that an await in here belongs to
        self.used = False  # does the function need a prologue?
        self.loops = []  # lexically enclosing loops: (loop id, is it an async for)
        self.temporaries = 0
