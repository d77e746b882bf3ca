"""The arguments of calls: how they are described, so that two calls can be compared, and which arrays among them become tensors."""

import sys
from collections import OrderedDict
from types import FunctionType

import numpy as np

from terra.frameworks import keras, numpys, framework_objects
from terra.frameworks.keras import is_embedding
from terra.frameworks.tensorflow import CLASSES, INDICES
from terra.runtime.tensors.comparing import SCALARS, Unskippable, scalar
from terra.runtime.tensors.open_shapes import known_sizes
from terra.runtime.tensors.object_kinds import PLAIN, TENSORS, is_librarys_container, is_named_tuple, is_output, makes_named_tuples, plain
from terra.runtime.tensors.tensor import TerraTensor, holds_numbers
from terra.tf.private import composites
from terra.tf import private_names as tfi

EagerTensor = tfi.EagerTensor
_DEEPEST = 100  # of the containers in an argument
_MOST_BYTES = 1_000  # of an array among the arguments, which is compared by value
_variable_kinds = set()  # classes of variables


def with_tensors(step, callee, args, kwargs):
    """The arguments of a call of the stock object `callee`, with tensors in the place of the arrays that it would make tensors of itself, first thing."""
    if any(map(holds_array, args)) or any(map(holds_array, kwargs.values())):
        n = _number_converted(callee) if step.takes_tensors() else 0
        args = (*[tensors_for(step, x) for x in args[:n]], *args[n:])
        if n == sys.maxsize:
            kwargs = {name: tensors_for(step, x) for name, x in kwargs.items()}
    return args, kwargs


def holds_array(x):
    """Returns whether an argument is an array, or a container with arrays in it."""
    kind = type(x)
    return kind is np.ndarray or ((kind is list or kind is tuple) and np.ndarray in map(type, x)) or (kind is dict and np.ndarray in map(type, x.values()))


def tensors_for(step, x):
    """An argument, with tensors in the place of the array that it is, or of those in it."""
    if not holds_array(x):
        return x
    if type(x) is np.ndarray:
        return step.as_data(x)
    tensors = [step.as_data(y) if type(y) is np.ndarray else y for y in (x.values() if type(x) is dict else x)]
    return dict(zip(x, tensors)) if type(x) is dict else type(x)(tensors)


def _number_converted(callee):
    """Of how many arguments `callee` first thing makes tensors, if they are arrays: the next time they may be others, and the call is skipped all the same."""
    package = framework_objects.stock_package(type(callee).__module__)
    is_stock = package == "metrics" or framework_objects.is_stock_object(callee)
    if not is_stock and not framework_objects.is_derived_object(callee):
        return 0
    package = package if is_stock else framework_objects.package_of_base(type(callee))
    if keras.is_of_tf_keras(type(callee)):
        return int(package not in ("losses", "metrics"))  # those treat arrays and tensors differently
    return sys.maxsize if (is_stock and package != "layers") or getattr(callee, "_convert_input_args", True) else 0


def unread(runner, owner, args, kwargs):
    """The tensors among a call's arguments at whose values its Python code does not look."""
    if type(owner) is FunctionType:
        position, name = INDICES.get(owner, (None, None))
        found = () if name is None else args[position:position + 1] or (kwargs.get(name),)
        return found if owner not in CLASSES else [x for x in found if id(x) in runner.step.args or runner.step.is_data(x)]
    return [x for x in args[:1] if is_embedding(owner) and runner.step.is_data(x)]  # the layer's operations on other ones run on the host


