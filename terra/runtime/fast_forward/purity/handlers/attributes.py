"""The observer's part for attributes: which of them are plain reads, and what each read depends on."""

import abc
import collections
import contextlib
import enum
from types import (
    BuiltinFunctionType, DynamicClassAttribute, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodType, ModuleType, SimpleNamespace, UnionType)

import numpy as np

from terra import ours
from terra.frameworks import numpys, framework_objects
from terra.runtime.fast_forward.cache.call_records import lacks
from terra.runtime.fast_forward.guards import patch_guard
from terra.runtime.fast_forward.sites import skipping
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.array_calculations import METHODS
from terra.runtime.fast_forward.sources.effects import GROWING, held_in
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import private_names as tfi
from terra.runtime.tensors.object_kinds import (
    LISTS, PLAIN, READING, TENSORS, VARIABLE_METHODS, defined, is_field, is_c_class, is_frameworks_function, is_librarys, is_librarys_container, is_like_builtin, is_named_tuple, is_record)
from terra.runtime.fast_forward.purity.facts.attribute_lookup import attrgetter, attributes_of, is_handed_out, is_librarys_or_none, registered, slot
from terra.runtime.fast_forward.purity.facts.bytecode import computes_only
from terra.runtime.fast_forward.purity.facts.library_classes import derives_from_librarys, parts_of_super
from terra.runtime.fast_forward.purity.facts.plain_classes import is_plain_class
from terra.runtime.fast_forward.purity.unknown.stand_ins import OpaqueContext, answer
from terra.runtime.tensors.tensor import TerraTensor
from terra.transform import policy

_VALUES_OF_TENSORS = frozenset(["shape", "dtype", "ndim", "get_shape", "device"])
_VALUES_OF_VARIABLES = frozenset(["shape", "dtype", "ndim", "name", "path", "trainable", "handle", "numpy"]) | VARIABLE_METHODS
_PARTS_OF_COMPOSITES = frozenset("values flat_values row_splits nested_row_splits ragged_rank uniform_row_length indices dense_shape shape dtype".split())
_OF_CONTAINERS = [dict.items, dict.keys, dict.values, dict.get, dict.copy, list.index, list.count, list.copy]
_COMPUTED = frozenset(["losses", "learning_rate"])  # properties of the framework's that run operations
_PLAIN_SETTERS = [defined(cls, "__setattr__") for cls in (object, SimpleNamespace)]
_PLAIN_GETTERS = [defined(cls, "__getattribute__") for cls in (object, tuple, dict, list, SimpleNamespace, collections.OrderedDict, collections.defaultdict)]
_NAMES_OF_CLASSES = frozenset(["__name__", "__qualname__", "__module__"])
_CHECKS = ("__instancecheck__", "__subclasscheck__")


