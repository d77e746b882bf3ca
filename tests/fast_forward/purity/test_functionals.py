"""Steps with the framework's loops (`tf.map_fn`, `tf.scan`, `tf.while_loop` ...), custom gradients and TensorArrays: skipped as a whole, and right when something changes."""

import gc
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from terra.runtime.fast_forward.sites import framework_loops
from tests import harness

RNG = np.random.default_rng(0)
X = [tf.constant(RNG.normal(size=(4, 3)).astype("f")) for _ in range(3)]
UNEQUAL = [tf.constant(RNG.normal(size=(n, 3)).astype("f")) for n in (4, 2, 5)]


def mapped(w, x):
    return tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(w, row)), x)


def mapped_to_others(w, x):
    return tf.map_fn(lambda row: (tf.reduce_sum(row * w[0]), row * 2.0), x, fn_output_signature=(tf.float32, tf.float32))


def mapped_dict(w, x):
    return tf.map_fn(lambda row: row["a"] * w[0] + row["b"], {"a": x, "b": x * 2.0}, fn_output_signature=tf.TensorSpec([3]))


def mapped_by_the_frameworks(w, x):
    return tf.map_fn(tf.square, x @ w)


def scanned(w, x):
    return tf.scan(lambda state, row: tf.tanh(tf.linalg.matvec(w, row) + state), x, initializer=tf.zeros(3))


def scanned_backwards(w, x):
    def body(state, row):
        a, b = state
        return tf.tanh(a + tf.linalg.matvec(w, row)), b * 0.9 + a

    return tf.scan(body, x, initializer=(tf.zeros(3), tf.ones(3)), reverse=True)


def folded(w, x):
    return tf.foldl(lambda a, row: a * 0.5 + tf.linalg.matvec(w, row), x), tf.foldr(lambda a, row: a + row * w[1], x, initializer=tf.zeros(3))


def looped(w, x):
    return tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, tf.tanh(h @ w)), (0, x))


def looped_by_name(w, x):
    return tf.while_loop(cond=lambda d: d["i"] < 3, body=lambda d: ({"i": d["i"] + 1, "h": d["h"] @ w},), loop_vars=({"i": tf.constant(0), "h": x},), maximum_iterations=5)


def looped_over_an_array(w, x):
    def body(i, h, array):
        h = tf.tanh(h @ w)
        return i + 1, h, array.write(i, h)

    array = tf.TensorArray(tf.float32, size=3)
    return tf.while_loop(lambda i, h, array: i < 3, body, (0, x, array))[2].stack()


def array(w, x):
    rows, h = tf.TensorArray(tf.float32, size=0, dynamic_size=True), tf.zeros(3)
    for i in range(x.shape[0]):
        h = tf.tanh(tf.linalg.matvec(w, x[i]) + h)
        rows = rows.write(i, h)
    return rows.stack(), rows.read(1), rows.concat() if rows.size() == 0 else rows.gather([0, 2])


def array_taken_apart(w, x):
    rows = tf.TensorArray(tf.float32, size=4, clear_after_read=False).unstack(x @ w)
    return tf.stack([rows.read(i) * float(i) for i in range(4)]), rows.stack()


def nested_loops(w, x):
    def body(row):
        return tf.while_loop(lambda i, r: i < 2, lambda i, r: (i + 1, tf.linalg.matvec(w, r)), (0, row))[1]

    return tf.scan(lambda a, row: body(a) + tf.foldl(lambda b, y: b + y, tf.stack([row, row])), x)


def gradient_inside(w, x):
    def body(row):
        with tf.GradientTape() as tape:
            tape.watch(row)
            y = tf.reduce_sum(tf.linalg.matvec(w, row) ** 2)
        return tape.gradient(y, row)

    return tf.scan(lambda a, row: a + body(row), x, initializer=tf.zeros(3))


