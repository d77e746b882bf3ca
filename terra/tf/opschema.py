"""Operation schemas: how an op's inputs and attributes are laid out, and what kind of op it is for co-execution.

The generated wrappers pass nested inputs and only the attributes that inputs do not determine; the converting path passes flat inputs and all
attributes. Both are brought to one canonical form here, because an op is the same node whichever way it was called.
"""

import collections

from terra.tf import fingerprints
from terra.tf import private_names as tfi
from terra.tf.attributes import default_value, normalise_attr
from terra.tf.private import runtime_functions, tables
from terra.tf.variable_use import (
    CHECKS, COMPUTING, FORWARDABLE, RAW_READS, RAW_WRITE_PREFIXES, RAW_WRITES, READING_FILES, RECURRENT, function_effects, looks_up, may_write, reachable_functions)

# How an op takes part in co-execution.
GRAPH = 0  # goes into the graph
HOST = 1  # imperative-only: executed in program order with fetched inputs, its outputs are fed
RANDOM = 2  # stateful random op: goes into the graph as its stateless twin, with the drawn seeds fed, or what they give
VARIABLE = 3  # reads or updates a variable; see `VARIABLE_ACCESS`
FETCH = 4  # Output Fetching: Python reads a value in the middle of a step


# Stateful random op -> its stateless twin, the attribute that gives the output dtype, and whether the twin is given key and counter, or else a seed that it
# scrambles (`philox`). The k-th draw of a kernel differs; first draws are bitwise equal.
STATELESS_TWIN = {
    "RandomUniform": ("StatelessRandomUniformV2", "dtype", True),
    "RandomStandardNormal": ("StatelessRandomNormalV2", "dtype", True),
    "TruncatedNormal": ("StatelessTruncatedNormalV2", "dtype", True),
    "RandomUniformInt": ("StatelessRandomUniformIntV2", "Tout", True),
    "RandomGamma": ("StatelessRandomGammaV3", "T", True),
    "RandomPoissonV2": ("StatelessRandomPoisson", "dtype", False),
    "Multinomial": ("StatelessMultinomial", "output_dtype", False),
}
SHUFFLE = "RandomShuffle"  # goes into the graph as a GatherV2 that is given the drawn order of the rows

SAMPLERS = frozenset(["LogUniformCandidateSampler", "UniformCandidateSampler"])  # the graph is given what they draw

UNUSED_SEEDS = frozenset(["ComputeAccidentalHits"])  # their seeds, new ones in each eager call, have no effect
_DRAWING = frozenset(["FractionalMaxPool", "FractionalAvgPool", "RiscRandomUniform"])  # random, though not registered as stateful
_PRINTED = "StringFormat"  # what is printed may have the number of the step in it: an attribute


# Output shapes depend on data: Python has to fetch them if it asks.
DATA_DEPENDENT_SHAPE = frozenset([
    "Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff", "DynamicPartition", "NonMaxSuppression",
    "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5", "SparseFillEmptyRows", "RaggedRange",
    "StringSplit", "StringSplitV2", "UnicodeDecode", "UnicodeDecodeWithOffsets", "DenseToDenseSetOperation", "SparseAdd", "SparseConcat",
    "SparseSlice", "SparseReorder", "ComputeAccidentalHits",
])
# Integer inputs that are data: their values do not decide the output's shape, as those of axes, sizes and shapes do.
_INDEX_DATA = {
    "GatherV2": (1,), "Gather": (1,), "GatherNd": (1,), "ResourceGather": (1,), "ResourceGatherNd": (1,), "OneHot": (0,),
    "SparseSoftmaxCrossEntropyWithLogits": (1,), "InTopKV2": (1, 2), "UnsortedSegmentSum": (1,), "UnsortedSegmentMax": (1,),
    "UnsortedSegmentMin": (1,), "UnsortedSegmentProd": (1,), "TensorScatterUpdate": (1,), "TensorScatterAdd": (1,), "ScatterNd": (0,),
    "ResourceScatterAdd": (1,), "ResourceScatterUpdate": (1,), "ResourceScatterSub": (1,), "DenseBincount": (0,), "CTCLoss": (1, 2, 3),
    "ReverseSequence": (1,), "LeftShift": (0, 1), "RightShift": (0, 1), "BitwiseAnd": (0, 1), "BitwiseOr": (0, 1), "BitwiseXor": (0, 1),
    **{f"SparseSegment{how}{what}": (1,) for how in ("Sum", "Mean", "SqrtN") for what in ("", "WithNumSegments", "Grad", "GradV2")},
}
_DATA_NAMES = frozenset([  # of inputs of any op
    "seed", "key", "counter", "alg", "labels", "segment_ids", "a_indices", "b_indices", "sp_indices", "input_indices", "sparse_indices", "reverse_index_map",
    "row_partition_tensors", "rt_nested_splits", "params_nested_splits", "true_classes", "sampled_candidates", "sequence_lengths",
    "host_reserved"])
