"""Prints and summaries of a step are made where the step is skipped, too: as often, in the same order, of the same values, to the same place."""

import contextlib
import os
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

GIVEN = [tf.constant(np.random.RandomState(k).randn(4, 3).astype("float32")) for k in range(5)]


def events(folder):
    """Lists what was written there: tags, steps, values."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("**/*.v2")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            found += [(value.tag, event.step, value.metadata.plugin_data.plugin_name, value.tensor.SerializeToString()) for value in event.summary.value]
    return found


@pytest.fixture
def differ(tmp_path):
    """Compares a step that writes: `writes(loss, x, w, count, writer)` is called in it, `around(writer)` is entered around all steps, `between(k, writer)` before step k."""
    def run(writes, whole=10, express=4, around=None, called=lambda k: (GIVEN[k % 5],), between=lambda k, writer: None, n=30, **options):
        runs = iter(range(10))

        def make():
            folder = tmp_path / str(next(runs))
            w, count, writer = tf.Variable([[0.5], [0.25], [-1.0]]), tf.Variable(0, dtype=tf.int64), tf.summary.create_file_writer(str(folder))

            def step(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
                gradient = tape.gradient(loss, w)
                result = writes(loss, x, w, count, writer)
                w.assign_sub(0.1 * gradient)
                count.assign_add(1)
                return loss if result is None else (loss, result)

            def call(step, k):
                between(k, writer)
                with contextlib.nullcontext() if around is None else around(writer):
                    return step(*called(k))

            def look():
                writer.flush()
                return w, count, events(folder), (folder / "printed").read_text() if (folder / "printed").exists() else ""

            printed.path = folder / "printed"
            return step, call, look

        return harness.compare_steps(make, whole, express, n, **options)

    return run


def printed(*values, **options):
    tf.print(*values, output_stream=f"file://{printed.path}", **options)


printed.path = os.devnull


def default(writer):
    return writer.as_default()


@pytest.mark.all_variants
@pytest.mark.parametrize("writes", [
    lambda loss, x, w, count, writer: printed("loss", loss),
    lambda loss, x, w, count, writer: printed(loss, w, count, [x[0], {"a": loss}], 3, "end", summarize=-1),
    lambda loss, x, w, count, writer: [printed("before", w), w.assign_add(w), printed("after", w), None][-1],
    lambda loss, x, w, count, writer: printed(x),
    lambda loss, x, w, count, writer: [printed("a", loss), count.assign_add(1), printed("b", count)][0],
], ids=["loss", "structures", "variables", "argument", "two"])
def test_prints(differ, writes):
    differ(writes)


def both(loss, x, w, count, writer):
    tf.summary.scalar("before", loss, step=count)
    count.assign_add(1)
    tf.summary.scalar("after", loss, step=count)


def inside(loss, x, w, count, writer):
    with writer.as_default():
        tf.summary.scalar("loss", loss, step=count)
        tf.summary.histogram("w", w, step=count)


def numbered(loss, x, w, count, writer):
    with writer.as_default(step=count):
        tf.summary.scalar("loss", loss, description="of the step")
    writer.flush()


def named(loss, x, w, count, writer):
    with tf.name_scope("outer"), tf.name_scope("inner"):
        tf.summary.scalar("loss", loss, step=count)
        tf.summary.histogram("w", w, step=count)


@pytest.mark.all_variants
@pytest.mark.parametrize("writes, around", [
    (lambda loss, x, w, count, writer: tf.summary.scalar("loss", loss, step=count), default),
    (lambda loss, x, w, count, writer: tf.summary.histogram("x", x, step=count, buckets=7), default),
    (lambda loss, x, w, count, writer: tf.summary.image("x", tf.reshape(x, (1, 4, 3, 1)), step=count), default),
    (lambda loss, x, w, count, writer: tf.summary.text("t", "said", step=count), default),
    (lambda loss, x, w, count, writer: tf.summary.write("loss", loss, step=count), default),
    (lambda loss, x, w, count, writer: tf.summary.scalar("loss", loss, step=count), None),
    (both, default), (inside, None), (numbered, None), (named, default),
], ids=["scalar", "histogram", "image", "text", "write", "nowhere", "both", "inside", "numbered", "named"])
def test_summaries(differ, writes, around):
    differ(writes, around=around)


def test_many_summaries(differ):
    """They are written together, by one graph."""
    def writes(loss, x, w, count, writer):
        with writer.as_default(step=count):
            for k in range(4):
                tf.summary.histogram(f"x{k}", x * float(k))
                tf.summary.scalar(f"w{k}", w[k % 3, 0])

    differ(writes, 20, 30, n=60)


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}, {"fast_forward": False}, {"fast_forward": "framework"}, {"jit_compile": True}], ids=str)
def test_other_options(differ, options):
    differ(inside, 0, 0, **options)


def test_what_is_recorded_changes(differ):
    """The default writer, and whether it records, are others in some steps."""
    def around(writer):
        around.k += 1
        stack = contextlib.ExitStack()
        if around.k % 7 < 5:
            stack.enter_context(writer.as_default())
        if around.k % 3 == 2:
            stack.enter_context(tf.summary.record_if(around.k % 2 == 0))
        return stack

    around.k = 0
    differ(lambda loss, x, w, count, writer: tf.summary.scalar("loss", loss, step=count), 4, 0, around, n=42)


def test_a_step_that_was_set(differ):
    steps = tf.Variable(3, dtype=tf.int64)

    def between(k, writer):
        steps.assign(2 * k)
        tf.summary.experimental.set_step(steps if k < 20 else k)

    try:
        differ(lambda loss, x, w, count, writer: tf.summary.scalar("loss", loss), 6, 0, default, between=between, n=40)
    finally:
        tf.summary.experimental.set_step(None)


def test_other_writers(differ, tmp_path):
    """A writer is given, another one in some steps."""
    others = [tf.summary.create_file_writer(str(tmp_path / f"other{k}")) for k in range(2)]

    def writes(loss, x, w, count, writer):
        with (others[int(count) % 2] if terra is None else writer).as_default():
            tf.summary.scalar("loss", loss, step=count)

    differ(writes)


def test_a_branch_behind_a_print(differ):
    """What was printed before a step turned out to go another way is not printed again."""
    def writes(loss, x, w, count, writer):
        printed("first", loss)
        if loss > 0.25:
            printed("large", loss)
        return loss

    differ(writes, 0, 0)


def test_a_step_that_fails_behind_a_print(differ):
    def writes(loss, x, w, count, writer):
        printed("first", loss)
        count.assign_add(1)
        tf.debugging.assert_less(count % 9, tf.constant(8, tf.int64))

    differ(writes, 0, 0)


def test_a_step_that_raises_behind_a_print(differ):
    def writes(loss, x, w, count, writer):
        printed("first", loss)
        if int(count) % 9 == 8:
            count.assign_add(1)
            raise ValueError("enough")

    differ(writes, 0, 0)


def test_a_new_path(differ):
    """A step that takes an unknown path prints once."""
    def writes(loss, x, w, count, writer):
        printed("first", loss)
        return tf.cast(x, tf.float64) if x.shape[0] == 3 else None

    differ(writes, 4, 0, called=lambda k: (GIVEN[k % 5][:3 if k in (14, 22, 23) else 4],))


def test_what_is_printed_of_other_objects(differ):
    """Those of the program's are looked at when it prints them."""
    class Named:
        n = 0

        def __repr__(self):
            return f"named {self.n}"

    it = Named()

    def between(k, writer):
        it.n = k % 4

    differ(lambda loss, x, w, count, writer: printed("it", it, loss), 0, 0, between=between)


