"""Steps with shapes that depend on data, or are other ones from batch to batch, ragged and sparse tensors among them: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.shapes [--steps N] [--quiet]

Adam, the loss read at each step; medians in ms over the last half of the steps, the three taking turns in chunks (tf.function with reduce_retracing=True, so that it relaxes shapes; Terra does so by itself). Exits with 1 if what Terra trains differs from what eager execution trains.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.benchmarks import turns

ROWS, FEATURES, CLASSES, BATCHES = 64, 16, 4, 40
WORDS, SENTENCES, SHORTEST, TEXTS = 200, 16, 10, 400


def rows(seed=0):
    """Batches (x, labels, which rows count)."""
    rng = np.random.default_rng(seed)
    return [(tf.constant(rng.normal(size=(ROWS, FEATURES)).astype("float32")), tf.constant(rng.integers(0, CLASSES, ROWS)), tf.constant(rng.random(ROWS) < 0.7))
            for _ in range(BATCHES)]


def texts(n_lengths, seed=0):
    """Batches (words, labels) of sentences, of that many lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(SHORTEST, SHORTEST + n_lengths, TEXTS)
    return [(tf.constant(rng.integers(0, WORDS, (SENTENCES, n)), tf.int32), tf.constant(rng.integers(0, CLASSES, SENTENCES))) for n in lengths]


def ragged_texts(seed=0):
    """Batches (words, labels) of sentences in a ragged tensor."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(TEXTS):
        lengths = rng.integers(SHORTEST, 4 * SHORTEST, SENTENCES)
        words = tf.RaggedTensor.from_row_lengths(tf.constant(rng.integers(0, WORDS, lengths.sum()), tf.int32), tf.constant(lengths))
        batches.append((words, tf.constant(rng.integers(0, CLASSES, SENTENCES))))
    return batches


def bags(seed=0):
    """Batches (how often each word comes in each text, labels), in a sparse tensor."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(TEXTS):
        places = np.sort(rng.choice(SENTENCES * WORDS, rng.integers(10, 40) * SENTENCES, replace=False))
        counts = tf.SparseTensor(np.stack([places // WORDS, places % WORDS], 1), tf.constant(rng.integers(1, 9, len(places)), tf.float32), (SENTENCES, WORDS))
        batches.append((counts, tf.constant(rng.integers(0, CLASSES, SENTENCES))))
    return batches


def trained(model, loss_of, **options):
    """make(mode): a step that trains what `model()` gives on `loss_of(model, *batch)`, and the model. options: of `terra.coexecute`."""
    def make(mode):
        keras.utils.set_random_seed(1)
        made = model()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(made.trainable_variables)

        def step(*batch):
            with tf.GradientTape() as tape:
                loss = loss_of(made, *batch)
            optimizer.apply_gradients(zip(tape.gradient(loss, made.trainable_variables), made.trainable_variables))
            return loss

        step = turns.MODES[mode](step, **options if mode == "Terra" else {})
        return lambda *batch: float(step(*batch)), made

    return make


def perceptron():
    return keras.Sequential([keras.layers.Input((FEATURES,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES)])


def convolution():
    return keras.Sequential([
        keras.layers.Input((None,), dtype="int32"), keras.layers.Embedding(WORDS, 16), keras.layers.Conv1D(32, 3, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)])


def attention():
    words = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(WORDS, 16)(words)
    mixed = keras.layers.LayerNormalization()(embedded + keras.layers.MultiHeadAttention(2, 8)(embedded, embedded))
    return keras.Model(words, keras.layers.Dense(CLASSES)(keras.layers.GlobalMaxPooling1D()(mixed)))


def bag():
    """An embedding, and a layer for the means of what it gives."""
    return keras.Sequential([keras.layers.Input((None,), dtype="int32"), keras.layers.Embedding(WORDS, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)])


def masked_loss(model, x, labels, counts):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
    return tf.reduce_mean(tf.boolean_mask(losses, counts))


def chosen_rows(model, x, labels, counts):
    chosen = tf.where(counts)[:, 0]
    logits = tf.gather(model(x), chosen)
    return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, tf.gather(labels, chosen), axis=1, batch_dims=1))


def partitioned(model, x, labels, counts):
    others, counted = tf.dynamic_partition(model(x), tf.cast(counts, tf.int32), 2)
    return tf.reduce_mean(tf.square(counted)) + 0.1 * tf.reduce_mean(tf.abs(others))


def by_class(model, x, labels, counts):
    found, places = tf.unique(labels)
    means = tf.math.unsorted_segment_mean(model(x), places, tf.size(found))
    return tf.reduce_mean(tf.square(means))


def classified(model, words, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(words)))


def of_ragged(model, words, labels):
    embedding, _, dense = model.layers
    means = tf.reduce_mean(tf.ragged.map_flat_values(tf.nn.embedding_lookup, embedding.embeddings, words), axis=1)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, dense(means)))


def padded(model, words, labels):
    embedding, _, dense = model.layers
    lengths = tf.cast(words.row_lengths(), tf.float32)[:, None]
    mask = tf.sequence_mask(words.row_lengths(), dtype=tf.float32)[..., None]
    means = tf.reduce_sum(embedding(words.to_tensor()) * mask, 1) / lengths
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, dense(means)))


def of_sparse(model, counts, labels):
    embedding, _, dense = model.layers
    sums = tf.sparse.sparse_dense_matmul(counts, embedding.embeddings)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, dense(sums)))


def programs():
    """{title: (make, data)}"""
    some_rows, some_texts, many_texts = rows(), texts(50), texts(300)
    return {
        "loss of masked rows": (trained(perceptron, masked_loss), some_rows),
        "rows chosen by tf.where": (trained(perceptron, chosen_rows), some_rows),
        "tf.dynamic_partition": (trained(perceptron, partitioned), some_rows),
        "means of the classes found": (trained(perceptron, by_class), some_rows),
        "50 lengths, convolution": (trained(convolution, classified), some_texts),
        "50 lengths, attention": (trained(attention, classified), some_texts),
        "300 lengths, convolution": (trained(convolution, classified), many_texts),
        "300 lengths, attention": (trained(attention, classified), many_texts),
        "ragged tensors": (trained(bag, of_ragged), ragged_texts()),
        "ragged tensors, padded": (trained(bag, padded), ragged_texts()),
        "sparse tensors": (trained(bag, of_sparse), bags()),
    }


def main(argv=None):
    return turns.main("examples.benchmarks.shapes", __doc__.splitlines()[0], programs(), 800, argv)


if __name__ == "__main__":
    raise SystemExit(main())
