"""Which functions TensorFlow and Keras export, and what they do first with some of their arguments."""

from terra.tf import private_names as tfi

# Namespaces whose functions are skipped where they are called, by package.
NAMESPACES = {
    "tensorflow": ("", "math", "nn", "linalg", "image", "signal", "bitwise", "random", "debugging", "sparse", "strings", "ragged", "sets", "quantization",
                   "math.special", "raw_ops"),
    "keras": ("ops", "ops.nn", "ops.numpy", "ops.linalg", "ops.image", "activations", "losses", "random", "src.legacy.backend"),
    "tf_keras": ("activations", "losses", "backend"),
}
OF_BACKENDS = frozenset(  # others change what Keras remembers
    "abs all any argmax argmin batch_dot batch_flatten batch_normalization bias_add binary_crossentropy binary_focal_crossentropy cast "
    "categorical_crossentropy categorical_focal_crossentropy clip concatenate conv1d conv2d conv2d_transpose conv3d cos cumprod cumsum depthwise_conv2d dot "
    "elu equal exp expand_dims flatten gather greater greater_equal hard_sigmoid in_top_k l2_normalize less less_equal log max maximum mean min "
    "minimum not_equal one_hot ones_like permute_dimensions pool2d pool3d pow prod relu repeat repeat_elements reshape resize_images reverse round "
    "separable_conv2d sigmoid sign sin softmax softplus softsign sparse_categorical_crossentropy spatial_2d_padding sqrt square squeeze stack std "
    "stop_gradient sum tanh temporal_padding tile transpose var zeros_like".split())
# Arguments whose values TensorFlow's Python code does not look at, though they are integers: (position, name).
CLASSES = {  # with which it calculates: on the host, if they are no data
    **dict.fromkeys([tfi.tf.nn.nce_loss, tfi.tf.nn.sampled_softmax_loss], (2, "labels")),
    **dict.fromkeys([tfi.tf.random.log_uniform_candidate_sampler, tfi.tf.random.uniform_candidate_sampler,
                     tfi.tf.nn.compute_accidental_hits], (0, "true_classes"))}
INDICES = {
    tfi.tf.gather: (1, "indices"), tfi.tf.one_hot: (0, "indices"), tfi.tf.nn.embedding_lookup: (1, "ids"),
    tfi.tf.nn.sparse_softmax_cross_entropy_with_logits: (0, "labels"), **CLASSES}
CONSTANTS = frozenset([tfi.tf.constant, tfi.tf.convert_to_tensor])
# Functions that make tensors of numbers among their arguments.
CONVERTING = CONSTANTS | {
    tfi.tf.cast, tfi.tf.add, tfi.tf.subtract, tfi.tf.multiply, tfi.tf.divide, tfi.tf.maximum, tfi.tf.minimum, tfi.tf.pow, tfi.tf.clip_by_value}
_DISPATCHED = "_tf_fallback_dispatchers"  # an attribute of such functions
_GENERATED = "tensorflow.python.ops.gen_"
READING_PARTS = ("gather", "embedding_lookup", "batch_gather")  # how the names of functions begin that ask a variable for parts of it, and do not convert it
READS = "_numpy_internal"  # the builtin that reads the value of a tensor
WAS_READ = "_variable_read"  # an attribute of variables: whether one was ever read; nothing but a warning of XLA's asks for it
# Functions that write what they are given somewhere outside of the program, and compute nothing that it uses.
WRITING = frozenset([tfi.tf.print, *(getattr(tfi.tf.summary, name) for name in "scalar histogram image audio text write".split() if hasattr(tfi.tf.summary, name))])
CALCULATING = WRITING & {getattr(tfi.tf.summary, name, None) for name in ("histogram", "image", "audio")}  # many operations for what they write
CALLING_PYTHON = frozenset([tfi.tf.numpy_function, tfi.tf.py_function])  # functions that call a Python function with values
WITHOUT_GRADIENT = frozenset([tfi.tf.numpy_function])
ASSIGNING = frozenset(["assign", "assign_add", "assign_sub"])  # methods of variables


def is_of(package, module):
    """Returns whether a module, by its name, is in a package."""
    return type(module) is str and (module == package or module.startswith(package + "."))


def is_tensorflows(function):
    """Returns whether a Python function is defined in TensorFlow."""
    return is_of("tensorflow", function.__globals__["__name__"])


def is_dispatched(function):
    """Returns whether a Python function is one that TensorFlow lets others take over for tensors of their own kinds: it computes with tensors, whatever it is exported as."""
    return _DISPATCHED in vars(function) and is_of("tensorflow", function.__module__)


def issues_one(function):
    """Returns whether a Python function is one of those that TensorFlow generates, each of which issues one operation."""
    module, name = function.__module__, function.__name__
    return type(module) is str and module.startswith(_GENERATED) and not name.startswith("_") and not name.endswith("_eager_fallback")
