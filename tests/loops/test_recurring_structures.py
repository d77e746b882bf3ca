"""Structures of arguments that come again and again: each gets a graph of its own for the whole step, equal to eager execution; one that is not what it seemed is given up."""

import sys
import dataclasses
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.runtime.step_function import generation, structure_specialisation
from tests.loops import test_varying_loops as test_loops


@pytest.fixture(autouse=True)
def at_any_cost(monkeypatch):
    """Whether a graph for a structure pays is a question of time."""
    monkeypatch.setattr(structure_specialisation, "SHARE", 1e9)


class Encoder:
    """Recursion over nested tuples, trained."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.words = tf.Variable(rng.normal(size=(5, 8)).astype(np.float32) * 0.3)
        self.both = tf.Variable(rng.normal(size=(16, 8)).astype(np.float32) * 0.3)
        self.variables = [self.words, self.both]
        self.seen = []

    def encode(self, tree):
        if isinstance(tree, int):
            return tf.gather(self.words, [tree])
        return tf.tanh(tf.concat([self.encode(tree[0]), self.encode(tree[1])], 1) @ self.both)

    def step(self, tree, scale=1.0):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.encode(tree) ** 2) * scale
        for v, g in zip(self.variables, tape.gradient(loss, self.variables)):
            if g is not None:
                v.assign_sub(0.05 * tf.convert_to_tensor(g))
        return loss


TREES = [((0, 1), 2), ((1, 2), (3, 4)), (3, (4, (0, 1))), ((0, (1, 2)), ((3, 4), (0, 1)))]


def run(make, calls, coexecuted=True, **options):
    """(what the steps returned or raised, variables, what Python saw, the step) of a program that is called with each of `calls`."""
    program = make()
    step = terra.coexecute(program.step, wait_for_graph=True, **options) if coexecuted else program.step
    results = []
    for call in calls:
        try:
            results.append(step(*call(program) if callable(call) else call))
        except (tf.errors.InvalidArgumentError, ZeroDivisionError) as error:
            results.append(type(error).__name__)
    results = [float(r) if tf.is_tensor(r) else r for r in results]
    return results, [v.numpy() for v in program.variables], program.seen, step


def check(make, calls, **options):
    calls = list(calls)
    expected = run(make, calls, coexecuted=False)
    actual = run(make, calls, **options)
    assert [type(x) for x in expected[0]] == [type(x) for x in actual[0]]
    assert [x for x in expected[0] if type(x) is str] == [x for x in actual[0] if type(x) is str]
    np.testing.assert_allclose([x for x in expected[0] if type(x) is float], [x for x in actual[0] if type(x) is float], rtol=1e-4)
    for a, b in zip(expected[1], actual[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert expected[2] == actual[2]
    return actual[3].stats(), actual[3]


def functions(step):
    """Structure -> its function, or None, of a co-executed function (or method)."""
    return step.__func__.instances.table[id(step.__self__)].specialisation.functions if hasattr(step, "__self__") else step.specialisation.functions


def test_trees_come_again():
    stats, step = check(Encoder, [(tree,) for _ in range(14) for tree in TREES])
    assert stats.recurring_steps >= 24 and stats.whole_steps >= 12 and stats.fallbacks <= 1, stats
    assert len(functions(step)) == len(TREES) and None not in functions(step).values()
    assert "4 structures of arguments" in terra.explain(step, full=True)


def test_new_trees_between():
    """Structures that have not come before go on running in pieces."""
    rng = np.random.default_rng(3)

    def tree(n):
        return int(rng.integers(0, 5)) if n == 1 else (tree(k := int(rng.integers(1, n))), tree(n - k))

    calls = [(t,) for _ in range(14) for t in (TREES[0], tree(6), TREES[1], tree(7))]
    stats, step = check(Encoder, calls)
    assert stats.recurring_steps >= 10 and stats.fallbacks <= 3, stats
    assert len(functions(step)) == 2
    assert stats.coexecuted_steps - stats.recurring_steps >= 10, stats


def test_lengths_come_again():
    class Rnn(Encoder):
        def step(self, x):
            with tf.GradientTape() as tape:
                h = tf.zeros([x.shape[0], 8])
                for i in range(x.shape[1]):
                    h = tf.tanh(tf.concat([x[:, i], h], 1) @ self.both)
                loss = tf.reduce_mean(h ** 2)
            self.both.assign_sub(0.05 * tape.gradient(loss, self.both))
            self.seen.append(x.shape[1])
            return loss

    rng = np.random.default_rng(1)
    calls = [(tf.constant(rng.normal(size=(2, n, 8)), tf.float32),) for _ in range(14) for n in (5, 7, 6)]
    stats, step = check(Rnn, calls)
    assert stats.recurring_steps >= 15 and stats.fallbacks <= 1, stats
    assert len(functions(step)) == 3


@pytest.mark.parametrize("loops, expected", [("auto", True), ("roll", False)])
def test_option(loops, expected):
    stats, step = check(Encoder, [(tree,) for _ in range(10) for tree in TREES], loops=loops)
    assert (stats.recurring_steps > 0) is expected, stats
    assert stats.pieces > 0 and stats.coexecuted_steps >= 20, stats


# -- what the structure does not tell ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Node:
    left: object
    right: object

    def __getitem__(self, k):
        return self.right if k else self.left


def test_tree_changes_inside():
    """Objects are told by their identity; what they hold changes."""
    trees = [Node(Node(0, 1), 2), Node(Node(1, 2), Node(3, 4)), Node(3, Node(4, Node(0, 1)))]

    def call(i):
        def given(program):
            tree = trees[i % 3]
            if i in (20, 32, 41):
                tree.right = {20: 4, 32: Node(2, 2), 41: 1}[i]
            return (tree,)
        return given

    def with_new_trees():
        trees[:] = [Node(Node(0, 1), 2), Node(Node(1, 2), Node(3, 4)), Node(3, Node(4, Node(0, 1)))]
        return Encoder()

    stats, _ = check(with_new_trees, [call(i) for i in range(60)])
    assert stats.recurring_steps >= 15, stats


def test_path_depends_on_something_else():
    """The same arguments, another path after a while: the function for the structure falls back, and is given up if that goes on."""
    class Other(Encoder):
        def __init__(self):
            super().__init__()
            self.turns = 0

        def step(self, tree):
            self.turns += 1
            times = 1 if self.turns < 30 else 1 + self.turns * 7 % 5
            loss = tf.constant(0.0)
            for _ in range(times):
                loss = loss + super().step(tree) * float(times)
            return loss

    calls = [(tree,) for _ in range(20) for tree in TREES]
    stats, step = check(Other, calls)
    assert stats.recurring_steps >= 3, stats
    assert list(functions(step).values()).count(None) >= 1, functions(step)
    assert stats.coexecuted_steps >= 30, stats


def test_scalars_are_part_of_the_structure():
    stats, step = check(Encoder, [(tree, 1.0 if i % 2 else 0.5) for i in range(20) for tree in TREES[:3]])
    assert stats.recurring_steps >= 8 and stats.fallbacks <= 1, stats
    assert len(functions(step)) == 6


def test_scalar_is_new_each_time():
    """A structure with a counter in it never recurs: no function is made, what is remembered is bounded."""
    stats, step = check(Encoder, [(tree, 1.0 / (1 + i)) for i in range(12) for tree in TREES[:3]])
    assert stats.recurring_steps == 0 and stats.coexecuted_steps >= 15, stats
    assert not functions(step)


def test_errors():
    """A step that raises, in Python or in a kernel, leaves what eager execution leaves."""
    class Raising(Encoder):
        def step(self, tree, bad=False):
            self.seen.append(bad)
            loss = super().step(tree)
            if self.seen[-1] == "python":
                1 / 0
            if self.seen[-1] == "kernel":
                loss = loss + tf.gather([1.0, 2.0], tf.cast(loss * 0.0, tf.int32) + 7)
            return loss

    calls = []
    for i in range(16):
        for tree in TREES[:3]:
            calls.append((tree,))
        if i in (11, 13):
            calls.append((TREES[0], "python" if i == 11 else "kernel"))
    stats, _ = check(Raising, calls, run_ahead=0)
    assert stats.recurring_steps >= 8, stats


def test_python_goes_on_running():
    """What is seen, counted and printed at each step is so in steps of recurring structures, too."""
    class Counting(Encoder):
        def encode(self, tree):
            self.seen.extend([tree]), sys._getframe()
            return super().encode(tree)

    stats, _ = check(Counting, [(tree,) for _ in range(12) for tree in TREES[:3]])
    assert stats.recurring_steps >= 12 and stats.whole_steps == 0, stats


def test_values_from_outside_change():
    """A hyperparameter that is no argument."""
    class Scaled(Encoder):
        factor = 1.0

        def step(self, tree):
            return super().step(tree, self.factor)

    def call(i, tree):
        def given(program):
            program.factor = 1.0 if i < 9 else 0.5 if i < 13 else 0.25
            return (tree,)
        return given

    stats, _ = check(Scaled, [call(i, tree) for i in range(20) for tree in TREES[:3]])
    assert stats.recurring_steps >= 16, stats


# -- bounds --------------------------------------------------------------------------------------------------------------------


def test_at_most_so_many(monkeypatch):
    monkeypatch.setattr(structure_specialisation, "MOST", 2)
    stats, step = check(Encoder, [(tree,) for _ in range(12) for tree in TREES])
    assert len(functions(step)) == 2 and stats.recurring_steps >= 8, stats


def test_time_is_bounded(monkeypatch):
    """Tracing for single structures waits until what it costs is a part of what all steps have taken."""
    monkeypatch.setattr(structure_specialisation, "SHARE", 0.0)
    stats, step = check(Encoder, [(tree,) for _ in range(12) for tree in TREES])
    assert len(functions(step)) <= 1, functions(step)  # the first costs nothing, as far as is known


class Function:
    """Stands in for the function of a structure."""

    def __init__(self):
        self.generation = generation.Generation(self)
        self.policy = structure_specialisation.SpecialisationPolicy("a step")
        self.options = terra.options.Options()


@pytest.mark.parametrize("pays", [False, True])
def test_functions_that_do_not_pay(pays):
    """The first functions are compared with the pieces: if steps take as long as before, no further structure gets one."""
    known, now = structure_specialisation.StructureSpecialisation(Function), 0.0
    for _ in range(12):
        for structure in range(6):
            function = known.find(structure, now)
            if function is None:
                known.ran(structure, "the same path", now, now + 0.5)
                now += 1.0
            else:
                coexecuted = function.policy.traces >= 2
                if coexecuted:
                    function.policy.coexecuted()
                known.ran_by_itself(structure, coexecuted, now, now + 0.2)
                now += 0.3 if pays else 0.95
            if structure == 2 and len(known.functions) == 3 and min(f.policy.steps for f in known.functions.values()) < 5:
                break  # three of them are known well before others recur
    assert len(known.functions) == (6 if pays else 3)


def in_turn(known, structures, rounds, in_pieces, alone):
    """Steps of some structures in turn, which take so long in pieces and by themselves, co-executed from their third one on; returns the functions that were given up."""
    now, left = known._took, []
    for _ in range(rounds):
        for structure in range(structures):
            function = known.find(structure, now)
            took = in_pieces if function is None else alone
            if function is None:
                known.ran(structure, "the same path", now, now + took)
            else:
                if function.policy.traces >= 2:
                    function.policy.coexecuted()
                left.append(known.ran_by_itself(structure, function.policy.traces >= 2, now, now + took))
            now += took
    return [function for function in left if function is not None]


def test_few_functions_until_it_is_known_whether_they_pay():
    known = structure_specialisation.StructureSpecialisation(Function)
    in_turn(known, 30, 3 + 2, 1.0, 0.5)
    assert len(known.functions) == 8
    in_turn(known, 30, 12, 1.0, 0.5)
    assert len(known.functions) == 30


def test_a_function_whose_steps_take_longer_is_given_up():
    known = structure_specialisation.StructureSpecialisation(Function)
    left = in_turn(known, 2, 3 + 2 + 11, 1.0, 1.5)
    assert not left and len(known.functions) == 2
    left = in_turn(known, 2, 2, 1.0, 1.5)
    assert len(left) == 2 and set(known.functions.values()) == {None}
    known = structure_specialisation.StructureSpecialisation(Function)
    assert not in_turn(known, 2, 40, 1.0, 1.1) and None not in known.functions.values()


class Indexed:
    """A loop with an index in it that Python draws: it is no constant, in no iteration."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.w = tf.Variable(rng.normal(size=(4, 3)).astype(np.float32) * 0.3)
        self.variables, self.seen, self.random = [self.w], [], random.Random(3)

    def step(self, x, n):
        with tf.GradientTape() as tape:
            parts = []
            for k in range(n):
                parts.append(tf.math.log(tf.nn.softmax(x[k:k + 1] @ self.w)[0, self.random.randrange(3)]))
            loss = -tf.add_n(parts)
        self.w.assign_sub(0.05 * tape.gradient(loss, self.w))
        return loss


