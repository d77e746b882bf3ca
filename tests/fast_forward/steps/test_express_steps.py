"""Express steps: whatever they take for granted changes in the middle of training, and back again; results, variables and errors are eager's.

`test_user_functions.py`, `fast_forward/guards` and `fast_forward/purity` change what the skipped code reads; here is what a step's way through
Terra depends on.
"""

import contextlib
import functools
import gc
import signal
import sys
import threading
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.location import current_step
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.fast_forward.steps.detached_step import Ran
from terra.tf.private import replacements
from tests import harness
from tests.unwaited import unwaited

RNG = np.random.default_rng(3)
X = [RNG.normal(size=(6, 4)).astype("float32") for _ in range(4)]
STATES = [0] * 10 + [1, 0, 1, 1, 0, 0, 0, 1] + [0] * 6 + [1] * 8 + [0] * 6


class Case:
    """`step(x, ...)` is called with what `arguments(k, state)` gives, as `call` says; `scope(state)` is round the call."""

    fewest = 8  # express steps, at least
    options = {}

    def __init__(self):
        self.v = tf.Variable(tf.fill([4, 3], 0.1))
        self.n = tf.Variable(0.0)
        self.read = []

    def step(self, x):
        self.v.assign_sub(0.01 * tf.matmul(x, tf.tanh(x @ self.v), transpose_a=True))
        self.n.assign_add(1.0)
        return tf.reduce_sum(self.v)

    def arguments(self, k, state):
        return (tf.constant(X[k % 4]),), {}

    def scope(self, state):
        return contextlib.nullcontext()

    def call(self, step, args, kwargs, state):
        return step(*args, **kwargs)


class Plain(Case):
    fewest = 20


class OtherShape(Case):
    def step(self, x):
        return tf.tanh(x @ self.v)

    def arguments(self, k, state):
        return (tf.constant(X[k % 4][: 3 if state else 6]),), {}


class OtherType(Case):
    def step(self, x):
        return tf.cast(x, tf.float32) * self.v[:, 0]

    def arguments(self, k, state):
        return (tf.constant(X[k % 4], tf.float64 if state else tf.float32),), {}


class Number(Case):
    def step(self, x, rate):
        self.v.assign_sub(rate * tf.matmul(x, x @ self.v, transpose_a=True))
        return tf.reduce_sum(self.v)

    def arguments(self, k, state):
        return (tf.constant(X[k % 4]), 0.02 if state else 0.01), {}


class NumberOfAnotherType(Case):
    def step(self, x, n):
        return tf.reduce_sum(x @ self.v) * float(n), n

    def arguments(self, k, state):
        return (tf.constant(X[k % 4]), 2.0 if state else 2), {}


class NegativeZero(Case):
    fewest = 0

    def step(self, x, zero):
        return tf.reduce_sum(tf.abs(x @ self.v)) / zero

    def arguments(self, k, state):
        return (tf.constant(np.abs(X[k % 4])), -0.0 if state else 0.0), {}


class Keyword(Case):
    def step(self, x, a=None, b=None):
        return tf.reduce_sum(x @ self.v) * (2.0 if a is not None else 3.0)

    def arguments(self, k, state):
        return (tf.constant(X[k % 4]),), {"b" if state else "a": 1}


class Nested(Case):
    fewest = 6

    def step(self, batch):
        x, parts = batch
        return {"sum": tf.reduce_sum(x), "parts": [p * 2.0 for p in parts], "none": None, "first": parts[0]}

    def arguments(self, k, state):
        x = tf.constant(X[k % 4])
        parts = [x + 1.0, x + 2.0]
        return ((x, tuple(parts) if state else parts),), {}


class OneTensorTwice(Case):
    """The second argument is the first one, in one state."""

    def step(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x * x * y)
        return tape.gradient(loss, x)

    def arguments(self, k, state):
        x, y = tf.constant(X[k % 4]), tf.constant(X[k % 4])
        return (x, x if state else y), {}


