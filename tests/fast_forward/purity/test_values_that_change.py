"""Counters, texts, dates, and items of lists, dicts and arrays, that layers find and leave changed: what is done with them is done again where the step is skipped."""

import collections
import datetime
import heapq
import itertools
import random
import types

import numpy as np
import pytest

import terra
from tests import harness
from tests.fast_forward.purity.test_changes_in_layers import program

CALLS = 0
BY = 2.0


class Held:
    def __init__(self):
        global CALLS
        CALLS = 0
        self.steps, self.table, self.name, self.clock, self.seen = 0, [0.5, 1.0, 2.0], "abc", datetime.datetime(2020, 1, 1), None
        self.tree = collections.defaultdict(lambda: collections.defaultdict(int), a=collections.defaultdict(int))
        self.stats, self.calls, self.window, self.sizes = {}, [1.0], [1, 2, 3, 4], (4.0, 2.0, 1.0)
        self.known = {(1, "a"): 1.0}
        self.random, self.tasks, self.kept, self.counter = random.Random(3), [], None, collections.Counter()
        self.ring = collections.deque([0.5, 1.0, 2.0])
        self.view, self.by_pair, self.matrix, self.mode = types.MappingProxyType(self.known), {(1, 2): 0}, np.ones([4, 6], "float32"), 0

    def look(self):
        return [CALLS, self.steps, self.name, self.clock, self.seen, {k: dict(v) for k, v in self.tree.items()}, self.stats, self.calls, self.window, self.by_pair, self.matrix.tolist(), self.mode, self.tasks, self.kept, self.counter, [*self.ring]]


def looks_up(h, x):
    scale = h.table[h.steps % 3]
    h.steps += 1
    return x * scale


def counts_globally(h, x):
    global CALLS
    CALLS += 1
    return x * (1.0 + 0.1 * (CALLS % 10))


def counts_twice(h, x):
    x = x * (1.0 + 0.01 * (h.steps % 7))
    h.steps += 1
    return x * (1.0 + 0.01 * (h.steps % 5))


def goes_through_modes(h, x):
    h.mode = (h.mode + 3) % 11
    return x * (0.1 * h.mode)


def turns_a_text(h, x):
    h.name = h.name[1:] + h.name[0]
    h.seen = h.name.upper()
    return x


def passes_time(h, x):
    h.clock += datetime.timedelta(minutes=7)
    h.seen = h.clock.strftime("%H:%M")
    return x * (1.0 + 0.01 * h.clock.minute)


def counts_in_a_tree(h, x):
    h.tree["a"]["calls"] += 1
    h.tree["a"]["sizes"] += 6
    return x * (h.tree["a"]["sizes"] / (5.0 + h.tree["a"]["calls"]))


def counts_in_a_dict_of_a_dict(h, x):
    stats = h.stats.setdefault("layer", {"calls": 0, "ranks": []})
    stats["calls"] += 1
    stats["ranks"].append(len(x.shape))
    while len(h.stats["layer"]["ranks"]) > 3:
        h.stats["layer"]["ranks"].pop(0)
    return x


def counts_by_a_pair(h, x):
    h.by_pair[1, 2] += 1
    h.seen = list(h.by_pair.values())
    return x


def empties_a_list(h, x):
    calls = h.calls
    calls.append(len(calls))
    if h.calls[-1] > 5:
        del calls[:]
    return x * (1.0 + 0.01 * len(h.calls))


def shifts_a_window(h, x):
    window = h.window
    h.window[:] = [*h.window[1:], (h.window[-1] + 1) % 7]
    return x * (1.0 + 0.01 * window[-1])


def goes_through_pairs(h, x):
    for a, b in itertools.pairwise(h.sizes):
        x = x * (a / b) * 0.5
    return x


def goes_through_groups(h, x):
    h.seen = {size: len(list(group)) for size, group in itertools.groupby([4, 4, 2, 1])}
    return x * (0.5 * len(h.seen))


def joins(h, x):
    h.seen = ",".join(["a", str(h.random.random())]), "".join(text for text in ("b", str(h.random.random()))), b"-".join([b"c", str(h.random.random()).encode()])
    return x


