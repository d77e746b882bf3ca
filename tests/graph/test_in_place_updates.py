"""Updates of variables in their place: they run behind the barrier, or are undone, so that a step that fails, or leaves the known paths, has changed what it changes eagerly, and once."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.generation.undo import OldRows, OldValue
from tests.harness import check_skipped

N = 26
BAD = (9, 15, 16, 22)  # steps that fail


class State:
    def __init__(self):
        self.count = tf.Variable(0.0)
        self.table = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)))
        self.other = tf.Variable(tf.ones((4, 3)))
        self.small = tf.Variable(tf.ones((2, 3)))
        self.scalar = tf.Variable(1.0)
        self.texts = tf.Variable(["a", "b", "c", "d"])
        self.flags = tf.Variable([True, False, True, False])
        self.slots = [tf.Variable(tf.zeros((4, 3))) for _ in range(2)]

    def variables(self):
        return [self.count, self.table, self.other, self.small, self.scalar, self.texts, self.flags, *self.slots]

    def values(self):
        return [v.numpy().tolist() for v in self.variables()]


def busy(x):
    for _ in range(12):
        x = tf.tanh(x) + 0.1
    return x


def rows(k, n=2):
    return tf.ones((n, 3)) * tf.cast(k + 1, tf.float32)


# Each gets its state, indices into tables of four rows, and indices that are out of range in a step that fails.


def scatters_twice(s, i, bad):
    s.count.assign_add(1.0)
    s.table.scatter_sub(tf.IndexedSlices(rows(1), i))
    s.other.scatter_add(tf.IndexedSlices(rows(2), bad))
    return busy(s.count)


def scatters_after(s, i, bad):
    s.table.scatter_sub(tf.IndexedSlices(rows(1), i))
    h = busy(s.table * 0.5)
    s.other.assign_add(h)
    s.count.assign_add(1.0)
    return h + tf.reduce_sum(tf.gather(tf.range(4.0), bad))


def looks_up_what_it_scattered(s, i, bad):
    s.count.assign_add(1.0)
    s.table.scatter_sub(tf.IndexedSlices(rows(1), i))
    s.table.scatter_mul(tf.IndexedSlices(rows(1) * 0.25, i))
    return busy(tf.gather(s.table.read_value(), bad))


def scatters_what_it_looked_up(s, i, bad):
    s.slots[0].scatter_add(tf.IndexedSlices(rows(1), i))
    s.table.scatter_sub(tf.IndexedSlices(busy(s.slots[0].sparse_read(i)), i))
    s.other.scatter_update(tf.IndexedSlices(rows(1), tf.cast(s.slots[0][0, :2] * 0.0, tf.int32) + bad))
    s.slots[1].scatter_max(tf.IndexedSlices(rows(3), i))
    return s.table * 2.0


def scatters_elements(s, i, bad):
    s.table.scatter_nd_add(tf.stack([i, i % 3], 1), tf.constant([1.0, 2.0]))
    s.other.scatter_nd_update(tf.stack([bad, i % 3], 1), tf.constant([3.0, 4.0]))
    s.count.assign_add(1.0)
    return busy(s.table + s.other)


def scatters_elements_and_looks(s, i, bad):
    s.count.assign_add(1.0)
    s.table.scatter_nd_add(tf.stack([i, i % 3], 1), tf.constant([1.0, 2.0]))
    s.table.scatter_nd_sub(tf.stack([i], 1), rows(0))
    return busy(tf.gather(s.table * 2.0, bad))


def shapes_depend_on_data(s, i, bad):
    unique, places = tf.unique(tf.concat([i, i], 0))
    summed = tf.math.unsorted_segment_sum(rows(1, 4), places, tf.size(unique))
    s.slots[0].assign(s.slots[0] * 0.5)
    s.slots[0].scatter_add(tf.IndexedSlices(summed, unique))
    s.table.assign_sub(s.slots[0] / (tf.sqrt(s.slots[1]) + 1.0))
    s.count.assign_add(1.0)
    s.other.scatter_sub(tf.IndexedSlices(summed, tf.unique(bad)[0]))
    return busy(s.count)


def shapes_that_do_not_fit(s, i, bad):
    s.count.assign_add(1.0)
    s.other.scatter_add(tf.IndexedSlices(rows(1), i))
    s.table.scatter_sub(tf.IndexedSlices(tf.boolean_mask(rows(1), i >= 0), tf.boolean_mask(i, bad < 4)))
    return busy(s.count)


def looks_at_data_of_unknown_shape(s, i, bad):
    unique, places = tf.unique(tf.concat([i, bad], 0))
    summed = tf.math.unsorted_segment_sum(rows(1, 4), places, tf.size(unique))
    s.slots[0].assign(s.slots[0] * 0.5)
    s.slots[0].scatter_add(tf.IndexedSlices(summed, unique))
    s.table.scatter_sub(tf.IndexedSlices(summed / (tf.sqrt(s.slots[0].sparse_read(unique)) + 1.0), unique))
    return busy(tf.reduce_sum(s.table))


def assigns_and_scatters(s, i, bad):
    s.scalar.assign_add(1.0)
    s.table.assign(s.table * 0.9)
    s.table.scatter_add(tf.IndexedSlices(rows(1), i))
    s.table.assign_add(s.other)
    h = busy(s.table)
    return tf.gather(h, bad)


def fused_kernels(s, i, bad):
    gradient = busy(s.table * 0.1)
    tf.raw_ops.ResourceApplyAdam(
        var=s.table.handle, m=s.slots[0].handle, v=s.slots[1].handle, beta1_power=0.9, beta2_power=0.99, lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-7, grad=gradient)
    s.other.assign(s.other * 0.9 + s.table * 0.1)  # a moving average
    s.count.assign_add(1.0)
    return tf.norm(s.other) + tf.reduce_sum(tf.gather(tf.range(4.0), bad))


def fused_kernels_and_looks(s, i, bad):
    tf.raw_ops.ResourceApplyMomentum(var=s.table.handle, accum=s.slots[0].handle, lr=0.1, grad=busy(s.table * 0.1), momentum=0.9)
    s.count.assign_add(1.0)
    return tf.gather(s.table.read_value(), bad)


def fused_kernels_of_rows(s, i, bad):
    tf.raw_ops.ResourceSparseApplyAdagradV2(var=s.table.handle, accum=s.other.handle, lr=0.1, epsilon=1e-7, grad=busy(rows(1)), indices=i)
    tf.raw_ops.ResourceSparseApplyMomentum(var=s.slots[0].handle, accum=s.slots[1].handle, lr=0.1, grad=rows(1), indices=bad, momentum=0.9)
    s.count.assign_add(1.0)
    return s.table + s.slots[0]


def fused_kernels_that_refuse(s, i, bad):
    rate = tf.where(tf.reduce_max(bad) > 3, -1.0, 0.1)  # a learning rate that is not positive
    s.count.assign_add(1.0)
    s.small.scatter_add(tf.IndexedSlices(rows(1), i % 2))
    tf.raw_ops.ResourceApplyFtrl(
        var=s.table.handle, accum=s.other.handle, linear=s.slots[0].handle, grad=busy(s.table * 0.1), lr=rate, l1=0.1, l2=0.1, lr_power=-0.5)
    return s.count * 2.0


def reads_what_it_gives(s, i, bad):
    s.count.assign_add(1.0)
    s.table.scatter_sub(tf.IndexedSlices(rows(1), i))
    h = tf.nn.relu(tf.gather(busy(s.table * 3.0 + s.count), bad))
    return h, float(tf.reduce_sum(h))


def texts_and_flags(s, i, bad):
    s.count.assign_add(1.0)
    s.texts.scatter_update(tf.IndexedSlices(tf.strings.as_string(tf.cast(s.count, tf.int32) + i), i))
    s.flags.scatter_update(tf.IndexedSlices(i > 1, i))
    return tf.gather(s.texts.read_value(), bad), tf.gather(s.flags.read_value(), i), busy(s.count)


def updates_a_slice(s, i, bad):
    s.table[1:3, :2].assign(tf.ones((2, 2)) * s.count)
    s.count.assign_add(1.0)
    s.other.scatter_add(tf.IndexedSlices(busy(rows(1)), bad))
    return s.table * 2.0


def updates_a_slice_and_looks(s, i, bad):
    s.table[1:3, :2].assign(tf.ones((2, 2)) * s.count)
    s.count.assign_add(1.0)
    return busy(tf.gather(s.table + 1.0, bad))


def branches(s, i, bad):
    s.count.assign_add(1.0)
    if tf.reduce_sum(i) % 2 == 0:
        s.table.scatter_add(tf.IndexedSlices(rows(1), i))
        s.small.scatter_nd_sub([[0, 1], [1, 1]], [1.0, 2.0])
    else:
        s.other.scatter_sub(tf.IndexedSlices(rows(1), i))
    h = busy(s.table + s.other)
    return tf.gather(h, bad)


def _of_tensorflows(result):
    def make(s):
        @tf.function(autograph=False)
        def function(i, bad):
            s.count.assign_add(1.0)
            s.table.scatter_sub(tf.IndexedSlices(rows(1), i))
            s.other.assign(tf.gather(s.other, bad)[:1] + s.other)
            s.slots[0].assign_add(s.other)
            return s.table * 2.0 if result else None
        return function
    return make


def _calls(result):
    def step(s, i, bad):
        if not hasattr(s, "function"):
            s.function = _of_tensorflows(result)(s)
        s.scalar.assign_add(1.0)
        h = busy(s.scalar)
        out = s.function(i, bad)
        s.slots[1].assign_add(s.slots[0])
        return h if out is None else out + h
    return step


calls_a_function, calls_a_function_without_result = _calls(True), _calls(False)
BEHIND = [scatters_twice, scatters_after, scatters_elements, shapes_depend_on_data, shapes_that_do_not_fit, fused_kernels, fused_kernels_of_rows, updates_a_slice]
UNDONE = [
    looks_up_what_it_scattered, scatters_what_it_looked_up, scatters_elements_and_looks, looks_at_data_of_unknown_shape, assigns_and_scatters, fused_kernels_and_looks,
    fused_kernels_that_refuse, reads_what_it_gives, texts_and_flags, updates_a_slice_and_looks, branches, calls_a_function, calls_a_function_without_result]


def plain(x):
    return [plain(y) for y in x] if isinstance(x, tuple) else x if isinstance(x, float) else x.numpy().tolist()


def indices(k):
    return tf.constant([k % 4, (k * 3 + 1) % 4]), tf.constant([k % 4, 7 if k in BAD else (k + 1) % 4])


def steps(make, wrap):
    """Step by step, each in a `try` of its own."""
    state = State()
    step = wrap(lambda i, bad: make(state, i, bad))
    seen = []
    for k in range(N):
        try:
            result = plain(step(*indices(k)))
        except tf.errors.InvalidArgumentError as error:
            result = type(error).__name__
        seen.append((result, state.values()))
    return seen, step


def loops(make, wrap, reads=False):
    """Many steps in flight: what fails is found out later. With `reads`, one after another, on Python's own thread."""
    state = State()
    step = wrap(lambda i, bad: make(state, i, bad))
    seen, start = [], 0
    for end in (*BAD, N):
        results = []

        def run():
            for k in range(start, min(end + 3, N)):  # what comes after a step that fails is dropped
                results.append(step(*indices(k)))
                if reads:
                    plain(results[-1])

        try:
            run()
            state.values()
        except tf.errors.InvalidArgumentError as error:
            seen.append(type(error).__name__)
        seen.append((plain(tuple(results[:min(end - start, 2)])), state.values()))
        start = end + 1
    return seen, step