class MarkedZeros(Case):
    """What `tf.zeros` gives has a mark."""

    def step(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.tanh(x * 2.0)
        return tape.gradient(loss, x, output_gradients=y + 1.0)

    def arguments(self, k, state):
        return (tf.constant(X[k % 4]), tf.constant(X[0] * 0.0) if state else tf.zeros((6, 4))), {}


class Arrays(Case):
    def step(self, x, y):
        self.v.assign_sub(0.01 * tf.matmul(x, tf.convert_to_tensor(x) @ self.v, transpose_a=True))
        return tf.reduce_sum(self.v) + tf.tanh(tf.convert_to_tensor(y))

    def arguments(self, k, state):
        x = X[k % 4].copy()
        return (x, X[(k + 1) % 4].astype("float64" if state else "float32").astype("float32")[: 3 if state else 6]), {}


class ArrayOverwritten(Case):
    """The caller changes the array as soon as the step has returned."""

    fewest = 20

    def step(self, x):
        self.v.assign_add(0.01 * tf.matmul(tf.convert_to_tensor(x), tf.ones((6, 3)), transpose_a=True))
        return tf.reduce_sum(self.v)

    def arguments(self, k, state):
        self.array = X[k % 4].copy()
        return (self.array,), {}

    def call(self, step, args, kwargs, state):
        result = step(*args, **kwargs)
        self.array[...] = 100.0
        return result


class TensorOfTheStepBefore(Case):
    """What a step gives is an argument of the next one."""

    def __init__(self):
        super().__init__()
        self.state = tf.zeros((6, 4))

    def step(self, x, h):
        h = tf.tanh(x + 0.5 * h)
        self.n.assign_add(tf.reduce_mean(h))
        return h

    def call(self, step, args, kwargs, state):
        self.state = step(*args, self.state)
        return self.state if state else None


class Tape(Case):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        with tf.GradientTape() as tape:
            loss = step(*args)
        return loss, tape.gradient(loss, self.n)


class TapeOfAnArgument(Tape):
    def step(self, x):
        return tf.reduce_sum(x * x * self.v[0, 0])

    def call(self, step, args, kwargs, state):
        with tf.GradientTape() if state else contextlib.nullcontext() as tape:
            if state:
                tape.watch(args[0])
            loss = step(*args)
        return loss, tape.gradient(loss, [args[0], self.v]) if state else None


class Accumulator(TapeOfAnArgument):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        with tf.autodiff.ForwardAccumulator(args[0], tf.ones_like(args[0])) as accumulator:
            loss = step(*args)
        return loss, accumulator.jvp(loss)


class StoppedTape(TapeOfAnArgument):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        with tf.GradientTape() as tape:
            tape.watch(args[0])
            with tape.stop_recording():
                stopped = step(*args)
            loss = step(*args)
        return stopped, loss, tape.gradient(loss, args[0]), [v is self.v for v in tape.watched_variables()]


class CustomGradient(Case):
    """It looks for the variables that its function uses."""

    def step(self, x):
        return tf.reduce_sum(x * self.v[0, 0])

    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        used = []

        @tf.custom_gradient
        def f(x):
            y = step(x)

            def grad(upstream, variables=None):
                used.extend(variables)
                return upstream * tf.ones_like(x), [tf.ones_like(v) for v in variables]

            return y, grad

        with tf.GradientTape() as tape:
            y = f(args[0])
        gradient = tape.gradient(y, self.v)
        return y, gradient, len(used)


class CustomGradientWithoutVariables(CustomGradient):
    """It refuses a function that uses variables; no tape is there."""

    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)

        @tf.custom_gradient
        def f(x):
            return step(x), lambda upstream: upstream * tf.ones_like(x)

        try:
            return f(args[0])
        except TypeError as error:
            return "variables" in str(error)


class Device(Case):
    def scope(self, state):
        return tf.device("/CPU:0") if state else contextlib.nullcontext()


