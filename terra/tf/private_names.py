"""The one room for TensorFlow's private names.

Everything here was tried on TensorFlow 2.21 (Python 3.11); the names exist under the same paths from 2.16 on. Each group says why it is
needed. A name that is missing raises `UnsupportedTensorFlowError` at import, with the versions that are supported; `support` finds the names in this file.
"""

import contextlib
import functools
import inspect
import itertools
import os
import threading
import types

from terra import errors
from terra.tf.support.versions import FRAMEWORKS, SUPPORTED, require_installed  # noqa: F401  (what others ask of this module)

require_installed()

try:
    import tensorflow as tf

    # The C entry points that every eager operation goes through, looked up by the generated wrappers as attributes of this module.
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.autograph.core import config as autograph
    from tensorflow.python.autograph.impl import api as autograph_api
    from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2, types_pb2  # noqa: F401  (protos of a graph function)
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import backprop as _backprop
    from tensorflow.python.eager import cancellation, context, executor
    from tensorflow.python.eager import execute as eager_execute
    from tensorflow.python.eager.polymorphic_function import eager_function_run  # holds what tf.config.run_functions_eagerly sets
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction, UnliftedInitializerVariable  # what tf.function gives, and makes
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset as VariantDataset  # a dataset of which nothing but a variant tensor is known
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # its `_next_internal` takes an element
    from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper  # what a dataset holds its functions in
    from tensorflow.python.distribute import distribute_lib, mirrored_run  # the latter's `_call_for_each_replica` is what `strategy.run` comes to
    from tensorflow.python.distribute.coordinator.cluster_coordinator import ClusterCoordinator
    from tensorflow.python.distribute.mirrored_run import _MirroredReplicaThread as _ReplicaThread  # on which a MirroredStrategy runs a replica
    from tensorflow.python.training.coordinator import LooperThread
    from tensorflow.python.eager import core as eager_core
    from tensorflow.python.framework import dtypes, op_def_library, op_def_registry, ops, tensor_shape
    from tensorflow.python.framework import constant_op as _constant_op, extension_type as extension_types, function_def_to_graph, kernels, tensor_util
    from tensorflow.python.ops import array_ops, control_flow_ops, handle_data_util, nn_ops, resource_variable_ops
    from tensorflow.python.ops import while_loop as while_loop_module
    from tensorflow.python.ops.custom_gradient import Bind as _Bind
    from tensorflow.python.ops.ragged.row_partition import RowPartition
    from tensorflow.python.ops.summary_ops_v2 import SummaryWriter, _summary_state as summary_state  # which writer of summaries is the default one, and what is recorded
    from tensorflow.python.ops.script_ops import EagerFunc  # what runs the Python function of a `tf.py_function`
    from tensorflow.python.profiler import trace as _profiler  # `Trace`: a span for the profiler; `enabled`: whether that is at work, which C++ sets in older versions
    from tensorflow.python.util import dispatch, _pywrap_util_port as pywrap_util_port
    from tensorflow.python.util._pywrap_determinism import is_enabled as is_deterministic  # what tf.config.experimental.enable_op_determinism sets
    from tensorflow.python.ops.variables import VariableMetaclass
    from tensorflow.python.trackable.data_structures import ListWrapper, _TupleWrapper as TupleWrapper  # what a list, or tuple, becomes that is an attribute of a `tf.Module`

    EagerTensor = ops.EagerTensor  # the class that placeholders stand in for
    SymbolicTensor = ops.SymbolicTensor
    ResourceVariable = resource_variable_ops.ResourceVariable  # what tf.Variable(...) gives
    RESOURCE_VARIABLES = frozenset([ResourceVariable, UnliftedInitializerVariable])
    BaseResourceVariable = resource_variable_ops.BaseResourceVariable
    UnreadVariable = resource_variable_ops._UnreadVariable  # what `variable.assign(...)` gives: the variable, to be read when somebody looks
    DeviceScope = context._EagerDeviceContext  # what tf.device gives
    NullContext = ops.NullContextmanager  # what tf.control_dependencies gives
    EagerTensorBase = ops._EagerTensorBase  # its Python half: all of a tensor's methods in terms of a few primitives
    FallbackException = eager_core._FallbackException  # sends a generated wrapper down its converting path
    NotOkStatusException = eager_core._NotOkStatusException  # what the C entry points raise for a bad status
    OpError = tf.errors.OpError  # what they raise through some bindings
    status_to_exception = eager_core._status_to_exception  # turns it into tf.errors.*

    # Recording on the gradient tapes: the hook runs operations unrecorded and records them itself, so that tapes hold Terra's tensors.
    record_gradient = pywrap_tfe.TFE_Py_RecordGradient
    tape_set_is_empty = pywrap_tfe.TFE_Py_TapeSetIsEmpty
    tape_stop = pywrap_tfe.TFE_Py_TapeSetStopOnThread
    tape_restart = pywrap_tfe.TFE_Py_TapeSetRestartOnThread
    tape_is_stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped
    new_uid = pywrap_tfe.TFE_Py_UID

    # The original entry points, kept before anything can replace them.
    fast_execute = pywrap_tfe.TFE_Py_FastPathExecute
    execute = pywrap_tfe.TFE_Py_Execute
    execute_cancelable = pywrap_tfe.TFE_Py_ExecuteCancelable
    tensor_shape_slice = pywrap_tfe.TFE_Py_TensorShapeSlice  # used by gradients of concat; takes nothing but EagerTensors

    # What begins, ends and asks gradient tapes: during co-execution tapes are recorded lazily.
    tape_originals = {name: getattr(pywrap_tfe, name) for name in (
        "TFE_Py_TapeSetNew", "TFE_Py_TapeSetAdd", "TFE_Py_TapeSetRemove", "TFE_Py_TapeWatch", "TFE_Py_TapeWatchVariable",
        "TFE_Py_TapeSetShouldRecordBackprop", "TFE_Py_TapeSetPossibleGradientTypes", "TFE_Py_TapeSetRecordOperation",
        "TFE_Py_TapeSetRecordOperationBackprop", "TFE_Py_TapeSetRecordOperationForwardprop", "TFE_Py_TapeGradient",
        "TFE_Py_RecordGradient", "TFE_Py_TapeVariableAccessed", "TFE_Py_ForwardAccumulatorSetAdd", "TFE_Py_ForwardAccumulatorWatch")}
    tape_gradient_method = tf.GradientTape.gradient
    gradient_function = _backprop._gradient_function  # what tapes call for the gradient of one operation
    aggregate_gradients = _backprop._aggregate_grads  # the sum of several gradients of one tensor, as tapes make it
    tensor_getitem = tf.Tensor.__getitem__
    variable_accessed = pywrap_tfe.TFE_Py_TapeVariableAccessed
    watcher_variable_accessed = pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed  # custom gradients look for the variables of their functions with it

    set_executor_for_thread = pywrap_tfe.TFE_ContextSetExecutorForThread
    _executor_of_thread, _executor_is_async = pywrap_tfe.TFE_ContextGetExecutorForThread, pywrap_tfe.TFE_ExecutorIsAsync
    _delete_executor = pywrap_tfe.TFE_DeleteExecutor
    INTERN_DTYPES = dtypes._INTERN_TABLE  # dtype enum -> DType, the table that EagerTensor.dtype itself uses
    get_name_scope = ops.get_name_scope
    next_tensor_id = ops.uid  # takes one of the numbers that TensorFlow gives eager tensors, in order
    ConfigProto = config_pb2.ConfigProto
    ProfilerTrace, is_profiling = _profiler.Trace, _profiler.enabled if callable(_profiler.enabled) else lambda: _profiler.enabled
