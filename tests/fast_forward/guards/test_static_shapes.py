"""What depends on shapes and other static things alone runs no operation: a step that asks for it is skipped as a whole, and knows when it has changed."""
import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.cache import call_cache, call_records


def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


HELD = {"list": [1.0, 2.0, 3.0], "axis": 0, "array": floats(3)}
STEPS = {
    "shape": lambda x: tf.tanh(x) + tf.cast(tf.shape(x)[0], tf.float32),
    "noise of this shape": lambda x: x + tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "size": lambda x: tf.reduce_sum(tf.tanh(x)) / tf.cast(tf.size(x), tf.float32),
    "zeros like": lambda x: tf.tanh(x) + tf.zeros_like(x) + tf.ones_like(x),
    "convert a list": lambda x: tf.tanh(x) * tf.convert_to_tensor(HELD["list"]),
    "convert an array": lambda x: tf.tanh(x) * tf.convert_to_tensor(HELD["array"]),
    "expand dims": lambda x: tf.tanh(x) * tf.expand_dims(HELD["list"], HELD["axis"]),
    "squeeze": lambda x: tf.tanh(x) * tf.squeeze([HELD["list"]], HELD["axis"]),
    "is tensor": lambda x: tf.tanh(x) * (2.0 if tf.is_tensor(HELD["list"]) else 3.0),
    "linspace": lambda x: tf.tanh(x) * tf.linspace(0.0, HELD["list"][0], 3),
    "gather": lambda x: tf.tanh(x) * tf.gather(HELD["list"], [HELD["axis"]]),
}


def change(i):
    if i == 14:
        HELD["list"][0] = 5.0
    elif i == 17:
        HELD["array"][1] = -4.0
    elif i == 20:
        HELD["list"].reverse()
    HELD["axis"] = 0


def observe(name, wrap):
    HELD.update(list=[1.0, 2.0, 3.0], axis=0, array=floats(3))
    v = tf.Variable(0.0)
    body = STEPS[name]

    def step(x):
        y = body(x)
        v.assign_add(tf.reduce_mean(y))
        return tf.sin(y)

    step, seen = wrap(step), []
    for i in range(30):
        change(i)
        x = tf.constant(floats(4 if 8 <= i < 11 or i > 24 else 2, 3, seed=i))
        seen.append((step(x).numpy().tolist(), float(v)))
    return seen, step


@pytest.mark.parametrize("name", STEPS)
def test_static_functions(name):
    expected, _ = observe(name, lambda step: step)
    actual, step = observe(name, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().whole_steps >= 8, terra.explain(step)


@pytest.mark.one_variant
@pytest.mark.parametrize("in_class", [False, True])
def test_batches_of_many_lengths(in_class):
    """Calls that come with more shapes than are recorded at once are recorded when a shape comes again, and then the step is skipped."""
    rng = np.random.RandomState(0)
    lengths = [*range(2, 22)] * 5
    rng.shuffle(lengths)
    batches = [tf.constant(rng.standard_normal((3, n, 4)).astype("float32")) for n in lengths]

    def train(wrap):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Conv1D(5, 3, padding="same"), keras.layers.LayerNormalization(), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model(batches[0])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def forward(x):
            if not in_class:
                return model(x)
            for layer in layers:
                x = layer(x)
            return x

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(forward(x) - tf.reduce_sum(x, (1, 2))[:, None] / tf.cast(tf.shape(x)[1], tf.float32)))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        step = wrap(step)
        return [step(x).numpy() for x in batches], model.get_weights(), step

    expected, weights, _ = train(lambda step: step)
    actual, ours, step = train(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and all(map(np.array_equal, ours, weights))
    assert step.stats().whole_steps >= len(lengths) // 3, step.stats()


def test_what_is_recorded_where_calls_seldom_repeat():
    def recordings(signatures, small):
        known, recorded, known_ones = call_cache.CallSiteCache(), [], set()
        for k, signature in enumerate(signatures):
            if signature in known_ones:
                known.jumps += 1
            elif known.is_worth_recording(signature, small):
                recorded.append(k)
                known_ones.add(signature)
                known.recorded += 1
            if known.is_fruitless():
                return recorded, k
        return recorded, None

    assert recordings([("shape", n % 10) for n in range(100)], True) == ([*range(10)], None)  # few
    few = [("shape", n % 30) for n in range(200)]
    recorded, stopped = recordings(few, True)
    assert recorded == [*range(13), *range(43, 60)] and stopped is None  # the others when they come again
    many = [("shape", n % 200) for n in range(1000)]
    recorded, stopped = recordings(many, False)
    assert recorded[:41] == [*range(41)] and len(recorded) == 200 and 400 < recorded[-1] < 600 and stopped is None  # when they come once more
    recorded, stopped = recordings([("number", k) for k in range(5000)], True)
    assert len(recorded) == 13 and 1000 < stopped < 1100  # never again


def test_small_regions_are_kept_for_more_shapes():
    region = call_records.CallRecord()
    for size, most in ((10, 1000), (200, 250), (5000, 64)):
        known = call_cache.CallSiteCache()
        region.entries = [None] * size
        for k in range(1200):
            known.add(("shape", k), region)
        assert len(known) == most and ("shape", 1199) in known and ("shape", 0) not in known


@pytest.mark.parametrize("count", [lambda x, ids: tf.shape(x)[0], lambda x, ids: tf.reduce_max(ids) + 1], ids=["of the shape", "of the data"])
def test_a_number_that_two_calls_are_given(count):
    """How many segments there are follows from the shape, and each call that is given it depends on it; where it follows from the data it is another one without any new shape."""
    def observe(wrap):
        v = tf.Variable(0.5)

        def step(x, ids):
            n = count(x, ids)
            for _ in range(2):
                x = tf.gather(tf.math.unsorted_segment_mean(tf.tanh(x * v), ids, n), ids)
            v.assign_add(0.01 * tf.reduce_mean(x))
            return x

        step, seen = wrap(step), []
        for i in range(40):
            n = 3 + i % 3
            ids = np.random.RandomState(i).randint(0, n - (i % 7 == 0), n)
            seen.append((step(tf.constant(floats(n, 2, seed=i)), tf.constant(ids)).numpy().tolist(), float(v)))
        return seen, step

    expected, _ = observe(lambda step: step)
    found, step = observe(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert found == expected
    stats = step.stats()
    assert stats.coexecuted_steps >= 30, stats
    if count(floats(3, 2), np.arange(3)).dtype == tf.int32 and "shape" in count.__code__.co_names:
        assert stats.whole_steps >= 15, terra.explain(step)
