"""The one room for TensorFlow's private names.

Everything here was tried on TensorFlow 2.21 (Python 3.11); the names exist under the same paths from 2.16 on. Each group says why it is
needed. A name that is missing raises `UnsupportedTensorFlowError` at import, with the versions that are supported.
"""

import contextlib
import functools
import inspect
import itertools
import os
import platform
import sys
import threading
import types

from terra import errors, ours

SUPPORTED = "TensorFlow 2.16 to 2.21"
FRAMEWORKS = frozenset(["keras", "tf_keras", "tensorflow"])  # the packages whose code is no user's

try:
    import tensorflow as tf

    # The C entry points that every eager operation goes through, looked up by the generated wrappers as attributes of this module.
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.autograph.core import config as _autograph
    from tensorflow.python.autograph.impl import api as _autograph_api
    from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2, types_pb2  # noqa: F401  (protos of a graph function)
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import backprop as _backprop
    from tensorflow.python.eager import cancellation, context, executor
    from tensorflow.python.eager import execute as _eager_execute
    from tensorflow.python.eager.polymorphic_function import eager_function_run  # holds what tf.config.run_functions_eagerly sets
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction  # what tf.function gives
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset  # a dataset of which nothing but a variant tensor is known
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # its `_next_internal` takes an element
    from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper  # what a dataset holds its functions in
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.distribute import mirrored_run as _mirrored_run  # its `_call_for_each_replica` is what `strategy.run` comes to
    from tensorflow.python.distribute.coordinator.cluster_coordinator import ClusterCoordinator as _ClusterCoordinator
    from tensorflow.python.distribute.mirrored_run import _MirroredReplicaThread as _ReplicaThread  # on which a MirroredStrategy runs a replica
    from tensorflow.python.training.coordinator import LooperThread as _LooperThread
    from tensorflow.python.eager import core as eager_core
    from tensorflow.python.framework import dtypes, op_def_library, op_def_registry, ops, tensor_shape
    from tensorflow.python.framework import tensor_util as _tensor_util
    from tensorflow.python.framework import constant_op as _constant_op
    from tensorflow.python.framework import kernels as _kernels
    from tensorflow.python.framework import function_def_to_graph as _function_def_to_graph
    from tensorflow.python.ops import handle_data_util as _handle_data_util
    from tensorflow.python.ops import array_ops as _array_ops
    from tensorflow.python.ops import control_flow_ops as _control_flow_ops
    from tensorflow.python.ops import nn_ops as _nn_ops
    from tensorflow.python.ops import resource_variable_ops
    from tensorflow.python.ops import while_loop as while_loop_module
    from tensorflow.python.ops.custom_gradient import Bind as _Bind
    from tensorflow.python.ops.ragged.row_partition import RowPartition as _RowPartition
    from tensorflow.python.ops.script_ops import EagerFunc as _EagerFunc  # what runs the Python function of a `tf.py_function`
    _convert_returned = _EagerFunc._convert
    from tensorflow.python.util import _pywrap_util_port
    from tensorflow.python.util._pywrap_determinism import is_enabled as is_deterministic  # what tf.config.experimental.enable_op_determinism sets

    from tensorflow.python.trackable.data_structures import ListWrapper  # what a list becomes that is an attribute of a `tf.Module`

    EagerTensor = ops.EagerTensor  # the class that placeholders stand in for
    SymbolicTensor = ops.SymbolicTensor
    ResourceVariable = resource_variable_ops.ResourceVariable  # what tf.Variable(...) gives
    BaseResourceVariable = resource_variable_ops.BaseResourceVariable
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
        "TFE_Py_RecordGradient", "TFE_Py_TapeVariableAccessed", "TFE_Py_ForwardAccumulatorSetAdd")}
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
except (ImportError, AttributeError) as missing:
    raise errors.UnsupportedTensorFlowError(
        f"Terra needs {SUPPORTED}, and this TensorFlow lacks a name it builds on ({missing}); install a supported version."
    ) from missing


def in_replica():
    """Whether this is a thread on which a MirroredStrategy runs a replica: it waits for the main thread in the middle, which goes on with what the replica computed."""
    return isinstance(threading.current_thread(), _ReplicaThread)


