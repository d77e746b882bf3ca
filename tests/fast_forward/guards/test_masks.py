"""Masks of Keras on the arguments and the results of calls that are skipped."""

import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests import harness

STEPS = 24  # of a program of which something changes


def tokens(i, shape=(4, 6)):
    found = np.random.default_rng(i).integers(1, 20, shape).astype("int32")
    for k, row in enumerate(found):
        row[1 + (k + i) % shape[1]:] = 0
    return found


def inputs(i):
    """Tokens, what is to be said of each sequence, of each token."""
    rng = np.random.default_rng(50 + i)
    return tf.constant(tokens(i)), tf.constant(rng.integers(0, 3, 4)), tf.constant(rng.integers(0, 3, (4, 6)))


def differ(make, given=inputs, steps=14):
    return harness.differ(make, given, steps)


def functional(K):
    L = K.layers
    x = K.Input((6,), dtype="int32")
    h = L.Embedding(20, 5, mask_zero=True)(x)
    h = L.Concatenate()([L.SimpleRNN(4, return_sequences=True)(h), L.Dense(3)(h)])
    return K.Model(x, L.Dense(3)(h))


def sequential(*layers):
    return lambda K: K.Sequential([K.layers.Embedding(20, 5, mask_zero=True), *[layer(K.layers) for layer in layers]])


MODELS = {
    "to one": (sequential(lambda L: L.LSTM(4), lambda L: L.Dense(3)), False),
    "to each": (sequential(lambda L: L.GRU(4, return_sequences=True), lambda L: L.Dropout(0.3, seed=1), lambda L: L.Dense(3)), True),
    "pooled": (sequential(lambda L: L.Dense(3, activation="softmax"), lambda L: L.GlobalAveragePooling1D()), False),
    "both ways": (sequential(lambda L: L.Bidirectional(L.SimpleRNN(4, return_sequences=True)), lambda L: L.TimeDistributed(L.Dense(3))), True),
    "functional": (functional, True),
}


@pytest.mark.parametrize("name, K, impure", [
    *[(name, keras, False) for name in MODELS], *[(name, tf_keras, True) for name in MODELS], ("functional", keras, True), ("pooled", tf_keras, False)],
    ids=lambda x: x.__name__ if x in (keras, tf_keras) else None)
def test_training(K, name, impure):
    """With the loss and the metric taking the mask of the predictions; the step is skipped as a whole, or call by call."""
    build, each = MODELS[name]

    def make():
        K.utils.set_random_seed(5)  # tf_keras has seeds of its own
        model, optimizer = build(K), K.optimizers.SGD(0.1)
        loss_fn, metric = K.losses.SparseCategoricalCrossentropy(from_logits=True), K.metrics.SparseCategoricalAccuracy()
        calls = []

        def step(x, one, of_each):
            y = of_each if each else one
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = loss_fn(y, predicted)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            metric.update_state(y, predicted)
            if impure:
                sys._getframe()
            return loss, predicted, getattr(predicted, "_keras_mask", None), metric.result()
        return step, lambda: ([v for v in model.variables if "seed" not in v.name], tf.constant(len(calls)))
    stats = differ(make)
    assert stats.fallbacks <= 2, stats
    if impure:
        assert stats.fast_forwards > 4 * stats.coexecuted_steps * 0.6 and stats.whole_steps == 0, stats
    elif K is keras:
        assert stats.whole_steps > 5, stats


def train(forward, variables):
    def step(*given):
        with tf.GradientTape() as tape:
            result = forward(*given)
        for variable, gradient in zip(variables, tape.gradient(result, variables)):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return result
    return step, lambda: variables


