"""Classes of the program's own that define `__getitem__`, `__len__`, `__iter__`, `__next__` or `__contains__`: these are observed like other methods."""

import keras
import pytest
import tensorflow as tf

from tests import harness


class Stack:
    """A container of layers, as many programs have one."""

    def __init__(self, n=3):
        self.parts = [keras.layers.Dense(4, "tanh", kernel_initializer="ones") for _ in range(n)]
        self.scales = {"one": 1.0, "two": 2.0}
        for part in self.parts:
            part.build((None, 4))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.scales[key]
        return self.parts[key]

    def __len__(self):
        return len(self.parts)

    def __contains__(self, it):
        return any(it is part for part in self.parts)

    def __iter__(self):
        for part in self.parts:
            yield part


class Computing:
    """Its items are made by operations, where no call site is."""

    def __init__(self):
        self.w = tf.Variable([1.0, 2.0, 3.0, 4.0])

    def __getitem__(self, k):
        return tf.sin(self.w) * float(k) + self.w[k]

    def __len__(self):
        return 4

    def __iter__(self):
        return (self[k] for k in range(len(self)))


class Counting:
    """An iterator of its own."""

    def __init__(self, n):
        self.n, self.k = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.k == self.n:
            raise StopIteration
        self.k += 1
        return self.k


class Inherits(Stack):
    def __len__(self):
        return super().__len__() + 1


def takes_items(held, x):
    return held[1](held[0](x)) * held["two"] + held[-1](x)


def iterates(held, x):
    for layer in held:
        x = layer(x)
    return x


def asks_how_many(held, x):
    return x * float(len(held))


def searches(held, x):
    return x * 2.0 if held.parts[1] in held and held.scales not in held else x


def slices(held, x):
    for layer in held[1:]:
        x = layer(x)
    return x


def unpacks(held, x):
    a, b, *_ = held
    return a(x) + b(x)


def picks(held, x):
    """By an index that is computed, and by one that is an item."""
    order = [2, 0, 1]
    for k in range(len(held.parts)):
        x = held[order[k]](x)
    return held[order[-1] - 1](x)


@pytest.mark.all_variants
@pytest.mark.parametrize("kind", [Stack, Inherits])
@pytest.mark.parametrize("function", [takes_items, iterates, asks_how_many, searches, slices, unpacks, picks])
def test_steps_are_skipped(function, kind):
    def make():
        held, v = kind(), tf.Variable(tf.ones([4]))

        def step(x):
            y = function(held, x * v)
            v.assign_sub(0.01 * tf.reduce_mean(y, 0))
            return y

        def call(step, k):
            return step(tf.ones([2, 4]) * float(k % 5))

        return step, call, lambda: v

    harness.compare_steps(make, *(0, 0) if function is unpacks else (10, 4))


def test_an_iterator_of_its_own():
    def make():
        v = tf.Variable(tf.ones([4]))

        def step(x):
            y = x * v
            for k in Counting(3):
                y = y + float(k)
            y = y * float(sum(Counting(2)))
            v.assign_sub(0.001 * tf.reduce_mean(y, 0))
            return y

        return step, lambda step, k: step(tf.ones([2, 4]) * float(k % 5)), lambda: v

    harness.compare_steps(make, 0, 0)


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"run_ahead": 0}], ids=str)
def test_items_that_are_computed(options):
    def make():
        held = Computing()

        def step(x):
            total = held[2] * x
            for item in held:
                total = total + item
            held.w.assign_sub(0.001 * total)
            return total, held[0], len(held)

        return step, lambda step, k: step(tf.ones([4]) * float(k % 5)), lambda: held.w

    harness.compare_steps(make, 0, 0, **options)


class Asked(Stack):
    """It counts how often it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def __iter__(self):
        self.asked += 1
        return iter(list(self.parts))

    def __len__(self):
        self.asked += 10
        return len(self.parts)

    def __contains__(self, it):
        self.asked += 100
        return it in self.parts


def extended(held):
    found = []
    found.extend(held)
    return found


def added(held):
    found = []
    found += held
    return found


WAYS = {
    "list": list, "tuple": tuple, "extend": extended, "+=": added, "enumerate": lambda held: [x for _, x in enumerate(held)], "zip": lambda held: [x for x, _ in zip(held, range(3))],
    "map": lambda held: list(map(lambda x: x, held)), "star": lambda held: [*held], "unpacked": lambda held: (lambda a, b, c: [a, b, c])(*held), "for": lambda held: [x for x in held],
    "iter": lambda held: [next(iter(held))] * 3, "sorted": lambda held: sorted(held, key=lambda x: x.units), "reversed": lambda held: [held.parts[len(held) - 1 - k] for k in range(3)],
    "in": lambda held: [x for x in held.parts if x in held], "truth": lambda held: held.parts if held else [], "any": lambda held: held.parts if any(held) else [],
    "set": lambda held: [x for x in held.parts if x in set(held)], "dict": lambda held: list(dict.fromkeys(held)), "assigned": lambda held: (lambda parts: parts)([a for a in held]),
}


def destructured(held):
    a, b, c = held
    return [a, b, c]


@pytest.mark.all_variants
@pytest.mark.parametrize("way", [*WAYS, "destructured"])
def test_each_is_asked_as_often_as_eagerly(way):
    take = WAYS.get(way, destructured)

    def make():
        held, v = Asked(), tf.Variable(tf.ones([4]))

        def step(x):
            y = x * v
            for layer in take(held):
                y = layer(y)
            v.assign_sub(0.01 * tf.reduce_mean(y, 0))
            return y

        def call(step, k):
            return step(tf.ones([2, 4]) * float(k % 5)), held.asked

        return step, call, lambda: v

    harness.compare_steps(make, 0, 0)


@pytest.mark.parametrize("change", ["an item", "the class", "an attribute"])
def test_what_they_read_changes(change):
    class Held(Stack):
        factor = 1.0

        def __getitem__(self, key):
            return self.scales[key] * self.factor

    def make():
        held, v = Held(), tf.Variable(1.0)
        Held.factor, Held.__len__ = 1.0, Stack.__len__

        def step(x):
            v.assign_add(held["two"] * float(len(held)))
            return v * x

        def call(step, k):
            if k % 7 == 6:
                if change == "an item":
                    held.scales["two"] = float(k)
                elif change == "the class":
                    Held.__len__ = lambda self: k
                else:
                    Held.factor = float(k)
            return step(tf.ones([2]) * float(k % 5))

        return step, call, lambda: v

    harness.compare_steps(make, 8, 0, n=60)


def test_a_method_that_prints_or_raises(capsys):
    class Loud(Stack):
        def __getitem__(self, key):
            print("asked for", key)
            return super().__getitem__(key)

        def __len__(self):
            return -1

    def make():
        held, v = Loud(), tf.Variable(tf.ones([4]))

        def step(x):
            y = held[0](x * v)
            v.assign_sub(0.01 * tf.reduce_mean(y, 0))
            if x[0, 0] > 3.0:
                return y * float(len(held))  # a length is not below 0
            return y

        return step, lambda step, k: step(tf.ones([2, 4]) * float(k % 5)), lambda: (v, capsys.readouterr().out)

    harness.compare_steps(make, 0, 0)