@pytest.mark.parametrize("make", BEHIND + UNDONE, ids=lambda make: getattr(make, "__name__", "") + ("_without" if make is calls_a_function_without_result else ""))
def test_failing_steps(make):
    for run in steps, loops, functools.partial(loops, reads=True):
        expected, _ = run(make, lambda f: f)
        found, step = run(make, lambda f: terra.coexecute(f, wait_for_graph=True, optimize=False))
        assert found == expected, run
        stats = step.stats()
        assert stats.coexecuted_steps > N // 2, terra.explain(step)
        form = step.program.generated
        assert bool(form.undo) == bool(form.in_place) == (make in UNDONE)


def _assigns(name, *inputs, **attrs):
    def update(s, i, rows, x):
        given = {"i": i, "at": i[:, None], "rows": rows, "x": x}
        getattr(tf.raw_ops, name)(*(), **{key: getattr(s, v).handle if hasattr(s, v) else given[v] for key, v in inputs}, **attrs)
    update.__name__ = name
    return update


OF_TABLE = ("var", "table"), ("accum", "other")
WITH_SHAPES = [
    _assigns("ResourceScatterAdd", ("resource", "table"), ("indices", "i"), ("updates", "rows")),
    _assigns("ResourceScatterNdAdd", ("ref", "table"), ("indices", "at"), ("updates", "rows")),
    _assigns("ResourceApplyMomentum", *OF_TABLE, ("grad", "x"), lr=0.1, momentum=0.9),
    _assigns("ResourceApplyGradientDescent", ("var", "table"), ("delta", "x"), alpha=0.1),
    _assigns("ResourceSparseApplyMomentum", *OF_TABLE, ("grad", "rows"), ("indices", "i"), lr=0.1, momentum=0.9),
    lambda s, i, rows, x: s.table.assign_add(x),
    lambda s, i, rows, x: s.table.assign(x),
]


