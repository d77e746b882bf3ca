"""Fast-forward of the functions that compute an operation's gradient.

A gradient that is not skipped as a whole (its shapes depend on data, what was fed to the step is not the same) is taken by TensorFlow's tape, which calls the gradient
function of each recorded operation. Each such call is tried on its own (see `quick_entries`): some 100 us of Python become a few.
"""

from terra.runtime import fast_forward, kinds, quick_entries
from terra.runtime import internals as tfi


def gradient_function(op, attrs, n_inputs, inputs, outputs, gradients, skipped, scope):
    """Stands in for what tapes call with an operation's name, attributes and tensors, and with the gradients of its outputs; gives those of its inputs."""
    def call():
        return tfi.gradient_function(op, attrs, n_inputs, inputs, outputs, gradients, skipped, scope)

    runner = fast_forward.running()
    function = tfi.registered_gradient(op) if runner is not None and runner.takes_gradients_by_function else None
    if function is None or not kinds.is_frameworks(function):
        return call()
    return quick_entries.attempt(runner, function, (attrs, inputs, outputs, gradients, skipped), quick_entries.NONE, call, True)
