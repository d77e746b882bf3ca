"""`terra.GradientTape` gives what `tf.GradientTape` gives, in every way of writing a training loop, and its blocks are co-executed."""

import contextlib
import functools
import gc
import sys
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.frontends.gradient_tape import blocks
from terra.location import current_step
from tests.harness import check_skipped, differ

STEPS = 9
RNG = np.random.default_rng(5)
X = RNG.normal(size=(STEPS, 16, 6)).astype(np.float32)
Y = RNG.integers(0, 3, size=(STEPS, 16))

TerraTape = functools.partial(terra.GradientTape, wait_for_graph=True)
LOOPS = []


def loop(min_coexecuted=3):
    """A training loop: takes the class of tape, gives something to compare."""
    def add(function):
        LOOPS.append(pytest.param(function, min_coexecuted, id=function.__name__))
        return function
    return add


class Dense:
    """A small net by hand."""

    def __init__(self):
        g = np.random.default_rng(3)
        self.w = tf.Variable(g.normal(size=(6, 8)).astype("f"))
        self.v = tf.Variable(g.normal(size=(8, 3)).astype("f"))
        self.all = [self.w, self.v]

    def __call__(self, x):
        return tf.tanh(x @ self.w) @ self.v

    def loss(self, x, y):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=self(x), labels=y))

    def update(self, gradients, rate=0.5):
        for variable, gradient in zip(self.all, gradients):
            variable.assign_sub(rate * gradient)

    def values(self):
        return [v.numpy() for v in self.all]


def batches():
    return zip(tf.unstack(tf.constant(X)), tf.unstack(tf.constant(Y)))


