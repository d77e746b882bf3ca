"""Guards of fast-forward: whether anything that a framework object's code reads has changed since its call was recorded.

When a call is recorded, the containers that it may read are listed: the attributes of the object and, recursively, of the framework objects that it is made of;
the contents of lists, tuples, sets and dicts; the methods of the classes involved. With each goes what it held. Later it must hold the same objects, or
equal scalars of one type; that is a few nanoseconds for each entry, and no recursion. Global settings are compared by value.
Whatever could run code of the user's (a subclass, a function) makes the object unskippable.
"""

import sys
import weakref
from functools import partial
from itertools import chain
from operator import is_
from threading import local
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType

import numpy as np

from terra.runtime import added_losses, lasting, versions
from terra.runtime import internals as tfi
from terra.runtime.kinds import is_description, is_librarys
from terra.runtime.regions import SCALARS, Unskippable
from terra.runtime.tensor import TerraTensor

_ROOTS = ("keras.src.", "tf_keras.src.")
_CALLABLE_PACKAGES = frozenset(["layers", "losses", "models", "engine"])
_FUNCTION_PACKAGES = frozenset(["regularizers", "initializers", "constraints", "optimizers"])
_NEVER = frozenset(["Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"])  # they run the user's code
STEPS = ("train_step", "test_step", "predict_step")  # of Keras' models
STEP_FUNCTIONS = ("train_function", "test_function", "predict_function")  # what `fit` and the like call them by
_CALLERS = frozenset([*STEPS, *STEP_FUNCTIONS, *[f"make_{name}" for name in STEP_FUNCTIONS]])  # attributes of a model that call it
_OPAQUE = frozenset(["Tracker", "Config", "Function", "KerasHistory"])  # looked at no further than their identity
# Packages of Keras whose objects are parts of a layer, an optimizer and so on: their attributes matter.
_PARTS = frozenset([
    "layers", "models", "engine", "losses", "metrics", "optimizers", "regularizers", "initializers", "constraints", "dtype_policies", "random",
    "activations", "mixed_precision", "quantizers", "utils", "trainers", "ops"])
