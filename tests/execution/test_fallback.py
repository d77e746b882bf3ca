"""A step that leaves the known paths loses nothing: it diverges, or raises, at every operation in turn, and is compared with eager.

The disturbance comes from a `Watch`, which the step itself puts round TensorFlow's entry points, so that it sees the same operations in the same order
in plain eager execution and in every phase of a co-executed step. Nothing of it knows Terra.
"""
import gc
import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager.core import _FallbackException

import terra
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.fallback import policy
from terra.runtime.fast_forward.cache import call_watch
from terra.transform import convert
from tests.harness import reset_seeds, snapshot

tf_keras = pytest.importorskip("tf_keras")

THOROUGH = os.environ.get("TERRA_THOROUGH") == "1"
WARM_UP = 6
NAMES = ("TFE_Py_FastPathExecute", "TFE_Py_Execute")


class Boom(Exception):
    """Raised in the middle of a step, where nobody expects it."""


class Watch:
    """Counts the operations of a step and does something odd just before, or after, one of them.

    Reads of variables are not counted: TensorFlow does some of them in C++, out of sight, and others in Python. An operation that is sent down the
    converting path (`_FallbackException`) comes by twice, and counts once.
    """

    def __init__(self):
        self.at = None  # index of the operation to disturb
        self.how = None
        self.kept = []  # tensors that a disturbance keeps alive
        self.read = []
        self.harmless = tf.constant(3.0)
        self.names = []

    def __enter__(self):
        self.count = 0
        self.busy = False
        self.pending = []
        self.thread = threading.get_ident()
        self.originals = [getattr(pywrap_tfe, name) for name in NAMES]
        fast, slow = self.originals

        def watched_fast(ctx, op, *rest):
            if self.elsewhere():
                return fast(ctx, op, *rest)
            hit = self.count_and_disturb(op)
            try:
                result = fast(ctx, op, *rest)
            except _FallbackException:
                self.pending.append((op, hit))
                raise
            return self.after(result) if hit else result

        def watched_slow(handle, device, op, *rest):
            if self.elsewhere():
                return slow(handle, device, op, *rest)
            name = op.decode() if isinstance(op, bytes) else op
            hit = self.pending.pop()[1] if self.pending and self.pending[-1][0] == name else self.count_and_disturb(name)
            result = slow(handle, device, op, *rest)
            return self.after(result) if hit else result

        for name, hook in zip(NAMES, (watched_fast, watched_slow)):
            setattr(pywrap_tfe, name, hook)

    def __exit__(self, *_):
        for name, original in zip(NAMES, self.originals):
            setattr(pywrap_tfe, name, original)

    def elsewhere(self):
        return self.busy or threading.get_ident() != self.thread

    def count_and_disturb(self, op):
        """True if this is the operation to disturb; what comes before it is done."""
        if op == "ReadVariableOp" or op == "DestroyResourceOp":  # (the garbage collector frees variables of earlier tests at any time)
            return False
        self.count += 1
        if self.count - 1 != self.at:
            return False
        self.names.append(op.rstrip("0123456789"))  # (functions are numbered)
        if self.how == "exception":
            raise Boom(self.at)
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "extra_op":
            self.busy = True
            tf.raw_ops.Neg(x=self.harmless)
            self.busy = False
        return True

    def after(self, result):
        if self.how == "exception_after":
            raise Boom(self.at)
        if self.how == "keep":
            self.kept.append(result)
        if self.how == "read_value":
            self.busy = True
            for x in tf.nest.flatten(result):
                if isinstance(x, tf.Tensor) and x.dtype not in (tf.resource, tf.variant):
                    self.read.append(x.numpy())
            self.busy = False
        return result


# --------------------------------------------------------------------------------------------------- programs

def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


def adam_by_hand():
    """Late dispatch: nothing is read in the step."""
    w, b = tf.Variable(floats(4, 3) * 0.5), tf.Variable(tf.zeros([3]))
    slots = [(v, tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in (w, b)]
    t = tf.Variable(0.0)
    log = []

    def step(x):
        log.append("begin")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w + b)))
        gradients = tape.gradient(loss, [w, b])
        t.assign_add(1.0)
        rate = 0.1 * tf.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        for (v, m, s), g in zip(slots, gradients):
            m.assign(0.9 * m + 0.1 * g)
            s.assign(0.999 * s + 0.001 * g * g)
            v.assign_sub(rate * m / (tf.sqrt(s) + 1e-7))
        log.append("end")
        return loss

    return step, lambda: [w, b, t, slots, log]


