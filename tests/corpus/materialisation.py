"""Tensor values that Python reads in the middle of a step, and what comes back from Python."""
import math
import sys

import numpy as np
import tensorflow as tf
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, f1_score

from . import Program, program
from ._common import arrays, classification, floats, tensor, tensors


@program("numpy_in_the_middle_and_back")
def _():
    w = tf.Variable(floats(3, 2))

    def step(x):
        h = x @ w
        ranks = np.argsort(h.numpy(), axis=0).astype("float32")
        y = h * ranks + np.median(h)
        w.assign_add(0.1 * tf.constant(np.ones([3, 2], "float32") * float(y[0, 0])))
        return y

    return Program(step, tensors(4, 3), lambda: w)


@program("sklearn_metric_in_the_middle")
def _():
    w, scores = tf.Variable(floats(4, 3)), []

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = x @ w
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        predicted = tf.argmax(logits, -1)
        scores.append(accuracy_score(y.numpy(), predicted.numpy()))
        f1 = f1_score(y, predicted, average="macro")
        w.assign_sub(tape.gradient(loss, w) * (1.0 - f1))
        return loss, f1

    return Program(step, classification(12), lambda: [w, scores])


@program("sklearn_model_fitted_in_the_step")
def _():
    w = tf.Variable(floats(3, 1))

    def step(x):
        y = tf.tanh(x @ w)
        model = LinearRegression().fit(x.numpy(), y.numpy())
        residual = y - model.predict(x).astype(np.float32)
        w.assign(0.5 * w + 0.5 * tf.transpose(tf.constant(model.coef_, tf.float32)))
        return tf.reduce_sum(tf.square(residual))

    return Program(step, tensors(6, 3), lambda: w)


@program("type_of_a_tensor_looked_at")
def _():
    w, seen = tf.Variable(floats(3, 2)), []

    def step(x):
        h = x @ w
        print(type(h), type(h).__name__)
        seen.append(f"{type(h).__module__}.{type(h).__qualname__}")
        try:
            open(h)
        except TypeError as error:
            seen.append(str(error))
        w.assign_add(0.1 * tf.ones([3, 2]))
        return h

    return Program(step, tensors(4, 3), lambda: [w, seen])


@program("numpy_arguments_overwritten_by_the_caller")
def _():
    v = tf.Variable(tf.zeros([3]))
    buffer, pieces = np.zeros(3, "float32"), [np.zeros(3, "float32")]

    def arguments(i):
        buffer[:] = floats(3, seed=i)
        pieces[0][:] = i
        return buffer, pieces

    def step(x, more):
        v.assign_add(x)
        kept = tf.constant(more[0]) * 2.0
        return x + kept, tf.convert_to_tensor(x), v * x

    def between(i, args, result):
        buffer.fill(np.nan)
        pieces[0].fill(np.nan)

    return Program(step, arguments, lambda: v, between)


@program("numpy_array_overwritten_in_the_step")
def _():
    def step(x):
        scratch = np.array([1.0, 2.0, 3.0], "float32")
        a = x * scratch
        scratch *= 10.0
        b = x * scratch
        view = x.numpy()
        scratch[:] = view[::-1]
        return a, b, tf.constant(scratch)

    return Program(step, tensors(3))


@program("print_in_the_middle")
def _():
    v = tf.Variable(1.0)

    def step(x):
        loss = tf.reduce_sum(x * v)
        print("loss", loss.numpy(), "shape", x.shape)
        v.assign_sub(0.1 * loss)
        print(f"after: {float(v):.4f} {loss:.3f}", v.dtype, end=";\n")
        return loss

    return Program(step, tensors(3), lambda: v)


@program("print_of_tensors")
def _():
    def step(x):
        y = tf.round(x * 10.0)
        print(y, [tf.reduce_max(y)], repr(tf.cast(y, tf.int32)), sep="\n")
        return str(y), f"{y[0]}", "%s" % y, "{!r}".format(y[1])

    return Program(step, tensors(3))


@program("tf_print_in_order_with_print")
def _():
    v = tf.Variable([1.0, 2.0])

    def step(x):
        tf.print("x:", x, "v:", v, output_stream=sys.stdout)
        v.assign_add(x)
        print("between")
        tf.print("after", v, summarize=-1, output_stream=sys.stdout)
        return tf.reduce_sum(v)

    return Program(step, [(tf.constant([0.5, 0.25]),), (tf.constant([-1.0, 1.0]),)], lambda: v)


