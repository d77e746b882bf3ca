"""Steps that branch on what they compute, by the express way: the graph is told what it should compute there, and does nothing if that is wrong."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.steps import step_cache, detached_step
from tests import harness

RNG = np.random.default_rng(5)
X = [tf.constant(RNG.normal(size=(6, 4)), tf.float32) for _ in range(4)]
HIGH, LOW = tf.fill([6, 4], 0.7), tf.fill([6, 4], -0.7)


class Case:
    """`step(x)` learns from an x, one for each number in `turns`."""

    fewest = 18  # express steps, at least
    options = {}
    turns = [0] * 22 + [1, 0, 0, 1, 1, 1] + [0] * 8 + [1] * 6 + [0] * 4

    def __init__(self):
        self.w = tf.Variable(tf.fill([4, 3], 0.1))
        self.log = []

    def given(self, k, turn):
        return ((LOW if turn else HIGH) + X[k % 4] * 0.01,)

    def learn(self, y, x):
        self.w.assign_add(0.01 * tf.matmul(x, tf.tanh(y), transpose_a=True))
        return tf.reduce_sum(self.w)


class If(Case):
    def step(self, x):
        y = x @ self.w
        if tf.reduce_sum(x) > 0:
            y = y * 2.0
        return self.learn(y, x)


class Integer(Case):
    def step(self, x):
        for _ in range(int(tf.math.count_nonzero(tf.reduce_sum(x, 1) > 0)) // 3 + 1):
            x = tf.tanh(x)
        return self.learn(x @ self.w, x)


class Long(Case):
    """64 bits of an integer count."""

    def step(self, x):
        many = tf.where(tf.reduce_sum(x) > 0, tf.constant(2**40, tf.int64), tf.constant(2**40 + 1, tf.int64))
        return self.learn((x @ self.w) * (2.0 if int(many) == 2**40 else 3.0), x)


class Small(Case):
    """So do the sign, and other types."""

    def step(self, x):
        sign = tf.cast(tf.sign(tf.reduce_sum(x)), tf.int8)
        return self.learn((x @ self.w) * (2.0 if int(sign) < 0 else 3.0), x)


class Cond(Case):
    def step(self, x):
        y = x @ self.w
        return self.learn(tf.cond(tf.reduce_mean(x) > 0, lambda: tf.nn.relu(y), lambda: y * y), x)


class SwitchCase(Case):
    def step(self, x):
        y = x @ self.w
        which = tf.cast(tf.reduce_sum(x) > 0, tf.int32) + tf.cast(tf.reduce_sum(x) > 1e6, tf.int32)
        return self.learn(tf.switch_case(which, [lambda: y, lambda: y * 2.0, lambda: tf.tanh(y)]), x)


class SwitchCaseOfPairs(SwitchCase):
    def step(self, x):
        y = x @ self.w
        branches = {0: lambda: y, 1: lambda: (lambda z: z * 2.0)(y)}
        return self.learn(tf.switch_case(tf.cast(tf.reduce_sum(x) > 0, tf.int32), branches, default=lambda: tf.tanh(y)), x)


class SwitchOnAnArgument(Case):
    """The index comes with the step."""

    def given(self, k, turn):
        return X[k % 4], tf.constant(turn + k % 2)

    def step(self, x, which):
        y = x @ self.w
        return self.learn(tf.switch_case(which, [lambda: y, lambda: y * 2.0, lambda: tf.tanh(y)]), x)


class BranchOnAnArgument(Case):
    """Python looks at an integer that comes with the step."""

    def given(self, k, turn):
        return X[k % 4], tf.constant(turn)

    def step(self, x, turn):
        y = x @ self.w
        return self.learn(y * 2.0 if turn > 0 else tf.tanh(y), x)


class ReadsAnArgument(BranchOnAnArgument):
    """Nothing is read from the graph."""

    def step(self, x, turn):
        y = x @ self.w
        return self.learn(y * 2.0 if int(turn) > 0 else tf.tanh(y), x)


class TfCase(Case):
    """The second condition is computed where the first one does not hold."""

    def step(self, x):
        y, mean = x @ self.w, tf.reduce_mean(x)
        y = tf.case([(mean > 0.6, lambda: tf.nn.relu(y)), (mean < -0.6, lambda: tf.tanh(y))], default=lambda: y * 3.0)
        return self.learn(y, x)


class TfCaseOfOneOnly(TfCase):
    """TensorFlow asserts that at most one condition holds."""

    def step(self, x):
        y, mean = x @ self.w, tf.reduce_mean(x)
        return self.learn(tf.case([(mean > 0.6, lambda: tf.nn.relu(y)), (mean < -0.6, lambda: tf.tanh(y))], exclusive=True), x)


class Elif(Case):
    turns = [0] * 30 + [1] * 10 + [2] * 10 + [0, 1, 2, 2, 1, 0]

    def given(self, k, turn):
        return ((HIGH, LOW, LOW * 0.01)[turn] + X[k % 4] * 0.001,)

    def step(self, x):
        mean = tf.reduce_mean(x)
        if mean > 0.5:
            y = x @ self.w
        elif tf.reduce_mean(tf.square(x)) > 0.1:
            y = tf.tanh(x @ self.w)
        else:
            y = tf.nn.relu(x @ self.w)
        return self.learn(y, x)


class ElifOfNumbers(Elif):
    def step(self, x):
        mean = float(tf.reduce_mean(x))
        if mean > 0.5:
            y = x @ self.w
        elif float(tf.reduce_mean(tf.square(x))) > 0.1:
            y = tf.tanh(x @ self.w)
        else:
            y = tf.nn.relu(x @ self.w)
        return self.learn(y, x)


class Counting(Case):
    """What Python does, it does once, however often the graph runs."""

    def __init__(self):
        super().__init__()
        self.ups = self.downs = 0

    def step(self, x):
        y = x @ self.w
        if tf.reduce_sum(x) > 0:
            self.ups += 1
        else:
            self.downs += 1
            self.log.append("down")
            y = tf.tanh(y)
        return self.learn(y, x)


class Drawing(Case):
    """So does NumPy."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(3)

    def step(self, x):
        noise = tf.constant(self.rng.normal(0.0, 0.01, (6, 4)), tf.float32)
        y = (x + noise) @ self.w
        if tf.reduce_sum(x) > 0:
            y = tf.tanh(y)
        return self.learn(y, x)


