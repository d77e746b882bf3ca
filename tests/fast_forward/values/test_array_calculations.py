"""What NumPy calculates of arrays that vary is calculated again before a step is skipped: of the step's arguments, of what it draws, of numbers; with what warnings and errors come of it."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from tests.harness import compare_steps
from tests.variants import examples

ROWS = np.random.RandomState(0).rand(50, 3).astype(np.float32)
BATCHES = [np.random.RandomState(k).rand(4, 3) for k in range(5)]
LABELS = [np.random.RandomState(k).randint(0, 3, 4) for k in range(5)]
W = tf.Variable(np.random.RandomState(9).rand(3, 2), dtype=tf.float32)


class Holder:
    pass


holder = Holder()


def net(x):
    return tf.tanh(tf.matmul(x, W))


def normalised(x):
    return ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype("float32")


USES = {
    "scaled": lambda x, y: net((x / 255.0).astype(np.float32)),
    "given a type": lambda x, y: net(tf.constant(x, tf.float32)),
    "given a type by a name": lambda x, y: net(tf.convert_to_tensor(x, dtype=tf.float32)),
    "a row more": lambda x, y: net(x[None, 0].astype("float32")),
    "expanded": lambda x, y: net(np.expand_dims(x[1], 0).astype("float32")),
    "reversed": lambda x, y: net(x[::-1].astype("float32")),
    "normalised": lambda x, y: net(normalised(x)),
    "transposed": lambda x, y: net((x.T @ x).astype("float32")),
    "concatenated": lambda x, y: net(np.concatenate([x, -x]).astype("float32")),
    "stacked": lambda x, y: tf.reduce_sum(np.stack((x, x * 2.0)).astype("float32"), 0) + 0.0 * tf.abs(W[0, 0]),
    "one hot": lambda x, y: net(tf.constant(x, tf.float32))[:, :1] * tf.constant(np.eye(3, dtype=np.float32)[y]),
    "compared": lambda x, y: tf.where(tf.constant(x > 0.5), tf.constant(x, tf.float32), 0.0) + W[0, 0],
    "where": lambda x, y: net(np.where(x > 0.5, x, 0.0).astype("float32")),
    "rows of others": lambda x, y: net(ROWS[y]),
    "a number": lambda x, y: W * x.mean(),
    "a number of NumPy's": lambda x, y: W * np.float32(np.max(x) - np.min(x)),
    "a float": lambda x, y: W * float(np.median(x)),
    "its shape": lambda x, y: net(x.astype("float32")) / float(len(x) * x.shape[1]),
    "a power": lambda x, y: net(np.power(x, 2).astype("float32") ** 0.5),
    "by its unary operators": lambda x, y: net((-x + abs(x)).astype("float32")),
    "by a function": lambda x, y: net(np.clip(np.exp(x) - 1, 0.0, 1.0).astype("float32")),
    "given back": lambda x, y: (net(x.astype("float32")), x * 2.0, y + 1),
    "given back twice": lambda x, y: _twice(net(x.astype("float32")), x * 3.0),
    "a number that is given back": lambda x, y: (net(x.astype("float32")), x.mean(), x[0, 0]),
    "kept": lambda x, y: _kept(x),
    "late, with what is given": lambda x, y: np.mean(np.argmax(net(x.astype("float32")).numpy(), -1) == y),
    "as it is, besides": lambda x, y: net(tf.cast(x, tf.float32)) + tf.cast(x[:, :2].copy(), tf.float32),
    "as it is": lambda x, y: net(tf.cast(np.asarray(x), tf.float32)),
}
# What has to be looked at, since it may do something else the next time.
OTHERS = {
    "a mask": lambda x, y: tf.reduce_sum(net(x[x[:, 0] > 0.5].astype("float32")), 0),
    "changed in place": lambda x, y: net(_changed(x.astype("float32"))),
    "set": lambda x, y: net(_set(x.astype("float32"))),
    "a branch": lambda x, y: net(x.astype("float32")) * (1.0 if x.mean() > 0.5 else 2.0),
    "a loop": lambda x, y: tf.add_n([net(row[None].astype("float32")) for row in x]),
    "an integer": lambda x, y: net(x.astype("float32"))[int(y[0]) % 2],
    "written into": lambda x, y: net(np.multiply(x, 2.0, out=np.empty_like(x)).astype("float32")),
    "printed": lambda x, y: (net(x.astype("float32")), f"{x.mean():.3f}"),
    "a function of the user's": lambda x, y: net(np.apply_along_axis(lambda row: row * 2.0, 0, x).astype("float32")),
    "objects": lambda x, y: net(np.array([list(row) for row in x], dtype=np.float32)),
    "an index out of range": lambda x, y: net(ROWS[y * 20]),
    "a singular matrix": lambda x, y: W[0, 0] * tf.constant(np.linalg.inv(x[:3] * (y[0] > 0)), tf.float32),
}


def _twice(y, x):
    return y, x, [x]


def _kept(x):
    holder.last, holder.mean = x * 2.0, x.mean()
    return net(holder.last.astype("float32"))


def _changed(x):
    x *= 2.0
    return x


def _set(x):
    x[0] = 1.0
    return x


def run(use, **options):
    def make():
        holder.last = holder.mean = None
        return use, lambda s, k: s(BATCHES[k % 5].copy(), LABELS[k * 2 % 5].copy()), lambda: vars(holder)
    return compare_steps(make, **options)


@pytest.mark.parametrize("name", USES)
def test_is_calculated_again(name):
    run(USES[name])


@pytest.mark.parametrize("name", ["normalised", "one hot", "given back", "kept", "late, with what is given", "a number", "given a type"])
def test_verified(name):
    run(USES[name], verify=True)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_looked_at(name):
    run(OTHERS[name], whole=0, express=0)


def test_other_types_and_shapes():
    kinds = [np.float32, np.float64, np.uint8, np.int64]

    def make():
        return lambda x: net((x / 2).astype("float32")), lambda s, k: s((ROWS[k % 7:][:2 + k // 30] * 200).astype(kinds[k // 15 % 4])), lambda: ()
    compare_steps(make, n=120, whole=30, express=4)


def test_arrays_that_are_changed_or_replaced_in_between():
    """An array that is the same object each time is not looked into: what is in it then counts."""
    class Data:
        pass

    def make():
        data = Data()
        data.rows, data.mean = ROWS.copy(), ROWS.mean(0)
        rng = np.random.default_rng(1)

        def step():
            return net(data.rows[rng.integers(0, 50, 4)] - data.mean)

        def call(step, k):
            if k % 5 == 4:
                data.rows *= 1.1
            if k == 20:
                data.rows = ROWS[::-1].copy()
            if k == 30:
                data.rows = ROWS.astype(np.float64).astype(np.float32).tolist() and np.zeros_like(ROWS)
            return step()
        return step, call, lambda: rng.random()
    compare_steps(make)


def test_arrays_and_numbers_that_vary():
    class Trainer:
        def step(self, x, rate):
            self.scale = rate * 0.5
            return net((x * rate + np.sqrt(self.decay)).astype("float32")) * (x.max() * self.decay) + np.float32(rate)

    def make():
        trainer = Trainer()

        def call(step, k):
            trainer.decay = 0.9 ** k
            return step(BATCHES[k % 5], 1.0 / (k + 1))
        return trainer.step, call, lambda: trainer.scale
    compare_steps(make)


def test_mixup():
    def make():
        rng = np.random.RandomState(3)

        def step(x, y):
            share, order = rng.beta(0.4, 0.4), rng.permutation(len(x))
            mixed = share * x + (1.0 - share) * x[order]
            with tf.GradientTape() as tape:
                logits = tf.pad(net(mixed.astype("float32")), [[0, 0], [0, 1]])
                losses = share * tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits) + (1.0 - share) * tf.nn.sparse_softmax_cross_entropy_with_logits(y[order], logits)
            W.assign_sub(0.01 * tape.gradient(losses, W))
            return tf.reduce_mean(losses)
        W.assign(np.random.RandomState(9).rand(3, 2))
        return step, lambda s, k: s(BATCHES[k % 5], LABELS[k % 5]), lambda: (W, rng.rand())
    compare_steps(make)


@pytest.mark.parametrize("state", [{}, {"all": "ignore"}, {"divide": "raise"}])
@pytest.mark.parametrize("action", ["default", "error", "always"])
def test_warnings_and_errors_are_eagers(state, action):
    """Some of the batches hold zeros. What NumPy warns of tells the step's line, however the step runs."""
    def step(x):
        y = 1.0 / x
        return net(np.minimum(y, 9.0).astype("float32")), np.log(x - 1.0).shape

    def runs(step):
        found = []
        for k in range(30):
            x = BATCHES[k % 5] + 1.0
            x[k % 4] *= k % 7 != 6
            with warnings.catch_warnings(record=True) as caught, np.errstate(**state):
                warnings.simplefilter(action)
                try:
                    found.append([repr(v) for v in step(x)])
                except (RuntimeWarning, FloatingPointError) as error:
                    found.append(repr(error))
            found.append(sorted({(str(w.message), w.category, w.filename, w.lineno) for w in caught}))
        return found

    wrapped = terra.coexecute(step, wait_for_graph=True)
    assert runs(wrapped) == runs(step)
    assert wrapped.stats().coexecuted_steps >= 12


