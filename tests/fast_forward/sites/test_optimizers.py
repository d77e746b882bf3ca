"""Fast-forward of optimizers: it happens, and each of its guards, broken, gives eager's result."""

import contextlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

RNG = np.random.default_rng(0)
X = [tf.constant(RNG.normal(size=(6, 4)).astype("float32")) for _ in range(3)]
Y = [tf.constant(RNG.normal(size=(6, 2)).astype("float32")) for _ in range(3)]


def build(library, optimizer):
    """(step, model, optimizer) from the same seed each time."""
    keras.utils.set_random_seed(3)
    tf_keras.utils.set_random_seed(3)
    model = library.Sequential([library.layers.Dense(5, activation="tanh"), library.layers.Dense(2)])
    model.build((None, 4))
    made = optimizer(library)

    def step(x, y, change=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        if change is not None:
            change(made, model)
        made.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step, model, made


def run(library, optimizer, change, when, coexecute):
    """14 steps; `change(optimizer, model)` runs before step 7 (outside) or within it. Returns what a user sees, and the statistics."""
    step, model, made = build(library, optimizer)
    wrapped = terra.coexecute(step, wait_for_graph=True) if coexecute else step
    losses = []
    for i in range(14):
        inside = None
        if change is not None and i == 7:
            if when == "between":
                change(made, model)
            else:
                inside = change
        losses.append(wrapped(X[i % 3], Y[i % 3], inside))
    seen = [np.asarray(v) for v in losses] + [np.asarray(w) for w in model.get_weights()]
    seen += [np.asarray(v) for v in (made.variables if not callable(made.variables) else made.variables())]
    return seen, (wrapped.stats() if coexecute else None)


def check(library, optimizer, change=None, when="between"):
    expected, _ = run(library, optimizer, change, when, False)
    actual, stats = run(library, optimizer, change, when, True)
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual):
        np.testing.assert_array_equal(a, b)
    assert stats.coexecuted_steps >= 4, stats
    return stats