class GeneratorOfTensorflow(Case):
    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(7)

    def step(self, x):
        y = (x + 0.01 * self.generator.normal([6, 4])) @ self.w
        if tf.reduce_sum(x) > 0:
            y = tf.tanh(y)
        return self.learn(y, x)


class GivesTheCondition(Case):
    """It is read, and given as a tensor and as a number."""

    def step(self, x):
        up = tf.reduce_sum(x) > 0
        value = self.learn(x @ self.w if up else tf.tanh(x @ self.w), x)
        return up, bool(up), value, float(value)


class Exactly(Case):
    """Values that are at the limit, just above, just below, infinite, or no numbers."""

    VALUES = [1.5, 2.5, 2.0, np.nextafter(np.float32(2), np.float32(3)), np.nextafter(np.float32(2), np.float32(1)), np.inf, -np.inf, np.nan]
    turns = [0] * 25 + [1] * 4 + [2, 3, 4, 2, 0, 0, 3, 3, 4, 4, 1, 2, 2, 2] + [5, 6, 7, 0, 0, 7, 7, 0, 5, 5, 5, 6, 6] + [0] * 8
    fewest = 10
    dtype = tf.float32

    def given(self, k, turn):
        return X[k % 4], tf.constant([type(self.VALUES[turn])(0), self.VALUES[turn]], self.dtype)

    def step(self, x, y):
        value = self.read(tf.reduce_sum(y))
        return self.learn((x @ self.w) * (2.0 if self.holds(value) else 3.0), x)

    read = staticmethod(float)

    @staticmethod
    def holds(value):
        return value > 2.0