@pytest.mark.parametrize("update", WITH_SHAPES, ids=lambda update: update.__name__)
def test_shapes_of_arguments_that_do_not_fit(update):
    """Shape functions do not find all that a kernel refuses."""
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        state, seen = State(), []

        @wrap
        def step(i, rows, x):
            state.count.assign_add(1.0)
            update(state, i, rows, x)
            return busy(state.count)

        for k in range(22):
            n = 3 if k in (12, 18) else 2
            i = tf.constant([k % 4, (k + 1) % 4, 2][:n])
            try:
                result = plain(step(i, tf.ones((n + (k in BAD), 3)), tf.ones((4 + (k in BAD), 3))))
            except (tf.errors.InvalidArgumentError, ValueError) as error:
                result = type(error).__name__
            seen.append((result, state.values()))
        results.append(seen)
    assert results[1] == results[0]
    assert {type(result) for result, _ in results[0]} == {str, float}
    assert step.stats().coexecuted_steps >= 10 and not step.program.generated.undo, terra.explain(step)


@pytest.mark.parametrize("make", [scatters_twice, looks_up_what_it_scattered, calls_a_function], ids=["behind", "rows", "whole"])
def test_steps_that_leave_the_known_paths(make):
    """A graph that runs already is cancelled, and what it has done is undone."""
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        state, seen = State(), []

        @wrap
        def step(k, i):
            h = make(state, i, i)
            if float(tf.reduce_sum(h)) > 1e9:
                return h
            if k % 9 == 8:  # another way each time
                for _ in range(k):
                    state.slots[1].scatter_add(tf.IndexedSlices(rows(1), i))
            return h * 2.0

        for k in range(N):
            seen.append((plain(step(k, indices(k)[0])), state.values()))
        results.append(seen)
    assert results[1] == results[0]
    stats = step.stats()
    assert stats.fallbacks >= 2 and stats.coexecuted_steps >= 10, stats


