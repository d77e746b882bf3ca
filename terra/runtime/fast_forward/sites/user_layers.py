"""Fast-forward of the wrapper round a user's own `call`: what Keras 3's `Layer.__call__` does before and after it.

The user's `call` must run; but the wrapper (argument conversion, call specification, name scopes, masks: 45 to 110 us) does nothing for a layer that
is built, has no masks, casts and regularizers, and is given tensors of its own dtype. Then `call` is called at once, with the arguments that the
wrapper would give it, in the same call context (the `training` argument of the layers within) and name scope. What the wrapper would do is predicted
by `inner`; the first time that a layer is called in some way, the wrapper itself runs, and the prediction is compared with what it does. One that is
wrong is never used.
"""

import inspect
import sys
from operator import is_

from terra import ours
from terra.frameworks import keras, framework_objects
from terra.location import current_step
from terra.runtime.fast_forward.cache import arguments, call_cache
from terra.runtime.fast_forward.guards import patch_guard
from terra.runtime.fast_forward.sites import skipping
from terra.runtime.tensors.object_kinds import is_librarys
from terra.runtime.tensors.tensor import TerraTensor
from terra.tf import private_names as tfi
from terra.tf.private.scopes import enter_name_scope, leave_name_scope
from terra.transform import policy

EagerTensor = tfi.EagerTensor
_PLAIN = frozenset([int, float, bool, str, type(None)])
_MOST_SIGNATURES = 10_000
_classes = {}  # class -> _Class, or None
policy.on_change(_classes.clear)
_plans = {}  # (id of a signature, number of arguments, names) -> (that signature, its _Plan or None)


class _Class:
    """A user's class of layers: what it was when it was looked at."""

    __slots__ = ("wrapper", "held", "version", "policies", "globals", "module", "calls_users")

    @property
    def state(self):
        """Keras' global state of this thread; `clear_session` makes a new one."""
        return self.globals.GLOBAL_STATE_TRACKER

    @property
    def spaces(self):
        """The namespaces of the user's classes in it."""
        return [space for space, *_ in self.held]

    def holds(self, cls):
        return self.version == patch_guard.modules.version and cls.__call__ is self.wrapper and all(
            len(space) == n and all(map(is_, map(space.get, held), held.values())) for space, n, held in self.held)


class _Plan:
    """How a layer is called: which arguments it has, and what is known of the prediction."""

    __slots__ = ("signature", "accepted", "defaults", "verified", "masks", "adds_mask")


class _Scope:
    """An entry of Keras' stack of name scopes."""

    __slots__ = ("name", "caller", "override_parent", "deduplicate")

    def __init__(self, layer):
        self.name = layer.name
        self.caller = layer
        self.override_parent = layer._parent_path
        self.deduplicate = True


class Wrapped:
    """A layer of a user's class in the place of a callee."""

    __slots__ = ("layer", "known")

    def __init__(self, layer, known):
        self.layer, self.known = layer, known

    def converted(self, args):
        """The positional arguments, with tensors in the place of arrays, as the wrapper first thing makes them."""
        step = current_step.active
        if not any(map(arguments.holds_array, args)) or step is None or not step.takes_tensors() or not self.layer._convert_input_args \
                or not self.known.holds(type(self.layer)):
            return args
        return tuple([arguments.tensors_for(step, x) for x in args])

    @ours.calling
    def __call__(self, *args, **kwargs):
        layer, args = self.layer, self.converted(args)
        runner = call_cache.running()
        if runner is None or not self.known.holds(type(layer)):
            return layer(*args, **kwargs)
        predicted = is_predicted(self, args, kwargs)
        if predicted:
            return _calling(runner, self, args, kwargs)
        if predicted is None:
            return verify(self, args, kwargs)
        return skipping.Skipping(layer)(*args, **kwargs)


def is_predicted(wrapped, args, kwargs):
    """Returns whether the wrapper does nothing for such a call; None if that is still to be verified."""
    layer = wrapped.layer
    plan = plan_of(layer, args, kwargs) if wrapped.known.calls_users else None
    return plan is not None and _masks_fit(plan, args, kwargs) and _does_nothing(layer, wrapped.known, args, kwargs) and plan.verified


def call_directly(wrapped, args, kwargs, call=None):
    """Such a call; `call` may be another form of the layer's own."""
    return call_within(wrapped.layer, wrapped.known.state, plan_of(wrapped.layer, args, kwargs), args, kwargs, call)


def _calling(runner, wrapped, args, kwargs):
    return call_directly(wrapped, args, kwargs)


def set_calling(calling):
    """`calling(runner, wrapped, args, kwargs)` makes the calls of layers whose wrapper does nothing."""
    global _calling
    _calling = calling


