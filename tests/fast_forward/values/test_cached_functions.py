"""Functions with a `functools.lru_cache` in steps that are skipped: their answers are asked for again only where the cache is sure to know them."""

import functools
import random

import pytest
import tensorflow as tf

import terra

STEPS = 80


def on_a_branch():
    """On a way that most steps do not take."""
    calls, v = [], tf.Variable(0.0)

    @functools.lru_cache(maxsize=2)
    def cached(k):
        calls.append(k)
        return k * 0.1

    def step():
        by = 0.1
        if random.random() < 0.2:
            by += cached(1)
        v.assign_add(by)
        return v * by

    return step, lambda k: cached.cache_clear() if k % 3 == 0 else None, lambda: len(calls)


def that_draws():
    v = tf.Variable(0.0)

    @functools.lru_cache(maxsize=2)
    def cached(k):
        return random.random()

    def step():
        by = random.random()
        v.assign_add(by * cached(1))
        return v * by

    return step, lambda k: cached.cache_clear() if k in (23, 41, 60) else None, random.random


def that_raises():
    v, calls, bad = tf.Variable(0.0), [], []

    @functools.lru_cache
    def cached(k):
        calls.append(k)
        if bad:
            raise ValueError("bad")
        return k * 0.1

    def step():
        v.assign_add(1.0)
        v.assign_add(cached(1))
        return v * 2.0

    def change(k):
        if k == 23:
            cached.cache_clear()
            bad.append(1)
        elif k == 27:
            bad.clear()

    return step, change, lambda: (len(calls), float(v))


def that_forgets():
    """Others use it meanwhile, until it has forgotten what the step asks for; later it gives something else."""
    v, calls = tf.Variable(0.0), []

    @functools.lru_cache(maxsize=8)
    def cached(k):
        calls.append(k)
        return k * 0.1 + len(calls)

    def step():
        v.assign_add(cached(1))
        return v * 2.0

    return step, lambda k: cached(k) if k > 30 else None, lambda: len(calls)


def filled_again():
    """Emptied, and filled with as much as was in it, between two steps."""
    v, number = tf.Variable(0.0), [0]

    @functools.lru_cache
    def cached(k):
        number[0] += 1
        return k * 0.5 + number[0]

    def step():
        v.assign(v * 0.5 + cached(1))
        return v * 2.0

    def change(k):
        if k % 20 == 19:
            cached.cache_clear()
            for other in range(k // 20 + 1):
                cached(1 + other)

    return step, change, lambda: number[0]


@pytest.mark.all_variants
@pytest.mark.parametrize("make", [on_a_branch, that_draws, that_raises, that_forgets, filled_again])
def test_such_functions_run_as_often(make):
    found = []
    for wrap in (lambda step: step), lambda step: terra.coexecute(step, wait_for_graph=True):
        random.seed(7)
        step, change, state = make()
        step, results = wrap(step), []
        for k in range(STEPS):
            change(k)
            try:
                results.append((float(step()), state()))
            except ValueError as error:
                results.append((str(error), state()))
        found.append(results)
    assert found[0] == found[1]
    assert step.stats().whole_steps >= 20, terra.explain(step)
