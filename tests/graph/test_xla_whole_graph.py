"""`jit_compile=True` where XLA compiles the graph as a whole, with its variables: what it writes, and when, must be what eager execution writes; and the order in
which XLA's runtime starts operations."""
import copy

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.execution import compiled
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.generation.xla import xla_order
from terra.runtime.generation.xla.xla_cluster import WHOLE
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions
from tests import harness
from tests.graph.test_jit_compile import ATOL, RTOL, batches, compare, jit, kept, keras_training, mlp, numbers, sparse, written_by_hand  # noqa: F401 (kept is a fixture)
from tests.unwaited import unwaited
from tests.variants import examples


def form_of(step):
    return step.program.compiled._current[0]


def inside(step):
    return [node.op for node in form_of(step).clusters[0].fdef.node_def]


def assert_whole(step):
    form = form_of(step)
    assert form.whole and "as a whole, with the variables" in terra.explain(step, full=True)
    return form


# ------------------------------------------------------------------------------------- what is compiled as a whole

def test_a_keras_model_with_its_optimizer():
    """Integers that count steps, a check of labels, and all variables are inside."""
    step = compare(keras_training(mlp, sparse), batches(6), steps=40)
    assert assert_whole(step).checked
    assert inside(step).count("AssignVariableOp") == 13 and "SparseSoftmaxCrossEntropyWithLogits" in inside(step)


def test_a_variable_is_read_before_it_is_written():
    """Several variables that take each other's values; one is only written, one only read; a value from before the update is returned."""
    def make(wrap):
        a, b = tf.Variable(numbers(4, 4)), tf.Variable(numbers(4, 4, seed=1))
        written, read, count = tf.Variable(tf.zeros((4, 4))), tf.Variable(0.5), tf.Variable(0, dtype=tf.int64)

        def step(x):
            old = a + 0.0
            new = tf.tanh(x @ a) * read + tf.sin(b)
            a.assign(b)
            b.assign(0.5 * new)
            written.assign(new + a)
            count.assign_add(2)
            return old, tf.reduce_sum(tf.exp(a) + b.read_value()), count + 1

        return wrap(step), lambda: [a, b, written, read, count]

    step = compare(make, [(tf.constant(numbers(4, 4, seed=k)),) for k in range(3)])
    assert not assert_whole(step).checked


def test_what_was_read_before_a_step_stays():
    """XLA may write a new value where the old one was: not where somebody still has it."""
    kept_values = []

    def make(wrap):
        w = tf.Variable(numbers(64, 64))

        def step(x):
            y = tf.tanh(x @ w) * 0.9 + tf.sin(x) * 0.1
            w.assign(y)
            return tf.reduce_sum(y)

        made, kept_here = wrap(step), []
        kept_values.append(kept_here)

        def run(x):
            view = np.asarray(memoryview(w.read_value()))  # of the memory itself
            kept_here.append((w.read_value(), tf.identity(w), view, w.numpy()))
            return made(x)

        run.made = made
        return run, lambda: [w]

    harness.reset_seeds()
    step, _ = make(jit)
    xs = [tf.constant(numbers(64, 64, seed=k)) for k in range(3)]
    for k in range(24):
        step(xs[k % 3])
    assert_whole(step.made)
    assert step.made.stats().compiled_steps >= 5
    for values in kept_values[0]:
        *same, expected = values
        assert all((np.asarray(value) == expected).all() for value in same)


