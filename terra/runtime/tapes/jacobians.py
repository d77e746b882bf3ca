"""`tape.jacobian`, `tape.batch_jacobian` and `tf.vectorized_map`: TensorFlow makes a function of its own at each call of these, which takes it tens
of milliseconds.

The call can be skipped as that of `tape.gradient` is (see `fast_forward`), if the function is the same at each step. It would not be: it holds small
eager tensors that it uses, activations among them, as constants. In a step they are its inputs instead, all but small integers that were not given to
the step: they may be shapes.
"""

import threading

from terra.tf import private_names as tfi

_MOST_INTEGERS = 8  # of a vector that may be a shape


class _Inside(threading.local):
    depth = 0
    step = None

    def __call__(self, step):
        self.step = step
        return self

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *exc):
        self.depth -= 1
        if not self.depth:
            self.step = None


inside = _Inside()  # `with inside(step):` on a thread: while such a call is made in the step
_capture_as_const = tfi.EagerTensorBase._capture_as_const


def _captured(tensor, name):
    """Returns what a function that is traced holds in place of an eager tensor; None: an input."""
    if inside.depth and not _may_be_shape(tensor, inside.step):
        return None
    return _capture_as_const(tensor, name)


def _may_be_shape(tensor, step):
    if type(tensor) is not tfi.EagerTensor or tensor.dtype != tfi.tf.int32 or tensor.shape.rank > 1 or tensor.shape.num_elements() > _MOST_INTEGERS:
        return False
    return not (id(tensor) in step.args or step.is_data(tensor) or id(tensor) in (getattr(step.skeleton, "fed", None) or ()))


def is_generated(code):
    """Returns whether it is what AutoGraph makes of TensorFlow's own code."""
    return inside.depth > 0 and "__autograph_generated_file" in code.co_filename


def install():
    """Makes such functions hold as few constants as possible."""
    tfi.EagerTensorBase._capture_as_const = _captured
