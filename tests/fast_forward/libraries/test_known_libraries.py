"""Libraries on top of TensorFlow whose calls do nothing but compute: steps that use them are skipped as a whole."""

import importlib.util

import numpy as np
import pure_library as lib
import pytest
import tensorflow as tf

import terra.transform
from examples.benchmarks import libraries
from terra.transform import policy
from tests import harness

STEPS = 18


@pytest.fixture(autouse=True)
def declared():
    """As the user would, once; here it is taken back."""
    with harness.declared_pure("pure_library"):
        yield


def batch(i):
    return tf.constant(np.random.default_rng(i).normal(size=(4, 3)).astype("float32"))


def compare(make, given=lambda i: (batch(i),), whole=STEPS - 9, change=None, at=10, steps=STEPS):
    """`harness.differ`, where `make` also gives what `change` is given before the step `at`."""
    held = {}

    def begin():
        step, state, held["parts"] = make()
        return step, state

    def before(i, step):
        held["step"] = step
        if change is not None and i == at:
            change(held["parts"])
    stats = harness.differ(begin, given, steps, change=before)
    assert stats.coexecuted_steps >= steps - 8 and stats.whole_steps >= whole, terra.explain(held["step"])
    return held["step"]


def training(loss_of):
    """A step that trains a module of the library's by what `loss_of` makes of its output."""
    def make():
        dense, prior = lib.Dense(3, 2), lib.Gaussian(tf.zeros([2]), 2.0)

        def step(x):
            with tf.GradientTape() as tape:
                loss = loss_of(dense(x), prior)
            dense.w.assign_sub(0.1 * tape.gradient(loss, dense.w))
            return loss
        return step, lambda: [dense.w], {"dense": dense, "prior": prior}
    return make


def variational(mean, prior):
    q = lib.Gaussian(mean, tf.nn.softplus(mean) + 0.1)
    z = q.sample()
    return tf.reduce_mean(lib.divergence(q, prior) - prior.log_prob(z)) + tf.reduce_mean(q.product(prior).mean) + tf.reduce_mean(lib.scaled(q.variance, 0.5))


def test_objects_of_a_step():
    compare(training(variational))


@pytest.mark.parametrize("change", [
    lambda parts: setattr(parts["prior"], "_scale", 0.5),
    lambda parts: setattr(parts["prior"], "mean", tf.ones([2])),
    lambda parts: parts["prior"].parts.__setitem__(0, 3.0),
    lambda parts: setattr(parts["prior"], "transform", tf.sin),
    lambda parts: setattr(parts["prior"], "__class__", type("Other", (lib.Gaussian,), {"log_prob": lambda self, x: x})),
    lambda parts: setattr(parts["dense"], "rate", 0.5),
    lambda parts: setattr(parts["dense"], "w", tf.Variable(tf.ones([3, 2]) * 0.3)),
], ids=["number", "tensor", "item", "function", "class", "rate", "variable"])
def test_what_an_object_holds_changes(change):
    compare(training(variational), whole=3, change=change)


def test_a_method_is_replaced(monkeypatch):
    own = lib.Gaussian.log_prob

    def change(parts):
        monkeypatch.setattr(lib.Gaussian, "log_prob", lambda self, x: own(self, x) * 2.0)

    def restored():
        monkeypatch.setattr(lib.Gaussian, "log_prob", own)
        return training(variational)()
    compare(restored, whole=4, change=change)


def test_a_function_is_replaced(monkeypatch):
    own = lib.divergence

    def restored():
        monkeypatch.setattr(lib, "divergence", own)
        return training(variational)()
    compare(restored, whole=4, change=lambda parts: monkeypatch.setattr(lib, "divergence", lambda p, q: p.mean * q.mean))


def test_numbers_that_vary():
    def make():
        def step(x, scale):
            return lib.Gaussian(x, scale).log_prob(x * 0.5)
        return step, list, None
    compare(make, lambda i: (batch(i), 1.0 + i % 3), whole=0)


def test_functions_of_the_users_are_called():
    def make():
        calls = []

        def transform(x):
            calls.append(len(calls))
            return x * 2.0

        def step(x):
            return lib.Gaussian(x, 1.0, transform).log_prob(x)
        return step, lambda: calls, None
    compare(make, whole=0)


