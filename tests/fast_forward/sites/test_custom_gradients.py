"""Custom gradients: those of the framework's own are recorded lazily, so that calls and gradients are skipped; the user's run at each step."""

import sys
import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests.harness import differ

RNG = np.random.default_rng(5)
X = [tf.constant(RNG.normal(size=(6, 4)).astype("float32")) for _ in range(3)]
Y = [tf.constant(RNG.normal(size=(6, 2)).astype("float32")) for _ in range(3)]
N = 14


def values(result):
    return [None if t is None else np.asarray(t) for t in tf.nest.flatten(result)]


def check(make, skipped=8, whole=0, coexecuted=8, extra=lambda i: (), **options):
    """`make()` gives (step, what to compare at the end); step(x, y, *extra(i)) is run N times, eagerly and co-executed."""
    seen = []
    for coexecute in (False, True):
        keras.utils.set_random_seed(3)
        step, finally_ = make()
        if coexecute:
            step = terra.coexecute(step, wait_for_graph=True, **options)
        found = [values(step(X[i % 3], Y[i % 3], *extra(i))) for i in range(N)]
        seen.append([*found, values(finally_())])
    for i, (expected, actual) in enumerate(zip(*seen, strict=True)):
        assert len(expected) == len(actual)
        for a, b in zip(expected, actual):
            assert (a is None) == (b is None), i
            if a is not None:
                np.testing.assert_array_equal(a, b, str(i))
    stats = step.stats()
    assert stats.coexecuted_steps >= coexecuted, stats
    assert stats.fast_forwards >= skipped, stats
    assert stats.whole_steps >= whole, stats
    return stats


def training(forward, variables, impure=None):
    """A step of gradient descent."""
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((forward(x) - y) ** 2)
        if impure is not None:
            impure.extend([1]), sys._getframe()
        gradients = tape.gradient(loss, variables)
        for v, g in zip(variables, gradients):
            v.assign_sub(0.1 * g)
        return loss, gradients
    return step, lambda: list(map(tf.convert_to_tensor, variables))


@pytest.mark.parametrize("fast_forward", [True, "framework"])
@pytest.mark.parametrize("name", ["silu", "swish"])
def test_activation_of_a_keras_model(name, fast_forward):
    def make():
        model = keras.Sequential([keras.layers.Dense(5, activation=name), keras.layers.Activation(name), keras.layers.Dense(2)])
        model.build((None, 4))
        return training(model, model.trainable_variables)

    stats = check(make, whole=3 if fast_forward is True else 0, fast_forward=fast_forward)
    assert stats.fallbacks == 0, stats


class Gated(keras.layers.Layer):
    def build(self, shape):
        self.dense = keras.layers.Dense(2, activation="silu")
        self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x):
        return self.dense(tf.nn.silu(x * self.scale))


def test_in_a_users_layer():
    def make():
        layer = Gated()
        layer.build((None, 4))
        layer(X[0])
        return training(layer, layer.trainable_variables)

    assert check(make, whole=3).fallbacks == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_in_user_code(beta, dtype):
    def make():
        w = tf.Variable(RNG_W)

        def forward(x):
            return tf.cast(tf.nn.silu(tf.cast(x @ w, dtype), beta), tf.float32)

        return training(forward, [w], impure=[])  # not skipped as a whole: each call by itself

    assert check(make, skipped=20).fallbacks == 0


RNG_W = RNG.normal(size=(4, 2)).astype("float32")


def test_beta_is_an_argument_a_constant_and_a_variable():
    def make():
        w, b = tf.Variable(RNG_W), tf.Variable(0.7)

        def step(x, y, beta, fixed):
            with tf.GradientTape() as tape:
                tape.watch(fixed)
                out = tf.nn.silu(tf.nn.silu(tf.nn.silu(x @ w, beta), b), fixed)
                loss = tf.reduce_mean((out - y) ** 2)
            gradients = tape.gradient(loss, [w, b, fixed])
            w.assign_sub(gradients[0])
            b.assign_sub(gradients[1])
            return loss, gradients

        return step, lambda: (w, b)

    fixed = [tf.constant(0.3), tf.constant(0.9)]
    check(make, skipped=1, coexecuted=4, extra=lambda i: (0.5 + 0.1 * (i > 6), fixed[i % 2]))


