"""Frames that an exception has left show the line that raised it, as those of the user's own code do.

The instrumented body of a function stands in a ``try``, whose ``finally`` puts the location right and has no line. Where an exception passes that, the
interpreter notes the instruction that raises it again as the frame's last one, and the frame has no line any more: ``frame.f_lineno`` is None, which
Jupyter, pdb and pytest do not expect. A ``with`` statement keeps the first instruction, by means that the compiler uses for nothing else that we could
write without a call: the handler's entry in the exception table has that instruction pushed, and ``RERAISE`` takes it from there. This is done here.
"""

import dis
import sys

__all__ = ["keeps_line"]

_RERAISE = dis.opmap["RERAISE"]
_PUSH_EXC_INFO = dis.opmap.get("PUSH_EXC_INFO")  # new in Python 3.11
_JUMPS = frozenset(dis.hasjrel + dis.hasjabs)


def keeps_line(code):
    """`code`, where handlers that have no line leave the frame at the instruction that has raised. It is not applied to nested code."""
    lines = _lines(code)
    instructions = code.co_code
    if sys.version_info < (3, 11):  # the block on the frame's own stack remembers it in any case
        places = [at for at in range(0, len(instructions), 2) if instructions[at] == _RERAISE and not instructions[at + 1] and lines[at // 2] is None]
        return code.replace(co_code=_exchanged(instructions, places, 1)) if places else code
    entries = _entries(code.co_exceptiontable)
    handlers = {}  # where a handler begins -> its RERAISE
    for _, _, target, _, pushes in entries:
        if not pushes and target not in handlers:
            reraise = _reraise_of(instructions, lines, target)
            if reraise is not None:
                handlers[target] = reraise
    if not handlers:
        return code
    changed = []
    for start, end, target, depth, pushes in entries:
        if any(begin < end and start <= reraise for begin, reraise in handlers.items()):
            depth += 1  # within the handler, there is one value more below the exception
        changed.append((start, end, target, depth, pushes or target in handlers))
    return code.replace(co_code=_exchanged(instructions, handlers.values(), 2), co_exceptiontable=_table(changed), co_stacksize=code.co_stacksize + 1)


def _lines(code):
    """The line of each instruction, of two bytes."""
    lines = [None] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        for at in range(start // 2, end // 2):
            lines[at] = line
    return lines


def _reraise_of(instructions, lines, begin):
    """Where the handler that begins there raises again what it was given, if that is all it ends in and none of it has a line; else None."""
    if instructions[begin] != _PUSH_EXC_INFO:
        return None
    for at in range(begin, len(instructions), 2):
        operation = instructions[at]
        if lines[at // 2] is not None or operation in _JUMPS:
            return None
        if operation == _RERAISE:
            return at if instructions[at + 1] == 0 else None
    return None


def _exchanged(instructions, places, argument):
    """These instructions, with this argument at some places."""
    changed = bytearray(instructions)
    for at in places:
        changed[at + 1] = argument
    return bytes(changed)


# -- the exception table: see Objects/exception_handling_notes.txt of CPython -----------------------------------------------------

def _entries(table):
    """(start, end, target, depth of the stack, whether the instruction that has raised is pushed) of its entries, in bytes of code."""
    numbers = []
    for byte in table:
        if byte & 128:  # an entry begins
            numbers.append([])
            more = False
        if more:
            numbers[-1][-1] = numbers[-1][-1] << 6 | byte & 63
        else:
            numbers[-1].append(byte & 63)
        more = bool(byte & 64)
    return [(start * 2, (start + length) * 2, target * 2, last >> 1, bool(last & 1)) for start, length, target, last in numbers]


def _table(entries):
    """The exception table with these entries."""
    table = bytearray()
    for start, end, target, depth, pushes in entries:
        first = len(table)
        for number in (start // 2, (end - start) // 2, target // 2, depth << 1 | pushes):
            groups = [number & 63]
            while number := number >> 6:
                groups.append(number & 63 | 64)
            table += bytes(reversed(groups))
        table[first] |= 128
    return bytes(table)
