"""Values that the host knows without running anything on data: shapes that are static, and arithmetic on small integers that Python itself has made."""

from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import RESOURCE_ENUM, SMALL, elements
from terra.tf.opschema import HOST_KNOWN_ENUMS, SHAPE_OPS

EagerTensor = tfi.EagerTensor
HOST_STATIC, STATIC_SHAPE = object(), object()


def host_static(schema, op, flat, owner):
    """HOST_STATIC, STATIC_SHAPE or None: whether the host knows the outcome without running anything on data.

    Ops on small integer or bool tensors that Python itself made (not arguments, not outputs of imperative-only ops), and the shape of a
    tensor whose shape is static. Rule of thumb that makes real programs take the same way in both phases.
    """
    if op == "VariableShape":
        return None if shape_of_variable(flat[0]) is None else STATIC_SHAPE
    if op in SHAPE_OPS:
        for x in flat:
            if type(x) is TerraTensor and type(x._shp) is not tuple and x._owner is owner and (op != "Rank" or x._shp is None):
                return None
        return STATIC_SHAPE
    if schema.category != opschema.GRAPH or not flat or schema.is_function:
        return None
    step = owner.step
    for x in flat:
        if type(x) is not EagerTensor or x._datatype_enum() not in HOST_KNOWN_ENUMS or x._num_elements() > SMALL:
            return None
        if id(x) in step.args or step.is_data(x):
            return None
    return HOST_STATIC


def has_varying_shape(schema, x):
    """Returns whether the operation is given a variable, by its handle `x`, whose values may have different shapes."""
    return schema.category == opschema.VARIABLE and type(x) is EagerTensor and x._datatype_enum() == RESOURCE_ENUM and shape_of_variable(x) is None


_shapes_of_variables = {}  # number of a handle -> that
_MOST_SHAPES = 100_000


def shape_of_variable(handle):
    """The shape that all values of a variable have, as a list; None if they may have different ones."""
    if type(handle) is not EagerTensor:
        return None
    known = _shapes_of_variables.get(handle._id)
    if known is None:
        known = _shape_of_variable(handle)
        if known is not None:
            if len(_shapes_of_variables) >= _MOST_SHAPES:
                _shapes_of_variables.clear()
            _shapes_of_variables[handle._id] = known
    return known


def _shape_of_variable(handle):
    if not tfi.is_of_variable(handle):
        return None
    shape = handle._handle_data.shape_and_type[0].shape
    dims = [dim.size for dim in shape.dim]
    return None if shape.unknown_rank or min(dims, default=0) < 0 else dims


def static_shape(op, flat, attrs, fast):
    """Outcome of Shape, ShapeN, Size or Rank as an eager constant, nested as the entry point would return it."""
    out_type = tfi.dtypes.int32
    for name, value in zip(attrs[::2], attrs[1::2]):
        if name == "out_type":
            out_type = tfi.dtypes.as_dtype(value)
    outs = []
    for x in flat:
        if op == "Rank":
            value = x._rank()
        elif op == "VariableShape":
            value = shape_of_variable(x)
        else:
            value = elements(x._shape_tuple()) if op == "Size" else list(x._shape_tuple())
        outs.append(tfi.eager_constant(value, out_type))
    return outs if op == "ShapeN" or not fast else outs[0]


def recorded_shape(schema, op, inputs, flat, attrs, record):
    """Computes a shape as `static_shape` does, by the fast path, and tells the tapes: no gradient goes through it, but eager tapes take it into
    account in the order of what they add up."""
    result = static_shape(op, flat, attrs, True)
    if not tfi.tape_set_is_empty():
        record(op, list(flat), attrs + schema.inferred_attrs(inputs), result if type(result) is list else [result])
    return result
