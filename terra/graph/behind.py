"""Updates of variables in their place (scattered ones, fused kernels) and what follows from them: which of that can run behind the barrier.

Such an update cannot be undone, so nothing may fail any more once it runs: neither what comes after it in the step, nor what does not depend on it, whose failure would undo the rest.
That holds if it waits for the barrier, as do all operations that its result reaches, and none of these can fail. An index out of range is the only thing that can be wrong with an update, or
with a look-up, whose shapes are known; it is looked for before the barrier (see `check_indices`).
"""

import functools

import numpy as np

from terra.graph.eager_kernels import constant_proto
from terra.graph.functiondef import attr, dtype, type_list
from terra.graph.trace import ARG, CONST, RESOURCE, VALUE
from terra.runtime import internals as tfi
from terra.runtime.host_values import shape_of_variable
from terra.runtime.opschema import ASSIGN, ASSIGN_ADD, ASSIGN_SUB, READ, READS_ONLY

_BOOL, _INT32, _UINT32, _UINT64 = (getattr(tfi.types_pb2, "DT_" + name) for name in ("BOOL", "INT32", "UINT32", "UINT64"))
_SCATTER = tuple("ResourceScatter" + name for name in ("Add", "Div", "Max", "Min", "Mul", "Sub", "Update"))  # of rows
_INDEXED = ("ResourceScatter", "ResourceGather", "ResourceSparseApply")
_NAMES = """
    ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradV2 ApplyAdam ApplyAdamWithAmsgrad ApplyAddSign ApplyCenteredRMSProp ApplyGradientDescent ApplyKerasMomentum ApplyMomentum
    ApplyPowerSign ApplyRMSProp GatherNd Gather ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul ScatterNdAdd ScatterNdMax ScatterNdMin ScatterNdSub ScatterNdUpdate ScatterSub
    ScatterUpdate SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradV2 SparseApplyCenteredRMSProp SparseApplyKerasMomentum SparseApplyMomentum SparseApplyRMSProp
"""
# What works on a variable itself, and does not refuse any values but indices. (Others look at a learning rate, for one.)
_SURE = frozenset("Resource" + name for name in _NAMES.split())
_ASSIGNS_SLICE = "ResourceStridedSliceAssign"
_PASSING_ON = frozenset(["Reshape", "Identity", "ExpandDims", "Squeeze", "Unique", "UniqueV2"])  # what their first output holds, their first input does


@functools.cache
def place_of_indices(op_type):
    """Which input of an operation has the indices of a variable's rows or elements; None if there is none."""
    if not op_type.startswith(_INDEXED):
        return None
    return [arg.name for arg in tfi.op_def(op_type).input_arg].index("indices")


def is_sure(node, accesses, is_open):
    """Whether an operation on variables cannot fail if its indices are in range, and if the shapes of its inputs, should these depend on data (`is_open`), fit each other."""
    info, kinds = node.payload.event.info, node.payload.kinds
    if is_open and not info.op_type.startswith(_SCATTER):
        return False
    for k, v, how in accesses:
        if type(v) is not int or kinds[k][0] != RESOURCE or shape_of_variable(kinds[k][1]) is None:
            return False
        if how in (READ, ASSIGN, ASSIGN_ADD, ASSIGN_SUB) or (info.op_type in _SURE and (place_of_indices(info.op_type) is None or _limits(node) is not None)):
            continue
        if info.op_type != _ASSIGNS_SLICE or any(kind[0] != CONST for kind in kinds[1:4]):
            return False
    return True


def has_rows(node):
    """Whether an update changes only the rows, or elements, of its variables that it has the indices of."""
    op_type = node.payload.event.info.op_type
    return op_type in _SURE and place_of_indices(op_type) is not None


def find(order, inline, accesses, raw, can_run, is_open):
    """The nodes that run behind the barrier: updates of the variables in `raw`, where that works, and all that depends on them.

    order: topological. inline: the nodes that lie on every path. accesses: those of variables, {node: [(input, variable, how)]}. can_run(node, whether it is such an update itself).
    is_open(node): whether shapes of its inputs depend on data.
    """
    refused = set()
    while True:
        behind = _find(order, inline, accesses, raw, lambda node, starts: node not in refused and can_run(node, starts))
        unknown = [node for node in behind if any(source in behind for source in (_sources(node) if is_open(node) else [_source_of_indices(node)]))]
        if not unknown:
            return behind
        refused.update(unknown)


def _find(order, inline, accesses, raw, can_run):
    followers = {node: set() for node in order}
    later = {}  # variable -> nodes that access it later
    movable = set()
    for node in reversed(order):
        follows = followers[node]
        for _, v, how in accesses.get(node, ()):
            others = later.setdefault(v, [])
            if how not in READS_ONLY:
                follows.update(others)
            others.append(node)
        for slot in node.slots:
            for source, _ in slot:
                # Who comes last decides about a value with several sources: it is one that branches may pass through.
                followers[source].add(node if len(slot) == 1 else None)
        if node in inline and follows <= movable and can_run(node, _starts(node, accesses, raw)):
            movable.add(node)
    behind = set()
    for node in order:
        if node in behind or (node in movable and _starts(node, accesses, raw)):
            behind.add(node)
            behind.update(followers[node])
    return behind


def _starts(node, accesses, raw):
    """Whether it is an update of a variable in its place."""
    return any(v in raw and how not in READS_ONLY for _, v, how in accesses.get(node, ()))


