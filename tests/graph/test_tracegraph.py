"""Merging traces: worked examples, and properties over random programs."""

import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st

from terra.graph.nodes import TraceOp
from terra.graph.tracegraph import TraceGraph
from tests.variants import examples


# ---------------------------------------------------------------------- random programs, also used by other modules


class Program:
    """A random imperative program: nested statements over a few variables.

    Its statements are `("op", key, reads, writes, coarse)`, `("if", then, otherwise)`, `("loop", most, body)` and
    `("return",)`.  A coarse key carries no loop counter and is shared by several statements, as those of library code
    are.
    """

    def __init__(self, seed, size=12, coarse=0.35):
        self.random = random.Random(seed)
        self.coarse = coarse
        self.n_vars = self.random.randint(1, 4)
        self.n_keys = 0
        self.body = self._block(size, 0)

    def _block(self, size, depth):
        statements = []
        while size > 0:
            kind = self.random.random()
            if kind < 0.6 or depth >= 3:
                statements.append(self._op())
                size -= 1
            elif kind < 0.82:
                n = self.random.randint(1, max(1, size // 2))
                then = self._block(n, depth + 1)
                statements.append(("if", then, self._block(self.random.randint(0, n), depth + 1)))
                size -= n
            elif kind < 0.95:
                n = self.random.randint(1, max(1, size // 3))
                statements.append(("loop", self.random.randint(1, 3), self._block(n, depth + 1)))
                size -= n
            else:
                statements.append(("return",))
                size -= 1
        return statements

    def _op(self):
        coarse = self.random.random() < self.coarse
        arity = self.random.choice([0, 1, 1, 2])
        outs = self.random.choice([1, 1, 2])
        if coarse:
            key = ("lib", arity, self.random.randint(0, 1))
        else:
            self.n_keys += 1
            key = ("op", self.n_keys)
        reads = [self.random.randrange(self.n_vars) for _ in range(arity)]
        writes = [self.random.randrange(self.n_vars) for _ in range(outs)] if self.random.random() < 0.9 else []
        return ("op", key, reads, writes, coarse)

    def run(self, seed):
        """A trace of the program under random decisions."""
        decide = random.Random(seed)
        trace, variables = [], [None] * self.n_vars
        for v in range(self.n_vars):  # parameters: made by operations of their own
            variables[v] = (len(trace), 0)
            trace.append(TraceOp(("arg", v)))

        def block(statements, counters):
            for statement in statements:
                if statement[0] == "op":
                    _, key, reads, writes, coarse = statement
                    position = len(trace)
                    sources = [variables[v] for v in reads]
                    trace.append(TraceOp(key if coarse else (key, counters), sources))
                    for out, v in enumerate(writes):
                        variables[v] = (position, out - (out and 3))  # also negative outputs
                elif statement[0] == "if":
                    if not block(statement[1 if decide.random() < 0.5 else 2], counters):
                        return False
                elif statement[0] == "loop":
                    for i in range(decide.randint(0, statement[1])):
                        if not block(statement[2], (*counters, i)):
                            return False
                elif decide.random() < 0.5:
                    return False
            return True

        block(self.body, ())
        return trace


def program_traces(seed, n=6, size=12):
    program = Program(seed, size)
    return [program.run(seed * 1000 + i) for i in range(n)]


def merged(traces):
    graph = TraceGraph()
    for trace in traces:
        graph.merge(trace)
    return graph


def state(graph):
    """Everything that merging may change, as something to compare."""
    return (
        [(n.id, n.order, [list(slot) for slot in n.slots], list(n.succ), list(n.pred)) for n in graph.nodes],
        list(graph.start.succ),
        list(graph.end.pred),
        list(graph.traces),
    )


def combination(graph, seed):
    """A trace that crosses known edges at random, with the sources that the rule gives; None if it has none."""
    choose = random.Random(seed)
    trace, path, when = [], [], {}
    node = graph.start
    while True:
        node = choose.choice(node.succ)
        if node is graph.end:
            return trace, tuple(path)
        sources = []
        for slot in node.slots:
            known = [source for source in slot if source[0] in when]
            if not known:
                return None
            producer, out = max(known, key=lambda source: when[source[0]])
            sources.append((when[producer], out))
        when[node] = len(path)
        path.append(node)
        trace.append(TraceOp(node.key, sources))


def check(graph):
    """The invariants of Definition 1, and the bookkeeping."""
    everything = [graph.start, *graph.topological(), graph.end]
    assert {id(n) for n in graph.nodes} == {id(n) for n in graph.topological()}
    assert [node.id for node in graph.nodes] == list(range(len(graph.nodes)))
    assert not graph.start.pred and not graph.end.succ
    assert [node.order for node in everything] == list(range(len(everything)))
    for node in everything:
        assert len(set(node.succ)) == len(node.succ) and len(set(node.pred)) == len(node.pred)
        assert all(node in succ.pred and node.order < succ.order for succ in node.succ)
        assert all(node in pred.succ for pred in node.pred)
        assert node is graph.start or node.pred
        assert node is graph.end or node.succ
        for slot in node.slots:
            assert slot and len({id(producer) for producer, _ in slot}) == len(slot)
            assert all(producer.order < node.order for producer, _ in slot)
    assert len(set(graph.traces)) == len(graph.traces)
    for path in graph.traces:
        steps = list(zip((graph.start, *path), (*path, graph.end)))
        assert all(succ in node.succ for node, succ in steps)


def sources_on(path):
    """The sources that the rule gives, as positions: written apart from the implementation, as an oracle."""
    result = []
    for position, node in enumerate(path):
        sources = []
        for slot in node.slots:
            outs = dict(slot)
            at = max(i for i in range(position) if path[i] in outs)
            sources.append((at, outs[path[at]]))
        result.append(tuple(sources))
    return result


# ---------------------------------------------------------------------- examples


def ops(keys):
    return [TraceOp(key) for key in keys]


def chain(text):
    """`"a b:0 c:0,1"`: keys, each with the positions of its sources."""
    trace = []
    for word in text.split():
        key, _, sources = word.partition(":")
        trace.append(TraceOp(key, [(int(s), 0) for s in sources.split(",") if s]))
    return trace


def chained(keys):
    """A trace in which each operation uses the one before it."""
    return [TraceOp(key, [(i - 1, 0)] if i else []) for i, key in enumerate(keys)]


def test_one_trace():
    graph = TraceGraph()
    assert graph.find_path(ops("abc")) is None
    assert graph.merge(ops("abc"))
    assert [node.key for node in graph.nodes] == ["a", "b", "c"] and len(graph) == 3
    assert len(list(graph.edges())) == 4
    assert not graph.merge(ops("abc"))
    assert graph.find_path(ops("ab")) is None and graph.find_path(ops("abcd")) is None
    assert "3 nodes" in repr(graph)


def test_branch_and_rejoin():
    graph = merged([ops("abcd"), ops("axd"), ops("ad")])
    assert sorted(node.key for node in graph.nodes) == list("abcdx")
    check(graph)


def test_empty_trace_and_early_end():
    graph = merged([ops("ab")])
    assert graph.merge([]) and graph.end in graph.start.succ
    assert graph.merge(ops("a")) and not graph.merge(ops("a"))
    assert len(graph) == 2
    check(graph)


def test_combination_is_covered():
    graph = merged([ops("abcd"), ops("acd"), ops("abce")])
    assert graph.find_path(ops("ace")) is not None
    before = state(graph)
    assert not graph.merge(ops("ace"))
    assert state(graph) == before


def test_payload_of_the_first():
    graph = merged([[TraceOp("a", (), "first")], [TraceOp("a", (), "second"), TraceOp("b", (), "third")]])
    assert [node.payload for node in graph.nodes] == ["first", "third"]


def test_several_sources_become_a_phi():
    # y = a();  if c: y = f(y);  g(y)
    graph = merged([chain("a f:0 g:1"), chain("a g:0")])
    a, f, g = graph.nodes
    assert g.slots == [[(f, 0), (a, 0)]]
    assert graph.find_path(chain("a f:0 g:1")) == (a, f, g)
    assert graph.find_path(chain("a f:0 g:0")) is None


def test_unknown_producer_is_a_new_trace():
    graph = merged([chain("a b g:0")])
    assert graph.find_path(chain("a b g:1")) is None
    assert graph.merge(chain("a b g:1"))  # on this path a comes first: the rule could not give a on the other one
    assert len(graph) == 4
    check(graph)
    assert sources_on(graph.find_path(chain("a b g:0"))) == [(), (), ((0, 0),)]
    assert sources_on(graph.find_path(chain("a b g:1"))) == [(), (), ((1, 0),)]


def test_two_outputs_of_one_producer_are_a_conflict():
    first = [TraceOp("a"), TraceOp("g", [(0, 0)])]
    second = [TraceOp("a"), TraceOp("g", [(0, 1)])]
    graph = merged([first, second])
    assert len(graph) == 3
    assert graph.find_path(first) != graph.find_path(second)


@pytest.mark.parametrize(
    "traces",
    [
        # The last trace would teach a node a source that draws an older trace away from that node's sibling ...
        ["a b:0 c b:1 b:0 a a", "a a c b:0", "a c a b:0 b:3"],
        # ... or draws an earlier event of the same trace away.
        ["b a b:1 b:1 b:0 b:2", "a", "c b:0 a b:0", "b a b:0 b:0"],
    ],
)
def test_siblings_with_one_key_stay_apart(traces):
    traces = [chain(trace) for trace in traces]
    graph = merged(traces)
    check(graph)
    for trace in traces:
        assert sources_on(graph.find_path(trace)) == [op.sources for op in trace]


def test_events_of_one_trace_are_distinct_nodes():
    graph = merged([ops("aaaa"), ops("aa")])
    assert len(graph) == 4
    check(graph)


def test_repeated_keys_are_told_apart_by_their_sources():
    # Two updates with the same keys (library code); the second trace leaves the first update out.
    graph = merged([chain("p q m:0 s:2 m:1 s:4 z"), chain("p q m:1 s:2 z")])
    assert len(graph) == 7
    assert all(len(slot) == 1 for node in graph.nodes for slot in node.slots)


def test_rejoin_does_not_skip_what_comes_next():
    graph = merged([ops("pabcdr"), ops("prabcdr")])
    assert len(graph) == 7  # not a second a, b, c, d behind the only r


def test_optional_parts():
    graph = merged([ops("sct"), ops("sbt"), ops("sat"), ops("sabct"), ops("sact")])
    assert len(graph) == 5
    check(graph)


def test_source_must_come_earlier():
    with pytest.raises(ValueError):
        TraceGraph().merge([TraceOp("a", [(0, 0)])])


def test_large_traces_are_merged_without_duplicates():
    n = 5_000

    def trace(extra):
        result = []
        for i in range(n):
            key = ("lib", i % 7) if i % 3 else ("op", i)
            result.append(TraceOp(key, [(i - 1, 0)] if i else []))
            if extra and i % extra == 0:
                break_at = len(result)
                result.append(TraceOp(("extra", extra, i), [(break_at - 1, 0)]))
        return [TraceOp(op.key, [(j - 1, 0)] if j else []) for j, op in enumerate(result)][:n]

    graph = TraceGraph()
    graph.merge(trace(0))
    for extra in (50, 500):
        assert graph.merge(trace(extra))
        assert len(graph) < n + 150  # the insertions, and little else
    check(graph)


# ---------------------------------------------------------------------- properties


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10**6))
def test_random_programs(seed):
    traces = program_traces(seed)
    graph = TraceGraph()
    for i, trace in enumerate(traces):
        covered = graph.find_path(trace)
        before = state(graph)
        assert graph.merge(trace) == (covered is None)
        if covered is not None:
            assert state(graph) == before
        check(graph)
        for done in traces[: i + 1]:
            path = graph.find_path(done)
            assert path is not None and len(set(path)) == len(path)
            assert [node.key for node in path] == [op.key for op in done]
            assert sources_on(path) == [op.sources for op in done]
    before = state(graph)
    for trace in traces:
        assert not graph.merge(trace)
    for path in graph.traces:
        assert graph.find_path([TraceOp(n.key, s) for n, s in zip(path, sources_on(path))]) == path
    assert state(graph) == before


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10**6))
def test_combinations_of_known_edges(seed):
    graph = merged(program_traces(seed, n=4))
    for i in range(5):
        found = combination(graph, seed + i)
        if found is None:
            continue
        trace, _ = found
        path = graph.find_path(trace)
        before = state(graph)
        assert graph.merge(trace) == (path is None)
        if path is not None:
            assert state(graph) == before and sources_on(path) == [op.sources for op in trace]
        assert graph.find_path(trace) is not None
        check(graph)


