"""Compares calls: by plain values, objects themselves, the masks that Keras attaches to tensors; and tensors of a step by their sizes."""

OTHER = object()  # something is attached to a tensor that tells it from others
SCALARS = frozenset([int, float, bool, str, type(None), bytes])


class Unskippable(Exception):
    """A call depends on, or gives, something that no record of it can hold; its text, if any, continues "because it"."""


class ById:
    """Stands for an object itself, and keeps it: another one at its address is not it."""

    __slots__ = ("thing",)

    def __init__(self, thing):
        self.thing = thing

    def __eq__(self, other):
        return type(other) is ById and other.thing is self.thing

    def __hash__(self):
        return id(self.thing)


def scalar(value):
    """Returns what identifies one of `SCALARS`."""
    kind = type(value)
    return (kind, value) if value != 0 or kind is not float else (kind, str(value))  # 0.0 == -0.0


def equal(new, old):
    """Returns whether two sequences hold the same objects, or equal scalars of one type, one by one."""
    if len(new) != len(old):
        return False
    return all(
        a is b or (type(a) in SCALARS and type(a) is type(b) and a == b and (a != 0 or type(a) is not float or str(a) == str(b)))  # 0.0 == -0.0
        for a, b in zip(new, old))


def mask_of(x):
    """Returns the mask that Keras has attached to a tensor, or None."""
    return vars(x).get("_keras_mask")


def attached(attributes):
    """Returns what is attached to the tensor that has these attributes: None, True for the mark of `tf.zeros`, or `OTHER`. A layer of tf_keras attaches that there is no mask, which is the same as nothing."""
    if not attributes:
        return None
    marked = attributes.get("_is_zeros_tensor")
    n = len(attributes) - ("_is_zeros_tensor" in attributes) - (attributes.get("_keras_mask", attributes) is None)
    return OTHER if n or (marked is not None and marked is not True) else marked


def logits_of(x):
    """Returns the logits that Keras has attached to probabilities, or None."""
    return vars(x).get("_keras_logits")


def fictitious_shapes(tensor):
    """(shape, shape) that a tensor of the step at hand would have for two choices of all sizes that are not known, see `size_origins`; else (None, None)."""
    mode = getattr(tensor, "_owner", None)
    return mode.fictitious_shapes(tensor._key) if hasattr(mode, "fictitious_shapes") else (None, None)


def begin_alike(a, b, n):
    """Returns whether the first `n` sizes of two tensors of the step at hand are equal, whatever they are."""
    if getattr(a, "_owner", a) is not getattr(b, "_owner", b):
        return False
    shapes, others = fictitious_shapes(a), fictitious_shapes(b)
    return None not in shapes and None not in others and all(shape[:n] == other[:n] for shape, other in zip(shapes, others))