@pytest.mark.parametrize("make", [scatters_after, looks_up_what_it_scattered, assigns_and_scatters], ids=lambda make: make.__name__)
@pytest.mark.parametrize("option", ["jit_compile", "optimize", "verify"])
def test_options(make, option):
    expected, _ = steps(make, lambda f: f)
    found, step = steps(make, lambda f: terra.coexecute(f, wait_for_graph=True, **{option: True}))
    for (result, values), (wanted, old) in zip(found, expected):
        assert type(result) is type(wanted)
        for x, y in zip(values, old):
            if isinstance(np.ravel(y)[0], float):
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
            else:
                assert x == y
    assert step.stats().coexecuted_steps > N // 2


def test_only_rows_are_noted_where_that_is_enough():
    for make, kinds in ((looks_up_what_it_scattered, {OldRows}), (texts_and_flags, {OldRows}), (assigns_and_scatters, {OldValue}), (branches, {OldRows}), (calls_a_function, {OldValue})):
        _, step = steps(make, lambda f: terra.coexecute(f, wait_for_graph=True))
        assert {type(note) for note in step.program.generated.undo} == kinds


def test_loops_in_pieces():
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        state, seen = State(), []

        @wrap
        def step(n, i, bad):
            h = tf.zeros((2, 3))
            for k in range(n):
                h = h + looks_up_what_it_scattered(state, i, bad if k == 5 else i)
            return h

        for k in range(N):
            try:
                result = plain(step(10 + k % 3, *indices(k)))
            except tf.errors.InvalidArgumentError as error:
                result = type(error).__name__
            seen.append((result, state.values()))
        results.append(seen)
    assert results[1] == results[0]
    stats = step.stats()
    assert stats.rolled_loops + stats.pieces > 0 and stats.coexecuted_steps > N // 2, stats


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Adagrad", "RMSprop", "Adam", "Adamax", "Lion"])
@pytest.mark.parametrize("root", ["keras", "tf_keras"])
def test_optimizers_on_slices_take_express_steps(root, name):
    library = __import__(root)
    x, results = np.random.RandomState(1).randint(0, 20, (30, 4, 5)), []
    y = np.random.RandomState(2).randint(0, 3, (30, 4))
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        library.utils.set_random_seed(1)
        model = library.Sequential([library.layers.Embedding(20, 6), library.layers.GlobalAveragePooling1D(), library.layers.Dense(3)])
        model.build((None, 5))
        optimizer = library.optimizers.SGD(0.01, momentum=0.9) if name == "Momentum" else getattr(library.optimizers, name)(0.01)
        loss_of = library.losses.SparseCategoricalCrossentropy(from_logits=True)

        @wrap
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        losses = [float(step(tf.constant(a), tf.constant(b))) for a, b in zip(x, y)]
        state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        results.append((losses, [v.numpy().tolist() for v in [*model.variables, *state]]))
    assert results[1] == results[0]
    assert step.stats().express_steps >= 5, step.stats()


