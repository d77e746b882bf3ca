"""Compares calls: by plain values, objects themselves, the masks that Keras attaches to tensors."""

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


def mask_of(x):
    """Returns the mask that Keras has attached to a tensor, or None."""
    return vars(x).get("_keras_mask")


def is_bare(x):
    """Returns whether nothing is attached to a tensor that another one with its value would lack. (A layer of tf_keras attaches that there is no mask.)"""
    return not any([name != "_keras_mask" or value is not None for name, value in vars(x).items()])


def logits_of(x):
    """Returns the logits that Keras has attached to probabilities, or None."""
    return vars(x).get("_keras_logits")
