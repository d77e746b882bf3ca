"""Variables written by hand: reads, updates and their order."""
import numpy as np
import tensorflow as tf

from . import Program, program
from ._common import arrays, dense_variables, floats, regression, tensor, tensors


@program("linear_regression_by_hand")
def _():
    w, b = tf.Variable(floats(4, 1)), tf.Variable(0.0)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b - y) ** 2)
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        return loss

    return Program(step, regression(), lambda: [w, b])


@program("mlp_by_hand")
def _():
    layers = dense_variables(4, 5, 1)

    def step(x, y):
        with tf.GradientTape() as tape:
            h = x
            for w, b in layers[:-1]:
                h = tf.nn.relu(tf.matmul(h, w) + b)
            w, b = layers[-1]
            loss = tf.reduce_mean(tf.square(h @ w + b - y))
        weights = [v for layer in layers for v in layer]
        for v, g in zip(weights, tape.gradient(loss, weights)):
            v.assign_sub(0.05 * g)
        return loss, tf.linalg.global_norm(weights)

    return Program(step, regression(), lambda: layers)


@program("read_assign_read")
def _():
    v = tf.Variable([1.0, 2.0])

    def step(x):
        before = v + 0.0
        v.assign(v * 0.5 + x)
        between = v.read_value()
        v.assign_add(between)
        return before, between, v * 1.0

    return Program(step, tensors(2), lambda: v)


@program("swap_two_variables")
def _():
    a, b = tf.Variable(tensor(3, seed=1)), tf.Variable(tensor(3, seed=2))

    def step(x):
        old = a.read_value()
        a.assign(b)
        b.assign(old + x)
        return tf.reduce_sum(a - b)

    return Program(step, tensors(3), lambda: [a, b])


@program("fetch_after_update")
def _():
    v = tf.Variable(1.0)
    seen = []

    def step(x):
        v.assign_add(tf.reduce_sum(x))
        seen.append(float(v))
        v.assign(v * 0.5 + seen[-1])
        seen.append(v.numpy().item())
        return v - seen[-1]

    return Program(step, tensors(3), lambda: [v, seen])


@program("assign_returns_the_variable")
def _():
    v = tf.Variable(0.0)

    def step(x):
        return v.assign_add(tf.reduce_mean(x)) * 2.0

    return Program(step, tensors(3), lambda: v)


@program("slices_and_scatters")
def _():
    v = tf.Variable(tf.zeros([4, 3]))

    def step(x):
        v[1:3].assign(x[:2])
        v[0, 1].assign(x[0, 0])
        v.scatter_nd_update([[3]], x[1:2])
        v.scatter_sub(tf.IndexedSlices(x[:1] * 0.1, tf.constant([2])))
        return v[:, 1]

    return Program(step, tensors(2, 3), lambda: v)


@program("int64_step_counter")
def _():
    counter, total = tf.Variable(0, dtype=tf.int64), tf.Variable(0.0)

    def step(x):
        counter.assign_add(1)
        rate = 1.0 / tf.cast(counter, tf.float32)
        total.assign(total * (1.0 - rate) + tf.reduce_mean(x) * rate)
        return counter % 3, total + 0.0

    return Program(step, tensors(4), lambda: [counter, total])


@program("variable_created_in_the_first_call")
def _():
    slots = {}

    def step(x):
        if "momentum" not in slots:
            slots["momentum"] = tf.Variable(tf.zeros_like(x), name="momentum")
        m = slots["momentum"]
        m.assign(0.9 * m + x)
        return tf.norm(m)

    return Program(step, tensors(3), lambda: slots)


@program("variable_created_in_a_later_call", min_coexecuted=1, max_fallbacks=5, calls=10)
def _():
    variables = [tf.Variable(1.0)]

    def step(x, i):
        if i == 4:
            variables.append(tf.Variable(tf.reduce_mean(x)))
        for v in variables:
            v.assign_add(0.1 * tf.reduce_sum(x))
        return tf.add_n([v * 2.0 for v in variables])

    x = tensors(3)
    return Program(step, lambda i: (x[i % 2][0], i), lambda: variables)


@program("moving_average_of_the_weights")
def _():
    w, average = tf.Variable(floats(4, 1)), tf.Variable(tf.zeros([4, 1]), trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.abs(x @ w - y))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        average.assign(0.9 * average + 0.1 * w)
        return {"loss": loss, "drift": tf.norm(w - average)}

    return Program(step, regression(), lambda: [w, average])


@program("variable_assigned_from_numpy")
def _():
    v = tf.Variable(tf.zeros([3]))

    def step(x):
        v.assign(np.cumsum(x).astype(np.float32))
        return v * tf.constant(x)

    return Program(step, arrays(3), lambda: v)


@program("variable_updated_in_one_branch")
def _():
    best, count = tf.Variable(-1.0), tf.Variable(0)

    def step(x, improve):
        score = tf.reduce_max(x)
        if improve:
            best.assign(tf.maximum(best, score))
            count.assign_add(1)
        return score - best

    return Program(step, [(tensor(5, seed=1), True), (tensor(5, seed=2), False)], lambda: [best, count])


@program("variables_of_many_dtypes")
def _():
    flags, words = tf.Variable([True, False]), tf.Variable(["a", "b"])
    wide, small = tf.Variable(np.float64(1.5)), tf.Variable(tf.constant(3, tf.uint8))

    def step(x):
        flags.assign(tf.logical_not(flags))
        words.assign(tf.strings.join([words, tf.where(flags, "x", "y")]))
        wide.assign_add(tf.cast(tf.reduce_sum(x), tf.float64))
        small.assign_add(tf.cast(1, tf.uint8))
        return words[0], wide / tf.cast(small, tf.float64)

    return Program(step, tensors(2), lambda: [flags, words, wide, small])