def test_what_a_step_gave_stays():
    """A result that is a variable's new value: the next step writes that variable again."""
    def make(wrap):
        w = tf.Variable(numbers(32, 32))

        def step(x):
            w.assign(tf.tanh(x @ w * 0.01) * 0.9 + tf.sin(x) * 0.1 + tf.cos(w) * 0.1)
            return w.read_value(), x

        return wrap(step), lambda: [w]

    harness.reset_seeds()
    eager, _ = make(harness.eager)
    step, _ = make(jit)
    xs = [tf.constant(numbers(32, 32, seed=k)) for k in range(3)]
    results = [step(xs[k % 3]) for k in range(30)]
    assert_whole(step)
    for k, (value, x) in enumerate(results):
        np.testing.assert_allclose(value.numpy(), eager(xs[k % 3])[0].numpy(), RTOL, ATOL)
        assert (x.numpy() == xs[k % 3].numpy()).all()


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_numbers_and_arrays_that_are_fed(run_ahead):
    def make(wrap):
        w = tf.Variable(numbers(4, 4))

        def step(x, factor):
            y = tf.tanh(x @ w) * factor + tf.exp(w)
            w.assign_sub(0.01 * y)
            return tf.reduce_sum(y)

        return wrap(step), lambda: [w]

    step = compare(make, [(numbers(4, 4, seed=k), float(k + 1)) for k in range(4)], run_ahead=run_ahead)
    assert_whole(step)


# ------------------------------------------------------------------------------------- what is not

def left_in_parts(make, batches_, **options):
    step = compare(make, batches_, **options)
    form = form_of(step)
    assert not form.whole and form.top.signature.name.count("_cluster") == 0
    return form


def test_random_operations_are_eagers():
    left_in_parts(keras_training(lambda: mlp(0.5), sparse), batches(6))


def test_a_value_read_in_mid_step(uncut):
    left_in_parts(keras_training(mlp, sparse, read=True), batches(6))


def test_an_operation_on_the_variable_itself():
    """A scatter update works in place: it is not XLA's to do."""
    def make(wrap):
        w = tf.Variable(numbers(6, 4))

        def step(x, rows):
            y = tf.tanh(x @ tf.transpose(w)) * 0.5 + tf.exp(x[:, :1]) - tf.sin(x[:, :1])
            w.scatter_nd_sub([[0], [2]], 0.01 * (y[:2, :4] * tf.cast(rows, tf.float32)[:, None]))
            return tf.reduce_sum(tf.square(y) + tf.sigmoid(y) + tf.cos(y))

        return wrap(step), lambda: [w]

    left_in_parts(make, [(tf.constant(numbers(5, 4, seed=k)), tf.constant([k, 1])) for k in range(3)])


def test_a_variable_without_a_fixed_shape():
    def make(wrap):
        w, state = tf.Variable(numbers(4, 4)), tf.Variable(numbers(2, 4), shape=tf.TensorShape([None, 4]))

        def step(x):
            y = tf.tanh(x @ w) * 2.0 + tf.exp(x) - tf.sin(x)
            w.assign_sub(0.001 * tf.reduce_sum(y) * tf.ones_like(w))
            state.assign(y)
            return tf.reduce_sum(y)

        return wrap(step), lambda: [w, state]

    left_in_parts(make, [(tf.constant(numbers(3 + k, 4, seed=k)),) for k in range(2)], steps=30)


def test_variables_that_are_too_large(monkeypatch):
    monkeypatch.setattr(compiled, "MOST_BYTES", 79)
    left_in_parts(written_by_hand, [(tf.constant(numbers(5, 4, seed=k)), 1.0) for k in range(4)])
    monkeypatch.setattr(compiled, "MOST_BYTES", 80)
    assert_whole(compare(written_by_hand, [(tf.constant(numbers(5, 4, seed=k)), 1.0) for k in range(4)]))


def test_a_whole_that_xla_refuses_is_compiled_in_parts(monkeypatch):
    real = compiled.run_alone

    def run_alone(cluster, *args):
        if cluster.number is WHOLE:
            raise tf.errors.UnimplementedError(None, None, "not as a whole")
        return real(cluster, *args)

    monkeypatch.setattr(compiled, "run_alone", run_alone)
    step = compare(written_by_hand, [(tf.constant(numbers(5, 4, seed=k)), 1.0) for k in range(4)])
    assert not form_of(step).whole and "not as a whole" in terra.explain(step, full=True)


# ------------------------------------------------------------------------------------- failures

