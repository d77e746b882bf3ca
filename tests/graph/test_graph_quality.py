"""What TensorFlow's own passes may make of the generated graph: less to do, but the same values, bit by bit, and the same errors."""
import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import op_def_registry

import terra
from terra.graph import nonfailing_ops
from terra.graph.trace import CONST, VALUE
from terra.runtime.generation.functiondef import FunctionBuilder, node_of
from terra.runtime.generation.node_order import to_register
from tests.harness import differ
from tests.variants import examples


def floats(*shape, seed=0):
    return np.random.RandomState(seed).standard_normal(shape).astype("float32")


def coexecuted(step, *args, calls=6):
    """The results of a step, all but the first of them co-executed."""
    made = terra.coexecute(step, wait_for_graph=True, run_ahead=0)
    results = [tf.nest.map_structure(lambda t: t.numpy(), made(*args)) for _ in range(calls)]
    assert made.stats().coexecuted_steps >= calls - 2 and made.stats().fallbacks == 0
    return made, results


def exact(step, *args):
    """The co-executed step, all of whose results are those of eager execution, bit by bit."""
    expected = step(*args).numpy().tobytes()
    made, results = coexecuted(step, *args)
    assert all(result.tobytes() == expected for result in results)
    return made


@pytest.mark.parametrize("inside_a_branch", [False, True])
@pytest.mark.parametrize("name", ["gather", "chain"])
def test_an_unread_operation_that_fails(name, inside_a_branch):
    """Grappler would drop it."""
    v, fails = tf.Variable(0.0), {
        "gather": lambda x, k: tf.gather(x, k),
        "chain": lambda x, k: tf.cast(tf.sqrt(tf.gather(x, [0, k])), tf.float64) + 1.0,
    }[name]

    def step(x, k, which):
        v.assign_add(1.0)
        y = x * 2.0
        if not inside_a_branch or which:
            fails(y, k)
        return tf.reduce_sum(x + v)

    x, good, bad = tf.constant(floats(2)), tf.constant(1), tf.constant(2)
    made = terra.coexecute(step, wait_for_graph=True, run_ahead=0)
    for i in range(8):
        made(x, good, i % 2)
    if inside_a_branch:
        assert any(case.n_choices > 1 for case in made.trace_graph.switch_cases())
    before = made.stats().coexecuted_steps
    made(x, good, 1)
    assert made.stats().coexecuted_steps == before + 1
    failures = terra.runtime.execution.graph_runner.GRAPH_RUNNER.failures
    with pytest.raises(tf.errors.InvalidArgumentError):
        made(x, bad, 1)
    assert terra.runtime.execution.graph_runner.GRAPH_RUNNER.failures == failures + 1  # it was the graph that failed
    assert float(v) == 10.0  # as eagerly, where the variable is updated first


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("n", [2, 3, 8, 9, 10, 11, 17, 18, 27])
def test_sums_begin_with_their_first_term(n, dtype):
    """AddN begins with an input whose buffer it may overwrite: which one that is depends, in a graph, on when the other operations run."""
    scales = np.float32(10.0) ** np.random.RandomState(n).uniform(-3, 3, n).astype("float32")
    terms = [tf.constant(floats(2000, seed=k) * scales[k]) for k in range(n)]

    def step(*terms):
        made = [tf.cast(tf.sqrt(tf.abs(t)) - t, dtype) for t in terms]
        others = [tf.reduce_max(t) for t in made[:-1]]  # only the last term is nobody else's
        return tf.add_n(made), others

    expected = step(*terms)[0].numpy().tobytes()
    made, results = coexecuted(step, *terms)
    assert all(total.tobytes() == expected for total, _ in results)
    kept = [node.op for node in made.graph.as_graph_def().node if node.op == "AddN"]
    assert bool(kept) == (n == 2)


