"""A small builder of FunctionDef protos.

Writing protos directly costs a few microseconds an op, a thirtieth of TensorFlow's own tracing, because no Graph, Operation or shape inference is
involved. A tensor is named by a string: the name of an argument, or `node:output_name:k`.
"""

import collections
import re

from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


def type_list(enums):
    value = tfi.attr_value_pb2.AttrValue()
    value.list.type.extend(enums)
    return value


def func(name):
    value = tfi.attr_value_pb2.AttrValue()
    value.func.name = name
    return value


def func_list(names):
    value = tfi.attr_value_pb2.AttrValue()
    for name in names:
        value.list.func.add().name = name
    return value


def attr(value):
    """AttrValue of a Python bool, int, str or bytes; dtype enums are given as `dtype(...)`."""
    proto = tfi.attr_value_pb2.AttrValue()
    if isinstance(value, bool):
        proto.b = value
    elif isinstance(value, int):
        proto.i = value
    else:
        proto.s = value if isinstance(value, bytes) else value.encode()
    return proto


def attr_protos(info):
    """{name: AttrValue} of the attributes of an `OpInfo`."""
    types = info.schema.attr_types
    return {name: runtime_functions.as_attr_value(value, types[name], name) for name, value in info.raw.items() if name in types}


def dtype(enum):
    proto = tfi.attr_value_pb2.AttrValue()
    proto.type = enum
    return proto


def safe_name(text):
    """`text` with every character that TensorFlow rejects in a node name replaced."""
    return _UNSAFE.sub("_", text)


def add_node(fdef, name, op, inputs, attrs):
    """Append a node to a FunctionDef."""
    node = fdef.node_def.add()
    node.name, node.op = name, op
    node.input.extend(inputs)
    for key, value in attrs.items():
        node.attr[key].CopyFrom(value)


def must(fdef, name):
    """Node `name` runs although nobody reads it."""
    if name not in fdef.control_ret:
        fdef.control_ret[name] = name
        fdef.signature.control_output.append(name)
        fdef.signature.is_stateful = True


def node_of(ref):
    """The node, or argument, that a ref or a control input names."""
    return ref.lstrip("^").partition(":")[0]


class FunctionBuilder:
    """One function under construction: nodes, arguments in the order of their first use, results, side effects."""

    def __init__(self, name):
        self.fdef = tfi.function_pb2.FunctionDef()
        self.fdef.signature.name = name
        self.name = name
        self.args = {}  # argument name -> dtype enum
        self.node_names = []
        self._count = 0
        self._constants = {}

    def arg(self, name, enum):
        self.args.setdefault(name, enum)
        return name

    def node(self, op, inputs, attrs, label=None, controls=()):
        """Append a node; returns its name."""
        self._count += 1
        name = f"{label or 'terra'}/{op if '/' not in op else 'call'}_{self._count}"
        add_node(self.fdef, name, op, [*inputs, *["^" + c for c in controls]], attrs)
        self.node_names.append(name)
        return name

    def const(self, key, make_proto):
        """A Const node, one per `key`; `make_proto()` gives the TensorProto."""
        ref = self._constants.get(key)
        if ref is None:
            proto = make_proto()
            value = tfi.attr_value_pb2.AttrValue()
            value.tensor.CopyFrom(proto)
            ref = self._constants[key] = self.node("Const", (), {"dtype": dtype(proto.dtype), "value": value}) + ":output:0"
        return ref

    def must(self, name):
        """Node `name` runs although nobody reads it."""
        must(self.fdef, name)

    def may_fail(self, harmless, results, checks=()):
        """(nodes that may fail, nodes that must run and that no other such node reads): names.

        Nodes named in `nonfailing_ops`, and constants, cannot fail, and need not run if nobody reads them; nor need those in `checks`, which may fail
        even if they are named there. results: names of nodes that are read from outside.
        """
        outside = collections.Counter(results)
        readers = outside.copy()
        may_fail, sinks = [], []
        for node in reversed(self.fdef.node_def):  # readers come after what they read
            name = node.name
            n = readers[name]
            check = name in checks
            cannot = node.op == "Const" or (name in harmless and not check)
            if (cannot or check) and not n and name not in self.fdef.control_ret:
                continue
            if not cannot:
                may_fail.append(name)
            if n == outside[name]:
                sinks.append(name)
            for ref in node.input:
                readers[node_of(ref)] += 1
        return may_fail[::-1], sinks[::-1]

    def finish(self, arg_names, results):
        """Close the signature: `arg_names` in order, `results` as (ref, dtype enum); returns the proto."""
        signature = self.fdef.signature
        for name in arg_names:
            a = signature.input_arg.add()
            a.name = name
            a.type = self.args[name]
        for k, (ref, enum) in enumerate(results):
            out = signature.output_arg.add()
            out.name = f"r{k}"
            out.type = enum
            self.fdef.ret[out.name] = ref
        return self.fdef
