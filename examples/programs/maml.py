"""MAML: learns a starting point from which one gradient step fits a new sine wave.

AutoGraph's program, on the sine waves of the method's paper: a tape inside a tape for each task, in a Python loop over the tasks, and a network
whose weights are an argument. Each step draws its tasks with NumPy, as the original's data generator does.
AutoGraph: wrong. It draws the tasks once, while the step is traced, and learns these by heart.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.training import adam

SIZES = {
    "test": {"tasks": 2, "shots": 5, "widths": (1, 16, 16, 1)},
    "benchmark": {"tasks": 5, "shots": 10, "widths": (1, 40, 40, 1)},
    "paper": {"tasks": 25, "shots": 10, "widths": (1, 40, 40, 1)},
}
INNER_RATE = 0.01


def sine_waves(random, tasks, shots):
    """For each task (x, y, x to be tested with, y)."""
    for _ in range(tasks):
        amplitude, phase = random.uniform(0.1, 5.0), random.uniform(0.0, np.pi)
        x = random.uniform(-5.0, 5.0, (2, shots, 1)).astype(np.float32)
        y = (amplitude * np.sin(x - phase)).astype(np.float32)
        yield x[0], y[0], x[1], y[1]


def network(weights, x):
    *hidden, last = zip(weights[::2], weights[1::2])
    for kernel, bias in hidden:
        x = tf.nn.relu(x @ kernel + bias)
    kernel, bias = last
    return x @ kernel + bias


def mean_squared_error(weights, x, y):
    return tf.reduce_mean(tf.square(network(weights, x) - y))


def adapted(weights, x, y):
    """The weights after one step of gradient descent on a task."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = mean_squared_error(weights, x, y)
    return [weight - INNER_RATE * gradient for weight, gradient in zip(weights, tape.gradient(loss, weights))]


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    variables = []
    for inputs, outputs in zip(sizes["widths"], sizes["widths"][1:]):
        variables += [tf.Variable(keras.initializers.GlorotUniform()((inputs, outputs))), tf.Variable(tf.zeros(outputs))]
    optimizer = adam(variables)
    random = np.random.default_rng(seed)

    def train_step():
        with tf.GradientTape() as tape:
            weights = [tf.convert_to_tensor(variable) for variable in variables]
            losses = []
            for x, y, test_x, test_y in sine_waves(random, sizes["tasks"], sizes["shots"]):
                losses.append(mean_squared_error(adapted(weights, x, y), test_x, test_y))
            loss = tf.add_n(losses) / len(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return Job(train_step, [()])