except (ImportError, AttributeError) as missing:
    raise errors.UnsupportedTensorFlowError(
        f"Terra needs {SUPPORTED}, and this TensorFlow lacks a name it builds on ({missing}); install a supported version, and see `python -m terra doctor`."
    ) from missing


def xla_ops():
    """Returns the module that knows XLA's kernels; None in a build without XLA. (The first import registers them, which takes a while.)"""
    try:
        from tensorflow.python.util import pywrap_xla_ops
    except ImportError:
        return None
    return pywrap_xla_ops


def in_replica():
    """Returns whether this is a thread on which a MirroredStrategy runs a replica: it waits for the main thread in the middle, which goes on with what the replica computed."""
    return isinstance(threading.current_thread(), _ReplicaThread)


def ctx():
    """The eager context, initialised."""
    c = context.context()
    c.ensure_initialized()
    return c


def has_started():
    """Returns whether TensorFlow has made its threads: a process that is forked before has its own."""
    return context.context()._context_handle is not None


def context_handle():
    """Returns the handle that the C entry points take as their context."""
    return context.context()._context_handle or ctx()._context_handle  # a step may be the first to use it


def device_name():
    """The device that `tf.device` asks for on this thread, or None."""
    c = context._context
    return None if c is None else c._thread_local_data.device_name


