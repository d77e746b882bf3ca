"""Other operations in the place of slow ones: they give the same bits, hold for the shapes that they were tried with, and for no others."""
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.generation.kernels import rewrites, benchmark
from terra.runtime.generation.kernels.eager_kernels import FLOAT
from terra.tf import private_names as tfi
from terra.tf.private import runtime_functions
from tests.harness import differ, started_early
from tests.variants import examples

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38], "float32")


def floats(*shape, seed=0, special=False):
    random = np.random.RandomState(seed)
    x = random.standard_normal(shape).astype("float32")
    return np.where(random.random_sample(shape) < 0.2, random.choice(SPECIAL, shape), x) if special else x


class Recorded:
    """An operation as TensorFlow records it: what `alternatives` is asked about."""

    def __init__(self, function, *inputs):
        concrete = tf.function(function, autograph=False).get_concrete_function(*[tf.TensorSpec(x.shape, x.dtype) for x in inputs])
        self.op = concrete.outputs[0].op
        while self.op.type == "Identity":
            self.op = self.op.inputs[0].op
        self.concrete = concrete  # or its operations were gone
        self.attrs = dict(self.op.node_def.attr)
        self.shapes = tuple([tuple(x.shape) for x in self.op.inputs])
        values = [tf.get_static_value(x) for x in self.op.inputs]
        self.constants = [None if value is None else np.asarray(value) for value in values]

    def ways(self):
        return list(rewrites._WAYS[self.op.type](self.attrs, self.shapes, self.constants))

    def run(self, way, *inputs):
        """What a way gives for the inputs that are no constants."""
        enums = [x.dtype.as_datatype_enum for x in inputs]
        fdef = benchmark._function(rewrites._with_constants(way, self.constants), enums, [FLOAT])
        runtime_functions.add_function(fdef)
        try:
            return runtime_functions.execute_graph(fdef.signature.name, list(inputs), benchmark._COPIES)[-1].numpy()
        finally:
            runtime_functions.remove_function(fdef.signature.name)


def same_bits(function, *inputs):
    """How many ways there are for an operation; all give its bits."""
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    recorded, expected = Recorded(function, *inputs), function(*inputs).numpy()
    ways = recorded.ways()
    for way in ways:
        result = recorded.run(way, *inputs)
        assert result.shape == expected.shape and result.tobytes() == expected.tobytes()
    return len(ways)


@settings(max_examples=examples(25), deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(1, 6), min_size=4, max_size=4), st.integers(0, 4))
def test_transpositions(perm, shape, rank):
    rank = max(rank, 2)
    perm = [k for k in perm if k < rank]
    assert same_bits(lambda x: tf.raw_ops.Transpose(x=x, perm=perm), floats(*shape[:rank], special=True)) == 2


@pytest.mark.parametrize("place", ["x", "y", "both"])
def test_choices(place):
    condition = floats(6, 9) > 0
    x, y = [tf.constant(floats(6, 9, seed=k, special=True) if place in (name, "both") else np.float32("nan")) for k, name in enumerate("xy")]
    assert same_bits(lambda c, x, y: tf.raw_ops.SelectV2(condition=c, t=x, e=y), condition, x, y) == (place != "both")


def test_differences():
    for shape in ((5, 7), (1, 7), (5, 1), ()):
        assert same_bits(lambda x, y: tf.raw_ops.SquaredDifference(x=x, y=y), floats(5, 7, special=True), floats(*shape, seed=1, special=True)) == 1


SLICES = [
    np.s_[1:], np.s_[:, 2:4], np.s_[-3:, :, :-1], np.s_[:, 1], np.s_[2, :, 3], np.s_[-1], np.s_[:, -2, 1:], np.s_[1:1], np.s_[:, 3:2], np.s_[:],
]


