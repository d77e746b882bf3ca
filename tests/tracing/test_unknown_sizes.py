"""Shapes that depend on data: code that can do without them does not wait for them, and whoever looks at one sees what it is in eager execution."""

import copy
import pickle
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.tensors.open_shapes import PartialShape, LazyShape, is_known_to_be, merged, tensor_shape
from tests.variants import examples

STEPS = 18


def data(seed, steps=STEPS):
    """Batches with masks, some of which leave little, or nothing."""
    drawn = np.random.RandomState(seed)
    for k in range(steps):
        share = 0.0 if k % 13 == 12 else 0.05 if k % 9 == 8 else 0.6
        yield tf.constant(drawn.randn(20, 4).astype("float32")), tf.constant(drawn.rand(20) < share)


STARTS = {
    "mask": tf.boolean_mask,
    "where": lambda x, m: tf.gather(x, tf.where(m)[:, 0]),
    "unique": lambda x, m: tf.gather(x, tf.unique(tf.cast(m, tf.int32) * tf.range(len(m)))[0]),
    "segments": lambda x, m: tf.math.segment_sum(x, tf.cumsum(tf.cast(m, tf.int32))),
    "partition": lambda x, m: tf.dynamic_partition(x, tf.cast(m, tf.int32), 2)[1],
}


def square(w):
    return tf.reshape(tf.concat([w] * 4, 0), (4, 4))


