"""Properties of the framework's, such as `trainable_variables`, that look through the parts of an object of the user's: which containers and classes they read there."""

import collections
import collections.abc
import functools
import inspect
import sys
import weakref
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType, ModuleType

import numpy as np

from terra.frameworks import keras, framework_objects
from terra.runtime.fast_forward.guards import container_guard, guard_builder
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.runtime.tensors.object_kinds import TENSORS, defined, is_description, is_c_class, is_frameworks_function, is_librarys, is_named_tuple
from terra.tf import private_names as tfi
from terra.tf.private import composites
from terra.transform import policy
from terra.transform.source import codes_within

# What Python itself asks of an object that is searched, compared or put into a set.
_ASKED = frozenset("__getattribute__ __getattr__ __eq__ __hash__ __bool__ __len__ __iter__ __getitem__".split())
_CONTAINERS = frozenset([dict, list, tuple, set, frozenset, collections.OrderedDict, collections.defaultdict, collections.Counter])
_SEARCHED = (collections.abc.Mapping, collections.abc.Sequence, collections.abc.MappingView)  # by `tf.nest`


class PropertyReads(guard_builder.GuardBuilder):
    """Visits what the property `name` of the framework's may look at. Raises Unskippable where the user's code would run."""

    def __init__(self, reads, name):
        super().__init__(container_guard.ContainerGuard(), [], reading=True)
        self.reads, self.name = reads, name
        self.is_particular = False  # whether a class has a property of its own which this one does not ask for, though another may
        self.strict = name not in keras.QUIET_PROPERTIES  # nothing of the user's is to be there
        self.asks_metrics = name in keras.OF_METRICS
        self.classes = set()
        self.skipped = set()

    def _attributes(self, owner):
        kind = type(owner)
        if not is_librarys(kind):
            self._users(kind)
        if not self.strict and any(framework_objects.stock_package(cls.__module__) is not None for cls in kind.__mro__):
            is_listing = framework_objects.root_of_class(kind) == "keras"  # Keras searches what it has listed, tf_keras all attributes but its notes
            self.skipped.update(id(x) for x in vars(owner).values() if type(x) is weakref.WeakKeyDictionary or (is_listing and _is_somebodys(type(x))))
        super()._attributes(owner)
        if self.strict:
            for losses in self.containers.added_losses.values():
                self.containers.add(losses)
        self.reads.object(owner, kind, vars(owner))

    def _value(self, value):
        kind = type(value)
        if not (kind in SCALARS or kind in _CONTAINERS or is_description(kind) or is_librarys(kind) or id(value) in self.skipped):
            self._unknown(value, kind)
        super()._value(value)
        if issubclass(kind, tfi.tf.Module) and not tfi.is_variable(value) and id(value) not in self.seen:
            self.seen.add(id(value))
            self._attributes(value)

    def _unknown(self, value, kind):
        if kind in TENSORS or composites.is_spec(kind):
            return
        if kind is FunctionType or kind is MethodType:
            if self.strict and not is_frameworks_function(getattr(value, "__func__", value)):
                raise Unskippable
        elif issubclass(kind, (dict, list, tuple, set)):
            if not is_named_tuple(kind):
                raise Unskippable  # what it does when it is searched is its own affair
        elif not issubclass(kind, (type, np.ndarray, np.generic, range, BuiltinFunctionType, ModuleType)):
            derived = any(map(is_librarys, kind.__mro__))
            if policy.is_pure(kind.__module__) and not derived:
                return  # its code does nothing but compute
            if issubclass(kind, _SEARCHED) or any(defined(kind, name) is not None for name in ("__attrs_attrs__", "__tf_flatten__", "__getattr__")) \
                    or type(defined(kind, "__class__")) is not GetSetDescriptorType or type(defined(kind, "__getattribute__")) is FunctionType and not derived \
                    or self.strict and (derived or defined(kind, "__call__") is not None):
                raise Unskippable
            if derived:
                self._users(kind)

    def _users(self, kind):
        """A class of the user's that derives from one of the framework's must not change what the framework's properties ask for."""
        if kind in self.classes:
            return
        self.classes.add(kind)
        if self.strict and not policy.is_pure(kind.__module__):
            raise Unskippable
        self.reads.bases(kind)
        librarys = [cls for cls in kind.__mro__ if is_librarys(cls)]
        for cls in kind.__mro__:
            if not is_librarys(cls) and not is_c_class(cls):
                self.reads.contents(vars(cls), cls)
                if policy.is_pure(cls.__module__):
                    continue
                for name, value in vars(cls).items():
                    replaced = next((vars(base)[name] for base in librarys if name in vars(base)), None)
                    if type(value) is property and type(replaced) is property and name not in _asked_for(tuple(librarys), (self.name,)):
                        self.is_particular = True
                        continue
                    if (name in _ASKED and value is not None) or (name == "__class__") or not (
                            replaced is None or (name == "metrics" and not self.asks_metrics) or _is_quiet(name, value, replaced, tuple(librarys))):
                        raise Unskippable


def _is_quiet(name, value, replaced, librarys):
    """Returns whether the framework's properties do not notice that a class defines `name` as `value`, in place of what its bases `librarys`, the framework's, have."""
    if _is_function(value):
        return _is_function(replaced) and (not name.startswith("_") or name.endswith("__") or name not in _asked_for(librarys, keras.QUIET_PROPERTIES))
    return defined(type(value), "__get__") is None or name in ("__dict__", "__weakref__")


@functools.lru_cache(None)
def _asked_for(librarys, asked):
    """All names that the code behind the properties `asked` mentions, in these classes of the framework's and in its models, of which they may be parts."""
    roots = {cls.__module__.split(".", 1)[0] for cls in librarys} - {"tensorflow"}
    classes = {*librarys, *[cls for root in roots for cls in getattr(sys.modules.get(root), "Model", object).__mro__]}
    names, todo = set(), list(asked)
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            for value in [vars(cls)[name] for cls in classes if name in vars(cls)]:
                function = inspect.unwrap(value.fget if type(value) is property else getattr(value, "__func__", value))
                if type(function) is FunctionType:
                    for code in codes_within(function.__code__):
                        todo += code.co_names
                        todo += [x for x in code.co_consts if type(x) is str and x.isidentifier()]  # perhaps for `getattr`
    return names


def _is_somebodys(kind):
    """Returns whether the framework's properties have no use for objects of a class: it is neither the framework's, nor derives from one of these, nor is one of Python's containers."""
    return not issubclass(kind, (dict, list, tuple, set, frozenset)) and not any(map(is_librarys, kind.__mro__))


def _is_function(value):
    return type(value) in (FunctionType, staticmethod, classmethod) or (is_librarys(type(value)) and callable(value))
