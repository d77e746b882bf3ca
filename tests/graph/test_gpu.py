"""What is otherwise on a machine with a GPU. Most of it is tested on any machine, by a Terra that takes it for such a one; the rest needs a GPU."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import terra
from terra.runtime.generation import node_order
from terra.tf import private_names, opschema, variable_use
from terra.tf.private import hardware
from tests import corpus
from tests import harness

HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
PROGRAMS = [spec for spec in corpus.load().values() if spec.module in ("control_flow", "variables")]


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Every operation may fail, constants stay where they are, variables are not handed through channels."""
    monkeypatch.setattr(hardware, "n_gpus", lambda: 1)


@pytest.mark.parametrize("spec", PROGRAMS, ids=[spec.name for spec in PROGRAMS])
def test_programs(spec, as_on_gpu):
    harness.check(spec, "now")
    harness.check(spec, "late")


def test_a_step_that_branches_otherwise_than_expected_updates_nothing_twice(as_on_gpu):
    """The form with conditions fails in a branch, whose result an operation reads that has passed already."""
    program = corpus.PROGRAMS["nested_branches_that_rejoin"]

    def make():
        made = program.build()
        return made.step, made.state

    given = program.build().inputs
    stats = harness.differ(make, lambda i: given[i % 4], 40)
    assert stats.coexecuted_steps >= 30 and stats.early_steps < 30, stats


def test_updates_wait_for_what_is_within_a_function(as_on_gpu):
    """A function's results may be there before all that is in it has passed."""
    v = tf.Variable(0.0)

    @tf.function(autograph=False)
    def checked(x, bound):
        result = x * 2.0
        y = x
        for _ in range(60):  # so that the result is there long before
            y = tf.linalg.matmul(y, y) * 0.01
        tf.debugging.assert_less(tf.reduce_max(tf.abs(y * 0.0 + x)), bound)
        return result

    def step(x, bound):
        result = checked(x, bound)
        v.assign_add(1.0)
        return tf.reduce_sum(result)

    made = terra.coexecute(step, wait_for_graph=True, run_ahead=0)
    x, bound = tf.ones([100, 100]), tf.constant(2.0)
    for _ in range(6):
        made(x, bound)
    (barrier,) = [node for node in made.program.generated.fdefs[-1].node_def if node.name.startswith("barrier")]
    (call,) = [node.name for node in made.program.generated.fdefs[-1].node_def if node.op == "StatefulPartitionedCall"]
    assert f"^{call}" in barrier.input and made.stats().coexecuted_steps >= 4
    with pytest.raises(tf.errors.InvalidArgumentError):
        float(made(x, tf.constant(0.5)))
    assert v.numpy() == 6.0


def test_a_variable_of_the_step_for_a_graph_that_runs(as_on_gpu, caplog):
    def make():
        v = tf.Variable(1.0)

        def step(i):
            v.assign_add(1.0)
            w = tf.Variable(i)
            v.assign_add(w * float(v))
            return v * 2.0

        return step, lambda: v

    stats = harness.differ(make, lambda i: (tf.constant(float(i)),), 12)
    assert stats.coexecuted_steps == 0 and "a variable that the step makes would be handed to a graph that runs already" in caplog.text


def constants_only():
    return tf.tanh(tf.ones((2, 3)) * 0.5), tf.exp(tf.constant([0.3, 0.7]) * 2.0) + tf.pow(tf.constant(0.999), 7.0)


def test_what_follows_from_constants_is_computed_where_eager_execution_does(as_on_gpu):
    stats = harness.differ(lambda: (constants_only, lambda: ()), lambda i: (), 10)
    assert stats.coexecuted_steps >= 6
    made = terra.coexecute(constants_only, wait_for_graph=True)
    for _ in range(4):
        made()
    fdef = node_order.to_register(made.program.generated.fdefs[-1])
    kept = {node.op for node in fdef.node_def if node_order._UNFOLDED in node.attr}
    assert kept == {"Fill", "Mul", "Pow"}, kept  # Tanh, Exp and AddV2 follow from these
    assert all(not node.attr[node_order._UNFOLDED].list.i for node in fdef.node_def if node_order._UNFOLDED in node.attr)


