"""Arguments made of tensors, whose parts may be lists, arrays, numbers, variables or missing; and string results as NumPy sees them."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

STEPS = 9
VALUES = [[1.0], [2.0]]
Pair = collections.namedtuple("Pair", "slices scale")


class Masked(tf.experimental.ExtensionType):
    values: tf.Tensor
    mask: tf.Tensor


def slices(values, indices, shape=None):
    return lambda k: tf.IndexedSlices(values(k), indices(k), shape)


def tensor(k):
    return tf.constant(VALUES) * (1.0 + k)


def array(k):
    return np.float32(VALUES) * (1.0 + k)


def nested(k):
    return [[1.0 + k], [2.0]]


def rows(k):
    return [0, k % 3]


def array_of_rows(k):
    return np.array(rows(k))


def use_slices(w, s):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    w.assign_sub(0.01 * tape.gradient(loss, w))
    w.scatter_sub(tf.IndexedSlices(0.1 * tf.convert_to_tensor(s.values), tf.convert_to_tensor(s.indices)))
    return loss, tf.convert_to_tensor(s.values)[0] * 2.0


def use_dense(w, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * tf.cast(tf.convert_to_tensor(x), tf.float32))
    w.assign_sub(0.01 * tape.gradient(loss, w))
    return loss


SLICES = {
    "tensors": slices(tensor, lambda k: tf.constant(rows(k))),
    "list of rows": slices(tensor, rows),
    "array of rows": slices(tensor, array_of_rows),
    "array of values": slices(array, lambda k: tf.constant(rows(k))),
    "arrays": slices(array, array_of_rows),
    "lists": slices(nested, rows),
    "with a shape": slices(tensor, rows, (3, 1)),
    "with a tensor of a shape": lambda k: tf.IndexedSlices(tensor(k), rows(k), tf.constant([3, 1])),
    "fixed": slices(lambda k: FIXED, lambda k: [0, 1]),
    "the same": lambda k: SAME,
}
FIXED = tf.constant(VALUES)
SAME = tf.IndexedSlices(tf.constant(VALUES), [0, 2])


def compared(function, arguments, reads=lambda x: x, least=4, **options):
    def run(decorate):
        w = tf.Variable([[1.0], [2.0], [3.0]])
        step, made = decorate(function), []
        for k in range(STEPS):
            made.append([np.asarray(t).tolist() for t in tf.nest.flatten(step(w, *arguments(k)))])
        return step, made + [w.numpy().tolist()]

    step, ours = run(terra.coexecute(wait_for_graph=True, **options))
    assert ours == run(lambda f: f)[1]
    assert step.stats().coexecuted_steps >= least, terra.explain(step)


@pytest.mark.parametrize("kind", SLICES)
def test_slices(kind):
    compared(use_slices, lambda k: (SLICES[kind](k),))


@pytest.mark.parametrize("kind", ["list of rows", "arrays", "with a shape"])
def test_slices_in_containers(kind):
    made = SLICES[kind]
    compared(lambda w, s: use_slices(w, s[0]), lambda k: ([made(k), k],), least=0)
    compared(lambda w, s: use_slices(w, s["a"][0]), lambda k: ({"a": (made(k), made(k + 1))},))
    compared(lambda w, p: use_slices(w, p.slices), lambda k: (Pair(made(k), 2.0),), least=0)
    compared(use_slices, lambda k: (made(k),), reduce_retracing=True)


def test_slices_of_a_variable():
    rows_of = tf.Variable([0, 2])
    compared(use_slices, lambda k: (tf.IndexedSlices(tensor(k), rows_of),), least=0)


@pytest.mark.parametrize("made", [
    lambda k: tf.SparseTensor([[0, 0], [k % 3, 0]] if k % 3 else [[0, 0], [1, 0]], [1.0 + k, 2.0], [3, 1]),
    lambda k: tf.SparseTensor(np.array([[0, 0], [2, 0]]), np.float32([1.0 + k, 2.0]), (3, 1)),
], ids=["lists", "arrays"])
def test_sparse(made):
    compared(lambda w, s: use_dense(w, tf.sparse.to_dense(s)), lambda k: (made(k),))


@pytest.mark.parametrize("made", [
    lambda k: tf.ragged.constant([[1.0 + k, 2.0], [], [3.0]]),
    lambda k: tf.RaggedTensor.from_row_splits(np.float32([1.0, 2.0, k]), np.array([0, 2, 2, 3])),
    lambda k: tf.RaggedTensor.from_row_lengths(tf.constant([1.0, 2.0, 1.0 * k]), [2, 0, 1], validate=False),
], ids=["constant", "arrays", "lists"])
def test_ragged(made):
    compared(lambda w, r: use_dense(w, r.to_tensor(shape=(3, 3))), lambda k: (made(k),))


@pytest.mark.parametrize("K", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("ragged", [False, True], ids=["sparse", "ragged"])
def test_a_layer_that_looks_at_a_type(K, ragged):
    """The number of values is another one at each step, and the layer asks what they are made of."""

    class Rows(K.layers.Layer):
        def build(self, shape=None):
            self.w = self.add_weight(shape=(3, 2), name="w", initializer="ones")
            self.built = True

        def call(self, inputs):
            x, rows = inputs
            if rows.dtype != x.dtype:
                rows = tf.cast(rows, x.dtype)
            if ragged:
                return tf.reduce_sum(rows, axis=1)[:, None] * (x @ self.w)
            return tf.sparse.sparse_dense_matmul(rows, x @ self.w)

    def made(decorate):
        generator = np.random.default_rng(0)
        layer = Rows()
        layer.build()

        def train(x, rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer([x, rows]) ** 2.0)
            layer.w.assign_sub(0.01 * tape.gradient(loss, layer.w))
            return float(loss)

        step, seen = decorate(train), []
        for _ in range(20):
            dense = (generator.random((5, 5)) < 0.5).astype("int32")
            rows = tf.RaggedTensor.from_row_lengths(np.ones(dense.sum(), "int32"), dense.sum(1)) if ragged else tf.sparse.from_dense(dense)
            seen.append(step(tf.constant(generator.normal(size=(5, 3)).astype("float32")), rows))
        return step, seen

    _, expected = made(lambda step: step)
    step, seen = made(terra.coexecute)
    assert seen == expected
    assert step.stats().coexecuted_steps >= 8 and step.stats().fallbacks <= 2, step.stats()


def test_sparse_ones_that_an_object_holds_as_well():
    class Holder:
        pass

    def made(decorate):
        holder, seen = Holder(), []

        def use(given):
            return tf.reduce_sum(holder.held.values * 2.0) + tf.reduce_sum(given.values)

        step = decorate(use)
        held = holder.held = tf.SparseTensor([[0, 0], [1, 1]], tf.constant([1.0, 2.0]), (3, 3))
        for k in range(18):
            seen.append(float(step(held if k < 12 else tf.SparseTensor([[0, 0], [1, 1]], tf.constant([1.0, k]), (3, 3)))))
        return step, seen

    _, expected = made(lambda step: step)
    step, seen = made(terra.coexecute(wait_for_graph=True))
    assert seen == expected
    assert step.stats().coexecuted_steps >= 8, step.stats()


def test_extension_types_and_optionals():
    compared(lambda w, m: use_dense(w, m.values * tf.cast(m.mask, tf.float32)), lambda k: (Masked([[1.0 + k], [2.0], [3.0]], np.array([[1], [0], [1]])),), least=0)
    compared(lambda w, o: use_dense(w, o.get_value()), lambda k: (tf.experimental.Optional.from_value(tf.constant([[1.0 + k]])),), least=0)


def test_values_of_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    value = strategy.experimental_distribute_values_from_function(lambda context: tf.constant([[2.0]]))
    compared(lambda w, x: use_dense(w, strategy.experimental_local_results(x)[0]), lambda k: (value,), least=0)


def test_slices_that_a_step_gives():
    def step(w, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(w, x) ** 2)
        gradient = tape.gradient(loss, w)
        return tf.IndexedSlices(gradient.values, gradient.indices), loss

    def run(decorate):
        w, step_ = tf.Variable([[1.0], [2.0], [3.0]]), decorate(step)
        made = []
        for k in range(STEPS):
            given, _ = step_(w, tf.constant([0, k % 3]))
            w.scatter_sub(tf.IndexedSlices(0.1 * given.values, given.indices))
            made.append(w.numpy().tolist())
        return step_, made

    step_, ours = run(terra.coexecute(wait_for_graph=True))
    assert ours == run(lambda f: f)[1] and step_.stats().coexecuted_steps >= 4


# -- strings ---------------------------------------------------------------------------------------------------------------------

LOOKS = {
    "asarray": np.asarray, "array": np.array, "object": lambda t: np.asarray(t, dtype=object), "bytes": lambda t: bytes(t.numpy()) if t.shape == () else None,
    "str": str, "repr": repr, "format": lambda t: f"{t}", "numpy": lambda t: t.numpy(), "list": lambda t: np.array([t, t]).tolist() if t.shape == () else None,
    "tolist": lambda t: np.asarray(t).tolist(), "equal": lambda t: bool(tf.reduce_all(t == t)), "writeable": lambda t: np.asarray(t).flags.writeable,
    "copy": lambda t: np.array(t, copy=True).flags.writeable, "stack": lambda t: np.stack([t, t]).tolist(), "converted": lambda t: tf.convert_to_tensor(np.asarray(t)).numpy(),
}
RESULTS = {
    "string": lambda x: tf.strings.as_string(tf.cast(tf.reduce_sum(x), tf.int32)), "strings": tf.strings.as_string,
    "empty string": lambda x: tf.strings.substr(tf.strings.as_string(x[0]), 0, 0), "no strings": lambda x: tf.strings.as_string(x[:0]),
    "long": lambda x: tf.strings.reduce_join([tf.strings.as_string(x)] * 20), "matrix": lambda x: tf.strings.as_string(tf.stack([x, x])),
    "bool": lambda x: x[0] > 0, "integer": lambda x: tf.cast(x[1], tf.int64), "half": lambda x: tf.cast(x, tf.bfloat16), "complex": lambda x: tf.complex(x[0], x[1]),
    "nothing": lambda x: x[:0], "float": lambda x: tf.reduce_sum(x),
}


def _seen(look, t):
    try:
        value = look(t)
    except Exception as error:
        return type(error).__name__
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.str, value.shape, repr(value.tolist())
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("result", RESULTS)
def test_how_results_look(result):
    def run(decorate):
        step = decorate(RESULTS[result])
        return step, [{name: _seen(look, step(tf.constant([1.0, float(k)]))) for name, look in LOOKS.items()} for k in range(2)]

    step, ours = run(terra.coexecute(wait_for_graph=True))
    assert ours == run(lambda f: f)[1]
    assert step.stats().coexecuted_steps >= 20
