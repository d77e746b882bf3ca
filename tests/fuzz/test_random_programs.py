"""Random whole step functions, as Python source, run eagerly and co-executed: all that can be seen is bitwise equal.

`TERRA_RANDOM_PROGRAMS=2000 python -m pytest tests/fuzz/test_random_programs.py` runs so many, with new seeds each time.
"""
import importlib.util
import itertools
import os
import random
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import terra
from tests.harness import snapshot
from tests.variants import examples

LARGE = int(os.environ.get("TERRA_RANDOM_PROGRAMS", "0"))
CALLS = 12

# Of a scalar and a Python float NumPy 1 makes a double, which `tf.sin`, say, does not take back: eager execution raises an error, too.
NUMBER = "np.float32(rng.random())" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "np.full(1, rng.random(), 'float32')"

HEAD = '''
import random
import numpy as np
import tensorflow as tf

rng = random.Random(11)
tf.random.set_seed(11)
vs = [tf.Variable(np.linspace(-1, 1 + k, 4).astype("float32")) for k in range(3)]
count = tf.Variable(0)
kept = [tf.constant([0.5, 1.0, -1.0, 0.25])]
log = []
state = {"n": 0, "last": tf.zeros([4])}


def helper(a, b):
    if rng.random() < 0.2:
        return tf.sin(a)
    return a * b - 0.5


def deep(a, n):
    return a if n == 0 else tf.tanh(deep(a, n - 1) + 0.1)


def items(a, n):
    for k in range(n):
        yield a * float(k)
        vs[2].assign_add(a * 0.01)


@tf.function
def pure(a):
    return tf.where(a > 0.0, a, a * 0.1)


@tf.function
def updating(a):
    vs[1].assign(tf.tanh(vs[1] + a))
    return vs[1] * 0.5


class Model:
    def __init__(self):
        self.scale = 1.0

    def __call__(self, a):
        self.scale = self.scale * 0.9 + 0.05
        return a * self.scale


model = Model()
'''


