"""What skipped framework code depends on besides its own attributes: constraints, wrapped functions, replaced methods, global settings."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.framework import config

import terra
from terra.runtime.fast_forward.guards import guard_set

X = tf.constant(np.random.default_rng(5).normal(size=(6, 4)).astype("float32"))
LIBRARIES = [keras, tf_keras]


def takes_functions(library):
    """Whether a layer's constraint may be a plain function: older versions of Keras 3 refuse it."""
    try:
        library.layers.Dense(1, kernel_constraint=lambda w: w).build((None, 1))
    except ValueError:
        return False
    return True


TAKING_FUNCTIONS = list(filter(takes_functions, LIBRARIES))


@pytest.fixture(autouse=True)
def restored():
    """Global settings are as they were after each test."""
    held = [(library, library.backend.epsilon(), library.backend.image_data_format(), library.backend.floatx()) for library in LIBRARIES]
    update, call = keras.optimizers.SGD.update_step, keras.layers.Layer.__call__
    softplus, relu = tf.nn.softplus, tf.nn.relu
    yield
    for library, epsilon, data_format, floatx in held:
        library.backend.set_epsilon(epsilon)
        library.backend.set_image_data_format(data_format)
        library.backend.set_floatx(floatx)
    tf_keras.backend.clear_session()  # the learning phase, too
    tf.config.run_functions_eagerly(False)
    keras.optimizers.SGD.update_step, keras.layers.Layer.__call__ = update, call
    tf.nn.softplus, tf.nn.relu = softplus, relu


def run(make, coexecuted, steps=14, at=9):
    """(what the steps returned, what `make`'s list holds in the end, statistics); the change comes before step `at`."""
    keras.utils.set_random_seed(1)
    tf_keras.utils.set_random_seed(1)
    noted = []
    step, change = make(noted)
    wrapped = terra.coexecute(step, wait_for_graph=True) if coexecuted else step
    returned = []
    for k in range(steps):
        if k == at and change is not None:
            change()
        returned += [np.asarray(value) for value in tf.nest.flatten(wrapped(X))]
    return returned, noted, wrapped.stats() if coexecuted else None


def check(make, undo=None, skipped=None):
    """The same with Terra as eagerly. `undo` takes the change back in between; skipped: whether some calls must have been skipped, or none."""
    expected, noted, _ = run(make, False)
    if undo is not None:
        undo()
    actual, noted_too, stats = run(make, True)
    assert len(expected) == len(actual)
    for k, (a, b) in enumerate(zip(expected, actual)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"item {k}")
    assert noted == noted_too
    assert stats.coexecuted_steps > 3, stats
    if skipped is not None:
        assert (stats.fast_forwards > 0) == skipped, stats
    return stats


def training(library, layer, change=None, tape=tf.GradientTape, optimizer=None):
    """(a training step of one layer, its change)"""
    layer(X)
    optimizer = optimizer or library.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)

    def step(x):
        with tape() as t:
            loss = tf.reduce_mean(layer(x) ** 2)
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(t.gradient(loss, variables), variables))
        return loss, variables[0].value() if library is tf_keras else variables[0].value + 0.0
    return step, change


# -- constraints and regularizers ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("library", TAKING_FUNCTIONS)
def test_constraint_of_the_users(library):
    def make(noted):
        def constraint(w):
            noted.append("constrained")
            return tf.clip_by_value(w, -0.3, 0.3)
        return training(library, library.layers.Dense(2, kernel_constraint=constraint))
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_constraint_class_of_the_users(library):
    def make(noted):
        class Clip(library.constraints.Constraint):
            limit = 0.3

            def __call__(self, w):
                noted.append(self.limit)
                return tf.clip_by_value(w, -self.limit, self.limit)
        clip = Clip()
        return training(library, library.layers.Dense(2, kernel_constraint=clip), lambda: setattr(clip, "limit", 0.1))
    check(make)


@pytest.mark.parametrize("library", TAKING_FUNCTIONS)
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: functools.partial(f)])
def test_constraint_without_side_effects_follows_what_it_reads(library, wrap):
    def make(noted):
        limits = {"high": 0.3}

        def constraint(w):
            return tf.clip_by_value(w, -limits["high"], limits["high"])
        return training(library, library.layers.Dense(2, kernel_constraint=wrap(constraint)), lambda: limits.update(high=0.05))
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("tape", [tf.GradientTape, terra.GradientTape])
def test_attribute_of_a_stock_constraint(library, tape):
    def make(noted):
        constraint = library.constraints.MaxNorm(0.5)
        return training(library, library.layers.Dense(2, kernel_constraint=constraint), lambda: setattr(constraint, "max_value", 0.01), tape)
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_constraint_given_later(library):
    def make(noted):
        layer = library.layers.Dense(2)
        name = "constraint" if library is keras else "_constraint"
        return training(library, layer, lambda: setattr(layer.kernel, name, library.constraints.MaxNorm(0.01)))
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_stock_constraint_is_skipped(library):
    check(lambda noted: training(library, library.layers.Dense(2, kernel_constraint=library.constraints.MaxNorm(0.5))), skipped=True)


