"""Steps that read numbers only to give them back are skipped; steps that look at them are not, however they do it."""

import math
import warnings

import numpy as np
import pytest
import tensorflow as tf

import terra

X = [tf.constant([[0.1 * k, 1.0 - 0.3 * k], [2.0, 0.25 * k * k]]) for k in range(5)]


def run(body):
    """18 steps of `body(total, x)`, eagerly and co-executed: results must be the same. Returns how many were skipped as a whole."""
    results = []
    for coexecuted in (False, True):
        weight = tf.Variable(1.0)

        def step(x):
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(tf.tanh(x) * weight)
            weight.assign_sub(0.01 * tape.gradient(total, weight))
            return body(total, x)

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        results.append([_plain(wrapped(X[k % 5])) for k in range(18)])
    assert repr(results[0]) == repr(results[1])
    assert wrapped.stats().coexecuted_steps >= 8
    return wrapped.stats().whole_steps


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, dict):
        return {k: _plain(x) for k, x in value.items()}
    return value.numpy().tolist() if isinstance(value, tf.Tensor) else (type(value), value.tolist() if isinstance(value, np.ndarray) else value)


def relayed(value):
    return value


def doubled(value):
    return value * 2.0


RETURNED = {
    "float": lambda t, x: float(t),
    "numpy": lambda t, x: t.numpy(),
    "both": lambda t, x: (float(t), t.numpy(), [float(t)]),
    "in containers": lambda t, x: {"loss": float(t), "all": [t.numpy(), t.numpy()], "fixed": 3},
    "by a function": lambda t, x: relayed(float(t)),
    "by map": lambda t, x: [*map(relayed, [float(t)])],
    "then more is computed": lambda t, x: (float(t), tf.sin(x)),
    "appended": lambda t, x: [v for v in [float(t), float(t + 1.0)]],
    "not even returned": lambda t, x: (tf.cos(x), [float(t)][1:])[0],
    "an array": lambda t, x: tf.exp(x).numpy(),
    "arrays": lambda t, x: {"all": [tf.exp(x).numpy(), tf.exp(x).numpy()], "sum": float(t)},
    "an array by a function": lambda t, x: relayed(relayed(tf.exp(x).numpy())),
    "calculated": lambda t, x: np.argmax(tf.exp(x).numpy(), axis=-1),
    "calculated by a method": lambda t, x: [tf.exp(x).numpy().argmax(-1), float(t)],
    "calculated of a number": lambda t, x: t.numpy() * np.float32(2.0) + 1,
    "calculated of several": lambda t, x: np.mean(tf.exp(x).numpy() == tf.nn.relu(x).numpy()) + np.float64(t.numpy()),
    "calculated, and so is what it is calculated of": lambda t, x: _with_its_mean(tf.exp(x).numpy()),
    "calculated of a list": lambda t, x: np.stack([t.numpy(), x[0, 1].numpy()]),
    "calculated of an item": lambda t, x: np.round(tf.exp(x).numpy()[0, 1] * 10.0),
    "calculated of a view": lambda t, x: np.argmax(tf.exp(x).numpy()[0]) + np.max(tf.sin(x).numpy()[:, 1:]),
    "added": lambda t, x: float(t) + 1.0,
    "negated": lambda t, x: -float(t),
    "rounded": lambda t, x: round(float(t), 2),
    "the larger one": lambda t, x: max(float(t), 1.0),
    "calculated by a function": lambda t, x: doubled(float(t)),
    "calculated by map": lambda t, x: list(map(doubled, [float(t)])),
    "augmented": lambda t, x: _augmented(float(t)),
    "halved": lambda t, x: float(t) / 2,
    "the smaller of two, and one of them": lambda t, x: (min(float(t), float(t + 1.0), 3), float(t)),
    "of NumPy's number": lambda t, x: float(t.numpy()) * 2.0 - abs(float(t)),
    "a text of what is calculated": lambda t, x: f"{float(t) * 100:.1f} %",
    "not even returned, though calculated": lambda t, x: (np.sum(tf.exp(x).numpy()), tf.cos(x))[1],
}


def _with_its_mean(array):
    return array, np.mean(array)


