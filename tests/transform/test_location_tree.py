"""The tree of executed locations: interning, stacks, cursors, generators' activations."""

import copy
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terra.location import pruning, location
from terra.location.location import OUTSIDE, ROOT, begin_step, end_step, register_site, tls


@pytest.fixture
def step():
    saved = begin_step()
    yield tls.cursor
    end_step(saved)


SITES = [register_site("call", "a.py", 10 + i, "f") for i in range(3)]
LOOPS = [register_site("loop", "a.py", 20 + i, "f") for i in range(3)]

paths = st.lists(st.one_of(st.sampled_from(SITES), st.tuples(st.sampled_from(LOOPS), st.integers(0, 4))), max_size=6)


def walk(path):
    node = ROOT
    for part in path:
        if isinstance(part, tuple):
            node = node.loop(part[0])
            for _ in range(part[1]):
                node = node.next or node.grow()
        else:
            node = node.call(part)
    return node


@given(paths, paths)
def test_same_stacks_same_object(one, other):
    assert walk(one) is walk(list(one))
    assert (walk(one) is walk(other)) == (one == other)


@given(paths)
def test_stacks_say_what_was_pushed(path):
    node = walk(path)
    assert node.call_ids == tuple(p for p in path if not isinstance(p, tuple))
    assert node.loop_ids == tuple(p for p in path if isinstance(p, tuple))
    if path:
        last = path[-1]
        site = location.site(last[0] if isinstance(last, tuple) else last)
        assert node.origin() == (site.filename, site.lineno)
    else:
        assert node.origin() is None


def test_repr_is_readable():
    assert repr(walk([SITES[0], (LOOPS[1], 2)])) == "<Location a.py:10 > a.py:21 loop #2>"
    assert repr(ROOT) == "<Location root>"


def test_outside_of_steps_nothing_grows():
    assert tls.current is OUTSIDE
    node = OUTSIDE
    for i in range(100):
        node = node.loop(LOOPS[0])
        node = node.next or node.grow()
        node = node.call(SITES[i % 3])
    assert node is OUTSIDE and OUTSIDE.parent is OUTSIDE
    assert OUTSIDE.call_ids == OUTSIDE.loop_ids == ()


def test_a_step_begins_at_root_and_goes_back():
    saved = begin_step()
    assert tls.current is ROOT and saved is OUTSIDE
    tls.current = ROOT.call(SITES[0])
    inner = begin_step()
    assert tls.current is ROOT
    end_step(inner)
    assert tls.current is ROOT.call(SITES[0])
    end_step(saved)
    assert tls.current is OUTSIDE


def test_each_thread_has_its_own(step):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(tls.current))
    thread.start()
    thread.join()
    assert seen == [OUTSIDE] and tls.current is ROOT


def test_threads_that_arrive_together_get_the_same_node():
    parent = ROOT.call(register_site("call", "b.py", 1, "f"))
    loop_id = register_site("loop", "b.py", 2, "f")
    results = []
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        node, nodes = parent.loop(loop_id), []
        for _ in range(500):
            node = node.next or node.grow()
            nodes.append(node)
        results.append(nodes)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(a is b for other in results[1:] for a, b in zip(results[0], other))


def test_copies_share_and_pickles_do_not():
    node = ROOT.call(SITES[0])
    assert copy.deepcopy([node])[0] is node and copy.copy(node) is node
    with pytest.raises(TypeError, match="own process"):
        pickle.dumps(node)
    assert pickle.loads(pickle.dumps(ROOT)) is ROOT
    assert pickle.loads(pickle.dumps(tls)) is tls


def test_the_inline_cache_forgets_nothing_and_mixes_nothing(step):
    first, second = (lambda: 1), (lambda: 2)
    for callee in (first, second, first, abs, second):
        assert tls.cursor.enter(SITES[0], callee) is callee
        assert tls.current is ROOT.call(SITES[0])
        assert tls.cursor.leave("value", SITES[0]) == "value"
        assert tls.current is ROOT


def test_a_long_loop_does_not_leave_its_nodes_behind(step, monkeypatch):
    monkeypatch.setattr(pruning, "_FEW", 1000)
    location._pruner.prune(ROOT)
    before = location._pruner.made  # of other tests' programs
    n = 4 * before + 5000
    monkeypatch.setattr(location._pruner, "limit", before + 1000)
    loop_id, call_id = register_site("loop", "c.py", 1, "f"), register_site("call", "c.py", 2, "f")

    def run():
        seen = []
        node = ROOT.loop(loop_id)
        for i in range(n):
            node = node.next or node.grow()
            inner = node.call(call_id)
            if i % 1500 == 0 and i < 5000:
                seen.append(inner)
        return seen

    first = run()
    end_step(ROOT)
    assert location._pruner.made < before + n
    second = run()
    assert len(first) == 4 and all(a is b for a, b in zip(first, second))
    assert [n.loop_ids[-1][1] for n in first] == [1, 1501, 3001, 4501]


def test_an_exception_while_a_node_is_made_has_no_context_of_ours(step, monkeypatch):
    def full(self, call_id):
        raise RecursionError

    monkeypatch.setattr(location.Location, "call", full)
    with pytest.raises(RecursionError) as caught:
        tls.cursor.enter(register_site("call", "c.py", 3, "f"), abs)
    assert caught.value.__context__ is None
