"""`reduce_retracing`: arguments of many sizes. Each program gives what it gives eagerly, and what does not look at sizes is recorded once."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness
from tests.frontends.test_keras_fit import EXACT
from tests.tracing.test_unknown_sizes import BLIND, REDUCTIONS, SEEING

STEPS = 18


def sizes(seed, steps=STEPS, low=2, high=60):
    return np.random.RandomState(seed).randint(low, high, steps)


def rows(seed=0, steps=STEPS, low=2):
    drawn = np.random.RandomState(seed + 1)
    for n in sizes(seed, steps, low):
        yield (tf.constant(drawn.randn(n, 4).astype("float32")),)


def sequences(seed=0, steps=STEPS, batch=4, batches_vary=False, high=24):
    drawn = np.random.RandomState(seed + 1)
    for k, n in enumerate(sizes(seed, steps, 3, high)):
        size = batch - (batches_vary and k % 5 == 4)
        yield tf.constant(drawn.randint(0, 20, (size, n)), tf.int32), tf.constant(drawn.randint(0, 3, size))


SAME = functools.partial(np.testing.assert_array_equal, strict=True)
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def compare(make, batches, skipped=0, equal=SAME, coexecuted=0.6, **options):
    """Run the step that `make()` gives, with its state, eagerly and co-executed. At least so many of the steps must be co-executed, and skipped as a whole."""
    given = [*batches()]
    stats = harness.differ(make, given.__getitem__, len(given), equal, reduce_retracing=True, **options)
    assert stats.coexecuted_steps >= coexecuted * len(given) and stats.whole_steps >= skipped * len(given), stats
    return stats


def trained(model, optimizer="sgd", loss=None):
    """A step that trains a Keras model, and what it changes."""
    optimizer = keras.optimizers.get(optimizer) if type(optimizer) is str else optimizer
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
        return value

    return step, lambda: model.variables + optimizer.variables


# -- operations ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [*BLIND, *SEEING])
def test_operations(name):
    operation = {**BLIND, **SEEING}[name]

    def make():
        w, v = tf.Variable([1.0, -0.5, 0.5, 2.0]), tf.Variable(tf.ones(4))

        def step(x):
            with tf.GradientTape() as tape:
                loss = REDUCTIONS["mean"](operation(x * v, w))
            for variable, gradient in zip((w, v), tape.gradient(loss, [w, v])):
                if gradient is not None:
                    variable.assign_sub(tf.clip_by_value(1e-3 * gradient, -1e-2, 1e-2))
            return loss

        return step, lambda: [w, v]

    compare(make, rows, skipped=0.0 if name in SEEING or name == "known_size" else 0.7)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_also_of_one_row_and_none(reduction):
    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(x):
            with tf.GradientTape() as tape:
                loss = REDUCTIONS[reduction](x * w)
            return loss, tape.gradient(loss, w)

        return step, lambda: [w]

    def batches():
        for k, (x,) in enumerate(rows()):
            yield (x if k % 4 else x[:k // 4 % 2],)

    compare(make, batches, skipped=0.7)


# -- Keras -----------------------------------------------------------------------------------------------------------------

def layers():
    L = keras.layers
    return {
        "separable": [L.SeparableConv1D(8, 3, padding="same"), L.MaxPooling1D(2), L.GlobalMaxPooling1D()],
        "norm": [L.BatchNormalization(), L.LayerNormalization(), L.GlobalAveragePooling1D()],
        "gru": [L.GRU(5, return_sequences=True, dropout=0.1), L.GlobalMaxPooling1D()],
        "dropout_gru": [L.Dropout(0.2), L.GRU(5)],
        "two_ways": [L.Bidirectional(L.SimpleRNN(4))],
        "reshaped": [L.Permute((2, 1)), L.Reshape((-1, 2)), L.GlobalMaxPooling1D()],
        "padded": [L.ZeroPadding1D(1), L.UpSampling1D(2), L.Cropping1D(1), L.Dense(4, "tanh"), L.GlobalAveragePooling1D()],
    }


@pytest.mark.parametrize("name, batches_vary", [(name, bool(k % 2)) for k, name in enumerate(layers())])
def test_layers(name, batches_vary):
    def make():
        model = keras.Sequential([keras.layers.Embedding(20, 6), *layers()[name], keras.layers.Dense(3)])
        model(np.zeros((2, 12), "int32"))
        return trained(model, "sgd" if recurrent else "adam")

    recurrent = name in ("gru", "dropout_gru", "two_ways")
    steps, high, equal = (32, 10, CLOSE) if recurrent else (STEPS, 24, SAME)
    compare(make, lambda: sequences(steps=steps, batches_vary=batches_vary, high=high), equal=equal, coexecuted=0.5)


def test_attention():
    def make():
        i = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(20, 8)(i)
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
        model = keras.Model(i, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling1D()(x)))
        return trained(model, "adam")

    compare(make, sequences)


def test_masks():
    def make():
        model = keras.Sequential([keras.layers.Embedding(20, 6, mask_zero=True), keras.layers.LSTM(4), keras.layers.Dense(3)])
        model(np.ones((2, 5), "int32"))
        return trained(model)

    compare(make, lambda: sequences(high=9), equal=CLOSE, coexecuted=0.5)


class Counting(keras.layers.Layer):
    """A layer of the user's that looks at sizes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        self.seen.append(tuple(x.shape))
        return x * (1.0 / x.shape[1])


