"""NumPy arrays among the arguments of a step that is skipped as a whole: their contents are data, unless the step's code looks at them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.tensors.tensor import alias_of, is_unread, tensor_of
from tests import harness
from tests.harness import flat
from tests.tracing.test_reduce_retracing import trained

STEPS = 20
KINDS = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]


def batch(i, kind="float32", shape=(6, 4)):
    return (np.random.default_rng(i).normal(size=shape) * 3).astype(kind)


def labels(i, n=6):
    return np.random.default_rng(100 + i).integers(0, 3, n)


def differ(make, given, steps=STEPS):
    return harness.differ(make, given, steps)


def model_of(K=keras):
    return K.Sequential([K.Input((4,)), K.layers.Dense(3)])


LOSSES = {
    "keras function": lambda y, p: tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)),
    "keras object": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "tf.nn": lambda y, p: tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=p)),
    "tf.nn of a tensor": lambda y, p: tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.convert_to_tensor(y), p)),
    "constant": lambda y, p: tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.constant(y, tf.int64), p)),
    "one_hot": lambda y, p: tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(y, 3), p)),
    "cast": lambda y, p: tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(tf.cast(y, tf.int32), 3), p)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_training_step_is_skipped(name):
    def make():
        model, optimizer, loss_fn = model_of(), keras.optimizers.Adam(0.01) if name == "keras object" else keras.optimizers.SGD(0.1), LOSSES[name]
        return trained(model, optimizer, loss_fn)
    stats = differ(make, lambda i: (batch(i), labels(i)))
    assert stats.whole_steps >= STEPS - 12 and stats.fallbacks == 0, stats


FORWARD = {
    "matmul": lambda x, w: tf.matmul(x, w),
    "operator": lambda x, w: x @ w,
    "square": lambda x, w: tf.reduce_mean((w[0] - x) ** 2.0) + tf.reduce_sum(tf.square(x)),
    "difference": lambda x, w: tf.matmul(x, w) + tf.reduce_mean(x) - tf.reduce_max(tf.reshape(x, (-1,))),
    "converted": lambda x, w: tf.matmul(tf.convert_to_tensor(x), w) * tf.constant(x, tf.float32),
    "cast": lambda x, w: tf.matmul(tf.cast(x, tf.float32), w),
    "shape": lambda x, w: tf.matmul(x, w) * float(x.shape[0] + x.ndim),
    "nested": lambda x, w: sum(tf.matmul(part, w) for part in (x, x)),
    "list": lambda x, w: tf.matmul(tf.concat([x, x * 2.0], axis=0), w),
    "list of parts": lambda x, w: tf.matmul(tf.concat([x[:, :2] - x[:, 2:] * 0.5, x[..., 2:]], -1), w),
    "limits": lambda x, w: tf.matmul(tf.clip_by_value(x, -1.0, 1.0), w),
    "stack": lambda x, w: tf.reduce_sum(tf.stack([x + 1.0, x], axis=-1)) + tf.matmul(x, w),
}


@pytest.mark.parametrize("name", FORWARD)
def test_functions_of_tensorflow(name):
    def make():
        weights = tf.Variable(tf.reshape(tf.range(16.0), (4, 4)))

        def step(x):
            result = FORWARD[name](x, weights)
            weights.assign_sub(tf.ones((4, 4)) * 1e-3)
            return result
        return step, lambda: weights
    stats = differ(make, lambda i: (batch(i),))
    assert stats.whole_steps >= STEPS - 12 and stats.fallbacks == 0, stats


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (6, 4), (30, 4)], ids=str)
def test_kinds(kind, shape):
    """What a type has no operation for raises as it does eagerly."""
    def make():
        total = tf.Variable(0.0)

        def step(x):
            total.assign_add(tf.reduce_sum(tf.cast(x, tf.float32)))
            return tf.identity(x), tf.expand_dims(x, 0), total * 2.0
        return step, lambda: total
    stats = differ(make, lambda i: (np.asarray(abs(batch(i, "float64", shape)), kind),))
    assert stats.whole_steps >= STEPS - 12, stats


def test_shapes_and_types_change():
    def make():
        total = tf.Variable(0.0)

        def step(x):
            total.assign_add(tf.reduce_sum(tf.cast(x, tf.float32)))
            return total * 2.0
        return step, lambda: total
    stats = differ(make, lambda i: (batch(i, KINDS[i // 15 % 2], (2 + i % 2, 4)),), 90)
    assert stats.whole_steps >= 30, stats


def look(x):
    return float(x[0, 0])


class Holder:
    kept = None


# What a step does with its array beyond making a tensor of it: each must keep the step from being skipped, for the result depends on it, unless it is calculated again.
LOOKS = {
    "item": lambda x, w: w * float(x[0, 0]),
    "branch": lambda x, w: w * 2.0 if x[0, 0] > 0 else w * 3.0,
    "numpy function": lambda x, w: w * float(np.mean(x)),
    "method": lambda x, w: w * float(x.mean()),
    "iteration": lambda x, w: w * float(sum(row[0] for row in x)),
    "slice": lambda x, w: tf.matmul(x[:, :2], w[:2]),
    "transposed": lambda x, w: tf.matmul(x.T, x),
    "arithmetic": lambda x, w: tf.matmul(x * 2, w),
    "in a function": lambda x, w: w * look(x),
    "read of the tensor": lambda x, w: w * float(tf.convert_to_tensor(x)[0, 0]),
    "numpy of the tensor": lambda x, w: w * float(tf.convert_to_tensor(x).numpy()[0, 0]),
    "branch on the tensor": lambda x, w: w * 2.0 if tf.convert_to_tensor(x)[0, 0] > 0 else w * 3.0,
    "static value": lambda x, w: w * float(tf.get_static_value(tf.convert_to_tensor(x))[0, 0]),
    "in a list": lambda x, w: tf.add_n([x, x]),
    "stacked": lambda x, w: tf.stack([x, x]) @ w,
    "text": lambda x, w: w * float(len(f"{x}")),
    "equality": lambda x, w: w * float((x == x.round()).sum()),
    "returned": lambda x, w: (w * 2.0, x),
    "truth": lambda x, w: w * 2.0 if x.any() else w,
    "length of contents": lambda x, w: w * float(len(set(x.ravel().tolist()))),
    "integers as a shape": lambda x, w: tf.ones(np.abs(x[0].astype(int)) + 1),
}


CALCULATED = frozenset(["item", "numpy function", "method", "slice", "transposed", "arithmetic", "in a function", "in a list", "stacked"])


@pytest.mark.parametrize("name", LOOKS)
def test_contents_are_looked_at(name):
    def make():
        weights = tf.Variable(tf.reshape(tf.range(16.0), (4, 4)))

        def step(x):
            result = LOOKS[name](x, weights)
            weights.assign_add(tf.matmul(tf.transpose(x), x) * 1e-3)
            return result
        return step, lambda: weights
    stats = differ(make, lambda i: (batch(i),))
    if name in CALCULATED:
        assert stats.whole_steps >= 10, stats
    else:
        assert stats.whole_steps == 0 or name == "branch on the tensor", stats  # there, what it reads decides what is skipped
    assert stats.coexecuted_steps >= 1 or name in ("integers as a shape", "branch"), stats


def test_integers_decide_a_shape():
    def make():
        total = tf.Variable(0.0)

        def step(n):
            total.assign_add(1.0)
            return tf.zeros(tf.cast(n, tf.int32)) + total, tf.reshape(tf.range(12), tf.convert_to_tensor(n)) + 1
        return step, lambda: total
    differ(make, lambda i: (np.array([(3, 4), (2, 6), (12, 1)][i % 3]),), 60)


def test_array_is_changed_in_the_step():
    def make():
        model, seen = model_of(), tf.Variable(0.0)

        def step(x):
            first = model(x)
            x += 1
            seen.assign_add(tf.reduce_sum(x))
            return first, model(x)
        return step, lambda: (seen, *model.variables)
    stats = differ(make, lambda i: (batch(i),))
    assert stats.whole_steps == 0 and stats.coexecuted_steps >= STEPS - 8, stats


def test_array_changes_behind_the_step():
    """The framework's code is given the array after a function that the step calls has changed it, unseen."""
    model = model_of()
    held = {}

    def scale(x):
        held["hook"] = x
        x *= 2
        return x

    def step(x):
        a = model(x)
        scale(x)
        return a, model(x)
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for i in range(STEPS):
        for a, b in zip(step(batch(i)), wrapped(batch(i))):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert wrapped.stats().whole_steps == 0 and wrapped.stats().coexecuted_steps >= STEPS - 8


