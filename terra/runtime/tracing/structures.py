"""Nested tensors: the arguments of a step, and what operations take and give."""

import numpy as np

from terra.runtime.tensors.tensor import TerraTensor
from terra.tf.private import composites
from terra.tf import private_names as tfi

EagerTensor, BaseResourceVariable = tfi.EagerTensor, tfi.BaseResourceVariable


def is_tensor(x):
    t = type(x)
    return t is TerraTensor or t is EagerTensor


def flat_outputs(result):
    """(flat list of EagerTensors, template) of what an entry point returned; the template rebuilds the nesting."""
    if result is None:
        return [], None
    if type(result) is not list:
        return [result], True
    flat, template = [], []
    for r in result:
        if type(r) is list:
            flat.extend(r)
            template.append(len(r))
        else:
            flat.append(r)
            template.append(-1)
    return flat, tuple(template)


def nest_outputs(flat, template):
    """The inverse of `flat_outputs`."""
    if template is None:
        return None
    if template is True:
        return flat[0]
    result, k = [], 0
    for n in template:
        if n < 0:
            result.append(flat[k])
            k += 1
        else:
            result.append(flat[k:k + n])
            k += n
    return result


def collect_args(structure, found, arrays):
    """Map id -> index of the tensors among a step's arguments (tuples, lists, dicts, sparse and ragged tensors are looked into), and id -> array of
    the arrays of numbers.

    Returns the sparse and ragged tensors, and what else is made of tensors.
    """
    todo, seen, made_of_tensors = [structure], set(), []
    while todo:
        x = todo.pop()
        t = type(x)
        if t is EagerTensor or t is TerraTensor:
            found.setdefault(id(x), (len(found), x))
        elif t is np.ndarray:
            arrays[id(x)] = x
        elif (t is tuple or t is list or t is dict) and id(x) not in seen:  # which may be as deep as a tree, or contain itself
            seen.add(id(x))
            todo += reversed(x.values() if t is dict else x)
        elif composites.is_composite(t):
            made_of_tensors.append(x)
            todo += reversed(composites.composite_parts(x))
    return made_of_tensors


def with_values(inputs, flat):
    """An operation's inputs with the variables among them read, as TensorFlow's fast path does; None if not only variables and tensors are given."""
    if not all(isinstance(x, BaseResourceVariable) or is_tensor(x) for x in flat):
        return None
    return [[_value_of(y) for y in x] if type(x) in (list, tuple) else _value_of(x) for x in inputs]


def _value_of(x):
    return BaseResourceVariable._read_variable_op(x) if isinstance(x, BaseResourceVariable) else x