def test_what_is_no_constant_in_pieces_is_none_in_a_function():
    x = tf.constant(np.random.default_rng(1).normal(size=(9, 4)), tf.float32)
    stats, step = check(Indexed, [(x, n) for _ in range(14) for n in (3, 5, 7, 9)])
    assert stats.recurring_steps >= 26 and stats.fallbacks <= 1, (stats, functions(step))  # else 20: they are traced again


def test_large_steps_stay_in_pieces(monkeypatch):
    monkeypatch.setattr(structure_specialisation, "LARGEST", 5)
    stats, step = check(Encoder, [(tree,) for _ in range(10) for tree in TREES])
    assert not functions(step) and stats.recurring_steps == 0 and stats.coexecuted_steps >= 20, stats


def test_structures_are_told_apart():
    known = {}
    for value in (1, 1.0, True, "1", b"1", None, (1,), [1], ((1,),), {"a": 1}, np.ones(1), np.ones(2), tf.ones(1), tf.ones(2), tf.ones(1, tf.int32), object()):
        known[structure_specialisation.structure_key((value,), {})] = value
        assert structure_specialisation.structure_key((value,), {}) == structure_specialisation.structure_key((value,), {})
    assert len(known) == 16
    assert structure_specialisation.structure_key((list(range(10_000)),), {}) is None
    deep = circular = []
    for _ in range(950):
        deep = (deep, 1)
    assert structure_specialisation.structure_key((deep,), {}) is not None
    circular.append(circular)
    assert structure_specialisation.structure_key((circular,), {}) is None
    assert structure_specialisation.structure_key((), {"a": 1}) != structure_specialisation.structure_key((), {"b": 1}) != structure_specialisation.structure_key((1,), {})


