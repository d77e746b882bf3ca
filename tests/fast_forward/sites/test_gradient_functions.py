"""Gradients that are not skipped as a whole: the gradient functions of their operations are, one by one, and each guard of that, broken, gives eager's result."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.cache import call_cache
from terra.tf.private import symbolic
from tests import forks
from tests.fast_forward.sites.test_custom_gradients import X, check, training, values

RNG = np.random.default_rng(8)


def variables():
    rng = np.random.default_rng(1)
    return [tf.Variable(rng.normal(size=shape).astype("float32")) for shape in ((4, 5), (5,), (5, 2))]


def network(kernel, bias, last, x):
    return tf.nn.softplus(tf.tanh(x @ kernel + bias) / 2.0) @ last


@tf.custom_gradient
def opaque(x):
    """Because of the function that it tells the tapes, which may do anything, a gradient as a whole is never skipped."""
    return tf.identity(x), lambda gradient: gradient


def rows(x):
    """As many rows of `x` as the data want."""
    return opaque(tf.boolean_mask(x, x[:, 0] > 0.1))


@pytest.fixture
def entered(monkeypatch):
    """Names of the gradient functions that were tried and not skipped."""
    found = []
    original = call_cache.attempt_function

    def noted(runner, function, *args):
        skipped = runner.step.counts.fast_forwards
        result = original(runner, function, *args)
        if runner.step.counts.fast_forwards == skipped and function.__name__.endswith("Grad"):
            found.append(function.__name__)
        return result

    monkeypatch.setattr(call_cache, "attempt_function", noted)
    return found


def of_data():
    kernel, bias, last = made = variables()

    def forward(x):
        chosen = rows(x)
        return tf.reduce_sum(network(kernel, bias, last, chosen), axis=0) + tf.reduce_mean(network(kernel, bias, last, x)) * 0.1
    return training(forward, made)


@pytest.mark.share(2)
@pytest.mark.parametrize("fast_forward", [True, "framework"])
def test_shapes_of_data(entered, fast_forward):
    check(of_data, fast_forward=fast_forward, skipped=100)
    assert len(set(entered)) >= 8  # the first time they are recorded
    step = terra.coexecute(of_data()[0], wait_for_graph=True, fast_forward=fast_forward)
    for i in range(20):
        step(X[i % 3], X[i % 3][:, :2])
    entered.clear()
    for i in range(3):
        step(X[i % 3], X[i % 3][:, :2])
    assert step.stats().coexecuted_steps >= 6
    assert not entered


def test_off_by_option():
    step = terra.coexecute(of_data()[0], wait_for_graph=True, fast_forward=False)
    for i in range(8):
        step(X[i % 3], X[i % 3][:, :2])
    assert step.stats().coexecuted_steps >= 5 and step.stats().fast_forwards == 0


def other_data(i):
    """An array that is another one each time, and a scalar that changes once."""
    return np.random.default_rng(i).normal(size=(6, 4)), 0.5 if i < 9 else 0.25


def test_numpy_operands():
    def make():
        kernel, bias, last = made = variables()

        def step(x, y, noise, scale):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((network(kernel, bias, last, x * noise + noise[0] - scale * x) - y) ** 2 / np.array([2.0, scale]))
            gradients = tape.gradient(loss, made)
            for v, g in zip(made, gradients):
                v.assign_sub(g * np.float32(0.1))
            return loss, x.shape, gradients
        return step, lambda: made
    stats = check(make, extra=other_data, skipped=40)
    assert stats.fallbacks <= 4 and stats.whole_steps >= 4, stats  # whose calls do not count


@pytest.mark.parametrize("operate", [
    lambda x, a: x + a, lambda x, a: a + x, lambda x, a: x - a, lambda x, a: a - x, lambda x, a: x * a, lambda x, a: a * x, lambda x, a: x / a,
    lambda x, a: a / x, lambda x, a: x @ a.T, lambda x, a: a.T @ x, lambda x, a: x ** a, lambda x, a: x < a, lambda x, a: tf.cast(x, tf.int32) * a.astype(int)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_kinds_of_numpy_operands(operate, dtype):
    def make():
        def step(x, y, noise, scale):
            result = operate(tf.abs(x) + 1.0, np.abs(noise).astype(dtype))
            return result, tf.cast(result, tf.float32) * 2.0
        return step, lambda: ()
    check(make, extra=other_data, skipped=1)


@pytest.mark.parametrize("bad", [np.array("text"), np.ones((5, 7)), np.array([None])])
def test_wrong_numpy_operands(bad):
    def make():
        def step(x, y, operand):
            try:
                return tf.tanh(x) * operand
            except Exception as error:  # noqa: BLE001  (whatever eager raises)
                return tf.constant(type(error).__name__), tf.tanh(x)
        return step, lambda: ()
    check(make, extra=lambda i: (bad if i in (8, 11) else np.ones((6, 4)),), skipped=0, coexecuted=5)


def test_constants_and_attributes_that_change():
    """A number in the loss, and the axis of a sum, take turns: what the gradient functions were given is compared."""
    def make():
        kernel, bias, last = made = variables()

        def forward(x, number, axis):
            return tf.reduce_sum(network(kernel, bias, last, rows(x)) * number, axis=axis, keepdims=True) * tf.constant([[1.0, number]])

        def step(x, y, number, axis):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(forward(x, number, axis))
            gradients = tape.gradient(loss, made)
            for v, g in zip(made, gradients):
                v.assign_sub(0.01 * g)
            return loss, gradients
        return step, lambda: made
    check(make, extra=lambda i: (0.5 + i % 2, 0 if i % 5 else 1), skipped=20, coexecuted=5)


def test_other_sources():
    """For which inputs a gradient is wanted is told to gradient functions, too."""
    def make():
        kernel, bias, last = made = variables()

        def step(x, y, sources):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                loss = tf.reduce_sum(network(kernel, bias, last, rows(x)) * 0.5)
            first = tape.gradient(loss, [[kernel, bias, last, x][k] for k in sources])
            return first, tape.gradient(loss, made)
        return step, lambda: made
    check(make, extra=lambda i: ([(0, 1), (0, 2), (3,), (0, 1, 2, 3)][i % 4],), skipped=40, coexecuted=5)


def test_gradients_of_gradients():
    def make():
        kernel, bias, last = made = variables()

        def step(x, y):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    chosen = rows(x)
                    inner.watch(chosen)
                    value = tf.reduce_sum(network(kernel, bias, last, chosen))
                slope = inner.gradient(value, chosen)
                loss = tf.reduce_mean(slope * slope) + value * 0.01
            gradients = outer.gradient(loss, made)
            for v, g in zip(made, gradients):
                v.assign_sub(0.1 * g)
            return loss, gradients
        return step, lambda: made
    check(make, skipped=60)


@pytest.mark.parametrize("when", [6, 9])
def test_fallback_inside_a_gradient(when):
    """The user's own backward function takes another way, between gradient functions that were skipped."""
    def make():
        kernel, bias, last = made = variables()
        calls = []

        @tf.custom_gradient
        def odd(x):
            def backward(upstream):
                calls.append(1)
                return upstream * 3.0 if len(calls) != when else tf.sin(upstream) * upstream
            return x * 2.0, backward

        def forward(x):
            return tf.reduce_sum(odd(network(kernel, bias, last, rows(x))), axis=0)
        step, finally_ = training(forward, made)
        return step, lambda: (*finally_(), tf.constant(len(calls)))
    stats = check(make, skipped=60)
    assert stats.fallbacks == 1, stats


