"""Ragged and sparse tensors: steps that are given them, make them, call their methods; their numbers of values are new at each step."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

STEPS = 20
SAME = functools.partial(np.testing.assert_array_equal, strict=True)
EXPLICIT = {"run_ahead": 0}, {"fast_forward": False}, {"reduce_retracing": True}


def ragged(i, rows=70):
    """Words in rows of other lengths each time."""
    drawn = np.random.RandomState(i)
    lengths = drawn.randint(1, 9, rows)
    return tf.RaggedTensor.from_row_lengths(tf.constant(drawn.randint(0, 50, lengths.sum())), tf.constant(lengths))


def sparse(i, rows=20):
    """Numbers of entries that differ."""
    drawn = np.random.RandomState(i)
    places = np.sort(drawn.choice(rows * 50, 30 + i % 5, replace=False))
    return tf.SparseTensor(np.stack([places // 50, places % 50], 1), drawn.randn(len(places)).astype("float32"), (rows, 50))


def trained(forward):
    """A step that trains an embedding and a dense layer with the mean square of what `forward` gives."""
    embedding, dense = keras.layers.Embedding(50, 6), keras.layers.Dense(1)
    embedding.build((None,))
    dense.build((None, 6))
    optimizer = keras.optimizers.Adam(0.01) if forward in (padded, means) else keras.optimizers.SGD(0.1)
    variables = embedding.trainable_variables + dense.trainable_variables

    def step(*given):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense(forward(embedding, *given)) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step, lambda: variables + optimizer.variables


def padded(embedding, words):
    mask = tf.cast(tf.sequence_mask(words.row_lengths()), tf.float32)[..., None]
    return tf.reduce_sum(embedding(words.to_tensor()) * mask, 1) / tf.reduce_sum(mask, 1)


def means(embedding, words):
    return tf.reduce_mean(words.with_values(embedding(words.values)), axis=1)


def looked_up(embedding, words):
    return tf.reduce_max(tf.nn.embedding_lookup(embedding.embeddings, words), axis=1)


def calculated(embedding, words):
    vectors = words.with_values(embedding(words.values))
    return tf.reduce_mean(1.0 + tf.nn.relu(vectors) * 2.0, axis=1)


def of_two(embedding, words):
    vectors = words.with_values(embedding(words.values))
    return tf.reduce_mean(vectors - vectors * vectors, axis=1)


def mapped(embedding, words):
    vectors = tf.ragged.map_flat_values(tf.nn.embedding_lookup, embedding.embeddings, words)
    return tf.reduce_sum(vectors, axis=1)


def of_parts(embedding, words):
    again = tf.RaggedTensor.from_row_splits(words.values, words.row_splits)
    return tf.reduce_mean(again.with_flat_values(embedding(again.flat_values)), axis=1)


def masked(embedding, words):
    flat = tf.boolean_mask(words.values, words.values > 10)
    return tf.reduce_mean(embedding(flat), 0, keepdims=True)


def of_rows(embedding, words):
    return tf.concat([tf.reduce_mean(embedding(words[k]), 0, keepdims=True) for k in range(3)], 0)


def nested(embedding, words):
    rows = tf.RaggedTensor.from_uniform_row_length(words, 10)
    vectors = rows.with_flat_values(embedding(rows.flat_values))
    return tf.reduce_sum(tf.reduce_mean(vectors, axis=2), axis=1)


def mapped_by_own(embedding, words):
    vectors = tf.ragged.map_flat_values(lambda flat: embedding(flat) * 0.5, words)
    return tf.reduce_sum(vectors, axis=1)


SKIPPED = [padded, means, looked_up, calculated, mapped, of_parts, masked]


@pytest.mark.parametrize("forward", [*SKIPPED, of_two, mapped_by_own, of_rows, nested])
def test_ragged_arguments(forward):
    stats = harness.differ(lambda: trained(forward), lambda i: (ragged(i),), STEPS, SAME)
    assert stats.coexecuted_steps >= STEPS // 2, stats
    if forward in SKIPPED:
        assert stats.whole_steps >= STEPS // 3 and stats.traces <= 3, stats


@pytest.mark.parametrize("options", EXPLICIT, ids=str)
@pytest.mark.parametrize("forward", [means, looked_up])
def test_other_options(forward, options):
    stats = harness.differ(lambda: trained(forward), lambda i: (ragged(i),), STEPS, SAME, key=forward, **options)
    assert stats.coexecuted_steps >= STEPS // 2, stats


@pytest.mark.one_variant
@pytest.mark.parametrize("forward", [padded, looked_up, calculated])
def test_verified(forward):
    stats = harness.differ(lambda: trained(forward), lambda i: (ragged(i),), STEPS, SAME, verify=True)
    assert stats.coexecuted_steps >= STEPS // 2 and stats.verified_calls > 0, stats


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("forward", [padded, means, looked_up, calculated])
def test_few_rows(forward, rows):
    """Operations on so few numbers run on the host where Python has made these; they come with the step, and are others the next time."""
    stats = harness.differ(lambda: trained(forward), lambda i: (ragged(i, rows),), STEPS, SAME)
    assert stats.coexecuted_steps >= STEPS // 2 and stats.whole_steps >= STEPS // 3, stats


@pytest.mark.parametrize("forward", [means, looked_up])
@pytest.mark.parametrize("lengths", [[3, 1, 2], [2, 2, 2], [1, 4, 1]], ids=str)
def test_lengths_change_later(forward, lengths):
    """Row lengths are the same for long, with words that change; then they are others, of as many words."""
    def given(i):
        words = np.random.RandomState(i).randint(0, 50, 6)
        return (tf.RaggedTensor.from_row_lengths(tf.constant(words), tf.constant(lengths if i >= STEPS // 2 else [2, 1, 3])),)

    stats = harness.differ(lambda: trained(forward), given, STEPS, SAME)
    assert stats.coexecuted_steps >= STEPS // 2 and stats.whole_steps >= 5, stats


def row_sums(scale, numbers):
    return tf.reduce_sum(numbers.with_values(numbers.values * scale + 1.0), axis=1)


def row_masks(scale, numbers):
    return tf.reduce_sum(tf.cast(tf.sequence_mask(numbers.row_lengths(), 4), tf.float32) * scale + scale, axis=1)


def dense_sums(scale, numbers):
    return tf.reduce_sum(numbers.to_tensor(), 1) * scale + scale


@pytest.mark.parametrize("function", [row_sums, row_masks, dense_sums])
def test_ragged_tensors_from_elsewhere(function):
    """They are no arguments of the step, but of a function that it calls: an attribute holds another one each time, of as many numbers in other rows."""
    class Batches:
        numbers = None

    batches = Batches()

    def make():
        weight = tf.Variable(1.0)

        def step(scale):
            result = function(scale * weight, batches.numbers)
            weight.assign_add(0.25)
            return result

        return step, lambda: [weight]

    def change(i, step):
        splits = [[0, 2, 3, 6], [0, 3, 4, 6], [0, 1, 5, 6]][i % 3 if i > 20 else 0]
        batches.numbers = tf.RaggedTensor.from_row_splits(tf.constant(np.random.RandomState(i).randn(6).astype("float32")), tf.constant(splits))

    stats = harness.differ(make, lambda i: (tf.constant(1.0 + i),), 2 * STEPS, SAME, change)
    assert stats.coexecuted_steps >= STEPS and stats.fast_forwards >= STEPS, stats


def test_in_containers():
    stats = harness.differ(lambda: trained(lambda embedding, batch, scale: scale * means(embedding, batch["words"])),
                           lambda i: ({"words": ragged(i), "others": [ragged(i + 1)]}, tf.constant(2.0)), STEPS, SAME)
    assert stats.whole_steps >= STEPS // 3, stats


def test_the_last_batch_is_smaller():
    stats = harness.differ(lambda: trained(means), lambda i: (ragged(i, 70 if i % 6 < 5 else 40),), 2 * STEPS, SAME)
    assert stats.coexecuted_steps >= STEPS and stats.whole_steps >= STEPS // 2, stats


def gives(function):
    """A step that gives what `function` makes of its arguments, taken apart."""
    weight = tf.Variable(2.0)

    def step(*given):
        weight.assign_add(0.5)
        return function(weight, *given)

    def taken_apart(step):
        def call(*given):
            made = step(*given)
            return [type(made).__name__, *tf.nest.flatten(made, expand_composites=True), tf.shape(made) if not isinstance(made, tf.SparseTensor) else made.shape.as_list()]
        return call

    return step, taken_apart, weight


@pytest.mark.parametrize("function", [
    lambda weight, words: words.with_values(tf.cast(words.values, tf.float32) * weight),
    lambda weight, words: words.with_values(tf.cast(words.values, tf.float32)) * weight,
    lambda weight, words: tf.concat([words, words], axis=1),
    lambda weight, words: words.to_sparse(),
    lambda weight, words: tf.ragged.boolean_mask(words, words > 20),
    lambda weight, words: words,
], ids=["values", "times", "twice", "sparse", "masked", "itself"])
def test_ragged_results(function):
    seen = []
    for coexecute in (False, True):
        step, taken_apart, weight = gives(function)
        if coexecute:
            step = harness.coexecuted(step)
        call = taken_apart(step)
        seen.append([harness.flat(call(ragged(i, 9))) for i in range(STEPS)] + [[weight.numpy()]])
    for expected, actual in zip(*seen, strict=True):
        for a, b in zip(expected, actual, strict=True):
            SAME(a, b)
    assert step.stats().coexecuted_steps >= STEPS // 2, step.stats()


def multiplied(embedding, entries):
    return tf.sparse.sparse_dense_matmul(entries, embedding.embeddings)


def made_sparse(embedding, indices, values):
    return tf.sparse.sparse_dense_matmul(tf.SparseTensor(indices, values, (20, 50)), embedding.embeddings)


def combined(embedding, entries):
    ids = tf.SparseTensor(entries.indices, entries.indices[:, 1], entries.dense_shape)
    return tf.nn.embedding_lookup_sparse(embedding.embeddings.value, ids, None, combiner="sum")


@pytest.mark.parametrize("forward, given", [
    (multiplied, lambda i: (sparse(i),)),
    (made_sparse, lambda i: (sparse(i).indices, sparse(i).values)),
    (combined, lambda i: (sparse(i),)),
], ids=["multiplied", "made", "combined"])
@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=str)
def test_sparse_tensors(forward, given, options):
    stats = harness.differ(lambda: trained(forward), given, STEPS, SAME, **options)
    assert stats.coexecuted_steps >= STEPS // 2 and (options or stats.whole_steps >= STEPS // 3), stats


def raised(step, *given):
    try:
        step(*given)
    except Exception as error:
        return type(error)


def test_a_kernel_fails():
    """A step without a skeleton, of words of any number, that looks up a word which is not there."""
    seen = []
    for coexecute in (False, True):
        table, total = tf.Variable(tf.range(50.0)), tf.Variable(0.0)

        def step(words):
            total.assign_add(tf.reduce_sum(tf.gather(table, words.values)))
            return total.read_value()

        if coexecute:
            step = harness.coexecuted(step)
        found = []
        for i in range(2 * STEPS):
            words = ragged(i)
            try:
                found.append(float(step(words if i != 33 else words.with_values(words.values + 1000))))
            except tf.errors.InvalidArgumentError:
                found.append("failed")
        seen.append([*found, float(total)])
    assert seen[0] == seen[1] and "failed" in seen[0]
    assert step.stats().express_steps >= 15, terra.explain(step)


@pytest.mark.parametrize("wrong", ["mask", "values", "mapped", "sparse"])
def test_what_does_not_fit(wrong):
    """The graph finds out that sizes differ which Python has not looked at: then the step is eager's, with its error."""
    def make():
        weight = tf.Variable(1.0)

        def step(words, others):
            kept = tf.boolean_mask(words.values, words.values > -1)  # of which nobody knows how many there are
            more = tf.boolean_mask(others, others > -1)
            if wrong == "mask":
                result = tf.boolean_mask(kept, more > 20)
            elif wrong == "values":
                result = words.with_values(kept).with_values(more).values
            elif wrong == "sparse":
                result = tf.SparseTensor(tf.stack([kept, kept], 1), more, (60, 60)).values
            else:
                result = tf.ragged.map_flat_values(lambda flat: more, words.with_values(kept)).values
            weight.assign_add(tf.reduce_mean(tf.cast(result, tf.float32)))
            return weight.read_value()

        return step, weight

    def given(i):
        words = ragged(i)
        return words, words.values if i not in (14, 15, 19) else words.values[:-1]

    seen = []
    for coexecute in (False, True):
        step, weight = make()
        if coexecute:
            step = harness.coexecuted(step)
        seen.append([(raised(step, *given(i)), weight.numpy().tobytes()) for i in range(STEPS)])
    assert seen[0] == seen[1]
    assert [error for error, _ in seen[0]].count(None) == STEPS - 3
    assert step.stats().coexecuted_steps >= 8, step.stats()


