"""Framework code that looks at sizes which are not known, and does without them: each condition under which it can, met and not met."""

import inspect
import sys
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from terra.runtime.tensors import size_readers
from tests import harness
from tests.tracing.test_reduce_retracing import STEPS, compare, rows, sequences, trained

L = keras.layers


def embedded(*layers):
    """A step that trains layers behind an embedding, and its state."""
    model = keras.Sequential([L.Embedding(20, 6), *layers, L.GlobalAveragePooling1D(), L.Dense(3)])
    model(np.zeros((2, 12), "int32"))
    return trained(model)


LAYERS = {
    "dense": lambda: L.Dense(4, activation="relu"), "convolution": lambda: L.Conv1D(4, 3, padding="same"), "causal": lambda: L.Conv1D(4, 3, padding="causal"),
    "valid": lambda: L.Conv1D(4, 3), "separable": lambda: L.SeparableConv1D(4, 3, padding="same"), "dropout": lambda: L.Dropout(0.3, seed=1),
    "spatial dropout": lambda: L.SpatialDropout1D(0.3, seed=1), "noise": lambda: L.GaussianNoise(0.3, seed=1), "group normalization": lambda: L.GroupNormalization(2),
    "layer normalization": L.LayerNormalization, "softmax": L.Softmax, "masking": L.Masking, "einsum": lambda: L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"),
    "lstm": lambda: L.LSTM(3, return_sequences=True),
}


@pytest.mark.parametrize("name, batches_vary", [(name, k % 2 == 0 and name not in ("spatial dropout", "lstm")) for k, name in enumerate(LAYERS)])
def test_layers_are_skipped_at_all_sizes(name, batches_vary):
    compare(lambda: embedded(LAYERS[name]()), lambda: sequences(batches_vary=batches_vary), skipped=0.4, **({"equal": close} if name == "lstm" else {}))


def close(a, b, err_msg):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=err_msg)


@pytest.mark.parametrize("loss", ["sparse", "categorical", "binary", "none"])
def test_losses_are_skipped_for_all_batches(loss):
    """The graph computes whether there is a label for each example."""
    losses = {"sparse": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "categorical": keras.losses.CategoricalCrossentropy(from_logits=True),
              "binary": keras.losses.BinaryCrossentropy(from_logits=True), "none": keras.losses.MeanSquaredError(reduction="none")}

    def make():
        model = keras.Sequential([L.Dense(5), L.Flatten(), L.Dense(3)])
        model(np.zeros((2, 4), "float32"))
        return trained(model, loss=losses[loss])

    def batches():
        drawn = np.random.RandomState(3)
        for (x,) in rows():
            labels = drawn.randint(0, 3, len(x))
            yield x, tf.constant(labels if loss == "sparse" else np.eye(3, dtype="float32")[labels])
    compare(make, batches, skipped=0.4 * (loss != "binary"))  # TensorFlow compares the shapes once more there


@pytest.mark.parametrize("add", ["rows", "columns", "same", "vector", "channels"])
def test_sums(add):
    """Keras looks whether the second summand is a bias: so it may be where sizes are 1, or as long as an axis."""
    def make():
        w = tf.Variable(np.linspace(-1, 1, 4).astype("float32"))

        def step(x):
            with tf.GradientTape() as tape:
                y = x * w
                other = {"rows": y[:1], "columns": y[:, :1], "same": y * 2.0, "vector": w, "channels": tf.ones([tf.shape(x)[0]])}[add]
                total = keras.ops.add(y[:, :, None] if add == "channels" else y, other[:, None, None] if add == "channels" else other)
                loss = tf.reduce_sum(total ** 2.0)
            w.assign_sub(1e-4 * tape.gradient(loss, w))
            return total, loss
        return step, lambda: [w]
    compare(make, lambda: rows(low=1))


@pytest.mark.parametrize("padding", ["same", "valid", "causal"])
def test_a_convolution_of_too_short_a_sequence_is_refused_as_eagerly(padding):
    def make():
        layer = L.Conv1D(2, 3, padding=padding)
        layer.build((None, None, 4))

        def step(x):
            try:
                return tf.reduce_sum(layer(x[None]))
            except (ValueError, tf.errors.OpError) as error:
                return type(error).__name__
        return step, lambda: layer.weights
    # (Of 2 rows, eager execution on a CPU makes a tensor with random contents.)
    compare(make, lambda: (given for given in rows(low=1) if len(given[0]) != 2), coexecuted=0.3)


def test_a_softmax_over_one_value_is_warned_of():
    seen = []

    def make():
        seen.append([])

        def step(x):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                y = keras.ops.softmax(x, axis=0)
            seen[-1].append(len(caught))
            return y
        return step, lambda: []
    compare(make, lambda: rows(low=1), coexecuted=0.3)
    eager, coexecuted = seen
    assert eager == coexecuted and 1 in eager


