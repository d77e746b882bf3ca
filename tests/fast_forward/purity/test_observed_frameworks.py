"""Code of the framework's and of Python's own library that is observed like the program's, so that what calls it is skipped; and what the program asks of classes and descriptors."""

import collections
import contextlib
import copy
import dataclasses
import datetime
import enum
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

STEPS = 26
LOCAL = threading.local()
SEEN = []


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


@dataclasses.dataclass
class Settings:
    factor: float = 2.0
    names: list = dataclasses.field(default_factory=lambda: ["a", "b"])


class Scaled:
    """A descriptor."""

    def __init__(self, by):
        self.by = by

    def __get__(self, it, kind=None):
        return it.base * self.by


ORIGINAL = Scaled.__get__


class Named:
    base = 1.5
    scaled = Scaled(2.0)

    def __init__(self):
        self.settings, self.mode, self.counts = Settings(), 2, collections.Counter("aab")
        self.w, self.stop = tf.Variable([1.0, 2.0, 3.0]), None
        self.net = Returns()
        self.tf_keras_optimizer = tf_keras.optimizers.SGD(0.1)


class Returns(tf_keras.Model):
    """A model whose call gives itself."""

    def __init__(self):
        super().__init__()
        self.dense, self.result = tf_keras.layers.Dense(3, kernel_initializer="ones"), None

    def call(self, x):
        self.result = self.dense(x)
        return self


class Other(Named):
    pass


def scope_of_a_backend(h, x):
    with tf_keras.backend.name_scope("inner"):
        return x * 2.0


def update_of_a_backend(h, x):
    tf_keras.backend.update(h.w, h.w * 0.99)
    return x * h.w


def loss_object(h, x):
    return keras.losses.MeanSquaredError(reduction="sum")(x, x * 2.0) * x


def initializer(h, x):
    return x * keras.initializers.Constant(2.0)((3,))


def strategy(h, x):
    return x / tf.distribute.get_strategy().num_replicas_in_sync


def class_name(h, x):
    return x * float(len(type(h).__name__) + len(type(h.settings).__qualname__))


def descriptor(h, x):
    return x * h.scaled


def has_no_such_attribute(h, x):
    return x * (1.0 if hasattr(type(h), "__dataclass_fields__") or hasattr(3, "units") else 2.0)


def member_by_value(h, x):
    return x * float(Mode(h.mode).value)


def as_dict(h, x):
    return x * dataclasses.asdict(h.settings)["factor"]


def deep_copy(h, x):
    return x * copy.deepcopy(h.settings).factor


def time_of_day(h, x):
    assert datetime.datetime.now().year > 2000
    return x


def suppressed(h, x):
    with contextlib.suppress(KeyError):
        x = x * {"there": 1.0}[h.mode]
    return x * 3.0


def handled_by_a_context(h, x):
    with Handles(h) as handles:
        x = x * [2.0][h.mode]
    return x * 3.0 if handles.error is None else x * float(len(handles.error.args))


class Handles:
    def __init__(self, h):
        self.error = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.error = error
        return kind is not None and issubclass(kind, IndexError)


def counted(h, x):
    counts = collections.Counter("ab")
    counts.update(h.counts)
    return x * float(counts["a"])


def gives_itself(h, x):
    return h.net(x).result


def by_keyword(h, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(h.w * x)
    h.tf_keras_optimizer.apply_gradients(grads_and_vars=zip([tape.gradient(loss, h.w)], [h.w]))
    return h.w * x


def activation_by_name(h, x):
    return keras.activations.get("relu")(x - 1.0)


def perhaps_an_attribute(h, x):
    return x * getattr(LOCAL, "scale", 3.0) * (2.0 if hasattr(LOCAL, "other") else 1.0)


PROGRAMS = [activation_by_name, perhaps_an_attribute, scope_of_a_backend, update_of_a_backend, loss_object, initializer, strategy, class_name, descriptor, has_no_such_attribute, member_by_value, as_dict, deep_copy,
            time_of_day, suppressed, handled_by_a_context, counted, gives_itself, by_keyword]


def as_step(h, body):
    return lambda x: tf.reduce_sum(body(h, x))


def as_layer(h, body):
    class Layer(keras.layers.Layer):
        def call(self, x):
            return body(h, x)

    model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="ones"), Layer(), keras.layers.Dense(1, kernel_initializer="ones")])

    def step(x):
        return tf.reduce_sum(model(x))

    return step


