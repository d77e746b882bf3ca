"""Behaviours of TensorFlow that Terra relies on beside names, each as a function that tries it.

A docstring says what must be so, as the end of a sentence that begins with "Terra relies on". A function returns whether it
is so; one that raises counts as not so. They run a few operations.
"""

import contextlib
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

_seeds = itertools.count(76543)
CHECKS: list[Callable[[], bool]] = []


def failing() -> list[str]:
    """Lists the behaviours that are not as Terra needs them: what must be so, and the error if there was one."""
    found = []
    for check in CHECKS:
        said = " ".join((check.__doc__ or "").split()).rstrip(".")
        try:
            if not check():
                found.append(said)
        except Exception as error:  # a check may meet anything in a version that nobody has tried: that is a finding
            found.append(f"{said} (the check raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
    return found


def _check(function: Callable[[], bool]) -> Callable[[], bool]:
    CHECKS.append(function)
    return function


def _module(path: str) -> Any:
    return importlib.import_module(path)


@contextlib.contextmanager
def _in_place_of(module: Any, name: str, other: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, original)


@_check
def looks_up_entry_points() -> bool:
    """generated wrappers that look `TFE_Py_FastPathExecute` up in `pywrap_tfe` at each call."""
    tf, entries = _module("tensorflow"), _module("tensorflow.python.pywrap_tfe")
    original, seen = entries.TFE_Py_FastPathExecute, []

    def noting(*words: Any) -> Any:
        seen.append(words[1])
        return original(*words)

    x = tf.constant([1.0, 2.0])
    with _in_place_of(entries, "TFE_Py_FastPathExecute", noting):
        result = tf.raw_ops.AddV2(x=x, y=x)
    return seen == ["AddV2"] and result.numpy().tolist() == [2.0, 4.0]


@_check
def converts_after_a_fallback() -> bool:
    """`_FallbackException`, which sends a wrapper to `TFE_Py_Execute` with tensors as its inputs."""
    tf, entries, core = _module("tensorflow"), _module("tensorflow.python.pywrap_tfe"), _module("tensorflow.python.eager.core")
    original, seen = entries.TFE_Py_Execute, []

    def refusing(*words: Any) -> Any:
        raise core._FallbackException("by the slow path")

    def noting(handle: Any, device: Any, op: str, inputs: Any, *rest: Any) -> Any:
        seen.append((op.decode() if isinstance(op, bytes) else op, [isinstance(x, tf.Tensor) for x in inputs]))
        return original(handle, device, op, inputs, *rest)

    x = tf.constant(1.0)
    with _in_place_of(entries, "TFE_Py_FastPathExecute", refusing), _in_place_of(entries, "TFE_Py_Execute", noting):
        tf.raw_ops.AddV2(x=x, y=2.0)
    return ("AddV2", [True, True]) in seen


@_check
def asks_tapes_by_name() -> bool:
    """gradient tapes that begin by `TFE_Py_TapeSetNew`, looked up in `pywrap_tfe` at each block."""
    tf, entries = _module("tensorflow"), _module("tensorflow.python.pywrap_tfe")
    original, seen = entries.TFE_Py_TapeSetNew, []

    def noting(*words: Any) -> Any:
        seen.append(words)
        return original(*words)

    with _in_place_of(entries, "TFE_Py_TapeSetNew", noting), tf.GradientTape():
        pass
    return len(seen) == 1


@_check
def draws_as_stateless_operations() -> bool:
    """stateful random operations that draw what stateless ones draw from the key and counter of their seeds (Philox)."""
    tf = _module("tensorflow")
    seed = next(_seeds)  # another one for each check: an operation with the same seeds goes on where it has ended
    drawn = tf.raw_ops.RandomUniform(shape=[5, 7], dtype=tf.float32, seed=3, seed2=seed)
    key, counter = tf.constant([3], tf.uint64), tf.constant([0, seed], tf.uint64)
    return bool(tf.reduce_all(drawn == tf.raw_ops.StatelessRandomUniformV2(shape=[5, 7], key=key, counter=counter, alg=1, dtype=tf.float32)))


@_check
def tells_devices_and_modes() -> bool:
    """the eager context, which keeps the device and the mode of a thread in `_thread_local_data`."""
    tf, context = _module("tensorflow"), _module("tensorflow.python.eager.context")
    context.ensure_initialized()
    data = context._context._thread_local_data
    before = data.device_name
    with tf.device("CPU:0"):
        inside = data.device_name
    with tf.Graph().as_default():
        is_eager = data.is_eager
    return inside != before and "CPU:0" in inside and data.device_name == before and data.is_eager and not is_eager


@_check
def runs_functions_asynchronously() -> bool:
    """functions that are registered by `add_function_def` and run by an asynchronous executor, which a manager cancels."""
    tf, context = _module("tensorflow"), _module("tensorflow.python.eager.context")
    entries, executors = _module("tensorflow.python.pywrap_tfe"), _module("tensorflow.python.eager.executor")
    manager = _module("tensorflow.python.eager.cancellation").CancellationManager()
    waits = tf.queue.FIFOQueue(1, [tf.float32])

    @tf.function
    def waiting(queue: Any) -> Any:
        return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])[0]

    definition = type(waiting.get_concrete_function(waits.queue_ref).function_def)()
    definition.CopyFrom(waiting.get_concrete_function(waits.queue_ref).function_def)
    definition.signature.name = "terra_checks_a_function"
    c = context.context()
    c.add_function_def(definition)
    executor = executors.new_executor(enable_async=True)
    with context.executor_scope(executor):
        (result,) = entries.TFE_Py_ExecuteCancelable(c._handle, "", definition.signature.name, [waits.queue_ref], (), manager._impl, 1)
    threading.Timer(0.05, manager.start_cancel).start()
    try:
        result.numpy()
    except tf.errors.CancelledError:
        with contextlib.suppress(tf.errors.CancelledError):
            executor.wait()
        executor.clear_error()
        return True
    return False


@_check
def takes_derived_tensors() -> bool:
    """classes that derive from `tf.Tensor` without being eager tensors, on which Python may compute shapes."""
    tf = _module("tensorflow")

    class Derived(tf.Tensor):
        def __init__(self) -> None:
            self.known = tf.TensorShape([2, None])

        @property
        def shape(self) -> Any:
            return self.known

        @property
        def dtype(self) -> Any:
            return tf.float32

    made = Derived()
    return isinstance(made, tf.Tensor) and made.shape.rank == 2 and not hasattr(made, "_numpy_internal")
