"""Stateful random operations: the graph draws what eager execution draws with the seeds that TensorFlow has counted off."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.tensors import draws
from terra.tf import philox
from tests.harness import differ
from tests.variants import examples

RATES = tf.constant(np.random.RandomState(9).uniform(0.2, 5.0, (4, 3)), tf.float32)
DRAWS = {
    "normal": lambda x: tf.random.normal((4, 3)),
    "of whole numbers": lambda x: tf.random.uniform((4, 3), 0, 7, tf.int32),
    "categorical": lambda x: tf.random.categorical(x, 3),
    "categorical, int32 and float64": lambda x: tf.random.categorical(tf.cast(x, tf.float64), 3, dtype=tf.int32),
    "categorical of what was there": lambda x: tf.random.categorical(RATES, 3),
    "gamma": lambda x: tf.random.gamma([2], x + 0.5, beta=2.0),
    "gamma, float64": lambda x: tf.random.gamma([2, 3], tf.constant([0.5, 3.0], tf.float64), dtype=tf.float64),
    "gamma of a shape that is computed": lambda x: tf.random.gamma(tf.shape(x), 1.5),
    "poisson": lambda x: tf.random.poisson([2], RATES * 7.0),
    "poisson, whole numbers": lambda x: tf.random.poisson([2, 1], x, dtype=tf.int32),
    "rows": lambda x: tf.random.shuffle(x * 2.0),
    "an order": lambda x: tf.gather(x, tf.random.shuffle(tf.range(4))),
    "the only row": lambda x: tf.random.shuffle(x[:1]),
    "no row": lambda x: tf.random.shuffle(x[:0]),
    "many rows": lambda x: tf.random.shuffle(tf.repeat(tf.reshape(x, [-1]), 200)),
    "rows of several axes": lambda x: tf.random.shuffle(tf.stack([tf.transpose(x), tf.transpose(x) + 1.0])),
}


def given_rows(k):
    return (tf.constant(np.random.RandomState(k % 5).rand(4, 3), tf.float32),)


def make(draw):
    w = tf.Variable(tf.ones(3))

    def step(x):
        with tf.GradientTape() as tape:
            drawn = draw(x * w)
            loss = tf.reduce_mean(tf.cast(drawn, tf.float32) ** 2) * tf.reduce_mean(x * w)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return drawn, loss

    return step, lambda: w


@pytest.mark.parametrize("name, options", [
    *[pytest.param(name, {}, id=name) for name in DRAWS],
    *[pytest.param(name, options, id=f"{name}, {option}") for name in ("categorical", "gamma", "poisson", "rows")
      for option, options in (("no fast-forward", {"fast_forward": False}), ("verify", {"verify": True}))]])
def test_draws_what_eager_execution_draws(name, options):
    stats = differ(lambda: make(DRAWS[name]), given_rows, 28, **options)
    assert stats.coexecuted_steps >= 18 and not stats.fallbacks, stats
    if not options:
        assert stats.express_steps >= 14, stats


def test_reads_what_it_has_drawn():
    """A policy acts in the middle of the step: what Python reads there decides what comes next."""
    def make():
        w = tf.Variable(tf.ones((3, 2)))
        done = []

        def step(x):
            with tf.GradientTape() as tape:
                logits = x @ w
                action = tf.random.categorical(logits, 1)[:, 0]
                reward = [1.0 if a else -0.5 for a in action.numpy().tolist()]
                done.append(reward)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits) * tf.constant(reward))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return action, loss

        return step, lambda: [w, tf.constant(done)]

    stats = differ(make, given_rows, 28)
    assert stats.coexecuted_steps >= 18, stats


def test_rows_of_other_numbers():
    """The last batch of an epoch is smaller."""
    stats = differ(lambda: make(DRAWS["rows"]), lambda k: (tf.ones((3 if k % 4 == 3 else 4, 3)) * np.arange(3 if k % 4 == 3 else 4)[:, None],), 44)
    assert stats.coexecuted_steps >= 30 and stats.express_steps >= 14, stats


def test_rows_whose_number_depends_on_data():
    """Nobody knows how many are to be put into another order: the operation runs imperatively."""
    stats = differ(lambda: make(lambda x: tf.random.shuffle(tf.boolean_mask(x, x[:, 0] > 0.4)) + 1.0), given_rows, 28)
    assert stats.coexecuted_steps >= 13, stats


def test_more_rows_than_python_puts_into_order():
    rows = tf.range(float(draws.MOST_SHUFFLED + 1))
    stats = differ(lambda: make(lambda x: tf.reduce_sum(x) * tf.random.shuffle(rows)), given_rows, 24)
    assert stats.coexecuted_steps >= 14 and not stats.express_steps, stats


def test_in_a_loop_of_python():
    """Epochs over small batches inside of a step."""
    def make():
        w = tf.Variable(tf.ones(3))

        def step(x):
            for _ in range(3):
                order = tf.random.shuffle(tf.range(4))
                for k in range(2):
                    rows = tf.gather(x, order[2 * k:2 * k + 2])
                    noise = tf.random.gamma([2], tf.nn.softplus(w))
                    w.assign_add(0.01 * tf.reduce_mean(rows * noise, 0))
            return tf.reduce_sum(w)

        return step, lambda: w

    stats = differ(make, given_rows, 30)
    assert stats.coexecuted_steps >= 18 and stats.express_steps >= 10, stats


@pytest.mark.parametrize("name", ["categorical", "gamma", "poisson", "shuffle"])
def test_a_seed_of_its_own(name):
    """An operation with a seed of the user's goes on in its stream whenever it runs, which no stateless one could."""
    draw = {
        "categorical": lambda x: tf.random.categorical(x, 3, seed=4), "gamma": lambda x: tf.random.gamma([2], x + 0.5, seed=4),
        "poisson": lambda x: tf.random.poisson([2], tf.stop_gradient(x), seed=4), "shuffle": lambda x: tf.random.shuffle(x, seed=4)}[name]

    def make_anew():
        tf.keras.utils.set_random_seed(5)  # forgets the kernels
        return make(draw)

    stats = differ(make_anew, given_rows, 24)
    assert stats.coexecuted_steps >= 14 and not stats.express_steps, stats