BLIND = {  # operations that read nothing, nor do their gradients
    "mul": lambda x, w: x * w, "add": lambda x, w: x + w, "sub": lambda x, w: w - x, "div": lambda x, w: x / (w * w + 1.0),
    "less_mean": lambda x, w: x - tf.reduce_mean(x, axis=0), "less_row": lambda x, w: x - tf.reduce_mean(x, axis=1, keepdims=True),
    "matmul": lambda x, w: x @ square(w), "softmax": lambda x, w: tf.nn.softmax(x), "log_softmax": lambda x, w: tf.nn.log_softmax(x),
    "max": lambda x, w: x * tf.reduce_max(x, axis=1, keepdims=True), "prod": lambda x, w: x * tf.reduce_prod(x * 0.5, axis=1, keepdims=True),
    "twice": lambda x, w: tf.concat([x, x * 2.0], 0), "columns": lambda x, w: tf.concat([x[:, 2:], x[:, :2]], 1), "every_other": lambda x, w: x[::2],
    "tail": lambda x, w: x[1:], "differences": lambda x, w: x[1:] - x[:-1], "reversed": lambda x, w: x[::-1], "roll": lambda x, w: tf.roll(x, 1, 0),
    "half": lambda x, w: tf.gather(x, tf.range(tf.shape(x)[0] // 2)), "where": lambda x, w: tf.where(x > 0.0, x, x * w),
    "positive": lambda x, w: tf.gather_nd(x, tf.where(x[:, 2] < 1.0)), "transposed": lambda x, w: tf.transpose(tf.transpose(x) * 2.0),
    "square": lambda x, w: x ** 2, "cumsum": lambda x, w: tf.cumsum(x, axis=1), "expanded": lambda x, w: tf.squeeze(tf.expand_dims(x, 1) * w, 1),
    "pad": lambda x, w: tf.pad(x, [[1, 0], [0, 0]]), "tile": lambda x, w: tf.tile(x, [2, 1]), "std": lambda x, w: x / (tf.math.reduce_std(x, axis=1, keepdims=True) + 1.0),
    "norm": lambda x, w: tf.math.l2_normalize(x, axis=1), "maximum": lambda x, w: tf.maximum(x, w), "flat": lambda x, w: tf.reshape(tf.reshape(x, [-1]), [-1, 4]),
    "size": lambda x, w: x / tf.cast(tf.size(x) + 1, tf.float32), "shape": lambda x, w: x / tf.cast(tf.shape(x)[0] + 1, tf.float32),
    "rank": lambda x, w: x * float(x.shape.rank + len(x.shape)), "known_size": lambda x, w: x * float(x.shape[-1] + x.shape[1:][0]),
    "stack": lambda x, w: tf.reduce_sum(tf.stack([x, x * w], 1), 1), "split": lambda x, w: tf.concat(tf.split(x, 2, axis=1)[::-1], 1),
    "sort": lambda x, w: tf.sort(x, axis=1), "partition": lambda x, w: tf.concat(tf.dynamic_partition(x, tf.cast(x[:, 1] > 0.0, tf.int32), 2), 0),
    "broadcast": lambda x, w: x + tf.broadcast_to(w, tf.shape(x)), "ones": lambda x, w: x * tf.ones_like(x) + tf.zeros_like(x),
    "kernel": lambda x, w: tf.matmul(x, x, transpose_b=True) @ x * 0.01, "moments": lambda x, w: x + sum(tf.nn.moments(x, [1], keepdims=True)),
    "batch_norm": lambda x, w: tf.nn.batch_normalization(x, tf.reduce_mean(x, 0), tf.math.reduce_variance(x, 0), w, w, 1e-3),
    "segments": lambda x, w: x + tf.math.segment_mean(x, tf.zeros(tf.shape(x)[0], tf.int32)),
}
SEEING = {  # operations for which Python has to know sizes
    "python_size": lambda x, w: x / (x.shape[0] + 1.0), "python_len": lambda x, w: x * (1.0 + len(x) * 0.01), "clip": lambda x, w: tf.clip_by_value(x, -0.5, 0.5),
    "einsum": lambda x, w: tf.einsum("ij,j->ij", x, w), "again": lambda x, w: tf.boolean_mask(x, x[:, 0] > -1.0), "unstack": lambda x, w: tf.stack(tf.unstack(x, axis=1), 1),
    "labels": lambda x, w: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(x, 1), x)[:, None] * x, "tensordot": lambda x, w: tf.tensordot(x, square(w), 1),
    "svd": lambda x, w: x * tf.reduce_sum(tf.linalg.svd(tf.transpose(x) @ x + tf.linalg.diag([1.0, 2.0, 3.0, 4.0]))[0] * w),
    "qr": lambda x, w: x + tf.reduce_sum(tf.linalg.qr(tf.concat([x, tf.eye(4)], 0)[:, :3])[0] * w[:3]) * 0.01,
    "keras": lambda x, w: x + tf.keras.losses.MeanSquaredError()(x, x * w),
}
REDUCTIONS = {
    "mean": tf.reduce_mean, "sum": tf.reduce_sum, "max": tf.reduce_max, "rows": lambda x: tf.reduce_sum(tf.reduce_mean(x, 1)),
    "columns": lambda x: tf.reduce_sum(tf.reduce_max(x, 0)), "logsumexp": tf.reduce_logsumexp, "norm": tf.norm,
}


def program(start, names, reduction, persistent=False):
    operations = {**BLIND, **SEEING}

    def step(w, v, x, m):
        with tf.GradientTape(persistent=persistent) as tape:
            h = STARTS[start](x * v, m)
            for name in names:
                h = operations[name](h, w)
            loss = REDUCTIONS[reduction](h)
        gradients = tape.gradient(loss, [w, v])
        for variable, gradient in zip((w, v), gradients):
            if gradient is not None:
                variable.assign_sub(tf.clip_by_value(1e-3 * gradient, -1e-2, 1e-2))
        return loss, gradients

    return step


def run(step, seed=0):
    drawn = np.random.RandomState(seed)
    w, v = tf.Variable(drawn.randn(4).astype("float32")), tf.Variable(drawn.randn(4).astype("float32"))
    seen = []
    for x, m in data(seed):
        try:
            loss, gradients = step(w, v, x, m)
            seen.append((loss.numpy().tobytes(), [None if g is None else g.numpy().tobytes() for g in gradients]))
        except tf.errors.InvalidArgumentError as error:  # of what is left nothing can be taken
            seen.append(type(error))
    return seen, w.numpy().tobytes(), v.numpy().tobytes()


def check(step, seed=0, **options):
    """Equal to eager execution bit for bit, and co-executed; returns the statistics."""
    coexecuted = terra.coexecute(step, wait_for_graph=True, **options)
    assert run(coexecuted, seed) == run(step, seed)
    stats = coexecuted.stats()
    assert stats.coexecuted_steps >= STEPS - 8, stats
    return stats


@pytest.mark.parametrize("name", BLIND)
def test_nothing_is_read(name):
    stats = check(program("mask", [name], "mean"))
    assert stats.fetches == 0 and stats.graphs <= 2, stats
    assert stats.whole_steps >= 5, stats


def test_gradients_of_weights_have_their_shapes():
    """Also where the shape of what is between was computed: nothing has to be read to update the weights."""
    rng = np.random.RandomState(0)
    initial = [rng.randn(4, 8).astype("float32"), rng.randn(8).astype("float32"), rng.randn(8, 3).astype("float32")]
    weights = [tf.Variable(x) for x in initial]

    def step(x, m):
        first, bias, last = weights
        with tf.GradientTape() as tape:
            h = tf.boolean_mask(x, m) @ first + bias
            loss = tf.reduce_mean((h * tf.sigmoid(h) / (1.0 + tf.reduce_sum(h * h, 1, keepdims=True))) @ last)
        gradients = tape.gradient(loss, weights)
        for variable, gradient in zip(weights, gradients):
            variable.assign_sub(tf.ensure_shape(0.1 * gradient, variable.shape))
        return loss, [g.shape.as_list() for g in gradients]

    def run(f):
        for variable, value in zip(weights, initial):
            variable.assign(value)
        losses = [f(x, m) for x, m in data(1)]
        return [(loss.numpy().tobytes(), shapes) for loss, shapes in losses], [v.numpy().tobytes() for v in weights]

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert run(coexecuted) == run(step)
    stats = coexecuted.stats()
    assert stats.coexecuted_steps >= STEPS - 8 and stats.fetches == 0, stats


@pytest.mark.parametrize("reduction, start", [(reduction, [*STARTS][(k + j) % len(STARTS)]) for k, reduction in enumerate(REDUCTIONS) for j in (0, 2)])
def test_nothing_is_read_of(start, reduction):
    stats = check(program(start, ["mul"], reduction))
    assert stats.fetches == 0, stats


@pytest.mark.parametrize("name", SEEING)
def test_what_is_needed_is_read(name):
    assert (check(program("mask", [name], "mean")).fetches > 0) == (name not in ("svd", "einsum", "tensordot", "clip", "unstack", "labels"))


@pytest.mark.parametrize("options", [{"fast_forward": False}, {"fast_forward": "framework"}, {"verify": True}, {"loops": "roll"}])
def test_with_other_options(options):
    check(program("mask", ["less_row", "std", "columns", "size"], "mean"), **options)


@settings(max_examples=examples(14), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(STARTS)), st.lists(st.sampled_from([*BLIND, *SEEING]), min_size=1, max_size=5), st.sampled_from(list(REDUCTIONS)), st.booleans(), st.integers(0, 1000))
def test_random_chains(start, names, reduction, persistent, seed):
    step = program(start, names, reduction, persistent)
    assert run(terra.coexecute(step, wait_for_graph=True), seed) == run(step, seed)


