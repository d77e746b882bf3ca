"""A run that was observed leaves nothing that the garbage collector has to find, and what it has handed out goes on working."""

import gc

import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.purity.observer import Observer
from terra.runtime.fast_forward.purity.run import Handler, Run

KEPT = []


class Layer(tf.keras.layers.Layer):
    """A layer of the program's, which the framework calls."""

    def call(self, x):
        return x * 3.0 + len([x])


MODEL = tf.keras.Sequential([Layer(), tf.keras.layers.Dense(2)])


def pure(x):
    return tf.reduce_sum(x * 2.0)


def impure(x):
    KEPT.append(object())
    return tf.reduce_sum(x * len(KEPT))


def within_the_framework(x):
    return tf.reduce_sum(MODEL(x))


def raising(x):
    if len(KEPT) % 3 == 2:
        KEPT.append(x)
        raise ValueError("as the program does")
    KEPT.append(None)
    return tf.reduce_sum(x)


def left():
    """The runs and handlers that are there."""
    return [type(x).__name__ for x in gc.get_objects() if isinstance(x, (Observer, Run, Handler))]


@pytest.mark.all_variants
@pytest.mark.parametrize("function", [pure, impure, within_the_framework, raising])
def test_nothing_waits_for_the_garbage_collector(function, monkeypatch):
    KEPT.clear()
    begun = []
    monkeypatch.setattr(Observer, "__enter__", lambda observer, enter=Observer.__enter__: begun.append(1) or enter(observer))
    step = terra.coexecute(wait_for_graph=True)(function)
    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(12):
            try:
                step(tf.ones([2, 3]))
            except ValueError:
                assert function is raising
        assert left() == before
    finally:
        gc.enable()
    assert begun, "nothing was observed"


def odd(x):
    return x % 2 == 1


def iterators(x):
    """Keeps iterators that show what they go through to whoever observes."""
    KEPT.append([filter(odd, [1, 2, 3]), filter(None, [0, 4, 5]), map(str, [6, 7]), map(odd, [8, 9]), filter(lambda y: max([y, 1]) > 1, [1, 2])])
    return tf.reduce_sum(x)


def test_what_a_run_has_handed_out_works_behind_its_end(monkeypatch):
    begun = []
    monkeypatch.setattr(Observer, "__enter__", lambda observer, enter=Observer.__enter__: begun.append(1) or enter(observer))

    def run(step):
        KEPT.clear()
        for _ in range(10):
            step(tf.ones([2, 3]))
        return [[list(it) for it in made] for made in KEPT]

    expected = run(iterators)
    assert run(terra.coexecute(wait_for_graph=True)(iterators)) == expected
    assert begun, "nothing was observed"