def test_a_sum_of_shapes_that_depend_on_data():
    """AddV2 would make them fit."""
    def step(x, y, z):
        parts = [tf.boolean_mask(t, t > 0.0) for t in (x, y, z)]
        return tf.add_n(parts)

    x = tf.constant([1.0, -1.0, 2.0])
    made, results = coexecuted(step, x, x, x)
    assert all(total.tolist() == [3.0, 6.0] for total in results)
    with pytest.raises(tf.errors.InvalidArgumentError):
        made(x, x, tf.constant([1.0, -1.0, -2.0]))


def test_gradients_of_biases_and_of_pooling_stay_operations_of_their_own():
    """oneDNN would make one operation of a convolution's gradient and its bias', which sums in another order."""
    w, b = tf.Variable(floats(3, 3, 3, 8) * 0.3), tf.Variable(floats(8, seed=1))

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.nn.max_pool2d(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b), 3, 2, "VALID")
            loss = tf.reduce_sum(tf.tanh(y) ** 2)
        return tape.gradient(loss, [w, b])

    x = tf.constant(floats(16, 32, 32, 3, seed=2))
    expected = [g.numpy().tobytes() for g in step(x)]
    made, results = coexecuted(step, x)
    assert all([g.tobytes() for g in gradients] == expected for gradients in results)
    ops = {node.name: node.op for node in made.graph.as_graph_def().node}
    apart = [node for node in made.graph.as_graph_def().node if node.op in ("BiasAddGrad", "MaxPoolGrad")]
    assert len(apart) == 2 and all("Bitcast" in {ops[name.split(":")[0]] for name in node.input} for node in apart)


def pooling_step(ksize, strides, padding):
    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(x, ksize, strides, padding)
            loss = tf.reduce_sum(y * weights)
        return tape.gradient(loss, x)
    return step


def is_guarded(made):
    """Whether the gradient of a max-pooling is oneDNN's or TensorFlow's, as its input is."""
    return any(node.op == "StatelessIf" for node in made.graph.as_graph_def().node)


_LOWEST = np.finfo("float32").min
POOLED = {
    "random": lambda random, shape: random.standard_normal(shape),
    "ties": lambda random, shape: random.randint(-1, 2, shape),
    "zeros of both signs": lambda random, shape: random.choice([0.0, -0.0], shape),
    "denormal": lambda random, shape: random.choice([1e-40, -1e-40, 0.0, -0.0, 1e-45], shape),
    "huge": lambda random, shape: random.choice([3e38, -3e38, 1e-38], shape),
    "nan": lambda random, shape: np.where(random.random_sample(shape) < 0.01, np.nan, random.standard_normal(shape)),
    "all nan": lambda random, shape: np.full(shape, np.nan),
    "infinite": lambda random, shape: random.choice([np.inf, -np.inf, 0.0], shape),
    "minus infinity": lambda random, shape: np.full(shape, -np.inf),
    "lowest": lambda random, shape: np.full(shape, _LOWEST),
    "some lowest": lambda random, shape: np.where(random.random_sample(shape) < 0.9, _LOWEST, 0.0),
}


@pytest.mark.parametrize("kind", POOLED)
@pytest.mark.parametrize("window", [(2, 2, "VALID"), (2, 2, "SAME"), (3, 3, "SAME"), ([3, 1], [3, 2], "SAME"), (2, 3, "VALID")], ids=str)
def test_gradient_of_pooling(window, kind):
    """oneDNN's kernel, four times as fast, where it chooses the same elements; a guard in the graph decides."""
    random = np.random.RandomState(3)
    step = pooling_step(*window)
    x = tf.constant(POOLED[kind](random, (2, 25, 26, 17)).astype("float32"))
    weights = random.standard_normal(tf.nn.max_pool2d(x, *window).shape).astype("float32")
    for value in (-0.0, np.nan, np.inf, 1e-41, -1e-44):
        weights[random.random_sample(weights.shape) < 0.05] = value
    weights = tf.constant(weights)
    expected = step(x, weights).numpy().view("uint32")
    made, results = coexecuted(step, x, weights)
    assert is_guarded(made)
    assert all((result.view("uint32") == expected).all() for result in results)


