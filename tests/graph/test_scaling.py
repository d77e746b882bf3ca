"""The pure graph part scales: cost grows near-linearly with traces and graphs, whatever their shape.

Times on a shared machine say little, so what is asserted is growth: four times the size may take less than eight times as
long (linear would be four, quadratic sixteen).  The `benchmark` tests print the absolute numbers; `--benchmark-disable`
runs them once.
"""

import gc
import random
import statistics
import sys
import time

import pytest

from terra.graph.cases import assign_cases, select_table
from terra.graph.dataflow import make_plan
from terra.graph.nodes import TraceOp
from tests.graph.test_tracegraph import chained, merged

ROUNDS = 3
pytestmark = pytest.mark.benchmark(timer=time.process_time, disable_gc=True)


# Each shape gives, for a size, the traces to merge first and one more that is new; about `n` operations in all graphs.


def straight(n):
    """No branches but a few: what most programs are."""
    keys = [("op", i) for i in range(n)]
    return [chained(keys)], chained([("other", i) if i % 100 == 50 else key for i, key in enumerate(keys)])


def optional_parts(n):
    """Parts of ten operations, each left out half of the time."""
    choose = random.Random(0)
    parts = [[("op", i, k) for k in range(10)] for i in range(n // 10)]
    some = lambda: chained([key for part in parts if choose.random() < 0.5 for key in part])
    return [chained([key for part in parts for key in part]), *(some() for _ in range(4))], some()


def two_way_branches(n):
    """A chain of two-way branches."""
    choose = random.Random(0)
    branches = lambda pick: chained([key for i in range(n // 3) for key in ((i, pick()), (i, "join"))])
    return [branches(lambda: 0), branches(lambda: 1)], branches(lambda: choose.choice([0, 1, 2]))


def early_exits(n):
    """From many places there is a way straight to a common tail: edges that stay in the cut for long."""
    trace = lambda stop: [TraceOp(("op", i)) for i in range(stop)] + [TraceOp("tail")]
    return [trace(n), *(trace(stop) for stop in range(n // 50, n, n // 50))], trace(n // 2 + 7)


def early_ends(n):
    trace = lambda stop: [TraceOp(("op", i)) for i in range(stop)]
    return [trace(n), *(trace(stop) for stop in range(n // 50, n, n // 50))], trace(n // 2 + 7)


def one_of_many(n):
    """One branch of many, which all use the same value and join in the same operation: a node with n / 5 successors."""
    trace = lambda branch: chained(["start", *(("op", branch, i) for i in range(5)), "join", "end"])
    return [trace(branch) for branch in range(n // 5)], trace(-1)


def one_of_many_library_calls(n):
    """As many siblings with one key: only their sources tell them apart."""

    def trace(branch):
        before = chained([("op", branch, i) for i in range(4)])
        return [*before, TraceOp("common"), TraceOp("library", [(3, 0)]), TraceOp("end", [(5, 0)])]

    return [trace(branch) for branch in range(n // 5)], trace(-1)


def library_code(n):
    """Three keys everywhere; in the new trace some operations are inserted and some left out."""
    key = lambda i: ("library", i % 3)
    new = [key(i) if i % 97 else ("inserted", i) for i in range(n) if i % 50]
    return [chained(map(key, range(n)))], chained(new)


def library_code_without_sources(n):
    (first,), new = library_code(n)
    return [[TraceOp(op.key) for op in first]], [TraceOp(op.key) for op in new]


def nested(n):
    """Conditions inside conditions, as deep as the program is long."""
    trace = lambda depth: chained([("in", i) for i in range(depth)] + [("out", i) for i in reversed(range(depth))])
    return [trace(n // 2), *(trace(depth) for depth in range(n // 40, n // 2, n // 40))], trace(n // 4 + 7)


def unordered_parts(n):
    """Parts that were seen alone, so that the graph put them in an order by chance; then all together."""
    parts = [[("part", i, k) for k in range(20)] for i in range(n // 20)]
    each = [chained(["start", *part, "end"]) for part in parts[:50]]
    return each, chained(["start", *(key for part in parts for key in part), "end"])


SHAPES = [
    straight, optional_parts, two_way_branches, early_exits, early_ends, one_of_many, one_of_many_library_calls,
    library_code, library_code_without_sources, nested, unordered_parts,
]  # fmt: skip


def analyse(graph):
    switch_cases = assign_cases(graph)
    table = select_table(switch_cases)
    return switch_cases, table, make_plan(graph, switch_cases, [(graph.nodes[-1], 0)])


class quiet:
    """Time that is not garbage collection of what other tests left."""

    def __enter__(self):
        gc.collect()
        gc.freeze()
        gc.disable()

    def __exit__(self, *_):
        gc.enable()


def seconds(function, *args):
    began = time.process_time()
    function(*args)
    return time.process_time() - began


def median(shape, n):
    """Median CPU times, for size `n`, of merging the last trace, finding its path, and all that generation needs."""
    before, new = shape(n)
    rounds = []
    with quiet():
        for _ in range(ROUNDS):
            graph = merged(before)
            rounds.append([seconds(graph.merge, new), seconds(graph.find_path, new), seconds(analyse, graph)])
    return [statistics.median(times) for times in zip(*rounds)]


@pytest.mark.parametrize("shape", SHAPES)
def test_growth(shape):
    small = 600
    for what, a, b in zip(("merge", "find_path", "analyse"), median(shape, small), median(shape, 4 * small)):
        # Below some milliseconds the clock decides; a quadratic algorithm is far above them at the larger size.
        assert b / max(a, 0.004) < 12, f"{what}: {a * 1e3:.1f} ms for {small}, {b * 1e3:.1f} ms for {4 * small}"


def test_many_paths_cost_what_they_add():
    """Merging has to look at all paths merged before: a hundred more must not make it a hundred times slower."""
    choose = random.Random(0)

    def trace():
        return chained([("op", i, k) for i in range(60) if choose.random() < 0.5 for k in range(10)])

    def merging(n):
        graph = merged(trace() for _ in range(n))
        new = [trace() for _ in range(10)]
        with quiet():
            return seconds(lambda: [graph.merge(t) for t in new]), len(graph.traces)

    (few, _), (many, n) = merging(5), merging(200)
    assert n > 100
    assert many / max(few, 0.02) < 8


def test_nothing_recurses():
    before, new = nested(4000)
    limit = sys.getrecursionlimit()
    depth = len(__import__("inspect").stack())
    sys.setrecursionlimit(depth + 60)
    try:
        graph = merged(before)
        graph.merge(new)
        analyse(graph)
        assert graph.find_path(new) is not None
    finally:
        sys.setrecursionlimit(limit)


def test_an_early_exit_is_one_entry():
    """What an edge selects in thousands of switch-cases is not written out."""
    before, new = early_exits(2000)
    graph = merged([*before, new])
    switch_cases = assign_cases(graph)
    table = select_table(switch_cases)
    longest = max(table.values(), key=len)
    assert len(longest) >= 49 and type(longest) is not tuple
    assert list(longest) == [longest[k] for k in range(len(longest))]
    assert all(choice == len(switch_cases[i].cases) for i, choice in longest[:-1])


# ---------------------------------------------------------------------- absolute numbers (CPU time)

@pytest.mark.parametrize("shape", [straight, optional_parts, library_code, one_of_many])
def test_merge_20_000(benchmark, shape):
    before, new = shape(20_000 if shape is not one_of_many else 5_000)
    graph = merged(before)
    benchmark.pedantic(graph.merge, (new,))  # once: then it is known
    assert graph.find_path(new) is not None


def test_find_path_20_000(benchmark):
    before, new = straight(20_000)
    graph = merged([*before, new])
    assert benchmark.pedantic(graph.find_path, (new,), rounds=ROUNDS) is not None


@pytest.fixture(scope="module", params=[straight, two_way_branches])
def large(request):
    with quiet():
        return merged(request.param(50_000)[0])


@pytest.mark.parametrize("what", [assign_cases, analyse])
def test_analysis_of_50_000(benchmark, large, what):
    benchmark.pedantic(what, (large,))