def test_tapes_in_each_other_and_persistent():
    seen = []

    def make():
        dense = keras.layers.Dense(2, activation="silu")
        dense.build((None, 4))

        def step(x, y):
            with tf.GradientTape(persistent=True) as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    out = tf.reduce_sum(tf.nn.silu(dense(x)) * y)
                first = inner.gradient(out, x)
                penalty = tf.reduce_sum(first ** 2)
                seen.extend([1]), sys._getframe()
            grads = outer.gradient(penalty, dense.trainable_variables), outer.gradient(penalty, x), outer.gradient(out, x)
            dense.kernel.assign_sub(0.01 * grads[0][0])
            return penalty, grads

        return step, lambda: dense.get_weights()

    assert check(make).fallbacks == 0
    assert len(seen) == 2 * N


def test_a_tape_that_begins_between_a_call_and_its_gradient():
    def make():
        dense = keras.layers.Dense(3, activation="silu")
        dense.build((None, 4))
        seen = []

        def step(x, y):
            with tf.GradientTape() as first:
                first.watch(x)
                out = dense(x)
            with tf.GradientTape() as second:
                second.watch(out)
                g = first.gradient(out, x)
                seen.extend([1]), sys._getframe()
                z = tf.reduce_sum(g * g)
            return g, second.gradient(z, [out, x] if len(seen) % 2 else [out])

        return step, list

    check(make)


def test_values_are_read_in_mid_step():
    def make():
        dense = keras.layers.Dense(2, activation="silu")
        dense.build((None, 4))
        seen = []

        def step(x, y):
            with tf.GradientTape() as tape:
                out = dense(x)
                if float(tf.reduce_sum(out)) > 0.0:
                    out = out * 1.5
                loss = tf.reduce_mean((tf.nn.silu(out) - y) ** 2)
            gradients = tape.gradient(loss, dense.trainable_variables)
            seen.append(gradients[0].numpy())
            dense.kernel.assign_sub(0.1 * gradients[0])
            return loss, gradients

        return step, lambda: seen + dense.get_weights()

    check(make)


@pytest.mark.parametrize("fast_forward", [True, "framework"])
def test_fallback_behind_the_forward_pass(fast_forward):
    def make():
        model = keras.Sequential([keras.layers.Dense(5, activation="silu"), keras.layers.Dense(2)])
        model.build((None, 4))

        def step(x, y, new):
            with tf.GradientTape() as tape:
                out = tf.nn.silu(model(x))
                if new == 1:
                    out = tf.sin(out)
                loss = tf.reduce_mean((out - y) ** 2)
            shown = tf.cos(loss) if new == 2 else loss
            gradients = tape.gradient(loss, model.trainable_variables)
            if new == 3:
                gradients = [tf.abs(g) for g in gradients]
            for v, g in zip(model.trainable_variables, gradients):
                v.assign_sub(0.1 * g)
            return shown, gradients

        return step, lambda: model.get_weights()

    stats = check(make, coexecuted=4, extra=lambda i: ({7: 1, 9: 2, 11: 3}.get(i, 0),), fast_forward=fast_forward)
    assert stats.fallbacks >= 2, stats


def test_recording_is_stopped():
    def make():
        w = tf.Variable(RNG_W)
        seen = []

        def step(x, y):
            with tf.GradientTape() as tape:
                out = tf.nn.silu(x @ w)
                with tape.stop_recording():
                    weights = tf.nn.silu(out)
                seen.extend([1]), sys._getframe()
                loss = tf.reduce_mean((weights * out - y) ** 2)
            gradient = tape.gradient(loss, w)
            w.assign_sub(gradient)
            return loss, gradient

        return step, lambda: w

    check(make)


def test_the_users_backward_function_runs_at_each_step():
    seen = []

    def make():
        w = tf.Variable(RNG_W)

        @tf.custom_gradient
        def doubled(x):
            def backward(upstream):
                seen.extend([1]), sys._getframe()
                return upstream * 2.0
            return tf.nn.silu(x), backward

        return training(lambda x: tf.nn.silu(doubled(x @ w)), [w])

    check(make, skipped=1)
    assert len(seen) == 2 * N


def test_the_users_function_within_one_of_tensorflows():
    seen = []

    def make():
        w, v = tf.Variable(RNG_W), tf.Variable(1.5)

        def rounded(x):
            seen.extend([1]), sys._getframe()
            return tf.round(4.0 * x * v) / 4.0

        passed = tf.grad_pass_through(rounded)
        again = tf.recompute_grad(lambda x: tf.nn.silu(x) * 2.0)
        return training(lambda x: tf.nn.silu(again(passed(x @ w))), [w])

    check(make, skipped=1)
    assert len(seen) == 2 * N


# A function of TensorFlow's whose backward function holds a number that the forward pass does not use, and one that changes with each call.
SOURCE = """
import tensorflow as tf

def scaled(x, factor):
    @tf.custom_gradient
    def inner(x):
        return tf.identity(x), lambda upstream: upstream * factor
    return inner(x)

def counting():
    calls = 0
    @tf.custom_gradient
    def counted(x):
        def backward(upstream):
            nonlocal calls
            calls += 1
            return upstream * float(calls % 2)
        return tf.identity(x), backward
    return counted
"""


