"""Fingerprints of traced functions: two are equal if the functions compute alike, whatever it, its operations and the functions that it calls happen
to be named, and in whatever order they were made.

TensorFlow traces some functions at each call: those of `tape.jacobian` and the gradients through them. It gives them new names, and puts operations
that do not depend on each other into an order that depends on sets. They are one operation all the same.
"""

import collections
import graphlib
import hashlib

from terra.tf.private import runtime_functions

COMPILED = "_XlaMustCompile"  # attribute of a function, or of a call of it, that XLA is to compile: a tf.function with jit_compile=True
_DEEPEST = 32  # of functions that call functions


def of_function(fdef, depth=0):
    """A digest of what a FunctionDef computes; its name if it contains loops of edges (those of TensorFlow 1)."""
    nodes = {node.name: node for node in fdef.node_def}
    try:
        order = [*graphlib.TopologicalSorter({name: [p for p in map(_producer, node.input) if p in nodes] for name, node in nodes.items()}).static_order()]
    except graphlib.CycleError:
        return fdef.signature.name
    known = {arg.name: f"argument {k}" for k, arg in enumerate(fdef.signature.input_arg)}  # captured ones are named with a counter
    alike = collections.Counter()
    for name in order:
        node = nodes[name]
        digest = _digest(_operation(node.op, depth), node.device, [_renamed(x, known) for x in node.input], _attributes(node.attr, depth))
        if _is_stateful(node.op):  # two that draw random numbers are not one; two that only compute are
            alike[digest] += 1
            digest += f" {alike[digest]}"
        known[name] = digest
    signature = fdef.signature
    return "function " + _digest(
        signature.is_stateful, _arguments(signature.input_arg), _arguments(signature.output_arg),
        [_renamed(fdef.ret[arg.name], known) for arg in signature.output_arg], sorted(_renamed(name, known) for name in fdef.control_ret.values()),
        [(k, _attributes(held.attr, depth, _is_user_specified_name)) for k, held in sorted(fdef.arg_attr.items())], sorted(fdef.resource_arg_unique_id.items()),
        _serialized(fdef.attr[COMPILED]) if COMPILED in fdef.attr else None, sorted(map(known.get, nodes)))


def _producer(reference):
    return reference.removeprefix("^").partition(":")[0]


def _renamed(reference, known):
    """The input of a node, with what is known of its producer in place of its name."""
    name, colon, output = reference.removeprefix("^").partition(":")
    return ("^" if reference.startswith("^") else "") + known.get(name, name) + colon + output


def _operation(name, depth):
    """The name of an operation; of a function, which nodes may name as one, what it computes."""
    if runtime_functions.op_def(name) is not None:
        return name
    inner = runtime_functions.function_def(name) if depth < _DEEPEST else None
    return name if inner is None else of_function(inner, depth + 1)


def _is_stateful(name):
    op_def = runtime_functions.op_def(name)
    return op_def is None or op_def.is_stateful or any(a.name == "seed" for a in op_def.attr)  # not all that draw are registered as stateful


def _arguments(defs):
    found = []
    for arg in defs:
        unnamed = type(arg)()
        unnamed.CopyFrom(arg)
        unnamed.name = ""
        found.append(_serialized(unnamed))
    return found


def _is_hint(name):
    return name.startswith("_") and name != COMPILED


def _is_user_specified_name(name):
    return name == "_user_specified_name"  # of captured ones it is the counter


def _attributes(attrs, depth, is_left_out=_is_hint):
    """Lists what the attributes say that matters; of functions, what they compute."""
    found = []
    for name in sorted(attrs):
        if is_left_out(name):
            continue
        value = attrs[name]
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        if functions:
            found += [(name, _operation(f.name, depth), _attributes(f.attr, depth)) for f in functions]
        else:
            found.append((name, _serialized(value)))
    return found


def _serialized(message):
    return message.SerializeToString(deterministic=True)


def _digest(*what):
    return hashlib.sha256(repr(what).encode()).hexdigest()
