"""The observer's part for attributes: which of them are plain reads, and what each read depends on."""

import abc
import collections
import contextlib
import enum
from types import (
    BuiltinFunctionType, DynamicClassAttribute, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodType, ModuleType, WrapperDescriptorType)

import numpy as np

from terra import ours
from terra.frameworks import numpys, framework_objects
from terra.runtime.fast_forward.cache.call_records import lacks
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sites import skipping
from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.array_calculations import METHODS
from terra.runtime.fast_forward.sources.effects import GROWING, held_in
from terra.runtime.fast_forward.sources.filled import Filled
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import private_names as tfi
from terra.tf.private import composites
from terra.runtime.tensors.object_kinds import (
    LISTS, PLAIN, READING, TENSORS, VARIABLE_METHODS, defined, is_field, is_c_class, is_frameworks_function, is_librarys, is_librarys_container, is_like_builtin)
from terra.runtime.fast_forward.purity.facts.attribute_lookup import attrgetter, attributes_of, is_handed_out, is_programs_descriptor, is_librarys_or_none, lacking, slot
from terra.runtime.fast_forward.purity.facts.bytecode import computes_only
from terra.runtime.fast_forward.purity.facts.exceptions import is_initialiser, may_ask
from terra.runtime.fast_forward.purity.facts.library_classes import parts_of_super
from terra.runtime.fast_forward.purity.facts.plain_classes import is_made_by_runs
from terra.runtime.fast_forward.purity.unknown.stand_ins import OpaqueContext, answer
from terra.runtime.fast_forward.purity.unknown.writing import DefaultWriter
from terra.transform import policy

_VALUES_OF_TENSORS = frozenset(["shape", "dtype", "ndim", "get_shape", "set_shape", "device"])
_VALUES_OF_VARIABLES = frozenset(["shape", "dtype", "ndim", "name", "path", "trainable", "handle", "numpy", "get_shape"]) | VARIABLE_METHODS
_PARTS_OF_COMPOSITES = frozenset("values flat_values row_splits nested_row_splits ragged_rank uniform_row_length indices dense_shape shape dtype".split())
_OF_CONTAINERS = [dict.items, dict.keys, dict.values, dict.get, dict.copy, list.index, list.count, list.copy]
_COMPUTED = frozenset(["losses", "learning_rate"])  # properties of the framework's that run operations
_NAMES_OF_CLASSES = frozenset(["__name__", "__qualname__", "__module__", "__mro__", "__bases__", "__doc__"])
_INITIALISERS = [x.__init__ for x in (object, dict, list, collections.OrderedDict)]