class AboveZero(Exactly):
    """TensorFlow's kernels take a subnormal number for zero."""

    VALUES = [0.5, -0.5, 0.0, -0.0, np.float32(1e-40), -np.float32(1e-40), 0.0, np.nan]

    def step(self, x, y):
        value = self.read(y[1])
        return self.learn((x @ self.w) * (2.0 if self.holds(value) else 3.0), x)

    @staticmethod
    def holds(value):
        return value > 0.0


class AtLeastZero(AboveZero):
    @staticmethod
    def holds(value):
        return value >= 0.0


class BelowZero(AboveZero):
    @staticmethod
    def holds(value):
        return 0.0 > value


class AtMostZero(AboveZero):
    @staticmethod
    def holds(value):
        return value <= 0


class AtLeast(Exactly):
    @staticmethod
    def holds(value):
        return 2.0 <= value


class Below(Exactly):
    @staticmethod
    def holds(value):
        return value < 2


class AtMost(Exactly):
    @staticmethod
    def holds(value):
        return value <= 2.0


class Equal(Exactly):
    """It is known by its value."""

    fewest = 0

    @staticmethod
    def holds(value):
        return value == 2.0


class Both(Exactly):
    @staticmethod
    def holds(value):
        return value > 1.75 and value < 2.25


class OfNumpy(Exactly):
    """Their numbers are compared with the limit in their own precision."""

    VALUES = [1.0, 1.2, np.float32(1.1), np.nextafter(np.float32(1.1), np.float32(2)), np.nextafter(np.float32(1.1), np.float32(1)), np.inf, -np.inf, np.nan]

    @staticmethod
    def read(x):
        return x.numpy()

    @staticmethod
    def holds(value):
        return value > 1.1


class OfNumpyAtLeast(OfNumpy):
    @staticmethod
    def holds(value):
        return value >= 1.1


class FloatOfNumpysValue(OfNumpy):
    """The same value is more than the limit in Python's precision."""

    read = staticmethod(float)


class Half(Exactly):
    dtype = tf.float16


class Double(Exactly):
    dtype = tf.float64


class OfAnInteger(Exactly):
    VALUES = [1, 3, 2, 2**62, -2**62, 2**63 - 1, -2**63, 0]
    dtype = tf.int64


class OfATruthValue(Exactly):
    VALUES = [False, True] * 4
    dtype = tf.bool

    def step(self, x, y):
        value = float(tf.cast(y[1], tf.int8)) if self.log else float(y[1])
        return self.learn((x @ self.w) * (2.0 if value > 0.5 else 3.0), x)


class OfBrainFloats(Exactly):
    """The bits of these are not compared."""

    dtype = tf.bfloat16
    fewest = 0


class OfUnsignedIntegers(Exactly):
    VALUES = [1, 3, 2, 2**63 + 5, 2**64 - 1, 2, 2, 0]
    dtype = tf.uint64
    fewest = 0


class IsNan(Exactly):
    @staticmethod
    def holds(value):
        return not math.isnan(value)


class IsFinite(Exactly):
    @staticmethod
    def holds(value):
        return math.isfinite(value)


class IsInfinite(Exactly):
    @staticmethod
    def holds(value):
        return math.isinf(value)


class NumpysIsNan(OfNumpy):
    @staticmethod
    def holds(value):
        return np.isnan(value)


class IsFiniteOfATensor(Exactly):
    @staticmethod
    def read(x):
        return x

    @staticmethod
    def holds(value):
        return bool(np.isfinite(value)) and not math.isnan(value)


class ComparedAndGiven(Exactly):
    """A number that is compared may be given all the same."""

    def step(self, x, y):
        value = float(tf.reduce_sum(y))
        result = self.learn((x @ self.w) * (2.0 if value > 2.0 else 3.0), x)
        self.log.append(value)
        return value, result


class ComparedAndUsed(Exactly):
    """One that is calculated with is known by its value."""

    fewest = 0

    def step(self, x, y):
        value = float(tf.reduce_sum(y))
        return self.learn((x @ self.w) * (2.0 if value > 2.0 else 3.0) + min(value, 1.0), x)


