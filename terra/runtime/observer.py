"""The observer: finds out whether a run of user code did nothing but compute.

It is shown the operands of the observed form of a function (see `terra.transform.observed`) while that runs, and gives them back as they are. A run is *pure* if

* all calls of the framework's were skipped (see `fast_forward`), so that nothing in the framework changed either, and each was the same as before;
* it called nothing else but functions of the user's, observed in the same way, and builtins without side effects;
* it changed no object but the containers that it had made itself.

Everything that it read of the world around it is noted in `Reads`: if the reads hold, and the arguments are the same, another run would do the same.
Whatever is not known to be harmless makes a run impure; that costs speed only.
"""

import abc
import builtins
import contextlib
import dis
import enum
import functools
import itertools
import math
import os
from types import (
    BuiltinFunctionType, FunctionType, GeneratorType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType,
)

import numpy as np

from terra.runtime import fast_calls, fast_forward, guards, location, user_layers
from terra.runtime import internals as tfi
from terra.runtime.reads import Reads
from terra.runtime.regions import SCALARS, Unskippable
from terra.runtime.tensor import TerraTensor
from terra.transform import convert
from terra.transform.observed import Unobservable

EagerTensor = tfi.EagerTensor
_TENSORS = frozenset([TerraTensor, EagerTensor])
_PLAIN = frozenset([*SCALARS, complex, slice, range, type(Ellipsis), type(NotImplemented), tfi.tensor_shape.TensorShape, tfi.tf.DType])
_LISTS = frozenset([list, dict, set, frozenset])
_ITERATORS = frozenset([zip, enumerate, map, filter, reversed, GeneratorType, itertools.chain, itertools.islice, itertools.product, itertools.repeat,
                        type(iter([])), type(iter(())), type(iter({})), type(iter(range(0))), type(reversed([])), type(iter("")),
                        type({}.keys()), type({}.values()), type({}.items()), type(iter({}.items())), type(iter({}.values()))])
_VALUES_OF_TENSORS = frozenset(["shape", "dtype", "ndim", "get_shape", "device"])
_VALUES_OF_VARIABLES = frozenset(["shape", "dtype", "ndim", "name", "path", "trainable", "handle", "assign", "assign_add", "assign_sub", "read_value", "value"])
_CONVERSIONS = frozenset([int, float, bool, str, complex, range, slice, enumerate, zip, list, tuple, dict, set, frozenset, reversed, type,
                          itertools.chain, itertools.islice, itertools.product, itertools.repeat, contextlib.nullcontext, tfi.tensor_shape.TensorShape])
# Builtins without side effects, by what they do to their arguments.
_ITERATING = frozenset(map(id, [len, iter, next]))
_REDUCING = frozenset(map(id, [sum, min, max, sorted, any, all]))
_FORMATTING = frozenset(map(id, [repr, format, ord, chr]))
_CALCULATING = frozenset(map(id, [abs, round, divmod, pow]))
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_NUMPY = frozenset(map(id, [
    np.zeros, np.ones, np.full, np.arange, np.eye, np.linspace, np.array, np.asarray, np.prod, np.sum, np.mean, np.max, np.min, np.cumsum, np.concatenate,
    np.stack, np.reshape, np.transpose, np.repeat, np.tile, np.meshgrid, np.where, np.clip, np.argmax, np.expand_dims, np.squeeze, np.sqrt, np.isscalar,
    np.ndim, np.shape]))
_MUTATORS = frozenset("append extend insert pop remove clear sort reverse add discard update setdefault popitem".split())
# Functions of the framework's that may run no operation: what they give follows from their arguments.
_WITHOUT_OPERATIONS = frozenset(
    "shape size rank ndim constant convert_to_tensor range arange cast zeros ones fill stack concat reshape expand_dims squeeze reduce_prod reduce_sum "
    "reduce_max reduce_min prod sum max min maximum minimum add subtract multiply floordiv floormod mod identity is_tensor executing_eagerly "
    "broadcast_static_shape meshgrid linspace sequence_mask one_hot zeros_like ones_like gather slice strided_slice split unstack tile equal not_equal less greater less_equal greater_equal "
    "logical_and logical_or logical_not get_static_value stop_gradient ensure_shape tensorshape".split())