def test_seeds_that_are_set_in_between():
    def change(k, step):
        if k % 6 == 5:
            tf.random.set_seed(k)

    stats = differ(lambda: make(lambda x: tf.cast(tf.random.categorical(x, 4), tf.float32) + tf.random.shuffle(tf.transpose(x))[:1]), given_rows, 60, change=change)
    assert stats.express_steps >= 10, stats


def test_a_step_that_takes_a_new_way_keeps_what_it_has_drawn():
    def make():
        way, w = [0], tf.Variable(tf.ones(3))

        def step(x):
            order = tf.random.shuffle(x)
            first = float(order[0, 0])
            drawn = tf.random.categorical(x, 2)
            w.assign_add(tf.reduce_mean(order, 0) * (2.0 if way[0] else 1.0))
            if way[0]:
                w.assign(tf.sin(w))
            return drawn, order, first

        return step, lambda: w, way

    ways = []

    def make_two():
        step, state, way = make()
        ways.append(way)
        return step, state

    def change(k, step):
        ways[-1][0] = k == 17

    stats = differ(make_two, given_rows, 28, change=change)
    assert stats.fallbacks == 1 and stats.coexecuted_steps >= 16, stats


def test_gradients_go_through_gamma():
    """They are those of implicit reparameterisation, with respect to the shape parameter."""
    def make():
        a = tf.Variable([0.5, 1.5, 3.0])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.random.gamma([4], tf.nn.softplus(a) * x)))
            gradient = tape.gradient(loss, a)
            a.assign_sub(0.05 * gradient)
            return loss, gradient

        return step, lambda: a

    stats = differ(make, given_rows, 28)
    assert stats.express_steps >= 14, stats


words = st.one_of(st.integers(1, 2**63 - 1), st.sampled_from([1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 87654321]))