def read_between_updates():
    """Early start: an update, a read of the loss, a branch, an update."""
    w = tf.Variable(floats(4, 1) * 0.5)
    n, best = tf.Variable(0), tf.Variable(9.0)
    log = []

    def step(x):
        n.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w - 1.0))
        value = float(loss)
        log.append(value)
        best.assign(tf.minimum(best, loss))
        w.assign_sub(0.05 * tape.gradient(loss, w))
        log.append(int(n) if len(log) % 4 == 1 else len(log))
        return {"loss": loss, "value": value, "best": best.read_value()}

    return step, lambda: [w, n, best, log]


def fused_updates():
    """tf_keras' legacy Adam: one ResourceApplyAdam for each variable."""
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, activation="tanh"), tf_keras.layers.Dense(1)])
    model.build((None, 4))
    optimizer = tf_keras.optimizers.legacy.Adam(0.05)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step, lambda: [model.variables, optimizer.variables()]


def keras_adam():
    """A Keras 3 model with Adam and a metric."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.05)
    mean = keras.metrics.Mean()
    loss_fn = keras.losses.MeanSquaredError()

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.ones([5, 1]), model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        mean.update_state(loss)
        return loss

    return step, lambda: [model.variables, optimizer.variables, mean.variables]


def counters(early):
    """Every way to change a variable, each on a counter of its own: after k steps each counter is k."""
    counts = [tf.Variable(np.zeros(2, "float32")) for _ in range(7)]
    one = tf.ones([2])

    @tf.function
    def inside(amount):
        counts[2].assign_add(amount)
        return counts[2] * 1.0

    def step(x):
        counts[0].assign_add(one)
        counts[1].assign(counts[1] + one)
        y = inside(one)
        counts[3].scatter_nd_add([[0], [1]], [1.0, 1.0])
        tf.raw_ops.ResourceApplyGradientDescent(var=counts[4].handle, alpha=1.0, delta=-one)
        z = counts[3] + counts[0]
        if early:
            z += float(tf.reduce_sum(counts[4]))
        counts[5].assign_sub(-one)
        counts[6].assign(z - z + counts[6] + y - y + one)
        counts[0].assign_add(one)
        counts[0].assign_sub(one)
        return z

    return step, lambda: counts


def tapes(early):
    """Nested and persistent tapes, a custom gradient, a gradient taken late."""
    v, w = tf.Variable(floats(3)), tf.Variable(2.0)

    @tf.custom_gradient
    def clipped(x):
        return x * x, lambda dy: tf.clip_by_value(dy * 2.0 * x, -1.0, 1.0)

    def step(x):
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                y = tf.reduce_sum(clipped(v) * w)
            first = inner.gradient(y, v)
            z = tf.reduce_sum(first * first) * w
            if early:
                z += 0.1 * float(z)
        second = outer.gradient(z, [v, w])
        third = outer.gradient(y, w)
        v.assign_sub(0.01 * (first + second[0]))
        w.assign_sub(0.001 * (second[1] + third))
        return y, third

    return step, lambda: [v, w]


def drawing():
    """Random operations: the stream of seeds must not slip."""
    v = tf.Variable(tf.zeros([6]))

    def step(x):
        noise = tf.random.normal([6])
        v.assign_add(tf.nn.dropout(noise + 1.0, 0.5))
        return v + tf.random.uniform([6])

    return step, lambda: [v]


def branches():
    """Paths that alternate, one of them with a read."""
    v, log = tf.Variable(1.0), []

    def step(x):
        y = v * 2.0
        if len(log) % 3 == 1:
            y = tf.sin(y)
            v.assign_add(float(y) * 0.1)
        elif len(log) % 3 == 2:
            y = y + tf.reduce_sum(x)
            v.assign(tf.cos(y))
        log.append(1)
        return y * v

    return step, lambda: [v, log]


PROGRAMS = {
    "adam_by_hand": adam_by_hand,
    "read_between_updates": read_between_updates,
    "fused_updates": fused_updates,
    "keras_adam": keras_adam,
    "counters_late": lambda: counters(False),
    "counters_early": lambda: counters(True),
    "tapes_late": lambda: tapes(False),
    "tapes_early": lambda: tapes(True),
    "drawing": drawing,
    "branches": branches,
}
QUIET = ("extra_op", "keep", "read_value")  # disturbances that change no result
LOUD = ("exception", "exception_after", "interrupt")


# --------------------------------------------------------------------------------------------------- running

def run(build, how, wrap, n=None, stride=1, most=None):
    """Warm up; then for each operation index (below `most`) one disturbed step and a plain one. Returns what was seen, the number of operations, the step."""
    reset_seeds()
    step, state = build()
    watch = Watch()

    def watched(x):
        with watch:
            return step(x)

    run_step = wrap(watched)
    inputs = [tf.constant(floats(5, 4, seed=k)) for k in range(2)]
    seen = []

    def one_step(i):
        try:
            result = run_step(inputs[i % 2])
        except (Boom, KeyboardInterrupt) as error:
            seen.append(repr(error))
        else:
            seen.append(snapshot(result))
        if i % 3 == 1:  # the steps between run ahead
            seen.append(snapshot(state()))

    for i in range(WARM_UP):
        one_step(i)
    if n is None:
        n = min(watch.count, most or watch.count)
    for k in range(0, n, stride):
        watch.at, watch.how = k, how
        one_step(2 * k)
        watch.at = None
        one_step(2 * k + 1)
    kept = [snapshot([x for x in tf.nest.flatten(r) if x is not None and x.dtype not in (tf.resource, tf.variant)]) for r in watch.kept]
    seen += [snapshot(state()), kept, snapshot(watch.read), watch.names]
    return seen, n, run_step


def terra_wrap(fast_forward=False, **options):
    """Without fast-forward, so that each operation is issued and can be disturbed."""
    return lambda f: terra.coexecute(f, wait_for_graph=True, fast_forward=fast_forward, **options)


def same(expected, actual):
    assert len(expected) == len(actual)
    for k, (a, b) in enumerate(zip(expected, actual)):
        assert repr_of(a) == repr_of(b), f"observation {k} of {len(expected)}"


def repr_of(x):
    """A text that two snapshots share only if they are bitwise equal."""
    if isinstance(x, (list, tuple)):
        return [repr_of(y) for y in x]
    if hasattr(x, "fields"):
        return [x.kind, [(k, repr_of(v)) for k, v in x.fields.items()]]
    if hasattr(x, "value") and hasattr(x, "kind"):
        return [x.kind.split(" ")[0], str(x.value.dtype), x.value.shape, x.value.tolist(), x.value.tobytes().hex()]
    return repr(x)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Every other step diverges here: more than a working function is allowed to."""
    monkeypatch.setattr(policy, "TOO_MANY", policy.WINDOW)


