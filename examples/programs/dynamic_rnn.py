"""Dynamic RNN: a plain Python loop over as many moments as the longest line of a batch has.

AutoGraph's first example: its paper rewrites `tf.nn.dynamic_rnn` as readable Python, with a loop to a computed length, a mask of the rows that have
ended and a list of outputs. As it stands here, nothing in it is written for a graph: the length is a Python number and the list a Python list.
AutoGraph: fails ('SymbolicTensor' has no `numpy`); it needs `tf.range` and a list whose type is declared.
"""

import argparse
import inspect

import keras
import numpy as np
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import zero_state
from examples.programs.layers import LSTMCell
from examples.programs.training import adam

SIZES = {
    "test": {"units": 16, "batch": 4, "lengths": (5, 8)},
    "benchmark": {"units": 64, "batch": 32, "lengths": (16, 24)},
    "paper": {"units": 256, "batch": 64, "lengths": (48, 64)},
}


def lines_of_text(seed, batch, lengths, count=8):
    """`count` batches of (characters, their number), lines of different lengths filled up with 0, and how many characters there are."""
    shortest, longest = lengths
    lines = [line.strip() for line in inspect.getsource(argparse).splitlines()]
    alphabet = sorted(set("".join(lines)))
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        limit = random.integers(shortest, longest + 1)
        fitting = [line for line in lines if 1 < len(line) <= limit]
        chosen = random.choice(fitting, batch)
        codes = np.zeros((batch, longest), np.int32)
        for row, line in zip(codes, chosen):
            row[: len(line)] = 1 + np.searchsorted(alphabet, list(line))
        batches.append((tf.constant(codes), tf.constant([len(line) for line in chosen])))
    return batches, len(alphabet) + 1


def dynamic_rnn(cell, inputs, state, lengths):
    """Outputs up to the greatest length, and the state of each row at its own."""
    outputs = []
    for moment in range(lengths.numpy().max()):
        output, new_state = cell(inputs[:, moment], state)
        going_on = (moment < lengths)[:, tf.newaxis]
        state = tf.nest.map_structure(lambda new, old: tf.where(going_on, new, old), new_state, state)
        outputs.append(output)
    return tf.stack(outputs, axis=1), state


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    batches, alphabet = lines_of_text(seed, sizes["batch"], sizes["lengths"])
    embedding = keras.layers.Embedding(alphabet, 32)
    cell = LSTMCell(sizes["units"])
    to_logits = keras.layers.Dense(alphabet)
    for layer, width in ((embedding, 1), (cell, 32), (to_logits, sizes["units"])):
        layer.build((None, width))
    variables = [variable for layer in (embedding, cell, to_logits) for variable in layer.trainable_variables]
    optimizer = adam(variables)

    def train_step(lines, lengths):
        with tf.GradientTape() as tape:
            state = zero_state(lines.shape[0], cell.units, cell.units)
            outputs, _ = dynamic_rnn(cell, embedding(lines[:, :-1]), state, lengths - 1)
            following = lines[:, 1 : outputs.shape[1] + 1]
            known = tf.cast(following > 0, tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(following, to_logits(outputs))
            loss = tf.reduce_sum(losses * known) / tf.reduce_sum(known)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return Job(train_step, batches)
