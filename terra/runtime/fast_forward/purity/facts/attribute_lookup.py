"""How Python looks attributes up: what the handler `handlers.attributes` asks of classes and descriptors. Nothing here runs code of theirs."""

import abc
import functools
import threading
from types import ClassMethodDescriptorType, FunctionType, GetSetDescriptorType, SimpleNamespace, WrapperDescriptorType

from terra.runtime.tensors.object_kinds import defined, is_frameworks_function
from terra.tf import private_names as tfi
from terra.transform import policy


def is_handed_out(found):
    """Returns whether what a class defines is given as it is, or bound to the object, without any code that runs."""
    how = type(found)
    if how is classmethod:
        return type(found.__func__) is FunctionType
    return how in (FunctionType, staticmethod, ClassMethodDescriptorType) or (how is WrapperDescriptorType and found.__name__ == "__call__") or how is tfi.PolymorphicFunction or defined(how, "__get__") is None


def is_programs_descriptor(found):
    """Returns whether what a class has under a name has a Python `__get__` of the program's."""
    getter = defined(type(found), "__get__")
    return type(getter) is FunctionType and policy.may_know_program(getter)


def is_set_by_class(kind, name):
    """Returns whether a class of the program's says how an attribute is set."""
    found, setter = defined(kind, name), defined(kind, "__setattr__")
    return (found is not None and defined(type(found), "__set__") is not None) or (type(setter) is FunctionType and not is_frameworks_function(setter))


def is_librarys_or_none(function):
    return function is None or is_frameworks_function(function)


def attributes_of(it, kind):
    """Returns the dict that `it` keeps its attributes in; None if it has none."""
    if issubclass(kind, threading.local):  # that of this thread
        return it.__dict__
    how = defined(kind, "__dict__")
    if how is None:
        return None
    return how.__get__(it, kind) if type(how) is GetSetDescriptorType or kind is SimpleNamespace else how


def registered(_):
    return abc.get_cache_token()


@functools.lru_cache(None)
def attrgetter(name):
    return lambda owner: getattr(owner, name)


@functools.lru_cache(None)
def lacking(name):
    return lambda owner: not hasattr(owner, name)


@functools.lru_cache(1000)
def slot(descriptor):
    return descriptor.__get__
