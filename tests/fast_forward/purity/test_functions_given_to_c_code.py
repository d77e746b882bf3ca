"""Functions of the program's that C code calls, generators that a program goes on with, files that are opened and closed: they run in each step, and all around them is skipped."""

import functools
import heapq
import re

import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity.test_changes_in_layers import program

MOST = [3]


def numbers():
    k = 0
    while True:
        k += 1
        yield k % 7


class Ranked:
    asked = 0

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        Ranked.asked += 1
        return self.value < other.value


class Held:
    path = None

    def __init__(self):
        self.items, self.n, self.text, self.called, self.numbers, self.heap, self.w = [3, 1, 2], 0, "a1b2", [], numbers(), [], tf.Variable(2.0)
        self.keys, self.same = [], None
        Ranked.asked, MOST[0] = 0, 3
        open(self.path, "w").close()

    def key(self, x):
        self.called.append(x)
        return (x + self.n) % MOST[0]

    def look(self):
        with open(self.path) as file:
            return self.items, self.n, self.text, self.called, [x.value for x in self.heap], Ranked.asked, file.read(), len(self.keys), self.same


@pytest.fixture(autouse=True)
def path(tmp_path):
    Held.path = str(tmp_path / "file")


def sorts_by_a_lambda(h, x):
    h.items.sort(key=lambda v: -v)
    return x


def sorts_by_a_method(h, x):
    h.n += 1
    h.items.sort(key=h.key)
    return x


def replaces_in_a_text(h, x):
    h.text = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), h.text)
    return x


def replaces_with_what_it_holds(h, x):
    k = h.n % 10
    h.text = re.sub(r"\d", lambda m: str(k), h.text)
    h.n += 1
    return x


def has_a_default(h, x):
    h.text = re.sub(r"\d", lambda m, k=5: str(k), h.text)
    return x


def takes_the_least(h, x):
    return x * float(min([4, 2, 3], key=h.key))


def reduces(h, x):
    h.n = functools.reduce(lambda a, b: (a + b + h.n) % 10, h.items)
    return x


def goes_on_with_a_generator(h, x):
    h.n = next(h.numbers)
    return x


def scales_by_a_generator(h, x):
    return x * (1.0 + 0.01 * next(h.numbers))


def compares_by_special_methods(h, x):
    heapq.heappush(h.heap, Ranked(h.n % 5))
    h.n += 1
    if len(h.heap) > 4:
        heapq.heappop(h.heap)
    return x


def writes_a_file(h, x):
    with open(h.path, "a") as file:
        file.write(f"{h.n}\n")
    h.n += 1
    return x


def reads_a_file(h, x):
    with open(h.path) as file:
        h.text = file.readline()
    return x


def closes_a_file(h, x):
    file = open(h.path, "a")  # noqa: SIM115
    file.write("line\n")
    file.close()
    return x


@pytest.mark.share(3)
@pytest.mark.parametrize("inside", [True, False], ids=["in a layer", "in a step"])
@pytest.mark.parametrize("body", [sorts_by_a_lambda, sorts_by_a_method, replaces_in_a_text, replaces_with_what_it_holds, has_a_default, takes_the_least, goes_on_with_a_generator,
                                  scales_by_a_generator, writes_a_file, reads_a_file, closes_a_file, reduces, compares_by_special_methods])
def test_they_run_in_each_step(body, inside):
    harness.compare_steps(program(body, inside, held=Held), whole=12, express=0, n=60)


def test_what_they_look_at_changes():
    def change(h, k):
        MOST[0] = 3 if k < 40 else 2

    harness.compare_steps(program(sorts_by_a_method, change=change, held=Held), whole=12, express=0, n=60)


def registers_and_removes(h, x):
    """It is one function, for all that it is given to and for the program."""
    def key(v):
        return -v + h.n % 2

    h.keys.append(key)
    h.items.sort(key=h.keys[-1])
    h.same = (key in h.keys, h.keys[-1] is key)
    h.keys.remove(key)
    h.n += len(h.keys) + 1
    return x


def uses_it_twice(h, x):
    def key(v):
        return -v + h.n % 2

    h.items.sort(key=key)
    h.called = sorted([1, 2, 3], key=key)
    h.items.sort(key=key, reverse=True)
    h.n += 1
    return x


@pytest.mark.parametrize("inside", [True, False], ids=["in a layer", "in a step"])
@pytest.mark.parametrize("body", [registers_and_removes, uses_it_twice])
def test_it_is_one_function(body, inside):
    step = harness.compare_steps(program(body, inside, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 40


def rebinds_what_it_holds(h, x):
    kept = []
    for k in range(3):
        kept.append(lambda v: v * (k - 1))
    h.items.sort(key=kept[0])
    return x


def sets_what_is_outside(h, x):
    n = 0

    def key(v):
        nonlocal n
        n += v
        return v

    h.items.sort(key=key)
    h.n += n
    return x


def fills_what_is_outside(h, x):
    seen = []
    h.items.sort(key=lambda v: seen.append(v) or -v)
    h.called = h.called[-3:] + seen
    return x


def sorts_by_lambdas_of_one_line(h, x):
    h.items.sort(key=lambda v: v % 2), h.items.sort(key=lambda v: -v)
    return x


def has_numpy_calculate(h, x):
    return tf.ensure_shape(tf.numpy_function(lambda a: a + 1.0, [x], tf.float32) - tf.numpy_function(lambda a: a * 0.5, [x], tf.float32), x.shape)


def runs_operations(h, x):
    h.items.sort(key=lambda v: float(h.w) * v)
    return x


def leaves_a_file_open(h, x):
    open(h.path, "a").write("x")  # noqa: SIM115
    with open(h.path) as file:
        h.n = len(file.read())
    return x


@pytest.mark.parametrize("body", [sorts_by_lambdas_of_one_line, has_numpy_calculate, rebinds_what_it_holds, sets_what_is_outside, fills_what_is_outside, runs_operations, leaves_a_file_open])
def test_what_may_not_be_told_apart_is_right(body):
    step = harness.compare_steps(program(body, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 40 and step.stats().whole_steps == 0


def test_what_reaches_a_variable_on_a_way_that_it_rarely_takes():
    """In a skipped step it would be called before the graph has changed the variable."""
    def look(h, v):
        return float(h.w) * v if h.n % 10 == 9 else v

    def body(h, x):
        h.n += 1
        h.items.sort(key=functools.partial(look, h) if h.n < 0 else lambda v: look(h, v))
        h.w.assign_add(0.1)
        return x * h.w

    step = harness.compare_steps(program(body, False, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 40 and step.stats().whole_steps == 0


def test_what_they_reach_changes():
    """A function that reads a variable comes to be among what they call: in a skipped step it would find another value there."""
    def body(h, x):
        h.w.assign_add(0.1)
        h.items.sort(key=lambda v: sum([action(v) for action in h.called]) or v)
        h.n = h.items[0]
        return x * h.w

    def change(h, k):
        if k == 40:
            h.called.append(lambda v: v if round(float(h.w) * 10) % 2 else -v)

    step = harness.compare_steps(program(body, False, change, held=Reading), whole=12, express=0, n=60)
    assert step.stats().whole_steps < 45


class Reading(Held):
    def look(self):
        return self.items, self.n, self.w


def loops_over_a_generator(h, x):
    for n in h.numbers:
        h.n = n
        if n % 2:
            break
    return x


def test_a_loop_goes_on_with_a_generator():
    harness.compare_steps(program(loops_over_a_generator, held=Held), whole=12, express=0, n=60)
