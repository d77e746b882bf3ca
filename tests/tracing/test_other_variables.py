"""A step function that goes on with other variables: the traces of those before are forgotten, unless they come back."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.step_function.trace_eviction import TraceEviction

X = [np.random.default_rng(i).normal(size=(8, 3)).astype("float32") for i in range(4)]


def new_model(units=4):
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)])


def train(model, optimizer, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


def train_in_a_block(model, optimizer, x):
    with terra.GradientTape(wait_for_graph=True) as tape:
        loss = tf.reduce_mean((model(x, training=True) - x[:, :1]) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


def folds(step, n=6, steps=12):
    """Train one model after the other: (all losses, weak references to the models)."""
    keras.utils.set_random_seed(3)
    losses, models = [], []
    for fold in range(n):
        model, optimizer = new_model(4 + fold % 2), keras.optimizers.SGD(0.01, momentum=0.9)
        models.append(weakref.ref(model))
        losses += [float(step(model, optimizer, tf.constant(X[i % 4]))) for i in range(steps)]
    return losses, models


@functools.cache
def losses_of_folds():
    return folds(train)[0]


def test_one_model_after_the_other():
    expected = losses_of_folds()
    step = terra.coexecute(train, wait_for_graph=True)
    actual, models = folds(step)
    assert actual == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 6 * 9 and stats.traces == 1
    assert stats.fallbacks == 5 and stats.graphs == 6  # one of each for each new model
    assert not any(case.n_choices > 1 for case in step.trace_graph.switch_cases())
    gc.collect()
    assert sum(model() is not None for model in models[:-1]) == 0, "the graph of a model that is no more keeps it"


def test_what_was_tried_with_one_model_says_nothing_of_the_next():
    step = terra.coexecute(train, wait_for_graph=True)
    folds(step, n=1)
    step.early_start.trial.second_is_better = step.single_threaded.trial.second_is_better = True
    step.generation.fixes_shapes = False
    tried = step.early_start, step.single_threaded
    folds(step, n=1, steps=2)
    assert step.early_start is not tried[0] and step.early_start.trial.second_is_better is None
    assert step.single_threaded is not tried[1] and step.single_threaded.trial.second_is_better is None
    assert step.generation.fixes_shapes


def test_in_blocks():
    expected = losses_of_folds()
    actual, _ = folds(train_in_a_block)
    assert actual == expected
    functions = [f for f in terra.runtime.step_function.registry.instances if "test_other_variables.py" in f.policy.name]
    assert len(functions) == 1
    assert functions[0].stats().coexecuted_steps >= 6 * 7 and functions[0].stats().traces <= 2


def test_while_a_graph_is_under_construction():
    expected, _ = folds(train, n=3, steps=40)
    step = terra.coexecute(train)
    actual, _ = folds(step, n=3, steps=40)
    assert actual == expected and step.stats().traces <= 2


@pytest.mark.parametrize("run_length", [1, 5])
def test_models_that_take_turns(run_length):
    """They are forgotten once, and no more."""
    def run(step):
        keras.utils.set_random_seed(3)
        pairs = [(new_model(), keras.optimizers.SGD(0.01)) for _ in range(3)]
        losses = []
        for i in range(60):
            model, optimizer = pairs[i // run_length % 3]
            losses.append(float(step(model, optimizer, tf.constant(X[i % 4]))))
        return losses

    step = terra.coexecute(train, wait_for_graph=True)
    assert run(step) == run(train)
    stats = step.stats()
    assert stats.coexecuted_steps >= 38 and stats.traces == 3 and step.eviction.takes_turns
    assert stats.graphs <= 5


def test_an_optimizer_of_its_own_for_fine_tuning():
    """The model stays, its optimizer does not; then the first one is used again."""
    def run(step):
        keras.utils.set_random_seed(3)
        model, optimizers = new_model(), [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.001)]
        losses = []
        for i in range(42):
            if i == 14:
                model.layers[0].trainable = False
            losses.append(float(step(model, optimizers[14 <= i < 28], tf.constant(X[i % 4]))))
            if i == 27:
                model.layers[0].trainable = True
        return [*losses, *[v.numpy().tolist() for v in model.variables]]

    step = terra.coexecute(train, wait_for_graph=True)
    assert run(step) == run(train)
    assert step.stats().coexecuted_steps >= 27


def test_a_variable_that_all_have_in_common_is_no_model():
    """A counter of steps that all models share does not make them the same program."""
    def run(wrap):
        keras.utils.set_random_seed(3)
        count = tf.Variable(0)

        def step(model, optimizer, x):
            count.assign_add(1)
            return train(model, optimizer, x)

        step = wrap(step)
        losses, _ = folds(step)
        return losses, int(count), step

    losses, count, _ = run(lambda step: step)
    actual, counted, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert (actual, counted) == (losses, count) and step.stats().traces == 1 and not step.eviction.takes_turns


def phases(wrap, change, steps, *at):
    """Train a model that changes at these steps: (losses and variables, step function)."""
    keras.utils.set_random_seed(3)
    model, optimizer = new_model(), keras.optimizers.SGD(0.01)

    def step(x):
        return train(model, optimizer, x)

    step, losses = wrap(step), []
    for i in range(steps):
        if i in at:
            change(model, at.index(i))
        losses.append(float(step(tf.constant(X[i % 4]))))
    return [losses, [v.numpy().tolist() for v in model.variables]], step


def freeze(model, k):
    model.layers[0].trainable = k % 2 == 1


def test_a_phase_that_is_over_is_forgotten():
    expected, _ = phases(lambda step: step, freeze, 260, 30)
    actual, step = phases(lambda step: terra.coexecute(step, wait_for_graph=True), freeze, 260, 30)
    assert actual == expected
    stats = step.stats()
    assert stats.traces == 1 and not any(case.n_choices > 1 for case in step.trace_graph.switch_cases())
    assert step.eviction.narrowed == 1 and stats.coexecuted_steps > 245 and stats.fallbacks == 1
    assert "forgotten" in terra.explain(step, full=True)


@functools.cache
def eager_phases(steps, *at):
    return phases(lambda step: step, freeze, steps, *at)[0]


@pytest.mark.parametrize("wait", [True, False])
def test_a_phase_that_comes_back(wait):
    """It costs a fallback; the next time, paths are forgotten much later."""
    at = (30, 180, 200, 330, 350, 480)
    actual, step = phases(lambda step: terra.coexecute(step, wait_for_graph=wait), freeze, 620, *at)
    assert actual == eager_phases(620, *at)
    stats = step.stats()
    assert step.eviction.narrowed == 1 and stats.traces <= (2 if wait else 3)
    assert stats.coexecuted_steps > (600 if wait else 300) and (stats.fallbacks <= 3 or not wait)


def test_a_narrower_graph_has_what_varies_as_feeds():
    """Numbers that were seen to vary before are traced anew: two traces tell which are constants."""
    def run(wrap):
        v, factor = tf.Variable(1.0), [0.0]

        def step(x):
            y = tf.reduce_sum(x) * tf.constant(factor[0])
            if factor[0] < 20.0:
                y = tf.sin(y)
            v.assign_add(tf.tanh(y))
            return v + factor[0]

        step, seen = wrap(step), []
        for i in range(300):
            factor[0] = float(i)
            seen.append(float(step(tf.constant(X[i % 4]))))
        return seen, step

    expected, _ = run(lambda step: step)
    actual, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().coexecuted_steps > 285 and step.eviction.narrowed == 1 and step.stats().traces <= 2


def test_loops_that_run_equally_often_for_long_are_unrolled():
    """A network that grows, and then no more, and then once again."""
    def run(wrap):
        rng = np.random.default_rng(1)
        layers = [tf.Variable(rng.normal(size=(3, 3)).astype("float32") * 0.5) for _ in range(6)]
        grown = [1]

        def step(x, i):
            with tf.GradientTape() as tape:
                for w in layers[:grown[0]]:
                    x = tf.tanh(x @ w)
                loss = tf.reduce_mean(x ** 2) + 0.001 * i
            used = layers[:grown[0]]
            for w, gradient in zip(used, tape.gradient(loss, used)):
                w.assign_sub(0.05 * gradient)
            return loss

        step, losses, pieces = wrap(step), [], []
        for i in range(300):
            grown[0] += i in (10, 20, 30, 40, 260)
            losses.append(float(step(tf.constant(X[i % 4]), i)))
            pieces.append(step.stats().pieces if hasattr(step, "stats") else 0)
        return losses, [w.numpy() for w in layers], pieces, step

    losses, weights, _, _ = run(lambda step: step)
    actual, after, pieces, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    np.testing.assert_allclose(actual, losses, rtol=1e-5)
    for a, b in zip(after, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert pieces[60] > 0 and pieces[250] == 0  # they were cut while it grew
    assert step.eviction.narrowed == 1 and step.stats().coexecuted_steps > 240


def test_batches_that_are_objects_are_told_by_what_they_hold():
    from collections import namedtuple

    from terra.runtime.step_function.structure_specialisation import structure_key

    class Batch:
        def __init__(self, x, n):
            self.x, self.n = x, n

    Pair = namedtuple("Pair", "x y")
    model = new_model()
    keep = [Batch(tf.zeros([2, 3]), 1), Batch(tf.ones([2, 3]), 1), Batch(tf.zeros([2, 4]), 1), Batch(np.zeros([2, 3], "float32"), 2)]
    one, same, longer, other = [structure_key((model, batch), {}) for batch in keep]
    assert one == same and len({one, longer, other}) == 3
    pairs = [Pair(tf.zeros([2]), 1), Pair(tf.ones([2]), 1), Pair(tf.ones([3]), 1)]
    first, second, third = [structure_key((pair,), {}) for pair in pairs]
    assert first == second != third
    variables = [tf.Variable(0.0), tf.Variable(0.0)]
    assert structure_key(variables[:1], {}) != structure_key(variables[1:], {})


def test_metrics_made_for_each_epoch():
    """More of them than a step may have traces."""
    def run(step):
        keras.utils.set_random_seed(3)
        model, optimizer, found = new_model(), keras.optimizers.SGD(0.01), []
        for _ in range(10):
            mean = keras.metrics.Mean()
            for i in range(10):
                step(model, optimizer, tf.constant(X[i % 4]), mean)
            found.append(float(mean.result()))
        return found

    def with_metric(model, optimizer, x, mean):
        mean.update_state(train(model, optimizer, x))

    step = terra.coexecute(with_metric, wait_for_graph=True, max_traces=4)
    assert run(step) == run(with_metric)
    stats = step.stats()
    assert stats.traces == 1 and stats.fallbacks <= 10 and stats.coexecuted_steps >= 70  # the new one takes the place of the old one


def test_metrics_that_take_turns():
    """A new one takes the place of the old one, which comes back."""
    def run(step):
        keras.utils.set_random_seed(3)
        model, optimizer, means = new_model(), keras.optimizers.SGD(0.01), [keras.metrics.Mean(), keras.metrics.Mean()]
        for i in range(60):
            step(model, optimizer, tf.constant(X[i % 4]), means[i // 3 % 2])
        return [float(mean.result()) for mean in means]

    def with_metric(model, optimizer, x, mean):
        mean.update_state(train(model, optimizer, x))

    step = terra.coexecute(with_metric, wait_for_graph=True)
    assert run(step) == run(with_metric)
    stats = step.stats()
    assert stats.traces == 2 and stats.fallbacks <= 4 and stats.coexecuted_steps >= 45


def test_a_step_that_falls_back_ends_a_phase():
    """Also one that is not co-executed then: steps in a row are steps in a row."""
    turnover = TraceEviction()
    for _ in range(10):
        assert not any(turnover.has_settled("path") for _ in range(60))
        turnover.note_fallback()
    assert any(turnover.has_settled("path") for _ in range(120))


def test_the_last_batch_of_an_epoch_is_smaller():
    """The steps in between take one path for long, but what is constant in them is not so at that batch: they are not traced anew for themselves."""
    def run(wrap):
        v, seen = tf.Variable(0.0), []

        def step(x):
            v.assign_add(tf.reduce_sum(x) / x.shape[0])
            return v * 1.0

        step = wrap(step)
        for k in range(220):
            seen.append(float(step(tf.fill([3 if k % 20 == 19 else 8], 0.1 * (k % 7)))))
        return seen, step

    expected, _ = run(lambda step: step)
    found, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    stats = step.stats()
    assert found == expected and stats.coexecuted_steps >= 200, stats
    assert stats.fallbacks <= 1 and step.eviction.narrowed == 0, stats