def an_integer(x):
    return int(tf.argmax(tf.tanh(x[0])))


def an_integer_of_a_number(x):
    return int(np.argmax(tf.tanh(x[0])))


def an_integer_of_what_is_calculated(x):
    return int(np.argmax(tf.sin(x).numpy()))


def a_truth_value(x):
    total = tf.reduce_sum(tf.tanh(x))
    if x.shape[0] == 2:
        return bool(total > 1.0)
    return False


def of_a_branch(x):
    total = tf.reduce_sum(x)
    if total > 3.0:
        return int(total)
    return int(total * 2.0)


def of_something_else(x):
    try:
        return int(tf.reduce_sum(tf.abs(x)))
    finally:
        x = None
        for _ in range(1):
            return 1  # noqa: B012


def in_a_tuple(x):
    total = tf.reduce_sum(tf.tanh(x))
    return float(total), int(tf.argmax(tf.sin(x)[0])), total, int(tf.reduce_sum(tf.abs(x))), 2


def in_a_dict(x):
    total = tf.reduce_sum(tf.abs(x))
    return {"loss": float(total), "right": int(total), "many": bool(total > 3.0), "of numpy": int(np.argmax(tf.sin(x).numpy())), "fixed": 1}


def looked_at_before(x):
    n = int(tf.reduce_sum(tf.abs(x)))
    return n, int(tf.reduce_sum(x)), float(n)


def after_an_error(x):
    try:
        return int(tf.reduce_sum(tf.abs(x)) * 0.0) + 0, int(tf.reduce_sum(tf.abs(x))), fails(x)
    except tf.errors.InvalidArgumentError:
        return 0, 4, 1


def fails(x):
    tf.debugging.assert_less(tf.reduce_sum(x), 4.0)
    return 1


def of_another_after_an_error(x):
    try:
        return int(tf.argmax(tf.sin(x)[0])), raises()
    except KeyError:
        return inner(x)


def raises(held={}):
    return held["missing"]


def of_a_number_after_an_error(x):
    try:
        return int(tf.argmax(tf.sin(x)[0])), raises()
    except KeyError:
        return int(abs(-3)), 1


def inner(x):
    return int(tf.argmax(tf.cos(x)[0])), 1


def changed_afterwards(x):
    made = in_a_dict(x)
    made["right"] = 2
    return made


def with_a_star(x):
    return *range(2), int(tf.reduce_sum(tf.abs(x)))


def of_the_same_names(x):
    return {"a": int(tf.reduce_sum(tf.abs(x))), "a": int(tf.argmax(tf.sin(x)[0]))}  # noqa: F601  (which is what Python makes of it)


class Agent:
    n = 0

    def __call__(self, x):
        self.n = 3
        return int(tf.reduce_sum(tf.abs(x)))


INTEGERS = {"an_integer": 8, "an_integer_of_what_is_calculated": 8, "an_integer_of_a_number": 0, "a_truth_value": 8, "of_a_branch": 0, "of_something_else": 0, "in_a_tuple": 8, "in_a_dict": 8,
            "looked_at_before": 0, "after_an_error": 0, "of_another_after_an_error": 0, "of_a_number_after_an_error": 0, "changed_afterwards": 0, "with_a_star": 0, "of_the_same_names": 0}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_are_the_result(name):
    function = globals()[name]
    step = terra.coexecute(function, wait_for_graph=True)
    for k in range(24):
        expected, actual = function(X[k % 5]), step(X[k % 5])
        assert repr(_plain(actual)) == repr(_plain(expected))
    assert step.stats().coexecuted_steps >= 12 and step.stats().whole_steps >= INTEGERS[name]


def test_an_integer_of_a_method_beside_the_same_number():
    agent = Agent()
    step = terra.coexecute(agent.__call__, wait_for_graph=True)
    for k in range(24):
        agent.n = 0
        assert step(X[k % 5]) == int(tf.reduce_sum(tf.abs(X[k % 5]))) and agent.n == 3
    assert step.stats().whole_steps >= 8


