"""Steps that read values only to give them back, as in `return float(loss)`, by the express way: their graph runs in the deferred form, and what it gives is read in the end."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from tests import harness

X = [tf.constant(np.random.RandomState(k).rand(4, 3), tf.float32) for k in range(4)]


class Trainer:
    options = {}
    fewest = 12  # express steps, of 30

    def __init__(self):
        self.w = tf.Variable(tf.ones(3))
        self.history = []

    def learn(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, self.w)))
        self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
        return loss

    def arguments(self, k):
        return (X[k % 4],)


class Float(Trainer):
    def step(self, x):
        return float(self.learn(x))


class Numpy(Trainer):
    def step(self, x):
        self.history.append(self.learn(x).numpy())
        return len(x.shape)


class Both(Trainer):
    """The tensor and its value, and the tensor in an attribute."""

    def step(self, x):
        loss = self.learn(x)
        self.last = loss
        self.history.append(loss.numpy())
        return {"loss": loss, "value": float(loss), "again": float(loss)}


class BeforeTheUpdate(Trainer):
    """A value is read before the variable changes, and after."""

    def step(self, x):
        before = float(tf.reduce_sum(self.w))
        loss = self.learn(x)
        return before, float(loss), float(tf.reduce_sum(self.w))


class Draws(Trainer):
    def step(self, x):
        noise = tf.random.normal(x.shape)
        loss = self.learn(x + 0.1 * noise)
        return float(loss), float(tf.random.uniform(()))


class Carries(Trainer):
    def __init__(self):
        super().__init__()
        self.average = tf.constant(0.0)

    def step(self, x):
        loss = self.learn(x)
        self.average = 0.9 * self.average + 0.1 * loss
        return float(self.average)


class Array(Trainer):
    def step(self, x):
        return float(self.learn(tf.convert_to_tensor(x)))

    def arguments(self, k):
        return (X[k % 4].numpy(),)


class TwoTapes(Trainer):
    """Adversarial: two updates, with a read in between."""

    def __init__(self):
        super().__init__()
        self.v = tf.Variable(tf.ones(3))

    def step(self, x):
        first = float(self.learn(x))
        with tf.GradientTape() as tape:
            second = tf.reduce_sum(self.v * self.w)
        self.v.assign_sub(0.01 * tape.gradient(second, self.v))
        return first, float(second)


class Metric(Trainer):
    def __init__(self):
        super().__init__()
        self.metric = keras.metrics.Mean()
        self.steps = 0

    def step(self, x):
        self.metric.update_state(self.learn(x))
        self.steps += 1
        if self.steps % 10 == 0:
            self.history.append((self.steps, float(self.metric.result())))
            self.metric.reset_state()
        return float(self.metric.result())


class Decides(Trainer):
    """What is read decides what is done: another step each time."""

    fewest = 0

    def step(self, x):
        loss = self.learn(x)
        if float(loss) > 0.3:
            self.w.assign_add(0.01 * tf.ones(3))
        return float(loss)


class InABranch(Trainer):
    """The value is read on one of two ways only: the graph has no output for it, and only steps that take the other way are express steps."""

    fewest = 8

    def __init__(self):
        super().__init__()
        self.steps = 0

    def step(self, x):
        self.steps += 1
        loss = self.learn(x)
        if self.steps % 2:
            return float(loss)
        return loss * 2.0


class Fails(Trainer):
    """The check comes after the value was read."""

    fewest = 8

    def step(self, x):
        noise = tf.random.uniform(())
        loss = float(self.learn(x + noise))
        x = tf.gather(x, tf.cast(x[:1, 0], tf.int32))  # out of range
        return loss, float(noise), x

    def arguments(self, k):
        return (X[k % 4] * (1000.0 if k in (15, 16, 23) else 1.0),)


class FailsBefore(Fails):
    def step(self, x):
        x = tf.gather(x, tf.cast(x[:1, 0], tf.int32))
        return float(self.learn(x)), float(tf.random.uniform(()))


KINDS = [Float, Numpy, Both, BeforeTheUpdate, Draws, Carries, Array, TwoTapes, Metric, Decides, InABranch, Fails, FailsBefore]


def run(kind, wrap, n=30):
    tf.random.set_seed(3)
    trainer = kind()
    step, seen = wrap(trainer.step), []
    for k in range(n):
        try:
            result = step(*trainer.arguments(k))
        except tf.errors.InvalidArgumentError as error:
            result = str(error).removesuffix(" name: ")
        seen.append(harness.snapshot(result))
    state = {name: harness.snapshot(x) for name, x in sorted(vars(trainer).items()) if not isinstance(x, keras.Metric)}
    return repr((seen, state)), step


@pytest.mark.parametrize("options", [{}, {"run_ahead": 0}], ids=["", "no run-ahead"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_eager(kind, options):
    expected, _ = run(kind, lambda step: step)
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, **options))
    assert actual == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 17, stats
    assert stats.express_steps >= kind.fewest, terra.explain(step)


def test_draws_without_a_seed():
    """Numbers are others each time; the steps are skipped all the same."""
    tf.random.set_seed(None)
    trainer = Draws()
    step = terra.coexecute(trainer.step, wait_for_graph=True)
    seen = [step(*trainer.arguments(k)) for k in range(30)]
    assert len(set(seen)) == 30 and step.stats().express_steps >= 15, terra.explain(step)


@pytest.mark.parametrize("kind", [Float, Draws, TwoTapes])
def test_verified(kind):
    expected, _ = run(kind, lambda step: step)
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, verify=True))
    assert actual == expected and step.stats().verified_calls > 0


def test_compiled_by_xla():
    """The form that XLA compiles is the one with channels: results may differ in the last digits."""
    _, eager = run(Float, lambda step: step)
    held = Float()
    step = terra.coexecute(held.step, wait_for_graph=True, jit_compile=True)
    losses = [step(*held.arguments(k)) for k in range(40)]
    plain = Float()
    np.testing.assert_allclose(losses, [plain.step(*plain.arguments(k)) for k in range(40)], rtol=1e-4)
    assert step.stats().coexecuted_steps >= 24


def test_nothing_is_in_flight_behind_such_a_step():
    """It waits for what was dispatched before, by this function or another."""
    trainer = Float()
    reads = terra.coexecute(trainer.step, wait_for_graph=True)
    other = terra.coexecute(trainer.learn, wait_for_graph=True)
    plain, losses = Float(), []
    for k in range(40):
        losses.append(float(plain.step(X[k % 4])))
        plain.learn(X[(k + 1) % 4])
    found = []
    for k in range(40):
        before = reads.stats().express_steps
        found.append(reads(X[k % 4]))
        assert not GRAPH_RUNNER.flights or reads.stats().express_steps == before
        other(X[(k + 1) % 4])
    assert found == losses and reads.stats().express_steps >= 18 and other.stats().express_steps >= 18
    np.testing.assert_array_equal(trainer.w, plain.w)


def test_a_step_before_it_fails():
    """The error of a step in flight is raised, and the step that would have read is not made: eagerly, Python would not have come there."""
    trainer = Float()

    def checks(x):
        return trainer.learn(tf.gather(x, tf.cast(x[:1, 0], tf.int32)))

    reads, other = terra.coexecute(trainer.step, wait_for_graph=True), terra.coexecute(checks, wait_for_graph=True)
    for k in range(40):
        reads(X[k % 4])
        other(X[k % 4])
    assert reads.stats().express_steps >= 20
    before, steps = trainer.w.numpy(), reads.stats().steps
    with pytest.raises(tf.errors.InvalidArgumentError):
        other(X[0] * 1000.0)
        reads(X[1])
    np.testing.assert_array_equal(trainer.w, before)
    assert reads.stats().steps == steps
    again = Float()
    again.w.assign(before)
    assert reads(X[2]) == again.step(X[2])


def test_one_thread_or_several_is_tried_for_it_too():
    trainer = Float()
    step = terra.coexecute(trainer.step, wait_for_graph=True)
    losses = [step(X[k % 4]) for k in range(200)]
    plain = Float()
    assert losses == [plain.step(X[k % 4]) for k in range(200)]
    stats = step.stats()
    assert stats.express_steps >= 150
    if step.single_threaded.reason is None:
        assert stats.single_threaded_steps >= 5, terra.explain(step)
