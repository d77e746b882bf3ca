"""Random steps that update variables in their place and look at them, and fail in the middle: what is left is what eager execution leaves.

`TERRA_RANDOM_PROGRAMS=500 python -m pytest tests/fuzz/test_random_updates.py` runs so many, with new seeds each time.
"""

import os
import random
import textwrap

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import terra
from tests.fuzz.test_random_programs import load
from tests.variants import examples

LARGE = int(os.environ.get("TERRA_RANDOM_PROGRAMS", "0"))
EXAMPLES = LARGE or examples(30)
STEPS = 16
BAD = (6, 7, 11)

HEAD = '''
import tensorflow as tf

tables = [tf.Variable(tf.reshape(tf.sin(tf.range(12.0) + k), (4, 3))) for k in range(3)]
slot = tf.Variable(tf.ones((4, 3)))
count = tf.Variable(0.0)
flag = tf.Variable([0, 0, 0, 0])


@tf.function(autograph=False)
def function(rows, i):
    count.assign_add(1.0)
    tables[1].scatter_add(tf.IndexedSlices(rows, i))
    return tf.gather(tables[0] * 0.5, i)
'''


class Source:
    """Writes one such step: `r` has the names of tensors of two rows, `w` those of whole tables."""

    def __init__(self, r):
        self.r = r
        self.rows, self.wholes = ["tf.ones((2, 3))"], ["slot * 0.5"]
        self.n = 0

    def pick(self, *options):
        return self.r.choice(options)

    def indices(self):
        return self.pick("i", "i", "i", "j", "bad", "i[::-1]", "[1, 3]", "tf.where(i > 1, i, 0)")

    def table(self):
        return f"tables[{self.r.randint(0, 2)}]"

    def two(self):
        return f"tf.tanh({self.pick(*self.rows)} * {self.pick('0.5', '-0.7', 'count')})"

    def whole(self):
        return f"tf.tanh({self.pick(*self.wholes, self.table())} + {self.pick('0.25', 'count * 0.1', self.table())})"

    def name(self, kind):
        self.n += 1
        return f"{kind}{self.n}"

    def statement(self, depth):
        kind = self.r.randint(0, 15)
        v = self.table()
        if kind < 4:
            return [f"{v}.scatter_{self.pick('add', 'sub', 'update', 'mul', 'max', 'min')}(tf.IndexedSlices({self.two()}, {self.indices()}))"]
        if kind == 4:
            return [f"{v}.scatter_nd_{self.pick('add', 'sub', 'update')}(tf.stack([{self.pick('i', 'j', 'bad')}, i % 3], 1), {self.two()}[:, 0])"]
        if kind == 5:
            return [f"{v}.assign({self.whole()})", f"{v}.assign_add({self.whole()} * 0.1)", f"{v}[1:3].assign({self.two()})"][self.r.randint(0, 2):][:1]
        if kind == 6:
            return [self.pick(
                f"tf.raw_ops.ResourceApplyMomentum(var={v}.handle, accum=slot.handle, lr=0.1, grad={self.whole()}, momentum=0.9)",
                f"tf.raw_ops.ResourceSparseApplyMomentum(var={v}.handle, accum=slot.handle, lr=0.1, grad={self.two()}, indices={self.indices()}, momentum=0.9)")]
        if kind == 7:
            name = self.name("u")
            return [f"{name}, places = tf.unique(tf.concat([i, {self.indices()}], 0))",
                    f"{v}.scatter_{self.pick('add', 'sub')}(tf.IndexedSlices(tf.math.unsorted_segment_sum(tf.concat([{self.two()}, {self.two()}], 0), places, tf.size({name})), {name}))"]
        if kind < 10:
            name = self.name("r")
            source = self.pick(f"tf.gather({self.pick(v, self.whole())}, {self.indices()})", f"{v}.sparse_read({self.indices()})", f"{self.whole()}[:2]")
            self.rows.append(name)
            return [f"{name} = {source}"]
        if kind < 12:
            name = self.name("w")
            line = f"{name} = {self.whole()}"
            self.wholes.append(name)
            return [line]
        if kind == 12:
            return [self.pick("count.assign_add(1.0)", f"flag.scatter_update(tf.IndexedSlices({self.pick('i', 'bad')}, i))")]
        if kind == 13:
            name = self.name("r")
            line = f"{name} = function({self.two()}, {self.indices()})"
            self.rows.append(name)
            return [line]
        if not depth:
            return [f"slot.assign_sub({self.whole()} * 0.01)"]
        held = list(self.rows), list(self.wholes)
        lines = [f"if {self.pick('k % 2 == 0', 'k % 5 == 3', 'tf.reduce_sum(i) > 3', 'float(count) % 3.0 == 1.0')}:"]
        lines += [f"    {line}" for _ in range(self.r.randint(1, 3)) for line in self.statement(depth - 1)]
        self.rows, self.wholes = held
        return lines

    def text(self):
        body = [line for _ in range(self.r.randint(1, 8)) for line in self.statement(1)]
        body.append(f"return {self.pick(self.two(), self.whole(), 'count * 2.0', f'{self.two()}, {self.whole()}')}")
        return HEAD + "\n\ndef step(k, i, j, bad):\n" + textwrap.indent("\n".join(body), "    ") + "\n"