def test_a_callers_array_that_is_changed_afterwards():
    """Results that look into an argument go on doing so."""
    def step(x):
        return x[1:], tf.reduce_sum(net(x.astype("float32")))

    wrapped = terra.coexecute(step, wait_for_graph=True)
    for k in range(30):
        x = BATCHES[k % 5].copy()
        view, total = wrapped(x)
        expected = float(step(x)[1])
        x[2] = 7.0
        assert np.shares_memory(view, x) and view[1, 0] == 7.0 and float(total) == expected
    assert wrapped.stats().whole_steps >= 10


# -- random programs -----------------------------------------------------------------------------------------------------------

UNARY = ["-{a}", "{a}.astype(np.float32)", "{a}[::-1]", "{a}.T.copy().T", "np.abs({a})", "np.tanh({a})", "{a}[rows]", "{a}.reshape(3, 4).reshape(4, 3)", "np.flip({a}, 1)",
         "({a} - {a}.mean())", "{a} * {a}.std()", "np.clip({a}, -1, 1)", "{a}[[0, 2, 1, 3]]", "np.where({a} > 0.3, {a}, 0)", "np.roll({a}, 1, 0)", "np.sort({a}, axis=0)", "{a} * s"]
BINARY = ["{a} + {b}", "{a} * {b}", "{a} - {b}", "np.maximum({a}, {b})", "np.where({a} > {b}, {a}, {b})", "np.concatenate([{a}[:2], {b}[2:]])", "{a} / ({b} * {b} + 1)", "np.stack([{a}, {b}]).sum(0)"]
RESULTS = ["net(tf.constant({a}, tf.float32))", "tf.reduce_sum(net({a}.astype('float32')))", "net({a}.astype('float32')) * {b}.mean()", "{a}", "{a}.max()",
           "np.argmax(net({a}.astype('float32')).numpy(), -1)", "np.sum(net({a}.astype('float32')).numpy() * {b}[:, :2])", "float({a}[0, 0])"]