def test_array_that_is_read_elsewhere_too():
    def make():
        holder, model = Holder(), model_of()
        holder.kept = batch(0)

        def step(x):
            return model(x), model(holder.kept)
        return step, lambda: model.variables, holder
    seen = []
    for coexecute in (False, True):
        keras.utils.set_random_seed(5)
        step, _, holder = make()
        if coexecute:
            step = terra.coexecute(step, wait_for_graph=True)
        seen.append([flat(step(holder.kept if i < 10 else batch(i))) for i in range(STEPS)])
    for expected, actual in zip(*seen):
        for a, b in zip(expected, actual):
            np.testing.assert_array_equal(a, b)
    assert step.stats().coexecuted_steps >= STEPS - 8


def test_one_array_twice():
    def make():
        model = model_of()

        def step(x, y, z):
            return model(x) - model(y), model(z)
        return step, lambda: model.variables

    def given(i):
        x, y = batch(i), batch(i + 50)
        return [(x, x, y), (x, y, x), (x, y, y)][i % 3]
    stats = differ(make, given, 60)
    assert stats.whole_steps >= 20, stats


HELD = batch(0)


@pytest.mark.parametrize("kind", ["array", "tensor", "list"])
def test_identity_with_something_else(kind):
    held = {"array": HELD, "tensor": tf.constant(HELD), "list": [tf.constant(HELD)]}[kind]

    def make():
        model = model_of()

        def step(x):
            return model(x[0] if kind == "list" else x) * (1.0 if x is held else 2.0)
        return step, lambda: model.variables

    def given(i):
        fresh = {"array": lambda: batch(i), "tensor": lambda: tf.constant(batch(i)), "list": lambda: [tf.constant(batch(i))]}[kind]()
        return (held if i % 20 == 19 else fresh,)
    differ(make, given, 60)