@pytest.mark.parametrize("model", [False, True])
def test_prints_in_a_layer(differ, model):
    class Layer(tf.keras.layers.Layer):
        def call(self, x):
            sums = tf.reduce_sum(x, 0)
            printed("in a layer", sums, x)
            tf.summary.scalar("first", sums[0], step=3)
            return x * sums

    layer = Layer()
    called = tf.keras.Sequential([tf.keras.layers.Dense(3, "tanh", kernel_initializer="ones"), layer]) if model else layer
    called(GIVEN[0])
    differ(lambda loss, x, w, count, writer: [printed("outside", loss), called(x), printed("behind", loss)][1], around=default)


@pytest.mark.parametrize("where", ["map_fn", "cond", "function"])
def test_prints_in_graphs_of_the_step(differ, where):
    function = tf.function(lambda x, path: [tf.print("traced", tf.reduce_sum(x), output_stream=path), x][1])

    def body(row):
        printed("row", row[0])
        return row * tf.numpy_function(lambda v: v, [row], tf.float32)

    def writes(loss, x, w, count, writer):
        if where == "map_fn":
            return tf.map_fn(body, x)
        return tf.cond(loss > 0.3, lambda: body(x[0]), lambda: x[0]) if where == "cond" else function(x, f"file://{printed.path}")

    differ(writes, 0, 0)


def test_prints_to_the_console(capfd):
    """They come between those of Python's, where both are flushed."""
    said = []
    for coexecute in (False, True):
        w = tf.Variable(1.0)

        def step(x):
            print("python", flush=True)
            tf.print("tensorflow", w, output_stream=sys.stdout)
            w.assign_add(tf.reduce_mean(x))
            tf.print("tensorflow", w, output_stream=sys.stdout)
            print("python", flush=True)

        step = harness.coexecuted(step) if coexecute else step
        for k in range(20):
            step(GIVEN[k % 5])
        said.append(capfd.readouterr().out)
    assert said[0] == said[1] and said[0].count("tensorflow") == 40
    assert step.stats().coexecuted_steps >= 12


def test_containers_of_the_program(differ):
    """What the program has in lists and dicts is looked at when that is printed."""
    history, settings = [0.0], {"rate": 0.5}

    def between(k, writer):
        if k == 0:
            history[:], settings["rate"] = [0.0], 0.5
        elif k % 10 == 9:
            history.append(float(k))
            settings["rate"] *= 0.5

    differ(lambda loss, x, w, count, writer: printed(history, settings, (1, settings), [loss, {"x": x[0, 0]}]), 6, 0, between=between)


def test_arrays_of_the_program(differ):
    array = np.zeros(3)

    def writes(loss, x, w, count, writer):
        printed(array, loss)
        array[1] += 1.0

    differ(writes, 0, 0, between=lambda k, writer: array.fill(k))
