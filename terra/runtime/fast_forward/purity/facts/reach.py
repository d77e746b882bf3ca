"""Whether code of the program's may come to something of the framework's: a tensor, a variable, a layer, a function of TensorFlow's. What cannot runs no operation, whichever way it takes.

All is followed that its names may lead to from what it holds: global variables, variables of functions around, attributes of these names, items, the code of functions of the program's among them;
of objects of libraries, all that they hold. Nothing of the program's is run.
"""

import collections
import dis
import functools
import gc
import operator
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Iterable

import numpy as np

from terra.runtime.fast_forward.purity.facts.attribute_lookup import attributes_of
from terra.runtime.fast_forward.purity.facts.program_code import held_by, is_programs_class, is_refused
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, is_c_class, is_frameworks_function, is_librarys
from terra.tf import private_names as tfi
from terra.tf.private import composites
from terra.transform import convert, policy
from terra.transform.source import codes_within

_MOST, _MOST_ITEMS = 400, 100  # objects that are looked at, and items of each
_HOLDING = (list, tuple, set, frozenset, dict, collections.deque)
_LEADING = frozenset([getattr, setattr, hasattr, operator.attrgetter, operator.methodcaller])  # to any attribute
_MODULES = frozenset("builtins ctypes gc importlib inspect marshal pickle sys threading".split())  # which may lead anywhere
_SPECIAL = frozenset("__name__ __qualname__ __module__ __doc__ __class__ __init__ __len__ __iter__ __next__ __enter__ __exit__ __repr__ __str__ __eq__ __hash__ __contains__".split())
_CALLED, _MAKING = frozenset([FunctionType, staticmethod, classmethod, property]), frozenset(["__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__"])
_NAMED, _ATTRIBUTES = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"]), frozenset(["LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"])


class _Reached(Exception):
    """Something of the framework's was reached, or what cannot be followed."""


def is_apart(objects: Iterable[Any]) -> bool:
    """Returns whether what functions, generators and methods among these objects do, when they are called, cannot come to the framework. (It is asked again where a run is skipped.)"""
    search = _Search()
    try:
        for it in objects:
            search.add(it)
        search.follow()
    except _Reached:
        return False
    return True