OPTIMIZERS = {
    "keras3_adam": (keras, lambda k: k.optimizers.Adam(0.01)),
    "keras3_sgd_momentum": (keras, lambda k: k.optimizers.SGD(0.05, momentum=0.9, nesterov=True)),
    "keras3_adamw_clipnorm_ema": (keras, lambda k: k.optimizers.AdamW(0.01, clipnorm=0.5, use_ema=True)),
    "keras3_schedule": (keras, lambda k: k.optimizers.RMSprop(k.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7))),
    "tfkeras_adam": (tf_keras, lambda k: k.optimizers.Adam(0.01)),
    "tfkeras_legacy_adam": (tf_keras, lambda k: k.optimizers.legacy.Adam(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_jumps_and_equals_eager(name):
    stats = check(*OPTIMIZERS[name])
    assert stats.fast_forwards >= 8, stats
    assert stats.fallbacks == 0, stats


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_off_by_option(name):
    library, optimizer = OPTIMIZERS[name]
    step, _, _ = build(library, optimizer)
    wrapped = terra.coexecute(step, wait_for_graph=True, fast_forward=False)
    for i in range(8):
        wrapped(X[i % 3], Y[i % 3])
    assert wrapped.stats().coexecuted_steps > 0 and wrapped.stats().fast_forwards == 0


def set_rate(optimizer, model):
    optimizer.learning_rate = 0.5


def assign_rate(optimizer, model):
    optimizer.learning_rate.assign(0.3)


def set_clipnorm(optimizer, model):
    optimizer.clipnorm = 0.01


def set_beta(optimizer, model):
    optimizer.beta_1 = 0.5


def set_weight_decay(optimizer, model):
    optimizer.weight_decay = 0.1


class Halve(keras.constraints.Constraint):
    def __call__(self, w):
        return w * 0.5


def add_constraint(optimizer, model):
    variable = model.trainable_variables[0]
    if isinstance(variable, tf.Variable):
        variable._constraint = lambda w: w * 0.5
    else:
        variable.constraint = Halve()


def patch_instance(optimizer, model):
    original = optimizer.update_step
    optimizer.update_step = lambda gradient, variable, *rest: original(gradient * 2.0, variable, *rest)


@pytest.mark.parametrize("when", ["between", "within"])
@pytest.mark.parametrize("change", [set_rate, assign_rate, set_clipnorm, set_beta, set_weight_decay, add_constraint, patch_instance])
def test_keras3_state_changes_between_or_within_a_step(change, when):
    check(keras, lambda k: k.optimizers.Adam(0.01), change, when)


@pytest.mark.parametrize("change", [set_rate, assign_rate, set_clipnorm, set_beta, patch_instance])
def test_tfkeras_state_changes(change):
    check(tf_keras, lambda k: k.optimizers.Adam(0.01), change)


def test_method_of_the_class_replaced(monkeypatch):
    original = keras.optimizers.Adam.update_step

    def change(optimizer, model):
        monkeypatch.setattr(keras.optimizers.Adam, "update_step", lambda self, g, v, lr: original(self, g * 3.0, v, lr))

    expected, _ = run(keras, lambda k: k.optimizers.Adam(0.01), change, "between", False)
    monkeypatch.undo()
    actual, stats = run(keras, lambda k: k.optimizers.Adam(0.01), change, "between", True)
    for a, b in zip(expected, actual):
        np.testing.assert_array_equal(a, b)
    assert stats.fast_forwards > 0


def test_a_user_subclass_always_runs():
    calls = []

    class Counting(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            calls.append(len(calls))
            return super().apply(grads, trainable_variables)

    step, _, _ = build(keras, lambda k: Counting(0.1))
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for i in range(10):
        wrapped(X[i % 3], Y[i % 3])
    assert calls == list(range(10))
    assert wrapped.stats().coexecuted_steps > 0


def test_a_variable_swapped_and_a_gradient_dropped():
    keras.utils.set_random_seed(1)

    def make():
        variables = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.full(3, 2.0, "float32"))]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(variables)

        def step(order, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * (variables[0] ** 2 + variables[1] ** 3))
            gradients = tape.gradient(loss, [v.value for v in variables])
            chosen = [(gradients[i], variables[i]) for i in order]
            optimizer.apply_gradients(chosen)
            return loss

        return step, variables

    orders = [(0, 1)] * 6 + [(1, 0), (0,), (1,), (0, 1), (1, 0), (0,)] + [(0, 1)] * 3
    x = tf.constant([1.0, 0.5, 0.25])
    eager_step, eager_variables = make()
    expected = [float(eager_step(order, x)) for order in orders]
    step, variables = make()
    wrapped = terra.coexecute(step, wait_for_graph=True)
    assert [float(wrapped(order, x)) for order in orders] == expected
    for a, b in zip(eager_variables, variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert wrapped.stats().fast_forwards > 0


def test_a_divergence_after_a_jump_replays_the_region():
    step, model, optimizer = build(keras, lambda k: k.optimizers.Adam(0.01))
    eager_step, eager_model, eager_optimizer = build(keras, lambda k: k.optimizers.Adam(0.01))

    def with_tail(inner, owner):
        def train(x, y, late):
            loss = inner(x, y)
            if late:
                owner.trainable_variables[0].assign(owner.trainable_variables[0] * 0.5)
            return loss
        return train

    wrapped = terra.coexecute(with_tail(step, model), wait_for_graph=True)
    plain = with_tail(eager_step, eager_model)
    for i in range(12):
        a, b = plain(X[i % 3], Y[i % 3], i == 8), wrapped(X[i % 3], Y[i % 3], i == 8)
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for a, b in zip(eager_model.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(eager_optimizer.variables, optimizer.variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert wrapped.stats().fallbacks == 1 and wrapped.stats().fast_forwards > 0


# -- layers, losses and the tape's gradient ------------------------------------------------------------------------------------


def layered(library, coexecute, change=None, at=7, steps=14, make=None):
    """A step that calls stock layers one by one; `change(layers)` runs before step `at`."""
    keras.utils.set_random_seed(5)
    tf_keras.utils.set_random_seed(5)
    layers = make(library) if make else [
        library.layers.Dense(8, activation="relu"), library.layers.BatchNormalization(), library.layers.Dropout(0.3),
        library.layers.Dense(2)]
    for layer in layers:
        layer.trainable = True
    loss_fn = library.losses.MeanSquaredError()
    rate = 0.05

    def step(x, y):
        with tf.GradientTape() as tape:
            h = x
            for layer in layers:
                h = layer(h, training=True)
            loss = loss_fn(y, h) + sum(tf.reduce_sum(extra) for layer in layers for extra in layer.losses)
        variables = [v for layer in layers for v in layer.trainable_variables]
        for v, g in zip(variables, tape.gradient(loss, variables)):
            if g is not None:
                v.assign_sub(rate * g)
        return loss

    wrapped = terra.coexecute(step, wait_for_graph=True) if coexecute else step
    losses = []
    for i in range(steps):
        if change is not None and i == at:
            change(layers)
        losses.append(np.asarray(wrapped(X[i % 3], Y[i % 3])))
    return losses + [np.asarray(w) for layer in layers for w in layer.get_weights()], (wrapped.stats() if coexecute else None)


def check_layers(library, change=None, **kwargs):
    expected, _ = layered(library, False, change, **kwargs)
    actual, stats = layered(library, True, change, **kwargs)
    assert len(expected) == len(actual)
    for k, (a, b) in enumerate(zip(expected, actual)):
        np.testing.assert_array_equal(a, b, err_msg=f"item {k}")
    assert stats.coexecuted_steps >= 4, stats
    return stats


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_layers_losses_and_gradients_are_skipped(library):
    stats = check_layers(library)
    assert stats.fast_forwards >= 2 * stats.coexecuted_steps, stats


def _rate(layers):
    layers[2].rate = 0.9


def _freeze(layers):
    layers[0].trainable = False


def _activation(layers):
    layers[0].activation = tf.nn.tanh


def _user_activation(layers):
    layers[0].activation = lambda x: x * 3.0


def _momentum(layers):
    layers[1].momentum = 0.5


def _regularizer(layers):
    layers[3].kernel_regularizer = keras.regularizers.L2(0.1)


def _patched_call(layers):
    original = layers[0].call
    layers[0].call = lambda x, *a, **k: original(x, *a, **k) * 2.0


def _swap_kernel(layers):
    vars(layers[0])["_kernel"] = keras.Variable(np.full((4, 8), 0.1, "float32"))


@pytest.mark.parametrize("change", [_rate, _freeze, _activation, _user_activation, _momentum, _regularizer, _patched_call, _swap_kernel])
def test_layer_state_changes(change):
    check_layers(keras, change)


def test_activity_regularizer():
    check_layers(keras, make=lambda k: [k.layers.Dense(8, activity_regularizer=k.regularizers.L2(0.01)), k.layers.Dense(2)])


def test_function_of_the_framework_replaced(monkeypatch):
    original = tf.nn.relu

    def change(layers):
        monkeypatch.setattr(tf.nn, "relu", lambda x, *a, **k: original(x, *a, **k) + 0.25)

    expected, _ = layered(keras, False, change)
    monkeypatch.undo()
    actual, stats = layered(keras, True, change)
    for a, b in zip(expected, actual):
        np.testing.assert_array_equal(a, b)
    assert stats.fast_forwards > 0


def test_user_layers_always_run_and_their_stock_parts_are_skipped():
    seen = []

    class Mine(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(4, activation="relu")

        def call(self, x):
            seen.append(len(seen))
            return self.inner(x) * 2.0

    stats = check_layers(keras, make=lambda k: [Mine(), k.layers.Dense(2)])
    assert len(seen) >= 2 * 14
    assert stats.fast_forwards > 0


def test_custom_gradient_and_watch_and_nested_tapes_stay_right():
    seen = []

    def make():
        keras.utils.set_random_seed(2)
        layer = keras.layers.Dense(3, activation="tanh")
        layer.build((None, 4))

        @tf.custom_gradient
        def doubled(x):
            def backward(upstream):
                seen.extend([1])
                return upstream * 2.0
            return x, backward

        def step(x, y, watch):
            with tf.GradientTape(persistent=True) as outer:
                if watch:
                    outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    out = tf.reduce_sum(doubled(layer(x)) ** 2)
                first = inner.gradient(out, x)
                penalty = tf.reduce_sum(first ** 2)
            grads = outer.gradient(penalty, layer.trainable_variables)
            again = outer.gradient(penalty, x) if watch else None
            with tf.GradientTape() as plain:
                value = tf.reduce_mean(layer(x))
            more = plain.gradient(value, layer.trainable_variables)
            layer.kernel.assign_sub(0.01 * (grads[0] + more[0]))
            return penalty, again, value

        return step, layer

    eager_step, eager_layer = make()
    pattern = [False] * 5 + [True] * 5 + [False, True] * 3
    expected = [[None if t is None else t.numpy() for t in eager_step(X[i % 3], Y[i % 3], w)] for i, w in enumerate(pattern)]
    eager_calls = len(seen)
    step, layer = make()
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for i, w in enumerate(pattern):
        for a, b in zip(expected[i], wrapped(X[i % 3], Y[i % 3], w)):
            if a is None:
                assert b is None
            else:
                np.testing.assert_array_equal(a, b.numpy())
    assert len(seen) == 2 * eager_calls
    np.testing.assert_array_equal(eager_layer.kernel.numpy(), layer.kernel.numpy())
    assert wrapped.stats().coexecuted_steps > 4 and wrapped.stats().fast_forwards > 0


# -- tensors from outside of the step, feeds and seeds ---------------------------------------------------------------------------


def both(make, calls, jumps=1, **options):
    """Run `calls` eagerly and co-executed; all results and the state must be equal. `make()` returns (step, what gives the state).

    jumps: how many calls of the framework's at least are skipped in each co-executed step, on average. Returns the statistics.
    The program runs co-executed twice: with all of its own code, and with that skipped where it does nothing but compute.
    """
    def seen(value):
        return [np.asarray(t) for t in tf.nest.flatten(value) if t is not None]

    runs = []
    for coexecuted in (False, True, "framework"):
        keras.utils.set_random_seed(7)
        step, state = make()
        wrapped = terra.coexecute(step, wait_for_graph=True, fast_forward=coexecuted, **options) if coexecuted else step
        values = []
        for k, call in enumerate(calls):
            if callable(call):
                call()
            else:
                values.append(seen(wrapped(*call)))
        values.append(seen(state()))
        runs.append(values)
    for k, (expected, *others) in enumerate(zip(*runs, strict=True)):
        for actual in others:
            for a, b in zip(expected, actual, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"call {k} of {len(calls)}")
    stats = wrapped.stats()
    assert stats.fast_forwards >= jumps * stats.coexecuted_steps > 0, stats
    return stats


WORDS = [tf.constant(RNG.integers(0, 20, (8, 6))) for _ in range(3)]


def train(forward, variables):
    """The step of a model `forward(x)`, with gradients and an optimizer."""
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(variables)

    def step(*inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(*inputs) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step, lambda: variables


def test_sparse_gradients_are_skipped():
    def make():
        model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.LSTM(5)])
        model(WORDS[0])
        return train(model, model.trainable_variables)

    stats = both(make, [(WORDS[k % 3],) for k in range(10)], jumps=2.5)
    assert stats.fallbacks == 0


def wide():
    layer = keras.layers.Dense(16, activation="tanh")
    layer.build((None, 16))
    return layer


WIDE = [tf.constant(RNG.normal(size=(8, 16)).astype("float32")) for _ in range(4)]
OTHERS = [t + 1.0 for t in WIDE]
NARROW = [tf.constant(RNG.normal(size=(1, 16)).astype("float32")) for _ in range(4)]


@pytest.mark.parametrize("tensors", [OTHERS, NARROW])
@pytest.mark.parametrize("read", [False, True])
def test_a_tensor_from_outside_is_an_argument(tensors, read):
    def make():
        layer = wide()
        turn = iter(range(100))

        def forward(x):
            h = layer(x)
            if read:
                float(tf.reduce_sum(h))  # the graph runs by now: feeds go through queues
            return h * layer(tensors[next(turn) // 2 % 4])

        return train(forward, layer.trainable_variables)

    both(make, [(WIDE[k % 3],) for k in range(16)], jumps=1)


@pytest.mark.share(2)
@pytest.mark.parametrize("size", [1, 8])
def test_the_state_of_the_step_before_is_an_argument(size):
    def make():
        cell = keras.layers.GRUCell(16)
        cell.build((None, 16))
        state = [tf.zeros((size, 16))]

        def forward(x):
            output, state[0] = cell(x[:size], state[0])
            return output

        step, variables = train(forward, cell.trainable_variables)
        return step, lambda: [variables(), state]

    both(make, [(WIDE[k % 3],) for k in range(14)], jumps=2)


def test_small_constants_are_compared_by_value():
    offsets = [0] * 6 + [3, 0, 0, 3, 3]

    def make():
        places, turn = keras.layers.Embedding(20, 16), iter(offsets)
        places.build((None,))

        def forward(x):
            start = next(turn)
            return x + places(tf.range(start, start + 8))

        return train(forward, places.trainable_variables)

    both(make, [(WIDE[k % 3],) for k in range(len(offsets))])


def test_one_tensor_twice_is_not_two_tensors():
    pairs = [(0, 1)] * 5 + [(2, 2), (0, 1), (1, 0), (2, 2), (3, 3), (1, 2)]

    def make():
        product, scale, turn = keras.layers.Subtract(), tf.Variable(2.0), iter(pairs)

        def forward(x):
            a, b = next(turn)
            return scale * x + product([WIDE[a], WIDE[b]])

        return train(forward, [scale])

    both(make, [(WIDE[k % 3],) for k in range(len(pairs))], jumps=0.5)


def test_a_tensor_that_was_fed_before():
    def make():
        layer, turn = wide(), iter(range(100))

        def forward(x):
            noise = OTHERS[next(turn) % 4]
            return layer(x + noise) + layer(noise)

        return train(forward, layer.trainable_variables)

    both(make, [(WIDE[k % 3],) for k in range(12)], jumps=3)


def test_a_scalar_argument_that_python_branches_on():
    def make():
        dropout, scale = keras.layers.Dropout(0.5, seed=3), tf.Variable(2.0)

        def forward(x, training):
            return dropout(x * scale, training=training)

        return train(forward, [scale])

    on, off = tf.constant(True), tf.constant(False)
    both(make, [(WIDE[k % 3], on if k < 6 or k % 3 else off) for k in range(14)])


def test_an_argument_of_varying_shape_elsewhere():
    def make():
        layer, other = wide(), wide()

        def forward(x, y):
            return tf.reduce_mean(layer(x)) + tf.reduce_mean(other(y))

        return train(forward, [*layer.trainable_variables, *other.trainable_variables])

    stats = both(make, [(WIDE[k % 3], WIDE[0][:1 + k % 7]) for k in range(30)], jumps=2)
    assert stats.fast_forwards >= 2.5 * stats.coexecuted_steps, stats


def test_seeds_are_drawn_as_before():
    def make():
        dropout, layer = tf_keras.layers.Dropout(0.5), wide()

        def forward(x):
            return dropout(layer(x), training=True) + tf.random.uniform((8, 16))

        return train(forward, layer.trainable_variables)

    calls = [(WIDE[k % 3],) for k in range(10)]
    calls[6:6] = [lambda: tf.random.set_seed(5)]
    both(make, calls, jumps=3)


def test_feeds_and_seeds_are_replayed_and_told_to_the_tape():
    """Steps that leave the known path, or ask the tape, after regions that fed something."""
    def make():
        dropout, layer, turn = tf_keras.layers.Dropout(0.5), wide(), iter(range(100))
        variables = layer.trainable_variables

        def step(x, how):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean(dropout(layer(OTHERS[next(turn) % 4]), training=True) * layer(x))
                if how == 1:
                    loss = loss * 2.0
                if how == 2:
                    tape.watch(variables[0].value)
            gradients = tape.gradient(loss, variables)
            for v, g in zip(variables, gradients, strict=True):
                v.assign_sub(0.1 * g)
            return loss, gradients

        return step, lambda: variables

    hows = [0] * 6 + [1, 0, 2, 0, 1, 2, 0, 0]
    both(make, [(WIDE[k % 3], how) for k, how in enumerate(hows)])


def test_an_array_changed_in_place():
    scale = np.full(16, 2.0, "float32")

    def make():
        scale[:] = 2.0
        rescaling, layer = keras.layers.Rescaling(scale), wide()
        return train(lambda x: layer(rescaling(x)), layer.trainable_variables)

    def change():
        scale[3:] += 1.0

    calls = [(WIDE[k % 3],) for k in range(10)]
    calls[6:6] = [change]
    both(make, calls, jumps=2)


# -- single functions and operators ----------------------------------------------------------------------------------------------


def handwritten():
    """(variables, step): functions, operators, slices and assignments by hand."""
    w, b, momentum = tf.Variable(tf.ones((16, 16)) * 0.1), tf.Variable(tf.zeros(16)), tf.Variable(tf.zeros((16, 16)))

    def step(x, change=None, rate=0.1, at=2, bias=True):
        if change is not None:
            change()
        with tf.GradientTape() as tape:
            h = tf.matmul(x, w) + b if bias else x @ w
            left, right = tf.split(tf.nn.tanh(h), 2, axis=-1)
            h = tf.concat([left * right, -left, x[:, at:at + 2]], axis=-1) + 0.5
            loss = tf.reduce_mean(tf.math.square(h)) * rate
        first, second = tape.gradient(loss, [w, b])
        momentum.assign(0.9 * momentum + first)
        w.assign_sub(rate * momentum)
        if second is not None:
            b.assign_add(-second)
        return loss, h[0], h[..., 1]

    return step, lambda: [w, b, momentum]


def test_functions_and_operators_are_skipped():
    stats = both(handwritten, [(WIDE[k % 3],) for k in range(10)], jumps=15)
    assert stats.fallbacks == 0


def test_python_values_among_the_arguments():
    calls = [(WIDE[0], None, rate, at) for rate, at in [(0.1, 2)] * 6 + [(0.2, 2), (0.1, 3), (0.1, 2), (0.0, 2), (-0.0, 2), (0.0, 5), (0.1, 2), (0.1, 2)]]
    both(handwritten, calls, jumps=5)


def test_branches_with_the_same_function():
    both(handwritten, [(WIDE[0], None, 0.1, 2, k % 3 != 0) for k in range(20)], jumps=8)


def test_signed_zero():
    zeros = [0.0] * 6 + [-0.0, 0.0, -0.0]

    def make():
        turn = iter(zeros)
        return lambda x: 1.0 / (tf.zeros_like(x) * next(turn)), lambda: []

    both(make, [(WIDE[0],)] * len(zeros), jumps=1)


@pytest.mark.parametrize("when", ["between", "within"])
@pytest.mark.parametrize("space, name", [(tf.nn, "tanh"), (tf, "matmul"), (tf.math, "square"), (tf, "split"), (tf.Tensor, "__add__"), (tf.Tensor, "__getitem__"), (tf.Variable, "__rmul__")])
def test_replaced_functions_and_operators(monkeypatch, space, name, when):
    original = getattr(space, name)
    seen = []

    def replacement(*args, **kwargs):
        seen.append(name)
        result = original(*args, **kwargs)
        return [part * 2.0 for part in result] if type(result) is list else result * 2.0

    runs = []
    for coexecuted in (False, True):
        step, state = handwritten()
        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        values = []
        for k in range(14):
            within = k == 7 and when == "within"
            if k == 7 and not within:
                monkeypatch.setattr(space, name, replacement)
            values += wrapped(WIDE[k % 3], (lambda: monkeypatch.setattr(space, name, replacement)) if within else None)
        monkeypatch.undo()
        runs.append([np.asarray(v) for v in (*values, *state())])
        seen.append("end")
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    half = len(seen) // 2
    assert seen[:half] == seen[half:] and len(seen) > 2
    assert wrapped.stats().fast_forwards > 0


def test_variables_and_tensors_are_told_apart():
    def make():
        variables = [tf.Variable(tf.fill((8, 16), float(k))) for k in range(3)]
        turn = iter([0, 1, 2, 0] * 10)

        def step(x):
            first, second = next(turn), next(turn)
            return tf.add(x, variables[first]) * variables[second] + tf.add(variables[first], x)

        return step, lambda: variables

    both(make, [(WIDE[0],)] * 16, jumps=1)


def test_recording_stopped_and_device_set():
    def make():
        w = tf.Variable(2.0)
        turn = iter([0] * 6 + [1, 0, 2, 0, 1, 2, 0, 0])

        def step(x):
            how = next(turn)
            with tf.GradientTape() as tape:
                h = x * w
                if how == 1:
                    with tape.stop_recording():
                        h = h * tf.sigmoid(h)
                elif how == 2:
                    with tf.device("cpu:0"):
                        h = h * tf.sigmoid(h)
                else:
                    h = h * tf.sigmoid(h)
            return tape.gradient(h, w)

        return step, lambda: [w]

    both(make, [(WIDE[0],)] * 14, jumps=1)


def test_the_users_functions_among_the_arguments_run():
    seen = []

    def make():
        def double(row):
            seen.extend([1])
            return row * 2.0

        return lambda x: tf.map_fn(double, tf.nn.relu(x)), lambda: []

    both(make, [(WIDE[0],)] * 8, jumps=1)
    assert len(seen) == 3 * 8 * 8


def test_random_functions_draw_their_seeds():
    def make():
        return lambda x: tf.nn.dropout(x, 0.5) + tf.random.normal((8, 16)), lambda: []

    both(make, [(WIDE[0],)] * 8, jumps=1)


def test_keras_functions():
    def make():
        kernel = keras.Variable(np.full((16, 16), 0.1, "float32"))

        def step(x):
            h = keras.activations.gelu(keras.ops.matmul(x, kernel)) + keras.ops.mean(x, axis=-1, keepdims=True)
            kernel.assign(kernel * 0.9)
            return h

        return step, lambda: [kernel]

    def swap():
        pass

    both(make, [(WIDE[0],)] * 5 + [swap] + [(WIDE[1],)] * 5, jumps=2)


# -- the wrapper round a user's `call` -------------------------------------------------------------------------------------------


class Noting(keras.layers.Layer):
    """A user's layer that notes what its `call` sees."""

    seen = []

    def __init__(self, inner=(), **kwargs):
        super().__init__(**kwargs)
        self.inner = list(inner)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x, training=None):
        context = keras.src.backend.common.global_state.get_global_attribute("current_call_ctx")
        path = keras.src.backend.common.name_scope.current_path()
        Noting.seen.append((self.name, training, x.dtype.name, context.entry_layer.name, path, tf.get_current_name_scope()))
        for layer in self.inner:
            x = layer(x)
        return x * self.scale


class Plain(Noting):
    """One without a `training` argument."""

    def call(self, x):
        return Noting.call(self, x, training="none")


def nested(change=None, at=7, steps=14, coexecuted=True, training=lambda k: True):
    """(results, what the layers saw, statistics) of a step with nested user layers; `change(layers)` runs before step `at`."""
    keras.utils.set_random_seed(4)
    keras.backend.clear_session()
    Noting.seen = []
    layers = {"dropout": keras.layers.Dropout(0.5, seed=1), "dense": keras.layers.Dense(16)}
    layers["low"] = Noting([layers["dropout"], layers["dense"]], name="low")
    layers["plain"] = Plain([layers["low"]], name="plain")
    layers["top"] = top = Noting([layers["plain"], Noting(name="side")], name="top")
    top(WIDE[0])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(top.trainable_variables)

    def step(x, training):
        with tf.GradientTape() as tape:
            y = top(x) if training is None else top(x, training=training)
            loss = tf.reduce_mean(y ** 2) + sum(top.losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, top.trainable_variables), top.trainable_variables))
        return loss, y, len(top.losses)

    wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
    Noting.seen, results = [], []
    for k in range(steps):
        if change is not None and k == at:
            change(layers)
        try:
            results += [np.asarray(t) for t in wrapped(WIDE[k % 3], training(k))]
        except Exception as error:
            results.append(np.frombuffer(f"{type(error)} {error}".encode(), "uint8"))
            assert keras.src.backend.common.global_state.get_global_attribute("current_call_ctx") is None
    results += [np.asarray(w) for w in top.get_weights()]
    return results, Noting.seen, wrapped.stats() if coexecuted else None


def check_nested(change=None, **kwargs):
    expected, seen, _ = nested(change, coexecuted=False, **kwargs)
    actual, seen_too, stats = nested(change, **kwargs)
    for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"item {k}")
    assert seen == seen_too
    assert stats.coexecuted_steps > 3, stats
    return stats


@pytest.mark.skipif(not hasattr(keras.layers.Layer, "_resolve_and_populate_arg"), reason="an older Keras, whose wrapper runs in full")
def test_the_wrapper_is_not_entered(monkeypatch):
    entered = []
    module = keras.src.layers.layer
    original = module.CallSpec  # the wrapper makes one; a method of the class that was replaced would have to be called

    def spec(*args):
        entered.append(sys._getframe(1).f_locals["self"].name)
        return original(*args)

    monkeypatch.setattr(module, "CallSpec", spec)
    check_nested()
    assert entered.count("low") < 14 + 8, entered  # (eagerly 14 times)


@pytest.mark.parametrize("training", [lambda k: None, lambda k: False, lambda k: k % 3 == 0, lambda k: [True, None][k % 2]])
def test_training_reaches_the_layers_within(training):
    check_nested(training=training, steps=16)


def regularize(layers):
    layers["low"].activity_regularizer = keras.regularizers.L2(0.1)


def specify(layers):
    layers["low"].input_spec = keras.layers.InputSpec(ndim=5)


def mixed(layers):
    layers["low"].dtype_policy = keras.DTypePolicy("mixed_bfloat16")


def patched_instance(layers):
    original = layers["low"].call
    vars(layers["low"])["call"] = lambda x, training=None: original(x, training) + 1.0



def failing(layers):
    def fail(x, training=None):
        raise ValueError("no")
    vars(layers["low"])["call"] = fail


def unbuilt(layers):
    vars(layers["low"])["built"] = False


def cleared(layers):
    keras.backend.clear_session()  # Keras' global state is another object from now on


@pytest.mark.parametrize("change", [regularize, specify, mixed, patched_instance, failing, unbuilt, cleared])
def test_layer_of_the_users_changes(change):
    check_nested(change)


@pytest.mark.parametrize("cls, name", [
    (Noting, "call"), (Noting, "compute_mask"), (keras.layers.Layer, "_assert_input_compatibility"), (keras.layers.Layer, "__call__")])
def test_method_of_a_users_class_replaced(monkeypatch, cls, name):
    original = getattr(cls, name)
    calls = []

    def replacement(self, *args, **kwargs):
        calls.append(self.name)
        return original(self, *args, **kwargs)

    def change(layers):
        monkeypatch.setattr(cls, name, replacement)

    expected, seen, _ = nested(change, coexecuted=False)
    monkeypatch.undo()
    noted, calls[:] = list(calls), []
    actual, seen_too, stats = nested(change)
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(a, b)
    assert seen == seen_too and stats.coexecuted_steps > 3
    if name != "__call__" and cls is not keras.layers.Layer:  # (stock layers are skipped)
        assert calls == noted


def test_a_function_of_tensorflows_that_is_a_step():
    """Its code is one wrapper's that all of them share: in other steps they are called as before."""
    def step(x):
        return tf.debugging.check_numerics(tf.math.log(x), "a logarithm")

    asked_for = terra.coexecute(tf.transpose, wait_for_graph=True)
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(6):
        assert (asked_for(x).numpy() == x.numpy().T).all()
    assert asked_for.stats().coexecuted_steps == 4
    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(10):
        assert (made(x).numpy() == step(x).numpy()).all()
    stats = made.stats()
    assert stats.coexecuted_steps == 8 and stats.fallbacks == 0 and stats.traces == 1
    assert [place.line() for place in locations_of(made)] == [f"test_optimizers.py:{step.__code__.co_firstlineno + 1}"] * 2


def locations_of(made):
    return [node.payload.event.location for node in made.store.graph.nodes if node.payload is not None]


def test_masks_reach_a_users_layer():
    def make():
        class Masked(keras.layers.Layer):
            supports_masking = True

            def call(self, x, scale=1.0):
                return x * scale

        embedding, layer, pool = keras.layers.Embedding(20, 4, mask_zero=True), Masked(), keras.layers.GlobalAveragePooling1D()
        turn = iter([False] * 6 + [True, False] * 4)
        embedding(WORDS[0])

        def forward(x):
            h = embedding(x)
            return pool(layer(h) if next(turn) else layer(tf.identity(h)))

        return train(forward, embedding.trainable_variables)

    both(make, [(WORDS[k % 3],) for k in range(14)], jumps=1)


def test_lists_among_the_arguments_and_losses():
    def make():
        class Consuming(keras.layers.Layer):
            def call(self, tensors, flag=False):
                last = tensors.pop()
                self.add_loss(tf.reduce_sum(last))
                return last * 2.0 if flag else last

        layer = Consuming()

        def step(x):
            tensors = [x, x + 1.0]
            results = [layer(tensors), layer(tensors, flag=True), layer(tensors=tensors)]
            return results, len(tensors), layer.losses

        return step, lambda: layer.losses

    both(make, [(WIDE[k % 3],) for k in range(8)], jumps=0.1)


def test_stateless_scopes():
    """In Keras' stateless scope a variable has another value, though it is the same object, at the same place of the program."""
    def make():
        layer = wide()
        others = [keras.Variable(np.full(v.shape, 0.05, "float32")) for v in layer.trainable_variables]
        turn = iter([0] * 6 + [1, 2, 0, 1, 0, 2, 2])

        def step(x):
            how = next(turn)
            values = [[tf.reduce_sum(x) * 0.0 + v for v in vs] for vs in (layer.trainable_variables, others)]
            scope = keras.StatelessScope(state_mapping=list(zip(layer.trainable_variables, values[how - 1]))) if how else contextlib.nullcontext()
            with scope:
                return layer(x)

        return step, lambda: layer.trainable_variables

    both(make, [(WIDE[0],)] * 13, jumps=0.2)


class Doubling(keras.layers.Layer):
    """Doubles in training, which it is in unless something else is said."""

    def call(self, x, training=True):
        return x * 2.0 if training else x


@pytest.mark.parametrize("fast_forward", [True, "framework"])
@pytest.mark.parametrize("given", [{}, {"training": True}], ids=["default", "training"])
def test_what_a_layer_leaves_in_the_call_context(fast_forward, given):
    """A stock layer's default of `training` holds for the layers that are called after it."""
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.gru, self.doubling, self.dense = keras.layers.GRU(4), Doubling(), keras.layers.Dense(2)

        def call(self, x):
            return self.dense(self.doubling(self.gru(x)))

    x = tf.constant(np.random.RandomState(0).rand(3, 3, 2).astype("float32"))
    outcomes = []
    for run in (False, True):
        keras.utils.set_random_seed(1)
        model = Model()
        model(x)
        optimizer = keras.optimizers.SGD(0.1)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, **given) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        call = terra.coexecute(step, wait_for_graph=True, fast_forward=fast_forward) if run else step
        outcomes.append([float(call(x)) for _ in range(14)] + [v.numpy().tolist() for v in model.trainable_variables])
    assert outcomes[0] == outcomes[1]
    stats = call.stats()
    assert stats.coexecuted_steps >= 11
    if fast_forward is True:
        assert stats.whole_steps >= 6
    else:  # layers, the gradient and the update: not operation by operation
        assert stats.fast_forwards / stats.coexecuted_steps < 40


@pytest.mark.parametrize("how, change", [("apply", None), ("apply_gradients", None), ("apply", "learning rate"), ("apply_gradients", "inner"), ("apply", "check")])
def test_loss_scaling(how, change, monkeypatch):
    """Gradients that overflow, a scale that grows, and what is changed between steps."""
    outcomes = []
    for run in (False, True):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(6, activation="relu") for _ in range(2)] + [keras.layers.Dense(1)])
        x = tf.constant(np.random.RandomState(0).rand(4, 3).astype("float32"))
        model(x)
        inner = keras.optimizers.Adam(0.01)
        optimizer, seen = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=6), []

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x)))
                scaled = optimizer.scale_loss(loss)
            gradients, variables = tape.gradient(scaled, model.trainable_variables), model.trainable_variables
            optimizer.apply(gradients, variables) if how == "apply" else optimizer.apply_gradients(zip(gradients, variables))
            return loss

        call = terra.coexecute(step, wait_for_graph=True) if run else step
        with monkeypatch.context() as patch:
            for k in range(22):
                if k == 15 and change == "learning rate":
                    inner.learning_rate = 0.1
                elif k == 15 and change == "inner":
                    optimizer.inner_optimizer = keras.optimizers.SGD(0.01)
                    optimizer.inner_optimizer.build(model.trainable_variables)
                elif k == 15 and change == "check":
                    patch.setattr(type(optimizer), "check_finite", lambda self, gradients: tf.constant(False))
                call(x * np.inf if k in (9, 18) else x)
                seen.append((float(optimizer.dynamic_scale), int(optimizer.step_counter), int(inner.iterations)))
        outcomes.append((seen, [v.numpy().tolist() for v in model.trainable_variables]))
    assert outcomes[0] == outcomes[1]
    stats = call.stats()
    assert stats.coexecuted_steps >= 14
    if change is None:
        assert stats.fast_forwards / stats.coexecuted_steps < 60  # some 220 operations, 24 of which are divisions by the scale