def test_labels_that_do_not_match_raise_what_they_raise_eagerly():
    def make():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

        def step(x, y):
            try:
                return loss(y, x)
            except ValueError as error:
                return str(error)
        return step, lambda: []

    def batches():
        for i, (x,) in enumerate(rows()):
            yield x, tf.zeros([len(x) + (i % 7 == 6)], tf.int64)
    compare(make, batches, coexecuted=0.4)


def test_a_loss_of_no_values():
    def make():
        loss = keras.losses.MeanSquaredError()

        def step(x):
            return loss(x[:, 0] * 2.0, x[:, 1])
        return step, lambda: []
    compare(make, lambda: ((x[: len(x) * (i % 6 != 5)],) for i, (x,) in enumerate(rows())), coexecuted=0.4)


SPECS = [
    (dict(min_ndim=2), (4, None, 6), True), (dict(min_ndim=4), (4, None, 6), False), (dict(ndim=3), (4, None, 6), True), (dict(ndim=2), (4, None, 6), False),
    (dict(max_ndim=2), (4, None, 6), False), (dict(axes={-1: 6}), (4, None, 6), True), (dict(axes={-1: 6}), (4, 6, None), False), (dict(axes={1: 6}), (4, None, 6), False),
    (dict(axes={5: 6}), (4, None, 6), False), (dict(shape=(None, None, 6)), (4, None, 6), True), (dict(shape=(None, 5, 6)), (4, None, 6), False),
    (dict(shape=(None, None, 5)), (4, None, 6), False), (dict(dtype="float32"), (4, None), False),
    (dict(shape=(None, 1), allow_last_axis_squeeze=True), (None, None), True), (dict(shape=(None, 3), allow_last_axis_squeeze=True), (4, None), False),
    (dict(shape=(None, 3), allow_last_axis_squeeze=True), (None, 3), True), (dict(shape=(3, 1), allow_last_axis_squeeze=True), (None, 1), False),
]


@pytest.mark.parametrize("spec, known, expected", SPECS)
def test_specifications(spec, known, expected):
    """If a tensor passes whatever the unknown sizes are, it passes with any."""
    spec = L.InputSpec(**spec)
    assert size_readers.passes(spec, known) == expected
    for size in (0, 1, 3, 5, 6):
        x = np.zeros([size if d is None else d for d in known], "float32")
        try:
            keras.src.layers.input_spec.assert_input_compatibility(spec, x, "layer")
        except (ValueError, IndexError):
            assert not expected


def test_another_version_of_a_function_reads():
    """A function is known by its source."""
    from keras.src.backend.tensorflow import numpy
    code = inspect.unwrap(numpy.add).__code__
    assert size_readers._rule_of(code) is size_readers._added
    other = types.SimpleNamespace(co_name="add", co_filename=code.co_filename)
    assert size_readers._find(other) is None  # it has no source
    assert size_readers._find(test_another_version_of_a_function_reads.__code__) is None


def test_the_installed_versions_are_known():
    """What the suite runs with is what the rules were written for; else they would silently not be used."""
    missing = []
    for file, name in size_readers._rules:
        module = sys.modules.get(file[:-3].replace("/", "."))
        if module is None:
            continue
        codes = [code for value in vars(module).values() for code in _codes(value, file) if code.co_name == name]
        if codes and not any(size_readers._find(code) for code in codes):
            missing.append((file, name))
    assert not missing, missing


def _codes(value, file):
    """The code of a function, of those in it, and of a class's methods."""
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, type):
        return [code for member in vars(value).values() for code in _codes(member, file)]
    found = [value.__code__] if isinstance(value, types.FunctionType) else []
    found += [inner for code in found for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return [code for code in found if code.co_filename.endswith(file)]


def test_steps_that_return_open_shapes():
    """Outside of the step, where the layer is called with a result that is still on its way."""
    def make():
        layer, dense = L.Conv1D(3, 3, padding="same"), L.Dense(2)
        layer.build((None, None, 4))
        dense.build((None, None, 3))
        return (lambda x: layer(x[None] * 2.0)), lambda: [dense]
    seen = []
    for wrap in (harness.eager, lambda step: harness.coexecuted(step, reduce_retracing=True)):
        keras.utils.set_random_seed(1)
        step, dense = make()
        step = wrap(step)
        seen.append([dense()[0](step(x)).numpy() for x, in rows()])
    assert len(seen[0]) == STEPS
    for a, b in zip(*seen, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_einsum_tells_of_its_result():
    """Keras' products of matrices broadcast sizes of 1."""
    from terra.runtime.tensors import known_shapes
    assert [known_shapes._common(sizes) for sizes in ({4}, {4, None}, {None}, {1}, {1, None}, {1, 4}, {3, 4}, ())] == [4, 4, None, 1, None, 4, None, None]

    def make():
        def step(x):
            y = x[None] * 2.0
            return keras.ops.einsum("abc,cd->abd", y, tf.ones([4, 3])), keras.ops.einsum("abcd,abde->abce", y[None], tf.ones([1, 1, 4, 2])), None in y.shape, y.shape == None  # noqa: E711
        return step, lambda: []
    compare(make, rows, coexecuted=0.4)