def of_labels(w, x):
    """A loss that TensorFlow computes by loops of its own, over tensors that begin as zeros (`Empty`)."""
    logits = tf.stack([x @ w, x * w[0]])
    return tf.nn.ctc_loss([[1, 2], [2, 0]], logits, [2, 1], [4, 3], logits_time_major=False, blank_index=0)


@tf.function
def of_labels_in_a_function(w, x):
    return of_labels(w, tf.debugging.check_numerics(x, "numbers"))


@tf.custom_gradient
def clipped(x):
    return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.5)


@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)

    def gradient(dy):
        return dy * (1 - 1 / (1 + e))

    return tf.math.log(1 + e), gradient


@tf.custom_gradient
def product(x, y):
    def gradient(dy):
        return dy * y * 2.0, dy * x

    return x * y, gradient


@tf.custom_gradient
def two(x):
    def gradient(da, db):
        return da * 2.0 - db

    return (x * 2.0, -x), gradient


V = tf.Variable(tf.ones(3))


@tf.custom_gradient
def with_a_variable(x):
    def gradient(dy, variables=None):
        return dy * 0.5, [tf.reduce_sum(dy, 0) for _ in variables]

    return x * V, gradient


class Decorated:
    scale = 3.0

    @tf.custom_gradient
    def method(self, x):
        return x * self.scale, lambda dy: dy * self.scale * 0.1


def custom_gradients(w, x):
    return log1pexp(clipped(x @ w)), product(x @ w, x), two(x @ w)


def custom_gradient_with_a_variable(w, x):
    return with_a_variable(x @ w)


def custom_gradient_in_a_loop(w, x):
    return tf.scan(lambda a, row: clipped(a + tf.linalg.matvec(w, row)), x, initializer=tf.zeros(3))


