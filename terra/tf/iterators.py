"""Tells what an operation outside of the steps may touch, and so whether it has to wait for the steps in flight.

An update of a variable meets a graph that uses the same variable, and no other. Iterators, tables and queues are never part of a graph; moving an
iterator meets one only if the graph and the input pipeline share state. A `tf.data` pipeline is told by its parts: the datasets that it is made of,
their functions, and what these capture. A variable that a function captures is looked for among the arguments of the graphs in flight. Where Python
code runs in the pipeline (`from_generator`, `py_function`), or anything else that cannot be looked into, it may touch all that there is. What cannot
be told waits.
"""

from terra.tf import private_names as tfi
from terra.tf import opschema, variable_use
from terra.tf.private import datasets, runtime_functions, tables

RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE
VARIANT_ENUM = tfi.types_pb2.DT_VARIANT

PIPELINE_OPS = frozenset(["IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "MakeIterator"])
_OWN_STATE = ("LookupTable", "InitializeTable", "Queue", "DestroyResource")  # these touch nothing but what they are given
# Operations of a pipeline's functions that may be stateful, but whose state nothing outside of the pipeline shares.
_HARMLESS = frozenset([
    "NoOp", "Assert", "PrintV2", "ParameterizedTruncatedNormal", "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2",
    opschema.SHUFFLE, *opschema.STATELESS_TWIN])
_HARMLESS_PREFIXES = ("TensorArray", "LookupTableFind", "LookupTableSize")
_PYTHON = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])


class Reach:
    """The variables that a pipeline reads or updates; `others` says whether it has resources that are no variables, such as tables."""

    __slots__ = ("handles", "writes", "others")

    def __init__(self):
        self.handles = {}  # id -> handle
        self.writes = self.others = False

    def __bool__(self):
        return bool(self.handles)


class _CannotTell(Exception):
    pass


def reach_of(inputs):
    """Returns the `Reach` of the pipeline behind the iterator among `inputs`; None if it cannot be told."""
    iterator = inputs[-1]  # MakeIterator has its dataset first
    try:
        return iterator._terra_reach
    except AttributeError:
        return _reach_behind(iterator, datasets.dataset_of_iterator(iterator))


def reach_of_iterator(iterator):
    """Returns the `Reach` of the pipeline behind an iterator of `tf.data`, as Python has it; None if it cannot be told."""
    resource = iterator._iterator_resource
    try:
        return resource._terra_reach
    except AttributeError:
        return _reach_behind(resource, getattr(iterator, "_dataset", None))


def _reach_behind(iterator, dataset):
    try:
        reach = _reach_of_dataset(dataset)
    except _CannotTell:
        reach = None
    try:
        iterator._terra_reach = reach  # a pipeline stays what it is as long as its iterator lives
    except AttributeError:  # no eager tensor
        pass
    return reach


def _reach_of_dataset(dataset):
    reach = Reach()
    todo, seen, names = [dataset], set(), set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        parts = datasets.dataset_parts(one)
        if parts is None:
            raise _CannotTell
        inner, functions, tensors = parts
        todo += inner
        for function in functions:
            tensors = [*tensors, *function.captured_inputs]
            _look_into(function.function_def, reach, names)
        for t in tensors:
            enum = t.dtype.as_datatype_enum
            if enum == VARIANT_ENUM:  # perhaps another dataset
                raise _CannotTell
            if enum == RESOURCE_ENUM:
                if tfi.is_of_variable(t):
                    reach.handles[id(t)] = t
                else:
                    reach.others = True
    return reach


def _look_into(fdef, reach, names):
    """Look for what cannot be told in a function of a pipeline, and in those that it calls; variables reach it as captured handles only."""
    if fdef is None:
        raise _CannotTell
    if fdef.signature.name in names:
        return
    names.add(fdef.signature.name)
    for node in fdef.node_def:
        name = node.op
        definition = runtime_functions.op_def(name)
        if definition is None:
            _look_into(runtime_functions.function_def(name), reach, names)
            continue
        for value in node.attr.values():
            called = [value.func] if value.WhichOneof("value") == "func" else value.list.func
            for function in called:
                _look_into(runtime_functions.function_def(function.name), reach, names)
        if name in _PYTHON:
            raise _CannotTell
        if definition.is_stateful and not (
                name in _HARMLESS or name in variable_use.PURE_STATEFUL or name.startswith(_HARMLESS_PREFIXES) or "Dataset" in name):
            schema = opschema.get_schema(name)
            if schema.category != opschema.VARIABLE:
                raise _CannotTell
            reach.writes = reach.writes or schema.may_write


def must_wait(op, inputs, flights):
    """Returns whether operation `op`, which is given a resource or a variable, may meet a step in flight."""
    if op in PIPELINE_OPS:
        reach = reach_of(inputs)
        if reach is None:
            return True
        handles, others = reach.handles, reach.others
    else:
        schema = opschema.get_schema(op)
        if schema is None or not (op.startswith(_OWN_STATE) or (schema.category == opschema.VARIABLE and not schema.is_function)):
            return True
        handles, others = {}, False
        for x in inputs:
            if type(x) is tfi.EagerTensor:
                if x._datatype_enum() == RESOURCE_ENUM:
                    if tfi.is_of_variable(x):
                        handles[id(x)] = x
                    elif not tables.only_reads(op):
                        others = True
            elif hasattr(x, "handle"):
                return True
    if not handles and not others:
        return False
    for flight in list(flights):
        resources = flight.resources()
        if resources is None:
            return True
        for x in resources:
            if id(x) in handles or (others and not tfi.is_of_variable(x) and not (op in PIPELINE_OPS and tables.is_in_graphs(x))):  # which such a pipeline only reads
                return True
    return False
