"""Features of the Python language inside a step."""
import concurrent.futures
import contextlib
import functools
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import keras
import tensorflow as tf

from . import Args, Program, program
from ._common import floats, tensor, tensors

SCALE = 1.0


@program("inner_function_and_closure")
def _():
    v, factor = tf.Variable(1.0), 2.0

    def make(power):
        def raised(x):
            return tf.pow(tf.abs(x), power) * factor
        return raised

    def step(x):
        square, root = make(2.0), make(0.5)

        def combined(value):
            return square(value) + root(value) * v

        v.assign_add(0.5)
        return combined(x)

    return Program(step, tensors(3), lambda: v)


@program("nonlocal_counter")
def _():
    count = 0
    best = None

    def step(x):
        nonlocal count, best
        count += 1
        score = tf.reduce_max(x) / float(count)
        if best is None or score > best:
            best = score
        return best, count

    return Program(step, tensors(3), lambda: [count, best])


@program("lambdas")
def _():
    activation = lambda x: tf.nn.elu(x) + 1.0  # noqa: E731
    layers = [lambda x, i=i: x * (i + 1.0) for i in range(3)]

    def step(x):
        for layer in layers:
            x = activation(layer(x))
        return (lambda *a, **k: tf.add_n(list(a)) * k["scale"])(x, x, scale=0.5)

    return Program(step, tensors(3))


@program("lambda_as_the_step")
def _():
    v = tf.Variable(2.0)
    return Program(lambda x: v * x + tf.reduce_sum(x), tensors(3), lambda: v)


class Trainer:
    rate = 0.1

    def __init__(self):
        self.w = tf.Variable(floats(3, 1))
        self.steps = 0

    def loss(self, x):
        return tf.reduce_mean(tf.square(x @ self.w - self.target))

    @property
    def target(self):
        return float(self.steps % 2)

    def train(self, x):
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        self.update(tape.gradient(loss, self.w))
        self.steps += 1
        return loss

    def update(self, gradient):
        self.w.assign_sub(self.rate * gradient)


class MomentumTrainer(Trainer):
    def __init__(self):
        super().__init__()
        self.velocity = tf.Variable(tf.zeros([3, 1]))

    def loss(self, x):
        return super().loss(x) + self.penalty(self.w)

    @staticmethod
    def penalty(w):
        return 0.1 * tf.nn.l2_loss(w)

    @classmethod
    def decay(cls):
        return 1.0 - cls.rate

    def update(self, gradient):
        self.velocity.assign(self.decay() * self.velocity + gradient)
        super().update(self.velocity)


@program("bound_method")
def _():
    trainer = Trainer()
    return Program(trainer.train, tensors(4, 3), lambda: [trainer.w, trainer.steps])


@program("class_hierarchy_with_super")
def _():
    trainer = MomentumTrainer()
    return Program(trainer.train, tensors(4, 3), lambda: [trainer.w, trainer.velocity, trainer.steps])


class CallableStep:
    def __init__(self):
        self.v = tf.Variable(1.0)

    def __call__(self, x, *, scale=1.0):
        self.v.assign_add(tf.reduce_mean(x))
        return self.v * scale


@program("callable_object")
def _():
    step = CallableStep()
    return Program(step, [Args(x, scale=s) for (x,), s in zip(tensors(3), (1.0, 2.0))], lambda: step.v)


@program("partial_object")
def _():
    v = tf.Variable(1.0)

    def step(scale, x, *, offset):
        v.assign(v * scale)
        return x * v + offset

    return Program(functools.partial(step, 0.5, offset=1.0), tensors(3), lambda: v)


@program("arguments_of_every_kind")
def _():
    def step(a, /, b, c=2.0, *rest, d, e=0.5, **more):
        total = a * b + c * d - e
        for extra in rest:
            total += extra
        for name in sorted(more):
            total *= more[name]
        return total, list(more)

    x, y = tensor(3, seed=1), tensor(3, seed=2)
    return Program(step, [Args(x, y, d=3.0), Args(x, y, 1.0, y, y, d=2.0, e=x, scale=y, bias=x)])