def second_order(w, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(log1pexp(x @ w))
    return tape.gradient(y, x)


def of_keras(w, x):
    ops = keras.ops
    return (
        ops.while_loop(lambda h: ops.sum(h * h) < -1.0, lambda h: h * 1.5, x @ w), ops.fori_loop(0, 3, lambda i, h: ops.tanh(h @ w), x),
        ops.map(lambda row: ops.tanh(row), x @ w), ops.scan(lambda h, row: (ops.tanh(h + row), h), tf.zeros(3), x @ w))


SKIPPED = [
    mapped, mapped_to_others, mapped_dict, mapped_by_the_frameworks, scanned, scanned_backwards, folded, looped, looped_by_name, looped_over_an_array, array, array_taken_apart,
    nested_loops, gradient_inside, custom_gradients, custom_gradient_with_a_variable, custom_gradient_in_a_loop, second_order, of_keras, of_labels,
    of_labels_in_a_function,
]


def training(forward, given):
    """A job for `harness.compare_steps`: a step that trains a matrix on what `forward` gives."""

    def make():
        w = tf.Variable(tf.random.normal((3, 3), stddev=0.4))

        def step(x):
            with tf.GradientTape() as tape:
                results = forward(w, x)
                loss = tf.add_n([tf.reduce_mean(y * y) for y in tf.nest.flatten(results) if y.dtype.is_floating])
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss, results

        return step, lambda step, k: step(given[k % len(given)]), lambda: w

    return make


@pytest.mark.parametrize("forward", SKIPPED, ids=lambda f: f.__name__)
def test_such_steps_are_skipped(forward):
    harness.compare_steps(training(forward, X), n=24, express=0 if forward in (looped, looped_by_name, of_keras) else 4)  # which give an integer, or read a condition


@pytest.mark.parametrize("forward", [mapped, scanned, folded, array], ids=lambda f: f.__name__)
def test_other_lengths(forward):
    def make():
        w = tf.Variable(tf.random.normal((3, 3), stddev=0.4))
        given = X[:1] * 6 + UNEQUAL[::2]
        return lambda x: forward(w, x), lambda step, k: step(given[k % len(given)]), lambda: w

    harness.compare_steps(make, express=0, n=50)


@pytest.mark.parametrize("forward", [mapped, scanned, looped, array, custom_gradients], ids=lambda f: f.__name__)
def test_skipped_calls_are_verified(forward):
    harness.compare_steps(training(forward, X), n=24, verify=True)


# -- what the guards are for -------------------------------------------------------------------------------------------------------


def changing(make_step, change, whole=8, **options):
    """Compares a step that is skipped until `change(k, world)` changes something, and after that."""

    def make():
        world = {"scale": 2.0, "w": tf.Variable(tf.ones(3)), "seen": [], "layer": tf.keras.layers.Dropout(0.5)}
        step = make_step(world)

        def call(step, k):
            if k % 11 == 10:
                change(k, world)
            return step(X[k % 3])

        return step, call, lambda: (world["w"], world["seen"], world["scale"])

    return harness.compare_steps(make, whole=whole, express=0, n=32, **options)


def set_scale(k, world):
    world["scale"] += 0.5


def test_an_item_that_the_function_reads():
    changing(lambda world: lambda x: tf.scan(lambda a, row: a + row * world["scale"], x), set_scale)


def test_a_variable_of_a_closure():
    def make_step(world):
        scale = 2.0

        def change(k, world):
            nonlocal scale
            scale += 1.0

        world["change"] = change
        return lambda x: tf.map_fn(lambda row: tf.tanh(row) * scale, x)

    changing(make_step, lambda k, world: world["change"](k, world), whole=5)


def test_a_function_that_is_replaced():
    def change(k, world):
        world["scale"] += 1.0
        world["body"] = (lambda a, row: a - row) if k % 2 else (lambda a, row: a + row * row)

    def make_step(world):
        world["body"] = lambda a, row: a + row
        return lambda x: tf.scan(world["body"], x)

    changing(make_step, change)


def test_a_loop_that_is_replaced(monkeypatch):
    original = tf.scan

    def change(k, world):
        tf.scan = (lambda fn, x: original(fn, x) * 2.0) if tf.scan is original else original

    try:
        changing(lambda world: lambda x: tf.scan(lambda a, row: a + row, x), change, whole=5)
    finally:
        tf.scan = original


def test_a_setting_of_a_layer_that_the_function_calls():
    def change(k, world):
        world["layer"].rate = 0.5 if world["layer"].rate != 0.5 else 0.0

    changing(lambda world: lambda x: tf.scan(lambda a, row: a + world["layer"](row, training=True), x), change, whole=5)


def test_items_that_are_appended():
    steps = changing(lambda world: lambda x: (tf.scan(lambda a, row: (world["seen"].append(1), a + row)[1], x), len(world["seen"])), set_scale, whole=0)
    assert steps.stats().coexecuted_steps > 20


def test_variables_that_the_function_assigns_to():
    def make_step(world):
        def body(a, row):
            world["w"].assign_add(row * 0.01)
            return a + world["w"]

        return lambda x: tf.scan(body, x)

    changing(make_step, set_scale)


def test_a_condition_that_is_computed():
    """How many iterations there are depends on values."""

    def make():
        def step(x):
            return tf.while_loop(lambda h: tf.reduce_sum(h * h) < 50.0, lambda h: (h * 1.5,), (x,))

        return step, lambda step, k: step(X[k % 2]), lambda: 0

    harness.compare_steps(make, whole=0, express=0)


def test_a_condition_on_an_argument():
    """It is compared by its value."""

    def make():
        def step(x, n):
            return tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, h * 1.5), (0, x))

        return step, lambda step, k: step(X[0], tf.constant([3, 3, 3, 3, 5][k % 5])), lambda: 0

    harness.compare_steps(make, whole=0, express=0)