LOOKS = {
    "repr": repr, "str": str, "list": lambda s: s.as_list(), "tuple": tuple, "iteration": lambda s: [n + 1 for n in s], "rank": lambda s: (s.rank, s.ndims, len(s), bool(s)),
    "first": lambda s: (s[0], s[-2], s[:1], s[:2]), "last": lambda s: (s[1], s[-1], s[1:]), "unpacked": lambda s: (lambda a, b: (a, b))(*s), "elements": lambda s: s.num_elements(),
    "dims": lambda s: [d.value for d in s.dims], "defined": lambda s: s.is_fully_defined(), "equal": lambda s: (s == [20, 4], s != tf.TensorShape([None, 4]), s == s),
    "sum": lambda s: (s + [1], [1] + s), "compatible": lambda s: (s.is_compatible_with([None, 4]), s.is_compatible_with([3, 4])), "merged": lambda s: s.merge_with([None, 4]),
    "pickled": lambda s: pickle.loads(pickle.dumps(s)), "copied": lambda s: (copy.copy(s), copy.deepcopy(s)), "hash": lambda s: hash(s), "type": type, "proto": lambda s: str(s.as_proto()),
    "array": lambda s: np.zeros(s).shape, "contains": lambda s: (4 in s, 1000 in s), "formatted": lambda s: f"{s} {s[0]}", "tensor": lambda s: tf.constant(s).numpy().tolist(),
    "used": lambda s: tf.zeros(s).shape.as_list(), "concatenated": lambda s: s.concatenate([2]).as_list(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_sees_the_shape(look):
    """In the step, and at a shape that has outlived it."""
    seen, kept = [], []

    def step(x, m):
        y = tf.boolean_mask(x, m) * 2.0
        seen.append(LOOKS[look](y.shape))
        kept.append(tf.boolean_mask(x, m).shape)
        return tf.reduce_sum(y)

    def run(f):
        seen.clear()
        kept.clear()
        losses = [f(*batch).numpy() for batch in data(3)]
        return losses, list(seen), [LOOKS[look](shape) for shape in kept]

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert repr(run(coexecuted)) == repr(run(step))
    assert coexecuted.stats().coexecuted_steps >= STEPS - 8


@pytest.mark.parametrize("inner", [False, True])
def test_a_shape_that_a_function_gives_is_that_of_this_step(inner):
    def chosen(x, m):
        y = tf.boolean_mask(tf.tanh(x) * 2.0, m)
        return y, y.shape, (x.shape, m.shape)

    def step(x, m):
        y, shape, others = chosen(x, m)
        if inner:
            seen.append(0)
        return tf.reduce_sum(tf.sin(y)), shape, others

    def run(f):
        seen.clear()
        found = [f(*batch) for batch in data(5)]
        return [(loss.numpy(), shape.as_list(), list(map(str, others))) for loss, shape, others in found], list(seen)

    seen = []
    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert run(coexecuted) == run(step)
    assert coexecuted.stats().coexecuted_steps >= STEPS - 8


def test_a_gradient_of_the_program_sees_sizes():
    sizes = []

    @tf.custom_gradient
    def halved(x):
        def gradient(g):
            sizes.append((g.shape.as_list(), x.shape[0], len(g)))
            return g * 0.5 / (x.shape[0] + 1)
        return x * 0.5, gradient

    def step(w, v, x, m):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(halved(tf.boolean_mask(x * v, m)) * w)
        gradients = tape.gradient(loss, [w, v])
        v.assign_sub(0.01 * gradients[1])
        return loss, gradients

    expected = run(step), list(sizes)
    sizes.clear()
    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert (run(coexecuted), sizes) == expected
    assert coexecuted.stats().coexecuted_steps >= STEPS - 8


def test_other_threads_see_sizes_while_gradients_are_taken():
    """What a gradient function gets to see is its thread's affair."""
    from terra.runtime.tensors import open_shapes
    seen = []
    with open_shapes.shown():
        thread = threading.Thread(target=lambda: seen.append(open_shapes.shows_unknown_sizes()))
        thread.start()
        thread.join()
        assert open_shapes.shows_unknown_sizes()
    assert seen == [False] and not open_shapes.shows_unknown_sizes()


def test_a_wrong_shape_is_told_as_eagerly():
    """Also where only the data tell that it is wrong."""
    def step(x, m):
        y = tf.boolean_mask(x, m)
        y.set_shape([None, 4])
        y.set_shape([12, 4])
        return tf.reduce_sum(y * 2.0)

    def run(f):
        seen = []
        for k in range(16):
            try:
                seen.append(f(tf.ones((20, 4)), tf.range(20) < (12 if k % 5 else 11)).numpy())
            except ValueError as error:
                seen.append(str(error))
        return seen

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    assert run(coexecuted) == run(step)
    assert coexecuted.stats().coexecuted_steps >= 6


# -- the shapes themselves -----------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(sizes, st.data())
def test_an_unread_shape_is_the_tuple(shape, drawn):
    known = PartialShape([n if drawn.draw(st.booleans()) else None for n in shape])
    reads = []

    class Tensor:
        _owner = None

        def _read_shape(self):
            reads.append(1)
            return shape
    unread = LazyShape(known, Tensor())
    assert len(unread) == len(shape) and bool(unread) == bool(shape) and not reads
    for k in range(-len(shape), len(shape)):
        before = len(reads)
        assert unread[k] == shape[k] and (len(reads) > before) == (known[k] is None)
    k, n = drawn.draw(st.integers(-5, 5)), drawn.draw(st.integers(-5, 5))
    before, part = len(reads), unread[k:n]
    assert len(reads) == before and len(part) == len(shape[k:n]) and part == shape[k:n] and [*part] == [*shape[k:n]]
    assert (len(reads) > before) == (None in known[k:n])
    other = drawn.draw(sizes)
    assert (unread == other, unread != other, unread < other, unread <= other, unread > other, unread >= other) == (
        shape == other, shape != other, shape < other, shape <= other, shape > other, shape >= other)
    assert (other == unread, other < unread) == (other == shape, other < shape)
    assert unread + other == shape + other and other + unread == other + shape and unread * 2 == shape * 2 == 2 * unread
    assert (1 in unread, unread.count(1), list(unread), tuple(unread), [*unread], hash(unread), repr(unread), str(unread)) == (
        1 in shape, shape.count(1), list(shape), shape, [*shape], hash(shape), repr(shape), str(shape))
    assert pickle.loads(pickle.dumps(unread)) == copy.copy(unread) == copy.deepcopy(unread) == shape
    assert unread == LazyShape(known, Tensor()) and np.prod(unread) == np.prod(shape) and np.zeros(unread).shape == shape
    assert tensor_shape(unread) == tf.TensorShape(shape) and tensor_shape(unread).rank == len(shape)


@given(sizes, st.data())
def test_what_is_known_of_two_shapes_is_merged(shape, drawn):
    first, second = [PartialShape([n if drawn.draw(st.booleans()) else None for n in shape]) for _ in range(2)]
    both = merged(first, second)
    assert [n for n in both] == [a if a is not None else b for a, b in zip(first, second)]
    assert (type(both) is tuple) == (None not in both)
    assert merged(None, first) == first and merged(first, None) is first and merged(first, (*shape, 7)) is first


def test_what_is_known_to_be_compatible():
    known = PartialShape((None, 4))
    assert is_known_to_be(known, [None, 4]) and is_known_to_be(known, tf.TensorShape([None, None])) and is_known_to_be(known, (None, 4))
    assert not any(is_known_to_be(known, shape) for shape in ([3, 4], [None, 5], [None], None, tf.TensorShape(None), [None, tf.constant(4)]))
    assert not is_known_to_be(None, [None]) and not is_known_to_be((3, 4), [None, 4])


def test_ranks_that_depend_on_data():
    """Gradients of variables, whose handles are scalars, and of tensors of which nothing is known."""
    variable = tf.Variable(np.arange(6, dtype="float32").reshape(2, 3))
    free = tf.Variable([1.0, 2.0, 3.0], shape=tf.TensorShape(None))

    def step(x, sizes, flags):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reshape(tf.concat([x, x], 0), tf.boolean_mask(sizes, flags))
            z = tf.identity(variable) * y + tf.tanh(y) * tf.reduce_mean(y) + variable + tf.tanh(free)
            loss = tf.reduce_sum(z) + tf.norm(tf.transpose(z))
        gradients = tape.gradient(loss, [variable, x, y, free])
        variable.assign_sub(0.01 * gradients[0])
        free.assign(free - 0.01 * gradients[3])
        return loss, gradients

    def run(f):
        variable.assign(np.arange(6, dtype="float32").reshape(2, 3))
        free.assign([1.0, 2.0, 3.0])
        seen = []
        for k in range(20):
            loss, gradients = f(tf.range(3.0) + k, tf.constant([2, 1, 3]), tf.constant([True, k % 3 == 0, True]))
            seen.append((loss.numpy().tobytes(), [(g.shape.as_list(), g.numpy().tobytes()) for g in gradients], variable.numpy().tobytes()))
        return seen

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    try:
        expected = run(step)
    except tf.errors.InvalidArgumentError as error:
        raise AssertionError("the test's own shapes do not fit") from error
    assert run(coexecuted) == expected
    assert coexecuted.stats().coexecuted_steps >= 10


def twelve_or_eleven(steps=24):
    """Masks that leave twelve rows, or now and then eleven."""
    return [tf.range(20) < (11 if k % 9 == 8 else 12) for k in range(steps)]


OPERANDS = tf.ones((12, 4))
FAILING = {
    "add": lambda y: y + OPERANDS, "stack": lambda y: tf.stack([y, OPERANDS]), "matmul": lambda y: tf.transpose(y) @ OPERANDS,
    "concat": lambda y: tf.concat([y, OPERANDS], 1), "reshape": lambda y: tf.reshape(y, [12, 4]),
}


@pytest.mark.parametrize("options", [{}, {"loops": "roll"}])
def test_what_fails_only_because_shapes_do_not_fit_is_caught(options):
    """No operation of the step could fail otherwise; also in a loop."""
    def round(m, n):
        return tf.reduce_sum(tf.cast(tf.where(m), tf.float32) + tf.ones((12, 1)))

    def inside(m, n):
        total = tf.zeros(())
        for k in range(n):
            try:
                total += tf.reduce_sum(tf.cast(tf.where(m), tf.float32) + tf.ones((12, 1)) * float(k))
            except tf.errors.InvalidArgumentError:
                total -= 1.0
        return total

    def run(f):
        seen = []
        for k, m in enumerate(twelve_or_eleven()):
            try:
                seen.append(f(m, 3 + k % 4))
            except tf.errors.InvalidArgumentError:
                seen.append(-1.0)
        return [float(x) for x in seen]

    for step in (round, inside):
        coexecuted = terra.coexecute(step, wait_for_graph=True, **options)
        assert run(coexecuted) == run(step)
        assert coexecuted.stats().coexecuted_steps >= 8


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("in_try", ["in", "round"])
@pytest.mark.parametrize("options", [{}, {"fast_forward": False}, {"loops": "roll"}])
def test_shapes_that_do_not_fit_are_caught(name, in_try, options):
    """Whether they fit is not known before the graph has run, also where an operation could not fail otherwise."""
    operate = FAILING[name]

    def inside(m, count):
        y = tf.boolean_mask(tf.ones((20, 4)), m)
        try:
            z = operate(y)
        except tf.errors.InvalidArgumentError:
            z = y * 3.0
        count.assign_add(1.0)
        return tf.reduce_sum(z)

    def round(m, count):
        count.assign_add(1.0)
        return tf.reduce_sum(operate(tf.boolean_mask(tf.ones((20, 4)), m)))

    def run(f):
        count, seen = tf.Variable(0.0), []
        for m in twelve_or_eleven():
            try:
                seen.append(f(m, count))
            except tf.errors.InvalidArgumentError:
                seen.append(count.numpy())
        return [float(x) for x in seen], count.numpy()

    step = inside if in_try == "in" else round
    coexecuted = terra.coexecute(step, wait_for_graph=True, **options)
    assert run(coexecuted) == run(step)
    assert coexecuted.stats().coexecuted_steps >= 10


def test_sizes_of_any_type():
    def step(m):
        y = tf.boolean_mask(tf.ones((20, 4)), m) * 2.0
        return [tf.size(y, out_type=dtype) for dtype in (tf.int32, tf.int64, tf.int16, tf.float32)]

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for m in twelve_or_eleven(12):
        for ours, eager in zip(coexecuted(m), step(m)):
            assert ours.dtype == eager.dtype and ours.numpy() == eager.numpy()
    assert coexecuted.stats().coexecuted_steps >= 6


def test_a_value_is_read_while_a_function_is_traced():
    """In a step with branches, which tells the graph the case that it has taken by then."""
    def step(x, k):
        y = tf.reduce_sum(x)
        if k % 3 == 1:
            return tf.function(lambda: tf.zeros(4) + float(y))()
        return y * 2.0 if k % 3 == 2 else y * float(y)

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for k in range(18):
        assert coexecuted(tf.ones(5) * k, k).numpy().tolist() == step(tf.ones(5) * k, k).numpy().tolist()
    assert coexecuted.stats().coexecuted_steps >= 10


def test_ragged_results_are_verified():
    def step(x, m):
        rows = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(x, m), tf.reduce_sum(tf.cast(tf.reshape(m, (4, 5)), tf.int32), 1))
        return tf.gather(rows, [0, 2])

    coexecuted = terra.coexecute(step, wait_for_graph=True, verify=True)
    for x, m in data(4):
        assert coexecuted(x, m).to_list() == step(x, m).to_list()
    assert coexecuted.stats().coexecuted_steps >= 15


@pytest.mark.parametrize("padding, stride", [("SAME", 2), ("SAME", 1), ("VALID", 2)])
def test_pooling_what_may_be_empty(padding, stride):
    """The gradient by oneDNN's kernel ends the process if it is."""
    def step(x, m):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(tf.boolean_mask(x, m)[None, :, :, None], 2, stride, padding)
            loss = tf.reduce_sum(y * y)
        return loss, tape.gradient(loss, x)

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for k in range(16):
        batch = tf.random.stateless_normal((20, 4), [k, 1]), tf.range(20) < (2 if padding == "VALID" else 0 if k % 5 == 4 else 12)
        assert [t.numpy().tobytes() for t in coexecuted(*batch)] == [t.numpy().tobytes() for t in step(*batch)]
    assert coexecuted.stats().coexecuted_steps >= 8
