"""LSTM: a language model on words that keeps its state on `self` from one step to the next.

One of Janus' eleven programs (there on the Penn Treebank): Python loops over the words and the layers, and the model's state is an attribute
that each step changes, so that a sentence goes on in the next batch.
AutoGraph: wrong. The attribute is read once, while the function is traced, so each batch starts from the zeros of the first.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import minimise_clipped, unroll, zero_state
from examples.programs.data import word_windows
from examples.programs.layers import LSTMCell
from examples.programs.training import class_loss

SIZES = {
    "test": {"units": 16, "layers": 2, "batch": 4, "length": 4, "vocabulary": 200},
    "benchmark": {"units": 64, "layers": 2, "batch": 20, "length": 10, "vocabulary": 2000},
    "paper": {"units": 200, "layers": 2, "batch": 20, "length": 20, "vocabulary": 10000},
}


class LanguageModel(keras.Model):
    def __init__(self, vocabulary, units, layers):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, units)
        self.cells = [LSTMCell(units) for _ in range(layers)]
        self.logits = keras.layers.Dense(vocabulary)
        self.states = None

    def build(self, input_shape):
        # By hand: Keras would call the model with symbolic tensors to build it, and they would stay in the state.
        self.embedding.build(input_shape)
        for cell in self.cells:
            cell.build((None, cell.units))
        self.logits.build((None, self.cells[-1].units))

    def call(self, words):
        if self.states is None:
            self.states = [zero_state(words.shape[0], cell.units, cell.units) for cell in self.cells]
        outputs, states = self.embedding(words), []
        for cell, state in zip(self.cells, self.states):
            outputs, state = unroll(cell, outputs, state)
            states.append(state)
        self.states = states
        return self.logits(outputs)


def build(seed, size="benchmark"):
    sizes = SIZES[size]
    batches, vocabulary = word_windows(seed, sizes["batch"], sizes["length"], vocabulary=sizes["vocabulary"])
    model = LanguageModel(vocabulary, sizes["units"], sizes["layers"])
    model.build(batches[0][0].shape)
    loss_fn = class_loss()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(model.trainable_variables)

    def train_step(words, following):
        with tf.GradientTape() as tape:
            loss = loss_fn(following, model(words))
        minimise_clipped(tape, loss, model.trainable_variables, optimizer, limit=5.0)
        return loss

    return Job(train_step, batches)
