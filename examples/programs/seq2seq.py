"""seq2seq: an encoder and a decoder turn snake_case into CamelCase, with teacher forcing that Python decides at random.

AutoGraph's program (there on random sequences), which gains most where the teacher forces: for each batch, a Python random number says whether the
decoder is fed what it should have written, or what it has written.
AutoGraph: wrong. The number is drawn once, while the function is traced.
"""

import random

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import minimise_clipped, unroll
from examples.programs.data import snake_case_names
from examples.programs.training import adam, class_loss

SIZES = {
    "test": {"units": 16, "batch": 4, "length": 6},
    "benchmark": {"units": 64, "batch": 32, "length": 10},
    "paper": {"units": 512, "batch": 32, "length": 64},
}
END, START = 0, 1  # characters have the numbers from 2 on
ALPHABET = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEACHER_FORCING = 0.5


def encoded(names, length):
    codes = np.full((len(names), length), END, np.int32)
    for row, name in zip(codes, names):
        row[: len(name)] = [2 + ALPHABET.index(character) for character in name]
    return tf.constant(codes)


def name_batches(seed, batch, length, count=8):
    names = snake_case_names(length)
    chosen = np.random.default_rng(seed).choice(names, (count, batch))
    return [(encoded(rows, length), encoded([name.title().replace("_", "") for name in rows], length)) for rows in chosen]


class Translator(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.embedding = keras.layers.Embedding(2 + len(ALPHABET), units)
        self.encoder = keras.layers.GRUCell(units)
        self.decoder = keras.layers.GRUCell(units)
        self.logits = keras.layers.Dense(2 + len(ALPHABET))
        self.units = units

    def call(self, source, target, teacher_forcing):
        batch, length = target.shape
        _, state = unroll(self.encoder, self.embedding(source), tf.zeros((batch, self.units)))
        character, found = tf.fill([batch], START), []
        for moment in range(length):
            output, state = self.decoder(self.embedding(character), state)
            found.append(self.logits(output))
            character = target[:, moment] if teacher_forcing else tf.argmax(found[-1], axis=-1, output_type=tf.int32)
        return tf.stack(found, axis=1)


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    batches = name_batches(seed, sizes["batch"], sizes["length"])
    model = Translator(sizes["units"])
    model(batches[0][0], target=batches[0][1], teacher_forcing=True)
    variables = model.trainable_variables
    loss_fn, optimizer = class_loss(), adam(variables, 3e-3)
    coin = random.Random(seed)

    def train_step(source, target):
        teacher_forcing = coin.random() < TEACHER_FORCING
        with tf.GradientTape() as tape:
            loss = loss_fn(target, model(source, target=target, teacher_forcing=teacher_forcing))
        minimise_clipped(tape, loss, variables, optimizer, limit=5.0)
        return loss

    return Job(train_step, batches)
