"""BERT classification: which module of the standard library is this from? With scikit-learn's F1 score in mid-step.

One of Terra's ten, and of the five that AutoGraph cannot run: an object of the user's takes the values of labels and predictions, has a third party's
library compute the score from them, and keeps it.
AutoGraph: fails ('SymbolicTensor' has no `numpy`).
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.metrics import f1_score

from examples.programs import Job
from examples.programs.blocks.recurrent import minimise_clipped
from examples.programs.blocks.transformer import MODULES, Bert, Words, adam_with_warm_up, bert_rows
from examples.programs.training import class_loss

SIZES = {
    "test": {"batch": 8, "length": 8, "classes": 3, "vocabulary": 300, "layers": 1, "units": 16, "heads": 2, "hidden": 32},
    "benchmark": {"batch": 16, "length": 32, "classes": 8, "vocabulary": 3000, "layers": 3, "units": 64, "heads": 4, "hidden": 256},
    "paper": {"batch": 512, "length": 4, "classes": 15, "vocabulary": 30522, "layers": 12, "units": 768, "heads": 12, "hidden": 3072},
}


class SparseF1Score:
    """F1 scores of batches, and the best so far."""

    def __init__(self, average="macro"):
        self.average = average
        self.scores, self.best = [], 0.0

    def __call__(self, labels, logits):
        right = tf.reshape(labels, (-1,)).numpy()
        predicted = tf.reshape(tf.argmax(logits, axis=-1), (-1,)).numpy()
        score = float(f1_score(right, predicted, average=self.average, zero_division=0.0))
        self.scores.append(score)
        self.best = max(self.best, score)
        return score


class Classifier(keras.Model):
    """BERT, and a dense layer on what it makes of the first place."""

    def __init__(self, classes, units, dropout=0.1, **sizes):
        super().__init__()
        self.bert = Bert(units=units, **sizes)
        self.pool = keras.layers.Dense(units, "tanh")
        self.dropout = keras.layers.Dropout(dropout)
        self.classify = keras.layers.Dense(classes)

    def call(self, numbers, segments, mask, training=False):
        pooled = self.pool(self.bert(numbers, segments, mask, training=training)[:, 0])
        return self.classify(self.dropout(pooled, training=training))


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(*example)
        self.loss, self.score = class_loss(), SparseF1Score()
        self.variables = model.trainable_variables
        self.optimizer = adam_with_warm_up(self.variables)

    def train_step(self, numbers, segments, mask, labels):
        with tf.GradientTape() as tape:
            logits = self.model(numbers, segments, mask, training=True)
            loss = self.loss(labels, logits)
            self.score(labels, logits)
        minimise_clipped(tape, loss, self.variables, self.optimizer, limit=1.0)
        return loss


def labelled_batches(seed, batch, length, classes, vocabulary, count=8):
    """`count` batches of BERT's three inputs and the number of the module that each row is from; and how many words are known."""
    rng = np.random.default_rng(seed)
    words = Words(vocabulary, MODULES[:classes])
    labels = rng.integers(0, classes, batch * count)
    texts = [words.texts[label] for label in labels]
    starts = [rng.integers(len(text) - length) for text in texts]
    rows = bert_rows(words, [(text[start : start + length - 2], []) for text, start in zip(texts, starts)], length)
    arrays = [tf.constant(array.reshape(count, batch, *array.shape[1:])) for array in (*rows, labels.astype(np.int32))]
    return [tuple(array[index] for array in arrays) for index in range(count)], words.count


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batches, sizes["vocabulary"] = labelled_batches(seed, sizes.pop("batch"), sizes["length"], sizes["classes"], sizes["vocabulary"])
    return Job(Trainer(Classifier(**sizes), batches[0][:3]).train_step, batches)