def ctx():
    """The eager context, initialised."""
    c = context.context()
    c.ensure_initialized()
    return c


def has_started():
    """Whether TensorFlow has made its threads: a process that is forked before has its own."""
    return context.context()._context_handle is not None


def context_handle():
    """What the C entry points take as their context."""
    return context.context()._context_handle or ctx()._context_handle  # a step may be the first to use it


def op_def(name):
    """The OpDef of `name`, or None if no such operation is registered."""
    return op_def_registry.get(name)


def function_def(name):
    """The FunctionDef registered in the eager context under `name`, or None."""
    c = context.context()
    try:
        return c.get_function_def(name)
    except (tf.errors.NotFoundError, ValueError, RuntimeError):
        return None


def as_attr_value(value, attr_type, name):
    return op_def_library.value_to_attr_value(value, attr_type, name)


def function_name(function):
    """The name under which a ConcreteFunction is called."""
    name = function.name
    return name.decode() if type(name) is bytes else name


def add_function(fdef):
    context.context().add_function_def(fdef)


def remove_function(name):
    context.context().remove_function(name)


def device_name():
    """The device that `tf.device` asks for on this thread, or None."""
    c = context._context
    return None if c is None else c._thread_local_data.device_name


def is_autographs(frame):
    """Whether a frame is that in which AutoGraph makes the calls of code that it has converted."""
    return frame.f_globals.get("__name__") == _autograph_api.__name__


def converted(function):
    """AutoGraph's form of a function of the user's, unless that is switched off here."""
    return tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())


# AutoGraph also converts what eager code calls (a function given to `tf.map_fn`, a loss of tf_keras), with all that it calls in turn: this package is none of it.
_autograph.CONVERSION_RULES = (_autograph.DoNotConvert(ours.PACKAGE), *_autograph.CONVERSION_RULES)


def executing_eagerly():
    """Whether operations of this thread run eagerly, not into a graph that is being built."""
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


def enter_name_scope(name):
    """Begin a name scope of eager operations; returns what `leave_name_scope` wants."""
    data = context._context._thread_local_data
    outer = data.scope_name
    data.scope_name = f"{outer or ''}{name}/"
    return outer


def leave_name_scope(outer):
    context._context._thread_local_data.scope_name = outer


def registered_gradient(op):
    """The function that computes the gradient of operation `op`; None if it has none, or none is known."""
    try:
        return ops.gradient_registry.lookup(op)
    except LookupError:
        return None


def is_not_differentiable(op):
    """Whether TensorFlow knows that no gradient flows through operation `op`."""
    try:
        return ops.gradient_registry.lookup(op) is None
    except LookupError:  # it would say that there is none, should one be asked for
        return False


def flush_zeros_cache():
    """Forget cached zero tensors, so that each step asks for them again, in tracing and in the skeleton alike."""
    c = context.context()
    c.zeros_cache().flush()


def global_seed():
    """What `tf.random.set_seed` has set, or None."""
    return context.global_seed()


def draw_seed():
    """The seed that the next random operation without a seed of its own would get."""
    return context.internal_operation_seed()


def seed_state():
    """From where `draw_seed` goes on: for `set_seed_state`; None if no seed was set, so that none is drawn."""
    return context.context()._rng.getstate() if context.global_seed() is not None else None


def set_seed_state(state):
    """Have the seeds drawn again that were drawn since `seed_state` gave this."""
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
    """Whether indexing follows numpy's rules, not TensorFlow's."""
    return ops._numpy_style_slicing


def eager_constant(value, dtype):
    """An eager tensor of a Python value, whatever graph is being built."""
    return _constant_op.convert_to_eager_tensor(value, ctx(), dtype)


def promotes():
    """Whether operands of different types are brought to one, as `experimental_enable_numpy_behavior` wants it."""
    return ops.is_auto_dtype_conversion_enabled() or ops.is_numpy_style_type_promotion()


def new_graph():
    """An empty graph that nothing will run: its shape functions are asked."""
    return ops.Graph()


def placeholder(dtype, shape):
    """A placeholder in the default graph; `shape` None means unknown."""
    return tf.compat.v1.placeholder(dtype, shape)