def describe(runner, value, found, keep, inputs):
    """Append what identifies an argument to `found`. Raises Unskippable if it cannot be told cheaply."""
    kind = type(value)
    if kind is TerraTensor or kind is EagerTensor:
        inputs.describe(runner, value, found)
    elif kind in SCALARS:
        found.append(scalar(value))
    elif kind is tuple or kind is list:
        found.append((kind, len(value)))
        for x in value:
            describe(runner, x, found, keep, inputs)
    elif kind is dict:
        if not all(type(x) in SCALARS for x in value):  # comparing other keys may run the user's code
            raise Unskippable("is given a dict with keys of a special type")
        found.append((kind, *map(scalar, value)))
        for x in value.values():
            describe(runner, x, found, keep, inputs)
    elif composites.is_composite(kind) and not (composites.is_extension(kind) and composites.is_dispatched()):
        found.append(kind)
        inputs.composites.add(id(value))
        for x in composites.composite_parts(value):
            inputs.enclosed.add(id(x))
            describe(runner, x, found, keep, inputs)
    elif kind in _variable_kinds or tfi.is_variable(value) or framework_objects.is_seed_generator(kind):
        _variable_kinds.add(kind)
        found.append(id(value) if kind is not tfi.UnreadVariable else (kind, id(value.handle)))  # of these each assignment makes another one
        keep.append(value)
    elif is_named_tuple(kind) and makes_named_tuples(kind):
        found.append((kind, len(value)))
        for x in value:
            describe(runner, x, found, keep, inputs)
    elif kind is slice:
        found.append(kind)
        for x in (value.start, value.stop, value.step):
            describe(runner, x, found, keep, inputs)
    elif kind is tfi.tensor_shape.TensorShape:
        found.append((kind, known_sizes(value)))
    elif kind is tfi.tf.UnconnectedGradients or kind is tfi.tf.DType or value is Ellipsis:
        found.append(value)
    elif kind is np.ndarray and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
        found.append((kind, value.dtype.str, value.shape, value.tobytes()))
    elif numpys.is_number(kind):
        found.append((kind, value.tobytes()))
    elif issubclass(kind, type) and issubclass(value, np.generic):
        found.append((kind, str(value)))
    elif issubclass(kind, type) and composites.is_composite(value):
        found.append(value)
    elif is_output(value):
        found.append((kind, tuple(OrderedDict.keys(value))))
        describe(runner, vars(value), found, keep, inputs)
    elif is_librarys_container(kind):
        describe(runner, plain(value), found, keep, inputs)
        found.append(kind)
    else:
        raise Unskippable(f"is given an object of type {kind.__name__}" if kind is not np.ndarray else "is given an array that is too large to be compared")


def describe_within(runner, value, found, keep, inputs, given, arrays=None, depth=0):
    """Append what identifies an argument of the user's function, or what an attribute holds that counts as one; ids of containers go to `given`, arrays of numbers to `arrays`, if that is
    not None."""
    kind = type(value)
    if kind is np.ndarray and arrays is not None and holds_numbers(value):
        arrays.describe(runner, value, found)
        return
    is_tuple = kind is tuple or (issubclass(kind, tuple) and is_named_tuple(kind) and makes_named_tuples(kind))
    if is_tuple or kind is list or kind is dict or is_librarys_container(kind):
        if depth > _DEEPEST:
            raise Unskippable  # perhaps it contains itself
        given.add(id(value))
        found.append((kind, len(value)))
        if not is_tuple:
            value = plain(value)
            kind = type(value)
        if kind is dict:
            for x in value:
                found.append(scalar(x) if type(x) in SCALARS else id(x))  # comparing other keys may run the user's code
                keep.append(x)
        for x in value.values() if kind is dict else value:
            describe_within(runner, x, found, keep, inputs, given, arrays, depth + 1)
        return
    if composites.is_composite(kind):
        given.update(map(id, composites.all_in(value)))
    try:
        describe(runner, value, found, keep, inputs)
    except Unskippable:
        if kind is TerraTensor or kind is EagerTensor or issubclass(kind, np.ndarray):
            raise
        found.append(id(value))
        keep.append(value)


def holds_plain_only(value):
    """Returns whether there is nothing but scalars, tensors and the like, in lists, tuples and dicts."""
    kind = type(value)
    if kind is dict:
        return all(map(holds_plain_only, value.values()))
    if kind is list or kind is tuple:
        return all(map(holds_plain_only, value))
    return kind in PLAIN or kind in TENSORS or kind is np.ndarray or isinstance(value, (np.generic, type(np.float32))) or tfi.is_variable(value)


def is_held(it, kept, reads):
    """Returns whether an object, which is no container, is one of those that were `kept`, or that were read."""
    return not isinstance(it, (list, dict, set, tuple, np.ndarray)) and (any(it is x for x in kept) or (reads is not None and reads.holds_any([id(it)])))
