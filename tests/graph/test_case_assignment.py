"""Case assignment: the worked example, early ends, deferral, and properties over random programs."""

from hypothesis import given, settings, strategies as st

from terra.graph.cases import assign_cases, select_table
from terra.graph.nodes import TraceOp
from terra.graph.tracegraph import TraceGraph
from tests.graph.test_tracegraph import combination, merged, ops, program_traces
from tests.variants import examples


def waiting(switch_cases):
    """Per switch-case, the edges of the cut whose targets are deferred: the supplement's cases with an empty block."""
    placed = {node: i for i, switch_case in enumerate(switch_cases) for case in switch_case.cases for node in case.block}
    result = [[] for _ in switch_cases]
    for i, switch_case in enumerate(switch_cases):
        for case in switch_case.cases:
            for x, y in case.edges:
                for between in range(placed.get(x, -1) + 1, i):
                    result[between].append((x, y))
    return result


def by_keys(switch_cases):
    """Switch-cases with nodes as their keys; start is 0.  Deferred edges are shown with an empty block."""
    name = lambda node: 0 if node.id == -1 else node.key
    result = []
    for switch_case, deferred in zip(switch_cases, waiting(switch_cases)):
        cases = [(case.block, case.edges) for case in switch_case.cases] + ([([], deferred)] if deferred else [])
        result.append([([name(n) for n in block], {(name(x), name(y)) for x, y in edges}) for block, edges in cases])
    return result


def choices(graph, path):
    """What a path selects, per switch-case: a list of choices (one is right where there are several)."""
    switch_cases = graph.switch_cases()
    table = select_table(switch_cases)
    selected = [[] if switch_case.n_choices > 1 else [0] for switch_case in switch_cases]
    for edge in zip((graph.start, *path), (*path, graph.end)):
        for index, choice in table.get(edge, ()):
            selected[index].append(choice)
    return selected


def check_cases(graph, paths):
    switch_cases = assign_cases(graph)
    blocks = [case.block for switch_case in switch_cases for case in switch_case.cases]
    assert sorted(node.id for block in blocks for node in block) == list(range(len(graph)))
    for switch_case in switch_cases:
        edges = [edge for case in switch_case.cases for edge in case.edges]
        assert len(set(edges)) == len(edges)
        for case in switch_case.cases:
            assert case.block and {y for _, y in case.edges} == {case.block[0]}
            assert {x for x, _ in case.edges} == set(case.block[0].pred)
            for x, y in zip(case.block, case.block[1:]):
                assert x.succ == [y] and y.pred == [x]
            last = case.block[-1].succ  # as long as possible
            assert len(last) > 1 or last[0] is graph.end or len(last[0].pred) > 1
    table = select_table(switch_cases)
    for entries in table.values():
        assert entries and all(0 <= c < switch_cases[i].n_choices > 1 for i, c in entries)
    for path in paths:
        selected = choices(graph, path)
        assert all(len(taken) == 1 for taken in selected)
        executed = []
        for switch_case, (choice,) in zip(switch_cases, selected):
            if choice == len(switch_case.cases):
                assert switch_case.can_skip
            else:
                executed += switch_case.cases[choice].block
        assert tuple(executed) == tuple(path)


def test_worked_example():
    graph = merged([ops([1, 2, 3, 7, 8, 9]), ops([1, 4, 5, 7, 8, 9]), ops([1, 6, 8, 9])])
    a, b, c, d, g, h, i, j = (0, 1), (1, 2), (1, 4), (1, 6), (3, 7), (5, 7), (6, 8), (7, 8)
    assert by_keys(graph.switch_cases()) == [
        [([1], {a})],
        [([2, 3], {b}), ([4, 5], {c}), ([6], {d})],
        [([7], {g, h}), ([], {i})],
        [([8, 9], {i, j})],
    ]
    assert [s.can_skip for s in graph.switch_cases()] == [False, False, True, False]
    assert [s.n_choices for s in graph.switch_cases()] == [1, 3, 2, 1]
    node = {n.key: n for n in graph.nodes}
    table = select_table(graph.switch_cases())
    assert table == {
        (node[1], node[2]): ((1, 0),),
        (node[1], node[4]): ((1, 1),),
        (node[1], node[6]): ((1, 2),),
        (node[3], node[7]): ((2, 0),),
        (node[5], node[7]): ((2, 0),),
        (node[6], node[8]): ((2, 1),),
    }
    check_cases(graph, graph.traces)


def test_no_branches():
    graph = merged([ops("abc")])
    assert by_keys(graph.switch_cases()) == [[(["a", "b", "c"], {(0, "a")})]]
    assert select_table(graph.switch_cases()) == {}


def test_empty_graph_and_empty_trace():
    assert assign_cases(TraceGraph()) == []
    graph = merged([[]])
    assert graph.switch_cases() == [] and select_table([]) == {}
    graph.merge(ops("a"))
    (switch_case,) = graph.switch_cases()
    assert switch_case.can_skip and switch_case.n_choices == 2
    assert choices(graph, ()) == [[1]] and choices(graph, graph.nodes) == [[0]]


def test_early_end():
    graph = merged([ops("abcd"), ops("ab"), ops("abxd")])
    switch_cases = graph.switch_cases()
    assert [s.can_skip for s in switch_cases] == [False, True, True]
    assert [s.n_choices for s in switch_cases] == [1, 3, 2]
    table = select_table(switch_cases)
    b = graph.find_path(ops("ab"))[-1]
    assert table[b, graph.end] == ((1, 2), (2, 1))
    check_cases(graph, graph.traces)


def test_deferral_over_several_switch_cases():
    graph = merged([ops("abcdz"), ops("az"), ops("abxdz"), ops("abcdyz")])
    node = {n.key: n for n in graph.nodes}
    entries = select_table(graph.switch_cases())[node["a"], node["z"]]
    assert len(entries) >= 3  # it stays in the cut until z is ready
    check_cases(graph, graph.traces)


def test_dot():
    graph = merged([ops("abd"), ops('a"d'), [TraceOp("a"), TraceOp("b"), TraceOp("d", [])]])
    text = graph.to_dot()
    assert text.startswith("digraph") and text.count("{") == text.count("}")
    assert "start -> n0;" in text and '\\"' in text
    assert 'label="NODE"' in graph.to_dot(label=lambda node: "NODE")


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10**6))
def test_random_programs(seed):
    graph = merged(program_traces(seed, size=20))
    paths = list(graph.traces)
    for i in range(5):
        found = combination(graph, seed + i)
        if found is not None:
            paths.append(found[1])
    check_cases(graph, paths)
