"""Tells instrumented call sites what to call in place of their callees: where a call may be skipped, something that skips it."""

from types import MethodType

from terra.frameworks import framework_objects
from terra.location import location
from terra.runtime.execution import interception
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.fast_forward.sites import framework_calls, fast_calls, gradient_functions, user_layers, walk_recording
from terra.runtime.fast_forward.sites.builtin_loops import located
from terra.runtime.fast_forward.sites.skipping import OF_TAPES, Generator, Skipping, skipping
from terra.runtime.tapes import jacobians

_OF_ONE_METRIC = frozenset(["update_state_fn", "result_fn"])  # what each metric of tf_keras has functions of its own for
_METHODS = {
    "optimizers": frozenset(["apply", "apply_gradients", "scale_loss"]),
    "trainers": frozenset(["compute_loss", "compute_metrics", "update_state", "result", "reset_state"]),
    "engine": frozenset(["compute_loss", "compute_metrics", "update_state", "reset_state"]),
    "layers": frozenset(["call"]), "models": frozenset(["call"]),  # which a layer, or model, that derives from a stock one calls
    "metrics": frozenset(["update_state", "result", "reset_state", "reset_states", *_OF_ONE_METRIC]),
    "backend": frozenset(["assign", "assign_add", "assign_sub"]),  # of Keras' variables
}
_DRAWING = frozenset(getattr(Generator, name) for name in ("binomial", "normal", "truncated_normal", "uniform", "uniform_full_int"))
_replacements = {}
of_program = None  # what is called in place of the program's own functions, layers and Keras steps: set by `install`


def substitute(callee):
    """The function to call in place of the method `callee` at a call site, or None: one that jumps if it can."""
    if type(callee) is MethodType:
        function = callee.__func__
        made = fast_calls.substitute_method(callee)
        if made is not None:
            return made
        if function in OF_TAPES:
            return OF_TAPES[function]
        make = of_program.keras_step if of_program.is_keras_step(callee) else skipping
        if make is skipping and function not in _DRAWING:
            package = framework_objects.stock_package(function.__module__)
            if package is None or function.__name__ not in _METHODS.get(package, ()):
                return None
        made = _replacements.get(function)
        if made is None:
            made = make(function)
            if function.__name__ not in _OF_ONE_METRIC:
                _replacements[function] = made
        return made
    return None


def substitute_for(callee):
    """Returns what is called in place of `callee` where that is not called at an instrumented site; `callee` itself if nothing is."""
    if type(callee) is MethodType:
        made = substitute(callee)
        return callee if made is None else MethodType(made, callee.__self__)
    if framework_objects.is_stock_object(callee) or framework_objects.is_stock_function(callee):
        return Skipping(callee)
    return fast_calls.substitute(callee) or _substitute_for_derived(callee) or callee


def _substitute_for_derived(callee):
    """Returns what is called in place of an object of a class of the user's; None if that is not derived from one of the framework's."""
    return user_layers.wrap(callee) or (Skipping(callee) if framework_objects.is_derived_object(callee) else None)


def install(program, observe_users):
    """Make instrumented call sites ask `substitute` before anything else.

    program: what is called in place of the program's own functions, layers and Keras steps (`pure_functions`).
    observe_users: makes a call that may run the program's functions, and observes these (`user_code.observe`).
    """
    global of_program
    of_program, call_cache.observe_users, call_cache.parts_are_sites = program, observe_users, framework_calls.prepare
    call_cache.enter_by_parts = walk_recording.enter
    inner = location._resolve

    def resolve(there, callee):
        made = substitute(callee)
        if made is not None:
            if callee.__func__.__name__ not in _OF_ONE_METRIC:
                there.callee, there.target = callee.__func__, made
            return MethodType(made, callee.__self__)
        if framework_objects.is_stock_object(callee) or framework_objects.is_stock_function(callee):
            there.callee = there.target = None  # the answer is cheap, and the location would keep the object alive
            return Skipping(callee)
        made = fast_calls.substitute(callee)
        if made is not None:
            there.callee, there.target = callee, made
            return made
        made = located(callee)
        if made is not None and there is not location.OUTSIDE:
            there.callee, there.target = callee, made
            return made
        form = inner(there, callee)
        if form is callee:
            return _substitute_for_derived(callee) or form
        return of_program.of_function(there, callee, form)

    location.set_resolver(resolve)
    user_layers.set_calling(of_program.call_layer)
    interception.gradient_hook = gradient_functions.gradient_function
    fast_calls.install()
    jacobians.install()
