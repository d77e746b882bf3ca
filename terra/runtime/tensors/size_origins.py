"""Which of the sizes that are not known are equal for sure.

Much of TensorFlow's own code compares shapes that cannot differ: of a tensor and of what was computed of it element by element, of labels and of losses.
Where a size depends on data, or is left unknown, each such look would be a value that Python waits for. Instead, all sizes are computed twice, for
fictitious sizes of what the step is given and of what comes from its data, through the operations that the step has issued: two that are equal both times
are always equal. For they are such sizes, or sums and products of them; where an operation does anything else to a size (takes a part of it, divides and
rounds it), the result counts as one that comes from data.

Sizes of the step's arguments that were equal in all steps so far have the same fictitious size, see `dynamic_arguments`.
"""

import random
from typing import Any, NamedTuple, Optional

import numpy as np

from terra.graph.trace import ARG, CONST, RESOURCE, VALUE, is_value
from terra.runtime.tensors import shape_inference, shape_rules
from terra.runtime.tensors.open_shapes import OPENS, is_shape
from terra.runtime.tensors.value_key import ValueKey
from terra.tf import private_names as tfi

_MOST = 4096  # sizes that come from arguments or data, in one step
LONGEST = 8  # vectors of integers that are followed
_draws = random.Random(0)
# For each such size one for either time. They are larger than what programs compare sizes with, and the smaller one of two is the larger one the other time.
_FICTITIOUS = tuple(zip(*(sorted(_draws.sample(range(1 << 30, 1 << 31), _MOST), reverse=k == 1) for k in range(2))))
_TIMES = range(2)
INTEGERS = {tfi.dtypes.int32.as_datatype_enum: np.int32, tfi.dtypes.int64.as_datatype_enum: np.int64}
_INT64 = tfi.dtypes.int64.as_datatype_enum
_EXACT = shape_rules.covered() - {"StridedSlice", "Range"}  # operations that only add and multiply sizes


class _Input(NamedTuple):
    """An input of an operation of the step."""

    key: Any  # of the value, None if it comes from outside of the step
    enum: int  # of its dtype
    known: Any = None  # its shape, or (dtype enum, shape, bytes), if it comes from outside
    handle: Any = None  # of a variable
    argument: Optional[int] = None  # its number among the step's arguments


class _Made(NamedTuple):
    """The operation that has made a value of the step."""

    info: Any
    inputs: list
    place: int  # among the outputs
    n_out: int
    shape: Any  # as far as it is known
    enum: int


class _Known(NamedTuple):
    """A value, as far as it is known, for the fictitious sizes: (for the first ones, for the second ones)."""

    shapes: tuple
    numbers: Optional[tuple] = None  # arrays, of a scalar or a vector of integers


class KeptSizes:
    """Sizes that one step of a program has computed, for the next ones: most of it is the same there."""

    def __init__(self) -> None:
        self.known = {}  # value key -> (the keys that it was computed of, _Known)
        self.fictitious = {}  # what a size comes from -> (the one, the other) that it has