def executing_eagerly():
    """Returns whether operations of this thread run eagerly, not into a graph that is being built."""
    c = context._context
    return c is None or c._thread_local_data.is_eager


# Another number whenever a thread may have entered, or left, a device scope or a graph. `device_name` and `executing_eagerly` take 0.2 us, more than all else
# that a skipped operation looks at; what they have said holds on a thread until this number changes. No number comes twice.
context_changes = [0]
executor_changes = [0]  # the same of the executor of a thread
_next_change = itertools.count(1).__next__


def _changing(function, number):
    @functools.wraps(function)
    def changes(*args):
        try:
            return function(*args)
        finally:
            number[0] = _next_change()

    return changes


def _note_changes():
    original = context.Context._mode

    @contextlib.contextmanager
    @functools.wraps(original)
    def _mode(self, mode):
        try:
            with original(self, mode):
                context_changes[0] = _next_change()
                yield
        finally:
            context_changes[0] = _next_change()

    context.Context._mode = _mode
    context.Context._set_device = _changing(context.Context._set_device, context_changes)
    for name in "_push_per_thread_mode", "_pop_per_thread_mode":  # a strategy's scope is entered, or left
        setattr(distribute_lib, name, _changing(getattr(distribute_lib, name), context_changes))
    pywrap_tfe.TFE_ContextSetExecutorForThread = _changing(pywrap_tfe.TFE_ContextSetExecutorForThread, executor_changes)


active_watchers = {}  # what looks for the variables that are used: custom gradients make such things


def _note_watchers():
    begin, end = pywrap_tfe.TFE_Py_VariableWatcherNew, pywrap_tfe.TFE_Py_VariableWatcherRemove

    def TFE_Py_VariableWatcherNew():
        watcher = begin()
        active_watchers[id(watcher)] = watcher
        return watcher

    def TFE_Py_VariableWatcherRemove(watcher):
        active_watchers.pop(id(watcher), None)
        end(watcher)

    pywrap_tfe.TFE_Py_VariableWatcherNew, pywrap_tfe.TFE_Py_VariableWatcherRemove = TFE_Py_VariableWatcherNew, TFE_Py_VariableWatcherRemove


_note_changes()
_note_watchers()


def flush_zeros_cache():
    """Forget cached zero tensors, so that each step asks for them again, in tracing and in the skeleton alike."""
    c = context.context()
    c.zeros_cache().flush()


def global_seed():
    """Returns the seed that `tf.random.set_seed` has set, or None."""
    return context.global_seed()


def draw_seed():
    """The seed that the next random operation without a seed of its own would get."""
    return context.internal_operation_seed()


def seed_state():
    """From where `draw_seed` goes on: for `set_seed_state`; None if no seed was set, so that none is drawn."""
    return context.context()._rng.getstate() if context.global_seed() is not None else None


def set_seed_state(state):
    """Goes back to the state that `seed_state` gave: the seeds that were drawn since are drawn again."""
    context.context()._rng.setstate(state)


_noted_seeds = None


def fresh_seeds():
    """Two seeds, neither 0, for a random operation where none was set anywhere; the second counts as drawn."""
    seeds = tuple(int.from_bytes(os.urandom(7), "little") + 1 for _ in range(2))
    if _noted_seeds is not None:
        _noted_seeds.add(seeds[1])
    return seeds


