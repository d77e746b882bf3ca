"""Operations that a graph would compute otherwise than eager execution does: how they are written so that it gives the same bits, and fast.

Each function appends the nodes for one operation to a FunctionBuilder. `refs` are the operation's inputs, `attrs` its attributes as protos.
"""

import math

from terra.graph.trace import CONST
from terra.runtime.generation.functiondef import FunctionBuilder, attr, dtype, func, type_list
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.private import hardware

FLOAT, DOUBLE, BOOL, INT32, INT64, UINT64 = (getattr(tfi.types_pb2, "DT_" + name) for name in ("FLOAT", "DOUBLE", "BOOL", "INT32", "INT64", "UINT64"))
# Gradients that oneDNN's layout pass would rewrite, to sum in another order than eager execution does, if their input of this number came straight from
# the operation that they belong to (a Conv2DBackpropFilter of the same gradient, the forward operation). A Bitcast that changes nothing goes between the
# two: grappler would remove an Identity.
_KEPT_APART = {"BiasAddGrad": 0, "MaxPoolGrad": 1, "MaxPool3DGrad": 1}
SMALLEST_POOL = 1 << 14  # elements of a pooling's input from which on oneDNN's gradient is worth its guard
SCALING = frozenset(["Mul", "RealDiv"])
SMALLEST_SPREAD = 1 << 10  # elements of a tensor from which on it is worth a node more to do arithmetic before it is spread
_LOWEST = -3.4028234663852886e38
_POOLING = ("T", "ksize", "strides", "padding", "data_format")


def constant_proto(value, enum):
    return tfi.tf.make_tensor_proto(value, dtype=tfi.dtypes.as_dtype(enum))


def keep_apart(builder, op_type, refs, attrs, label):
    """The inputs of an operation, so that oneDNN's layout pass does not fuse it with another one."""
    k = _KEPT_APART.get(op_type)
    if k is None:
        return refs
    kind = attrs["T"]
    return [*refs[:k], builder.node("Bitcast", [refs[k]], {"T": kind, "type": kind}, label) + ":output:0", *refs[k + 1:]]


def sum_in_order(builder, refs, attrs, label):
    """Adds up the terms in the order in which AddN does it in eager execution; returns the sum's ref.

    In a graph it begins with the first input whose buffer nobody else needs at that moment, if there is one: with three inputs and more, the last bits
    would depend on how the threads happen to run.
    """
    def left_to_right(terms):
        total = terms[0]
        for ref in terms[1:]:
            total = builder.node("AddV2", [total, ref], attrs, label) + ":z:0"
        return total

    first = (len(refs) - 2) % 8 + 2  # AddN takes so many, then eight at a time
    total = left_to_right(refs[:first])
    for k in range(first, len(refs), 8):
        total = left_to_right([total, left_to_right(refs[k:k + 8])])
    return total


class Spread:
    """Results of BroadcastTo, on which the same arithmetic would be done for each of the many elements that are equal.

    The gradient of a mean is divided by the number of elements after it was spread over them: what is divided, or multiplied, by a scalar here is the
    small tensor, which is spread afterwards. Each element is the result of the same operations on the same numbers.
    """

    def __init__(self):
        self._made = {}  # ref of a large tensor -> (ref of the small one, ref of the shape, attributes of BroadcastTo)

    def note(self, refs, result, attrs, shape):
        """A BroadcastTo was written."""
        if attrs["T"].type in (FLOAT, DOUBLE) and math.prod(shape) >= SMALLEST_SPREAD:
            self._made[result] = *refs, attrs

    def scaled(self, builder, op_type, refs, scalars, attrs, label):
        """The ref of the result of a SCALING operation; None if it does not scale a large tensor that was spread. scalars: which inputs are scalars."""
        k = 0 if refs[0] in self._made and scalars[1] else 1 if refs[1] in self._made and scalars[0] else None
        if k is None:
            return None
        small, shape, spread = self._made[refs[k]]
        refs = [small, refs[1]] if k == 0 else [refs[0], small]
        scaled = builder.node(op_type, refs, attrs, label) + ":z:0"
        result = builder.node("BroadcastTo", [scaled, shape], spread, label) + ":output:0"
        self._made[result] = scaled, shape, spread
        return result