class Sizes:
    """The sizes of the values of one step. The `mode` that its methods are given is the step's Tracer, or its PythonRunner, which know what it has issued."""

    def __init__(self, kept: KeptSizes):
        self._found = {}  # value key -> _Known
        self._kept, self._fictitious = kept.known, kept.fictitious
        self._entries, self._shapes, self._seen = {}, {}, [0, 0, 0]  # of what is in the log: value key -> entry, shape; how much of it was seen

    def shapes(self, mode: Any, key: Any) -> tuple:
        """(shape, shape) of a value for the fictitious sizes; None in the place of both if it cannot be told."""
        shapes = self._find(mode, key).shapes
        return (None, None) if None in shapes else shapes

    def _find(self, mode, key):
        found, left = self._found, [key]
        while left:
            last = left[-1]
            if last in found:
                left.pop()
                continue
            made = self._made(mode, last)
            if made is None:  # the step is over
                return _Known((None, None))
            shape = made.shape
            is_known = type(shape) is tuple
            is_number = is_known and made.enum in INTEGERS and (shape == () or (len(shape) == 1 and shape[0] <= LONGEST))
            if not is_shape(shape) or (is_known and not is_number):
                found[last] = _Known((shape if is_known else None,) * 2)
                continue
            needed = [x.key for x in made.inputs if x.key is not None and x.key not in found]
            if needed:
                left += needed
                continue
            of = shape, *[(x.key, x.known, *self._of(found.get(x.key))) for x in made.inputs]
            kept = self._kept.get(last)
            if kept is None or kept[0] != of:
                kept = self._kept[last] = of, _Known((shape, shape), self._numbers(last, made)) if is_number else _Known(self._sizes(mode, last, made))
            found[last] = kept[1]
        return found[key]

    @staticmethod
    def _of(known):
        return (None, None) if known is None else (known.shapes, id(known.numbers))

    # -- what the step has issued ----------------------------------------------------------------------------------------------

    def _made(self, mode, key):
        if type(key) is not ValueKey:
            mode.settle()
            event, place = mode.events[key[0]], key[1]
            inputs = [_traced(mode.events, *given) for given in zip(event.refs, event.shape_key)]
            return _Made(event.info, inputs, place, len(event.out_enums), event.out_shapes[place], event.out_enums[place])
        self._look_at_log(mode)
        if key not in self._entries:
            return None
        node, refs, _ = self._entries[key]
        inputs = [_logged(*given) for given in zip(refs, node.slots)]
        return _Made(node.info, inputs, key.out, len(node.outs), self._shapes.get(key), node.outs[key.out][1])

    def _look_at_log(self, mode):
        log, issued, jumps = self._seen
        for entry in mode.log[log:]:
            for _, _, key in entry[0].outs:
                self._entries[key] = entry
        for t in mode.issued[issued:]:
            self._shapes[t._key] = t._shp
        for _, record in mode._jumps[jumps:]:
            for key, (_, _, shape) in record.shapes.items():
                self._shapes[key] = shape
        self._seen = [len(mode.log), len(mode.issued), len(mode._jumps)]

    # -- what becomes of fictitious sizes ---------------------------------------------------------------------------------------

    def _fictitious_size(self, *origin):
        """(the one, the other) size for what comes from `origin`."""
        return self._fictitious.setdefault(origin, _FICTITIOUS[min(len(self._fictitious), _MOST - 1)])

    def _sizes(self, mode, key, made):
        """(shape, shape) of a value of which some sizes are not known."""
        if len(self._fictitious) + len(made.shape) >= _MOST:
            return None, None
        if made.info.op_type == OPENS and made.inputs[0].argument is not None:
            places = [(made.inputs[0].argument, axis) for axis in range(len(made.shape))]
            sizes = [(d, d) if d is not None else self._fictitious_size(ARG, mode.step.same_sizes.get(place, place)) for d, place in zip(made.shape, places)]
            return tuple(zip(*sizes))
        computed, is_exact = self._computed(made)
        if computed is None:
            pairs, is_exact = self._computed_partly(made), True
        else:
            pairs = list(zip(*computed))
        sizes = []
        for d, pair in zip(made.shape, pairs):
            if d is not None:
                pair = d, d
            elif pair is None or None in pair or not (is_exact or self._is_handed_on(pair, made)):
                pair = self._fictitious_size(key, len(sizes))
            sizes.append(pair)
        return tuple(zip(*sizes))

    def _is_handed_on(self, pair, made):
        """Whether a size of a result is one that is not known elsewhere, or of an input."""
        return pair[0] != pair[1] and (pair in self._fictitious.values() or any(pair in self._pairs(self._found[x.key]) for x in made.inputs if x.key is not None))

    @staticmethod
    def _pairs(known):
        """The sizes of a value, and the numbers that it is."""
        yield from zip(*known.shapes) if None not in known.shapes else ()
        yield from zip(*map(np.ravel, known.numbers)) if known.numbers is not None else ()

    def _computed(self, made):
        """((shape, shape), whether each size is one of the inputs', or a sum or product of such) as the operation's shape function has it; (None, False) if it cannot tell."""
        info = made.info
        keys = [[self._shape_key(x, time, _INT64) for x in made.inputs] for time in _TIMES]
        shapes = [shape_rules.output_shapes(info.op_type, info.attrs, of_time) for of_time in keys]
        is_exact = info.op_type in _EXACT and None not in shapes
        if None in shapes and info.op_type in shape_inference.SHAPED_BY_KERNELS:  # these would be run
            return None, False
        if None in shapes:
            keys = [[self._shape_key(x, time, x.enum) for x in made.inputs] for time in _TIMES]
            enums, handles = [x.enum for x in made.inputs], [x.handle for x in made.inputs]
            shapes = [shape_inference.output_shapes(info, enums, of_time, handles, made.n_out) for of_time in keys]
        if None in shapes or any(not is_shape(shape[made.place]) or len(shape[made.place]) != len(made.shape) for shape in shapes):
            return None, False
        return [shape[made.place] for shape in shapes], is_exact

    def _computed_partly(self, made):
        """[(size, size) or None], for each axis, of an operation whose shape function cannot tell the whole shape: fictitious sizes that do not fit are equal all the same, or 1."""
        op, n = made.info.op_type, len(made.shape)
        shapes, known = [self._pairs_of(x) for x in made.inputs], [None] * n
        if op in shape_rules.ELEMENTWISE and None not in shapes:
            known = _broadcast(shapes)
        elif op == "BatchMatMulV2" and None not in shapes and min(map(len, shapes)) > 1:
            (*a, rows, inner), (*b, other, columns) = shapes
            known = [*_broadcast([a, b]), inner if made.info.attrs["adj_x"] else rows, other if made.info.attrs["adj_y"] else columns]
        elif op == "Reshape":
            numbers = [self._given(made.inputs[1], time) for time in _TIMES]
            if all(x is not None for x in numbers):
                known = [None if -1 in pair else pair for pair in zip(*map(np.ravel, numbers))]
        elif op == "ConcatV2" and None not in shapes and len({*map(len, shapes[:-1])}) == 1 and (axis := self._given(made.inputs[-1], 0)) is not None:
            known = [_equal([shape[k] for shape in shapes[:-1]]) for k in range(len(shapes[0]))]
            known[int(axis)] = tuple([sum(shape[int(axis)][time] for shape in shapes[:-1]) for time in _TIMES])
        return known if len(known) == n else [None] * n

    def _pairs_of(self, x):
        """[(size, size)] of an input, for each axis; None if its rank is not known."""
        shapes = [self._shape_key(x, time, _INT64) for time in _TIMES]
        shapes = [shape[1] if is_value(shape) else shape for shape in shapes]
        return list(zip(*shapes)) if all(type(shape) is tuple for shape in shapes) else None

    def _shape_key(self, x, time, enum):
        """Describes an input to shape functions; integers of the type `enum`."""
        if x.key is None:
            return x.known
        known = self._found[x.key]
        if known.numbers is None:
            return known.shapes[time]
        kind, numbers = INTEGERS[enum], known.numbers[time]
        limits = np.iinfo(kind)
        fits = all(limits.min <= number <= limits.max for number in numbers.ravel())
        return (enum, known.shapes[time], numbers.astype(kind).tobytes()) if fits else known.shapes[time]

    def _numbers(self, key, made):
        """(array, array) of a scalar or vector of integers; None if that is not to be followed."""
        rule = _OF_NUMBERS.get(made.info.op_type)
        results = [] if rule is None else [_calculated(rule, made, [self._given(x, time) for x in made.inputs], self._shapes_of(made, time)) for time in _TIMES]
        if results and all(result is not None for result in results):
            return tuple(results)
        n = int(np.prod(made.shape))
        if len(self._fictitious) + n >= _MOST:
            return None
        pairs = [self._fictitious_size(key, "number", k) for k in range(n)]
        return tuple(np.array([pair[time] for pair in pairs], object).reshape(made.shape) for time in _TIMES)

    def _given(self, x, time):
        """The value of an input of integers, as an array of Python's; None if it is not known."""
        if x.key is not None:
            numbers = self._found[x.key].numbers
            return None if numbers is None else numbers[time]
        if not is_value(x.known) or x.enum not in INTEGERS:
            return None
        return np.frombuffer(x.known[2], INTEGERS[x.enum]).reshape(x.known[1]).astype(object)

    def _shapes_of(self, made, time):
        """The shape of the first input."""
        x = made.inputs[0] if made.inputs else None
        return None if x is None or x.key is None else self._found[x.key].shapes[time]


