"""Tells what XLA may be given: which operations it has kernels for, and which of those it would run differently from eager execution.

TensorFlow itself says for which operations, and which of their types, XLA has a kernel. Of these, some are left to the ordinary kernels, because XLA's do
something else (`_LEFT_OUT`). Three that are too frequent for that, and whose kernels differ only in that they never fail, are compiled together with the check
that the ordinary kernel makes (`GUARDED`): if it fails, the step fails and is replayed imperatively, which raises what eager execution raises.
"""

from terra.tf import private_names as tfi
from terra.tf.opschema import get_schema
from terra.tf.private import hardware, runtime_functions

_CHECKS = "its kernel checks the values that it is given, XLA's does not"
_RANDOM = "XLA would draw other random numbers"
_DATA = "the shape of its result depends on data"
CALLS = "it calls functions of its own"
_SIGNS = "XLA's algorithm gives other results where several are right"
_LEFT_OUT = {
    **dict.fromkeys((
        "Assert", "CheckNumerics", "Gather", "GatherNd", "ScatterNd", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin",
        "TensorScatterUpdate", "TensorStridedSliceUpdate", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd",
        "SegmentSumV2", "SegmentMaxV2", "SegmentMinV2", "SegmentProdV2", "InTopKV2", "DynamicStitch", "ParallelDynamicStitch", "InvertPermutation",
        "Bincount", "DenseBincount", "Cholesky", "MatrixInverse", "MatrixSolve", "MatrixTriangularSolve", "TridiagonalSolve", "ReverseSequence",
        "SparseToDense"), _CHECKS),
    **dict.fromkeys((
        "Multinomial", "ParameterizedTruncatedNormal", "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
        "StochasticCastToInt", "ApproxTopK", "Empty"), _RANDOM),
    **dict.fromkeys((
        "Where", "Unique", "UniqueV2", "ListDiff", "DynamicPartition", "NonMaxSuppressionV3", "NonMaxSuppressionV4"), _DATA),
    **dict.fromkeys((
        "Case", "If", "While", "StatelessCase", "StatelessIf", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"), CALLS),
    **dict.fromkeys(("Qr", "Svd", "SelfAdjointEigV2"), _SIGNS),
}
LOOPS = frozenset(["StatelessWhile", "While"])
_FAIL_ON_INTEGERS = frozenset(["Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "Pow"])  # division by zero, negative powers
_IMPURE = ("Xla", "TensorArray", "TensorList", "Collective", "Uniform", "_")  # beginnings of names
GUARDED = frozenset(["GatherV2", "SparseSoftmaxCrossEntropyWithLogits", "UnsortedSegmentSum"])

_TYPES = tfi.types_pb2
FLOATS = frozenset([_TYPES.DT_HALF, _TYPES.DT_BFLOAT16, _TYPES.DT_FLOAT, _TYPES.DT_DOUBLE, _TYPES.DT_COMPLEX64, _TYPES.DT_COMPLEX128])
INTEGERS = frozenset([_TYPES.DT_INT8, _TYPES.DT_INT16, _TYPES.DT_INT32, _TYPES.DT_INT64, _TYPES.DT_UINT8, _TYPES.DT_UINT16, _TYPES.DT_UINT32, _TYPES.DT_UINT64])
TYPES = FLOATS | INTEGERS | {_TYPES.DT_BOOL}
VARIANT = _TYPES.DT_VARIANT
_constraints = {}


def _attr(node, op_def, name):
    found = node.attr.get(name)
    if found is not None and found.WhichOneof("value"):
        return found
    return next(a.default_value for a in op_def.attr if a.name == name)


def _ports(node, op_def, args):
    """(name, [type enums]) for each input or output argument of a node."""
    for a in args:
        if a.type_list_attr:
            yield a.name, list(_attr(node, op_def, a.type_list_attr).list.type)
        else:
            enum = a.type or _attr(node, op_def, a.type_attr).type
            yield a.name, [enum] * (_attr(node, op_def, a.number_attr).i if a.number_attr else 1)


def output_types(node):
    """{ref: type enum} of a node's outputs, as a FunctionDef refers to them."""
    op_def = runtime_functions.op_def(node.op)
    return {f"{node.name}:{name}:{k}": enum for name, enums in _ports(node, op_def, op_def.output_arg) for k, enum in enumerate(enums)}


def input_types(node):
    op_def = runtime_functions.op_def(node.op)
    return [enum for _, enums in _ports(node, op_def, op_def.input_arg) for enum in enums]


def constant_inputs(node):
    """Numbers of the inputs that must be known when XLA compiles the node: shapes, axes, sizes."""
    op_def = runtime_functions.op_def(node.op)
    numbers, k = [], 0
    for needed, (_, enums) in zip(get_schema(node.op).value_inputs, _ports(node, op_def, op_def.input_arg)):
        if needed:
            numbers += range(k, k + len(enums))
        k += len(enums)
    return numbers


def why_not(node, in_loop=False):
    """Why XLA is not given this node, as a phrase; None if it may be. in_loop: it belongs to a loop, or its gradient, where lists of tensors are used."""
    op_def = runtime_functions.op_def(node.op)
    if op_def is None:
        return CALLS
    reason = _CHECKS if in_loop and node.op in GUARDED else _LEFT_OUT.get(node.op)
    if reason and not (in_loop and node.op == "InvertPermutation"):  # which gradients of transpositions have, of an order that is known
        return reason
    if "Random" in node.op or node.op.startswith("Stateless"):
        return _RANDOM
    if op_def.is_stateful or not op_def.output_arg or (node.op.startswith(_IMPURE) and not (in_loop and node.op.startswith("TensorList"))):
        return "it is not a pure computation"
    allowed = _kernel_types(node.op)
    if allowed is None:
        return "XLA has no kernel for it"
    types = [enum for args in (op_def.input_arg, op_def.output_arg) for _, enums in _ports(node, op_def, args) for enum in enums]
    if not all(enum in TYPES or (in_loop and enum == VARIANT) for enum in types):
        return "XLA does not take its types"
    for name, enums in allowed.items():
        if _attr(node, op_def, name).type not in enums:
            return "XLA has no kernel for its types"
    if node.op in _FAIL_ON_INTEGERS and types[0] in INTEGERS:
        return _CHECKS
    return None


def _kernel_types(op):
    """{attribute: types that XLA's kernel takes}; None if there is no kernel."""
    if op not in _constraints:
        _constraints[op] = hardware.xla_kernel_types(op)
    return _constraints[op]
