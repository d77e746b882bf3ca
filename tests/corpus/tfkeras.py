"""tf_keras (Keras 2) beside Keras 3 in one process, with its new and its legacy optimizers."""
import tensorflow as tf
import tf_keras
from tf_keras import layers

from . import Program, program
from ._common import classification, images, optimizer_state, regression, supervised, tensor, tokens

cross_entropy = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
legacy = tf_keras.optimizers.legacy


def mlp(*more):
    return tf_keras.Sequential([layers.InputLayer([4]), layers.Dense(5, "relu"), *more, layers.Dense(3)])


@program("tfkeras_sequential_adam")
def _():
    return supervised(mlp(), tf_keras.optimizers.Adam(0.01), cross_entropy, classification())


@program("tfkeras_functional_sgd_momentum")
def _():
    x = tf_keras.Input([4])
    h = layers.Dense(5, "tanh")(x)
    model = tf_keras.Model(x, layers.Dense(1)(layers.concatenate([h, x])))
    return supervised(model, tf_keras.optimizers.SGD(0.05, momentum=0.9), tf_keras.losses.MeanSquaredError(),
                      regression())


class Residual(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(4, "relu") for _ in range(3)]
        self.top = layers.Dense(3)

    def call(self, x, training=None):
        for block in self.blocks:
            x = x + block(x)
        return self.top(x)


@program("tfkeras_subclassed_legacy_sgd")
def _():
    return supervised(Residual(), legacy.SGD(0.05, momentum=0.9), cross_entropy, classification(), training=True)


@program("tfkeras_legacy_adam")
def _():
    return supervised(mlp(), legacy.Adam(0.01, decay=0.1), cross_entropy, classification())


@program("tfkeras_legacy_rmsprop_and_adagrad")
def _():
    model, first, second = mlp(), legacy.RMSprop(0.01, centered=True), legacy.Adagrad(0.1)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        kernel, bias, *rest = zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        first.apply_gradients([kernel, bias])
        second.apply_gradients(rest)
        return loss

    return Program(step, classification(), lambda: [model.variables, optimizer_state(first), optimizer_state(second)])


@program("tfkeras_legacy_adam_amsgrad_embedding")
def _():
    model = tf_keras.Sequential([layers.Embedding(11, 4), layers.GlobalAveragePooling1D(), layers.Dense(3)])
    return supervised(model, legacy.Adam(0.01, amsgrad=True), cross_entropy, tokens())


@program("tfkeras_embedding_new_adam")
def _():
    model = tf_keras.Sequential([layers.Embedding(11, 4, input_length=5), layers.Flatten(), layers.Dense(3)])
    return supervised(model, tf_keras.optimizers.Adam(0.01, global_clipnorm=1.0), cross_entropy, tokens())


@program("tfkeras_batch_normalization_convolution")
def _():
    model = tf_keras.Sequential([layers.Conv2D(3, 3, use_bias=False, input_shape=[8, 8, 2]), layers.BatchNormalization(),
                                 layers.ReLU(), layers.AveragePooling2D(), layers.Flatten(), layers.Dense(3)])
    return supervised(model, legacy.SGD(0.05), cross_entropy, images(), training=True)


@program("tfkeras_dropout")
def _():
    return supervised(mlp(layers.Dropout(0.3)), tf_keras.optimizers.SGD(0.1), cross_entropy, classification(),
                      training=True)


@program("tfkeras_gru")
def _():
    model = tf_keras.Sequential([layers.Embedding(11, 4), layers.GRU(4, reset_after=False), layers.Dense(3)])
    return supervised(model, legacy.SGD(0.1), cross_entropy, tokens())


@program("tfkeras_lstm_legacy_adam")
def _():
    model = tf_keras.Sequential([layers.LSTM(4, return_sequences=True), layers.TimeDistributed(layers.Dense(1))])
    inputs = [(tensor(2, 4, 3, seed=s), tensor(2, 4, 1, seed=s + 4)) for s in (1, 2)]
    return supervised(model, legacy.Adam(0.01), tf_keras.losses.MeanAbsoluteError(), inputs)


@program("tfkeras_metrics_and_regularizer")
def _():
    model, optimizer = mlp(layers.Dense(4, kernel_regularizer="l2")), legacy.SGD(0.1)
    metrics = [tf_keras.metrics.Mean(name="loss"), tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = cross_entropy(y, logits) + sum(model.losses)
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        metrics[0](loss)
        metrics[1].update_state(y, logits)
        return [m.result() for m in metrics]

    return Program(step, classification(), lambda: [model.variables, [m.variables for m in metrics]])


@program("tfkeras_legacy_learning_rate_schedule")
def _():
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.1, 4, 0.01)
    return supervised(mlp(), legacy.SGD(schedule), cross_entropy, classification())
