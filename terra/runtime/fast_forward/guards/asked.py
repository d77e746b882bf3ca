"""Notes what the framework's code asks objects for while a call of its is recorded: whether any of it is an attribute that guards leave out (see
`attribute_filter`).

A profile function sees each Python function that runs, and each builtin. A function asks for an
attribute if its code names it, or hands its name to a builtin; of which object, the arguments tell
where the code takes it of one of these. A builtin that is given a name (`getattr`) also asks for
what its caller has in a variable. The exception is what sets the attribute.
"""

import dis
import functools

from terra import ours
from terra.runtime.interpreter import frames
from terra.transform import convert

_GIVING = frozenset(["getattr", "hasattr", "vars", "dir", "__getstate__", "__reduce__", "__reduce_ex__"])  # builtins that give attributes
_GETTERS = _GIVING | {"attrgetter", "methodcaller", "__getattribute__", "__getattr__"}
_ALL = "__dict__"  # the attribute that has them all


class Asked:
    """A profile function that finds out which attributes the framework's code asks for.

    left: {id of an object: the names of attributes that guards leave out}.
    """

    def __init__(self, left):
        self._left = left
        self._names = frozenset().union(*left.values())
        self._setter = None  # the frame of the framework's that sets an attribute of one of the objects
        self.found = set()  # (id of an object, name)

    def __call__(self, frame, event, argument):
        if self._setter is not None:
            if event == "return" and frame is self._setter:
                self._setter = None
        elif event == "call":
            if not _is_others(frame):
                self._called(frame)
        elif event == "c_call" and argument.__name__ in _GIVING and not _is_others(frame):
            values = list(frame.f_locals.values())
            if argument is getattr or argument is hasattr:
                self._note(self._left, self._names.intersection(x for x in values if type(x) is str))
            else:
                self._note(self._owners(values), self._names)

    def _called(self, frame):
        code = frame.f_code
        if code.co_name == "__setattr__" and self._owners(frame.f_locals.values()):
            self._setter = frame
            return
        for name in _asked_in(code, self._names):
            owners = _owners_in(code, name)
            if name == _ALL:
                # (Python's own modules look into classes in this way.)
                asked = self._left if None in owners and frames.is_frameworks_frame(frame) else self._owners(frame.f_locals.values())
                self._note(asked, self._names)
            else:
                self._note(self._left if None in owners else self._owners(map(frame.f_locals.get, owners)), (name,))

    def _owners(self, values):
        return [id(x) for x in values if id(x) in self._left]

    def _note(self, owners, names):
        self.found.update((owner, name) for owner in owners for name in names if name in self._left[owner])


def _is_others(frame):
    """Returns whether it is the program's code, or that of a library, which is observed, or Terra's that runs in a frame."""
    return frames.is_users(frame) or ours.is_ours(frame) or convert.is_observed(frame.f_code)


@functools.lru_cache(maxsize=10_000)
def _asked_in(code, names):
    """Which of these names, and `__dict__`, the code may ask for."""
    return [name for name in (*names, _ALL) if name in code.co_names or _is_held(code, name)]


def _is_held(code, name):
    """Returns whether the code may hand a name, a constant of its own, to a builtin that gives attributes. (What is handed to another function is
    seen there.)"""
    return name in code.co_consts and not _GETTERS.isdisjoint(code.co_names)


@functools.lru_cache(maxsize=10_000)
def _owners_in(code, name):
    """The parameters whose attributes of this name the code takes; with None if it may take those of anything else."""
    if name != _ALL and _is_held(code, name):
        return {None}
    parameters = set(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])
    owners, before = set(), None
    for instruction in dis.get_instructions(code):
        kind, held = instruction.opname, instruction.argval
        if kind.startswith(("STORE_FAST", "DELETE_FAST")):
            parameters.difference_update(held if type(held) is tuple else (held,))  # of two instructions in one, from Python 3.13 on
        elif held == name and kind in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = before.argval[-1] if type(before.argval) is tuple else before.argval
            owners.add(owner if before.opname.startswith("LOAD_FAST") else None)
        before = instruction
    return {owner if owner in parameters else None for owner in owners}


def asks_its_own(code, name):
    """Returns whether a method asks its own object, the first parameter, for an attribute; or hands its name to a builtin that gives attributes."""
    return _is_held(code, name) or (name in code.co_names and code.co_varnames[:1] != () and code.co_varnames[0] in _owners_in(code, name))