@pytest.mark.share(2)
@pytest.mark.parametrize("impure", [False, True])
def test_masks_of_many_kinds_of_layer(impure):
    def make():
        L = keras.layers
        embedding, masking, norm, attention = L.Embedding(20, 4, mask_zero=True), L.Masking(0.0), L.LayerNormalization(), L.MultiHeadAttention(2, 3, seed=1)
        add, maximum, concatenate, pool, drop = L.Add(), L.Maximum(), L.Concatenate(axis=1), L.GlobalAveragePooling1D(), L.Dropout(0.2, seed=4)
        rnn, softmax, attend = L.SimpleRNN(4, return_sequences=True, return_state=True), L.Softmax(), L.Attention()
        for layer in (rnn, norm):
            layer.build((4, 6, 4))
        attention.build((4, 6, 4), (4, 6, 4))
        embedding.build()
        calls = []

        def forward(x, *_):
            h = embedding(x)
            m = masking(tf.round(h * 30.0))
            h = drop(norm(add([h, m])), training=False)
            sequence, state = rnn(h)
            h = attention(maximum([sequence, h]), h)
            a = attend([h, sequence])
            joined = concatenate([h, sequence])
            if impure:
                sys._getframe()
            return tf.reduce_sum(pool(joined)) + tf.reduce_sum(state) + tf.reduce_sum(softmax(a[..., 0]))
        return train(forward, [embedding.embeddings.value, *[v.value for layer in (rnn, norm, attention) for v in layer.trainable_variables]])
    stats = differ(make)
    assert (stats.fast_forwards > 75 if impure else stats.whole_steps > 8), stats


class Mean(keras.layers.Layer):
    """Of what is not masked; a layer of the user's."""

    supports_masking = True

    def call(self, x, mask=None):
        if mask is None:
            return tf.reduce_mean(x, 1)
        kept = tf.cast(mask, x.dtype)[..., tf.newaxis]
        return tf.reduce_sum(x * kept, 1) / tf.reduce_sum(kept, 1)

    def compute_mask(self, x, mask=None):
        return None


CHANGES = {
    "mask_zero": lambda layers, i: setattr(layers[0], "mask_zero", i % 2 == 0),
    "compute_mask of an instance": lambda layers, i: setattr(layers[0], "compute_mask", lambda x, mask=None: tf.equal(x, i)),
    "supports_masking": lambda layers, i: setattr(layers[1], "supports_masking", i % 2 == 0),
    "another layer": lambda layers, i: layers.__setitem__(1, keras.layers.Activation("tanh" if i % 2 else "relu")),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("impure", [False, True])
def test_what_makes_the_mask_changes(name, impure):
    held = []

    def make():
        L = keras.layers
        layers = [L.Embedding(20, 4, mask_zero=True), L.Activation("tanh"), L.GlobalAveragePooling1D(), Mean()]
        layers[0].build()
        held[:] = layers
        calls = []

        def forward(x, *_):
            h = held[1](held[0](x))
            if impure:
                sys._getframe()
            return tf.reduce_sum(held[2](h)) + tf.reduce_sum(held[3](h) ** 2.0)
        return train(forward, [layers[0].embeddings.value])

    def change(i, step):
        if i in (9, 13, 14, 20):
            CHANGES[name](held, i)
    stats = harness.differ(make, inputs, STEPS, change=change)
    assert (stats.fast_forwards > 40 if impure else stats.whole_steps > 3), stats


def attached(of, impure):
    """A step with a mask that the program itself attaches: which of two, or none, depends on `which`."""
    def make():
        kernel = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)) / 10.0)
        pool, mean, softmax = keras.layers.GlobalAveragePooling1D(), Mean(), keras.layers.Softmax()
        masks = [tf.constant([[True, False, True, True, False, True]] * 2), tf.constant([[False, True, True, False, False, False]] * 2)]
        outside = tf.constant(np.random.default_rng(7).normal(size=(2, 6, 4)).astype("float32"))
        calls = []

        def step(x, which):
            values = tf.stack([x, x * 2.0])
            known = outside if of == "tensor from outside" else values
            found = masks if of != "masks of the step" else [values[..., 0] > 0.0, values[..., 1] > 0.0]
            known._keras_mask = found[which] if which is not None else None
            with tf.GradientTape() as tape:
                result = tf.reduce_sum(pool(known) @ kernel) + tf.reduce_sum(mean(known)) * tf.reduce_sum(kernel)
                again = softmax(known[..., 0])
            if impure:
                sys._getframe()
            kernel.assign_sub(0.01 * tape.gradient(result, kernel))
            if known is outside:
                outside._keras_mask = None
                return result, again
            return result, again, known
        return step, lambda: (kernel, tf.constant(len(calls)))
    return make


