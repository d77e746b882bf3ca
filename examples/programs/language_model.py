"""LM: a projected LSTM with a sampled softmax whose trainer carries the state through the text, truncated back-propagation through time.

One of Janus' eleven programs (there on the One Billion Word benchmark): the trainer keeps the state on `self`, starts anew with each pass
through the text, and keeps a running perplexity as a Python number, which it prints now and then.
AutoGraph: wrong. The state is that of the first batch in each step, the counter stays at 1 and the perplexity is a symbolic tensor.
"""

import math

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import ProjectedLSTMCell, minimise_clipped, unroll, zero_state
from examples.programs.data import word_windows

SIZES = {
    "test": {"units": 32, "projection": 16, "batch": 8, "length": 5, "vocabulary": 300, "samples": 16},
    "benchmark": {"units": 256, "projection": 64, "batch": 32, "length": 20, "vocabulary": 2000, "samples": 256},
    "paper": {"units": 2048, "projection": 512, "batch": 256, "length": 20, "vocabulary": 793470, "samples": 8192},
}


class Trainer:
    def __init__(self, windows, vocabulary, units, projection, samples):
        self.windows, self.vocabulary, self.samples = windows, vocabulary, samples
        self.embedding = keras.layers.Embedding(vocabulary, projection)
        self.cell = ProjectedLSTMCell(units, projection)
        self.embedding.build()
        self.cell.build((None, projection))
        self.softmax = keras.Variable(keras.initializers.GlorotUniform()((vocabulary, projection)), name="softmax")
        self.bias = keras.Variable(tf.zeros(vocabulary), name="bias")
        self.variables = [*self.embedding.trainable_variables, *self.cell.trainable_variables, self.softmax, self.bias]
        self.optimizer = keras.optimizers.Adagrad(0.2)
        self.optimizer.build(self.variables)
        self.seen, self.log_perplexity = 0, math.log(vocabulary)

    def step(self, words, following):
        if self.seen % self.windows == 0:
            self.state = zero_state(words.shape[0], self.cell.projection, self.cell.units)
        with tf.GradientTape() as tape:
            outputs, self.state = unroll(self.cell, self.embedding(words), self.state)
            loss = tf.reduce_mean(
                tf.nn.sampled_softmax_loss(
                    weights=self.softmax.value,
                    biases=self.bias.value,
                    labels=tf.reshape(following, (-1, 1)),
                    inputs=tf.reshape(outputs, (-1, self.cell.projection)),
                    num_sampled=self.samples,
                    num_classes=self.vocabulary,
                )
            )
        minimise_clipped(tape, loss, self.variables, self.optimizer, limit=10.0)
        self.seen += 1
        self.log_perplexity += 0.05 * (float(loss) - self.log_perplexity)
        if self.seen % 500 == 0:
            print(f"{self.seen} windows: perplexity {math.exp(self.log_perplexity):.1f}")
        return loss


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    batches, _ = word_windows(seed, sizes["batch"], sizes["length"], vocabulary=sizes["vocabulary"])
    trainer = Trainer(len(batches), sizes["vocabulary"], sizes["units"], sizes["projection"], sizes["samples"])
    return Job(trainer.step, batches)
