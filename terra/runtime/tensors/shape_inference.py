"""Output shapes of an operation without running anything, by TensorFlow's own shape functions.

The skeleton knows the shapes that a node has had. For a new batch size or sequence length the operation is added to a scratch graph, whose C++ shape
function answers in some 0.2 ms (an operation that keeps something of its own for its gradient is run once, instead); the answer is then remembered by
the node. Where shapes depend on data, the tracing phase asks in the same way what Python knows of them, so that both phases know the same.
"""

import numpy as np

from terra.graph.trace import is_value
from terra.runtime.tensors import shape_rules
from terra.runtime.tensors.open_shapes import PartialValue, shape_of
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.private import runtime_functions, symbolic, tables

_LARGEST_SCRATCH = 2000  # operations after which the scratch graph is thrown away
# Operations that give something for their own gradient's use, whose shape is the kernel's affair: the shape function leaves it open, but TensorFlow's code for the gradient asks for it.
SHAPED_BY_KERNELS = frozenset(["FusedBatchNormV3", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"])


class _Scratch:
    def __init__(self):
        self.graph = None
        self.made = 0
        self.inputs = {}  # what identifies an input -> its placeholder, or its constant

    def fresh(self):
        if self.graph is None or self.made > _LARGEST_SCRATCH:
            self.graph = symbolic.new_graph()
            self.made = 0
            self.inputs = {}
        self.made += 1
        return self.graph


_scratch = _Scratch()
_protos = {}
_MOST_TOLD = 20_000
_told = {}  # (an operation and its attributes, what identifies its inputs) -> output shapes, as a shape function has told them
_added = {}  # operation -> rule


def _attributes(info):
    protos = _protos.get(info)
    if protos is None:
        types = info.schema.attr_types
        protos = _protos[info] = {name: runtime_functions.as_attr_value(value, types[name], name) for name, value in info.raw.items() if name in types}
    return protos


def output_shapes(info, enums, keys, handles, n_out):
    """Shapes of the flat outputs: a tuple of ints, or a PartialShape or None where the shape depends on data; None instead of all if nothing can be said.

    enums: dtype enum per flat input. keys: per flat input its shape, None if that is unknown, or (dtype enum, shape, bytes) where the value is known.
    handles: the variable's handle per flat input, or None.
    """
    if info.op_type == tables.FIND:
        known = handles[0] is not None and tables.keeps_shape(handles[0], enums[1], enums[2])
        return (keys[1][1] if is_value(keys[1]) else keys[1],) if known else None
    rule = _added.get(info.op_type)
    shapes = shape_rules.output_shapes(info.op_type, info.attrs, keys) if rule is None else rule(info.attrs, keys)
    if shapes is not None:
        return shapes
    if info.schema is None or info.schema.is_function or info.category not in (opschema.GRAPH, opschema.VARIABLE, opschema.RANDOM):
        return None
    if info.op_type in SHAPED_BY_KERNELS and all(type(key) is tuple for key in keys):
        return _run(info, enums, keys, n_out)
    identities = *map(_identity, enums, keys, handles),
    known = _told.get((info, identities), _told)
    if known is _told:
        if len(_told) > _MOST_TOLD:
            _told.clear()
        known = _told[info, identities] = _asked(info, enums, keys, handles, identities, n_out)
    return known


def _asked(info, enums, keys, handles, identities, n_out):
    """Returns what the shape function says."""
    graph = _scratch.fresh()
    try:
        with graph.as_default():
            inputs = [_input(*given) for given in zip(identities, enums, keys, handles, strict=True)]
            op = symbolic.create_graph_op(graph, info.op_type, inputs, _attributes(info))
    except (ValueError, TypeError, tfi.OpError):  # eager execution will say what is wrong with it
        return None
    if len(op.outputs) != n_out:
        return None
    shapes = []
    for t in op.outputs:
        shape = t.shape
        if shape.rank is None:
            shapes.append(None)
        else:
            shapes.append(shape_of(shape.as_list()))
    return tuple(shapes)


def _run(info, enums, keys, n_out):
    """Finds the output shapes by running the operation, on zeros; the kernel, and so the shapes, follow from types and shapes."""
    shapes = [key[1] if is_value(key) else key for key in keys]
    inputs = [tfi.eager_constant(np.zeros(shape, tfi.INTERN_DTYPES[enum].as_numpy_dtype), tfi.INTERN_DTYPES[enum]) for enum, shape in zip(enums, shapes, strict=True)]
    if info.op_type == "CudnnRNNV3":  # no sequence may be empty
        length = shapes[0][0 if info.attrs.get("time_major", True) else 1]
        inputs[-1] = tfi.eager_constant(np.full(shapes[-1], length, np.int32), tfi.INTERN_DTYPES[enums[-1]])
    try:
        outputs = tfi.execute(tfi.context_handle(), info.device, info.op_type, inputs, info.exec_attrs, n_out)
    except (tfi.NotOkStatusException, tfi.OpError):  # eager execution will say what is wrong with it
        return None
    return tuple([x._shape_tuple() for x in outputs])


def add_rule(op_type, rule):
    """Registers `rule(attributes, keys)`: it tells the output shapes of an operation, or None where it cannot (see `output_shapes`).

    For operations that Terra itself makes; TensorFlow's have theirs in `shape_rules._RULES`.
    """
    _added[op_type] = rule


def open_shapes(info, enums, keys, handles, seen, unreliable):
    """Returns what is known of output shapes that depend on data, in the form of `output_shapes`. `seen`: for each output a shape that it has had.

    unreliable: whether this operation gives other shapes for equal inputs than its shape function says.
    """
    shapes = output_shapes(info, enums, keys, handles, len(seen))
    if shapes is None:
        return tuple([shape if shape == () else None for shape in seen])
    return tuple([None if unreliable and type(shape) is tuple and shape else shape for shape in shapes])


def _identity(enum, key, handle):
    """Returns what identifies an input: all that shape functions know of it."""
    return enum, type(key), tuple(key) if key is not None else None, None if handle is None else symbolic.handle_identity(handle)


def _input(identity, enum, key, handle):
    made = _scratch.inputs.get(identity)
    if made is None:
        made = _scratch.inputs[identity] = _make_input(enum, key, handle)
    return made


def _make_input(enum, key, handle):
    dtype = tfi.INTERN_DTYPES[enum]
    if handle is not None:
        return symbolic.handle_placeholder(handle)
    if type(key) is PartialValue:
        numbers = [symbolic.placeholder(dtype, ()) if number is None else tfi.tf.constant(number, dtype=dtype) for number in key[2]]
        return tfi.tf.stack(numbers) if key[1] else numbers[0]
    if is_value(key):
        _, shape, value = key
        if dtype != tfi.dtypes.string:
            return tfi.tf.constant(np.frombuffer(value, dtype.as_numpy_dtype).reshape(shape), dtype=dtype)
        key = shape
    return symbolic.placeholder(dtype, key)
