"""Writing nodes of a graph that no operation of the program stands for, in the manner of an expression."""

from terra.runtime.generation.functiondef import attr, dtype, type_list
from terra.runtime.generation.kernels.eager_kernels import const_ints, constant_proto
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions

BOOL, INT32, INT64, UINT32, UINT64, FLOAT, DOUBLE = (getattr(tfi.types_pb2, "DT_" + name) for name in ("BOOL", "INT32", "INT64", "UINT32", "UINT64", "FLOAT", "DOUBLE"))
_OUTPUTS = {
    **dict.fromkeys(("All", "Bitcast", "BroadcastTo", "EnsureShape", "Reshape", "SelectV2", "Shape", "Slice"), "output"), **dict.fromkeys(("AddV2", "Equal", "Less", "Mul", "RealDiv"), "z")}


class Writer:
    """Writes nodes, and gives the refs of their outputs; the name of most operations' output is y."""

    def __init__(self, builder, label):
        self.builder, self.label = builder, label

    def __call__(self, op_type, *refs, **attrs):
        return f"{self.builder.node(op_type, refs, attrs, self.label)}:{_OUTPUTS.get(op_type, 'y')}:0"

    def number(self, value, enum):
        return self.builder.const(("number", value, enum), lambda: constant_proto(value, enum))

    def cast(self, ref, source, target):
        return self("Cast", ref, SrcT=dtype(source), DstT=dtype(target), Truncate=attr(False))

    def in_double(self, op_type, ref):
        return self.cast(self(op_type, self.cast(ref, FLOAT, DOUBLE), T=dtype(DOUBLE)), DOUBLE, FLOAT)

    def ensure_shape(self, ref, enum, shape):
        """Gives the tensor back; the graph fails if it has another shape. None stands for any size."""
        return self("EnsureShape", ref, T=dtype(enum), shape=runtime_functions.as_attr_value(shape, "shape", "shape"))

    def check(self, ref):
        """Makes the graph fail unless all of a vector is true."""
        of_all = self("All", ref, const_ints(self.builder, [0]), Tidx=dtype(INT32), keep_dims=attr(False))
        self.builder.must(self.builder.node("Assert", [of_all, self.number(True, BOOL)], {"T": type_list([BOOL]), "summarize": attr(1)}, self.label))