def fills_what_it_has_set(h, x):
    h.kept = [1.0]
    h.kept += [h.random.random()]
    h.kept.append(h.random.random())
    return x


def takes_tasks(h, x):
    heapq.heappush(h.tasks, (h.steps % 5, "task"))
    if len(h.tasks) > 4:
        h.seen = heapq.heappop(h.tasks)
    h.steps += 1
    return x * (1.0 + 0.01 * h.tasks[0][0])


def rotates(h, x):
    h.ring.rotate(1)
    h.ring.appendleft(h.ring.pop())
    return x * h.ring[0]


def counts_most(h, x):
    h.counter["a"] += 1
    h.counter.subtract({"b": 1})
    if h.counter.most_common(1)[0][1] >= 10:
        h.counter.clear()
    return x * (1.0 + 0.01 * h.counter.total())


def lists_what_a_view_shows(h, x):
    h.seen = [list(h.view.values()), len(h.view)]
    return x


def changes_a_row(h, x):
    row = h.matrix[h.steps % 4]
    h.steps += 1
    row += 0.1
    return x * float(h.matrix[0, 0])


SKIPPED = [looks_up, counts_globally, counts_twice, goes_through_modes, passes_time, counts_in_a_tree, counts_in_a_dict_of_a_dict, counts_by_a_pair, empties_a_list, shifts_a_window,
           goes_through_pairs, goes_through_groups, joins, fills_what_it_has_set, takes_tasks, rotates, counts_most, lists_what_a_view_shows]


@pytest.mark.all_variants
@pytest.mark.parametrize("body", SKIPPED)
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_in_a_layer(body, verify):
    harness.compare_steps(program(body, held=Held), whole=20, express=0, n=70, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [*SKIPPED, turns_a_text, changes_a_row])
def test_in_a_step(body):
    harness.compare_steps(program(body, inside=False, held=Held), whole=0, express=0, n=60)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [*SKIPPED, turns_a_text, changes_a_row])
def test_what_others_change(body):
    """... between steps, and what can no more be done with it."""
    def change(h, k):
        if k == 40:
            h.steps, h.table[1], h.name, h.mode, h.known["b"] = 5, 3.0, "xyz", 4, 2.0
            h.clock += datetime.timedelta(days=1)
            h.tree["a"]["calls"], h.stats["more"], h.calls[:], h.window[0] = 50, 1, [7.0], 6
            h.by_pair, h.matrix = {(1, 2): 100, (3, 4): 1}, np.full([4, 6], 2.0, "float32")
        elif k == 55:
            h.steps, h.table, h.clock, h.mode = 300, (1.0, 0.5, 0.25), datetime.date(2021, 2, 3), 1.5
            h.window, h.by_pair, h.sizes = [1.5, 2.5], collections.Counter({(1, 2): 7}), [1.0, 2.0]

    def body_or_reason(h, x):
        try:
            return body(h, x)
        except (AttributeError, TypeError) as error:
            h.seen = type(error).__name__
            return x

    harness.compare_steps(program(body_or_reason, change=change, held=Held), whole=0, express=0, n=70)


def test_which_one_a_small_integer_is():
    """A program that asks which object an integer is finds the one that Python has for all that are equal."""
    def asks(h, x):
        h.steps = (h.steps + 1) % 20
        h.seen = h.steps is h.mode
        h.window.append(h.steps)
        return x * (1.0 + 0.1 * h.steps)

    def change(h, k):
        h.mode = 7
        assert k == 0 or h.window[-1] is int(str(h.window[-1]))
        assert h.steps is int(str(h.steps))

    harness.compare_steps(program(asks, change=change, held=Held), whole=0, express=0, n=60)


def test_a_call_that_gives_something_else_is_not_tried_for_ever():
    """Each try in vain costs as much as several skipped calls save."""
    class Unknown:
        __slots__ = ("n",)

    gives = types.MappingProxyType(known := {"a": 0.0})

    def looks(h, x):
        h.seen = gives["a"] > 10.0
        return x

    def change(h, k):
        known["a"] = 20.0 * (k % 2)

    step = harness.compare_steps(program(looks, change=change, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps > 40, terra.explain(step)