@pytest.mark.parametrize("library", TAKING_FUNCTIONS)
def test_regularizers(library):
    def make(noted):
        def regularizer(w):
            noted.append("regularized")
            return 0.1 * tf.reduce_sum(w ** 2)
        stock = library.regularizers.L2(0.1)
        layer = library.layers.Dense(2, kernel_regularizer=regularizer, bias_regularizer=stock, activity_regularizer=stock)
        layer(X)
        noted.clear()

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(x) ** 2) + tf.add_n(layer.losses)
            return loss, tape.gradient(loss, layer.trainable_variables)
        return step, lambda: setattr(stock, "l2", 0.7)
    check(make)


@pytest.mark.share(2)
@pytest.mark.parametrize("library", TAKING_FUNCTIONS)
def test_constraints_in_fit(library):
    def fit(compile_it):
        keras.utils.set_random_seed(2)
        tf_keras.utils.set_random_seed(2)
        called = []

        def constraint(w):
            called.append(1)
            return tf.clip_by_value(w, -0.3, 0.3)
        stock = library.constraints.MaxNorm(0.5)
        model = library.Sequential([library.layers.Dense(3, kernel_constraint=constraint), library.layers.Dense(1, kernel_constraint=stock)])
        model.compile(library.optimizers.SGD(0.1), "mse", run_eagerly=True)
        if compile_it:
            terra.compile(model)
        x, y = np.tile(X, (4, 1)), np.ones((24, 1), "float32")
        losses = model.fit(x, y, batch_size=6, epochs=3, shuffle=False, verbose=0).history["loss"]
        stock.max_value = 0.02
        losses += model.fit(x, y, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]
        return losses, [np.asarray(w) for w in model.get_weights()], len(called)

    losses, weights, called = fit(False)
    losses_too, weights_too, called_too = fit(True)
    np.testing.assert_allclose(losses, losses_too, rtol=1e-4)
    for a, b in zip(weights, weights_too):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert called == called_too


# -- functions within objects --------------------------------------------------------------------------------------------------

def dense_like(library, activation, change=None):
    layer = library.layers.Dense(2, activation=activation)
    layer(X)
    return lambda x: layer(x) * 1.0, change


