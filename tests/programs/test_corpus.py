"""The programs of the corpus, eagerly and co-executed, read now or late; and proof that the comparison can fail.

One program:       pytest tests/programs/test_corpus.py -k "read_assign_read and late"
One module:        pytest tests/programs/test_corpus.py -k "control_flow-"
Only the corpus's own soundness (eager against eager):  TERRA_CORPUS_EAGER=1 pytest tests/programs/test_corpus.py
"""
import contextlib
import gc
import inspect
import io
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tensorflow as tf

from tests import corpus
from tests import harness
from tests.variants import ALL


PROGRAMS = corpus.load()
gc.freeze()   # each reset of Keras collects garbage: 0.15 s with all of TensorFlow's objects, nothing without


OPERATIONS = ("keras3", "tfkeras", "functions", "data", "tapes")  # these are about operations and layers, which other tests have, too: every other program


def modes_of(spec, k):
    """All modes, or one of them, which is another one for the next program."""
    if ALL:
        return spec.modes
    return spec.modes[k // 2 % len(spec.modes):][:1] if spec.module not in OPERATIONS or k % 2 else ()


CASES = [pytest.param(spec, mode, id=f"{spec.module}-{spec.name}-{mode}") for k, spec in enumerate(PROGRAMS.values()) for mode in modes_of(spec, k)]


@pytest.mark.all_variants
@pytest.mark.parametrize("spec, mode", CASES)
def test_same_as_eager(spec, mode):
    harness.check(spec, mode)


def test_corpus_is_large_enough():
    assert len(PROGRAMS) >= 70


# ------------------------------------------------------------------------------- the oracle catches planted defects

@dataclass
class Stats:
    steps: int = 0
    tracing_steps: int = 0
    coexecuted_steps: int = 0
    imperative_steps: int = 0
    graphs: int = 1
    fallbacks: int = 0


class Pretender:
    """Runs the step eagerly and says that it was co-executed; subclasses each have one defect."""
    traced = 2

    def __init__(self, step):
        self.step, self.counts = step, Stats()

    def __call__(self, *args, **kwargs):
        self.counts.steps += 1
        traced = self.counts.steps <= self.traced
        self.counts.tracing_steps += traced
        self.counts.coexecuted_steps += not traced
        return self.step(*args, **kwargs) if traced else self.coexecuted(*args, **kwargs)

    def coexecuted(self, *args, **kwargs):
        return self.step(*args, **kwargs)

    def stats(self):
        return replace(self.counts)


class RunsTwice(Pretender):
    def coexecuted(self, *args, **kwargs):
        self.step(*args, **kwargs)
        return self.step(*args, **kwargs)


class StaleValue(Pretender):
    last = None

    def coexecuted(self, *args, **kwargs):
        result, self.last = self.last, self.step(*args, **kwargs)
        return self.last if result is None else result


class StaleWhenReadLate(Pretender):
    """All calls hand out one buffer: right if read at once, wrong if read after the next step."""
    buffer = None

    def coexecuted(self, *args, **kwargs):
        result = self.step(*args, **kwargs)
        self.buffer = self.buffer or [None]
        self.buffer[0] = result
        return self.buffer


class ExtraDraw(Pretender):
    def coexecuted(self, *args, **kwargs):
        tf.random.normal([1])
        return self.step(*args, **kwargs)


class ExtraPrint(Pretender):
    def coexecuted(self, *args, **kwargs):
        result = self.step(*args, **kwargs)
        print()
        return result


class PrintsAfterwards(Pretender):
    """Python's output comes out before the kernels'."""

    def coexecuted(self, *args, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            result = self.step(*args, **kwargs)
        print(text.getvalue(), end="")
        return result


class WrongExceptionType(Pretender):
    def coexecuted(self, *args, **kwargs):
        try:
            return self.step(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(*error.args).with_traceback(error.__traceback__) from error.__cause__


class WrongExceptionLine(Pretender):
    def coexecuted(self, *args, **kwargs):
        try:
            return self.step(*args, **kwargs)
        except Exception as error:
            raise error.with_traceback(None)


class SwallowsException(Pretender):
    def coexecuted(self, *args, **kwargs):
        with contextlib.suppress(Exception):
            return self.step(*args, **kwargs)


class LosesUpdates(Pretender):
    def coexecuted(self, *args, **kwargs):
        layers = inspect.getclosurevars(self.step).nonlocals["layers"]
        saved = [[v.numpy() for v in layer] for layer in layers]
        result = self.step(*args, **kwargs)
        for v, value in zip(layers[0], saved[0]):
            v.assign(value)
        return result


class LastBitOff(Pretender):
    def coexecuted(self, *args, **kwargs):
        loss, norm = self.step(*args, **kwargs)
        return tf.constant(np.nextafter(loss.numpy(), np.float32(np.inf))), norm


class NumpyInsteadOfTensors(Pretender):
    def coexecuted(self, *args, **kwargs):
        return tuple(t.numpy() for t in self.step(*args, **kwargs))


class CopiesTheResult(Pretender):
    def coexecuted(self, *args, **kwargs):
        return list(self.step(*args, **kwargs))


class SkipsSideEffects(Pretender):
    """What tf.function does: Python code runs while tracing only."""

    def coexecuted(self, *args, **kwargs):
        return tf.reduce_sum(args[0])


DEFECTS = [(RunsTwice, "mlp_by_hand"), (RunsTwice, "list_dict_set_and_deque_mutated"), (StaleValue, "mlp_by_hand"),
           (StaleWhenReadLate, "mlp_by_hand"), (ExtraDraw, "tf_random_distributions"), (ExtraPrint, "mlp_by_hand"),
           (PrintsAfterwards, "tf_print_in_order_with_print"), (WrongExceptionType, "python_exception_in_some_calls"),
           (WrongExceptionLine, "python_exception_in_some_calls"), (SwallowsException, "bad_gather_index"),
           (LosesUpdates, "mlp_by_hand"), (LastBitOff, "mlp_by_hand"), (NumpyInsteadOfTensors, "mlp_by_hand"),
           (CopiesTheResult, "returns_the_list_that_it_mutates"), (SkipsSideEffects, "log_records_and_warnings")]


@pytest.mark.parametrize("mode", ["now", "late"])  # no graph starts at all
@pytest.mark.parametrize("defect, name", [pytest.param(d, n, id=f"{d.__name__}-{n}") for d, n in DEFECTS])
def test_oracle_catches(defect, name, mode):
    spec = PROGRAMS[name]
    expected = harness.run_eager(spec, mode)
    harness.assert_same(spec, expected, harness.run_terra(spec, mode, Pretender))
    found = harness.compare(spec, expected, harness.run_terra(spec, mode, defect))
    assert any("(co-executed)" in sentence or "at the end" in sentence for sentence in found)


class NeverCoexecutes(Pretender):
    traced = 1000


class ForgetsOneInputSet(Pretender):
    def stats(self):
        odd = self.counts.coexecuted_steps // 2
        return replace(self.counts, coexecuted_steps=odd, tracing_steps=self.counts.steps - odd)


class FallsBackAllTheTime(Pretender):
    def stats(self):
        return replace(self.counts, fallbacks=self.counts.steps)


class LosesCount(Pretender):
    def stats(self):
        return replace(self.counts, tracing_steps=self.counts.tracing_steps + 1)


@pytest.mark.skipif(harness.EAGER_ONLY, reason="nothing is co-executed")
@pytest.mark.parametrize("defect, message", [
    (NeverCoexecutes, "co-executed 0 times"), (ForgetsOneInputSet, "was co-executed"),
    (FallsBackAllTheTime, "fallbacks"), (LosesCount, "do not add up")])
def test_a_run_without_coexecution_fails(defect, message):
    spec = PROGRAMS["mlp_by_hand"]
    harness.assert_coexecuted(spec, harness.run_terra(spec, "now", Pretender))
    with pytest.raises(AssertionError, match=message):
        harness.assert_coexecuted(spec, harness.run_terra(spec, "now", defect))


# -------------------------------------------------------------------------------------- errors of steps that ran ahead

@pytest.mark.skipif(harness.EAGER_ONLY, reason="needs steps in flight")
def test_kernel_error_with_run_ahead_surfaces_at_the_next_synchronisation():
    import terra
    v = tf.Variable([1.0, 2.0])

    def step(x, index):
        v.assign_add(x)
        return tf.gather(x, index)

    x, wrapped = tf.constant([1.0, 1.0]), harness.coexecuted(step, run_ahead=2)
    for i in range(6):
        wrapped(x, tf.constant(i % 2))
    assert wrapped.stats().coexecuted_steps > 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices = 9 is not in"):
        wrapped(x, tf.constant(9))
        terra.sync()
    np.testing.assert_array_equal(v.numpy(), [8.0, 9.0])   # as in eager: the update comes before the error
    np.testing.assert_array_equal(wrapped(x, tf.constant(1)).numpy(), 1.0)
    np.testing.assert_array_equal(v.numpy(), [9.0, 10.0])
