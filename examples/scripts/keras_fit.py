"""Keras `fit` with a metric that is computed by scikit-learn in each step, so it has to run eagerly."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score


class F1(keras.metrics.Metric):
    """The mean over batches of scikit-learn's F1 score."""

    def __init__(self, name="f1", **kwargs):
        super().__init__(name=name, **kwargs)
        self.scores = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.scores.append(f1_score(np.asarray(y_true).ravel(), np.asarray(y_pred).ravel() > 0.5, zero_division=0))

    def result(self):
        return float(np.mean(self.scores)) if self.scores else 0.0

    def reset_state(self):
        self.scores = []


class Report(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.5f}" for name, value in sorted(logs.items())))


def main():
    keras.utils.set_random_seed(11)
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    model = keras.Sequential([
        keras.Input((x.shape[1],)), keras.layers.Dense(24, activation="relu"), keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss="binary_crossentropy", metrics=[F1()], run_eagerly=True)
    model.fit(x[:448], y[:448, None].astype(np.float32), batch_size=32, epochs=4, verbose=0, callbacks=[Report()])
    predicted = model.predict(x[448:], verbose=0)[:, 0] > 0.5
    print(f"test F1 {f1_score(y[448:], predicted):.5f}, built with TensorFlow {tf.__version__.split('.')[0]}")


if __name__ == "__main__":
    main()
