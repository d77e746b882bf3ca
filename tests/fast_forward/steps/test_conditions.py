"""Calls and whole steps that read conditions which they compute: what is read decides which of the recorded ways is taken, and a new one is learned without falling back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

X = [np.random.default_rng(k).normal(size=(8, 4)).astype("f") for k in range(60)]


def compare(make, steps=60, whole=0, fallbacks=4, change=lambda k, parts: None, **options):
    """Run the step that `make()` gives eagerly and co-executed: everything it returns and leaves behind must be the same."""
    results = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True, **options)):
        keras.utils.set_random_seed(3)
        step, parts = make()
        step, found = wrap(step), []
        for k in range(steps):
            change(k, parts)
            found.append(np.asarray(step(tf.constant(X[k % len(X)] * np.float32(parts.get("scale", lambda k: 1)(k))))).tolist())
        results.append((found, [v.numpy().tolist() for v in parts["variables"]], parts.get("log")))
    assert results[1] == results[0]
    stats = step.stats()
    assert stats.coexecuted_steps >= steps - fallbacks - 4 and stats.fallbacks <= fallbacks, (stats, terra.explain(step))
    assert stats.whole_steps >= whole, (stats, terra.explain(step))
    return step


def clipping(every):
    """Gradients are clipped if they are large: in every so many steps."""
    def make():
        w = tf.Variable(tf.ones([4, 3]))

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w) ** 2)
            gradient = tape.gradient(loss, w)
            norm = tf.norm(gradient)
            if norm > 5.0:
                gradient = gradient / norm
            w.assign_sub(0.01 * gradient)
            return loss

        return step, {"variables": [w], "scale": lambda k: 10.0 if k % every == every - 1 else 0.5}

    return make


@pytest.mark.parametrize("every", [2, 7, 25])
def test_a_condition_of_the_step_itself(every):
    compare(clipping(every), whole=50)


def test_a_condition_on_the_arguments_values():
    """All that comes before the condition is data; both ways are learned from one step each."""
    def make():
        w = tf.Variable(tf.ones([4, 3]))

        def step(x):
            y = x @ w
            if tf.reduce_sum(y) > 0:
                w.assign_sub(0.01 * tf.ones([4, 3]))
            else:
                w.assign_add(0.01 * tf.ones([4, 3]))
            return y

        return step, {"variables": [w]}

    compare(make, whole=50, fallbacks=2)


@pytest.mark.share(4)
@pytest.mark.parametrize("options", [dict(gradient_accumulation_steps=3), dict(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)], ids=["steps", "ema"])
@pytest.mark.parametrize("verify", [False, True])
def test_optimizers_that_do_something_else_now_and_then(options, verify):
    def make():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, **options) if "use_ema" in options else keras.optimizers.Adam(0.01, **options)
        optimizer.build(model.trainable_variables)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        return step, {"variables": [*model.variables, *optimizer.variables]}

    step = compare(make, steps=32, fallbacks=5, verify=verify)
    assert step.stats().verified_calls > 20 if verify else step.stats().whole_steps > 11


def several(n):
    """Each of `n` conditions is true in half of the steps."""
    def make():
        total = tf.Variable(tf.zeros([4]))

        def step(x):
            y = tf.reduce_sum(x, 0)
            for bit in range(n):
                if tf.reduce_sum(x[bit]) > 0:
                    y = tf.tanh(y) * (bit + 1.0)
            total.assign_add(y)
            return y

        return step, {"variables": [total]}

    return make


@pytest.mark.parametrize("n", [1, 3, 5])
def test_several_conditions(n):
    """More ways than are kept are right all the same."""
    compare(several(n), fallbacks=34, whole={1: 45, 3: 10, 5: 0}[n])


def test_feeds_before_and_behind_the_condition():
    """What a call was told the graph before it turned out to take an unknown way is not told again."""
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(4)
            self.scale = 2.0

        def call(self, x, before, behind):
            y = self.inner(x + before)
            if tf.reduce_sum(y) > 0:
                y = y * self.scale + tf.reduce_mean(behind)
            return y - behind

    def make():
        layer, log = Layer(), []
        layer.inner.build((None, 4))

        def step(x):
            log.append(len(log))
            before, behind = (tf.constant(np.random.default_rng(1000 * len(log) + n).normal(size=(8, 4)).astype("f") * 30) for n in (1, 2))
            y = layer(x, before, behind)
            layer.inner.bias.assign_add(tf.reduce_mean(y, 0) * 0.001)
            return y

        return step, {"variables": layer.inner.variables, "log": log, "layer": layer}

    def change(k, parts):
        if k == 40:
            parts["layer"].scale = 3.0  # which one of the two ways reads

    compare(make, fallbacks=5)
    compare(make, fallbacks=6, change=change)


def test_tensors_of_the_program_that_are_fed_before_the_condition():
    """Both ways feed the same large tensor, and one that is their own."""
    def make():
        w = tf.Variable(tf.ones([4, 30]))
        large, one, other = (tf.random.stateless_normal([8, 30], seed=[3, k]) for k in range(3))

        def step(x):
            y = x @ w + large
            if tf.reduce_sum(y) > 0:
                y = y + one
            else:
                y = y - other
            w.assign_sub(0.001 * tf.transpose(x) @ y)
            return y

        return step, {"variables": [w]}

    step = compare(make, whole=50, fallbacks=2)
    assert step.program.whole.tries == 0 and sum(map(len, step.program.whole.variants.values())) == 2


def test_what_only_one_of_the_ways_reads_is_changed():
    def make():
        w, factor = tf.Variable(tf.ones([4, 3])), [2.0]

        def step(x):
            y = x @ w
            if tf.reduce_sum(y) > 0:
                y = y * factor[0]
            w.assign_sub(0.001 * tf.ones([4, 3]))
            return y

        return step, {"variables": [w], "factor": factor}

    def change(k, parts):
        parts["factor"][0] = 2.0 + k // 20

    compare(make, whole=35, fallbacks=4, change=change)


def test_a_condition_that_is_new_after_long():
    """The region falls short, nothing is taken back, and the path is learned."""
    def make():
        w = tf.Variable(tf.ones([4, 3]))

        def step(x):
            y = x @ w
            if tf.reduce_max(x) > 50:
                y = tf.tanh(y) + 1
            w.assign_sub(0.001 * tf.ones([4, 3]))
            return y

        return step, {"variables": [w], "scale": lambda k: 100 if k in (1, 30, 31, 45) else 1}

    compare(make, whole=45, fallbacks=1)


def test_in_a_block():
    def run(tape_class):
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        optimizer, found, tape = keras.optimizers.SGD(0.01, gradient_accumulation_steps=3), [], None
        for x in X:
            with tape_class() as tape:
                loss = tf.reduce_mean(model(tf.constant(x)) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            found.append(loss)
        return [float(x) for x in found], [w.tolist() for w in model.get_weights()], tape

    expected, actual = run(tf.GradientTape), run(lambda: terra.GradientTape(wait_for_graph=True))
    assert actual[:2] == expected[:2]
    stats = actual[2].block.stats()
    assert stats.coexecuted_steps >= 50 and stats.fallbacks <= 4 and stats.fast_forwards >= 3 * 40, stats