@pytest.mark.parametrize("window", [(3, 2, "VALID"), ([2, 2], [1, 2], "SAME")], ids=str)
def test_gradient_of_overlapping_pooling(window):
    """Several gradients are added up, in an order of their own."""
    step = pooling_step(*window)
    x = tf.constant(floats(2, 25, 26, 17))
    weights = tf.constant(floats(*tf.nn.max_pool2d(x, *window).shape, seed=1))
    made = exact(step, x, weights)
    assert not is_guarded(made)


def test_gradient_of_pooling_of_something_else():
    """oneDNN's kernel would compute the forward operation from its first input."""
    def step(x, y, weights):
        return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=weights, ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID")

    x, weights = tf.constant(floats(2, 24, 26, 17)), tf.constant(floats(2, 12, 13, 17, seed=1))
    made = exact(step, x, weights * 3.0, weights)
    assert not is_guarded(made)


def test_gradient_of_small_pooling():
    """The guard would cost more than it saves."""
    step = pooling_step(2, 2, "VALID")
    x, weights = tf.constant(floats(1, 8, 8, 3)), tf.constant(floats(1, 4, 4, 3, seed=1))
    made, _ = coexecuted(step, x, weights)
    assert not is_guarded(made)


def test_gradient_of_pooling_of_the_lowest_number_at_a_padded_edge():
    """Nothing in such a window is above what oneDNN's kernel starts from, so that it chooses an element of the padding."""
    step = pooling_step([3, 1], [3, 1], "SAME")
    x = np.zeros((64, 1, 26, 17), "float32")
    x[3, 0, 2, 1] = _LOWEST
    x, weights = tf.constant(x), tf.constant(floats(64, 1, 26, 17, seed=1))
    made = exact(step, x, weights)
    assert is_guarded(made)


def readers(made, op_type):
    """The types of the operations that read what those of this type give."""
    graph = made.program.generated.fdefs[-1]
    types = {node.name: node.op for node in graph.node_def}
    return {node.op for node in graph.node_def for name in node.input if types.get(name.partition(":")[0]) == op_type}


@pytest.mark.parametrize("scalar_first", [False, True])
def test_the_gradient_of_a_mean_is_divided_before_it_is_spread(scalar_first):
    def step(x, g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.reduce_mean(x, [0, 1]) * g)
        gradient = tape.gradient(y, x)
        return tf.tanh(3.0 * gradient if scalar_first else gradient * 3.0)

    x, g = tf.constant(floats(40, 30, 20)), floats(20, seed=1)
    g[3:6] = np.nan, -0.0, 1e-40
    g = tf.constant(g)
    made = exact(step, x, g)
    assert "Mul" in readers(made, "RealDiv") and "RealDiv" not in readers(made, "Mul") and readers(made, "BroadcastTo") <= {"Tanh"}


def test_what_is_spread_and_multiplied_by_no_scalar():
    def step(x, by):
        return tf.tanh(tf.broadcast_to(x, [40, 30, 20]) * by) + tf.broadcast_to(x, [40, 30, 20]) / tf.reduce_sum(by)

    x, by = tf.constant(floats(30, 1)), tf.constant(floats(20))
    made = exact(step, x, by)
    assert readers(made, "BroadcastTo") == {"Mul", "RealDiv"}


def test_harmless_operations():
    """All that is called so has no state, and exists."""
    for name in nonfailing_ops.CANNOT_FAIL | nonfailing_ops.ON_INTEGERS | set(nonfailing_ops._WITH_CONSTANTS):
        op = op_def_registry.get(name)
        assert op is not None and not op.is_stateful, name
        assert all(k < len(op.input_arg) for k in nonfailing_ops._WITH_CONSTANTS.get(name, ())), name
    assert not nonfailing_ops.is_harmless("GatherV2", [])
    index = [(VALUE,), (CONST, None), (VALUE,)]
    assert nonfailing_ops.is_harmless("FloorDiv", [(VALUE,), (CONST, None)]) and not nonfailing_ops.is_harmless("FloorDiv", [(VALUE,)] * 2)
    assert nonfailing_ops.is_harmless("FloorDiv", [(VALUE,)] * 2, of_floats=True)
    assert nonfailing_ops.is_harmless("Reshape", index) and not nonfailing_ops.is_harmless("Reshape", index[::2])