class Attributes(Handler):
    """The part of the Observer for attributes. What it asks of objects runs no code of theirs."""

    __slots__ = ()

    def owner(self, it, name):
        """The attribute `name` of `it` is read: returns what to read it of."""
        if self.run.reason is not None:
            return it
        if it in self.run.opaque:
            return self._opaquely(it, name, f"asks for {name}")
        it = self.run.places.class_with(it, name) or it
        kind = type(it)
        if self.run.places.is_read_anew(it, name):
            return answer(name, self.run.opaque.reads(it, name))
        if kind is np.ndarray and name in METHODS and self.run.deferred.part_for(it) is not None:
            return it
        if name == "T" and kind is np.ndarray:
            value = self.run.arrays.calculated(np.transpose, (it,))
            if value is not None:
                return answer(name, value)
        if (id(it), name) in self.run.runner.program.counters and self.run.places.looked_up(it, name) is held_in(it, name):
            number = self.run.places.counter(it, name)
            if number is not None:
                return answer(name, number)
        self.run.deferred.looked_at(it)
        if kind is super and (getter := self._getter_above(it, name)) is not None:
            return answer(name, getter(it.__self__))
        if self.run.libraries.is_librarys_attribute(it, kind, name):
            value = self.run.libraries.of_librarys_object(it, name) if kind is not super else self._of_super(it, name)
            return it if type(value) is MethodType else answer(name, value)
        computed = name in _COMPUTED and framework_objects.is_stock_kind(kind)
        if (kind in TENSORS or kind in PLAIN or is_librarys(kind)) and not computed:
            return self._plainly(it, name)
        found = next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)
        if computed and type(found) is property and is_frameworks_function(found.fget) and not self.covers(it) and self.run.classes.is_looked_up_plainly(kind) \
                and is_librarys_or_none(defined(kind, "__getattr__")):
            self.run.classes.note_class(it)
            self.run.classes.found(kind.__mro__, name, None)
            return answer(name, self.run.framework.call(None, skipping.skipping(found.fget), it))
        if found is None and self._asks_by_getattr(it, kind, name):
            return self._got(it, kind, name)
        if found is not None and (is_programs_descriptor(found) or ours.owns(type(found))):
            return self._described(it, kind, name, found)
        if type(found) is not property or not computes_only(found.fget):
            return self._plainly(it, name)
        return self._property(it, kind, name, found.fget)

    def covers(self, it):
        """Whether `it` is a part of the object of the framework's whose call is recorded: all that is read of it is guarded."""
        return self.run.covered is not None and self.run.covered.covers(attributes_of(it, type(it)))

    def _property(self, it, kind, name, getter):
        """A property of the user's: what its code does is observed."""
        if not self.run.classes.is_looked_up_plainly(kind) and not composites.is_extension(kind):  # (TensorFlow's `__getattr__` has nothing to say of a property)
            self.run.impure(f"asks an object of type {kind.__name__}, which has its own way to look up attributes, for {name}")
            return it
        self.run.classes.note_class(it)
        self.run.classes.found(kind.__mro__, name, None)
        if self.run.reason is None:
            observed = self.run.calls.user_function(getter, None)
            if observed is not None:
                try:
                    return answer(name, observed(it))
                except AttributeError:
                    self.run.impure(f"asks for {name}, which raises an error")
                    raise
        return it

    def _described(self, it, kind, name, found):
        """Returns what a descriptor of the program's gives."""
        how = type(found)
        if not self.run.classes.is_looked_up_plainly(kind):
            return self._plainly(it, name)
        attributes = attributes_of(it, kind)
        self.run.classes.note_class(it)
        self.run.classes.found(kind.__mro__, name, None)
        if type(attributes) is dict and defined(how, "__set__") is None and defined(how, "__delete__") is None:
            if name in attributes:
                return self._plainly(it, name)
            if not self.run.born.has(it):
                self.run.reads.absent(attributes, name)
        if ours.owns(how):  # a method that is a step
            return answer(name, found.__get__(it, kind))
        self.run.reads.object(found, how)
        for special in ("__set__", "__delete__"):
            self.run.classes.found(how.__mro__, special, {special: None})
        getter = self.run.classes.found(how.__mro__, "__get__", None)
        return answer(name, self.run.calls.user_function(getter, getter)(found, it, kind))

    def _plainly(self, it, name):
        """Returns what to read an attribute of: `it`, or what holds that which an opaque call has given."""
        why = self.run.attempted(self.attribute, it, name)
        if why is None:
            return it
        if name.startswith("__") or (id(it), name) in self.run.effects:
            self.run.impure(why)  # (a counter that cannot be told from other numbers yet)
            return it
        return self._opaquely(it, name, why)

    def _opaquely(self, it, name, why):
        """Returns what to read an attribute of that is read by an opaque call."""
        try:
            return answer(name, self.run.opaque.attribute(it, name, why))
        except AttributeError:
            return it  # the program's own code is to raise it

    def _asks_by_getattr(self, it, kind, name):
        """Whether an attribute is looked up by the `__getattr__` of a class of the user's."""
        attributes = attributes_of(it, kind)
        return type(attributes) is dict and name not in attributes and defined(kind, "__getattr__") is not None and not any(
            is_librarys(cls) for cls in kind.__mro__) and self.run.classes.is_looked_up_plainly(kind)

    def _got(self, it, kind, name):
        """Returns what that gives."""
        getter = defined(kind, "__getattr__")
        if not self.run.born.has(it):
            attributes = attributes_of(it, kind)
            self.run.reads.object(it, kind, attributes)
            self.run.reads.absent(attributes, name)
            self.run.classes.found(kind.__mro__, name, {name: None})
            self.run.classes.found(kind.__mro__, "__getattr__", None)
        if type(getter) is FunctionType and not is_frameworks_function(getter):
            return answer(name, self.run.calls.user_function(getter, getter)(it, name))
        if is_like_builtin(kind) and getter in (dict.__getitem__, dict.get):
            self.run.contents.look_into(it)
            return answer(name, getter(it, name))
        self.run.impure(f"asks for {name}, which no class defines")
        return it

    def attribute(self, it, name):
        kind = type(it)
        if kind in TENSORS:
            if name == "numpy" and (self.run.is_own_tensor(it) or self.run.live_calls.may_read(it)):
                return
            if name == "device" and not self.run.is_own_tensor(it) and not self.run.is_handle(it):
                self.run.impure("asks a tensor that it was given for its device")
            if name not in _VALUES_OF_TENSORS and not (name == "_keras_mask" and getattr(it, "_owner", None) is self.run.runner):
                self.run.impure(f"asks a tensor for {name}")
        elif composites.is_composite(kind) and (self.run.born.has(it) or id(it) in self.run.given):
            if name not in (vars(it) if composites.is_extension(kind) else _PARTS_OF_COMPOSITES) and type(getattr(kind, name, None)) is not FunctionType:
                self.run.impure(f"asks a {kind.__name__} for {name}")
        elif self.run.has_caught(it):
            if not may_ask(name) and not (name == "__cause__" and self.run.has_caught(it.__cause__)):
                self.run.impure(f"asks an exception for {name}")
        elif self.run.born.has(it) and is_made_by_runs(kind):
            self.run.objects.attribute_of_own(it, kind, name)
        elif kind in PLAIN or kind in LISTS or kind is tuple or numpys.is_own(kind) or residual_calls.is_residual(it, name) or self.run.born.has(it) or (kind in GROWING and name == "append") or kind is Filled:
            pass
        elif kind is ModuleType or (issubclass(kind, ModuleType) and is_librarys(kind)):
            self._module_attribute(it, name)
        elif kind is super:
            self._super_attribute(it, name)
        elif issubclass(kind, type):
            if kind in (type, abc.ABCMeta, enum.EnumMeta) or (defined(kind, "__getattribute__") is type.__getattribute__ and defined(kind, "__getattr__") is None):
                self._class_attribute(it, kind, name)
            else:
                self.run.impure(f"asks a class of type {kind.__name__} for {name}")
        elif is_librarys(kind) and tfi.is_variable(it):
            self._variable_attribute(it, kind, name)
        elif issubclass(kind, np.ndarray):
            if name not in ("shape", "dtype", "ndim", "size") and name not in METHODS and (name != "T" or it in self.run.dynamic):
                self.run.impure(f"asks an array for {name}")
            if name in ("shape", "dtype", "ndim", "size"):
                self.run.arrays.looks_at_shape(it, name)
            elif it not in self.run.dynamic:
                self.run.contents.look_into(it)
        elif kind is FunctionType or kind is MethodType or kind is BuiltinFunctionType:
            self._function_attribute(it, kind, name)
        else:
            self._instance_attribute(it, kind, name)

    def _function_attribute(self, it, kind, name):
        function = it.__func__ if kind is MethodType else it
        if name in ("__self__", "__func__") and kind is MethodType:
            pass  # which stay
        elif name in ("__name__", "__qualname__"):
            if kind is not BuiltinFunctionType:
                self.run.reads.asked(attrgetter(name), function, getattr(function, name, None))
        elif type(function) is not FunctionType or hasattr(FunctionType, name) or hasattr(kind, name):
            self.run.impure(f"asks a function for {name}")
        else:
            self.run.reads.lookup(vars(function), name)

    def _variable_attribute(self, variable, kind, name):
        if name in ("trainable", "name", "path"):
            self.run.reads.variable(variable)
        elif name in _VALUES_OF_VARIABLES or type(defined(kind, name)) is FunctionType:  # (methods are observed)
            pass
        elif hasattr(kind, name) or hasattr(kind, "__getattr__"):
            self.run.impure(f"asks a variable for {name}")
        else:
            self.run.reads.lookup(vars(variable), name)

    def _getter_above(self, it, name):
        """Returns what to call for a property that `super()` finds; None if it is none, or cannot be observed."""
        found = self._found_above(it, name)
        if type(found) is not property or type(found.fget) is not FunctionType:
            return None
        if is_frameworks_function(found.fget):
            return self.run.library_code.called(found.fget)
        return self.run.calls.user_function(found.fget, None) if policy.may_know_program(found.fget) else None

    def _super_attribute(self, it, name):
        found = self._found_above(it, name)
        if not is_handed_out(found) and found not in _INITIALISERS and not is_initialiser(found):
            self.run.impure(f"asks for {name}, which is a descriptor")

    def _found_above(self, it, name):
        """Returns what a `super` finds."""
        searched, cls, owner = parts_of_super(it)
        self.run.reads.bases(cls)
        self.run.classes.note_class(owner)
        return self.run.classes.found(searched, name, None)

    def _of_super(self, it, name):
        """Returns what a property of a library's gives that a `super` finds."""
        self._found_above(it, name)
        self.run.libraries.hand_to_library(parts_of_super(it)[2])
        return self.run.libraries.in_library(lambda: getattr(it, name))

    def _class_attribute(self, cls, kind, name):
        if self.run.places.has_set(cls, name):
            return
        if name in _NAMES_OF_CLASSES and defined(kind, name) is type.__dict__[name]:
            self.run.reads.asked(attrgetter(name), cls, getattr(cls, name))
            return
        if any(defined(type(meta.__dict__[name]), "__set__") is not None for meta in kind.__mro__ if name in meta.__dict__):
            self.run.impure(f"asks a class for {name}")
            return
        of_class = any(name in part.__dict__ for part in cls.__mro__)
        found = self.run.classes.found(cls.__mro__, name, None if of_class else {name: None})
        if not of_class:
            found = self.run.classes.found(kind.__mro__, name, None)
        if kind is enum.EnumMeta and isinstance(found, DynamicClassAttribute):
            members = cls.__dict__.get("_member_map_")
            if type(members) is dict and name in members:
                self.run.reads.entry(members, name, members[name])
                return
        if not is_handed_out(found) and type(found) is not WrapperDescriptorType:
            self.run.impure(f"asks for {name}, which is a descriptor")

    def _module_attribute(self, module, name):
        space = vars(module)
        is_frameworks_own = module.__name__.split(".", 1)[0] in tfi.FRAMEWORKS
        if not is_librarys(type(module)) and not is_frameworks_own:
            self.run.reads.object(module, type(module))
        if name in space:
            self.run.reads.entry(space, name, space[name])
        elif is_frameworks_own:  # loaded when it is first asked for
            try:
                self.run.reads.asked(attrgetter(name), module, getattr(module, name))
            except AttributeError:
                self.run.impure(f"asks for {name}, which {module.__name__} has not")
        else:
            self.run.impure(f"asks the module {module.__name__} for {name}")

    def _instance_attribute(self, it, kind, name):
        if self.run.places.has_set(it, name):
            return
        if is_librarys_container(kind) and defined(kind, name) in _OF_CONTAINERS:
            return  # a layer's list or dict of layers
        if name in READING and is_like_builtin(kind) and type(defined(kind, name)) is MethodDescriptorType:
            self.run.classes.note_class(it)
            self.run.classes.found(kind.__mro__, name, None)
            return
        if not self.run.classes.is_looked_up_plainly(kind):
            self.run.impure(f"asks an object of type {kind.__name__}, which has its own __getattribute__, for {name}")
            return
        attributes = attributes_of(it, kind)
        if type(attributes) is not dict and attributes is not None:
            self.run.impure(f"asks an object of type {kind.__name__}, which has its own __dict__, for {name}")
            return
        if attributes is not None:
            self.run.reads.object(it, kind, attributes)
        else:
            self.run.classes.note_class(it)
        found = self.run.classes.found(kind.__mro__, name, attributes or {})
        how = type(found)
        if issubclass(kind, enum.Enum) and name in ("name", "value") and found is enum.Enum.__dict__[name]:
            self.run.reads.entry(attributes, f"_{name}_", attributes[f"_{name}_"])
        elif how is property:
            if found.fget is not None and is_frameworks_function(found.fget) and self.covers(it):
                return
            if found.fget is None or not is_frameworks_function(found.fget) or not is_librarys_or_none(defined(kind, "__getattr__")):
                self.run.impure(f"asks for the property {name}")
                return
            try:
                self.run.reads.parts(it, name)
            except (Unskippable, TypeError):
                self.run.impure(f"asks for {name} an object that has too many parts, or parts with code of the user's")
        elif how is MemberDescriptorType or how is GetSetDescriptorType:
            if name == "__dict__":
                self.run.impure("asks for __dict__")
            elif found is not object.__dict__["__class__"]:
                try:
                    self.run.reads.asked(slot(found), it, found.__get__(it, kind))
                except AttributeError:
                    self.run.impure(f"asks for {name}, which is not set")
        elif is_field(found) and issubclass(kind, tuple):
            pass
        elif defined(how, "__set__") is not None or defined(how, "__delete__") is not None:
            self.run.impure(f"asks for {name}, which is a descriptor")
        elif attributes is not None and name in attributes:
            if (id(it), name) not in self.run.carried:
                self.run.reads.entry(attributes, name, attributes[name])
        else:
            if not is_handed_out(found):
                self.run.impure(f"asks for {name}, which is a descriptor")
            if attributes is not None:
                self.run.reads.absent(attributes, name)

    def lacks_attribute(self, it, name):
        """Whether a tensor, or the object `it` of a class of the user's, has no attribute `name`, which is asked for all the same."""
        kind = type(it)
        if kind in PLAIN:
            return not hasattr(it, name)
        if kind in (type, abc.ABCMeta, enum.EnumMeta):
            return self._class_lacks(it, kind, name)
        if kind in TENSORS:
            return lacks(self.run.runner, it, name)
        if (kind is ModuleType or (issubclass(kind, ModuleType) and is_librarys(kind))) and is_librarys_or_none(vars(it).get("__getattr__")) and not hasattr(it, name):
            self.run.reads.asked(lacking(name), it, True)
            return True
        if (is_librarys(kind) and not framework_objects.derives_from_stock(kind)) or issubclass(kind, (type, ModuleType)) or is_c_class(kind):
            return False
        attributes = attributes_of(it, kind)
        if type(attributes) is not dict or name in attributes or any(name in cls.__dict__ for cls in kind.__mro__) \
                or defined(kind, "__getattr__") is not None or not self.run.classes.is_looked_up_plainly(kind):
            return False
        if not self.run.objects.is_own_object(it):
            self.run.reads.object(it, kind, attributes)
            self.run.reads.absent(attributes, name)
        self.run.classes.found(kind.__mro__, name, {name: None})
        self.run.classes.found(kind.__mro__, "__getattr__", {"__getattr__": None})
        return True

    def _class_lacks(self, cls, kind, name):
        """Returns whether a class has no attribute `name`, nor has its metaclass, whose attributes are looked up plainly."""
        if any(name in part.__dict__ for part in (*cls.__mro__, *kind.__mro__)) or defined(kind, "__getattr__") is not None:
            return False
        self.run.classes.found(cls.__mro__, name, {name: None})
        return True

    def context(self, it):
        """`with it:`"""
        kind = type(it)
        entered = self.run.objects.users_context(it) if self.run.reason is None else None
        if entered is not None:
            return entered
        if not self.run.born.has(it) and kind not in (tfi.tf.name_scope, contextlib.nullcontext, tfi.DeviceScope, tfi.NullContext, DefaultWriter):
            if is_librarys(kind) or self.run.reason is not None:
                self.run.impure(f"enters a context of type {kind.__name__}")
            else:
                return OpaqueContext(self.run.opaque, it)
        return it
