"""L-BFGS: a quasi-Newton method that keeps its history in Python lists fits a softmax regression to each batch.

AutoGraph's program, after an eager implementation with lists of past steps: the lists grow until the memory is full, a pair is only kept if its
curvature is positive, and computed values decide whether a step is made shorter and when to stop.
AutoGraph: fails (a symbolic tensor is compared in Python's `min`); behind that, it needs lists of a declared type.
"""

import collections

import tensorflow as tf

from examples.programs import Job
from examples.programs.data import digit_batches

SIZES = {
    "test": {"batch": 16, "iterations": 3, "memory": 2},
    "benchmark": {"batch": 200, "iterations": 10, "memory": 5},
    "paper": {"batch": 10, "iterations": 100, "memory": 100},
}
PENALTY, TOLERANCE, SHORTEST = 1e-2, 1e-4, 1e-3


class LBFGS:
    """Minimises a function of one flat variable; `evaluate()` gives its value and gradient there."""

    def __init__(self, variable, memory, iterations):
        self.variable, self.memory, self.iterations = variable, memory, iterations

    def direction(self, gradient, pairs):
        """The gradient times an approximation of the inverse Hessian, by two loops over the pairs (step, change of gradient)."""
        factors = []
        for step, change in reversed(pairs):
            factors.append(tf.tensordot(step, gradient, 1) / tf.tensordot(step, change, 1))
            gradient = gradient - factors[-1] * change
        if pairs:
            step, change = pairs[-1]
            gradient = gradient * (tf.tensordot(step, change, 1) / tf.tensordot(change, change, 1))
        for step, change in pairs:
            factor = tf.tensordot(change, gradient, 1) / tf.tensordot(step, change, 1)
            gradient = gradient + (factors.pop() - factor) * step
        return gradient

    def minimise(self, evaluate):
        pairs = collections.deque(maxlen=self.memory)
        loss, gradient = evaluate()
        rate = min(1.0, 1.0 / float(tf.norm(gradient, 1)))
        for _ in range(self.iterations):
            if float(tf.reduce_max(tf.abs(gradient))) < TOLERANCE:
                break
            start, direction = self.variable.value(), self.direction(gradient, pairs)
            slope = float(tf.tensordot(gradient, direction, 1))
            while True:
                self.variable.assign(start - rate * direction)
                new_loss, new_gradient = evaluate()
                if float(new_loss) <= float(loss) - 1e-4 * rate * slope or rate < SHORTEST:
                    break
                rate /= 2
            step, change = self.variable - start, new_gradient - gradient
            if float(tf.tensordot(step, change, 1)) > 1e-10:
                pairs.append((step, change))
            loss, gradient, rate = new_loss, new_gradient, 1.0
        return loss


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    weights = tf.Variable(tf.zeros(65 * 10), name="weights")
    optimizer = LBFGS(weights, sizes["memory"], sizes["iterations"])

    def train_step(images, labels):
        def evaluate():
            with tf.GradientTape() as tape:
                kernel, bias = tf.reshape(weights[:640], (64, 10)), weights[640:]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ kernel + bias)
                loss = tf.reduce_mean(losses) + PENALTY * tf.nn.l2_loss(kernel)
            return loss, tape.gradient(loss, weights)

        return optimizer.minimise(evaluate)

    return Job(train_step, digit_batches(seed, size=sizes["batch"], shape=(64,)))
