"""What a step hands back, and what the caller does with it afterwards."""
import collections
import copy
import pickle
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from . import Program, program
from ._common import floats, tensor, tensors


@program("returns_none")
def _():
    v = tf.Variable(0.0)

    def step(x):
        v.assign_add(tf.reduce_sum(x))

    return Program(step, tensors(3), lambda: v)


@program("returns_variables")
def _():
    v, k = tf.Variable([1.0, 2.0]), keras.Variable([3.0, 4.0])

    def step(x):
        v.assign_sub(x)
        k.assign(k + x)
        return v, {"k": k}

    return Program(step, tensors(2), lambda: [v, k], use=lambda r: (r[0] is v, r[1]["k"] is k))


@program("returns_a_dict_with_mixed_keys")
def _():
    def step(x):
        return {"loss": tf.reduce_sum(x), 1: x, (2, "b"): [x * 2.0, None], None: "text", 2.5: {"inner": x[0]}}

    return Program(step, tensors(2))


@dataclass
class Output:
    loss: tf.Tensor
    logits: tf.Tensor = None
    notes: list = field(default_factory=list)


@program("returns_a_dataclass")
def _():
    def step(x):
        return Output(loss=tf.reduce_mean(x), logits=x - tf.reduce_max(x), notes=[tf.rank(x), "note", 3])

    return Program(step, tensors(2, 3))


Batch = collections.namedtuple("Batch", "x y")


@program("returns_namedtuples_and_containers")
def _():
    def step(x):
        y = tf.sort(x)
        ordered = collections.OrderedDict(b=y, a=x)
        return Batch(x, Batch(y, (x + y,))), [[x, [y, []]], ()], ordered, collections.deque([x, 1]), frozenset([2, 1])

    return Program(step, tensors(3), use=lambda r: (r[0].x is r[1][0][0], r[0].y is r[2]["b"]))


@program("returns_the_list_that_it_mutates")
def _():
    history = []

    def step(x):
        history.append(tf.reduce_sum(x) + float(len(history)))
        return history

    return Program(step, tensors(3), lambda: history, use=lambda result: result is history)


@program("returns_its_arguments")
def _():
    def step(x, options):
        options["calls"] = options.get("calls", 0) + 1
        unused = x * 2.0  # noqa: F841
        return x, options

    inputs = [(tensor(2, seed=s), {"seed": s}) for s in (1, 2)]
    return Program(step, inputs, lambda: inputs, use=lambda r: any(r[0] is x and r[1] is o for x, o in inputs))


@program("returns_python_and_numpy_values")
def _():
    def step(x):
        y = tf.reduce_sum(x)
        return (float(y), int(y), "%.3f" % y, y.numpy(), x.numpy(), x.shape, x.dtype, str(y.dtype), np.float32(y) * 2,
                True)

    return Program(step, tensors(3))


@program("returns_a_captured_constant")
def _():
    constant, v = tf.constant([1.0, 2.0]), tf.Variable(0.0)

    def step(x):
        v.assign_add(x[0])
        return constant, constant + x, constant

    return Program(step, tensors(2), lambda: v, use=lambda r: (r[0] is constant, r[2] is constant))


@program("same_tensor_returned_twice")
def _():
    def step(x):
        y = x * 3.0
        return y, {"again": y}, tf.identity(y)

    return Program(step, tensors(2), use=lambda r: (r[0] is r[1]["again"], r[0] is r[2]))


@program("losses_kept_by_the_caller_and_read_at_the_end")
def _():
    w, losses = tf.Variable(floats(3, 1)), []

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(x @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, tensors(4, 3), lambda: [w, losses], between=lambda i, args, loss: losses.append(loss))


@program("result_passed_to_the_next_step")
def _():
    states = [tf.zeros([2])]

    def step(state, x):
        return tf.tanh(0.5 * state + x)

    x = tensors(2)
    return Program(step, lambda i: (states[-1], x[i % 2][0]), lambda: states,
                   between=lambda i, args, state: states.append(state))


@program("results_used_in_eager_operations")
def _():
    w = tf.Variable([2.0, 3.0])

    def later(y):
        with tf.GradientTape() as tape:
            z = tf.reduce_sum(tf.square(w * y))
        return (y + 1.0, 2.0 * y, y[0], -y, tf.concat([y, y], 0), tape.gradient(z, w), y[None] @ y[:, None], y > 0,
                y ** 2)

    return Program(lambda x: tf.sin(x), tensors(2), lambda: w, use=later)


@program("results_used_in_a_tf_function")
def _():
    @tf.function
    def graph(a, b):
        return tf.reduce_sum(a["y"] * b) if tf.reduce_sum(b) > 0 else b[0]

    return Program(lambda x: ({"y": x * 2.0}, tf.abs(x)), tensors(3), use=lambda r: graph(*r))


@program("results_used_by_numpy_and_python")
def _():
    def later(r):
        y, n = r
        return (np.asarray(y), np.mean(y), y.numpy().tolist(), float(y[0]), int(n), bool(n), range(4)[n], len(y),
                list(y), [v.numpy() for v in y], f"{n} {n:d} {float(y[1]):.2f}", str(y), repr(n),
                y.shape, y.ndim, y.dtype,
                np.array([y, y]), np.stack([y, 2 * y]), max(y.numpy()), sum(y), hash(y.ref()) == hash(y.ref()),
                bool(y[0] == y[0]), tf.is_tensor(y), isinstance(y, tf.Tensor), y.device, memoryview(y.numpy()).nbytes)

    return Program(lambda x: (x + 1.0, tf.cast(tf.math.ceil(tf.abs(x[0])), tf.int32)), tensors(3), use=later)


@program("results_pickled_and_copied")
def _():
    def later(y):
        return pickle.loads(pickle.dumps(y)), copy.copy(y), copy.deepcopy({"y": [y, y]}), copy.deepcopy(y) + y

    return Program(lambda x: tf.cumsum(x), tensors(3), use=later)


@program("results_given_to_keras_metrics")
def _():
    metric, mean = keras.metrics.MeanAbsoluteError(), keras.metrics.Mean()

    def between(i, args, result):
        metric.update_state(result["y"], result["p"])
        mean.update_state(result["loss"])

    def step(x):
        return {"y": x, "p": tf.tanh(x), "loss": tf.reduce_mean(x)}

    return Program(step, tensors(4), lambda: [metric.result(), mean.variables], between)


@program("results_of_every_dtype")
def _():
    def step(x):
        kinds = tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint16, tf.int64, tf.complex64
        values = [tf.cast(x * 10.0, kind) for kind in kinds]
        return values, x > 0, tf.strings.as_string(x, precision=2), tf.zeros([0, 3]), tf.constant(5)

    return Program(step, [(tf.constant([1.5, 2.5, 0.5]),), (tf.constant([0.25, 3.0, 7.5]),)])


@program("results_iterated_and_unpacked")
def _():
    def later(y):
        (a, b), *rest = y
        return a, b, rest, [tuple(row) for row in y], dict(zip("pq", y)), y[..., 0], y[-1, ::-1]

    return Program(lambda x: x * 2.0, tensors(3, 2), use=later)
