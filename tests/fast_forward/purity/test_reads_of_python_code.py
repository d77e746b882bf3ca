"""What Python looks at in a step's code must be seen by the observer: each of these programs would be skipped wrongly if it were not."""

import builtins
import contextlib
import math
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

ONES = tf.ones(3)
multiply = tf.multiply  # a call that is worth a jump, which an operator alone is not


def compare(make, whole=0, n=20, **options):
    """`make()` gives (step, arguments of the k-th call, change before call 12, what it leaves behind); all but the first may be None."""
    runs = []
    for coexecuted in (False, True):
        step, arguments, change, left = make()
        wrapped = terra.coexecute(step, wait_for_graph=True, **options) if coexecuted else step
        seen = []
        with warnings.catch_warnings():
            for k in range(n):
                if k == 12 and change is not None:
                    change()
                try:
                    seen.append(tf.nest.map_structure(np.asarray, wrapped(*(arguments(k) if arguments is not None else (X[k % 3],)))))
                except (TypeError, RuntimeWarning) as error:
                    seen.append(type(error))
        runs.append([seen, left() if left is not None else None])
    np.testing.assert_equal(runs[1], runs[0])
    stats = wrapped.stats()
    assert stats.coexecuted_steps >= 8, stats
    assert stats.whole_steps >= whole, terra.explain(wrapped)
    return stats


X = [tf.constant([k + 1.0, 2.0, 3.0 * k]) for k in range(3)]

# -- values of tensors that are arguments --------------------------------------------------------------------------------------------


def _stored(value, n=None):
    array = np.zeros(3, np.float32)
    array[slice(n) if n else 0] = value
    return array


def _added(value):
    array = np.zeros(3, np.float32)
    array[0] += value
    return array


def _asserted(value):
    assert value, "zero"
    return 1.0


def _looped(value):
    n = 0.0
    while value and n < 2.0:
        n += 1.0
    return n


READ = {
    "float": float, "int": int, "bool": bool, "complex": lambda t: abs(complex(t)), "if": lambda t: 2.0 if t else 3.0, "not": lambda t: float(not t), "and": lambda t: 1.0 if t and ONES is not None else 2.0,
    "assert": _asserted, "while": _looped, "sqrt": math.sqrt, "isfinite": lambda t: float(math.isinf(t)), "np.float32": np.float32, "np.asarray": np.asarray, "np.sum": np.sum, "np.array of a list": lambda t: np.array([t]),
    "np.stack": lambda t: np.stack([np.ones(()), t]).sum(), "percent": lambda t: float("%.1f" % t), "percent of a tuple": lambda t: float("%.1f%s" % (t, "")), "str": lambda t: float(len(str(t))),
    "static value": tf.get_static_value, "item of an array": _stored, "slice of an array": lambda t: _stored(t, 3), "item is added to": _added, "any": lambda t: float(any([t])), "filter": lambda t: float(len([*filter(None, [t])])),
    "cond": lambda t: tf.cond(t, lambda: 1.0, lambda: 2.0), "comprehension": lambda t: float(sum(1 for x in [t] if x)), "method of an array": lambda t: np.ones(3, "f").dot(np.ones(3, "f") * np.float32(t)),
}
WORTH = {"complex": (-1.0, 4.0), "if": (1.0, 0.0), "not": (1.0, 0.0), "and": (1.0, 0.0), "assert": (1.0, 1.0), "while": (1.0, 0.0), "bool": (1.0, 0.0), "isfinite": (1.0, math.inf), "str": (1.0, 1.25), "any": (1.0, 0.0), "filter": (1.0, 0.0),
         "cond": (True, False), "comprehension": (1.0, 0.0)}


@pytest.mark.parametrize("how", READ)
def test_an_argument_is_read(how):
    values = [tf.constant(v) for v in WORTH.get(how, (1.0, 4.0))]
    compare(lambda: (lambda x, t: multiply(x, READ[how](t)), lambda k: (X[k % 3], values[k >= 12]), None, None))