_VALUE_DECIDES = frozenset(["Range", "LinSpace"])
SHAPE_OPS = frozenset(["Shape", "ShapeN", "Size", "Rank", "VariableShape"])
_HOST_PREFIXES = (
    "Queue", "Iterator", "Anonymous", "MakeIterator", "LookupTable", "Summary", "Write",
    "Horovod",  # not registered as stateful, but paired by name with those of other processes: each runs once
)


_RUN_DATASETS = frozenset(["ReduceDataset", "DatasetToSingleElement", "DatasetToTFRecord", "DatasetToTFRecordV2", "SaveDataset", "SaveDatasetV2"])
_RUN_PYTHON = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])


class Schema:
    """The static part of one op type: arity, which inputs are lists, which attributes are inferred, its output names."""

    __slots__ = (
        "name", "n_inputs", "inputs", "has_lists", "attr_types", "outputs", "category", "is_function", "fdef", "variable_inputs",
        "value_inputs", "dynamic", "met", "attr_defs", "identity",
        "has_floats", "has_list_attrs", "library", "_may_write", "_hides_variables", "reads_tables", "plain", "infos", "calls", "static", "static_by_value",
    )

    def __init__(self, name, op_def=None, fdef=None):
        self.name = name
        self.fdef = fdef
        self.is_function = fdef is not None
        self.library = {} if fdef is None else reachable_functions(fdef)
        self.identity = name if fdef is None else fingerprints.of_function(fdef)  # a function traced anew each step is the same op if its body is the same
        signature = fdef.signature if fdef is not None else op_def
        self.inputs = tuple((a.number_attr, a.type_attr, a.type_list_attr, a.type) for a in signature.input_arg)
        self.n_inputs = len(self.inputs)
        self.has_lists = any(n or tl for n, _, tl, _ in self.inputs)
        self.attr_types = {a.name: a.type for a in signature.attr}
        self.attr_defs = {a.name: a for a in signature.attr}
        self.has_floats = any("float" in kind for kind in self.attr_types.values())
        self.has_list_attrs = any("list" in kind for kind in self.attr_types.values())
        self.outputs = tuple((a.name, a.number_attr, a.type_list_attr) for a in signature.output_arg)
        self.variable_inputs = ()
        self._may_write = self._hides_variables = None
        self.category = self._function_category() if self.is_function else self._category(op_def)
        if self.is_function:
            self.value_inputs = function_value_inputs(fdef)
        else:
            self.value_inputs = tuple(_shape_needs_value(name, a, k, signature) for k, a in enumerate(signature.input_arg))
        self.reads_tables = looks_up(self.library) if self.is_function else name in tables.READS
        self.plain = self.category == GRAPH and not (self.is_function or name in SHAPE_OPS or name in RECURRENT or self.reads_tables)  # nothing about it needs a second look
        self.infos = {}  # (attributes as they were passed, device) -> OpInfo
        self.calls = {}  # how the fast path was called -> (OpInfo, all attributes)
        self.dynamic = any(n.op in DATA_DEPENDENT_SHAPE for n in fdef.node_def) if self.is_function else name in DATA_DEPENDENT_SHAPE
        self.met = False  # whether it was recorded before
        self.static_by_value = self.category in (GRAPH, VARIABLE) and not self.dynamic and not self.has_lists  # output shapes depend on no data but sizes
        self.static = self.category in (GRAPH, VARIABLE) and not self.dynamic and not any(self.value_inputs)

    def _category(self, op_def):
        name = self.name
        if name in FORWARDABLE or name in RAW_READS or name in RAW_WRITES or name.startswith(RAW_WRITE_PREFIXES):
            return VARIABLE
        if name in STATELESS_TWIN or name == SHUFFLE or name in SAMPLERS:
            return RANDOM
        if name in tables.READS:
            return GRAPH
        if (op_def.is_stateful and name not in COMPUTING) or name in _DRAWING or name in READING_FILES or name == _PRINTED or "Dataset" in name \
                or name.startswith(_HOST_PREFIXES):
            return HOST
        return GRAPH

    def _function_category(self):
        """A nested traced function is one op; what it may touch decides whether it can be part of the graph."""
        effects = function_effects(self.fdef)
        if effects is None:
            return HOST
        self.variable_inputs = effects
        return VARIABLE if effects else GRAPH

    def depends_on_data(self):
        """The shapes of its outputs have turned out not to follow from those of its inputs."""
        self.dynamic, self.static, self.static_by_value = True, False, False

    def flatten(self, inputs):
        """Nested inputs of the fast path as one flat tuple."""
        if not self.has_lists:
            return inputs
        flat = []
        for x in inputs:
            if type(x) in (list, tuple):
                flat.extend(x)
            else:
                flat.append(x)
        return tuple(flat)

    def inferred_attrs(self, inputs):
        """The attributes that the inputs determine, as the fast path itself records them: name, value, name, value ..."""
        attrs = []
        for x, (number_attr, type_attr, type_list_attr, _) in zip(inputs, self.inputs):
            if number_attr:
                attrs += (number_attr, len(x))
                if type_attr and len(x):
                    attrs += (type_attr, x[0].dtype.as_datatype_enum)
            elif type_list_attr:
                attrs += (type_list_attr, [t.dtype.as_datatype_enum for t in x])
            elif type_attr:
                attrs += (type_attr, x.dtype.as_datatype_enum)
        return tuple(attrs)

    def call(self, inputs, enums, attrs, device):
        """(OpInfo, all attributes) of a call by the fast path; `enums`: the dtype enums of the flat inputs."""
        key = (attrs, enums, device) if not self.has_lists else (attrs, enums, device, *[len(x) if type(x) in (list, tuple) else -1 for x in inputs])
        try:
            if self.has_floats:
                key += (repr(attrs),)  # 0.0 == -0.0
            known = self.calls.get(key)
        except TypeError:  # a list among the attributes
            known = key = None
        if known is None:
            all_attrs = attrs + self.inferred_attrs(inputs)
            known = (op_info(self, all_attrs, device), all_attrs)
            if key is not None and not self.draws:
                if len(self.calls) > _MOST_CALLS:
                    self.calls.clear()
                self.calls[key] = known
        return known

    def is_imperative(self, attrs):
        """Returns whether a call with these attributes, as they are passed, runs imperatively."""
        return self.category == HOST or (self.name in RECURRENT and bool(dict(zip(attrs[::2], attrs[1::2])).get("dropout")))

    @property
    def draws(self):
        """Whether seeds, which are others each time, are among its attributes."""
        return self.category == RANDOM or self.name in UNUSED_SEEDS

    @property
    def varies(self):
        """Whether attributes that are no part of its identity, seeds or a message, may be others each time: each call's are kept."""
        return self.category == RANDOM or self.name in CHECKS

    def tells_apart(self, attrs):
        """Returns whether calls with other attributes than these are told apart by comparing them."""
        return not self.varies and not (self.has_floats and attrs is not None and any(type(x) is float and x == 0 for x in attrs))  # 0.0 == -0.0

    @property
    def hides_variables(self):
        """Whether it may use variables that are not among its inputs: it runs a dataset or, as a function, an iterator or Python code on other threads."""
        if self._hides_variables is None:
            self._hides_variables = self.category == HOST and (self.name in _RUN_DATASETS or any(
                node.op in _RUN_DATASETS or node.op in _RUN_PYTHON or node.op.startswith("IteratorGetNext")
                for fdef in self.library.values() for node in fdef.node_def))
        return self._hides_variables

    @property
    def may_write(self):
        """Whether running this op may update a variable that it is given."""
        if self._may_write is None:
            self._may_write = may_write(self.name, self.fdef)
        return self._may_write

    def output_refs(self, attrs):
        """For each flat output, `name:k` as a FunctionDef refers to it."""
        refs = []
        for name, number_attr, type_list_attr in self.outputs:
            count = attrs[number_attr] if number_attr else len(attrs[type_list_attr]) if type_list_attr else 1
            refs += [f"{name}:{k}" for k in range(count)]
        return refs