class _Search:
    """Keeps what was found so far."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._names: set[str] = set()  # of attributes that the code asks for
        self._owners: list[Any] = []  # objects and classes that may have such attributes

    def follow(self) -> None:
        """Follows the names until nothing new is found. Raises _Reached."""
        known = (-1, -1)
        while known != (now := (len(self._names), len(self._owners))):
            known = now
            for owner in [*self._owners]:
                self._add_attributes(owner)

    def add(self, it: Any) -> None:
        """Something can be reached. Raises _Reached."""
        kind = type(it)
        if kind in PLAIN or id(it) in self._seen:
            return
        if type(getattr(it if issubclass(kind, type) else kind, "__module__", None)) is not str:  # code without a module has made the class
            raise _Reached
        if kind in TENSORS or is_librarys(kind) or tfi.is_variable(it) or composites.is_composite(kind) or len(self._seen) >= _MOST:
            raise _Reached
        self._seen[id(it)] = it
        if issubclass(kind, _HOLDING):
            self._add_all(it)
            if issubclass(kind, dict):
                self._add_all(it.values())
        if kind is FunctionType:
            self._add_function(it)
        elif kind is MethodType:
            self._add_all((it.__func__, it.__self__))
        elif kind is operator.attrgetter or kind is operator.methodcaller:
            self._names.update(name for path in it.__reduce__()[1] if type(path) is str for name in path.split("."))
        elif kind is functools.partial:
            self._add_all((it.func, it.args, it.keywords))
        elif issubclass(kind, BuiltinFunctionType):
            self._add_of_c(it)
        elif kind is ModuleType:
            self._add_module(it)
        elif issubclass(kind, GeneratorType):
            if it.gi_frame is None:
                return
            self._add_code(it.gi_code, it.gi_frame.f_globals)
            self._add_all((it.gi_frame.f_locals, it.gi_yieldfrom))
        elif kind in _CALLED:
            self._add_all((it.fget, it.fset) if kind is property else (it.__func__,))
        elif issubclass(kind, np.ndarray):
            if it.dtype.hasobject:
                raise _Reached
        elif issubclass(kind, type):
            self._add_class(it, True)
        else:
            self._add_class(kind, False)
            if is_programs_class(kind):
                self._owners.append(it)
            else:  # its code asks for what it likes
                self._add_all(gc.get_referents(it))

    def _add_all(self, items: Any) -> None:
        if len(items) > _MOST_ITEMS:
            if not set(map(type, items)) <= PLAIN:
                raise _Reached
            return
        for x in items:
            self.add(x)

    def _add_function(self, function: FunctionType) -> None:
        if is_frameworks_function(function) or is_refused(function):
            raise _Reached
        if not policy.may_know_program(function):
            return
        for code in convert.own_codes(function.__code__) or [function.__code__]:
            self._add_code(code, function.__globals__)
        self._add_all(held_by(function))
        self._add_all((function.__defaults__, function.__kwdefaults__))

    def _add_code(self, code: CodeType, space: dict) -> None:
        names, attributes, modules = _asked_for(code)
        known = space.get("__builtins__", __builtins__)
        known = vars(known) if type(known) is ModuleType else known
        for name, is_needed in names:
            if name in space or name in known:
                self.add(space[name] if name in space else known[name])
            elif is_needed:
                raise _Reached
        self._names |= attributes
        for name in modules:
            if name not in sys.modules:
                raise _Reached
            self.add(sys.modules[name])

    def _add_of_c(self, function: Any) -> None:
        if (is_refused(function) and function is not iter and function is not next) or function in _LEADING:
            raise _Reached
        if not isinstance(function.__self__, (ModuleType, type(None))):
            self.add(function.__self__)

    def _add_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name.partition(".")[0] in tfi.FRAMEWORKS or name.partition(".")[0] in _MODULES or (module is operator and not self._names.isdisjoint(["attrgetter", "methodcaller"])):
            raise _Reached
        if policy.is_user_module(name, getattr(module, "__file__", None) or "<unknown>"):
            self._owners.append(module)

    def _add_class(self, cls: type, makes: bool) -> None:
        """A class can be reached, or an object of it. `makes`: whether objects of it may be made."""
        if is_librarys(cls) or cls in _LEADING:
            raise _Reached
        if is_programs_class(cls) and id(cls) not in map(id, self._owners):
            self._owners.append(cls)
        for base in cls.__mro__ if is_programs_class(cls) else ():
            if not is_c_class(base):
                self._add_all([value for name, value in vars(base).items() if name.startswith("__") and (makes or name not in _MAKING) and type(value) in _CALLED])

    def _add_attributes(self, owner: Any) -> None:
        held = getattr(owner, "__mro__", None) if isinstance(owner, type) else None
        for space in map(vars, held or ()):
            for name in self._names.intersection(space):
                self.add(space[name])
        space = vars(owner) if type(owner) is ModuleType else attributes_of(owner, type(owner)) if held is None else {}
        for name in self._names.intersection(space or ()):
            self.add(space[name])
        for cls in type(owner).__mro__ if held is None else ():
            for name in self._names.intersection(vars(cls)):
                if type(slot := vars(cls)[name]) is MemberDescriptorType and is_programs_class(cls):
                    self.add(_held_in(slot, owner))


def _held_in(slot: Any, owner: Any) -> Any:
    """Returns what a slot holds; None if it is not set."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return None


@functools.lru_cache(1000)
def _asked_for(code: CodeType) -> tuple[tuple, frozenset[str], tuple]:
    """Returns the names of global variables that code uses (each with whether it must be there: else it may be one of a class that the code makes), of attributes and of modules. Raises _Reached where an
    attribute may lead anywhere."""
    found = [(i.opname, i.argval, inner) for inner in codes_within(code) for i in dis.get_instructions(inner)]
    names = {name: op == "LOAD_GLOBAL" for op, name, inner in found if op in _NAMED and name not in inner.co_varnames}
    attributes = frozenset([name for op, name, _ in found if op in _ATTRIBUTES])
    if any(name.startswith("__") and name.endswith("__") and name not in _SPECIAL for name in attributes):
        raise _Reached
    return tuple(names.items()), attributes, tuple([name for op, name, _ in found if op == "IMPORT_NAME"])

