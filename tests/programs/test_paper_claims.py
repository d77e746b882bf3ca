"""The three kinds of programs that graph conversion cannot run, on small versions.

For each: co-execution equals eager execution, and `tf.function` raises or is silently wrong.
"""
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import f1_score

from tests import harness
from tests.corpus import Program, Spec
from tests.corpus._common import classification, floats, tensor, tensors


CLAIMS = []
WRONG = "silently wrong"


def claim(kind, tf_function, **expectations):
    """Register a program with what `tf.function` makes of it: an exception type, or WRONG."""

    def register(build):
        spec = Spec(build.__name__, kind, build, **expectations)
        CLAIMS.append(pytest.param(spec, tf_function, id=f"{kind}-{build.__name__}"))
        return build

    return register


# ------------------------------------------------------------------------ third-party calls and materialisation

@claim("third_party", AttributeError)
def metric_from_scikit_learn():
    w, scores = tf.Variable(floats(4, 3)), []

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = x @ w
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        predicted = tf.reshape(tf.argmax(logits, -1), [-1]).numpy()
        scores.append(f1_score(tf.reshape(y, [-1]).numpy(), predicted, average="micro"))
        w.assign_sub(tape.gradient(loss, w) * (2.0 - scores[-1]))
        return loss

    return Program(step, classification(12), lambda: [w, scores])


@claim("third_party", AttributeError)
def padded_shape_from_tensor_values():
    def step(image, meta):
        height, width = tf.cast(tf.reduce_max(meta, axis=0), tf.int32).numpy()
        padded = tf.pad(image, [[0, height - image.shape[0]], [0, width - image.shape[1]]])
        return padded * 2.0, [int(height), int(width)]

    return Program(step, [(tensor(2, 3, seed=1), tf.constant([[4.0, 3.0], [2.0, 5.0]])),
                          (tensor(2, 3, seed=2), tf.constant([[2.0, 6.0], [3.0, 3.0]]))])


# ------------------------------------------------------------------------------------- dynamic control flow

@claim("control_flow", WRONG)
def branch_decided_by_numpy():
    rng = np.random.RandomState(1)

    def step(x):
        if rng.rand() < 0.5:
            return tf.sqrt(tf.abs(x))
        return tf.exp(x) + 1.0

    return Program(step, tensors(3))


@claim("control_flow", tf.errors.OperatorNotAllowedInGraphError)
def condition_inside_a_generator():
    def positive_rows(x):
        for i in range(x.shape[0]):
            if tf.reduce_sum(x[i]) > 0:
                yield x[i]

    def step(x):
        total = tf.zeros([2])
        for row in positive_rows(x):
            total = 0.5 * total + row
        return total

    return Program(step, [(tf.constant([[1.0, 2.0], [-3.0, 1.0], [2.0, 2.0]]),),
                          (tf.constant([[-1.0, 0.5], [3.0, 1.0], [2.0, -9.0]]),)])


class Overflow(Exception):
    pass


@claim("control_flow", WRONG)
def exception_decided_by_a_tensor():
    scale = tf.Variable(1.0)

    def scaled(x):
        total = tf.reduce_sum(x) * scale
        if float(total) > 10.0:
            raise Overflow
        return total

    def step(x):
        try:
            result = scaled(x)
            scale.assign(scale * 1.5)
        except Overflow:
            scale.assign(scale * 0.5)
            result = tf.constant(0.0)
        return result

    return Program(step, [(tf.constant([1.0, 2.0]),), (tf.constant([6.0, 8.0]),)], lambda: scale)


# A step whose kernel fails falls back: only the calls that do not fail are co-executed.
@claim("control_flow", tf.errors.InvalidArgumentError, options={"run_ahead": 0}, calls=10, max_fallbacks=6, min_coexecuted=0)
def kernel_error_handled_by_except():
    def step(x, index):
        try:
            return x[0] + float(tf.gather(x, index))
        except tf.errors.InvalidArgumentError:
            return tf.reduce_mean(x)

    return Program(step, [(tensor(3, seed=1), tf.constant(1)), (tensor(3, seed=2), tf.constant(5))])


# ------------------------------------------------------------------------------------------ object mutation

class DropBlock:
    """The keep probability is a plain attribute, lowered as training goes on."""

    def __init__(self):
        self.keep_prob, self.steps = 1.0, 0

    def anneal(self):
        self.steps += 1
        self.keep_prob = max(0.5, 1.0 - 0.1 * self.steps)

    def __call__(self, x):
        gamma = (1.0 - self.keep_prob) / 4.0
        dropped = tf.cast(tf.random.stateless_uniform(x.shape, [1, 2]) < gamma, tf.float32)
        mask = 1.0 - tf.nn.max_pool2d(dropped, 2, 1, "SAME")
        return x * mask / tf.reduce_mean(mask)


@claim("mutation", WRONG)
def keep_probability_annealed_in_the_step():
    block = DropBlock()

    def step(x):
        block.anneal()
        return block(x)

    return Program(step, tensors(2, 6, 6, 1), lambda: vars(block))


class Decoder:
    """The trainer class writes the loss to an attribute; code outside the step reads it."""

    def __init__(self):
        self.w, self.loss_value = tf.Variable(floats(3, 1)), tf.constant(0.0)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            self.loss_value = tf.reduce_mean(tf.square(x @ self.w), axis=1)
        self.w.assign_sub(0.1 * tape.gradient(self.loss_value, self.w))


@claim("mutation", (AttributeError, TypeError, NotImplementedError))
def loss_attribute_read_outside_the_step():
    model, losses = Decoder(), []

    def between(i, args, result):
        losses.append(tf.reduce_mean(model.loss_value))

    return Program(model.train_step, tensors(4, 3), lambda: [model.w, losses], between)


class Block:
    ratio = 1.0


@claim("mutation", WRONG, calls=12)
def resolution_of_one_block_lowered():
    blocks, rng = [Block() for _ in range(3)], np.random.RandomState(4)

    def choose():
        chosen = rng.randint(3)
        for i, block in enumerate(blocks):
            block.ratio = 0.5 if i == chosen else 1.0

    def step(x):
        choose()
        for i, block in enumerate(blocks):
            x = tf.tanh(x * (i + 1.0))
            if block.ratio < 1.0:
                x = tf.repeat(tf.nn.avg_pool1d(x, 2, 2, "VALID"), 2, axis=1)
        return x

    return Program(step, tensors(2, 4, 1), lambda: [block.ratio for block in blocks])


@claim("mutation", WRONG)
def counters_and_printed_text():
    counts = {"steps": 0}

    def step(x):
        counts["steps"] += 1
        print("step", counts["steps"])
        return x / counts["steps"]

    return Program(step, tensors(3), lambda: counts)


@pytest.mark.parametrize("mode", harness.MODES)
@pytest.mark.parametrize("spec, tf_function", CLAIMS)
def test_coexecution_equals_eager(spec, tf_function, mode):
    harness.check(spec, mode)


@pytest.mark.parametrize("spec, tf_function", CLAIMS)
def test_tf_function_does_not(spec, tf_function):
    if tf_function is WRONG:
        graph = harness.run(spec, "now", tf.function)
        assert harness.compare(spec, harness.run_eager(spec, "now"), graph)
    else:
        with pytest.raises(tf_function):
            harness.run(spec, "now", tf.function)
