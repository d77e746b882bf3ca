"""Integers that grow from step to step, as arguments or as counters that are handed on: once they are large enough to be told from others, steps that calculate with them are skipped."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import compare_steps


X = [tf.constant(np.random.RandomState(k).rand(2, 3), tf.float32) for k in range(3)]


def schedule(i, top=0.1):
    return top * min(1.0, i / 1000) * (1.0 + math.cos(math.pi * i / 5000))


ROWS = np.random.RandomState(5).rand(500, 3).astype(np.float32)


def rows(x, i):
    return tf.abs(x) * tf.reduce_sum(tf.constant(ROWS[i:i + 4])) + tf.constant(ROWS[i - 3:i, 1:][0, 0])


def rows_and_columns(x, i):
    return tf.matmul(ROWS[i:i + 2, ::2], ROWS[:2, i % 7:i % 7 + 2] if i < 0 else tf.abs(x)[:, :2])


def every_hundredth(x, i):
    if i % 100 == 0:
        return tf.abs(x) * 2.0
    return tf.abs(x)


def warm_up(x, i):
    return tf.abs(x) * (i / 400 if i < 400 else 1.0)


def staircase(x, i):
    beta = min(1.0, (i // 10) / 50.0)
    return tf.abs(x) * beta


class Holder:
    pass


holder = Holder()


def kept(x, i):
    holder.at, holder.next = i, [i + 1, i * 2]
    return tf.abs(x), i, i - 300 < 50


def two_thirds(x, i):
    return tf.abs(x) / (i * 3 // 2 + 1) + (i - 2 * (i // 2)) / 2.0


def by_a_closure(x, i):
    return (lambda scale: tf.abs(x) * (scale + i))(0.5)


def truth(x, i):
    return tf.abs(x) * (2.0 if i else 1.0) if not (i - 300) % 7 else tf.abs(x)


def numpy_function(x, i):
    return tf.abs(x) * np.cos(i / 100) + np.float32(np.sqrt(i))


def absolute(x, i):
    return tf.abs(x) * math.sqrt(abs(-i)) - max(i, 310)


ARGUMENTS = [lambda x, i: tf.abs(x) * schedule(i), every_hundredth, warm_up, staircase, kept, rows, rows_and_columns, two_thirds, by_a_closure, truth, numpy_function, absolute, lambda x, i: tf.abs(x) * i - i,
             lambda x, i: tf.abs(x) * tf.cast(i, tf.float32), lambda x, i: tf.abs(x) * tf.constant(i, tf.float32)]


@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("use", ARGUMENTS)
def test_arguments(use, options):
    def make():
        vars(holder).clear()
        return use, lambda s, k: s(X[k % 3], 280 + k), lambda: vars(holder)
    compare_steps(make, n=60, **options)


def test_small_ones_that_grow():
    """Python has one object for each integer below 257: an observed run is given objects of its own."""
    def make():
        return lambda x, i: tf.abs(x) * schedule(i), lambda s, k: s(X[k % 3], k), lambda: ()
    compare_steps(make, n=60, whole=30)


def test_small_ones_are_the_programs_own_where_it_keeps_them():
    """No integer that a run has made its own is left where the program can ask which one it is, or does."""
    def make():
        vars(holder).clear()
        holder.kept, holder.last, holder.same = [], 0, None

        def step(x, i):
            holder.last = i % 7
            holder.kept.append(i)
            holder.same = holder.last is i
            return tf.abs(x) * (1.0 + 0.01 * i), i

        def call(s, k):
            y, i = s(X[k % 3], k)
            small = [int(str(i)), int(str(holder.last)), int(str(holder.kept[-1]))]
            return y, i is small[0], holder.last is small[1], holder.kept[-1] is small[2], holder.same
        return step, call, lambda: vars(holder)
    compare_steps(make, n=60, whole=0, express=0)


def test_small_ones_that_come_again_are_constants():
    def make():
        return lambda x, phase: tf.abs(x) * (phase + 1), lambda s, k: s(X[k % 3], k // 3 % 2), lambda: ()
    compare_steps(make, n=60)


def test_epochs():
    """An integer that stays for a while counts by its value."""
    def make():
        return lambda x, epoch: tf.abs(x) * 0.9 ** epoch, lambda s, k: s(X[k % 3], k // 25), lambda: ()
    compare_steps(make, n=150, whole=30)


VALUES = [300, 7, 301, -300, 2**70, 302, 0, True, 303, 304.5, 305, np.int64(306), 307, None, 308, "9", 309, 310]


def test_other_values_in_between():
    def make():
        def step(x, i):
            y = tf.abs(x)
            return y if i is None or type(i) is str else y * (i / 2), type(i).__name__
        return step, lambda s, k: s(X[k % 3], VALUES[k % len(VALUES)] if k % 3 else 320 + k), lambda: ()
    compare_steps(make, n=90, whole=0, express=0)


LOOKED_AT = {
    "index": lambda x, i: [tf.abs(x), tf.square(x)][i % 2],
    "range": lambda x, i: tf.add_n([tf.abs(x) for _ in range(i - 299)]),
    "text": lambda x, i: (tf.abs(x), f"step {i}"),
    "key": lambda x, i: (tf.abs(x), {i: 1}),
    "a tensor": lambda x, i: tf.abs(x) * tf.cast(tf.constant(i), tf.float32),
    "a shape": lambda x, i: tf.ones([i - 298]) + tf.abs(x)[0, 0],
    "a slice of a tensor": lambda x, i: tf.abs(x)[:i - 298],
    "a slice of a list": lambda x, i: tf.add_n([tf.abs(x)] * 50)[:i - 298] + float(len([1.0] * 400)) + sum([1.0] * 400, 0.0) * 0.0 + sum(([1.0] * 400)[:i]),
    "rows, and looked at": lambda x, i: (tf.abs(x) + tf.constant(ROWS[i:i + 1]), str(i)),
    "a slice that is set": lambda x, i: tf.abs(x) + tf.constant(_set(i)),
    "rows of a growing number": lambda x, i: tf.reduce_sum(tf.constant(ROWS[:i])) + tf.abs(x),
    "bits": lambda x, i: tf.abs(x) * float(i & 3),
    "integers of tensors": lambda x, i: tf.cast(tf.abs(x) * 10.0, tf.int32) + i,
    "identity": lambda x, i: tf.abs(x) * (2.0 if i is holder else 1.0),
    "a method": lambda x, i: tf.abs(x) * i.bit_length(),
    "formatted": lambda x, i: (tf.abs(x), "%d" % i),
}


def _set(i):
    array = np.zeros(3, np.float32)
    array[i - 340:] = 1.0
    return array


@pytest.mark.parametrize("name", LOOKED_AT)
def test_what_is_looked_at(name):
    def make():
        return LOOKED_AT[name], lambda s, k: s(X[k % 3], 300 + k % 40), lambda: ()
    compare_steps(make, n=60, whole=0, express=0)


def test_integers_of_which_no_tensor_can_be_made():
    """Eagerly, that is an error, which comes as it does there."""
    def make():
        def call(step, k):
            try:
                return step(X[k % 3], 300 + k if k % 7 else 2 ** 200)
            except OverflowError as error:
                return str(error)
        return lambda x, i: tf.abs(x) * i, call, lambda: ()
    compare_steps(make, n=60)


class Trainer:
    def __init__(self):
        self.n, self.all = 280, {"n": 280}

    def before(self, x):
        y = tf.abs(x) * schedule(self.n)
        self.n += 1
        return y

    def after(self, x):
        self.n += 1
        return tf.abs(x) * schedule(self.n) + float(self.n > 300)

    def in_between(self, x):
        self.n += 1
        y = tf.abs(x) * schedule(self.n)
        self.n += 2
        return y * self.rate(), schedule(self.n)

    def rate(self):
        return schedule(self.n, 0.5)

    def item(self, x):
        self.all["n"] += 1
        n = self.all["n"]
        return tf.abs(x) * schedule(n)

    def noted(self, x):
        self.n += 1
        self.last = self.n
        return tf.abs(x), self.n

    def shown(self, x):
        self.n += 1
        return tf.abs(x), str(self.n)

    def compared(self, x):
        n = self.n
        self.n += 1
        return tf.abs(x) * 2.0 if n % 10 == 9 else tf.abs(x)


METHODS = {"before": 10, "after": 10, "in_between": 10, "item": 10, "noted": 10, "shown": 0, "compared": 10}


@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("name", METHODS)
def test_counters_that_are_handed_on(name, options):
    def make():
        trainer = Trainer()

        def call(step, k):
            if k == 40:
                trainer.n = trainer.all["n"] = 1000
            return step(X[k % 3])
        return getattr(trainer, name), call, lambda: vars(trainer)
    compare_steps(make, n=60, whole=METHODS[name], express=0, **options)


def test_a_counter_from_zero_on():
    def make():
        trainer = Trainer()
        trainer.n = 0
        return trainer.after, lambda s, k: s(X[k % 3]), lambda: vars(trainer)
    compare_steps(make, n=310, whole=20)


total = 280


def test_a_global_counter():
    def step(x):
        global total
        total += 1
        return tf.abs(x) * schedule(total)

    def make():
        global total
        total = 280
        return step, lambda s, k: s(X[k % 3]), lambda: total
    compare_steps(make, n=60)


def test_a_counter_of_a_closure():
    def make():
        n = 280

        def step(x):
            nonlocal n
            n += 1
            return tf.abs(x) * schedule(n)
        return step, lambda s, k: s(X[k % 3]), lambda: n
    compare_steps(make, n=60)