def test_methods_of_objects_are_called():
    """Of an object from outside, and of a list."""
    def make():
        prior = lib.Gaussian(tf.zeros([3]), 2.0)
        return lambda x: lib.Gaussian(x, 1.0, prior.log_prob).log_prob(x), list, prior
    compare(make)
    compare(make, whole=3, change=lambda prior: setattr(prior, "_scale", 0.5), steps=22)

    def other():
        calls = []
        return lambda x: lib.told(x, calls.append), lambda: calls, None
    compare(other, whole=0)


class Noting(lib.Gaussian):
    """A class of the user's that derives from the library's."""

    asked = []

    @property
    def scale(self):
        self.asked.append(len(self.asked))
        return super().scale


def test_a_class_of_the_users_overrides_something():
    def make():
        Noting.asked = []
        return lambda x: lib.Gaussian(x, 1.0).product(Noting(x, 2.0)).log_prob(x), lambda: Noting.asked, None
    compare(make, whole=0)


class Toggling(lib.Gaussian):
    """Does something else each other time."""

    odd = True

    def log_prob(self, x):
        x = super().log_prob(x) * (2.0 if self.odd else 3.0)
        self.odd = not self.odd
        return x


class Counting(lib.Gaussian):
    calls = 0

    def log_prob(self, x):
        self.calls += 1
        return super().log_prob(x) * float(self.calls)


@pytest.mark.parametrize("kind", [Toggling, Counting])
def test_an_object_of_the_users_remembers(kind):
    """What its own code sets is no note of the library's."""
    def make():
        d = kind(tf.zeros([3]), 2.0)

        def step(x):
            return tf.sin(d.log_prob(tf.sin(x) * d.variance)) + 1.0
        return step, lambda: list(vars(d))[-1:], None
    compare(make, whole=0, steps=30)


class Scaled(lib.Gaussian):
    """Made in each step; the library calls what it overrides."""

    factor, calls = 2.0, []

    def __init__(self, mean, by):
        self.by = by
        super().__init__(mean, 1.5)
        self.made = [mean]

    @property
    def scale(self):
        return super().scale * self.factor

    def sample(self):
        return super().sample() * self.by + len(self.made)


class Remembering(Scaled):
    def sample(self):
        self.calls.append(1)
        return super().sample()


class Shown(Scaled):
    def sample(self):
        print("sampled")
        return super().sample()


def of_derived(base):
    def make():
        class kind(base):
            calls = []

        w = tf.Variable(tf.ones([3]))
        prior = kind(tf.zeros([3]), 1.0)

        def step(x):
            with tf.GradientTape() as tape:
                d = kind(x * w, 0.5)
                d.more = tf.reduce_sum(d.scale)
                loss = tf.reduce_mean(d.product(prior).log_prob(d.sample()) + prior.product(d).variance) + d.more
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss
        return step, lambda: [w, *kind.calls], kind
    return make


@pytest.mark.parametrize("change", [
    None, lambda kind: setattr(kind, "factor", 3.0), lambda kind: setattr(kind, "sample", lambda self: self.mean * 3.0),
    lambda kind: setattr(kind, "scale", property(lambda self: tf.constant(0.5)))], ids=["", "attribute", "method", "property"])
def test_objects_of_a_derived_class(change):
    compare(of_derived(Scaled), whole=10 if change is None else 6, change=change, steps=30, at=18)


def test_a_derived_class_of_which_nothing_was_there_before():
    def make():
        class kind(Scaled):
            pass

        def step(x):
            d = kind(x, 0.5)
            return d.product(lib.Gaussian(x, 2.0)).log_prob(d.sample())
        return step, list, kind

    for change in (lambda kind: setattr(kind, "sample", lambda self: self.mean * 3.0), lambda kind: setattr(kind, "scale", property(lambda self: tf.constant(0.5)))):
        compare(make, whole=6, change=change, steps=30, at=18)


@pytest.mark.parametrize("kind, whole", [(Remembering, 8), (Shown, 6)])
def test_what_a_derived_class_does_besides(kind, whole, capfd):
    step = compare(of_derived(kind), whole=whole, steps=30)
    if kind is Shown:
        assert capfd.readouterr().out.count("sampled") == 60


def test_gradients_of_a_list_that_a_module_wraps():
    """They come as such a list."""
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [tf.Variable([1.0, 2.0, 3.0]), tf.Variable(0.5)]

        def step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.sin(x * self.weights[0]) * self.weights[1])
            gradients = tape.gradient(loss, self.weights)
            for v, g in zip(self.weights, gradients):
                v.assign_sub(0.1 * g)
            return loss, gradients

    def make():
        module = Module()
        return module.step, lambda: list(module.weights), None
    compare(make)


