"""Fast-forward of single functions: `tf.matmul(x, w)`, `keras.ops.relu(x)`, `x * y`, `x[:, 0]`, `variable.assign(x)`.

Around one operation or a few, the framework runs some 20 us of Python: dispatch, name scopes, conversions. Where such a call was recorded (see
`fast_forward`), the next one first meets a *quick* entry: its arguments are compared one by one, without a signature being made, and the cursor moves on.

Functions are those that TensorFlow and Keras export, called at instrumented call sites; operators are those of Terra's own tensors and of variables. A function of the
user's among the arguments makes a call unskippable, as everywhere.
"""

import sys
from types import FunctionType

from terra.runtime import dispatch, fast_forward
from terra.runtime import internals as tfi
from terra.runtime.program import ValueKey
from terra.runtime.regions import SCALARS, this_steps
from terra.runtime.tensor import TerraTensor, make_tensor

_VALUE, _SCALAR, _SAME, _NESTED, _ARGUMENT = range(5)
_MOST_QUICK = 4  # entries looked at, per place
_NAMESPACES = {
    "tensorflow": ("", "math", "nn", "linalg", "image", "signal", "bitwise", "random"),
    "keras": ("ops", "ops.nn", "ops.numpy", "ops.linalg", "ops.image", "activations", "losses"),
}
_OPERATORS = tuple(
    f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor") for side in ("", "r")
) + ("__neg__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__getitem__")
_VARIABLE_METHODS = frozenset(["assign", "assign_add", "assign_sub", "read_value", "value"])

_exported = {}  # id -> function
_replacements = {}


# -- what is called in place of what -------------------------------------------------------------------------------------------

def _exports():
    """The functions that TensorFlow and Keras export, as they are the first time this is asked."""
    for package, names in _NAMESPACES.items():
        if package not in sys.modules or package in _exported:
            continue
        _exported[package] = True
        for name in names:
            space = sys.modules[package]
            for part in filter(None, name.split(".")):
                space = getattr(space, part, None)
            for function in list(vars(space).values()) if space is not None else ():
                if type(function) is FunctionType and _is_of(package, function.__module__) and _is_of(package, function.__globals__["__name__"]):
                    _exported[id(function)] = function
    return _exported


def _is_of(package, module):
    return type(module) is str and (module == package or module.startswith(package + "."))


def substitute(callee):
    """What to call in place of the function `callee` at a call site, or None."""
    if type(callee) is not FunctionType or id(callee) not in _exports():
        return None
    made = _replacements.get(callee)
    if made is None:
        made = _replacements[callee] = _skipping(callee)
    return made


def substitute_method(callee):
    """What to call in place of the function of the method `callee`, if it is one of a variable; else None."""
    function = callee.__func__
    made = _replacements.get(function)
    if made is None and getattr(function, "__name__", None) in _VARIABLE_METHODS and type(function) is FunctionType:
        if type(callee.__self__) is tfi.ResourceVariable and _is_of("tensorflow", function.__globals__["__name__"]):
            made = _replacements[function] = _skipping(function)
    return made


def _skipping(function):
    def call(*args, **kwargs):
        runner = fast_forward.running()
        if runner is None:
            return function(*args, **kwargs)
        return _attempt(runner, function, args, kwargs)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    return call


def _operator(base, name):
    """The operator of a subclass of `base`: that of `base`, but jumping where it can."""
    known = (getattr(base, name), dispatch._getitem if name == "__getitem__" and base is tfi.EagerTensorBase else None)

    def operator(*operands):
        function = getattr(base, name)
        runner = fast_forward.running()
        if runner is None or function not in known:  # somebody has replaced it
            return function(*operands)
        return _attempt(runner, function, operands, _NONE)

    operator.__name__ = operator.__qualname__ = name
    return operator


_NONE = {}


_OPERATED = (tfi.EagerTensorBase, tfi.tf.Tensor, tfi.tf.Variable, tfi.ResourceVariable)
_held = None  # the operators of these classes, when they were first looked at


def operators_are_original():
    """Whether nobody has replaced an operator of tensors or variables."""
    return all(now is held or now is dispatch._getitem for now, held in zip(_operators(), _held))


def _operators():
    return [getattr(cls, name, None) for cls in _OPERATED for name in _OPERATORS]


def install():
    """Give Terra's tensors, and TensorFlow's variables, operators that jump where they can."""
    for name in _OPERATORS:
        for base, cls in ((tfi.EagerTensorBase, TerraTensor), (tfi.tf.Variable, tfi.ResourceVariable)):
            if name == "__getitem__" and cls is tfi.ResourceVariable:
                continue  # a slice of a variable can be assigned to
            original = getattr(base, name, None)
            if type(original) is FunctionType and _is_of("tensorflow", original.__globals__["__name__"]) and name not in vars(cls):
                setattr(cls, name, _operator(base, name))
    global _held
    _held = _operators()


# -- jumping -------------------------------------------------------------------------------------------------------------------

class _Quick:
    """What the arguments of a recorded call were, and how to give its result."""

    __slots__ = ("recording", "device", "guarded", "names", "pattern", "length", "region", "plain", "hidden", "outputs", "sequence", "value")


