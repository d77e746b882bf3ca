"""GCN: a graph convolutional network that classifies the papers of a citation graph; everything that can be is sparse.

From the dissertation's list of Terra's programs (there: Spektral), one of the two with the widest gap to AutoGraph. Each step trains on the few papers
whose subject is known and validates on others; Python reads the validation loss, keeps the best weights as numpy arrays, and goes back to them when its
patience is over. Dropout on the sparse features keeps another number of them at each step, so shapes depend on values.
AutoGraph: fails (TypeError). The labels become a symbolic tensor, which an array of row numbers cannot index; further on, Python reads values.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.training import adam

SIZES = {
    "test": {"papers": 60, "words": 40, "subjects": 3, "units": 8, "known": 5, "validation": 20},
    "benchmark": {"papers": 2708, "words": 1433, "subjects": 7, "units": 16, "known": 20, "validation": 500},
    "paper": {"papers": 2708, "words": 1433, "subjects": 7, "units": 16, "known": 20, "validation": 500},
}
DROPOUT, DECAY, PATIENCE = 0.5, 5e-4, 10


class GraphConvolution(keras.layers.Layer):
    """A dense layer on each paper, then the weighted sum over the papers that it is linked to."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, inputs_shape, links_shape):
        self.kernel = self.add_weight(shape=(inputs_shape[-1], self.units), name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs, links):
        product = tf.sparse.sparse_dense_matmul if isinstance(inputs, tf.SparseTensor) else tf.matmul
        return tf.sparse.sparse_dense_matmul(links, product(inputs, self.kernel)) + self.bias


class GraphNetwork(keras.Model):
    def __init__(self, seed, units, subjects):
        super().__init__()
        self.random = tf.random.Generator.from_seed(seed)
        self.first, self.second = GraphConvolution(units), GraphConvolution(subjects)
        self.dropout = keras.layers.Dropout(DROPOUT)

    def call(self, inputs, training=False):
        words, links = inputs
        if training:
            kept = self.random.uniform(tf.shape(words.values)) >= DROPOUT
            words = tf.sparse.retain(words, kept) * (1.0 / (1.0 - DROPOUT))
        x = self.dropout(tf.nn.relu(self.first(words, links)))
        return self.second(x, links)


class Trainer:
    def __init__(self, seed, words, links, units, subjects, known, validation):
        self.model = GraphNetwork(seed, units, subjects)
        self.model((words, links))
        self.optimizer = adam(self.model.trainable_variables, 1e-2)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.known, self.validation = known, validation
        self.best_loss, self.best_weights, self.waited = float("inf"), None, 0

    def validate(self, words, links, labels):
        logits = self.model((words, links))
        loss = float(self.loss_fn(labels[self.validation], logits.numpy()[self.validation]))
        if loss < self.best_loss:
            self.best_loss, self.best_weights, self.waited = loss, self.model.get_weights(), 0
        else:
            self.waited += 1
        if self.waited > PATIENCE:
            self.model.set_weights(self.best_weights)
            self.waited = 0

    def train_step(self, words, links, labels):
        with tf.GradientTape() as tape:
            logits = self.model((words, links), training=True)
            loss = self.loss_fn(labels[self.known], tf.gather(logits, self.known))
            loss += DECAY * tf.nn.l2_loss(self.model.first.kernel)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.validate(words, links, labels)
        return loss


def sparse(matrix):
    places = np.argwhere(matrix)
    return tf.SparseTensor(places, matrix[tuple(places.T)].astype(np.float32), matrix.shape)


def citations(rng, papers, words, subjects):
    """Papers that cite mostly papers of their own subject and use mostly its words: words, links (both weighted), subjects."""
    labels = rng.integers(0, subjects, papers).astype(np.int32)
    cited = rng.integers(0, papers, (papers, 10))
    wanted = (labels[cited] == labels[:, np.newaxis]) | (rng.random(cited.shape) < 0.05)
    links = np.eye(papers)
    links[np.nonzero(wanted)[0], cited[wanted]] = 1.0
    links = np.maximum(links, links.T)
    degrees = links.sum(axis=1)
    links /= np.sqrt(np.outer(degrees, degrees))

    common = rng.integers(0, words, (papers, 15))
    own = rng.integers(0, words // subjects, (papers, 5)) * subjects + labels[:, np.newaxis]
    used = np.zeros((papers, words))
    used[np.arange(papers)[:, np.newaxis], np.concatenate([common, own], axis=1)] = 1.0
    return sparse(used / used.sum(axis=1, keepdims=True)), sparse(links), labels


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    rng = np.random.default_rng(seed)
    papers, subjects = sizes["papers"], sizes["subjects"]
    words, links, labels = citations(rng, papers, sizes["words"], subjects)
    order = rng.permutation(papers)
    known = np.concatenate([order[labels[order] == subject][: sizes["known"]] for subject in range(subjects)])
    validation = np.setdiff1d(order, known)[: sizes["validation"]]
    return Job(Trainer(seed, words, links, sizes["units"], subjects, known, validation).train_step, [(words, links, labels)])
