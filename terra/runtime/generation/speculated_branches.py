"""Conditions: what Python would look at in a step that is expected to branch as an earlier one did. The graph is told, of each value, which ones lead
that way, and fails, before anything is updated, if it is none of these.

All are compared as integers. The bits of floating-point numbers, but for the sign, are in the order of the numbers, and unlike these they are not
rounded: TensorFlow's kernels take numbers close to zero (subnormal ones) for zero, where Python does not. Each function of the graph, the top one and
    the branches, checks what is computed in it.
"""

import math
from typing import NamedTuple

import numpy as np

from terra.runtime.generation.functiondef import attr, dtype, type_list
from terra.runtime.generation.kernels.eager_kernels import constant_proto
from terra.tf import private_names as tfi
from terra.tf.opschema import HOST_KNOWN_ENUMS

INT32, INT64, STRING = tfi.types_pb2.DT_INT32, tfi.types_pb2.DT_INT64, tfi.types_pb2.DT_STRING
_BITS = {  # floating-point types -> integers with as many bits
    tfi.types_pb2.DT_HALF: tfi.types_pb2.DT_INT16, tfi.types_pb2.DT_FLOAT: INT32, tfi.types_pb2.DT_DOUBLE: INT64}
_TYPES = (HOST_KNOWN_ENUMS - {tfi.types_pb2.DT_UINT64}).union(_BITS)
OTHERWISE = "terra: a step branches otherwise than the last one, and runs again"  # TensorFlow may log it
ANYTHING = -1 << 63, (1 << 63) - 1


class Within(NamedTuple):
    """The range that a number is expected to be in: not below `low`, and not above `high`. It may not be NaN."""

    low: float
    high: float

    def meets(self, other):
        """The numbers that are in both."""
        return Within(max(self.low, other.low), min(self.high, other.high))


def is_condition(node):
    """Returns whether a fetch is of a scalar on which programs branch."""
    return all(
        out >= 0 and source.payload.event.out_shapes[out] == () and source.payload.event.out_enums[out] in _TYPES
        for source, out in node.slots[0])


def integers(expected, enum):
    """(lowest, highest) of the integers that stand for what a value of this type is expected to be: `Within` bounds, or what `constants.const_key` gives."""
    kind = tfi.dtypes.as_dtype(enum).as_numpy_dtype
    if type(expected) is Within and enum not in _BITS:
        low, high = ANYTHING
        return math.ceil(max(expected.low, float(low))), min(math.floor(min(expected.high, float(high))), high)
    if type(expected) is Within:
        with np.errstate(over="ignore"):
            low, high = kind(expected.low), kind(expected.high)
        low = np.nextafter(low, kind(math.inf)) if float(low) < expected.low else low
        high = np.nextafter(high, kind(-math.inf)) if float(high) > expected.high else high
        return _ordered(-np.abs(low) if low == 0 else low), _ordered(np.abs(high) if high == 0 else high)  # -0.0 is in front of 0.0
    value = np.frombuffer(expected[2], kind)[0]
    number = _ordered(value) if enum in _BITS else int(np.int64(value))
    return number, number


def _ordered(number):
    """An integer: those of larger numbers are larger."""
    bits = number.view(f"int{8 * number.nbytes}")
    return int(bits ^ np.iinfo(bits.dtype).max if bits < 0 else bits)


def check(builder, told, first, values):
    """Makes a function fail unless its values, [(ref, dtype enum)], are within what `told`, the ref of the vector of lowest and highest integers in
    turn, says from the place of the `first` one on."""
    n, of_integers = len(values), {"T": dtype(INT64)}

    def node(op, refs, attrs, output):
        return f"{builder.node(op, refs, attrs, 'condition')}:{output}:0"

    def vector(*numbers):
        return builder.const(("vector", numbers), lambda: constant_proto(numbers, INT32))

    def integer(number):
        return builder.const(("integer", number), lambda: constant_proto(number, INT64))

    def as_integer(ref, enum):
        bits = _BITS.get(enum)
        if bits is not None:
            ref = node("Bitcast", [ref], {"T": dtype(enum), "type": dtype(bits)}, "output")
        source = bits or enum
        if source != INT64:
            ref = node("Cast", [ref], {"SrcT": dtype(source), "DstT": dtype(INT64)}, "y")
        if bits is not None:
            sign = node("RightShift", [ref, integer(63)], of_integers, "z")  # all ones, or none
            mask = node("BitwiseAnd", [sign, integer(np.iinfo(tfi.dtypes.as_dtype(bits).as_numpy_dtype).max)], of_integers, "z")
            ref = node("BitwiseXor", [ref, mask], of_integers, "z")
        return ref

    found = node("Pack", [as_integer(ref, enum) for ref, enum in values], {**of_integers, "N": attr(n), "axis": attr(0)}, "output")
    own = node("Slice", [told, vector(2 * first), vector(2 * n)], {**of_integers, "Index": dtype(INT32)}, "output")
    pairs = node("Reshape", [own, vector(n, 2)], {**of_integers, "Tshape": dtype(INT32)}, "output")
    name = builder.node("Unpack", [pairs], {**of_integers, "num": attr(2), "axis": attr(1)}, "condition")
    above, below = (node(op, [found, f"{name}:output:{k}"], of_integers, "z") for k, op in enumerate(("GreaterEqual", "LessEqual")))
    both = node("LogicalAnd", [above, below], {}, "z")
    holds = node("All", [both, vector(0)], {"keep_dims": attr(False), "Tidx": dtype(INT32)}, "output")
    text = builder.const(("text", OTHERWISE), lambda: constant_proto(OTHERWISE.encode(), STRING))
    builder.must(builder.node("Assert", [holds, text], {"T": type_list([STRING]), "summarize": attr(1)}, "condition"))
