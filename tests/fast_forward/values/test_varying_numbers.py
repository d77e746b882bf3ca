"""Numbers that are others at each step: a learning rate that is an argument, a weight in an attribute that is annealed. Steps that give them to nothing but operators of tensors are
skipped; where Python looks at one, its value counts."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests.harness import check_skipped

X = [tf.constant(np.random.RandomState(k).rand(2, 3), tf.float32) for k in range(3)]
N = 28


def plain(x):
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return (x.dtype.name, repr(x.numpy().tolist())) if tf.is_tensor(x) or isinstance(x, tf.Variable) else (type(x).__name__, repr(x))


def compare(make, whole=10, express=4, n=N, **options):
    """Co-executed as eagerly; at least so many steps are skipped as a whole, and by the express way. `make()` gives (a step, what calls it for step k, what is to be looked at in the end)."""
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True, **options)):
        tf.random.set_seed(1)
        step, call, *left = make()
        step, seen = wrap(step), []
        for k in range(n):
            try:
                seen.append(plain(call(step, k)))
            except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
                seen.append((type(error).__name__, str(error).split("name:")[0]))
        results.append((seen, plain([x() if callable(x) else x for x in left])))
    assert results[1] == results[0]
    return check_skipped(step, n, whole, express, options.get("verify"))


def rate(k):
    return 0.1 / (1 + k)


# -- where a number comes from -------------------------------------------------------------------------------------------------

def argument():
    w = tf.Variable(tf.ones((2, 3)))

    def step(x, lr):
        w.assign_sub(lr * x)
        return tf.reduce_sum(w) * lr - lr
    return step, lambda s, k: s(X[k % 3], rate(k)), w


def keyword():
    def step(x, *, scale=1.0, shift=0.0):
        return tf.abs(x * scale + shift), shift + x
    return step, lambda s, k: s(X[k % 3], shift=rate(k), scale=2.0 * k) if k % 7 else s(X[k % 3], scale=rate(k), shift=3.0)


def of_a_method():
    class Trainer:
        def step(self, x, lr):
            return tf.abs(x * lr)
    return Trainer().step, lambda s, k: s(X[k % 3], rate(k))


def attribute():
    class Trainer:
        beta, gamma = 0.5, 0.25

        def step(self, x):
            return tf.abs(x * self.beta) + self.gamma

    trainer = Trainer()

    def call(step, k):
        trainer.beta = rate(k)
        return step(X[k % 3])
    return trainer.step, call, lambda: (trainer.beta, trainer.gamma)


def item():
    config, rates = {"beta": 0.5}, [0.1, 0.2]

    def call(step, k):
        config["beta"], rates[1] = rate(k), rate(k + 1)
        return step(X[k % 3])
    return lambda x: tf.abs(x) / config["beta"] - rates[1] * x + rates[0], call, config, rates


def cell():
    beta = 0.5

    def call(step, k):
        nonlocal beta
        beta = rate(k)
        return step(X[k % 3])
    return lambda x: tf.abs(x) * beta, call, lambda: beta


def module():
    def call(step, k):
        globals()["BETA"] = rate(k)
        return step(X[k % 3])

    def step(x):
        return scaled(x) - BETA
    return step, call, lambda: BETA


BETA = 0.5
scalar = tf.Variable(0.5, dtype=tf.float64)


def scaled(x):
    return x * BETA


def of_numpy():
    """Such as `np.linspace` and `np.cos` give."""
    class Trainer:
        beta = np.float64(0.5)

        def step(self, x, lr):
            y = tf.abs(x) * self.beta + lr * x
            scalar.assign(lr)
            return y - tf.constant(lr, tf.float32) + tf.cast(lr, tf.float32) + tf.cast(scalar, tf.float32)

    trainer = Trainer()

    def call(step, k):
        trainer.beta = np.float32(rate(k))
        return step(X[k % 3], 0.5 * (1 + np.cos(np.pi * k / 50)))
    return trainer.step, call, lambda: (trainer.beta, scalar)


SOURCES = [argument, keyword, of_numpy, of_a_method, attribute, item, cell, module]


@pytest.mark.parametrize("make", SOURCES)
def test_numbers_that_vary_are_arguments(make):
    compare(make)


@pytest.mark.parametrize("make", [argument, attribute])
@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}])
def test_with_options(make, options):
    compare(make, **options)


def test_a_training_step_with_a_rate_and_a_weight():
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
        model(X[0])

        class Trainer:
            beta = 0.0

            def step(self, x, lr):
                with tf.GradientTape() as tape:
                    y = model(x, training=True)
                    loss = tf.reduce_mean((y - x) ** 2) + self.beta * tf.reduce_mean(tf.abs(y))
                for g, v in zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables):
                    v.assign_sub(lr * g)
                return loss

        trainer = Trainer()

        def call(step, k):
            trainer.beta = min(1.0, k / 30)
            return float(step(X[k % 3], rate(k)))
        return trainer.step, call, lambda: [v.numpy().tolist() for v in model.variables]
    compare(make, whole=16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "complex64"])
def test_types_of_the_tensor(dtype):
    """Where TensorFlow would not make a tensor of the type, the number counts, and what is raised is raised."""
    def make():
        xs = [tf.cast(x * 4, dtype) for x in X]
        return lambda x, b: b * x + tf.abs(x), lambda s, k: s(xs[k % 3], 1.0 + k / 8)
    floating = "float" in dtype
    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        step, call = make()
        step, seen = wrap(step), []
        for k in range(N):
            try:
                seen.append(plain(call(step, k)))
            except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
                seen.append(type(error).__name__)
        results.append(seen)
    assert results[0] == results[1]
    assert not floating or step.stats().whole_steps >= 10, terra.explain(step)


@pytest.mark.parametrize("values", [
    [0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e-45, 1e300, 5e-324, 0.1],
    [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5]])
def test_special_values(values):
    def make():
        return lambda x, b: tf.identity(x) / b, lambda s, k: s(X[k % 3], values[k % len(values)])
    compare(make)


# -- what a program may do with one --------------------------------------------------------------------------------------------

class Layer(keras.layers.Layer):
    def call(self, x, scale=1.0):
        return x * scale


@dataclasses.dataclass
class Record:
    part: float
    rest: float


class Holder:
    def __init__(self):
        self.last, self.all = None, []


layer, dense, holder = Layer(), keras.layers.Dense(3, kernel_initializer="ones"), Holder()


def keeps(b):
    holder.last = b
    return b


def appended(x, b):
    holder.all.append(b)
    return x * b


def in_a_try(x, b):
    try:
        return x * b
    finally:
        pass


USES = {
    "branches": lambda x, b: x * b if b > 0.02 else x - b,
    "tests": lambda x, b: x * b if b else x,
    "chosen twice": lambda x, b: (x * b if b > 0.02 else x) + (1.0 if b * 10 <= 0.5 else 2.0),
    "compared and kept": lambda x, b: (x, b >= 0.02, keeps(b == 0.05)),
    "between": lambda x, b: x * b if 0.01 < b < 0.03 else x,
    "asks for what it is": lambda x, b: x * b if b is not None else x,
    "asks for its type": lambda x, b: x * b if isinstance(b, float) else x,
    "asks for its class": lambda x, b: x * b if type(b) is float else x,
    "calculates": lambda x, b: x * (b * 2.0) + b,
    "changes its sign": lambda x, b: x * -b,
    "in place": lambda x, b: _in_place(x, b),
    "the smaller": lambda x, b: x * min(b, 0.03),
    "absolute": lambda x, b: x * abs(b),
    "a cosine": lambda x, b: x * (0.5 * (1 + math.cos(math.pi * b))),
    "powers": lambda x, b: x * (2.0 ** b) + b ** 0.5 - 7 // b + b % 0.3,
    "appended": lambda x, b: appended(x, b * 2),
    "a data class": lambda x, b: (x * b, Record(b, 1 - b).rest),
    "twice as large": lambda x, b: (y := b + b) * x - y,
    "rounded": lambda x, b: x * round(b, 2),
    "converted": lambda x, b: x * float(b),
    "an integer": lambda x, b: x * float(int(b * 100)),
    "printed": lambda x, b: (x * b, f"{b:.3f}"),
    "formatted": lambda x, b: (x * b, "%s {}".format(b) % b),
    "a string": lambda x, b: (x * b, str(b) + repr(b)),
    "given": lambda x, b: (x * b, b),
    "given in a dict": lambda x, b: {"loss": x * b, "rate": b},
    "kept": lambda x, b: x * keeps(b),
    "in a list": lambda x, b: x * [b, b, 1.0],
    "summed": lambda x, b: x * sum([b, b]),
    "a key": lambda x, b: x * {b: 2.0}[b],
    "in a set": lambda x, b: x * b + float(len({b, 0.5})),
    "in a tuple": lambda x, b: x * b if (b, 1) != (0.05, 1) else x,
    "found": lambda x, b: x * b if b in (0.05, 0.1 / 3) else x,
    "a tensor": lambda x, b: x * tf.constant(b),
    "a tensor of several": lambda x, b: x * tf.constant([b, b, b]),
    "stacked": lambda x, b: x * tf.stack([b, b, 1.0]),
    "an argument": lambda x, b: tf.multiply(x, b),
    "an argument by name": lambda x, b: tf.clip_by_value(x, clip_value_min=0.0, clip_value_max=b),
    "of a layer": lambda x, b: layer(x, scale=b),
    "of a layer, in a list": lambda x, b: dense(x * b),
    "of numpy": lambda x, b: x * np.float32(b) + np.sqrt(b),
    "an array": lambda x, b: x * np.array([b, b, 1.0], np.float32),
    "an exponent": lambda x, b: x ** b,
    "a base": lambda x, b: b ** x,
    "compared with a tensor": lambda x, b: tf.cast(x > b, tf.float32),
    "modulo": lambda x, b: x % b,
    "floor division": lambda x, b: x // b,
    "matmul": lambda x, b: (x * b) @ tf.transpose(x),
    "a variable's": lambda x, b: variable * b + b * variable + x,
    "subtracted twice": lambda x, b: (x - b) - b + (b - x),
    "through a function": lambda x, b: (lambda y, *, c: y * c)(x, c=b),
    "through a closure": lambda x, b: (lambda y: y * b)(x),
    "through a list": lambda x, b: [x * c for c in [b, 2.0, b]],
    "through a dict": lambda x, b: dict(scale=b, other=1.0)["scale"] * x,
    "through zip": lambda x, b: [y * c for y, c in zip([x, x], [b, 1.0])],
    "through max by key": lambda x, b: max([x * b, x], key=lambda y: 1),
    "mapped": lambda x, b: tf.nest.map_structure(lambda c: x * c, [b, 1.0]),
    "raises": lambda x, b: x * b if x is not None else _raise(b),
    "in a try": in_a_try,
}
variable = tf.Variable([1.0, 2.0, 3.0])


def _in_place(x, b):
    b *= 2.0
    x += b
    return x


def _raise(b):
    raise ValueError(b)


SKIPPED = [
    "branches", "tests", "chosen twice", "compared and kept",
    "calculates", "changes its sign", "in place", "the smaller", "absolute", "rounded", "converted", "given", "given in a dict", "kept", "a cosine", "powers", "appended",
    "a data class", "twice as large",
    "asks for what it is", "asks for its type", "matmul", "a variable's", "subtracted twice", "through a function", "through a closure", "through a list", "through a dict", "through zip"]


@pytest.mark.parametrize("name", USES)
def test_uses(name):
    """`holder` is looked at in the end: what is kept must be this step's."""
    use = USES[name]

    def make():
        holder.last, holder.all = None, []
        return lambda x, b: use(tf.abs(x), b), lambda s, k: s(X[k % 3], rate(k)), lambda: (holder.last, holder.all)
    compare(make, whole=10 if name in SKIPPED else 0, express=0)


