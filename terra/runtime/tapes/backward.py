"""Backward functions: what TensorFlow's and Keras' own custom gradients record on tapes (`tf.nn.silu`, `tf.nn.ctc_loss`).

The tape is told a Python function, with the tensors that it needs in its closure. To skip the call that made it, and the gradient that calls it, one has to
know what it will do, and to make another one out of the tensors of another step. So the function is taken apart, into tensors and what is the same in each
step. That is done only if there is nothing in it but tensors, variables, plain values, and further functions of the framework's: everything else might be the
user's, or change in the meantime.
"""

import dis
from functools import lru_cache
from types import CellType, FunctionType

from terra.runtime.tensors.tensor import TerraTensor, tell_tapes
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.constants import const_key, is_small_constant
from terra.tf.private import runtime_functions
from terra.transform import policy

EagerTensor = tfi.EagerTensor
_PLAIN = frozenset([int, float, bool, str, bytes, type(None), tfi.tf.DType])
_DEEPEST = 10
_RESOURCE = tfi.types_pb2.DT_RESOURCE


class Unknown(Exception):
    """A function that cannot be taken apart."""


class TapeRecord:
    """That a tape was told of an operation whose gradient is a Python function.

    In a record, `inputs`, `outputs` and `tensors` name values, and there is no `function`.
    """

    __slots__ = ("op", "inputs", "outputs", "parts", "tensors", "signature", "function")

    def __init__(self, op, inputs, outputs, parts, tensors, signature, function=None):
        self.op, self.inputs, self.outputs, self.parts, self.tensors, self.signature = op, inputs, outputs, parts, tensors, signature
        self.function = function

    def mapped(self, inside, outside):
        """Returns a copy of the record whose inputs and tensors of the function are mapped by `inside`, and whose outputs are by `outside`."""
        inputs, outputs, tensors = list(map(inside, self.inputs)), list(map(outside, self.outputs)), list(map(inside, self.tensors))
        return TapeRecord(self.op, inputs, outputs, self.parts, tensors, self.signature)

    def tell(self):
        """Tell the active tapes."""
        function = self.function or _put_together(self.parts, self.tensors)
        tell_tapes(tfi.tape_originals["TFE_Py_TapeSetRecordOperation"], self.op, self.outputs, self.inputs, function, None)


def record(runner, op, outputs, inputs, function):
    """The Record of what a step's code tells the tapes. Raises Unknown."""
    if not all(type(t) is TerraTensor and t._owner is runner for t in outputs):
        raise Unknown
    schema = opschema.get_schema(op) if runtime_functions.op_def(op) is None else None  # of a traced function, whose name has a counter
    tensors, found = [], [schema.identity if schema is not None else op, *[t._key for t in outputs]]
    for x in inputs:
        found.append(_identity(runner, x))
    parts = _take_apart(function, tensors, found, 0)
    found += [_identity(runner, x) for x in tensors]
    return TapeRecord(op, list(inputs), list(outputs), parts, tensors, tuple(found), function)


def _identity(runner, x):
    """Returns what tells a tensor from others in all steps that took the same path."""
    if type(x) is TerraTensor and x._owner is runner:
        return x._key
    argument = runner.step.args.get(id(x))
    if argument is not None:
        return argument[0]
    known = runner.fed.get(id(x))
    if known is not None:
        return known[0]
    if type(x) is EagerTensor and not runner.step.is_data(x):
        enum, shape = x._datatype_enum(), x._shape_tuple()
        if enum == _RESOURCE:  # of a variable, which the function uses
            return id(x)
        if is_small_constant(enum, shape):
            return const_key(x, enum, shape)
    raise Unknown


class _Tensor:
    """Stands for one of the function's tensors."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


class _Function:
    """A function without the tensors in its closure."""

    __slots__ = ("function", "values")

    def __init__(self, function, values):
        self.function = function.__code__, function.__globals__, function.__name__  # (itself, it would keep its tensors alive)
        self.values = values  # defaults, defaults of keywords, what the cells hold


def _take_apart(value, tensors, found, depth):
    """`value` without its tensors, which are appended to `tensors`; what tells it from others is appended to `found`."""
    kind = type(value)
    if depth > _DEEPEST:
        raise Unknown
    if kind is EagerTensor and value._datatype_enum() == _RESOURCE:
        found.append(id(value))
        return value
    if kind is TerraTensor or kind is EagerTensor:
        tensors.append(value)
        return _Tensor(len(tensors) - 1)
    if kind in _PLAIN:
        found.append((kind, value if kind is not float else repr(value)))  # 0.0 == -0.0
        return value
    if kind is list or kind is tuple:
        found.append((kind, len(value)))
        return kind([_take_apart(x, tensors, found, depth + 1) for x in value])
    if kind is FunctionType and _is_frameworks(value):
        found.append(value.__code__)
        keywords = value.__kwdefaults__
        try:
            cells = tuple([cell.cell_contents for cell in value.__closure__ or ()])
        except ValueError:  # an empty one
            raise Unknown from None
        values = value.__defaults__, keywords and tuple(keywords.items()), cells
        return _Function(value, _take_apart(values, tensors, found, depth + 1))
    if tfi.is_variable(value):
        found.append(id(value))
        return value
    if kind is dict and not value:
        found.append(kind)
        return value
    if kind is tfi.ConcreteFunction:
        schema = opschema.get_schema(runtime_functions.function_name(value))
        if schema is None:
            raise Unknown
        found += [schema.identity, *[x is None for x in tfi.tf.nest.flatten(value.structured_outputs)]]
        return value
    raise Unknown


def _is_frameworks(function):
    """Returns whether the code is the framework's, and leaves the variables of the functions around it alone."""
    module = function.__globals__.get("__name__", "")
    return (module.split(".", 1)[0] in tfi.FRAMEWORKS or policy.is_pure(module)) and not vars(function) and not _assigns_outside(function.__code__)


@lru_cache(1000)
def _assigns_outside(code):
    return any(i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in code.co_freevars for i in dis.get_instructions(code))


def _put_together(value, tensors):
    kind = type(value)
    if kind is _Tensor:
        return tensors[value.index]
    if kind is list or kind is tuple:
        return kind([_put_together(x, tensors) for x in value])
    if kind is _Function:
        defaults, keywords, cells = _put_together(value.values, tensors)
        made = FunctionType(*value.function, defaults, tuple(map(CellType, cells)) or None)
        made.__kwdefaults__ = keywords and dict(keywords)
        return made
    return value
