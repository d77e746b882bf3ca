"""Finished frames keep the line that raised, though a `finally` of Terra's has run behind it.

Python sets a frame's line to that of the `finally` block which it goes through last, and Terra's has none: `frame.f_lineno` was None in the frames of a
traceback. A `with` statement leaves the line where it was: its handler is given the instruction that raised, and raises again from there. So the code
of Terra's own `finally` blocks is changed to do as those of `with` statements do: the exception table says that the handler wants the instruction
(`lasti`), which then lies on the stack below the exception, and the last RERAISE takes it from there.
"""

import dis
import opcode
import sys
from types import CodeType
from typing import Iterator

_RERAISE = opcode.opmap["RERAISE"]
_PUSH = opcode.opmap.get("PUSH_EXC_INFO")
_PLAIN, _FROM_BELOW = 0, 2  # how RERAISE is told where it finds the instruction: nowhere; below the exception handled before and the exception


def keeping_lines(code: CodeType) -> CodeType:
    """Returns `code` with each `finally` block that has no line changed so; code of functions inside of it is left as it is."""
    found = list(_handlers(code))
    if not found:
        return code
    if sys.version_info < (3, 11):
        return _with_operands(code, {end: 1 for _, end in found})  # the block stack holds the instruction anyway
    entries = list(_entries(code.co_exceptiontable))
    for start, end in found:
        entries = [
            (first, after, target, depth, True) if target == start else
            (first, after, target, depth + 1, lasti) if start <= first <= end else (first, after, target, depth, lasti)
            for first, after, target, depth, lasti in entries]
    changed = _with_operands(code, {end: _FROM_BELOW for _, end in found})
    return changed.replace(co_exceptiontable=_table(entries), co_stacksize=code.co_stacksize + len(found))


def _handlers(code: CodeType) -> Iterator[tuple[int, int]]:
    """The offsets of the first and of the last instruction, RERAISE, of each such block: straight code of no line."""
    lines = {}
    for first, after, line in code.co_lines():
        for offset in range(first, after, 2):
            lines[offset] = line
    start = None
    targets = _targets(code)
    for instruction in dis.get_instructions(code):
        offset = instruction.offset
        if lines.get(offset) is not None:
            start = None
        elif offset in targets and (_PUSH is None or instruction.opcode == _PUSH):
            start = offset
        elif instruction.opcode == _RERAISE and instruction.arg == _PLAIN and start is not None:
            yield start, offset
            start = None
        elif instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs or instruction.opname in ("RERAISE", "RETURN_VALUE"):
            start = None


def _targets(code: CodeType) -> set[int]:
    if sys.version_info >= (3, 11):
        return {target for _, _, target, _, _ in _entries(code.co_exceptiontable)}
    return {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "SETUP_FINALLY"}


def _with_operands(code: CodeType, operands: dict[int, int]) -> CodeType:
    """`code` with these operands of the instructions at these offsets."""
    raw = bytearray(code.co_code)
    for offset, operand in operands.items():
        raw[offset + 1] = operand
    return code.replace(co_code=bytes(raw))


# -- the exception table (CPython's Objects/exception_handling_notes.txt) ---------------------------------------------------------

def _entries(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(first offset, offset behind the last, the handler's, depth of the stack, whether it wants the instruction) of each entry, in bytes."""
    values = iter(table)
    for head in values:
        numbers = [_number(head, values), *[_number(next(values), values) for _ in range(3)]]
        start, length, target, depth = numbers
        yield 2 * start, 2 * (start + length), 2 * target, depth >> 1, bool(depth & 1)


def _number(byte: int, values: Iterator[int]) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(values)
        value = value << 6 | byte & 63
    return value


def _table(entries: list[tuple[int, int, int, int, bool]]) -> bytes:
    table = bytearray()
    for first, after, target, depth, lasti in entries:
        for k, number in enumerate((first // 2, (after - first) // 2, target // 2, depth << 1 | lasti)):
            groups = [number & 63]
            while number > 63:
                number >>= 6
                groups.append(number & 63)
            parts = [group | 64 for group in groups[:0:-1]] + groups[:1]
            if k == 0:
                parts[0] |= 128  # begins an entry
            table += bytes(parts)
    return bytes(table)
