"""Fast-forward of single functions: `tf.matmul(x, w)`, `keras.ops.relu(x)`, `x * y`, `x[:, 0]`, `variable.assign(x)`.

Around one operation or a few, the framework runs some 20 us of Python: dispatch, name scopes, conversions. Such calls are tried one by one, by
`terra.runtime.quick_entries`. Here is which, and what is called in their place.

Functions are those that TensorFlow and Keras export, called at instrumented call sites; operators are those of Terra's own tensors and of variables;
and the functions that compute an operation's gradient, where a gradient as a whole is not skipped (`terra.runtime.gradient_functions`). A function of
the user's among the arguments makes a call unskippable, as everywhere.
"""

import sys
from types import FunctionType

import numpy as np

from terra.runtime import dispatch, fast_forward
from terra.runtime import internals as tfi
from terra.runtime.quick_entries import NONE, attempt
from terra.runtime.tensor import TerraTensor

_NAMESPACES = {
    "tensorflow": ("", "math", "nn", "linalg", "image", "signal", "bitwise", "random"),
    "keras": ("ops", "ops.nn", "ops.numpy", "ops.linalg", "ops.image", "activations", "losses"),
}
_OPERATORS = tuple(
    f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor") for side in ("", "r")
) + ("__neg__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__getitem__")
_CONVERTING = frozenset(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "matmul") for side in ("", "r"))
_VARIABLE_METHODS = frozenset(["assign", "assign_add", "assign_sub", "read_value", "value"])

_exported = {}  # id -> function
_replacements = {}


def _exports():
    """The functions that TensorFlow and Keras export, as they are the first time this is asked."""
    for package, names in _NAMESPACES.items():
        if package not in sys.modules or package in _exported:
            continue
        _exported[package] = True
        for name in names:
            space = sys.modules[package]
            for part in filter(None, name.split(".")):
                space = getattr(space, part, None)
            for function in list(vars(space).values()) if space is not None else ():
                if type(function) is FunctionType and _is_of(package, function.__module__) and _is_of(package, function.__globals__["__name__"]):
                    _exported[id(function)] = function
    return _exported


def _is_of(package, module):
    return type(module) is str and (module == package or module.startswith(package + "."))


def substitute(callee):
    """What to call in place of the function `callee` at a call site, or None."""
    if type(callee) is not FunctionType or id(callee) not in _exports():
        return None
    made = _replacements.get(callee)
    if made is None:
        made = _replacements[callee] = _skipping(callee)
    return made


def substitute_method(callee):
    """What to call in place of the function of the method `callee`, if it is one of a variable; else None."""
    function = callee.__func__
    made = _replacements.get(function)
    if made is None and getattr(function, "__name__", None) in _VARIABLE_METHODS and type(function) is FunctionType:
        if type(callee.__self__) is tfi.ResourceVariable and _is_of("tensorflow", function.__globals__["__name__"]):
            made = _replacements[function] = _skipping(function)
    return made


def _skipping(function):
    position, name = fast_forward.INDICES.get(function, (None, None))

    def call(*args, **kwargs):
        if name is not None and dispatch.active is not None:
            if len(args) > position and _are_indices(args[position]):
                args = (*args[:position], dispatch.active.as_indices(args[position]), *args[position + 1:])
            elif _are_indices(kwargs.get(name)):
                kwargs[name] = dispatch.active.as_indices(kwargs[name])
        runner = fast_forward.running()
        if runner is None:
            return function(*args, **kwargs)
        return attempt(runner, function, args, kwargs)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    return call


def _are_indices(x):
    return type(x) is np.ndarray and x.dtype in (np.int32, np.int64)


def _operator(base, name):
    """The operator of a subclass of `base`: that of `base`, but jumping where it can."""
    known = (getattr(base, name), dispatch._getitem if name == "__getitem__" and base is tfi.EagerTensorBase else None)
    converts = name in _CONVERTING

    def operator(*operands):
        function = getattr(base, name)
        runner = fast_forward.running()
        if runner is None or function not in known:  # somebody has replaced it
            return function(*operands)
        if converts and type(operands[1]) is np.ndarray and operands[1].dtype.kind == "f" and operands[0].dtype.is_floating and not tfi.promotes():
            operands = operands[0], tfi.eager_constant(operands[1], operands[0].dtype)  # what it is an operand as: the array may be another each time
        return attempt(runner, function, operands, NONE)

    operator.__name__ = operator.__qualname__ = name
    return operator


_OPERATED = (tfi.EagerTensorBase, tfi.tf.Tensor, tfi.tf.Variable, tfi.ResourceVariable)
_held = None  # the operators of these classes, when they were first looked at


def operators_are_original():
    """Whether nobody has replaced an operator of tensors or variables."""
    return all(now is held or now is dispatch._getitem for now, held in zip(_operators(), _held))


def _operators():
    return [getattr(cls, name, None) for cls in _OPERATED for name in _OPERATORS]


def install():
    """Give Terra's tensors, and TensorFlow's variables, operators that jump where they can."""
    for name in _OPERATORS:
        for base, cls in ((tfi.EagerTensorBase, TerraTensor), (tfi.tf.Variable, tfi.ResourceVariable)):
            if name == "__getitem__" and cls is tfi.ResourceVariable:
                continue  # a slice of a variable can be assigned to
            original = getattr(base, name, None)
            if type(original) is FunctionType and _is_of("tensorflow", original.__globals__["__name__"]) and name not in vars(cls):
                setattr(cls, name, _operator(base, name))
    global _held
    _held = _operators()