def test_users_code_sees_sizes():
    counting = []

    def make():
        counting.append(Counting())
        model = keras.Sequential([
            keras.layers.Embedding(20, 6), counting[-1], keras.layers.Lambda(lambda x: x + float(x.shape[0])), keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(3, activation=lambda x: x * float(x.shape[-1]))])
        model(np.zeros((2, 5), "int32"))
        return trained(model)

    compare(make, lambda: sequences(batches_vary=True))
    assert counting[0].seen == counting[1].seen and len(counting[0].seen) > STEPS


def test_functions_of_the_users_that_the_framework_calls():
    def make():
        w, seen = tf.Variable(1.0), []

        def step(x):
            y = tf.map_fn(lambda row: row * float(row.shape[0]), x)
            z = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * float(x.shape[0]), lambda: x)
            seen.append(len(x))
            w.assign_add(tf.reduce_mean(y) + tf.reduce_mean(z))
            return w * 2.0, list(seen)

        return step, lambda: [w]

    compare(make, rows)


@pytest.mark.parametrize("batches_vary", [False, True])
def test_fit(batches_vary):
    def run(compile):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.Conv1D(4, 3, padding="same"), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(3)])
        steps = compile(model, optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        history = model.fit((batch for batch in [*sequences(batches_vary=batches_vary)]), verbose=0)
        return history.history, [v.numpy().tolist() for v in model.variables], steps

    expected = run(lambda model, **how: model.compile(run_eagerly=True, **how))
    actual = run(lambda model, **how: terra.compile(model, wait_for_graph=True, reduce_retracing=True, **how))
    assert actual[:2] == expected[:2]
    stats = actual[2].train.stats()
    assert stats.coexecuted_steps > 0.6 * STEPS


# -- arguments -------------------------------------------------------------------------------------------------------------

def test_containers_and_keywords():
    def run(wrap):
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(batch, *rest, pair, scale=1.0):
            x = batch["x"] * w + sum(rest)
            loss = tf.reduce_mean(x) * scale + tf.reduce_sum(pair[0][0]) * 0.01
            w.assign_sub(0.01 * loss * tf.ones(4))
            batch["seen"] = True
            return loss, sorted(batch), len(pair), pair[1] is None

        step = wrap(step)
        seen = [step({"x": x, "name": "a"}, x, x * 2.0, pair=[[x - 1.0], None], scale=2.0) for x, in rows()]
        return harness.snapshot([seen, w]), step

    expected, actual = run(lambda step: step), run(functools.partial(harness.coexecuted, reduce_retracing=True))
    assert list(harness.differences(expected[0], actual[0], EXACT)) == []
    assert actual[1].stats().coexecuted_steps >= STEPS - 6


def test_a_tensor_that_comes_another_way_too():
    """One that the step finds in a global, and is given: what comes from outside has another shape each time, so no step is like the last."""
    held, given = [], [*rows()]

    def make():
        w = tf.Variable(1.0)

        def step(x):
            w.assign_add(tf.reduce_mean(held[-1] * x) + tf.reduce_sum(held[-1]))
            return w * 1.0

        return step, lambda: [w]

    harness.differ(make, given.__getitem__, STEPS, SAME, change=lambda i, step: held.append(given[i][0]), reduce_retracing=True)


def test_gradients_of_a_tensor_that_comes_another_way():
    """What is recorded of them holds for its own size, though that of the argument is left unknown."""
    held, given = [], [*rows()]

    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.sin(held[-1] * w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, lambda: [w]

    harness.differ(make, given.__getitem__, STEPS, SAME, change=lambda i, step: held.append(given[i][0]), reduce_retracing=True)


def test_masks_of_arguments():
    """Those that Keras has attached to them."""
    drawn, pool = np.random.RandomState(0), keras.layers.GlobalAveragePooling1D()

    def batches():
        for n in sizes(0):
            x = tf.constant(drawn.randn(3, n, 4).astype("float32"))
            keras.src.backend.set_keras_mask(x, tf.constant(drawn.rand(3, n) < 0.7))
            yield (x,)

    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(x):
            loss = tf.reduce_sum(pool(x) * w)
            w.assign_sub(0.01 * loss * tf.ones(4))
            return loss

        return step, lambda: [w]

    compare(make, batches)


def test_gradients_of_arguments():
    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(tf.tanh(x * w) ** 2)
            return tape.gradient(y, [x, w])

        return step, lambda: [w]

    compare(make, rows, skipped=0.7)


def test_a_tape_round_the_step():
    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def inner(x):
            return tf.reduce_sum(tf.tanh(x * w) ** 2)

        return inner, lambda: [w]

    def run(wrap):
        step, _ = make()
        step = wrap(step)
        found = []
        for x, in rows():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = step(x)
            found.append(tape.gradient(y, x).numpy().tolist())
        return found, step

    expected, actual = run(lambda step: step), run(lambda step: terra.coexecute(step, wait_for_graph=True, reduce_retracing=True))
    assert actual[0] == expected[0] and actual[1].stats().coexecuted_steps >= STEPS - 6


def test_results_of_steps_as_arguments():
    def make():
        def step(x):
            return tf.concat([x, x[:1] * 0.5], 0)[-50:]

        return step, lambda: []

    def run(wrap):
        step, _ = make()
        step = wrap(step)
        x, seen = tf.ones([2, 3]), []
        for _ in range(60):
            x = step(x)
            seen.append(tuple(x.shape))
        return seen, x.numpy().tolist(), step

    expected, actual = run(lambda step: step), run(lambda step: terra.coexecute(step, wait_for_graph=True, reduce_retracing=True))
    assert actual[:2] == expected[:2] and actual[2].stats().coexecuted_steps > 40


def test_sizes_that_begin_to_vary_later():
    """Each brings another trace, and no more than that."""
    def make():
        w = tf.Variable(tf.ones([1, 4, 1]))

        def step(x):
            w.assign_sub(0.01 * tf.reduce_mean(tf.sin(x * w), axis=(0, 2), keepdims=True))
            return tf.reduce_sum(w * x)

        return step, lambda: [w]

    def batches():
        drawn = np.random.RandomState(0)
        for k in range(60):
            yield (tf.constant(drawn.randn(3 + (k % 4 if k > 20 else 0), 4, 5 + (k % 7 if k > 40 else 0)).astype("float32")),)

    stats = compare(make, batches, skipped=0.6)
    assert stats.tracing_steps <= 8 and stats.traces <= 2


def test_ranks_types_and_structures():
    def make():
        w = tf.Variable(1.0)

        def step(x, *more):
            w.assign_add(tf.reduce_mean(tf.cast(x, tf.float32)) + float(len(more)))
            return w * 1.0

        return step, lambda: [w]

    def batches():
        for k, (x,) in enumerate(rows(steps=60)):
            yield (x,) if k % 3 == 0 else (tf.cast(x[:, 0] * 3, tf.int32),) if k % 3 == 1 else (x, x)

    compare(make, batches)


@pytest.mark.parametrize("options", [
    {"fast_forward": False}, {"fast_forward": "framework"}, {"transform": False}, {"run_ahead": 0}, {"verify": True}, {"jit_compile": True}, {"loops": "unroll"},
    {"optimize": True}], ids=str)
def test_other_options(options):
    def make():
        model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.Dropout(0.2), keras.layers.Conv1D(4, 3, padding="same"), keras.layers.GlobalMaxPooling1D(),
                                  keras.layers.Dense(3)])
        model(np.zeros((2, 5), "int32"))
        return trained(model)

    compare(make, sequences, equal=CLOSE if "jit_compile" in options or "optimize" in options else SAME, key="other options", **options)


