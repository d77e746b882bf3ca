"""Steps with `tf.vectorized_map`, of which TensorFlow makes a function at each call: skipped as a whole, and right when something changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from terra.runtime.fast_forward.sites import framework_loops
from tests import harness

RNG = np.random.default_rng(0)
X = [tf.constant(RNG.normal(size=(4, 3)).astype("f")) for _ in range(3)]
LARGE = [tf.constant(RNG.normal(size=(20, 10)).astype("f")) for _ in range(3)]


def compare(make, whole=5, express=2, n=13, **options):
    return harness.compare_steps(make, whole, express, n, **options)


def straight(w, x):
    return tf.vectorized_map(lambda row: tf.tanh(tf.linalg.matvec(w, row)) * tf.reduce_sum(row), x)


def of_a_tensor_of_the_step(w, x):
    """A small one, which TensorFlow would make a constant of the function."""
    mean, y = tf.reduce_mean(x), x @ w
    return tf.vectorized_map(lambda row: row * mean - y[0], x)


def of_several(w, x):
    return tf.vectorized_map(lambda rows: {"sum": rows[0] + rows[1]["b"], "first": rows[0][0]}, (x, {"b": x @ w}))


def of_the_frameworks(w, x):
    return tf.vectorized_map(tf.square, x @ w, fallback_to_while_loop=False)


def with_a_body(w, x):
    def body(row):
        y = tf.linalg.matvec(w, row)
        z = tf.nn.relu(y) + tf.cast(tf.range(3), tf.float32)
        return z[::-1], tf.stack([y, z])

    return tf.vectorized_map(body, elems=x)


def gradients(w, x):
    def loss_and_gradient(row):
        with tf.GradientTape() as tape:
            tape.watch(row)
            loss = tf.reduce_sum(tf.square(tf.linalg.matvec(w, row)))
        return loss, tape.gradient(loss, row)

    return tf.vectorized_map(loss_and_gradient, x)


def nested(w, x):
    return tf.vectorized_map(lambda row: tf.einsum("i,j->ij", row, tf.linalg.matvec(w, row)), tf.vectorized_map(lambda row: row * 2.0, x))


FORWARD = [straight, of_a_tensor_of_the_step, of_several, of_the_frameworks, with_a_body, nested, gradients]


def training(forward, given):
    def make():
        w = tf.Variable(tf.eye(int(given[0].shape[1])) * 0.5)
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build([w])

        def step(x):
            with tf.GradientTape() as tape:
                out = forward(w, x)
                loss = tf.add_n([tf.reduce_sum(y ** 2) for y in tf.nest.flatten(out)]) * 0.01
            gradient = tape.gradient(loss, w)
            if gradient is not None:
                optimizer.apply_gradients([(gradient, w)])
            return loss, out

        return step, lambda step, k: step(given[k % 3]), lambda: w

    return make


@pytest.mark.parametrize("forward", FORWARD, ids=lambda forward: forward.__name__)
def test_such_steps_are_skipped(forward):
    compare(training(forward, X))


@pytest.mark.one_variant
@pytest.mark.parametrize("forward", [straight, gradients], ids=lambda forward: forward.__name__)
def test_large_tensors(forward):
    compare(training(forward, LARGE))


@pytest.mark.one_variant
@pytest.mark.parametrize("forward", [of_several, gradients], ids=lambda forward: forward.__name__)
def test_verified(forward):
    compare(training(forward, X), n=16, verify=True)


def test_other_lengths():
    given = [tf.constant(RNG.normal(size=(n, 3)).astype("f")) for n in (4, 2, 5)]
    compare(training(straight, given), n=18)


def test_gradients_of_each_example():
    """As for differential privacy."""
    def make():
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def of_one(row):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(row[None]) - 1.0))
            return loss, tape.gradient(loss, model.trainable_variables)

        def step(x):
            losses, found = tf.vectorized_map(of_one, x)
            norms = tf.sqrt(tf.add_n([tf.reduce_sum(tf.reshape(g, (4, -1)) ** 2, 1) for g in found]))
            scale = tf.minimum(1.0, 0.5 / norms)
            optimizer.apply_gradients(zip([tf.einsum("b,b...->...", scale, g) / 4 for g in found], model.trainable_variables))
            return tf.reduce_mean(losses), norms

        return step, lambda: [v.numpy() for v in model.variables]

    def close(a, b, err_msg):  # TensorFlow fuses operations of the function, which Terra's graph has as they are
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=err_msg)

    stats = harness.differ(make, lambda k: (X[k % 3],), 16, close)
    assert stats.whole_steps > 7 and stats.express_steps > 3


# -- something changes -------------------------------------------------------------------------------------------------------------


def changing(make_step, change, whole=4, **options):
    """`make_step(world)` gives a step; `change(k, world)` changes something before step k."""
    def make():
        world = {"w": tf.Variable(tf.eye(3)), "scale": 1.0, "shift": np.float32([1.0, 2.0, 3.0]), "shape": [3], "log": []}
        step = make_step(world)

        def call(step, k):
            change(k, world)
            return step(X[k % 3])

        return step, call, lambda: [world["w"], world["log"]]

    return compare(make, whole=whole, express=0, n=20, **options)


def at(steps, what):
    def change(k, world):
        if k in steps:
            what(world, k)

    return change


def set_scale(world, k):
    world["scale"] += 1.0


def test_an_item_that_the_function_reads():
    changing(lambda world: lambda x: tf.vectorized_map(lambda row: row * world["scale"], x), at((11, 16), set_scale))


def reads_around_it(world):
    def step(x):
        scale = world["scale"]
        return tf.vectorized_map(lambda row: row * scale, x)

    return step


def test_an_item_that_is_read_around_it():
    changing(reads_around_it, at((11, 16), set_scale))


def test_a_number_that_varies():
    with pytest.raises(AssertionError, match="imperative_steps"):  # it is a constant of the function, which is another one each time: co-execution is given up
        changing(reads_around_it, at(range(7, 22), set_scale), whole=0)


def test_an_array_that_is_changed_in_place():
    def shift(world, k):
        world["shift"][1] += 1.0

    changing(lambda world: lambda x: tf.vectorized_map(lambda row: row + world["shift"], x), at((11, 16), shift))
    changing(lambda world: lambda x: tf.vectorized_map(lambda row: tf.add(row, world["shift"]), x), at((11, 16), shift))


def test_a_list_that_is_changed_in_place():
    def shift(world, k):
        world["shape"][:] = [1, 3] if len(world["shape"]) == 1 else [3, 1]

    changing(lambda world: lambda x: tf.vectorized_map(lambda row: tf.reshape(row, world["shape"]), x), at((11, 16), shift))


@pytest.mark.share(2)
@pytest.mark.parametrize("function", [lambda x, shift: lambda row: row + shift, lambda x, shift: lambda row: tf.add(row, shift)], ids=["operator", "function"])
def test_an_array_that_comes_with_the_step(function):
    """It is a constant of the function."""
    def make():
        def step(x, shift):
            return tf.vectorized_map(function(x, shift), x)

        return step, lambda step, k: step(X[k % 3], np.full((30, 3), 2 + (k > 9), np.float32)), lambda: 0

    compare(make, whole=0, express=0)


def test_an_array_to_be_mapped():
    def make():
        w = tf.Variable(tf.eye(3))

        def step(x):
            return tf.vectorized_map(lambda row: tf.linalg.matvec(w, row), x)

        arrays = [x.numpy() for x in X]
        return step, lambda step, k: step(arrays[k % 3]), lambda: 0

    compare(make, whole=0, express=0)


def test_a_variable_that_is_replaced():
    def replace(world, k):
        world["w"] = tf.Variable(tf.eye(3) * float(k))

    changing(lambda world: lambda x: tf.vectorized_map(lambda row: tf.linalg.matvec(world["w"], row), x), at((11, 16), replace))


def test_a_setting_of_a_layer_that_is_called():
    def make():
        layer = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(1))
        layer.build((None, 3))

        def step(x):
            return tf.vectorized_map(lambda row: layer(row[None])[0], x)

        def call(step, k):
            layer.activation = keras.activations.relu if 9 <= k < 14 else keras.activations.tanh
            if k == 18:
                layer.kernel.assign(layer.kernel + 1.0)
            return step(X[k % 3])

        return step, call, lambda: layer.variables

    compare(make, whole=6, n=24)


def test_a_layer_with_code_of_the_programs():
    """What it does happens at each step."""
    class Noting(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seen = []

        def call(self, x):
            self.seen.append("called")
            return x * 2.0

    def make():
        layer = Noting()
        return lambda x: tf.vectorized_map(lambda row: layer(row), x), lambda step, k: step(X[k % 3]), lambda: len(layer.seen) > 0

    compare(make, whole=0, express=0)


def test_what_the_function_does():
    def make_step(world):
        def body(row):
            world["log"].append("called")
            return row * 2.0

        return lambda x: tf.vectorized_map(body, x)

    changing(make_step, lambda k, world: None, whole=0)


def test_functions_that_autograph_converts():
    def body(row):
        if row.shape[0] > 2:
            row = row * 2.0
        return row

    changing(lambda world: lambda x: tf.vectorized_map(body, x), lambda k, world: None, whole=0)


def test_random_numbers_in_the_function():
    """Each call has some of its own."""
    def make():
        def step(x):
            return tf.vectorized_map(lambda row: row + tf.random.stateless_normal([3], [1, 2]), x)

        return step, lambda step, k: step(X[k % 3]), lambda: 0

    compare(make)


def test_a_function_that_raises():
    """As it does eagerly, at each step."""
    def make():
        def step(x):
            try:
                return tf.vectorized_map(lambda row: tf.reshape(row, [7]), x)
            except ValueError:
                return tf.reduce_sum(x)

        return step, lambda step, k: step(X[k % 3]), lambda: 0

    compare(make, whole=0, express=0)


def test_vectorized_map_replaced(monkeypatch):
    """Somebody else's function is called."""
    original = tf.vectorized_map

    def make():
        calls = []

        def replacement(fn, elems):
            calls.append(1)
            return original(fn, elems)

        def step(x):
            return tf.vectorized_map(lambda row: row * 2.0, x)

        def call(step, k):
            if k == 10:
                monkeypatch.setattr(tf, "vectorized_map", replacement)
            return step(X[k % 3])

        monkeypatch.setattr(tf, "vectorized_map", original)
        return step, call, lambda: calls

    compare(make, express=0)