class Strategy(Case):
    def __init__(self):
        super().__init__()
        self.strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    def scope(self, state):
        return self.strategy.scope() if state else contextlib.nullcontext()


class RunsFunctionsEagerly(Case):
    def scope(self, state):
        @contextlib.contextmanager
        def scope():
            tf.config.run_functions_eagerly(bool(state))
            try:
                yield
            finally:
                tf.config.run_functions_eagerly(False)
        return scope()


class CheckNumerics(Case):
    """Each operation is shown to a callback."""

    def step(self, x):
        return tf.reduce_sum(tf.exp(x @ self.v))

    def arguments(self, k, state):
        return (tf.constant(np.abs(X[k % 4]) * (1e4 if state else 1.0)),), {}

    def scope(self, state):
        @contextlib.contextmanager
        def scope():
            if state:
                tf.debugging.enable_check_numerics()
            try:
                yield
            finally:
                if state:
                    tf.debugging.disable_check_numerics()
        return scope()

    def call(self, step, args, kwargs, state):
        try:
            return step(*args)
        except tf.errors.InvalidArgumentError as error:
            return type(error).__name__


class Asynchronous(Case):
    """TensorFlow's eager operations are queued."""

    def scope(self, state):
        @contextlib.contextmanager
        def scope():
            tf.config.experimental.set_synchronous_execution(not state)
            try:
                yield
            finally:
                tf.config.experimental.set_synchronous_execution(True)
        return scope()


class Imperative(Case):
    def scope(self, state):
        return terra.imperative() if state else contextlib.nullcontext()


class Traced(Case):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        seen = set()
        sys.settrace(lambda frame, *_: seen.add(frame.f_code.co_name))
        try:
            return step(*args), "step" in seen
        finally:
            sys.settrace(None)


class OnAnotherThread(Case):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        results = []
        thread = threading.Thread(target=lambda: results.append(step(*args)))
        thread.start()
        thread.join()
        return results[0]


class InAGraph(Case):
    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        function = tf.function(lambda x: step(x))
        return function(*args)


class InAnotherStep(Case):
    def __init__(self):
        super().__init__()
        self.outer = None

    def call(self, step, args, kwargs, state):
        if not state:
            return step(*args)
        if self.outer is None:
            self.outer = terra.coexecute(lambda x: step(x) * 2.0, wait_for_graph=True) if isinstance(step, type(terra.coexecute(len))) else lambda x: step(x) * 2.0
        return self.outer(*args)


class FunctionReplaced(Case):
    """One that the framework's code looks up."""

    fewest = 5

    def step(self, x):
        return tf.reduce_sum(keras.ops.relu(x @ self.v))

    def scope(self, state):
        @contextlib.contextmanager
        def scope():
            of_backend = sys.modules["keras.src.backend.tensorflow.nn"]
            original = of_backend.relu
            if state:
                of_backend.relu = of_backend.softplus
            try:
                yield
            finally:
                of_backend.relu = original
        return scope()


class Attribute(Case):
    def __init__(self):
        super().__init__()
        self.rate = 0.5

    def step(self, x):
        return tf.reduce_sum(x) * self.rate

    def scope(self, state):
        self.rate = [0.5, 0.25][state]
        return contextlib.nullcontext()


class Randomness(Case):
    """Seeds are drawn as eagerly, and by other operations between the steps, too."""

    def step(self, x):
        return tf.nn.dropout(x, 0.5) + tf.random.normal((6, 4))

    def call(self, step, args, kwargs, state):
        return step(*args), tf.random.uniform(()) if state else None


class SeedSet(Randomness):
    def call(self, step, args, kwargs, state):
        if state:
            tf.random.set_seed(11)
        return step(*args)


class Assigned(Case):
    """The program changes a variable between two steps."""

    fewest = 20

    def call(self, step, args, kwargs, state):
        if state:
            self.v.assign(self.v * 0.5)
        return step(*args)