FIRST = {
    "multiply": lambda x: tf.multiply(2, x), "small": lambda x: tf.multiply(0.1, x), "divide": lambda x: tf.divide(3, x), "subtract": lambda x: tf.subtract(1.0, x),
    "numpy": lambda x: tf.multiply(np.float64(0.1), x), "list": lambda x: tf.add([0.5] * 4, x), "second": lambda x: tf.multiply(x, 0.1),
    "alone": lambda x: tf.multiply(x, x), "matmul": lambda x: tf.matmul(x, x, transpose_b=True), "mixed": lambda x: tf.add(x, tf.constant(1.0)),
    "one_hot": lambda x: tf.one_hot(x, 3), "gather": lambda x: tf.gather(tf.range(50), abs(x)), "cast": lambda x: tf.cast(x, tf.int32),
    "constant": lambda x: tf.constant(x, "float32"), "shape only": lambda x: tf.ones(x.shape),
}


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int64", "uint8", "bool", ">f4", "longlong"])
def test_types_of_operands(name, kind):
    """Which type an operation has, TensorFlow decides as it does eagerly, be it by raising an error."""
    def make():
        def step(x):
            try:
                result = FIRST[name](x)
            except Exception as error:  # noqa: BLE001  (whatever eager raises)
                return type(error).__name__, x.dtype.str
            return result, result.dtype.name, x.dtype.str
        return step, lambda: ()
    differ(make, lambda i: (batch(i, kind),), 10)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.dense(x) * 2.0


def test_model_of_the_users_and_metrics():
    def make():
        model, optimizer, loss_fn = Net(), keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalAccuracy()

        def step(x, y, weight):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = loss_fn(y_true=y, y_pred=logits, sample_weight=weight)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            metric.update_state(y, logits)
            return loss
        return step, lambda: (*model.variables, metric.result())
    stats = differ(make, lambda i: (batch(i), labels(i), batch(i, shape=(6,))))
    assert stats.whole_steps >= STEPS - 12, stats


def mean_of_errors(x=None, y=None, y_pred=None, sample_weight=None, training=True):
    return tf.reduce_mean((y_pred - y.astype("float32")) ** 2)


def test_code_of_the_users_comes_to_see_them():
    runs = []
    for coexecuted in (False, True):
        keras.utils.set_random_seed(3)
        model, found = model_of(), []
        model.compile("sgd", "mse", run_eagerly=True)
        steps = terra.compile(model, wait_for_graph=True) if coexecuted else None
        for k in range(STEPS):
            if k == 12:
                model.compute_loss = mean_of_errors
            found.append(model.train_on_batch(batch(k), labels(k).reshape(6, 1)))
        runs.append(found)
    np.testing.assert_array_equal(*runs)
    stats = steps.stats()["train"]
    assert stats.coexecuted_steps >= STEPS - 8 and stats.whole_steps >= 6, stats


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_models_with_several_inputs(kind):
    def make():
        a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
        model = keras.Model({"a": a, "b": b} if kind is dict else [a, b], keras.layers.Dense(2)(keras.layers.Concatenate()([a, b])))

        def step(x, y):
            return model({"a": x, "b": y} if kind is dict else kind([x, y]))
        return step, lambda: model.variables
    stats = differ(make, lambda i: (batch(i), batch(i, shape=(6, 3))))
    assert stats.whole_steps >= STEPS - 12, stats