def test_containers_of_the_programs_are_not_taken_for_new():
    """The first iteration is given the program's own dict, which it changes."""

    def make():
        state = {"n": tf.constant(0)}

        def body(s):
            s["n"] = s["n"] + 1
            return (s,)

        def step(x):
            return tf.while_loop(lambda s: s["n"] < 3, body, (state,))[0]["n"], state["n"], tf.tanh(x + 1.0) * 2.0 + tf.exp(x)

        return step, lambda step, k: step(X[k % 3]), lambda: state["n"]

    harness.compare_steps(make, whole=0, express=0)


def test_containers_of_the_programs_are_given_back():
    def make():
        state = {"n": tf.constant(0)}

        def step(x):
            return tf.while_loop(lambda s: s["n"] < 0, lambda s: ({"n": s["n"] + 1},), (state,)), tf.tanh(x + 1.0) * 2.0 + tf.exp(x)

        return step, lambda step, k: step(X[k % 3])[0][0] is state, lambda: 0

    harness.compare_steps(make, whole=0, express=0)


def test_a_list_of_the_programs_is_looked_at():
    def change(k, world):
        world["list"][0] = tf.fill((3,), float(k))

    def make_step(world):
        world["list"] = [tf.zeros(3), tf.ones(3)]
        return lambda x: tf.scan(lambda state, row: [state[0] + row, state[1] * 0.5], x, initializer=world["list"])

    changing(make_step, change)


def test_a_number_that_was_read_is_looked_at():
    changing(lambda world: lambda x: tf.foldl(lambda a, row: a + tf.reduce_sum(row), x, initializer=float(tf.reduce_max(x)) * world["scale"]), set_scale, whole=0)


def test_numbers_that_a_function_gives():
    def make():
        def step(x, flag, number):
            return tf.while_loop(lambda i, h: flag, lambda i, h: (i + 1, tf.tanh(h) * number), (0, x), maximum_iterations=3), tf.scan(lambda a, row: number, tf.exp(x), initializer=0.0)

        return step, lambda step, k: step(X[k % 3], k % 7 != 6, float(k)), lambda: 0

    harness.compare_steps(make, whole=0, express=0, n=30)


def test_an_array_that_is_tested():
    def make():
        def step(x, flag):
            return tf.while_loop(lambda h: flag, lambda h: (tf.tanh(h),), (x,), maximum_iterations=3)

        return step, lambda step, k: step(X[k % 3], np.array(k % 7 != 6)), lambda: 0

    harness.compare_steps(make, whole=0, express=0, n=30)


def test_an_array_that_a_function_gives():
    def make():
        def step(x, numbers):
            return tf.scan(lambda a, row: numbers, tf.exp(x) * 2.0, initializer=tf.zeros(3)), tf.tanh(x)

        return step, lambda step, k: step(X[k % 3], np.full(3, k, np.float32)), lambda: 0

    harness.compare_steps(make, whole=0, express=0, n=30)


