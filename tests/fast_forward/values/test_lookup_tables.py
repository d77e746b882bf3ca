"""Lookups in tables are part of the graph; what changes a table comes before and after them as it does eagerly."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from tests import harness

lookup = tf.lookup
WORDS = ["zero", "one", "two", "three"]
SAID = [tf.constant(np.random.RandomState(k).choice([*WORDS, "what"], (6,))) for k in range(5)]
NUMBERS = [tf.constant(np.random.RandomState(k).randint(0, 6, (6,))) for k in range(5)]
EMBEDDED = np.random.RandomState(9).randn(12, 3).astype("float32")


def static():
    return lookup.StaticHashTable(lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(4, dtype=tf.int64)), 7)


def vocabulary():
    return lookup.StaticVocabularyTable(lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(4, dtype=tf.int64)), 3)


def mutable():
    table = lookup.experimental.MutableHashTable(tf.string, tf.int64, 8)
    table.insert(tf.constant(WORDS), tf.range(4, dtype=tf.int64))
    return table


def dense():
    table = lookup.experimental.DenseHashTable(tf.string, tf.int64, 9, "nothing", "deleted")
    table.insert(tf.constant(WORDS), tf.range(4, dtype=tf.int64))
    return table


def anonymous():
    return lookup.StaticHashTable(lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(4, dtype=tf.int64)), 7, experimental_is_anonymous=True)


def training(table, words, called=lambda k: (SAID[k % 5],), before=None, after=None, between=None):
    """A step that trains an embedding of what `words(table, x)` gives."""
    def make():
        known, w = table(), tf.Variable(EMBEDDED)

        def step(x):
            if before is not None:
                before(known, x)
            with tf.GradientTape() as tape:
                ids = words(known, x)
                loss = tf.reduce_mean(tf.gather(w, ids) ** 2)
            w.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, w)))
            if after is not None:
                after(known, x)
            return loss, ids

        def call(step, k):
            if between is not None:
                between(known, k)
            return step(*called(k))

        return step, call, lambda: (w, known.size())
    return make


def found(table, x):
    return table.lookup(x)


class Traced:
    """A table in which a traced function looks up."""

    def __init__(self, table):
        self.size = table.size
        self.lookup = tf.function(lambda x: table.lookup(x) + 1)


@pytest.mark.all_variants
@pytest.mark.parametrize("table", [static, vocabulary, mutable, dense, anonymous])
@pytest.mark.parametrize("traced", [False, True])
def test_steps_are_skipped(table, traced):
    harness.compare_steps(training((lambda: Traced(table())) if traced else table, found))


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}, {"fast_forward": "framework"}, {"fast_forward": False}, {"reduce_retracing": True}], ids=str)
def test_other_options(options):
    skips = options.get("fast_forward", True) is True
    harness.compare_steps(training(static, found), 12 if skips else 0, 4 if skips else 0, **options)


def test_any_number_of_words():
    def called(k):
        return (tf.constant(np.random.RandomState(k).choice([*WORDS, "what"], (2 + k % 4, 1 + k % 3))),)

    harness.compare_steps(training(static, found, called), 0, 0)


def test_values_that_are_vectors():
    def table():
        made = lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.5, 0.5])
        made.insert(tf.range(4, dtype=tf.int64), tf.constant(EMBEDDED[:4, :2]))
        return made

    def make():
        known, w = table(), tf.Variable([1.0, 2.0])

        def step(x):
            with tf.GradientTape() as tape:
                vectors = known[x]
                loss = tf.reduce_sum(vectors * w) + float(vectors.shape[0] * vectors.shape[1])
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss, vectors

        return step, lambda step, k: step(NUMBERS[k % 5][:2 + k % 3]), lambda: w

    harness.compare_steps(make, 0, 0)


def test_the_size_of_a_table():
    harness.compare_steps(training(mutable, lambda table, x: table.lookup(x) + table.size()))


def put(table, x):
    table.insert(x[:2], tf.constant([10, 11], tf.int64))


def take_out(table, x):
    table.remove(x[:1])


def put_imperatively(table, x):
    with terra.imperative():
        put(table, x)


@pytest.mark.all_variants
@pytest.mark.parametrize("table", [mutable, dense])
@pytest.mark.parametrize("change", [put, take_out, put_imperatively])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_changes_its_table(table, change, when):
    step = harness.compare_steps(training(table, found, **{when: change}), 0, 0)
    assert step.stats().fallbacks <= 2, terra.explain(step)  # it is known then, and lookups run imperatively


def test_a_step_that_changes_its_table_now_and_then():
    def make():
        known, w = mutable(), tf.Variable(EMBEDDED)

        def step(x, k):
            ids = known.lookup(x)
            if k % 11 == 10:
                known.insert(tf.constant(["what", "one", "two"]), tf.constant([k % 5, k % 7, k % 3], tf.int64))
            again = known.lookup(x)
            w.assign(w * 0.9 + tf.reduce_mean(tf.gather(w, ids)))
            return ids, again, tf.reduce_sum(w)

        return step, lambda step, k: step(SAID[k % 5], k), lambda: (w, known.size())

    step = harness.compare_steps(make, 0, 0, n=60)
    assert step.stats().fallbacks <= 6, terra.explain(step)


@pytest.mark.parametrize("options", [{}, {"run_ahead": 4}], ids=str)
@pytest.mark.parametrize("table", [mutable, dense])
def test_changed_between_steps(table, options):
    def between(known, k):
        if k % 3 == 0:
            known.insert(tf.constant(["what", "two"]), tf.constant([k % 5, k % 7], tf.int64))
        if k % 4 == 0:
            known.remove(tf.constant(["three"]))

    harness.compare_steps(training(table, found, between=between), **options)


@pytest.mark.parametrize("in_a_step", [False, True])
def test_nothing_is_read_in_between(in_a_step):
    """What changes the table has to wait for the steps that look up in it, and they for it. The words are known late."""
    def run(wrap):
        table, w, large = mutable(), tf.Variable(EMBEDDED), tf.random.stateless_uniform([500, 500], [1, 2])

        @wrap
        def train(x):
            y = large
            for _ in range(8):
                y = tf.tanh(y @ large)
            ids = table.lookup(tf.where(tf.reduce_sum(y) > -1e30, x, "nobody"))
            w.assign(w * 0.9 + 0.1 * tf.reduce_mean(tf.gather(w, ids)))
            return ids

        def learn(x, value):
            table.insert(x[:2], value * tf.constant([1, 2], tf.int64))

        if in_a_step:
            learn = wrap(learn)
        found = []
        for k in range(60):
            found.append(train(SAID[k % 5]))
            learn(SAID[(k + 2) % 5], tf.constant(k % 4, tf.int64))
        return [x.numpy().tolist() for x in found], w.numpy().tolist(), train

    expected = run(lambda f: f)
    actual = run(lambda f: terra.coexecute(f, wait_for_graph=True, run_ahead=4))
    assert actual[:2] == expected[:2]
    harness.check_skipped(actual[2], 60, 20, 0)


def test_an_input_pipeline_that_looks_up_in_the_same_table():
    def make():
        known, w = mutable(), tf.Variable(EMBEDDED)
        batches = iter(tf.data.Dataset.from_tensor_slices(tf.stack(SAID)).repeat().map(lambda x: (x, known.lookup(x))))

        def step(x, ids):
            ids = (ids + known.lookup(x)) % 12
            w.assign(w * 0.9 + 0.1 * tf.reduce_mean(tf.gather(w, ids)))
            return ids

        return step, lambda step, k: step(*next(batches)), lambda: w

    harness.compare_steps(make)


@pytest.mark.parametrize("whole", [0, 10])
def test_another_handle(whole):
    """As an argument, or as what an attribute holds: whole steps are skipped with those that they have met."""
    def make():
        known, w = [static(), vocabulary(), static()], tf.Variable(EMBEDDED)

        class Holder:
            table = known[0]

        def looked_up(handle, x):
            ids = tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=x, default_value=tf.constant(5, tf.int64))
            w.assign(w * 0.9 + 0.1 * tf.reduce_mean(tf.gather(w, ids)))
            return ids, handle.device

        def step(x, handle=None):
            return looked_up(Holder.table.resource_handle if handle is None else handle, x)

        def call(step, k):
            Holder.table = known[k // 4 % 2]
            return step(SAID[k % 5]) if whole else step(SAID[k % 5], known[k // 4 % 3].resource_handle)

        return step, call, lambda: w

    harness.compare_steps(make, whole, 0, n=40)


def test_a_table_that_the_step_makes():
    def make():
        w = tf.Variable(EMBEDDED)

        def step(x, k):
            table = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(4, dtype=tf.int64) + tf.cast(k, tf.int64)), 0)
            ids = table.lookup(x)
            w.assign(w * 0.9 + 0.1 * tf.reduce_mean(tf.gather(w, ids)))
            return ids

        return step, lambda step, k: step(SAID[k % 5], tf.constant(k % 3)), lambda: w

    step = harness.compare_steps(make, 0, 0)
    assert len(step.trace_graph) < 60, len(step.trace_graph)  # not one path for each table


def test_a_table_that_is_no_more():
    def make():
        kept, w = [static()], tf.Variable(EMBEDDED)

        def step(x):
            ids = kept[0].lookup(x)
            w.assign(w * 0.9 + 0.1 * tf.reduce_mean(tf.gather(w, ids)))
            return ids

        def call(step, k):
            result = step(SAID[k % 5])
            if k % 12 == 11:  # while the step is in flight
                kept[0] = vocabulary()
                gc.collect()
            return result

        return step, call, lambda: w

    harness.compare_steps(make, 10, 0, n=40)


def test_keys_of_the_wrong_type():
    def make():
        table, w = static(), tf.Variable(1.0)

        def step(x):
            w.assign_add(1.0)
            return table.lookup(x)

        return step, lambda step, k: step(SAID[0] if k != 20 else NUMBERS[0]), lambda: w

    harness.compare_steps(make, 8, 0)


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("loops", ["auto", "roll"])
def test_in_loops_of_varying_length(loops, changes):
    def make():
        known, w = mutable(), tf.Variable(EMBEDDED)

        def step(x, k):
            total = tf.zeros([3])
            for n in range(2 + k % 4):
                ids = known.lookup(x)
                total = tf.tanh(total + tf.reduce_mean(tf.gather(w, ids), 0))
                if changes and n == 1 and k % 5 == 4:
                    known.insert(x[:1], ids[1:2])
            w.assign(w * 0.9 + total)
            return total

        return step, lambda step, k: step(SAID[k % 5], k), lambda: (w, known.size())

    harness.compare_steps(make, 0, 0, n=60, loops=loops)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_tables_in_a_traced_step(jit_compile):
    def make():
        words, numbers, w = static(), lookup.StaticHashTable(lookup.KeyValueTensorInitializer(tf.range(6, dtype=tf.int64), tf.range(6, dtype=tf.int64) * 2), 1), tf.Variable(EMBEDDED)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(w, words[x]) * tf.gather(w, numbers[y]))
            w.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, w)))
            return tf.round(loss * 100.0)

        return step, lambda step, k: step(SAID[k % 5], NUMBERS[k % 4]), lambda: numbers.size()

    harness.compare_steps(make, 6 if not jit_compile else 0, 0, jit_compile=jit_compile)


@pytest.mark.parametrize("kind", ["string", "integer"])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_layers_that_look_up(library, kind):
    """In a model that `fit` trains: equal to eager, and skipped as a whole."""
    layers = library.layers
    rng = np.random.RandomState(0)
    x = rng.choice([*WORDS, "what"], 120) if kind == "string" else rng.randint(1, 9, 120)
    x, y = tf.constant(x), rng.rand(120, 1).astype("float32")

    def run(coexecute):
        library.utils.set_random_seed(1)
        looks_up = layers.StringLookup(vocabulary=WORDS) if kind == "string" else layers.IntegerLookup(vocabulary=[1, 2, 3, 4])
        model = library.Sequential([looks_up, layers.Embedding(12, 4), layers.Flatten(), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        steps = terra.compile(model, wait_for_graph=True) if coexecute else None
        losses = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(6), epochs=3, verbose=0).history["loss"]
        return losses, [w.tolist() for w in model.get_weights()], steps

    *expected, _ = run(False)
    *actual, steps = run(True)
    assert actual == expected
    assert steps.stats()["train"].whole_steps >= 40, terra.explain(steps.train)
