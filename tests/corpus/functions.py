"""tf.function inside the step."""
import keras
import tensorflow as tf

from . import Program, program
from ._common import floats, tensor, tensors


@program("pure_tf_function")
def _():
    @tf.function
    def gelu(x):
        return 0.5 * x * (1.0 + tf.tanh(x + 0.04 * x ** 3))

    def step(x):
        return gelu(x) + gelu(x * 2.0)

    return Program(step, tensors(3))


@program("gradient_through_a_tf_function")
def _():
    w = tf.Variable(floats(3, 2))

    @tf.function
    def forward(x):
        return tf.nn.relu(x @ w)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(x) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, tensors(4, 3), lambda: w)


@program("tf_function_that_updates_variables")
def _():
    v, count = tf.Variable([1.0, 2.0]), tf.Variable(0)

    @tf.function
    def update(x):
        count.assign_add(1)
        v.assign(0.5 * v + x)
        return v * 2.0

    def step(x):
        before = v + 0.0
        doubled = update(x)
        v.assign_add(doubled)
        return before, v + 0.0, update(-x)

    return Program(step, tensors(2), lambda: [v, count])


@program("tf_function_with_control_flow_and_python_arguments")
def _():
    @tf.function
    def power(x, n, invert=False):
        result = tf.ones_like(x)
        for _ in tf.range(n):
            result *= x
        if tf.reduce_sum(result) > 1.0:
            result = tf.sqrt(tf.abs(result))
        return 1.0 / result if invert else result

    def step(x, n):
        return power(x, tf.constant(n)), power(x, 2, invert=True)

    return Program(step, [(tensor(3, seed=1), 2), (tensor(3, seed=2), 3)])


@program("keras_optimizer_applied_in_a_tf_function")
def _():
    model, optimizer = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)]), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return Program(step, tensors(4, 3), lambda: [model.variables, optimizer.variables])


@program("tf_function_with_random_numbers")
def _():
    @tf.function
    def noisy(x):
        return x + tf.random.normal([3], seed=4)

    def step(x):
        return noisy(x), tf.random.uniform([2]), noisy(x)

    return Program(step, tensors(3))


@program("tf_function_retraced_for_new_shapes")
def _():
    @tf.function
    def total(x):
        return tf.reduce_sum(x, axis=0)

    return Program(lambda x: total(x) * 2.0, [(tensor(3, 2, seed=1),), (tensor(4, 2, seed=2),)])


@program("recompute_grad")
def _():
    w = tf.Variable(floats(3, 3))

    @tf.recompute_grad
    def block(x):
        return tf.tanh(x @ w)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(block(block(x))))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, tensors(2, 3), lambda: w)


# Each call of vectorized_map makes and calls a new graph function: no step is like an earlier one.
@program("vectorized_map", min_coexecuted=0)
def _():
    w = tf.Variable(floats(3, 3))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.vectorized_map(lambda row: tf.reduce_max(row) * row, x @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, tensors(2, 3), lambda: w)


@program("concrete_function_and_nested_functions")
def _():
    v = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def inner(x):
        return {"scaled": x * v, "mean": tf.reduce_mean(x)}

    @tf.function
    def outer(x):
        return inner(x)["scaled"] + inner(x * 2.0)["mean"]

    concrete = inner.get_concrete_function()

    def step(x):
        v.assign_add(0.1)
        return outer(x), concrete(x)

    return Program(step, tensors(3), lambda: v)