@pytest.mark.parametrize("name", ["__mul__", "with_values", "to_tensor", "row_lengths"])
def test_methods_are_replaced(name, monkeypatch):
    """While the program runs, a method of the class is replaced, and put back."""
    def forward(embedding, words):
        vectors = words.with_values(embedding(words.values)) * 2.0
        return tf.reduce_sum(vectors.to_tensor(), 1) / tf.cast(words.row_lengths(), tf.float32)[:, None]

    original = getattr(tf.RaggedTensor, name)
    calls = []

    def other(self, *given, **named):
        calls.append(name)
        return original(self, *given, **named)

    def change(i, step):
        if i == 12:
            monkeypatch.setattr(tf.RaggedTensor, name, other)
        elif i == 18:
            monkeypatch.setattr(tf.RaggedTensor, name, original)

    seen = []
    for coexecute in (False, True):
        keras.utils.set_random_seed(5)
        step, state = trained(forward)
        if coexecute:
            step = harness.coexecuted(step)
        calls.clear()
        found = []
        for i in range(STEPS):
            change(i, step)
            found.append((step(ragged(i)).numpy().tobytes(), len(calls)))
        seen.append([*found, [v.numpy().tobytes() for v in state()]])
    assert seen[0] == seen[1] and seen[0][-2][1] >= 6
    assert step.stats().coexecuted_steps >= STEPS // 3, step.stats()


def test_explain_tells_what_is_open():
    step = harness.coexecuted(trained(means)[0])
    for i in range(12):
        step(ragged(i))
    assert "left unknown: int64 (None,)." in terra.explain(step, full=True)
