"""Code that nothing is known of is given containers which the step has changed before: where the step then turns out to be another one, both are taken back, and happen once."""

import collections
import os

import pytest
import tensorflow as tf

import terra
from terra.runtime.fast_forward.guards.read_set import ReadSet
from terra.runtime.fast_forward.sources import expectations, opaque_calls
from tests import harness
from tests.fast_forward.purity import training

NAME = "TERRA_TEST_OF_CONTAINERS"


class Held(training.Weights):
    def __init__(self):
        super().__init__()
        self.items, self.named, self.last, self.rate = [3.0, 4.0], {"a": 1.0, "z": 2.0}, collections.deque([1.0, 2.0]), 1.0
        os.environ[NAME] = "one"


def asks(h, x):
    """Opaque: what it gives is compared with what it gave before."""
    return tf.matmul(x, h.w) * (1.0 if os.environ.get(NAME) == "one" else 2.0)


def appends_and_pops(h, x):
    h.items.append(h.rate)
    first = h.items.pop(0)
    return asks(h, x) * first


def sets_and_pops(h, x):
    h.named["b"] = 0.5
    value = h.named.pop("b")
    h.named["z"] = 0.25
    h.named.update(c=h.rate)
    return asks(h, x) * value


def appends_and_clears(h, x):
    h.items.append(h.rate)
    h.items.clear()
    h.items.append(1.0)
    y = asks(h, x)
    h.items.append(2.0)
    return y * float(len(h.items))


def turns_around(h, x):
    h.last.append(h.rate)
    h.last.rotate(1)
    h.last.append(3.0)
    value = h.last.popleft()
    h.last.popleft()
    return asks(h, x) * value


def sorts(h, x):
    h.items[0] = h.rate
    h.items.sort(reverse=True)
    h.items[1] = 0.5
    return asks(h, x) * 2.0


BODIES = [appends_and_pops, sets_and_pops, appends_and_clears, turns_around, sorts]


def says_another(h, k):
    os.environ[NAME] = "one" if k % 6 else "two"


def others_do(h, k):
    os.environ[NAME] = "one" if k % 9 else "two"
    if k % 7 == 3:
        h.items.extend([0.5, 0.75])
        h.named["q"] = 1.0
        h.last.extend([0.5] * 3)
    if k == 20:
        h.items, h.named, h.rate = [1.0, 2.0], {}, 0.5


def looked_at(h):
    return [h.w, h.items, h.named, list(h.named), list(h.last)]


@pytest.mark.all_variants
@pytest.mark.parametrize("inside", [False, True], ids=["step", "layer"])
@pytest.mark.parametrize("change", [None, says_another, others_do], ids=["", "says_another", "others_do"])
@pytest.mark.parametrize("body", BODIES)
def test_containers(body, change, inside):
    harness.compare_steps(training.training(Held, training.inside(body) if inside else body, looked_at, change), whole=0, express=0, n=40)


@pytest.mark.parametrize("body", [appends_and_pops, sets_and_pops, sorts])
def test_such_steps_are_skipped(body):
    harness.compare_steps(training.training(Held, body, looked_at), whole=12, express=0)


def test_unknown_code_changes_what_the_step_has_set():
    """It was not given the object: it is not called again where it could do something else to it."""
    held, code = Held(), {}
    exec(compile("def change(): held.rate += 1.0", "<unknown>", "exec"), {"held": held}, code)  # noqa: S102

    def step(x):
        held.rate = 0.5
        code["change"]()
        return tf.matmul(x, held.w) * held.rate

    wrapped = terra.coexecute(step, wait_for_graph=True)
    for k in range(20):
        assert float(tf.reduce_sum(wrapped(training.DATA[k]))) == float(tf.reduce_sum(tf.matmul(training.DATA[k], held.w) * 1.5)) and held.rate == 1.5
    assert wrapped.stats().whole_steps == 0 and wrapped.stats().coexecuted_steps >= 10


def test_what_a_call_has_changed_is_found_unchanged_up_to_the_call():
    """A record turns out not to hold behind a call: the code that runs instead reads, before the call, what was there before."""
    space, items, cell = {"a": 1.0}, [1], (lambda: held).__closure__[0]
    reads, held = ReadSet(), 3
    reads.entry(space, "a", 1.0)
    reads.absent(space, "b")
    reads.contents(items)
    reads.cell(cell)

    def change():
        nonlocal held
        space.update(a=2.0, b=3)
        items.append(2)
        held = 4

    call = opaque_calls.OpaqueCall((change, [], {}), expectations.ANYTHING, 0, ("change", None), None, False, False)
    assert opaque_calls.make_all([call], [], lambda parts: parts, [], set(), still_holds=lambda: False, changes=reads.changes) is None
    assert (space, items, held) == ({"a": 1.0}, [1], 3)
    assert opaque_calls.outcomes.take(change).give() is None
    assert (space, items, held) == ({"a": 2.0, "b": 3}, [1, 2], 4)