@program("bool_int_float_len_of_tensors")
def _():
    def step(x):
        n = tf.cast(tf.reduce_sum(tf.abs(x)), tf.int32)
        return (int(n), float(x[0]), complex(x[1]), bool(n > 2), len(x), round(float(x[0]), 3), [1, 2, 3][n % 3],
                list(range(n % 4)), math.floor(x[2]), divmod(int(n), 2), x[0].numpy().item() in (0.0, 1.0))

    return Program(step, tensors(3))


@program("tensors_given_to_numpy_functions")
def _():
    def step(x):
        y = tf.nn.softmax(x)
        a = np.add(y, 1.0)
        b = np.mean(y, axis=0)
        c = np.asarray(y, dtype=np.float64) @ np.ones([3])
        d = np.ones([2, 3], "float32") * y
        e = y * np.float32(2.0) + np.ones([2, 3], "float32")
        return a, b, c, d, e, np.squeeze(y[:, :1]), y.numpy().tolist(), np.isclose(y, y).all()

    return Program(step, tensors(2, 3))


@program("data_dependent_python_numbers_fed_back")
def _():
    v = tf.Variable(0.0)

    def step(x):
        k = int(tf.argmax(x))
        scale = math.exp(-abs(float(x[k])))
        v.assign(v * scale + k)
        return x[k] * scale, tf.one_hot(k, 4) * scale

    return Program(step, tensors(4), lambda: v)


@program("many_fetches_and_feeds")
def _():
    def step(x):
        for i in range(5):
            mean = x.numpy().mean()
            x = x - mean * (i + 1) * 0.1
        return x

    return Program(step, tensors(4))


@program("shape_and_static_value_read")
def _():
    def step(x):
        rows, columns = x.shape
        halves = tf.reshape(x, [rows // 2, columns * 2])
        return (halves, x.shape.as_list(), x.shape.rank, x.ndim, x.dtype.name, tf.get_static_value(x[0, 0] * 2.0),
                tf.rank(x), x.get_shape().num_elements(), tf.is_tensor(halves), isinstance(halves, tf.Tensor))

    return Program(step, tensors(4, 3))


@program("same_tensor_fetched_twice_and_late")
def _():
    log = []

    def step(x):
        y = tf.square(x)
        a, b = y.numpy(), y.numpy()
        log.append(y)
        z = y * tf.constant(a + b)
        return z, (a == b).all(), float(tf.reduce_sum(log[0]))

    return Program(step, tensors(3), lambda: log)


@program("numpy_function_and_py_function")
def _():
    calls = []

    def noted(a):
        calls.append(a.shape)
        return np.sort(a)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(lambda t: t * t * float(t[0]), [x], tf.float32)
            loss = tf.reduce_sum(y)
        return tf.numpy_function(noted, [x], tf.float32) + 1.0, tape.gradient(loss, x)

    return Program(step, tensors(4), lambda: calls)


@program("values_read_inside_the_tape")
def _():
    w = tf.Variable(floats(3, 1))

    def step(x):
        with tf.GradientTape() as tape:
            h = x @ w
            scale = 1.0 / (1.0 + np.abs(h.numpy()).max())
            loss = tf.reduce_sum(tf.square(h * scale))
            largest = h.numpy().argmax()
            loss += h[largest, 0]
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.1 * gradient)
        return loss, gradient.numpy()

    return Program(step, tensors(4, 3), lambda: w)


@program("numpy_arrays_in_and_out")
def _():
    w = tf.Variable(floats(3, 2))

    def step(batch, mask):
        out = tf.nn.relu(tf.matmul(batch, w))
        out = tf.where(mask[:, None], out, 0.0)
        w.assign_add(tf.matmul(batch, out, transpose_a=True) * 0.01)
        return out.numpy(), np.float64(tf.reduce_mean(out)), mask

    return Program(step, [(a, np.arange(4) % 2 == i) for i, (a,) in enumerate(arrays(4, 3))], lambda: w)


@program("tensor_copied_and_compared")
def _():
    def step(x):
        y = x + 1.0
        names = {y.ref(): "y", x.ref(): "x"}
        same = y is y and y is not x
        return tf.reduce_all(y == x + 1.0), y != x, names[y.ref()], same, y in [y], [x, y].index(y) if same else -1

    return Program(step, [(tensor(1, seed=1)[0],), (tensor(1, seed=2)[0],)])