class Attributes:
    """The part of the Observer for attributes. What it asks of objects runs no code of theirs."""

    def owner(self, it, name):
        """The attribute `name` of `it` is read: returns what to read it of."""
        if self.reason is not None:
            return it
        if it in self.opaque:
            return self._opaquely(it, name, f"asks for {name}")
        kind = type(it)
        if kind is np.ndarray and name in METHODS and self.deferred.part_for(it) is not None:
            return it
        if name == "T" and kind is np.ndarray:
            value = self.by_numpy(np.transpose, (it,))
            if value is not None:
                return answer(name, value)
        if (id(it), name) in self.runner.program.counters and self._looked_up(it, name) is held_in(it, name):
            number = self.counter(it, name)
            if number is not None:
                return answer(name, number)
        self.deferred.looked_at(it)
        if self._is_librarys_attribute(it, kind, name):
            value = self._of_librarys_object(it, name) if kind is not super else self._of_super(it, name)
            return it if type(value) is MethodType else answer(name, value)
        computed = name in _COMPUTED and framework_objects.is_stock_kind(kind)
        if (kind in TENSORS or kind in PLAIN or is_librarys(kind)) and not computed:
            return self._plainly(it, name)
        found = next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)
        if computed and type(found) is property and is_frameworks_function(found.fget) and not self._covers(it) and self._is_looked_up_plainly(kind) \
                and is_librarys_or_none(defined(kind, "__getattr__")):
            self.note_class(it)
            self._found(kind.__mro__, name, None)
            return answer(name, self._framework(None, skipping.skipping(found.fget), it))
        if found is None and self._asks_by_getattr(it, kind, name):
            return self._got(it, kind, name)
        if found is not None and (self._is_programs_descriptor(found) or ours.owns(type(found))):
            return self._described(it, kind, name, found)
        if type(found) is not property or not computes_only(found.fget):
            return self._plainly(it, name)
        return self._property(it, kind, name, found.fget)

    def _covers(self, it):
        """Whether `it` is a part of the object of the framework's whose call is recorded: all that is read of it is guarded."""
        return self.covered is not None and self.covered.covers(attributes_of(it, type(it)))

    def _property(self, it, kind, name, getter):
        """A property of the user's: what its code does is observed."""
        if not self._is_looked_up_plainly(kind):
            self.impure(f"asks an object of type {kind.__name__}, which has its own way to look up attributes, for {name}")
            return it
        self.note_class(it)
        self._found(kind.__mro__, name, None)
        if self.reason is None:
            observed = self._user_function(getter, None)
            if observed is not None:
                try:
                    return answer(name, observed(it))
                except AttributeError:
                    self.impure(f"asks for {name}, which raises an error")
                    raise
        return it

    def _is_programs_descriptor(self, found):
        """Returns whether what a class has under a name has a Python `__get__` of the program's."""
        getter = defined(type(found), "__get__")
        return type(getter) is FunctionType and policy.may_know_program(getter)

    def _described(self, it, kind, name, found):
        """Returns what a descriptor of the program's gives."""
        how = type(found)
        if not self._is_looked_up_plainly(kind):
            return self._plainly(it, name)
        attributes = attributes_of(it, kind)
        self.note_class(it)
        self._found(kind.__mro__, name, None)
        if type(attributes) is dict and defined(how, "__set__") is None and defined(how, "__delete__") is None:
            if name in attributes:
                return self._plainly(it, name)
            if id(it) not in self._born:
                self.reads.absent(attributes, name)
        if ours.owns(how):  # a method that is a step
            return answer(name, found.__get__(it, kind))
        self.reads.object(found, how)
        for special in ("__set__", "__delete__"):
            self._found(how.__mro__, special, {special: None})
        getter = self._found(how.__mro__, "__get__", None)
        return answer(name, self._user_function(getter, getter)(found, it, kind))

    def _asks_by_getattr(self, it, kind, name):
        """Whether an attribute is looked up by the `__getattr__` of a class of the user's."""
        attributes = attributes_of(it, kind)
        return type(attributes) is dict and name not in attributes and defined(kind, "__getattr__") is not None and not any(
            is_librarys(cls) for cls in kind.__mro__) and self._is_looked_up_plainly(kind)

    def _got(self, it, kind, name):
        """Returns what that gives."""
        getter = defined(kind, "__getattr__")
        if id(it) not in self._born:
            attributes = attributes_of(it, kind)
            self.reads.object(it, kind, attributes)
            self.reads.absent(attributes, name)
            self._found(kind.__mro__, name, {name: None})
            self._found(kind.__mro__, "__getattr__", None)
        if type(getter) is FunctionType and not is_frameworks_function(getter):
            return answer(name, self._user_function(getter, getter)(it, name))
        if is_like_builtin(kind) and getter in (dict.__getitem__, dict.get):
            self._look_into(it)
            return answer(name, getter(it, name))
        self.impure(f"asks for {name}, which no class defines")
        return it

    def _attribute(self, it, name):
        kind = type(it)
        if kind in TENSORS:
            if name == "numpy" and self._is_own(it):
                return
            if name == "device" and not self._is_own(it):
                self.impure("asks a tensor that it was given for its device")
            if name not in _VALUES_OF_TENSORS and not (name == "_keras_mask" and getattr(it, "_owner", None) is self.runner):
                self.impure(f"asks a tensor for {name}")
        elif tfi.is_composite(kind) and (id(it) in self._born or id(it) in self._given):
            if name not in _PARTS_OF_COMPOSITES and type(getattr(kind, name, None)) is not FunctionType:
                self.impure(f"asks a {kind.__name__} for {name}")
        elif id(it) in self._born and is_record(kind):
            if name not in vars(it):
                self.impure(f"asks an object of type {kind.__name__} for {name}")
        elif id(it) in self._born and is_plain_class(kind):
            self._attribute_of_own(it, kind, name)
        elif kind in PLAIN or kind in LISTS or kind is tuple or numpys.is_own(kind) or residual_calls.is_residual(it, name) or id(it) in self._born or (kind in GROWING and name == "append"):
            pass
        elif kind is ModuleType or (issubclass(kind, ModuleType) and is_librarys(kind)):
            self._module_attribute(it, name)
        elif kind is super:
            self._super_attribute(it, name)
        elif issubclass(kind, type):
            if kind in (type, abc.ABCMeta, enum.EnumMeta):
                self._class_attribute(it, kind, name)
            else:
                self.impure(f"asks a class of type {kind.__name__} for {name}")
        elif is_librarys(kind) and tfi.is_variable(it):
            if name not in _VALUES_OF_VARIABLES:
                self.impure(f"asks a variable for {name}")
            elif name in ("trainable", "name", "path"):
                self.reads.variable(it)
        elif issubclass(kind, np.ndarray):
            if name not in ("shape", "dtype", "ndim", "size") and name not in METHODS and (name != "T" or it in self._dynamic):
                self.impure(f"asks an array for {name}")
            if name in ("shape", "dtype", "ndim", "size"):
                self.looks_at_shape(it)
            elif it not in self._dynamic:
                self._look_into(it)
        elif kind is FunctionType or kind is MethodType or kind is BuiltinFunctionType:
            if name not in ("__name__", "__qualname__"):
                self.impure(f"asks a function for {name}")
            elif kind is not BuiltinFunctionType:
                function = getattr(it, "__func__", it)
                self.reads.asked(attrgetter(name), function, getattr(function, name, None))
        else:
            self._instance_attribute(it, kind, name)

    def _is_own(self, it):
        """Whether it is a tensor of this step."""
        return type(it) is TerraTensor and it._owner is self.runner

    def _super_attribute(self, it, name):
        found = self._found_above(it, name)
        if not is_handed_out(found) and found is not object.__init__:
            self.impure(f"asks for {name}, which is a descriptor")

    def _found_above(self, it, name):
        """Returns what a `super` finds."""
        searched, cls, owner = parts_of_super(it)
        self.reads.bases(cls)
        self.note_class(owner)
        return self._found(searched, name, None)

    def _of_super(self, it, name):
        """Returns what a property of a library's gives that a `super` finds."""
        self._found_above(it, name)
        self._hand_to_library(parts_of_super(it)[2])
        return self._in_library(lambda: getattr(it, name))

    def _class_attribute(self, cls, kind, name):
        if name in _NAMES_OF_CLASSES and defined(kind, name) is type.__dict__[name]:
            self.reads.asked(attrgetter(name), cls, getattr(cls, name))
            return
        if any(defined(type(meta.__dict__[name]), "__set__") is not None for meta in kind.__mro__ if name in meta.__dict__):
            self.impure(f"asks a class for {name}")
            return
        found = self._found(cls.__mro__, name, None)
        if kind is enum.EnumMeta and isinstance(found, DynamicClassAttribute):
            members = cls.__dict__.get("_member_map_")
            if type(members) is dict and name in members:
                self.reads.entry(members, name, members[name])
                return
        if not is_handed_out(found):
            self.impure(f"asks for {name}, which is a descriptor")

    def note_class(self, it):
        """The class of `it` matters."""
        kind = type(it)
        if is_c_class(kind) or kind in TENSORS or (id(it) in self._born and (is_plain_class(kind) or derives_from_librarys(kind))) or (issubclass(kind, tuple) and any(type(x) in TENSORS for x in tuple.__iter__(it))):
            return  # it stays the same; or it is a named tuple that was made in this run
        self.reads.object(it, kind)

    def _module_attribute(self, module, name):
        space = vars(module)
        is_frameworks_own = module.__name__.split(".", 1)[0] in tfi.FRAMEWORKS
        if not is_librarys(type(module)) and not is_frameworks_own:
            self.reads.object(module, type(module))
        if name in space:
            self.reads.entry(space, name, space[name])
        elif is_frameworks_own:  # loaded when it is first asked for
            try:
                self.reads.asked(attrgetter(name), module, getattr(module, name))
            except AttributeError:
                self.impure(f"asks for {name}, which {module.__name__} has not")
        else:
            self.impure(f"asks the module {module.__name__} for {name}")

    def _found(self, mro, name, attributes):
        """Look `name` up in these classes as Python does; returns what the class defines, or None. `attributes`: those of the instance."""
        if mro and mro is mro[0].__mro__ and not is_c_class(mro[0]) and not is_librarys(mro[0]):
            self.reads.bases(mro[0])
        for cls in mro:
            space = cls.__dict__
            if is_librarys(cls):
                patch_guard.modules.watch(cls)
            elif name in space:
                self.reads.entry(space, name, space[name], cls)
            elif not is_c_class(cls):
                self.reads.absent(space, name, cls)
            if name in space:
                return space[name]
        if attributes is None or name not in attributes:
            self.impure(f"asks for {name}, which no class defines")
        return None

    def may_set(self, it, name):
        """Whether an attribute can be set when the run is skipped as well: nothing of the user's runs for it. If not, the run is impure."""
        kind = type(it)
        if kind in TENSORS or is_librarys(kind) or issubclass(kind, (type, ModuleType, FunctionType)) or (is_c_class(kind) and kind is not SimpleNamespace):
            self.impure("sets an attribute")
            return False
        attributes = attributes_of(it, kind)
        setter = self._found(kind.__mro__, "__setattr__", None)
        if type(attributes) is not dict or not (any(setter is plain for plain in _PLAIN_SETTERS) or is_frameworks_function(setter)) or not self._is_looked_up_plainly(kind):
            self.impure(f"sets an attribute of an object of type {kind.__name__}, which has its own way to do it")
            return False
        how = type(self._found(kind.__mro__, name, {name: None}))
        if defined(how, "__set__") is not None or defined(how, "__delete__") is not None:
            self.impure(f"sets {name}, which is a descriptor")
            return False
        self.reads.object(it, kind, attributes)
        return self.reason is None

    def _instance_attribute(self, it, kind, name):
        if self.has_set(it, name):
            return
        if is_librarys_container(kind) and defined(kind, name) in _OF_CONTAINERS:
            return  # a layer's list or dict of layers
        if name in READING and is_like_builtin(kind) and type(defined(kind, name)) is MethodDescriptorType:
            self.note_class(it)
            self._found(kind.__mro__, name, None)
            return
        if not self._is_looked_up_plainly(kind):
            self.impure(f"asks an object of type {kind.__name__}, which has its own __getattribute__, for {name}")
            return
        attributes = attributes_of(it, kind)
        if type(attributes) is not dict and attributes is not None:
            self.impure(f"asks an object of type {kind.__name__}, which has its own __dict__, for {name}")
            return
        if attributes is not None:
            self.reads.object(it, kind, attributes)
        else:
            self.note_class(it)
        found = self._found(kind.__mro__, name, attributes or {})
        how = type(found)
        if issubclass(kind, enum.Enum) and name in ("name", "value") and found is enum.Enum.__dict__[name]:
            self.reads.entry(attributes, f"_{name}_", attributes[f"_{name}_"])
        elif how is property:
            if found.fget is not None and is_frameworks_function(found.fget) and self._covers(it):
                return
            if found.fget is None or not is_frameworks_function(found.fget) or not is_librarys_or_none(defined(kind, "__getattr__")):
                self.impure(f"asks for the property {name}")
                return
            try:
                self.reads.parts(it, name)
            except (Unskippable, TypeError):
                self.impure(f"asks for {name} an object that has too many parts, or parts with code of the user's")
        elif how is MemberDescriptorType or how is GetSetDescriptorType:
            if name == "__dict__":
                self.impure("asks for __dict__")
            elif found is not object.__dict__["__class__"]:
                try:
                    self.reads.asked(slot(found), it, found.__get__(it, kind))
                except AttributeError:
                    self.impure(f"asks for {name}, which is not set")
        elif is_field(found) and issubclass(kind, tuple):
            pass
        elif defined(how, "__set__") is not None or defined(how, "__delete__") is not None:
            self.impure(f"asks for {name}, which is a descriptor")
        elif attributes is not None and name in attributes:
            if (id(it), name) not in self.carried:
                self.reads.entry(attributes, name, attributes[name])
        else:
            if not is_handed_out(found):
                self.impure(f"asks for {name}, which is a descriptor")
            if attributes is not None:
                self.reads.absent(attributes, name)

    def _lacks_attribute(self, it, name):
        """Whether a tensor, or the object `it` of a class of the user's, has no attribute `name`, which is asked for all the same."""
        kind = type(it)
        if kind in PLAIN:
            return not hasattr(it, name)
        if kind in (type, abc.ABCMeta, enum.EnumMeta):
            return self._class_lacks(it, kind, name)
        if kind in TENSORS:
            return lacks(self.runner, it, name)
        if is_librarys(kind) or issubclass(kind, (type, ModuleType)) or is_c_class(kind):
            return False
        attributes = attributes_of(it, kind)
        if type(attributes) is not dict or name in attributes or any(name in cls.__dict__ for cls in kind.__mro__) \
                or defined(kind, "__getattr__") is not None or not self._is_looked_up_plainly(kind):
            return False
        if not self._is_own_object(it):
            self.reads.object(it, kind, attributes)
            self.reads.absent(attributes, name)
        self._found(kind.__mro__, name, {name: None})
        self._found(kind.__mro__, "__getattr__", {"__getattr__": None})
        return True

    def _class_lacks(self, cls, kind, name):
        """Returns whether a class has no attribute `name`, nor has its metaclass, whose attributes are looked up plainly."""
        if any(name in part.__dict__ for part in (*cls.__mro__, *kind.__mro__)) or defined(kind, "__getattr__") is not None:
            return False
        self._found(cls.__mro__, name, {name: None})
        return True

    def _is_looked_up_plainly(self, kind):
        """Whether attributes of objects of class `kind` are looked up as Python does."""
        getter = self._found(kind.__mro__, "__getattribute__", None)
        return any(getter is plain for plain in _PLAIN_GETTERS) or is_frameworks_function(getter)

    def is_named_tuple(self, kind):
        """Whether `kind` is a class of named tuples that are searched as all tuples are; what it defines is noted."""
        if not is_named_tuple(kind):
            return False
        self.reads.bases(kind)
        for cls in kind.__mro__:
            if not is_c_class(cls):
                self.reads.contents(cls.__dict__, cls)
        return True

    def ask_instance(self, it, classes, subclass):
        """`isinstance(it, classes)` or, with `subclass`, `issubclass(it, classes)` is asked."""
        kind = type(it)
        self.note_class(it)
        if subclass and not issubclass(kind, type):
            self.impure("asks issubclass about an object")
        elif kind not in TENSORS:
            self._bases(it if subclass else kind)
            if not subclass and type(it) not in PLAIN:
                asked = self._found(kind.__mro__, "__class__", None)
                getter = self._found(kind.__mro__, "__getattribute__", None)
                if type(asked) is not GetSetDescriptorType or type(getter) is FunctionType and not is_frameworks_function(getter):
                    self.impure(f"asks for the class of an object of type {kind.__name__}")
        self._ask_classes(classes)

    def _asks_kind(self, it, kind):
        """Whether the interpreter counts `it` as a sequence or mapping is asked: classes say so when they are made, or are registered."""
        self.deferred.looked_at(it)
        if self.reason is None and type(it) not in PLAIN and type(it) not in TENSORS:
            self.ask_instance(it, kind, False)

    def _bases(self, cls):
        if not is_c_class(cls) and not is_librarys(cls):
            self.reads.bases(cls)

    def _ask_classes(self, cls):
        kind = type(cls)
        if kind is tuple or kind is UnionType:
            for x in cls if kind is tuple else cls.__args__:
                self._ask_classes(x)
        elif not issubclass(kind, type):
            self.impure("asks isinstance about what is no class")
        elif kind is not type:
            checks = [self._found(kind.__mro__, name, None) for name in _CHECKS]
            if checks == [abc.ABCMeta.__dict__[name] for name in _CHECKS]:
                self.reads.asked(registered, None, abc.get_cache_token())  # it remembers what it has found until a class is registered somewhere
            elif checks != [type.__dict__[name] for name in _CHECKS]:
                self.impure("asks isinstance about an unusual class")

    def context(self, it):
        """`with it:`"""
        kind = type(it)
        entered = self._users_context(it) if self.reason is None else None
        if entered is not None:
            return entered
        if id(it) not in self._born and kind not in (tfi.tf.name_scope, contextlib.nullcontext, tfi.DeviceScope, tfi.NullContext):
            if is_librarys(kind) or self.reason is not None:
                self.impure(f"enters a context of type {kind.__name__}")
            else:
                return OpaqueContext(self.opaque, it)
        return it