def _value(node, k):
    """What an operation's k-th input is: (node, output) of this step, ("a", number) of an argument; None if that depends on the path, or it is something else."""
    kinds = node.payload.kinds
    if kinds[k][0] == ARG:
        return kinds[k][:2]
    if kinds[k][0] != VALUE:
        return None
    slot = node.slots[sum(kind[0] == VALUE for kind in kinds[:k])]
    return slot[0] if len(slot) == 1 else None


def _source_of_indices(node):
    k = place_of_indices(node.payload.event.info.op_type)
    value = None if k is None else _value(node, k)
    return value and value[0]


def _sources(node):
    return [source for slot in node.slots for source, _ in slot]


def _origin(value):
    """The value that all of these numbers come from."""
    while value is not None and value[0] != ARG and value[1] == 0 and value[0].payload.event.info.op_type in _PASSING_ON:
        value = _value(value[0], 0)
    return value


class Indices:
    """The checks of indices in one graph.

    order, inline, behind: as in `find`.
    """

    def __init__(self, order, inline, behind):
        self._looked_up = {pair for node in order if node in inline and node not in behind for pair in _looks_up(node)}
        self._checked = set()

    def check(self, builder, node, ref, enum, harmless, label):
        """See to it that the indices of an operation behind the barrier, which have this ref, are in range: the graph fails if they are not."""
        k = place_of_indices(node.payload.event.info.op_type)
        limits = _limits(node)
        if node.payload.kinds[k][0] == CONST or (ref, limits) in self._checked or (len(limits) == 1 and (_origin(_value(node, k)), limits[0]) in self._looked_up):
            return
        self._checked.add((ref, limits))
        unsigned, type_of_it = (_UINT32, np.uint32) if enum == _INT32 else (_UINT64, np.uint64)
        limit = builder.const(("limit", limits, unsigned), lambda: constant_proto(np.array(limits if len(limits) > 1 else limits[0], type_of_it), unsigned))
        all_of_them = _vector(builder, -1)
        steps = [
            ("Bitcast", (), {"T": dtype(enum), "type": dtype(unsigned)}, "output"),  # a negative one is a large one
            ("Less", (limit,), {"T": dtype(unsigned)}, "z"),
            ("Reshape", (all_of_them,), {"T": dtype(_BOOL), "Tshape": dtype(_INT32)}, "output"),
        ]
        for op, others, attrs, output in steps:
            name = builder.node(op, [ref, *others], attrs, label)
            harmless.add(name)
            ref = f"{name}:{output}:0"
        _assert_all(builder, ref, label)


def _vector(builder, *numbers):
    return builder.const(("vector", numbers), lambda: constant_proto(np.array(numbers, np.int32), _INT32))


def _assert_all(builder, ref, label):
    """Have the graph fail unless all of a vector is true."""
    true = builder.const(("true",), lambda: constant_proto(True, _BOOL))
    name = builder.node("All", [ref, _vector(builder, 0)], {"Tidx": dtype(_INT32), "keep_dims": attr(False)}, label)
    builder.must(builder.node("Assert", [name + ":output:0", true], {"T": type_list([_BOOL]), "summarize": attr(1)}, label))


def check_shapes(builder, node, refs, label):
    """See to it that a scattered update has as many rows as indices, where shapes depend on data."""
    info = node.payload.event.info
    _, indices, rows = refs
    row = shape_of_variable(node.payload.kinds[0][1])[1:]
    lengths = []
    for ref, enum, shape in ((indices, info.attrs["Tindices"], [None]), (rows, info.attrs["dtype"], [None, *row])):
        name = builder.node("EnsureShape", [ref], {"T": dtype(enum), "shape": tfi.as_attr_value(shape, "shape", "shape")}, label)
        shape = builder.node("Shape", [name + ":output:0"], {"T": dtype(enum), "out_type": dtype(_INT32)}, label) + ":output:0"
        lengths.append(builder.node("Slice", [shape, _vector(builder, 0), _vector(builder, 1)], {"T": dtype(_INT32), "Index": dtype(_INT32)}, label) + ":output:0")
    _assert_all(builder, builder.node("Equal", lengths, {"T": dtype(_INT32)}, label) + ":z:0", label)


def _limits(node):
    """The sizes of what the indices of an operation are into; for those of elements, of as many dimensions as they have. None if it is not known."""
    info, kinds = node.payload.event.info, node.payload.kinds
    sizes = tuple(shape_of_variable(kinds[0][1]))
    if "Nd" not in info.op_type:
        return sizes[:1]
    k = place_of_indices(info.op_type)
    if kinds[k][0] == CONST:
        return sizes
    value = _value(node, k)
    if value is None or value[0] == ARG:
        return None
    shape = value[0].payload.event.out_shapes[value[1]]
    return sizes[:shape[-1]] if shape else None


def _looks_up(node):
    """(where the indices come from, how many there may be) where an operation fails if one is out of range."""
    info, kinds = node.payload.event.info, node.payload.kinds
    if info.op_type == "ResourceGather" and kinds[0][0] == RESOURCE:
        sizes = shape_of_variable(kinds[0][1])
    elif info.op_type == "GatherV2" and kinds[2][0] == CONST and not kinds[2][1].tensor.numpy().any():
        value = _value(node, 0)
        sizes = value[0].payload.event.out_shapes[value[1]] if value is not None and value[0] != ARG and value[1] >= 0 else None
    else:
        return
    origin = _origin(_value(node, 1))
    if sizes and origin is not None:
        yield origin, sizes[0]