@pytest.mark.parametrize("convert", [tf.constant, lambda i: i, int, lambda i: tf.constant(i) + 0], ids=["constant", "array", "int", "computed"])
def test_an_index_that_varies(convert):
    def make():
        def step(x, i):
            rows = tf.TensorArray(tf.float32, size=4, clear_after_read=False).unstack(tf.tanh(x))
            return rows.read(convert(i)) * 2.0

        return step, lambda step, k: step(X[k % 3], np.array(k // 5 % 4)), lambda: 0

    harness.compare_steps(make, whole=0, express=0, n=30)


def test_arrays_that_are_not_used():
    """TensorFlow says so each time."""
    said = []

    class Counting(logging.Handler):
        def emit(self, record):
            said.append("never used" in record.getMessage())

    def make():
        def step(x):
            array = tf.TensorArray(tf.float32, size=4)
            array.write(0, tf.tanh(x[0]) * 2.0)
            return array.read(0) + 1.0

        return step, lambda step, k: step(X[k % 3]), lambda: 0

    handler = Counting()
    tf.get_logger().addHandler(handler)
    try:
        harness.compare_steps(make, whole=0, express=0)
        gc.collect()
    finally:
        tf.get_logger().removeHandler(handler)
    assert sum(said) == 60


def test_arrays_that_are_kept():
    def make():
        kept = {}

        def step(x):
            array = tf.TensorArray(tf.float32, size=2).unstack(x[:2])
            before = kept.get("array")
            kept["array"] = array
            return tf.zeros(3) if before is None else before.stack() + array.stack()

        return step, lambda step, k: step(X[k % 3]), lambda: kept["array"].stack()

    harness.compare_steps(make, whole=0, express=0)


def test_errors_of_arrays():
    def make():
        def step(x, i):
            array = tf.TensorArray(tf.float32, size=2).unstack(tf.tanh(x[:2] * 2.0) + 1.0)
            return tf.exp(array.read(i) * 0.5)

        return step, lambda step, k: step(X[k % 3], 7 if k % 8 == 7 else 1), lambda: 0

    harness.compare_steps(make, whole=10, express=0)


def differentiated(make_function):
    """A step that takes the gradient of what `make_function(world)` gives."""

    def make_step(world):
        function = make_function(world)

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(function(tf.tanh(x)) ** 2)
            return y, tape.gradient(y, x)

        return step

    return make_step


def test_what_a_gradient_function_reads():
    def make_function(world):
        return tf.custom_gradient(lambda x: (x * 2.0, lambda dy: dy * world["scale"]))

    changing(differentiated(make_function), set_scale)


def test_what_a_gradient_function_does():
    def make_function(world):
        def double(x):
            def gradient(dy):
                world["seen"].append(len(world["seen"]))
                return dy * 2.0

            return x * 2.0, gradient

        return tf.custom_gradient(double)

    changing(differentiated(make_function), set_scale, whole=0)


def test_a_gradient_function_that_prints(capsys):
    def make_function(world):
        def double(x):
            def gradient(dy):
                print("gradient")
                return dy * 2.0

            return x * 2.0, gradient

        return tf.custom_gradient(double)

    changing(differentiated(make_function), set_scale, whole=0)
    assert capsys.readouterr().out == "gradient\n" * 64


def test_a_gradient_function_from_elsewhere():
    def change(k, world):
        FACTOR[0] = float(k)

    def make_function(world):
        FACTOR[0] = 2.0
        return tf.custom_gradient(lambda x: (x * 2.0, helper))

    changing(differentiated(make_function), change, whole=0)


def test_another_function_in_its_place():
    def change(k, world):
        world["function"] = tf.custom_gradient(lambda x: (x * 3.0, lambda dy: dy * k))

    def make_function(world):
        world["function"] = clipped
        return lambda x: world["function"](x)

    changing(differentiated(make_function), change)


def test_methods_with_a_gradient():
    def change(k, world):
        world["object"].scale += 1.0

    def make_function(world):
        world["object"] = Decorated()
        return lambda x: world["object"].method(x)

    changing(differentiated(make_function), change, whole=0)


def test_a_gradient_after_the_step():
    """The tape, and the gradient function with it, outlives the step."""

    def make():
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = log1pexp(tf.tanh(x))
            return tape, y

        def call(step, k):
            tape, y = step(X[k % 3])
            return y, tape.gradient(y, X[k % 3])

        return step, call, lambda: 0

    harness.compare_steps(make, whole=0, express=0)


def test_errors_of_gradient_functions():
    def make():
        def step(x, wrong):
            double = tf.custom_gradient(lambda x: (x * 2.0, lambda dy: (dy, dy) if wrong else dy))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = double(tf.tanh(x))
            return tape.gradient(y, x)

        return step, lambda step, k: step(X[k % 3], k % 10 == 9), lambda: 0

    harness.compare_steps(make, whole=0, express=0)


# -- tf.map_fn has AutoGraph convert the function ----------------------------------------------------------------------------------


FACTOR = [2.0]


def helper(x):
    return x * FACTOR[0]


class Holder:
    def twice(self, x):
        return x * 2.0


W = tf.Variable(tf.ones(3))
HOLDER = Holder()
LEFT = [lambda row: row * 2.0, lambda row: tf.tanh(row)[0:2] + W[0], lambda row: (row, -row), lambda row: row > 0.5, lambda row: tf.math.reduce_sum(row, axis=0, keepdims=True), tf.square]


def with_an_if(row):
    if row[0] > 0.0:
        return row
    return -row


def with_an_assertion(row):
    assert row[0] < 1.0
    return row


NOT_LEFT = [
    lambda row: float(row[0]) * row, lambda row: helper(row), lambda row: HOLDER.twice(row), lambda row: row == 0.5, lambda x: not x > 0.5, with_an_if, with_an_assertion,
    HOLDER.twice, lambda row: tf.stack([r for r in row]), lambda row: unknown(row),  # noqa: F821
]


@pytest.mark.parametrize("function", LEFT)
def test_functions_that_autograph_leaves_alone(function):
    assert framework_loops.autograph_leaves(function)
    signature = tf.nest.map_structure(lambda y: y.dtype, function(X[0][0]))
    harness.compare_steps(training(lambda w, x: (x @ w, tf.map_fn(function, x @ w, fn_output_signature=signature)), X))


@pytest.mark.parametrize("function", NOT_LEFT)
def test_functions_that_it_does_not(function):
    assert not framework_loops.autograph_leaves(function)


@pytest.mark.parametrize("function", NOT_LEFT[:-2])
def test_they_are_converted_all_the_same(function):
    signature = tf.bool if function in NOT_LEFT[3:5] else tf.float32

    def make():
        def step(x):
            return tf.map_fn(function, x[0] if function is NOT_LEFT[4] else x, fn_output_signature=signature), tf.tanh(x) * 2.0

        return step, lambda step, k: step(X[k % 3] * 0.01), lambda: 0

    assert harness.compare_steps(make, whole=0, express=0).stats().fallbacks == 0


# -- functions that the step decorates ---------------------------------------------------------------------------------------------


def twice(function):
    return lambda x: function(function(x))


def times(factor):
    def decorate(function):
        def decorated(x):
            return function(x) * factor

        return decorated

    return decorate


def test_decorators_of_the_programs():
    def make_step(world):
        def step(x):
            @twice
            @times(world["scale"])
            def body(y):
                return tf.tanh(y) * 2.0

            return body(x), body.__name__

        return step

    changing(make_step, set_scale)


def test_decorators_run_in_their_order():
    def make_step(world):
        def noting(name):
            world["seen"].append(f"make {name}")

            def decorate(function):
                world["seen"].append(f"{name} {function.__name__}")
                return function

            return decorate

        def step(x):
            @noting("outer")
            @noting("inner")
            def body(y):
                return tf.tanh(y) * 2.0

            return body(x)

        return step

    changing(make_step, set_scale, whole=0)


def test_a_decorator_that_uses_the_name():
    def make_step(world):
        def step(x):
            def body(y):
                return tf.tanh(y)

            body.register = twice

            @body.register
            def body(y):
                return tf.sin(y) * world["scale"]

            return body(x)

        return step

    changing(make_step, set_scale, whole=0)


def test_a_gradient_that_the_step_gives_a_function():
    def make_step(world):
        def step(x):
            @tf.custom_gradient
            def double(y):
                return y * 2.0, lambda dy: dy * world["scale"]

            with tf.GradientTape() as tape:
                tape.watch(x)
                y = double(tf.tanh(x)) + tf.custom_gradient(lambda z: (z * 3.0, lambda dy: dy))(x)
            return tape.gradient(y, x)

        return step

    changing(make_step, set_scale)