@pytest.mark.parametrize("library", LIBRARIES)
def test_partial_of_the_users_function(library):
    def make(noted):
        def act(x, k):
            noted.extend([1])
            return tf.tanh(x) * k
        return dense_like(library, functools.partial(act, k=2.0))
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_arguments_of_a_partial_may_change(library):
    def make(noted):
        act = functools.partial(tf.nn.leaky_relu, alpha=0.2)
        return dense_like(library, act, lambda: act.keywords.update(alpha=0.9))
    check(make, skipped=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_partial_in_other_places(library):
    def make(noted):
        def twice(x, by):
            noted.append("layer")
            return x * by

        def loss(y, p, by):
            noted.append("loss")
            return tf.reduce_mean((y - p) ** 2, -1) * by
        layer = library.layers.Lambda(functools.partial(twice, by=2.0))
        named = functools.partial(loss, by=3.0)
        named.__name__ = "named"
        wrapper = (tf_keras.src.losses if library is tf_keras else keras.src.losses.losses).LossFunctionWrapper(named)
        metric = library.metrics.MeanMetricWrapper(named, name="m")
        replaced = library.layers.Dense(4)
        replaced(X)
        replaced.call = functools.partial(twice, by=5.0)
        layer(X)

        def step(x):
            y = replaced(layer(x))
            metric.update_state(x, y)
            return wrapper(x, y), metric.result()
        return step, None
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_partial_in_the_place_of_an_optimizers_method(library):
    def make(noted):
        optimizer = library.optimizers.SGD(0.1)
        original = optimizer.update_step

        def update(*args, name):
            noted.append(name)
            return original(*args)
        optimizer.update_step = functools.partial(update, name="update")
        return training(library, library.layers.Dense(2), optimizer=optimizer)
    check(make)


def test_method_of_an_iterator():
    def make(noted):
        rates = iter(np.linspace(0.1, 0.9, 100).tolist())
        return training(keras, keras.layers.Dense(2), optimizer=keras.optimizers.SGD(rates.__next__))
    check(make)


def test_bound_method_of_a_stock_layer():
    def make(noted):
        leaky = keras.layers.LeakyReLU(0.2)
        return dense_like(keras, leaky.call, lambda: setattr(leaky, "negative_slope", 0.9))
    check(make)


@pytest.mark.parametrize("library", LIBRARIES)
def test_custom_gradient(library):
    def make(noted):
        @tf.custom_gradient
        def act(x):
            noted.append("forward")

            def gradient(upstream):
                noted.append("backward")
                return upstream
            return tf.tanh(x), gradient
        return training(library, library.layers.Dense(2, activation=act))
    check(make)


@pytest.mark.parametrize("wrap", [tf.recompute_grad, tf.autograph.experimental.do_not_convert, functools.lru_cache(maxsize=0)])
def test_functions_wrapped_by_libraries(wrap):
    def make(noted):
        def act(x):
            noted.extend([1])
            return tf.tanh(x)
        return dense_like(keras, wrap(act))
    check(make)


# -- what is replaced ----------------------------------------------------------------------------------------------------------

def test_method_of_a_stock_class():
    original = keras.optimizers.SGD.update_step

    def make(noted):
        def update(self, *args):
            noted.extend([1])
            return original(self, *args)
        return training(keras, keras.layers.Dense(2), lambda: setattr(keras.optimizers.SGD, "update_step", update))
    check(make, lambda: setattr(keras.optimizers.SGD, "update_step", original))


def test_the_wrapper_of_layers():
    original = keras.layers.Layer.__call__

    class Users(keras.layers.Layer):
        def call(self, x):
            return tf.tanh(x) * 2.0

    def make(noted):
        layer, dense = Users(), keras.layers.Dense(2)
        dense(layer(X))

        def call(self, *args, **kwargs):
            noted.append(type(self).__name__)
            return original(self, *args, **kwargs)
        return lambda x: dense(layer(x)) + 1.0, lambda: setattr(keras.layers.Layer, "__call__", call)
    check(make, lambda: setattr(keras.layers.Layer, "__call__", original))


@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_function_of_tensorflows(name):
    original = getattr(tf.nn, name)

    def make(noted):
        def replacement(x, *args, **kwargs):
            noted.extend([1])
            return original(x, *args, **kwargs) * 2.0
        return dense_like(keras, name, lambda: setattr(tf.nn, name, replacement))
    check(make, lambda: setattr(tf.nn, name, original))


def test_skipped_again_when_a_replacement_is_gone():
    original = keras.optimizers.SGD.update_step
    keras.utils.set_random_seed(1)
    step = terra.coexecute(training(keras, keras.layers.Dense(2))[0], wait_for_graph=True)
    called, jumps = [], []
    for k in range(40):
        if k == 10:
            keras.optimizers.SGD.update_step = lambda self, *args: called.append(1) or original(self, *args)
        if k == 20:
            keras.optimizers.SGD.update_step = original
        step(X)
        jumps.append(step.stats().fast_forwards)
    assert len(called) == 20
    assert jumps[9] > jumps[8] and jumps[39] - jumps[38] == jumps[9] - jumps[8]


# -- settings ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("library", LIBRARIES)
def test_epsilon(library):
    def make(noted):
        library.backend.set_epsilon(1e-7)
        loss = library.losses.MeanAbsolutePercentageError()
        return lambda x: loss(x * 0.0, x), lambda: library.backend.set_epsilon(0.5)
    check(make, skipped=True)


def test_data_format():
    def make(noted):
        keras.config.set_image_data_format("channels_last")
        images = tf.reshape(tf.range(256.0), [4, 4, 4, 4])
        return lambda x: keras.ops.average_pool(images * x[0, 0], 2), lambda: keras.config.set_image_data_format("channels_first")
    check(make, skipped=True)


def test_learning_phase():
    def make(noted):
        with pytest.warns(UserWarning):
            tf_keras.backend.set_learning_phase(0)
        layer = tf_keras.layers.BatchNormalization()
        layer(X)
        return layer, lambda: tf_keras.backend.set_learning_phase(1)
    check(make, skipped=True)


def test_training_argument_of_an_outer_layer():
    def make(noted):
        class Outer(tf_keras.Model):
            def __init__(self):
                super().__init__()
                self.norm = tf_keras.layers.BatchNormalization()

            def call(self, x):
                noted.append("called")
                return self.norm(x)
        model, phase = Outer(), [True]
        model(X)
        return lambda x: model(x, training=phase[0]), lambda: phase.__setitem__(0, False)
    check(make)


def test_functions_run_eagerly():
    def make(noted):
        tf.config.run_functions_eagerly(False)
        return dense_like(keras, tf.function(lambda x: noted.extend([1]) or tf.tanh(x)), lambda: tf.config.run_functions_eagerly(True))
    check(make, lambda: tf.config.run_functions_eagerly(False), skipped=True)


@pytest.mark.parametrize("fast_forward", [False, True])
def test_determinism(fast_forward):
    """TensorFlow's functions ask for that: with it, cross entropy is made of other operations, and random numbers need a seed."""
    labels = tf.constant([0, 1, 2, 3, 0, 1])

    def step(x, draw=False):
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x * 30.0)
        return loss + tf.random.uniform([6], seed=None) * 0.0 if draw else loss

    made = terra.coexecute(step, wait_for_graph=True, fast_forward=fast_forward)
    try:
        runs = []
        for function in (step, made):
            config.disable_op_determinism()
            tf.random.set_seed(1)
            runs.append([])
            for k in range(20):
                if k == 9:
                    config.enable_op_determinism()
                runs[-1].append(function(X).numpy().tobytes())
        assert runs[0] == runs[1]
        assert "SparseSoftmaxCrossEntropyWithLogits" not in {node.payload.event.info.op_type for node in made.trace_graph.nodes if node.payload is not None}
        assert made.stats().coexecuted_steps == 16

        for function in (step, terra.coexecute(step, wait_for_graph=True, fast_forward=fast_forward)):
            config.disable_op_determinism()
            tf.random.set_seed(1)
            for _ in range(6):
                function(X, True)
            tf.config.experimental.enable_op_determinism()
            tf.compat.v1.set_random_seed(None)
            with pytest.raises(RuntimeError, match="seed"):
                function(X, True)
    finally:
        config.disable_op_determinism()
        tf.random.set_seed(1)


