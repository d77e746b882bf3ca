"""Steps that raise in some calls: the caller catches, and goes on."""
import keras
import tensorflow as tf

from . import Program, program
from ._common import floats, tensor, tensors

# A kernel's error is raised at the failing line only if no step runs ahead; the default is tried by its own tests.
AT_THE_LINE = {"run_ahead": 0}


def vectors(*values):
    return [(tf.constant(value),) for value in values]


class Divergence(Exception):
    def __init__(self, loss):
        super().__init__(f"loss is {loss:.3f}")
        self.loss = loss


@program("python_exception_in_some_calls", raises=True, calls=20, max_fallbacks=6)
def _():
    v, log = tf.Variable(1.0), []

    def step(x, i):
        log.append("start")
        loss = tf.reduce_sum(x * v)
        if i % 4 == 3:
            raise Divergence(float(loss))
        v.assign(v * 0.9)
        log.append("end")
        return loss

    x = tensors(3)
    return Program(step, lambda i: (x[i % 4 // 2][0], i), lambda: [v, log], period=4)


@program("python_exception_after_an_update", raises=True, calls=15, max_fallbacks=6)
def _():
    v = tf.Variable([1.0, 2.0])

    def step(x, limit):
        v.assign_add(x)
        if tf.reduce_max(v) > limit:
            v.assign(v * 0.1)
            raise OverflowError("too large")
        v.assign_sub(0.5 * x)
        return v + 0.0

    inputs = [(tf.constant([0.5, 0.1]), 100.0), (tf.constant([0.1, 0.5]), 100.0), (tf.constant([5.0, 5.0]), 1.0)]
    return Program(step, inputs, lambda: v)


@program("bad_gather_index", raises=True, calls=15, max_fallbacks=6, options=AT_THE_LINE)
def _():
    table, log = tf.Variable(floats(3, 2)), []

    def step(x, index):
        table.assign(table * 0.9)
        log.append(index.shape)
        row = tf.gather(x, index)  # Python code that follows a failing kernel in the same step has run when the failure is seen
        table.assign_add(row)
        return row * 2.0

    x = tensor(3, 3, 2, seed=1)
    return Program(step, [(x, tf.constant(0)), (x, tf.constant(1)), (x, tf.constant(7))], lambda: [table, log])


@program("bad_gather_index_without_later_effects", raises=True, calls=15, max_fallbacks=6, modes=("now",))
def _():
    def step(x, index):
        return tf.gather(x, index) * 2.0

    x = tensor(3, 2)
    return Program(step, [(x, tf.constant(0)), (x, tf.constant(1)), (x, tf.constant(7))])


@program("tf_debugging_assertion", raises=True, calls=15, max_fallbacks=6, options=AT_THE_LINE)
def _():
    v = tf.Variable(0.0)

    def step(x):
        tf.debugging.assert_greater(x, 0.0, message="not positive")
        v.assign_add(tf.reduce_sum(tf.math.log(x)))
        tf.debugging.check_numerics(v, "v")
        return v * 1.0

    return Program(step, vectors([1.0, 2.0], [3.0, 1.0], [1.0, -1.0]), lambda: v)


@program("check_numerics_fails", raises=True, calls=15, max_fallbacks=6, options=AT_THE_LINE)
def _():
    v = tf.Variable([1.0, 1.0])

    def step(x):
        y = tf.debugging.check_numerics(tf.math.log(x), "logarithm")
        v.assign_add(y)
        return y

    return Program(step, vectors([1.0, 2.0], [3.0, 1.0], [0.0, 1.0]), lambda: v)


@program("kernel_error_caught_inside_the_step", calls=15, max_fallbacks=6, options=AT_THE_LINE)
def _():
    caught = []

    def step(x):
        try:
            root = tf.linalg.cholesky(x)
            total = float(tf.reduce_sum(root))
        except tf.errors.InvalidArgumentError as error:
            caught.append(type(error).__name__)
            return tf.linalg.trace(x)
        return total + tf.linalg.trace(root)

    eye = tf.eye(2)
    return Program(step, [(eye * 4.0,), (eye * 9.0 + 1.0,), (-eye,)], lambda: caught)


@program("incompatible_shapes", raises=True, calls=15, max_fallbacks=6)
def _():
    w = tf.Variable(floats(3, 2))

    def step(x):
        w.assign(w * 0.5)
        y = tf.matmul(x, w)
        w.assign_add(tf.ones_like(w))
        return y

    return Program(step, [(tensor(2, 3, seed=1),), (tensor(2, 3, seed=2),), (tensor(2, 4, seed=3),)], lambda: w)


@program("keras_rejects_the_input", raises=True, calls=15, max_fallbacks=6)
def _():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])

    def step(x):
        return model(x) * 2.0

    inputs = [(tensor(2, 3, seed=1),), (tensor(2, 3, seed=2),), (tensor(2, 5, seed=3),)]
    return Program(step, inputs, lambda: model.variables)


@program("wrong_dtype", raises=True, calls=15, max_fallbacks=6)
def _():
    def step(x):
        y = x * 2.0 if x.dtype.is_floating else x
        return y + tf.constant(1.0)

    return Program(step, [(tensor(3, seed=1),), (tensor(3, seed=2),), (tf.constant([1, 2, 3]),)])


@program("exception_inside_a_tape_and_finally", raises=True, calls=15, max_fallbacks=6)
def _():
    v, log = tf.Variable([1.0, 2.0]), []

    def step(x, fail):
        try:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * x)
                if fail:
                    raise KeyError("inside")
        finally:
            log.append(fail)
            v.assign_add([0.5, 0.5])
        v.assign_sub(0.1 * tape.gradient(loss, v))
        return loss

    x = tensor(2)
    return Program(step, [(x, False), (x * 2.0, False), (x, True)], lambda: [v, log])


@program("exception_translated_with_a_cause", raises=True, calls=15, max_fallbacks=6)
def _():
    settings = {"a": 1.0, "b": 2.0}

    def lookup(key):
        try:
            return settings[key]
        except KeyError as error:
            raise RuntimeError(f"no setting {key!r}") from error

    def step(x, key):
        y = tf.exp(x)
        return y * lookup(key)

    x = tensor(3)
    return Program(step, [(x, "a"), (x, "b"), (x, "c")])


@program("iterator_runs_out_in_the_step", raises=True, calls=10, max_fallbacks=6)
def _():
    batches = iter(tf.data.Dataset.range(7).map(lambda i: tf.cast(i, tf.float32)))
    v = tf.Variable(0.0)

    def step(x):
        v.assign_add(1.0)
        return next(batches) * tf.reduce_sum(x) + v

    return Program(step, tensors(3), lambda: v)


@program("failed_step_left_no_random_draws_behind", raises=True, calls=15, max_fallbacks=6)
def _():
    def step(x, fail):
        noise = tf.random.normal([3])
        if fail:
            raise ValueError("no more")
        return x + noise + tf.random.uniform([3])

    x = tensor(3)
    return Program(step, [(x, False), (x, False), (x, True)])


@program("failing_assert_statement", raises=True, calls=15, max_fallbacks=6)
def _():
    v = tf.Variable(0.0)

    def step(x):
        v.assign_add(1.0)
        total = tf.reduce_sum(x)
        assert total > 0, f"total is {total:.2f}"
        return total * v

    return Program(step, vectors([1.0, 2.0], [2.0, 2.0], [-1.0, -2.0]), lambda: v)