@program("generators")
def _():
    def windows(x, size):
        for start in range(0, x.shape[0] - size + 1):
            yield x[start:start + size]

    def scaled(x):
        yield from (w * 2.0 for w in windows(x, 2))
        yield tf.zeros([2])

    def step(x):
        pieces = scaled(x)
        first = next(pieces)
        rest = tf.stack(list(pieces))
        half_used = windows(x, 3)
        next(half_used)
        return first, tf.reduce_sum(rest, axis=0), max(float(w[0]) for w in windows(x, 1))

    return Program(step, tensors(5))


@program("generator_that_lives_across_steps")
def _():
    v = tf.Variable(1.0)

    def schedule():
        rate = tf.constant(1.0)
        while True:
            rate = rate * 0.8
            yield rate

    rates = schedule()

    def step(x):
        v.assign_sub(next(rates) * tf.reduce_mean(x))
        return v + 0.0

    return Program(step, tensors(3), lambda: v)


@program("context_managers")
def _():
    log = []

    @contextlib.contextmanager
    def scaled(factor):
        log.append("enter")
        try:
            yield tf.constant(factor)
        finally:
            log.append("exit")

    def step(x):
        with scaled(2.0) as two, tf.name_scope("block"), contextlib.suppress(KeyError):
            x = x * two
            {}["missing"]
        with contextlib.ExitStack() as stack:
            factors = [stack.enter_context(scaled(f)) for f in (0.5, 0.25)]
            return x * factors[0] + factors[1]

    return Program(step, tensors(3), lambda: log)


@program("comprehensions_over_layers")
def _():
    layers = [keras.layers.Dense(n, "relu") for n in (4, 3)]

    def step(x):
        outputs = [layer(x) for layer in layers]
        norms = {layer.name: tf.norm(layer.kernel) for layer in layers if layer.units > 3}
        shapes = {tuple(o.shape) for o in outputs}
        total = sum(tf.reduce_sum(v) for layer in layers for v in layer.variables)
        return outputs, norms, shapes, total

    return Program(step, tensors(2, 5), lambda: [layer.variables for layer in layers])


@program("map_zip_sorted_itertools")
def _():
    def step(x):
        rows = sorted(x, key=lambda row: float(tf.reduce_sum(row)))
        pairs = [tf.tensordot(a, b, 1) for a, b in itertools.combinations(rows, 2)]
        doubled = list(map(lambda row: row * 2.0, filter(lambda row: row[0] > 0, rows)))
        return tf.stack(pairs), doubled, functools.reduce(tf.maximum, rows), any(p > 0 for p in pairs)

    return Program(step, tensors(3, 2))


@program("try_except_else_finally")
def _():
    log, v = [], tf.Variable(0.0)

    def checked(x):
        if float(tf.reduce_sum(x)) < 0.0:
            raise ValueError("negative")
        return tf.sqrt(tf.reduce_sum(x))

    def step(x):
        try:
            root = checked(x)
        except ValueError as error:
            log.append(str(error))
            root = tf.constant(-1.0)
        else:
            log.append("fine")
        finally:
            v.assign_add(1.0)
        return root * v

    return Program(step, [(tf.constant([1.0, 2.0]),), (tf.constant([-1.0, -2.0]),)], lambda: [log, v])


@program("return_in_finally_and_loops")
def _():
    log = []

    def find(x):
        for i in range(3):
            try:
                if x[i] > 0:
                    return x[i] * 10.0
            finally:
                log.append(i)
        return tf.constant(0.0)

    return Program(lambda x: find(x) + find(-x), [(tf.constant([-1.0, 2.0, 3.0]),), (tf.constant([1.0, 2.0, -3.0]),)],
                   lambda: log)


@dataclass
class Point:
    x: tf.Tensor
    y: tf.Tensor

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __mul__(self, factor):
        return Point(self.x * factor, self.y * factor)

    __rmul__ = __mul__

    def __getitem__(self, i):
        return (self.x, self.y)[i]


