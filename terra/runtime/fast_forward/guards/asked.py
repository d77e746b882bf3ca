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

GIVING = frozenset(["getattr", "hasattr", "vars", "dir", "__getstate__", "__reduce__", "__reduce_ex__"])  # builtins that give attributes
_GETTERS = GIVING | {"attrgetter", "methodcaller", "__getattribute__", "__getattr__"}
_ALL = "__dict__"  # the attribute that has them all
_MOST_CODES = 10_000  # that are remembered

_asked_of = {}  # names -> {id of a code object: (it, whether it sets attributes, which of the names it may ask for)}, of the framework's code and Python's


class Asked:
    """Finds out which attributes the framework's code asks for: a profile function tells it of calls.

    left: {id of an object: the names of attributes that guards leave out}. is_known: told (id of an object, name) of each that is asked for; if it returns
        True, that does not count.
    """

    def __init__(self, left, is_known=None):
        self._left, self._is_known = left, is_known
        self._names = frozenset().union(*left.values())
        self._known = _asked_of.setdefault(self._names, {})
        self.setter = None  # the frame of the framework's that sets an attribute of one of the objects
        self.found = set()  # (id of an object, name)

    def returns(self, frame):
        """A Python function returns, while something is set."""
        if frame is self.setter:
            self.setter = None

    def called(self, frame):
        """A Python function is called."""
        if self.setter is not None:
            return
        code = frame.f_code
        known = self._known.get(id(code))
        if known is None:
            if _is_others(frame):
                return
            if len(self._known) >= _MOST_CODES:
                self._known.clear()
            known = self._known[id(code)] = code, code.co_name == "__setattr__", _asked_in(code, self._names)
        _, sets, asked = known
        if sets and self._owners(frame.f_locals.values()):
            self.setter = frame
            return
        for name in asked:
            owners = _owners_in(code, name)
            if name == _ALL:
                # (Python's own modules look into classes in this way.)
                asked_ones = self._left if None in owners and frames.is_frameworks_frame(frame) else self._owners(frame.f_locals.values())
                self._note(asked_ones, self._names)
            else:
                self._note(self._left if None in owners else self._owners(map(frame.f_locals.get, owners)), (name,))

    def given(self, frame, function):
        """One of the builtins `GIVING` is called."""
        if self.setter is not None or _is_others(frame):
            return
        values = list(frame.f_locals.values())
        if function is getattr or function is hasattr:
            self._note(self._left, self._names.intersection(x for x in values if type(x) is str))
        else:
            self._note(self._owners(values), self._names)

    def _owners(self, values):
        return [id(x) for x in values if id(x) in self._left]

    def _note(self, owners, names):
        for found in [(owner, name) for owner in owners for name in names if name in self._left[owner]]:
            if self._is_known is None or not self._is_known(found):
                self.found.add(found)


def _is_others(frame):
    """Returns whether it is the program's code, or that of a library, which is observed, or Terra's that runs in a frame."""
    return frames.is_users(frame) or ours.is_ours(frame) or convert.is_observed(frame.f_code)


def _asked_in(code, names):
    """Which of these names, and `__dict__`, the code may ask for."""
    return [name for name in (*names, _ALL) if name in code.co_names or _is_held(code, name)]


def _is_held(code, name):
    """Returns whether the code may hand a name, a constant of its own, to a builtin that gives attributes. (What is handed to another function is
    seen there.)"""
    return name in code.co_consts and not _GETTERS.isdisjoint(code.co_names)


@functools.lru_cache(maxsize=_MOST_CODES)
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
