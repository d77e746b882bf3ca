"""Functions of the framework's that an observed run may call though they are not skipped: known by name, they have no effect but what they give."""

import sys

from terra.frameworks import framework_objects
from terra.tf import private_names as tfi

# Functions that may run no operation: what they give then follows from their arguments.
_WITHOUT_OPERATIONS = frozenset(
    "shape size rank ndim constant convert_to_tensor range arange cast zeros ones fill stack concat reshape expand_dims squeeze reduce_prod reduce_sum "
    "reduce_max reduce_min reduce_mean reduce_all reduce_any prod sum max min maximum minimum add add_n subtract multiply divide truediv floordiv floormod "
    "mod abs square sqrt pow sign negative argmax argmin cumsum matmul where identity is_tensor executing_eagerly broadcast_static_shape "
    "broadcast_dynamic_shape broadcast_to meshgrid linspace eye sequence_mask one_hot zeros_like ones_like gather slice strided_slice split unstack tile "
    "transpose pad repeat reverse roll sort argsort unique scatter_nd tensor_scatter_nd_update clip_by_value equal not_equal less greater less_equal "
    "greater_equal logical_and logical_or logical_not device get_static_value stop_gradient ensure_shape tensorshape linear dropout assert_rank "
    "assert_rank_at_least assert_rank_in assert_shapes assert_type assert_scalar assert_equal assert_none_equal assert_less assert_less_equal "
    "assert_greater assert_greater_equal assert_positive assert_negative assert_non_positive assert_non_negative assert_integer "
    "to_float to_double to_int32 to_int64 assert_proper_iterable is_numeric_tensor is_strictly_increasing is_non_decreasing "
    # TensorFlow's own names of some of these
    "convert_to_tensor_v2_with_dispatch is_symbolic_tensor is_tf_type linspace_nd constant_value int_shape control_dependencies is_sparse".split())
_OF_TYPES = frozenset(["is_numeric_tensor", "is_sparse", "is_symbolic_tensor", "is_tensor", "is_tf_type"])  # which look at what they are given, but not at its values
_STRATEGIES = "tensorflow.python.distribute.distribute_lib"
# Functions without arguments that give a setting, by module.
_SETTINGS = {
    "keras.src.backend.config": frozenset(["backend", "epsilon", "floatx", "image_data_format"]),
    "keras.src.dtype_policies.dtype_policy": frozenset(["dtype_policy"]),
    "tf_keras.src.backend_config": frozenset(["epsilon", "floatx", "image_data_format"]),
    _STRATEGIES: frozenset(["get_strategy", "has_strategy", "get_replica_context", "in_cross_replica_context"]),
    "tensorflow.python.eager.context": frozenset(["executing_eagerly"]),
    "tensorflow.python.util.traceback_utils": frozenset(["is_traceback_filtering_enabled"]),
    "tensorflow.python.framework.ops": frozenset(["executing_eagerly_outside_functions", "get_default_graph", "get_name_scope", "inside_function"]),
}
_of_modules = tfi.tf.Module.with_name_scope.__func__.__globals__  # of what it makes of a method, too
_LOOPS = frozenset(["foldl", "foldr", "fori_loop", "map", "map_fn", "scan", "while_loop"])
OF_ARRAYS = frozenset(["close", "concat", "gather", "read", "scatter", "size", "split", "stack", "unstack", "write"])  # methods of a TensorArray
_OF_STRATEGIES = frozenset(["batch_reduce_to", "reduce_to", "update"])
_OF_STRUCTURES = frozenset([
    "assert_same_structure", "assert_shallow_structure", "flatten", "flatten_up_to", "flatten_with_joined_string_paths", "flatten_with_tuple_paths", "flatten_with_tuple_paths_up_to",
    "is_nested", "map_structure", "map_structure_up_to", "map_structure_with_paths", "map_structure_with_tuple_paths", "map_structure_with_tuple_paths_up_to", "pack_sequence_as"])
_NEST = "tensorflow.python.util.nest"  # where TensorFlow has them; `tf.nest` exports a few


def follows_from_arguments(function):
    """Returns whether what it gives without an operation follows from its arguments."""
    return function.__name__.removesuffix("_v2") in _WITHOUT_OPERATIONS and framework_objects.stock_package(function.__module__) != "layers"  # whose functions make layers


def looks_at_values(function):
    """Returns whether such a function may look at the values of tensors that it is given."""
    if function.__name__ in _OF_TYPES:
        return False
    return function.__name__.startswith(("assert_", "is_")) or function.__name__.removesuffix("_v2") in ("get_static_value", "constant_value", "tensorshape")


def is_setting(function):
    """Returns whether it is a function without arguments that says how something is set."""
    return function.__name__ in _SETTINGS.get(function.__module__, ()) and vars(sys.modules[function.__module__]).get(function.__name__) is function


def is_of_strategies(function):
    """Returns whether such a function says which distribution strategy there is."""
    return function.__module__ == _STRATEGIES


def is_scoped(function):
    """Returns whether it is a method of the user's in a name scope, which means nothing for operations that run."""
    return getattr(function, "__globals__", None) is _of_modules and hasattr(function, "__wrapped__")


def only_calls(function):
    """Returns whether all that it does is to look into structures, and to call the functions that it is given."""
    if function is tfi.tf.cond:
        return True
    name = function.__name__
    return name in _OF_STRUCTURES and _is_in(function, name, sys.modules[_NEST], "tree")


def is_loop(function):
    """Returns whether it is a loop, or `tf.ragged.map_flat_values`, which calls the functions that it is given."""
    name = function.__name__.removesuffix("_v2")
    return (name in _LOOPS and _is_in(function, name, tfi.tf, "ops")) or function is tfi.tf.ragged.map_flat_values


def branches(function):
    """Returns whether it calls one of the functions that it is given, depending on values."""
    name = function.__name__
    return function in (tfi.tf.switch_case, tfi.tf.case) or name == "smart_cond" or (name in ("cond", "switch") and _is_in(function, name, None, "ops"))  # of TensorFlow, tf_keras, and Keras


def is_of_default_strategy(method):
    """Returns whether it is a method of the strategy without any distribution, or of its replica, that calls the function that it is given, or gives what it is given."""
    owner, name = method.__self__, method.__func__.__name__
    if name == "merge_call":
        return isinstance(owner, tfi.tf.distribute.ReplicaContext)
    return name in _OF_STRATEGIES and owner is tfi.tf.distribute.get_strategy().extended


def vectorizes(function):
    """Returns whether it makes a graph of the function that it is given, in which the framework's functions do not run."""
    return function.__name__ == "vectorized_map" and _is_in(function, "vectorized_map", tfi.tf, "ops")


def _is_in(function, name, space, of_keras):
    """Returns whether a namespace of TensorFlow's, or one of Keras', has the function under its name."""
    return any(getattr(place, name, None) is function for place in (space, getattr(sys.modules.get("keras"), of_keras, None)))