@pytest.mark.parametrize("step, arguments", [
    (lambda x, t: multiply(x, float(t[1])), lambda t: t), (lambda x, t: multiply(x, np.asarray(t)), lambda t: t), (lambda x, t: multiply(x, np.arange(9.0)[tf.cast(t, tf.int32)].astype("f")), lambda t: t),
    (lambda x, t: multiply(x, float(t["a"][0])), lambda t: {"a": [t[0]]}), (lambda x, t: (multiply(x, 2.0), float(t)), lambda t: t[0]),
    (lambda x, t: multiply(x, np.eye(4, dtype="f")[t, :3]), lambda t: tf.cast(t, tf.int32)[0]), (lambda x, t: multiply(x, np.arange(9, dtype="f")[t]), lambda t: tf.cast(t, tf.int64)),
], ids=["item", "vector", "index that is computed", "in containers", "given back", "number as index", "vector as index"])
def test_arguments_of_other_shapes_are_read(step, arguments):
    values = [arguments(tf.constant(v)) for v in ([1.0, 2.0, 3.0], [3.0, 1.0, 2.0])]
    compare(lambda: (step, lambda k: (X[k % 3], values[k >= 12]), None, None))


class Scaled(keras.layers.Layer):
    def call(self, x, by):
        return tf.sin(multiply(x, float(by)))


def _scaled(x, by):
    return tf.sin(multiply(x, float(by)))


@pytest.mark.parametrize("inner", [Scaled(), _scaled], ids=["layer", "function"])
def test_an_argument_is_read_in_what_the_step_calls(inner):
    """The step itself is never skipped."""
    values, counts = [tf.constant(1.0), tf.constant(4.0)], []

    def make():
        def step(x, by):
            counts.append(1)
            return inner(x, by)
        return step, lambda k: (X[k % 3], values[k >= 12]), None, None
    compare(make)


def test_tensors_that_are_not_arguments_may_be_read():
    """They are compared by identity; integers and booleans without dimensions by value."""
    def attribute():
        held = [tf.constant(2.0)]
        return lambda x: multiply(x, float(held[0])), None, lambda: held.__setitem__(0, tf.constant(3.0)), None

    compare(attribute, whole=6)
    compare(lambda: (lambda x, t: multiply(x, 2.0 if t else 3.0), lambda k: (X[k % 3], tf.constant(k < 12)), None, None), whole=8)
    compare(lambda: (lambda x, t: tf.nest.map_structure(lambda y: multiply(x, y), [t])[0], lambda k: (X[k % 3], tf.constant(k * 1.0)), None, None), whole=8)


# -- what is stored ------------------------------------------------------------------------------------------------------------------

class Number:
    """Counts how often it is asked what it is worth."""

    def __init__(self):
        self.asked = 0

    def __float__(self):
        self.asked += 1
        return 2.0


def padded():
    def step(batch):
        array = np.zeros(4, np.float32)
        array[:3] = batch
        return tf.reduce_sum(tf.constant(array) * 2.0)
    return step, lambda k: (np.array([k, 1.0, 2.0], "f"),), None, None


def row():
    def step(batch):
        array = np.zeros((2, 3), np.float32)
        array[0] = batch
        return multiply(tf.constant(array), 2.0)
    return step, lambda k: (np.array([k, 1.0, 2.0], "f"),), None, None


def list_from_an_array():
    def step(x, batch):
        values = [0.0]
        values[:] = batch
        return multiply(x, values[0])
    return step, lambda k: (ONES, np.array([1.0 if k < 12 else 7.0, 2.0], "f")), None, None


def array_from_an_array():
    table = np.array([1.0, 2.0, 3.0], "f")

    def step(x):
        array = np.zeros(3, np.float32)
        array[:] = table
        return multiply(x, array)
    return step, None, lambda: table.fill(5.0), None


def list_from_a_list():
    values = [1.0, 2.0, 3.0]

    def step(x):
        held = [0.0, 0.0, 0.0]
        held[:] = values
        return multiply(x, held[0])
    return step, None, lambda: values.__setitem__(0, 5.0), None


def number():
    it = Number()

    def step(x):
        array = np.zeros(2, np.float32)
        array[0] = it
        return multiply(x, float(array[0]))
    return step, None, None, lambda: it.asked


def numbers():
    it = Number()

    def step(x):
        array = np.zeros(2, np.float32)
        array[:] = (1.0, it)
        return multiply(x, float(array[1]))
    return step, None, None, lambda: it.asked


def items_among_others():
    values = [1.0, 2.0]

    def step(x):
        array = np.zeros(2, np.float32)
        array[0], (array[1], _) = values[0], (values[1], 0)
        return multiply(x, float(array.sum()))
    return step, None, lambda: values.__setitem__(1, 5.0), None