def test_what_nobody_reads_and_cannot_fail_does_not_run():
    """The gradient of a convolution of data makes that of the data, too."""
    w = tf.Variable(floats(3, 3, 3, 8) * 0.3)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.nn.conv2d(x, w, 1, "SAME")))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    x = tf.constant(floats(4, 8, 8, 3, seed=2))
    made, results = coexecuted(step, x)
    top = made.program.generated.fdefs[-1]
    (unread,) = [node.name for node in top.node_def if node.op == "Conv2DBackpropInput"]
    assert not any(unread in name for node in top.node_def for name in node.input) and unread not in top.control_ret.values()


@pytest.mark.parametrize("how", ["assign_add", "assign"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_updates_wait_for_what_may_fail(place, how):
    """Though they do not wait for the rest."""
    v, w = tf.Variable(floats(20, 20)), tf.Variable(0.0)

    def step(x, k):
        if place == "before":
            row = tf.gather(x, k)
        w.assign_add(1.0)
        y = x
        for _ in range(3):
            y = tf.tanh(y @ v)
        v.assign_add(y * 0.01) if how == "assign_add" else v.assign(v + 0.01 * y)
        if place == "after":
            row = tf.gather(y, k)
        return row

    x, good, bad = tf.constant(floats(20, 20, seed=1)), tf.constant(3), tf.constant(20)
    made = terra.coexecute(step, wait_for_graph=True, run_ahead=0)
    for _ in range(6):
        made(x, good)
    graph = made.program.generated.fdefs[-1]
    (barrier,) = [node for node in graph.node_def if node.name.startswith("barrier")]
    waited = {name[1:].rpartition("_")[0].rpartition("/")[2] for name in barrier.input}
    assert "GatherV2" in waited and "Tanh" not in waited and "MatMul" not in waited
    failures = terra.runtime.execution.graph_runner.GRAPH_RUNNER.failures
    held, count = v.numpy(), float(w)
    with pytest.raises(tf.errors.InvalidArgumentError):
        made(x, bad)
    assert terra.runtime.execution.graph_runner.GRAPH_RUNNER.failures == failures + 1
    # As eagerly: what came before the failing operation is done, once.
    assert (float(w) == count + 1.0) == (place == "after") and (v.numpy() != held).any() == (place == "after")
    again = tf.Variable(held)
    expected = held
    if place == "after":
        y = x
        for _ in range(3):
            y = tf.tanh(y @ again)
        again.assign_add(y * 0.01)
        expected = again.numpy()
    assert v.numpy().tobytes() == expected.tobytes()


def counted(made):
    return collections.Counter(node.op for node in made.graph.as_graph_def().node)


def test_what_is_computed_again_is_computed_once():
    """An optimizer computes the same few numbers for each variable."""
    variables = [tf.Variable(floats(3, k + 1, seed=k)) for k in range(6)]
    optimizer = keras.optimizers.Adam(0.01)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.tanh(x * v)) for v in variables])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(6):
        made(tf.constant(2.0))
    assert made.stats().coexecuted_steps >= 3 and counted(made)["Pow"] == 2