def mean_absolute(y, p):
    NOTED.append("metric")
    return tf.abs(tf.cast(y, tf.float32) - p[:, 0])


NOTED = []
LABELS = [tf.constant(np.random.default_rng(k).integers(0, 3, 8)) for k in range(3)]
SCORES = [tf.constant(np.random.default_rng(k).normal(size=(8, 3)).astype("float32")) for k in range(3)]


class Doubled(keras.metrics.Mean):
    def update_state(self, value, sample_weight=None):
        NOTED.append("doubled")
        return super().update_state(value * 2.0, sample_weight)


def patched_update(metric, monkeypatch):
    original = metric.update_state
    metric.update_state = lambda *args, **kwargs: NOTED.append("mine") or original(*args, **kwargs)


def patched_result(metric, monkeypatch):
    monkeypatch.setattr(type(metric), "result", lambda self: NOTED.append("result") or self.total * 3.0)


def patched_call(metric, monkeypatch):
    monkeypatch.setattr(keras.metrics.Metric, "__call__", lambda self, *args, **kwargs: NOTED.append("call") or self.update_state(*args, **kwargs))


@pytest.mark.parametrize("change", [None, lambda m, _: m.reset_state(), lambda m, _: m.total.assign(5.0), patched_update, patched_result, patched_call],
                         ids=["none", "reset", "assigned", "update", "result", "call"])