def _shape_needs_value(name, arg, k, signature):
    """Returns whether the value of this input (an axis, a size, a shape) can decide the shape of the op's outputs."""
    if name in _VALUE_DECIDES:
        return True
    if k in _INDEX_DATA.get(name, ()) or arg.name in _DATA_NAMES:
        return False
    integers = _INTEGER_ENUMS
    if arg.type:
        return arg.type in integers
    if arg.type_attr:
        attr = next(a for a in signature.attr if a.name == arg.type_attr)
        allowed = set(attr.allowed_values.list.type)
        return bool(allowed) and allowed <= integers
    return False


_INTEGER_ENUMS = frozenset(
    t.as_datatype_enum for t in (
        tfi.dtypes.int8, tfi.dtypes.int16, tfi.dtypes.int32, tfi.dtypes.int64, tfi.dtypes.uint8, tfi.dtypes.uint16, tfi.dtypes.uint32,
        tfi.dtypes.uint64))
HOST_KNOWN_ENUMS = _INTEGER_ENUMS | {tfi.dtypes.bool.as_datatype_enum}
schemas = {}
_function_names = collections.deque()


def get_schema(name):
    """Schema of op (or traced function) `name`; None if TensorFlow knows neither."""
    schema = schemas.get(name)
    if schema is None:
        op_def = runtime_functions.op_def(name)
        if op_def is not None:
            schema = Schema(name, op_def=op_def)
        else:
            fdef = runtime_functions.function_def(name)
            if fdef is None:
                return None
            schema = Schema(name, fdef=fdef)
            if len(_function_names) >= 1000:  # functions traced anew at each step would pile up here
                schemas.pop(_function_names.popleft(), None)
            _function_names.append(name)
        schemas[name] = schema
    return schema


