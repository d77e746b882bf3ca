"""The two parts of a function that was cut: see `rewriting.cutting`."""

from types import FunctionType
from typing import NamedTuple

from terra.transform import convert, source
from terra.transform.factory import Factory
from terra.transform.rewriting.cutting import cut

__all__ = ["Parts", "cut_before", "statements_at"]


class Parts(NamedTuple):
    """Holds the parts of a function; `tail(head(*args), *args)` is what the function does."""

    head: FunctionType  # instrumented: its locations are those of the whole function
    plain_head: FunctionType  # as it was written
    tail: FunctionType
    line: int  # where the tail begins


def cut_before(function: FunctionType, form: FunctionType, k: int) -> Parts | None:
    """Returns the parts of a function, which has this instrumented form, cut before its statement number `k`; None if it cannot be cut there."""
    whole = convert.factory_of(form)
    if whole is None:
        return None
    try:
        node, _ = source.find(function)
        parts = cut(node, k)
        if parts is None:
            return None
        head, plain = (Factory.of_head(whole, function, parts[0], plain) for plain in (False, True))
        tail = whole.code_of_tail(parts[1])
    except source.NoSource:  # the file has changed
        return None
    convert.keep_factory(head, head)
    return Parts(head.function_like(function), plain.function_like(function), whole.function_like(function, tail), node.body[k].lineno)


def statements_at(function: FunctionType) -> list[tuple[int, int]]:
    """Returns the first and last line of each statement of a function; none if its source is not available."""
    try:
        node, _ = source.find(function)
    except source.NoSource:
        return []
    return [(statement.lineno, statement.end_lineno) for statement in node.body] if hasattr(node, "name") else []