def test_integers_are_the_same_anywhere():
    with tf.Graph().as_default() as graph:
        numbers = tf.range(3, name="range") * 2
        x = tf.compat.v1.placeholder(tf.float32, [3])
        tf.sin(tf.cast(numbers, tf.float32, name="cast"), name="sin")
        tf.add(x, tf.constant(1.0), name="add")
        tf.less(tf.constant(1.0), tf.constant(2.0), name="less")
    nodes = graph.as_graph_def().node
    node_order.keep_unfolded(nodes)
    assert {node.name for node in nodes if node_order._UNFOLDED in node.attr} == {"cast", "less"}


def test_operations_are_not_folded_with_the_attribute():
    """What TensorFlow does is the point here: the time that a large product takes is there in each call, or in none."""
    def seconds(keep):
        with tf.Graph().as_default() as graph:
            k = tf.constant(np.full([700, 700], 1e-3, "float32"))
            x = tf.compat.v1.placeholder(tf.float32, [], "x")
            y = k
            for _ in range(8):
                y = tf.matmul(y, k)
            tf.identity(tf.reduce_sum(y) * x, "result")
        definition = graph.as_graph_def()
        if keep:
            node_order.keep_unfolded(definition.node)
        function = tf.compat.v1.wrap_function(
            lambda x: tf.graph_util.import_graph_def(definition, input_map={"x": x}, return_elements=["result:0"])[0], [tf.TensorSpec([], tf.float32)])
        times = []
        for _ in range(6):
            start = time.perf_counter()
            float(function(tf.constant(1.0)))
            times.append(time.perf_counter() - start)
        return min(times[1:])

    if HAS_GPU:
        pytest.skip("the product takes no time there")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        assert seconds(True) > 4 * seconds(False)
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_gamma_is_drawn_where_eager_execution_draws_it(as_on_gpu):
    def step(alpha):
        return tf.random.gamma([2], alpha, dtype=tf.float64)

    tf.random.set_seed(1)
    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(5):
        made(tf.constant([0.5, 2.0], tf.float64))
    assert made.stats().coexecuted_steps >= 2
    (twin,) = [node for node in made.program.generated.fdefs[-1].node_def if node.op == "StatelessRandomGammaV3"]
    assert twin.device.endswith("CPU:0")


@pytest.mark.parametrize("deterministic", [False, True])
def test_indices_are_looked_at_where_they_may_be_refused(deterministic, as_on_gpu, monkeypatch):
    """GPUs ignore those that are out of range; with determinism, elements are scattered on the CPU, which does not."""
    monkeypatch.setattr(private_names, "is_deterministic", lambda: deterministic)
    tables = [tf.Variable(tf.ones([4, 3])) for _ in range(2)]

    def step(rows, elements):
        tables[0].scatter_sub(tf.IndexedSlices(tf.ones([2, 3]), rows))
        tables[1].scatter_nd_add(elements, tf.ones([2]))
        return tf.reduce_sum(rows)

    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(6):
        made(tf.constant([0, 1]), tf.constant([[0, 1], [1, 2]]))
    assert made.stats().coexecuted_steps >= 3
    assert ("Less" in {node.op for node in made.program.generated.fdefs[-1].node_def}) == deterministic