def test_gradient_function_of_the_users():
    """Registered for an operation that has none of TensorFlow's: it runs at each step."""
    calls = []
    if symbolic.registered_gradient("Snapshot") is None:
        @tf.RegisterGradient("Snapshot")
        def backward(op, upstream):
            backward.calls.append(1)
            return upstream * (2.0 + len(backward.calls) % 2)
    function = symbolic.registered_gradient("Snapshot")

    def make(choose):
        kernel, bias, last = made = variables()
        calls.clear()
        function.calls = calls
        step, finally_ = training(lambda x: tf.reduce_sum(tf.raw_ops.Snapshot(input=network(kernel, bias, last, choose(x))), axis=0), made)
        return step, lambda: (*finally_(), tf.constant(len(calls)))

    for choose in (rows, tf.identity, opaque):
        check(lambda: make(choose), skipped=10, coexecuted=5)
        assert len(calls) == 14


def test_constant_that_is_a_source():
    """A gradient is asked for the very object, not for its value."""
    def make():
        kernel, bias, last = made = variables()

        def step(x, y):
            factor, other = tf.constant(2.0), tf.constant(2.0)
            with tf.GradientTape() as tape:
                tape.watch(factor)
                loss = tf.reduce_sum(network(kernel, bias, last, rows(x)) * factor * other)
            return loss, tape.gradient(loss, [factor, other, *made])
        return step, lambda: made
    check(make, skipped=20)


