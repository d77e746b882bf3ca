"""Layers of the user's own that several programs share."""

import keras
import tensorflow as tf


class ResidualDense(keras.layers.Layer):
    """x + W2 relu(W1 norm(x)): layers of Keras inside a layer of the user's."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.LayerNormalization()
        self.up = keras.layers.Dense(2 * units, activation="relu")
        self.down = keras.layers.Dense(units)

    def call(self, inputs):
        return inputs + self.down(self.up(self.norm(inputs)))


class Stack(keras.layers.Layer):
    """Layers one after another, in a Python loop."""

    def __init__(self, layers, **kwargs):
        super().__init__(**kwargs)
        self.blocks = list(layers)

    def call(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class CausalSelfAttention(keras.layers.Layer):
    """Multi-head self-attention that looks back only."""

    def __init__(self, heads, units, **kwargs):
        super().__init__(**kwargs)
        # Without biases: that of the key has a true gradient of zero, so Adam would turn its rounding errors into
        # full steps, and no two ways to run the program could be compared.
        self.attention = keras.layers.MultiHeadAttention(heads, units // heads, use_bias=False)

    def call(self, inputs):
        return self.attention(inputs, inputs, use_causal_mask=True)


class LSTMCell(keras.layers.Layer):
    """One step of a long short-term memory, by its equations."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1] + self.units, 4 * self.units), name="kernel")
        self.bias = self.add_weight(shape=(4 * self.units,), initializer="zeros", name="bias")

    def call(self, inputs, state):
        hidden, memory = state
        gates = tf.concat([inputs, hidden], axis=-1) @ self.kernel + self.bias
        enter, forget, candidate, leave = tf.split(gates, 4, axis=-1)
        memory = tf.sigmoid(forget + 1.0) * memory + tf.sigmoid(enter) * tf.tanh(candidate)
        hidden = tf.sigmoid(leave) * tf.tanh(memory)
        return hidden, (hidden, memory)
