"""Beam search: a character model learns names from the standard library, and completes one in each step, until all beams have ended.

AutoGraph's program: complex computation with decisions in each iteration of a loop that is left as soon as no beam goes on. Here the beams' texts are
Python strings, so each iteration also reads which beams it goes on with.
AutoGraph: fails ('SymbolicTensor' has no `numpy`); it needs tensors in the place of the strings.
"""

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import unroll, zero_state
from examples.programs.data import snake_case_names
from examples.programs.layers import LSTMCell
from examples.programs.training import adam, class_loss

SIZES = {
    "test": {"units": 16, "batch": 4, "beams": 3, "longest": 6},
    "benchmark": {"units": 64, "batch": 32, "beams": 5, "longest": 12},
    "paper": {"units": 512, "batch": 64, "beams": 10, "longest": 60},
}
ALPHABET = "$_abcdefghijklmnopqrstuvwxyz"  # the first one ends a name
END = 0
PREFIX = 3
NEVER = -1e9  # the score of what must not be chosen


class Completer(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.embedding = keras.layers.Embedding(len(ALPHABET), units)
        self.cell = LSTMCell(units)
        self.logits = keras.layers.Dense(len(ALPHABET))

    def call(self, characters):
        outputs, _ = unroll(self.cell, self.embedding(characters), self.start(characters))
        return self.logits(outputs)

    def start(self, characters):
        return zero_state(characters.shape[0], self.cell.units, self.cell.units)

    def complete(self, prefix, beams, longest):
        """The most probable text that goes on after the prefix, and its score."""
        ended_scores = tf.constant([[0.0] + [NEVER] * (len(ALPHABET) - 1)])  # an ended beam stays as it is
        scores = tf.constant([0.0] + [NEVER] * (beams - 1))  # all beams start from the same text, of which one is enough
        codes = tf.repeat(prefix[tf.newaxis], beams, axis=0)
        _, state = unroll(self.cell, self.embedding(codes[:, :-1]), self.start(codes))
        characters, ended, texts = codes[:, -1], tf.zeros(beams, tf.bool), [""] * beams
        for _ in range(longest):
            outputs, state = self.cell(self.embedding(characters), state)
            following = tf.where(ended[:, tf.newaxis], ended_scores, tf.nn.log_softmax(self.logits(outputs)))
            scores, places = tf.math.top_k(tf.reshape(scores[:, tf.newaxis] + following, [-1]), beams)
            parents, characters = places // len(ALPHABET), places % len(ALPHABET)
            texts = [texts[parent] + ALPHABET[character] for parent, character in zip(parents.numpy(), characters.numpy())]
            state = tf.nest.map_structure(lambda part: tf.gather(part, parents), state)
            ended = characters == END
            if tf.reduce_all(ended):
                break
        return texts[0].strip("$"), scores[0]


def name_batches(seed, batch, longest, count=8):
    """Names as characters, filled up with the one that ends them."""
    names = snake_case_names(PREFIX + longest - 1)
    chosen = np.random.default_rng(seed).choice(names, (count, batch))
    codes = [[[ALPHABET.index(character) for character in name.ljust(PREFIX + longest, "$")] for name in rows] for rows in chosen]
    return [(tf.constant(rows, tf.int32),) for rows in codes]


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    batches = name_batches(seed, sizes["batch"], sizes["longest"])
    model = Completer(sizes["units"])
    model(batches[0][0])
    variables = model.trainable_variables
    loss_fn, optimizer = class_loss(), adam(variables, 1e-2)
    completions = []

    def train_step(names):
        with tf.GradientTape() as tape:
            loss = loss_fn(names[:, 1:], model(names[:, :-1]))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        text, score = model.complete(names[0, :PREFIX], sizes["beams"], sizes["longest"])
        completions.append(text)
        return loss - score  # one of learning, one of searching

    return Job(train_step, batches)
