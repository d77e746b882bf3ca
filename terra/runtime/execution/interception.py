"""The hooks: one flat dispatch from TensorFlow's entry points to the running step.

The hooks are in place while a step runs, and while one is in flight; otherwise TensorFlow's own functions are. Operations of other threads, and those
that run outside a step, go straight on, except that one which may touch a variable first waits for the steps in flight: TensorFlow itself does not order
them. It need not if it uses nothing that they use (see `terra.tf.iterators`).
"""

import contextlib
import threading
from threading import get_ident

from terra import errors
from terra.location import current_step
from terra.runtime.execution import slicing
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.tapes import lazy_tape
from terra.runtime.tensors.tensor import TerraTensor, shape_slice
from terra.tf import private_names as tfi
from terra.tf import iterators, opschema
from terra.tf.private import replacements

EagerTensor = tfi.EagerTensor
RESOURCE_ENUM = tfi.types_pb2.DT_RESOURCE

LONGEST_WAIT = 1.0  # seconds that a step waits for one of another thread, which perhaps waits for it
_internal = set()  # idents of threads that work for Terra itself


def _fast(ctx, op, name, *args):
    step = current_step.active
    if step is not None and step.thread == get_ident():
        if not step.paused:
            return step.mode.fast(ctx, op, name, *args)
        if _may_use_variables(op, args):
            step.before_outside_access(op, args)
    elif (GRAPH_RUNNER.flights or GRAPH_RUNNER.has_left_over or (step is not None and step.open_ended)) and _may_use_variables(op, args):
        _before_outside(op, args, True)
    return tfi.fast_execute(ctx, op, name, *args)


def _slow(handle, device, op, inputs, attrs, n_outputs):
    return _execute(tfi.execute, handle, device, op, inputs, attrs, n_outputs)


def _cancelable(handle, device, op, inputs, attrs, manager, n_outputs):
    return _execute(tfi.execute_cancelable, handle, device, op, inputs, attrs, manager, n_outputs)


def _execute(execute, handle, device, op, inputs, attrs, *rest):
    step = current_step.active
    if step is not None and step.thread == get_ident():
        if not step.paused:
            return step.mode.slow(execute, handle, device, op, inputs, attrs, *rest)
        if _may_use_variables(op, inputs):
            step.before_outside_access(op, inputs)
    elif (GRAPH_RUNNER.flights or GRAPH_RUNNER.has_left_over or (step is not None and step.open_ended)) and _may_use_variables(op, inputs):
        _before_outside(op.decode() if type(op) is bytes else op, inputs, False)
    return execute(handle, device, op, inputs, attrs, *rest)


def leave_all_alone():
    """Let no step begin from now on: this is a forked process. Locks that other threads of the parent's may have held are made anew."""
    global _hooks_lock
    current_step.leave_all_alone()
    _hooks_lock = threading.RLock()


def _may_use_variables(op, values):
    """Returns whether an operation may use variables."""
    if touches_variables(values):
        return True
    schema = opschema.get_schema(op.decode() if type(op) is bytes else op)
    return schema is not None and schema.hides_variables


def touches_variables(values):
    """Returns whether one of these inputs is, or may hold, a variable."""
    for x in values:
        t = type(x)
        if t is EagerTensor:
            if x._datatype_enum() == RESOURCE_ENUM:
                return True
        elif t is list or t is tuple:
            if touches_variables(x):
                return True
        elif t is not TerraTensor and hasattr(x, "handle"):
            return True
    return False


def _before_outside(op, values, fast):
    """An operation outside of any step is given a resource: wait for the steps in flight, unless it cannot meet them."""
    if get_ident() in _internal:
        return
    end_open_step()
    if GRAPH_RUNNER.flights:
        if fast:
            schema = opschema.get_schema(op)
            values = schema.flatten(values[:schema.n_inputs])
        if not iterators.must_wait(op, values, GRAPH_RUNNER.flights):
            return
    GRAPH_RUNNER.sync()


def end_open_step():
    """End the step of a `terra.GradientTape` whose block is done, but which is still open for what may follow."""
    step = current_step.active
    if step is not None and step.open_ended:
        step.close()


_hooks_lock = threading.RLock()  # a signal handler may run a step, or wait for one, while it is held
gradient_hook = tfi.gradient_function  # what tapes call for the gradient of one operation: set by fast-forward
_getitem = slicing.getitem(tfi.tensor_getitem)


def install():
    """Put the hooks in place; `current_step.active` is set before, so that no other thread removes them."""
    with _hooks_lock:
        if not replacements.hooks_installed():
            replacements.install_hooks(_fast, _slow, _cancelable, shape_slice, lazy_tape.HOOKS, gradient_hook, _getitem)


def remove_if_idle():
    """Put TensorFlow's own entry points back if no step runs and none is in flight."""
    with _hooks_lock:
        if current_step.active is None and not GRAPH_RUNNER.flights and not GRAPH_RUNNER.swallowed.pending:
            replacements.remove_hooks()
            if current_step.active is not None or GRAPH_RUNNER.flights:  # a signal handler has begun a step meanwhile
                install()


GRAPH_RUNNER.on_idle = remove_if_idle


@contextlib.contextmanager
def internal_thread():
    """The calling thread works for Terra: its operations wait for nothing."""
    _internal.add(get_ident())
    try:
        yield
    finally:
        _internal.discard(get_ident())


class imperative(contextlib.ContextDecorator):
    """Plain eager execution inside a step: `with terra.imperative():`, or `@terra.imperative` on a function that is never traced."""

    def __new__(cls, function=None):
        made = super().__new__(cls)
        if function is None:
            return made
        if not callable(function):
            raise errors.DecorationError(f"terra.imperative takes a function, not {function!r}; the block of a with statement begins with `with terra.imperative():`.")
        return made(function)

    def __enter__(self):
        step = current_step.active
        self._steps = getattr(self, "_steps", [])
        if step is not None and step.thread == get_ident():
            lazy_tape.record_elsewhere()
            step.pause()
            self._steps.append(step)
        else:
            self._steps.append(None)
        return self

    def __exit__(self, *exc):
        step = self._steps.pop()
        if step is not None:
            step.resume()
        return False

    def _recreate_cm(self):
        return type(self)()
