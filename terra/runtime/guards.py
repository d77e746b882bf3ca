"""Guards of fast-forward: what a framework object's code reads, as a flat list that can be compared from one step to the next.

The list holds the attributes of the object and, recursively, of the framework objects that it is made of; the contents of lists, tuples, sets and dicts;
the methods of the classes involved; and the global settings. Two lists are the same if they hold the same objects, or equal scalars of one type.
Whatever could run code of the user's (a subclass, a function) makes the object unskippable.
"""

import sys
from types import BuiltinFunctionType, FunctionType, MethodType

from terra.runtime import internals as tfi
from terra.runtime.regions import SCALARS, Unskippable

_ROOTS = ("keras.src.", "tf_keras.src.")
_CALLABLE_PACKAGES = frozenset(["layers", "losses", "models", "engine"])
_NEVER = frozenset(["Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"])  # they run the user's code
_FRAMEWORKS = ("keras", "tf_keras", "tensorflow")
_DEEPEST = 12
_LONGEST = 20_000

_packages = {}


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


_callable_kinds = {}


def is_stock_object(callee):
    """Whether `callee` is a layer, model or loss of Keras' own."""
    kind = type(callee)
    known = _callable_kinds.get(kind)
    if known is None:
        known = _callable_kinds[kind] = (
            stock_package(kind.__module__) in _CALLABLE_PACKAGES and kind.__name__ not in _NEVER and not isinstance(callee, type)
            and hasattr(kind, "__call__") and (hasattr(kind, "call")))
    return known


def state(owner, variables):
    """Everything that the code of `owner` (and what it reads of `variables`) depends on. Raises Unskippable."""
    kind = type(owner)
    flat = [tfi.device_name()]
    if kind is FunctionType:  # a function of TensorFlow's own: nothing but its arguments
        return flat
    root = kind.__module__.split(".", 1)[0]
    flat += _settings(root)
    seen = {id(owner)}
    classes = set()
    _attributes(owner, flat, seen, classes, 0)
    for variable in variables or getattr(owner, "_trainable_variables", ()):
        flat.extend(vars(variable).values())
    for cls in sorted(classes, key=id):
        flat.extend(_methods(cls))
    return flat


def same(old, new):
    """Whether two states are the same: the same objects, or equal scalars of one type."""
    if len(old) != len(new):
        return False
    for a, b in zip(old, new):
        if a is not b and not (type(a) in SCALARS and type(a) is type(b) and a == b):
            return False
    return True


def _settings(root):
    """Global settings of the Keras called `root`: float type, call context, scopes."""
    backend = sys.modules.get(root + ".src.backend") or sys.modules.get(root + ".backend")
    flat = [backend.floatx() if hasattr(backend, "floatx") else None]
    state = sys.modules.get(root + ".src.backend.common.global_state")
    if state is not None:
        tracked = vars(state.GLOBAL_STATE_TRACKER)
        context = tracked.get("current_call_ctx")
        flat += [context is None, tracked.get("autocast_scope"), tracked.get("distribution"), tracked.get("remat_scope_stack") or None]
        if context is not None:
            flat += [(k, v) for k, v in sorted(vars(context).items()) if k != "entry_layer"] and [
                v for k, v in sorted(vars(context).items()) if k != "entry_layer"]
    return flat


def _attributes(owner, flat, seen, classes, depth):
    kind = type(owner)
    for cls in kind.__mro__:
        if cls not in classes and stock_package(cls.__module__) is not None:
            classes.add(cls)
    for name, value in vars(owner).items():
        _flatten(value, flat, seen, classes, depth, name)


def _flatten(value, flat, seen, classes, depth, name=None):
    kind = type(value)
    if kind in SCALARS:
        flat.append(value)
        return
    flat.append(value if kind is not list and kind is not tuple and kind is not dict else len(value))
    if len(flat) > _LONGEST or depth > _DEEPEST:
        raise Unskippable
    if kind is dict or isinstance(value, dict):
        if id(value) in seen:
            return
        seen.add(id(value))
        flat.append(len(value))
        for key, x in value.items():
            flat.append(key)
            _flatten(x, flat, seen, classes, depth + 1)
    elif kind is list or kind is tuple or isinstance(value, (list, tuple, set)):
        if id(value) in seen:
            return
        seen.add(id(value))
        flat.append(len(value))
        for x in value:
            _flatten(x, flat, seen, classes, depth + 1)
    elif kind is FunctionType or kind is MethodType:
        module = value.__module__ or ""
        if module.split(".", 1)[0] not in _FRAMEWORKS:
            raise Unskippable  # the user's function might do anything
    elif isinstance(value, type) or kind is BuiltinFunctionType:
        pass
    elif tfi.is_variable(value):
        if id(value) not in seen:
            seen.add(id(value))
            flat.extend(vars(value).values())
    else:
        package = stock_package(kind.__module__)
        if package is None:
            if callable(value) and kind.__module__.split(".", 1)[0] not in (*_FRAMEWORKS, "builtins", "functools"):
                raise Unskippable
        elif id(value) not in seen and hasattr(value, "__dict__") and _is_part(package, kind):
            if kind.__name__ in _NEVER:
                raise Unskippable
            seen.add(id(value))
            _attributes(value, flat, seen, classes, depth + 1)


_PARTS = frozenset([
    "layers", "models", "engine", "losses", "metrics", "optimizers", "regularizers", "initializers", "constraints", "dtype_policies", "random",
    "activations", "mixed_precision", "quantizers", "utils"])


def _is_part(package, kind):
    """Framework objects whose attributes matter; graphs of symbolic tensors are looked at no further than their identity."""
    return package in _PARTS and kind.__name__ not in ("Tracker", "Config", "Node", "Function", "KerasHistory")


_method_lists = {}


def _methods(cls):
    """The functions of a class, as they are now."""
    return list(vars(cls).values())