EVENTS = st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(-1, 1))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(EVENTS, max_size=9), max_size=6))
def test_arbitrary_traces(raw):
    """Nothing but the contract: three keys, sources anywhere before."""
    traces = []
    for events in raw:
        trace = []
        for position, (key, back, out) in enumerate(events):
            sources = [] if key == "a" or not position else [(max(position - back, 0), out)]
            trace.append(TraceOp(key, sources))
        traces.append(trace)
    graph = TraceGraph()
    for i, trace in enumerate(traces):
        graph.merge(trace)
        check(graph)
        for done in traces[: i + 1]:
            path = graph.find_path(done)
            assert path is not None and sources_on(path) == [op.sources for op in done]


@pytest.mark.parametrize("arity", [0, 1])
def test_merging_generalises(arity):
    """A program of ten optional operations is learnt without duplicates, and from few of its 1024 paths."""
    program = Program(0)
    program.n_vars = 1
    program.body = [("if", [("op", ("f", i), [0] * arity, [0], False)], []) for i in range(10)]
    graph = TraceGraph()
    new = [graph.merge(program.run(i)) for i in range(300)]
    assert len(graph) == 11
    assert sum(new) <= 45


# ---------------------------------------------------------------------- nodes grow with the code, not with the paths


def edges_by_key(graph):
    return {(a.id < 0 or a.key, b.id < 0 or b.key) for a, b in graph.edges()}


