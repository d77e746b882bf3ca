"""Failing steps that libraries call: the error comes in that very call, as eagerly."""

import asyncio
import concurrent.futures
import contextlib
import functools
import multiprocessing.pool
import threading
import timeit
import unittest

import pytest
import tensorflow as tf

import terra
from tests.unwaited import unwaited

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


def by_asyncio(step, x):
    async def main():
        return await asyncio.gather(asyncio.to_thread(step, x), return_exceptions=True)

    assert isinstance(asyncio.run(main())[0], FAILURE)


def by_an_executor_of_asyncio(step, x):
    async def main():
        return await asyncio.get_running_loop().run_in_executor(None, step, x)

    with pytest.raises(FAILURE):
        asyncio.run(main())


def by_a_coroutine(step, x):
    async def call():
        return step(x)

    async def main():
        return await asyncio.gather(call(), return_exceptions=True)

    assert isinstance(asyncio.run(main())[0], FAILURE)


def retried(times):
    """As libraries that try again have it."""
    def decorator(function):
        @functools.wraps(function)
        def call(*args):
            errors = []
            for _ in range(times):
                try:
                    return function(*args)
                except Exception as error:
                    errors.append(type(error))
            return errors

        return call

    return decorator


def by_a_retrying_decorator(step, x):
    assert retried(3)(step)(x) == [FAILURE] * 3