def test_values_are_looked_at():
    """Of a value of the step the guard is the value itself; one that comes with the step is another one each time."""
    def make():
        def step(x):
            y = tf.sin(x) * 2.0
            for _ in range(6):
                y = y + 1.0
            return y - 7.0 if lib.is_large(tf.reduce_sum(y) - 72.0) else y * 2.0
        return step, list, None
    compare(make, whole=0)

    def other():
        def step(x):
            y = x
            for _ in range(12):
                y = y + lib.scaled(x, 2.0)
            return y * lib.first(x)
        return step, list, None
    compare(other, whole=0)


def test_an_object_is_given_back_or_kept():
    def make():
        kept = []

        def step(x):
            d = lib.Gaussian(tf.sin(x), 2.0)
            kept.append(d)
            return d.log_prob(x) + d.variance
        return step, lambda: [d.mean for d in kept], None
    compare(make, whole=0)


def test_an_object_keeps_a_tensor_of_the_step():
    def make():
        prior = lib.Gaussian(tf.zeros([3]), 2.0)

        def step(x):
            before = prior.mean
            prior.mean = tf.sin(x) + 1.0
            return prior.log_prob(x) + before
        return step, lambda: [prior.mean], None
    compare(make, whole=0)


def test_it_prints(capsys):
    def make():
        def step(x):
            return lib.announced(tf.sin(x)) * 2.0
        return step, lambda: capsys.readouterr().out.count("announced"), None
    compare(make, whole=0)


def test_it_raises():
    def make():
        def step(x, size):
            try:
                return lib.Gaussian(x, tf.ones([size])).log_prob(x)
            except tf.errors.InvalidArgumentError:
                return lib.Gaussian(x, 2.0).log_prob(x)
        return step, list, None
    compare(make, lambda i: (batch(i), 7 if i == 12 else 3), whole=4)


def test_what_is_not_declared_is_called():
    policy.settings.pure.discard("pure_library")
    step = compare(training(variational), whole=0)
    assert "Gaussian" in terra.explain(step, full=True)


@pytest.mark.skipif(importlib.util.find_spec("tensorflow_probability") is None, reason="needs TensorFlow Probability")
def test_tensorflow_probability():
    import tensorflow_probability as tfp
    tfd = tfp.distributions

    def make():
        w, prior = tf.Variable(tf.ones([3, 4]) * 0.1), tfd.MultivariateNormalDiag(tf.zeros(2), tf.ones(2))

        def step(x):
            with tf.GradientTape() as tape:
                mean, scale = tf.split(x @ w, 2, -1)
                q = tfd.MultivariateNormalDiag(mean, tf.nn.softplus(scale) + 0.1)
                loss = -tf.reduce_mean(prior.log_prob(q.sample()) - tfd.kl_divergence(q, prior))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss
        return step, lambda: [w], None
    compare(make)


@pytest.mark.skipif(importlib.util.find_spec("sonnet") is None, reason="needs Sonnet")
@pytest.mark.parametrize("users", [False, True])
def test_sonnet(users):
    import sonnet

    class Network(sonnet.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.rate = sonnet.Linear(5), sonnet.Linear(2), 1.0

        def body(self, x):
            return tf.tanh(self.first(x)) * self.rate

        def __call__(self, x):
            return self.second(self.body(x))

    def make():
        model, optimizer = Network() if users else sonnet.nets.MLP([5, 2]), sonnet.optimizers.Adam(0.01)
        model(tf.zeros([1, 3]))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2.0)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss
        return step, lambda: model.trainable_variables, model
    compare(make)
    compare(make, whole=4, change=lambda model: setattr(model, "rate", 0.5), steps=26)


def test_the_example(capsys):
    status = libraries.main(["--steps", "16", "--no-fit", "--quiet"])
    found = capsys.readouterr()
    if all(importlib.util.find_spec(name) for name in libraries.PACKAGES):
        assert status == 0 and [line.split("  ")[0] for line in found.out.splitlines()[3:]] == list(libraries.PROGRAMS) and "DIFFERS" not in found.out
    else:
        assert status == 2 and "pip install -e '.[libraries]'" in found.err
