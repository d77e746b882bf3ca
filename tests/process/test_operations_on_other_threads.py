"""Steps that have TensorFlow run Python code on other threads: that code sees what the step has updated, and the step what that code has."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.op_def_pb2 import OpDef

import terra
from terra.tf import opschema

STEPS = 9


def scope(kind):
    return {"mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0"]), "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
            "default": tf.distribute.get_strategy}[kind]()


def updates_in_replica(strategy, v, s):
    def replica():
        v.assign_sub(0.5 * v)
        return v * 10.0

    return lambda x: strategy.run(replica)


def sums_on_read(strategy, v, s):
    def step(x):
        strategy.run(lambda: s.assign_add(x))
        seen = s.read_value()
        strategy.run(lambda: s.assign_add(x))
        return seen, s.read_value()

    return step


def updates_outside(strategy, v, s):
    def step(x):
        v.assign_add(x)
        return strategy.run(lambda: v + 0.0)

    return step


def reads_behind(strategy, v, s):
    def step(x):
        before = v * 2.0
        strategy.run(lambda: v.assign_add(x))
        return before, v * 2.0

    return step


def merges(strategy, v, s):
    def replica(x):
        context = tf.distribute.get_replica_context()
        total = context.merge_call(lambda strategy, y: strategy.reduce("SUM", y, axis=None), args=(x * v,))
        return total + context.all_reduce("SUM", x)

    def step(x):
        v.assign_add(x)
        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    return step


def differentiates(strategy, v, s):
    def replica(x):
        with tf.GradientTape() as tape:
            loss = (v * x - 3.0) ** 2
        v.assign_sub(0.1 * tape.gradient(loss, v))
        return loss

    def step(x):
        loss = strategy.run(replica, args=(x,))
        with tf.GradientTape() as tape:
            again = v * v
        v.assign_sub(0.01 * tape.gradient(again, v))
        return strategy.reduce("MEAN", loss, axis=None), again

    return step


def under_a_tape(strategy, v, s):
    """The step falls back with a tape at work."""
    def step(x):
        with tf.GradientTape() as tape:
            y = v * x
            strategy.run(lambda: s.assign_add(1.0))
            y = y * y
        g = tape.gradient(y, v)
        v.assign_sub(0.1 * g)
        return g, s.read_value()

    return step


def now_and_then(strategy, v, s):
    calls = []

    def step(x):
        calls.append(x)
        v.assign_add(x)
        if len(calls) == 7:
            strategy.run(lambda: v.assign(v * 2.0))
        return v * 1.0

    return step


PROGRAMS = [updates_in_replica, sums_on_read, updates_outside, reads_behind, merges, differentiates, under_a_tape, now_and_then]


def ran(program, kind, decorate):
    strategy = scope(kind)
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        s = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
    step = decorate(program(strategy, v, s))
    made = [[float(t) for t in tf.nest.flatten(step(tf.constant(1.0 + k)))] for k in range(STEPS)]
    return step, (made, float(v.read_value()), float(s.read_value()))


@pytest.mark.parametrize("kind", ["mirrored", "one device", "default"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_replicas(program, kind, caplog):
    _, eager = ran(program, kind, lambda f: f)
    caplog.clear()
    step, ours = ran(program, kind, terra.coexecute(wait_for_graph=True))
    assert ours == eager
    stats = step.stats()
    if kind == "mirrored":
        assert stats.imperative_steps >= STEPS - (7 if program is now_and_then else 1)
        assert stats.coexecuted_steps >= (2 if program is now_and_then else 0)
        assert sum("a distribution strategy runs code of the program's on other threads" in record.message for record in caplog.records) == 1


def test_replicas_of_functions_are_part_of_the_graph():
    """A `tf.function` has its replicas inside: no thread of the program's runs."""
    def made(decorate):
        strategy = scope("mirrored")
        with strategy.scope():
            v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

        @tf.function
        def replica(x):
            v.assign_add(x)
            return v * 2.0

        step = decorate(lambda x: strategy.run(replica, args=(x,)) + v)
        return step, [float(step(tf.constant(1.0))) for _ in range(STEPS)]

    step, ours = made(terra.coexecute(wait_for_graph=True))
    assert ours == made(lambda f: f)[1]
    assert step.stats().fallbacks == 0