def stateless_random(builder, op_type, refs, attrs, label):
    """A stateful random operation as its stateless twin, with what `draws.seed_tensor` makes of its drawn seeds as the last of `refs`."""
    if op_type == opschema.SHUFFLE:
        types = {"Tparams": attrs["T"], "Tindices": dtype(INT32), "Taxis": dtype(INT32)}
        return builder.node("GatherV2", [*refs, first_axis(builder)], types, label) + ":output:0"
    twin, dtype_attr, takes_key = opschema.STATELESS_TWIN[op_type]
    *inputs, seed = refs
    if "S" in attrs:  # the shape of what is drawn for each of the parameters; the twin wants that of its output
        inputs[0] = _with_shape_of(builder, *inputs, attrs, label)
    if takes_key:
        zero, one, two = (const_ints(builder, v) for v in ([0], [1], [2]))
        slice_attrs = {"T": dtype(UINT64), "Index": dtype(INT32)}
        key = builder.node("Slice", [seed, zero, one], slice_attrs, label) + ":output:0"
        counter = builder.node("Slice", [seed, one, two], slice_attrs, label) + ":output:0"
        inputs[1:1] = [key, counter, builder.const("philox", lambda: constant_proto(1, INT32))]
        twin_attrs = {"dtype": attrs[dtype_attr]}
    else:
        inputs.insert(_SEED_PLACE[twin], builder.node("Bitcast", [seed], {"T": dtype(UINT64), "type": dtype(INT64)}, label) + ":output:0")
        twin_attrs = {dtype_attr: attrs[dtype_attr], "Tseed": dtype(INT64)}
    for name, given in _TWIN_TYPES.get(twin, (("Tshape", "T"),)):
        twin_attrs[name] = attrs[given] if given in attrs else dtype(INT32)
    name = builder.node(twin, inputs, twin_attrs, label)
    if op_type in _DRAWN_ON_CPU and hardware.n_gpus():
        builder.fdef.node_def[-1].device = "/device:CPU:0"
    return name + ":output:0"


def draws_harmlessly(op_type, kinds):
    """Returns whether a stateful random operation that goes into the graph cannot fail, given `kinds` of its inputs."""
    if op_type == "RandomUniformInt":  # a range that is empty
        return False
    return op_type == opschema.SHUFFLE or op_type in opschema.SAMPLERS or kinds[1 if op_type == "Multinomial" else 0][0] == CONST  # the size


_DRAWN_ON_CPU = frozenset(["RandomGamma"])  # GPUs have no kernel for it, but one for its twin, which gives other last bits
_SEED_PLACE = {"StatelessRandomPoisson": 1, "StatelessMultinomial": 2}
_TWIN_TYPES = {  # attributes of twins that are called otherwise than those of the operations
    "StatelessRandomGammaV3": (("shape_dtype", "S"),),
    "StatelessRandomPoisson": (("T", "S"), ("Rtype", "R")),
    "StatelessMultinomial": (("T", "T"),),
}


def _with_shape_of(builder, shape, parameters, attrs, label):
    """The ref of a shape with that of `parameters` behind it."""
    shape_dtype = attrs["S"]
    last = builder.node("Shape", [parameters], {"T": attrs["R" if "R" in attrs else "T"], "out_type": shape_dtype}, label) + ":output:0"
    return builder.node("ConcatV2", [shape, last, first_axis(builder)], {"N": attr(2), "T": shape_dtype, "Tidx": dtype(INT32)}, label) + ":output:0"


def number_of(const):
    """The integer that a Const is."""
    return int(const.tensor.numpy())


def skip_philox(builder, state, delta, label):
    """The state [counter, counter's upper half, key] of a Philox generator after so many numbers: a block of 256 for each. delta: a Const, of less
    than 2^48."""
    kind = dtype(UINT64)
    numbers = builder.node("Bitcast", [state], {"T": dtype(INT64), "type": kind}, label) + ":output:0"
    zero = first_axis(builder)
    parts = builder.node("Split", [zero, numbers], {"T": kind, "num_split": attr(3)}, label)
    lower, upper, key = [f"{parts}:output:{k}" for k in range(3)]
    skipped = number_of(delta) * 256
    skipped = builder.const(("skipped", skipped), lambda: constant_proto([skipped], UINT64))
    moved = builder.node("AddV2", [lower, skipped], {"T": kind}, label) + ":z:0"
    carries = builder.node("Less", [moved, skipped], {"T": kind}, label) + ":z:0"
    carry = builder.node("Cast", [carries], {"SrcT": dtype(BOOL), "DstT": kind, "Truncate": attr(False)}, label) + ":y:0"
    upper = builder.node("AddV2", [upper, carry], {"T": kind}, label) + ":z:0"
    after = builder.node("ConcatV2", [moved, upper, key, zero], {"N": attr(3), "T": kind, "Tidx": dtype(INT32)}, label) + ":output:0"
    return builder.node("Bitcast", [after], {"T": kind, "type": dtype(INT64)}, label) + ":output:0"