@pytest.mark.parametrize("impure", [False, True])
@pytest.mark.parametrize("of", ["masks of the step", "masks from outside", "tensor from outside"])
def test_masks_that_the_program_attaches(of, impure):
    def given(i):
        return tf.constant(np.random.default_rng(i).normal(size=(6, 4)).astype("float32")), None if i in (7, 12, 15) else int(i in (8, 9, 13, 18))
    stats = differ(attached(of, impure), given, 28)
    assert stats.fast_forwards > 30, stats


@pytest.mark.parametrize("impure", [False, True])
def test_masks_of_the_arguments(impure):
    """The same tensor may come with a mask, with another, or without."""
    def make():
        kernel = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)) / 10.0)
        pool = keras.layers.GlobalAveragePooling1D()
        calls = []

        def forward(x):
            if impure:
                sys._getframe()
            return tf.reduce_sum(pool(x) @ kernel)
        return train(forward, [kernel])
    batches = [tf.constant(np.random.default_rng(i).normal(size=(2, 6, 4)).astype("float32")) for i in range(3)]

    def given(i):
        x = batches[i % 3]
        x._keras_mask = None if i not in (9, 10, 15) else tf.constant([[True] * (i - 8) + [False] * (14 - i)] * 2) if i < 14 else tf.constant([[True, False] * 3] * 2)
        return (x,)
    stats = differ(make, given)
    assert (stats.fast_forwards > 15 if impure else stats.whole_steps > 4), stats


def test_a_model_that_attaches_the_mask_that_it_is_given():
    """`model(x, mask=m)` leaves the mask on `x`, where the next layer finds it."""
    def make():
        x = keras.Input((6, 4))
        model = keras.Model(x, keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(3)(x)))
        pool = keras.layers.GlobalAveragePooling1D()
        calls = []

        def forward(x):
            values, calls[len(calls):] = x * 2.0, [1]
            first = model(values, mask=values[..., 0] > 0.0)
            mask = getattr(values, "_keras_mask", None)
            return tf.reduce_sum(first) + tf.reduce_sum(pool(values)) + (0.0 if mask is None else tf.reduce_sum(tf.cast(mask, tf.float32)))
        return train(forward, [v.value for v in model.trainable_variables])
    stats = differ(make, lambda i: (tf.constant(np.random.default_rng(i).normal(size=(2, 6, 4)).astype("float32")),))
    assert stats.coexecuted_steps > 8, stats


def test_the_mask_is_read():
    """It says how many tokens there are, and Python looks at it."""
    def make():
        embedding, layer = keras.layers.Embedding(20, 4, mask_zero=True), keras.layers.SimpleRNN(4, return_sequences=True)
        embedding.build(), layer.build((4, 6, 4))
        known = []

        def forward(x, *_):
            h = layer(embedding(x))
            known.append(int(tf.reduce_sum(tf.cast(h._keras_mask, tf.int32))))
            assert h._keras_mask.dtype == tf.bool
            return tf.reduce_sum(h[h._keras_mask]) / known[-1]
        step, state = train(forward, [embedding.embeddings.value])
        return step, lambda: (state(), tf.constant(known))
    stats = differ(make)
    assert stats.fast_forwards > 2 * 18 and stats.fetches >= 9, stats


@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_that_a_mask_is_lost(action):
    """A call that warns at each step is not skipped; one whose warning is filtered out is."""
    def make():
        layers = keras.Sequential([keras.layers.Embedding(20, 4, mask_zero=True), keras.layers.Flatten(), keras.layers.Dense(3)])
        layers(tokens(0))
        step, state = train(lambda x, *_: tf.reduce_sum(layers(x)), [v.value for v in layers.trainable_variables])

        def counting(*given):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = step(*given)
            return result, len(caught)
        return (counting if action == "always" else step), state
    stats = differ(make)
    assert (stats.coexecuted_steps > 9 if action == "always" else stats.whole_steps > 8), stats


