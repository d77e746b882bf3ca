"""Tensors that a step leaves in an attribute and the next one takes up: the state of a recurrent network, moving averages, the last result. Such steps are skipped, and what
the attribute holds counts as an argument, whoever has put it there."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from tests.harness import check_skipped, once
from tests.variants import examples

X = [tf.constant(np.random.RandomState(k).rand(2, 3), tf.float32) for k in range(3)]
LEFT = ("state", "average", "pair", "old", "older", "table", "last", "steps", "flag", "extra")  # what `run` looks at


def plain(x):
    """A value of an attribute, or a result, to be compared."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x).__name__, [plain(v) for v in x]
    return (x.dtype.name, x.numpy().tolist()) if tf.is_tensor(x) else x if isinstance(x, (int, float, bool, str, type(None))) else type(x).__name__


def run(make, wrap, change, at, n, every):
    """Results, and what is left in attributes, of n steps. `change(trainer)` is done before the steps `at`."""
    tf.random.set_seed(1)
    trainer = make()
    step, seen = wrap(trainer.step), []
    for k in range(n):
        if k in at:
            change(trainer)
        try:
            result = step(*getattr(trainer, "arguments", lambda x: (x,))(X[k % 3]))
        except (AttributeError, TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            result = type(error).__name__, str(error).split("}}")[-1]
            trainer.state = tf.zeros((2, 3))
        if k % every == 0 or k == n - 1:
            seen.append((plain(result), result is vars(trainer).get("last"), {name: plain(vars(trainer)[name]) for name in LEFT if name in vars(trainer)}))
    return seen, step


def compare(make, change=lambda trainer: None, at=(14,), whole=8, express=None, n=30, every=1, key=None, **options):
    """Co-executed as eagerly; at least so many steps are skipped as a whole, and by the express way. Returns the step."""
    expected = once(key, lambda: run(make, lambda step: step, change, at, n, every)[0])
    actual, step = run(make, lambda step: terra.coexecute(step, wait_for_graph=True, **options), change, at, n, every)
    assert actual == expected
    return check_skipped(step, n, whole, whole // 2 if express is None else express, options.get("verify"))


class Trainer:
    def __init__(self):
        self.w = tf.Variable(tf.reshape(tf.range(9, dtype=tf.float32), (3, 3)) / 10)
        self.state = tf.zeros((2, 3))

    def learn(self, state, x):
        with tf.GradientTape() as tape:
            state = tf.tanh(x @ self.w + 0.5 * state)
            loss = tf.reduce_mean(tf.square(state))
        self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
        return state, loss

    def step(self, x):
        self.state, loss = self.learn(self.state, x)
        return loss


class Average(Trainer):
    """A number as a tensor: small enough to be speculated to be constant."""

    def __init__(self):
        super().__init__()
        self.average = tf.constant(0.0)

    def step(self, x):
        self.state, loss = self.learn(self.state, x)
        self.average = 0.9 * self.average + 0.1 * loss
        return loss


class InPlace(Average):
    def step(self, x):
        self.state, loss = self.learn(self.state, x)
        self.average += loss
        return self.average


class Nested(Trainer):
    def __init__(self):
        super().__init__()
        self.pair = [tf.zeros((2, 3)), (tf.ones((2, 3)), None)]
        self.table = {"h": tf.zeros((2, 3)), "flag": True}

    def step(self, x):
        a, (b, nothing) = self.pair
        h = self.table["h"] if self.table["flag"] else x
        h, loss = self.learn(h, x)
        self.table = {"h": h, "flag": True}
        self.pair = [a + h, (b * 0.5 + a, nothing)]
        return loss


class Shifts(Trainer):
    """What it has found goes on into other attributes."""

    def __init__(self):
        super().__init__()
        self.old = self.older = self.state

    def step(self, x):
        before = self.state
        self.state, loss = self.learn(self.state + 0.1 * self.older, x)
        self.older = self.old
        self.old = before
        return loss, self.old


class ReadsAgain(Trainer):
    """It reads what it has left, too, and counts."""

    def __init__(self):
        super().__init__()
        self.steps, self.last = 0, None

    def step(self, x):
        if self.steps % 10 == 0:
            self.state = tf.zeros_like(x)
        self.state, loss = self.learn(self.state, x)
        self.last = self.state + self.state
        self.steps += 1
        return loss + tf.reduce_sum(self.last)


class ForgetsNow(Trainer):
    """Starts when there is nothing yet."""

    def __init__(self):
        super().__init__()
        self.state = None

    def step(self, x):
        if self.state is None:
            self.state = tf.ones_like(x)
        self.state, loss = self.learn(self.state, x)
        return loss


class TwoOwners(Trainer):
    class Cell:
        def __init__(self):
            self.held = tf.zeros((2, 3))

        def __call__(self, x):
            self.held = tf.tanh(x + self.held)
            return self.held

    def __init__(self):
        super().__init__()
        self.cells = [self.Cell(), self.Cell()]

    def step(self, x):
        for cell in self.cells:
            x = cell(x)
        self.last = x
        return self.learn(x, x)[1]


class Accumulates(Trainer):
    """Gradients of several batches are added up, then they are applied, and it starts anew."""

    def __init__(self):
        super().__init__()
        self.extra, self.steps = None, 0

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ self.w))
        gradients = [tape.gradient(loss, self.w)]
        self.extra = gradients if self.extra is None else [a + b for a, b in zip(self.extra, gradients)]
        self.steps += 1
        if self.steps == 4:
            self.w.assign_sub(0.1 * self.extra[0])
            self.extra, self.steps = None, 0
        return loss


