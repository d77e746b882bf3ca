"""Fast-forward of single functions: `tf.matmul(x, w)`, `keras.ops.relu(x)`, `x * y`, `x[:, 0]`, `variable.assign(x)`.

Around one operation or a few, the framework runs some 20 us of Python: dispatch, name scopes, conversions. Such calls are tried one by one, by
`terra.runtime.fast_forward.cache.inline_cache`. Here is what is called in their place.

Functions are those of the namespaces in `frameworks.tensorflow.NAMESPACES`, and all that TensorFlow dispatches, called at instrumented call sites (others are not tried, and no reason is noted); operators are those of Terra's own tensors and of variables;
and the functions that compute an operation's gradient, where a gradient as a whole is not skipped
(`terra.runtime.fast_forward.sites.gradient_functions`). A function of the user's among the arguments makes a call unskippable, as everywhere.
"""

import functools
import sys
from threading import get_ident
from types import FunctionType

import numpy as np

from terra import ours
from terra.frameworks import keras, framework_objects, tensorflow
from terra.location import current_step
from terra.runtime.execution import interception, slicing
from terra.runtime.execution.step import Step
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.fast_forward.cache.call_cache import attempt_function as attempt
from terra.runtime.fast_forward.cache.inline_cache import NONE, monomorphic_hit
from terra.runtime.fast_forward.sites.python_functions import PYTHON_FUNCTIONS
from terra.runtime.fast_forward.sites.writers import WRITERS
from terra.runtime.tensors.object_kinds import VARIABLE_METHODS, defined, is_frameworks_function
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing.structures import is_tensor
from terra.tf import private_names as tfi
from terra.tf.constants import SMALL

_OPERATORS = tuple(
    f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor") for side in ("", "r")
) + ("__neg__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__getitem__")
_CONVERTING = frozenset(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "matmul") for side in ("", "r"))


_exported = {}  # id -> function
_replacements = {}


def _exports():
    """The functions that TensorFlow and Keras export, as they are the first time this is asked."""
    for package, names in tensorflow.NAMESPACES.items():
        if package not in sys.modules or package in _exported:
            continue
        _exported[package] = True
        for name in names:
            space = sys.modules[package]
            for part in filter(None, name.split(".")):
                space = getattr(space, part, None)
            for key, function in list(vars(space).items()) if space is not None else ():
                if type(function) is FunctionType and tensorflow.is_of(package, function.__module__) and is_frameworks_function(function):
                    if not name.endswith("backend") or key in tensorflow.OF_BACKENDS:
                        _exported[id(function)] = function
    return _exported


def substitute(callee):
    """Returns the function to call in place of the function `callee`, or class of sparse tensors, at a call site; or None."""
    if callee is tfi.tf.SparseTensor:
        return _making_sparse_tensors
    form = (WRITERS.get(callee) or PYTHON_FUNCTIONS.get(callee)) if type(callee) is FunctionType else None
    if form is not None:
        return form
    if type(callee) is not FunctionType or not (id(callee) in _exports() or tensorflow.issues_one(callee) or tensorflow.is_dispatched(callee)):
        return None
    made = _replacements.get(callee)
    if made is None:
        made = _replacements[callee] = _skipping(callee)
    return made


def skipping_variable_method(function):
    """The method of a variable, but jumping where it can."""
    return _replacements.setdefault(function, _skipping(function))


def substitute_method(callee):
    """Returns the function to call in place of that of the method `callee`, if it is one of a variable, or of a ragged or sparse tensor, or of their
    classes; else None."""
    function, owner = framework_objects.original(callee.__func__), callee.__self__
    made = _replacements.get(function)
    if made is None and type(function) is FunctionType:
        if type(owner) in tfi.RESOURCE_VARIABLES:
            if function.__name__ in VARIABLE_METHODS and tensorflow.is_tensorflows(function):
                made = skipping_variable_method(function)
        else:
            cls = owner if isinstance(owner, type) else type(owner)
            held = vars(cls).get(function.__name__) if cls is tfi.tf.RaggedTensor or cls is tfi.tf.SparseTensor else None
            if getattr(held, "__func__", held) is function and is_frameworks_function(function):
                made = _replacements[function] = _skipping(function, may_be_empty=True)
    return made