def test_determinism_of_steps_in_pieces():
    labels = tf.constant([0, 1, 2, 3, 0, 1])

    def step(xs):
        total = tf.zeros([6])
        for x in xs:
            total += 1.0 / tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x * 30.0)  # without determinism, 0.0 is -0.0
        return total

    made = terra.coexecute(step, loops="roll", wait_for_graph=True)
    lengths = [2, 4, 3, 5, 1, 6, 2, 7, 3, 4, 5, 2, 6, 3] * 3
    try:
        runs = []
        for function in (step, made):
            config.disable_op_determinism()
            runs.append([])
            for k, n in enumerate(lengths):
                if k == 21:
                    assert function is step or (made.segments is not None and made.stats().coexecuted_steps > 5)
                    config.enable_op_determinism()
                runs[-1].append(function([X * (i + 1.0) for i in range(n)]).numpy().tobytes())
        assert runs[0] == runs[1]
    finally:
        config.disable_op_determinism()


def test_callbacks_of_operations(caplog):
    """They are to see each one."""
    start = tf.constant([2.0, 3.0])

    def step(x):
        return tf.reduce_sum(tf.math.log(x - 1.0))

    made = terra.coexecute(step, wait_for_graph=True)
    for _ in range(6):
        made(start)
    tf.debugging.enable_check_numerics()
    try:
        for function in (step, made, made):
            with pytest.raises(tf.errors.InvalidArgumentError, match="numerical problem|NaN|-Inf|Inf"):
                function(start - 1.5)
            assert function(start) == step(start)
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(made(start - 1.5)) and float(made(start)) == float(step(start))
    stats = made.stats()
    assert stats.imperative_steps == 4 and stats.coexecuted_steps == 6, stats
    assert [record.message for record in caplog.records if record.name == "terra"].count(caplog.messages[-1]) == 1 and "enable_check_numerics" in caplog.text


def test_shape_of_an_array():
    def make(noted):
        table = np.arange(4.0, dtype="float32")
        layer = keras.layers.Dense(4)
        layer(X)
        layer.table = table  # an attribute that an activation might read

        def change():
            table.shape = (2, 2)
        return lambda x: layer(x) * 1.0, change
    check(make, skipped=True)
    array = np.arange(12.0)
    guard = guard_set.GuardSet(make_dense(array), ())
    assert guard.holds()
    array.shape = (3, 4)
    assert not guard.holds()
    array.shape = (12,)
    assert guard.holds()
    array.dtype = np.int64
    assert not guard.holds()


def make_dense(array):
    layer = keras.layers.Dense(4)
    layer(X)
    layer.table = array
    return layer


# -- what must still be skipped ------------------------------------------------------------------------------------------------

@pytest.mark.share(2)
@pytest.mark.parametrize("library", LIBRARIES)
def test_stock_models_are_skipped(library):
    def make(noted):
        model = library.Sequential([library.layers.Dense(4, activation="relu"), library.layers.BatchNormalization(), library.layers.Dense(2)])
        return training(library, model, optimizer=library.optimizers.Adam(0.01))
    assert check(make, skipped=True).fast_forwards > 14


def test_it_is_recorded_under_a_profiler():
    import cProfile

    def make(noted):
        return training(keras, keras.layers.Dense(2))
    with cProfile.Profile():
        check(make)