class KeepsWhatItGives(Trainer):
    """The same dict is the result and an attribute."""

    def step(self, x):
        self.state, loss = self.learn(self.state, x)
        self.last = {"loss": loss, "mean": tf.reduce_mean(x), "value": float(loss)}
        return self.last


class AppendsWhatItGives(Trainer):
    def __init__(self):
        super().__init__()
        self.pair = []

    def step(self, x):
        self.state, loss = self.learn(self.state, x)
        self.last = [loss, loss * 2.0]
        self.pair.append(self.last)
        return self.last


class Gate(Trainer):
    """What it has left decides what it does: it cannot be skipped without a look at its value."""

    def __init__(self):
        super().__init__()
        self.flag = tf.constant(True)

    def step(self, x):
        if self.flag:
            x = x * 2.0
        self.state, loss = self.learn(self.state, x)
        self.flag = loss > 0.3
        return loss


class GateInTheFramework(Gate):
    def step(self, x):
        x = tf.cond(self.flag, lambda: x * 2.0, lambda: x)
        self.state, loss = self.learn(self.state, x)
        self.flag = loss > 0.3
        return loss


class ReadsTheValue(Trainer):
    def step(self, x):
        factor = 2.0 if float(self.state[0, 0]) > 0.2 else 1.0
        self.state, loss = self.learn(self.state, x * factor)
        return loss


class Prints(Trainer):
    """What it has found is only given back, as text."""

    def step(self, x):
        before = self.state
        self.state, loss = self.learn(tf.zeros_like(x), x)
        return loss, f"{before.numpy().sum():.3f}"


class Shape(Trainer):
    """A shape that is a tensor, and another one each time."""

    def __init__(self):
        super().__init__()
        self.extra = tf.constant([2, 3])

    def step(self, x):
        y = tf.reshape(tf.reshape(x, self.extra), (2, 3))
        self.extra = self.extra[::-1]
        self.state, loss = self.learn(self.state, y)
        return loss


class Index(Trainer):
    """A small whole number as a tensor, of which Python makes an index."""

    def __init__(self):
        super().__init__()
        self.extra = tf.constant(0)

    def step(self, x):
        self.state, loss = self.learn(self.state, x * [1.0, 2.0, 3.0][self.extra])
        self.extra = (self.extra + 1) % 3
        return loss


@pytest.mark.parametrize("make", [Gate, GateInTheFramework, ReadsTheValue, Prints, Shape, Index])
def test_values_that_matter(make):
    compare(make, other_tensor, whole=0, express=0, n=40)


@pytest.mark.parametrize("options", [{}, {"run_ahead": 0}, {"jit_compile": False, "optimize": True}, {"verify": True}], ids=["", "no run-ahead", "optimize", "verify"])
@pytest.mark.parametrize("make", [Trainer, Average, InPlace, Nested, Shifts, ReadsAgain, ForgetsNow, TwoOwners, Accumulates, KeepsWhatItGives, AppendsWhatItGives])
def test_equals_eager(make, options):
    compare(make, key=make, **options)


@pytest.mark.parametrize("make", [Average, Nested, Shifts, TwoOwners])
def test_nothing_is_looked_at_for_long(make):
    """Steps run ahead: each takes up tensors of one that may still run."""
    compare(make, n=120, every=50, whole=90)


# -- somebody else changes what is there -----------------------------------------------------------------------------------------


def other_tensor(trainer):
    trainer.state = tf.ones((2, 3))


def one_row(trainer):
    trainer.state = tf.ones((1, 3))


def other_type(trainer):
    trainer.state = tf.ones((2, 3), tf.float64)


def an_array(trainer):
    trainer.state = np.ones((2, 3), np.float32)


