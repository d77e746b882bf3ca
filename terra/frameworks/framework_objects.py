"""Recognises what is the framework's own: its functions, layers, losses and other objects, and classes that derive from them."""

import functools
import weakref
from types import FunctionType

from terra.tf import private_names as tfi

_ROOTS = ("keras.src.", "tf_keras.src.")
_CALLABLE_PACKAGES = frozenset(["layers", "losses", "models", "engine"])
_FUNCTION_PACKAGES = frozenset(["regularizers", "initializers", "constraints", "optimizers"])
NEVER = frozenset(["Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"])  # they run the user's code
STEPS = ("train_step", "test_step", "predict_step")  # of Keras' models
STEP_FUNCTIONS = ("train_function", "test_function", "predict_function")  # what `fit` and the like call them by

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
    """Returns whether `callee` is a layer, model or loss of Keras' own; or a metric of Keras 3's, whose call is an update and its result."""
    kind = type(callee)
    known = _callable_kinds.get(kind)
    if known is None:
        known = _callable_kinds[kind] = (
            stock_package(kind.__module__) in _CALLABLE_PACKAGES and kind.__name__ not in NEVER and hasattr(kind, "call")
            or kind.__module__.startswith("keras.src.metrics.") and hasattr(kind, "update_state"))
    return known


def is_stock_layer(kind):
    """Returns whether a class is one of Keras' own layers."""
    return stock_package(kind.__module__) == "layers" and kind.__name__ not in NEVER and hasattr(kind, "call")


def may_do_nothing(owner):
    """Returns whether calls of `owner` may well run no operation: dropout in inference, the losses of a model without regularizers, an optimizer that
    scales no loss, the metrics of a model that has none."""
    return is_stock_object(owner) or derives_from_stock(type(owner)) or stock_package(type(owner).__module__) in ("optimizers", "trainers")


def is_stock_function(callee):
    """Returns whether `callee` is an object that stands for a function: a schedule, a regularizer, an initializer, a constraint of Keras' own; or a
    `tf.function`."""
    module = type(callee).__module__
    return type(callee) is tfi.PolymorphicFunction or (
        stock_package(module) in _FUNCTION_PACKAGES and (".optimizers." not in module or ".schedules." in module))


def is_derived_object(callee):
    """Returns whether `callee` is a layer, model or loss of a class of the user's, whose `__call__` is the framework's."""
    kind = type(callee)
    known = _derived_kinds.get(kind)
    if known is None:
        call = getattr(kind, "__call__", None)
        known = _derived_kinds[kind] = isinstance(call, FunctionType) and is_frameworks_own(call) and derives_from_stock(kind)
    return known


@functools.lru_cache(1000)
def derives_from_stock(kind):
    """Returns whether a class derives from a layer, model or loss of Keras' own."""
    return hasattr(kind, "call") and any(stock_package(cls.__module__) in _CALLABLE_PACKAGES and hasattr(cls, "call") for cls in kind.__mro__)


def is_tensorflows(kind):
    """Returns whether a class is TensorFlow's, or derives from one of them, as ragged tensors and TensorArrays do."""
    return any(cls.__module__.startswith("tensorflow.") for cls in kind.__mro__)


def package_of_base(kind):
    """Returns the package of the first class of Keras' own that a class derives from, such as `layers`; None if there is none."""
    return next(filter(None, (stock_package(cls.__module__) for cls in kind.__mro__)), None)


def is_stock_kind(kind):
    """Returns whether a class is Keras' own, or derives from one."""
    known = _stock_kinds.get(kind)
    if known is None:
        known = _stock_kinds[kind] = any(stock_package(cls.__module__) is not None for cls in kind.__mro__)
    return known


def is_seed_generator(kind):
    """Returns whether it is the class of Keras' generators of seeds, each of which has a variable."""
    return kind.__module__ == "keras.src.random.seed_generator"


def root_of_function(function, variables):
    """The package, `keras` or `tf_keras`, whose settings matter to a function that is given these variables; None if there is none."""
    for thing in (function, *map(type, variables)):
        root = thing.__module__.split(".", 1)[0]
        if root != "tensorflow" and root in tfi.FRAMEWORKS:
            return root
    return None


def stand_in(made, function):
    """`made` is in the place of the framework's own `function` from now on: a class that has it is as it was."""
    made.terra_stands_for = function


def original(function):
    """The framework's function that `function` is in the place of, if it is."""
    return getattr(function, "terra_stands_for", function)


def is_frameworks_own(function):
    function = original(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        return False
    return (function.__module__ or "").split(".", 1)[0] in tfi.FRAMEWORKS and function.__globals__.get("__name__", "").split(".", 1)[0] in tfi.FRAMEWORKS


def is_foreign(value):
    """Returns whether an entry of a class of the framework's is somebody else's function."""
    if isinstance(value, property):
        return any(is_foreign(function) for function in (value.fget, value.fset) if function is not None)
    value = getattr(value, "__func__", value)
    return type(value) is FunctionType and not is_frameworks_own(value)


def root_of_class(kind):
    """The framework that a class belongs to or derives from."""
    return next((root for root in (cls.__module__.split(".", 1)[0] for cls in kind.__mro__) if root in tfi.FRAMEWORKS), None)
