"""What a training step leaves behind in Python: the numbers, lists and tensors that can be reached from it.

A loss tells little about the Python half of a program. An attribute that a graph sets only while it is traced, a list that stays empty, a tensor without a
value in the place of a result: those are found by comparing this for two runs.
"""

import dataclasses
import random

import keras
import numpy as np
import tensorflow as tf

OWN = ("examples.",)  # modules whose objects are looked into; others' insides are none of a program's business
NO_VALUE = "a tensor without a value"
STREAM = "'s stream"


@dataclasses.dataclass
class Computed:
    """The value of a tensor."""

    value: np.ndarray


class _BareLayer(keras.layers.Layer):
    pass


class _BareModel(keras.Model):
    pass


_KERAS_ATTRIBUTES = set(vars(_BareLayer())) | set(vars(_BareModel()))


def python_state(step):
    """{path: value} of what can be reached from `step`, a function, a method or an object with `__call__`."""
    found = {}
    _walk(step, "step", found, set())
    return found


def state_difference(state, expected, tolerance):
    """A sentence about the first difference of two states, or None.

    `tolerance` is relative. If it is None, numbers that TensorFlow computed are not compared, only whether they are there.
    """
    for path, right in expected.items():
        if path not in state:
            return f"{path} is missing"
        value = state[path]
        if not _equal(value, right, tolerance):
            if path.endswith(STREAM):
                return f"{path.removesuffix(STREAM)} has drawn other numbers than with eager"
            return f"{path} is {_short(value)} where eager has {_short(right)}"
    return next((f"{path} is {_short(state[path])} where eager has nothing" for path in state if path not in expected), None)


def _walk(thing, path, found, seen):
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        found[path] = thing
    elif isinstance(thing, (np.ndarray, np.generic)):
        found[path] = np.array(thing)
    elif isinstance(thing, (tf.Variable, keras.Variable)):
        pass  # training makes its differences of rounding grow; examples.benchmarks.check compares them
    elif isinstance(thing, tf.Tensor):
        found[path] = Computed(thing.numpy()) if hasattr(thing, "numpy") else NO_VALUE
    elif id(thing) in seen:
        pass
    else:
        seen.add(id(thing))
        for name, inner in _inside(thing):
            _walk(inner, f"{path}{name}", found, seen)


def _inside(thing):
    """(name, what is there) of the parts of something that has parts."""
    if isinstance(thing, (list, tuple)) or type(thing).__name__ in ("deque", "ListWrapper", "TrackedList"):
        yield "'s length", len(thing)
        yield from ((f"[{index}]", inner) for index, inner in enumerate(thing))
    elif isinstance(thing, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in thing.items() if isinstance(key, (str, int, float, tuple)))
    elif isinstance(thing, random.Random):
        yield STREAM, repr(thing.getstate())
    elif isinstance(thing, np.random.Generator):
        yield STREAM, repr(thing.bit_generator.state)
    elif hasattr(thing, "__func__"):
        yield ".self", thing.__self__
    elif hasattr(thing, "__code__"):
        if thing.__module__.startswith(OWN):
            for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ()):
                try:
                    yield f".{name}", cell.cell_contents
                except ValueError:  # not assigned yet
                    pass
    elif isinstance(thing, type):
        pass
    elif type(thing).__module__.startswith(OWN):
        keras_own = _KERAS_ATTRIBUTES if isinstance(thing, keras.layers.Layer) else ()
        yield from ((f".{name}", inner) for name, inner in vars(thing).items() if name not in keras_own)
    elif isinstance(thing, keras.Model):
        yield from ((f".layers[{index}]", inner) for index, inner in enumerate(thing.layers))


def _equal(value, right, tolerance):
    if isinstance(value, Computed) and isinstance(right, Computed):
        return tolerance is None or _equal(np.asarray(value.value), np.asarray(right.value), tolerance)
    if isinstance(value, np.ndarray) and isinstance(right, np.ndarray):
        if value.shape != right.shape or value.dtype != right.dtype:
            return False
        if value.dtype.kind not in "fc":
            return np.array_equal(value, right)
        scale = np.max(np.abs(right), initial=0.0, where=np.isfinite(right))
        return np.allclose(value, right, rtol=tolerance or 0.0, atol=(tolerance or 0.0) * scale, equal_nan=True)
    if type(value) is not type(right):
        return isinstance(value, np.generic) and isinstance(right, np.generic) and bool(value == right)
    if isinstance(value, float):
        return value == right or abs(value - right) <= (tolerance or 0.0) * abs(right) or (value != value and right != right)
    return bool(value == right)


def _short(value):
    value = value.value if isinstance(value, Computed) else value
    text = np.array2string(value, threshold=4) if isinstance(value, np.ndarray) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