class Source:
    """Writes one random step function."""

    def __init__(self, r):
        self.r = r
        self.names = itertools.count()
        self.budget = r.randint(4, 16)

    def pick(self, *options):
        return self.r.choice(options)

    def operand(self, scope):
        return self.pick(
            *scope, *scope, *scope, "vs[0]", "vs[1]", "vs[2]", "x", "0.5", "vs[0].read_value()", 'state["last"]', "kept[-1]", "kept[0]", "a",
            "tf.constant(np.full(4, rng.random(), 'float32'))", NUMBER, "float(i % 3)", "tf.ones([4])",
        )

    def expression(self, scope, depth=2):
        kind = self.r.randint(0, 11) if depth else 0
        sub = lambda: self.expression(scope, depth - 1)  # noqa: E731
        if kind < 2:
            return self.operand(scope)
        if kind < 5:
            return f"({sub()} {self.pick('+', '-', '*')} {sub()})"
        if kind < 7:
            return f"tf.{self.pick('sin', 'tanh', 'square', 'nn.relu', 'identity')}({sub()})"
        return self.pick(
            f"helper({sub()}, {sub()})", f"deep({sub()}, i % {self.pick(2, 3)})", f"pure(tf.convert_to_tensor({sub()}) + tf.zeros([4]))",
            f"updating(tf.tanh({sub()} + tf.zeros([4])))", f"model({sub()})", "tf.random.normal([4])", "tf.add_n(kept)",
            f"tf.add_n([{sub()} + tf.zeros([4]) for q in range(1 + i % {self.pick(2, 3)})])", f"tf.gather({sub()} + tf.zeros([4]), [3, 2, 1, i % 4])",
            f"tf.reverse({sub()} + tf.zeros([4]), [0])", f"(lambda z: z * 0.5)({sub()})", f"tf.reduce_mean({sub()})",
        )

    def full(self, scope):
        """An expression that certainly is a tensor of shape [4]."""
        return f"tf.tanh({self.expression(scope)} + tf.zeros([4]))"

    def condition(self, scope):
        return self.pick(
            f"i % {self.pick(2, 3, 4)} == {self.pick(0, 1)}", "rng.random() < 0.5", "rng.random() < 0.15", "len(log) % 3 == 1", "len(kept) > 2",
            f"tf.reduce_mean({self.full(scope)}) > {self.pick('0.0', '-0.2')}", f"float(vs[{self.pick(0, 1, 2)}][1]) > 0.1", "int(count) % 3 == 2",
            f"{self.full(scope)}.numpy()[{self.pick(0, 1)}] > 0", 'state["n"] > 5', "i > 8",
        )

    def block(self, scope, depth, loop=False):
        lines = []
        scope = list(scope)
        for _ in range(self.r.randint(1, 3)):
            if self.budget <= 0:
                break
            self.budget -= 1
            lines += self.statement(scope, depth, loop)
        return [f"    {line}" for line in lines or ["pass"]]

    def statement(self, scope, depth, loop):
        kind = self.r.randint(0, 19)
        if kind >= 14 and not depth:
            kind = self.r.randint(0, 13)
        v = f"vs[{self.pick(0, 1, 2)}]"
        if kind < 4:
            name = f"t{next(self.names)}"
            line = f"{name} = {self.full(scope)}"
            scope.append(name)
            return [line]
        if kind < 7:
            return [self.pick(
                f"{v}.assign({self.full(scope)})", f"{v}.assign_add(0.1 * {self.full(scope)})", f"{v}.assign_sub(0.1 * {self.full(scope)})",
                "count.assign_add(1)", f"{v}.scatter_nd_update([[i % 4]], [{self.pick('0.5', '-1.0')}])", f"{v}[{self.pick(0, 3)}].assign(0.25)",
            )]
        if kind == 7:
            return [f"kept.append({self.full(scope)})", "if len(kept) > 3: kept.pop(0)"]
        if kind == 8:
            return [f"log.append(float(tf.reduce_sum({self.full(scope)})))"]
        if kind == 9:
            return [self.pick(f'state["last"] = {self.full(scope)}', 'state["n"] += 1', "log.append(int(count))",
                              f"log.append({self.full(scope)}.numpy().tolist())")]
        if kind == 10:
            name = f"t{next(self.names)}"
            lines = ["with tf.GradientTape() as tape:", f"    y{name} = tf.reduce_sum({self.full([*scope, v])} * {v})",
                     f"{name} = tf.tanh(tape.gradient(y{name}, {v}))", f"{v}.assign_sub(0.1 * {name})"]
            scope.append(name)
            return lines
        if kind == 11:
            name = f"t{next(self.names)}"
            lines = [f"{name} = tf.zeros([4])", f"for it in items({self.full(scope)}, {self.pick('2', '1 + i % 2')}):", f"    {name} = {name} + it"]
            scope.append(name)
            return lines
        if kind == 12:
            return [f"if {self.condition(scope)}:", f"    return {self.full(scope)}"]
        if kind == 13:
            if loop:
                return [f"if {self.condition(scope)}:", f"    {self.pick('break', 'continue')}"]
            return [f"if i in ({self.pick(4, 7)}, 10):", "    raise ValueError('planned')"]
        if kind < 16:
            lines = [f"if {self.condition(scope)}:", *self.block(scope, depth - 1, loop)]
            if self.r.random() < 0.6:
                lines += ["else:", *self.block(scope, depth - 1, loop)]
            return lines
        if kind < 18:
            times = self.pick("2", "i % 3", "rng.randint(0, 2)", "1 + len(log) % 2")
            k = f"k{next(self.names)}"
            return [f"for {k} in range({times}):", *self.block(scope, depth - 1, True)]
        lines = ["try:", *self.block(scope, depth - 1, loop), f"    if {self.condition(scope)}:", "        raise KeyError(i)",
                 "except KeyError:", *self.block(scope, depth - 1, loop)]
        if self.r.random() < 0.3:
            lines += ["finally:", *self.block(scope, 0, False)]
        return lines

    def text(self):
        body = []
        scope = ["x"]
        while self.budget > 0:
            self.budget -= 1
            body += self.statement(scope, 2, False)
        results = [n for n in scope if n != "x"] or ["x"]
        body.append("return " + self.pick(
            results[-1], "None", f"({', '.join(results)},)", f'{{"r": {results[0]}, "n": state["n"]}}', f"[{self.full(scope)}, vs[0].read_value()]"))
        return HEAD + "\n\ndef step(i, x, a):\n" + textwrap.indent("\n".join(body), "    ") + "\n"


