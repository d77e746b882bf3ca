"""A trainer that calls scikit-learn on `.numpy()` in mid-step, branches on the loss and keeps the best score.

AutoGraph: fails: while it traces, a tensor has no value to hand to scikit-learn.
"""

import keras
import tensorflow as tf
from sklearn.metrics import f1_score

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import adam, class_loss

SIZES = {
    "test": {"filters": 8, "units": 16, "batch": 16},
    "benchmark": {"filters": 32, "units": 64, "batch": 64},
    "paper": {"filters": 32, "units": 64, "batch": 64},
}


class Trainer:
    def __init__(self, filters, units):
        self.model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        self.loss_fn = class_loss()
        self.optimizer = adam(self.model.trainable_variables)
        self.best_score = 0.0

    def train_step(self, images, labels):
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = self.loss_fn(labels, logits)
        score = f1_score(labels.numpy(), tf.argmax(logits, axis=-1).numpy(), average="macro", zero_division=0.0)
        self.best_score = max(self.best_score, score)
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if float(loss) > 1.0:
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return loss


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, filters, units, batch):
    return Job(Trainer(filters, units).train_step, digit_batches(seed, size=batch))