STORED = {padded: 0, row: 0, list_from_an_array: 0, array_from_an_array: 6, list_from_a_list: 6, number: 0, numbers: 0, items_among_others: 0}


@pytest.mark.parametrize("make", STORED)
def test_stores(make):
    compare(make, STORED[make])


# -- unpacking, displays, statements -------------------------------------------------------------------------------------------------

def _starred(v):
    a, *b, (c, d) = v
    return c + len(b)


def _starred_in_a_loop(v):
    total = 0.0
    for a, *b, (c, d) in [v]:
        total += c
    return total


def _two_targets(v):
    p, q = _, (s, t) = v
    return s


def _context(v):
    with contextlib.nullcontext(v) as (a, b):
        return a


def _caught(v):
    try:
        return later_defined  # noqa: F821
    except NameError:
        return 1.0


def _name(v):
    return 2.0 if v[0].__name__ == "f" else 3.0


def _callable(v):
    return 2.0 if callable(v) else 3.0


class Thing:
    """Equal to all of its kind with the same number."""

    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return self.k == other.k

    def __hash__(self):
        return 1


class Callable:
    pass


def f():
    return None


@pytest.mark.parametrize("value, change, look, whole", [
    pytest.param(lambda: (1.0, 2.0, 3.0, [4.0, 5.0]), lambda v: v[3].__setitem__(0, 9.0), _starred, 6, id="star"),
    pytest.param(lambda: (1.0, 2.0, 3.0, [4.0, 5.0]), lambda v: v[3].__setitem__(0, 9.0), _starred_in_a_loop, 6, id="star in a loop"),
    pytest.param(lambda: (1.0, [4.0, 5.0]), lambda v: v[1].__setitem__(0, 9.0), _two_targets, 6, id="two targets"),
    pytest.param(lambda: [1.0, 2.0], lambda v: v.__setitem__(0, 9.0), _context, 0, id="context"),
    pytest.param(lambda: [Thing(1), Thing(2)], lambda v: setattr(v[1], "k", 1), lambda v: float(len({*v})), 0, id="set"),
    pytest.param(lambda: [f], lambda v: setattr(f, "__name__", "g"), _name, 4, id="name of a function"),
    pytest.param(lambda: Callable(), lambda v: setattr(Callable, "__call__", lambda self: None), _callable, 4, id="callable"),
    pytest.param(lambda: [b"a", bytearray(b"b")], lambda v: v[1].extend(b"cd"), lambda v: float(len(b",".join(v))), 0, id="bytes"),
    pytest.param(lambda: None, lambda v: setattr(builtins, "later_defined", 3.0), _caught, 6, id="builtins"),
    pytest.param(lambda: {"nan": 1.0}, lambda v: np.set_printoptions(formatter={"float": lambda x: "much longer"}), lambda v: float(len(str(np.ones(2)))), 0, id="printing"),
])
def test_what_is_looked_at_has_changed(value, change, look, whole):
    def make():
        held = value()
        return lambda x: multiply(x, look(held)), None, lambda: change(held), None

    try:
        runs = []
        for coexecuted in (False, True):  # the changes are to be taken back in between
            step, _, changed, _ = make()
            wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
            seen = []
            for k in range(20):
                if k == 12:
                    changed()
                seen.append(wrapped(X[k % 3]).numpy())
            runs.append(seen)
            _take_back()
        np.testing.assert_equal(runs[1], runs[0])
        assert wrapped.stats().whole_steps >= whole, terra.explain(wrapped)
        assert wrapped.stats().coexecuted_steps >= 8
    finally:
        _take_back()


def _take_back():
    vars(builtins).pop("later_defined", None)
    f.__name__ = "f"
    if "__call__" in vars(Callable):
        del Callable.__call__
    np.set_printoptions(formatter=None)


def test_an_empty_cell():
    def make():
        def fill():
            nonlocal later
            later = 4.0

        def step(x):
            try:
                k = later
            except NameError:
                k = 1.0
            return multiply(x, k)

        if fill is None:
            later = 0.0
        return step, None, fill, None
    compare(make, whole=6)


def test_annotations_and_raised_classes_run():
    counts = []

    class Failure(Exception):
        def __init__(self):
            counts.append("raised")

    def step(x):
        def inner(y: counts.append(2)):
            return multiply(y, 2.0)
        try:
            raise Failure
        except Failure:
            return inner(x)

    def make():
        counts.clear()
        return step, None, None, lambda: list(counts)
    compare(make)


