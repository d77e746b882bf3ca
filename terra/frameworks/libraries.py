"""Libraries other than the framework, by name. It imports nothing of theirs."""

# Libraries that do nothing but compute.
PURE = ("tensorflow_probability", "sonnet", "einops", "gpflow", "check_shapes", "keras_hub", "transformers")
# What TensorFlow, Keras and the libraries above call in turn.
DEPENDENCIES = (
    "absl", "cloudpickle", "decorator", "flatbuffers", "google", "grpc", "h5py", "libclang", "markdown", "ml_dtypes", "namex", "opt_einsum", "optree",
    "packaging", "pkg_resources", "requests", "rich", "setuptools", "six", "tensorboard", "termcolor", "tree", "typing_extensions", "wrapt")
# Libraries whose code is not instrumented.
UNINSTRUMENTED = ("tensorflow", "keras", "tf_keras", "numpy", "gast", "astunparse", *PURE)

SONNET, SONNET_UTILS = "sonnet", "sonnet.src.utils"
PYINSTRUMENT, PYINSTRUMENT_SAMPLER = "pyinstrument", "pyinstrument.stack_sampler"


def package_of(module):
    """Returns the name of the package that a module's name begins with."""
    return str(module).partition(".")[0]


def is_scoped_by_sonnet(function):
    """Returns whether Sonnet has put a method into the name scope of its module."""
    return function.__globals__.get("__name__") == SONNET_UTILS


def is_decorated(kind):
    """Returns whether a class is one of wrapt's, of decorated functions."""
    return package_of(kind.__module__) == "wrapt"
