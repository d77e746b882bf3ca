"""Functions that TensorFlow's runtime knows by name: they are added, built, called and removed."""

import contextlib
import functools
import threading

from terra.tf import private_names as tfi

_execute_cancelable, _set_executor_for_thread = tfi.execute_cancelable, tfi.set_executor_for_thread


def op_def(name):
    """The OpDef of `name`, or None if no such operation is registered."""
    return tfi.op_def_registry.get(name)


def function_def(name):
    """The FunctionDef registered in the eager context under `name`, or None."""
    c = tfi.context.context()
    try:
        return c.get_function_def(name)
    except (tfi.tf.errors.NotFoundError, ValueError, RuntimeError):
        return None


def as_attr_value(value, attr_type, name):
    return tfi.op_def_library.value_to_attr_value(value, attr_type, name)


def function_name(function):
    """The name under which a ConcreteFunction is called."""
    name = function.name
    return name.decode() if type(name) is bytes else name


def add_function(fdef):
    tfi.context.context().add_function_def(fdef)


def remove_function(name):
    tfi.context.context().remove_function(name)


def run_cancelable(op, inputs, attrs, n_outputs, manager):
    """Run one operation eagerly on the calling thread so that cancelling `manager` frees it."""
    return _execute_cancelable(tfi.context.context()._handle, "", op, inputs, attrs, manager._impl, n_outputs)


def instantiate(name, args, attrs, n_outputs):
    """Make the runtime build function `name` without running it: dispatch it with a manager that is already cancelled."""
    manager = tfi.cancellation.CancellationManager()
    manager.start_cancel()
    try:
        _execute_cancelable(tfi.context.context()._handle, "", name, args, attrs, manager._impl, n_outputs)
    except tfi.NotOkStatusException as status:
        error = tfi.status_to_exception(status)
        if not isinstance(error, tfi.tf.errors.CancelledError):
            raise error from None
    except tfi.tf.errors.CancelledError:
        pass


def execute_function(name, inputs, n_outputs, n_recorded=0):
    """Call the function that the runtime knows by this name as an operation of eager execution.

    Gradient tapes are told of an operation of this type with its first `n_recorded` outputs. The others are told as further inputs of it: its
    gradient gets them so.
    """
    outputs = tfi.eager_execute.execute(name, n_outputs, inputs, (), tfi.context.context())
    if n_recorded and tfi.eager_execute.must_record_gradient():
        tfi.eager_execute.record_gradient(name, inputs + outputs[n_recorded:], (), outputs[:n_recorded])
    return outputs


def execute_graph(name, inputs, n_outputs):
    """Call the function that the runtime knows by this name as a step's graph is called: grappler keeps off. No tape is told."""
    attrs = ("executor_type", "", "config_proto", call_config(False))
    return tfi.eager_execute.quick_execute(name, n_outputs, inputs, attrs, tfi.context.context())


@contextlib.contextmanager
def tracing_for_xla():
    """A context manager in which TensorFlow traces for XLA: lists that loops fill have a greatest length, and what decides on shapes is not handed on
    from loop to loop."""
    xla = tfi.control_flow_ops.XLAControlFlowContext()
    xla.Enter()
    try:
        yield
    finally:
        xla.Exit()


def forward_and_backward(concrete):
    """Makes the functions that TensorFlow differentiates a concrete function by.

    Returns (name of a function that gives also what the gradient needs, the number of its outputs, name of the function for the gradient, how many
    gradients of outputs that takes, after which come outputs of the first: the places of those, for each input the place of its gradient among the
    results or None).
    """
    forward, backward = concrete._delayed_rewrite_functions.forward_backward()
    given = concrete.graph.outputs  # with what the gradient needs
    places = {id(t): k for k, t in enumerate(given)}
    kept = [places[id(t)] for t in backward.captured_inputs]
    gradients, found = [], 0
    for x in backward.structured_outputs:
        gradients.append(None if x is None else found)
        found += x is not None
    name = forward.name.decode() if isinstance(forward.name, bytes) else forward.name
    return name, len(given), backward.function_def.signature.name, len(backward.inputs) - len(kept), kept, gradients


def graph_of_function(fdef):
    """A `tf.Graph` of the FunctionDef `fdef`, for TensorBoard and for people."""
    return tfi.function_def_to_graph.function_def_to_graph(fdef)


def call_config(optimize):
    """Serialized ConfigProto for a call of a graph function. Without `optimize`, grappler keeps off: the results are bitwise those of eager."""
    config = tfi.config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    return config.SerializeToString()


@functools.lru_cache(maxsize=8)
def has_grappler(config):
    """Returns whether grappler rewrites a function that is called with this serialized ConfigProto."""
    return not tfi.config_pb2.ConfigProto.FromString(config or b"").graph_options.rewrite_options.disable_meta_optimizer


class Executors:
    """TensorFlow's asynchronous eager executor, and the raw switch between it and the calling thread's own.

    The context's `executor` property wraps the current executor in an object whose deletion waits for it, so handles are read once.
    """

    def __init__(self):
        self._context = tfi.ctx()
        self.context_handle = self._context._handle
        self._executor = tfi.executor.new_executor(enable_async=True)
        # A thread of its own has no executor but the context's. The calling thread's may be that of a scope which goes away (tf.data's iterators enter one).
        found = []
        asking = threading.Thread(target=lambda: found.append(self._context.executor), name="terra-executor")
        asking.start()
        asking.join()
        self._default = found[0]
        self._async_handle = self._executor.handle()
        self._default_handle = self._default.handle()

    def run(self, name, args, attrs, n_outputs, manager):
        """Run function `name` on the calling thread; returns its outputs' handles when it is done."""
        return _execute_cancelable(self.context_handle, "", name, args, attrs, manager._impl, n_outputs)

    def dispatch(self, name, args, attrs, n_outputs, manager):
        """Start function `name` asynchronously; returns its outputs' handles at once."""
        handle = self.context_handle
        _set_executor_for_thread(handle, self._async_handle)
        try:
            return _execute_cancelable(handle, "", name, args, attrs, manager._impl, n_outputs)
        finally:
            _set_executor_for_thread(handle, self._default_handle)

    def stamp(self):
        """Lets the executor note the time when all is done that was dispatched; returns a tensor that will have it, as `time.time` counts."""
        handle = self.context_handle
        _set_executor_for_thread(handle, self._async_handle)
        try:
            return tfi.execute(handle, "", "Timestamp", [], (), 1)[0]
        finally:
            _set_executor_for_thread(handle, self._default_handle)

    def wait(self):
        """Wait for everything dispatched; returns the error it ended with, or None, and leaves the executor usable."""
        try:
            self._executor.wait()
            return None
        except Exception as error:  # any tf.errors class: the caller decides what it means
            self._executor.clear_error()
            error.__context__ = None  # tracebacks would keep the frames of whoever waits, and those the error
            return error.with_traceback(None)
