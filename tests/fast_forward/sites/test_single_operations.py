"""Operations that the program issues itself, jumped over one by one: whatever an entry takes for granted changes in the middle of training, and back again.

The steps extend a list, so that none is skipped as a whole. Each case has two states, between which its steps go back and forth once entries are there.
"""

import sys
import contextlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_math_ops

import terra
from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.fast_forward.sites import fast_calls
from terra.tf import private_names, versions

STATES = [0] * 12 + [1, 0, 1, 1, 0, 0, 1] + [0] * 6 + [1] * 4
HAVE_VERSIONS = versions.address_of_version({}) is not None
X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


class Case:
    """What a step is made of: `step(x, state)` gives something of tensors; `change(state)` comes before each step."""

    needs_versions = False  # whether the change is only noticed where dicts have version numbers: not on Python 3.13
    n_jumps = 1  # at least, in each step of the first state
    most_fallbacks = 10
    wide = False  # whether the second state gives an argument of another shape

    def __init__(self):
        self.v, self.w = tf.Variable(X), tf.Variable(2.0 * X)
        self.constants = [tf.constant(X + 1.0), tf.constant(X + 2.0)]
        self.old = None

    def change(self, state):
        pass

    def undo(self):
        pass


class Number(Case):
    def step(self, x, state):
        return (x + 1.0) * [2.0, 3.0][state]


class NumberOfAnotherType(Case):
    def step(self, x, state):
        y = tf.cast(x, tf.int32) * 3
        return y + [1, 1.0][state]


class Zeros(Case):
    def step(self, x, state):
        return (x + 1.0) / [0.0, -0.0][state]


class FirstValue(Case):
    n_jumps = 3

    def step(self, x, state):
        a, b = x + 1.0, x + 2.0
        return [a, b][state] * 3.0


class SecondValue(Case):
    n_jumps = 3

    def step(self, x, state):
        a, b = x + 1.0, x + 2.0
        return a * [a, b][state]


class Shape(Case):
    n_jumps = 2
    wide = True

    def step(self, x, state):
        y = (x + 1.0) * 2.0
        return y, tf.constant(y.shape.as_list())


class SecondShape(Case):
    n_jumps = 3
    wide = True

    def step(self, x, state):
        y = (self.v[:1] + 1.0) * (x * 2.0)
        return y, tf.constant(y.shape.as_list())


class TensorOfTheStepBefore(Case):
    n_jumps = 2

    def step(self, x, state):
        y = x + self.v
        old, self.old = self.old, y
        self.v.assign_add(tf.ones_like(self.v))
        return (old if state else y) * 2.0


class SecondTensorOfTheStepBefore(TensorOfTheStepBefore):
    def step(self, x, state):
        y = x + self.v
        old, self.old = self.old, y
        self.v.assign_add(tf.ones_like(self.v))
        return y * (old if state else y)


class Device(Case):
    def step(self, x, state):
        y = x + 1.0
        with contextlib.ExitStack() as stack:
            if state:
                stack.enter_context(tf.device("/GPU:7"))
            return y * 2.0


class DeviceAndBack(Case):
    """Left before the operation: what was noted of the device must not outlive the scope."""

    n_jumps = 2

    def step(self, x, state):
        y = x + 1.0
        if state:
            with tf.device("/CPU:0"):
                z = y * 3.0
        else:
            z = y * 2.0
        return z, (x + 4.0).device


class Graph(Case):
    """An operation of the same function at the same place, but into a graph."""

    def __init__(self):
        super().__init__()
        self.graph = tf.Graph()

    def step(self, x, state):
        y, scope = x + 1.0, contextlib.nullcontext()
        if state:
            scope = self.graph.as_default()
        with scope:
            z = y * 2.0 if not state else tf.constant(1.0)
            z = z * 3.0
        return type(z).__name__ if state else z


class OneVariableInAGraph(Case):
    """The first operand is the same object in both states."""

    n_jumps = 2

    def step(self, x, state):
        y = x * 2.0
        with tf.Graph().as_default() if state else contextlib.nullcontext():
            z = self.v + 1.0 if not state else None
            try:
                z = self.v * 2.0
            except Exception as error:
                z = type(error).__name__
        return y, z if not state else str(z)[:20]