@program("operator_overloading_on_user_classes")
def _():
    def step(x, y):
        p = Point(x, y)
        q = 2.0 * p + p * x
        return q, q[0] - q[1]

    return Program(step, [(tensor(3, seed=s), tensor(3, seed=s + 1)) for s in (1, 3)])


@program("decorated_helpers")
def _():
    calls = []

    def logged(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            calls.append(fn.__name__)
            return fn(*args, **kwargs)
        return wrapper

    @logged
    def double(x):
        return x * 2.0

    @functools.lru_cache
    def table(n):
        calls.append(n)
        return tf.range(float(n))

    def step(x):
        return double(x) + table(3)

    return Program(step, tensors(3), lambda: calls)


@program("walrus_star_and_unpacking")
def _():
    def step(x):
        if (total := tf.reduce_sum(x)) > 0:
            total = -total
        first, *middle, last = tf.unstack(x)
        options = {"axis": 0, **{"keepdims": True}}
        return tf.reduce_mean(tf.stack([*middle, first]), **options), last, (total, *middle)

    return Program(step, [(tf.constant([1.0, 2.0, 3.0, 4.0]),), (tf.constant([-1.0, -2.0, 3.0, -4.0]),)])


@program("classes_defined_in_the_step")
def _():
    def step(x):
        class Layer:
            weight = tf.reduce_mean(x)

            def __call__(self, value):
                return value * self.weight

        state = SimpleNamespace(layer=Layer(), value=x)
        state.value = state.layer(state.value)
        return state.value

    return Program(step, tensors(3))


@program("python_scalars_that_change_each_step")
def _():
    v = tf.Variable(tf.ones([4]))

    def step(x, i, keep_prob):
        v.assign(v * keep_prob + x / (i + 1))
        return tf.reduce_sum(v) * i, i * 2, keep_prob ** 2

    x = tensors(4)
    return Program(step, lambda i: (x[i % 2][0], i, 1.0 - 0.05 * i), lambda: v)


@program("global_read_and_written")
def _():
    global SCALE
    SCALE = 1.0

    def step(x):
        global SCALE
        SCALE = SCALE * 0.5 + 1.0
        return x * SCALE

    return Program(step, tensors(3), lambda: SCALE)


@program("while_true_with_iterators")
def _():
    def step(x):
        rows, total = iter(tf.unstack(x)), tf.zeros([2])
        while True:
            try:
                total = total * 0.5 + next(rows)
            except StopIteration:
                return total

    return Program(step, tensors(3, 2))


@program("same_helper_called_from_many_places")
def _():
    v = tf.Variable(1.0)

    def bump(x):
        v.assign_add(0.1)
        return x * v

    def step(x, twice):
        y = bump(x) + bump(bump(x))
        return bump(y) if twice else y

    return Program(step, [(tensor(3, seed=1), True), (tensor(3, seed=2), False)], lambda: v)


@program("worker_threads_in_the_step")
def _():
    v = tf.Variable(1.0)

    def step(x):
        y = x * v
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            total, norm = pool.map(lambda op: op(y), (tf.reduce_sum, tf.norm))
        v.assign(0.5 * v + 0.1 * total)
        return norm + v

    return Program(step, tensors(3), lambda: v)


@program("distribution_strategy_with_one_replica")
def _():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        w = tf.Variable(floats(3, 1))

    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    return Program(step, tensors(4, 3), lambda: w)


@program("devices_and_name_scopes")
def _():
    v = tf.Variable(1.0)

    def step(x):
        with tf.device("CPU:0"), tf.name_scope("outer"):
            y = tf.identity(x * v, name="y")
        with tf.init_scope():
            z = y + 1.0
        with tf.control_dependencies([v.assign_add(1.0)]):
            return tf.nest.map_structure(tf.stop_gradient, [y, z, v * 1.0]), y.device == z.device

    return Program(step, tensors(3), lambda: v)
