"""`jit_compile=True`: XLA runs the pure stretches of the graph. Results are eager's within 1e-4 relative, unless a test says otherwise (XLA sums in another
order); all else is as in any co-executed step."""
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import trial
from terra.runtime.execution import compiled, python_runner
from terra.runtime.generation.xla import xla_form
from tests import harness

RTOL, ATOL = 1e-4, 1e-6  # of losses and variables after some 20 steps


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """The compiled form is kept whatever it costs (these programs are tiny), clusters may be small, and the trial is short."""
    monkeypatch.setattr(trial, "FASTER", 1e9)
    monkeypatch.setattr(trial, "HOPELESS", 1e9)
    monkeypatch.setattr(trial, "ROUNDS", 1)
    monkeypatch.setattr(compiled, "LEARNED", 0)
    monkeypatch.setattr(compiled, "BLOCK", trial.BLOCK)
    monkeypatch.setattr(compiled, "PASSED_OVER", trial.PASSED_OVER)
    monkeypatch.setattr(xla_form, "SMALLEST", 2)


def jit(fn, **options):
    return terra.coexecute(fn, jit_compile=True, wait_for_graph=True, **options)


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype("float32")


def compare(make, batches, steps=24, least=5, rtol=RTOL, **options):
    """Run `make(wrap) -> (step, variables)` eagerly and compiled; returns the compiled step."""
    results = []
    for wrap in (harness.eager, lambda fn: jit(fn, **options)):
        harness.reset_seeds()
        step, variables = make(wrap)
        values = [step(*batches[i % len(batches)]) for i in range(steps)]
        results.append([[np.asarray(part) for part in tf.nest.flatten(value)] for value in values] + [[v.numpy() for v in variables()]])
    expected, actual = results
    for i, (a, b) in enumerate(zip(expected, actual)):
        for left, right in zip(a, b, strict=True):
            np.testing.assert_allclose(right, left, rtol, ATOL, err_msg=f"step {i} of {steps}\n{terra.explain(step)}")
    assert_compiled(step, least)
    return step


def assert_compiled(step, least):
    """XLA really ran: counted by Terra, and seen in the functions that ran."""
    stats = step.stats()
    assert stats.compiled_steps >= least, (stats, terra.explain(step))
    assert stats.compiled_steps <= stats.coexecuted_steps
    form = step.program.compiled._current[0]
    assert form.clusters and all(c.fdef.attr["_XlaMustCompile"].b for c in form.clusters)
    inside = {node.op for c in form.clusters for node in c.fdef.node_def}
    assert inside and not inside & {"QueueDequeueV2", "QueueEnqueueV2", "Case", "StatelessRandomUniformV2"}
    if form.whole:
        assert form.top is form.clusters[0].fdef and len(form.clusters) == 1
        return
    top = [node.op for node in form.top.node_def]
    assert top.count("PartitionedCall") >= len(form.clusters)
    assert not inside & {"ReadVariableOp", "AssignVariableOp"}


def keras_training(model_of, loss_of, read=False):
    def make(wrap):
        model, optimizer, loss_function = model_of(), keras.optimizers.Adam(1e-3) if model_of is mlp else keras.optimizers.SGD(1e-2, momentum=0.9), loss_of()
        seen = []

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            if read:
                seen.append(float(loss))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss, (seen[-1] if read else 0.0)

        return wrap(step), lambda: model.variables + optimizer.variables

    return make