def note_drawn_seeds(noted):
    """Add each op seed that TensorFlow draws from now on to the set `noted`; None ends that."""
    global _noted_seeds
    _noted_seeds = noted
    c = context.context()
    if noted is None:
        vars(c).pop("_internal_operation_seed", None)
        return
    draw = type(c)._internal_operation_seed

    def drawing():
        seed = draw(c)
        noted.add(seed)
        return seed

    c._internal_operation_seed = drawing


def slices_like_numpy():
    """Returns whether indexing follows numpy's rules, not TensorFlow's."""
    return ops._numpy_style_slicing


def is_of_variable(handle):
    """Returns whether an eager handle is a variable's, of which it knows the dtype and shape; those of tables, queues and iterators are not."""
    data = handle._handle_data
    return data is not None and data.is_set


def is_initialized(handle):
    """Returns whether the variable behind an eager handle has a value."""
    return bool(execute(context_handle(), handle.device, "VarIsInitializedOp", [handle], (), 1)[0]._numpy_internal())


def eager_constant(value, dtype):
    """An eager tensor of a Python value, whatever graph is being built."""
    return _constant_op.convert_to_eager_tensor(value, ctx(), dtype)


def promotes():
    """Returns whether operands of different types are brought to one, as `experimental_enable_numpy_behavior` wants it."""
    return ops.is_auto_dtype_conversion_enabled() or ops.is_numpy_style_type_promotion()


def callbacks():
    """Returns the functions that look at each operation of the calling thread, as `tf.debugging.enable_check_numerics` does: always the same list."""
    return context.context().op_callbacks


def has_callbacks():
    """Returns whether there is such a thing."""
    return bool(callbacks())


def executes_asynchronously():
    """Returns whether eager operations of the calling thread run on an asynchronous executor of the user's."""
    handle = _executor_of_thread(context_handle())
    try:
        return _executor_is_async(handle)
    finally:
        _delete_executor(handle)


def new_cancellation_manager():
    return cancellation.CancellationManager()


# What the framework's own functions, and operators, call by name.
MODULES_OF_OPERATIONS = tuple(f"tensorflow.python.ops.{name}" for name in (
    "gen_array_ops", "gen_math_ops", "gen_nn_ops", "gen_random_ops", "gen_stateless_random_ops_v2", "array_ops", "math_ops", "nn_ops", "nn_impl", "random_ops"))
_look_up = object.__getattribute__


def is_variable(x):
    """Returns whether `x` is a variable of TensorFlow or of Keras 3."""
    if issubclass(type(x), tf.Variable):
        return True
    try:
        held = _look_up(x, "__dict__")  # as no code of the user's does
    except (AttributeError, TypeError):  # TypeError: `is_to_be_used` its class
        return False
    return type(held) is dict and issubclass(type(held.get("_value")), tf.Variable)


_decorated = tf.custom_gradient(lambda: None)._d.__code__


def has_custom_gradient(x):
    """The function that `tf.custom_gradient` has made `x` of; None if it is none of those."""
    return x._f if type(x) is _Bind and x._d.__code__ is _decorated else None


def set_custom_gradient(x, function):
    """Puts `function` in the place of the one that `x` was made of, by `tf.custom_gradient`."""
    x._f = function


def with_custom_gradient(x, function, *args, **kwargs):
    """Call `x`, which `tf.custom_gradient` has made, but with `function` in the place of the one that it was made of."""
    return x._d(function, args, kwargs)


_recomputing = next(code for code in inspect.unwrap(tf.recompute_grad).__code__.co_consts if getattr(code, "co_name", None) == "inner")


def recomputed(function):
    """The program's function that `function`, which `tf.recompute_grad` has made, calls now, and again for the gradient; None if it is another one."""
    return inspect.getclosurevars(function).nonlocals["f"] if function.__code__ is _recomputing else None


def recomputing(function, other):
    """Makes what `tf.recompute_grad` would have made of the function `other`."""
    cells = [types.CellType(other) if name == "f" else cell for name, cell in zip(function.__code__.co_freevars, function.__closure__)]
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))


def is_to_be_used(kind):
    """Returns whether this is the class of what TensorFlow puts round a result to tell whether it is used."""
    return kind.__name__ == "ShouldUseWrapper"


def is_used(x):
    """Returns whether such an object was used."""
    return x._tf_should_use_helper._sated