def wrap(callee):
    """A `Wrapped` for an object that is called, or None."""
    kind = type(callee)
    try:
        known = _classes[kind]
    except KeyError:
        known = _look_at(kind)
    if known is None:
        return None
    if not known.holds(kind):
        known = _look_at(kind)
    return None if known is None else Wrapped(callee, known)


def _look_at(kind):
    """Find out about a class."""
    module = sys.modules.get(keras.BASE_LAYER)
    layer = getattr(module, "Layer", None)
    known = None
    if layer is not None and layer in kind.__mro__ and framework_objects.stock_package(kind.__module__) is None and not policy.is_pure(_caller(kind).__module__) \
            and _is_simple(kind, layer):
        known = _Class()
        known.wrapper = kind.__call__
        known.calls_users = not is_librarys(_caller(kind))
        known.module = module
        known.globals = sys.modules[keras.GLOBAL_STATE]
        for cls in kind.__mro__[:-1]:
            if is_librarys(cls):
                patch_guard.modules.watch(cls)
        known.version = patch_guard.modules.version
        known.held = [(vars(cls), len(vars(cls)), {name: x for name, x in vars(cls).items() if type(x) not in _PLAIN}) for cls in kind.__mro__[:-1] if not is_librarys(cls)]
        known.policies = {}
    _classes[kind] = known
    return known


def _caller(kind):
    """The class that a layer's `call` is of."""
    return next(cls for cls in kind.__mro__ if "call" in vars(cls))


def _is_simple(kind, layer):
    if "_resolve_and_populate_arg" not in vars(layer):
        return False  # an older Keras 3, whose wrapper treats arguments from the call context otherwise
    for name in keras.OF_CALLS:
        for cls in kind.__mro__[:-1]:
            if name in vars(cls):
                if not is_librarys(cls) or framework_objects.is_foreign(vars(cls)[name]):
                    return False
                break
    return kind.compute_mask is layer.compute_mask


def plan_of(layer, args, kwargs):
    """The _Plan for a call with so many arguments, of these names; None if the wrapper is needed."""
    signature = layer._call_signature
    key = id(signature), len(args), tuple(kwargs)
    known = _plans.get(key)
    if known is None or known[0] is not signature:
        if len(_plans) > _MOST_SIGNATURES:
            _plans.clear()
        known = _plans[key] = signature, _make_plan(layer, signature, args, kwargs)
    return known[1]


def _make_plan(layer, signature, args, kwargs):
    parameters = signature.parameters
    contextual = layer._call_context_args
    positional = list(parameters)[:len(args)]
    masks = [name for name in parameters if name == "mask" or name.endswith("_mask")]
    missing = [name for name in masks if name not in positional]
    if missing and (missing != ["mask"] or "mask" in kwargs):
        return None  # a mask that is given by name is handed on to the outputs
    try:
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k not in contextual or k in parameters})
    except TypeError:
        return None
    if not bound.arguments or any(name in contextual for name in list(parameters)[:len(args)]):
        return None
    plan = _Plan()
    plan.signature = signature
    plan.accepted = frozenset(parameters)
    plan.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty and p.default is not None}
    plan.verified = None
    plan.masks = [positional.index(name) for name in masks if name in positional]
    plan.adds_mask = bool(missing)
    return plan


def _masks_fit(plan, args, kwargs):
    """Returns whether the wrapper would fill in no mask but, for the one tensor among the arguments, None."""
    for k in plan.masks:
        if args[k] is None:
            return False
    if plan.adds_mask:
        kinds = [type(x) for x in (*args, *kwargs.values())]
        return kinds.count(TerraTensor) + kinds.count(EagerTensor) == 1 and tuple not in kinds
    return True


def _does_nothing(layer, known, args, kwargs):
    """Returns whether the wrapper would neither build, convert, check, mask nor add anything."""
    attributes = vars(layer)
    try:
        policy = attributes["_dtype_policy"]
        if not (attributes["built"] is True and attributes["_called"] is True and attributes["activity_regularizer"] is None
                and attributes["_remat_mode"] is None and attributes["_parent_path"] is not None and attributes["_lock"] is False):
            return False
    except KeyError:
        return False
    state = known.state
    if layer.input_spec or any(getattr(state, name, None) is not None for name in ("autocast_scope", "distribution", "stateless_scope")):
        return False
    kept = known.policies.get(id(policy))
    if kept is None or kept[0] is not policy:
        kept = known.policies[id(policy)] = (policy, _kept_dtypes(policy))
    kept = kept[1]
    if kept is None:
        return False
    free = layer._allow_non_tensor_positional_args
    for x in args:
        if not _is_kept(x, kept, free):
            return False
    for x in kwargs.values():
        if not _is_kept(x, kept, True):
            return False
    return True