@loop()
def update_behind_the_block(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(float(loss))
    return seen, net.values()


@loop()
def figure_4(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
            gradients = tape.gradient(loss, net.all)
            net.update(gradients)
        seen.append(loss)
    return seen, net.values()


@loop()
def keras_and_numpy_batches(Tape):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
    optimizer, metric = keras.optimizers.Adam(0.01), keras.metrics.SparseCategoricalAccuracy()
    loss_of, seen = keras.losses.SparseCategoricalCrossentropy(from_logits=True), []
    for x, y in zip(X, Y):
        with Tape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        metric.update_state(y, logits)
        seen.append((loss.numpy(), metric.result().numpy()))
    return seen, [v.numpy() for v in model.variables + optimizer.variables]


@loop()
def nothing_is_read_until_the_end(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(loss)
    return seen, net.values()


@loop()
def a_dataset(Tape):
    net, total = Dense(), 0.0
    for epoch in range(2):
        for x, y in tf.data.Dataset.from_tensor_slices((X, Y)):
            with Tape() as tape:
                loss = net.loss(x, y)
            net.update(tape.gradient(loss, net.all))
        total += float(loss)
    return total, net.values()


@loop()
def a_function_that_returns_the_loss(Tape):
    net = Dense()

    def train_step(x, y):
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        return loss

    return [train_step(x, y) for x, y in batches()], net.values()


@loop()
def a_function_that_returns_the_gradients(Tape):
    net, seen = Dense(), []

    def gradients_of(x, y):
        with Tape() as tape:
            loss = net.loss(x, y)
        return loss, tape.gradient(loss, net.all)

    for x, y in batches():
        loss, gradients = gradients_of(x, y)
        net.update(gradients)
        seen.append(loss.numpy())
    return seen, net.values()


@loop()
def a_value_is_read_in_the_block_and_ahead_of_the_gradient(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            logits = net(x)
            scale = 1.0 if float(tf.reduce_mean(logits)) > 0 else 2.0
            loss = scale * tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=y))
        seen.append(float(loss))
        gradients = tape.gradient(loss, net.all)
        norm = tf.linalg.global_norm(gradients).numpy()
        net.update([g / max(norm, 1.0) for g in gradients])
        seen.append(norm)
    return seen, net.values()


@loop()
def persistent(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape(persistent=True) as tape:
            first = net.loss(x, y)
            second = tf.reduce_sum(net.w ** 2)
        a, b = tape.gradient(first, net.all), tape.gradient(second, net.w)
        net.update([a[0] + 0.01 * b, a[1]])
        seen.append(float(second))
        seen.append(tape.gradient(second, net.w))  # the step is over: eagerly
    return seen, net.values()


@loop()
def watched_tensors_only(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            loss = net.loss(x, y)
        seen.append(tape.gradient(loss, [x, net.w]))
        seen.append([v.name for v in tape.watched_variables()])
    return seen


@loop()
def watched_variables(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        seen.append([net.all.index(v) if v is net.all[0] else 1 for v in tape.watched_variables()])
        net.update(tape.gradient(loss, tape.watched_variables()))
    return seen, net.values()


@loop()
def nested_for_second_derivatives(Tape):
    x, seen = tf.Variable([1.0, 2.0]), []
    for _ in range(STEPS):
        with Tape() as outer:
            with Tape() as inner:
                y = tf.reduce_sum(x ** 4)
            first = inner.gradient(y, x)
        second = outer.gradient(first, x)
        x.assign_sub(0.01 * first / second)
        seen.append(y.numpy())
    return seen, x.numpy()


@loop()
def a_gan_with_two_tapes_at_once(Tape):
    net, other, seen = Dense(), Dense(), []
    for x, y in batches():
        with Tape() as g_tape, Tape() as d_tape:
            made = net(x)
            g_loss = tf.reduce_mean(made ** 2) + net.loss(x, y)
            d_loss = other.loss(x, y) + tf.reduce_mean(made)
        g, d = g_tape.gradient(g_loss, net.all), d_tape.gradient(d_loss, other.all)
        net.update(g)
        other.update(d)
        seen.append((float(g_loss), float(d_loss)))
    return seen, net.values(), other.values()


@loop()
def two_blocks_in_turn(Tape):
    net, other, seen = Dense(), Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        with Tape() as tape2:
            loss2 = other.loss(x, y) + tf.reduce_mean(net(x) ** 2)
        other.update(tape2.gradient(loss2, other.all))
        seen.append((loss, loss2))
    return seen, net.values(), other.values()


@loop()
def gradients_after_the_next_block_began(Tape):
    net, other, seen = Dense(), Dense(), []
    for x, y in batches():
        with Tape() as first:
            loss = net.loss(x, y)
        with Tape() as second:
            loss2 = other.loss(x, y)
        net.update(first.gradient(loss, net.all))
        other.update(second.gradient(loss2, other.all))
        seen.append((loss.numpy(), loss2.numpy()))
    return seen, net.values(), other.values()


@loop()
def reset_and_stop_recording(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            ignored = tf.reduce_sum(net.w)
            tape.reset()
            with tape.stop_recording():
                weight = tf.reduce_mean(net.v ** 2)
            loss = net.loss(x, y) * (1.0 + weight)
        seen.append(ignored)
        net.update(tape.gradient(loss, net.all))
        seen.append(float(loss))
    return seen, net.values()


@loop()
def jacobians(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape(persistent=True) as tape:
            tape.watch(x)
            out = net(x)
            mean = tf.reduce_mean(out, 0)
            loss = tf.reduce_mean(mean ** 2)
        seen.append(tape.batch_jacobian(out, x))
        seen.append(tape.jacobian(mean, net.v))
        net.update(tape.gradient(loss, net.all))
        seen.append(loss.numpy())
    return seen, net.values()


@loop()
def a_jacobian_without_pfor(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape(persistent=True) as tape:
            mean = tf.reduce_mean(net(x), 0)
        rows = tape.jacobian(mean, net.v, experimental_use_pfor=False)
        net.v.assign_sub(0.1 * tf.reduce_mean(rows, 0))
        seen.append(mean.numpy())
    return seen, net.values()


@loop()
def a_branch_and_a_loop_in_the_block(Tape):
    net, seen = Dense(), []
    for i, (x, y) in enumerate(batches()):
        with Tape() as tape:
            h = tf.tanh(x @ net.w)
            for _ in range(1 + i % 2):
                h = h + tf.tanh(h)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=h @ net.v, labels=y))
            if i % 2:
                loss = loss + 0.1 * tf.reduce_mean(net.v ** 2)
        net.update(tape.gradient(loss, net.all))
        seen.append(float(loss))
    return seen, net.values()


@loop()
def evaluation_between_epochs(Tape):
    net, seen = Dense(), []
    for epoch in range(4):
        for x, y in batches():
            with Tape() as tape:
                loss = net.loss(x, y)
            net.update(tape.gradient(loss, net.all))
        logits = [net(x) for x, _ in batches()]
        seen.append(np.mean([np.argmax(o, -1) == y for o, y in zip(logits, Y)]))
    return seen, net.values()


@loop(min_coexecuted=1)
def exceptions_in_the_block(Tape):
    net, seen = Dense(), []
    for i, (x, y) in enumerate(batches()):
        try:
            with Tape() as tape:
                net.v.assign_add(tf.ones_like(net.v) * 0.1)
                loss = net.loss(x, y)
                if i % 4 == 3:
                    raise KeyError(i)
                if i == 5:
                    tf.reshape(loss, [2])
            net.update(tape.gradient(loss, net.all))
        except (KeyError, tf.errors.InvalidArgumentError) as error:
            seen.append((type(error).__name__, str(error)[:40]))
            continue
        seen.append(float(loss))
    return seen, net.values()


@loop()
def an_exit_stack(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with contextlib.ExitStack() as stack:
            tape = stack.enter_context(Tape())
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(float(loss))
    return seen, net.values()


@loop()
def a_generator_with_a_block(Tape):
    net = Dense()

    def training():
        for x, y in batches():
            with Tape() as tape:
                loss = net.loss(x, y)
            net.update(tape.gradient(loss, net.all))
            yield loss

    return [float(loss) for loss in training()], net.values()


@loop()
def a_variable_is_read_right_behind_the_update(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(net.w.numpy())
    return seen


@loop()
def another_thread_reads_a_variable(Tape):
    net, seen = Dense(), []
    for x, y in batches():
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        worker = threading.Thread(target=lambda: seen.append(net.w.numpy()))
        worker.start()
        worker.join()
    return seen, float(loss), net.values()


@loop()
def every_step_in_another_thread(Tape):
    net, seen = Dense(), []

    def train_step(x, y):
        with Tape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(loss)

    for x, y in batches():
        worker = threading.Thread(target=train_step, args=(x, y))
        worker.start()
        worker.join()
    return seen, net.values()


@loop()
def a_traced_function_in_the_block(Tape):
    net, seen = Dense(), []
    loss_of = tf.function(lambda x, y: net.loss(x, tf.cast(y, tf.int64)))
    for x, y in batches():
        y = tf.cast(y, tf.float32)
        with Tape() as tape:
            loss = loss_of(x, y)
        net.update(tape.gradient(loss, net.all))
        seen.append(float(loss))
    return seen, net.values()


@loop()
def gradient_accumulation(Tape):
    net, seen, total = Dense(), [], None
    for i, (x, y) in enumerate(batches()):
        with Tape() as tape:
            loss = net.loss(x, y)
        gradients = tape.gradient(loss, net.all)
        total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
        if i % 3 == 2:
            net.update(total)
            total = None
        seen.append(loss)
    return seen, net.values()


def flat(x):
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from flat(item)
    else:
        yield x


def same(expected, actual):
    expected, actual = list(flat(expected)), list(flat(actual))
    assert len(expected) == len(actual)
    for k, (a, b) in enumerate(zip(expected, actual)):
        assert type(a) is type(b) or isinstance(a, tf.Tensor) and isinstance(b, tf.Tensor), (k, a, b)
        if a is None or isinstance(a, str):
            assert a == b, k
        else:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=f"value {k}")


@pytest.mark.parametrize("function, min_coexecuted", LOOPS)
def test_same_as_tensorflow(function, min_coexecuted):
    tf.random.set_seed(1)
    expected = function(tf.GradientTape)
    before = {key: block.stats() for key, block in blocks().items()}
    tf.random.set_seed(1)
    actual = function(TerraTape)
    same(expected, actual)
    terra.sync()
    new = [block for key, block in blocks().items() if key not in before]
    assert new
    for block in new:
        stats = block.stats()
        assert stats.coexecuted_steps >= min_coexecuted, (stats, block.fallback_reasons)
        assert stats.steps == stats.coexecuted_steps + stats.tracing_steps + stats.imperative_steps
    assert current_step.active is None


# -- where the step ends -------------------------------------------------------------------------------------------------------

def train(read, behind=lambda: None, steps=STEPS):
    """Steps of a function that returns its loss; `read(loss)` and `behind()` come after each. Gives its block."""
    net = Dense()

    def train_step(x, y):
        with TerraTape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        train_step.block = tape.block
        return loss

    for x, y in list(batches())[:steps]:
        read(train_step(x, y))
        behind()
    return train_step.block


def test_the_function_s_return_ends_the_step():
    def read(loss):
        assert current_step.active is None

    block = train(read)
    assert block.stats().coexecuted_steps >= STEPS - 3


def test_a_block_whose_tape_lives_on_is_open_until_a_value_is_read():
    net, opened = Dense(), 0
    for x, y in batches():
        with TerraTape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        opened += current_step.active is not None and current_step.active.open_ended
        float(loss)
        assert current_step.active is None
    assert opened >= STEPS - 2
    assert tape.block.stats().coexecuted_steps >= 3


@pytest.mark.parametrize("end", [terra.sync, lambda: terra.imperative().__enter__(), lambda: next(iter(tf.data.Dataset.range(3)))])
def test_what_ends_an_open_step(end):
    net = Dense()
    for x, y in batches():
        with TerraTape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        end()
        assert current_step.active is None
    assert tape.block.stats().coexecuted_steps >= 3
    assert np.isfinite(float(loss))


def test_a_co_executed_function_ends_an_open_step():
    net, other = Dense(), Dense()

    @terra.coexecute(wait_for_graph=True)
    def measure(x):
        return tf.reduce_sum(other(x)), tf.reduce_sum(net.w)

    expected = tf.reduce_sum(net.w).numpy()
    for x, y in batches():
        with TerraTape() as tape:
            loss = net.loss(x, y)
        net.w.assign_add(tf.ones_like(net.w))
        tape.gradient(loss, net.all)
        expected += 48.0
        assert measure(x)[1].numpy() == pytest.approx(expected, rel=1e-4)
    assert tape.block.stats().coexecuted_steps >= 3
    assert measure.stats().coexecuted_steps >= 3


def test_a_long_way_behind_the_block_ends_the_step(monkeypatch):
    monkeypatch.setattr("terra.frontends.block_step.LONGEST", 30)
    x = tf.Variable(2.0)
    for _ in range(6):
        with TerraTape() as tape:
            y = x * x
        g = tape.gradient(y, x)
        for _ in range(40):
            g = g * 0.9
        assert current_step.active is None
        assert g.numpy() == pytest.approx(4.0 * 0.9 ** 40, rel=1e-5)
    assert tape.block.stats().coexecuted_steps >= 3


def test_tapes_are_freed():
    gone = []

    class Marked(terra.GradientTape):
        pass

    net = Dense()

    def train_step(x, y):
        with Marked(wait_for_graph=True) as tape:
            loss = net.loss(x, y)
        gone.append(weakref.ref(tape))
        net.update(tape.gradient(loss, net.all))
        return loss

    for x, y in batches():
        train_step(x, y)
    terra.sync()
    gc.collect()
    assert [r() for r in gone] == [None] * STEPS


# -- only a tape ---------------------------------------------------------------------------------------------------------------

def test_inside_a_co_executed_function_it_is_just_a_tape():
    net, tapes = Dense(), []

    @terra.coexecute(wait_for_graph=True)
    def train_step(x, y):
        with terra.GradientTape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.all))
        tapes.append(tape.block)
        return loss

    for x, y in batches():
        train_step(x, y)
    assert tapes == [None] * STEPS
    assert train_step.stats().coexecuted_steps >= 3


def test_inside_a_traced_function_it_is_just_a_tape():
    net, tapes = Dense(), []

    @tf.function
    def gradients_of(x, y):
        with terra.GradientTape() as tape:
            loss = net.loss(x, y)
        tapes.append(tape.block)
        return tape.gradient(loss, net.all)

    x, y = next(batches())
    with tf.GradientTape() as tape:
        loss = net.loss(x, y)
    for a, b in zip(gradients_of(x, y), tape.gradient(loss, net.all)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert tapes == [None]


def test_one_state_for_each_with_statement():
    net, other = Dense(), Dense()
    for x, y in batches():
        with TerraTape() as one:
            a = net.loss(x, y)
        with TerraTape() as two:
            b = other.loss(x, y)
        net.update(one.gradient(a, net.all))
        other.update(two.gradient(b, other.all))
    assert one.block is not two.block
    assert one.block.trace_graph is not two.block.trace_graph
    assert one.block.stats().coexecuted_steps >= 3 and two.block.stats().coexecuted_steps >= 3


# -- errors --------------------------------------------------------------------------------------------------------------------

def test_the_framework_s_own_tapes_are_just_tapes():
    """As those that layers of tf_keras open, which are made of operations in a functional model."""
    space = {"__name__": "tf_keras.src.layers.core.tf_op_layer", "terra": terra, "tf": tf}
    exec("def differentiate(x):\n    with terra.GradientTape() as tape:\n        tape.watch(x)\n        y = x * x\n    return tape, tape.gradient(y, x)", space)
    for _ in range(4):
        tape, gradient = space["differentiate"](tf.constant(3.0))
        assert float(gradient) == 6.0 and tape.block is None


def test_a_tape_that_is_entered_again_elsewhere_goes_on():
    w, found = tf.Variable(2.0), []
    for k in range(12):
        with TerraTape() as tape:
            loss = w * w
        with tape:
            loss = loss * 3.0
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.01 * gradient)
        found.append(float(gradient))
    v, expected = tf.Variable(2.0), []
    for k in range(12):
        expected.append(6.0 * float(v))
        v.assign_sub(0.01 * 6.0 * v)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert tape.block.stats().steps == 12 and tape.block.stats().coexecuted_steps >= 6
    first = tape._at[1]
    assert not any(place[0] == __file__ and first < place[1] < first + 6 for place in blocks())


def test_a_wrong_option_is_refused():
    with pytest.raises(terra.OptionError, match="run_ahead"):
        terra.GradientTape(run_ahed=1)


def test_a_used_tape_is_refused_as_tensorflow_does():
    net = Dense()
    for x, y in batches():
        with TerraTape() as tape:
            loss = net.loss(x, y)
        tape.gradient(loss, net.all)
        with pytest.raises(RuntimeError, match="non-persistent"):
            tape.gradient(loss, net.all)
    assert tape.block.stats().coexecuted_steps >= 3


def test_a_kernel_error_names_the_user_s_line():
    w, failed = tf.Variable(tf.ones(10)), None
    for i in range(9):
        index = tf.constant([i, 10 if i == 8 else 1])
        with TerraTape() as tape:
            y = tf.reduce_sum(tf.gather(w * 2.0, index))  # this line
        w.assign_sub(0.001 * tape.gradient(y, w))
        try:
            float(y)
        except tf.errors.InvalidArgumentError as error:
            failed = i
            text = "".join(getattr(error, "__notes__", []))
    assert failed == 8
    assert tape.block.stats().coexecuted_steps >= 3
    here = open(__file__).read().split("\n")
    line = next(k for k, text_ in enumerate(here, 1) if text_.endswith("# this line"))
    assert f"test_gradient_tape.py:{line}" in text or sys.version_info < (3, 11)  # which has no notes
    assert np.isfinite(w.numpy()).all()


def test_instrumented_code_behind_a_block_is_given_arrays():
    """A closure that a co-executed step has left runs while a block's step is still open."""
    def run(wrap, tape_class):
        keras.utils.set_random_seed(1)
        layer, left, results = keras.layers.Dense(3), [], []
        layer.build((None, 4))

        def step(x):
            left[:] = [lambda y: layer(y), lambda y: tf.gather(x, y)]
            return left[0](x) * 2.0

        step = wrap(step)
        for _ in range(5):
            step(tf.ones([2, 4]))
        v = tf.Variable(tf.ones([4, 3]))
        for k in range(8):
            with tape_class() as tape:
                loss = tf.reduce_sum(tf.ones([2, 4]) @ v)
            seen = left[0](np.full((2, 4), k, np.float32)), left[1](np.array([k % 2, 1]))
            v.assign_sub(0.1 * tape.gradient(loss, v))
            results.append([np.asarray(t) for t in (*seen, v)])
        return results

    expected = run(lambda step: step, tf.GradientTape)
    actual = run(lambda step: terra.coexecute(step, wait_for_graph=True), TerraTape)
    for a, b in zip(expected, actual, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("change", [lambda x, w: tf.reshape(x, (-1, 3)) @ w, lambda x, w: tf.tensordot(x, w, 1), lambda x, w: tf.nn.relu(tf.sin(x) @ w)])
def test_imperative_part_of_a_taped_computation(change):
    """What the tape keeps of it is other values at each step, though the gradient's own operations look the same."""
    w = tf.Variable(tf.reshape(tf.range(12.0), (3, 4)) / 10.0)

    def step(x):
        with tf.GradientTape() as tape:
            with terra.imperative():
                y = change(x, w)
            loss = tf.reduce_sum(y ** 2.0)
        return tape.gradient(loss, w)
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for i in range(12):
        x = tf.random.stateless_normal((4, 5, 3), (i, 1))
        np.testing.assert_allclose(step(x).numpy(), wrapped(x).numpy(), rtol=1e-5)
    assert wrapped.stats().coexecuted_steps > 6, wrapped.stats()


@pytest.mark.share(6)
@pytest.mark.parametrize("options", [{}, {"fast_forward": False}, {"verify": True}], ids=["", "nothing_skipped", "verified"])
@pytest.mark.parametrize("persistent", [False, True])
def test_gradients_of_gradients_add_up_in_eagers_order(persistent, options):
    """Tapes take the operations into account that look at the shape of what they watch: another order would change the last bits."""
    def make():
        random = np.random.default_rng(0)
        shapes = ((2, 20), (20,), (20, 20), (20,), (20, 1))
        w, b, w2, b2, w3 = variables = [tf.Variable(random.normal(size=shape).astype("float32") / 4) for shape in shapes]

        def step(x, t):
            with tf.GradientTape() as tape:
                with tf.GradientTape() as second:
                    second.watch(x)
                    with tf.GradientTape(persistent=persistent) as first:
                        first.watch(x)
                        h = tf.tanh(tf.concat([x, t], 1) @ w + b)
                        h = tf.reshape(h, tf.shape(h)) + tf.tanh(h @ w2 + b2)
                        u = h @ w3
                    ux = first.gradient(u, x)
                uxx = second.gradient(ux, x)
                loss = tf.reduce_mean((uxx + u) ** 2)
            gradients = tape.gradient(loss, variables)
            for v, g in zip(variables, gradients):
                v.assign_sub(0.001 * g)
            return [loss, *gradients]

        return step, lambda: [v.numpy() for v in variables]

    random = np.random.default_rng(1)
    data = [[tf.constant(random.normal(size=(32, 1)).astype("float32")) for _ in "xt"] for _ in range(4)]
    stats = differ(make, lambda i: data[i % 4], 20, key=("gradients of gradients", persistent), **options)
    assert stats.coexecuted_steps > 15


def test_blocks_that_are_slower_than_eager_are_left_alone(monkeypatch, caplog):
    """What a block and what follows it took is the time to the next one."""
    from terra.runtime.execution import python_runner

    complete = python_runner.PythonRunner.complete
    monkeypatch.setattr(python_runner.PythonRunner, "complete", lambda self: (time.sleep(0.005), complete(self))[1])
    v = tf.Variable(1.0)

    def train(steps, until=lambda block: False):
        for _ in range(steps):
            with terra.GradientTape() as tape:
                loss = v * v
            v.assign_sub(0.001 * tape.gradient(loss, v))
            if until(tape.block):
                break
        return tape.block

    with caplog.at_level("WARNING", "terra"):
        block = train(2000, lambda block: block.policy.pause_left)
    assert "runs imperatively for now: co-execution took" in caplog.text
    coexecuted = block.stats().coexecuted_steps
    assert coexecuted > 15 and block.policy.pause_left > 40
    assert train(40).stats().coexecuted_steps == coexecuted


def test_blocks_that_are_faster_are_not(caplog):
    model = keras.Sequential([keras.layers.Input((3,)), *[keras.layers.Dense(4, "tanh") for _ in range(6)]])
    optimizer = keras.optimizers.Adam(0.01)
    x = tf.ones((2, 3))

    def train(steps):
        for _ in range(steps):
            with terra.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            if tape.block.stats().coexecuted_steps > 90:
                break
        return tape.block

    with caplog.at_level("WARNING", "terra"):
        stats = train(2000).stats()
    assert "imperatively" not in caplog.text and stats.coexecuted_steps > 90


def plain_gradient(tape_of, v, x):
    with tape_of() as tape:
        loss = tf.reduce_mean(tf.tanh(x * v) ** 2)
    return loss, tape.gradient(loss, v)


def persistent_and_watched(tape_of, v, x):
    with tape_of(persistent=True) as tape:
        tape.watch(x)
        y = tf.sin(x * v)
        with tape.stop_recording():
            z = tf.exp(y)
        loss = tf.reduce_sum(y * z)
    return loss, tape.gradient(loss, v) + tf.reduce_sum(tape.gradient(loss, x))


def nested(tape_of, v, x):
    with tape_of() as outer:
        with tape_of() as inner:
            loss = tf.reduce_sum(tf.tanh(v * x) ** 3)
        first = inner.gradient(loss, v)
        penalty = tf.reduce_sum(first ** 2)
    return loss, outer.gradient(penalty, v)


def jacobian(tape_of, v, x):
    with tape_of() as tape:
        y = tf.sin(v * x)
    return tf.reduce_sum(y), tf.reduce_sum(tape.jacobian(y, v), 0)


@pytest.mark.share(8)
@pytest.mark.parametrize("differentiate", [plain_gradient, persistent_and_watched, nested, jacobian], ids=lambda function: function.__name__)
@pytest.mark.parametrize("replaced", [False, True], ids=["terra", "tf"])
def test_steps_with_such_a_tape_are_skipped(differentiate, replaced, monkeypatch):
    """As `python -m terra run` has it: `tf.GradientTape` is Terra's, and a function with a tape is a step."""
    results = []
    for ours in (False, True):
        v = tf.Variable([0.5, -0.3, 0.2])
        tape_of = terra.GradientTape if ours and not replaced else None

        def step(x, rate):
            loss, gradient = differentiate(tape_of or tf.GradientTape, v, x)
            v.assign_sub(gradient * rate)
            return loss

        if ours:
            step = terra.coexecute(step, wait_for_graph=True)
        with monkeypatch.context() as patch:
            if ours and replaced:
                patch.setattr(tf, "GradientTape", terra.GradientTape)
            results.append([(float(step(tf.constant([1.0 + k, 2.0, -1.0]), 0.1 if k < 14 else 0.2)), v.numpy().tolist()) for k in range(24)])
    assert results[1] == results[0]
    check_skipped(step, 24, whole=12, express=4)


def test_a_layer_with_arrays_of_its_own_behind_a_block():
    """Behind its block the step is still open: what is called there makes tensors of arrays that nothing was told of."""
    def run(tape_class):
        keras.utils.set_random_seed(1)
        low, high, made = np.full(6, -1.0), np.full(6, 1.0), []
        model = keras.Sequential([keras.layers.Lambda(lambda x: 2.0 * (x - low) / (high - low) - 1.0), keras.layers.Dense(8), keras.layers.Dense(3)])
        model.build((None, 6))
        for k in range(24):
            with tape_class() as tape:
                loss = tf.reduce_mean(model(X[0]) ** 2)
            for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
                v.assign_sub(0.1 * g)
            made += [tf.reduce_sum(model(X[1][:5])), loss]
        return [float(x) for x in made], [v.numpy().tolist() for v in model.weights]

    before = set(blocks())
    assert run(TerraTape) == run(tf.GradientTape)
    (block,) = [block for key, block in blocks().items() if key not in before]
    assert block.stats().coexecuted_steps >= 12
