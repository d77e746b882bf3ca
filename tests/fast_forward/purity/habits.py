"""What libraries do around their operations, as programs for `test_habits_of_libraries`; and ways to change what they ask for."""

import contextlib
import threading

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from tests.fast_forward.purity.training import Weights

MODE = threading.local()


class Module(tf.Module):
    """A tuple that a module holds becomes one of TensorFlow's."""

    def __init__(self):
        self.scales = (tf.Variable(0.5), tf.Variable(2.0))


class Tensor(tf_keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.pairs = ((1.0, tf.Variable(0.5)), (2.0, tf.Variable(2.0)))


class Unit:
    """A leaf of structures."""

    def __init__(self, factor):
        self.factor = factor


class Held(Weights):
    """What steps read and change."""

    def __init__(self):
        super().__init__()
        MODE.scale = 1.0
        self.low, self.high = tf.Variable(0.0, trainable=False), tf.Variable(0.0, trainable=False)
        self.tensor, self.module, self.units = Tensor(), Module(), {"a": Unit(2.0), "b": (Unit(0.5), Unit(1.0))}
        self._rate, self.changes = 1.0, 0

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, value):
        self.changes += 1
        self._rate = value * 0.5


@contextlib.contextmanager
def scaled(scale):
    before = getattr(MODE, "scale", 1.0)
    MODE.scale = scale
    yield
    MODE.scale = before


def sets_a_thread_local(held, x):
    with scaled(3.0):
        y = x * MODE.scale
    return y @ held.w * getattr(MODE, "scale", 1.0)


def catches_a_wrong_name(held, x):
    """An argument of an older version of TensorFlow."""
    try:
        total = tf.reduce_sum(x @ held.w, axis=-1, keep_dims=True)
    except TypeError:
        total = tf.reduce_sum(x @ held.w, axis=-1, keepdims=True)
    return total


def asks_for_a_name(held, x):
    """A function of an older version, as `hasattr` and `getattr` ask for it."""
    assign = getattr(tf, "assign", None)
    if hasattr(tf, "placeholder") or assign is not None:
        return x @ held.w * 2.0
    return x @ held.w


def asks_a_variable(held, x):
    n = held.w.get_shape()[0] + len(held.w._unique_id.split("_")[0]) * 0
    return x @ held.w / float(n) if not hasattr(held.w, "_packed") else x


def sets_a_property(held, x):
    held.rate = 3.0
    return x @ held.w * held.rate


def merges_dicts(held, x):
    parts = {"loss": x @ held.w} | {"more": x} | {}
    parts["sum"] = parts.pop("loss") + parts["more"]
    return tf.add_n(list(parts.values()))


def maps_leaves(held, x):
    scaled_by = tf.nest.map_structure(lambda unit: x * unit.factor, held.units)
    return tf.add_n(tf.nest.flatten(scaled_by)) @ held.w


def goes_over_a_tuple(held, x):
    for factor, scale in held.tensor.pairs:
        x = x * factor * scale
    return x @ held.w * held.module.scales[0]


def uses_what_assign_gives(held, x):
    y = x @ held.w
    low, high = held.low.assign(tf.minimum(held.low, tf.reduce_min(y))), held.high.assign(tf.maximum(held.high, tf.reduce_max(y)))
    return tf.quantization.fake_quant_with_min_max_vars(y, low, high, num_bits=7)


def ignores_errors(held, x):
    """What NumPy does about errors is another thing within than it is when the step begins."""
    with np.errstate(divide="ignore", under="raise"):
        return x @ held.w * float(np.float32(2.0))


def has_a_class_elsewhere(held, x):
    """A class that is made on another way through the function."""
    if held.changes > 100:
        class Scale:
            by = 3.0

        async def later():
            return 1.0

        return x * Scale.by if later else x
    return x @ held.w


class Registered(type):
    """A class of classes that changes nothing about how they are asked."""

    made = []


class Sized(metaclass=Registered):
    factor = 2.0


def asks_a_class(held, x):
    return x @ held.w * Sized.factor


def goes_the_other_way(held, k):
    held.changes = 101 if k == 22 or k > 26 else 0


def changes_the_class(held, k):
    Sized.factor = 0.5 if k >= 22 else 2.0


def changes_what_numpy_does(held, k):
    if k == 0:
        held.before = np.seterr(under="ignore")
    elif k == 22:
        np.seterr(under="warn")
    elif k == 29:
        np.seterr(**held.before)


def changes_the_thread(held, k):
    """Another thread's value is its own."""
    thread = threading.Thread(target=lambda: setattr(MODE, "scale", 7.0))
    thread.start()
    thread.join()
    MODE.scale = 1.0 if k < 22 else 0.25


def adds_to_tensorflow(held, k):
    if k == 22:
        tf.assign = "there now"
    elif k == 0 and hasattr(tf, "assign"):
        del tf.assign


def adds_to_the_variable(held, k):
    if k == 22:
        held.w._packed = True


def changes_a_leaf(held, k):
    held.units["b"][0].factor = 0.5 if k < 22 else 4.0


def replaces_the_tuple(held, k):
    if k == 22:
        held.tensor.pairs = ((3.0, tf.Variable(0.25)),)


class Deep(keras.layers.Layer):
    """Layers in layers in layers, each of which is observed when it is called for the first time."""

    def __init__(self, depth):
        super().__init__()
        self.inner = Deep(depth - 1) if depth else keras.layers.Dense(6)
        self.scale = 1.0 + depth

    def call(self, x):
        return tf.nn.tanh(self.inner(tf.nn.relu(x) * self.scale))
