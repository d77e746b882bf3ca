"""Attributes of classes that layers and steps set: counters of calls, registries, switches. They are effects like those of objects."""

import keras
import pytest

from tests import harness
from tests.fast_forward.purity import training
from tests.fast_forward.purity.test_changes_in_layers import X, Y, program


class Base:
    made = 0
    scale = 1.0


class Part(Base):
    calls = 0
    last = None

    @classmethod
    def count(cls):
        cls.calls += 1
        return cls.calls


class Held(Base):
    total = 0

    def __init__(self):
        Part.calls, Part.last, Base.made, Base.scale, Held.total, self.part, self.seen = 0, None, 0, 1.0, 0, Part(), []
        for cls, name in ((Part, "made"), (Part, "scale"), (Part, "new")):
            if name in vars(cls):
                delattr(cls, name)

    def look(self):
        return [vars(cls).get(name) for cls in (Base, Part, Held) for name in ("made", "calls", "total", "scale", "new")], self.seen, self.part.calls, self.part.made


def counts(h, x):
    Held.total += 1
    return x


def counts_by_its_type(h, x):
    type(h).total += 1
    return x * 1.5


def counts_and_looks(h, x):
    Held.total += 1
    return x if Held.total % 3 else -x


def looks_through_the_object(h, x):
    Part.calls += 1
    h.seen.append(h.part.calls)
    return x


def counts_in_a_class_method(h, x):
    n = h.part.count()
    return x * (1.0 + 0.001 * float(n))


def sets_in_a_derived_class(h, x):
    Part.made = Part.made + 1
    return x * (1.0 if Base.made == 0 else 2.0)


def makes_one(h, x):
    Held.total = getattr(Held, "total", 0) + 1
    Part.new = getattr(Part, "new", 0) + 1
    return x


def averages(h, x):
    Base.scale = 0.9 * Base.scale + 0.05
    return x * h.part.scale


def switches(h, x):
    Part.last = h.part if Part.last is None else None
    return x if Part.last is None else -x


@pytest.mark.share(3)
@pytest.mark.parametrize("inside", [True, False], ids=["in a layer", "in a step"])
@pytest.mark.parametrize("body", [counts, counts_by_its_type, counts_and_looks, looks_through_the_object, counts_in_a_class_method, sets_in_a_derived_class, makes_one, averages])
def test_they_are_set_in_each_step(body, inside):
    harness.compare_steps(program(body, inside, held=Held), whole=12, express=0, n=60)


def test_an_object_is_put_there():
    harness.compare_steps(program(switches, held=Held), whole=12, express=0, n=60)


def test_another_one_is_set_from_outside():
    def change(h, k):
        if k == 40:
            Base.scale, Part.calls, Part.scale = 3.0, 0, 0.5
        if k == 50:
            del Part.scale

    harness.compare_steps(program(averages, change=change, held=Held), whole=12, express=0, n=60)


def test_a_method_is_set():
    """What objects do is another thing then."""
    def body(h, x):
        Part.twice = (lambda self, v: v * 2.0) if h.part.made == 0 else Part.twice
        return h.part.twice(x)

    step = harness.compare_steps(program(body, held=Held), whole=0, express=0, n=60)
    assert step.stats().coexecuted_steps >= 40


@pytest.mark.parametrize("where", ["call", "step"])
def test_a_layer_counts_its_calls_in_its_class(where):
    def make():
        class Counting(keras.layers.Layer):
            calls = 0

            def call(self, x):
                if where == "call":
                    Counting.calls += 1
                return x * 2.0

        model, train = training.around(Counting(), X, Y)
        Counting.calls = 0

        def step():
            if where == "step":
                Counting.calls += 1
            return train()

        return step, lambda step, k: step(), lambda: [model.weights, Counting.calls]

    harness.compare_steps(make, whole=12, express=0, n=60)
