"""Which containers a call of a framework's object may read: those of the object and of its parts, recursively."""

from functools import partial
from threading import local
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np

from terra.frameworks import keras, tensorflow
from terra.frameworks.framework_objects import NEVER, is_frameworks_own, is_seed_generator, stock_package
from terra.runtime.fast_forward.guards import added_losses, attribute_filter
from terra.runtime.fast_forward.guards.patch_guard import modules
from terra.runtime.fast_forward.guards.container_guard import noted
from terra.runtime.tensors.comparing import SCALARS, Unskippable
from terra.runtime.tensors.object_kinds import is_description, is_iterator, is_librarys
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf.private import composites
from terra.tf import private_names as tfi
from terra.transform import policy

_MOST_CONTAINERS = 30_000  # some 0.1 us each, where none has changed


class GuardBuilder:
    """Visits an object and its parts, each once, and lists their containers; the framework's classes are watched from then on.

    `reading`: its parts are only read; what they could call does not matter. `users`: a list for what of the user's they may call. `states`: (id of an object, name) of attributes that are
    left out. `loose`: of objects of the user's classes, what the user's code alone reads does not matter.
    """

    def __init__(self, containers, arrays, reading=False, users=None, states=(), loose=False):
        self.users = users
        self.loose = loose
        self.states = states
        self.containers = containers
        self.arrays = arrays
        self.reading = reading
        self.seen = set()
        self.reset = set()  # ids of cells of tf_keras whose dropout masks each call of a layer begins with forgetting
        self.steps = set()  # ids of what calls the owner, never the other way round
        self.todo = []

    def object(self, owner):
        self._attributes(owner)
        self._finish()

    def variable(self, variable):
        if is_seed_generator(type(variable)):
            self._attributes(variable)
        else:
            self._variable(variable)
        self._finish()

    def _finish(self):
        while self.todo:
            self._value(self.todo.pop())
            if len(self.containers) > _MOST_CONTAINERS:
                raise Unskippable("belongs to an object that holds too much to be compared")

    def _variable(self, variable):
        if id(variable) not in self.seen:
            self.seen.add(id(variable))
            held = vars(variable)
            if held.get(tensorflow.WAS_READ) is False:
                held[tensorflow.WAS_READ] = True  # as it is when the call that the guard is for is over
            if self.users is not None and not is_librarys(type(variable)):  # it stands for a variable
                self.users.append(type(variable))
                self._container(held)
            else:
                self.containers.add(held)
            if not self.reading:  # an optimizer calls them
                self.todo += [held[name] for name in keras.OF_VARIABLES if held.get(name) is not None]

    def _attributes(self, owner):
        kind = type(owner)
        if kind.__name__ in NEVER and not self.reading and (self.users is None or kind.__name__ != "Lambda"):
            raise Unskippable(f"uses a {kind.__name__}, which may do anything")
        for cls in kind.__mro__[:-1]:
            if stock_package(cls.__module__) is not None:
                modules.watch(cls)
        held = vars(owner)
        self.seen.update([id(held[name]) for name in keras.OF_SETTERS if name in held])
        if kind.__name__ in keras.RESETTING and "cell" in held:
            self.reset.update(map(id, (held["cell"], *getattr(held["cell"], "cells", ()))))
        if not self.reading and "_dropout_mask_cache" in held and keras.is_cell(kind) and id(owner) not in self.reset and (
                held.get("dropout") or held.get("recurrent_dropout")):
            raise Unskippable("keeps masks for dropout from one call to the next")
        losses = added_losses.list_of(held)
        if losses is not None:
            self.containers.added_losses[id(losses)] = losses
            self.seen.add(id(losses))
        self.steps.update([id(value) for name, value in held.items() if name in keras.STEP_CALLERS])
        states = self.states
        if self.loose and not is_librarys(kind):
            states = [(id(owner), name) for name in attribute_filter.users_own(owner)]
        self._container(attribute_filter.attributes(owner, states), held)
        if type(held.get("_thread_local")) is local:
            self.containers.no_losses(held["_thread_local"])

    def _container(self, container, owner=None):
        if id(owner or container) in self.seen:
            return
        self.seen.add(id(owner or container))
        self.todo += self.containers.add(container, owner)

    def _value(self, value):
        kind = type(value)
        if kind in SCALARS or kind is TerraTensor or id(value) in self.steps or is_description(kind) or composites.is_spec(kind):
            return
        if isinstance(value, (dict, list, tuple, set)):
            self._container(value)
        elif kind is FunctionType or kind is MethodType:
            if not self.reading:
                self._function(value)
        elif isinstance(value, type):
            return
        elif kind is BuiltinFunctionType:
            if not self.reading and not isinstance(value.__self__, (ModuleType, type, type(None))):
                raise Unskippable("may call a method, which may change its object")
        elif isinstance(value, partial):
            self._partial(value)
        elif kind is np.ndarray:
            if self.reading:
                return
            self.arrays.append(noted(value))
        elif tfi.is_variable(value):
            self._variable(value)
        else:
            package = stock_package(kind.__module__)
            if package is None and (self.reading or self.users is not None) and not is_librarys(kind) and any(map(is_librarys, kind.__mro__)):
                package = "layers"  # a user's subclass: its attributes matter as those of a stock layer do
                if self.users is not None:
                    self.users.append(kind)
            if package is None and policy.is_pure(kind.__module__) and type(getattr(value, "__dict__", None)) is dict:
                if id(value) not in self.seen:  # its library's code, which is not looked at, may read it
                    self.seen.add(id(value))
                    self._attributes(value)
            elif package is None:
                if callable(value) and not self.reading and (not is_librarys(kind) or _wraps_users(value)) and id(value) not in self.seen:
                    self._callable(value, kind)
            elif keras.is_node(kind):
                if id(value) not in self.seen:
                    self.seen.add(id(value))
                    self._node(value)
            elif id(value) not in self.seen and package in keras.PARTS and kind.__name__ not in keras.OPAQUE and hasattr(value, "__dict__"):
                self.seen.add(id(value))
                self._attributes(value)

    def _callable(self, value, kind):
        """A callable object that is not the framework's: what its class defines is observed where the framework calls it."""
        self.seen.add(id(value))
        function = tfi.has_custom_gradient(value) if self.users is not None else None
        if function is not None:
            self.users += [value, function]
            self.containers.add(vars(value))
        elif self.users is not None and type(getattr(kind, "__call__", None)) is FunctionType and type(getattr(value, "__dict__", None)) is dict:
            self.users.append(kind)
        else:
            raise Unskippable(f"may call an object of type {kind.__name__}")

    def _node(self, node):
        """A node of a Functional model: what its operation is given besides symbolic tensors."""
        held = vars(node)
        held = vars(held["arguments"]) if "arguments" in held else held
        if not all(type(x) in SCALARS or keras.is_symbolic(type(x)) for x in held.get("_flat_arguments", ())):
            for name in keras.OF_NODES:
                if held.get(name):
                    self._value(held[name])

    def _function(self, function):
        """A function or method that the framework may call."""
        if not is_frameworks_own(function):
            if self.users is None:
                raise Unskippable(f"may call {getattr(function, '__qualname__', function)}, which may do anything")
            self.users.append(function)
        elif id(function) not in self.seen:
            self.seen.add(id(function))
            if type(function) is MethodType:
                self.todo.append(function.__self__)
            for cell in getattr(function, "__func__", function).__closure__ or ():
                try:
                    held = cell.cell_contents
                except ValueError:
                    continue
                if isinstance(held, (FunctionType, MethodType, partial)) or stock_package(type(held).__module__) is not None:
                    self.todo.append(held)

    def _partial(self, value):
        """A functools.partial: its function is called with arguments that may be changed in place."""
        function = value.func
        if not self.reading and (type(value) is not partial or isinstance(function, BuiltinFunctionType)
                                 or (isinstance(function, type) and not is_librarys(function)) or any(map(is_iterator, value.args))
                                 or any(map(is_iterator, value.keywords.values()))):
            raise Unskippable
        if id(value) not in self.seen:
            self.seen.add(id(value))
            self.todo.append(function)
            self._container(value.args)
            self._container(value.keywords)


def _wraps_users(value):
    """Returns whether a callable object of the framework's (of `tf.custom_gradient`, say) holds a function of the user's.

    A `tf.function` may: once it is traced it runs no Python, unless functions run eagerly, which is one of the settings.
    """
    if isinstance(value, tfi.PolymorphicFunction):
        return False
    return any(_is_users(held) for held in (*getattr(value, "__dict__", {}).values(), getattr(value, "__wrapped__", None)))


def _is_users(value):
    """Returns whether a value may be a function of the user's, or call one."""
    if isinstance(value, (FunctionType, MethodType)):
        return not is_frameworks_own(value)
    if isinstance(value, partial):
        return _is_users(value.func)
    return callable(value) and not isinstance(value, (type, BuiltinFunctionType)) and not is_librarys(type(value))
