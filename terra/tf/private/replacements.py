"""Functions of TensorFlow's that are replaced: the C entry points while a step runs, others for good."""

import sys
import threading

from terra.tf import private_names as tfi

_hook_lock = threading.RLock()  # a signal handler may come in between
_replaced = []  # the modules of which `replace_in` has replaced functions, and the functions behind whose dispatch others are
_convert_returned = tfi.EagerFunc._convert
_pywrap_tfe, _tape_originals, _Tensor, _tensor_getitem = tfi.pywrap_tfe, tfi.tape_originals, tfi.tf.Tensor, tfi.tensor_getitem
_fast_execute, _execute, _execute_cancelable, _gradient_function = tfi.fast_execute, tfi.execute, tfi.execute_cancelable, tfi.gradient_function


def install_hooks(fast, slow, cancelable, shape_slice, tape_hooks, gradient_hook, getitem):
    """Replace the C entry points and indexing; `remove_hooks` puts back what costs anything outside of steps.

    Indexing stays ours, because each change of the class makes Python look up all that tensors have anew, and so do the sizes that gradients of
    concatenations ask for, because tensors of steps may be concatenated outside of any.
    """
    with _hook_lock:
        if _Tensor.__getitem__ is _tensor_getitem:  # else somebody has replaced it
            _Tensor.__getitem__ = getitem
        for name, hook in tape_hooks.items():
            setattr(_pywrap_tfe, name, hook)
        _pywrap_tfe.TFE_Py_RegisterGradientFunction(gradient_hook)
        _pywrap_tfe.TFE_Py_TensorShapeSlice = shape_slice
        _pywrap_tfe.TFE_Py_FastPathExecute = fast
        _pywrap_tfe.TFE_Py_Execute = slow
        _pywrap_tfe.TFE_Py_ExecuteCancelable = cancelable


def remove_hooks():
    """Put the C entry points back: see `install_hooks`."""
    with _hook_lock:
        for name, original in _tape_originals.items():
            setattr(_pywrap_tfe, name, original)
        _pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient_function)
        _pywrap_tfe.TFE_Py_FastPathExecute = _fast_execute
        _pywrap_tfe.TFE_Py_Execute = _execute
        _pywrap_tfe.TFE_Py_ExecuteCancelable = _execute_cancelable


def hooks_installed():
    return _pywrap_tfe.TFE_Py_FastPathExecute is not _fast_execute


def convert_returned_tensors(convert):
    """Passes what `tf.py_function`s return through `convert`, after TensorFlow has made tensors of it: C++ code takes nothing but EagerTensors."""
    tfi.EagerFunc._convert = lambda self, value, dtype: convert(_convert_returned(self, value, dtype))


def replace_while_loop(replace):
    """Put `replace(while_loop)` wherever TensorFlow's own code, or a program, finds the function that all its loops run through."""
    original = tfi.while_loop_module.while_loop
    replacement = replace(original)
    for module in (tfi.while_loop_module, tfi.tf.compat.v1, tfi.tf.compat.v1.compat.v1, tfi.tf.compat.v2.compat.v1):
        if module.while_loop is original:
            module.while_loop = replacement


def replace_map_fn(replace):
    """Put `replace(map_fn)` in the place of the function that `tf.map_fn` runs through."""
    replace_in("tensorflow.python.ops.map_fn", map_fn=replace)


def wrap_what_uses_threads(wrap):
    """Put `wrap(name, function)` in the place of each function of TensorFlow's that runs the program's Python on other threads, or waits for such threads."""
    tfi.mirrored_run._call_for_each_replica = wrap("a distribution strategy", tfi.mirrored_run._call_for_each_replica)
    for cls, name, methods in (
            (tfi.ClusterCoordinator, "a cluster coordinator", ("schedule", "join", "fetch", "create_per_worker_dataset")),
            (tfi.tf.train.Coordinator, "a coordinator", ("join", "wait_for_stop")), (tfi.LooperThread, "a looper thread", ("start",))):
        for method in methods:
            setattr(cls, method, wrap(name, getattr(cls, method)))


def replace_ones_like(replace):
    """Put `replace(ones_like)` in the place of the function that all of TensorFlow's `ones_like` run through."""
    replace_in("tensorflow.python.ops.array_ops", ones_like_impl=replace)


def replace_pfor(replace):
    """Put `replace(pfor)` in the place of the function that `tf.vectorized_map` runs through."""
    replace_in("tensorflow.python.ops.parallel_for.control_flow_ops", pfor=replace)


def replace_in(module_name, **replacements):
    """Put `replacement(function)` in the place of functions of a module, once. May be called again: the module may be imported later."""
    module = sys.modules.get(module_name)
    if module is not None and module not in _replaced and all(hasattr(module, name) for name in replacements):
        _replaced.append(module)
        for name, replacement in replacements.items():
            setattr(module, name, replacement(getattr(module, name)))


def replace_behind_dispatch(function, replace):
    """Put `replace(original)` in the place of what a function that TensorFlow dispatches calls in the end: the function stays the same object. Returns whether that was found."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    if function in _replaced:
        return True
    if "dispatch_target" in cells:
        _replaced.append(function)
        cells["dispatch_target"].cell_contents = replace(cells["dispatch_target"].cell_contents)
        return True
    return "fn" in cells and replace_behind_dispatch(cells["fn"].cell_contents, replace)


def replace_shape_items(replace):
    """Put `replace(TensorShape.__getitem__)` in the place of the method."""
    tfi.tensor_shape.TensorShape.__getitem__ = replace(tfi.tensor_shape.TensorShape.__getitem__)


def replace_readers(size, constant_value, constant_shape, noise_shape):
    """Put `size(size_internal)` and so on in the place of functions with which TensorFlow's own code asks an eager tensor for what a symbolic one may not know:
    how many elements it has, its value, and the shape that its value is (twice)."""
    tfi.array_ops.size_internal = size(tfi.array_ops.size_internal)
    tfi.tensor_util.constant_value = constant_value(tfi.tensor_util.constant_value)
    tfi.tensor_util.constant_value_as_shape = constant_shape(tfi.tensor_util.constant_value_as_shape)
    tfi.nn_ops._get_noise_shape = noise_shape(tfi.nn_ops._get_noise_shape)