def _broadcast(shapes):
    """[(size, size) or None], for each axis, of what is broadcast from such shapes. Of sizes that differ, one that is known is that of the result: the others are equal to it, or 1."""
    result = []
    for k in range(max(map(len, shapes))):
        pairs = dict.fromkeys(shape[-1 - k] for shape in shapes if k < len(shape) and shape[-1 - k] != (1, 1))
        known = [pair for pair in pairs if pair[0] == pair[1]]
        result.append((1, 1) if not pairs else next(iter(pairs)) if len(pairs) == 1 else known[0] if len(known) == 1 else None)
    return result[::-1]


def _equal(pairs):
    """The (size, size) of which others are equal to it, as the operation would fail otherwise: one that is known, if there is any."""
    return next((pair for pair in pairs if pair[0] == pair[1]), pairs[0])


def _traced(events, ref, known):
    kind = ref[0]
    if kind == VALUE:
        return _Input(ref[1:], events[ref[1]].out_enums[ref[2]])
    if kind == RESOURCE:
        return _Input(None, tfi.types_pb2.DT_RESOURCE, handle=ref[1])
    if kind == CONST:
        return _Input(None, ref[1].key[0], ref[1].key)
    return _Input(None, ref[2], known, argument=ref[1] if kind == ARG else None)


