"""Fast-forward: skip framework code whose outcome is known (design: the light-weight imperative runtime).

The skeleton pays for the framework's own Python, and in a Keras training step more than half of that is the optimizer: hundreds of small operations, the
same ones at each step. So at an instrumented call site whose callee is `apply` or `apply_gradients` of a stock optimizer, the nodes that the call walked
are recorded as a *region*. When the same call comes again at the same node of the program, the cursor jumps over the region, and the call is not entered.

What must hold for a jump (else the call simply runs, and every operation is validated as always):
* the optimizer's class is the framework's own, and its methods are those that were recorded;
* gradients are the same values of the step, variables the same objects;
* nothing that the optimizer reads has changed: its attributes, those of its schedule, of the variables, with the contents of lists and dicts;
* device and default float type are the same, no tape is recording;
* the recorded call fed nothing, read nothing, ran nothing imperatively, chose no branch, and changed none of that Python state itself.
"""

import sys
from types import MethodType

from terra.runtime import internals as tfi
from terra.runtime import location
from terra.runtime.program import ValueKey
from terra.runtime.tensor import TerraTensor

_STOCK_MODULES = ("keras.src.optimizers.", "tf_keras.src.optimizers.")
_METHODS = frozenset(["apply", "apply_gradients"])
_SCALARS = frozenset([int, float, bool, str, type(None), bytes])
_MOST_REGIONS = 4  # kept per place: a step that alternates between so many states of an optimizer still jumps
_replacements = {}


class Region:
    """A recorded call: what it depended on, and where it led."""

    __slots__ = ("signature", "state", "keep", "entries", "end", "latest", "result")


def substitute(callee):
    """What to call in place of `callee` at a call site, or None: a function that jumps if it can."""
    if type(callee) is not MethodType:
        return None
    function = callee.__func__
    if function.__name__ not in _METHODS or not function.__module__.startswith(_STOCK_MODULES):
        return None
    made = _replacements.get(function)
    if made is None:
        made = _replacements[function] = skipping(function)
    return made


def skipping(function):
    """The method `function` of stock optimizers, but jumping where it can."""
    def apply(self, *args, **kwargs):
        runner = _running()
        if runner is None or not type(self).__module__.startswith(_STOCK_MODULES):
            return function(self, *args, **kwargs)
        if args and not isinstance(args[0], (list, tuple)):
            args = (list(args[0]), *args[1:])  # a zip can be read only once
        return _apply(runner, function, self, args, kwargs)

    apply.__name__, apply.__qualname__ = function.__name__, function.__qualname__
    return apply


def _running():
    """The PythonRunner of the step that co-executes on this thread, if a call may be skipped now."""
    from terra.runtime import dispatch  # it imports what imports this module
    step = dispatch.active
    if step is None or not step.may_fast_forward() or not tfi.tape_set_is_empty():
        return None
    return step.skeleton


def _apply(runner, function, optimizer, args, kwargs):
    signature, keep = _signature(runner, args, kwargs)
    if signature is None:
        return function(optimizer, *args, **kwargs)
    state = _state(optimizer, keep)
    place = (runner.node, function, id(optimizer))
    regions = runner.program.regions.setdefault(place, [])
    for region in regions:
        if region.signature == signature and _same(region.state, state):
            runner.jump(region)
            return region.result
    start, log_length, events = runner.node, len(runner.log), runner.events()
    result = function(optimizer, *args, **kwargs)
    after = _state(optimizer, keep)
    if runner.events() == events and runner.step.mode is runner and runner.node is not start and _same(state, after) \
            and type(result) is not TerraTensor:
        entries = runner.log[log_length:]
        if all(_known(node, refs) for node, refs, _ in entries):
            region = Region()
            region.signature, region.state, region.keep = signature, state, keep
            region.entries, region.end, region.result = entries, runner.node, result
            region.latest = [(multi, key) for node, _, _ in entries for multi, key in node.assigns_multi]
            if len(regions) >= _MOST_REGIONS:
                del regions[0]
            regions.append(region)
    return result


def _known(node, refs):
    """Whether the inputs of a matched node will be the same in any step: values of the step, constants, variables."""
    return all(
        type(ref) is ValueKey or ref is slot.const_obj or ref is slot.handle or slot.const is not None
        for ref, slot in zip(refs, node.slots))


def _signature(runner, args, kwargs):
    """(hashable identity of the arguments, objects to keep alive), or (None, None) if they cannot be told apart cheaply."""
    found, keep = [], []
    ok = _describe(runner, (args, kwargs), found, keep)
    return (tuple(found), keep) if ok else (None, None)


def _describe(runner, value, found, keep):
    kind = type(value)
    if kind is TerraTensor:
        found.append(value._key)
        return value._owner is runner
    if kind in _SCALARS:
        found.append((kind, value))
        return True
    if kind is tuple or kind is list:
        found.append(len(value))
        return all(_describe(runner, x, found, keep) for x in value)
    if kind is dict:
        found.extend(value)
        return all(_describe(runner, x, found, keep) for x in value.values())
    if kind is tfi.tf.IndexedSlices:
        return all(_describe(runner, x, found, keep) for x in (value.values, value.indices, value.dense_shape))
    if hasattr(value, "handle") or hasattr(value, "_value"):  # a variable of TensorFlow or of Keras
        found.append(id(value))
        keep.append(value)
        return True
    return False


def _state(optimizer, variables):
    """Everything that the optimizer's code reads, as a flat list of objects."""
    flat = [tfi.device_name(), _floatx(type(optimizer))]
    for cls in type(optimizer).__mro__[:-1]:
        if cls.__module__.startswith(_STOCK_MODULES):
            flat.extend(vars(cls).values())
    _flatten(vars(optimizer), flat, 0)
    for variable in variables or getattr(optimizer, "_trainable_variables", ()):
        flat.extend(vars(variable).values())
    return flat


def _flatten(value, flat, depth):
    kind = type(value)
    if kind is dict or isinstance(value, dict):
        flat.append(len(value))
        for key, x in value.items():
            flat.append(key)
            _flatten(x, flat, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        flat.append(len(value))
        for x in value:
            flat.append(x)
    else:
        flat.append(value)
        if depth < 4 and kind.__module__.startswith(_STOCK_MODULES) and hasattr(value, "__dict__"):
            _flatten(vars(value), flat, depth + 1)


def _floatx(kind):
    """The default float type of the Keras that this class belongs to."""
    backend = sys.modules.get(kind.__module__.split(".", 1)[0] + ".backend")
    return backend.floatx() if backend is not None else None


def _same(old, new):
    """Whether two states are the same: the same objects, or equal scalars of one type."""
    if len(old) != len(new):
        return False
    for a, b in zip(old, new):
        if a is not b and not (type(a) in _SCALARS and type(a) is type(b) and a == b):
            return False
    return True


def install():
    """Make instrumented call sites ask `substitute` before anything else."""
    inner = location._resolve

    def resolve(there, callee):
        made = substitute(callee)
        if made is None:
            return inner(there, callee)
        there.callee, there.target = callee.__func__, made
        return MethodType(made, callee.__self__)

    location.set_resolver(resolve)