def test_in_a_step_that_prints(capsys):
    """Which is not skipped: the function is made anew each time, and is the same."""
    def make():
        w = tf.Variable(tf.eye(3))

        def step(x):
            print("step")
            y = tf.vectorized_map(lambda row: tf.linalg.matvec(w, row) + tf.reduce_mean(row), x)
            w.assign_add(0.01 * tf.eye(3))
            return y

        return step, lambda step, k: step(X[k % 3]), lambda: w

    stats = compare(make, whole=0, express=0, n=16).stats()
    assert stats.coexecuted_steps > 10 and stats.fallbacks == 0
    assert capsys.readouterr().out == "step\n" * 32


def test_jacobians_differ_by_what_grappler_makes_of_constants():
    """Without it they have eager's bits."""
    t = tf.linspace(tf.constant(0.0, tf.float64), 6.0, 50)

    def make():
        p = tf.Variable([0.1, 2.0], dtype=tf.float64)

        def step(x):
            with tf.GradientTape() as tape:
                y = tf.exp(-p[0] * t) * tf.cos(p[1] * t)
            jacobian = tape.jacobian(y, p)
            p.assign_add(0.001 * x)
            return jacobian
        return step, lambda: p

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        stats = harness.differ(make, lambda i: (tf.cos(float(i) + tf.range(2, dtype=tf.float64)),), 14)
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})
    assert stats.coexecuted_steps >= 11