def handle_placeholder(handle):
    """A placeholder in the default graph for the variable behind `handle`, of which the shape functions know dtype and shape."""
    stand_in = tf.compat.v1.placeholder(dtypes.resource, ())
    _handle_data_util.copy_handle_data(handle, stand_in)
    return stand_in


def handle_identity(handle):
    """What the shape functions know of the variable behind `handle`."""
    data = handle._handle_data
    return None if data is None else data.SerializeToString()


def create_graph_op(graph, op_type, inputs, attr_protos):
    """Add an operation to `graph`, its inputs flat."""
    return graph._create_op_internal(op_type, inputs, attrs=attr_protos)


@functools.lru_cache(maxsize=None)
def has_one_device():
    """Whether there is a single device, the CPU. (Once the first step runs, that does not change.)"""
    return len(ctx().list_logical_devices()) == 1


def n_gpus():
    return ctx().num_gpus()


@functools.lru_cache(maxsize=None)
def has_onednn():
    """Whether graphs run oneDNN's kernels for x86 CPUs, which eager execution does not run for all operations."""
    return _pywrap_util_port.IsMklEnabled() and platform.machine() in ("x86_64", "AMD64") and not n_gpus()


def xla_kernel_types(op):
    """{type attribute: the types it may have} of XLA's kernel for `op`; None if there is none."""
    if op not in _xla_kernels():
        return None
    allowed = {}
    for kernel in _kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type == ("XLA_GPU_JIT" if n_gpus() else "XLA_CPU_JIT"):
            for constraint in kernel.constraint:
                allowed.setdefault(constraint.name, set()).update(constraint.allowed_values.list.type)
    return allowed


@functools.lru_cache(maxsize=None)
def _xla_kernels():
    """Names of the operations that XLA has kernels for; asking for them also registers them."""
    try:
        from tensorflow.python.util import pywrap_xla_ops
    except ImportError:  # a build without XLA
        return frozenset()
    return frozenset(pywrap_xla_ops.get_gpu_kernel_names() if n_gpus() else pywrap_xla_ops.get_cpu_kernel_names())


def graph_of_function(fdef):
    """A `tf.Graph` of the FunctionDef `fdef`, for TensorBoard and for people."""
    return _function_def_to_graph.function_def_to_graph(fdef)


def call_config(optimize):
    """Serialized ConfigProto for a call of a graph function. Without `optimize`, grappler keeps off: the results are bitwise those of eager."""
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
    return config.SerializeToString()


@functools.lru_cache(maxsize=8)
def has_grappler(config):
    """Whether grappler rewrites a function that is called with this serialized ConfigProto."""
    return not config_pb2.ConfigProto.FromString(config or b"").graph_options.rewrite_options.disable_meta_optimizer


def callbacks():
    """What looks at each operation of the calling thread, as `tf.debugging.enable_check_numerics` does: a list, always the same one."""
    return context.context().op_callbacks


def has_callbacks():
    """Whether there is such a thing."""
    return bool(callbacks())


def executes_asynchronously():
    """Whether eager operations of the calling thread run on an asynchronous executor of the user's."""
    handle = _executor_of_thread(context_handle())
    try:
        return _executor_is_async(handle)
    finally:
        _delete_executor(handle)


class Executors:
    """TensorFlow's asynchronous eager executor, and the raw switch between it and the calling thread's own.

    The context's `executor` property wraps the current executor in an object whose deletion waits for it, so handles are read once.
    """

    def __init__(self):
        self._context = ctx()
        self.context_handle = self._context._handle
        self._executor = executor.new_executor(enable_async=True)
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
        return execute_cancelable(self.context_handle, "", name, args, attrs, manager._impl, n_outputs)

    def dispatch(self, name, args, attrs, n_outputs, manager):
        """Start function `name` asynchronously; returns its outputs' handles at once."""
        handle = self.context_handle
        set_executor_for_thread(handle, self._async_handle)
        try:
            return execute_cancelable(handle, "", name, args, attrs, manager._impl, n_outputs)
        finally:
            set_executor_for_thread(handle, self._default_handle)

    def wait(self):
        """Wait for everything dispatched; returns the error it ended with, or None, and leaves the executor usable."""
        try:
            self._executor.wait()
            return None
        except Exception as error:  # any tf.errors class: the caller decides what it means
            self._executor.clear_error()
            error.__context__ = None  # tracebacks would keep the frames of whoever waits, and those the error
            return error.with_traceback(None)


