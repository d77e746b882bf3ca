"""Other operations that compute what a step's operation computes, to the last bit, where they are faster.

Kernels of TensorFlow for CPUs are slow in some cases that transformers are full of. `Einsum` and `Transpose` move numbers one by one where they could
move pairs; a batch of matrices times one matrix is not multiplied as the one tall matrix that it is; a choice between a tensor and a number, and the
gradient of a slice, go through all indices of all elements. Each of these can be written in other ways. Which is the fastest depends on the machine
and the shapes, and so may the order of sums: before a way is used it is tried on random numbers of the very shapes (`benchmark.py`), and what was
found holds for these. A graph that uses it must not be run with others: see `Generated.fixed`. It checks that itself, too, since what the skeleton
knows of shapes may be what it remembers of them.
"""

import math
import time

import numpy as np

from terra.graph.trace import CONST, is_value
from terra.runtime.generation.functiondef import attr, attr_protos, dtype
from terra.runtime.generation.kernels import benchmark
from terra.runtime.generation.kernels.eager_kernels import BOOL, FLOAT, INT32, const_ints, constant_proto
from terra.tf import private_names as tfi

INT64 = tfi.types_pb2.DT_INT64
SMALLEST, LARGEST = 1 << 12, 1 << 21  # elements of the largest tensor of an operation that is worth a contest
_FEWEST = 16  # elements of a result by whose bits a way may be told from one that sums in another order
_MOST_SECONDS = 2.0  # that one graph's contests may take
_MOST_KEPT = 1000

_found = {}  # Question -> the way that is the fastest: None if that is the operation itself


class Question:
    """How an operation is to be written: `info`, the `shapes` of its inputs, for each its value as a NumPy array if that is a constant, else None."""

    def __init__(self, info, shapes, constants):
        self.info, self.shapes, self.constants = info, shapes, constants
        self._key = (info, shapes, *[None if value is None else value.tobytes() for value in constants])

    def __eq__(self, other):
        return self._key == other._key

    def __hash__(self):
        return hash(self._key)

    def input_enums(self):
        return [BOOL if self.info.op_type == "SelectV2" and k == 0 else FLOAT for k in range(len(self.shapes))]


def question(node, shapes):
    """The Question about a node with these {key: shapes of the outputs}, for the first of them; None if there is none.

    The first ones are those of most steps: a smaller batch comes at the end.
    """
    site = node.payload
    info = site.event.info
    if info.op_type not in TYPES or info.device or not shapes:
        return None
    keys, out_shapes = list(shapes.items())[0]
    known = tuple([key[1] if is_value(key) else key for key in keys])
    sizes = [math.prod(shape) for shape in (*known, *out_shapes) if type(shape) is tuple]
    if len(sizes) < len(known) + 1 or not min(sizes) or not SMALLEST <= max(sizes) <= LARGEST or sizes[-1] < _FEWEST or info.attrs.get("T") != FLOAT:
        return None
    return Question(info, known, [kind[1].tensor.numpy() if kind[0] == CONST else None for kind in site.kinds])


def questions(graph):
    """The Questions about a TraceGraph's nodes that are open."""
    asked = [question(node, node.payload.shapes) for node in graph.nodes if node.payload.event.info.op_type in TYPES]
    return [one for one in dict.fromkeys(asked) if one is not None and one not in _found]


def settle(open_questions):
    """Holds contests about these, as far as there is time. What is not settled is as if there were no other way, until the next time."""
    end = time.perf_counter() + _MOST_SECONDS
    for one in open_questions:
        if time.perf_counter() > end:
            return
        if len(_found) >= _MOST_KEPT:
            _found.clear()
        _found[one] = _choose(one)


def find(one):
    """The fastest way to write the operation of a Question: `way(builder, refs, label)` gives the refs of its outputs. None if that is the operation itself."""
    return _found.get(one)


def _choose(one):
    info, constants = one.info, one.constants
    attrs = attr_protos(info)
    ways = list(_WAYS[info.op_type](attrs, one.shapes, constants))
    if not ways:
        return None

    def plain(builder, refs, label):
        return [builder.node(info.op_type, refs, attrs, label) + f":{info.output_refs[0]}"]

    inputs = [(enum, shape) for enum, shape, value in zip(one.input_enums(), one.shapes, constants) if value is None]
    best = benchmark.fastest([_with_constants(way, constants) for way in (plain, *ways)], inputs, [FLOAT])
    return ways[best - 1] if best else None


