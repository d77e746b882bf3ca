"""Scopes of a graph that is being written: what the values of nodes are called in its top level, and in each branch."""

from terra.runtime.generation.functiondef import dtype
from terra.runtime.generation.kernels.eager_kernels import Spread, constant_proto
from terra.runtime.generation.kernels.cse import CommonSubexpressions
from terra.tf import private_names as tfi
from terra.tf.constants import dummy


class Scope:
    """Where names are looked up: the top level, or a branch whose unknown names become its arguments."""

    def __init__(self, generator, builder, outer=None):
        self.generator = generator
        self.builder = builder
        self.outer = outer
        self.env = {}
        self.last_fetch = None
        self.conditions = []  # (fetch node, ref of its value), in the form with conditions
        self.made = {}  # name of a node in a branch -> its first output, and what type that has
        self.order = {}  # raw variable -> [last write, reads since]
        self.pooled = {}  # (input, output) of a MaxPool -> its attributes
        self.harmless = set()  # names of nodes that cannot fail
        self.spread = Spread()
        self.repeated = CommonSubexpressions()
        self.checked = {}  # (ref, shape) -> ref of the same tensor, which has this shape or the graph fails
        self.checks = set()  # names of the nodes that see to that

    def get(self, key):
        ref = self.env.get(key)
        if ref is None:
            ref = self._outside(key)
        return ref

    def _outside(self, key):
        g = self.generator
        if self.outer is not None:
            return self.builder.arg(g.arg_name(key), g.key_enum(key))
        kind = key[0] if type(key) is tuple else None
        if kind in ("arg", "feed", "res", "queue", "selects", "expected"):
            ref = self.builder.arg(g.arg_name(key), g.key_enum(key))
        elif kind == "var":
            handle = self.get(("res", key[1]))
            enum = g.key_enum(key)
            ref = self.builder.node("ReadVariableOp", [handle], {"dtype": dtype(enum)}) + ":value:0"
        else:
            return self.dummy(key)  # not produced on the path that led here; no definition to remember
        self.env[key] = ref
        return ref

    def dummy(self, key):
        enum = self.generator.key_enum(key)
        if enum == tfi.types_pb2.DT_RESOURCE:
            handle = dummy(enum)
            self.generator.handles[id(handle)] = handle
            return self.get(("res", id(handle)))
        if enum == tfi.types_pb2.DT_VARIANT:
            sizes = [self.builder.const(("no list", size), lambda size=size: constant_proto(size, tfi.types_pb2.DT_INT32)) for size in (-1, 0)]
            return self.builder.node("EmptyTensorList", sizes, {"element_dtype": dtype(tfi.types_pb2.DT_FLOAT), "shape_type": dtype(tfi.types_pb2.DT_INT32)}) + ":handle:0"
        zero = b"" if enum == tfi.types_pb2.DT_STRING else False if enum == tfi.types_pb2.DT_BOOL else 0
        return self.builder.const(("dummy", enum), lambda: constant_proto(zero, enum))