def keys_of(traces):
    return {op.key for trace in traces for op in trace}


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([8, 20, 50]), st.randoms(use_true_random=False))
def test_located_operations_are_one_node(seed, size, shuffle):
    """Where each operation of the code has a location of its own, it is one node, whichever paths come in which order."""
    program = Program(seed, size, coarse=0)
    traces = [program.run(seed + i) for i in range(12)]
    others = [program.run(seed + 100 + i) for i in range(12)]
    graph = merged(traces)
    check(graph)
    assert len(graph) == len(keys_of(traces))
    again = list(traces)
    shuffle.shuffle(again)
    again = merged(again)
    assert len(again) == len(graph) and edges_by_key(again) == edges_by_key(graph)
    for trace in others:
        assert (graph.find_path(trace) is None) == (again.find_path(trace) is None)
    for i, trace in enumerate(others, 1):
        graph.merge(trace)
        assert len(graph) == len(keys_of(traces + others[:i]))
    for trace in traces + others:
        assert sources_on(graph.find_path(trace)) == [op.sources for op in trace]


def residual_network(kept, n_blocks=8):
    """A training step with stochastic depth: forward, backward and updates of the blocks that are kept."""
    trace = []

    def op(key, *sources):
        trace.append(TraceOp(key, [(s, 0) for s in sources]))
        return len(trace) - 1

    h = op("input")
    inner = {}
    for i in kept:
        w = op(("read", i))
        inner[i] = (w, h, op(("matmul", i), h, w))
        h = op(("add", i), h, op(("relu", i), inner[i][2]))
    d = op("loss gradient", op("loss", h))
    gradients = {}
    for i in reversed(kept):
        w, x, y = inner[i]
        dy = op(("relu gradient", i), d, y)
        gradients[i] = op(("weight gradient", i), x, dy)
        d = op(("accumulate", i), d, op(("input gradient", i), dy, w))
    for i in kept:
        op(("update", i), gradients[i])
    return trace