class LimitThatChanges(Case):
    """Now and then."""

    turns = [0] * 20 + [1] * 20 + [0] * 10 + [1, 0, 1, 0]
    fewest = 0

    def __init__(self):
        super().__init__()
        self.limit = 1.0

    def step(self, x):
        value = tf.reduce_sum(self.w)
        return self.learn((x @ self.w) * (2.0 if float(value) * 0 + float(value) > self.limit else 3.0), x)

    def given(self, k, turn):
        self.limit = 1000.0 if turn else -1000.0
        return (X[k % 4],)


class LimitOfAnAttribute(LimitThatChanges):
    fewest = 14

    def step(self, x):
        return self.learn((x @ self.w) * (2.0 if float(tf.reduce_sum(self.w)) > self.limit else 3.0), x)


class Optimizer(Case):
    fewest = 10

    def __init__(self):
        super().__init__()
        self.model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1))])
        self.optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=None)
        self.optimizer.build(self.model.trainable_variables)

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self.model(x) - 0.3))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        if norm > 5.0:
            gradients = [g * (5.0 / norm) for g in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss


class Checked(Case):
    """Assertions that hold."""

    def step(self, x):
        tf.debugging.assert_all_finite(x, "x")
        y = x @ self.w
        value = self.learn(y, x)
        tf.debugging.assert_less(tf.reduce_sum(tf.abs(y)), 1e6)
        return value


CASES = [case for case in globals().copy().values() if isinstance(case, type) and issubclass(case, Case) and case is not Case]


def run(kind, wrap):
    keras.utils.set_random_seed(2)
    case = kind()
    step = wrap(case.step)
    seen = [harness.shown(step(*case.given(k, turn))) for k, turn in enumerate(case.turns)]
    seen += [harness.shown(x) for x in vars(case).values() if not isinstance(x, (keras.Model, keras.optimizers.Optimizer, np.random.Generator, tf.random.Generator))]
    if hasattr(case, "model"):
        seen += [harness.shown(v) for v in (*case.model.variables, *case.optimizer.variables)]
    if hasattr(case, "rng"):
        seen.append(case.rng.normal())
    if hasattr(case, "generator"):
        seen.append(harness.shown(case.generator.normal([2])))
    return list(map(repr, seen)), step


@pytest.fixture
def expecting(monkeypatch):
    """Steps are expected to branch as before, without a trial."""
    monkeypatch.setattr(step_cache.StepCache, "_expects", lambda express, number: True)


@pytest.mark.parametrize("kind, trial", [(kind, False) for kind in CASES] + [(kind, True) for kind in (If, Elif, Counting, GeneratorOfTensorflow, Optimizer)])
def test_results_are_eagers(kind, trial, request):
    if not trial:
        request.getfixturevalue("expecting")
    expected, _ = run(kind, lambda step: step)
    seen, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, **kind.options))
    assert seen == expected
    if not trial:
        stats = step.stats()
        assert stats.express_steps >= kind.fewest, stats


def twice(make, n, **options):
    """What a step of `make()` does in n steps, eagerly and co-executed: results, or errors; then its log. Returns the co-executed step."""
    found = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True, **options)):
        case, step, given = make()
        step, seen = wrap(step), []
        for k in range(n):
            try:
                seen.append(harness.shown(step(*given(k))))
            except tf.errors.InvalidArgumentError as error:
                seen.append(str(error).split(" [Op:")[0].split("}}")[-1])
        found.append((seen, harness.shown(case.w), case.log))
    assert found[0] == found[1]
    return step


def test_an_assertion_that_fails_raises_where_it_stands(expecting):
    """Nothing behind it has happened; what stands before it has."""
    class Asserting(Case):
        def step(self, x):
            self.w.assign_add(tf.ones([4, 3]))
            tf.debugging.assert_greater(tf.reduce_sum(x), 0.0, "x")
            self.log.append("fine")
            return self.learn(x @ self.w, x)

    def make():
        case = Asserting()
        return case, case.step, lambda k: (LOW if k in (20, 21, 33) else HIGH,)

    step = twice(make, 45)
    assert step.stats().express_steps > 20


