"""What the recurrent programs share."""

import keras
import tensorflow as tf


class ProjectedLSTMCell(keras.layers.Layer):
    """One step of a long short-term memory whose output is projected to fewer units than the memory has."""

    def __init__(self, units, projection, **kwargs):
        super().__init__(**kwargs)
        self.units, self.projection = units, projection

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1] + self.projection, 4 * self.units), name="kernel")
        self.bias = self.add_weight(shape=(4 * self.units,), initializer="zeros", name="bias")
        self.project = self.add_weight(shape=(self.units, self.projection), name="project")

    def call(self, inputs, state):
        hidden, memory = state
        gates = tf.concat([inputs, hidden], axis=-1) @ self.kernel + self.bias
        enter, forget, candidate, leave = tf.split(gates, 4, axis=-1)
        memory = tf.sigmoid(forget + 1.0) * memory + tf.sigmoid(enter) * tf.tanh(candidate)
        hidden = (tf.sigmoid(leave) * tf.tanh(memory)) @ self.project
        return hidden, (hidden, memory)


def zero_state(batch, *units):
    return tuple(tf.zeros((batch, width)) for width in units)


def unroll(cell, inputs, state):
    """Outputs of a cell at each moment of (batch, time, features), and its last state."""
    outputs = []
    for moment in range(inputs.shape[1]):
        output, state = cell(inputs[:, moment], state)
        outputs.append(output)
    return tf.stack(outputs, axis=1), state


def minimise_clipped(tape, loss, variables, optimizer, limit):
    """The update of most recurrent networks: gradients of a length that is bounded."""
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), limit)
    optimizer.apply_gradients(zip(gradients, variables))
