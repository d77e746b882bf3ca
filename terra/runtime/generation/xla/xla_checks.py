"""Nodes in a function that XLA compiles which compute whether the indices of an operation are in range, as its ordinary kernel would demand."""

from terra.runtime.generation.functiondef import add_node, attr, dtype
from terra.runtime.generation.xla import xla_ops
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions

INT32, BOOL = tfi.types_pb2.DT_INT32, tfi.types_pb2.DT_BOOL


class RangeChecks:
    """The nodes are added to `fdef`; `prefix` begins their names."""

    def __init__(self, fdef, prefix):
        self.fdef, self.prefix = fdef, prefix
        self.refs = []
        self._count = 0

    def _node(self, op, inputs, **attrs):
        self._count += 1
        name = f"{self.prefix}_check{self._count}"
        add_node(self.fdef, name, op, inputs, attrs)
        return f"{name}:{runtime_functions.op_def(op).output_arg[0].name}:0"

    def _const(self, value, enum):
        proto = tfi.tf.make_tensor_proto(value, dtype=tfi.dtypes.as_dtype(enum))
        value = tfi.attr_value_pb2.AttrValue()
        value.tensor.CopyFrom(proto)
        return self._node("Const", (), dtype=dtype(enum), value=value)

    def add(self, node, axis):
        """`node` looks up its second input along `axis` of its first."""
        table, indices = node.input[0], node.input[1]
        table_type, index_type = xla_ops.input_types(node)[:2]
        if axis is None:  # negative ones are dropped
            bound = self._node("Cast", [node.input[2]], SrcT=dtype(xla_ops.input_types(node)[2]), DstT=dtype(index_type))
            self._add(self._node("Less", [indices, bound], T=dtype(index_type)))
            return
        shape = self._node("Shape", [table], T=dtype(table_type), out_type=dtype(index_type))
        bounds = [self._const([axis], INT32), self._const([axis + 1], INT32), self._const([1], INT32)]
        size = self._node("StridedSlice", [shape, *bounds], T=dtype(index_type), Index=dtype(INT32), end_mask=attr(int(axis == -1)), shrink_axis_mask=attr(1))
        compared = dtype(index_type)
        low = self._node("GreaterEqual", [indices, self._const(0, index_type)], T=compared)
        high = self._node("Less", [indices, size], T=compared)
        self._add(self._node("LogicalAnd", [low, high]))

    def _add(self, inside):
        flat = self._node("Reshape", [inside, self._const([-1], INT32)], T=dtype(BOOL), Tshape=dtype(INT32))
        self.refs.append(self._node("All", [flat, self._const([0], INT32)], Tidx=dtype(INT32), keep_dims=attr(False)))

    def all(self):
        """One bool of all checks."""
        ref = self.refs[0]
        for other in self.refs[1:]:
            ref = self._node("LogicalAnd", [ref, other])
        return ref