def _attempt(runner, function, args, kwargs):
    place = (runner.node, function, runner.cursor.current)
    known = runner.program.regions.get(place)
    if known is False:
        if runner.observer is not None:
            runner.observer.entered += 1
        return function(*args, **kwargs)
    if known is not None:
        if kwargs:
            given, names = (*args, *kwargs.values()), tuple(kwargs)
        else:
            given, names = args, ()
        for quick in known.quick:
            if quick.length == len(given) and alike(runner, quick.pattern, given) and quick.names == names and \
                    quick.recording is (runner.tapes.recording is not None) and \
                    (quick.region.guard.holds() if quick.guarded else quick.device == tfi.device_name()):
                known.jumps += 1
                return _jump(runner, quick)
    result, region = fast_forward.attempt_at(place, known, runner, function, args, kwargs, lambda: function(*args, **kwargs))
    if region is not None:
        _learn(runner, place, region, args, kwargs)
    return result


def alike(runner, pattern, given):
    """Whether the arguments are those of a recorded call."""
    for x, (kind, a, b) in zip(given, pattern):
        if kind is _VALUE:
            if type(x) is not TerraTensor or x._key is not a or x._owner is not runner or x._shp != b:
                return False
        elif kind is _SCALAR:
            if type(x) is not a or x != b:
                return False
        elif kind is _SAME:
            if x is not a:
                return False
        elif kind is _NESTED:
            if type(x) is not a:
                return False
            if a is slice:
                x = (x.start, x.stop, x.step)
            if len(x) != len(b) or not alike(runner, b, x):
                return False
        else:
            argument = runner.step.args.get(id(x))
            if argument is None or argument[0] != a or (x._datatype_enum(), x._shape_tuple()) != b:
                return False
    return True


def _jump(runner, quick):
    """`regions.jump` for a region with little to do."""
    region = quick.region
    runner.step.counts.fast_forwards += 1
    if runner.observer is not None:
        runner.observer.note_jump(region)
    if quick.hidden:
        runner.note_jump(region)
    if quick.plain:
        runner.log += region.entries
    else:
        runner.log += this_steps(runner, region, None) if region.patches else region.entries
        for multi, key in region.latest:
            runner.latest[multi] = key
        for selects in region.selects:
            runner._select(selects)
        if quick.recording:
            for variable in region.accessed:
                tfi.variable_accessed(variable)
        runner.tapes.accessed += region.accessed
    end = runner.node = region.end
    runner.expected = end.expected
    if quick.recording and region.records:
        runner.tapes.skipped(region)
    outputs = quick.outputs
    if outputs is None:
        return quick.value
    if quick.sequence is None:
        dtype, enum, shape, key = outputs
        made = make_tensor(dtype, enum, shape, key, runner, None)
        runner.issued.append(made)
        return made
    made = [make_tensor(dtype, enum, shape, key, runner, None) for dtype, enum, shape, key in outputs]
    runner.issued += made
    return made if quick.sequence is list else tuple(made)


def _learn(runner, place, region, args, kwargs):
    """Make a quick entry of a recorded region, if it is simple enough."""
    known = runner.program.regions.get(place)
    if not known or region.feeds or region.draws or region.checks:
        return
    quick = _Quick()
    try:
        quick.pattern = tuple([pattern(runner, x) for x in (*args, *kwargs.values())])
    except LookupError:
        return
    quick.length = len(quick.pattern)
    quick.names = tuple(kwargs)
    quick.region = region
    quick.plain = not (region.patches or region.latest or region.selects or region.accessed)
    quick.recording = runner.tapes.recording is not None
    guard = region.guard
    quick.guarded = guard.root is not None or len(guard.containers) > 0
    quick.device = guard.settings[0]
    result = region.result
    quick.outputs = quick.sequence = quick.value = None
    try:
        if type(result) is ValueKey:
            quick.outputs = (*region.shapes[result], result)
        elif (type(result) is list or type(result) is tuple) and result and all(type(key) is ValueKey for key in result):
            quick.outputs, quick.sequence = [(*region.shapes[key], key) for key in result], type(result)
        elif type(result) in SCALARS or tfi.is_variable(result):
            quick.value = result
        else:
            return
    except KeyError:  # it gives one of its arguments back
        return
    keys = [] if quick.outputs is None else [quick.outputs[3]] if quick.sequence is None else [key for _, _, _, key in quick.outputs]
    quick.hidden = set(keys) != set(region.shapes)  # whether it has values that are not made at once
    known.quick.insert(0, quick)
    del known.quick[_MOST_QUICK:]


def pattern(runner, x):
    """How an argument is compared. Raises LookupError if that takes more than a glance."""
    kind = type(x)
    if kind is TerraTensor and x._owner is runner:
        if "_keras_logits" in x.__dict__:
            raise LookupError
        return _VALUE, x._key, x._shp
    if kind is TerraTensor or kind is tfi.EagerTensor:
        shape = x._shape_tuple()
        if shape == () or id(x) not in runner.step.args:
            raise LookupError
        return _ARGUMENT, runner.step.args[id(x)][0], (x._datatype_enum(), shape)
    if x is None or kind is bool or x is Ellipsis or kind is tfi.tf.DType or tfi.is_variable(x):
        return _SAME, x, None
    if kind in SCALARS:
        if kind is float and x == 0.0:
            raise LookupError  # 0.0 == -0.0
        return _SCALAR, kind, x
    if kind is tuple or kind is list or (kind is tfi.tensor_shape.TensorShape and x.rank is not None):
        return _NESTED, kind, tuple([pattern(runner, y) for y in x])
    if kind is slice:
        return _NESTED, kind, tuple([pattern(runner, y) for y in (x.start, x.stop, x.step)])
    raise LookupError
