"""The observer's part for classes: what is asked of them, and what objects of them look up there. It runs no code of theirs."""

import abc
import collections
import sys
import threading
from types import FunctionType, GetSetDescriptorType, ModuleType, SimpleNamespace, UnionType

from terra import ours
from terra.frameworks import framework_objects
from terra.runtime.fast_forward.guards import attribute_filter, patch_guard
from terra.runtime.fast_forward.purity.facts.attribute_lookup import attributes_of, is_programs_descriptor, registered
from terra.runtime.fast_forward.purity.facts.library_classes import derives_from_librarys
from terra.runtime.fast_forward.purity.facts.plain_classes import is_plain_class, is_plain_metaclass
from terra.runtime.fast_forward.purity.run import Handler
from terra.runtime.fast_forward.sources.effects import held_in
from terra.runtime.fast_forward.sources.number_sources import may_be_replaced
from terra.runtime.interpreter import frames
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, defined, is_c_class, is_frameworks_function, is_librarys, is_named_tuple

_PLAIN_SETTERS = [defined(cls, "__setattr__") for cls in (object, SimpleNamespace, threading.local)]
_PLAIN_GETTERS = [defined(cls, "__getattribute__") for cls in (object, tuple, dict, list, BaseException, SimpleNamespace, threading.local, collections.OrderedDict, collections.defaultdict)]
_CHECKS = ("__instancecheck__", "__subclasscheck__")


