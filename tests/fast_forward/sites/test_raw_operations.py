"""Operations that the program issues through `tf.raw_ops`: skipped as other functions of TensorFlow are, or not at all where they do more than compute.

The steps alternate between two states, so that what a skipped call takes for granted changes; what they give, write and leave behind is that of eager execution.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import script_ops

import terra
from terra.runtime.fast_forward.sites import fast_calls
from tests import harness

raw = tf.raw_ops
STATES = [0] * 10 + [1, 0, 1, 1, 0, 0, 1] + [0] * 6 + [1] * 4


class Given:
    """What a step uses beside its argument, made anew for each run."""

    def __init__(self, folder):
        self.v, self.w = tf.Variable([[1.0, -2.0], [3.0, 4.0]]), tf.Variable([[2.0, 1.0], [-1.0, 0.5]])
        self.folder, self.calls = folder, []
        self.slot = tf.Variable(tf.zeros((2, 2)))
        self.table = raw.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.float32, shared_name=str(folder))
        self.queue = raw.FIFOQueueV2(component_types=[tf.float32], shared_name=str(folder))
        self.noting = self.note  # which the registry does not hold
        self.token = script_ops._py_funcs.insert(self.noting)
        self.iterator = iter(tf.data.Dataset.range(100))

    def note(self, x):
        self.calls.append(float(np.sum(x)))
        return np.float32(np.sum(x) + len(self.calls))

    def variable(self, state):
        return self.w if state else self.v

    def left(self):
        """What the steps have left behind."""
        texts = [path.read_text() for path in sorted(self.folder.iterdir())]
        return [x.numpy().tolist() for x in (self.v, self.w, self.slot)], self.calls, texts


def computed(s, x, state):
    return raw.Relu6(features=raw.MatMul(a=x, b=s.v, transpose_b=bool(state)))


def several_outputs(s, x, state):
    return raw.Split(axis=1, value=x, num_split=2) + list(raw.TopKV2(input=x, k=1 + state))


def lists(s, x, state):
    return raw.ConcatV2(values=[x, s.variable(state).read_value()], axis=state), raw.Einsum(inputs=[x, x], equation="ij,jk->ik"), raw.Pack(values=[x, x], axis=0)


def numbers(s, x, state):
    return raw.Mul(x=x, y=[2.0, 3.0][state]), raw.AddV2(x=np.array([[1.0, 2.0]], np.float32), y=x), raw.Cast(x=x, DstT=[tf.float64, tf.int32][state])


def differentiated(s, x, state):
    with tf.GradientTape() as tape:
        y = raw.Square(x=raw.Sigmoid(x=s.v * x)) * s.w
    return tape.gradient(y, [s.v, s.w])


def sizes(s, x, state):
    return [int(n) for n in raw.Shape(input=x[state:])] + [int(raw.Rank(input=x))], raw.Reshape(tensor=x, shape=[4 - 3 * state, -1]), raw.Fill(dims=raw.Shape(input=x), value=1.0)


def of_data(s, x, state):
    return raw.Where(condition=raw.Greater(x=x, y=0.0)), raw.Unique(x=raw.Reshape(tensor=x, shape=[-1])).y


def assigned(s, x, state):
    v = s.variable(state)
    raw.AssignVariableOp(resource=v.handle, value=x * 2.0)
    raw.AssignAddVariableOp(resource=s.slot.handle, value=raw.ReadVariableOp(resource=v.handle, dtype=tf.float32))
    raw.AssignSubVariableOp(resource=v.handle, value=x)
    return v.read_value(), raw.ReadVariableOp(resource=s.slot.handle, dtype=tf.float32)


def updated(s, x, state):
    raw.ResourceApplyGradientDescent(var=s.variable(state).handle, alpha=[0.1, 0.2][state], delta=x)
    raw.ResourceApplyMomentum(var=s.v.handle, accum=s.slot.handle, lr=0.1, grad=x, momentum=0.9)
    raw.ResourceScatterAdd(resource=s.w.handle, indices=[state], updates=[[1.0, 1.0]])
    return s.v + s.w


def drawn(s, x, state):
    return (raw.RandomStandardNormal(shape=[2, 2], dtype=tf.float32, seed=3, seed2=4 + state) + x, raw.RandomShuffle(value=x, seed=5, seed2=6),
            raw.StatelessRandomUniform(shape=[2], seed=[state, 7]), raw.RandomUniformInt(shape=[3], minval=0, maxval=100, seed=1, seed2=2))


def printed(s, x, state):
    raw.PrintV2(input=raw.StringFormat(inputs=[x], template="%d of {}" % state, placeholder="{}"), output_stream=f"file://{s.folder / 'printed'}")
    return x * 2.0


def written(s, x, state):
    name = str(s.folder / "written")
    raw.WriteFile(filename=name, contents=raw.AsString(input=raw.Sum(input=x, axis=[0, 1]) + float(state)))
    return raw.ReadFile(filename=name)


def python(s, x, state):
    return raw.PyFunc(input=[x + float(state)], token=s.token, Tout=[tf.float32])[0] * 2.0


def looked_up(s, x, state):
    raw.LookupTableInsertV2(table_handle=s.table, keys=tf.constant([state, 5], tf.int64), values=raw.Sum(input=x, axis=0) + float(state))
    return raw.LookupTableFindV2(table_handle=s.table, keys=tf.constant([0, 1, 5], tf.int64), default_value=-1.0), raw.LookupTableSizeV2(table_handle=s.table)


def queued(s, x, state):
    raw.QueueEnqueueV2(handle=s.queue, components=[x + float(state)])
    return raw.QueueDequeueV2(handle=s.queue, component_types=[tf.float32])[0], raw.QueueSizeV2(handle=s.queue)


def iterated(s, x, state):
    return raw.IteratorGetNext(iterator=s.iterator._iterator_resource, output_types=[tf.int64], output_shapes=[[]])[0] + state


def checked(s, x, state):
    try:
        raw.Assert(condition=raw.LessEqual(x=raw.Max(input=x, axis=[0, 1]), y=10.0 - 9.5 * state), data=[x])
    except tf.errors.InvalidArgumentError:
        return x * 3.0
    return raw.CheckNumerics(tensor=x, message="no number")


def misused(s, x, state):
    told = []
    for call in lambda: raw.Relu(x), lambda: raw.MatMul(a=x, b=tf.zeros((3, 3))), lambda: raw.Relu(features=x, nothing=1), lambda: raw.Relu(features="a"):
        try:
            call()
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            told.append(type(error).__name__)
    return told, raw.Abs(x=x)


COMPUTED = [computed, several_outputs, lists, numbers, differentiated, sizes]
OTHERS = [of_data, assigned, updated, drawn, printed, written, python, looked_up, queued, iterated, checked, misused]


def values(result):
    return tf.nest.map_structure(lambda x: np.asarray(x).tolist() if tf.is_tensor(x) else x, result)


def run(function, wrap, folder, states):
    folder.mkdir()
    tf.random.set_seed(3)  # kernels that draw begin anew
    given, done = Given(folder), []

    def step(x, state):
        result = function(given, x, state)
        done.append(state)
        return result

    step, seen = wrap(step), []
    for k, state in enumerate(states):
        seen.append(values(step(tf.constant([[1.0, -2.0], [3.0, 0.25 * k]]), state)))
    terra.sync()
    assert done == states
    return (seen, given.left()), step


@pytest.mark.all_variants
@pytest.mark.parametrize("states", [[0] * 30, STATES], ids=["alike", "changing"])
@pytest.mark.parametrize("function", COMPUTED + OTHERS, ids=lambda function: function.__name__)
def test_equals_eager(function, states, tmp_path):
    expected, _ = run(function, lambda step: step, tmp_path / "eager", states)
    found, step = run(function, lambda step: terra.coexecute(step, wait_for_graph=True), tmp_path / "terra", states)
    assert repr(found).replace("/terra/", "/eager/") == repr(expected)


@pytest.mark.parametrize("function", COMPUTED, ids=lambda function: function.__name__)
def test_a_step_that_computes_is_skipped(function, tmp_path):
    given = Given(tmp_path)

    @terra.coexecute(wait_for_graph=True)
    def step(x):
        return function(given, x, 0)

    for k in range(30):
        x = tf.constant([[1.0, -2.0], [3.0, 0.25 * k]])
        assert values(step(x)) == values(function(given, x, 0))
    assert step.stats().whole_steps >= 15, terra.explain(step, full=True)


def test_a_variable_that_is_given_by_its_handle():
    v, others = tf.Variable([1.0, 2.0]), [tf.Variable([3.0, 4.0]), tf.Variable([5.0, 6.0])]

    @terra.coexecute(wait_for_graph=True)
    def step(x, handle):
        raw.AssignAddVariableOp(resource=v.handle, value=x)
        raw.AssignAddVariableOp(resource=handle, value=x * raw.ReadVariableOp(resource=v.handle, dtype=tf.float32))
        return x * 2.0

    for k in range(40):
        step(tf.constant([1.0, 1.0]), others[k // 3 % 2].handle)
    assert v.numpy().tolist() == [41.0, 42.0] and step.stats().whole_steps >= 10, terra.explain(step)
    added = [sum(k + 2 for k in range(40) if k // 3 % 2 == which) for which in range(2)]
    assert [w.numpy().tolist() for w in others] == [[3.0 + added[0], 4.0 + added[0] + 21], [5.0 + added[1], 6.0 + added[1] + 19]]


@pytest.mark.parametrize("how", ["argument", "global", "in turn"])
def test_handles_to_which_nothing_is_attached(how):
    """Each is told from the others: they have one type and shape."""
    def make():
        handles = [raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name=f"{how} {next(numbers)}") for _ in range(3)]
        for k, handle in enumerate(handles):
            raw.AssignVariableOp(resource=handle, value=tf.constant([1.0, 2.0]) * float(k + 1))
        held, w = [handles[0]], tf.Variable(1.0)

        def read(handle):
            return raw.ReadVariableOp(resource=handle, dtype=tf.float32)

        def step(x, handle=None):
            total = x
            for one in [handle] if how == "argument" else held:
                total = total + read(one) * w
                raw.AssignAddVariableOp(resource=one, value=x)
            w.assign_add(0.5)
            return total

        def call(step, k):
            if how == "argument":
                return step(tf.constant([1.0, 1.0]), handles[k // 3 % 3])
            held[:] = [handles[k // 3 % 3]] if how == "global" else handles[::-1] if k // 4 % 2 else handles
            return step(tf.constant([1.0, 1.0]))

        return step, call, lambda: [w, *map(read, handles)]

    numbers = itertools.count()
    harness.compare_steps(make, 0, 0, n=60)


def test_functions_for_operations_are_looked_up_like_others():
    assert fast_calls.substitute(raw.MatMul) is not None and fast_calls.substitute(raw.AssignVariableOp).__name__ == raw.AssignVariableOp.__name__
