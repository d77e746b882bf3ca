"""Random numbers: TensorFlow's stateful and stateless ops, its generators, Keras', numpy's and Python's."""
import random

import keras
import numpy as np
import tensorflow as tf

from . import Program, program
from ._common import floats, tensor, tensors


@program("tf_random_distributions")
def _():
    def step(x):
        return (x + tf.random.uniform([3]), tf.random.normal([2, 2], 1.0, 0.5), tf.random.truncated_normal([4]),
                tf.random.uniform([5], 0, 10, tf.int32), tf.random.normal([3], dtype=tf.float64))

    return Program(step, tensors(3))


@program("tf_random_with_op_seed")
def _():
    def step(x):
        return x * tf.random.uniform([3], seed=5), tf.random.normal([2], seed=5), tf.random.uniform([3], seed=5)

    return Program(step, tensors(3))


@program("tf_random_shuffle_categorical_gamma_poisson")
def _():
    def step(x):
        return (tf.random.shuffle(x), tf.random.categorical(x, 4), tf.random.gamma([3], 2.0),
                tf.random.poisson([2], 3.0))

    return Program(step, tensors(4, 3))


@program("tf_nn_dropout_in_a_training_step")
def _():
    w = tf.Variable(floats(4, 3))

    def step(x):
        with tf.GradientTape() as tape:
            h = tf.nn.dropout(tf.nn.relu(x @ w), 0.4)
            loss = tf.reduce_sum(tf.square(h))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss, h

    return Program(step, tensors(5, 4), lambda: w)


@program("tf_random_generator")
def _():
    generator = tf.random.Generator.from_seed(11)

    def step(x):
        noise = generator.normal([3])
        keep = generator.uniform([3]) > 0.3
        return tf.where(keep, x + noise, x), generator.uniform([2], maxval=9, dtype=tf.int64), generator.make_seeds(1)

    return Program(step, tensors(3), lambda: generator.state)


@program("tf_random_generator_split")
def _():
    generator = tf.random.Generator.from_seed(11)

    def step(x):
        first, second = generator.split(2)
        return x + first.normal([3]), second.uniform([1])

    return Program(step, tensors(3), lambda: generator.state)


@program("tf_global_generator")
def _():
    def step(x):
        return x + tf.random.get_global_generator().normal([3])

    return Program(step, tensors(3), lambda: tf.random.get_global_generator().state)


@program("tf_stateless_random")
def _():
    counter = tf.Variable(0)

    def step(x):
        counter.assign_add(1)
        seed = tf.stack([counter, 7])
        new = tf.random.split(seed, 2)
        return x + tf.random.stateless_normal([3], seed), tf.random.stateless_uniform([2], new[0]), new

    return Program(step, tensors(3), lambda: counter)


@program("keras_random_functions")
def _():
    generator = keras.random.SeedGenerator(3)

    def step(x):
        return (x + keras.random.normal([3], seed=generator), keras.random.dropout(x, 0.5, seed=generator),
                keras.random.randint([2], 0, 9, seed=4), keras.random.shuffle(x), keras.random.uniform([2]))

    return Program(step, tensors(3), lambda: generator.state)


@program("numpy_and_python_random_fed")
def _():
    rng = np.random.default_rng(5)

    def step(x):
        noise = rng.standard_normal(3).astype("float32")
        scale = random.random() + np.random.rand()
        order = list(range(3))
        random.shuffle(order)
        return tf.gather(x + noise, order) * scale

    return Program(step, tensors(3), lambda: [random.random(), np.random.rand(), rng.random()])


@program("random_branch_in_python", calls=12)
def _():
    picks = []

    def step(x):
        picks.append(random.choice("ab"))
        return tf.exp(x) if picks[-1] == "a" else tf.sqrt(tf.abs(x)) + 1.0

    return Program(step, tensors(3), lambda: picks)


@program("random_draw_in_one_branch_only")
def _():
    def step(x, noisy):
        y = x * 2.0
        if noisy:
            y += tf.random.normal([3])
        return y + tf.random.uniform([3])

    return Program(step, [(tensor(3, seed=1), True), (tensor(3, seed=2), False)])


@program("random_draw_compared_in_python", calls=12, max_fallbacks=4)
def _():
    def step(x):
        u = tf.random.uniform([])
        if u < 0.5:
            return x + tf.random.normal([3]), float(u)
        return x * u, float(u)

    return Program(step, tensors(3))


@program("random_shape_depends_on_the_batch")
def _():
    def step(x):
        return x + tf.random.normal(tf.shape(x)), tf.random.uniform([x.shape[0]])

    return Program(step, [(tensor(3, 2, seed=1),), (tensor(4, 2, seed=2),)])


@program("random_draw_inside_a_loop")
def _():
    def step(x):
        total = x
        for _ in range(3):
            total = total + tf.random.normal([2]) * 0.5
        return total, [tf.random.uniform([1]) for _ in range(2)]

    return Program(step, tensors(2))


@program("set_seed_inside_the_step")
def _():
    def step(x, seed):
        tf.random.set_seed(seed)
        return x + tf.random.uniform([3]), tf.random.normal([2])

    return Program(step, [(tensor(3, seed=s), s) for s in (1, 2)])


@program("draws_between_the_steps")
def _():
    drawn = []

    def step(x):
        return x + tf.random.uniform([3])

    def between(i, args, result):
        drawn.append(tf.random.normal([2]))

    return Program(step, tensors(3), lambda: drawn, between)


@program("variable_initialised_at_random_in_the_step")
def _():
    initializer = keras.initializers.GlorotUniform(seed=3)

    def step(x):
        layer = keras.layers.Dense(2, kernel_initializer=initializer)
        return layer(x), layer.kernel.numpy()

    return Program(step, tensors(3, 4))