def test_blocks():
    def run(tape_class):
        strategy, seen = scope("mirrored"), []
        with strategy.scope():
            v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        for k in range(STEPS):
            with tape_class() as tape:
                loss = v * v
                if k > 5:
                    strategy.run(lambda: v.assign_add(1.0))
                loss = loss + v
            v.assign_sub(0.1 * tape.gradient(loss, v))
            seen.append((float(loss), float(strategy.run(lambda: v * 1.0))))
        return seen

    assert run(terra.GradientTape) == run(tf.GradientTape)


# -- Python functions that operations call, and coordinators ---------------------------------------------------------------------

def py_function(v):
    def step(x):
        v.assign_add(x)
        y = tf.py_function(lambda t: t * v, [x], tf.float32)
        v.assign_add(y * 0.1)
        return y + v

    return step


def numpy_function(v):
    def step(x):
        v.assign_add(x)
        return tf.numpy_function(lambda t: np.float32(t * v.numpy()), [x], tf.float32) + v

    return step


def writes_in_py_function(v):
    def step(x):
        before = v * 1.0
        tf.py_function(lambda t: v.assign_add(t).numpy() * 0.0, [x], tf.float32)
        return before + 10.0 * v

    return step


def mapped(v):
    data = iter(tf.data.Dataset.range(STEPS).map(lambda k: tf.py_function(lambda k: tf.cast(k, tf.float32) + v, [k], tf.float32)).prefetch(0))

    def step(x):
        v.assign_add(x)
        y = next(data)
        v.assign_add(0.1 * y)
        return y

    return step


def coordinated(v):
    def step(x):
        v.assign_add(x)
        y = x * v
        coordinator, seen = tf.train.Coordinator(), []
        threads = [threading.Thread(target=lambda: (coordinator.wait_for_stop(), seen.append(v * 3.0))) for _ in range(2)]
        for thread in threads:
            coordinator.register_thread(thread)
        coordinator.request_stop()
        coordinator.join()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        v.assign_add(0.1 * seen[0])
        return y, seen[0], seen[1]

    return step


def looper(v):
    from tensorflow.python.training.coordinator import LooperThread

    def step(x):
        v.assign_add(x)
        coordinator, seen = tf.train.Coordinator(), []

        def once():
            seen.append(v * 3.0)
            v.assign_add(1.0)
            coordinator.request_stop()

        thread = LooperThread(coordinator, None, target=once)
        thread.start()
        coordinator.join([thread])
        return seen[0], v * 1.0

    return step


@pytest.mark.parametrize("program", [py_function, numpy_function, writes_in_py_function, mapped, coordinated, looper])
def test_what_tensorflow_calls_elsewhere(program):
    def run(decorate):
        v = tf.Variable(1.0)
        step = decorate(program(v))
        return step, [[float(t) for t in tf.nest.flatten(step(tf.constant(1.0 + k)))] for k in range(STEPS)] + [float(v)]

    step, ours = run(terra.coexecute(wait_for_graph=True))
    assert ours == run(lambda f: f)[1]
    stats = step.stats()
    if program in (coordinated, looper):
        assert stats.imperative_steps >= STEPS - 1
    else:  # what may use any variable has those steps fall back that have updated one
        assert stats.coexecuted_steps + stats.fallbacks >= 6


def test_collectives_of_horovod_are_imperative_only():
    """None is installed: that of one process would wait for another's for good if it ran in a graph which is cancelled."""
    assert opschema.Schema("HorovodAllreduce", OpDef(name="HorovodAllreduce")).category == opschema.HOST
    assert opschema.Schema("Identity", OpDef(name="Identity")).category == opschema.GRAPH
