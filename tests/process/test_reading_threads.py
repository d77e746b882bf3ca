"""Threads that read tensors of a step while it runs."""

import concurrent.futures
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

OPTIONS = [{}, {"fast_forward": False}, {"loops": "roll"}, {"run_ahead": 0}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_pool_reads_while_the_step_goes_on(options):
    def run(wrap):
        total = tf.Variable(0.0)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            @wrap
            def step(x):
                y = x * 2.0
                reads = [pool.submit(float, y + float(i)) for i in range(3)]
                for _ in range(5):
                    y = y * 1.0
                s = sum(read.result() for read in reads)
                total.assign_add(s)
                return y * s

            return [float(step(tf.constant(float(i % 5)))) for i in range(60)], float(total), step

    *expected, _ = run(lambda step: step)
    *actual, step = run(terra.coexecute(wait_for_graph=True, **options))
    assert actual == expected and step.stats().coexecuted_steps >= 15


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_watching_thread(options):
    """A monitor reads whatever tensor is the latest, whenever it likes."""
    def run(wrap):
        latest, seen, weights = [], [], tf.Variable(np.eye(4, dtype="float32"))
        done = threading.Event()

        def monitor():
            while not done.is_set():
                if latest:
                    seen.append(float(latest[-1]))

        @wrap
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights) ** 2.0)
                latest.append(loss)
            gradient = tape.gradient(loss, weights)
            for _ in range(4):
                gradient = gradient * 0.5
            weights.assign_sub(gradient)
            return loss

        thread = threading.Thread(target=monitor)
        thread.start()
        try:
            losses = [float(step(tf.constant(np.random.RandomState(i).normal(size=(3, 4)).astype("float32")))) for i in range(60)]
        finally:
            done.set()
            thread.join()
        assert set(seen) <= set(losses)
        return losses, weights.numpy().tolist(), step

    *expected, _ = run(lambda step: step)
    *actual, step = run(terra.coexecute(wait_for_graph=True, **options))
    assert actual == expected and step.stats().steps == 60


def test_a_thread_that_reads_in_an_imperative_operation():
    """The step's own thread waits for it, inside of Terra."""
    @terra.coexecute(wait_for_graph=True)
    def step(x):
        y = x * 2.0

        def reads(z):
            read = []
            thread = threading.Thread(target=lambda: read.append(float(y)))
            thread.start()
            thread.join()
            return z + read[0]

        return tf.py_function(reads, [x], tf.float32) + 1.0

    assert [float(step(tf.constant(float(k)))) for k in range(8)] == [3.0 * k + 1.0 for k in range(8)]
    assert step.stats().coexecuted_steps >= 3


@pytest.mark.parametrize("tape_class", [tf.GradientTape, terra.GradientTape])
def test_replicas_run_imperatively(tape_class, caplog):
    """A replica's thread waits, in the middle of `apply_gradients`, for the main thread, which goes on with what the step has computed."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def run(wrap):
        keras.utils.set_random_seed(2)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
            optimizer = keras.optimizers.Adam(0.01)
            optimizer.build(model.trainable_variables)

        def step(x):
            with tape_class() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        step = wrap(step)
        losses = [float(strategy.run(step, args=(tf.ones((2, 3)) * i,))) for i in range(8)]
        return losses, [v.numpy().tolist() for v in model.variables], step

    *expected, _ = run(lambda step: step)
    start = time.perf_counter()
    *actual, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert time.perf_counter() - start < 60
    assert step.stats().imperative_steps == step.stats().steps == 8
    assert "runs imperatively, because a distribution strategy" in caplog.text