def _skipping(function, may_be_empty=False):
    """`function`, but jumping where it can; may_be_empty: also if it issues no operation."""
    convert = _conversion(function)

    @ours.calling
    def call(*args, **kwargs):
        step = current_step.active
        if type(step) is Step and not kwargs:
            made = monomorphic_hit(step, function, args)
            if made is not None:
                return made
        if convert is not None:
            if step is not None and np.ndarray in map(type, (*args, *kwargs.values())) and step.takes_tensors():
                args, kwargs = convert(step, args, kwargs)
        runner = call_cache.running()
        if runner is None:
            return current_step.active.call(call, *args, **kwargs) if _is_behind_block() else function(*args, **kwargs)
        return attempt(runner, function, args, kwargs, may_be_empty=may_be_empty)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    return call


def _sparse_tensor(*args, **kwargs):
    return tfi.tf.SparseTensor(*args, **kwargs)


def _is_behind_block():
    """Returns whether a call is behind a tape's block, and may only be skipped if no other thread can end the step meanwhile."""
    view = current_step.active
    return view is not None and view.open_ended and not view.held and view.thread == get_ident()


def _conversion(function):
    """Finds the function that makes tensors of arrays among the arguments (step, args, kwargs), for a function that does so itself, first thing; else None."""
    position, name = tensorflow.INDICES.get(function, (None, None))
    if name is not None:
        return functools.partial(_convert_indices, position, name)
    if function.__name__ == "sparse_categorical_crossentropy":
        return functools.partial(_convert_one, 0, "y_true")
    if function in tensorflow.CONSTANTS:
        return _convert_constant
    if function in _OF_ONE:
        return functools.partial(_convert_one, 0, _OF_ONE[function])
    return _convert_alike if function in _OF_SEVERAL or keras.is_loss(function) else None


def _convert_indices(position, name, step, args, kwargs):
    """Arrays of indices are data wherever they come from. Those of other types TensorFlow converts in ways of its own."""
    x = args[position] if len(args) > position else kwargs.get(name)
    if type(x) is np.ndarray and x.dtype in (np.int32, np.int64):
        return _replaced(position, name, step.as_data(x), args, kwargs)
    return args, kwargs


def _convert_one(position, name, step, args, kwargs):
    """An array that comes with the step."""
    x = args[position] if len(args) > position else kwargs.get(name)
    return _replaced(position, name, step.as_data(x), args, kwargs) if step.varies(x) else (args, kwargs)


def _replaced(position, name, x, args, kwargs):
    if len(args) > position:
        return (*args[:position], x, *args[position + 1:]), kwargs
    return args, {**kwargs, name: x}


def _convert_constant(step, args, kwargs):
    x, *others = *args, *kwargs.values()
    if args and step.varies(x) and kwargs.keys() <= {"dtype"} and len(others) <= 1:
        if not others or _is_type_of(x, others[0]):
            return (step.as_data(x), *args[1:]), kwargs
        made = step.as_shown(x, others[0])
        if made is not None:
            return (made, *args[1:]), kwargs
    return args, kwargs


def _is_type_of(array, dtype):
    return dtype is None or (type(dtype) is tfi.tf.DType and dtype.as_numpy_dtype == array.dtype.type)


def _convert_alike(step, args, kwargs):
    """Arrays that come with the step, where all tensors among the arguments are of one and the same floating type: they would get it in any case.

    Unless there is no tensor: then the first of the arguments decides, be it a number.
    """
    given = (*args, *kwargs.values())
    tensors = [x for x in given if is_tensor(x) or tfi.is_variable(x)]
    arrays = [x for x in given if type(x) is np.ndarray]
    kinds = {x.dtype for x in arrays}.union([np.dtype(x.dtype.as_numpy_dtype) for x in tensors])
    if len(kinds) != 1 or next(iter(kinds)).kind != "f" or not (tensors or len(arrays) == len([x for x in given if type(x) not in _NO_OPERANDS])):
        return args, kwargs
    return [_data(step, x) for x in args], {name: _data(step, x) for name, x in kwargs.items()}


_NO_OPERANDS = frozenset([bool, str, type(None)])


def _data(step, x):
    return step.as_data(x) if type(x) is np.ndarray and (step.varies(x) or x.size > SMALL) else x


# Functions that make a tensor of their first argument, whatever the others are; and functions whose tensors all have one type.
_OF_ONE = {
    tfi.tf.cast: "x", tfi.tf.reshape: "tensor", tfi.tf.expand_dims: "input", tfi.tf.squeeze: "input", tfi.tf.transpose: "a", tfi.tf.identity: "input",
    tfi.tf.shape: "input", tfi.tf.size: "input", tfi.tf.rank: "input", tfi.tf.argmax: "input",
    tfi.tf.reduce_mean: "input_tensor", tfi.tf.reduce_sum: "input_tensor", tfi.tf.reduce_max: "input_tensor"}
