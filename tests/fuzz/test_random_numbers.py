"""Random steps that calculate with numbers which vary: arguments, attributes, counters, draws. Whatever they do with them, they give and leave what they do eagerly."""

import importlib.util
import itertools
import random

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import terra
from tests.variants import examples

X = [tf.constant(np.random.RandomState(k).rand(2, 2), tf.float32) for k in range(3)]
N = 40
VALUES = (0.5, -0.25, 2.0, 0.0, 1.5, -3.0, 0.125)
_numbers = itertools.count()

numbers = st.recursive(
    st.sampled_from(["b", "i", "i", "self.c", "self.n", "self.epoch", "self.table['d']", "0.5", "2", "3.0", "random.random()", "np.random.rand()", "random.uniform(b, 2)", "np.random.normal(self.c, 1.0)"]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["({} + {})", "({} - {})", "({} * {})", "({} / ({} or 7.0))", "min({}, {})", "max({}, {})", "helper({}, {})", "({} // ({} or 3))",
                                    "({} % ({} or 5))"]), inner, inner).map(
            lambda x: x[0].format(*x[1:])),
        st.tuples(st.sampled_from(["(-{})", "abs({})", "float({})", "math.sin({})", "round({}, 1)", "np.cos({})", "float(np.tanh({}))", "np.float32({})", "int({})"]), inner).map(lambda x: x[0].format(*x[1:])),
        st.tuples(inner, st.sampled_from(["<", ">=", "=="]), inner, inner, inner).map(lambda x: "({3} if {0} {1} {2} else {4})".format(*x))),
    max_leaves=5)
statements = st.one_of(
    st.tuples(st.sampled_from(["y = y * {}", "y = {} - y", "y = y + tf.constant({}, tf.float32)", "self.c = float({})", "self.kept = {}", "self.n += 1", "self.table['d'] = {}",
                               "log.append({})", "r = {}\ny = y * r", "y = tf.add(y, float({}))", "y = y * tf.cast({}, tf.float32)", "if {} > 0.3:\n    y = tf.abs(y) + 1.0", "self.c *= 0.5", "self.c -= {}"]),
              numbers).map(lambda x: x[0].replace("{}", x[1])),
    st.just("y = tf.tanh(y)"))


def source(body):
    lines = [line for statement in body for line in statement.split("\n")]
    return "\n".join([
        "import math", "import random", "import numpy as np", "import tensorflow as tf", "", "log = []", "", "def helper(p, q):", "    return p * 0.5 + q if p < q else q", "",
        "class Trainer:", "    def __init__(self):", "        self.c, self.n, self.epoch, self.kept, self.table = 0.75, 270, 0, None, {'d': 1.25}", "",
        "    def step(self, x, b, i):", "        y = tf.abs(x)", *["        " + line for line in lines], "        return y", ""])


def run(module, wrap, seed, changes):
    random.seed(seed)
    np.random.seed(seed)
    module.log.clear()
    trainer = module.Trainer()
    step, seen = wrap(trainer.step), []
    for k in range(N):
        if k % 5 == 4:
            trainer.epoch += 1
        if changes and k % 7 == 6:
            trainer.c = VALUES[k % len(VALUES)]
        try:
            y = step(X[k % 3], VALUES[k % len(VALUES)] if k % 11 else 0.5 + k, (250 if seed == 1 else 300) + k)
            result = repr(y.numpy().tolist())
        except (ArithmeticError, ValueError) as error:
            result = repr(error)
        seen.append((result, repr((trainer.c, trainer.n, trainer.kept, trainer.table))))
    return seen, repr(module.log), random.random(), np.random.rand(), step


@given(st.lists(statements, min_size=1, max_size=5), st.integers(0, 3), st.booleans(), st.booleans())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_random_steps(tmp_path_factory, body, seed, changes, verify):
    path = tmp_path_factory.mktemp("random") / f"numbers{next(_numbers)}.py"
    path.write_text(source(body))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    *expected, _ = run(module, lambda step: step, seed, changes)
    *actual, step = run(module, lambda step: terra.coexecute(step, wait_for_graph=True, verify=verify and seed == 0), seed, changes)
    assert actual == expected
    assert step.stats().coexecuted_steps + step.stats().imperative_steps >= 5