# -- with the rest -------------------------------------------------------------------------------------------------------------


def test_graph_alone():
    program = Encoder()
    step = terra.coexecute(program.step, wait_for_graph=True)
    for _ in range(12):
        for tree in TREES:
            step(tree)
    before = program.both.numpy()
    step.run_graph_alone(TREES[1])
    after = program.both.numpy()
    step.run_graph_alone(TREES[1])
    assert np.abs(after - before).max() > 0 and np.abs(program.both.numpy() - after).max() > 0


def test_while_graphs_are_generated():
    """Nobody waits: steps run in pieces until the graph of their structure is there."""
    program = Encoder()
    step = terra.coexecute(program.step)
    expected = Encoder()
    for i in range(200):
        for tree in TREES:
            np.testing.assert_allclose(float(step(tree)), float(expected.step(tree)), rtol=1e-3)
        if step.stats().recurring_steps > 20:
            break
    assert step.stats().recurring_steps > 20, step.stats()


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_order(data):
    leaf = st.integers(0, 4)
    trees = data.draw(st.lists(st.recursive(leaf, lambda t: st.tuples(t, t), max_leaves=6), min_size=2, max_size=4, unique_by=repr))
    order = data.draw(st.lists(st.integers(0, len(trees) - 1), min_size=24, max_size=30))
    stats, _ = check(Encoder, [(trees[i],) for i in order])
    assert stats.steps == stats.tracing_steps + stats.coexecuted_steps + stats.imperative_steps


