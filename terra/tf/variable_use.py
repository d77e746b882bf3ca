"""Tells what operations, and functions of TensorFlow's, do to variables and other state."""

from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions, tables

READ, ASSIGN, ASSIGN_ADD, ASSIGN_SUB = "read", "assign", "add", "sub"
SKIP = "skip"  # of the state of a `tf.random.Generator`: only what the generator of graphs makes of some raw writes
FORWARDABLE = {
    "ReadVariableOp": READ,
    "AssignVariableOp": ASSIGN,
    "AssignAddVariableOp": ASSIGN_ADD,
    "AssignSubVariableOp": ASSIGN_SUB,
}
RAW_READS = frozenset(["ResourceGather", "ResourceGatherNd", "VariableShape"])
RAW_WRITE_PREFIXES = ("ResourceApply", "ResourceSparseApply", "ResourceScatter")
RAW_WRITES = frozenset([
    "ResourceStridedSliceAssign", "RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt",
    "StatefulStandardNormalV2", "StatefulTruncatedNormal",
])  # not StatefulRandomBinomial: in a graph (also of tf.function) it does not advance the state, so that it gives the same numbers again
READING_FILES = frozenset(["ImmutableConst", "MatchingFiles", "ReadFile"])  # not registered as stateful: what they give may be something else each time
# cuDNN's recurrent layers: stateful because they may drop out units, with masks that only their kernel knows.
RECURRENT = frozenset(f"CudnnRNN{name}{version}" for name in ("", "Backprop") for version in ("", "V2", "V3"))
CHECKS = frozenset(["CheckNumerics", "CheckNumericsV2"])  # stateful so that they run though nobody uses what they give: as all do here that may fail
ASKING = "VarIsInitializedOp"
LEAVING = frozenset(["DisableCopyOnRead"])  # given a variable, but with no effect on values: of its buffer, it says who copies when
COMPUTING = CHECKS | RECURRENT | {"Empty"}  # stateful by name only: the last one gives zeros, or, if it is not asked for them, what nobody may rely on
_READS_IN_FUNCTIONS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"])
PURE_STATEFUL = frozenset(["StatefulPartitionedCall", "PartitionedCall", "If", "While", "Case", "StatelessIf", "StatelessWhile", "StatelessCase"])


def reachable_functions(fdef):
    """{name: FunctionDef} of `fdef` and all functions it calls: the user may delete them while a graph still needs them."""
    found, todo = {}, [fdef]
    while todo:
        f = todo.pop()
        if f is None or f.signature.name in found:
            continue
        found[f.signature.name] = f
        for node in f.node_def:
            names = [node.op] if runtime_functions.op_def(node.op) is None else []
            for value in node.attr.values():
                names += [value.func.name] if value.WhichOneof("value") == "func" else [g.name for g in value.list.func]
            todo += [runtime_functions.function_def(n) for n in names]
    return found


def function_effects(fdef, depth=0):
    """Finds what a traced function touches: a tuple with, for each argument, None, "read" or "write" if it is a resource.

    Returns () for a pure function, and None if it does anything that must stay imperative (I/O, random state, tables, iterators).
    """
    if depth > 32:
        return None
    arguments = {a.name: k for k, a in enumerate(fdef.signature.input_arg)}
    effects = [None] * len(arguments)
    aliases = dict(arguments)
    for node in fdef.node_def:
        data_inputs = [i for i in node.input if not i.startswith("^")]
        touched = [aliases[i.split(":")[0]] for i in data_inputs if i.split(":")[0] in aliases]
        if node.op == "Identity" and len(touched) == 1:
            aliases[node.name] = touched[0]
            continue
        nested = [node.attr[a].func.name for a in node.attr if node.attr[a].WhichOneof("value") == "func"]
        nested += [f.name for a in node.attr for f in node.attr[a].list.func]
        definition = runtime_functions.op_def(node.op)
        if definition is None:
            nested.append(node.op)
        if nested:
            if definition is not None and node.op not in PURE_STATEFUL:
                return None
            for name in nested:
                inner = runtime_functions.function_def(name)
                inner_effects = function_effects(inner, depth + 1) if inner is not None else None
                if inner_effects is None:
                    return None
                if any(inner_effects):
                    if looks_up(reachable_functions(inner)):
                        return None
                    # Which argument is which depends on the caller's op (predicates come first): every resource passed counts as the worst.
                    worst = "write" if "write" in inner_effects else "read"
                    for k in touched:
                        if fdef.signature.input_arg[k].type == tfi.types_pb2.DT_RESOURCE:
                            effects[k] = "write" if "write" in (worst, effects[k]) else worst
            continue
        if node.op in READING_FILES:
            return None
        if not definition.is_stateful:
            continue
        resources = [k for k in touched if fdef.signature.input_arg[k].type == tfi.types_pb2.DT_RESOURCE]
        if node.op in _READS_IN_FUNCTIONS:
            for k in resources:
                effects[k] = effects[k] or "read"
        elif node.op in FORWARDABLE or node.op in RAW_WRITES or node.op.startswith(RAW_WRITE_PREFIXES):
            for k in resources:
                effects[k] = "write"
        elif node.op not in COMPUTING and node.op not in tables.READS and node.op != "NoOp" and node.op != "Assert":
            return None
        elif node.op in RECURRENT and "dropout" in node.attr and node.attr["dropout"].f:
            return None
    return tuple(effects) if any(effects) else ()


_READS = _READS_IN_FUNCTIONS | tables.LEAVES | LEAVING | {ASKING, "VarHandleOp"}


def looks_up(functions):
    """Returns whether one of these functions, {name: FunctionDef}, looks something up in a table."""
    return any(node.op in tables.READS for fdef in functions.values() for node in fdef.node_def)


def may_write(name, fdef, depth=0):
    """Returns whether op `name`, or a function that it calls, may update a variable."""
    if fdef is None:
        return name not in _READS
    if depth > 32:
        return True
    for node in fdef.node_def:
        if node.op in FORWARDABLE and FORWARDABLE[node.op] != READ or node.op in RAW_WRITES or node.op.startswith(RAW_WRITE_PREFIXES):
            return True
        nested = [node.attr[a].func.name for a in node.attr if node.attr[a].WhichOneof("value") == "func"]
        nested += [f.name for a in node.attr for f in node.attr[a].list.func]
        if runtime_functions.op_def(node.op) is None:
            nested.append(node.op)
        for inner in nested:
            inner_fdef = runtime_functions.function_def(inner)
            if inner_fdef is None or may_write(inner, inner_fdef, depth + 1):
                return True
    return False


def variable_access(schema, is_resource):
    """[(input position, READ | ASSIGN | ASSIGN_ADD | ASSIGN_SUB | "raw_read" | "raw_write")] of a VARIABLE op.

    `is_resource` says for each flat input whether it is a resource.
    """
    if schema.is_function:
        return [(k, "raw_" + effect) for k, effect in enumerate(schema.variable_inputs) if effect]
    name = schema.name
    if name in FORWARDABLE:
        return [(0, FORWARDABLE[name])]
    kind = "raw_read" if name in RAW_READS else "raw_write"
    return [(k, kind) for k, resource in enumerate(is_resource) if resource]


READS_ONLY = frozenset([READ, "raw_read"])
