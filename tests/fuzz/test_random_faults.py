"""Random programs of what strangers' programs got wrong: lifetimes, files, arrays that are resized, callers that catch, batches that fail, arguments with parts, defaults that change.

`TERRA_RANDOM_PROGRAMS=2000 python -m pytest -v -n 2 tests/fuzz/test_random_faults.py` runs so many, a hundred in each test, with new seeds each time, and shrinks the one that fails.
"""

import gc
import itertools
import os
import random
import textwrap

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import terra
from tests.fuzz.test_random_programs import load
from tests.variants import examples

LARGE = int(os.environ.get("TERRA_RANDOM_PROGRAMS", "0"))
PART = 100  # programs of one test in a large run

HEAD = '''
import asyncio, collections, concurrent.futures, contextlib, copy, dataclasses, functools, gc, os, sys, tempfile, unittest, weakref
import numpy as np
import tensorflow as tf

log = []
v = tf.Variable([1.0, 2.0, 3.0])
w = tf.Variable([[1.0], [2.0], [3.0]])
folder = tempfile.mkdtemp()
FAILURE = tf.errors.InvalidArgumentError
kept = []


class Node:
    def __init__(self, value):
        self.value = value
        self.next = None


@dataclasses.dataclass(eq=False)
class Record:
    value: object


class Loud(Node):
    def __del__(self):
        log.append(("gone", self.value))


class Slotted:
    __slots__ = ("value", "__weakref__")

    def __init__(self, value):
        self.value = value


class Array(np.ndarray):
    pass


class Transaction:
    def __enter__(self):
        self.before = v.numpy()

    def __exit__(self, kind, error, trace):
        if kind is not None:
            v.assign(self.before * 0.5)
            log.append(("rolled back", kind.__name__))
        return True


@contextlib.contextmanager
def transaction():
    before = v.numpy()
    try:
        yield
    except FAILURE:
        v.assign(before * 0.25)
        log.append("rolled back")


def drops(node):
    ref = weakref.ref(node)
    del node
    return ref() is None


def passes(node):
    return node.value


def made(kind, value):
    return kind(value)


def yields(kind, n):
    for k in range(n):
        yield kind(k)


def tried_again(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        for k in range(2):
            try:
                return function(*args, **kwargs)
            except FAILURE as error:
                log.append(("again", k))
        return None
    return call


def path(name):
    return os.path.join(folder, name)
'''

KINDS = ["Node", "Record", "Loud", "Slotted"]
CALLS = 14


