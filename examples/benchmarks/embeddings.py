"""Steps that train large tables of embeddings, of which each batch updates a few rows: eager, tf.function and Terra in one run.

    python -m examples.benchmarks.embeddings [--steps N] [--quiet]

Gradients of looked-up rows are IndexedSlices, which optimizers scatter into variables. The loss is read at each step; medians in ms over the last half of the steps, the three taking turns in
chunks. Exits with 1 if what Terra trains differs from what eager execution trains.
"""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from examples.benchmarks import turns

ROWS, WIDTH, BATCH, LENGTH, CLASSES, BATCHES = 20_000, 64, 32, 20, 5, 16


def batches(seed=0):
    """Batches (words, label)."""
    rng = np.random.default_rng(seed)
    return [(tf.constant(rng.zipf(1.3, (BATCH, LENGTH)) % ROWS, tf.int32), tf.constant(rng.integers(0, CLASSES, BATCH))) for _ in range(BATCHES)]


def classifier(library, name, **options):
    """make(mode): a training step, and its model, of a library with one of its optimizers."""
    def make(mode):
        library.utils.set_random_seed(1)
        layers = library.layers
        model = library.Sequential([layers.Embedding(ROWS, WIDTH), layers.GlobalAveragePooling1D(), layers.Dense(32, "relu"), layers.Dense(CLASSES)])
        model.build((None, LENGTH))
        loss_fn = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = getattr(library.optimizers, name)(0.01, **options)
        optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        step = turns.MODES[mode](step)
        return lambda x, y: float(step(x, y)), model

    return make


class Pairs(tf.Module):
    """Words and their neighbours, with negative samples; Adagrad by hand, on the rows that were looked up."""

    def __init__(self):
        super().__init__()
        start = tf.random.stateless_uniform((2, ROWS, WIDTH), (1, 2), -0.1, 0.1)
        self.words, self.contexts = tf.Variable(start[0]), tf.Variable(start[1])
        self.sums = [tf.Variable(tf.fill((ROWS, WIDTH), 0.1)) for _ in range(2)]

    def get_weights(self):
        return [v.numpy() for v in self.variables]

    def train(self, x, y):
        words, contexts = x[:, 0], x[:, 1:6]
        with tf.GradientTape() as tape:
            score = tf.einsum("bw,bnw->bn", tf.gather(self.words, words), tf.gather(self.contexts, contexts))
            is_real = tf.one_hot(tf.zeros_like(words), 5)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(is_real, score))
        for table, total, slices in zip((self.words, self.contexts), self.sums, tape.gradient(loss, [self.words, self.contexts])):
            rows, places = tf.unique(slices.indices)
            gradient = tf.math.unsorted_segment_sum(slices.values, places, tf.size(rows))
            total.scatter_add(tf.IndexedSlices(gradient ** 2, rows))
            table.scatter_sub(tf.IndexedSlices(0.1 * gradient * tf.math.rsqrt(tf.gather(total, rows)), rows))
        return loss


def by_hand(mode):
    pairs = Pairs()
    step = turns.MODES[mode](pairs.train)
    return lambda x, y: float(step(x, y)), pairs


PROGRAMS = {
    **{f"Keras 3, {name}": classifier(keras, name) for name in ("SGD", "Adam", "Adagrad")},
    **{f"tf_keras, {name}": classifier(tf_keras, name) for name in ("SGD", "Adam", "Adagrad")},
    "pairs of words, Adagrad by hand": by_hand,
}


def main(argv=None):
    data = batches()
    return turns.main("examples.benchmarks.embeddings", __doc__.splitlines()[0], {title: (make, data) for title, make in PROGRAMS.items()}, 200, argv)


if __name__ == "__main__":
    raise SystemExit(main())