def test_what_differs_is_computed_for_itself():
    """Other attributes, other inputs, drawn numbers, a variable that was written in between."""
    v = tf.Variable(1.0)

    def step(x, y):
        before = tf.cos(v)
        v.assign_add(1.0)
        return [
            before, tf.cos(v), tf.matmul(x, y), tf.matmul(x, y, transpose_a=True), tf.matmul(y, x), tf.random.uniform((3,)), tf.random.uniform((3,)),
            tf.reduce_sum(x, 0), tf.reduce_sum(x, 1), tf.reduce_sum(x, 0, keepdims=True), tf.matmul(x, y)]

    given = tf.constant(floats(3, 3)), tf.constant(floats(3, 3, seed=1))
    stats = differ(lambda: (step, lambda: v.assign(1.0)), lambda i: given, 8)
    assert stats.coexecuted_steps >= 6
    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(6):
        made(*given)
    ops = counted(made)
    assert ops["MatMul"] == 3 and ops["Cos"] == 2


@pytest.mark.parametrize("where", ["in front of", "inside", "on both sides of"])
def test_what_is_computed_again_in_a_branch(where):
    def step(x, flag):
        y = tf.sin(x)
        if flag:
            y = y + (tf.sin(x) if where != "in front of" else x)
            if where != "in front of":
                y = y * tf.sin(x)
        else:
            y = y - 1.0
        return y + (tf.sin(x) if where != "inside" else x)

    stats = differ(lambda: (step, lambda: []), lambda i: (tf.constant(floats(4, seed=i)), i % 3 == 0), 14)
    assert stats.coexecuted_steps >= 9


def test_large_results_are_computed_again():
    """Where memory is dear, programs compute them twice instead of keeping them."""
    w = tf.Variable(floats(200, 200))

    @tf.recompute_grad
    def layer(x):
        return tf.tanh(tf.matmul(x, w))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(layer(x)))
        return tape.gradient(loss, w)

    made = exact(step, tf.constant(floats(100, 200)))
    assert counted(made)["Tanh"] == 4


@pytest.mark.parametrize("size, times", [(128, 1), (129, 2)])
def test_how_large_results_may_be(size, times):
    made = exact(lambda x: tf.tanh(x + 1.0) * tf.tanh(x + 1.0), tf.constant(floats(size, 128)))
    assert counted(made)["Tanh"] == times


def test_an_operation_that_fails_and_is_computed_once():
    """The first one fails in eager execution, too."""
    v = tf.Variable(0.0)

    def step(x, k):
        y = tf.gather(x, k)
        v.assign_add(1.0)
        return y + tf.gather(x, k)

    made = terra.coexecute(step, wait_for_graph=True)
    x = tf.constant(floats(3))
    for _ in range(6):
        made(x, tf.constant(1))
    assert counted(made)["GatherV2"] == 1
    before = float(v)
    with pytest.raises(tf.errors.InvalidArgumentError):
        made(x, tf.constant(5))
        terra.sync()
    assert float(v) == before


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=30))
def test_nodes_that_the_most_others_wait_for_come_last(reads):
    """`reads`: what each operation reads, of those before it."""
    builder = FunctionBuilder("f")
    builder.arg("x", 1)
    names = []
    for k, read in enumerate(reads):
        names.append(builder.node("AddN", [names[i % k] + ":sum:0" if k else "x" for i in read], {}, controls=names[:1] if k % 3 == 2 else ()))
    fdef = builder.finish(["x"], [(names[-1] + ":sum:0", 1)])
    before = fdef.SerializeToString(deterministic=True)
    ordered = to_register(fdef)
    assert fdef.SerializeToString(deterministic=True) == before
    place = {node.name: k for k, node in enumerate(ordered.node_def)}
    assert sorted(place) == sorted(names)
    to_come = {}
    for node in ordered.node_def:  # each after all that read it
        readers = [other for other in fdef.node_def if any(node_of(ref) == node.name for ref in other.input)]
        assert all(place[reader.name] < place[node.name] for reader in readers)
        to_come[node.name] = 1 + max((to_come[reader.name] for reader in readers), default=0)
    assert list(to_come.values()) == sorted(to_come.values())
    del ordered.node_def[:]
    ordered.node_def.extend(fdef.node_def)
    assert ordered.SerializeToString(deterministic=True) == before