@pytest.mark.parametrize("name", ["CudnnRNN", "CudnnRNNV2", "CudnnRNNV3", "CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"])
def test_recurrent_kernels_that_drop_units_out_are_imperative(name):
    """Only the kernel knows the masks that it draws."""
    schema = opschema.get_schema(name)
    assert schema.category == opschema.GRAPH and not schema.plain
    assert not schema.is_imperative(("rnn_mode", "lstm")) and not schema.is_imperative(("rnn_mode", "lstm", "dropout", 0, "seed", 1))
    assert schema.is_imperative(("rnn_mode", "lstm", "dropout", 0.5, "seed", 1))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_functions_with_recurrent_kernels(dropout):
    @tf.function(autograph=False)
    def function(x, h, params):
        return tf.raw_ops.CudnnRNN(input=x, input_h=h, input_c=h, params=params, rnn_mode="lstm", dropout=dropout)[0]

    fdef = function.get_concrete_function(*[tf.TensorSpec(shape) for shape in ([3, 2, 4], [1, 2, 5], [100])]).function_def
    assert variable_use.function_effects(fdef) == (() if dropout == 0.0 else None)


def test_an_operation_that_fails_though_nobody_reads_it(as_on_gpu):
    """It has to pass before variables are updated."""
    def make():
        v = tf.Variable(0.0)

        def step(x, k):
            tf.gather(x, k)
            v.assign_add(1.0)
            return v + x[0]

        return step, lambda: v

    def run(wrap):
        step, state = make()
        step, seen = wrap(step), []
        for i in range(16):
            try:
                seen.append(float(step(tf.constant([1.0, 2.0]), tf.constant(5 if i in (9, 12) else 1))))
            except tf.errors.InvalidArgumentError:
                seen.append("failed")
        return seen, float(state()), step

    *expected, _ = run(lambda step: step)
    *actual, step = run(terra.coexecute(wait_for_graph=True))
    assert actual == expected and step.stats().coexecuted_steps >= 8 and (HAS_GPU or "failed" in expected[0])


# ------------------------------------------------------------------------------- with a GPU

@pytest.fixture
def deterministic():
    config.enable_op_determinism()
    yield
    config.disable_op_determinism()


def training(layers, x):
    def make():
        model = keras.Sequential([keras.layers.Input(x.shape[1:]), *layers(), keras.layers.Dense(3)])
        optimizer, loss_of = keras.optimizers.Adam(1e-3), keras.losses.MeanSquaredError()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        return step, lambda: [v.value for v in model.variables]

    return make


K = keras.layers
MODELS = {
    "dense": (lambda: [K.Dense(16, "tanh"), K.Dropout(0.2)], (8, 5)),
    "lstm": (lambda: [K.LSTM(8)], (4, 6, 5)),
    "gru": (lambda: [K.GRU(8, return_sequences=True), K.GRU(4)], (4, 6, 5)),
    "convolution": (lambda: [K.Conv2D(4, 3), K.BatchNormalization(), K.ReLU(), K.MaxPooling2D(), K.GlobalAveragePooling2D()], (4, 12, 12, 3)),
}


@needs_gpu
@pytest.mark.parametrize("name", MODELS)
def test_layers(name, deterministic):
    layers, shape = MODELS[name]
    random = np.random.RandomState(0)
    x, y = random.rand(*shape).astype("float32"), random.rand(shape[0], 3).astype("float32")
    stats = harness.differ(training(layers, x), lambda i: (tf.constant(x + i), tf.constant(y)), 20)
    assert stats.whole_steps >= 10 and stats.fetches == 0, stats


@needs_gpu
@pytest.mark.parametrize("name", ["lstm", "gru", "convolution"])
def test_batches_of_other_sizes(name, deterministic):
    layers, shape = MODELS[name]
    random = np.random.RandomState(0)
    x, y = random.rand(*shape).astype("float32"), random.rand(shape[0], 3).astype("float32")
    stats = harness.differ(training(layers, x), lambda i: (tf.constant(x[:4 - i % 3 % 2]), tf.constant(y[:4 - i % 3 % 2])), 24)
    assert stats.coexecuted_steps >= 15 and stats.fetches == 0, stats


@needs_gpu
def test_constants_on_a_gpu():
    stats = harness.differ(lambda: (constants_only, lambda: ()), lambda i: (), 10)
    assert stats.coexecuted_steps >= 6
