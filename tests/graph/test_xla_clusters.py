"""Clusters of nodes that are compiled together: convex, without circles (also those that close through Python), and as large as that allows."""
from hypothesis import given, settings, strategies as st

from terra.runtime.generation.xla.clusters import ALONG, NO, YES, find_clusters
from tests.variants import examples


@st.composite
def graphs(draw):
    """before, may, order, reads of a random program: nodes in the order in which Python issued them."""
    before, may, order, reads = [], [], [], []
    for node in range(draw(st.integers(1, 30))):
        before.append(sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else [])
        kind = draw(st.sampled_from([YES, YES, YES, ALONG, NO, "talks", "read"]))
        may.append(kind if kind in (YES, ALONG) else NO)
        if kind in ("talks", "read"):
            order.append(node)
        if kind == "read":
            reads.append(node)
    return before, may, order, reads


def with_python(before, order):
    """What a node waits for if Python's order counts too."""
    waits = [list(sources) for sources in before]
    for earlier, later in zip(order, order[1:]):
        waits[later].append(earlier)
    return waits


def has_circle(edges):
    done, open_ = set(), set()

    def visit(node):
        if node in done:
            return False
        if node in open_:
            return True
        open_.add(node)
        found = any(visit(other) for other in edges.get(node, ()))
        done.add(node)
        return found

    return any(visit(node) for node in list(edges))


@settings(max_examples=examples(500), deadline=None)
@given(graphs())
def test_clusters_do_not_wait_for_each_other_in_a_circle(graph):
    """Each cluster contracted to one node leaves a graph without circles; that is also what convexity means."""
    before, may, order, reads = graph
    clusters = find_clusters(before, may, order, reads)
    home = {node: ("cluster", number) for number, members in enumerate(clusters) for node in members}
    assert len(home) == sum(map(len, clusters)), "a node in two clusters"
    edges = {}
    for node, sources in enumerate(with_python(before, order)):
        for source in sources:
            a, b = home.get(node, node), home.get(source, source)
            if a != b:
                edges.setdefault(a, set()).add(b)
    assert not has_circle(edges)


@settings(max_examples=examples(300), deadline=None)
@given(graphs())
def test_what_is_compiled(graph):
    before, may, order, reads = graph
    inside = {node for members in find_clusters(before, may, order, reads) for node in members}
    for node, sources in enumerate(before):
        expected = may[node] == YES or (may[node] == ALONG and any(source in inside for source in sources))
        assert (node in inside) == expected


@settings(max_examples=examples(300), deadline=None)
@given(graphs(), st.integers(2, 6))
def test_small_clusters_are_left_alone(graph, smallest):
    before, may, order, reads = graph
    every = find_clusters(before, may, order, reads)
    assert find_clusters(before, may, order, reads, smallest) == [members for members in every if len(members) >= smallest]


@settings(max_examples=examples(300), deadline=None)
@given(graphs())
def test_a_read_waits_for_nothing_that_it_does_not_need(graph):
    """A cluster that a read needs holds only nodes that this read, or an earlier one, needs."""
    before, may, order, reads = graph
    waits = with_python(before, order)

    def needed_by(read):
        found, pending = set(), [read]
        while pending:
            for source in waits[pending.pop()]:
                if source not in found:
                    found.add(source)
                    pending.append(source)
        return found

    allowed = set()
    for read in reads:
        allowed |= needed_by(read) | {read}
        needed = needed_by(read)
        for members in find_clusters(before, may, order, reads):
            if needed & set(members):
                assert set(members) <= allowed


def test_one_cluster_where_nothing_is_in_between():
    before = [[], [0], [1], [1], [2, 3]]
    assert find_clusters(before, [NO, YES, YES, YES, YES]) == [[1, 2, 3, 4]]


def test_an_operation_outside_splits():
    # 1 -> 2 (outside) -> 3, and 1 -> 3
    assert find_clusters([[], [0], [1], [1, 2]], [NO, YES, NO, YES]) == [[1], [3]]


def test_a_feed_that_follows_a_read_splits_though_no_edge_says_so():
    # 0 is read (1); Python then sends 2; 3 uses it: 0 and 3 in one cluster would wait for Python, which waits for them
    before, may = [[], [0], [], [2]], [YES, NO, NO, YES]
    assert find_clusters(before, may, order=[1, 2], reads=[1]) == [[0], [3]]


def test_backward_is_not_in_the_way_of_a_read():
    # forward 0, 1; the loss is read (2); backward 3, 4 was issued before the read
    before, may = [[], [0], [0, 1], [1, 2], [1]], [YES, YES, YES, YES, NO]
    assert find_clusters(before, may, order=[4], reads=[4]) == [[0, 1], [2, 3]]


def test_counters_stay_outside_unless_they_come_from_a_cluster():
    before, may = [[], [0], [1], [2], [3]], [NO, ALONG, YES, ALONG, YES]
    assert find_clusters(before, may) == [[2, 3, 4]]
