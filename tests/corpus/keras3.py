"""Keras 3 models, layers, losses, metrics and optimizers."""
import keras
import tensorflow as tf
from keras import layers

from . import Program, program
from ._common import classification, images, optimizer_state, regression, supervised, tensor, tensors, tokens

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mlp(*more, inputs=4, outputs=3):
    return keras.Sequential([layers.Input([inputs]), layers.Dense(5, activation="relu"), *more, layers.Dense(outputs)])


@program("keras3_sequential_adam")
def _():
    return supervised(mlp(), keras.optimizers.Adam(0.01), cross_entropy, classification())


@program("keras3_functional_sgd_momentum")
def _():
    x = keras.Input([4])
    h = layers.Dense(5, activation="tanh")(x)
    skip = layers.Add()([h, layers.Dense(5)(x)])
    model = keras.Model(x, layers.Dense(1)(layers.Concatenate()([skip, x])))
    return supervised(model, keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), keras.losses.MeanSquaredError(),
                      regression())


class TwoHeads(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = layers.Dense(5, activation="gelu")
        self.heads = [layers.Dense(3), layers.Dense(3)]

    def call(self, x, training=False):
        h = self.body(x)
        return sum(head(h) for head in self.heads)


@program("keras3_subclassed_rmsprop")
def _():
    return supervised(TwoHeads(), keras.optimizers.RMSprop(0.01), cross_entropy, classification(), training=True)


@program("keras3_batch_normalization_in_training_mode")
def _():
    model = mlp(layers.BatchNormalization(momentum=0.8))
    return supervised(model, keras.optimizers.SGD(0.1), cross_entropy, classification(), training=True)


@program("keras3_convolutions_and_pooling")
def _():
    model = keras.Sequential([layers.Input([8, 8, 2]), layers.Conv2D(3, 3, activation="relu"), layers.MaxPooling2D(),
                              layers.DepthwiseConv2D(2), layers.GlobalAveragePooling2D(), layers.Dense(3)])
    return supervised(model, keras.optimizers.Adam(0.01), cross_entropy, images())


@program("keras3_dropout_seed_generator")
def _():
    model = mlp(layers.Dropout(0.4), layers.GaussianNoise(0.1))
    return supervised(model, keras.optimizers.SGD(0.1), cross_entropy, classification(), training=True)


@program("keras3_layer_normalization_adamw")
def _():
    model = mlp(layers.LayerNormalization())
    return supervised(model, keras.optimizers.AdamW(0.01, weight_decay=0.1), cross_entropy, classification())


@program("keras3_embedding_adam")
def _():
    model = keras.Sequential([layers.Embedding(11, 4), layers.GlobalAveragePooling1D(), layers.Dense(3)])
    return supervised(model, keras.optimizers.Adam(0.01), cross_entropy, tokens())


@program("keras3_gru")
def _():
    model = keras.Sequential([layers.Embedding(11, 4, mask_zero=True), layers.GRU(5), layers.Dense(3)])
    return supervised(model, keras.optimizers.SGD(0.1), cross_entropy, tokens(), training=True)


@program("keras3_lstm_sequences")
def _():
    model = keras.Sequential([layers.Bidirectional(layers.LSTM(3, return_sequences=True)), layers.Dense(1)])
    inputs = [(tensor(2, 4, 3, seed=s), tensor(2, 4, 1, seed=s + 4)) for s in (1, 2)]
    return supervised(model, keras.optimizers.Adam(0.01), keras.losses.MeanAbsoluteError(), inputs)


@program("keras3_stateful_rnn", calls=15)
def _():
    rnn = layers.SimpleRNN(3, stateful=True)
    rnn.build((2, 4, 3))

    def step(x, fresh):
        if fresh:
            rnn.reset_state()
        return rnn(x)

    inputs = [(tensor(2, 4, 3, seed=s), False) for s in (1, 2)] + [(tensor(2, 4, 3, seed=3), True)]
    return Program(step, inputs, lambda: rnn.variables)


# The bias of the keys has a true gradient of zero: bitwise equality is the only meaningful comparison here.
@program("keras3_attention")
def _():
    x = keras.Input([5, 4])
    h = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    model = keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.LayerNormalization()(x + h))))
    inputs = [(tensor(3, 5, 4, seed=s), tf.constant([0, 1, 2])) for s in (1, 2)]
    return supervised(model, keras.optimizers.Adam(0.01), cross_entropy, inputs, training=True)


@program("keras3_metrics_in_the_step")
def _():
    model, optimizer = mlp(), keras.optimizers.Adam(0.01)
    metrics = [keras.metrics.Mean("loss"), keras.metrics.SparseCategoricalAccuracy("accuracy")]

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = cross_entropy(y, logits)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        metrics[0].update_state(loss)
        metrics[1].update_state(y, logits)
        return {m.name: m.result() for m in metrics}

    return Program(step, classification(), lambda: [model.variables, [m.variables for m in metrics]])


