"""No Keras: variables, momentum and weight decay written by hand.

All operations are the user's own, each issued from the step. AutoGraph: runs.
"""

import tensorflow as tf

from examples.programs import Job
from examples.programs.data import digit_batches

SIZES = {
    "test": {"units": 64, "batch": 16},
    "benchmark": {"units": 256, "batch": 64},
    "paper": {"units": 256, "batch": 64},
}

RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-4


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, units, batch):
    batches = digit_batches(seed, size=batch, shape=(64,))
    sizes = (64, units, units, 10)
    weights, biases = [], []
    for index, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
        start = tf.random.stateless_normal((fan_in, fan_out), seed=(seed, index), stddev=(2.0 / fan_in) ** 0.5)
        weights.append(tf.Variable(start))
        biases.append(tf.Variable(tf.zeros(fan_out)))
    variables = weights + biases
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    def forward(x):
        for index, (weight, bias) in enumerate(zip(weights, biases)):
            x = x @ weight + bias
            if index < len(weights) - 1:
                x = tf.nn.relu(x)
        return x

    def train_step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=forward(images))
            loss = tf.reduce_mean(losses) + DECAY * tf.add_n([tf.nn.l2_loss(weight) for weight in weights])
        gradients = tape.gradient(loss, variables)
        for variable, velocity, gradient in zip(variables, velocities, gradients):
            velocity.assign(MOMENTUM * velocity - RATE * gradient)
            variable.assign_add(velocity)
        return loss

    return Job(train_step, batches)