@pytest.mark.share(8)
@pytest.mark.parametrize("how", QUIET + LOUD)
@pytest.mark.parametrize("name", PROGRAMS)
def test_disturbed_at_every_operation(name, how):
    build = PROGRAMS[name]
    strides = {"keras_adam": (7, 17, 17), "tapes_late": (2, 3, 5), "tapes_early": (2, 3, 5)}.get(name, (1, 2, 3))
    stride = 1 if THOROUGH else strides[0 if how == "extra_op" else 1 if how == "exception" else 2]
    expected, n, _ = run(build, how, lambda f: f, None, stride)
    assert n > 5
    # Traces of disturbed steps are not merged: the same working graph is left at each index.
    actual, _, step = run(build, how, terra_wrap(max_traces=3), n, stride)
    terra.sync()
    stats = step.stats()
    same(expected, actual)
    disturbed = len(range(0, n, stride))
    assert stats.steps == WARM_UP + 2 * disturbed == stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps
    assert stats.coexecuted_steps >= disturbed, stats  # the plain steps between
    if how == "extra_op" or how in LOUD:
        assert stats.fallbacks >= disturbed - 2, stats


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["fused_updates", "keras_adam"])
def test_disturbed_under_fast_forward(name, monkeypatch):
    """Framework code is skipped where its outcome is known: then there is no operation to disturb, else there is a fallback."""
    for method in vars(Watch).values():  # not the program's, or no call that it sees would be skipped
        if hasattr(method, "__code__"):
            for code in convert.codes_within(method.__code__):
                monkeypatch.setitem(call_watch._libraries, id(code), (code, False))
    build = PROGRAMS[name]
    expected, n, _ = run(build, "extra_op", lambda f: f, None, 5)
    actual, _, step = run(build, "extra_op", terra_wrap(True, max_traces=3), n, 5)
    same(expected[:-1], actual[:-1])  # (all but the names of the operations)
    assert step.stats().coexecuted_steps >= n // 5 and step.stats().fast_forwards > n // 2