@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_metrics_that_are_called(K, change, monkeypatch):
    """As TensorFlow's quickstart does."""
    runs = []
    for coexecuted in (False, True):
        if K is tf_keras and change in (patched_call, patched_result):
            pytest.skip("tf_keras wraps the methods of each metric")
        mean, accuracy, own = K.metrics.Mean(), K.metrics.SparseCategoricalAccuracy(), keras.metrics.MeanMetricWrapper(mean_absolute)
        doubled, variable = Doubled(), tf.Variable(0.0)
        activation = K.activations.get(None)

        def step(y, p, others):
            loss = tf.reduce_sum(activation(p) ** 2.0)
            first = mean(loss)
            second = accuracy(y, p)
            variable.assign_add(0.0 if first is None else first)
            if others:
                own(y, p), doubled(loss)
            return loss, second

        run, held = terra.coexecute(step, wait_for_graph=True) if coexecuted else step, []
        for others in (False, True):
            NOTED.clear()
            with monkeypatch.context() as patch:
                for k in range(14):
                    if k == 9 and change is not None:
                        change(mean, patch)
                    loss, second = run(LABELS[k % 3], SCORES[k % 3], others)
                    held.append((float(loss), None if second is None else float(second), float(variable), float(mean.total), float(accuracy.result())))
            vars(mean).pop("update_state", None)
            held.append(list(NOTED))
        runs.append(held)
    assert runs[0] == runs[1]
    stats = run.stats()
    assert stats.coexecuted_steps >= 18, stats
    assert stats.whole_steps >= 4 or K is tf_keras, stats


def test_what_a_recorded_call_calls():
    """The operators in an optimizer's own code, say, are not recorded for themselves."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)

    @terra.coexecute(wait_for_graph=True, fast_forward="framework")
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    for _ in range(6):
        step(tf.ones((2, 3)))
    recorded = [next(part for part in place if callable(part)) for place, known in step.program.call_sites.items() if known]
    assert sorted(function.__name__ for function in recorded) == ["__call__", "apply_gradients", "binary_op_wrapper", "gradient", "reduce_sum"]