def test_what_numpy_warns_of_late():
    """The warning tells the step's own line, and the step is the same otherwise."""
    def step(x):
        y = tf.reduce_sum(tf.tanh(x), 1).numpy()
        return np.divide(y, 0.0), np.log(y)

    def runs(step):
        found = []
        for k in range(24):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                found.append([repr(v) for v in step(X[k % 5] - 1.0)])
            found.append(sorted({(str(w.message), w.category, w.lineno) for w in caught}))
        return found

    step_ = terra.coexecute(step, wait_for_graph=True)
    assert runs(step) == runs(step_)
    assert step_.stats().coexecuted_steps >= 12


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_given_back_is_read_late(name):
    assert run(RETURNED[name]) >= 8


LOOKED_AT = {
    "divided by": lambda t, x: [_fails(lambda: 1.0 / float(t)), _fails(lambda: 1.0 / float(t - t))],
    "rounded to hundreds": lambda t, x: round(float(t) * 1000.0, -2),
    "remainder": lambda t, x: float(t) % 0.5,
    "power": lambda t, x: float(t) ** 2,
    "calculated, and compared": lambda t, x: "more" if float(t) * 2.0 > 2.0 else "less",
    "which object it is": lambda t, x: _which(float(t)),
    "compared": lambda t, x: float(t) > 1.0,
    "compared and given back": lambda t, x: [v for v in [float(t)] if v > 1.0],
    "tested": lambda t, x: "yes" if float(t) else "no",
    "not": lambda t, x: not float(t - t),
    "or": lambda t, x: float(t) or 1.0,
    "chained": lambda t, x: 0.5 < float(t) < 1.2,
    "int": lambda t, x: (int(t), int(float(t) * 10.0)),
    "str": lambda t, x: str(float(t)),
    "repr": lambda t, x: repr(float(t)),
    "f-string": lambda t, x: f"{float(t):.3f}",
    "format": lambda t, x: "{:.2f}".format(float(t)),
    "percent": lambda t, x: "%.2f" % float(t),
    "percent of several": lambda t, x: "%s %.2f" % ("loss", float(t)),
    "math": lambda t, x: math.exp(float(t)),
    "sum": lambda t, x: sum([float(t), 1.0]),
    "sorted": lambda t, x: sorted([float(t), 1.0]),
    "key": lambda t, x: {float(t): 1},
    "lookup": lambda t, x: {1.0: "one"}.get(float(t), "other"),
    "index": lambda t, x: ["a", "b", "c"][int(t.numpy()) % 3],
    "searched": lambda t, x: float(t) in [1.0, 2.0],
    "counted": lambda t, x: [float(t), 1.0].count(float(t)),
    "method": lambda t, x: float(t).hex(),
    "attribute": lambda t, x: float(t).real,
    "constant": lambda t, x: tf.constant(float(t)) * 2.0,
    "operand": lambda t, x: x * float(t),
    "argument": lambda t, x: tf.multiply(x, y=float(t)),
    "in a list that is an argument": lambda t, x: tf.stack([float(t), 1.0]),
    "by filter": lambda t, x: list(filter(None, [float(t - t), float(t)])),
    "numpy scalar": lambda t, x: t.numpy() + np.float32(1.0),
    "numpy function": lambda t, x: np.square(t.numpy()).tolist(),
    "np.array": lambda t, x: np.array([float(t)]),
    "item of an array": lambda t, x: tf.exp(x).numpy()[0, 0],
    "sum of an array": lambda t, x: tf.exp(x).numpy().sum().item(),
    "array in an operation": lambda t, x: tf.exp(x).numpy() @ np.ones((2, 2), "f"),
    "number in an operation": lambda t, x: t.numpy() * np.ones(2, "f"),
    "array": lambda t, x: tf.exp(x).numpy(),
    "array that is changed": lambda t, x: _changed(tf.exp(x).numpy()),
    "rows": lambda t, x: [row for row in tf.exp(x).numpy()],
    "unpacked": lambda t, x: _unpacked(tf.exp(x).numpy()[0]),
    "array unpacked": lambda t, x: _unpacked(tf.round(x[0] * 10.0).numpy()),
    "star": lambda t, x: max(*tf.exp(x).numpy()[0].tolist(), 0.5),
    "array starred": lambda t, x: [*tf.exp(x[0]).numpy()][1] > 1.0,
    "swapped": lambda t, x: [(b, a) for a, b in [tf.exp(x[0]).numpy()]],
    "loop": lambda t, x: _counted(tf.exp(x[0]).numpy()),
    "enumerated": lambda t, x: [k for k, v in enumerate(tf.exp(x[0]).numpy()) if v > 1.0],
    "getattr": lambda t, x: getattr(float(t), "real") > 1.0,
    "any": lambda t, x: any(tf.math.greater(x, 1.0).numpy()[0]),
    "length": lambda t, x: len(tf.boolean_mask(x, x > 1.0).numpy()),
    "slice of an array": lambda t, x: tf.exp(x).numpy()[:, 1:],
    "padded": lambda t, x: tf.pad(x, [[0, int(t.numpy() * 2.0) % 3], [0, 1]]),
    "assigned": lambda t, x: tf.Variable(1.0).assign(float(t)) + 0.0,
    "one of two reads": lambda t, x: (float(t), float(t) > 1.0),
    "sliced": lambda t, x: x[:int(float(t)) % 2 + 1],
    "an integer that is something else in the end": lambda t, x: _something_else(t),
    "an integer of a function": lambda t, x: _integer(t) + 1,
    "an integer of itself": lambda t, x: _again(t, 1),
    "an integer that another function takes": lambda t, x: [3, 2, 1, 0][_integer(t) % 4],
    "calculated and looked at": lambda t, x: "more" if np.argmax(tf.exp(x[0]).numpy()) else "less",
    "calculated, one of two looked at": lambda t, x: _one_looked_at(tf.exp(x).numpy()),
    "calculated, and what it is calculated of looked at": lambda t, x: _source_looked_at(tf.exp(x).numpy()),
    "calculated of an array that is changed": lambda t, x: _changed_afterwards(tf.exp(x).numpy()),
    "a view": lambda t, x: _with_a_view(tf.exp(x).numpy()),
    "a row": lambda t, x: tf.exp(x).numpy()[0],
    "a view that is changed": lambda t, x: _changed_view(tf.exp(x).numpy()),
    "an array of which there is a view": lambda t, x: _changed_below_a_view(tf.exp(x).numpy()),
    "a view of a view": lambda t, x: (np.sum(tf.exp(x).numpy()[0][1:]), tf.exp(x).numpy()[:1][0]),
    "a shape that depends on data": lambda t, x: np.add(tf.boolean_mask(x, x > t).numpy(), 1.0),
    "an index that depends on data": lambda t, x: np.arange(5)[np.argmax(tf.exp(x).numpy(), -1)],
    "an array in two places": lambda t, x: _in_two_places(tf.exp(x).numpy()),
    "a mask": lambda t, x: _where(tf.exp(x).numpy()),
    "small integer": lambda t, x: (int(tf.round(t)), 1, 2, 0),
    "stored": lambda t, x: _stored(float(t)),
    "array twice": lambda t, x: [tf.exp(x).numpy()] * 2,
    "truth": lambda t, x: ((t > 1.0).numpy(), np.True_, np.False_),
    "bytes": lambda t, x: (tf.strings.substr("ab", tf.cast(t > 1.0, tf.int32), 1).numpy(), b"a", b"b"),
    "in a dict": lambda t, x: _in_a_dict(float(t)),
    "nested": lambda t, x: tf.nest.map_structure(doubled, {"a": float(t)}),
    "cond": lambda t, x: tf.cond(float(t) > 1.0, lambda: x, lambda: -x),
    "by a layer": lambda t, x: LAYER(x, t.numpy()),
    "after what may fail": lambda t, x: _first(x - t),
}