def looking_up(wrap, large=None):
    table, count = tf.Variable(numbers(5, 4)), tf.Variable(0.0)

    def step(i):
        y = tf.gather(table, i, axis=0)
        if large is not None:  # which takes long
            y += 1e-6 * (large @ (large + tf.reduce_sum(y)))[0, 0]
        table.assign_sub(0.01 * tf.tanh(tf.reduce_sum(tf.square(y) + tf.exp(y))) * tf.ones_like(table))
        count.assign_add(1.0)
        return tf.reduce_sum(y)

    return wrap(step), lambda: [table, count]


def test_an_index_out_of_range(monkeypatch):
    """Nothing of the step is written, and it raises what eager execution raises. (A step that the program would catch is waited for.)"""
    monkeypatch.setattr(compiled, "MOST_FAILURES", 9)
    script = [[k % 5, 2, 4] for k in range(60)]
    for k in (30, 31, 50):
        script[k] = [0, 5, 4]
    results = []
    for wrap in (harness.eager, jit):
        step, variables = looking_up(wrap)
        seen = []
        for rows in script:
            try:
                seen.append(float(step(tf.constant(rows))))
            except tf.errors.InvalidArgumentError as error:
                assert "indices[1] = 5 is not in [0, 5)" in str(error)
                seen.append(-1.0)
        results.append((seen, [v.numpy() for v in variables()]))
    (expected, left), (found, now) = results
    assert expected.count(-1.0) == found.count(-1.0) == 3
    np.testing.assert_allclose(found, expected, RTOL, ATOL)
    for a, b in zip(left, now):
        np.testing.assert_allclose(b, a, RTOL, ATOL)
    assert assert_whole(step).checked
    assert step.stats().compiled_steps >= 20 and step.stats().waited_steps > 20


def test_the_check_is_that_of_the_form_that_ran(monkeypatch):
    """The helper thread may put another form in its place while the step runs: XLA has refused this one for other shapes."""
    step, variables = looking_up(jit)
    for k in range(30):
        float(step(tf.constant([k % 5, 2, 4])))
    assert assert_whole(step).checked
    own, run = step.program.compiled, runtime_functions.Executors.run

    def replacing(self, *args):
        own._current = copy.copy(own._current[0]), {}, ()
        own._current[0].checked = False
        return run(self, *args)

    bad = tf.constant([0, 5, 4])
    monkeypatch.setattr(runtime_functions.Executors, "run", replacing)
    try:
        raised = step(bad)
    except tf.errors.InvalidArgumentError as error:
        raised = error
    assert "indices[1] = 5" in str(raised) and not own._current[0].checked
    assert variables()[1].numpy() == 30  # steps


def test_steps_behind_a_failed_one_do_nothing(monkeypatch):
    """They were dispatched before anybody knew: their graphs must not run on variables that the failed one should have changed."""
    monkeypatch.setattr(compiled, "MOST_FAILURES", 99)
    large = tf.constant(numbers(1200, 1200))
    step, variables = looking_up(lambda fn: jit(fn, run_ahead=8), large)
    for k in range(30):
        step(tf.constant([k % 5, 2, 4]))
    assert assert_whole(step).checked
    table, count = variables()
    before, n = table.numpy(), count.numpy()
    for _ in range(20):  # until the four are dispatched before the first has failed, which takes it some tens of milliseconds
        try:
            for rows in ([0, 5, 4], *[[0, 1, 4]] * 4):
                unwaited(step, tf.constant(rows))
            break
        except tf.errors.InvalidArgumentError:
            assert count.numpy() == n
    assert len(GRAPH_RUNNER.flights) > 2
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 5"):
        count.numpy()
    assert count.numpy() == n and (table.numpy() == before).all()
    step(tf.constant([0, 1, 4]))
    assert count.numpy() == n + 1


# ------------------------------------------------------------------------------------- the order

