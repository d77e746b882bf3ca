"""Updates of variables in their place (scattered ones, fused kernels) and what follows from them: which of that can run behind the barrier.

Such an update cannot be undone, so nothing may fail any more once it runs: neither what comes after it in the step, nor what does not depend on it,
whose failure would undo the rest. That holds if it waits for the barrier, as do all operations that its result reaches, and none of these can fail.
An index out of range is the only thing that can be wrong with an update, or with a look-up, whose shapes are known; it is looked for before the barrier.
"""

import functools

import numpy as np

from terra.graph.trace import CONST, RESOURCE, VALUE
from terra.runtime.generation.functiondef import attr, dtype
from terra.runtime.generation.kernels.eager_kernels import const_ints, constant_proto
from terra.runtime.generation.kernels.writer import BOOL, INT32, UINT32, UINT64, Writer
from terra.runtime.tensors.host_values import shape_of_variable
from terra.tf import private_names as tfi
from terra.tf.private import hardware, runtime_functions
from terra.tf.variable_use import ASSIGN, ASSIGN_ADD, ASSIGN_SUB, READ, READS_ONLY

_SCATTER = frozenset("ResourceScatter" + name for name in ("Add", "Div", "Max", "Min", "Mul", "Sub", "Update"))  # of rows
_NAMES = """
    ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradV2 ApplyAdam ApplyAdamWithAmsgrad ApplyAddSign ApplyCenteredRMSProp ApplyGradientDescent ApplyKerasMomentum ApplyMomentum
    ApplyPowerSign ApplyRMSProp GatherNd Gather ScatterNdAdd ScatterNdMax ScatterNdMin ScatterNdSub ScatterNdUpdate SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradV2 SparseApplyCenteredRMSProp SparseApplyKerasMomentum SparseApplyMomentum SparseApplyRMSProp
"""
# What works on a variable itself, and does not refuse any values but indices. (Others look at a learning rate, for one.)
_SURE = _SCATTER.union("Resource" + name for name in _NAMES.split())
_ASSIGNS_SLICE = "ResourceStridedSliceAssign"
_PASSING_ON = frozenset(["Reshape", "Identity", "ExpandDims", "Squeeze", "Unique", "UniqueV2"])  # what their first output holds, their first input does


@functools.cache
def _places(op_type):
    """{name: which input it is} of those that may be wrong: the indices of a variable's rows or elements, and what these are updated with."""
    names = [arg.name for arg in runtime_functions.op_def(op_type).input_arg] if op_type in _SURE else ()
    return {name: k for k, name in enumerate(names) if name in ("indices", "updates", "grad", "delta")}


def place_of_indices(op_type):
    """Which input of an operation has the indices of a variable's rows or elements; None if there is none."""
    return _places(op_type).get("indices")


def is_of_elements(op_type):
    """Returns whether the indices of such an operation are those of single elements (or of parts of any rank), not of rows."""
    return "Nd" in op_type


def places_to_check(node, is_open):
    """Which inputs have to be looked at before the barrier. Shape functions of TensorFlow's look at those of scattered rows alone, as far as they are known."""
    op_type = node.payload.event.info.op_type
    places = _places(op_type)
    return [k for name, k in places.items() if name == "indices" or is_open or op_type not in _SCATTER]


def is_sure(node, accesses, is_open):
    """Returns whether an operation on variables cannot fail if its indices are in range, and if the shapes of its inputs, should these depend on data
    (`is_open`), fit each other."""
    info, kinds = node.payload.event.info, node.payload.kinds
    if (is_open and info.op_type not in _SCATTER) or info.attrs.get("batch_dims"):
        return False
    for k, v, how in accesses:
        if type(v) is not int or kinds[k][0] != RESOURCE or shape_of_variable(kinds[k][1]) is None:
            return False
        if how in (READ, ASSIGN, ASSIGN_ADD, ASSIGN_SUB) or (info.op_type in _SURE and (not is_of_elements(info.op_type) or _depth(node) is not None)):
            continue
        if info.op_type != _ASSIGNS_SLICE or any(kind[0] != CONST for kind in kinds[1:4]):
            return False
    return True


def has_rows(node):
    """Returns whether an update changes only the rows, or elements, of its variables that it has the indices of."""
    return place_of_indices(node.payload.event.info.op_type) is not None


def find(order, inline, accesses, raw, can_run, is_open):
    """The nodes that run behind the barrier: updates of the variables in `raw`, where that works, and all that depends on them.

    order: topological. inline: the nodes that lie on every path. accesses: those of variables, {node: [(input, variable, how)]}. can_run(node,
        whether it is such an update itself).
    is_open(node): whether shapes of its inputs depend on data.
    """
    refused = set()
    while True:
        behind = _find(order, inline, accesses, raw, lambda node, starts: node not in refused and can_run(node, starts))
        unknown = [node for node in behind if any(value is None or value[0] in behind for value in (_value(node, k) for k in places_to_check(node, is_open(node))))]
        if not unknown:
            return behind
        refused.update(unknown)


def _find(order, inline, accesses, raw, can_run):
    followers = {node: set() for node in order}
    later = {}  # variable -> nodes that access it later, until it is updated again
    movable = set()
    for node in reversed(order):
        follows = followers[node]
        for _, v, how in accesses.get(node, ()):
            if how in READS_ONLY:
                later.setdefault(v, []).append(node)
            else:
                follows.update(later.get(v, ()))
                later[v] = [node]
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
    """Returns whether it is an update of a variable in its place."""
    return any(v in raw and how not in READS_ONLY for _, v, how in accesses.get(node, ()))