@pytest.mark.parametrize("name", ["adam_by_hand", "read_between_updates", "tapes_early", "branches"])
def test_graph_grows_with_each_disturbance(name):
    """The disturbed paths are merged: the graph gets a branch at each index, and takes it when it comes again."""
    build = PROGRAMS[name]
    expected, n, _ = run(build, "extra_op", lambda f: f, most=16)
    actual, _, step = run(build, "extra_op", terra_wrap(max_traces=100), n)
    same(expected, actual)
    stats = step.stats()
    assert stats.graphs > n // 2 and stats.coexecuted_steps >= n - 2, stats


def test_an_operation_that_changed_state_is_never_applied_twice():
    _, n, _ = run(lambda: counters(True), "extra_op", lambda f: f)
    reset_seeds()
    step, state = counters(True)
    watch = Watch()

    def watched(x):
        with watch:
            return step(x)

    run_step = terra.coexecute(watched, wait_for_graph=True, max_traces=2, fast_forward=False)
    for i in range(WARM_UP):
        run_step(tf.zeros([1]))
    for k in range(n):
        watch.at, watch.how = k, "extra_op"
        run_step(tf.zeros([1]))
        watch.at = None
        run_step(tf.zeros([1]))
        assert {float(c) for v in state() for c in v.numpy()} == {float(WARM_UP + 2 * k + 2)}, f"after leaving at {k}"
    assert run_step.stats().fallbacks >= n - 2 and run_step.stats().coexecuted_steps >= n


def test_the_device_of_an_operation_changes():
    """The same operation on another device is another operation, and is applied once."""
    count, one, where = tf.Variable(0.0), tf.constant(1.0), [None]

    @terra.coexecute(wait_for_graph=True)
    def step():
        tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=one)
        with tf.device(where[0]):
            tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=one)
        return count * 2.0

    for i in range(20):
        where[0] = "/CPU:0" if i in (8, 15) else None
        assert float(step()) == 4.0 * (i + 1)
    assert step.stats().fallbacks == 1 and step.stats().coexecuted_steps > 12


def test_first_divergence_at_a_random_operation():
    """It is traced as what it is: the path is known from then on."""
    v, flag = tf.Variable(tf.ones([4])), [False]

    def step():
        x = v * 2.0
        if flag[0]:
            x = x + tf.random.normal([4])
        v.assign_add(x * 0.1)
        return x

    results = []
    for wrap in (lambda f: f, terra_wrap()):
        tf.random.set_seed(5)
        v.assign(tf.ones([4]))
        run_step = wrap(step)
        results.append([])
        for i in range(16):
            flag[0] = i > 6 and i % 3 > 0
            results[-1].append(run_step().numpy().tolist())
    assert results[0] == results[1]
    assert run_step.stats().fallbacks == 1 and run_step.stats().coexecuted_steps >= 12


def test_a_fed_value_used_twice_by_one_operation():
    v = tf.Variable(tf.zeros([10, 10]))

    def step(i):
        x = tf.constant(floats(10, 10, seed=i))
        y = x * x
        v.assign_add(y + x)
        return tf.concat([x, y, x], 0)

    expected = [step(i).numpy() for i in range(8)] + [v.numpy()]
    v.assign(tf.zeros([10, 10]))
    run_step = terra.coexecute(step, wait_for_graph=True)
    actual = [run_step(i).numpy() for i in range(8)] + [v.numpy()]
    assert all((a == b).all() for a, b in zip(expected, actual))
    assert run_step.stats().coexecuted_steps >= 5