def a_variable(trainer):
    trainer.state = tf.Variable(tf.ones((2, 3)))


def a_number(trainer):
    trainer.state = 2.0


def none(trainer):
    trainer.state = None


def no_attribute(trainer):
    if "state" in vars(trainer):
        del trainer.state


def the_weights(trainer):
    trainer.state = tf.convert_to_tensor(trainer.w)[:2]


def wrong_shape(trainer):
    trainer.state = tf.ones((4, 3))


CHANGES = [other_tensor, one_row, other_type, an_array, a_variable, a_number, none, no_attribute, the_weights, wrong_shape]


@pytest.mark.parametrize("make, change, at", [
    (make, change, ((14,), (5, 14, 15, 22))[(turn + k) % 2]) for k, change in enumerate(CHANGES) for turn, make in enumerate((Trainer, ForgetsNow))])
def test_changed_between_steps(make, change, at):
    compare(make, change, at, n=40)


def replaced_in_place(trainer):
    trainer.pair[0] = tf.ones((2, 3))
    trainer.table["h"] = trainer.pair[0]  # the same tensor twice


def nested_deeper(trainer):
    trainer.pair = [trainer.pair[0], (trainer.pair[1][0], "something")]


def other_flag(trainer):
    trainer.table["flag"] = False


def new_entry(trainer):
    trainer.table["other"] = tf.zeros(3)


@pytest.mark.parametrize("change", [replaced_in_place, nested_deeper, other_flag, new_entry])
def test_containers_changed_between_steps(change):
    compare(Nested, change, at=(14, 20), whole=8, n=40)


def same_tensor(trainer):
    trainer.old = trainer.older = trainer.state = tf.fill((2, 3), 0.25)


def test_the_same_tensor_in_several_attributes():
    compare(Shifts, same_tensor, at=(14, 20), n=40)


class TakesItsState(Trainer):
    """What it has left may be its argument, too."""

    def __init__(self):
        super().__init__()
        self.gives_state = False

    def arguments(self, x):
        return (self.state if self.gives_state else x,)


def gives_state(trainer):
    trainer.gives_state = not trainer.gives_state


def test_an_attribute_that_is_an_argument_as_well():
    compare(TakesItsState, gives_state, at=(14, 22), n=40)


def test_a_class_gets_a_property():
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        class Own(Trainer):
            pass

        trainer = Own()
        step = wrap(trainer.step)
        losses = []
        for k in range(30):
            if k == 20:
                kept = vars(trainer).pop("state")
                Own.state = property(lambda self: kept * 2.0, lambda self, value: None)  # noqa: B023
            losses.append(float(step(X[k % 3])))
        seen.append(losses)
    assert seen[0] == seen[1]
    assert step.stats().whole_steps >= 8


class Fails(Trainer):
    """The check fails in the graph, after the attribute was set."""

    def step(self, x):
        state, loss = self.learn(self.state, x)
        self.state = state
        tf.debugging.assert_less(tf.reduce_sum(x), 100.0)
        return loss

    def arguments(self, x):
        return (x * self.scale,)

    scale = 1.0


def scales(trainer):
    trainer.scale = 1000.0 if trainer.scale == 1.0 else 1.0


def test_a_step_that_fails():
    compare(Fails, scales, at=(14, 15, 20, 21), whole=0, express=0, n=40)


# -- layers, models and modules --------------------------------------------------------------------------------------------------


def network(base, layers):
    class Network(base):
        """A model that is its own trainer: it keeps a state, the last loss and how many steps it has made."""

        def __init__(self):
            super().__init__()
            layers.utils.set_random_seed(3)
            self.dense = layers.layers.Dense(3)
            self.dense.build((2, 3))
            self.optimizer_of_mine = layers.optimizers.SGD(0.1)
            self.optimizer_of_mine.build(self.dense.trainable_variables)
            self.state, self.steps, self.last, self.extra = tf.zeros((2, 3)), 0, None, None
            self.pair = self.first_pair()

        def first_pair(self):
            return tf.zeros((2, 3)), tf.zeros((2, 3))

        def forward(self, x):
            a, b = self.pair
            h = tf.tanh(self.dense(x) + 0.5 * self.state + a)
            self.pair = type(self.pair)([h - b, a]) if type(self.pair) is tuple else [h - b, a]
            self.state = h
            return h

        def step(self, x):
            n = len(self.trainable_variables)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.forward(x)))
                if self.extra is not None:
                    loss += tf.reduce_mean(self.extra(x))
            variables = self.dense.trainable_variables
            self.optimizer_of_mine.apply_gradients(zip(tape.gradient(loss, variables), variables))
            self.steps += 1
            self.last = loss
            return loss, n, len(self.trainable_variables)

    return Network


