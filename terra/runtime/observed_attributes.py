"""What the observer makes of attributes: which of them are plain reads, and what each read depends on."""

import abc
import contextlib
import enum
import functools
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType

import numpy as np

from terra.runtime import guards
from terra.runtime import internals as tfi
from terra.runtime.kinds import LISTS, PLAIN, TENSORS, is_frameworks
from terra.runtime.regions import Unskippable

_VALUES_OF_TENSORS = frozenset(["shape", "dtype", "ndim", "get_shape", "device"])
_VALUES_OF_VARIABLES = frozenset(["shape", "dtype", "ndim", "name", "path", "trainable", "handle", "assign", "assign_add", "assign_sub", "read_value", "value"])


class Attributes:
    """The part of the Observer for attributes."""

    def owner(self, it, name):
        """The attribute `name` of `it` is read."""
        if self.reason is None:
            self._attribute(it, name)
        return it

    def _attribute(self, it, name):
        kind = type(it)
        if kind in TENSORS:
            if name not in _VALUES_OF_TENSORS:
                self.impure(f"asks a tensor for {name}")
        elif kind in PLAIN or kind in LISTS or kind is tuple or isinstance(it, (np.generic, np.dtype)) or id(it) in self._born:
            pass
        elif isinstance(it, ModuleType):
            self._module_attribute(it, name)
        elif kind is super:
            mro = it.__self_class__.__mro__
            self._found(mro[mro.index(it.__thisclass__) + 1:], name, None)
        elif isinstance(it, type):
            if isinstance(it, enum.EnumMeta) or kind in (type, abc.ABCMeta):
                self._found(it.__mro__, name, None)
            else:
                self.impure(f"asks a class of type {kind.__name__} for {name}")
        elif tfi.is_variable(it):
            if name not in _VALUES_OF_VARIABLES:
                self.impure(f"asks a variable for {name}")
            elif name == "trainable":
                self.reads.variable(it)
        elif isinstance(it, tuple) and name in getattr(kind, "_fields", ()):
            pass
        elif isinstance(it, np.ndarray):
            if name not in ("shape", "dtype", "ndim", "size"):
                self.impure(f"asks an array for {name}")
            self._look_into(it)
        elif kind is FunctionType or kind is MethodType or kind is BuiltinFunctionType:
            if name not in ("__name__", "__qualname__"):
                self.impure(f"asks a function for {name}")
        else:
            self._instance_attribute(it, kind, name)

    def _module_attribute(self, module, name):
        space = vars(module)
        if name in space:
            self.reads.entry(space, name, space[name])
        elif module.__name__.split(".", 1)[0] in ("tensorflow", "keras", "tf_keras"):  # loaded when it is first asked for
            self.reads.asked(_attrgetter(name), module, getattr(module, name))
        else:
            self.impure(f"asks the module {module.__name__} for {name}")

    def _found(self, mro, name, attributes):
        """Look `name` up in these classes as Python does; returns what the class defines, or None. `attributes`: those of the instance."""
        for cls in mro:
            space = cls.__dict__
            if guards.is_librarys(cls):
                guards.modules.watch(cls)
            elif name in space:
                self.reads.entry(space, name, space[name], cls)
            elif cls.__module__ != "builtins":
                self.reads.absent(space, name, cls)
            if name in space:
                return space[name]
        if attributes is None or name not in attributes:
            self.impure(f"asks for {name}, which no class defines")
        return None

    def _instance_attribute(self, it, kind, name):
        getter = kind.__getattribute__
        if getter is not object.__getattribute__ and not is_frameworks(getter):
            self.impure(f"asks an object of type {kind.__name__}, which has its own __getattribute__, for {name}")
            return
        attributes = vars(it) if hasattr(it, "__dict__") else {}
        found = self._found(kind.__mro__, name, attributes)
        how = type(found)
        if how is property:
            if found.fget is None or not is_frameworks(found.fget):
                self.impure(f"asks for the property {name}")
                return
            try:
                self.reads.parts(it)
            except Unskippable:
                self.impure(f"asks an object with too many parts for {name}")
        elif how is MemberDescriptorType or how is GetSetDescriptorType:
            if name != "__class__" and name != "__dict__":
                self.reads.asked(_slot(found), it, found.__get__(it, kind))
            elif name == "__dict__":
                self.impure("asks for __dict__")
        elif found is not None and hasattr(how, "__set__"):
            self.impure(f"asks for {name}, which is a descriptor")
        elif name in attributes:
            self.reads.entry(attributes, name, attributes[name])
        else:
            if how not in (FunctionType, staticmethod, classmethod) and hasattr(how, "__get__") and how is not type:
                self.impure(f"asks for {name}, which is a descriptor")
            self.reads.absent(attributes, name)

    def context(self, it):
        """`with it:`"""
        kind = type(it)
        if not (kind is tfi.tf.GradientTape and id(it) in self._born) and kind is not tfi.tf.name_scope and kind is not contextlib.nullcontext:
            self.impure(f"enters a context of type {kind.__name__}")
        return it


@functools.lru_cache(None)
def _attrgetter(name):
    return lambda owner: getattr(owner, name)


@functools.lru_cache(1000)
def _slot(descriptor):
    return descriptor.__get__