NEED_FLOAT32 = ("a tensor", "a tensor of several", "stacked")  # with the other kind they are errors
BOTH_KINDS = ("subtracted twice", "through a function", "through zip", "matmul")


@pytest.mark.parametrize("name, kind", [
    (name, kind) for k, name in enumerate(USES) for kind in (np.float32, np.float64)
    if (kind is np.float32 if name in NEED_FLOAT32 else name in BOTH_KINDS or kind is (np.float32, np.float64)[k % 2])])
def test_uses_of_numbers_of_numpys(name, kind):
    use = USES[name]

    def make():
        holder.last, holder.all = None, []
        return lambda x, b: use(tf.abs(x), b), lambda s, k: s(X[k % 3], kind(rate(k))), lambda: (holder.last, holder.all)
    compare(make, whole=10 if name in BOTH_KINDS else 0, express=0)


@pytest.mark.parametrize("name", USES)
def test_uses_of_what_changes_now_and_then(name):
    """A number that keeps its value for a while: steps are skipped in between, whatever is done with it."""
    use = USES[name]

    class Trainer:
        def step(self, x):
            return use(tf.abs(x), self.b)

    def make():
        trainer = Trainer()
        holder.last = None

        def call(step, k):
            trainer.b = [0.5, 0.25, 0.75, 0.25][k // 12]
            return step(X[k % 3])
        return trainer.step, call, lambda: (holder.last, trainer.b)
    compare(make, whole=0, express=0, n=48)


# -- what changes otherwise ----------------------------------------------------------------------------------------------------

def other_types():
    class Trainer:
        def step(self, x):
            return tf.abs(x) * self.b
    trainer = Trainer()

    def call(step, k):
        trainer.b = 2 if k in (20, 21) else tf.constant(3.0) if k == 24 else np.float32(k) if k == 26 else True if k == 28 else None if k == 30 else 0.5 + k
        return step(X[k % 3])
    return trainer.step, call, lambda: trainer.b


def other_arguments():
    return lambda x, b: tf.abs(x) * b, lambda s, k: s(X[k % 3], 2 if k in (20, 21) else tf.constant(3.0) if k == 24 else np.float32(k) if k == 26 else None if k == 30 else 0.5 + k)


def one_object_in_two_places():
    class Trainer:
        def step(self, x, c):
            return tf.abs(x) * self.a - self.b * x + c
    trainer = Trainer()

    def call(step, k):
        value = 0.5 + k
        trainer.a = trainer.b = value
        if k > 24:
            trainer.b = 100.0 + k
        return step(X[k % 3], value if k < 30 else 7.0)
    return trainer.step, call, lambda: (trainer.a, trainer.b)


def one_that_the_step_changes():
    class Trainer:
        beta, ema = 1.0, 0.0

        def step(self, x):
            y = tf.abs(x) * self.beta + self.ema
            self.beta *= 0.9
            self.ema = 0.5 * self.ema + 1.0
            return y
    trainer = Trainer()
    return trainer.step, lambda s, k: s(X[k % 3]), lambda: (trainer.beta, trainer.ema)


def one_in_a_property():
    class Trainer:
        _beta = 0.5

        @property
        def beta(self):
            return self._beta

        def step(self, x):
            return tf.abs(x) * self.beta
    trainer = Trainer()

    def call(step, k):
        trainer._beta = rate(k)
        return step(X[k % 3])
    return trainer.step, call, lambda: trainer.beta


def one_that_goes():
    class Trainer:
        beta = 3.0

        def step(self, x):
            return tf.abs(x) * self.beta
    trainer = Trainer()

    def call(step, k):
        trainer.beta = rate(k)
        if k % 8 == 7:
            del trainer.beta
        return step(X[k % 3])
    return trainer.step, call, lambda: trainer.beta


def one_in_a_list_that_shrinks():
    rates = [0.5, 0.25]

    def call(step, k):
        rates[:] = [rate(k), rate(2 * k)] if k % 6 else [rate(k)]
        return step(X[k % 3])
    return lambda x: tf.abs(x) * rates[0] + rates[len(rates) - 1], call, rates


@pytest.mark.parametrize("make", [
    other_types, other_arguments, one_object_in_two_places, one_in_a_property, one_that_goes, one_in_a_list_that_shrinks])
def test_changes_of_another_kind(make):
    compare(make, whole=0, express=0, n=48)


def test_one_object_in_two_places_is_two_numbers():
    assert compare(one_object_in_two_places, whole=0, express=0, n=48).stats().whole_steps >= 10


def decays():
    class Agent:
        epsilon, rates = 1.0, {"alpha": 0.5}

        def step(self, x):
            y = tf.abs(x) * self.epsilon
            self.epsilon = max(0.2, self.epsilon * 0.95)
            self.rates["alpha"] *= 0.5
            return y - self.epsilon + self.rates["alpha"], self.epsilon
    agent = Agent()
    return agent.step, lambda s, k: s(X[k % 3]), lambda: (agent.epsilon, agent.rates)


def swaps():
    class Agent:
        a, b = 1.0, 2.0

        def step(self, x):
            self.a, self.b = self.b, self.a
            return tf.abs(x) * self.a
    agent = Agent()
    return agent.step, lambda s, k: s(X[k % 3]), lambda: (agent.a, agent.b)


def warms_up():
    """A number that a run has set is another one when it is read again."""
    class Agent:
        rate = 0.0

        def step(self, x, top):
            self.rate = self.rate + (top - self.rate) * 0.1
            self.rate += 0.01
            return tf.abs(x) * self.rate, self.rate
    agent = Agent()
    return agent.step, lambda s, k: s(X[k % 3], 1.0 + k), lambda: agent.rate


@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("make", [one_that_the_step_changes, decays, swaps, warms_up])
def test_numbers_that_the_step_itself_changes(make, options):
    compare(make, **options)


@pytest.mark.parametrize("use", [
    lambda x, b: (tf.abs(x), 1 / b)[0], lambda x, b: tf.abs(x) * (1 / b), lambda x, b: (tf.abs(x), math.log(b + 0.5)), lambda x, b: (tf.abs(x), 2.0 ** (b * 40)),
    lambda x, b: (tf.abs(x), (b - 0.5) ** 0.5)])
def test_calculations_that_raise_or_give_something_else(use):
    """`b` is 0 at times, negative, large: the run raises (or the power is complex), whether or not the result is used."""
    def make():
        return lambda x, b: use(x, b), lambda s, k: s(X[k % 3], [0.7, 1.5, -2.0, 0.25, 0.0, 50.0][k % 6] if k > 20 else 1.0 + k)

    results = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        step, call = make()
        step, seen = wrap(step), []
        for k in range(48):
            try:
                seen.append(plain(call(step, k)))
            except (ArithmeticError, ValueError) as error:
                seen.append((type(error).__name__, str(error)))
        results.append(seen)
    assert results[0] == results[1]
    assert any(type(x) is tuple and x[0].endswith("Error") for x in results[0]) or any("complex" in str(x) for x in results[0])
    assert step.stats().whole_steps >= 8, terra.explain(step)


def test_explain_names_them():
    for make, names in ((argument, "lr"), (of_numpy, "beta, lr"), (item, "[1], beta"), (cell, "what a closure holds")):
        assert f"Numbers that vary, and count as arguments: {names}." in terra.explain(compare(make), full=True)


def test_arrays_and_numbers():
    def make():
        rng = np.random.RandomState(0)
        arrays = [rng.rand(2, 3).astype("float32") for _ in range(N)]
        return lambda a, b, c: tf.convert_to_tensor(a) * b + tf.reduce_sum(a) * c - tf.convert_to_tensor(a), lambda s, k: s(arrays[k], rate(k), arrays[0][0, 0] * 1.0 + float(k))
    compare(make, whole=0, express=0)


def test_a_number_and_carried_state():
    class Trainer:
        def __init__(self):
            self.state = tf.zeros((2, 3))

        def step(self, x, decay):
            self.state = tf.abs(self.state * decay) + x * (self.weight - decay)
            return self.state, decay * x

    def make():
        trainer = Trainer()

        def call(step, k):
            trainer.weight = 1.0 + k
            return step(X[k % 3], rate(k))
        return trainer.step, call, lambda: trainer.state
    compare(make)


def test_numbers_stay_floats_and_equal():
    class Trainer:
        def step(self, x):
            return tf.abs(x) * self.b

    trainer = Trainer()
    step = terra.coexecute(trainer.step, wait_for_graph=True)
    for k in range(N):
        trainer.b = value = rate(k)
        step(X[k % 3])
        assert type(trainer.b) is float and trainer.b == value and vars(trainer) == {"b": value}
    assert step.stats().whole_steps >= 10


# -- calls that make a tensor of a number ----------------------------------------------------------------------------------------

weight, kept = tf.Variable([1.0, 2.0, 3.0]), keras.Variable(0.5)
CALLS = {
    "constant": lambda x, b: x * tf.constant(b) + tf.constant(b, dtype=tf.float32),
    "constant of another type": lambda x, b: tf.cast(x, tf.float64) * tf.constant(b, dtype="float64"),
    "convert": lambda x, b: x - tf.convert_to_tensor(b),
    "cast": lambda x, b: x * tf.cast(b, tf.float32) + tf.cast(tf.cast(b, tf.float64), tf.float32),
    "multiply": lambda x, b: tf.multiply(x, b) + tf.multiply(b, x),
    "others": lambda x, b: tf.add(x, b) + tf.subtract(b, x) + tf.divide(x, b) + tf.maximum(x, b) + tf.minimum(b, x),
    "pow": lambda x, b: tf.pow(x, b),
    "clip": lambda x, b: tf.clip_by_value(x, -b, b),
    "of a variable": lambda x, b: tf.multiply(weight, b) + x,
    "assign": lambda x, b: (scalar.assign(b), scalar * tf.cast(x, tf.float64)),
    "assign_sub": lambda x, b: (scalar.assign_sub(b), scalar + 1.0),
    "assign, Keras": lambda x, b: (kept.assign(b), kept * x),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_make_a_tensor_of_it(name):
    use = CALLS[name]

    def make():
        kept.assign(0.5)
        scalar.assign(0.5)

        def step(x, b):
            return [y + 0 for y in tf.nest.flatten(use(tf.abs(x), b))]
        return step, lambda s, k: s(X[k % 3], rate(k)), lambda: (kept.value, scalar)
    compare(make)


@pytest.mark.parametrize("use", [
    lambda x, b: tf.constant(b, shape=(2, 3)) * x, lambda x, b: tf.constant(b, dtype=tf.complex64) * tf.cast(x, tf.complex64), lambda x, b: tf.cast(b, tf.int32) + 1,
    lambda x, b: float(tf.constant(b)) * x, lambda x, b: x * b if tf.constant(b) > 0.02 else x, lambda x, b: tf.multiply(b, 2.0) * x, lambda x, b: tf.constant(b),
    lambda x, b: tf.multiply(tf.cast(x, tf.int32), int(b * 100)), lambda x, b: tf.where(x > b, x, b), lambda x, b: tf.fill([2], b)])
def test_calls_that_do_something_else_with_it(use):
    compare(lambda: (lambda x, b: use(tf.abs(x), b), lambda s, k: s(X[k % 3], rate(k))), whole=0, express=0)


# -- learning rates ------------------------------------------------------------------------------------------------------------

def trained(how, make_optimizer=lambda: keras.optimizers.SGD(0.5), number=lambda k: rate(k)):
    def make():
        w = keras.Variable(np.ones((3, 2), "float32"))
        optimizer = make_optimizer()
        optimizer.build([w])

        class Trainer:
            steps = 0

            def step(self, x, lr):
                self.steps += 1
                how(self, optimizer, lr)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
                optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
                return loss

        trainer = Trainer()
        return trainer.step, lambda s, k: s(X[k % 3], number(k)), lambda: (w.value, optimizer.learning_rate if not hasattr(optimizer.learning_rate, "value") else optimizer.learning_rate.value)
    return make


def sets(trainer, optimizer, lr):
    optimizer.learning_rate = lr


def assigns(trainer, optimizer, lr):
    optimizer.learning_rate.assign(lr)


def cosine(trainer, optimizer, lr):
    optimizer.learning_rate = 0.5 * lr * (1 + math.cos(math.pi * trainer.steps / 50))


def warm_up(trainer, optimizer, lr):
    optimizer.learning_rate = min(1.0, trainer.steps / 10) * 0.3


def by_epoch(trainer, optimizer, lr):
    optimizer.learning_rate = 0.1 if trainer.steps % 10 < 5 else 0.1 / trainer.steps


class Doubling(keras.optimizers.SGD):
    """Its learning rate is twice what it is set to."""

    @property
    def learning_rate(self):
        return keras.optimizers.SGD.learning_rate.fget(self)

    @learning_rate.setter
    def learning_rate(self, value):
        keras.optimizers.SGD.learning_rate.fset(self, 2 * value)


class Plain(keras.optimizers.SGD):
    pass


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("how", [sets, assigns, cosine, warm_up])
def test_learning_rates(how, options):
    compare(trained(how), **options)


@pytest.mark.share(2)
@pytest.mark.parametrize("optimizer", [
    lambda: keras.optimizers.Adam(0.1), lambda: Plain(0.1), lambda: Doubling(0.1), lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))])
