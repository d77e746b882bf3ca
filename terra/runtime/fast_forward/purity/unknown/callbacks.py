"""Functions of the program's that run as a part of a call of unknown code: C code is given them, as `re.sub` and `list.sort` are, or they have no source. They run each time.

They may not come to anything of the framework's, on whichever way: where the run is skipped, they are called before its graph has changed variables. A function that the run has made itself is
made anew for each call: of the same code, with what its variables hold.
"""

import dis
import functools
import sys
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

from terra.runtime.fast_forward.purity.facts.bytecode import SUSPENDED
from terra.runtime.fast_forward.purity.facts.reach import is_apart
from terra.runtime.fast_forward.sources.effects import CONTENTS
from terra.runtime.fast_forward.sources.opaque_calls import Held
from terra.runtime.interpreter import frames
from terra.runtime.interpreter.profilers import unwatched
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.object_kinds import PLAIN, is_c_class
from terra.transform import convert
from terra.transform.source import codes_within

_LOOKS_UP = frozenset([getattr, hasattr, setattr, delattr, object.__setattr__, object.__getattribute__])  # what these run is told from the class
_makers: "dict[tuple, _Maker]" = {}  # (id of the code, id of the global variables, name) -> what makes such functions, and holds these
_STORES = frozenset(["STORE_DEREF", "DELETE_DEREF"])
_JUMPS_BACK = frozenset(["JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"])


def may_call_back(run: Any, callee: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether it is C code, or a function without a source, and what it is given, functions of the program's among it, does the same where the run is skipped."""
    roots = (callee, *args, *kwargs.values())
    if not _is_unknown(callee) or not is_apart(roots):
        return False
    try:
        for x in roots[1:]:
            _note_functions(run, x)
    except Unskippable:
        return False
    run.reads.asked(is_apart, tuple([x for x in roots if type(x) not in PLAIN and run.opaque.number_of(x) is None]), True)
    return True


def _is_unknown(callee: Any) -> bool:
    kind = type(callee)
    if issubclass(kind, BuiltinFunctionType) or kind is MethodDescriptorType:
        return callee not in _LOOKS_UP
    function = getattr(callee, "__func__", callee)
    if type(function) is FunctionType:
        return not unwatched(convert.is_observable, function) and not any(map(frames.looks_at_frames, codes_within(function.__code__)))
    return isinstance(callee, type) and is_c_class(callee)


def _note_functions(run: Any, it: Any) -> None:
    """Notes the functions among what a call is given that the run has made. Raises Unskippable."""
    kind = type(it)
    if kind in (list, tuple, set, frozenset, dict):
        for x in it.values() if kind is dict else it:
            _note_functions(run, x)
        return
    if kind is functools.partial:
        raise Unskippable
    function = it.__func__ if kind is MethodType else it
    if type(function) is not FunctionType:
        return
    if any(map(frames.looks_at_frames, codes_within(function.__code__))):
        raise Unskippable
    if kind is MethodType and run.born.has(function):
        raise Unskippable
    if run.born.has(function) and run.opaque.number_of(function) is None:
        _note_made(run, function)


def _note_made(run: Any, function: FunctionType) -> None:
    """Notes a call that makes a function like one that the run has made. Raises Unskippable."""
    own = convert.only_own_code(function.__code__)
    if own is None or function.__kwdefaults__ or own.co_flags & SUSPENDED:
        raise Unskippable
    cells, parts = dict(zip(function.__code__.co_freevars, function.__closure__ or ())), [run.opaque.part(function.__defaults__)]
    code = _code_around(function.__code__) if cells else None
    for name in own.co_freevars:
        if any(i.opname in _STORES and i.argval == name for inner in codes_within(own) for i in dis.get_instructions(inner)):
            raise Unskippable
        parts.append(run.opaque.part(_held(run, code, name, cells.get(name))))
    maker = _maker(own, function.__globals__, function.__name__)
    run.opaque.note(maker, (Held(maker), parts, {}), function, ("function", id(own)), None, False, True, "makes a function")


def _code_around(code: CodeType) -> CodeType:
    """Returns the code of the running function that has made a function with this code. Raises Unskippable if none is running."""
    frame = sys._getframe(1)
    while frame is not None:
        if any(code is const for const in frame.f_code.co_consts):
            return frame.f_code
        frame = frame.f_back
    raise Unskippable


def _held(run: Any, code: CodeType, name: str, cell: CellType | None) -> Any:
    """Returns what a variable of the function around, with this code, holds from then on; or the cell, if that was there before. Raises Unskippable."""
    if cell is None or cell == CellType():
        raise Unskippable
    if name not in code.co_cellvars:
        if not run.reads.has_entry(cell, CONTENTS):
            raise Unskippable
        return cell
    value = cell.cell_contents
    if _may_be_set_again(code, name) or run.born.has(value) or value in run.opaque.handed_on or id(value) in run.given:
        raise Unskippable
    return value


@functools.lru_cache(1000)
def _may_be_set_again(code: CodeType, name: str) -> bool:
    """Returns whether a function sets a variable more than once, or others within it do."""
    if any(i.opname in _STORES and i.argval == name for inner in codes_within(code) if inner is not code for i in dis.get_instructions(inner)):
        return True
    instructions = list(dis.get_instructions(code))
    places = [i.offset for i in instructions if i.opname in _STORES and i.argval == name]
    return len(places) > 1 or any(i.opname in _JUMPS_BACK and i.argval <= place <= i.offset for place in places for i in instructions)


def _maker(code: CodeType, space: dict, name: str) -> "_Maker":
    """Returns the same one for the same code."""
    if len(_makers) > 1000:
        _makers.clear()
    return _makers.setdefault((id(code), id(space), name), _Maker(code, space, name))


class _Maker:
    """Makes a function."""

    __slots__ = ("_code", "_space", "_name")

    def __init__(self, code: CodeType, space: dict, name: str):
        self._code, self._space, self._name = code, space, name

    def __call__(self, defaults: tuple | None, *values: Any) -> FunctionType:
        """Returns a function with these defaults, whose variables from outside hold these values, or are these cells."""
        return FunctionType(self._code, self._space, self._name, defaults, tuple([x if type(x) is CellType else CellType(x) for x in values]))