def function_value_inputs(fdef):
    """Per argument of a traced function, whether its value may decide a shape: integers that reach an axis, a size or a shape in the body."""
    return tuple(
        a.type in _INTEGER_ENUMS and _reaches_a_shape(fdef, a.name) for a in fdef.signature.input_arg)


def _reaches_a_shape(fdef, argument):
    tainted, changed = {argument}, True
    while changed:  # bodies are not sorted
        changed = False
        for node in fdef.node_def:
            if node.name in tainted:
                continue
            inputs = [i.split(":", 1)[0] for i in node.input if not i.startswith("^")]
            hit = [k for k, name in enumerate(inputs) if name in tainted]
            if not hit:
                continue
            schema = get_schema(node.op)
            if schema is None or schema.is_function or any(node.attr[a].WhichOneof("value") == "func" for a in node.attr):
                return True  # what the inner function does with it is not looked into
            flags = schema.value_inputs if not schema.has_lists else (any(schema.value_inputs),) * len(inputs)
            if any(flags[k] for k in hit):
                return True
            tainted.add(node.name)
            changed = True
    return False


class OpInfo:
    """One op type with its attributes on one device: what two trace events must agree on, next to the location and the inputs' kinds.

    There is one object for each, which is therefore its own `key`: hashing it costs nothing.
    """

    __slots__ = ("schema", "op_type", "attrs", "raw", "device", "key", "category", "exec_attrs", "output_refs", "value_flags", "out_enums", "asked")

    def __init__(self, schema, attrs, raw, device):
        self.schema = schema
        self.op_type = schema.name
        self.attrs = attrs  # name -> normalised value
        self.raw = raw  # name -> value as it was passed, for the conversion to AttrValue
        self.device = device
        self.category = schema.category
        self.exec_attrs = tuple(x for pair in raw.items() for x in pair)  # for TFE_Py_Execute
        self.key = self
        self.output_refs = None if schema.is_function else schema.output_refs(attrs)
        self.value_flags = None  # what `flat_inputs.value_positions` has found out
        self.out_enums = None  # dtype enums of its flat outputs, once it has run
        self.asked = False  # whether its shape function was asked if it tells the shapes of the outputs

    def __repr__(self):
        return f"{self.op_type}{self.attrs}"


_op_infos = {}
_MOST_CALLS = 1000  # ways to call one op that are remembered


def op_info(schema, attr_pairs, device):
    """The interned OpInfo for attributes given as a flat tuple name, value, ... (seeds of random ops are values, not attributes; nor is the message
    of a check)."""
    key = (attr_pairs, device) if not schema.has_floats else (attr_pairs, device, repr(attr_pairs))
    try:
        info = schema.infos.get(key)
    except TypeError:  # a list among the attributes
        return _op_info(schema, attr_pairs, device)
    if info is None:
        info = _op_info(schema, attr_pairs, device)
        if not schema.draws:
            if len(schema.infos) > _MOST_CALLS:
                schema.infos.clear()
            schema.infos[key] = info
    return info


def _op_info(schema, attr_pairs, device):
    attrs, raw = {}, {}
    skip_seeds, is_check = schema.draws, schema.name in CHECKS
    for name, value in zip(attr_pairs[::2], attr_pairs[1::2]):
        if skip_seeds and name in ("seed", "seed2"):
            continue
        if name not in raw:
            if value is None and schema.attr_types.get(name) != "shape":  # the fast path's way to say "the default"
                value = default_value(schema.attr_defs[name])
            raw[name] = value
            if is_check and name == "message":
                continue
            attrs[name] = normalise_attr(value, schema.attr_types.get(name, "string"))
    attrs = dict(sorted(attrs.items()))
    key = (schema.identity, tuple(attrs.items()), device)
    info = _op_infos.get(key)
    if info is None:
        info = _op_infos.setdefault(key, OpInfo(schema, attrs, raw, device))
    return info


def variable_enum(handle):
    """Returns the dtype, as a number of TensorFlow's, of the variable behind a handle."""
    return handle._handle_data.shape_and_type[0].dtype