class ZerosOfTensorFlow(Case):
    """`tf.zeros` marks what it makes."""

    n_jumps = 2

    def __init__(self):
        super().__init__()
        self.constants = [tf.zeros((2, 2)), tf.constant(np.zeros((2, 2), np.float32))]

    def step(self, x, state):
        return (x + 1.0) * self.constants[state]


class Recording(Case):
    n_jumps = 2

    def step(self, x, state):
        tape = tf.GradientTape()
        with contextlib.ExitStack() as stack:
            if state:
                stack.enter_context(tape)
            y = self.v * 2.0
            y = y * y
        return (y, tape.gradient(y, self.v)) if state else (y,)


class OtherVariable(Case):
    def step(self, x, state):
        return (x + 1.0) * [self.v, self.w][state]


class FirstIsAnotherVariable(Case):
    def step(self, x, state):
        return [self.v, self.w][state] * 2.0


class Trainable(Case):
    n_jumps = 2

    def change(self, state):
        self.v._trainable = not state

    def step(self, x, state):
        with tf.GradientTape() as tape:
            y = (x + 1.0) * self.v
            y = y * y
        return [g for g in [tape.gradient(y, self.v)] if g is not None]


class Constant(Case):
    n_jumps = 2

    def step(self, x, state):
        return (x + 1.0) * self.constants[state]


class EqualConstant(Case):
    """Another object each time."""

    def step(self, x, state):
        return (x + 1.0) * tf.constant(X + state)


class ConstantIsArgument(Case):
    """The same object is a constant in one state; in the other it comes as an argument, too."""

    def step(self, x, state):
        return (x + 1.0) * self.constants[0]

    def argument(self, state):
        return self.constants[0] if state else tf.constant(X)


class ConstantIsWatched(Case):
    """The graph was made of other tensors of the same value."""

    def constant(self):
        return self.constants[0] if len(self.done) > 5 else tf.constant(X + 1.0)

    def step(self, x, state):
        constant = self.constant()
        with tf.GradientTape() as tape:
            if state:
                tape.watch(constant)
            y = (x + 1.0) * constant
            y = y * y
        return [g for g in [tape.gradient(y, constant)] if g is not None]


class EqualConstantIsWatched(ConstantIsWatched):
    def constant(self):
        return tf.constant(X + 1.0)


class ConstantIsDerived(Case):
    """In one state the second operand is what an imperative operation gave: data, no constant."""

    def step(self, x, state):
        with terra.imperative():
            data = self.constants[0] + float(len(self.done)) if state else None
        return (x + 1.0) * (self.constants[0] if data is None else data)


class KeywordValue(Case):
    def step(self, x, state):
        return tf.reduce_sum(x + 1.0, axis=[0, 1][state])


class KeywordName(Case):
    def step(self, x, state):
        return tf.reduce_max(x + 1.0, **[{"axis": 0}, {"keepdims": 0}][state])


class Keyword(Case):
    def step(self, x, state):
        y = x + 1.0
        return tf.reduce_max(y, axis=0) if state else tf.reduce_max(y, 0)


class KeywordOrNone(Case):
    def step(self, x, state):
        y = x + 1.0
        args, kwargs = [((0.5, 2.0), {}), ((), {"clip_value_max": 0.5, "clip_value_min": 2.0})][state]
        return tf.clip_by_value(y, *args, **kwargs) * 2.0


class MoreArguments(Case):
    def step(self, x, state):
        y = x + 1.0
        args = [(), (1,)][state]
        return tf.cumsum(y, *args)


class Function(Case):
    """Another function at the same place of the program."""

    def step(self, x, state):
        y = x + 1.0
        return [tf.nn.relu, tf.abs][state](y)


class Slice(Case):
    def step(self, x, state):
        return (x + 1.0)[state:]


class Place(Case):
    """The same operation elsewhere: what follows it differs."""

    most_fallbacks = 1

    def step(self, x, state):
        y = x + 1.0
        if state:
            y = tf.nn.relu(y)
            return tf.abs(y)
        y = tf.nn.relu(y)
        return tf.sign(y)


