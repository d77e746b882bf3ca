"""Operations whose output shapes depend on data, though no table of ours says so: their shape functions do."""

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

N = 120  # more than is taken for a constant


def batches(steps=40, seed=0):
    drawn = np.random.RandomState(seed)
    for k in range(steps):
        segments = 5 if k < 20 else 3 + k % 4
        ids = np.sort(np.concatenate([np.arange(segments), drawn.randint(0, segments, N - segments)]))
        yield tf.constant(drawn.rand(N, 4).astype("float32")), tf.constant(ids.astype("int32"))


OPERATIONS = {
    "segment_sum": tf.math.segment_sum, "segment_mean": tf.math.segment_mean, "segment_max": tf.math.segment_max,
    "segment_min": tf.math.segment_min, "segment_prod": tf.math.segment_prod,
    "sparse_segment_sum": lambda x, ids: tf.sparse.segment_sum(x, tf.range(N), ids),
    "sparse_segment_mean": lambda x, ids: tf.sparse.segment_mean(x, tf.range(N), ids),
    "ragged_to_tensor": lambda x, ids: tf.RaggedTensor.from_value_rowids(x, ids).to_tensor(),
    "ragged_concat": lambda x, ids: tf.concat([tf.RaggedTensor.from_value_rowids(x, ids), tf.RaggedTensor.from_value_rowids(x * 2.0, ids)], 1).values,
    "boolean_mask": lambda x, ids: tf.boolean_mask(x, ids % 2 == 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("loops", ["auto", "roll"])
def test_its_shape_is_read(name, loops):
    """With the same input shapes at each step."""
    operation = OPERATIONS[name]
    sizes = []

    def step(x, ids):
        y = operation(x, ids)
        n = y.shape[0]
        sizes.append((n, len(y)))
        return tf.reduce_sum(y) / n

    coexecuted = terra.coexecute(step, wait_for_graph=True, loops=loops)
    ours = [float(coexecuted(*batch)) for batch in batches()]
    noted, sizes[:] = list(sizes), []
    assert ours == [float(step(*batch)) for batch in batches()]
    assert sizes == noted and coexecuted.stats().coexecuted_steps >= 30


@pytest.mark.parametrize("name", OPERATIONS)
def test_its_gradient(name):
    operation, weight = OPERATIONS[name], tf.Variable(1.0)

    def step(x, ids):
        with tf.GradientTape() as tape:
            y = operation(x * weight, ids)
            loss = tf.reduce_mean(y * y)
        weight.assign_sub(1e-3 * tape.gradient(loss, weight))
        return loss

    outcomes = []
    for run in (step, coexecuted := terra.coexecute(step, wait_for_graph=True)):
        weight.assign(1.0)
        outcomes.append(([float(run(*batch)) for batch in batches()], float(weight)))
    assert outcomes[0] == outcomes[1]
    assert coexecuted.stats().coexecuted_steps >= 28


def test_batches_of_graphs():
    """Another number of nodes and of graphs at each step."""
    drawn = np.random.RandomState(1)
    dense = tf.Variable(drawn.rand(8, 1).astype("float32"))
    data = []
    for _ in range(60):
        sizes = drawn.randint(2, 20, size=drawn.randint(2, 8))
        data.append((drawn.randn(sizes.sum(), 8).astype("float32"), np.repeat(np.arange(len(sizes)), sizes).astype("int32"), drawn.randn(len(sizes), 1).astype("float32")))

    def step(nodes, ids, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.math.segment_mean(nodes, ids) @ dense - y) ** 2)
        dense.assign_sub(0.01 * tape.gradient(loss, dense))
        return loss

    outcomes, initial = [], dense.numpy()
    for run in (step, coexecuted := terra.coexecute(step, wait_for_graph=True)):
        dense.assign(initial)
        outcomes.append(([float(run(*batch)) for batch in data], dense.numpy().tolist()))
    assert outcomes[0] == outcomes[1]
    assert coexecuted.stats().coexecuted_steps >= 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
def test_what_a_kernel_keeps_for_its_gradient(training, dtype):
    """The shape function of FusedBatchNormV3 leaves it open, and TensorFlow's gradient asks for it; Python must not wait for that. Batches have several sizes."""
    def build():
        harness.reset_seeds()
        kernel, scale, offset = (tf.Variable(tf.random.stateless_normal(shape, [1, 2])) for shape in ([3, 3, 2, 4], [4], [4]))
        variables = kernel, scale, offset
        mean, variance = ([], []) if training else (tf.constant([0.1] * 4), tf.constant([0.9] * 4))

        def step(x):
            with tf.GradientTape() as tape:
                y = tf.cast(tf.nn.conv2d(x, kernel, 1, "SAME"), dtype)
                y, *statistics = tf.compat.v1.nn.fused_batch_norm(y, scale, offset, mean, variance, is_training=training)
                loss = tf.reduce_mean(tf.cast(y, tf.float32) ** 4)
            for v, g in zip(variables, tape.gradient(loss, variables)):
                v.assign_sub(0.1 * g)
            return loss, statistics

        return step, variables

    batches = [tf.random.stateless_normal([n, 6, 6, 2], [n, 3]) for n in (8, 8, 8, 8, 8, 8, 5, 8, 5, 7, 8, 7, 5, 8, 8)]
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        step, variables = build()
        step = wrap(step)
        seen.append(repr((harness.snapshot([step(x) for x in batches]), harness.snapshot(variables))))
    assert seen[0] == seen[1]
    stats = step.stats()
    assert stats.coexecuted_steps >= 10 and stats.fetches == 0, stats


# -- sizes that Python looks at --------------------------------------------------------------------------------------------------

def _found(x):
    """As many rows as there are different numbers in the first column."""
    kinds = tf.unique(tf.cast(x[:, 0], tf.int32))[1]
    return tf.math.unsorted_segment_sum(x, kinds, tf.reduce_max(kinds) + 1)


LOOKED_AT = {
    "rows": lambda w, x: tf.stack([tf.reduce_sum(row * w) for row in _found(x)]),
    "length": lambda w, x: _found(x) * w / len(_found(x)),
    "size": lambda w, x: _found(x) * w * (2.0 if _found(x).shape[0] > 2 else 3.0),
    "shape twice": lambda w, x: (lambda found: found * w * found.shape[0] + len(found.shape.as_list()) * found.shape[0])(_found(x)),
    "kept": lambda w, x: _found(x) * w * sum(_found(x).shape),
    "value and shape": lambda w, x: (lambda found: found * w * float(found[0, 1]) * found.shape[0])(_found(x)),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_size_that_is_looked_at_is_a_condition(name):
    """A step is skipped where the size is the same as before, and its code runs where it is not."""
    def make():
        w, seen = tf.Variable(tf.ones(4)), []

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(LOOKED_AT[name](w, x) ** 2)
            w.assign_sub(tf.clip_by_value(1e-3 * tape.gradient(loss, w), -0.1, 0.1))
            seen.append(loss)
            return loss

        return step, lambda: [w, seen]

    def given(k):
        drawn = np.random.RandomState(k)
        kinds = np.arange(9) % (3 if k < 25 else 2 + k % 3)
        return (tf.constant(np.concatenate([kinds[:, None], drawn.randn(9, 3)], 1).astype("float32")),)

    stats = harness.differ(make, given, 40)
    assert stats.coexecuted_steps >= 25 and stats.whole_steps >= (12 if name != "value and shape" else 0), stats
