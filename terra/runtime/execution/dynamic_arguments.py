"""Sizes of a step's arguments that vary are left unknown, as sizes that depend on data are: those of sparse and ragged tensors, and with
`reduce_retracing` all.

The framework's code looks at shapes, so what is recorded of it holds for one combination of them. An argument with sizes that have varied is given to
the step's code as the result of an operation that passes its value on and tells only its other sizes: all that follows is then recorded once (see
`open_shapes`).
"""

from operator import is_

from terra.runtime.tensors.comparing import mask_of
from terra.runtime.tensors.open_shapes import PartialShape
from terra.runtime.tensors.tensor import EagerTensor, TerraTensor
from terra.tf.private import composites
from terra.tf import private_names as tfi

OPENS = "PlaceholderWithDefault"  # the operation
MOST = 100  # structures of arguments that are remembered
_DEEPEST = 100  # containers within each other that are looked into
_CLOSED = frozenset([tfi.types_pb2.DT_RESOURCE, tfi.types_pb2.DT_VARIANT])


class DynamicArguments:
    """The sizes that the tensors among the arguments of one function have always had; of_all: not only those of sparse and ragged ones."""

    def __init__(self, of_all):
        self._of_all = of_all
        self._known = {}  # types and ranks of the tensors -> their shapes, each a PartialShape if some of its sizes have varied

    def look_at(self, step):
        """Note the shapes of a step's arguments, and tell the step which are open. Returns whether a size varies that did not before."""
        if not (self._of_all or step.parts):
            return False
        tensors = step.arg_list
        structure = tuple([(x._datatype_enum(), x._rank()) for x in tensors])
        known = self._known.get(structure)
        if known is None:
            if len(self._known) < MOST:
                self._known[structure] = [x._shape_tuple() for x in tensors]
            return False
        varies = False
        for k, x in enumerate(tensors):
            shape, seen = x._shape_tuple(), known[k]
            if any([b is not None and a != b for a, b in zip(shape, seen)]) and structure[k][0] not in _CLOSED and (self._of_all or k in step.parts):
                known[k] = PartialShape([b if a == b else None for a, b in zip(shape, seen)])
                varies = True
        step.partial_shapes = {k: shape for k, shape in enumerate(known) if type(shape) is PartialShape and mask_of(tensors[k]) is None}
        return varies

    def describe(self):
        """A line for the user, if there is anything to tell."""
        shapes = [f"{tfi.INTERN_DTYPES[enum].name} {tuple(shape)}" for structure, known in self._known.items()
                  for (enum, _), shape in zip(structure, known) if type(shape) is PartialShape]
        return [f"Sizes of arguments that vary, and are left unknown: {', '.join(dict.fromkeys(shapes))}."] if shapes else []


def open_arguments(step, args, kwargs):
    """The arguments of a step, with those replaced that are open; containers which hold such are copied."""
    replaced = {}
    for k, shape in step.partial_shapes.items():
        x = step.arg_list[k]
        replaced[id(x)] = getattr(tfi.tf.raw_ops, OPENS)(input=x, shape=tfi.tensor_shape.TensorShape(shape))
        del step.args[id(x)]  # whoever comes by it in another way uses a tensor from outside
    copies = {}
    return _replace(args, replaced, copies, 0), _replace(kwargs, replaced, copies, 0)


def _replace(value, replaced, copies, depth):
    kind = type(value)
    if kind is EagerTensor or kind is TerraTensor:
        return replaced.get(id(value), value)
    if composites.is_composite(kind):
        parts = composites.composite_parts(value)
        replacements = [_replace(x, replaced, copies, depth + 1) for x in parts]
        return value if all(map(is_, replacements, parts)) else composites.composite(kind, replacements)
    if (kind is not tuple and kind is not list and kind is not dict) or depth > _DEEPEST:
        return value
    known = copies.get(id(value))
    if known is not None:
        return known
    copies[id(value)] = value  # what it may contain itself
    parts = [_replace(x, replaced, copies, depth + 1) for x in (value.values() if kind is dict else value)]
    if any([a is not b for a, b in zip(parts, value.values() if kind is dict else value)]):
        value = copies[id(value)] = dict(zip(value, parts)) if kind is dict else kind(parts)
    return value