def first_axis(builder):
    return builder.const(("axis", 0), lambda: constant_proto(0, INT32))


def const_ints(builder, values):
    return builder.const(("ints", tuple(values)), lambda: constant_proto(values, INT32))


def may_pool_by_onednn(attrs, forward, shape):
    """Returns whether `pool_gradient` is right for a MaxPoolGrad with these attributes, and worth it for an input of this shape (None: it depends on
    data, and oneDNN's kernel ends the process if the input is empty).

    forward: attributes of the MaxPool that gave its second input from its first one; None if that is not known.
    Windows must not overlap: where gradients add up, the order in which they do decides the last bits.
    """
    if forward is None or not hardware.has_onednn() or attrs["T"].type != FLOAT or any(attrs[name] != forward.get(name) for name in _POOLING):
        return False
    ksize, strides = attrs["ksize"].list.i, attrs["strides"].list.i
    return attrs["data_format"].s == b"NHWC" and attrs["padding"].s in (b"VALID", b"SAME") \
        and ksize[0] == ksize[3] == strides[0] == strides[3] == 1 and all(k <= s for k, s in zip(ksize, strides)) \
        and type(shape) is tuple and (None in shape or math.prod(shape) >= SMALLEST_POOL)


def pool_gradient(builder, refs, attrs, label):
    """MaxPoolGrad by oneDNN's kernel where that gives the same bits as TensorFlow's own, which takes four times as long.

    Of the elements of a window that are equal, both choose the first one. But they treat NaN differently, and a window at a padded edge none of whose elements
    is above the lowest float. (The forward operation, which oneDNN's layout pass rewrites together with a gradient that takes its result directly, gives the
    same bits in any case.) Returns the ref of the result, and the FunctionDefs of two branches.
    """
    x, y, _ = refs
    attrs = {name: attrs[name] for name in _POOLING}
    total = _reduced(builder, "Sum", x, [0, 1, 2, 3], label)  # of finite numbers it may overflow: then they are taken to be no such
    safe = builder.node("IsFinite", [total], {"T": dtype(FLOAT)}, label) + ":y:0"
    if attrs["padding"].s == b"SAME":
        lowest = builder.const(("lowest",), lambda: constant_proto(_LOWEST, FLOAT))
        above = builder.node("Greater", [_reduced(builder, "Min", y, [0, 1, 2, 3], label), lowest], {"T": dtype(FLOAT)}, label) + ":z:0"
        safe = builder.node("LogicalAnd", [safe, above], {}, label) + ":z:0"
    fast = builder.node("MaxPoolGrad", refs, attrs, label) + ":output:0"
    taken, other = branches = [FunctionBuilder(f"{builder.name}_pool{len(builder.node_names)}_{name}") for name in ("onednn", "plain")]
    names = ["fast", "x", "y", "grad"]
    for branch in branches:
        for name in names:
            branch.arg(name, FLOAT)
    exact = other.node("MaxPoolGrad", keep_apart(other, "MaxPoolGrad", names[1:], attrs, label), attrs, label) + ":output:0"
    chosen = builder.node("StatelessIf", [safe, fast, *refs], {
        "Tcond": dtype(BOOL), "Tin": type_list([FLOAT] * 4), "Tout": type_list([FLOAT]), "_lower_using_switch_merge": attr(True),
        "then_branch": func(taken.name), "else_branch": func(other.name),
    }, label)
    return chosen + ":output:0", [taken.finish(names, [("fast", FLOAT)]), other.finish(names, [(exact, FLOAT)])]


def _reduced(builder, op_type, ref, axes, label):
    return builder.node(op_type, [ref, const_ints(builder, axes)], {"T": dtype(FLOAT), "Tidx": dtype(INT32), "keep_dims": attr(False)}, label) \
        + ":output:0"