@pytest.mark.parametrize("how", [sets, cosine])
def test_optimizers(how, optimizer):
    compare(trained(how, optimizer), whole=0, express=0)


def test_a_rate_that_is_something_else_at_times():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    values = [0.1, 0.2, 0.3, 1, tf.constant(0.25), 2, 0.5, np.float32(0.125)]
    compare(trained(sets, number=lambda k: rate(k) if k < 20 else schedule if k > 44 else values[k % 8]), whole=4, express=0, n=48)
    compare(trained(by_epoch), whole=0, express=0)


# -- counters ------------------------------------------------------------------------------------------------------------------

def anneals():
    class Trainer:
        def __init__(self):
            self.n, self.total, self.log = 0, 40, {"seen": 0}

        def step(self, x):
            before = self.n / self.total
            self.n += 1
            self.log["seen"] += 2
            return tf.abs(x) * (self.n / self.total) + before + self.log["seen"] * 0.5 - 1.0 / self.n
    trainer = Trainer()
    return trainer.step, lambda s, k: s(X[k % 3]), lambda: (trainer.n, trainer.log)


def counted_outside():
    """Numbers that the loop counts, and what is asked about them."""
    class Trainer:
        def step(self, x):
            y = tf.abs(x) * (1.0 / (self.epoch + 1)) * (0.5 * self.beta)
            if self.epoch % 4 == 0:
                y = y + 1.0
            if self.beta > 0.5:
                y = y - 3.0
            return y
    trainer = Trainer()

    def call(step, k):
        trainer.epoch, trainer.beta = k, k / 30
        return step(X[k % 3])
    return trainer.step, call, lambda: (trainer.epoch, trainer.beta)