@pytest.mark.parametrize("first", ["all", "halves"])
def test_stochastic_depth(first):
    """2^8 paths through 8 optional blocks: after one or two traces that cover the blocks, no path adds a node."""
    paths = [[i for i in range(8) if k >> i & 1] for k in range(256)]
    random.Random(0).shuffle(paths)
    seen = [list(range(8))] if first == "all" else [[0, 2, 4, 6], [1, 3, 5, 7]]
    graph = merged(map(residual_network, seen))
    n = len(graph)
    assert n == 3 + 9 * 8
    merges = sum(graph.merge(residual_network(kept)) for kept in paths)
    assert len(graph) == n
    check(graph)
    assert merges <= 45  # pairs of blocks (and start or end) that follow each other: what merging adds are their edges
    assert all(graph.find_path(residual_network(kept)) for kept in paths)
    assert sum(len(case.block) for s in graph.switch_cases() for case in s.cases) == n


@pytest.mark.parametrize("length", [5, 400])
def test_skipped_ranges(length):
    """Any range of parts may be left out; long parts make it hard to see that an order was only chance."""
    parts = [[("part", i, k) for k in range(length)] for i in range(6)]
    ranges = [(i, j) for i in range(6) for j in range(i, 7)]
    random.Random(1).shuffle(ranges)
    traces = [chained(["start", *itertools.chain(*parts[:i], *parts[j:]), "end"]) for i, j in ranges]
    graph = merged(traces)
    assert len(graph) == 6 * length + 2
    check(graph)