_OF_SEVERAL = frozenset([
    tfi.tf.matmul, tfi.tf.linalg.matvec, tfi.tf.add, tfi.tf.subtract, tfi.tf.multiply, tfi.tf.divide, tfi.tf.square, tfi.tf.abs, tfi.tf.math.squared_difference, tfi.tf.nn.conv2d,
    tfi.tf.nn.softmax_cross_entropy_with_logits, tfi.tf.nn.sigmoid_cross_entropy_with_logits])
_making_sparse_tensors = _skipping(_sparse_tensor, may_be_empty=True)


def _operator(base, name):
    """The operator of a subclass of `base`: that of `base`, but jumping where it can."""
    known = (getattr(base, name), interception._getitem if name == "__getitem__" and base is tfi.EagerTensorBase else None)
    converts = name in _CONVERTING

    @ours.calling
    def operator(*operands):
        function, step = getattr(base, name), current_step.active
        if type(step) is Step:
            made = monomorphic_hit(step, function, operands)
            if made is not None:
                return made
        if converts and type(operands[1]) is np.ndarray:
            operands = converted(*operands)
        runner = call_cache.running()
        if runner is None or function not in known:  # somebody has replaced it
            return current_step.active.call(operator, *operands) if _is_behind_block() else function(*operands)
        return attempt(runner, function, operands, NONE)

    operator.__name__ = operator.__qualname__ = name
    return operator


def _slices_of_variables():
    """`__getitem__` of variables: the value of the slice is skipped where it can be; what assigns to it is attached to it each time, as it is by TensorFlow."""
    original, slice_of = tfi.tf.Variable.__getitem__, slicing.slice_of

    def __getitem__(variable, spec):
        function, step = tfi.tf.Variable.__getitem__, current_step.active
        if step is None or function is not original:  # somebody has replaced it
            return function(variable, spec)
        made = monomorphic_hit(step, slice_of, (variable, spec)) if type(step) is Step else None
        if made is None:
            if not slicing.is_plain(spec):
                return function(variable, spec)
            runner = call_cache.running()
            if runner is not None:
                made = attempt(runner, slice_of, (variable, spec), NONE)
            elif _is_behind_block():
                return current_step.active.call(__getitem__, variable, spec)
            else:
                made = slice_of(variable, spec)
        made.assign = slicing.Assign(variable, spec)
        return made

    return __getitem__


def converted(x, array):
    """The operands, the array as the tensor that it is an operand as: it may be another one each time."""
    step = current_step.active
    if step is None or array.dtype.kind != "f" or not x.dtype.is_floating or tfi.promotes() or not step.takes_tensors():
        return x, array
    if x.dtype.as_numpy_dtype == array.dtype.type:
        return x, step.as_data(array)
    made = step.as_shown(array, x.dtype)
    return x, tfi.eager_constant(array, x.dtype) if made is None else made


_OPERATED = (tfi.EagerTensorBase, tfi.tf.Tensor, tfi.tf.Variable, tfi.ResourceVariable, tfi.tf.RaggedTensor, tfi.tf.SparseTensor)
_held = None  # the operators of these classes, when they were first looked at


def operators_are_original():
    """Returns whether nobody has replaced an operator of tensors, ragged and sparse ones, or variables."""
    return all(now is held or now is interception._getitem for now, held in zip(_operators(), _held))


def _operators():
    return [defined(cls, name) for cls in _OPERATED for name in _OPERATORS]


def install():
    """Give Terra's tensors, and TensorFlow's variables and ragged tensors, operators that jump where they can."""
    for name in _OPERATORS:
        for base, cls in ((tfi.EagerTensorBase, TerraTensor), (tfi.tf.Variable, tfi.ResourceVariable)):
            original = getattr(base, name, None)
            if type(original) is FunctionType and tensorflow.is_tensorflows(original) and name not in vars(cls):
                setattr(cls, name, _slices_of_variables() if name == "__getitem__" and base is tfi.tf.Variable else _operator(base, name))
        original = vars(tfi.tf.RaggedTensor).get(name)
        if type(original) is FunctionType and is_frameworks_function(original):
            made = _skipping(original)
            framework_objects.stand_in(made, original)
            setattr(tfi.tf.RaggedTensor, name, made)
    global _held
    _held = _operators()
