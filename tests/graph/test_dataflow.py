"""Dataflow plans: an interpreter executes them symbolically, and each node must see what its trace saw."""

import random

from hypothesis import given, settings, strategies as st

from terra.graph.dataflow import ExtraSlot, Slot, Value, make_plan
from tests.graph.test_case_assignment import choices
from tests.graph.test_tracegraph import chain, combination, merged, program_traces, sources_on
from tests.variants import examples

DUMMY = "dummy"


def execute(plan, selected, env, on_node):
    """Runs a plan as a generated function does: a Case's branch sees its inputs only, and returns its outputs.

    `on_node(node, env)` is called for each node that is executed, before it assigns its keys.
    """

    def run(block, env):
        for node in block:
            on_node(node, env)
            for key, out in plan.keys_defined_by(node):
                env[key] = (node, out)

    for item, (choice,) in zip(plan.items, selected, strict=True):
        if not item.is_case:
            assert len(item.branches) == 1 and not item.inputs and not item.outputs
            run(item.branches[0].block, env)
            continue
        assert len(set(item.inputs)) == len(item.inputs) and len(set(item.outputs)) == len(item.outputs)
        assert all(key in env for key in item.inputs), "an input that no item before returns"
        inner = {key: env[key] for key in item.inputs}
        run(item.branches[choice].block, inner)
        for key in item.outputs:
            assert key in inner or key not in env, "an output that is not passed through"
            env[key] = inner.get(key, DUMMY)
    return env


def check_plan(graph, plan, path, live_out=(), extra_slots=()):
    expected = dict(zip(path, sources_on(path)))
    position = {node: i for i, node in enumerate(path)}
    executed = []

    def value_of(extra, at):
        """What the extra slot holds just before position `at`; None if nothing yet."""
        for node in reversed(path[:at]):
            if node in extra.defs:
                return (node, extra.defs[node])
        return "initial" if extra.initial else None

    def on_node(node, env):
        for k, (at, out) in enumerate(expected[node]):
            assert env[plan.slot_of[node, k]] == (path[at], out)
        for extra in extra_slots:
            if node in extra.uses:
                value = value_of(extra, position[node])
                assert value is None or env[extra.key] == value
        executed.append(node)

    env = {extra.key: "initial" for extra in extra_slots if extra.initial}
    env = execute(plan, choices(graph, path), env, on_node)
    assert executed == list(path)
    for node, out in live_out:
        if node in position:
            assert env[node, out] == (node, out)
    for extra in extra_slots:
        value = value_of(extra, len(path))
        if extra.live_at_end and value is not None:
            assert env[extra.key] == value


def check_economy(plan, live_at_end):
    """Nothing is carried for no reason: each output is read later, each input by a branch or passed on."""
    read_later = set(live_at_end)
    for item in reversed(plan.items):
        nodes = [node for branch in item.branches for node in branch.block]
        reads = {key for (node, _), key in plan.slot_of.items() if node in set(nodes)} | {
            key for node in nodes for key in plan.extra_reads.get(node, ())
        }
        assert set(item.outputs) <= read_later
        assert set(item.inputs) <= reads | set(item.outputs)
        read_later |= set(item.inputs) | reads


def test_straight_line_is_inline():
    graph = merged([chain("a b:0 c:0,1")])
    plan = make_plan(graph, graph.switch_cases(), [], [])
    a, b, c = graph.nodes
    (item,) = plan.items
    assert not item.is_case and [branch.block for branch in item.branches] == [[a, b, c]]
    assert plan.slot_of == {(b, 0): (a, 0), (c, 0): Value(a, 0), (c, 1): (b, 0)}
    assert plan.keys_defined_by(a) == [((a, 0), 0)] and plan.keys_defined_by(c) == []


def test_phi():
    # y = a();  if c: y = f(y);  else: h();  g(y)
    graph = merged([chain("a f:0 g:1"), chain("a h g:0")])
    node = {n.key: n for n in graph.nodes}
    plan = make_plan(graph, graph.switch_cases(), [(node["g"], 0)], [])
    slot = plan.slot_of[node["g"], 0]
    assert isinstance(slot, Slot) and set(slot.sources) == {(node["a"], 0), (node["f"], 0)}
    case = plan.items[1]
    assert case.is_case and case.outputs == [slot] and set(case.inputs) == {Value(node["a"], 0), slot}
    assert plan.keys_defined_by(node["a"]) == [(Value(node["a"], 0), 0), (slot, 0)]
    assert [item.is_case for item in plan.items] == [False, True, False]
    for path in graph.traces:
        check_plan(graph, plan, path, [(node["g"], 0)])


