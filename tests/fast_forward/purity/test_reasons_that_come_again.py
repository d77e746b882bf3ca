"""What cannot be skipped is soon left alone, so that a program does not pay for recording it."""

import collections
import inspect

import keras
import tensorflow as tf

from terra.runtime.execution.program import Program
from tests import harness
from tests.fast_forward.purity import training


class LooksAtItsFrame(keras.layers.Layer):
    def call(self, x):
        return x * float(inspect.currentframe().f_code.co_argcount)


def program():
    model = keras.Sequential([keras.layers.Dense(6), LooksAtItsFrame(), keras.layers.Dense(6)])
    model.build((None, 6))
    step = training.trains(model, keras.optimizers.SGD(0.01), lambda y: tf.reduce_mean(y ** 2))
    return step, lambda step, k: step(training.DATA[k]), lambda: model.weights


def test_the_same_reason_twice_in_a_row_is_believed(monkeypatch):
    tried, note = collections.Counter(), Program.note_unskippable

    def noted(program, place, why, counts=False):
        tried[place] += "currentframe" in why
        return note(program, place, why, counts)

    monkeypatch.setattr(Program, "note_unskippable", noted)
    harness.compare_steps(program, whole=0, express=0, n=40)
    assert 1 <= max(tried.values()) <= 3
