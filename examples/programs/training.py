"""The training step that most programs share."""

import keras
import tensorflow as tf


def class_loss():
    """Cross entropy of logits against class numbers."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def adam(variables, learning_rate=1e-3):
    """An Adam whose slots exist, so that the first step does the same work as any other."""
    optimizer = keras.optimizers.Adam(learning_rate)
    optimizer.build(variables)
    return optimizer


def supervised(model, loss_fn, optimizer):
    """The step that everybody writes: forward, loss, gradients, update."""

    def train_step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = loss_fn(targets, model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return train_step


def classifier(model, inputs):
    """The usual step for a model that gives logits; `inputs` builds the model."""
    model(inputs)
    return supervised(model, class_loss(), adam(model.trainable_variables))


def momentum(variables, learning_rate=2e-3):
    """Stochastic gradient descent with the momentum that convolutional networks are published with; its slots exist."""
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    optimizer.build(variables)
    return optimizer