_numbers = itertools.count()


def load(text, folder):
    number = next(_numbers)
    path = folder / f"random_program_{number}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(text, folder, late, wrap):
    module = load(text, folder)
    step = wrap(module.step)
    inputs = [tf.constant([0.1, -0.2, 0.3, 0.4]), tf.constant([1.0, 0.5, -0.5, 0.0])]
    seen, unread = [], []
    array = np.linspace(-1, 1, 4).astype("float32")
    for i in range(CALLS):
        try:
            result = step(i, inputs[i % 2], array)
        except ValueError as error:
            seen.append(str(error).split("\n")[0])
        else:
            if late:
                unread.append(result)
            else:
                seen.append(snapshot(result))
        array += 0.01  # the caller may reuse its arrays at once
        if not late and i % 2:
            seen.append(snapshot(module.vs))
    seen += [snapshot(r) for r in unread]
    seen += [snapshot([module.vs, module.count, module.kept, module.log, module.state, module.model.scale]), module.rng.random()]
    return [flat(x) for x in seen], step


def flat(x):
    if isinstance(x, (list, tuple)):
        return [flat(y) for y in x]
    if hasattr(x, "fields"):
        return [x.kind, [(k, flat(v)) for k, v in x.fields.items()]]
    if hasattr(x, "value") and hasattr(x, "kind"):
        return [x.kind.split(" ")[0], str(x.value.dtype), x.value.shape, x.value.tolist(), x.value.tobytes().hex()]
    return repr(x)


totals = {"steps": 0, "coexecuted": 0, "programs": 0}


def check(text, folder, late):
    expected, _ = run(text, folder, late, lambda f: f)
    actual, step = run(text, folder, late, terra.coexecute(wait_for_graph=True))
    stats = step.stats()
    for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
        assert a == b, f"observation {k} ({'late' if late else 'now'}), {stats}, {step.fallback_reasons}"
    assert stats.steps == stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps
    assert step.generation.error is None, step.generation.error
    totals["steps"] += stats.steps
    totals["coexecuted"] += stats.coexecuted_steps
    totals["programs"] += 1


def close(a, b):
    """Whether two observations agree, up to the order in which gradients of rolled loops are summed."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) == len(b) == 5 and isinstance(a[4], str) and a[:3] == b[:3] and "float" in a[1]:
            return np.allclose(a[3], b[3], rtol=1e-4, atol=1e-6)
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if a == b:
        return True
    try:
        return bool(np.allclose(float(a), float(b), rtol=1e-4, atol=1e-6))
    except (TypeError, ValueError):
        return False


def test_random_programs_in_pieces(folder):
    """Loops and recursion are rolled as soon as they vary."""
    rolled = {"programs": 0, "coexecuted": 0}

    @settings(max_examples=LARGE or 9, derandomize=not LARGE, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
              suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(st.integers(0, 2 ** 32).map(random.Random), st.booleans())
    def differential(r, late):
        text = Source(r).text()
        note(text)
        expected, _ = run(text, folder, late, lambda f: f)
        actual, step = run(text, folder, late, terra.coexecute(wait_for_graph=True, loops="roll"))
        for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
            assert close(a, b), f"observation {k} ({'late' if late else 'now'}), {step.stats()}, {step.fallback_reasons}"
        assert step.generation.error is None, step.generation.error
        if step.stats().pieces:
            rolled["programs"] += 1
            rolled["coexecuted"] += step.stats().coexecuted_steps

    differential()
    assert rolled["programs"] > 3 and rolled["coexecuted"] > 0, rolled


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


def test_random_programs(folder):
    phases = [Phase.explicit, Phase.generate] + ([Phase.shrink] if LARGE else [])

    @settings(max_examples=LARGE or examples(26), derandomize=not LARGE, deadline=None, database=None, phases=phases,
              suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(st.randoms(use_true_random=False) if LARGE else st.integers(0, 2 ** 32).map(random.Random), st.booleans())
    def differential(r, late):
        text = Source(r).text()
        note(text)
        check(text, folder, late)

    differential()
    assert totals["coexecuted"] > 0.3 * totals["steps"], totals