def test_what_only_the_backward_function_uses():
    def make():
        space = {"__name__": "tensorflow.made_up"}
        exec(SOURCE, space)
        w = tf.Variable(RNG_W)
        seen = []

        def step(x, y, factor):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((space["scaled"](x @ w, factor) - y) ** 2)
            seen.extend([1]), sys._getframe()
            return loss, tape.gradient(loss, w)

        return step, list

    check(make, coexecuted=4, extra=lambda i: (2.0 + i % 2,))


def test_a_backward_function_that_changes_its_variables():
    def make():
        space = {"__name__": "tensorflow.made_up"}
        exec(SOURCE, space)
        w, counted = tf.Variable(RNG_W), space["counting"]()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((counted(x @ w) - y) ** 2)
            return tape.gradient(loss, w)

        return step, list

    check(make, skipped=1, coexecuted=4)


def test_ctc_loss():
    labels = tf.constant([[1, 2], [2, 1]])

    def make():
        w = tf.Variable(RNG_W)

        def step(x, y):
            with tf.GradientTape() as tape:
                logits = tf.reshape(x @ tf.concat([w, w], 1), [3, 2, 4])
                loss = tf.reduce_mean(tf.nn.ctc_loss(labels, logits, tf.constant([2, 2]), tf.constant([3, 3]), blank_index=0))
            gradient = tape.gradient(loss, w)
            w.assign_sub(0.1 * gradient)
            return loss, gradient

        return step, lambda: w

    check(make, skipped=1)


def test_in_a_loop_that_is_rolled():
    def make():
        w = tf.Variable(RNG.normal(size=(4, 4)).astype("float32") * 0 + 0.1)

        def step(x, y, n):
            with tf.GradientTape() as tape:
                h = x
                for _ in range(n):
                    h = tf.nn.silu(h @ w)
                loss = tf.reduce_mean(h ** 2)
            gradient = tape.gradient(loss, w)
            w.assign_sub(0.1 * gradient)
            return loss, gradient

        return step, lambda: w

    check(make, skipped=0, coexecuted=1, extra=lambda i: (2 + i % 5,))


def test_constants_that_the_program_watches():
    def make():
        constants = [tf.constant([1.0, 2.0]) for _ in range(4)]
        seen = []

        def step(x, y, k, watch):
            c = constants[k]
            with tf.GradientTape() as tape:
                if watch:
                    tape.watch(c)
                out = tf.nn.silu(c) * tf.square(c)
            seen.extend([1]), sys._getframe()
            return out, tape.gradient(out, c)

        return step, list

    check(make, skipped=1, coexecuted=4, extra=lambda i: (i % 4, i % 3 > 0))


def test_variables_of_a_function_with_a_custom_gradient():
    """What the function computes with a variable is skipped; its gradient function is told of the variable all the same."""
    def make():
        w, s = tf.Variable([[0.5], [-0.3], [0.2]]), tf.Variable(1.5)

        @tf.custom_gradient
        def scaled(x):
            def grad(dy, variables=None):
                return dy * s * 0.5, [tf.reduce_sum(dy * x) * 0.1 for _ in variables]

            return x * s, grad

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(scaled(tf.tanh(x @ w)) ** 2)
            gradients = tape.gradient(loss, [w, s])
            w.assign_sub(0.1 * gradients[0])
            s.assign_sub(0.1 * gradients[1])
            return [loss, *gradients]

        return step, lambda: [w.numpy(), s.numpy()]

    stats = differ(make, lambda i: (tf.constant([[1.0, i % 3, 0.5], [0.1, -1.0, i % 2]]),), 30)
    assert stats.coexecuted_steps > 25 and stats.fallbacks == 0 and stats.whole_steps > 10


