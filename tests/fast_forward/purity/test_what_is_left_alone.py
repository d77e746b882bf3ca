"""What cannot be skipped is soon left alone, so that a program does not pay for recording it; and raises what it raises eagerly."""

import collections
import inspect
import statistics
import traceback
import warnings

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

    def noted(program, place, why, *more):
        tried[place] += "currentframe" in why
        return note(program, place, why, *more)

    monkeypatch.setattr(Program, "note_unskippable", noted)
    harness.compare_steps(program, whole=0, express=0, n=40)
    assert 1 <= max(tried.values()) <= 3


class Raises(keras.layers.Layer):
    """Calls a function of a library's, which looks for its caller, and fails in each third step."""

    def __init__(self):
        super().__init__()
        self.times = 0

    def call(self, x):
        self.times += 1
        statistics.mean([] if self.times % 3 == 0 else [1.0, 2.0])
        warnings.warn("it is old", stacklevel=1)
        return x * 2.0


def test_a_call_that_raises_has_the_lines_that_it_has_eagerly():
    shown = []
    for wrap in (lambda f: f, harness.coexecuted):
        layer, lines = Raises(), []
        step = wrap(lambda x, layer=layer: layer(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(40):
                try:
                    step(training.DATA[k])
                except statistics.StatisticsError as error:
                    lines.append([*traceback.format_exception(error)])
        shown.append(lines)
    assert shown[0] == shown[1] and len(shown[0]) > 10 and step.stats().coexecuted_steps > 15