@pytest.mark.share(8)
@pytest.mark.parametrize("cls", test_loops.PROGRAMS, ids=lambda cls: cls.__name__)
def test_programs_in_pieces(cls, monkeypatch):
    """The programs of tests/loops/test_varying_loops.py; their inputs take turns."""
    recurs = cls.__name__ != "Episode"  # whose lengths are decided by what it reads
    monkeypatch.setattr(structure_specialisation, "TIMES", 1 if recurs else 3)

    def run_with(wrap):
        keras.utils.set_random_seed(5)
        random.seed(5)
        made = cls()
        made.longest = min(made.longest, 6)
        step = wrap(made.step)
        given = [made.inputs(np.random.default_rng(50 + k)) for k in range(3)]
        results = [test_loops.frozen(step(*given[i % 3])) for i in range(27)]
        return results, [v.numpy() for v in made.variables], made.seen, step

    expected = run_with(lambda step: step)
    actual = run_with(lambda step: terra.coexecute(step, wait_for_graph=True))
    for number, (a, b) in enumerate(zip(expected[0], actual[0], strict=True)):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=10 * cls.tolerance, atol=0.1 * cls.tolerance, err_msg=f"step {number}")
    for x, y in zip(expected[1], actual[1], strict=True):
        np.testing.assert_allclose(x, y, rtol=10 * cls.tolerance, atol=0.1 * cls.tolerance)
    assert expected[2] == actual[2]
    stats = actual[3].stats()
    assert stats.coexecuted_steps >= 12, stats
    assert stats.recurring_steps >= (4 if recurs else 0), stats


def test_a_structure_that_does_not_tell_the_path_gets_no_function_soon():
    """As where a loop ends by what it has computed: the same path three times in a row is chance."""
    made = []

    def make():
        made.append(len(taken))
        raise StopIteration

    known, taken = structure_specialisation.StructureSpecialisation(make), []
    for path in [1, 2, 3, 1, 2, 3, 3, 3, 1] + [1] * 100:
        try:
            known.find("structure", 0.0)
        except StopIteration:
            break
        known.ran("structure", path, 0.0, 1.0)
        taken.append(path)
    assert made == [8 + (structure_specialisation.TIMES << 2)]
    for paths, graphs in (((None, None, 1, 1, 1, 1), [0] * 6), ((1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8), range(11))):  # with a new graph each time, paths have new names
        known, taken = structure_specialisation.StructureSpecialisation(make), []
        with pytest.raises(StopIteration):
            for path, n in zip(paths, graphs):
                known.find("structure", 0.0)
                known.ran("structure", path, 0.0, 1.0, n)
                taken.append(path)
        assert made[-1] == len(paths) - 1