@st.composite
def functions(draw):
    """A FunctionDef of additions and products, of which some run only because they must."""
    fdef = tfi.function_pb2.FunctionDef()
    fdef.signature.name = "f"
    a = fdef.signature.input_arg.add()
    a.name, a.type = "a", tfi.types_pb2.DT_FLOAT
    refs = ["a"]
    for k in range(draw(st.integers(1, 12))):
        node = fdef.node_def.add()
        node.name, node.op = f"x{draw(st.integers(0, 9))}_{k}", draw(st.sampled_from(["AddV2", "Mul", "MatMul"]))
        node.input.extend([draw(st.sampled_from(refs)), draw(st.sampled_from(refs))])
        if len(fdef.node_def) > 1 and draw(st.booleans()):
            node.input.append("^" + fdef.node_def[draw(st.integers(0, k - 1))].name)
        node.attr["T"].type = tfi.types_pb2.DT_FLOAT
        refs.append(f"{node.name}:{'product' if node.op == 'MatMul' else 'z'}:0")
        if draw(st.booleans()):
            fdef.control_ret[node.name] = node.name
            fdef.signature.control_output.append(node.name)
    out = fdef.signature.output_arg.add()
    out.name, out.type = "r", tfi.types_pb2.DT_FLOAT
    fdef.ret["r"] = draw(st.sampled_from(refs))
    return fdef


def plain(fdef):
    """A function without the beginnings of names that tell the order."""
    result = tfi.function_pb2.FunctionDef()
    result.CopyFrom(fdef)
    result.signature.name = "f"

    def bare(ref):
        return "^" * ref.startswith("^") + ref.rpartition("/")[2].lstrip("^")

    for node in result.node_def:
        node.name = bare(node.name)
        node.input[:] = map(bare, node.input)
    for refs in (result.ret, result.control_ret):
        for key in list(refs):
            refs[key] = bare(refs[key])
    return result


@given(functions())
@settings(max_examples=examples(200), deadline=None)
def test_ways_are_the_function_itself_in_two_orders(fdef):
    first, second = xla_order.ways(fdef)
    assert first.signature.name == "f" and second.signature.name == "f_way1"
    assert plain(first) == plain(second) == fdef
    readers = {node.name: [other.name for other in first.node_def if node.name in {ref.lstrip("^").partition(":")[0] for ref in other.input}] for node in first.node_def}
    assert all(node < reader for node in readers for reader in readers[node])  # what is read sorts before its readers
    assert all(node.name in {n.name for n in first.node_def} for node in first.node_def)
    opposite = {node.name.partition("/")[2]: node.name for node in second.node_def}
    assert all(opposite[node.partition("/")[2]] > opposite[reader.partition("/")[2]] for node in readers for reader in readers[node])


@pytest.mark.parametrize("slow", [0, 1])
def test_the_faster_order_is_kept(monkeypatch, slow):
    """Whichever it is, for clusters and for the whole."""
    real, run = compiled.run_alone, []

    def run_alone(cluster, fdef, *args):
        run.append(fdef.signature.name)
        real(cluster, fdef, *args)
        if fdef.signature.name.endswith("_way1") is bool(slow):
            compiled.time.sleep(0.01)

    monkeypatch.setattr(compiled, "run_alone", run_alone)
    for make, whole in ((keras_training(mlp, sparse), True), (keras_training(lambda: mlp(0.5), sparse), False)):
        run.clear()
        step = compare(make, batches(6))
        cluster, = form_of(step).clusters
        assert form_of(step).whole is whole and cluster.fdef.signature.name.endswith("_way1") is not bool(slow)
        called = [node.attr["f"].func.name for node in form_of(step).top.node_def if node.op == "PartitionedCall"]
        assert called == ([] if whole else [cluster.fdef.signature.name])
        assert run.count(run[0]) > 3


def test_the_usual_order_is_kept_where_compiling_takes_long(monkeypatch):
    monkeypatch.setattr(compiled, "PATIENCE", 0.0)
    step = compare(written_by_hand, [(tf.constant(numbers(5, 4, seed=k)), 1.0) for k in range(4)])
    assert len(form_of(step).clusters[0].ways) == 1 and not form_of(step).clusters[0].fdef.signature.name.endswith("_way1")
