"""What libraries ask of functions, structures and objects before they compute, as programs for `test_inspections_of_libraries`; and ways to change what they ask for."""

import collections
import contextlib
import inspect
import itertools
import threading
import typing

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.python.util import nest

from tests.fast_forward.purity.training import Weights


class State(threading.local):
    def __init__(self):
        self.scale, self.writer = 2.0, None


class Batch(typing.NamedTuple("Batch", [("x", typing.Any), ("scale", typing.Any)])):
    """A named tuple that has a hash of its own."""

    __slots__ = ()

    def __hash__(self):
        return 7


class Network(tf_keras.Model):
    """A model that is called in a way of its own, and has a property of its own in the place of one of Keras'."""

    def __init__(self):
        super().__init__()
        self.dense, self.calls = tf_keras.layers.Dense(6, kernel_initializer="ones"), {"scale": 2.0}

    def __call__(self, x, **kwargs):
        parameters = inspect.getfullargspec(self.call)
        given = dict(zip(parameters.args[1:], (x,)))
        given.update(zip(parameters.args[-len(parameters.defaults):], parameters.defaults), **kwargs)
        return super().__call__(**given)

    def call(self, x, scale=3.0):
        return self.dense(x) * scale

    @property
    def variables(self):
        return super().variables


class Held(Weights):
    """What steps read and change."""

    def __init__(self):
        super().__init__()
        self.empty, self.spec, self.names = (), tf.TensorSpec([4, 6], tf.float32), ["a", "b"]
        self.numbers, self.parts, self.count = np.array([1, 2]), [(2.0, 0.5), (1.0,)], 0
        self.state, self.network = State(), Network()
        self.network(tf.zeros((4, 6)))
        self.limit = np.nan

    def method(self, x, scale=1.5, *, shift=0.5):
        return x * scale + shift


def scaling(x, scale=2.0):
    return x * scale


@contextlib.contextmanager
def pairs(values):
    yield [value for value in values], (len(values), 0.5)


def unpacks_what_a_context_gives(held, x):
    with pairs(values=[x, held.w]) as (both, (n, held.half)), pairs([1.0]) as (ones, _):
        return both[0] @ both[1] * n * held.half * ones[0]


def asks_for_identities(held, x):
    y = x @ held.w
    if id(held.empty) == id(()) and held.empty is () and id(held.spec) == id(held.spec) and id(held.w) != id(held):  # noqa: F632
        y = y * 2.0
    return y


def goes_over_structures(held, x):
    structure = {"x": x, "more": [held.w, (x, x)]}
    nest.assert_shallow_structure({"x": 0, "more": 0}, structure)
    paths = [path for path, _ in nest.flatten_with_tuple_paths(structure)]
    scaled = nest.map_structure_with_paths(lambda path, part: part * (2.0 if path == "x" else 1.0), structure)
    first, *_ = nest.flatten_up_to({"more": 0, "x": 0}, scaled)
    return scaled["x"] @ first[0] * len(paths)


def makes_named_tuples(held, x):
    batch = Batch(x @ held.w, held.count)
    return batch._replace(scale=2.0).x * Batch(*batch).scale


def names_objects(held, x):
    y = x @ held.w
    if "{}: {!r} {}".format(held, held.state, "no").startswith("<"):
        y = y * 2.0
    return y * (1.0 if f"{held}" != "" else 0.0)


def asks_for_parameters(held, x):
    for function in (scaling, held.method):
        spec = inspect.getfullargspec(function)
        owner, own = getattr(function, "__self__", None), getattr(function, "_decorated", None)
        scales = dict(zip(spec.args[-len(spec.defaults):], spec.defaults))
        if own is None and (owner is None or owner is held):
            x = x * scales["scale"] + (spec.kwonlydefaults or {}).get("shift", 0.0)
    return x @ held.w


def compares_arrays(held, x):
    y = x @ held.w
    return y if (held.numbers != 0).all() else y * 2.0


def uses_older_losses(held, x):
    y = x @ held.w + tf.compat.v1.losses.mean_squared_error(x, x @ held.w) + tf.compat.v1.math.log_sigmoid(x)
    return tf.compat.v1.to_float(tf.compat.v1.div(y, tf.compat.v1.norm(y)))


def calls_a_network(held, x):
    y = held.network(x) @ held.w + sum(held.network.losses)
    return y + tf.add_n([tf.reduce_sum(v) for v in held.network.trainable_weights]) * 1e-3


def reads_a_local_of_its_own_class(held, x):
    if held.state.writer is None:
        x = x * held.state.scale
    return x @ held.w


def chains(held, x):
    queue = collections.deque(itertools.chain.from_iterable(held.parts))
    queue.extendleft(reversed([4.0]))
    while queue:
        x = x * queue.popleft()
    return x @ held.w


def looks_at_a_spec(held, x):
    spec = typing.cast(tf.TensorSpec, held.spec)
    y = x @ held.w
    with tf.init_scope():
        runs = tf.executing_eagerly()
    return y * spec.shape.rank if runs and spec.dtype == tf.float32 and tf.executing_eagerly() else y


def uses_what_is_no_number(held, x):
    y = x @ held.w
    return tf.where(tf.math.is_nan(y), tf.stop_gradient(y) * np.nan, y) if held.limit != held.limit else y * held.limit


def asks_for_what_is_not_there(held, x):
    """It is asked of a module, and of a layer of Keras' own, after the step has left a tensor in an attribute."""
    held.last = x @ held.w
    dense = held.network.dense
    return held.last * 2.0 if hasattr(tf, "no_such_name") or hasattr(dense, "no_such_name") or getattr(dense, "no_such_name", None) else held.last


def sets_a_limit(held, k):
    held.limit = np.nan if k < 22 else 2.0


def adds_the_name(held, k):
    if k == 22:
        held.network.dense.no_such_name = 1.0


def adds_the_name_to_tensorflow(held, k):
    if k == 22:
        tf.no_such_name = 1.0
    elif k == 0:
        vars(tf).pop("no_such_name", None)


def changes_the_empty_one(held, k):
    held.empty = () if k < 22 else (1,)


def changes_the_defaults(held, k):
    if k in (0, 22):
        scaling.__defaults__ = (5.0 if k else 2.0,)


def decorates(held, k):
    if k < 22:
        scaling.__dict__.pop("_decorated", None)
    else:
        scaling._decorated = True


def gives_another_signature(held, k):
    if k < 22:
        scaling.__dict__.pop("__signature__", None)
    else:
        scaling.__signature__ = inspect.Signature([inspect.Parameter("scale", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=7.0)])


def changes_the_array(held, k):
    held.numbers[0] = k < 22


def changes_the_local(held, k):
    held.state.writer = None if k < 22 else 1.0


def changes_the_network(held, k):
    if k in (0, 22):
        Network.call.__defaults__ = (1.0 if k else 3.0,)


def changes_the_parts(held, k):
    held.parts[1] = (1.0,) if k < 22 else (3.0, 2.0)


def changes_the_spec(held, k):
    if k == 22:
        held.spec = tf.TensorSpec([4, 6], tf.float64)


def names_the_class(held, k):
    if k < 22:
        Held.__str__ = object.__str__
        del Held.__str__
    else:
        Held.__str__ = lambda self: ""