@pytest.mark.parametrize("loops", ["auto", "roll", "unroll"])
def test_loops_over_sizes(loops):
    def make():
        w = tf.Variable(tf.ones([4]) * 0.5)

        def step(x):
            with tf.GradientTape() as tape:
                state = tf.zeros([4])
                for k in range(x.shape[0]):
                    state = tf.tanh(state * w + x[k])
                loss = tf.reduce_sum(state)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return step, lambda: [w]

    short = [(x[:2 + k % (3 if loops == "unroll" else 8)],) for k, (x,) in enumerate(rows(steps=60, low=12))]
    compare(make, lambda: short, equal=CLOSE, loops=loops)


def test_values_that_python_reads():
    def make():
        w = tf.Variable(1.0)

        def step(x):
            if float(tf.reduce_sum(x)) > 0.0:
                w.assign_add(float(x.numpy().max()))
            return w * float(len(x))

        return step, lambda: [w]

    compare(make, rows)


def test_a_failure_is_eagers():
    def run(wrap):
        w = tf.Variable(tf.ones([4]))

        def step(x, y):
            w.assign_add(tf.ones(4))
            return tf.reduce_sum(x * w + y)

        step, seen = wrap(step), []
        for k, (x,) in enumerate(rows(low=5)):
            try:
                seen.append(float(step(x, x[:3] if k % 10 == 9 else x)))
            except tf.errors.InvalidArgumentError as error:
                seen.append("Incompatible shapes" in str(error))
        return seen, w.numpy().tolist(), step

    expected, actual = run(lambda step: step), run(lambda step: terra.coexecute(step, wait_for_graph=True, reduce_retracing=True))
    assert actual[:2] == expected[:2] and True in expected[0] and actual[2].stats().coexecuted_steps > 9


