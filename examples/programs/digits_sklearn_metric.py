"""A trainer that calls scikit-learn on `.numpy()` in mid-step, branches on the loss and keeps the best score.

AutoGraph cannot run it: while it traces, a tensor has no value to hand to scikit-learn.
"""

import keras
import tensorflow as tf
from sklearn.metrics import f1_score

from examples.programs import Job
from examples.programs.data import digit_batches
from examples.programs.training import adam, class_loss


class Trainer:
    def __init__(self):
        self.model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
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


def build(seed):
    return Job(Trainer().train_step, digit_batches(seed))
