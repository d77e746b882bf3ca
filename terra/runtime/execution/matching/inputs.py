"""Inputs that are compared by value: numbers of Python's, constants, small tensors that decide shapes."""

from terra.graph.trace import CONST, is_relaxed
from terra.runtime.execution.placeholders import flat_template
from terra.runtime.tensors.open_shapes import PartialValue
from terra.runtime.tensors.size_origins import INTEGERS, LONGEST
from terra.runtime.tensors.tensor import TerraTensor
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf.constants import const_key, is_small_constant

EagerTensor = tfi.EagerTensor
NUMBERS = frozenset([int, float, bool])


def has_constant(runner, slot, x):
    """Returns whether a tensor from outside has the value of the constant that `slot` expects."""
    if type(x) is EagerTensor:  # (as `_from_outside` tells, without the call: numbers that are converted at each step come here)
        e = x
    elif type(x) is TerraTensor and x._owner is not runner and runner.computed_by_value:
        e = real(x)
    else:
        return False
    if id(x) in runner.step.args or runner.step.is_data(x):
        return False
    enum = e._datatype_enum()
    if enum != slot.enum:
        return False
    shape = e._shape_tuple()
    return shape == slot.const[1] and const_key(e, enum, shape) == slot.const


def value_of_fed(runner, slot, key, shape, x):
    """Returns what stands for the shape of a fed tensor whose value decides shapes: the value, if it is small, else the shape."""
    if is_small_constant(key.node.payload.kinds[-1 - key.out][1], shape):
        e = real(x)
        shape = value_as_far_as_known(runner, slot, e, e._datatype_enum(), shape) if runner.step.partial_shapes else const_key(e, e._datatype_enum(), shape)
        runner.by_value.append(shape)
    return shape


def value_as_far_as_known(runner, slot, e, enum, shape):
    """Returns what stands for the shape of a tensor that Python gives, whose value decides shapes, where sizes are left unknown: those of its numbers that have varied in this place are, too. Else each
    number that Python makes of an unknown size would make sizes known again, other ones in each step. What was recorded while such a number was taken for known holds no longer."""
    if enum not in INTEGERS or len(shape) > 1 or (shape and shape[0] > LONGEST):
        return const_key(e, enum, shape)
    numbers, known = tuple(e._numpy_internal().ravel().tolist()), slot.numbers
    if known is None or known == numbers:
        left = numbers
    elif len(known) == len(numbers):
        left = tuple([a if a == b else None for a, b in zip(known, numbers)])
    else:
        left = ()  # not even how many there are is the same
    if left != known:
        if known is not None:
            runner.program.forget_records()
        slot.numbers = left
    left = left or (None,) * len(numbers)
    return PartialValue((enum, shape, left)) if None in left else const_key(e, enum, shape)


def learn_numbers(runner, node):
    """An op came by the fast path with Python numbers among its inputs, was converted, and matched `node`: next time they are compared as they are."""
    if runner.unconverted is None:
        return
    op, flat, attrs = runner.unconverted
    runner.unconverted = None
    if op != node.op_type or len(flat) != len(node.slots) or not node.info.schema.tells_apart(attrs):
        return
    for x, slot in zip(flat, node.slots):
        if type(x) in NUMBERS:
            if slot.kind is not CONST or x == 0:  # 0.0 == -0.0
                return
            slot.py_type, slot.py_value = type(x), x
        elif not (type(x) is TerraTensor or type(x) is EagerTensor):
            return
    if node.fast_attrs is None:
        node.fast_attrs = attrs
        node.template = flat_template(node.info.schema, node.outs, node.info)


def speculated_alike(runner, node, flat):
    """Returns whether a trace would have the inputs as constants and as fed values just where `node` has them."""
    signature = (node.info.key, node.location)
    occurrence = sum(1 for other, _, _ in runner.log if other.info is node.info and other.location is node.location)
    for k, (x, slot) in enumerate(zip(flat, node.slots)):
        if runner._from_outside(x) and is_small_constant(x._datatype_enum(), x._shape_tuple()):
            if (slot.kind is CONST) is is_relaxed(runner.program.relaxed, signature, occurrence, k):
                return False
    return True