class Classes(Handler):
    """The part of the Observer for classes."""

    __slots__ = ()

    def note_class(self, it):
        """The class of `it` matters."""
        kind = type(it)
        if is_c_class(kind) or kind in TENSORS or (self.run.born.has(it) and (is_plain_class(kind) or derives_from_librarys(kind))) or (issubclass(kind, tuple) and any(type(x) in TENSORS for x in tuple.__iter__(it))):
            return  # it stays the same; or it is a named tuple that was made in this run
        if self.run.has_caught(it):
            return
        if it in self.run.opaque:
            self.run.opaque.instances.pins(it)
            return
        self.run.reads.object(it, kind)

    def found(self, mro, name, attributes):
        """Look `name` up in these classes as Python does; returns what the class defines, or None. `attributes`: those of the instance."""
        if mro and mro is mro[0].__mro__ and not is_c_class(mro[0]) and not is_librarys(mro[0]):
            self.run.reads.bases(mro[0])
        for cls in mro:
            space = cls.__dict__
            if is_librarys(cls):
                patch_guard.modules.watch(cls)
            elif name in space:
                self.run.reads.entry(space, name, space[name], cls)
            elif not is_c_class(cls):
                self.run.reads.absent(space, name, cls)
            if name in space:
                return space[name]
        if attributes is None or name not in attributes:
            self.run.impure(f"asks for {name}, which no class defines")
        return None

    def may_set(self, it, name):
        """Whether an attribute can be set when the run is skipped as well: nothing of the user's runs for it. If not, the run is impure."""
        kind = type(it)
        if kind is FunctionType and not hasattr(kind, name) and not is_frameworks_function(it):
            self.run.reads.object(it, kind)
            return self.run.reason is None
        if issubclass(kind, type) and self._may_set_of_class(it, kind, name):
            return self.run.reason is None
        if kind in TENSORS or (is_librarys(kind) and not framework_objects.derives_from_stock(kind)) or issubclass(kind, (type, ModuleType, FunctionType)) or (is_c_class(kind) and kind is not SimpleNamespace and kind is not threading.local):
            self.run.impure("sets an attribute")
            return False
        attributes = attributes_of(it, kind)
        setter = self.found(kind.__mro__, "__setattr__", None)
        if type(attributes) is not dict or not (any(setter is plain for plain in _PLAIN_SETTERS) or is_frameworks_function(setter)) or not self.is_looked_up_plainly(kind):
            self.run.impure(f"sets an attribute of an object of type {kind.__name__}, which has its own way to do it")
            return False
        how = type(self.found(kind.__mro__, name, {name: None}))
        if defined(how, "__set__") is not None or defined(how, "__delete__") is not None:
            self.run.impure(f"sets {name}, which is a descriptor")
            return False
        self.run.reads.object(it, kind, attributes)
        return self.run.reason is None

    def _may_set_of_class(self, cls, kind, name):
        """Whether an attribute can be set of a class of the program's: a number, a list or the like, which says nothing of what its objects do."""
        if not is_plain_metaclass(kind) or is_c_class(cls) or is_librarys(cls) or name.startswith("__") or any(name in vars(meta) for meta in kind.__mro__):
            return False
        self.run.reads.object(cls, kind)
        if not may_be_replaced(held_in(cls, name)) or is_programs_descriptor(held_in(cls, name)):
            return False
        self.run.runner.program.names_of_classes.add(name)
        attribute_filter.note_class_attribute(cls, name)
        return True

    def is_looked_up_plainly(self, kind):
        """Whether attributes of objects of class `kind` are looked up as Python does."""
        getter = self.found(kind.__mro__, "__getattribute__", None)
        return any(getter is plain for plain in _PLAIN_GETTERS) or is_frameworks_function(getter)

    @ours.calling
    def namespace(self, callee, /, *args):
        """Call vars or globals."""
        if not args:
            caller = frames.around_ours(sys._getframe(1))
            return caller.f_globals if callee is globals else caller.f_locals
        if callee is vars and len(args) == 1 and self.run.reason is None and args[0] not in self.run.opaque and not self.run.born.has(args[0]):
            kind = type(args[0])
            held = attributes_of(args[0], kind) if not is_librarys(kind) else None
            if type(held) is dict and self.is_looked_up_plainly(kind):
                self.run.reads.object(args[0], kind, held)
                return held
        self.run.impure(f"calls {callee.__name__}")
        return callee(*args)

    def is_named_tuple(self, kind):
        """Whether `kind` is a class of named tuples that are searched as all tuples are; what it defines is noted."""
        if not is_named_tuple(kind):
            return False
        self.note_whole(kind)
        return True

    def note_whole(self, kind):
        """Notes all that `kind` defines, and what it derives from."""
        self.run.reads.bases(kind)
        for cls in kind.__mro__:
            if not is_c_class(cls):
                self.run.reads.contents(cls.__dict__, cls)

    def ask_instance(self, it, classes, subclass):
        """`isinstance(it, classes)` or, with `subclass`, `issubclass(it, classes)` is asked."""
        kind = type(it)
        self.note_class(it)
        if subclass and not issubclass(kind, type):
            self.run.impure("asks issubclass about an object")
        elif kind not in TENSORS:
            self._bases(it if subclass else kind)
            if not subclass and type(it) not in PLAIN:
                asked = self.found(kind.__mro__, "__class__", None)
                getter = self.found(kind.__mro__, "__getattribute__", None)
                if type(asked) is not GetSetDescriptorType or type(getter) is FunctionType and not is_frameworks_function(getter):
                    self.run.impure(f"asks for the class of an object of type {kind.__name__}")
        self._ask_classes(classes)

    def asks_kind(self, it, kind):
        """Whether the interpreter counts `it` as a sequence or mapping is asked: classes say so when they are made, or are registered."""
        self.run.deferred.looked_at(it)
        if self.run.reason is None and type(it) not in PLAIN and type(it) not in TENSORS:
            self.ask_instance(it, kind, False)

    def _bases(self, cls):
        if not is_c_class(cls) and not is_librarys(cls):
            self.run.reads.bases(cls)

    def _ask_classes(self, cls):
        kind = type(cls)
        if kind is tuple or kind is UnionType:
            for x in cls if kind is tuple else cls.__args__:
                self._ask_classes(x)
        elif not issubclass(kind, type):
            self.run.impure("asks isinstance about what is no class")
        elif kind is not type:
            checks = [self.found(kind.__mro__, name, None) for name in _CHECKS]
            if checks == [abc.ABCMeta.__dict__[name] for name in _CHECKS]:
                self.run.reads.asked(registered, None, abc.get_cache_token())  # it remembers what it has found until a class is registered somewhere
            elif checks != [type.__dict__[name] for name in _CHECKS]:
                self.run.impure("asks isinstance about an unusual class")