def new_cancellation_manager():
    return cancellation.CancellationManager()


def run_cancelable(op, inputs, attrs, n_outputs, manager):
    """Run one operation eagerly on the calling thread so that cancelling `manager` frees it."""
    return execute_cancelable(context.context()._handle, "", op, inputs, attrs, manager._impl, n_outputs)


def instantiate(name, args, attrs, n_outputs):
    """Make the runtime build function `name` without running it: dispatch it with a manager that is already cancelled."""
    manager = cancellation.CancellationManager()
    manager.start_cancel()
    try:
        execute_cancelable(context.context()._handle, "", name, args, attrs, manager._impl, n_outputs)
    except NotOkStatusException as status:
        error = status_to_exception(status)
        if not isinstance(error, tf.errors.CancelledError):
            raise error from None
    except tf.errors.CancelledError:
        pass


_hook_lock = threading.RLock()  # a signal handler may come in between


# What the framework's own functions, and operators, call by name.
MODULES_OF_OPERATIONS = tuple(f"tensorflow.python.ops.{name}" for name in (
    "gen_array_ops", "gen_math_ops", "gen_nn_ops", "gen_random_ops", "gen_stateless_random_ops_v2", "array_ops", "math_ops", "nn_ops", "nn_impl", "random_ops"))
_look_up = object.__getattribute__


def is_variable(x):
    """Whether `x` is a variable of TensorFlow or of Keras 3."""
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
    """Have `x`, which `tf.custom_gradient` has made, be made of `function`."""
    x._f = function


def with_custom_gradient(x, function, *args, **kwargs):
    """Call `x`, which `tf.custom_gradient` has made, but with `function` in the place of the one that it was made of."""
    return x._d(function, args, kwargs)


_recomputing = next(code for code in inspect.unwrap(tf.recompute_grad).__code__.co_consts if getattr(code, "co_name", None) == "inner")


def recomputed(function):
    """The program's function that `function`, which `tf.recompute_grad` has made, calls now, and again for the gradient; None if it is another one."""
    return inspect.getclosurevars(function).nonlocals["f"] if function.__code__ is _recomputing else None


def recomputing(function, other):
    """What `tf.recompute_grad` would have made of the function `other`."""
    cells = [types.CellType(other) if name == "f" else cell for name, cell in zip(function.__code__.co_freevars, function.__closure__)]
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))


def is_to_be_used(kind):
    """Whether this is the class of what TensorFlow puts round a result to tell whether it is used."""
    return kind.__name__ == "ShouldUseWrapper"


def is_used(x):
    """Whether such an object was used."""
    return x._tf_should_use_helper._sated