def test_slots_with_the_same_sources_are_one_key():
    graph = merged([chain("a f:0 g:1 k:1"), chain("a g:0 k:0")])
    plan = make_plan(graph, graph.switch_cases(), [], [])
    node = {n.key: n for n in graph.nodes}
    assert plan.slot_of[node["g"], 0] is plan.slot_of[node["k"], 0]


def test_value_of_one_branch_that_lives_to_the_end():
    graph = merged([chain("a b"), chain("a c"), chain("a")])
    node = {n.key: n for n in graph.nodes}
    plan = make_plan(graph, graph.switch_cases(), [(node["b"], -1)], [])
    case = plan.items[1]
    assert len(case.branches) == 3 and case.branches[2].block == []
    assert case.outputs == [(node["b"], -1)] and case.inputs == []


def test_extra_slot_is_forwarded():
    graph = merged([chain("a write read end"), chain("a read end")])
    node = {n.key: n for n in graph.nodes}
    extra = ExtraSlot("v", {node["write"]: 0}, {node["read"]}, True, True)
    plan = make_plan(graph, graph.switch_cases(), [], [extra])
    case = plan.items[1]
    assert case.inputs == ["v"] and case.outputs == ["v"]  # the empty branch passes it through
    for path in graph.traces:
        check_plan(graph, plan, path, [], [extra])


def test_dead_values_are_not_carried():
    graph = merged([chain("a b c:1 z"), chain("a y z")])
    plan = make_plan(graph, graph.switch_cases(), [], [])
    assert all(not item.inputs and not item.outputs for item in plan.items)


def test_killed_slot_is_not_carried():
    # Both branches assign v, so its old value is no input.
    graph = merged([chain("a b z"), chain("a c z")])
    node = {n.key: n for n in graph.nodes}
    extra = ExtraSlot("v", {node["b"]: 0, node["c"]: 1}, set(), True, True)
    case = make_plan(graph, graph.switch_cases(), [], [extra]).items[1]
    assert case.outputs == ["v"] and case.inputs == []


def test_slot_that_is_assigned_before_its_use_is_no_input():
    graph = merged([chain("a write read z"), chain("a y z")])
    node = {n.key: n for n in graph.nodes}
    extra = ExtraSlot("v", {node["write"]: 0}, {node["read"]}, False, True)
    case = make_plan(graph, graph.switch_cases(), [], [extra]).items[1]
    assert case.outputs == [] and case.inputs == []


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_random_programs(seed, data):
    graph = merged(program_traces(seed, n=5, size=16))
    choose = random.Random(seed + 1)
    nodes = graph.nodes
    live_out = [(node, choose.choice([0, -2])) for node in nodes if choose.random() < 0.15]
    extra_slots = [
        ExtraSlot(
            f"variable {v}",
            {node: choose.choice([0, 1]) for node in nodes if choose.random() < 0.2},
            {node for node in nodes if choose.random() < 0.2},
            choose.random() < 0.5,
            choose.random() < 0.7,
        )
        for v in range(choose.randint(0, 3))
    ]
    plan = make_plan(graph, graph.switch_cases(), live_out, extra_slots)
    paths = list(graph.traces)
    for i in range(4):
        found = combination(graph, seed + i)
        if found is not None:
            paths.append(found[1])
    for path in paths:
        check_plan(graph, plan, path, live_out, extra_slots)
    plan.extra_reads = {}
    for extra in extra_slots:
        for node in extra.uses:
            plan.extra_reads.setdefault(node, []).append(extra.key)
    check_economy(plan, {*live_out, *(extra.key for extra in extra_slots if extra.live_at_end)})
    again = make_plan(graph, graph.switch_cases(), live_out, extra_slots)
    names = lambda plan: [(list(map(repr, i.inputs)), list(map(repr, i.outputs))) for i in plan.items]
    assert names(plan) == names(again)