class Program:
    """Writes one: a step, and what calls it."""

    def __init__(self, r):
        self.r = r
        self.names = itertools.count()
        self.fails = r.random() < 0.6
        self.arguments = r.choice(["x", "x", "slices", "sparse", "ragged", "list"])

    def pick(self, *options):
        return self.r.choice(options)

    def name(self):
        return f"n{next(self.names)}"

    def thing(self):
        """An expression that makes an object which can be referred to weakly."""
        kind = self.pick(*self.kinds)
        return self.pick(f"{kind}(i)", f"made({kind}, i)", f"{kind}(float(i))", "np.full(3, float(i))", "np.ones(3).view(Array)", f"{kind}(loss)", f"next(yields({kind}, 2))",
                         f"functools.partial({kind}, i)()")

    def lifetime(self):
        n, r = self.name(), self.name()
        hold = self.pick(
            [f"{n} = {self.thing()}"],
            [f"{n}_held = [{self.thing()}]", f"{n} = {n}_held[0]", f"{n}_held.{self.pick('clear()', 'pop()')}"],
            [f"{n}_held = {{'a': {self.thing()}}}", f"{n} = {n}_held['a']", f"del {n}_held['a']"],
            [f"{n}, _other = {self.thing()}, 1"],
            [f"{n} = {self.thing()}", f"{n}_call = lambda: {n}", f"{n}_call = None"],
            [f"{n} = {self.thing()}", "try:", "    raise ValueError(i)", "except ValueError as error:", "    log.append(str(error))"],
            [f"{n} = {self.thing()}", f"log.append(copy.copy({n}) is {n})"],
            [f"for {n} in [{self.thing()}]:", f"    log.append(type({n}).__name__)"],
        )
        look = self.pick(
            [f"{r} = weakref.ref({n})", self.pick(f"del {n}", f"{n} = None"), f"log.append({r}() is None)"],
            [f"{r} = weakref.WeakSet([{n}])", f"log.append(len({r}))", self.pick(f"del {n}", f"{n} = None"), f"log.append(len({r}))"],
            [f"{r} = weakref.finalize({n}, log.append, 'finalized')", self.pick(f"del {n}", f"{n} = None"), "log.append('behind')"],
            [f"{r} = weakref.WeakValueDictionary(a={n})", f"{n} = None", f"log.append(sorted({r}))"],
            [f"log.append(sys.getrefcount({n}))"],
            [f"{n} = None", "log.append('dropped')"],
            [f"{n}_cycle = Loud(i)", f"{n}_cycle.next = {n}_cycle", f"del {n}_cycle, {n}", "gc.collect()", "log.append('collected')"],
        )
        return hold + look

    def array(self):
        n = self.name()
        return self.pick(
            [f"{n} = np.arange(3.0)", f"{n}.resize(5)", f"log.append({n}.tolist())"],
            [f"{n} = np.arange(4.0)", f"{n}[1] = float(i)", f"{n}.resize((2, 2))", f"log.append({n}.tolist())"],
            [f"{n} = np.arange(3.0)", f"{n}_view = {n}[1:]", "try:", f"    {n}.resize(6)", "except ValueError as error:", "    log.append('shared')", f"log.append({n}.shape)"],
            [f"{n} = bytearray(3)", f"{n}_view = memoryview({n})", "try:", f"    {n}.extend(b'ab')", "except BufferError:", "    log.append('exported')"],
            [f"{n} = loss.numpy()", f"log.append(float({n}))"],
            [f"{n} = np.arange(3.0)", f"{n} += i", f"log.append({n}.tolist())"],
        )

    def file(self):
        n = self.name()
        return self.pick(
            [f"{n} = open(path('{n}'), 'w')", f"{n}.write(str(i))", self.pick(f"del {n}", f"{n} = None"), f"with open(path('{n}')) as {n}_read:", f"    log.append({n}_read.read())"],
            [f"with open(path('{n}'), 'a') as {n}:", f"    {n}.write(str(i))", f"log.append((os.path.getsize(path('{n}')), {n}.closed))"],
            [f"open(path('{n}'), 'w').write(str(i))", f"log.append(os.path.getsize(path('{n}')))"],
        )

    def called(self):
        n = self.name()
        kind = self.pick(*self.kinds)
        return self.pick(
            [f"log.append(drops({kind}(i)))"],
            [f"log.append(passes({kind}(i)))", "log.append('behind')"],
            [f"{n} = [k.value for k in yields({kind}, 3)]", f"log.append({n})"],
            [f"{n} = {kind}(i)", f"log.append(drops({n}))"],
            [f"log.append(any(drops({kind}(k)) for k in range(2)))"],
            [f"kept.append({kind}(i))", "if len(kept) > 2:", "    kept.pop(0)", "    log.append('popped')"],
            ["print('step', i)"],
            ["log.append(scale)"],
        )

    def failing(self):
        g = "g = tf.reduce_sum(tf.gather(v, index)) * scale"
        after = ["v.assign_sub(0.01 * g * [1.0, 2.0, 3.0])"]
        return self.pick(
            [g, *after], [g, *after],
            ["try:", f"    {g}", "except FAILURE as error:", "    log.append(('caught', 'is not in' in str(error)))", "    g = tf.constant(0.5)", *after],
            ["g = tf.constant(0.25)", "with contextlib.suppress(FAILURE):", f"    {g}", *after],
            ["g = tf.constant(0.25)", "with Transaction():", f"    {g}", *after],
            ["g = tf.constant(0.25)", "with transaction():", f"    {g}", *after],
            ["try:", f"    {g}", "finally:", "    log.append('finally')", *after],
        )

    def use_of_argument(self):
        return {
            "x": ["loss = loss + tf.reduce_sum(x)"],
            "list": ["loss = loss + tf.reduce_sum(x[0]) * x[1]"],
            "slices": self.pick(["w.scatter_sub(tf.IndexedSlices(0.1 * tf.convert_to_tensor(x.values), tf.convert_to_tensor(x.indices)))"],
                                ["loss = loss + tf.reduce_sum(tf.convert_to_tensor(x.values))"]),
            "sparse": self.pick(["loss = loss + tf.reduce_sum(x.values)"], ["loss = loss + tf.reduce_sum(tf.sparse.sparse_dense_matmul(x, w))"]),
            "ragged": self.pick(["loss = loss + tf.reduce_sum(x)"], ["loss = loss + tf.reduce_sum(x.values) * tf.cast(x.nrows(), tf.float32)"]),
        }[self.arguments]

    def argument(self):
        values = self.pick("[[1.0 + i], [2.0]]", "np.float32([[1.0 + i], [2.0]])", "tf.constant([[1.0 + i], [2.0]])")
        rows = self.pick("[0, i % 3]", "np.array([0, i % 3])", "tf.constant([0, i % 3])")
        return {
            "x": self.pick("tf.constant([1.0, float(i % 4)])", "np.float32([1.0, i])", "v"),
            "list": "[tf.constant([1.0, float(i)]), 0.5]",
            "slices": f"tf.IndexedSlices({values}, {rows})",
            "sparse": "tf.sparse.from_dense((np.arange(9).reshape(3, 3) % (2 + i % 3)).astype('float32'))",
            "ragged": "tf.ragged.constant([[1.0] * (1 + i % 3), [2.0]])",
        }[self.arguments]

    def step(self):
        failing = self.failing()
        self.certainly = self.fails and not any("except FAILURE" in line or "suppress" in line or "ransaction" in line for line in failing)
        self.kinds = [kind for kind in KINDS if kind != "Loud" or not self.certainly]  # an error that comes late does not keep what the step held
        body = ["loss = tf.reduce_sum(v * v)", *self.use_of_argument()]
        for _ in range(self.r.randint(1, 4)):
            body += self.pick(self.lifetime, self.lifetime, self.array, self.file, self.called)()
        body += failing
        if not self.certainly and self.r.random() < 0.5:  # what Python does behind an operation that fails late, it has done
            body += self.pick(self.lifetime, self.array, self.called)()
        body += [self.pick("return loss", "return loss, g", "return {'loss': loss, 'names': tf.strings.as_string(tf.cast(g, tf.int32))}", "return float(loss)")]
        return body

    def call(self):
        """Lines that call the step and log what comes of it; whether they catch."""
        call = "step(i, x, index)" if self.r.random() < 0.7 else "step(i, x, index=index)"
        return self.pick(
            ["try:", f"    noted({call})", "except FAILURE as error:", "    log.append(head(error))"],
            ["try:", "    result = None", f"    result = {call}", "except Exception as error:", "    log.append(head(error))", "else:", "    noted(result)"],
            ["with contextlib.suppress(FAILURE):", f"    noted({call})"],
            ["with Transaction():", f"    noted({call})"],
            ["with transaction():", f"    noted({call})"],
            ["with contextlib.ExitStack() as stack:", "    stack.enter_context(contextlib.suppress(FAILURE))", f"    noted({call})"],
            [f"noted(tried_again(step)({call[5:]})"],
            ["with concurrent.futures.ThreadPoolExecutor(1) as pool:", f"    future = pool.submit(step, {call[5:]}", "    log.append(head(future.exception()))"],
            ["if is_bad:", f"    unittest.TestCase().assertRaises(FAILURE, step, {call[5:]}" if self.certainly else f"    with contextlib.suppress(FAILURE): {call}", "else:", f"    noted({call})"],
            ["async def main():", f"    return await asyncio.gather(asyncio.to_thread(step, {call[5:-1]}), return_exceptions=True)",
             "result = asyncio.run(main())[0]", "log.append(head(result)) if isinstance(result, Exception) else noted(result)"],
        )

    def changes(self):
        return self.pick(
            ["pass"], ["pass"],
            [f"if i == {self.pick(5, 9)}:", f"    step.__defaults__ = ({self.pick('0.5', '2.0', '3')},)"],
            [f"if i in ({self.pick(4, 8)}, 11):", "    step.__kwdefaults__ = {'bias': float(i)}"],
            ["if i == 8:", "    v.assign([3.0, 2.0, 1.0])"],
            ["if i % 5 == 4:", "    gc.collect()"],
            ["log.append((step.__name__, step.__defaults__))"],
        )

    def text(self):
        step = self.step()
        bad = "i % 5 == 4" if self.fails else "False"
        drive = [f"is_bad = {bad}", f"x = {self.argument()}", f"index = tf.constant([0, 9 if is_bad else i % 3]){self.pick('', '.numpy()', '.numpy().tolist()')}",
                 *self.changes(), *self.call(), *self.pick(["pass"], ["log.append(v.numpy().tolist())"])]
        return "\n".join([
            HEAD, "", "def head(error):", "    return None if error is None else (type(error).__name__, 'is not in' in str(error))", "",
            "def noted(result):", "    log.append([np.asarray(t).tolist() for t in tf.nest.flatten(result)])", "",
            "def step(i, x, index, scale=1.0, *, bias=0.0):", textwrap.indent("\n".join(step), "    "), "",
            "def drive(step):", f"    for i in range({CALLS}):", textwrap.indent("\n".join(drive), "        "), "    del i, x, index",
            "    kept.clear()", "    gc.collect()", "    log.append((v.numpy().tolist(), w.numpy().tolist()))", ""])


