"""Signal handlers that use TensorFlow, or raise, at any moment of a step: as in eager execution, each runs once, and no update is lost or done twice.

The timer counts the time that the process computes; SIGALRM is what ends a test that takes too long.
"""

import _thread
import signal
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.execution import interception, graph_runner
from tests.unwaited import unwaited



@pytest.fixture(autouse=True)
def interval():
    """Threads keep the interpreter lock as long as the program has said, whatever handlers have waited."""
    before = sys.getswitchinterval()
    yield
    assert sys.getswitchinterval() == before


pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
ONE, THOUSAND = tf.constant(1.0), tf.constant(1000.0)  # (making a tensor of a number is not safe in a handler, in plain TensorFlow either)
OPTIONS = [{}, {"run_ahead": 0}, {"fast_forward": False}, {"fast_forward": "framework"}, {"loops": "roll"}]


class Alarms:
    """Calls `handler` every `interval` seconds, on this thread."""

    def __init__(self, handler, interval):
        self.handler, self.interval = handler, interval

    def __enter__(self):
        self.before = signal.signal(signal.SIGVTALRM, self.handler)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.interval, self.interval)

    def __exit__(self, *exc):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self.before)


def counting(counter, early):
    def step(x):
        y = x * ONE
        for _ in range(10):
            y = y + ONE
        if early and float(y) < 0:
            return y
        counter.assign_add(ONE)
        return y

    return step


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("same", [False, True], ids=["another", "the same"])
def test_handlers_that_use_variables(options, early, same):
    counter, other = tf.Variable(0.0), tf.Variable(0.0)
    step = terra.coexecute(counting(counter, early), wait_for_graph=True, **options)
    for _ in range(8):
        step(tf.constant(1.0))
    target, calls, read = counter if same else other, [], []

    def handler(*_):
        calls.append(1)
        target.assign_add(THOUSAND)
        read.append(target.numpy())

    results = []
    with Alarms(handler, 0.002):
        while len(results) < 300 or (len(calls) <= 5 and len(results) < 20_000):
            results.append(float(step(tf.constant(1.0))))
    terra.sync()
    assert results == [11.0] * len(results) and len(calls) > 5
    assert counter.numpy() == 8 + len(results) + (1000 * len(calls) if same else 0)
    assert other.numpy() == (0 if same else 1000 * len(calls))
    assert len(read) == len(calls) and min(read) >= 1000
    assert step.stats().coexecuted_steps >= 150
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


class Timeout(Exception):
    pass


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
def test_handlers_that_raise(options, early):
    counter = tf.Variable(0.0)
    step = terra.coexecute(counting(counter, early), wait_for_graph=True, **options)
    for _ in range(8):
        step(tf.constant(1.0))
    randomness, timeouts, before = np.random.RandomState(0), 0, 8.0

    def handler(*_):
        raise Timeout

    held = signal.signal(signal.SIGVTALRM, handler)
    try:
        for _ in range(120):
            begun, timer = 0, threading.Timer(randomness.uniform(0.0, 0.003), _thread.interrupt_main, (signal.SIGVTALRM,))
            try:
                timer.start()
                for _ in range(20):
                    begun += 1
                    step(ONE)
                timer.join()
            except Timeout:
                timeouts += 1
            timer.join()
            terra.sync()
            done = float(counter) - before
            assert begun - 1 <= done <= begun
            assert float(step(tf.constant(2.0))) == 12.0
            before += done + 1
    finally:
        signal.signal(signal.SIGVTALRM, held)
    assert timeouts == 120 and step.stats().coexecuted_steps >= 100


def test_a_handler_ends_a_step_that_takes_too_long():
    """Where the step's code is all calls, Terra is at work most of the time."""
    v = tf.Variable(0.0)

    def step(slow):
        loss, calls = v * 2.0, 0
        start = time.process_time()
        while slow and time.process_time() < start + 2.0:
            calls += len(str(calls))
        v.assign_add(1.0)
        return loss

    def handler(*_):
        raise TimeoutError

    step = terra.coexecute(step, wait_for_graph=True)
    for _ in range(12):
        step(False)
    for k in range(5):
        start = time.process_time()
        with pytest.raises(TimeoutError), Alarms(handler, 0.05):
            step(True)
        assert time.process_time() - start < 1.0 and float(v) == 12.0, k
    assert step.stats().coexecuted_steps > 5


def test_a_handler_ends_an_endless_loop_in_the_step():
    @terra.coexecute(wait_for_graph=True)
    def step(x, forever):
        y = x + 1.0
        while forever:
            pass
        return y

    for _ in range(6):
        step(ONE, False)

    def handler(*_):
        raise Timeout

    start = time.perf_counter()
    with pytest.raises(Timeout), Alarms(handler, 0.05):
        step(ONE, True)
    assert time.perf_counter() - start < 30
    assert float(step(ONE, False)) == 2.0