def mlp(dropout=0.0):
    layers = [keras.Input((6,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(dropout), keras.layers.Dense(3)]
    return keras.Sequential([layer for layer in layers if dropout or not isinstance(layer, keras.layers.Dropout)])


def cnn():
    return keras.Sequential([
        keras.Input((8, 8, 2)), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(),
        keras.layers.Flatten(), keras.layers.Dense(3)])


def sparse():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches(*shape, classes=3, count=3, sizes=(8,)):
    made = []
    for i in range(count):
        size = sizes[i % len(sizes)]
        y = np.random.RandomState(i).randint(0, classes, size)
        made.append((tf.constant(numbers(size, *shape, seed=i)), tf.constant(y)))
    return made


# ------------------------------------------------------------------------------------- whole programs

def test_keras_mlp():
    step = compare(keras_training(mlp, sparse), batches(6))
    form = step.program.compiled._current[0]
    assert len(form.clusters) == 1  # forward, backward and the optimizer: one call


def test_keras_cnn():
    compare(keras_training(cnn, sparse), batches(8, 8, 2), rtol=1e-3)


def test_dropout_draws_eagers_masks():
    """Random operations stay outside, so the numbers are eager's bit for bit."""
    compare(keras_training(lambda: mlp(0.5), sparse), batches(6))

    def make(wrap):
        w = tf.Variable(numbers(6, 6))

        def step(x, y):
            mask = tf.random.uniform([8, 6]) < 0.5
            loss = tf.reduce_sum(tf.where(mask, tf.square(x @ w), 0.0))
            w.assign_sub(0.001 * tf.ones_like(w) * loss)
            return loss, tf.cast(mask, tf.float32)

        return wrap(step), lambda: [w]

    compare(make, batches(6))


def test_a_value_that_is_read_in_mid_step(uncut):
    """Early form: the loss is a result of the first cluster, and does not wait for the backward pass."""
    step = compare(keras_training(mlp, sparse, read=True), batches(6))
    assert step.stats().fetches and step.program.early
    form = step.program.compiled._current[0]
    assert len(form.clusters) == 2


def written_by_hand(wrap):
    w, b = tf.Variable(numbers(4, 4)), tf.Variable(numbers(4))

    def step(x, i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w + b) - 0.3)) * i
        gw, gb = tape.gradient(loss, [w, b])
        w.assign_sub(0.1 * gw)
        b.assign_sub(0.1 * gb)
        return loss

    return wrap(step), lambda: [w, b]


def test_variables_by_hand_and_a_fed_number():
    compare(written_by_hand, [(tf.constant(numbers(5, 4, seed=i)), float(i + 1)) for i in range(4)])


def test_a_branch_that_depends_on_data():
    """The Case and its branches stay ordinary; what is before and after it is compiled."""
    def make(wrap):
        w = tf.Variable(numbers(4, 4))

        def step(x):
            y = tf.tanh(x @ w) * 2.0 + tf.exp(x)
            if float(tf.reduce_sum(x)) > 0:
                y = tf.sin(y) + 1.0
            else:
                y = tf.cos(y) * 0.5 - 0.1
            z = tf.reduce_sum(tf.square(y @ w) + tf.sigmoid(y))
            w.assign_sub(0.0001 * z * tf.ones_like(w))
            return z, y

        return wrap(step), lambda: [w]

    step = compare(make, [(tf.constant(numbers(3, 4, seed=i)),) for i in range(7)], steps=40)
    assert any(case.n_choices > 1 for case in step.trace_graph.switch_cases())
    assert len(step.program.compiled._current[0].clusters) >= 2


def test_a_last_batch_of_another_size():
    step = compare(keras_training(mlp, sparse), batches(6, count=4, sizes=(8, 8, 8, 5)), steps=44, least=14)
    states = step.program.compiled._current[1]
    assert list(states.values()).count(compiled.READY) == 2


def test_shapes_beyond_the_bound_are_left_to_the_ordinary_form(monkeypatch):
    monkeypatch.setattr(compiled, "MOST_SHAPES", 2)
    step = compare(written_by_hand, [(tf.constant(numbers(n, 4)), 1.0) for n in (3, 4, 5, 6)], steps=48, least=6)
    assert len(step.program.compiled._current[1]) == 2


# ------------------------------------------------------------------------------------- what XLA does not take

def test_operations_without_a_kernel_stay_outside():
    def make(wrap):
        w = tf.Variable(numbers(4, 4))

        def step(x):
            y = tf.tanh(x @ w) + tf.exp(x)
            order = tf.argsort(tf.reduce_sum(y, 1))
            picked = tf.boolean_mask(y, y[:, 0] > 0)
            text = tf.strings.length(tf.strings.as_string(tf.cast(x[0, 0] * 100, tf.int32)))
            values, _ = tf.unique(tf.cast(tf.round(x[:, 0] * 10), tf.int32))
            loss = tf.reduce_sum(tf.square(y @ w)) + tf.reduce_sum(picked) * 0.1
            w.assign_sub(0.001 * loss * tf.ones_like(w))
            return loss, order, text, values

        return wrap(step), lambda: [w]

    step = compare(make, [(tf.constant(numbers(6, 4, seed=i)),) for i in range(4)], steps=30)
    form = step.program.compiled._current[0]
    inside = {node.op for c in form.clusters for node in c.fdef.node_def}
    assert not inside & {"Where", "Unique", "AsString", "StringLength"}
    assert "left outside" in terra.explain(step, full=True) and "Where" in terra.explain(step, full=True)