def test_another_size_varies_later():
    """Steps with any number of rows are prepared; then there is another column, too."""
    def make():
        weight = tf.Variable(1.0)

        def step(x):
            weight.assign_add(tf.reduce_mean(x))
            return tf.reduce_sum(x * weight, 0)

        return step, lambda: [weight]

    drawn = np.random.RandomState(0)
    batches = [tf.constant(drawn.randn(2 + i, 4 + (i >= STEPS and i % 2)).astype("float32")) for i in range(2 * STEPS)]
    step, _ = make()
    expected = [step(x) for x in batches]
    step = harness.coexecuted(make()[0], reduce_retracing=True)
    for x, value in zip(batches, expected):
        made = step(x)
        assert made.shape == value.shape == (x.shape[1],)
        SAME(made, value)
    assert step.stats().express_steps >= STEPS // 2, step.stats()


def test_without_the_option_nothing_is_opened():
    step = terra.coexecute(lambda x: x * 2.0, wait_for_graph=True, reduce_retracing=False)
    for x, in rows():
        assert step(x).shape == x.shape
    assert "left unknown" not in terra.explain(step, full=True)


def test_explain_tells_what_is_unknown():
    step = terra.coexecute(lambda x: tf.reduce_sum(x), wait_for_graph=True, reduce_retracing=True)
    for x, in rows():
        step(x)
    assert "left unknown: float32 (None, 4)." in terra.explain(step, full=True)


def test_assignments_compare_shapes():
    def make():
        v, failed = tf.Variable(tf.zeros([3, 4])), []

        def step(x):
            try:
                v.assign(x)
            except ValueError as error:
                failed.append("Cannot assign" in str(error) or "not compatible" in str(error) or "mismatch" in str(error))
            return v * 2.0, list(failed)

        return step, lambda: [v]

    compare(make, lambda: [(x[:3] if k % 5 else x[:2],) for k, (x,) in enumerate(rows(low=4))], coexecuted=0)