@pytest.mark.share(2)
@pytest.mark.parametrize("way", ["masks", "states"])
def test_the_same_tensor_twice_in_a_result(way):
    """It is one object, also when the step falls back afterwards."""
    def make():
        L = keras.layers
        if way == "masks":
            i = keras.Input((6,), dtype="int32")
            h = L.Embedding(20, 4, mask_zero=True)(i)
            model, take = keras.Model(i, [L.Dense(3)(h), L.Activation("tanh")(h)]), lambda x: getattr(x, "_keras_mask")
        else:
            model, take = keras.Sequential([L.Embedding(20, 4), L.SimpleRNN(4, unroll=True, return_state=True)]), lambda x: x
        model(tokens(0))
        alike = []

        def forward(x, *_):
            a, b = model(x)
            alike.append(take(a) is take(b))
            total = tf.reduce_sum(tf.cast(take(a), tf.float32)) + tf.reduce_sum(tf.cast(take(b), tf.float32))
            return tf.reduce_sum(a) + (tf.sin(total) if len(alike) in (8, 12) else total)
        step, state = train(forward, [v.value for v in model.trainable_variables])
        return step, lambda: (state(), tf.constant(alike))
    stats = differ(make)
    assert stats.coexecuted_steps > 9 and stats.fallbacks <= 3, stats


KEPT = None


class Holder:
    """Of a tensor that is no argument."""


@pytest.mark.parametrize("where", ["global", "attribute", "default"])
@pytest.mark.parametrize("name", ["pooling", "attention"])
def test_masks_of_tensors_that_the_program_keeps(name, where, monkeypatch):
    """The mask is not among the arguments; the program changes it between steps, the attention removes it."""
    masks = [tf.constant([[True] + [False] * 5]), tf.constant([[True, False] * 3])]
    held = []

    def make():
        kept = tf.Variable(tf.reshape(tf.range(12.0), (1, 6, 2))).read_value()
        held[:] = [kept]
        monkeypatch.setattr(f"{__name__}.KEPT", kept)
        pool, attention = keras.layers.GlobalAveragePooling1D(), keras.layers.MultiHeadAttention(2, 3, seed=1)
        attention.build((1, 6, 2), (1, 6, 2))
        holder = Holder()
        holder.tensor = kept

        def step(x, default=kept):
            tensor = KEPT if where == "global" else holder.tensor if where == "attribute" else default
            return x + (pool(tensor) if name == "pooling" else tf.reduce_sum(attention(tensor, tensor)))
        return step, lambda: tf.constant(getattr(kept, "_keras_mask", None) is None)

    def change(i, step):
        if name == "attention" or i in (10, 15, 20):
            held[0]._keras_mask = None if i == 15 else masks[i % 2]
        elif i == 9:
            assert getattr(held[0], "_keras_mask", None) is None
    stats = harness.differ(make, lambda i: (tf.ones((1, 2)),), STEPS, change=change)
    assert stats.coexecuted_steps > 12, stats
    if name == "pooling":
        assert stats.whole_steps > 4, stats


def test_what_is_attached_to_a_constant_result_is_gone_at_the_next_step():
    def make():
        add, embedding = keras.layers.Add(), keras.layers.Embedding(9, 2, mask_zero=True)
        embedding.build()
        found = []

        def step(x, *_):
            words = tf.constant([[1, 2, 0]])
            total, known = add([words, words]), embedding(words)
            found.append((getattr(total, "_keras_mask", None) is None, getattr(known._keras_mask, "_keras_mask", None) is None))
            total._keras_mask = known._keras_mask._keras_mask = tf.constant([[True, False, True]])
            return tf.reduce_sum(x) + tf.reduce_sum(tf.cast(known, tf.int32))
        return step, lambda: tf.constant(found)
    stats = differ(make)
    assert stats.coexecuted_steps > 8, stats


