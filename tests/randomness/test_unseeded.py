"""Random operations where no seed is set anywhere: any numbers will do, but all that see them must see the same ones."""

import numpy as np
import pytest
import tensorflow as tf

import terra

X = [tf.constant(np.random.RandomState(k).rand(4, 3), tf.float32) for k in range(3)]


@pytest.fixture(autouse=True)
def no_seed():
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(0)


DRAWS = {
    "normal": lambda: tf.random.normal((4, 3)),
    "uniform": lambda: tf.random.uniform((4, 3)),
    "truncated": lambda: tf.random.truncated_normal((4, 3)),
    "whole numbers": lambda: tf.cast(tf.random.uniform((4, 3), 0, 1 << 20, tf.int32), tf.float32) / float(1 << 20),
    "categorical": lambda: tf.cast(tf.random.categorical(tf.zeros((4, 1 << 20)), 3), tf.float32) / float(1 << 20),
    "gamma": lambda: tf.random.gamma((4, 3), 2.0),
    "poisson": lambda: tf.random.poisson((4, 3), 1e6) / 1e6,
    "shuffle": lambda: tf.reshape(tf.random.shuffle(tf.range(12.0)), (4, 3)) / 12.0,
    "raw": lambda: tf.raw_ops.RandomStandardNormal(shape=[4, 3], dtype=tf.float32),
    "dropout": lambda: tf.nn.dropout(tf.ones((40, 3)), 0.5)[:4] + tf.random.normal((4, 3)),
}


def make(draw, reads):
    w = tf.Variable(tf.ones(3))

    def step(x):
        noise = draw()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square((x + noise) * w))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return noise, float(loss) if reads else loss

    return step, w


@pytest.mark.parametrize("reads", [False, True], ids=["late", "reads"])
@pytest.mark.parametrize("name", DRAWS)
def test_new_numbers_in_each_step(name, reads):
    """Each step draws others, is skipped, and computes with what it gives."""
    step, w = make(DRAWS[name], reads)
    step = terra.coexecute(step, wait_for_graph=True)
    replayed = tf.Variable(tf.ones(3))
    seen = set()
    for k in range(28):
        noise, loss = step(X[k % 3])
        seen.add(noise.numpy().tobytes())
        with tf.GradientTape() as tape:
            expected = tf.reduce_mean(tf.square((X[k % 3] + noise) * replayed))
        replayed.assign_sub(0.01 * tape.gradient(expected, replayed))
        assert float(loss) == float(expected)
    np.testing.assert_array_equal(w, replayed)
    assert len(seen) == 28
    stats = step.stats()
    assert stats.express_steps >= (14 if name != "raw" else 0) and stats.coexecuted_steps >= 20, terra.explain(step)


def test_the_numbers_are_distributed_as_they_should_be():
    step, _ = make(DRAWS["normal"], False)
    step = terra.coexecute(step, wait_for_graph=True)
    drawn = np.concatenate([step(X[0])[0].numpy().ravel() for _ in range(400)])
    assert abs(drawn.mean()) < 0.06 and abs(drawn.std() - 1.0) < 0.05 and step.stats().express_steps > 300


@pytest.mark.parametrize("options", [{}, {"fast_forward": False}, {"verify": True}], ids=["", "no fast-forward", "verify"])
def test_a_step_that_falls_back_keeps_the_numbers(options):
    """Python has seen a number when the step takes a new way: it is the same afterwards."""
    way = [0]

    @terra.coexecute(wait_for_graph=True, **options)
    def step(x):
        noise = tf.random.normal((4, 3))
        before = float(tf.reduce_sum(noise))
        y = noise * x
        if way[0] == 1:
            y = tf.sin(y)
        elif way[0] == 2:
            y = tf.cos(y)
        return noise, before, float(tf.reduce_sum(noise)), y

    for k in range(28):
        way[0] = 1 if k in (14, 15) else 2 if k == 21 else 0
        noise, before, after, y = step(X[k % 3])
        assert before == after == float(tf.reduce_sum(noise))
        expected = noise * X[k % 3]
        np.testing.assert_array_equal(y, tf.sin(expected) if way[0] == 1 else tf.cos(expected) if way[0] == 2 else expected)
    stats = step.stats()
    assert stats.fallbacks >= 1 and stats.coexecuted_steps >= 20, stats


def test_a_kernel_fails():
    """The step is replayed: what it had drawn stays."""
    v = tf.Variable(tf.zeros((4, 3)))

    @terra.coexecute(wait_for_graph=True)
    def step(x, index):
        noise = tf.random.normal((4, 3))
        v.assign(noise)
        total = tf.reduce_sum(noise)
        return noise, total, tf.gather(x, index)

    for k in range(28):
        bad = k in (14, 21)
        try:
            noise, total, _ = step(X[k % 3], tf.constant([9 if bad else 1]))
        except tf.errors.InvalidArgumentError:
            assert bad
            continue
        if bad:
            with pytest.raises(tf.errors.InvalidArgumentError):
                terra.sync()
            continue
        np.testing.assert_array_equal(v, noise)
        assert float(total) == float(tf.reduce_sum(noise))
    assert step.stats().coexecuted_steps >= 20


def test_a_seed_is_set_later():
    """From then on it is eager's stream."""
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        tf.random.set_seed(None)
        step = wrap(lambda x: x + tf.random.normal((4, 3)))
        for _ in range(20):
            step(X[0])
        tf.random.set_seed(7)
        seen.append([step(X[0]).numpy().tolist() for _ in range(20)])
    assert seen[0] == seen[1] and step.stats().whole_steps >= 20