class Scaled(tf.keras.layers.Layer):
    def call(self, x, by):
        return x * by


LAYER = Scaled()


def _fails(function):
    try:
        return function()
    except ZeroDivisionError:
        return "by zero"


def _which(value):
    other = value + 0.0
    return min(value, other) is value, [value, other].index(value)


def _first(x):
    try:
        return float(tf.squeeze(tf.boolean_mask(x, x > 0.5)))  # there may be several
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        return "several"


def _changed(array):
    array[0, 0] = 7.0
    return array


def _integer(t):
    return int(t * 2.0)


def _again(t, n):
    if n == 0:
        return int(t)
    return bool(_again(t, n - 1))


def _something_else(t):
    try:
        return int(t)
    finally:
        return 1  # noqa: B012


def _one_looked_at(array):
    a, b = np.argmax(array[0]), np.argmax(array[1])
    return a, ("second" if b else "first")


def _source_looked_at(array):
    mean = np.mean(array)
    return mean, tf.zeros(int(array[0, 0]) % 3 + 1)


def _changed_afterwards(array):
    most = np.argmax(array)
    array[0, 0] = 100.0
    return most, np.argmax(array)


def _changed_view(array):
    view = array[0]
    most = np.argmax(array)
    view[1] = 50.0
    return most, np.argmax(array), np.max(view)


