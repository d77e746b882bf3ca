"""Reads what the bytecode of the program's functions tells the observer."""

import bisect
import dis
import inspect
from types import CodeType, FunctionType
from typing import Iterator

from terra.runtime.tensors.object_kinds import is_frameworks_function
from terra.transform import convert, policy

SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # functions whose code does not run when they are called
_BUILTINS = frozenset(["bool", "dict", "float", "int", "isinstance", "len", "list", "str", "tuple"])
_MOVES = frozenset(["FOR_ITER", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "MAKE_FUNCTION", "YIELD_VALUE"])
_getters = {}  # id of a code object -> (it, whether it has no loop and calls nothing else)
_SILENT = frozenset(["CACHE", "EXTENDED_ARG", "NOP", "PRECALL"])
_HANDLING = frozenset(["PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH"])
_cleaning = {}  # id of a code object -> (it, whether it has a `try` or a `with`)
_calls: dict[int, tuple[CodeType, list[int], list[str]]] = {}  # id of a code object -> (it, where its instructions are, what they are called)
_dropping: dict[int, tuple[CodeType, frozenset[int]]] = {}


def computes_only(getter):
    """Returns whether a property's function has no loop and calls but a few builtins: its operations then have the location of whoever reads the property, as they have unobserved."""
    if type(getter) is not FunctionType or is_frameworks_function(getter):
        return False
    if not policy.is_user_code(getter) or convert.is_instrumented(getter.__code__):  # code that is not instrumented has that location, and the other one keeps its own
        return True
    code = convert.own_code(getter.__code__)
    known = _getters.get(id(code))
    if known is None:
        instructions = list(dis.get_instructions(code))
        names = {i.opname for i in instructions}
        calls = any("CALL" in name for name in names)
        methods = "LOAD_METHOD" in names or any(i.opname == "LOAD_ATTR" and "self" in i.argrepr.split("|") for i in instructions)
        others = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"} - _BUILTINS
        known = _getters[id(code)] = code, _MOVES.isdisjoint(names) and not (calls and (methods or others))
    return known[1]


def cleans_up(code):
    """Returns whether code of a generator runs when it is closed."""
    known = _cleaning.get(id(code))
    if known is None:
        known = _cleaning[id(code)] = code, any(i.opname in _HANDLING for i in dis.get_instructions(code))
    return known[1]


def is_dropped(code: CodeType, place: int) -> bool:
    """Returns whether the result of the call at this place of the code is not used."""
    known = _dropping.get(id(code))
    if known is None:
        known = _dropping[id(code)] = code, frozenset(_dropped(code))
    return place in known[1]


def _dropped(code: CodeType) -> Iterator[int]:
    """Yields the places of the calls whose results are not used. In instrumented code, what such a call gives is handed to the method that leaves its location, and what that gives is dropped."""
    instructions: list = []
    depth, begins = 0, {}  # how much is on the stack; depth -> where the statement begins that found so much
    for i in dis.get_instructions(code):
        if i.opname not in _SILENT:
            begins[depth] = len(instructions)
            instructions.append(i)
        depth += dis.stack_effect(i.opcode, i.arg, jump=False)
        if i.opname == "POP_TOP" and len(instructions) > 1:
            yield instructions[-2].offset
            begin = begins.get(depth)
            if begin is not None and len(instructions) - begin > 5 and instructions[begin + 1].argval == "leave" and [x.opname.partition("_")[0] for x in instructions[-3:-1]] == ["LOAD", "CALL"]:
                yield instructions[-4].offset


def is_called_next(code: CodeType, made: int, called: int, instrumented: bool) -> bool:
    """Returns whether what the call at the place `made` gives is but what the observer is shown, at the place `called`, to be called: in instrumented code, what leaves the location of the call
    stands between."""
    known = _calls.get(id(code))
    if known is None:
        found = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
        known = _calls[id(code)] = code, [i.offset for i in found], [i.opname if i.opname == "LOAD_CONST" else i.opname.partition("_")[0] for i in found]
    _, offsets, names = known
    between = names[bisect.bisect_right(offsets, made):bisect.bisect_right(offsets, called) - 1]  # (a place may be that of a cache behind the instruction)
    return between == (["LOAD_CONST", "CALL"] if instrumented else [])