@pytest.mark.parametrize("part", SLICES, ids=str)
def test_gradients_of_parts(part):
    """The gradient of a slice is zeros round what came in."""
    def gradient(dy):
        x = tf.zeros((5, 6, 4))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x[part]
        return tape.gradient(y, x, dy)

    assert same_bits(gradient, floats(*np.zeros((5, 6, 4))[part].shape, special=True)) == 1


@pytest.mark.parametrize("part", [np.s_[::2], np.s_[..., 1:], np.s_[:, None, 1:], np.s_[::-1]], ids=str)
def test_gradients_of_parts_that_are_left_alone(part):
    x = tf.zeros((5, 6, 4))

    def gradient(dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x[part]
        return tape.gradient(y, x, dy)

    assert same_bits(gradient, floats(*np.zeros((5, 6, 4))[part].shape)) == 0


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_products(data):
    """Each einsum of two tensors over common axes, with common axes that stay: equal but for the order of sums."""
    batch, own, others, summed = [data.draw(st.integers(low, high)) for low, high in ((1, 2), (0, 2), (0, 2), (1, 2))]
    names = list("abcdefgh")[:batch + own + others + summed]
    sizes = {name: data.draw(st.integers(1, 4)) for name in names}
    both, mine, yours, gone = names[:batch], names[batch:batch + own], names[batch + own:batch + own + others], names[batch + own + others:]
    x, y, out = ["".join(data.draw(st.permutations(part))) for part in (both + mine + gone, both + yours + gone, both + mine + yours)]
    given = [tf.constant(floats(*[sizes[name] for name in part], seed=k)) for k, part in enumerate((x, y))]
    equation = f"{x},{y}->{out}"
    recorded = Recorded(lambda x, y: tf.raw_ops.Einsum(inputs=[x, y], equation=equation), *given)
    expected = tf.raw_ops.Einsum(inputs=given, equation=equation).numpy()
    ways = recorded.ways()
    assert len(ways) == 3
    for way in ways:
        result = recorded.run(way, *given)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("equation, x, y", [
    ("ab,bc->ac", (2, 3), (3, 4)), ("...ab,...bc->...ac", (2, 2, 3), (2, 3, 2)), ("aab,ab->ab", (2, 2, 3), (2, 3)),
    ("abc,ac->a", (2, 3, 4), (2, 4)), ("ab,ac->abc", (2, 3), (2, 4)),
])
def test_products_that_are_left_alone(equation, x, y):
    given = [tf.constant(floats(*shape)) for shape in (x, y)]
    assert not Recorded(lambda x, y: tf.raw_ops.Einsum(inputs=[x, y], equation=equation), *given).ways()


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_one_matrix(batch, adjoint):
    x, y = tf.constant(floats(*batch, 5, 6)), tf.constant(floats(*((7, 6) if adjoint else (6, 7)), seed=1))

    def product(x, y):
        return tf.raw_ops.BatchMatMulV2(x=x, y=y, adj_y=adjoint)

    recorded = Recorded(product, x, y)
    way, = recorded.ways()
    assert recorded.run(way, x, y).shape == product(x, y).shape
    np.testing.assert_allclose(recorded.run(way, x, y), product(x, y).numpy(), 1e-5, 1e-5)
    assert not Recorded(lambda x, y: tf.raw_ops.BatchMatMulV2(x=x, y=y, adj_x=True), tf.zeros((3, 6, 5)), tf.zeros((6, 7))).ways()
    assert not Recorded(lambda x, y: tf.raw_ops.BatchMatMulV2(x=x, y=y), tf.zeros((3, 5, 6)), tf.zeros((3, 6, 7))).ways()


# -- contests ------------------------------------------------------------------------------------------------------------------


def unary(*names):
    def way(builder, refs, label):
        ref = refs[0]
        for name in names:
            ref = builder.node(name, [ref], {"T": rewrites.dtype(FLOAT)}, label) + ":y:0"
        return [ref]

    return way


def test_a_faster_way_with_the_same_bits_wins():
    ways = [unary(*["Neg"] * 41), unary(*["Neg"] * 43), unary("Neg")]
    assert any(benchmark.fastest(ways, [(FLOAT, (300, 300))], [FLOAT]) == 2 for _ in range(5))  # a busy machine may hide it once


def test_a_way_with_other_bits_loses():
    slow = unary(*["Neg"] * 41)
    assert benchmark.fastest([slow, unary("Abs")], [(FLOAT, (300, 300))], [FLOAT]) == 0


def test_a_way_that_is_hardly_faster_is_not_worth_it(monkeypatch):
    names = []

    def seconds(call):
        name = call.args[0]
        if name not in names:
            names.append(name)
        return 1e-5 - 5e-7 * names.index(name)

    monkeypatch.setattr(benchmark, "_seconds", seconds)
    assert benchmark.fastest([unary("Neg"), unary("Neg")], [(FLOAT, (3, 3))], [FLOAT]) == 0
    assert len(names) == 2


def test_a_way_that_fails_loses():
    def fails(builder, refs, label):
        return [builder.node("Reshape", [refs[0], rewrites.const_ints(builder, (7,))], {"T": rewrites.dtype(FLOAT)}, label) + ":output:0"]

    assert benchmark.fastest([unary(*["Neg"] * 41), fails], [(FLOAT, (300, 300))], [FLOAT]) == 0


def test_long_operations_have_no_contest(monkeypatch):
    monkeypatch.setattr(benchmark, "_LONGEST", 0)
    assert benchmark.fastest([unary(*["Neg"] * 41), unary("Neg")], [(FLOAT, (300, 300))], [FLOAT]) == 0


def test_contests_leave_no_functions():
    before = set(tfi.ctx().list_function_names())
    benchmark.fastest([unary("Neg"), unary("Abs")], [(FLOAT, (3, 3))], [FLOAT])
    assert set(tfi.ctx().list_function_names()) == before


# -- whole steps ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch):
    """The last way that gives the same bits is taken, however long it takes, of operations of any size."""
    def last(ways, inputs, out_enums):
        times = iter(range(10 ** 6))
        with monkeypatch.context() as patch:
            patch.setattr(benchmark, "_ROUNDS", 1)
            patch.setattr(benchmark, "_LONGEST", 10 ** 7)
            patch.setattr(benchmark, "_seconds", lambda call: 1 / (1 + next(times)))
            return fastest(ways, inputs, out_enums)

    fastest = benchmark.fastest
    monkeypatch.setattr(benchmark, "fastest", last)
    monkeypatch.setattr(rewrites, "SMALLEST", 1)
    monkeypatch.setattr(rewrites, "_found", {})


def attention(units=8, heads=2):
    q, k, v, o = [tf.Variable(floats(units, units, seed=n) * 0.3) for n in range(4)]

    def attend(x):
        length = tf.shape(x)[1]
        parts = [tf.reshape(tf.matmul(x, w), (-1, length, heads, units // heads)) for w in (q, k, v)]
        scores = tf.einsum("BTNH,BSNH->BNTS", parts[0], parts[1])
        scores = tf.where(scores > 0.5, -1e9, scores)
        mixed = tf.einsum("BNTS,BSNH->BTNH", tf.nn.softmax(scores), parts[2])
        y = tf.matmul(tf.reshape(mixed, tf.shape(x)), o) + x
        y = tf.math.squared_difference(y[:, 1:], tf.reduce_mean(y, axis=-1, keepdims=True)[:, 1:])
        return tf.transpose(y, (1, 0, 2))

    return attend, [q, k, v, o]


def training():
    attend, weights = attention()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(attend(x))
        gradients = tape.gradient(loss, weights)
        for w, g in zip(weights, gradients):
            w.assign_sub(0.1 * g)
        return loss, gradients

    return step


USED = {"BatchMatMulV2", "Einsum", "SelectV2", "StridedSliceGrad", "Transpose"}  # and, for any shape, SquaredDifference


def test_a_step_with_all_of_them(taken):
    batches = [tf.constant(floats(4, 6, 8, seed=k)) for k in range(3)]
    eager, step = training(), terra.coexecute(training(), wait_for_graph=True)
    for k in range(10):
        for expected, actual in zip(tf.nest.flatten(eager(batches[k % 3])), tf.nest.flatten(step(batches[k % 3]))):
            assert expected.numpy().tobytes() == actual.numpy().tobytes()
    assert step.stats().coexecuted_steps >= 8 and step.stats().fallbacks == 0
    fixed = {node.payload.event.info.op_type for node in step.program.generated.fixed}
    assert fixed == USED
    report = str(terra.explain(step, full=True))
    assert "Shapes are assumed of" in report and "Einsum (6)" in report and "would run imperatively" in report
    left = {node.op for node in step.graph.as_graph_def().node}
    assert not left & {"Einsum", "SelectV2", "SquaredDifference", "StridedSliceGrad"} and {"MatMul", "Select", "Pad", "Bitcast"} <= left


def test_nothing_is_committed_before_shapes_are_checked(taken):
    step, x = terra.coexecute(training(), wait_for_graph=True), tf.constant(floats(4, 6, 8))
    for _ in range(4):
        step(x)
    nodes = {node.name: [name.split(":")[0] for name in node.input] for node in step.graph.as_graph_def().node}
    ops = {node.name: node.op for node in step.graph.as_graph_def().node}
    barrier, = [name for name, op in ops.items() if op == "NoOp" and name.startswith("barrier")]
    before, left = set(), [source for name, op in ops.items() if op == "AssignVariableOp" for source in nodes[name] if not source.startswith("^")]
    while left:  # what the updates are computed from
        name = left.pop()
        if name not in before:
            before.add(name)
            left += nodes[name]
    checks = {name for name in before if ops[name] == "EnsureShape"}
    assert len(checks) > 5 and checks <= {name.lstrip("^") for name in nodes[barrier]}


def make_multiplying(reads):
    """A step in which nothing but the operations that are replaced would mind another batch."""
    w, log = tf.Variable(floats(8, 8)), []

    def step(x):
        y = tf.matmul(x, w)
        if reads:
            log.append(float(tf.reduce_sum(y)))
        y = tf.transpose(y, (0, 2, 1))
        w.assign_add(0.01 * w)
        return tf.einsum("abc,abd->acd", y, y), list(log)

    return step


def run_sizes(sizes, reads, wrap=lambda step: step):
    """Runs batches of these sizes; returns the step, and after each the number of fallbacks and whether the general form ran (None if it was not dispatched late)."""
    eager, step, seen = make_multiplying(reads), wrap(terra.coexecute(make_multiplying(reads), wait_for_graph=True, reduce_retracing=False)), []
    start = GRAPH_RUNNER.start

    def started(program, arguments, form, *rest):
        seen[-1][1] = form is program.general
        return start(program, arguments, form, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRAPH_RUNNER, "start", started)
        for k, size in enumerate(sizes):
            x = tf.constant(floats(size, 6, 8, seed=k))
            seen.append([0, None])
            expected, actual = eager(x), step(x)
            assert expected[0].numpy().tobytes() == actual[0].numpy().tobytes() and expected[1] == actual[1]
            seen[-1][0] = step.stats().fallbacks
    return step, seen


def test_other_shapes_run_imperatively_once_and_then_in_a_general_form(taken):
    sizes = [4] * 6 + [3] + [4] * 12 + [3] * 12 + [5, 4, 3]
    step, seen = run_sizes(sizes, False)
    assert "other shapes" in str(terra.explain(step, full=True))
    assert [fallbacks for fallbacks, _ in seen] == [0] * 6 + [1] * (len(sizes) - 6)
    assert [general for _, general in seen[8:]] == [size != 4 for size in sizes[8:]]
    program = step.program
    assert program.generated.fixed and not program.general.fixed and program.general.arg_specs == program.generated.arg_specs
    assert "has a general form" in str(terra.explain(step, full=True))
    assert step.stats().fast_forwards > 20  # calls were jumped over with all shapes


def test_a_general_form_that_starts_with_its_step(taken):
    sizes = [4] * 6 + [3] + [4] * 4 + [3] * 6 + [5, 4, 3]
    step, seen = run_sizes(sizes, False, started_early)
    assert seen[-1][0] == 1 and [general for _, general in seen[-6:]] == [None] * 6
    assert step.program.general is not None and step.program.early_form is not None and not step.program.early_form.fixed
    assert step.stats().early_steps > len(sizes) - 8


def test_shapes_that_vary_have_nothing_but_the_general_form(taken):
    step, seen = run_sizes([4] * 4 + list(range(5, 12)) * 2, False)
    assert [general for _, general in seen[-7:]] == [True] * 7 and seen[-1][0] == 1
    with step.generation.lock:
        program = step.generation._make_program(step.store)
    assert not program.generated.fixed and program.general is None


def test_graphs_that_start_with_their_step_have_no_general_form(taken):
    step, seen = run_sizes([4] * 6 + [3] + [4] * 4 + [3] * 4 + [5, 4, 3], True)
    assert step.program.early and not step.program.generated.fixed and step.program.general is None
    assert seen[5][0] == 0 and seen[6][0] == seen[-1][0] == 1


def test_an_early_form_of_a_late_graph_has_them_too(taken):
    step = terra.coexecute(training(), wait_for_graph=True)
    x = tf.constant(floats(4, 6, 8))
    for _ in range(4):
        step(x)
    step.early_start.wanted = True
    with step.generation.lock:
        form = step.generation._make_early_form(step.program, step.store)
    assert form.early and form.fixed == step.program.generated.fixed


def test_pieces_have_none(taken):
    """Their shapes are others all the time."""
    def step(x, n):
        for _ in range(n):
            x = tf.tanh(tf.matmul(x, tf.transpose(x)))
        return x

    whole = terra.coexecute(tf.transpose, wait_for_graph=True)
    for _ in range(4):
        whole(tf.constant(floats(5, 5)))
    assert whole.program.generated.fixed  # so it is known what would be faster
    random = np.random.RandomState(0)
    made = terra.coexecute(step, loops="roll", wait_for_graph=True)
    for k in range(30):
        x, n = tf.constant(floats(5, 5, seed=k)), int(random.randint(1, 12))
        assert step(x, n).numpy().tobytes() == made(x, n).numpy().tobytes()
    programs = [piece.program for piece in made.segments.table.values() if piece.program is not None]
    assert programs and not any(program.generated.fixed for program in programs)


# -- shapes that the skeleton does not know, but remembers ---------------------------------------------------------------------


def assert_same(make, given, replaced=True):
    """Runs a step whose operations are replaced, if their shapes are known, and get other shapes in step 7 and from step 9 on."""
    fixed = []

    def look(i, step):
        if i == 7 and hasattr(step, "program"):
            fixed.append(bool(step.program.generated.fixed))

    assert differ(make, given, 12, change=look).coexecuted_steps >= 7
    assert fixed == [replaced]


def test_the_result_of_a_function_whose_shape_depends_on_data(taken):
    """Nothing is committed before a graph that is not right for it has failed."""
    few, many = [tf.constant(np.arange(12) // n, tf.int32) for n in (4, 2)]
    x, m = tf.constant(floats(12, 4, 8)), tf.Variable(floats(8, 8))
    sums = tf.function(tf.math.segment_sum)

    def make():
        w = tf.Variable(0.0)

        def step(x, ids):
            y = tf.matmul(sums(x, ids), m)
            w.assign_add(1.0)
            return y, tf.transpose(y, (1, 0, 2))

        return step, lambda: w

    assert_same(make, lambda i: (x, few if i == 7 or i > 8 else many))


@pytest.mark.parametrize("made", ["before", "in the step"])
def test_variables_of_other_shapes(taken, made):
    """With as many elements: a Reshape would not fail."""
    m = tf.Variable(floats(8, 8))
    x, y = tf.constant(floats(4, 6, 8)), tf.constant(floats(6, 4, 8))

    def make():
        v = tf.Variable(x, shape=tf.TensorShape([None, None, 8]))

        def step(x):
            if made == "before":
                v.assign(x)
                return tf.matmul(tf.nn.relu(v), m)
            local = tf.Variable(x)
            local.assign_add(x)
            return tf.matmul(tf.identity(local), m)

        return step, lambda: v

    assert_same(make, lambda i: (y if i == 7 or i > 8 else x,), replaced=made != "before")


def test_after_a_failure_graphs_are_right_for_all_shapes(taken):
    step = terra.coexecute(lambda x, k: tf.transpose(x, (1, 0, 2)) + tf.gather(x[0, 0], k), wait_for_graph=True)
    x = tf.constant(floats(4, 6, 8))
    for _ in range(5):
        step(x, tf.constant(1))
    assert step.program.generated.fixed
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(x, tf.constant(99)).numpy()
        terra.sync()
    for _ in range(4):
        step(x, tf.constant(1))
    assert step.program is not None and not step.program.generated.fixed


def test_steps_that_fall_back_again_and_again(taken):
    """Whatever the reason why the skeleton does not find the shapes: it may ask for them in other words than a trace tells them."""
    x = tf.constant(floats(4, 6, 8))
    step = terra.coexecute(lambda x: tf.transpose(x, (1, 0, 2)), wait_for_graph=True)
    for _ in range(4):
        step(x)
    for node in step.program._nodes:
        if getattr(node, "fixed", False):
            node.shapes = {}
    step.program.forget_records()
    for _ in range(10):
        np.testing.assert_array_equal(step(x).numpy(), x.numpy().transpose(1, 0, 2))
    stats = step.stats()
    assert 2 <= stats.fallbacks < 8 and not step.program.generated.fixed
    before = stats.coexecuted_steps
    step(x)
    assert step.stats().coexecuted_steps == before + 1


def test_when_the_first_shapes_were_not_those_that_count(taken):
    step, seen = run_sizes([2] * 4 + [4] * 75, False)
    assert seen[-1][0] == 1 and step.stats().coexecuted_steps >= 70
    assert not step.program.generated.fixed and step.program.general is None


def test_shapes_are_no_paths(taken):
    """Steps are not taken to have settled on one of several paths because they have had two shapes."""
    step, seen = run_sizes([4] * 6 + ([3] + [4] * 11) * 12, False)
    assert seen[-1][0] == 1 and step.stats().traces == 1 and step.program.general is not None


def test_integers_have_no_other_ways(taken):
    x, y = tf.cast(tf.constant(floats(3, 4, 5) * 10), tf.int8), tf.cast(tf.constant(floats(3, 5, 4) * 10), tf.int8)
    stats = differ(lambda: (lambda x, y: tf.matmul(x, y, output_type=tf.int32), lambda: []), lambda i: (x, y), 8)
    assert stats.coexecuted_steps >= 5


@pytest.mark.parametrize("error", [MemoryError, tf.errors.ResourceExhaustedError(None, None, "memory")])
def test_a_contest_that_cannot_be_held(monkeypatch, error):
    def fail(call):
        raise error

    monkeypatch.setattr(benchmark, "_seconds", fail)
    assert benchmark.fastest([unary("Neg"), unary("Neg")], [(FLOAT, (3, 3))], [FLOAT]) == 0
