"""GPT-2: it writes the source of Python's standard library, a word at a time.

One of Terra's ten (there on OpenWebText): a large model in plain Python. Each layer of the decoder hands out its keys and values in a Python list, for a
writer to go on from, and the embedding of the words serves as the last layer too.
AutoGraph: runs.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.recurrent import minimise_clipped
from examples.programs.blocks.transformer import Attention, Block, adam_with_warm_up, causal_mask
from examples.programs.data import word_windows
from examples.programs.training import class_loss

SIZES = {
    "test": {"batch": 2, "length": 12, "vocabulary": 300, "layers": 1, "units": 16, "heads": 2, "hidden": 32},
    "benchmark": {"batch": 4, "length": 64, "vocabulary": 2000, "layers": 3, "units": 64, "heads": 4, "hidden": 256},
    "paper": {"batch": 8, "length": 515, "vocabulary": 24512, "layers": 8, "units": 768, "heads": 8, "hidden": 3072},
}


class GPT2(keras.Model):
    def __init__(self, vocabulary, length, layers, units, heads, hidden, dropout=0.1):
        super().__init__()
        self.words = keras.layers.Embedding(vocabulary, units)
        self.places = keras.layers.Embedding(length, units)
        self.dropout = keras.layers.Dropout(dropout)
        self.decoder = [Block(Attention(heads, units, dropout), units, hidden, norm_first=True, dropout=dropout) for _ in range(layers)]
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6)

    def call(self, numbers, training=False):
        length = numbers.shape[1]
        x = self.words(numbers) + self.places(tf.range(length))
        x = self.dropout(x, training=training)
        mask = causal_mask(length)
        for block in self.decoder:
            x = block(x, mask, training=training)
        return tf.matmul(self.norm(x), self.words.embeddings, transpose_b=True)


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(example)
        self.loss = class_loss()
        self.optimizer = adam_with_warm_up(model.trainable_variables)

    def train_step(self, numbers, following):
        with tf.GradientTape() as tape:
            loss = self.loss(following, self.model(numbers, training=True))
        minimise_clipped(tape, loss, self.model.trainable_variables, self.optimizer, limit=1.0)
        return loss


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batches, sizes["vocabulary"] = word_windows(seed, sizes.pop("batch"), sizes["length"], vocabulary=sizes["vocabulary"])
    return Job(Trainer(GPT2(**sizes), batches[0][0]).train_step, batches)