def test_nothing_to_compile():
    v = tf.Variable(1.0)
    step = jit(lambda: v.assign_add(1.0))
    for _ in range(12):
        step()
    assert v.numpy() == 13.0 and step.stats().compiled_steps == 0
    assert "no part of the graph can be compiled" in terra.explain(step, full=True)


def test_a_cluster_that_xla_refuses(monkeypatch):
    """The ordinary form goes on, and `explain` says why."""
    original = xla_form.xla_ops.why_not
    monkeypatch.setattr(xla_form.xla_ops, "why_not", lambda node: None if node.op == "Where" else original(node))
    monkeypatch.setattr(xla_form._Maker, "_shapes_not_fixed", lambda self, node: None)

    def step(x):
        y = tf.where(x > 0.0)
        return tf.reduce_sum(tf.cast(tf.nn.top_k(tf.cast(y[:, 0], tf.float32), k=tf.shape(y)[0] // 2).values, tf.float32) * 2.0)

    made = jit(step)
    for i in range(16):
        x = tf.constant(numbers(10, seed=i))
        assert float(made(x)) == float(step(x))
    assert made.stats().coexecuted_steps >= 10


def test_a_compilation_that_fails_leaves_the_others(monkeypatch, uncut):
    real, failed = compiled.run_alone, []

    def run_alone(cluster, *args):
        if cluster.number == 1:
            failed.append(cluster.name)
            raise tf.errors.UnimplementedError(None, None, "this part is too strange")
        return real(cluster, *args)

    monkeypatch.setattr(compiled, "run_alone", run_alone)
    step = compare(keras_training(mlp, sparse, read=True), batches(6))
    assert len(failed) == 1
    assert len(step.program.compiled._current[0].clusters) == 1
    assert "this part is too strange" in terra.explain(step, full=True)


# ------------------------------------------------------------------------------------- failures and fallbacks

def test_a_label_out_of_range_raises_what_eager_raises():
    """XLA's kernel would give NaN: the check that is compiled with it makes the step fail, and be replayed."""
    good, x = batches(6), tf.constant(numbers(8, 6))
    bad = (x, tf.constant(np.array([0, 1, 2, 9, 0, 1, 2, 0])))
    step, variables = keras_training(mlp, sparse)(lambda fn: jit(fn, run_ahead=0))
    for i in range(20):
        step(*good[i % 3])
    assert_compiled(step, 5)
    before = [v.numpy() for v in variables()]
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value of 9"):
        step(*bad)
    assert all((v.numpy() == old).all() for v, old in zip(variables(), before))
    again = step.stats().compiled_steps
    step(*good[0])
    assert step.stats().compiled_steps > again


def test_an_index_out_of_range_raises_what_eager_raises():
    table = tf.Variable(numbers(5, 4))

    def body(i):
        y = tf.reduce_sum(tf.square(tf.gather(table, i, axis=0)) + tf.gather(tf.transpose(table), i, axis=-1)[0, 0])
        table.assign_sub(0.001 * y * tf.ones_like(table))
        return y

    step = jit(body, run_ahead=0)
    for n in range(20):
        step(tf.constant([n % 5, 2, 4]))
    assert_compiled(step, 5)
    before = table.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = 5 is not in \[0, 5\)"):
        step(tf.constant([0, 5, 4]))
    assert (table.numpy() == before).all()
    for k in range(3):  # given up only after some of them
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(tf.constant([0, 5, 4]))
    assert float(step(tf.constant([1, 2, 3]))) > 0
    assert "failed and were replayed" in terra.explain(step, full=True)


def test_a_segment_out_of_range_raises_what_eager_raises():
    w = tf.Variable(numbers(4, 4))

    def body(x, segments):
        sums = tf.math.unsorted_segment_sum(tf.tanh(x @ w), segments, 3)
        loss = tf.reduce_sum(tf.square(sums))
        w.assign_sub(0.001 * loss * tf.ones_like(w))
        return sums

    def make(wrap):
        w.assign(numbers(4, 4))
        return wrap(body), lambda: [w]

    x = tf.constant(numbers(3, 4))
    step = compare(make, [(x, tf.constant(s)) for s in ([0, 1, 2], [2, 2, 0], [-1, 0, 1])], run_ahead=0)
    assert "UnsortedSegmentSum" in {node.op for c in step.program.compiled._current[0].clusters for node in c.fdef.node_def}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = 3 is out of range"):
        step(x, tf.constant([0, 3, 1]))


def test_an_operation_outside_that_fails():
    w = tf.Variable(numbers(4, 4))

    def body(x):
        y = tf.tanh(x @ w) * 2.0
        c = tf.debugging.check_numerics(tf.math.log(x), "a bad logarithm")
        loss = tf.reduce_sum(tf.square(c)) + tf.reduce_sum(y)
        w.assign_add(0.001 * loss * tf.ones_like(w))
        return loss

    step = jit(body, run_ahead=0)
    for _ in range(20):
        step(tf.ones((4, 4)) * 3.0)
    assert_compiled(step, 5)
    before = w.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad logarithm"):
        step(-tf.ones((4, 4)))
    assert (w.numpy() == before).all()


@pytest.mark.parametrize("read", [False, True])
def test_fallback_in_mid_step(read):
    """A step that leaves the known path in the compiled form: cancelled, replayed, nothing committed twice."""
    def make(wrap):
        v, w = tf.Variable(numbers(4, 4)), tf.Variable(0.0)

        def step(x, extra):
            w.assign_add(1.0)
            y = tf.tanh(x @ v) * 2.0 + 1.0
            if read:
                w.assign_add(float(y[0, 0]) * 0.5)
            if extra:
                y = tf.sin(y) * extra
            v.assign_sub(0.01 * tf.reduce_sum(y) * tf.ones_like(v))
            return tf.reduce_sum(y), w * 1.0

        return wrap(step), lambda: [v, w]

    x = tf.constant(numbers(3, 4))
    script = [(x, 0)] * 20 + [(x, 1.0)] + [(x, 0)] * 26
    step = compare(make, script, steps=len(script), least=20)  # of both programs, that before the fallback and that after it
    assert step.stats().fallbacks == 1


def test_nothing_is_committed_before_the_step_is_validated(monkeypatch, uncut):
    """When a step is cancelled in the compiled form, before anything is replayed, the variables are as they were."""
    v = tf.Variable(numbers(4, 4))

    def body(x, extra):
        y = tf.tanh(x @ v) * 2.0 + 1.0
        v.assign_sub(0.01 * tf.reduce_sum(y) * tf.ones_like(v))
        first = float(v[0, 0])  # by now the graph has computed the new value
        if extra:
            return tf.sin(y)
        return y * first

    step = jit(body)
    x = tf.constant(numbers(3, 4))
    for _ in range(20):
        step(x, False)
    assert_compiled(step, 5)
    before, at_cancel = v.numpy(), []
    replay = python_runner.PythonRunner._replay

    def noting(self, tracer):
        assert self.program.compiled.used
        at_cancel.append(compiled.tfi.execute(compiled.tfi.context_handle(), "", "ReadVariableOp", [v.handle], ("dtype", 1), 1)[0].numpy())
        replay(self, tracer)

    monkeypatch.setattr(python_runner.PythonRunner, "_replay", noting)
    step(x, True)
    assert len(at_cancel) == 1 and (at_cancel[0] == before).all()
    assert (v.numpy() != before).any()


def test_a_step_that_raises_commits_what_eager_would():
    def make(wrap):
        v = tf.Variable(numbers(4, 4))

        def step(x, fail):
            y = tf.tanh(x @ v) * 2.0 + 1.0
            v.assign_sub(0.01 * tf.reduce_sum(y) * tf.ones_like(v))
            first = float(y[0, 0])
            if fail:
                raise KeyError("mine")
            v.assign_add(tf.ones_like(v) * first * 0.01)
            return first

        made = wrap(step)

        def caught(x, fail):
            try:
                return made(x, fail)
            except KeyError:
                return -1.0

        caught.made = made
        return caught, lambda: [v]

    x = tf.constant(numbers(3, 4))
    results = []
    for wrap in (harness.eager, jit):
        step, variables = make(wrap)
        results.append([step(x, i in (18, 20)) for i in range(22)] + [v.numpy() for v in variables()])
    for a, b in zip(*results):
        np.testing.assert_allclose(b, a, RTOL, ATOL)
    assert_compiled(step.made, 3)


def test_state_that_goes_from_step_to_step():
    """An argument that is still being computed is not waited for."""
    def make(wrap):
        w, state = tf.Variable(numbers(4, 4)), [tf.constant(numbers(3, 4))]

        def step(h):
            h = tf.tanh(h @ w) * 1.5 + 0.1 * tf.sin(h)
            w.assign_add(0.01 * tf.reduce_sum(h) * tf.ones_like(w))
            return h

        made = wrap(step)

        def run():
            state[0] = made(state[0])
            return state[0]

        run.made = made
        return run, lambda: [w]

    results = []
    for wrap in (harness.eager, jit):
        run, variables = make(wrap)
        values = [run() for _ in range(30)]  # read when all is done
        results.append([value.numpy() for value in values] + [variables()[0].numpy()])
    for a, b in zip(*results):
        np.testing.assert_allclose(b, a, RTOL, ATOL)
    assert_compiled(run.made, 5)


def test_clusters_too_large_to_compile(monkeypatch):
    monkeypatch.setattr(xla_form, "LARGEST", 5)
    step, _ = written_by_hand(jit)
    for _ in range(12):
        step(tf.constant(numbers(5, 4)), 1.0)
    assert step.stats().compiled_steps == 0 and step.stats().coexecuted_steps
    assert "none of a size that pays" in terra.explain(step, full=True)


# ------------------------------------------------------------------------------------- when

def test_steps_go_on_while_xla_compiles(monkeypatch):
    """Without `wait_for_graph` no step waits: some run in the ordinary form until the other is there."""
    real, begun, may_go_on = compiled.run_alone, threading.Event(), threading.Event()

    def slow(*args):
        begun.set()
        assert may_go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(compiled, "run_alone", slow)
    step, _ = written_by_hand(lambda fn: terra.coexecute(fn, jit_compile=True))
    x = tf.constant(numbers(5, 4))
    deadline, during = time.monotonic() + 60, 0
    while step.stats().compiled_steps < 3 and time.monotonic() < deadline:
        float(step(x, 1.0))
        during += begun.is_set() and not may_go_on.is_set()
        if during == 20:
            may_go_on.set()
        time.sleep(0.002)
    assert during == 20 and step.stats().compiled_steps >= 3


def test_the_faster_form_is_kept(monkeypatch):
    monkeypatch.setattr(trial, "FASTER", 0.0)
    step, _ = written_by_hand(jit)
    x = tf.constant(numbers(5, 4))
    for _ in range(40):
        step(x, 1.0)
    stats = step.stats()
    assert 0 < stats.compiled_steps <= trial.BLOCK + 1  # the trial's
    assert "its steps took" in terra.explain(step, full=True)


@pytest.mark.parametrize("faster", [True, False])
def test_the_choice_holds_for_the_next_graph(monkeypatch, faster):
    """A new path makes a new graph: it is not tried again, unless it is much larger."""
    monkeypatch.setattr(trial, "FASTER", 1e9 if faster else 0.0)
    v = tf.Variable(numbers(4, 4))

    def body(x, extra):
        y = tf.tanh(x @ v) * 2.0 + tf.exp(x) - tf.sigmoid(x)
        for _ in range(extra):
            y = tf.sin(y) + 1.0
        return tf.reduce_sum(y)

    step = jit(body, loops="unroll")
    x = tf.constant(numbers(3, 4))
    for _ in range(20):
        step(x, 0)
    first = step.compiled
    assert first.trial.second_is_better is faster
    for i in range(20):
        step(x, i % 2)
    second = step.compiled
    assert second.trial is first.trial and second.used is faster and (second is first) is not faster
    for i in range(8):
        step(x, 40 * (i % 2))
    third = step.program.compiled
    assert third is not second and third.trial is not first.trial


def test_given_up():
    """Where XLA does not pay, the graph is generated as without the option: with all that it rules out."""
    w = tf.Variable(1.0)

    @terra.coexecute(wait_for_graph=True, jit_compile=True)
    def step(x):
        w.assign_add(1.0)
        return tf.linalg.det(x)  # XLA has no kernel for it

    harness.started_early(step)
    for i in range(8):
        np.testing.assert_allclose(step(tf.eye(3) * i).numpy(), i ** 3, rtol=1e-5)
    stats = step.stats()
    assert step.compiled.reason and step.program.compiled is None and "no part of the graph can be compiled" in terra.explain(step, full=True)
    assert stats.graphs == 2 and stats.fallbacks == 0 and stats.early_steps > 0
    assert w.numpy() == 9.0


def decide(second):
    """What a trial makes of a second form that takes so many times as long as the first, and which form it chose at each step."""
    tried, now, seen = trial.Trial(), 0.0, []
    while tried.second_is_better is None:
        seen.append(tried.choose(now))
        now += second if seen[-1] else 1.0
    return tried.second_is_better, seen


def test_trial_alternates_and_decides():
    assert decide(0.5)[0] and not decide(1e10)[0]
    _, seen = decide(0.5)
    assert seen[:2 * trial.BLOCK] == [False] * trial.BLOCK + [True] * trial.BLOCK


def test_a_hopeless_form_is_tried_for_one_block(monkeypatch):
    monkeypatch.setattr(trial, "FASTER", 0.98)
    monkeypatch.setattr(trial, "HOPELESS", 1.5)
    monkeypatch.setattr(trial, "ROUNDS", 4)
    whole = 2 * trial.BLOCK * 4 + 1
    assert [(better, len(seen)) for better, seen in map(decide, (0.9, 1.0, 1.2, 2.0))] == [
        (True, whole), (False, whole), (False, whole), (False, 2 * trial.BLOCK + 1)]


def test_no_trial_without_the_option():
    step, _ = written_by_hand(lambda fn: terra.coexecute(fn, wait_for_graph=True))
    for _ in range(12):
        step(tf.constant(numbers(5, 4)), 1.0)
    assert step.stats().compiled_steps == 0 and step.program.compiled is None
    assert "XLA" not in terra.explain(step, full=True)


def test_rolled_steps_are_not_compiled():
    """Pieces are small graphs: the option is accepted, and does nothing."""
    w = tf.Variable(numbers(4, 4))

    @terra.coexecute(jit_compile=True, wait_for_graph=True, loops="roll")
    def step(n):
        y = tf.ones((2, 4))
        for _ in range(n):
            y = tf.tanh(y @ w)
        return tf.reduce_sum(y)

    for i in range(24):
        step(2 + i % 5)
    stats = step.stats()
    assert stats.pieces and stats.coexecuted_steps and stats.compiled_steps == 0


def test_one_line_interface_and_keras_fit():
    v = tf.Variable(numbers(4, 4))
    for _ in range(20):
        with terra.GradientTape(jit_compile=True, wait_for_graph=True) as tape:
            y = tf.reduce_sum(tf.tanh(tf.ones((2, 4)) @ v) + tf.exp(v[0]))
        v.assign_sub(0.01 * tape.gradient(y, v))
    model = mlp()
    steps = terra.compile(model, optimizer="adam", loss=sparse(), jit_compile=True, wait_for_graph=True)
    model.fit(numbers(160, 6), np.random.RandomState(0).randint(0, 3, 160), batch_size=8, epochs=2, verbose=0)
    assert steps.stats()["train"].compiled_steps > 5


@pytest.mark.parametrize("option, trained", [(False, True), (True, False), (True, True)], ids=["plain-trained", "compiled", "compiled-trained"])
def test_functions_of_the_users_that_xla_compiles(option, trained):
    """A `tf.function(jit_compile=True)` in the step is compiled in the graph, too; its twin, with the same code, is not."""
    def make(wrap):
        weights = tf.Variable(numbers(16, 16))

        def body(x):
            for _ in range(3):
                x = tf.nn.softmax(tf.tanh(x @ weights) * 3.0 - tf.exp(-x * x))
            return x

        by_xla, plain = tf.function(body, jit_compile=True), tf.function(body)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(by_xla(x)[:, 0] + plain(x)[:, 1])
            if trained:
                weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return wrap(step), lambda: [weights]

    batches = [(tf.constant(numbers(8, 16, seed=k)),) for k in range(3)]
    if option:
        made = compare(make, batches, least=1)
    else:
        runs = []
        for wrap in (harness.eager, harness.coexecuted):
            made, variables = make(wrap)
            runs.append([made(*batches[k % 3]).numpy().tobytes() for k in range(12)] + [variables()[0].numpy().tobytes()])
        assert runs[0] == runs[1]
        assert made.stats().coexecuted_steps >= 8
    calls = [node for fdef in made.program.generated.fdefs for node in fdef.node_def if node.op.endswith("PartitionedCall")]
    assert sorted(node.attr["_XlaMustCompile"].b for node in calls) == [False] * (1 + trained) + [True] * (1 + trained)
