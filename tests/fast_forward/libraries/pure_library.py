"""A library on top of TensorFlow in the manner of TensorFlow Probability: objects that are made in each step, and properties that run operations."""

import functools

import tensorflow as tf

default_scale = 1.0


class Gaussian:
    """A normal distribution."""

    def __init__(self, mean, scale=None, transform=None):
        self._parameters = dict(mean=mean, scale=scale)
        self.mean = mean
        self._scale = default_scale if scale is None else scale
        self.transform = transform
        self.parts = [1.0, 2.0]
        self.note = None

    @property
    def scale(self):
        return tf.convert_to_tensor(self._scale) * 1.0

    @property
    def variance(self):
        return self.scale ** 2.0

    def log_prob(self, x):
        self.note = x.shape  # a note for the next time, another object each time
        if self.transform is not None:
            x = self.transform(x)
        z = (x - self.mean) / self.scale
        return -0.5 * z ** 2.0 - tf.math.log(self.scale) - 0.5 * self.parts[0] * self.parts[1]

    def sample(self):
        return self.mean + self.scale * tf.random.normal(tf.shape(self.mean))

    def product(self, other):
        v = 1.0 / (1.0 / self.variance + 1.0 / other.variance)
        return Gaussian(v * (self.mean / self.variance + other.mean / other.variance), tf.sqrt(v))


class Dense:
    """A module with variables."""

    def __init__(self, rows, columns):
        self.w, self.rate = tf.Variable(tf.ones([rows, columns]) * 0.1), 1.0

    def __call__(self, x):
        return tf.tanh(x @ self.w) * self.rate


def divergence(p, q):
    return tf.math.log(q.scale / p.scale) + (p.variance + (p.mean - q.mean) ** 2.0) / (2.0 * q.variance) - 0.5


def is_large(x):
    """Looks at a value."""
    return float(tf.reduce_sum(x)) > 0.0


def first(x):
    """Looks at a value of what it is given."""
    return float(x.numpy().flat[0])


def cached(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)
    return call


@cached
def scaled(x, by):
    return x * by + by


def told(x, tell):
    for _ in range(6):
        x = tf.sin(x) + 0.5
    tell(1.0)
    return x


def announced(x):
    for _ in range(6):
        x = tf.sin(x) + 0.5
    print("announced")
    return x
