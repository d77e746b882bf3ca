"""Music Transformer: attention that knows how far apart two events are learns to go on playing.

One of Terra's ten (there on performances of the e-Piano competition), and of the five that AutoGraph cannot run: a trainer class around the model, in
the usual style. The training step leaves the loss of each event in an attribute, and what is around the step reads it there.
AutoGraph: wrong. The attribute is set while the function is traced, to a tensor without a value, and never again; so is the count of the steps.
"""

import keras
import tensorflow as tf

from examples.programs import Job
from examples.programs.blocks.music import EVENTS, event_batches
from examples.programs.blocks.transformer import Attention, Block, adam_with_warm_up, causal_mask

SIZES = {
    "test": {"batch": 2, "length": 16, "layers": 1, "units": 16, "heads": 2},
    "benchmark": {"batch": 2, "length": 128, "layers": 3, "units": 64, "heads": 4},
    "paper": {"batch": 2, "length": 2048, "layers": 6, "units": 256, "heads": 4},
}


class RelativeAttention(Attention):
    """The score of two places has a part that depends on how far the one is behind the other."""

    def __init__(self, heads, units, dropout, length, **kwargs):
        super().__init__(heads, units, dropout, **kwargs)
        self.length = length

    def build(self, input_shape):
        super().build(input_shape)
        self.distances = self.add_weight(shape=(self.length, self.width), initializer="random_normal", name="distances")

    def scores(self, query, key):
        length = query.shape[2]
        relative = tf.einsum("bhqw,dw->bhqd", query, self.distances[self.length - length :])
        return super().scores(query, key) + self.skew(relative)

    @staticmethod
    def skew(relative):
        """Turns the last axis from distances into places, by a column that shifts each row by one more."""
        batch, heads, length, _ = relative.shape
        padded = tf.pad(relative, ((0, 0), (0, 0), (0, 0), (1, 0)))
        return tf.reshape(padded, (batch, heads, length + 1, length))[:, :, 1:]


class MusicTransformer(keras.Model):
    """The model with its own training loop."""

    def __init__(self, length, layers, units, heads, dropout=0.1):
        super().__init__()
        self.units = units
        self.events = keras.layers.Embedding(EVENTS, units)
        self.dropout = keras.layers.Dropout(dropout)
        self.decoder = [Block(RelativeAttention(heads, units, dropout, length), units, units // 2, "relu", dropout=dropout) for _ in range(layers)]
        self.logits = keras.layers.Dense(EVENTS)

    def call(self, events, training=False):
        x = self.dropout(self.events(events) * self.units**0.5, training=training)
        mask = causal_mask(events.shape[1])
        for block in self.decoder:
            x = block(x, mask, training=training)
        return self.logits(x)


class Trainer:
    def __init__(self, model, example):
        self.model = model
        self.model(example)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self.optimizer = adam_with_warm_up(model.trainable_variables)
        self.loss_value = None
        self.steps = 0

    def _train_step(self, events, following):
        with tf.GradientTape() as tape:
            predictions = self.model(events, training=True)
            self.loss_value = self.loss(following, predictions)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(self.loss_value, variables), variables))

    def train_on_batch(self, events, following):
        self._train_step(events, following)
        self.steps += 1
        return tf.reduce_mean(self.loss_value)

    def train(self, batches, report_every=10):
        for events, following in batches:
            loss = self.train_on_batch(events, following)
            if self.steps % report_every == 0:
                print(f"step {self.steps}: loss {float(loss):.3f}, at the last event {float(tf.reduce_mean(self.loss_value[:, -1])):.3f}")


def build(seed, size="benchmark"):
    sizes = dict(SIZES[size])
    batches = event_batches(seed, sizes.pop("batch"), sizes["length"])
    return Job(Trainer(MusicTransformer(**sizes), batches[0][0]).train_on_batch, batches)
