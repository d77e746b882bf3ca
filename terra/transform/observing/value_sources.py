"""Parts of a tree that is observed, as expressions: keys, names of operators, how a value is unpacked."""

import gast

__all__ = ["Unobservable"]


class Unobservable(Exception):
    """The function has statements that are not pure, or too rare to be worth a look."""


def is_of_integers(how, asked):
    """Returns whether arithmetic with names may have small integers in the middle of it, of which only Python's own evaluation tells where they came from."""
    kinds = (gast.FloorDiv, gast.Mod) if how == "counted" else gast.operator
    return any(isinstance(node, gast.BinOp) and isinstance(node.op, kinds) for node in gast.walk(asked))


def name_of(operator):
    return gast.Constant(type(operator).__name__, None)


def constant_key(node):
    """The key of an item, as a constant, if it is a string or a whole number; else None."""
    return gast.Constant(node.value, None) if isinstance(node, gast.Constant) and type(node.value) in (int, str) else None


def key_of(node):
    """Returns the expression for a key of a subscript: that of a constant, or the variable that has it."""
    return gast.Name(node.id, gast.Load(), None, None) if isinstance(node, gast.Name) else constant_key(node)


def starred(targets):
    """The names among the targets that a list is made for."""
    return [
        node.value.id for target in targets for node in gast.walk(target)
        if isinstance(node, gast.Starred) and isinstance(node.value, gast.Name)]


def structure(target):
    """How a value is unpacked: None for a name, a tuple of such for a tuple of targets, "*" for one with a star; as an expression."""
    if isinstance(target, gast.Starred):
        if not isinstance(target.value, gast.Name):
            raise Unobservable(f"line {target.lineno} has a target with a star that is no name")
        return gast.Constant("*", None)
    if not isinstance(target, (gast.Tuple, gast.List)):
        return None
    return gast.Tuple([structure(x) or gast.Constant(None, None) for x in target.elts], gast.Load())


def refuse_calls(annotation):
    """Annotations are not shown: they must do nothing when they are evaluated."""
    if annotation is not None and any(isinstance(x, (gast.Call, gast.NamedExpr, gast.Await)) for x in gast.walk(annotation)):
        raise Unobservable(f"line {annotation.lineno} calls something in an annotation")


def returned(value):
    """{place: expression} of what is returned, which may be a tuple or a dict that is made there; None is the place of a single value."""
    if isinstance(value, gast.Tuple):
        return {} if any(isinstance(x, gast.Starred) for x in value.elts) else dict(enumerate(value.elts))
    if isinstance(value, gast.Dict):
        keys = [getattr(key, "value", None) for key in value.keys]
        return dict(zip(keys, value.values)) if all(type(key) is str for key in keys) and len(set(keys)) == len(keys) else {}
    return {} if value is None else {None: value}
