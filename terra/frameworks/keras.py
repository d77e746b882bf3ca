"""Where things are in Keras 3 and tf_keras: modules, classes, methods and attributes, by name; and predicates on these.

A module that is not imported is not there, and what some versions have not is looked for; `OPTIONAL` lists the latter.
"""

import sys

from terra.frameworks import framework_objects

# -- modules -------------------------------------------------------------------------------------------------------------------

PACKAGES = ("keras", "tf_keras")
ARRAY_ADAPTERS = "keras.src.trainers.data_adapters.array_data_adapter"
BACKEND = "keras.src.backend"
BACKEND_NUMPY = "keras.src.backend.tensorflow.numpy"
BASE_LAYER = "keras.src.layers.layer"
BASE_OPTIMIZER = "keras.src.optimizers.base_optimizer"
CALLBACKS = "keras.src.callbacks.callback_list"
DTYPE_POLICIES = "keras.src.dtype_policies.dtype_policy"
GLOBAL_STATE = "keras.src.backend.common.global_state"
LOSS_SCALING = "keras.src.optimizers.loss_scale_optimizer"
PYTHON_UTILS = "keras.src.utils.python_utils"
RNN_LAYER, RNN_LOOP = "keras.src.layers.rnn.rnn", "keras.src.backend.tensorflow.rnn"  # of the function that calls the cell, and of the loop's body
TRACEBACKS = "keras.src.utils.traceback_utils"
TRAINER, TENSORFLOW_TRAINER = "keras.src.trainers.trainer", "keras.src.backend.tensorflow.trainer"
# Modules whose functions the framework's code calls by name.
OF_FUNCTIONS = (
    "keras.src.backend.tensorflow.nn", BACKEND_NUMPY, "keras.src.backend.tensorflow.core", "keras.src.backend.tensorflow.random",
    "keras.src.activations.activations", "keras.src.ops.nn", "keras.src.backend.tensorflow.math", "keras.src.ops.numpy", "keras.src.ops.core",
    "keras.src.ops.math", "keras.src.losses.losses", "tf_keras.src.backend", "tf_keras.src.activations", "tf_keras.src.losses")

# -- classes and their methods -------------------------------------------------------------------------------------------------

# Methods by which the program's code calls the framework: (module, class, methods).
ENTRIES = (
    (BASE_LAYER, "Layer", ("__call__",)),
    ("keras.src.ops.operation", "Operation", ("__call__",)),
    ("keras.src.losses.loss", "Loss", ("__call__",)),
    ("keras.src.backend.common.variables", "Variable", ("assign", "assign_add", "assign_sub")),
    ("keras.src.backend.common.variables", "KerasVariable", ("assign", "assign_add", "assign_sub")),
    ("keras.src.metrics.metric", "Metric", ("update_state",)),
    (BASE_OPTIMIZER, "BaseOptimizer", ("apply", "apply_gradients")),
    ("tf_keras.src.engine.base_layer", "Layer", ("__call__",)),
    ("tf_keras.src.losses", "Loss", ("__call__",)),
    ("tf_keras.src.optimizers.optimizer", "Optimizer", ("apply_gradients",)))
# Further methods by which the program's code calls the framework outside of steps.
OUTSIDE_ENTRIES = (("keras.src.metrics.metric", "Metric", ("__call__", "result")),)
# Classes whose methods make the functions of a batch, by module.
TRAINERS = {TENSORFLOW_TRAINER: "TensorFlowTrainer", "tf_keras.src.engine.training": "Model"}
LOOP_FUNCTIONS = {"make_train_function": "train_function", "make_test_function": "test_function"}  # what makes the function of a batch, and where it is kept
# Hooks of a list of callbacks -> methods of a callback.
LISTENERS = {"_on_train_batch_end": ("on_train_batch_end", "on_batch_end"), "_on_test_batch_end": ("on_test_batch_end",)}
# What gives `fit` and the others the batches of arrays, and the module by which it converts these; what iterates over the batches of an epoch.
ARRAY_ADAPTER, ARRAY_SLICING, EPOCH_ITERATOR = "ArrayDataAdapter", "array_slicing", "TFEpochIterator"
OF_ARRAY_ADAPTERS = ("_shuffle", "_num_samples", "_batch_size")  # attributes: how rows are shuffled, how many there are, and in a batch
OPTIONAL = frozenset([  # (module, class or method): what some versions of Keras 3 have not
    ("keras.src.backend.common.variables", "KerasVariable"),  # until 3.5
    ("keras.src.backend.common.variables", "Variable"),  # from 3.6 on
    (CALLBACKS, "_on_train_batch_end"), (CALLBACKS, "_on_test_batch_end")])  # from 3.7 on

# -- attributes ----------------------------------------------------------------------------------------------------------------

STEP_CALLERS = frozenset([*framework_objects.STEPS, *framework_objects.STEP_FUNCTIONS, *[f"make_{name}" for name in framework_objects.STEP_FUNCTIONS]])  # attributes of a model that call it
OPAQUE = frozenset(["Tracker", "Config", "Function", "KerasHistory"])  # classes whose objects are looked at no further than their identity
# Packages whose objects are parts of a layer, an optimizer and so on: their attributes matter.
PARTS = frozenset([
    "layers", "models", "engine", "losses", "metrics", "optimizers", "regularizers", "initializers", "constraints", "dtype_policies", "random",
    "activations", "mixed_precision", "quantizers", "utils", "trainers", "ops"])
