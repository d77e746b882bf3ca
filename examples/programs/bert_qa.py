"""BERT question answering: the words of a question and of a text go in, where the answer starts and ends comes out.

One of Terra's ten (there on SQuAD): a large model without a dynamic feature but Python's own loops over layers and heads of objects. Here the texts are
the standard library's, the question is which parameters a function takes, and the answer is found in the text around it.
AutoGraph: runs.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import minimise_clipped
from examples.programs.blocks.transformer import Bert, Words, adam_with_warm_up, bert_rows
from examples.programs.training import class_loss

SIZES = {
    "test": {"batch": 2, "length": 32, "vocabulary": 300, "layers": 1, "units": 16, "heads": 2, "hidden": 32},
    "benchmark": {"batch": 4, "length": 96, "vocabulary": 3000, "layers": 3, "units": 64, "heads": 4, "hidden": 256},
    "paper": {"batch": 4, "length": 384, "vocabulary": 30522, "layers": 12, "units": 768, "heads": 12, "hidden": 3072},
}
LONGEST_ANSWER = 16


class QuestionAnswering(keras.Model):
    """BERT and a score for each word to be the first, and one to be the last, of the answer."""

    def __init__(self, **sizes):
        super().__init__()
        self.bert = Bert(**sizes)
        # A bias would move the scores of all places alike, which means nothing.
        self.ends = keras.layers.Dense(2, use_bias=False)

    def call(self, numbers, segments, mask, training=False):
        scores = self.ends(self.bert(numbers, segments, mask, training=training))
        scores = tf.where(tf.cast(mask, tf.bool)[..., tf.newaxis], scores, -1e9)
        return tf.unstack(scores, axis=-1)


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(*example)
        self.loss = class_loss()
        self.variables = model.trainable_variables
        self.optimizer = adam_with_warm_up(self.variables)

    def train_step(self, numbers, segments, mask, first, last):
        with tf.GradientTape() as tape:
            first_scores, last_scores = self.model(numbers, segments, mask, training=True)
            loss = 0.5 * (self.loss(first, first_scores) + self.loss(last, last_scores))
        minimise_clipped(tape, loss, self.variables, self.optimizer, limit=1.0)
        return loss


def signatures(text):
    """(name, place of the first word of the parameters, that of the last) of the functions in a text."""
    for place, word in enumerate(text):
        if word == "def" and text[place + 2] == "(":
            start = place + 3
            end = text.index(")", start)
            if start < end <= start + LONGEST_ANSWER:
                yield text[place + 1], start, end - 1


def questions(rng, words, number, length):
    """`number` times (question, text, place of the answer's first word, of its last), places counted from the start of BERT's row."""
    signed = [(text, *signature) for text in words.texts for signature in signatures(text)]
    for index in rng.choice(len(signed), number):
        text, name, first, last = signed[index]
        question = ["parameters", "of", name, "?"]
        room = length - len(question) - 3
        earliest = max(0, last + 1 - room)
        start = rng.integers(earliest, max(earliest, min(first, len(text) - room)) + 1)
        shift = len(question) + 2 - start
        yield question, text[start : start + room], first + shift, last + shift


def span_batches(seed, batch, length, vocabulary, count=8):
    """`count` batches of BERT's three inputs and the first and last place of the answer; and how many words are known."""
    words = Words(vocabulary)
    asked = list(questions(np.random.default_rng(seed), words, batch * count, length))
    rows = bert_rows(words, [(question, text) for question, text, _, _ in asked], length)
    ends = np.array([(first, last) for _, _, first, last in asked], np.int32).T
    arrays = [tf.constant(array.reshape(count, batch, *array.shape[1:])) for array in (*rows, *ends)]
    return [tuple(array[index] for array in arrays) for index in range(count)], words.count


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batches, sizes["vocabulary"] = span_batches(seed, sizes.pop("batch"), sizes["length"], sizes["vocabulary"])
    return Job(Trainer(QuestionAnswering(**sizes), batches[0][:3]).train_step, batches)
