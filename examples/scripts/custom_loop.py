"""Handwritten digits, with a training loop of one's own: a step function, batches from numpy, accuracy by scikit-learn."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split


class Classifier(keras.Model):
    def __init__(self, width, drop):
        super().__init__()
        self.hidden = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
        self.drop = drop
        self.out = keras.layers.Dense(10)
        self.largest = 0.0  # of all logits so far: an attribute that the forward pass changes

    def call(self, x, training=False):
        for layer in self.hidden:
            x = layer(x)
            if training and self.drop:
                x = tf.nn.dropout(x, self.drop)
        return self.out(x)


def train_step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    model.largest = max(model.largest, float(tf.reduce_max(logits)))
    return loss, norm


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    keras.utils.set_random_seed(7)
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split((x / 16).astype(np.float32), y, test_size=0.25, random_state=7)
    model, optimizer = Classifier(options.width, drop=0.2), keras.optimizers.Adam(2e-3)
    order = np.random.default_rng(7)
    for epoch in range(options.epochs):
        losses = []
        rows = order.permutation(len(x_train))
        for start in range(0, len(rows) - options.batch + 1, options.batch):
            batch = rows[start : start + options.batch]
            loss, norm = train_step(model, optimizer, x_train[batch], y_train[batch])
            losses.append(loss)
        predicted = np.argmax(model(x_test).numpy(), -1)
        print(f"epoch {epoch}: loss {np.mean(losses):.5f}, last norm {norm:.4f}, largest logit {model.largest:.4f}, "
              f"accuracy {accuracy_score(y_test, predicted):.4f}")


if __name__ == "__main__":
    main()