def _changed_below_a_view(array):
    view = array[0]
    array[0, 1] = 70.0
    return np.max(view), np.sum(array)


def _with_a_view(array):
    view = array[0]
    view += 1.0
    return array, view


class Both:
    last = None


def _in_two_places(array):
    Both.last = array
    return array


def _where(array):
    return array[array > 1.0]


def _unpacked(values):
    a, b = values
    return "more" if a > b else "less", tf.zeros(int(abs(b)) % 4 + 1)


def _counted(values):
    n = 0
    for value in values:
        if value > 1.0:
            n += 1
    return n


def _stored(value):
    array = np.ones(2, "f")
    array[0] = value
    return tf.constant(array) * 2.0


def _augmented(value):
    total = 1.0
    total += value
    value += 1.0
    return total, value


def _in_a_dict(value):
    found = {"sum": 0.0, "same": value}
    found["sum"] += value
    found["same"] += 1.0
    return found


@pytest.mark.parametrize("name", LOOKED_AT)
def test_what_is_looked_at_is_right(name):
    run(LOOKED_AT[name])


def test_verified():
    """Both ways at each step."""
    @terra.coexecute(wait_for_graph=True, verify=True)
    def step(x):
        return float(tf.reduce_sum(x)), tf.reduce_max(x).numpy()

    for k in range(16):
        total, array = step(X[k % 5])
        assert total == float(tf.reduce_sum(X[k % 5])) and array == tf.reduce_max(X[k % 5]).numpy()
    assert step.stats().verified_calls >= 3


def floats_of(optimizer, v, s, loss):
    return {"loss": float(loss), "rate": float(optimizer.learning_rate), "scalar": float(s)}


def arrays_of(optimizer, v, s, loss):
    return loss.numpy(), optimizer.learning_rate.numpy(), v.numpy(), np.mean(v.numpy())


def looked_at_value_of(optimizer, v, s, loss):
    return loss * 2.0 if float(s) > 9.0 else loss, float(s) + 1.0


@pytest.mark.share(2)
@pytest.mark.parametrize("give, whole", [(floats_of, 10), (arrays_of, 10), (None, 10), (looked_at_value_of, 0)], ids=lambda x: getattr(x, "__name__", "integers"))
@pytest.mark.parametrize("root", ["keras", "tf_keras"])
def test_values_of_variables(root, give, whole):
    """What is logged of an optimizer, say."""
    library, results = __import__(root), []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        library.utils.set_random_seed(1)
        model = library.Sequential([library.layers.Dense(4)])
        model.build((None, 2))
        optimizer = library.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        v, s = tf.Variable([1.0, 2.0]), tf.Variable(2.0)

        @wrap
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            s.assign_add(0.5)
            v.assign(v * 1.1)
            if give is not None:
                return give(optimizer, v, s, loss)
            return float(loss), int(optimizer.iterations), bool(s), int(s)

        seen = []
        for k in range(26):
            if k == 14:
                optimizer.learning_rate = 0.05
            if k == 18:
                s.assign(0.0)
            seen.append(_plain(step(X[k % 5])))
        results.append(seen)
    assert repr(results[1]) == repr(results[0])
    stats = step.stats()
    assert stats.whole_steps >= whole and stats.coexecuted_steps >= 13, terra.explain(step)
    assert stats.fallbacks <= (give is looked_at_value_of), terra.explain(step)