def test_containers():
    """Batches in dicts and tuples; several inputs of a model."""
    def make():
        a, b = keras.Input((4,)), keras.Input((3,))
        model = keras.Model([a, b], keras.layers.Dense(2)(keras.layers.Concatenate()([a, b])))

        def step(given, pair, *, rest):
            (x,), y = given["x"], pair[0]
            return model([tf.convert_to_tensor(x), tf.convert_to_tensor(y)]) + tf.matmul(rest, rest)
        return step, lambda: model.variables
    seen = []
    for coexecute in (False, True):
        keras.utils.set_random_seed(5)
        step, _ = make()
        if coexecute:
            step = terra.coexecute(step, wait_for_graph=True)
        seen.append([
            flat(step({"x": (batch(i, shape=(2, 4)),)}, [batch(i, shape=(2, 3)), "name"], rest=batch(i, shape=(2, 2)))) for i in range(STEPS)])
    for expected, actual in zip(*seen):
        for p, q in zip(expected, actual):
            np.testing.assert_array_equal(p, q)
    assert step.stats().whole_steps >= STEPS - 8, step.stats()


@pytest.mark.parametrize("how", ["transposed", "strided", "subclass", "big-endian", "read-only", "fortran"])
def test_unusual_arrays(how):
    def unusual(x):
        if how == "transposed":
            return np.ascontiguousarray(x.T).T
        if how == "strided":
            return np.repeat(x, 2, 0)[::2]
        if how == "subclass":
            return x.view(np.recarray)
        if how == "big-endian":
            return x.astype(">f4")
        if how == "fortran":
            return np.asfortranarray(x)
        x.flags.writeable = False
        return x

    def make():
        model = model_of()

        def step(x):
            return model(x) * 2.0, tf.reduce_sum(tf.convert_to_tensor(x))
        return step, lambda: model.variables
    differ(make, lambda i: (unusual(batch(i)),))


def test_buffer_is_used_again():
    """Steps are in flight while the program overwrites the array that they were given."""
    model, total = model_of(), tf.Variable(tf.zeros((3,)))

    def step(x):
        total.assign_add(tf.reduce_sum(model(x), 0))
        return total * 1.0
    wrapped, buffer, expected = terra.coexecute(step, wait_for_graph=True), np.empty((512, 4), np.float32), []
    results = []
    for i in range(40):
        buffer[:] = batch(i, shape=(512, 4))
        results.append(wrapped(buffer))
        buffer[:] = np.nan
    found = [r.numpy() for r in results]
    total.assign(tf.zeros((3,)))
    for i in range(40):
        expected.append(step(batch(i, shape=(512, 4))).numpy())
    np.testing.assert_array_equal(found, expected)
    assert wrapped.stats().whole_steps >= 25


def test_gradient_with_respect_to_an_array():
    """A tape that watches the tensor of an array."""
    def make():
        model = model_of()

        def step(x):
            given = tf.convert_to_tensor(x)
            with tf.GradientTape() as tape:
                tape.watch(given)
                loss = tf.reduce_sum(model(given) ** 2.0)
            return tape.gradient(loss, given), loss
        return step, lambda: model.variables
    differ(make, lambda i: (batch(i),))


def test_result_is_the_tensor_of_the_array():
    def make():
        count = tf.Variable(0.0)

        def step(x):
            count.assign_add(1.0)
            return tf.convert_to_tensor(x), count * 1.0
        return step, lambda: count
    differ(make, lambda i: (batch(i),))


def test_unused_array():
    def make():
        count = tf.Variable(0.0)

        def step(x, y):
            count.assign_add(tf.reduce_sum(tf.cast(x, tf.float32)))
            return count * 1.0
        return step, lambda: count
    stats = differ(make, lambda i: (batch(i), labels(i)))
    assert stats.whole_steps >= STEPS - 12, stats