totals = {"steps": 0, "coexecuted": 0}


def run(text, folder, decorate):
    module = load(text, folder)
    step = decorate(module.step)
    try:
        module.drive(step)
    except Exception as error:
        if type(error).__module__.startswith("terra"):
            raise
        module.log.append((type(error).__name__, str(error).split("\n")[0][:60]))
    return step, module.log


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.all_variants
@pytest.mark.parametrize("part", range(max(1, -(-LARGE // PART))))
def test_random_faults(part, tmp_path, capsys):
    phases = [Phase.explicit, Phase.generate] + ([Phase.shrink] if LARGE else [])

    @settings(max_examples=min(PART, LARGE - PART * part) if LARGE else examples(40), derandomize=not LARGE, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(st.randoms(use_true_random=False) if LARGE else st.integers(0, 2 ** 32).map(random.Random))
    def differential(r):
        text = Program(r).text()
        note(text)
        if LARGE:
            gc.freeze()  # the programs collect garbage at each step: what the ones before have left would make that ever slower
        capsys.readouterr()
        _, expected = run(text, tmp_path, lambda f: f)
        printed = capsys.readouterr().out
        step, found = run(text, tmp_path, terra.coexecute(wait_for_graph=True))
        assert capsys.readouterr().out == printed
        assert len(found) == len(expected), (found, expected)
        for k, (a, b) in enumerate(zip(expected, found, strict=True)):
            assert a == b, (k, a, b, step.stats())
        totals["steps"] += step.stats().steps
        totals["coexecuted"] += step.stats().coexecuted_steps

    differential()
    assert totals["coexecuted"] > 0.3 * totals["steps"], totals