def _is_kept(x, kept, free):
    """Returns whether the wrapper hands an argument on as it is. `free`: it need not be a tensor."""
    kind = type(x)
    if kind is TerraTensor or kind is EagerTensor:
        return x._datatype_enum() in kept and getattr(x, "_keras_mask", None) is None
    if kind in _PLAIN:
        return free or x is None
    if kind is tuple:
        tensors = 0
        for y in x:
            if not _is_kept(y, kept, True):
                return False
            tensors += type(y) not in _PLAIN or y is None
        return tensors == len(x) if tensors or not free else True
    return False


def _kept_dtypes(policy):
    """Enums of the dtypes that a layer of this policy does not cast; None if it may cast anything else."""
    if not keras.is_plain_policy(policy):
        return None
    if policy.compute_dtype != policy.variable_dtype or getattr(policy, "quantization_mode", None) is not None:
        return None
    return frozenset(
        enum for enum, dtype in tfi.INTERN_DTYPES.items() if dtype.name == policy.compute_dtype or dtype.is_integer or dtype.is_bool)


def inner(plan, layer, context, kwargs):
    """(keyword arguments of `call`, what is put into the call context) as the wrapper makes them."""
    given = dict(kwargs)
    noted = {}
    if plan.adds_mask:
        given["mask"] = None
    accepts = layer._call_has_context_arg
    for name in layer._call_context_args:
        if name in given:
            value = given[name]
            if name not in plan.accepted:
                del given[name]
        else:
            value = getattr(context, name, None)
            if value is None:
                value = plan.defaults.get(name)
        noted[name] = value
        if value is not None and accepts.get(name, False):
            given[name] = value
    return given, noted


def call_within(layer, state, plan, args, kwargs, call=None):
    """Calls the layer as Keras' `__call__` does, without the parts that do nothing for it; `call` is another form of the layer's own, `state` Keras' global one."""
    context = getattr(state, "current_call_ctx", None)
    if context is None:
        runner = call_cache.running()
        if runner is not None and runner.observer is not None:
            runner.observer.framework.empties_losses(layer)
        context = layer._get_call_context()
    kwargs, noted = inner(plan, layer, context, kwargs)
    vars(context).update(noted)
    scopes = getattr(state, "name_scope_stack", None)
    if scopes is None:
        scopes = state.name_scope_stack = []
    entered = not scopes or scopes[-1].caller is not layer or scopes[-1].name != layer.name
    if entered:
        scopes.append(_Scope(layer))
        outer = enter_name_scope(layer.name)
    try:
        return (call or layer.call)(*args, **kwargs)
    except Exception as error:
        _raise_as_keras(layer, error, args, kwargs)
        raise
    finally:
        if entered:
            leave_name_scope(outer)
            if scopes:
                scopes.pop()
        if context.entry_layer is layer:
            layer._maybe_reset_call_context()


def _raise_as_keras(layer, error, args, kwargs):
    """Raise the error of a user's `call` as the wrapper would, which adds what the arguments were."""
    traces = sys.modules[keras.TRACEBACKS]

    def call(*args, **kwargs):
        raise error

    call.__signature__ = inspect.signature(layer.call)
    traces.filter_traceback(traces.inject_argument_info_in_traceback(call, object_name=f"{type(layer).__name__}.call()"))(*args, **kwargs)


def verify(wrapped, args, kwargs, observed=None):
    """Call the layer by its wrapper, and see whether that does what is predicted. `observed`: the observed form of its `call`, if that is to run."""
    layer, known, plan = wrapped.layer, wrapped.known, plan_of(wrapped.layer, args, kwargs)
    state = known.state
    context = getattr(state, "current_call_ctx", None)
    expected, noted = inner(plan, layer, context, kwargs)
    results = []
    attributes = vars(layer)
    original = attributes.get("call", attributes)
    call = layer.call if observed is None else observed

    def probe(*given, **named):
        current = getattr(state, "current_call_ctx", None)
        scopes = getattr(state, "name_scope_stack", None)
        right = _same(given, args) and list(map(is_, named.values(), map(expected.get, named))) == [True] * len(expected) and bool(
            scopes and scopes[-1].caller is layer and scopes[-1].override_parent == layer._parent_path
            and all(getattr(current, name, None) is value for name, value in noted.items())
            and (current is context if context is not None else current.entry_layer is layer))
        results.append(right)
        results.append(call(*given, **named))
        return results[1]

    probe.__signature__ = inspect.signature(layer.call)  # by which Keras tells, in an error, what the arguments were
    attributes["call"] = probe
    try:
        result = layer(*args, **kwargs)
    finally:
        if original is attributes:
            del attributes["call"]
        else:
            attributes["call"] = original
    plan.verified = len(results) == 2 and results[0] and result is results[1]
    if not plan.verified:
        _plans[id(plan.signature), len(args), tuple(kwargs)] = plan.signature, None
    return result


def _same(new, old):
    """Returns whether both hold the same objects, in tuples alike."""
    if len(new) != len(old):
        return False
    return all(a is b or (type(a) is tuple and type(b) is tuple and _same(a, b)) for a, b in zip(new, old))