def run(make, body, wrap, change):
    vars(Named)["scaled"].by, Scaled.__get__, Settings.__qualname__ = 2.0, ORIGINAL, "Settings"
    if "__dataclass_fields__" in vars(Other):
        del Other.__dataclass_fields__
    h = Named()
    step = wrap(make(h, body))
    given = []
    for k in range(STEPS):
        change(h, k)
        given.append(float(step(tf.constant([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0]]))))
    return (given, h.w.numpy().tolist()), step


def compare(make, body, change=lambda h, k: None, **options):
    expected, _ = run(make, body, lambda step: step, change)
    actual, step = run(make, body, lambda step: terra.coexecute(step, wait_for_graph=True, **options), change)
    assert actual == expected
    return step


def compared(runs):
    """Runs a program eagerly and co-executed: `runs(wrap)` gives what is compared, and the step in the end. Returns the co-executed step."""
    *expected, _ = runs(lambda step: step)
    *actual, step = runs(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    return step


def descent(model):
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        variables = model.trainable_variables
        for gradient, variable in zip(tape.gradient(loss, variables), variables):
            variable.assign_sub(0.001 * gradient)
        return loss

    return train


@pytest.mark.parametrize("make", [as_step, as_layer])
@pytest.mark.parametrize("body", PROGRAMS)
def test_steps_are_skipped(body, make):
    step = compare(make, body)
    runs = body is deep_copy or (body is gives_itself and make is as_layer)  # `__reduce_ex__`; a model that a layer does not hold, but finds elsewhere
    assert (step.stats().whole_steps >= 12) is not runs, terra.explain(step)


def test_in_a_program_with_a_block_of_terras_tape():
    """For such blocks, the framework's methods look for a step themselves: what stands in their place is observed as they are."""
    w = tf.Variable(1.0)
    with terra.GradientTape() as tape:
        loss = tf.sin(w)
    tape.gradient(loss, w)
    step = compare(as_step, loss_object)
    assert step.stats().whole_steps >= 12, terra.explain(step)


@pytest.mark.parametrize("kept", [False, True])
def test_a_loss_object_asks_for_the_mask_of_a_tensor_from_outside(kept):
    """The step is skipped as long as there is none, whether the tensor is an argument or one that the program keeps."""
    def runs(wrap):
        own = tf.constant([[1.0, 2.0], [3.0, 4.0]])

        def program(x):
            return tf.sin(x) + keras.losses.MeanSquaredError()(tf.zeros((2, 2)), own if kept else x)

        step, seen = wrap(program), []
        for k in range(40):
            x = tf.constant([[1.0, 2.0], [3.0, 5.0 + k]])
            if k >= 30:
                (own if kept else x)._keras_mask = tf.constant([[True, False], [k % 2 == 0, False]])
            seen.append(step(x).numpy().tolist())
            if k == 29 and hasattr(step, "stats"):
                assert step.stats().whole_steps >= 12, terra.explain(step)
        return seen, step

    compared(runs)


@pytest.mark.parametrize("body", PROGRAMS)
def test_verified(body):
    step = compare(as_step, body, verify=True)
    assert step.stats().verified_calls, terra.explain(step)


@pytest.mark.parametrize("make", [as_step, as_layer])
@pytest.mark.parametrize("body", [class_name, descriptor, has_no_such_attribute, member_by_value, as_dict, deep_copy, suppressed, handled_by_a_context, counted])
def test_what_they_look_at_changes(body, make):
    """What each of them has read is another thing from some step on."""
    def change(h, k):
        if k == 14:
            h.settings.factor, h.mode, h.base = 5.0, 3 if body is member_by_value else 0, 2.5
            h.counts["a"] += 4
        if k == 16:
            h.__class__ = Other
        if k == 18:
            vars(Named)["scaled"].by = 7.0
        if k == 20:
            Scaled.__get__ = lambda self, it, kind=None: it.base + 10.0
        if k == 22:
            Other.__dataclass_fields__ = {}
            Settings.__qualname__ = "AnotherName"
        if k == 24:
            vars(h)["scaled"] = 100.0

    compare(make, body, change)


def test_settings_of_the_framework_change():
    """A loss object that is made in the step has the default type of that moment."""
    def change(h, k):
        keras.config.set_floatx("float64" if k >= 16 else "float32")

    def body(h, x):
        return tf.cast(keras.losses.MeanAbsoluteError()(x, 0.3 * x), tf.float32) * x

    try:
        compare(as_step, body, change)
    finally:
        keras.config.set_floatx("float32")


def test_a_function_of_the_framework_is_replaced(monkeypatch):
    """What the framework's own code calls in turn is somebody else's from some step on."""
    from tf_keras.src import backend

    original, seen = backend.name_scope, []

    def change(h, k):
        monkeypatch.setattr(backend, "name_scope", original if k < 16 else lambda name: contextlib.nullcontext(seen.append(k)))

    def body(h, x):
        with backend.name_scope("inner"):
            return x * 2.0

    compare(as_step, body, change)
    assert seen == [*range(16, STEPS)] * 2


def test_batches_of_numpy_for_a_model_of_a_derived_class():
    rng = np.random.default_rng(0)
    batches = rng.normal(size=(30, 8, 17)).astype("float32")

    class Net(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf_keras.layers.Dense(4)

        def call(self, x):
            return self.dense(x)

    def runs(wrap):
        tf_keras.utils.set_random_seed(1)
        net = Net()

        step = wrap(descent(net))
        return [float(step(x[:, :-1])) for x in batches], step

    step = compared(runs)
    assert step.stats().whole_steps >= 15, terra.explain(step)


def test_variables_that_a_function_has_made():
    """`tf.function` makes variables of a class of its own at its first call."""
    class Line(tf.Module):
        w = None

        @tf.function
        def __call__(self, x):
            if self.w is None:
                self.w = tf.Variable(tf.ones((3,)))
            return x * self.w

    def runs(wrap):
        line = Line()
        line(tf.ones((3,)))
        assert type(line.w) is not type(tf.Variable(0.0))

        def train(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(line(x) ** 2)
            line.w.assign_sub(0.01 * tape.gradient(loss, line.w))
            return loss + line.w[0]

        step = wrap(train)
        return [float(step(tf.constant([1.0, 2.0, 0.1 * k]))) for k in range(STEPS)], step

    step = compared(runs)
    assert step.stats().whole_steps >= 12, terra.explain(step)


@pytest.mark.parametrize("package", [tf_keras, keras], ids=["tf_keras", "keras"])
def test_a_layer_keeps_a_list_of_what_it_has_computed(package):
    """Keras wraps such a list, and tf_keras notes it among the layer's parts; at some step a part comes that has weights."""
    class Layer(package.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense, self.more = package.layers.Dense(3), None

        def call(self, x):
            self.found = []
            for _ in range(2):
                x = self.dense(x)
                self.found.append(x)
            if self.more is not None:
                x = self.more(x)
            return x + self.found[0]

    def runs(wrap):
        package.utils.set_random_seed(1)
        layer = Layer()
        model = package.Sequential([package.layers.Dense(3), layer])
        model(tf.ones((2, 3)))
        given = []

        step = wrap(descent(model))
        for k in range(STEPS):
            if k == 18 and package is tf_keras:  # (layers of Keras 3 take no more parts by then)
                layer.more = package.layers.Dense(3)
            given.append(float(step(tf.ones((2, 3)) * 0.1 * k)))
        return given, [v.numpy().tolist() for v in model.variables], [float(tf.reduce_sum(x)) for x in layer.found], step

    step = compared(runs)
    assert step.stats().whole_steps >= 10, terra.explain(step)


@pytest.mark.parametrize("package", [tf_keras, keras], ids=["tf_keras", "keras"])
def test_a_layer_wraps_a_list_that_was_there_before(package):
    """What is appended to the attribute goes to that list, too, if the wrapper holds it."""
    class Layer(package.layers.Layer):
        def __init__(self):
            super().__init__()
            self.others = []

        def call(self, x):
            self.kept = SEEN
            self.kept.append(x.shape[0])
            self.same = self.others
            self.same.append(float(x.shape[1]))
            return x * 2.0

    def runs(wrap):
        SEEN.clear()
        layer = Layer()
        step = wrap(lambda x: tf.reduce_sum(layer(x)))
        return [float(step(tf.ones((2, 3)) * 0.1 * k)) for k in range(STEPS)], list(SEEN), list(layer.kept), list(layer.others), step

    step = compared(runs)
    assert step.stats().coexecuted_steps >= 20


def test_steps_within_a_step():
    """A decorated function, and a method, that a step calls are parts of it: their code is observed with the step's."""
    class Model:
        def __init__(self, wrap):
            self.scale, self.calls, self.wrap = 2.0, 0, wrap

        def scaled(self, x):
            self.calls += 1
            return x * self.scale

    def runs(wrap):
        class Wrapped(Model):
            scaled = wrap(Model.scaled)

        model = Wrapped(wrap)

        @wrap
        def inner(x, by):
            return tf.reduce_sum(x) * by

        def outer(x):
            return inner(model.scaled(x), by=3.0)

        step, given = wrap(outer), []
        for k in range(STEPS):
            model.scale = 2.0 if k < 18 else 5.0
            given.append(float(step(tf.ones((2, 3)) * 0.1 * k)))
        return given, model.calls, step

    step = compared(runs)
    assert step.stats().whole_steps >= 10, terra.explain(step)