def dataset_of_iterator(resource):
    """The dataset behind the iterator `resource`, which an operation on this thread is about to use; None if it is not found.

    The resource itself does not tell, but the `tf.data.Iterator` whose method calls the operation holds both.
    """
    frame = sys._getframe(1)
    for _ in range(_ITERATOR_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if isinstance(owner, tf.data.Iterator) and getattr(owner, "_iterator_resource", None) is resource:
            return getattr(owner, "_dataset", None)
        frame = frame.f_back
    return None


def give_next(iterator, give):
    """Have an iterator of `tf.data` give what `give()` gives (or raises) once, before its next element."""
    methods = {name: vars(iterator).get(name) for name in ("_next_internal", "get_next_as_optional")}

    def once():
        for name, method in methods.items():
            if method is None:
                delattr(iterator, name)
            else:
                setattr(iterator, name, method)
        return give()

    iterator._next_internal = once
    iterator.get_next_as_optional = lambda: tf.experimental.Optional.from_value(once())


_ITERATOR_FRAMES = 10  # between `dataset_of_iterator` and the iterator's method, with some to spare


def dataset_parts(dataset):
    """(datasets, functions, tensors) that `dataset` is directly made of; None if it may have others.

    tf.data's own classes keep them among their attributes.
    """
    if not isinstance(dataset, tf.data.Dataset) or isinstance(dataset, _VariantDataset) \
            or not type(dataset).__module__.startswith("tensorflow.python.data."):
        return None
    datasets, functions, tensors = list(dataset._inputs()), [f.function for f in dataset._functions()], []
    todo = [value for name, value in vars(dataset).items() if name != "_variant_tensor_attr"]
    while todo:
        value = todo.pop()
        if isinstance(value, tf.data.Dataset):
            datasets.append(value)
        elif isinstance(value, StructuredFunctionWrapper):
            functions.append(value.function)
        elif isinstance(value, tf.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
    return datasets, functions, tensors


def install_hooks(fast, slow, cancelable, shape_slice, tape_hooks, gradient_hook, getitem):
    """Replace the C entry points and indexing; `remove_hooks` puts back what costs anything outside of steps.

    Indexing stays ours, because each change of the class makes Python look up all that tensors have anew, and so do the sizes that gradients of
    concatenations ask for, because tensors of steps may be concatenated outside of any.
    """
    with _hook_lock:
        if tf.Tensor.__getitem__ is tensor_getitem:  # else somebody has replaced it
            tf.Tensor.__getitem__ = getitem
        for name, hook in tape_hooks.items():
            setattr(pywrap_tfe, name, hook)
        pywrap_tfe.TFE_Py_RegisterGradientFunction(gradient_hook)
        pywrap_tfe.TFE_Py_TensorShapeSlice = shape_slice
        pywrap_tfe.TFE_Py_FastPathExecute = fast
        pywrap_tfe.TFE_Py_Execute = slow
        pywrap_tfe.TFE_Py_ExecuteCancelable = cancelable


def remove_hooks():
    """Put the C entry points back: see `install_hooks`."""
    with _hook_lock:
        for name, original in tape_originals.items():
            setattr(pywrap_tfe, name, original)
        pywrap_tfe.TFE_Py_RegisterGradientFunction(gradient_function)
        pywrap_tfe.TFE_Py_FastPathExecute = fast_execute
        pywrap_tfe.TFE_Py_Execute = execute
        pywrap_tfe.TFE_Py_ExecuteCancelable = execute_cancelable


def convert_returned_tensors(convert):
    """Have what `tf.py_function`s return go through `convert`, after TensorFlow has made tensors of it: C++ code takes nothing but EagerTensors."""
    _EagerFunc._convert = lambda self, value, dtype: convert(_convert_returned(self, value, dtype))


def execute_function(name, inputs, n_outputs, n_recorded=0):
    """Call the function that the runtime knows by this name as an operation of eager execution.

    Gradient tapes are told of an operation of this type with its first `n_recorded` outputs. The others are told as further inputs of it: its gradient gets them so.
    """
    outputs = _eager_execute.execute(name, n_outputs, inputs, (), context.context())
    if n_recorded and _eager_execute.must_record_gradient():
        _eager_execute.record_gradient(name, inputs + outputs[n_recorded:], (), outputs[:n_recorded])
    return outputs


def execute_graph(name, inputs, n_outputs):
    """Call the function that the runtime knows by this name as a step's graph is called: grappler keeps off. No tape is told."""
    attrs = ("executor_type", "", "config_proto", call_config(False))
    return _eager_execute.quick_execute(name, n_outputs, inputs, attrs, context.context())


@contextlib.contextmanager
def tracing_for_xla():
    """What TensorFlow traces meanwhile is for XLA: lists that loops fill have a greatest length, and what decides on shapes is not handed on from loop to loop."""
    xla = _control_flow_ops.XLAControlFlowContext()
    xla.Enter()
    try:
        yield
    finally:
        xla.Exit()


def forward_and_backward(concrete):
    """What TensorFlow makes of a concrete function for its gradient.

    Returns (name of a function that gives also what the gradient needs, the number of its outputs, name of the function for the gradient, how many
    gradients of outputs that takes, after which come outputs of the first: the places of those, for each input the place of its gradient among the results or None).
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


def replace_while_loop(replace):
    """Put `replace(while_loop)` wherever TensorFlow's own code, or a program, finds the function that all its loops run through."""
    original = while_loop_module.while_loop
    replacement = replace(original)
    for module in (while_loop_module, tf.compat.v1, tf.compat.v1.compat.v1, tf.compat.v2.compat.v1):
        if module.while_loop is original:
            module.while_loop = replacement


def replace_map_fn(replace):
    """Put `replace(map_fn)` in the place of the function that `tf.map_fn` runs through."""
    replace_in("tensorflow.python.ops.map_fn", map_fn=replace)


def wrap_what_uses_threads(wrap):
    """Put `wrap(name, function)` in the place of each function of TensorFlow's that runs the program's Python on other threads, or waits for such threads."""
    _mirrored_run._call_for_each_replica = wrap("a distribution strategy", _mirrored_run._call_for_each_replica)
    for cls, name, methods in (
            (_ClusterCoordinator, "a cluster coordinator", ("schedule", "join", "fetch", "create_per_worker_dataset")),
            (tf.train.Coordinator, "a coordinator", ("join", "wait_for_stop")), (_LooperThread, "a looper thread", ("start",))):
        for method in methods:
            setattr(cls, method, wrap(name, getattr(cls, method)))


def replace_ones_like(replace):
    """Put `replace(ones_like)` in the place of the function that all of TensorFlow's `ones_like` run through."""
    replace_in("tensorflow.python.ops.array_ops", ones_like_impl=replace)


def replace_pfor(replace):
    """Put `replace(pfor)` in the place of the function that `tf.vectorized_map` runs through."""
    replace_in("tensorflow.python.ops.parallel_for.control_flow_ops", pfor=replace)


_PARTS = {tf.RaggedTensor: ("_values", "_row_partition"), tf.SparseTensor: ("_indices", "_values", "_dense_shape"),
          tf.IndexedSlices: ("_values", "_indices", "_dense_shape"), _RowPartition: ("_row_splits", "_row_lengths", "_value_rowids", "_nrows", "_uniform_row_length", "_nvals")}


def is_composite(kind):
    """Whether objects of this class are made of tensors, as `composite_parts` tells."""
    return kind in _PARTS


def composite_parts(x):
    """What a sparse or ragged tensor, or a gradient in slices, is made of: tensors, None, and further such objects; and for a sparse one its static shape."""
    parts = [getattr(x, name) for name in _PARTS[type(x)]]
    if type(x) is tf.SparseTensor:
        parts.append(x._dense_shape_default)
    return parts


def parts_of_any_number(composites):
    """The tensors in these, among which are all their parts, whose first size is no property of their shapes: how many values a sparse or ragged tensor has. Not its number of rows, which is that of a
    batch, but those in the rows of a row."""
    inner = {id(x._values._row_partition) for x in composites if type(x) is tf.RaggedTensor and type(x._values) is tf.RaggedTensor}
    found = []
    for x in composites:
        of_batch = type(x) is _RowPartition and id(x) not in inner
        found += [getattr(x, name) for name in (("_value_rowids",) if of_batch else _PARTS[type(x)])]
    return [x for x in found if x is not None and not is_composite(type(x))]


def composite(kind, parts):
    """The inverse of `composite_parts`; nothing is checked."""
    made = kind.__new__(kind)
    vars(made).update(zip(_PARTS[kind], parts))
    if kind is tf.SparseTensor:
        made._dense_shape_default = parts[-1]
    return made


_replaced = []  # the modules whose functions `replace_in` has replaced


def replace_in(module_name, **replacements):
    """Put `replacement(function)` in the place of functions of a module, once. May be called again: the module may be imported later."""
    module = sys.modules.get(module_name)
    if module is not None and module not in _replaced and all(hasattr(module, name) for name in replacements):
        _replaced.append(module)
        for name, replacement in replacements.items():
            setattr(module, name, replacement(getattr(module, name)))


def replace_readers(size, constant_value, noise_shape):
    """Put `size(size_internal)` and so on in the place of functions with which TensorFlow's own code asks an eager tensor for what a symbolic one may not know:
    how many elements it has, its value, and the shape that its value is."""
    _array_ops.size_internal = size(_array_ops.size_internal)
    _tensor_util.constant_value = constant_value(_tensor_util.constant_value)
    _nn_ops._get_noise_shape = noise_shape(_nn_ops._get_noise_shape)


def hooks_installed():
    return pywrap_tfe.TFE_Py_FastPathExecute is not fast_execute