def test_handlers_in_blocks():
    def run(tape_class, **options):
        variable, calls, losses = tf.Variable(1.0), [], []
        other = tf.Variable(0.0)

        def handler(*_):
            calls.append(1)
            other.assign_add(ONE)

        with Alarms(handler, 0.002):
            for _ in range(150):
                with tape_class(**options) as tape:
                    loss = variable * variable
                variable.assign_sub(0.01 * tape.gradient(loss, variable))
                losses.append(float(loss))
        if tape_class is terra.GradientTape:
            assert tape.block.stats().coexecuted_steps >= 50
        terra.sync()
        assert other.numpy() == len(calls)
        return losses, float(variable)

    assert run(tf.GradientTape) == run(terra.GradientTape, wait_for_graph=True)
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_the_program_may_set_another_handler_in_a_step():
    calls = []

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        signal.signal(signal.SIGVTALRM, second)
        return x + 1.0

    def first(*_):
        calls.append("first")

    def second(*_):
        calls.append("second")

    held = signal.signal(signal.SIGVTALRM, first)
    try:
        for _ in range(5):
            signal.signal(signal.SIGVTALRM, first)
            step(ONE)
            assert signal.getsignal(signal.SIGVTALRM) is second
        signal.raise_signal(signal.SIGVTALRM)
    finally:
        signal.signal(signal.SIGVTALRM, held)
    assert calls == ["second"]


def test_another_thread_ends_the_step():
    variable, calls, other = tf.Variable(1.0), [], tf.Variable(0.0)

    def handler(*_):
        calls.append(1)
        other.assign_add(ONE)

    with Alarms(handler, 0.004):
        for _ in range(60):
            with terra.GradientTape(wait_for_graph=True) as tape:
                loss = variable * variable
            variable.assign_sub(0.01 * tape.gradient(loss, variable))
            thread = threading.Thread(target=lambda: float(variable))
            thread.start()
            thread.join()
        terra.coexecute(lambda x: x)(ONE)
        assert signal.getsignal(signal.SIGVTALRM) is handler
    assert tape.block.stats().coexecuted_steps >= 20
    terra.sync()
    assert other.numpy() == len(calls)


def run_with_handler_at(k, function, handler):
    """Calls `function`, and `handler` before the k-th bytecode that it runs in the modules that wait for flights. Returns (result, whether it was called)."""
    files, called = (graph_runner.__file__, interception.__file__), []
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == k:
                sys.settrace(None)
                called.append(True)
                handler()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for bytecodes only if it is told so before
    sys.settrace(trace)
    try:
        return function(), bool(called)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("kind", ["reads", "runs a step"])
def test_a_handler_before_each_bytecode_of_a_wait(kind):
    """Python calls handlers between any two bytecodes; what waits for steps in flight must bear that they have landed meanwhile, or that there are new ones."""
    counter = tf.Variable(0.0)

    @terra.coexecute(wait_for_graph=True, run_ahead=5)
    def step(x):
        counter.assign_add(x)

    def handler():
        if kind == "reads":
            read.append(counter.numpy())
        else:
            step(ONE)

    for _ in range(6):
        step(ONE)
    expected, k, called, read = 6, 0, True, []
    while called:
        k += 1
        for _ in range(2):
            step(ONE)
        expected += 2
        value, called = run_with_handler_at(k, lambda: float(counter), handler)
        if called and kind == "reads":
            assert read.pop() == expected
        elif called:
            expected += 1
        assert value == expected or (kind != "reads" and value == expected - 1), k
        terra.sync()
        assert counter.numpy() == expected, k
    assert k > 200 and step.stats().coexecuted_steps > 1.9 * k


def test_a_handler_reads_what_is_being_replayed():
    """It must not wait for the replay that it interrupts."""
    big = tf.random.stateless_uniform([400, 400], [1, 2]) / 200.0

    @terra.coexecute(wait_for_graph=True, run_ahead=5)
    def step(i):
        a = big
        for _ in range(40):
            a = a @ big
        return tf.gather(tf.reduce_sum(a, 0), i)

    for k in range(6):
        step(tf.constant(k))
    terra.sync()
    failures, read = graph_runner.GRAPH_RUNNER.failures, []

    def handler(*_):
        try:
            read.append(float(result))
        except tf.errors.InvalidArgumentError:
            read.append("failed")

    def interrupt():
        while graph_runner.GRAPH_RUNNER.failures == failures:
            time.sleep(0.0002)
        _thread.interrupt_main(signal.SIGVTALRM)

    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        result = unwaited(step, tf.constant(400))
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(tf.errors.InvalidArgumentError):
            float(result)
        thread.join()
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert read == ["failed"] and step.stats().coexecuted_steps >= 4