def test_slices_that_a_step_makes():
    x, results = [tf.constant([k % 4, (k + 1) % 4]) for k in range(4)], []

    def look(x):
        if isinstance(x, (tuple, list)):
            return [look(y) for y in x]
        return [look(y) for y in (x.values, x.indices)] if isinstance(x, tf.IndexedSlices) else x.numpy().tolist()

    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        table, seen, kept, mode = tf.Variable(tf.zeros((4, 3))), [], [], 0

        @wrap
        def step(i):
            slices = tf.IndexedSlices(rows(1), i, dense_shape=tf.constant([4, 3]) if mode == 1 else None)
            if mode == 2:
                kept[:] = [slices]
            table.scatter_add(slices)
            less = tf.IndexedSlices(values=tf.nn.relu(slices.values - 1.0), indices=slices.indices)
            table.scatter_sub(less)
            if mode == 3:
                table.scatter_add(tf.IndexedSlices(rows(1), [1, 2]))
                table.scatter_add(tf.IndexedSlices(np.ones((2, 3), np.float32) * len(seen), i))
            y = tf.reduce_sum(tf.convert_to_tensor(tf.IndexedSlices(rows(2), i, tf.constant([4, 3])))) + tf.reduce_sum(table)
            return (slices, [y, less]) if mode == 4 else y

        for mode in range(5):
            seen += [(look(step(x[k % 4])), table.numpy().tolist(), look(kept)) for k in range(9)]
        results.append(seen)
    assert results[1] == results[0]
    check_skipped(step, 45, whole=12, express=4)


def test_slices_whose_class_is_changed(monkeypatch):
    original, x, results = tf.IndexedSlices.__init__, tf.constant([0, 1]), []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        table, seen = tf.Variable(tf.zeros((4, 3))), []

        @wrap
        def step(i):
            table.scatter_add(tf.IndexedSlices(tf.ones((2, 3)), i))
            return tf.reduce_sum(table)

        with monkeypatch.context() as patch:
            for k in range(20):
                if k == 14:
                    patch.setattr(tf.IndexedSlices, "__init__", lambda self, values, indices, dense_shape=None: original(self, values * 2.0, indices, dense_shape))
                    skipped = step.stats().whole_steps if hasattr(step, "stats") else None
                seen.append(float(step(x)))
        results.append(seen)
    assert results[1] == results[0] and results[0][-1] - results[0][-2] == 12.0
    assert skipped >= 8