class Observer:
    """Observes one run."""

    def __init__(self, runner, given):
        self.runner = runner
        self.start = len(runner.log)
        self.reads = Reads()
        self.reason = None  # why the run is impure
        self.passing = False  # whether that may be different the next time
        self.jumped = []  # regions that were jumped over
        self._skipped = []  # (place in the log, length) of them, and of what the operators of tensors have issued
        self._before = self.start  # how long the log was before the operator at hand
        self._born = {}  # id -> container, iterator, function or tape that the run has made
        self._given = given  # ids of the containers among the arguments
        self._settings = {root: guards.settings(root) for root in (None, "keras", "tf_keras")}

    def __enter__(self):
        self._outer, location.tls.observer = location.tls.observer, self
        self.runner.observer = self
        return self

    def __exit__(self, *exc):
        location.tls.observer = self._outer
        self.runner.observer = None

    def run(self, called, args, kwargs):
        """The result of calling the user's function or, wrapped, layer `called`."""
        with self:
            if type(called) is user_layers.Wrapped:
                return self._layer(called.layer, called, *args, **kwargs)
            return self._user_function(called, called)(*args, **kwargs)

    def finish(self, result):
        """The run gave `result`: the sealed reads. Raises Unskippable if it was not pure."""
        if self.reason is None:
            node = self._issued()
            if node is not None:
                self.impure(f"issues {node.op_type} in a call that was not skipped", True, node.location)
            else:
                self._check_result(result, set())
        return self.finish_inside()

    def finish_inside(self):
        """The same for a run inside of a call of the framework's that is recorded as a whole."""
        if self.reason is None and any(type(x) is TerraTensor and x._owner is self.runner for x in self.reads.values()):
            self.impure("keeps a tensor in an object")
        for region in self.jumped:
            self.reads.guard(region.guard)
            for variable in region.accessed:
                self.reads.variable(variable)
        self._born.clear()
        self._given.clear()
        if self.reason is not None:
            raise Unskippable
        self.reads.seal(self._settings)
        return self.reads

    def give(self, container):
        """The framework hands a list or dict to the user's code."""
        if id(container) not in self._born:
            self._given.add(id(container))

    def calls(self, function):
        """The user's `function` was called."""
        self.reads.function(function, _globals_read(function.__code__))

    def _issued(self):
        """The first operation that the run issued itself, or None."""
        log, k = self.runner.log, self.start
        for at, length in self._skipped:
            if at != k:
                break
            k += length
        return log[k][0] if k < len(log) else None

    def impure(self, reason, passing=False, where=None):
        """The run does something that another could not leave out."""
        if self.reason is None:
            origin = (where or location.tls.cursor.current).origin()
            self.reason = f"{reason} ({os.path.basename(origin[0])}:{origin[1]})" if origin else reason
            self.passing = passing

    def note_jump(self, region):
        self.jumped.append(region)
        self._skipped.append((len(self.runner.log), len(region.entries)))

    def _check_result(self, value, seen):
        kind = type(value)
        if kind is tuple or kind is list or kind is dict:
            if kind is not tuple:
                if id(value) not in self._born or id(value) in seen:
                    self.impure("returns a container that it has not made, or one twice")
                    return
                seen.add(id(value))
            for x in value.values() if kind is dict else value:
                self._check_result(x, seen)

    # -- operands --------------------------------------------------------------------------------------------------------------

    def fresh(self, it):
        self._born[id(it)] = it
        return it

    def operand(self, it):
        """`it` takes part in an operation."""
        self._before = len(self.runner.log)
        kind = type(it)
        if kind in _PLAIN or kind in _TENSORS:
            pass
        elif kind is tuple:
            for x in it:
                self.operand(x)
        elif kind in _LISTS or kind is np.ndarray or (isinstance(it, (list, dict)) and guards.is_librarys(kind)):
            self._look_into(it)
        elif not (isinstance(it, np.generic) or tfi.is_variable(it) or isinstance(it, (enum.Enum, np.dtype))):
            self.impure(f"uses an object of type {kind.__name__} in an expression")
        return it

    def result(self, it):
        """`it` is what an operator gave: what it issued follows from its operands."""
        length = len(self.runner.log)
        if length != self._before and (not self._skipped or self._skipped[-1][0] < self._before):
            self._skipped.append((self._before, length - self._before))
        if type(it) is list:
            self._born[id(it)] = it
        self._before = length
        return it

    def compared(self, it):
        self._before = len(self.runner.log)
        kind = type(it)
        if kind is tuple or kind is list or kind is set or kind is frozenset:
            self._look_into(it)
            for x in it:
                self.compared(x)
        elif not all(getattr(kind, name) in (getattr(object, name), getattr(type, name)) for name in _COMPARISONS):
            self.operand(it)
        return it

    def searched(self, it):
        """`x in it`"""
        kind = type(it)
        if kind in (tuple, list, set, frozenset):
            return self.compared(it)
        if kind is not str and kind is not range:
            self._look_into(it)
        self._before = len(self.runner.log)
        return it

    def truth(self, it):
        kind = type(it)
        if not (kind in _PLAIN or kind in _TENSORS or kind is tuple):
            if kind in _LISTS:
                self._look_into(it)
            elif hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
                self.operand(it)
        return it

    def formatted(self, it):
        if type(it) not in SCALARS:
            self.impure(f"formats an object of type {type(it).__name__}")
        return it

    def container(self, it):
        """An item or slice of `it` is taken."""
        self._before = len(self.runner.log)
        if type(it) not in _PLAIN and type(it) not in _TENSORS:
            self._look_into(it)
        return it

    iterated = items = container

    def unpacked(self, it, shape):
        """`it` is unpacked into targets of this structure."""
        self.iterated(it)
        if type(it) is tuple or type(it) is list:
            for x, part in zip(it, shape):
                if part is not None:
                    self.unpacked(x, part)
        elif any(part is not None for part in shape):
            self.impure(f"unpacks an object of type {type(it).__name__}")
        return it

    def unpacking(self, it, shape):
        """The items of `it` will be unpacked."""
        self.iterated(it)
        return self.fresh(map(lambda x: self.unpacked(x, shape), it))

    def _look_into(self, it):
        """What a container holds is used."""
        if self.reason is not None or id(it) in self._born or id(it) in self._given:
            return
        kind = type(it)
        if kind is tuple or kind in _PLAIN or kind in _TENSORS:
            return
        if isinstance(it, tuple) and hasattr(kind, "_fields"):
            return
        if kind in _LISTS or (isinstance(it, (list, dict)) and guards.is_librarys(kind)):
            held = self.reads.contents(it)
            if any(type(x) is TerraTensor and x._owner is self.runner for x in held):
                self.impure("keeps a tensor in a container")
        elif kind is np.ndarray:
            try:
                self.reads.array(it)
            except Unskippable:
                self.impure("uses a large array")
        elif not tfi.is_variable(it):
            self.impure(f"looks into an object of type {kind.__name__}")

    # -- changes ---------------------------------------------------------------------------------------------------------------

    def stored(self, it):
        """An item of `it` is set."""
        if id(it) not in self._born or type(it) not in (list, dict, np.ndarray):
            self.impure("changes a container that it has not made")
        return it

    def assigned(self, it):
        self.impure("sets an attribute")
        return it

    def inplace(self, it, held):
        """`held += it` and the like."""
        kind = type(held)
        if kind is list or kind is set or kind is dict:
            self.stored(held) if kind is not set else self.impure("changes a set")
            self.iterated(it)
        elif kind in _PLAIN or kind in _TENSORS or kind is tuple or isinstance(held, np.generic):
            self.operand(it)
        else:
            self.impure(f"changes an object of type {kind.__name__}")
        return it

    # -- attributes ------------------------------------------------------------------------------------------------------------

    def owner(self, it, name):
        """The attribute `name` of `it` is read."""
        if self.reason is None:
            self._attribute(it, name)
        return it

    def _attribute(self, it, name):
        kind = type(it)
        if kind in _TENSORS:
            if name not in _VALUES_OF_TENSORS:
                self.impure(f"asks a tensor for {name}")
        elif kind in _PLAIN or kind in _LISTS or kind is tuple or isinstance(it, (np.generic, np.dtype)) or id(it) in self._born:
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
        if getter is not object.__getattribute__ and not _is_frameworks(getter):
            self.impure(f"asks an object of type {kind.__name__}, which has its own __getattribute__, for {name}")
            return
        attributes = vars(it) if hasattr(it, "__dict__") else {}
        found = self._found(kind.__mro__, name, attributes)
        how = type(found)
        if how is property:
            if found.fget is None or not _is_frameworks(found.fget):
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

    # -- calls -----------------------------------------------------------------------------------------------------------------

    def enter(self, cursor, call_id, callee):
        """What to call at an instrumented call site."""
        form = cursor.enter(call_id, callee)
        return form if self.reason is not None else self._callee(callee, form)

    def builtin(self, callee):
        """What to call in place of a builtin that is not instrumented."""
        form = fast_forward.form_of(callee)
        return form if self.reason is not None else self._callee(callee, form)

    def _callee(self, callee, form):
        kind = type(callee)
        if kind is FunctionType:
            if fast_calls.substitute(callee) is not None:
                return functools.partial(self._framework, callee, form)
            if id(callee) in _NUMPY:
                return functools.partial(self._on_plain, callee)
            return self._user_function(callee, form)
        if kind is MethodType:
            return self._method(callee, form)
        if kind is BuiltinFunctionType:
            return self._builtin_function(callee, form)
        if isinstance(callee, type):
            return self._class(callee, form)
        if type(form) is fast_forward.Skipping:
            return functools.partial(self._framework, None, form)
        if type(form) is user_layers.Wrapped:
            return functools.partial(self._layer, callee, form)
        if isinstance(callee, np.ufunc) or id(callee) in _NUMPY:
            return functools.partial(self._on_plain, callee)
        call = self._found(kind.__mro__, "__call__", None)
        if type(call) is FunctionType and not _is_frameworks(call):
            return self._bound(call, callee, form)
        self.impure(f"calls an object of type {kind.__name__}")
        return form

    def _user_function(self, function, form):
        """The observed form of a user's function."""
        if id(function) in self._born:
            return function
        try:
            observed = convert.observed_form(function)
        except Unobservable as error:
            self.impure(f"calls {function.__qualname__}: {error}")
            return form
        self.calls(function)
        return observed

    def _bound(self, function, instance, form):
        observed = self._user_function(function, None)
        return form if observed is None else MethodType(observed, instance)

    def _method(self, callee, form):
        function, owner = callee.__func__, callee.__self__
        if function is tfi.tape_gradient_method or fast_forward.substitute(callee) is not None:
            return functools.partial(self._framework, None, form)
        if type(owner) is tfi.tf.GradientTape and function.__name__ == "watch":
            return form
        if type(function) is FunctionType and _is_frameworks(function):
            if type(owner) in _PLAIN or type(owner) in _TENSORS:  # shapes; numpy() is an event
                return functools.partial(self._on_plain, callee)
            self.impure(f"calls {function.__qualname__}")
            return form
        if type(function) is not FunctionType:
            self.impure(f"calls {callee!r}")
            return form
        return self._bound(function, owner, form)

    def _framework(self, callee, form, /, *args, **kwargs):
        """Call a function or object of the framework's, which must be skipped."""
        jumps, length = len(self.jumped), len(self.runner.log)
        if length and self.runner.step.skeleton is not self.runner:
            self.impure("fell back")
        result = form(*args, **kwargs)
        if len(self.jumped) != jumps:
            self._bear(result)
        elif len(self.runner.log) != length:
            self.impure("calls something of the framework's that was not skipped", True)
        elif callee is None or callee.__name__ not in _WITHOUT_OPERATIONS or not _all_plain((args, kwargs)):
            self.impure("calls something of the framework's that runs no operation", callee is None)
        elif type(result) in _LISTS:
            self.fresh(result)
        return result

    def _bear(self, value):
        """The framework made `value`, and all containers in it."""
        kind = type(value)
        if kind is list or kind is tuple or kind is dict:
            if kind is not tuple:
                self._born[id(value)] = value
            for x in value.values() if kind is dict else value:
                self._bear(x)

    def _layer(self, layer, form, /, *args, **kwargs):
        """Call a layer of a user's class."""
        if self.reason is None:
            kind = type(layer)
            if "call" in vars(layer):
                self.impure("calls a layer whose call was replaced")
            elif not user_layers.is_predicted(form, args, kwargs):
                self.impure("calls a layer by its wrapper", True)
            else:
                self.reads.layers_class(form.known, kind)
                attributes = vars(layer)
                for name in user_layers.LOOKED_AT:
                    if name in attributes:
                        self.reads.entry(attributes, name, attributes[name])
                    else:
                        self.reads.absent(attributes, name)
                call = self._found(kind.__mro__, "call", None)
                if type(call) is FunctionType and self.reason is None:
                    observed = self._bound(call, layer, None)
                    if observed is not None:
                        return user_layers.call_directly(form, args, kwargs, observed)
                self.impure(f"calls a layer whose call is a {type(call).__name__}")
        return form(*args, **kwargs)

    # -- builtins --------------------------------------------------------------------------------------------------------------

    def _builtin_function(self, callee, form):
        owner = callee.__self__
        if callee is isinstance or callee is issubclass:
            return functools.partial(self._is_instance, callee)
        if callee is hasattr or callee is getattr:
            return functools.partial(self._get_attribute, callee)
        if id(callee) in _REDUCING:
            return functools.partial(self._reduce, callee)
        if id(callee) in _ITERATING or id(callee) in _FORMATTING or callee is callable:
            return functools.partial(self._on_one, callee)
        if id(callee) in _CALCULATING or id(callee) in _NUMPY or owner is math:
            return functools.partial(self._on_plain, callee)
        if isinstance(owner, (ModuleType, type)):
            self.impure(f"calls {callee.__qualname__}")
            return form
        if type(owner) in _LISTS:
            if callee.__name__ in _MUTATORS:
                if id(owner) not in self._born:
                    self.impure("changes a container that it has not made")
            else:
                self._look_into(owner)
        elif type(owner) not in (str, bytes, int, float, tuple, range):
            self.impure(f"calls {callee.__qualname__}")
        return functools.partial(self._on_containers, callee)

    def _on_plain(self, callee, /, *args, **kwargs):
        """Call a function that calculates."""
        if "out" in kwargs:
            self.impure(f"has {callee.__name__} write into an array")
        for x in (*args, *kwargs.values()):
            if not isinstance(x, type):
                self._element(x)
        return self._made(callee(*args, **kwargs))

    def _element(self, it):
        """All of `it` takes part in a calculation."""
        self.operand(it)
        if type(it) is list:
            for x in it:
                self._element(x)

    def _reduce(self, callee, /, *args, **kwargs):
        """Call sum, min, any and the like."""
        check = self.truth if callee is any or callee is all else self._element
        given = []
        for x in args:
            if type(x) in _ITERATORS:
                self._look_into(x)
                x = map(functools.partial(self._shown, check), x)
            elif type(x) in _LISTS or type(x) is tuple:
                self._look_into(x)
                for y in x:
                    check(y)
            else:
                check(x)
            given.append(x)
        for x in kwargs.values():
            self._element(x)
        return self._made(callee(*given, **kwargs))

    @staticmethod
    def _shown(check, it):
        check(it)
        return it

    def _on_one(self, callee, /, *args):
        """Call len, iter, repr and the like."""
        for x in args:
            if id(callee) in _FORMATTING:
                self.formatted(x)
            elif callee is not callable:
                self.iterated(x)
        return self._made(callee(*args))

    def _on_containers(self, callee, /, *args, **kwargs):
        """Call a method of a list, a dict or a string."""
        by_value = callee.__name__ in ("remove", "index", "count", "sort", "join", "format", "get", "pop", "setdefault", "startswith", "endswith", "split")
        for x in (*args, *kwargs.values()):
            if callee.__name__ == "format":
                self.formatted(x)
            elif by_value:
                self.compared(x)
                if callable(x):
                    self.impure(f"hands a function to {callee.__name__}")
            elif callee.__name__ in ("extend", "update"):
                self.iterated(x)
        if callee.__name__ in ("sort", "remove", "index", "count"):
            self.compared(callee.__self__)
        return self._made(callee(*args, **kwargs))

    def _made(self, result):
        if type(result) in _LISTS or type(result) in _ITERATORS or type(result) is np.ndarray:
            self.fresh(result)
        return result

    def _is_instance(self, callee, /, it, classes):
        for cls in classes if type(classes) is tuple else (classes,):
            if type(cls) is not type and type(cls) is not abc.ABCMeta and type(type(cls)) is not type:
                self.impure("asks isinstance about an unusual class")
        return callee(it, classes)

    def _get_attribute(self, callee, /, it, name, *default):
        if type(name) is not str or not hasattr(it, name):
            self.impure("asks for an attribute that is missing")
        elif self.reason is None:
            self._attribute(it, name)
        return callee(it, name, *default)

    def _class(self, callee, form):
        if callee is tfi.tf.GradientTape:
            return functools.partial(self._tape, form)
        if callee is tfi.tf.name_scope:
            return form
        if callee in _CONVERSIONS:
            return functools.partial(self._convert, callee)
        if issubclass(callee, tuple) and hasattr(callee, "_fields") and callee.__init__ is object.__init__ \
                and callee.__new__.__code__.co_filename.startswith("<string>"):
            return form
        self.impure(f"makes an object of type {callee.__name__}")
        return form

    def _convert(self, callee, /, *args, **kwargs):
        if callee is type and len(args) != 1:
            self.impure("makes a class")
        for x in (*args, *kwargs.values()):
            if callee in (int, float, bool, str, complex):
                self.operand(x) if type(x) not in _TENSORS or callee is bool else None
            elif callee is not type and callee is not contextlib.nullcontext:
                self.iterated(x)
        made = self._made(callee(*args, **kwargs))
        if callee in (set, frozenset, dict) and not all(type(x) in SCALARS for x in made):
            self.impure("makes a set of objects")  # which may have an __eq__ and a __hash__ of their own
        return made

    def _tape(self, form, /, *args, **kwargs):
        return self.fresh(form(*args, **kwargs))


def _all_plain(value):
    """Whether there is nothing but scalars, tensors and the like, in lists, tuples and dicts."""
    kind = type(value)
    if kind is dict:
        return all(map(_all_plain, value.values()))
    if kind is list or kind is tuple:
        return all(map(_all_plain, value))
    return kind in _PLAIN or kind in _TENSORS or kind is np.ndarray or isinstance(value, (np.generic, type(np.float32))) or tfi.is_variable(value)


def _is_frameworks(function):
    space = getattr(function, "__globals__", None)
    return space is not None and str(space.get("__name__")).split(".", 1)[0] in ("tensorflow", "keras", "tf_keras")


@functools.lru_cache(None)
def _attrgetter(name):
    return lambda owner: getattr(owner, name)


@functools.lru_cache(1000)
def _slot(descriptor):
    return descriptor.__get__


_globals_known = {}  # id of a code object -> (it, names)


def _globals_read(code):
    """The names that a code object, or one nested in it, looks up among the globals."""
    known = _globals_known.get(id(code))
    if known is None:
        names = {i.argval for c in convert.codes_within(code) for i in dis.get_instructions(c) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        known = _globals_known[id(code)] = code, tuple(names)
    return known[1]