def flattening():
    """A step whose call of a layer warns that the mask is lost."""
    embedding, flatten, calls = keras.layers.Embedding(20, 4, mask_zero=True), keras.layers.Flatten(), []
    embedding.build()

    def step(x, *_):
        calls.extend([1])
        return flatten(embedding(x))

    return step


def test_warnings_are_let_through_later():
    """A call that was recorded while its warning was ignored is made again when the filters have changed."""
    def run(step):
        said = []
        with warnings.catch_warnings():
            warnings.showwarning = lambda *args, **more: said.append(i)
            warnings.simplefilter("ignore")
            for i in range(STEPS):
                if i in (10, 16):
                    warnings.simplefilter("always" if i == 10 else "ignore")
                if i == 20:
                    warnings.simplefilter("error")
                try:
                    step(*inputs(i))
                except UserWarning:
                    said.append(-i)
        return said

    wrapped = harness.coexecuted(flattening())
    assert run(flattening()) == run(wrapped) != []
    assert wrapped.stats().coexecuted_steps > 8 and wrapped.stats().fast_forwards > 16, wrapped.stats()


def test_the_programs_own_warnings_are_shown_once():
    """Instrumenting and generating do not make Python forget which warnings it has shown."""
    said = []

    def step(x):
        warnings.warn("only once")
        return keras.activations.relu(x) * 2.0
    wrapped = harness.coexecuted(step)
    with warnings.catch_warnings():
        warnings.showwarning = lambda *args, **more: said.append(i)
        warnings.simplefilter("default")
        for i in range(8):
            wrapped(tf.ones(3))
    assert said == [0]


@pytest.mark.share(2)
@pytest.mark.parametrize("impure", [False, True])
def test_attention_removes_the_masks_of_its_arguments(impure):
    """What comes after it in the step finds none."""
    def make():
        embedding, attention, pool = keras.layers.Embedding(20, 4, mask_zero=True), keras.layers.MultiHeadAttention(2, 3, seed=1), keras.layers.GlobalAveragePooling1D()
        embedding.build(), attention.build((4, 6, 4), (4, 6, 4))
        calls = []

        def forward(x, *_):
            h = embedding(x)
            before = tf.reduce_sum(pool(h))
            if impure:
                sys._getframe()
            return before + tf.reduce_sum(attention(h, h)) + 3.0 * tf.reduce_sum(pool(h) ** 2.0)
        return train(forward, [embedding.embeddings.value])
    stats = differ(make)
    assert (stats.fast_forwards > 60 if impure else stats.whole_steps > 8), stats


def test_a_call_that_warns_each_time_is_not_skipped():
    """Nothing of the program's runs where the warning is shown, and the filters stay the same."""
    def run(step):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counts = []
            for i in range(14):
                step(*inputs(i))
                counts.append(sum("destroy the mask" in str(w.message) for w in caught))
        return counts

    wrapped = harness.coexecuted(flattening())
    assert run(flattening()) == run(wrapped) == list(range(1, 15))
    assert wrapped.stats().coexecuted_steps > 8, wrapped.stats()


def test_a_mask_that_a_call_removes_is_not_always_there():
    """What the call leaves behind looks like what it is given where the program has removed the mask itself."""
    def make():
        embedding, attention = keras.layers.Embedding(20, 4, mask_zero=True), keras.layers.MultiHeadAttention(2, 3, seed=1)
        embedding.build(), attention.build((4, 6, 4), (4, 6, 4))
        calls = []

        def forward(x, *_):
            calls.extend([1])
            h = embedding(x)
            if len(calls) in (9, 10, 14):
                h._keras_mask = None
            return tf.reduce_sum(attention(h * 1.0, h) ** 2.0)
        return train(forward, [embedding.embeddings.value])
    stats = differ(make)
    assert stats.fast_forwards > 40, stats