def with_lists(network):
    class Lists(network):
        def first_pair(self):
            return [tf.zeros((2, 3)), tf.zeros((2, 3))]

    return Lists


BASES = {"keras": (keras.Model, keras), "keras layer": (keras.layers.Layer, keras), "module": (tf.Module, keras), "tf_keras": (tf_keras.Model, tf_keras),
         "object": (object, keras)}


def without_properties(network):
    """For bases that have no `trainable_variables`."""
    class With(network):
        @property
        def trainable_variables(self):
            return self.dense.trainable_variables + (self.extra.trainable_variables if self.extra is not None else [])

    return With


def made(name):
    base, layers = BASES[name]
    return network(base, layers) if hasattr(base, "trainable_variables") else without_properties(network(base, layers))


@pytest.mark.parametrize("name", BASES)
def test_a_model_that_keeps_its_state(name):
    compare(made(name), at=())


@pytest.mark.parametrize("name", ["keras", "module", "object"])
def test_a_model_that_keeps_its_state_in_a_list(name):
    compare(with_lists(made(name)), at=())


@pytest.mark.parametrize("name", BASES)
def test_a_layer_is_put_where_a_tensor_was(name):
    """What is left in attributes is not compared, and yet the model's variables are others from then on."""
    layers = BASES[name][1]

    def change(trainer):
        trainer.extra = layers.layers.Dense(1, kernel_initializer="ones")
        trainer.extra.build((2, 3))

    compare(made(name), change, whole=4, n=40)


@pytest.mark.parametrize("name", BASES)
def test_a_layer_in_the_attribute_of_the_state(name):
    layers = BASES[name][1]

    def change(trainer):
        trainer.last = layers.layers.Dense(1)  # the next step will set it again
        trainer.last.build((2, 3))
        if name == "module":
            trainer.last = [tf.Variable(1.0)]

    compare(made(name), change, whole=4, n=40)


class Recurrent(keras.Model):
    """The state is set inside of `call`."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(3)
        self.cell = keras.layers.SimpleRNNCell(3)
        self.cell.build((2, 3))
        self.state = None

    def call(self, x):
        if self.state is None:
            self.state = tf.zeros((2, 3))
        out, (state,) = self.cell(x, [self.state])
        self.state = state
        return out

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x)))
        for v, g in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables)):
            v.assign(v - 0.1 * g)
        return loss

    def build(self, shape):
        pass


def test_a_state_that_is_set_in_call():
    compare(Recurrent, none, at=(14, 20), n=40)


# -- in any order ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.sampled_from(["a = a + x", "b = a", "a = b", "c += x", "c = a * b", "a = [b, c]", "b = c if a is None else b", "a = None"]), min_size=1, max_size=5),
       st.lists(st.tuples(st.integers(6, 28), st.sampled_from(["a", "b", "c"]), st.sampled_from([0.0, 1.0, None])), max_size=3))
def test_any_exchange_of_tensors(lines, changes):
    """Lines that move tensors between three attributes; changes from outside."""
    source = "class Any:\n    def __init__(self):\n        self.a, self.b, self.c = tf.zeros(2), tf.ones(2), tf.fill(2, 0.5)\n    def step(self, x):\n        y = tf.reduce_sum(x) * 0.01\n"
    for line in lines:
        for name in "abc":
            line = " ".join(f"self.{name}" if word == name else word for word in line.replace("[", "[ ").replace("]", " ]").replace(",", " ,").split())
        line = line.replace("self.a + x", "(self.a if tf.is_tensor(self.a) else self.b if tf.is_tensor(self.b) else x[0, :2]) * 0.5 + y")
        line = line.replace("+= x", "= (self.c if tf.is_tensor(self.c) else y) + y").replace("self.a * self.b", "tf.tanh(y) + y")
        source += f"        {line}\n"
    source += "        return y\n"
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        held = define(source)()
        step, got = wrap(held.step), []
        for k in range(30):
            for at, name, value in changes:
                if at == k:
                    setattr(held, name, None if value is None else tf.fill(2, value))
            got.append((plain(step(X[k % 3])), [plain(getattr(held, name)) for name in "abc"]))
        seen.append(got)
    assert seen[0] == seen[1]
    assert step.stats().coexecuted_steps >= 10


_sources = {}


def define(source):
    """The class of that source, which can be looked up."""
    import linecache

    name = _sources.setdefault(source, f"<carried {len(_sources)}>")
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    space = {"tf": tf, "__name__": __name__}
    exec(compile(source, name, "exec"), space)
    return space["Any"]