@pytest.mark.parametrize("read", [
    bool, int, float, np.asarray, tf.get_static_value, lambda x: x.numpy(), lambda x: [0, 1][x], lambda x: f"{x}", lambda x: np.float32(3) * np.asarray(x),
    lambda x: tf.py_function(lambda y: y, [x], tf.int64)])
def test_reads_of_a_tensor_made_of_an_array_are_noticed(read):
    made = tensor_of(np.array(1))
    other = alias_of(made)
    assert made.shape == () and made.dtype == tf.int64 and len(tf.nest.flatten([made])) == 1 and is_unread(made)
    read(made)
    assert not is_unread(made) and not is_unread(other)


def beside(name, x, array):
    return {
        "x + a": lambda: x + array, "a - x": lambda: array - x, "x * a": lambda: x * array, "a / x": lambda: array / x, "x @ a": lambda: x @ array.T, "a @ x": lambda: array.T @ x,
        "twice": lambda: x * array + array * x, "of a slice": lambda: x[1] * array[1] + x, "calculated": lambda: x + 0.5 * np.tanh(array),
        "power": lambda: x ** array, "compared": lambda: tf.where(x < array, x, array),
    }[name]()


@pytest.mark.share(2)
@pytest.mark.parametrize("how", ["argument", "float64", "drawn", "drawn, float64", "drawn mask"])
@pytest.mark.parametrize("name", ["x + a", "a - x", "x * a", "a / x", "x @ a", "a @ x", "twice", "of a slice", "calculated", "power", "compared"])
def test_beside_a_tensor_that_was_there_before(name, how):
    """Which is no tensor of the step, and has TensorFlow's own operators."""
    if name in ("power", "compared", "a / x") and how == "drawn mask":
        return

    def make():
        constant, v, rng = tf.constant(batch(1)) + 20.0, tf.Variable(1.0), np.random.default_rng(3)

        def step(array):
            if how.startswith("drawn"):
                array = rng.normal(size=(6, 4))
                array = array > 0.0 if how == "drawn mask" else array if "64" in how else array.astype("float32")
                array = array.astype("float32") if how == "drawn mask" else array
            v.assign_add(0.25)
            return tf.tanh(beside(name, constant, array)) * v
        return step, lambda: [v, tf.constant(rng.random())]
    kind = "float64" if how == "float64" else "float32"
    stats = differ(make, lambda i: (batch(i, kind),))
    assert name in ("power", "compared") or stats.whole_steps >= STEPS - 12, (name, how, stats)


class Pair(keras.Model):
    """Of a user's class, given one array, or two in a container."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, given):
        if isinstance(given, dict):
            given = given["a"], given["b"]
        return self.dense(given[0] + given[1] if isinstance(given, (tuple, list)) else given)


CONTAINERS = {"alone": lambda a, b: a, "tuple": lambda a, b: (a, b), "list": lambda a, b: [a, b], "dict": lambda a, b: {"a": a, "b": b}, "beside a tensor": lambda a, b: (a, tf.constant(b))}


@pytest.mark.all_variants
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_layer_of_the_users_is_given_a_container_of_arrays(name):
    def make():
        layer, optimizer = Pair(), keras.optimizers.SGD(0.1)
        layer(batch(0))

        def step(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(CONTAINERS[name](a, b)) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))
            return loss
        return step, lambda: layer.variables
    stats = differ(make, lambda i: (batch(i), batch(i + 50)))
    assert stats.whole_steps >= STEPS - 12 and stats.fallbacks == 0, stats


@pytest.mark.all_variants
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_layer_of_the_users_is_given_arrays_that_were_there_before(name, kept):
    """Which the program changes, and exchanges, between two steps."""
    def make():
        layer, v, arrays = Pair(), tf.Variable(1.0), [batch(1), batch(2)]
        layer(arrays[0])
        given = [CONTAINERS[name](*arrays)]

        def step(i):
            v.assign_add(1.0)
            return tf.reduce_sum(layer(given[0] if kept else CONTAINERS[name](*arrays))) * v

        def change(i):
            if i in (12, 20):
                arrays[0][0] += 1.0
            elif i == 25:
                arrays[1] = batch(3)
                if isinstance(given[0], dict):
                    given[0]["b"] = arrays[1]
                elif isinstance(given[0], list):
                    given[0][1] = arrays[1]
            return tf.constant(float(i))
        changes.append(change)
        return step, lambda: [v]

    changes = []
    stats = differ(make, lambda i: (changes[-1](i),), 36)
    assert stats.whole_steps >= 12, stats