class Recomputed:
    """A block that is computed again for its gradient, of layers and of operations by hand; `kind`: what else its function does."""

    def __init__(self, kind):
        self.kind, self.scale, self.calls, self.seen = kind, 1.0, 0, []
        self.dense, self.norm = keras.layers.Dense(8, "tanh"), keras.layers.LayerNormalization()
        self.dense.build((None, 8))
        self.norm.build((None, 8))
        self.first, self.last = [tf.Variable(np.random.default_rng(i).normal(size=shape).astype("float32")) for i, shape in enumerate([(3, 8), (8, 1)])]
        self.variables = [self.first, self.last, *[v.value for v in self.dense.trainable_variables + self.norm.trainable_variables]]
        self.block = tf.recompute_grad(self.compute)

    def compute(self, h):
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "keeps":
            self.seen.append(len(self.seen))
        if self.kind == "branches" and self.scale > 1.5:
            return tf.nn.relu(self.dense(h))
        return self.norm(self.dense(h) * self.scale) + tf.tanh(h @ self.last) * 0.5

    def step(self, x):
        block = tf.recompute_grad(self.compute) if self.kind == "made in the step" else self.block
        with tf.GradientTape() as tape:
            h = block(tf.tanh(x @ self.first))
            if self.kind == "twice":
                h = block(h)
            loss = tf.reduce_mean(h ** 2)
        if self.kind == "changes before":
            self.scale = self.scale * 0.5 + 0.6
        gradients = tape.gradient(loss, self.variables, unconnected_gradients="zero")
        for v, g in zip(self.variables, gradients):
            v.assign_sub(0.1 * g)
        return [loss, *gradients]


@pytest.mark.share(8)
@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=str)
@pytest.mark.parametrize("kind", ["", "made in the step", "twice", "branches", "counts", "keeps", "changes before"])
def test_a_block_that_is_computed_again_for_its_gradient(kind, options):
    made = []

    def make():
        made.append(Recomputed(kind))
        return made[-1].step, lambda: [*[v.numpy() for v in made[-1].variables], made[-1].scale, made[-1].calls, *made[-1].seen]

    def change(i, step):
        if i in (14, 15, 22) and kind in ("", "branches"):
            made[-1].scale += 0.25  # what is read when it is computed, and when it is computed again

    stats = differ(make, lambda i: (tf.constant([[1.0, i % 3, 0.5], [0.1, -1.0, i % 2]]),), 30, change=change, key=("computed again", kind), **options)
    assert stats.coexecuted_steps > 20, stats
    if kind in ("", "made in the step", "twice", "branches") and not options:
        assert stats.whole_steps > 10, stats


@pytest.mark.share(2)
@pytest.mark.parametrize("loops", ["auto", "roll"])
def test_gradients_through_operations_that_run_imperatively(loops):
    """`Print` is I/O, so that it runs imperatively; the tape knows what was computed before it all the same."""
    def print_nothing(x):
        return tf.raw_ops.Print(input=x, data=[], first_n=0)

    def make():
        w = tf.Variable([[0.5, 0.1], [-0.3, 0.2], [0.2, 0.3]])

        def step(x, n):
            with tf.GradientTape() as tape:
                h = x
                for _ in range(n):
                    h = print_nothing(tf.tanh(h @ w)) @ tf.transpose(w)
                loss = tf.reduce_mean(print_nothing(h @ w) ** 2)
            gradient = tape.gradient(loss, w)
            w.assign_sub(0.1 * gradient)
            return loss, gradient

        return step, w.numpy

    equal = np.testing.assert_array_equal if loops == "auto" else lambda a, b, err_msg: np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=err_msg)
    stats = differ(make, lambda i: (tf.constant([[1.0, i % 3, 0.5]]), 1 if loops == "auto" else i % 4), 60, equal=equal, loops=loops)
    assert stats.coexecuted_steps > 30 and stats.fetches > 30


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_numbers_are_checked_in_the_graph(used, caught):
    """Also where nobody uses what the check gives; a step that fails has updated nothing."""
    def make():
        w, log = tf.Variable([[0.5, 0.1], [-0.3, 0.2], [0.2, 0.3]]), []

        def update(x):
            with tf.GradientTape() as tape:
                h = x @ w
                checked = tf.debugging.check_numerics(h, "not finite")
                loss = tf.reduce_mean((checked if used else h) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        def step(x):
            if not caught:
                return update(x)
            try:
                return update(x)
            except tf.errors.InvalidArgumentError as error:
                log.append(str(error).split(" : ")[0])
                return tf.constant(-1.0)

        return step, lambda: [w.numpy(), np.array(log)]

    def run(wrap):
        step, state = make()
        step, seen = wrap(step), []
        for i in range(40):
            try:
                seen.append(step(tf.constant([[1.0, i % 3, np.nan if i in (20, 31) else 0.5]])).numpy().tolist())
            except tf.errors.InvalidArgumentError as error:
                seen.append("not finite" in str(error))
        return seen, [x.tolist() for x in state()], step

    *expected, _ = run(lambda step: step)
    *actual, step = run(lambda step: terra.coexecute(step, wait_for_graph=True, run_ahead=0))
    assert actual == expected and (len(expected[1][1]) == 2) is caught
    stats = step.stats()
    assert stats.coexecuted_steps > 30 and stats.feeds == 0 and (caught or stats.fetches == 0)
