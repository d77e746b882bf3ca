"""Traces that repeat the one before: what is the same is not recorded anew, and what only looks the same is."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.graph.trace import RawTrace
from terra.runtime.step_function.generation import Generation
from terra.runtime.tracing import tracer
from tests.variants import examples

RNG = np.random.default_rng(0)
X, Y = (tf.constant(RNG.normal(size=(3, 3)).astype("f")) for _ in range(2))
DOUBLE = tf.constant(RNG.normal(size=(3, 3)))
WIDE = tf.constant(RNG.normal(size=(3, 5)).astype("f"))
V, W = tf.Variable(X), tf.Variable(Y)
LARGE = [tf.constant(RNG.normal(size=(9, 9)).astype("f")) for _ in range(2)]  # too large to be taken for constants
UNEQUAL = [tf.constant(RNG.normal(size=(9, n)).astype("f")) for n in (9, 10)]
EQUAL = [tf.constant(1.5) for _ in range(2)]
CPU = tf.config.list_logical_devices("CPU")[0].name


class Kept:
    """What outlives the steps."""

    def __init__(self):
        self.all = []

    def __call__(self, x):
        self.all.append(x)
        return x


def on(device, x):
    with tf.device(device):
        return tf.exp(x)


# Each is a line of a step that may be another way each time: (k, x, y, kept) -> a tensor
LINES = [
    lambda k, x, y, kept: x + (1.5, 2.5)[k],
    lambda k, x, y, kept: tf.matmul(x, y, transpose_a=bool(k)),
    lambda k, x, y, kept: (x, y)[k] - (y, x)[k],
    lambda k, x, y, kept: tf.nn.leaky_relu(x, alpha=(0.0, -0.0)[k]),
    lambda k, x, y, kept: tf.cast((x, DOUBLE)[k], tf.float32) * 2.0,
    lambda k, x, y, kept: tf.reduce_sum((x, WIDE)[k]),
    lambda k, x, y, kept: x * (V, W)[k],
    lambda k, x, y, kept: on((None, CPU)[k], x),
    lambda k, x, y, kept: kept(tf.tanh(x)) if k else tf.tanh(x),
    lambda k, x, y, kept: tf.reduce_sum(LARGE[0] * LARGE[k]),
    lambda k, x, y, kept: tf.reduce_sum(tf.exp(UNEQUAL[k])),
    lambda k, x, y, kept: tf.reduce_sum(UNEQUAL[k], axis=[0, 1]),
    lambda k, x, y, kept: (tf.exp, tf.tanh)[k](x),
    lambda k, x, y, kept: (tf.reduce_sum, tf.reduce_max)[k](x, axis=0),
    lambda k, x, y, kept: (x + EQUAL[0]) * EQUAL[k],
    lambda k, x, y, kept: tf.reshape(x, ((9,), (1, 9))[k]),
    lambda k, x, y, kept: tf.concat([x, y][:k + 1], 0),
    lambda k, x, y, kept: x * float(tf.reduce_max(y)) if k else x,
    lambda k, x, y, kept: tf.boolean_mask(x, x > float(k)),
    lambda k, x, y, kept: tf.split(x, 3)[k],
    lambda k, x, y, kept: V.assign_add(x * float(k) * 0.01),
    lambda k, x, y, kept: tf.constant(["a", "b"][k]) + "c",
]


def program(lines):
    kept = Kept()

    def step(ways, x, y):
        with tf.GradientTape() as tape:
            results = [line(k, x, y, kept) for line, k in zip(lines, ways)]
            loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float32)) for r in results if r.dtype.is_floating] or [0.0 * tf.reduce_sum(x)])
        return *results, tape.gradient(loss, V)

    return step, kept


def told(store):
    """What a TraceStore has learned, in numbers that can be compared."""
    number = {id(node): k for k, node in enumerate([store.graph.start, *store.graph.nodes, store.graph.end])}
    nodes = [
        (
            node.payload.event.info.key, [kind[0] if kind[0] != "c" else kind[1].key for kind in node.payload.kinds], [number[id(n)] for n in node.succ],
            [[(number[id(n)], k) for n, k in slot] for slot in node.slots], list(node.payload.shapes.values()),
        )
        for node in store.graph.nodes
    ]
    last = [[ref[1].oid if ref[0] == "c" else ref[1] for ref in event.refs if ref[0] != "r"] for event in store.latest.events]  # which tensor it was
    return nodes, last, len(store.relaxed), len(store.dynamic), sorted((number[id(n)], k) for n, k in store.live_out), store.n_traces, store.version


def shown(x):
    return None if x is None else repr(np.asarray(x).tolist())  # -0.0 == 0.0


def run(lines, calls, function=lambda step: step):
    V.assign(X)
    tf.random.set_seed(1)
    step, kept = program(lines)
    step = function(step)
    results = [[shown(x) for x in step(*call)] for call in calls]
    return results, [shown(x) for x in kept.all], step


def anew(monkeypatch):
    """Each event is recorded anew."""
    monkeypatch.setattr(tracer, "is_repeated", lambda tracer, noted, event, devices: False)
    monkeypatch.setattr(tracer, "known_event", lambda tracer, position, event: event)


def compare(lines, calls):
    expected = run(lines, calls)[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generation, "begin", lambda self: None)  # no graph: all steps are traced
        run(lines, calls, terra.coexecute)  # operations that were never met before are recorded at once, others when the step is over: tensors get other numbers
        *results, step = run(lines, calls, terra.coexecute)
        anew(patch)
        *others, other = run(lines, calls, terra.coexecute)
    assert tuple(results) == tuple(others) == expected
    assert told(step.store) == told(other.store)
    assert step.stats().tracing_steps == len(calls)
    return step


CALLS = st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=2, max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=4), ways=CALLS, swapped=st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_same_is_learned(lines, ways, swapped):
    compare(lines, [(way, *((Y, X) if swap else (X, Y))) for way, swap in zip(ways, swapped)])


@pytest.mark.parametrize("k", range(len(LINES)))
def test_one_line(k):
    compare([LINES[k]], [([way], X, Y) for way in (0, 0, 1, 1, 0, 1)])


@pytest.mark.parametrize("max_traces", [0, 50])
def test_traces_do_not_keep_those_before(max_traces, monkeypatch):
    monkeypatch.setattr(Generation, "begin", lambda self: None)
    step = terra.coexecute(program([LINES[0]])[0], max_traces=max_traces)
    gc.collect()
    before = traces()
    for k in (0, 0, 1, 0, 1, 1):
        step([k], X, Y)
        gc.collect()
        assert traces() <= before + step.store.n_traces + 1  # those that the graph was made of, and the latest


def traces():
    """How many there are."""
    return sum(type(x) is RawTrace for x in gc.get_objects())


@pytest.mark.parametrize("max_traces", [0, 50])
def test_repetitions_are_the_same_objects(max_traces, monkeypatch):
    monkeypatch.setattr(Generation, "begin", lambda self: None)
    lines = [LINES[0], LINES[1], LINES[6]]
    step = terra.coexecute(program(lines)[0], max_traces=max_traces)
    step([0, 0, 0], X, Y)  # (operations that were never met before are recorded in another way)
    before = None
    for _ in range(4):
        step([0, 0, 0], X, Y)
        latest = step.store.latest
        assert before is None or latest is before
        before = latest
    step([1, 0, 0], X, Y)  # another constant
    events = step.store.latest.events
    assert step.store.latest is not before and len(events) == len(before.events)
    changed = [a.info.op_type for a, b in zip(events, before.events) if a is not b]
    assert changed == ["AddV2"], changed


def test_draws_are_drawn_anew():
    def step(x):
        return x + tf.random.normal([3])

    function = terra.coexecute(step, max_traces=0)
    tf.random.set_seed(3)
    results = [function(X).numpy().tolist() for _ in range(4)]
    assert len({str(r) for r in results}) == 4
    assert function.stats().tracing_steps == 4