def test_tensors_from_outside_come_once_or_twice():
    """The same tensor for both operands, or two: inline cache entries tell them apart."""
    pool = [tf.constant(RNG.normal(size=(6, 4)).astype("float32")) for _ in range(4)]

    def make():
        def step(x, y, a, b):
            return tf.maximum(pool[a], pool[b]) * x, tf.stack([pool[b], x, pool[a]])
        return step, lambda: ()
    check(make, extra=lambda i: (i % 4, (i * 3 + i // 7) % 4), skipped=0, coexecuted=5)


def test_values_read_after():
    """Gradients kept by the program are read when the steps are done."""
    step, _ = of_data()
    wrapped = terra.coexecute(step, wait_for_graph=True)
    kept = [wrapped(X[i % 3], X[i % 3][:, :2])[1] for i in range(12)]
    step, _ = of_data()
    for i, gradients in enumerate(kept):
        for a, b in zip(values(step(X[i % 3], X[i % 3][:, :2])[1]), values(gradients)):
            np.testing.assert_array_equal(a, b)
    assert wrapped.stats().coexecuted_steps >= 6


@pytest.mark.parametrize("of", ["value", "argument"])
def test_masks_that_the_program_attaches(of):
    """Inline cache entries of stock layers: a mask counts, whether a tensor had one the last time or not."""
    def make():
        rng = np.random.default_rng(3)
        kernel = tf.Variable(rng.normal(size=(4, 3)).astype("float32"))
        pool = keras.layers.GlobalAveragePooling1D()
        mask = tf.constant([[True, False, True, True, False, True]] * 2)
        calls = []

        def step(x, y, masked):
            calls.append(1)
            batch = tf.stack([x, x * 2.0])
            given = batch if of == "value" else arguments[len(calls) % 2]
            if masked:
                given._keras_mask = mask
            pooled = pool(given)
            given._keras_mask = None
            return pool(batch) @ kernel, pooled @ kernel
        return step, lambda: tf.constant(len(calls))

    arguments = [tf.constant(RNG.normal(size=(2, 6, 4)).astype("float32")) for _ in range(2)]
    check(make, extra=lambda i: (i in (7, 8, 11),), skipped=10)


def test_stock_layers_of_impure_steps_change():
    """The layers of a step that has side effects are jumped over one by one; each change of one is seen."""
    def make():
        layers = [keras.layers.Dense(4, activation="tanh", kernel_initializer=keras.initializers.RandomNormal(seed=k)) for k in range(4)]
        seen = []

        def step(x, y, change):
            seen.append(float(len(seen)))
            if change:
                layers[change].activation = tf.nn.relu if seen[-1] < 10 else tf.nn.sigmoid
            for layer in layers:
                x = layer(x)
            return x, tf.constant(seen[-1])
        return step, lambda: [layer.kernel for layer in layers]
    check(make, extra=lambda i: ({7: 1, 9: 2, 12: 1}.get(i, 0),), skipped=20, coexecuted=5)


@pytest.mark.parametrize("look_up", [
    lambda table, indices: tf.gather(table, indices), lambda table, indices: tf.gather(params=table, indices=indices, axis=0),
    lambda table, indices: tf.gather(table * 2.0, indices[:, None], batch_dims=0), lambda table, indices: tf.gather(table, [indices, indices])[0],
    lambda table, indices: tf.one_hot(indices, 5), lambda table, indices: tf.one_hot(indices=indices, depth=5, on_value=2.0, axis=0)])
@pytest.mark.parametrize("kind", [tf.constant, np.array])
def test_indices_that_python_makes(look_up, kind):
    """Another value each time: the call is skipped, and its gradient is right."""
    def make():
        table = tf.Variable(np.random.default_rng(4).normal(size=(5, 5)).astype("float32"))
        seen = []

        def step(x, y, indices):
            seen.append(len(seen))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(look_up(table, indices) * (tf.cast(indices, tf.float32) + 1.0)[0]) + tf.reduce_sum(table) * 0.1
            gradient = tf.convert_to_tensor(tape.gradient(loss, table))
            table.assign_sub(0.1 * gradient)
            return loss, gradient
        return step, lambda: (table, tf.constant(len(seen)))

    rng = np.random.default_rng(2)
    drawn = [kind(rng.integers(0, 5, size=4)) for _ in range(14)]
    check(make, extra=lambda i: (drawn[i],), skipped=5, coexecuted=5)


def test_indices_out_of_range():
    """What eager execution raises is raised, when the call was skipped, too."""
    def make():
        table = tf.Variable(np.random.default_rng(4).normal(size=(5, 3)).astype("float32"))
        seen = []

        def step(x, y, k):
            seen.append(k)
            try:
                return tf.reduce_sum(tf.gather(table, tf.constant([0, k]))), float(tf.reduce_sum(tf.gather(table, tf.constant([k, 1])))) + 1.0
            except tf.errors.InvalidArgumentError as error:
                seen.append(str(error))
                return tf.constant(-1.0)
        return step, lambda: tf.constant([str(x) for x in seen])
    check(make, extra=lambda i: (9 if i in (8, 11) else i % 5,), skipped=5, coexecuted=5)


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory):
    with forks.Interpreters(tmp_path_factory.mktemp("interpreters"), "import sys, tensorflow") as made:
        yield made


@pytest.mark.parametrize("when", ["first", "later"])
def test_numpy_behaviour_is_switched_on(when, interpreters):
    """Types of operands are promoted from then on, and calls that were skipped before may give something else."""
    script = """if True:
        import sys
        import numpy as np, tensorflow as tf
        switch_on = tf.experimental.numpy.experimental_enable_numpy_behavior
        if sys.argv[1] == "first":
            switch_on()
        import terra
        def make(coexecute):
            calls = []
            def step(x, a):
                calls.append(len(calls))
                y = tf.add(x, x)
                return y * a, y + np.float64(1.0)
            return terra.coexecute(step, wait_for_graph=True) if coexecute else step
        x = tf.constant([1.0, 2.0])
        eager, ours = make(False), make(True)
        def same():
            for i in range(10):
                a = np.array([i, 2.0])
                for p, q in zip(eager(x, a), ours(x, a)):
                    assert p.dtype == q.dtype and (p.numpy() == q.numpy()).all(), (i, p, q)
            return p.dtype, eager(x, a)[0].dtype
        before = same()
        if sys.argv[1] == "later":
            switch_on()
        assert (same() != before) is (sys.argv[1] == "later")
        assert same()[1] is tf.float64
        assert ours.stats().coexecuted_steps >= 10, ours.stats()
    """
    done = interpreters.run(f"sys.argv[1:] = [{when!r}]\n{script}")
    assert done.returncode == 0, done.stderr[-2000:]