# What is changed when an attribute is set, and matters to nothing but that, and to checkpoints;
# the first also grows with each mask that a cell keeps for a while.
OF_SETTERS = ("_tracked", "_obj_reference_counts_dict", "_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")
OF_VARIABLES = ("_constraint", "_regularizer", "_value", "_variable")  # attributes: what may be called, and a variable within
OF_NODES = ("_flat_arguments", "args", "kwargs", "call_args", "call_kwargs")  # attributes that hold arguments
RESETTING = frozenset(["RNN", "SimpleRNN", "GRU", "LSTM", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"])  # of tf_keras: their cells forget dropout masks
OF_RESULTS = frozenset(["_call_result"])  # of a metric of tf_keras: the last result, which nothing reads that runs eagerly
OF_LOOPS = frozenset(["history", "_eval_epoch_iterator", "_eval_data_handler"])  # what `fit` leaves in a model for itself; none of Keras' steps reads it
# What a layer or module notes of the objects that are set as its attributes: its parts, and for checkpoints, which no call of it reads.
PARTS_OF_LAYERS = "_self_tracked_trackables"
OF_TRACKING = frozenset([PARTS_OF_LAYERS, "_tracked", "_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"])
# Properties of the framework's that call nothing of the user's but, in turn, the properties of parts. Others may call functions and schedules.
QUIET_PROPERTIES = frozenset(
    "variables trainable_variables non_trainable_variables weights trainable_weights non_trainable_weights layers trainable name path dtype built "
    "iterations dtype_policy compute_dtype variable_dtype input_dtype supports_masking quantization_mode input_spec metrics metrics_names".split())
OF_METRICS = frozenset(["metrics", "metrics_names"])  # those of these that ask for the property `metrics` of a class
# What of a layer's class must be Keras' own. (The class attributes of Keras are looked at by `patch_guard.modules`.)
OF_CALLS = (
    "__call__", "__getattribute__", "__getattr__", "__eq__", "_assert_input_compatibility", "_call_context_args", "_check_super_called", "_clear_losses",
    "_get_call_context", "_maybe_build", "_maybe_reset_call_context", "_open_name_scope", "_resolve_and_populate_arg", "_set_mask_metadata",
    "activity_regularizer", "autocast", "built", "compute_dtype", "compute_mask", "dtype_policy", "input_dtype", "input_spec", "name",
    "quantization_mode", "quantized_call", "rematerialized_call", "supports_masking", "symbolic_call", "variable_dtype")
# The attributes of a layer that tell whether its `__call__` does more than call `call`, and those of the call specification.
OF_LAYERS = ("call", "_dtype_policy", "built", "_called", "activity_regularizer", "_remat_mode", "_parent_path", "_lock", "input_spec", "_input_spec",
             "_allow_non_tensor_positional_args", "_call_signature", "_call_has_context_arg", "_call_context_args", "_name", "name")
RNN_KEPT = ("go_backwards", "zero_output_for_mask", "return_all_outputs")  # options of `keras.src.backend.rnn` that are handed on
RNN_IGNORED = ("mask", "constants", "unroll", "input_length", "time_major")
DROPOUT_MASKS = ("_dropout_mask", "_recurrent_dropout_mask")  # what an RNN layer puts into its cell before the loop


def global_state():
    """Returns Keras 3's global state of this thread; None if it is not imported."""
    module = sys.modules.get(GLOBAL_STATE)
    return None if module is None else module.GLOBAL_STATE_TRACKER


def call_context():
    """Returns the attributes of Keras 3's call context on this thread, or None if there is none."""
    context = getattr(global_state(), "current_call_ctx", None)
    return None if context is None else vars(context)


def is_of_tf_keras(kind):
    """Returns whether a class is tf_keras' own."""
    return kind.__module__.startswith("tf_keras.")


def is_of_keras(kind):
    """Returns whether a class is Keras 3's own."""
    return kind.__module__.startswith("keras.")


def is_loss(function):
    """Returns whether a function is one of Keras 3's losses."""
    return function.__module__.startswith("keras.src.losses.")


def is_embedding(layer):
    """Returns whether an object is a stock layer that is given indices."""
    return type(layer).__name__ == "Embedding" and framework_objects.is_stock_object(layer)


def scales_losses(optimizer):
    """Returns whether an optimizer is a stock one that scales losses."""
    return type(optimizer).__module__ == LOSS_SCALING and type(optimizer).__name__ == "LossScaleOptimizer"


def is_plain_policy(policy):
    """Returns whether a dtype policy is neither one of quantized layers nor of a class of the program's."""
    return type(policy).__module__ == DTYPE_POLICIES and type(policy).__name__ in ("DTypePolicy", "FloatDTypePolicy")


def is_cell(kind):
    """Returns whether a class, by its name, is one of cells of RNN layers."""
    return kind.__name__.endswith("Cell")


def is_node(kind):
    """Returns whether a class, by its name, is that of the nodes of functional models."""
    return kind.__name__ == "Node"


def is_symbolic(kind):
    """Returns whether a class, by its name, is that of Keras 3's symbolic tensors."""
    return kind.__name__ == "KerasTensor"


def tells_of_metrics():
    """Returns whether this Keras makes numbers of its metrics at the end of its own steps, by `pythonify_logs`."""
    method = getattr(getattr(sys.modules.get(TRAINER), "Trainer", None), "get_metrics_result", None)
    return "pythonify_logs" in getattr(getattr(method, "__code__", None), "co_names", ())