def _logged(ref, slot):
    if type(ref) is ValueKey and ref.out >= 0:
        return _Input(ref, ref.node.payload.event.out_enums[ref.out])
    if slot.kind == RESOURCE:
        return _Input(None, tfi.types_pb2.DT_RESOURCE, handle=slot.handle)
    if slot.kind == CONST:
        return _Input(None, slot.enum, slot.const)
    known = ref._shape_tuple() if type(ref) is tfi.EagerTensor else None
    return _Input(None, slot.enum if slot.enum is not None else ref._datatype_enum(), known, argument=slot.arg)


# -- integers that are computed of sizes ---------------------------------------------------------------------------------------


def _calculated(rule, made, given, shape):
    """Returns what a rule gives for the values of the inputs, and the shape of the first of them; None if something is not known, or the result is another one than there is."""
    try:
        result = rule(made.info.attrs, given, shape)
    except (TypeError, ValueError, IndexError, KeyError):  # a value is None, or not of the kind that the rule is for
        return None
    result = np.array(result, object)
    return result if result.shape == made.shape and not any(x is None for x in result.flat) else None


def _slice(attrs, given, shape):
    values, begin, end, strides = given
    (first,), (last,), (step,) = begin, end, strides
    if attrs["shrink_axis_mask"] & 1:
        return values[int(first)]
    if attrs["ellipsis_mask"] or attrs["new_axis_mask"]:
        raise ValueError("of another kind")
    return values[slice(None if attrs["begin_mask"] & 1 else int(first), None if attrs["end_mask"] & 1 else int(last), int(step))]


def _reshaped(attrs, given, shape):
    return [*np.ravel(given[0])] if given[0].ndim == 0 else given[0]


_OF_NUMBERS = {
    "Shape": lambda attrs, given, shape: [*shape],
    "Size": lambda attrs, given, shape: int(np.prod([*shape], dtype=object)),
    "StridedSlice": _slice,
    "Pack": lambda attrs, given, shape: [x[()] + 0 for x in given],
    "ConcatV2": lambda attrs, given, shape: np.concatenate(given[:-1]),
    "GatherV2": lambda attrs, given, shape: given[0][given[1].astype(int)],
    "ExpandDims": _reshaped,
    "Prod": lambda attrs, given, shape: np.prod(given[0]),
    "Mul": lambda attrs, given, shape: given[0] * given[1],
    "AddV2": lambda attrs, given, shape: given[0] + given[1],
    "Sub": lambda attrs, given, shape: given[0] - given[1],
    **dict.fromkeys(("Cast", "Identity"), lambda attrs, given, shape: given[0]),
}


class KnowsSizes:
    """A mode of a step, that knows what the step has issued."""

    _sizes = None

    def fictitious_shapes(self, key: Any) -> tuple:
        """(shape, shape) that a value of the step would have for two choices of all sizes that are not known; (None, None) if it cannot be told."""
        if self._sizes is None:
            self._sizes = Sizes(self.kept_sizes())
        return self._sizes.shapes(self, key)

    def kept_sizes(self) -> KeptSizes:
        """Returns what steps keep of sizes from one to the next."""
        return KeptSizes()