@program("keras3_learning_rate_schedule_and_clipnorm")
def _():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.7, staircase=True)
    return supervised(mlp(), keras.optimizers.Adam(schedule, global_clipnorm=0.5), cross_entropy, classification())


@program("keras3_learning_rate_changed_by_the_step")
def _():
    model, optimizer = mlp(), keras.optimizers.SGD(0.1)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        optimizer.learning_rate = float(optimizer.learning_rate) * 0.9
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return Program(step, classification(), lambda: [model.variables, optimizer_state(optimizer)])


class Sparsity(layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.abs(x)))
        return x


@program("keras3_add_loss_and_regularizer")
def _():
    model, optimizer = mlp(Sparsity(), layers.Dense(4, kernel_regularizer="l2")), keras.optimizers.Adam(0.01)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x)) + tf.add_n(model.losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss, len(model.losses)

    return Program(step, classification(), lambda: model.variables)


@program("keras3_gradient_accumulation")
def _():
    model, optimizer, accumulated = mlp(), keras.optimizers.SGD(0.1), []

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        accumulated.append(tape.gradient(loss, model.trainable_variables))
        if len(accumulated) == 2:
            mean = [tf.add_n(g) / 2.0 for g in zip(*accumulated)]
            optimizer.apply_gradients(zip(mean, model.trainable_variables))
            accumulated.clear()
        return loss

    return Program(step, classification(), lambda: [model.variables, len(accumulated)])


@program("keras3_frozen_layer_unfrozen_later", calls=12, max_fallbacks=4, min_coexecuted=3)
def _():
    model, optimizer = mlp(), keras.optimizers.SGD(0.1)
    model.layers[0].trainable = False

    def step(x, y, i):
        if i == 4:
            model.layers[0].trainable = True
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            v.assign(v - 0.1 * g)
        return len(model.trainable_variables), loss

    data = classification()
    return Program(step, lambda i: (*data[i % 2], i), lambda: model.variables)


@program("keras3_get_and_set_weights")
def _():
    online, target = mlp(), mlp()

    def step(x, copy):
        for v in online.trainable_variables:
            v.assign_add(0.01 * tf.ones_like(v))
        if copy:
            target.set_weights([0.5 * a + 0.5 * b for a, b in zip(online.get_weights(), target.get_weights())])
        return tf.reduce_mean(online(x) - target(x))

    return Program(step, [(tensor(2, 4, seed=1), True), (tensor(2, 4, seed=2), False)],
                   lambda: [online.variables, target.variables])


@program("keras3_mixed_precision")
def _():
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    model = keras.Sequential([layers.Input([4]), layers.Dense(5, "relu", dtype=policy),
                              layers.Dense(3, dtype="float32")])
    return supervised(model, keras.optimizers.SGD(0.1), cross_entropy, classification())


@program("keras3_ops_and_losses")
def _():
    losses = [keras.losses.Huber(), keras.losses.CosineSimilarity(), keras.losses.KLDivergence(reduction="sum")]

    def step(x, y):
        p, q = keras.ops.softmax(x), keras.ops.softmax(y)
        return [loss(p, q) for loss in losses] + [keras.ops.logsumexp(x), keras.ops.top_k(y, 2)]

    return Program(step, [(tensor(3, 4, seed=s), tensor(3, 4, seed=s + 1)) for s in (1, 3)])


@program("keras3_model_called_with_a_dict")
def _():
    a, b = keras.Input([3], name="a"), keras.Input([2], name="b")
    merged = layers.Concatenate()([a, b])
    model = keras.Model({"a": a, "b": b}, {"sum": layers.Dense(1)(merged), "class": layers.Dense(2)(merged)})

    def step(batch, scale=1.0):
        out = model(batch)
        return {name: value * scale for name, value in out.items()}

    return Program(step, [({"a": tensor(2, 3, seed=s), "b": s * tf.ones([2, 2])},) for s in (1, 2)])


@program("keras3_model_predict_in_the_step", calls=6, min_coexecuted=1)
def _():
    model = mlp()

    def step(x):
        for v in model.trainable_variables:
            v.assign(v * 0.9)
        predicted = model.predict(x.numpy(), verbose=0)
        return tf.reduce_sum(model(x) - predicted), predicted

    return Program(step, tensors(3, 4), lambda: model.variables)


@program("keras3_train_on_batch_in_the_step", calls=6, min_coexecuted=1)
def _():
    model = mlp(outputs=1)
    model.compile(optimizer="sgd", loss="mse")

    def step(x, y):
        before = model(x)
        loss = model.train_on_batch(x, y)
        return before, model(x) * 1.0, float(loss)

    return Program(step, regression(), lambda: model.variables)
