"""Unknown code in the middle of a step, which is given what the graph has computed, and gives what the graph goes on with: it is called where the step is skipped, too, as often and with the same."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import f1_score
from sklearn.preprocessing import normalize

from tests import harness

GIVEN = [tf.constant(np.random.RandomState(k).randn(4, 3).astype("float32")) for k in range(5)]
CALLS = []


def training(forward, look=lambda: None, called=lambda k: (GIVEN[k % 5],)):
    """A step that trains what `forward(x @ w, x)` gives."""
    def make():
        CALLS.clear()
        SCALER.scale, SCALER.seen = 1.0, 0
        w = tf.Variable(np.eye(3, 2, dtype="float32"))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(forward(x @ w, x) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, lambda step, k: step(*called(k)), lambda: (w, list(CALLS), look())
    return make


def scaled(v):
    CALLS.append(float(v.sum()))
    return v / np.abs(v).max()


def in_two(v, n):
    CALLS.append(len(v))
    return v[:, 0] * n, np.float32(v.max())


class Scaler:
    scale, seen = 1.0, 0

    def __call__(self, v):
        self.seen += 1
        return v * np.float32(self.scale)

    def method(self, v):
        return self(v) + np.float32(self.seen)


SCALER = Scaler()


def by_method(h, x):
    return h + tf.numpy_function(SCALER.method, [h], tf.float32)


def parts(h, x):
    first, most = tf.numpy_function(in_two, [h, tf.constant(2.0)], [tf.float32, tf.float32])
    return tf.tanh(h * first[:, None] + most)


def twice(h, x):
    h = h + tf.numpy_function(scaled, [h], tf.float32)
    return h * 0.5 + tf.numpy_function(scaled, [h * 2.0], tf.float32)


def normalized(h, x):
    return h - tf.constant(normalize(h.numpy()))


def weighted(h, x):
    score = f1_score(x[:, 0].numpy() > 0, h[:, 0].numpy() > 0)
    return h * score


@pytest.mark.all_variants
@pytest.mark.parametrize("forward", [
    lambda h, x: h + tf.numpy_function(scaled, [h], tf.float32),
    lambda h, x: h + tf.numpy_function(lambda v: CALLS.append("called") or v * 2, [h], tf.float32),
    lambda h, x: h + tf.numpy_function(func=scaled, inp=(x[:, :2],), Tout=tf.float32, stateful=False),
    twice, parts, by_method, normalized, weighted,
], ids=["numpy_function", "lambda", "by_name", "twice", "parts", "method", "library", "number"])
def test_steps_are_skipped(forward):
    harness.compare_steps(training(forward), express=0)


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}, {"fast_forward": False}, {"fast_forward": "framework"}, {"reduce_retracing": True}], ids=str)
def test_other_options(options):
    harness.compare_steps(training(twice), 0, 0, **options)


def test_python_functions_behind_the_tape():
    def make():
        w = tf.Variable(np.eye(3, 2, dtype="float32"))

        def step(x):
            h = tf.py_function(lambda v: v * 2.0 + float(v[0, 0]), [x @ w], tf.float32)
            w.assign(h[:3] * 0.1)
            return h

        return step, lambda step, k: step(GIVEN[k % 5]), lambda: w

    harness.compare_steps(make, express=0)


def test_python_functions_that_are_differentiated():
    harness.compare_steps(training(lambda h, x: tf.py_function(lambda v: v * v, [h], tf.float32)), 0, 0)


def test_what_a_function_closes_over():
    def forward(h, x):
        scale = h * 2.0
        return h + tf.numpy_function(lambda v: np.tanh(v * scale.numpy()), [h], tf.float32)

    harness.compare_steps(training(forward), 0, 0)


def test_state_that_changes_between_steps():
    def called(k):
        SCALER.scale = 1.0 + k // 10
        return (GIVEN[k % 5],)

    harness.compare_steps(training(by_method, lambda: SCALER.seen, called), 6, 0, n=40)


def test_what_is_given_changes_the_path():
    """Python looks at what it gives, and goes another way now and then: each function is called once in a step."""
    def forward(h, x):
        kept = tf.numpy_function(scaled, [h], tf.float32)
        if float(kept[0, 0]) > 0.5:
            kept = tf.numpy_function(scaled, [h * 3.0], tf.float32)
        return h + kept

    harness.compare_steps(training(forward), 0, 0, n=40)


def test_numbers_that_are_compared_and_kept():
    """The best of those that a library gives: which is the larger one is another one now and then."""
    def forward(h, x):
        score = f1_score(x[:, 0].numpy() > 0, h[:, 0].numpy() > 0)
        SCALER.scale = max(SCALER.scale, score) if len(CALLS) % 13 else score
        CALLS.append(SCALER.scale)
        return tf.tanh(h)

    harness.compare_steps(training(forward, lambda: SCALER.scale, lambda k: (GIVEN[k % 5] * (1.0 if k % 3 else -1.0),)), 0, 0, n=60)


def test_the_best_number():
    def forward(h, x):
        SCALER.scale = max(SCALER.scale, f1_score(x[:, 0].numpy() > 0, h[:, 1].numpy() > 0))
        return tf.tanh(h)

    def called(k):
        if k == 0:
            SCALER.scale = 0.0
        return (tf.constant(np.random.RandomState(k).randn(4, 3).astype("float32")),)

    harness.compare_steps(training(forward, lambda: SCALER.scale, called), 0, 0, n=60)


def test_a_number_that_is_looked_at():
    def forward(h, x):
        score = f1_score(x[:, 0].numpy() > 0, h[:, 0].numpy() > 0)
        CALLS.append(score)
        return h * 2.0 if score > 0.7 else h + 1.0

    harness.compare_steps(training(forward), 0, 0, n=40)


@pytest.mark.parametrize("given", ["shapes", "types", "none"])
def test_others_that_are_given(given):
    """The function gives something else in some steps."""
    def other(v):
        CALLS.append(float(v[0, 0]))
        if len(CALLS) % 7 != 6:
            return v
        return {"shapes": lambda: v[:1], "types": lambda: v.astype("float64"), "none": lambda: None}[given]()

    harness.compare_steps(training(lambda h, x: h + tf.numpy_function(other, [h], tf.float32)), 0, 0)


def test_a_function_that_raises():
    def raises(v):
        CALLS.append(float(v[0, 0]))
        if len(CALLS) % 9 == 8:
            raise ValueError("enough")
        return v

    def forward(h, x):
        try:
            return h + tf.numpy_function(raises, [h], tf.float32)
        except tf.errors.InvalidArgumentError:
            return h

    harness.compare_steps(training(forward), 0, 0)


def test_random_numbers_in_a_function():
    def noise(v):
        return v + np.random.randn(*v.shape).astype("float32")

    harness.compare_steps(training(lambda h, x: h + tf.numpy_function(noise, [h], tf.float32)), express=0)


def test_arrays_that_a_library_changes():
    """It is given an array that was read, and writes into it."""
    def forward(h, x):
        array = h.numpy()
        normalize(array, copy=False)
        return h + tf.constant(array)

    harness.compare_steps(training(forward), 0, 0)


def test_arrays_that_are_kept():
    def forward(h, x):
        array = h.numpy()
        CALLS.append(array)
        return h + tf.constant(normalize(array))

    harness.compare_steps(training(forward), 0, 0)


@pytest.mark.all_variants
@pytest.mark.parametrize("calls", [
    lambda x: x + tf.numpy_function(scaled, [x], tf.float32),
    lambda x: twice(tf.tanh(x), x),
    lambda x: tf.tanh(x * tf.numpy_function(SCALER.method, [tf.reduce_sum(x)], tf.float32)),
], ids=["one", "two", "method"])
@pytest.mark.parametrize("model", [False, True])
def test_in_a_layer(calls, model):
    class Layer(tf.keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(calls(x), x.shape)

    called = tf.keras.Sequential([tf.keras.layers.Dense(2, "tanh", kernel_initializer="ones"), Layer()]) if model else Layer()
    called(GIVEN[0] @ np.eye(3, 2, dtype="float32"))
    harness.compare_steps(training(lambda h, x: called(h)), express=0)


def test_a_layer_between_others_that_read():
    """What it is given was read before, or is read behind it."""
    class Layer(tf.keras.layers.Layer):
        def call(self, x):
            return x + tf.numpy_function(scaled, [x], tf.float32)

    layer = Layer()

    def forward(h, x):
        CALLS.append(float(tf.reduce_sum(h)))
        a = layer(h)
        b = layer(h) + tf.numpy_function(scaled, [a], tf.float32)
        CALLS.append(float(tf.reduce_sum(b)))
        return a + b

    harness.compare_steps(training(forward), 0, 0)