def shown(x):
    return [shown(y) for y in x] if isinstance(x, tuple) else x.numpy().tobytes()


def run(text, folder, late, wrap):
    """What can be seen of the steps; `late`: many of them in flight, which end where one fails."""
    module = load(text, folder)
    step, seen = wrap(module.step), []

    def state():
        return [v.numpy().tobytes() for v in [*module.tables, module.slot, module.count, module.flag]]

    def call(k):
        return step(k, tf.constant([k % 4, (k * 3 + 1) % 4]), tf.constant([(k + 2) % 4, k % 2]), tf.constant([k % 4, 5 if k in BAD else 3]))

    def several(first, last, results):
        for k in range(first, last):
            results.append(call(k))

    first = 0
    while first < STEPS:
        last = first + 1 if not late else next((k + 1 for k in BAD if k >= first), STEPS)
        results = []
        try:
            several(first, last, results)
            seen.append([shown(x) for x in results])
            seen.append(state())
        except tf.errors.InvalidArgumentError as error:
            seen.append(type(error))
            seen.append(state())
        first = last
    return seen, step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("updates")


def test_random_updates(folder):
    totals = {"steps": 0, "coexecuted": 0, "undone": 0, "failed": 0}

    @settings(max_examples=EXAMPLES, derandomize=not LARGE, deadline=None, database=None, phases=[Phase.explicit, Phase.generate] + ([Phase.shrink] if LARGE else []),
              suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(st.randoms(use_true_random=False) if LARGE else st.integers(0, 2 ** 32).map(random.Random), st.booleans())
    def differential(r, late):
        text = Source(r).text()
        note(text)
        expected, _ = run(text, folder, late, lambda f: f)
        actual, step = run(text, folder, late, terra.coexecute(wait_for_graph=True))
        assert step.generation.error is None, step.generation.error
        assert [type(x) for x in actual] == [type(x) for x in expected], step.stats()
        for k, (x, y) in enumerate(zip(actual, expected)):
            assert x == y, (k, step.stats(), terra.explain(step))
        stats = step.stats()
        totals["steps"] += stats.steps
        totals["coexecuted"] += stats.coexecuted_steps
        totals["undone"] += step.program is not None and bool(step.program.generated.undo)
        totals["failed"] += sum(isinstance(x, type) for x in expected) > 0

    differential()
    n = EXAMPLES
    assert totals["coexecuted"] > 0.3 * totals["steps"] and totals["undone"] > n // 5 and totals["failed"] > n // 5, totals
