"""Fast-forward of the functions that compute an operation's gradient.

A gradient that is not skipped as a whole (its shapes depend on data, what was fed to the step is not the same) is taken by TensorFlow's tape, which
calls the gradient function of each recorded operation. Each such call is tried on its own (see `inline_cache`): some 100 us of Python become a few.
"""

from terra.location import current_step, location
from terra.runtime.fast_forward.cache import call_cache, inline_cache
from terra.runtime.tensors import object_kinds, open_shapes
from terra.runtime.tensors.tensor import TerraTensor, has_open_shape
from terra.runtime.tracing.structures import is_tensor
from terra.tf import private_names as tfi
from terra.tf.private import symbolic


def gradient_function(op, attrs, n_inputs, inputs, outputs, gradients, skipped, scope):
    """Stands in for what tapes call with an operation's name, attributes and tensors, and with the gradients of its outputs; gives those of its inputs."""
    def call():
        return tfi.gradient_function(op, attrs, n_inputs, inputs, outputs, gradients, skipped, scope)

    function = symbolic.registered_gradient(op) if current_step.active is not None else None
    if function is None or not object_kinds.is_frameworks_function(function):
        observer = location.tls.observer
        if function is not None and observer is not location.NULL_OBSERVER:
            observer.run.impure(f"takes a gradient of {op}, by a function that the program has registered")
        return call()
    runner = call_cache.running()

    def compute():
        if runner is None or not runner.takes_gradients_by_function:
            return call()
        return call_cache.attempt_function(runner, function, (attrs, inputs, outputs, gradients, skipped), inline_cache.NONE, call, True)

    if not any(map(has_open_shape, (*(inputs or ()), *(outputs or ()), *gradients))):  # without those that the function has no use for
        return compute()
    try:
        with open_shapes.shown():
            result = compute()
    except (TypeError, ValueError, NotImplementedError):  # it cannot do without some size, as that of a QR decomposition
        result = call()
    for x, gradient in zip(inputs or (), result if isinstance(result, (list, tuple)) else (result,)):
        _refine(gradient, x)
    return result


def _refine(gradient, x):
    """A gradient has the shape of what it is the gradient of, unless that is a handle."""
    if has_open_shape(gradient) and is_tensor(x) and x._datatype_enum() == gradient._enum:
        known = x._shp if type(x) is TerraTensor else x._shape_tuple()
        gradient._shp = open_shapes.merged(gradient._shp, known)