def counted_by_hand():
    class Trainer:
        n = 0

        def step(self, x):
            self.n = self.n + 1
            return tf.abs(x) * (self.n / 10)
    trainer = Trainer()
    return trainer.step, lambda s, k: s(X[k % 3]), lambda: trainer.n


def either_or():
    """`or` gives what its operand is, not whether it is true."""
    class Trainer:
        n = 0

        def step(self, x):
            y = tf.abs(x) * float((self.n * 2) or 7.0) + float(self.n % 3 and 5)
            self.n += 1
            return y
    trainer = Trainer()
    return trainer.step, lambda s, k: s(X[k % 3]), lambda: trainer.n


def looked_at_later():
    """What is calculated of a counter only, and has a name then."""
    class Trainer:
        n = 0

        def step(self, x):
            self.n += 1
            r = self.n / 10
            y = tf.abs(x) * r
            if r > 2.5:
                y = y + 1.0
            return y
    trainer = Trainer()
    return trainer.step, lambda s, k: s(X[k % 3]), lambda: trainer.n


def divides_by_what_is_zero_at_times():
    class Trainer:
        n = 0

        def step(self, x):
            self.n += 1
            y = tf.abs(x) * (self.n / 10)
            return y + (1 / (self.n % 5) if self.n > 22 else 0.0)
    trainer = Trainer()

    def call(step, k):
        try:
            return step(X[k % 3])
        except ZeroDivisionError as error:
            return str(error)
    return trainer.step, call, lambda: trainer.n


def counter_that_becomes_something_else():
    class Trainer:
        n = 0

        def step(self, x):
            self.n += 1
            return tf.abs(x) * (self.n / 10)
    trainer = Trainer()

    def call(step, k):
        if k in (20, 30):
            trainer.n = 0.5 if k == 20 else True
        if k == 25:
            trainer.n = 1000
        return step(X[k % 3])
    return trainer.step, call, lambda: trainer.n


@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("make", [anneals, counted_outside])
def test_what_is_calculated_of_counters(make, options):
    compare(make, n=48, **options)


@pytest.mark.parametrize("make", [counted_by_hand, either_or, looked_at_later, divides_by_what_is_zero_at_times, counter_that_becomes_something_else])
def test_other_counters(make):
    compare(make, whole=0, express=0, n=48)