@settings(max_examples=examples(60), deadline=None)
@given(words, words, st.integers(1, 40), st.integers(1, 60))
def test_the_twins_draw_the_same(seed, seed2, n, classes):
    logits = tf.constant(np.random.RandomState(n).normal(size=(n, classes)), tf.float32)
    tf.random.set_seed(0)  # forgets the kernels, which would go on in their streams
    scrambled = tf.bitcast(tf.constant(philox.unscrambled(seed, seed2), tf.uint64), tf.int64)
    expected = tf.raw_ops.Multinomial(logits=logits, num_samples=5, seed=seed, seed2=seed2)
    np.testing.assert_array_equal(tf.raw_ops.StatelessMultinomial(logits=logits, num_samples=5, seed=scrambled), expected)
    attrs = ("seed", seed, "seed2", seed2)
    np.testing.assert_array_equal(
        tf.gather(logits, draws.seed_tensor("RandomShuffle", attrs, n)), tf.raw_ops.RandomShuffle(value=logits, seed=seed, seed2=seed2))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000, draws.MOST_SHUFFLED])
def test_orders(n):
    tf.random.set_seed(0)
    order = draws.seed_tensor("RandomShuffle", ("seed", 3, "seed2", 4), n)
    assert order.dtype == tf.int32
    np.testing.assert_array_equal(order, tf.raw_ops.RandomShuffle(value=tf.range(n), seed=3, seed2=4))


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"fast_forward": False}], ids=["default", "verify", "no fast-forward"])
def test_steps_that_draw_and_branch(options):
    """Where a step branches otherwise than it was expected to, what was drawn for it is drawn again, in as many draws as there are on its own way."""
    def make():
        w = tf.Variable(tf.ones(3))

        def step(x):
            dropped = tf.nn.dropout(x * w, 0.5)
            if tf.reduce_sum(dropped) > 5.0:
                dropped += tf.random.normal((4, 3)) + tf.random.uniform((4, 3))
            elif tf.reduce_max(dropped) > 1.5:
                dropped *= 0.5
            w.assign_add(0.01 * tf.reduce_mean(tf.nn.dropout(dropped, 0.3), 0))
            return dropped

        return step, lambda: w

    stats = differ(make, given_rows, 60, **options)
    assert stats.coexecuted_steps >= 35, stats
    if not options:
        assert stats.whole_steps >= 46 and stats.express_steps >= 5, stats


def test_what_was_drawn_without_a_seed_and_taken_back():
    """The graph has drawn before it turned out that the step goes on otherwise: what Python replays of it must be the same."""
    @terra.coexecute(wait_for_graph=True)
    def step(x):
        drawn = tf.random.uniform((4, 3))
        high = bool(drawn[0, 0] > 0.5)
        kind = tf.reduce_sum(x)
        if kind < 0.5:
            more = drawn + 1.0
        elif kind < 1.5:
            more = drawn * tf.random.normal((4, 3))
        elif kind < 2.5:
            more = tf.nn.dropout(drawn, 0.5)
        else:
            more = tf.reverse(tf.random.uniform((4, 3)), [0]) + drawn * kind
        return high, drawn, more - drawn

    tf.random.set_seed(None)
    for kind in [0] * 16 + [1] * 8 + [0, 1] * 8 + [2, 0, 3, 0, 1, 0, 0, 2, 1, 3] * 2:
        high, drawn, rest = step(tf.constant([float(kind)]))
        assert high is bool(drawn[0, 0] > 0.5)
        if kind == 0:
            np.testing.assert_allclose(rest, np.ones((4, 3)), rtol=1e-6)
    stats = step.stats()
    assert stats.coexecuted_steps >= 30 and stats.whole_steps >= 10 and stats.fallbacks >= 1, stats


@pytest.mark.parametrize("seed", [4, None])
def test_only_one_way_draws(seed):
    """What is expected draws nothing; the way that is taken instead does, and what it then reads may be something new again."""
    results = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        tf.random.set_seed(seed)
        w = tf.Variable(0.0)

        def step(x):
            y = tf.reduce_sum(x) + 0.0 * w
            if y > 0.5:
                y += tf.random.uniform([], 1.0, 2.0)
                if y > 2.0 + tf.reduce_max(x):
                    y += tf.random.normal([])
            w.assign_add(1.0)
            return y

        step = wrap(step)
        results.append([float(step(tf.constant([0.0 if k % 3 else 1.0, k % 5 * 0.1 if k % 3 == 0 else 0.0]))) for k in range(48)])
    assert step.stats().coexecuted_steps >= 30 and step.stats().whole_steps >= 8, step.stats()
    if seed is not None:
        np.testing.assert_array_equal(*results)
