"""Conditions: what Python would look at in a step that is expected to branch as an earlier one did. The graph is told what that should be, and fails, before anything is updated, if it is
anything else: truth values and integers by their values, floating-point numbers by bounds.

Each function of the graph, the top one and the branches, checks what is computed in it.
"""

import math
from typing import NamedTuple

from terra.graph.eager_kernels import constant_proto
from terra.graph.functiondef import attr, dtype, type_list
from terra.runtime import internals as tfi
from terra.runtime.opschema import HOST_KNOWN_ENUMS

INT32, INT64, DOUBLE, STRING = tfi.types_pb2.DT_INT32, tfi.types_pb2.DT_INT64, tfi.types_pb2.DT_DOUBLE, tfi.types_pb2.DT_STRING
FLOATING = frozenset([tfi.types_pb2.DT_HALF, tfi.types_pb2.DT_BFLOAT16, tfi.types_pb2.DT_FLOAT, DOUBLE])
EXPECTED, BOUNDS = ("expected",), ("bounds",)  # the arguments by which the graph is told: integers; a lower and an upper bound of each number
TYPES = {EXPECTED: INT64, BOUNDS: DOUBLE}
ANYTHING, UNBOUNDED = -1 << 63, math.nan  # stand for no expectation
OTHERWISE = "terra: a step branches otherwise than the last one, and runs again"  # TensorFlow may log it
_LENGTHS = {EXPECTED: 1, BOUNDS: 2}  # of what the graph is told of one value


class Within(NamedTuple):
    """What a number is expected to be: not below, and not above."""

    low: float
    high: float

    def meets(self, other):
        """The numbers that are in both."""
        return Within(max(self.low, other.low), min(self.high, other.high))


def argument_for(node):
    """By which argument the graph is told what a fetch should give; None if it is not one of a scalar on which programs branch."""
    sources = [(source.payload.event, out) for source, out in node.slots[0]]
    if any(out < 0 or event.out_shapes[out] != () for event, out in sources):
        return None
    enums = {event.out_enums[out] for event, out in sources}
    return EXPECTED if enums <= HOST_KNOWN_ENUMS else BOUNDS if enums <= FLOATING else None


def nothing_expected(argument, n):
    """What the graph is told of `n` values of which nothing is expected."""
    return [ANYTHING if argument is EXPECTED else UNBOUNDED] * (n * _LENGTHS[argument])


def check(builder, told, argument, first, values):
    """Have a function fail unless these values, [(ref, dtype enum)], are what `told`, the ref of that argument, says from the place of the `first` one on."""
    kind, n, length = dtype(TYPES[argument]), len(values), _LENGTHS[argument]

    def node(op, refs, attrs, output):
        return f"{builder.node(op, refs, attrs, 'condition')}:{output}:0"

    def vector(*numbers):
        return builder.const(("vector", numbers), lambda: constant_proto(numbers, INT32))

    refs = [ref if enum == TYPES[argument] else node("Cast", [ref], {"SrcT": dtype(enum), "DstT": kind}, "y") for ref, enum in values]
    found = node("Pack", refs, {"T": kind, "N": attr(n), "axis": attr(0)}, "output")
    expected = node("Slice", [told, vector(first * length), vector(n * length)], {"T": kind, "Index": dtype(INT32)}, "output")
    if argument is EXPECTED:
        anything = builder.const(("anything",), lambda: constant_proto(ANYTHING, INT64))
        holds, free = node("Equal", [found, expected], {"T": kind}, "z"), node("Equal", [expected, anything], {"T": kind}, "z")
    else:
        pairs = node("Reshape", [expected, vector(n, 2)], {"T": kind, "Tshape": dtype(INT32)}, "output")
        name = builder.node("Unpack", [pairs], {"T": kind, "num": attr(2), "axis": attr(1)}, "condition")
        low, high = f"{name}:output:0", f"{name}:output:1"
        holds = node("LogicalAnd", [node("GreaterEqual", [found, low], {"T": kind}, "z"), node("LessEqual", [found, high], {"T": kind}, "z")], {}, "z")
        free = node("NotEqual", [low, low], {"T": kind}, "z")
    either = node("LogicalOr", [holds, free], {}, "z")
    all_hold = node("All", [either, vector(0)], {"keep_dims": attr(False), "Tidx": dtype(INT32)}, "output")
    text = builder.const(("text", OTHERWISE), lambda: constant_proto(OTHERWISE.encode(), STRING))
    builder.must(builder.node("Assert", [all_hold, text], {"T": type_list([STRING]), "summarize": attr(1)}, "condition"))
