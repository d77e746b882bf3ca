"""Losses that layers add in a call: such calls are skipped, and leave `model.losses` as they would."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

X = [tf.constant(np.random.RandomState(k).rand(6, 4), tf.float32) for k in range(3)]
Y = [tf.constant(np.random.RandomState(k).randint(3, size=6)) for k in range(3)]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Penalty(keras.layers.Layer):
    """Adds a loss; if `when` is not None, only in training or only in inference."""

    def __init__(self, by=0.01, when=None):
        super().__init__()
        self.by, self.when = by, when

    def call(self, x, training=None):
        if self.when is None or bool(training) is self.when:
            self.add_loss(self.by * tf.reduce_sum(tf.square(x)))
        return x


class Model(keras.Model):
    def __init__(self, *middle):
        super().__init__()
        self.first, self.middle, self.last = keras.layers.Dense(4, "relu"), list(middle), keras.layers.Dense(3, kernel_regularizer="l2")

    def call(self, x):
        x = self.first(x)
        for layer in self.middle:
            x = layer(x)
        return self.last(x)


def subclass():
    return Model(Penalty(), Penalty(0.02))


def subclass_with_activity_regularizer():
    return Model(keras.layers.Dense(4, activity_regularizer="l2"))


def sequential():
    return keras.Sequential([keras.layers.Dense(4, activity_regularizer="l1"), Penalty(), keras.layers.Dense(3)])


def functional():
    inputs = keras.Input((4,))
    hidden = keras.layers.ActivityRegularization(l2=0.1)(keras.layers.Dense(4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(Penalty()(hidden)))


def nested():
    return Model(sequential(), Penalty(), subclass())


def only_in_training():
    return Model(Penalty(when=True))


def only_in_inference():
    return Model(Penalty(when=False))


def compare(make, n=24, between=lambda k, model: None, whole=8):
    """`make()` gives (model, step); what `model.losses` holds after each step is compared, too. `between(k, model)` comes before step k; so many steps must be skipped as a whole."""
    runs = []
    for coexecuted in (False, True):
        keras.utils.set_random_seed(4)
        model, step = make()
        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        seen = []
        for k in range(n):
            between(k, model)
            seen.append([np.asarray(x) for x in tf.nest.flatten(wrapped(X[k % 3], Y[k % 3]))])
            seen.append([x.numpy() for x in model.losses])
        runs.append([*seen, *model.get_weights()])
    for expected, actual in zip(*runs, strict=True):
        np.testing.assert_equal(actual, expected)
    stats = wrapped.stats()
    assert stats.coexecuted_steps >= 8 and stats.whole_steps >= whole, stats
    return stats


def trained(make_model, total=sum):
    def make():
        model, optimizer = make_model(), keras.optimizers.SGD(0.1)
        model(X[0])

        def step(x, y):
            with tf.GradientTape() as tape:
                p = model(x)
                value = LOSS(y, p) + total(model.losses)
            optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
            return value

        return model, step
    return make


MODELS = [subclass, subclass_with_activity_regularizer, sequential, functional, nested]


@pytest.mark.parametrize("make", MODELS)
def test_steps_are_skipped(make):
    compare(trained(make))


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [subclass, sequential])
def test_calls_between_steps_leave_other_losses(make):
    compare(trained(make), between=lambda k, model: k % 4 == 0 and model(X[k % 3] * 2.0), whole=4)


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [only_in_training, only_in_inference])
def test_losses_of_one_mode_are_forgotten_in_the_other(make):
    compare(trained(make, lambda losses: tf.add_n([*losses, 0.0])), between=lambda k, model: k >= 12 and k % 2 and model(X[0], training=k % 4 == 1), whole=4)


@pytest.mark.parametrize("make", MODELS)
def test_a_step_of_keras(make):
    def compiled():
        model = make()
        model.compile(keras.optimizers.SGD(0.1), LOSS)
        model.build((6, 4))
        return model, lambda x, y: model.train_step((x, y))

    _, step = compiled()
    in_tensors = all(map(tf.is_tensor, step(X[0], Y[0]).values()))  # earlier versions of Keras make numbers of them, looking at each
    compare(compiled, whole=8 if in_tensors else 0)


@pytest.mark.parametrize("change", [
    lambda model: setattr(model.middle[0], "by", 0.5), lambda model: setattr(model.middle[0], "when", False), lambda model: model.middle.reverse(),
    lambda model: setattr(model.first, "activity_regularizer", keras.regularizers.L2(0.1)), lambda model: model.middle.clear(),
    lambda model: setattr(model.middle[0], "_losses", []), lambda model: setattr(model.middle[0], "add_loss", lambda loss: None)])
def test_changes_are_seen(change):
    compare(trained(subclass), between=lambda k, model: k == 12 and change(model))


def test_a_model_that_is_called_twice_keeps_the_losses_of_the_second_call():
    def make():
        model = subclass()
        model(X[0])

        def step(x, y):
            first = model(x)
            early = sum(model.losses)
            return first - model(x * 2.0), early, sum(model.losses)

        return model, step
    compare(make)


def test_layers_that_are_called_by_themselves():
    def make():
        layers = [Penalty(), keras.layers.Dense(4, activity_regularizer="l2")]
        for layer in layers:
            layer(X[0])

        def step(x, y):
            return [layers[0](x) + layers[1](x), *layers[0].losses, *layers[1].losses]

        return layers[1], step
    compare(make)


def test_losses_that_pile_up():
    """Added outside of a call: nothing empties the list."""
    def make():
        model = subclass()
        model(X[0])

        def step(x, y):
            model.add_loss(tf.reduce_sum(x))
            return x * 2.0

        return model, step
    assert compare(make, n=12, whole=0).whole_steps == 0


def test_losses_of_the_step_before():
    def make():
        model, optimizer = subclass(), keras.optimizers.SGD(0.1)
        model(X[0])

        def step(x, y):
            before = sum(model.losses)
            with tf.GradientTape() as tape:
                value = LOSS(y, model(x)) + sum(model.losses)
            optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
            return before, value

        return model, step
    assert compare(make, n=16, whole=0).whole_steps == 0


def test_lists_that_the_program_changes_itself():
    def make():
        model = subclass()
        model(X[0])

        def step(x, y):
            p = model(x)
            model.middle[0]._losses.append(tf.reduce_sum(p))
            return p, sum(model.losses)

        return model, step
    assert compare(make, whole=0).whole_steps == 0


def test_losses_are_let_go():
    """Those of a step live for a few more, not longer."""
    import gc
    import weakref
    model, step = trained(subclass)()
    wrapped = terra.coexecute(step, wait_for_graph=True)
    for k in range(12):
        wrapped(X[k % 3], Y[k % 3])
    held = [weakref.ref(x) for x in model.middle[0]._losses]
    assert held and held[0]() is not None
    for _ in range(3):
        wrapped(X[0], Y[0])
    gc.collect()
    assert held[0]() is None and wrapped.stats().whole_steps >= 4


def test_tf_keras():
    """Where such losses are kept for each thread: right, but not skipped."""
    results = []
    for coexecuted in (False, True):
        tf_keras.utils.set_random_seed(4)
        model = tf_keras.Sequential([tf_keras.layers.Dense(4, activity_regularizer="l2"), tf_keras.layers.Dense(3)])
        model(X[0])

        def step(x, y):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(model(x)) + sum(model.losses)
            for v, g in zip(model.trainable_variables, tape.gradient(value, model.trainable_variables)):
                v.assign_sub(0.1 * g)
            return value

        wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
        results.append([[wrapped(X[k % 3], Y[k % 3]).numpy(), *[x.numpy() for x in model.losses]] for k in range(16)])
    assert results[0] == results[1] and wrapped.stats().coexecuted_steps >= 8