class Mask(Case):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.GlobalAveragePooling1D()

    def step(self, x):
        return self.layer(x) * 2.0

    def arguments(self, k, state):
        x = tf.constant(X[k % 4].reshape(2, 3, 4))
        if state:
            x._keras_mask = tf.constant([[True, False, True], [True, True, False]])
        return (x,), {}


class Mapping(Case):
    """A batch is a dict: another order, which the step may look at, or one more entry."""

    def step(self, batch, rate):
        values = list(batch.values())
        self.n.assign_add(float(len(values)))
        return values[0] * rate - batch["y"]

    def arguments(self, k, state):
        x, y = tf.constant(X[k % 4]), tf.constant(X[(k + 1) % 4])
        if state:
            return ({"y": y, "x": x} if k % 2 else {"x": x, "y": y, "z": x},), {"rate": 2.0}
        return ({"x": x, "y": y},), {"rate": 2.0}


class MappingOfNumbers(Case):
    """With other keys than names, it is not prepared for."""

    fewest = 0

    def step(self, batch):
        return batch[True] + self.n * len(batch)

    def arguments(self, k, state):
        return ({True: tf.constant(X[k % 4]), **({"x": 1} if state else {})},), {}


class Branches(Case):
    """Two paths: what is skipped chooses one."""

    def __init__(self):
        super().__init__()
        self.double = False

    def step(self, x):
        y = x @ self.v
        if self.double:
            y = tf.tanh(y) * 2.0
        self.n.assign_add(tf.reduce_mean(y))
        return y + 1.0

    def scope(self, state):
        self.double = bool(state)
        return contextlib.nullcontext()


class NothingGiven(Case):
    fewest = 20

    def step(self, x):
        self.n.assign_add(tf.reduce_sum(x))


class RunAhead0(Case):
    fewest = 20
    options = {"run_ahead": 0}


CASES = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Case) and kind is not Case]
READ = ("each", "late", "inside")


def run(kind, wrap, read):
    harness.reset_seeds()
    case = kind()
    method = case.step

    def reads(*args, **kwargs):
        result = method(*args, **kwargs)
        case.read.append(float(tf.reduce_sum(case.v)))
        return result

    step = wrap(reads if read == "inside" else lambda *args, **kwargs: method(*args, **kwargs))
    seen = []
    for k, state in enumerate(STATES):
        args, kwargs = case.arguments(k, state)
        with case.scope(state):
            result = case.call(step, args, kwargs, state)
        seen.append(harness.snapshot(result) if read != "late" else result)
    seen = [harness.snapshot(x) for x in seen] if read == "late" else seen
    return repr((seen, case.read, harness.snapshot(case.v), harness.snapshot(case.n))), step


@functools.cache
def eager_run(kind, reads):
    """What is read later is the same."""
    return run(kind, lambda step: step, "inside" if reads else "each")[0]


@pytest.mark.parametrize("kind, read", [pytest.param(kind, read, id=f"{kind.__name__}-{read}")
                                        for k, kind in enumerate(CASES) for read in READ if read != READ[k % 3]])
def test_equals_eager(kind, read):
    expected = eager_run(kind, read == "inside")
    found, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, **kind.options), read)
    assert found == expected
    stats = step.stats()
    assert stats.express_steps >= kind.fewest, stats
    assert stats.express_steps <= stats.whole_steps <= stats.coexecuted_steps and stats.coexecuted_steps >= 8


# -- running or dispatching --------------------------------------------------------------------------------------------------------


def simple(**options):
    v = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True, **options)
    def step(x):
        v.assign_add(x)
        return v * 2.0

    return step, v


def until_it_is_run(step):
    """Steps that are waited for at once until one was run, not dispatched (a busy machine may take too long between two of them); gives how many, and its result."""
    one = tf.constant(1.0)
    for k in range(1, 1000):
        result = step(one)
        if type(result._owner) is Ran:
            return k, result
        float(result)
    raise AssertionError("each step was dispatched")