# What is changed when an attribute is set, and matters to nothing but that, and to checkpoints; the first also grows with each mask that a cell keeps for a while.
_OF_SETTERS = ("_tracked", "_obj_reference_counts_dict", "_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")
_OF_VARIABLES = ("_constraint", "_regularizer", "_value", "_variable")  # attributes: what may be called, and a variable within
_RESETTING = frozenset(["RNN", "SimpleRNN", "GRU", "LSTM", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"])  # tf_keras' layers that do so
_OF_NODES = ("_flat_arguments", "args", "kwargs", "call_args", "call_kwargs")  # attributes that hold arguments
_MOST_CONTAINERS = 5_000
_MOST_BYTES = 500_000  # of an array that is compared: about 60 us

_packages = {}
_callable_kinds = {}
_derived_kinds = {}
_stock_kinds = weakref.WeakKeyDictionary()


def stock_package(module):
    """`layers` for `keras.src.layers.core.dense`, and so on; None if the module is not Keras' own."""
    package = _packages.get(module, _packages)
    if package is _packages:
        package = None
        for root in _ROOTS:
            if module is not None and module.startswith(root):
                package = module[len(root):].split(".", 1)[0]
        _packages[module] = package
    return package


def is_stock_object(callee):
    """Whether `callee` is a layer, model or loss of Keras' own; or a metric of Keras 3's, whose call is an update and its result."""
    kind = type(callee)
    known = _callable_kinds.get(kind)
    if known is None:
        known = _callable_kinds[kind] = (
            stock_package(kind.__module__) in _CALLABLE_PACKAGES and kind.__name__ not in _NEVER and hasattr(kind, "call")
            or kind.__module__.startswith("keras.src.metrics.") and hasattr(kind, "update_state"))
    return known


def may_do_nothing(owner):
    """Whether calls of `owner` may well run no operation: dropout in inference, the losses of a model without regularizers, an optimizer that scales no loss,
    the metrics of a model that has none."""
    return is_stock_object(owner) or is_derived_object(owner) or stock_package(type(owner).__module__) in ("optimizers", "trainers")


def is_stock_function(callee):
    """Whether `callee` is an object that stands for a function: a schedule, a regularizer, an initializer, a constraint of Keras' own; or a `tf.function`."""
    module = type(callee).__module__
    return type(callee) is tfi.PolymorphicFunction or (
        stock_package(module) in _FUNCTION_PACKAGES and (".optimizers." not in module or ".schedules." in module))


def is_derived_object(callee):
    """Whether `callee` is a layer, model or loss of a class of the user's, whose `__call__` is the framework's."""
    kind = type(callee)
    known = _derived_kinds.get(kind)
    if known is None:
        call = getattr(kind, "__call__", None)
        known = _derived_kinds[kind] = hasattr(kind, "call") and isinstance(call, FunctionType) and _is_frameworks(call) and any(
            stock_package(cls.__module__) in _CALLABLE_PACKAGES and hasattr(cls, "call") for cls in kind.__mro__)
    return known


def is_stock_kind(kind):
    """Whether a class is Keras' own, or derives from one."""
    known = _stock_kinds.get(kind)
    if known is None:
        known = _stock_kinds[kind] = any(stock_package(cls.__module__) is not None for cls in kind.__mro__)
    return known


def is_seed_generator(kind):
    """Whether it is the class of Keras' generators of seeds, each of which has a variable."""
    return kind.__module__ == "keras.src.random.seed_generator"


def root_of_function(function, variables):
    """The package, `keras` or `tf_keras`, whose settings matter to a function that is given these variables; None if there is none."""
    for thing in (function, *map(type, variables)):
        root = thing.__module__.split(".", 1)[0]
        if root != "tensorflow" and root in tfi.FRAMEWORKS:
            return root
    return None


class Snapshot:
    """What containers held: compared all at once, object by object."""

    __slots__ = ("_parts", "_dicts", "_words", "_found", "_expected", "_sized", "_lengths", "_views", "_held", "_losses", "added_losses")

    def __init__(self):
        self._parts = {}  # id -> (a container, what is iterated over, what that gave, its keys if it is a dict)
        self._views = None
        self._losses = {}  # id -> where a layer of tf_keras keeps the losses that its calls add, for each thread
        self.added_losses = {}  # id -> list of the losses that calls of a layer add (Keras 3), which was not noted: see `added_losses`

    def __len__(self):
        return len(self._parts)

    def add(self, container, owner=None):
        """Note what `container` holds; returns that, or () if it was noted already. `owner`: what lives as long as the container, if that is a view."""
        key = id(owner or container)
        if key in self._parts:
            return ()
        view = container
        if isinstance(container, (dict, MappingProxyType)):
            view = container.values()
        elif type(getattr(container, "_storage", None)) is list:
            view = container._storage  # of TensorFlow's wrappers of lists, whose own iterators are slow
        held = tuple(view)
        self._parts[key] = container, view, held, tuple(container) if view is not container and isinstance(container, (dict, MappingProxyType)) else ()
        self._views = None
        return held

    def covers(self, container):
        """Whether what `container` holds was noted."""
        return id(container) in self._parts

    def update(self, other):
        """Note what another Snapshot has noted, too."""
        self._parts.update(other._parts)
        self._losses.update(other._losses)
        self._views = None

    def holds_any(self, ids):
        """Whether an object of one of these ids was held."""
        return not self.ids().isdisjoint(ids)

    def ids(self):
        """The ids of all objects that were held."""
        return {id(x) for _, _, held, _ in self._parts.values() for x in held}

    def no_losses(self, held):
        """A call that is skipped adds no losses to the thread's own, `held`, and removes none: there must be none."""
        self._losses[id(held)] = held

    def _flatten(self):
        self._dicts, self._sized, self._lengths, self._views, self._held = [], [], [], [], []
        versions_at, lengths_at, expected = [], [], []
        for container, view, held, keys in self._parts.values():
            address = versions.address_of_version(container.held if type(container) is lasting.Lasting else container)
            if address is not None:
                self._dicts.append((container, view, held, keys))
                versions_at.append(address)
                continue
            if type(container) is tuple:
                continue
            address = versions.address_of_length(view)
            if address is not None:
                lengths_at.append(address)
                expected.append(len(held))
            else:
                self._sized.append(view)
                self._lengths.append(len(held))
            if held:
                self._views.append(view)
                self._held += held
            if keys:
                self._views.append(container.keys())
                self._held += keys
        self._words = versions.Words(versions_at + lengths_at) if versions_at or lengths_at else None
        # The dicts may have changed since they were noted: the first time their values are compared.
        self._found = None
        self._expected = np.array(expected, np.uint64)

    def only_version(self):
        """The version of the dict that was noted, as `versions.word_at` gives it; None if it has none, or if there is more to compare."""
        if len(self._parts) != 1 or self._losses:
            return None
        (container, *_), = self._parts.values()
        address = versions.address_of_version(container)
        return None if address is None else versions.word_at(address)

    def holds(self):
        """Whether they hold the same objects, or equal scalars."""
        if self._views is None:
            self._flatten()
        for held in self._losses.values():
            if held.__dict__.get("_eager_losses"):
                return False
        if self._words is not None:
            found = self._words.read()
            if found != self._found and not self._still(found):
                return False
        if list(map(len, self._sized)) != self._lengths:
            return False
        if not all(map(is_, chain.from_iterable(self._views), self._held)):
            now = list(chain.from_iterable(self._views))
            if not equal(now, self._held):
                return False
            self._held = now  # the next time they are the same objects
        return True

    def _still(self, found):
        """Whether lists have the lengths, and dicts the values, that they had: `found` is what was read of them, and is expected the next time."""
        n = len(self._dicts)
        now = np.frombuffer(found, np.uint64)
        if not np.array_equal(now[n:], self._expected):
            return False
        changed = range(n) if self._found is None else np.flatnonzero(now[:n] != np.frombuffer(self._found, np.uint64)[:n]).tolist()
        for container, view, held, keys in map(self._dicts.__getitem__, changed):
            if not (equal(tuple(view), held) and (type(container) is lasting.Lasting or equal(tuple(container), keys))):
                return False
        self._found = found
        return True


def contents(array):
    """What there is to know of an array: it may be given another shape or type in place."""
    return array.shape, array.dtype, array.tobytes()


def noted(array):
    """(the array, its contents). Raises Unskippable if they cannot be compared, or not cheaply."""
    if array.nbytes > _MOST_BYTES or array.dtype.hasobject or array.dtype.names is not None:
        raise Unskippable("uses an array that is too large to be compared")
    return array, contents(array)


class Guard:
    """What the code of `owner`, and what it reads of `variables`, depends on. Making one raises Unskippable where that cannot be said.

    users: a list for the user's functions and classes that the owner's code may call; without it, there must be none. `reads` is what they have read.
    """

    __slots__ = ("containers", "arrays", "root", "settings", "reads")

    def __init__(self, owner, variables, users=None):
        self.reads = None
        self.containers = Snapshot()
        self.arrays = []  # (array, its contents)
        plain = type(owner) is FunctionType  # it depends on its arguments alone
        self.root = root_of_function(owner, variables) if plain else _root(type(owner))
        self.settings = settings(self.root)
        walk = Walk(self.containers, self.arrays, reading=plain, users=users)
        if not plain:
            if users is not None and not is_librarys(type(owner)):
                users.append(type(owner))
            if type(owner) is not tfi.PolymorphicFunction:  # which, once traced, looks at its arguments only
                walk.object(owner)
            variables = variables or getattr(owner, "_trainable_variables", ())
        for variable in variables:
            walk.variable(variable)

    def holds_any(self, ids):
        """Whether an object of one of these ids is among what the call read."""
        return self.containers.holds_any(ids) or (self.reads is not None and self.reads.holds_any(ids))

    def holds(self):
        """Whether nothing has changed."""
        if not self.containers.holds():
            return False
        for array, held in self.arrays:
            if contents(array) != held:
                return False
        if self.root is None:
            device, eagerly = self.settings
            if tfi.device_name() != device or tfi.eager_function_run.RUN_FUNCTIONS_EAGERLY is not eagerly:
                return False
        elif not equal(settings(self.root), self.settings):
            return False
        return self.reads is None or (not is_traced() and self.reads.holds())

    def only_version(self):
        """What changes whenever the guard may cease to hold, the device apart: see `Snapshot.only_version`."""
        return self.containers.only_version() if not self.arrays and self.root is None and self.reads is None else None


_monitoring = getattr(sys, "monitoring", None)


def is_traced():
    """Whether a debugger or a coverage tool follows the program's lines: the user's code must run then."""
    if sys.gettrace() is not None:
        return True
    return _monitoring is not None and (_monitoring.get_tool(_monitoring.DEBUGGER_ID) or _monitoring.get_tool(_monitoring.COVERAGE_ID)) is not None


class _Modules:
    """The functions of the framework's modules, and the methods of its classes, that its code calls by name: looked at once a step."""

    _NAMES = ("keras.src.backend.tensorflow.nn", "keras.src.backend.tensorflow.numpy", "keras.src.backend.tensorflow.core",
              "keras.src.backend.tensorflow.random", "keras.src.activations.activations", "keras.src.ops.nn",
              "keras.src.backend.tensorflow.math", "keras.src.ops.numpy", "keras.src.ops.core", "keras.src.ops.math", "keras.src.losses.losses",
              "tf_keras.src.backend", "tf_keras.src.activations", "tf_keras.src.losses")

    def __init__(self):
        self._spaces = {}  # id -> module or class
        self._held = Snapshot()
        self._n_modules = 0  # that were imported when they were looked for
        self.version = 0  # counts the times when something was replaced
        for space in (tfi.tf.nn, tfi.tf.math, tfi.EagerTensorBase, tfi.tf.Tensor, tfi.tf.Variable, tfi.ResourceVariable, tfi.tf.GradientTape,
                      tfi.tf.random.Generator):
            self.watch(space)

    def watch(self, space):
        """Look at the module or class `space`, too."""
        if id(space) not in self._spaces:
            self._spaces[id(space)] = space
            self._held.add(vars(space), space)

    def look(self):
        """The version they have now."""
        if len(sys.modules) != self._n_modules:
            self._n_modules = len(sys.modules)
            # Those of TensorFlow hold thousands of names: looked at where a number tells whether one has changed, as on Python up to 3.12.
            for name in self._NAMES + (tfi.MODULES_OF_OPERATIONS if versions.address_of_version({}) is not None else ()):
                if name in sys.modules:
                    self.watch(sys.modules[name])
        if not self._held.holds():
            self.version += 1
            self._held = Snapshot()
            for space in self._spaces.values():
                self._held.add(vars(space), space)
        return self.version


modules = _Modules()


def equal(new, old):
    """The same objects, or equal scalars of one type, one by one."""
    if len(new) != len(old):
        return False
    return all(
        a is b or (type(a) in SCALARS and type(a) is type(b) and a == b and (a != 0 or type(a) is not float or str(a) == str(b)))  # 0.0 == -0.0
        for a, b in zip(new, old))


def settings(root):
    """Global settings: device, whether tf.functions run eagerly; of the Keras called `root`, what its configuration says, call context and scopes."""
    found = [tfi.device_name(), tfi.eager_function_run.RUN_FUNCTIONS_EAGERLY]
    if root is None:
        return found
    config, state, legacy = _holders.get(root) or _find_holders(root)
    if config is not None:
        found += [config.get("_FLOATX"), config.get("_EPSILON"), config.get("_IMAGE_DATA_FORMAT")]
    if state is not None:
        tracked = vars(state.GLOBAL_STATE_TRACKER)
        context = tracked.get("current_call_ctx")
        cast = tracked.get("autocast_scope")  # another one at each call of a layer of mixed precision
        found += [context is None, getattr(cast, "dtype", None), tracked.get("distribution"), tracked.get("stateless_scope"), tracked.get("global_seed_generator")]
        if context is not None:
            found += [v for k, v in sorted(vars(context).items()) if k != "entry_layer"]
    if legacy is not None:
        backend, contexts, casts = legacy
        phases = backend._GRAPH_LEARNING_PHASES
        found.append(phases.get(backend._DUMMY_EAGER_GRAPH.key) if len(phases) else None)
        found.append(vars(casts).get("dtype"))
        context = vars(contexts).get("call_context")
        if context is not None:
            found.append(context._in_keras_graph)
            if context.in_call:
                held = context._state
                given, layer = held.get("call_context_args", {}), held["layer"]
                found += [held["saving"], held.get("training"), layer is None or vars(layer).get("_trainable"), *given, *given.values()]
    return found


_holders = {}  # root -> (namespace of its configuration, module of Keras 3's global state, where tf_keras keeps the like)


def _find_holders(root):
    """The entry of `_holders`, which is kept once that Keras is imported."""
    config = sys.modules.get(root + ".src.backend.config") or sys.modules.get(root + ".src.backend_config")
    state = sys.modules.get(root + ".src.backend.common.global_state")
    backend, contexts, casts = map(sys.modules.get, (
        root + ".src.backend", root + ".src.engine.base_layer_utils", root + ".src.mixed_precision.autocast_variable"))
    legacy = None
    if contexts is not None and casts is not None and hasattr(backend, "_GRAPH_LEARNING_PHASES"):
        legacy = backend, contexts._call_context, casts._autocast_dtype
    found = vars(config) if config is not None else None, state, legacy
    if root == "tensorflow" or (config is not None and (state is not None or legacy is not None)):
        _holders[root] = found
    return found


class Walk:
    """Visits an object and its parts, each once, and lists their containers; the framework's classes are watched from then on.

    `reading`: its parts are only read; what they could call does not matter. `users`: a list for what of the user's they may call.
    """

    def __init__(self, containers, arrays, reading=False, users=None):
        self.users = users
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
            self.containers.add(held)
            if not self.reading:  # an optimizer calls them
                self.todo += [held[name] for name in _OF_VARIABLES if held.get(name) is not None]

    def _attributes(self, owner):
        kind = type(owner)
        if kind.__name__ in _NEVER and not self.reading and (self.users is None or kind.__name__ != "Lambda"):
            raise Unskippable(f"uses a {kind.__name__}, which may do anything")
        for cls in kind.__mro__[:-1]:
            if stock_package(cls.__module__) is not None:
                modules.watch(cls)
        held = vars(owner)
        self.seen.update([id(held[name]) for name in _OF_SETTERS if name in held])
        if kind.__name__ in _RESETTING and "cell" in held:
            self.reset.update(map(id, (held["cell"], *getattr(held["cell"], "cells", ()))))
        if not self.reading and "_dropout_mask_cache" in held and kind.__name__.endswith("Cell") and id(owner) not in self.reset and (
                held.get("dropout") or held.get("recurrent_dropout")):
            raise Unskippable("keeps masks for dropout from one call to the next")
        losses = added_losses.list_of(held)
        if losses is not None:
            self.containers.added_losses[id(losses)] = losses
            self.seen.add(id(losses))
        self.steps.update([id(value) for name, value in held.items() if name in _CALLERS or name.startswith("__terra__")])
        self._container(lasting.attributes(owner), held)
        if type(held.get("_thread_local")) is local:
            self.containers.no_losses(held["_thread_local"])

    def _container(self, container, owner=None):
        if id(owner or container) in self.seen:
            return
        self.seen.add(id(owner or container))
        self.todo += self.containers.add(container, owner)

    def _value(self, value):
        kind = type(value)
        if kind in SCALARS or kind is TerraTensor or id(value) in self.steps or is_description(kind):
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
            if package is None:
                if callable(value) and not self.reading and (not is_librarys(kind) or _wraps_users(value)) and id(value) not in self.seen:
                    if self.users is None or tfi.has_custom_gradient(value) is None:
                        raise Unskippable(f"may call an object of type {kind.__name__}")
                    self.seen.add(id(value))
                    self.users += [value, tfi.has_custom_gradient(value)]
                    self.containers.add(vars(value))
            elif kind.__name__ == "Node":
                if id(value) not in self.seen:
                    self.seen.add(id(value))
                    self._node(value)
            elif id(value) not in self.seen and package in _PARTS and kind.__name__ not in _OPAQUE and hasattr(value, "__dict__"):
                self.seen.add(id(value))
                self._attributes(value)

    def _node(self, node):
        """A node of a Functional model: what its operation is given besides symbolic tensors."""
        held = vars(node)
        held = vars(held["arguments"]) if "arguments" in held else held
        if not all(type(x) in SCALARS or type(x).__name__ == "KerasTensor" for x in held.get("_flat_arguments", ())):
            for name in _OF_NODES:
                if held.get(name):
                    self._value(held[name])

    def _function(self, function):
        """A function or method that the framework may call."""
        if not _is_frameworks(function):
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
                                 or (isinstance(function, type) and not is_librarys(function)) or any(map(_is_iterator, value.args))
                                 or any(map(_is_iterator, value.keywords.values()))):
            raise Unskippable
        if id(value) not in self.seen:
            self.seen.add(id(value))
            self.todo.append(function)
            self._container(value.args)
            self._container(value.keywords)


def stand_in(made, function):
    """`made` is in the place of the framework's own `function` from now on: a class that has it is as it was."""
    made.terra_stands_for = function


def original(function):
    """The framework's function that `function` is in the place of, if it is."""
    return getattr(function, "terra_stands_for", function)


def _is_frameworks(function):
    function = original(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        return False
    return (function.__module__ or "").split(".", 1)[0] in tfi.FRAMEWORKS and function.__globals__.get("__name__", "").split(".", 1)[0] in tfi.FRAMEWORKS


def _is_iterator(value):
    return hasattr(type(value), "__next__")


def _wraps_users(value):
    """Whether a callable object of the framework's (of `tf.custom_gradient`, say) holds a function of the user's.

    A `tf.function` may: once it is traced it runs no Python, unless functions run eagerly, which is one of the settings.
    """
    if isinstance(value, tfi.PolymorphicFunction):
        return False
    return any(_is_users(held) for held in (*getattr(value, "__dict__", {}).values(), getattr(value, "__wrapped__", None)))


def _is_users(value):
    """Whether a value may be a function of the user's, or call one."""
    if isinstance(value, (FunctionType, MethodType)):
        return not _is_frameworks(value)
    if isinstance(value, partial):
        return _is_users(value.func)
    return callable(value) and not isinstance(value, (type, BuiltinFunctionType)) and not is_librarys(type(value))


def is_foreign(value):
    """Whether an entry of a class of the framework's is somebody else's function."""
    if isinstance(value, property):
        return any(is_foreign(function) for function in (value.fget, value.fset) if function is not None)
    value = getattr(value, "__func__", value)
    return type(value) is FunctionType and not _is_frameworks(value)


def _root(kind):
    """The framework that a class belongs to or derives from."""
    return next((root for root in (cls.__module__.split(".", 1)[0] for cls in kind.__mro__) if root in tfi.FRAMEWORKS), None)