def test_one_operation_on_a_variable_and_on_a_tensor_in_turn():
    """It comes down the converting path (a list of outputs) in one step, and down the fast path (one output) in the next."""
    v = tf.Variable([1.0, 2.0])

    def step(i):
        for _ in range(i % 3):
            v.assign_sub(tf.random.normal([2]))
        y = tf.ones([2]) * (v if i % 2 == 0 else tf.tanh(v + 0.1))
        return tf.tanh(y), y

    def run(wrap):
        tf.random.set_seed(3)
        v.assign([1.0, 2.0])
        run_step = wrap(step)
        return [[t.numpy().tolist() for t in run_step(i)] for i in range(24)], run_step

    expected, _ = run(lambda f: f)
    actual, run_step = run(terra_wrap())
    assert expected == actual
    assert run_step.stats().coexecuted_steps >= 15


def test_operation_seeds_that_come_again():
    """The second draw of one pair of seeds is another one than the first, wherever the first was made."""
    def run(wrap):
        tf.random.set_seed(5)
        step = wrap(lambda i: tf.random.uniform([3], seed=i % 7 + 1))
        return [step(i).numpy().tolist() for i in range(16)]

    assert run(lambda f: f) == run(terra_wrap())


def test_what_only_a_cycle_keeps_is_learned(monkeypatch):
    """The garbage collector frees it any time: also between the step's end and that of the trace which is to learn that it was kept."""
    class Node:
        pass

    collecting, replay = [False], PythonRunner._replay

    def collect_and_replay(self, tracer):
        gc.collect()
        return replay(self, tracer)

    monkeypatch.setattr(PythonRunner, "_replay", collect_and_replay)

    def step(x):
        y = tf.tanh(x) * 2.0
        z = y + 1.0
        if collecting[0]:
            node = Node()
            node.own, node.y, node.z = node, y, z
        return tf.reduce_sum(z)

    step = terra.coexecute(step, wait_for_graph=True, fast_forward=False)
    x = tf.constant([1.0, 2.0])
    for _ in range(4):
        step(x)
    collecting[0] = True
    results = [float(step(x)) for _ in range(8)]
    assert len(set(results)) == 1 and step.stats().fallbacks <= 1
    assert step.stats().coexecuted_steps >= 9


def test_a_traced_function_that_is_gone():
    """What stands for it in the graph has its name; a step that falls back runs it all the same."""
    one = tf.ones([2])

    def make():
        return tf.function(lambda amount: tf.cond(amount[0] > 0.0, lambda: amount * 2.0, lambda: amount))

    functions = [make()]

    @terra.coexecute(wait_for_graph=True)
    def step(x, other=False):
        y = functions[0](one) * x
        return (tf.sin(y) if other else y) + 1.0

    for _ in range(8):
        step(tf.constant(1.0))
    functions[0] = make()  # of the same body: the graph goes on
    gc.collect()
    step(tf.constant(1.0))
    np.testing.assert_allclose(step(tf.constant(1.0), True).numpy(), np.sin([2.0, 2.0]) + 1.0, rtol=1e-6)
    assert step.stats().fallbacks == 1 and step.stats().coexecuted_steps >= 5


def test_constants_that_are_too_large_now_and_then():
    """What is small enough to be compared by its value in one step, and not in the next, is handed over in each."""
    drawn = np.random.default_rng(0)
    parts = [[drawn.normal(size=drawn.integers(40, 90)).astype("f") for _ in range(8)] for _ in range(24)]
    turns = iter(())
    w = tf.Variable(1.0)

    def step():
        total = tf.reduce_sum(tf.concat(next(turns), 0)) * w
        w.assign_add(0.001 * tf.tanh(total))
        return total

    seen = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        turns = iter(parts)
        w.assign(1.0)
        wrapped = wrap(step)
        seen.append([float(wrapped()) for _ in parts])
    assert seen[0] == seen[1]
    assert wrapped.stats().fallbacks == 0 and wrapped.stats().coexecuted_steps >= 16, wrapped.stats()