def test_steps_that_are_waited_for_at_once_leave_nothing_in_flight():
    step, v = simple()
    n, result = until_it_is_run(step)
    assert not GRAPH_RUNNER.flights and not replacements.hooks_installed()
    assert v.numpy() == n and float(result) == 2.0 * n and result._owner is None
    stats = step.stats()
    assert stats.waited_steps >= 1 and stats.express_steps >= 1


def test_steps_that_nobody_waits_for_run_ahead_again():
    step, v = simple()
    one = tf.constant(1.0)
    n, _ = until_it_is_run(step)
    waited = step.stats().waited_steps
    results = [step(one) for _ in range(10)]
    assert step.stats().waited_steps == waited  # what was run had not been looked at
    assert replacements.hooks_installed()
    assert [float(x) for x in results] == [2.0 * (n + k) for k in range(1, 11)]
    assert v.numpy() == n + 10.0 and not GRAPH_RUNNER.flights and not replacements.hooks_installed()


def test_steps_that_are_read_later_run_ahead_again():
    step, _ = simple()
    one = tf.constant(1.0)
    n, result = until_it_is_run(step)
    waited = step.stats().waited_steps
    for k in range(10):
        time.sleep(0.002)
        assert float(result) == 2.0 * (n + k)
        result = step(one)
    assert step.stats().waited_steps == waited


def test_a_variable_is_read_behind_a_dispatched_step():
    step, v = simple(run_ahead=5)
    one = tf.constant(1.0)
    for _ in range(20):
        step(one)
    for k in range(20):
        step(one)
        assert v.numpy() == 21.0 + k
    assert step.stats().express_steps >= 30


# -- failures ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("options", [{}, {"run_ahead": 0}], ids=str)
def test_a_kernel_fails(reads, options):
    def program(wrap):
        table, n = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(0.0)

        def step(i):
            n.assign_add(1.0)
            return tf.reduce_sum(tf.gather(table, i)) * 2.0

        step = wrap(step)
        seen = []
        for k in range(30):
            index = tf.constant([7.0 if k in (15, 22) else k % 3])
            try:
                result = step(tf.cast(index, tf.int32))
                seen.append(float(result) if reads else None)
            except tf.errors.InvalidArgumentError as error:
                seen.append(("failed", "indices[0] = 7" in str(error)))
            if k in (15, 22):
                try:
                    terra.sync()
                except tf.errors.InvalidArgumentError as error:
                    seen[-1] = ("failed", "indices[0] = 7" in str(error))
        return repr((seen, n.numpy())), step

    expected, _ = program(lambda step: step)
    found, step = program(lambda step: terra.coexecute(step, wait_for_graph=True, **options))
    assert found == expected
    assert step.stats().express_steps >= 10


def test_an_error_of_an_earlier_step_is_raised_by_a_later_one():
    """And that one has not been made."""
    table, n = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True, run_ahead=2)
    def step(i):
        n.assign_add(1.0)
        return tf.gather(table, i)

    for k in range(12):
        step(tf.constant([k % 3]))
    terra.sync()
    before = step.stats()
    assert before.express_steps >= 4
    unwaited(step, tf.constant([7]))
    raised = 0
    for _ in range(3):
        try:
            step(tf.constant([1]))
        except tf.errors.InvalidArgumentError:
            raised += 1
            break
    terra.sync()
    assert raised == 1 and n.numpy() == 13.0
    assert step.stats().steps == step.stats().tracing_steps + step.stats().coexecuted_steps


# -- what else may run -------------------------------------------------------------------------------------------------------------


class FinalizerOfACycle:
    def __init__(self, v):
        self.v, self.me = v, self

    def __del__(self):
        self.v.assign_add(1000.0)