def by_a_partial_that_is_mapped(step, x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        results = pool.map(functools.partial(step), [x])
        with pytest.raises(FAILURE):
            list(results)


def by_a_thread(step, x):
    seen = []

    def run():
        try:
            step(x)
        except FAILURE as error:
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(seen) == 1


def by_a_timer(step, x):
    with pytest.raises(FAILURE):
        timeit.timeit(lambda: step(x), number=1)


def by_sorting(step, x):
    with pytest.raises(FAILURE):
        sorted([x], key=step)


CALLERS = [by_unittest, by_a_lambda, by_pytest, by_pool_of_threads, by_a_future, by_a_stack, by_asyncio, by_an_executor_of_asyncio, by_a_coroutine, by_a_retrying_decorator,
           by_a_partial_that_is_mapped, by_a_thread, by_a_timer, by_sorting]


@pytest.mark.all_variants
@pytest.mark.parametrize("caller", CALLERS, ids=lambda f: f.__name__)
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


class Transaction:
    """Takes back what was done to a variable if there is an error, and goes on."""

    def __init__(self, v, log, passes):
        self.v, self.log, self.passes = v, log, passes

    def __enter__(self):
        self.before = self.v.numpy()
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.v.assign(self.before * 2.0)
            self.log.append((kind.__name__, "is not in" in str(error)))
        else:
            self.log.append("done")
        return self.passes


class Passing(Transaction):
    def __exit__(self, *error):
        return super().__exit__(*error)


class Logged(contextlib.ContextDecorator):
    def __init__(self, v, log, passes):
        self.inner = Transaction(v, log, passes)

    def __enter__(self):
        return self.inner.__enter__()

    def __exit__(self, *error):
        return self.inner.__exit__(*error)


@contextlib.contextmanager
def transaction(v, log, passes):
    before = v.numpy()
    try:
        yield
    except tf.errors.OpError as error:
        v.assign(before * 2.0)
        log.append((type(error).__name__, "is not in" in str(error)))
        if not passes:
            raise
    else:
        log.append("done")


class Trainer:
    def __init__(self, manager):
        self.manager = manager

    def guarded(self, step, x):
        with self.manager:
            return step(x)


def in_a_class(step, v, log, x):
    with Transaction(v, log, True):
        step(x)


def in_a_derived_class(step, v, log, x):
    with Passing(v, log, True) as entered:
        assert entered.v is v
        step(x)


def in_a_name(step, v, log, x):
    manager = Transaction(v, log, True)
    with manager:
        step(x)


def in_an_attribute(step, v, log, x):
    Trainer(Transaction(v, log, True)).guarded(step, x)


def in_a_generator(step, v, log, x):
    with transaction(v, log, True):
        step(x)


def in_a_generator_with_a_name(step, v, log, x):
    manager = transaction(v, log, True)
    with manager:
        step(x)


def among_others(step, v, log, x):
    with contextlib.nullcontext(), Transaction(v, log, True):
        step(x)


def in_a_loop(step, v, log, x):
    with Transaction(v, log, True):
        for one in (GOOD, x, GOOD):
            step(one)


def that_raises_again(step, v, log, x):
    try:
        with transaction(v, log, False):
            step(x)
    except FAILURE:
        log.append("raised")


def in_a_stack(step, v, log, x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(FAILURE))
        stack.enter_context(Transaction(v, log, False))
        step(x)


def around_a_function(step, v, log, x):
    @Logged(v, log, True)
    def call():
        step(x)

    call()


MANAGERS = [in_a_class, in_a_derived_class, in_a_name, in_an_attribute, in_a_generator, in_a_generator_with_a_name, among_others, in_a_loop, that_raises_again, in_a_stack, around_a_function]


@pytest.mark.all_variants
@pytest.mark.parametrize("use", MANAGERS, ids=lambda f: f.__name__)
def test_a_context_manager_that_looks_at_errors(use):
    def run(decorate):
        v, log = tf.Variable([1.0, 2.0, 3.0]), []

        def train(i):
            loss = tf.reduce_sum(tf.gather(v, i))
            v.assign_sub([0.1, 0.1, 0.1])
            return loss

        step = decorate(train)
        for k in range(20):
            use(step, v, log, BAD if k % 6 == 5 else GOOD)
            log.append(k)
        return step, (log, v.numpy().tolist())

    _, expected = run(lambda f: f)
    step, found = run(terra.coexecute(wait_for_graph=True))
    assert found == expected
    assert step.stats().coexecuted_steps >= 8, step.stats()


@pytest.mark.all_variants
@pytest.mark.parametrize("kind", ["class", "generator", "attribute", "stack"])
def test_such_a_manager_in_a_step(kind):
    def run(decorate):
        v, log = tf.Variable([1.0, 2.0, 3.0]), []
        held = Trainer(Transaction(v, log, True))

        def train(i):
            before = v * 2.0
            if kind == "class":
                with Transaction(v, log, True):
                    v.assign_sub(tf.gather(v, i)[0] * [0.1, 0.1, 0.1])
            elif kind == "generator":
                with transaction(v, log, True):
                    v.assign_sub(tf.gather(v, i)[0] * [0.1, 0.1, 0.1])
            elif kind == "attribute":
                with held.manager:
                    v.assign_sub(tf.gather(v, i)[0] * [0.1, 0.1, 0.1])
            else:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(Transaction(v, log, True))
                    v.assign_sub(tf.gather(v, i)[0] * [0.1, 0.1, 0.1])
            return tf.reduce_sum(before - v)

        step = decorate(train)
        for k in range(20):
            log.append(float(step(tf.constant([9, 0]) if k % 6 == 5 else GOOD)))
        return step, (log, v.numpy().tolist())

    _, expected = run(lambda f: f)
    step, found = run(terra.coexecute(wait_for_graph=True))
    assert found == expected
    assert step.stats().coexecuted_steps >= 4, terra.explain(step)


def test_a_manager_that_only_cleans_up_is_not_waited_for():
    class Clock:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            del self

    v = tf.Variable([1.0, 2.0, 3.0])

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        return tf.reduce_sum(tf.gather(v, i))

    with Clock():
        for _ in range(10):
            step(GOOD)
    with pytest.raises(FAILURE, match="9 is not in"):
        with Clock():
            late = unwaited(step, BAD)
            came = "behind"
        float(late)
    assert came == "behind"