def test_a_kernel_that_fails(expecting):
    def make():
        case = Case()

        def step(x, index):
            y = tf.gather(x, index)
            if tf.reduce_sum(x) > 0:
                y = y * 2.0
            case.w.assign_add(y[:, None] * tf.ones([4, 3]))
            return tf.reduce_sum(y)

        return case, step, lambda k: (HIGH if k % 9 else LOW, tf.constant(7 if k in (20, 30, 31) else k % 6, tf.int64) + tf.zeros([], tf.int64))

    twice(make, 45)


def test_values_that_never_come_again(expecting):
    """A count: what is prepared for its value is never used."""
    def make():
        case = Case()

        def step(x):
            count = int(tf.cast(case.w[0, 0] * 10 + 0.5, tf.int32))
            case.w.assign_add(tf.fill([4, 3], 0.1 * (1 + count // 1000)))
            return tf.reduce_sum(x) * (1.0 + count // 1000)

        return case, step, lambda k: (HIGH,)

    step = twice(make, 90)
    assert step.stats().coexecuted_steps > 80
    assert not step.program.step_cache or not step.program.step_cache.detached or not step.program.step_cache.detached[0].branches


def test_values_that_hardly_come_again(expecting, monkeypatch):
    """What is expected in vain is expected no more."""
    given_up, asked = set(), step_cache.DetachedStep.is_surprised

    def is_surprised(prepared):
        assert id(prepared) not in given_up
        found = asked(prepared)
        if found:
            given_up.add(id(prepared))
            kept.append(prepared)
        return found

    kept = []
    monkeypatch.setattr(step_cache.DetachedStep, "is_surprised", is_surprised)

    def make():
        case = Case()

        def step(x, which):
            y = x @ case.w
            return case.learn(y * (1.0 + int(tf.reduce_sum(which))), x)

        return case, step, lambda k: (HIGH, tf.constant([k // 2 % 12, 0]))

    step = twice(make, 150)
    assert kept and not any(prepared.record is gone.record for gone in kept for prepared in step.program.step_cache.detached)


def test_the_way_that_is_slower_is_left(monkeypatch):
    """A trial decides whether steps are expected to branch as before."""
    class Slower(step_cache.TrialOfMeans):
        def is_faster(self, form, than=None):
            return False

    class Longer(If):
        turns = If.turns + [0] * 40

    monkeypatch.setattr(step_cache, "TrialOfMeans", Slower)
    seen, step = run(Longer, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert seen == run(Longer, lambda step: step)[0]
    assert 0 < step.stats().express_steps < 50
    assert "Steps that are skipped are not expected to branch as those before: steps took" in terra.explain(step, full=True)


def test_it_is_tried_again(monkeypatch):
    """After many runs in vain."""
    monkeypatch.setattr(step_cache, "AGAIN", 3)
    trials = []

    class Always(step_cache.TrialOfMeans):
        def __init__(self):
            super().__init__()
            trials.append(self)

        def choose(self, now, follows=True):
            return True

    monkeypatch.setattr(step_cache, "TrialOfMeans", Always)
    seen, step = run(If, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert seen == run(If, lambda step: step)[0]
    assert len(trials) > 2 and step.program.step_cache.expecting is trials[-1]


def test_steps_that_take_turns_are_predicted(expecting, monkeypatch):
    """Every fourth step does something else."""
    class Turns(If):
        turns = [0, 0, 0, 1] * 25

    ran, run_graph = [], detached_step.GRAPH_RUNNER.run
    monkeypatch.setattr(detached_step.GRAPH_RUNNER, "run", lambda *args: ran.append(1) or run_graph(*args))
    seen, step = run(Turns, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert seen == run(Turns, lambda step: step)[0]
    express = step.stats().express_steps
    assert express > 80 and len(ran) < express + 15  # two more in every four, if they were not