def test_targets_that_are_only_annotated():
    """Python evaluates what they are made of."""
    counts = []

    def step(x):
        held = [0]
        held[counts.append(1) or 0]: int
        return multiply(x, 2.0)

    def make():
        counts.clear()
        return step, None, None, lambda: len(counts)
    compare(make)


def test_sets_of_what_is_computed():
    def make():
        held = [1.0]
        return lambda x: multiply(x, float(len({held[0] + 1.0, *[held[0]], 2.0}))), None, lambda: held.__setitem__(0, 2.0), None
    compare(make, whole=6)


def test_keys_that_are_zero():
    def step(held):
        (key,) = held
        return multiply(held[key], math.copysign(1.0, key))
    compare(lambda: (step, lambda k: ({0.0 if k < 12 else -0.0: X[k % 3]},), None, None), whole=6)


def test_stars_in_an_index():
    compare(lambda: (lambda x: multiply(tf.reshape(x, (1, 3))[(*(0, 1),)], 2.0), None, None, None), whole=6)


@pytest.mark.parametrize("action", ["error", "default"])
def test_filters_of_warnings(action):
    """numpy warns of a division by zero; from call 12 on that is an error, or shown."""
    shown = []

    def change():
        warnings.simplefilter(action)
        warnings.showwarning = lambda *args, **kwargs: shown.append(1)

    def make():
        shown.clear()
        warnings.simplefilter("ignore")
        zero = [np.float32(0.0)]
        return lambda x: multiply(x, 1.0 if np.float32(1.0) / zero[0] > 3.0 else 2.0), None, change, lambda: len(shown)

    with warnings.catch_warnings():
        compare(make, whole=4)


def test_numbers_with_operators_of_their_own():
    counts = []

    class Own(np.float64):
        def __add__(self, other):
            counts.append(1)
            return 3.0

    held = [Own(2.0)]

    def make():
        counts.clear()
        return lambda x: multiply(x, held[0] + 1.0), None, None, lambda: len(counts)
    compare(make)


# -- Keras ---------------------------------------------------------------------------------------------------------------------------

class Inner(keras.layers.Layer):
    def call(self, x, training=None):
        return tf.sin(multiply(x, 2.0 if training else 3.0))


class Outer(keras.layers.Layer):
    """Its code runs at each step."""

    def __init__(self, relayed):
        super().__init__()
        self.inner, self.relayed, self.calls = Inner(), relayed, 0

    def call(self, x, training=None):
        self.calls += 1
        return _relayed(self.inner, x) if self.relayed else self.inner(x)


def _relayed(layer, x):
    return tf.cos(layer(x))


@pytest.mark.parametrize("relayed", [False, True])
def test_training_matters_to_layers_within(relayed):
    def make():
        outer = Outer(relayed)
        outer(X[0])
        return lambda x, training: outer(x, training=training), lambda k: (X[k % 3], k % 4 != 3), None, lambda: outer.calls
    compare(make, n=28)


def test_what_keras_computed_of_an_array():
    def step(batch):
        mean = float(batch.mean())
        y = keras.ops.softmax(batch)
        return multiply(y, tf.cast(mean, y.dtype))
    compare(lambda: (step, lambda k: (np.full((4, 3), k, "f"),), None, None))


# -- variables whose shape may change --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("look", [lambda y: float(y.shape[0]), lambda y: float(len(y)), lambda y: tf.cast(tf.shape(y)[0], tf.float32), lambda y: float(np.prod(y.shape)), lambda y: tf.reduce_sum(y * y)])
def test_variables_without_a_fixed_shape(look, fast_forward):
    def make():
        variable = tf.Variable(tf.ones(3), shape=tf.TensorShape([None]))
        return lambda x: multiply(x, look(tf.sin(variable))), None, lambda: variable.assign(tf.ones(5)), None
    compare(make, fast_forward=fast_forward)


def test_variables_without_a_fixed_shape_that_the_step_assigns():
    def make():
        variable = tf.Variable(tf.ones(3), shape=tf.TensorShape(None))

        def step(x):
            variable.assign(tf.concat([variable, [1.0]], 0))
            return multiply(x, float(tf.size(tf.sin(variable))))
        return step, None, lambda: variable.assign(tf.ones(2)), lambda: variable.numpy().tolist()
    compare(make)