class FrameworkFunctionReplaced(Case):
    needs_versions = True

    n_jumps = 2

    def __init__(self):
        super().__init__()
        self.original = gen_math_ops.mul

    def change(self, state):
        original = self.original
        gen_math_ops.mul = (lambda x, y, name=None: gen_math_ops.add_v2(original(x, y), y)) if state else original

    def undo(self):
        gen_math_ops.mul = self.original

    def step(self, x, state):
        return (x + 1.0) * 2.0


class OperatorReplaced(Case):
    def __init__(self):
        super().__init__()
        self.original = tf.Tensor.__mul__

    def change(self, state):
        tf.Tensor.__mul__ = (lambda x, y: tf.add(x, y)) if state else self.original

    def undo(self):
        tf.Tensor.__mul__ = self.original

    def step(self, x, state):
        return (x + 1.0) * 2.0


CASES = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Case) and kind is not Case]


def run(kind, wrap):
    """What the steps of a case gave, and the step."""
    case = kind()
    case.done = []

    def step(x, state):
        result = case.step(x, state)
        case.done.extend([state]), sys._getframe()
        return result

    step = wrap(step)
    seen = []
    try:
        for state in STATES:
            case.change(state)
            x = tf.constant(np.concatenate([X, X[:1]]) if kind.wide and state else X)
            try:
                result = step(case.argument(state) if hasattr(case, "argument") else x, state)
            except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
                result = type(error).__name__
            case.undo()  # of what would show in the comparison, too
            seen.append(tf.nest.map_structure(lambda t: (t.numpy().tolist(), t.dtype) if tf.is_tensor(t) else t, result))
        return (seen, case.done, case.v.numpy().tolist()), step
    finally:
        case.undo()


@pytest.fixture
def strict_placement():
    tf.config.set_soft_device_placement(False)
    yield
    tf.config.set_soft_device_placement(True)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_equals_eager(kind, strict_placement):
    if kind.needs_versions and not HAVE_VERSIONS:
        pytest.skip("this Python gives dicts no version numbers")
    expected, _ = run(kind, lambda step: step)
    found, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert repr(found) == repr(expected)
    stats = step.stats()
    assert stats.coexecuted_steps >= 6 and stats.whole_steps == 0, stats
    assert stats.fast_forwards >= 6 * kind.n_jumps and stats.fallbacks <= kind.most_fallbacks, stats


def test_jumps_by_the_entry_behind_a_node(monkeypatch):
    """After a few steps no operation is looked up."""
    drawn, looked_up, w = [], [], tf.Variable(X)
    constant, zeros = tf.constant(X), tf.zeros((2, 2))

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        exec("drawn.append(1)", {"drawn": drawn})  # so that the step as a whole is not skipped
        y = x + 1.0 - zeros
        y = y * y
        y = y + w if private_names.promotes() else y - w
        y = tf.nn.relu(y * constant)
        return y[1:]

    for _ in range(12):
        step(tf.constant(X))
    program = step.program
    entries = [node.monomorphic for node in program._nodes if node.monomorphic is not None]
    names = {entry.function.__name__ for entry in entries}
    # (Without versions of dicts, as on Python 3.13, the attributes of a variable are compared one by one, so that what reads one is looked up.)
    assert len(entries) >= (6 if HAVE_VERSIONS else 5), names
    before = [entry.jumps for entry in entries]
    with monkeypatch.context() as patch:
        patch.setattr(fast_calls, "attempt", lambda runner, function, *given: looked_up.append(function) or call_cache.attempt_function(runner, function, *given))
        step(tf.constant(X))  # `monomorphic_hit` does without
    assert looked_up == ([] if HAVE_VERSIONS else [tf.Tensor.__add__ if private_names.promotes() else tf.Tensor.__sub__])
    assert [entry.jumps - jumps for entry, jumps in zip(entries, before)] == [1] * len(entries)
    program.forget_records()
    assert all(node.monomorphic is None for node in program._nodes)
