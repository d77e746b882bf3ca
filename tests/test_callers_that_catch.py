"""Failing steps that libraries call: the error comes in that very call, as eagerly."""

import concurrent.futures
import contextlib
import multiprocessing.pool
import unittest

import pytest
import tensorflow as tf

import terra
from unwaited import unwaited

GOOD, BAD = tf.constant([0, 1]), tf.constant([0, 9])
FAILURE = tf.errors.InvalidArgumentError


def by_unittest(step, x):
    unittest.TestCase().assertRaises(FAILURE, step, x)


def by_a_lambda(step, x):
    unittest.TestCase().assertRaises(FAILURE, lambda: step(x))


def by_pytest(step, x):
    pytest.raises(FAILURE, step, x)


def by_pool_of_threads(step, x):
    with multiprocessing.pool.ThreadPool(1) as pool, pytest.raises(FAILURE):
        pool.apply(step, (x,))


def by_a_future(step, x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(step, x).exception(), FAILURE)


def by_a_stack(step, x):
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None)
        unittest.TestCase().assertRaisesRegex(FAILURE, "9 is not in", step, x)


@pytest.mark.parametrize("caller", [by_unittest, by_a_lambda, by_pytest, by_pool_of_threads, by_a_future, by_a_stack], ids=lambda f: f.__name__)
def test_a_caller_that_catches(caller):
    v = tf.Variable([1.0, 2.0, 3.0])

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        loss = tf.reduce_sum(tf.gather(v, i))
        v.assign_sub([0.1, 0.1, 0.1])
        return loss

    for _ in range(10):
        step(GOOD)
    before = v.numpy().tolist()
    caller(step, BAD)
    assert v.numpy().tolist() == before
    assert step.stats().coexecuted_steps >= 6


def test_what_a_failed_step_gave_is_used():
    """The operation raises the kernel's error."""
    @terra.coexecute(wait_for_graph=True)
    def step(i):
        return tf.reduce_sum(tf.gather(tf.constant([1.0, 2.0]), i))

    for use in (lambda x: tf.constant(0.0) + x, lambda x: tf.add_n([x, x]), lambda x: tf.stack([x, x]), tf.function(lambda x: x * 2.0)):
        for _ in range(8):
            step(GOOD)
        failed = unwaited(step, BAD)
        with pytest.raises(FAILURE, match="9 is not in"):
            use(failed)
        with pytest.raises(FAILURE, match="9 is not in"):
            use(failed)