@st.composite
def programs(draw):
    names, lines = ["x", "d"], ["d = rng.random((4, 3)) - 0.5", "rows = rng.integers(0, 4, 4)"]
    for k in range(draw(st.integers(1, 6))):
        form = draw(st.sampled_from(UNARY + BINARY))
        lines.append(f"v{k} = " + form.format(a=draw(st.sampled_from(names)), b=draw(st.sampled_from(names))))
        names.append(f"v{k}")
    results = [draw(st.sampled_from(RESULTS)).format(a=draw(st.sampled_from(names)), b=draw(st.sampled_from(names))) for _ in range(draw(st.integers(1, 3)))]
    return "def step(x, s):\n    " + "\n    ".join(lines) + f"\n    return net(tf.constant(x, tf.float32)), {', '.join(results)}\n"


@settings(max_examples=examples(12), deadline=None)
@given(program=programs())
def test_random_calculations(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "program.py"
    path.write_text(program)
    code = compile(program, str(path), "exec")

    def make():
        space = {"np": np, "tf": tf, "net": net, "rng": np.random.default_rng(2), "__name__": "program"}
        exec(code, space)
        return space["step"], lambda s, k: s(BATCHES[k % 5].copy(), 0.5 + k), functools.partial(space["rng"].random, 2)
    compare_steps(make, n=40, whole=2, express=0)