def _with_constants(way, constants):
    """The way as one that is given only those inputs that are no constants."""
    def write(builder, refs, label):
        rest = iter(refs)
        return way(builder, [next(rest) if value is None else _constant(builder, value) for value in constants], label)

    return write


def _constant(builder, value):
    enum = tfi.dtypes.as_dtype(value.dtype).as_datatype_enum
    return builder.const((enum, value.shape, value.tobytes()), lambda: constant_proto(value, enum))


# -- how things are written ----------------------------------------------------------------------------------------------------


def _reshaped(builder, ref, old, new, label):
    if old == new:
        return ref
    return builder.node("Reshape", [ref, const_ints(builder, new)], {"T": dtype(FLOAT), "Tshape": dtype(INT32)}, label) + ":output:0"


def _with_other_type(builder, ref, old, new, label):
    return builder.node("Bitcast", [ref], {"T": dtype(old), "type": dtype(new)}, label) + ":output:0"


def _transposed(enum):
    """Transposes floats as what they are, as integers of their size, or two of them at a time as one integer."""
    def write(builder, ref, shape, perm, label):
        if perm == tuple(range(len(perm))):
            return ref
        in_pairs = enum == INT64 and perm[-1] == len(perm) - 1 and shape[-1] % 2 == 0
        if in_pairs:
            ref = _reshaped(builder, ref, shape, (*shape[:-1], shape[-1] // 2, 2), label)
        kind = INT32 if enum == INT64 and not in_pairs else enum
        if kind != FLOAT:
            ref = _with_other_type(builder, ref, FLOAT, kind, label)
        ref = builder.node("Transpose", [ref, const_ints(builder, perm)], {"T": dtype(kind), "Tperm": dtype(INT32)}, label) + ":y:0"
        if kind != FLOAT:
            ref = _with_other_type(builder, ref, kind, FLOAT, label)
        return _reshaped(builder, ref, (), tuple([shape[k] for k in perm]), label) if in_pairs else ref

    return write


# oneDNN's kernel for floats is slower than TensorFlow's own for integers.
_as_floats, _as_integers, _in_pairs = map(_transposed, (FLOAT, INT32, INT64))


def _transpositions(attrs, shapes, constants):
    shape, perm = shapes[0], constants[1]
    if perm is None:
        return
    perm = tuple([int(k) % len(shape) for k in perm])
    for transposed in (_as_integers, _in_pairs):
        yield lambda builder, refs, label, transposed=transposed: [transposed(builder, refs[0], shape, perm, label)]


# -- products ------------------------------------------------------------------------------------------------------------------


def _with_one_matrix(attrs, shapes, constants):
    """A batch of matrices times one matrix: one tall matrix times it."""
    (*batch, rows, inner), other = shapes
    if attrs["adj_x"].b or len(other) != 2 or not batch:
        return
    columns = other[0] if attrs["adj_y"].b else other[1]
    products = {"T": attrs["T"], "transpose_a": attr(False), "transpose_b": attrs["adj_y"]}

    def write(builder, refs, label):
        tall = _reshaped(builder, refs[0], shapes[0], (math.prod(batch) * rows, inner), label)
        product = builder.node("MatMul", [tall, refs[1]], products, label) + ":product:0"
        return [_reshaped(builder, product, (), (*batch, rows, columns), label)]

    yield write


def _einsums(attrs, shapes, constants):
    """A product of two tensors over some of their axes: as a batch of products of matrices, with what has to be transposed before and after it."""
    left, arrow, out = attrs["equation"].s.decode().replace(" ", "").partition("->")
    labels = left.split(",")
    if not arrow or len(labels) != 2 or any(len(set(part)) != len(part) or not part.isalpha() for part in (*labels, out)):
        return
    sizes = {name: size for part, shape in zip(labels, shapes) for name, size in zip(part, shape)}
    batch = [name for name in out if name in labels[0] and name in labels[1]]
    summed = [name for name in labels[0] if name in labels[1] and name not in out]
    free = [[name for name in out if name in part and name not in batch] for part in labels]
    if not batch or not summed or any(set(part) != {*batch, *summed, *own} for part, own in zip(labels, free)):
        return

    def length(names):
        return math.prod([sizes[name] for name in names])

    def operand(builder, ref, k, transposed, label):
        """(a batch of matrices, whether what is summed over comes first in them)."""
        orders = [[*batch, *free[k], *summed], [*batch, *summed, *free[k]]]
        perms = [tuple([labels[k].index(name) for name in order]) for order in orders]
        first = min((0, 1), key=lambda n: (perms[n] != tuple(range(len(perms[n]))), perms[n][-1] != len(perms[n]) - 1))
        matrix = [length(free[k]), length(summed)]
        shape = (*[sizes[name] for name in batch], *(matrix[::-1] if first else matrix))
        moved = transposed(builder, ref, shapes[k], perms[first], label)
        return _reshaped(builder, moved, tuple([sizes[name] for name in orders[first]]), shape, label), first == 1

    def way(transposed):
        def write(builder, refs, label):
            (x, x_first), (y, y_first) = [operand(builder, ref, k, transposed, label) for k, ref in enumerate(refs)]
            products = {"T": attrs["T"], "adj_x": attr(x_first), "adj_y": attr(not y_first)}
            product = builder.node("BatchMatMulV2", [x, y], products, label) + ":output:0"
            names = [*batch, *free[0], *free[1]]
            shape = tuple([sizes[name] for name in names])
            product = _reshaped(builder, product, (*[sizes[name] for name in batch], length(free[0]), length(free[1])), shape, label)
            return [transposed(builder, product, shape, tuple([names.index(name) for name in out]), label)]

        return write

    for transposed in (_as_floats, _as_integers, _in_pairs):
        yield way(transposed)


# -- choices -------------------------------------------------------------------------------------------------------------------


def _choices(attrs, shapes, constants):
    """A choice between a tensor and a number: between it and a tensor that is full of the number."""
    shape = shapes[0]
    if sorted((shapes[1], shapes[2])) != sorted((shape, ())):
        return
    fill = {"T": attrs["T"], "index_type": dtype(INT32)}

    def write(builder, refs, label):
        refs = [ref if shapes[k] == shape else builder.node("Fill", [const_ints(builder, shape), ref], fill, label) + ":output:0" for k, ref in enumerate(refs)]
        return [builder.node("Select", refs, {"T": attrs["T"]}, label) + ":output:0"]

    yield write


def _differences(attrs, shapes, constants):
    """A squared difference: the square of a difference."""
    def write(builder, refs, label):
        difference = builder.node("Sub", refs, {"T": attrs["T"]}, label) + ":z:0"
        return [builder.node("Square", [difference], {"T": attrs["T"]}, label) + ":y:0"]

    yield write


# -- parts ---------------------------------------------------------------------------------------------------------------------


def _paddings(attrs, shapes, constants):
    """The gradient of a part of a tensor: zeros round it."""
    whole, begin, end, strides = constants[:4]
    if any(value is None for value in constants[:4]) or any(attrs[name].i for name in ("ellipsis_mask", "new_axis_mask")) or any(strides != 1):
        return
    parts = []
    for k, size in enumerate(whole):
        first = None if k >= len(begin) or attrs["begin_mask"].i >> k & 1 else int(begin[k])
        last = None if k >= len(end) or attrs["end_mask"].i >> k & 1 else int(end[k])
        if k < len(begin) and attrs["shrink_axis_mask"].i >> k & 1:
            first = int(begin[k]) % int(size)
            last = first + 1
        first, last, _ = slice(first, last).indices(int(size))
        parts.append((first, max(first, last), int(size)))
    sizes = tuple([last - first for first, last, _ in parts])
    if math.prod(sizes) != math.prod(shapes[4]):
        return
    paddings = np.array([(first, size - last) for first, last, size in parts], np.int32)

    def write(builder, refs, label):
        part = _reshaped(builder, refs[4], shapes[4], sizes, label)
        return [builder.node("Pad", [part, _constant(builder, paddings)], {"T": attrs["T"], "Tpaddings": dtype(INT32)}, label) + ":output:0"]

    yield write


_WAYS = {
    "BatchMatMulV2": _with_one_matrix, "Einsum": _einsums, "SelectV2": _choices, "SquaredDifference": _differences,
    "StridedSliceGrad": _paddings, "Transpose": _transpositions,
}
TYPES = frozenset(_WAYS)
OF_ANY_SHAPE = frozenset(["SquaredDifference"])  # whose ways are as right for other shapes