def test_parts_that_were_seen_alone():
    for order in itertools.permutations(range(4)):
        part = lambda i: [("part", i, k) for k in range(300)]
        graph = merged([chained(["start", *part(i), "end"]) for i in order])
        graph.merge(chained(["start", *(key for i in range(4) for key in part(i)), "end"]))
        assert len(graph) == 4 * 300 + 2


def test_one_of_fifty_branches():
    def trace(branch):
        forward, backward = ([(name, branch, k) for k in range(10)] for name in ("forward", "backward"))
        return chained(["start", *forward, "loss", *backward, "end"])

    graph = TraceGraph()
    choose = random.Random(0)
    new = sum(graph.merge(trace(choose.randrange(50))) for _ in range(1000))
    assert new == 50 and len(graph) == 3 + 50 * 20
    assert [len(s.cases) for s in graph.switch_cases()] == [1, 50, 1, 50, 1]


def test_recursion_over_trees():
    """The call id stack is a place in the tree, so nodes grow with the places and not with the trees."""
    choose = random.Random(0)

    def trace():
        events = []

        def tree(place):
            if len(place) == 5 or choose.random() < 0.4:
                events.append(TraceOp(("leaf", place)))
            else:
                children = [(tree((*place, side)), 0) for side in "lr"]
                events.append(TraceOp(("join", place), children))
            return len(events) - 1

        events.append(TraceOp("loss", [(tree(()), 0)]))
        return events

    traces = [trace() for _ in range(300)]
    graph = merged(traces)
    check(graph)
    assert len(graph) == len(keys_of(traces)) <= 2**6 + 2**5
    for t in traces:
        assert sources_on(graph.find_path(t)) == [op.sources for op in t]


def test_optional_library_calls_are_told_apart_by_who_uses_them():
    """Calls with one key, no telling source, and a user that is unique: an optimizer's scalars, for each variable."""

    def trace(kept):
        events = []
        for i in kept:
            events.append(TraceOp("read rate"))
            events.append(TraceOp("cast", [(len(events) - 1, 0)]))
            events.append(TraceOp(("update", i), [(len(events) - 1, 0)]))
        return events

    graph = merged([trace(range(8)), trace([1, 2, 5]), trace([0, 7]), trace([3]), trace([1, 2, 3, 7])])
    assert len(graph) == 24
    check(graph)