@pytest.mark.parametrize("read", [True, False])
def test_garbage_is_collected_at_any_moment(read):
    v, big = tf.Variable(0.0), tf.random.stateless_uniform([300, 300], [1, 2]) / 150.0

    @terra.coexecute(wait_for_graph=True, run_ahead=3)
    def step(x):
        y = v + x
        a = big * y
        for _ in range(4):
            a = a @ big  # an update of the variable meanwhile would be lost
        v.assign(y + 0.0 * tf.reduce_sum(a))
        return y

    one = tf.constant(1.0)
    for _ in range(12):
        step(one)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(60):
            FinalizerOfACycle(v)
            result = step(one)
            if read:
                float(result)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert gc.isenabled() and v.numpy() == 72.0 + 60_000.0
    assert step.stats().express_steps >= 50


def test_garbage_collection_stays_off_if_the_program_has_switched_it_off():
    step, _ = simple()
    one = tf.constant(1.0)
    gc.disable()
    try:
        for _ in range(12):
            step(one)
        assert not gc.isenabled() and step.stats().express_steps >= 4
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
@pytest.mark.parametrize("read", [True, False])
def test_signal_handlers_use_the_variable(read):
    step, v = simple(run_ahead=3)
    one, many = tf.constant(1.0), tf.constant(1000.0)
    for _ in range(12):
        step(one)
    calls, seen = [], []

    def handler(*_):
        calls.append(1)
        v.assign_add(many)
        seen.append(v.numpy())

    before = signal.signal(signal.SIGVTALRM, handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.003, 0.003)
    try:
        steps = 0
        while len(calls) < 10 and steps < 50_000:
            result = step(one)
            steps += 1
            if read:
                float(result)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert v.numpy() == 12.0 + steps + 1000.0 * len(calls)
    assert len(seen) == len(calls) >= 10 and 1012.0 <= min(seen) and max(seen) <= v.numpy()
    assert step.stats().express_steps >= steps // 2


def test_the_model_that_is_gone_is_let_go():
    import weakref

    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
    x = tf.constant(X[0])
    model(x)
    step = terra.coexecute(lambda x: tf.reduce_sum(model(x)), wait_for_graph=True)
    for _ in range(12):
        float(step(x))
    assert step.stats().express_steps >= 4
    gone = weakref.ref(model)
    del model, step
    terra.sync()
    gc.collect()
    assert gone() is None


def test_methods_of_several_instances():
    class Trainer:
        def __init__(self, rate):
            self.rate = rate
            self.v = tf.Variable(1.0)

        @terra.coexecute(wait_for_graph=True)
        def step(self, x):
            self.v.assign_add(self.rate * x)
            return self.v * 1.0

    one, trainers = tf.constant(1.0), [Trainer(1.0), Trainer(10.0)]
    for k in range(20):
        assert [float(t.step(one)) for t in trainers] == [2.0 + k, 1.0 + 10.0 * (k + 1)]
    trainers[0].rate = 100.0
    assert [float(t.step(one)) for t in trainers] == [121.0, 211.0]
    for t in trainers:
        assert t.step.stats().express_steps >= 8, t.step.stats()


def test_nobody_is_active_behind_an_express_step():
    step, _ = simple()
    for _ in range(12):
        float(step(tf.constant(1.0)))
    assert current_step.active is None and step.stats().express_steps >= 4


def test_graphs_of_the_past_go_away_in_a_loop_that_never_waits():
    """As long as there are any, steps take their ordinary way; and there are always steps in flight where nothing is read."""
    w = tf.Variable(tf.fill([300, 300], 0.01))

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        y = x
        for _ in range(8):
            y = tf.tanh(tf.matmul(y, w))
        w.assign_sub(1e-6 * y)
        return y

    x = tf.ones([300, 300])
    for _ in range(20):
        last = step(x)
    assert GRAPH_RUNNER.flights and step.stats().express_steps > 0
    step.generation.retired.append(types.SimpleNamespace(compiled=None, forms=[]))
    before = step.stats().express_steps
    for _ in range(6):
        last = step(x)
        if not step.generation.retired:
            break
    assert not step.generation.retired
    for _ in range(6):
        last = step(x)
    assert step.stats().express_steps >= before + 6
    assert np.isfinite(last.numpy()).all()