def test_jacobians_as_before():
    """`tape.jacobian` runs through the same function of TensorFlow's."""
    def make():
        w = tf.Variable(tf.eye(3))

        def step(x):
            with tf.GradientTape() as tape:
                y = tf.tanh(x @ w)
            jacobian = tape.jacobian(y, w)
            w.assign_sub(0.01 * tf.reduce_mean(jacobian, [0, 1]))
            return jacobian

        return step, lambda step, k: step(X[k % 3]), lambda: w

    compare(make)


def if_positive(row):
    if tf.reduce_sum(row) > -1e6:
        row = row * 2.0
    return row


def of_an_item(functions):
    return lambda row: functions[0](row)


def of_an_item_with_a_name(functions):
    def body(row):
        chosen = functions[0]
        return chosen(row)

    return body


def handed_on(functions):
    return lambda row: tf.nest.map_structure(functions[0], row)


@pytest.mark.parametrize("make_body", [of_an_item, of_an_item_with_a_name, handed_on])
@pytest.mark.parametrize("functions", [[if_positive], {0: if_positive}], ids=["list", "dict"])
def test_functions_out_of_a_container(make_body, functions):
    """AutoGraph converts these, too."""
    body = make_body(functions)
    assert not framework_loops.autograph_leaves(body)
    compare(lambda: (lambda x: tf.map_fn(body, x), lambda step, k: step(X[k % 3]), lambda: 0), whole=0, express=0)


def test_containers_with_data_only():
    numbers = {"nested": [(1.0, np.ones(3))], "variable": tf.Variable(1.0)}
    assert framework_loops.autograph_leaves(lambda row: row * numbers["nested"][0][0])
    numbers["nested"].append(numbers)
    assert not framework_loops.autograph_leaves(lambda row: row * numbers["nested"][0][0])