def _value(node, k):
    """Tells where an operation's k-th input comes from: (node, output) of this step, (None, kind) of what comes from outside; None if that depends on
    the path."""
    kinds = node.payload.kinds
    if kinds[k][0] != VALUE:
        return None, kinds[k]
    slot = node.slots[sum(kind[0] == VALUE for kind in kinds[:k])]
    return slot[0] if len(slot) == 1 else None


def _origin(value, passing_on=_PASSING_ON):
    """The value that all of these numbers come from."""
    while value is not None and value[0] is not None and value[1] == 0 and value[0].payload.event.info.op_type in passing_on:
        value = _value(value[0], 0)
    return value


def _depth(node):
    """How many numbers tell where an element is, of those that an operation has a list of; None if that is not known."""
    value = _value(node, place_of_indices(node.payload.event.info.op_type))
    if value is None:
        return None
    source, what = value
    if source is not None:
        shape = source.payload.event.out_shapes[what] if what >= 0 else None
    else:
        shape = what[1].tensor.shape if what[0] == CONST else None
    return shape[1] if shape is not None and len(shape) == 2 else None


class UpdateChecks:
    """The checks of one graph that run before its barrier.

    order, inline, behind: as in `find`.
    """

    def __init__(self, order, inline, behind):
        self._looked_up = {pair for node in order if node in inline and node not in behind for pair in _looks_up(node)}
        self._checked = set()

    def add(self, builder, node, refs, is_open, harmless, label):
        """See to it that the graph fails if an operation behind the barrier would, whose inputs have these refs."""
        info = node.payload.event.info
        write, places = Writer(builder, label), _places(info.op_type)
        given = {name: refs[k] for name, k in places.items()}
        checked = places_to_check(node, is_open)
        size = shape_of_variable(node.payload.kinds[0][1])
        enum = next((info.attrs[name] for name in ("T", "dtype") if name in info.attrs), None)
        if "indices" not in places:
            for ref in given.values():
                write.ensure_shape(ref, enum, size)
            return
        depth = _depth(node) if is_of_elements(info.op_type) else None
        if depth is not None or len(checked) > 1:
            self._check_shapes(write, given, info.attrs["Tindices"], enum, depth, size)
        if not hardware.n_gpus() or tfi.is_deterministic():  # GPUs ignore indices that are out of range, but scatter elements on the CPU if they are to do it in order
            self._check_range(write, node, given["indices"], info.attrs["Tindices"], tuple(size[:1 if depth is None else depth]), harmless)

    @staticmethod
    def _check_shapes(write, given, index_enum, enum, depth, size):
        """As many rows, or elements, as indices; depth: how many numbers each of these is, None if it is a single one."""
        shapes = [("indices", index_enum, [None] if depth is None else [None, depth])]
        shapes += [(name, enum, [None, *size[1 if depth is None else depth:]]) for name in given if name != "indices"]
        refs = [(write.ensure_shape(given[name], kind, shape), kind) for name, kind, shape in shapes]
        if len(refs) > 1:
            first, one = (const_ints(write.builder, [k]) for k in (0, 1))
            lengths = [write("Slice", write("Shape", ref, T=dtype(kind), out_type=dtype(INT32)), first, one, T=dtype(INT32), Index=dtype(INT32)) for ref, kind in refs]
            write.check(write("Equal", *lengths, T=dtype(INT32), incompatible_shape_error=attr(True)))

    def _check_range(self, write, node, ref, enum, limits, harmless):
        value = _value(node, place_of_indices(node.payload.event.info.op_type))
        if (value[0] is None and value[1][0] == CONST) or (ref, limits) in self._checked or (len(limits) == 1 and (_origin(value), limits[0]) in self._looked_up):
            return
        self._checked.add((ref, limits))
        unsigned, type_of_it = (UINT32, np.uint32) if enum == INT32 else (UINT64, np.uint64)
        limit = write.builder.const(("limits", limits, unsigned), lambda: constant_proto(np.array(limits, type_of_it), unsigned))
        before = len(write.builder.node_names)
        are = write("Less", write("Bitcast", ref, T=dtype(enum), type=dtype(unsigned)), limit, T=dtype(unsigned))  # a negative one is a large one
        are = write("Reshape", are, const_ints(write.builder, [-1]), T=dtype(BOOL), Tshape=dtype(INT32))
        harmless.update(write.builder.node_names[before:])
        write.check(are)


def _looks_up(node):
    """(where the indices come from, how many there may be) where an operation fails if one is out of range of a variable's rows."""
    info, kinds = node.payload.event.info, node.payload.kinds
    if info.op_type == "GatherV2" and kinds[2][0] == CONST and not kinds[2][1].tensor.numpy().any():
        source = _origin(_value(node, 0), ("Identity",))
        if source is None or source[0] is None or source[0].payload.event.info.op_type != "ReadVariableOp":
            return
        variable = source[0].payload.kinds[0]
    elif info.op_type == "ResourceGather" and not info.attrs.get("batch_dims"):
        variable = kinds[0]
    else:
        return
    sizes = shape_of_variable(variable[1]) if variable[0] == RESOURCE else None
    origin = _origin(_value(node, 1))
    if sizes and origin is not None:
        yield origin, sizes[0]
