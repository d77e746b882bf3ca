"""A step that keeps getting sizes which it has not had leaves them unknown by itself, as long as that pays; what it is given looks as it does eagerly."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra import errors, options
from terra.runtime.execution.arguments import dynamic_arguments
from terra.runtime.fallback import policy
from tests import harness
from tests.frontends.test_keras_fit import EXACT
from tests.tracing.test_reduce_retracing import SAME, rows, sequences, trained

STEPS = 40
held = []  # by which a step gets to a tensor in another way
MANY = functools.partial(sequences, steps=STEPS, high=2000)  # hardly two of one length


def leaves_unknown(step):
    return "left unknown" in terra.explain(step, full=True)


def classifier():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.Conv1D(4, 3, padding="same", activation="relu"), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(3)])
    model(np.zeros((2, 5), "int32"))
    return trained(model)


@pytest.mark.parametrize("how", [{}, {"verify": True}, {"run_ahead": 0}, {"fast_forward": "framework"}], ids=str)
def test_lengths_that_are_always_new(how):
    given = [*MANY()]
    stats = harness.differ(classifier, given.__getitem__, STEPS, SAME, key="always new", **how)
    assert stats.tracing_steps <= dynamic_arguments.NEW + 8 and stats.coexecuted_steps >= STEPS - 20, stats
    if not how:
        assert stats.whole_steps >= STEPS - 24, stats


@tf.custom_gradient
def gathered(x, rows):
    """As `tf.gather`, but the gradient is no sparse one."""
    def gradient(dy):
        return tf.math.unsorted_segment_sum(dy, rows, tf.shape(x)[0]), None

    return tf.gather(x, rows), gradient


def sums_of_rows(activation):
    def make():
        keras.utils.set_random_seed(1)
        dense, last = keras.layers.Dense(4), keras.layers.Dense(1)
        dense.build((None, 3))
        last.build((None, 4))
        weights = dense.trainable_variables + last.trainable_variables

        def step(x, rows):
            with tf.GradientTape() as tape:
                h = dense(x)
                h = activation(h, tf.math.unsorted_segment_sum(h, rows, 4), rows)
                loss = tf.reduce_mean(last(h) ** 2)
            for variable, gradient in zip(weights, tape.gradient(loss, weights)):
                variable.assign_sub(0.01 * gradient)
            return loss

        return step, lambda: weights
    return make


@pytest.mark.parametrize("activation", [
    lambda h, sums, rows: h + gathered(sums, rows), lambda h, sums, rows: tf.nn.silu(h + tf.gather(sums, rows))], ids=["the program's", "TensorFlow's"])
def test_own_gradients_read_no_sizes(activation):
    drawn = np.random.RandomState(0)
    given = [(tf.constant(drawn.rand(n, 3), tf.float32), tf.constant(drawn.randint(0, 4, n))) for n in range(20, 20 + STEPS)]
    stats = harness.differ(sums_of_rows(activation), given.__getitem__, STEPS, SAME)
    assert stats.whole_steps >= STEPS - 28 and stats.fetches == 0, stats


def test_it_is_told(caplog):
    step = harness.coexecuted(lambda x: tf.reduce_sum(tf.tanh(x)))
    with caplog.at_level(logging.INFO, "terra"):
        for x, in rows(steps=STEPS):
            step(x)
    assert leaves_unknown(step) and sum("keeps getting arguments of new sizes" in record.message for record in caplog.records) == 1
    assert "T01" not in terra.explain(step, full=True)


def test_no_graph_is_made_for_sizes_that_do_not_come_again():
    """Where all sizes that have come are new, it is waited until it is known whether they are left unknown; where one comes again, it is not."""
    step = terra.coexecute(lambda x: tf.reduce_sum(tf.tanh(x)))
    for k, (x,) in enumerate(rows(steps=STEPS)):
        SAME(step(x), tf.reduce_sum(tf.tanh(x)))
        if k == dynamic_arguments.NEW:
            assert step.dynamic_arguments.leaves_unknown
            assert step.stats().imperative_steps == dynamic_arguments.NEW - 1 and step.stats().graphs == 0
        if step.generation.task is not None:
            step.generation.task.join()
    assert step.stats().graphs <= 2 and step.stats().coexecuted_steps >= STEPS - 20, step.stats()  # (so small a step may know its sizes again: it does not pay)
    alternating = terra.coexecute(lambda x: tf.reduce_sum(tf.tanh(x)))
    for k in range(6):
        alternating(tf.ones([3 + k % 2, 2]))
    assert alternating.stats().tracing_steps >= 2 and not alternating.dynamic_arguments.leaves_unknown


@pytest.mark.parametrize("sizes", [
    [32] * 9 + [5], [32, 16, 8, 4], [3, 4, 5] * 3 + [3, 6] * 20], ids=["last batch", "four sizes", "three at the beginning"])
def test_few_sizes_are_known_one_by_one(sizes):
    step = harness.coexecuted(lambda x: tf.reduce_sum(x * 2.0, axis=1))
    for k in range(60):
        assert step(tf.ones([sizes[k % len(sizes)], 3])).shape == (sizes[k % len(sizes)],)
    assert not leaves_unknown(step) and step.stats().coexecuted_steps > 40


def test_structures_are_no_sizes():
    """Lists of more and more tensors: sizes that are left unknown would not make two of them alike."""
    step = harness.coexecuted(lambda xs: tf.add_n(xs), loops="unroll")
    for k in range(30):
        SAME(step([tf.ones([2])] * (1 + k % 15)), np.full(2, 1.0 + k % 15, "float32"))
    assert not leaves_unknown(step)


@pytest.mark.parametrize("option", [False, True])
def test_the_option_decides(option):
    step = harness.coexecuted(lambda x: x * 2.0, reduce_retracing=option)
    for x, in rows(steps=30):
        assert step(x).shape == x.shape
    assert leaves_unknown(step) is option


def test_what_is_skipped_nowhere_knows_its_sizes():
    step = harness.coexecuted(lambda x: x * 2.0, fast_forward=False)
    for x, in rows(steps=30):
        SAME(step(x), x * 2.0)
    assert not leaves_unknown(step)


def test_lengths_that_come_again_are_known_again():
    """They are few, and the step cannot be skipped as a whole: then it is cheaper to know them one by one."""
    noise = []

    def make():
        w = tf.Variable([1.0, -0.5, 0.5, 2.0])

        def step(x):
            sizes = np.array(x.shape)  # a value, which Python reads
            noise.append(sizes.tolist())
            w.assign_add(tf.reduce_mean(x, 0) * float(sizes[0]))
            return w * 1.0

        return step, lambda: [w]

    few = [x for x, in rows(steps=12, low=5)]
    given = [(few[k % 12],) for k in range(120)]
    (expected, _), (actual, _) = make(), make()
    step, seen = harness.coexecuted(actual), []
    for x, in given:
        SAME(step(x), expected(x))
        seen.append(leaves_unknown(step))
    assert any(seen) and not seen[-1] and noise[::2] == noise[1::2]
    assert step.stats().coexecuted_steps > 60


# -- when it does not pay ------------------------------------------------------------------------------------------------------

def times(decided, rounds):
    """Co-executed steps take twice as long as imperative ones."""
    for _ in range(rounds):
        for _ in range(policy.SAMPLES):
            decided.took(True, 2.0)
        if decided.wants_sample():
            for _ in range(policy.FEW_SAMPLES):
                decided.took(False, 1.0)
            decided.took(True, 2.0)


def test_what_takes_longer_knows_its_sizes_again_before_it_is_given_up():
    ways = [True, False]
    decided = policy.Policy("a step")
    decided.closes = lambda: bool(ways) and ways.pop(0)
    times(decided, 20)
    assert ways == [] and decided.pauses


@pytest.mark.parametrize("note", [lambda decided: decided.fell_back("a reason"), lambda decided: decided.traced(False)], ids=["falls back", "is always new"])
def test_what_never_settles_knows_its_sizes_again_before_it_is_given_up(note):
    ways = [True, False, False]
    decided = policy.Policy("a step")
    decided.closes = lambda: bool(ways) and ways.pop(0)
    for _ in range(2 * max(policy.PATIENCE, policy.TOO_MANY)):
        note(decided)
        if not ways:
            break
    assert len(ways) <= 1 and decided.pauses >= 1


def test_a_step_that_knows_its_sizes_again_goes_on():
    given = [x for x, in rows(steps=STEPS, low=2)]
    step = harness.coexecuted(lambda x: tf.reduce_sum(tf.sin(x), 0))
    for k, x in enumerate(given):
        if k == 25:
            assert leaves_unknown(step) and step.rolling.know_sizes() and not step.rolling.know_sizes()
        SAME(step(x), tf.reduce_sum(tf.sin(x), 0))
    assert not leaves_unknown(step) and step.stats().coexecuted_steps > 24


def test_sizes_that_were_asked_for_stay_unknown():
    step = harness.coexecuted(lambda x: x + 1.0, reduce_retracing=True)
    for x, in rows():
        step(x)
    assert not step.rolling.know_sizes() and leaves_unknown(step)


# -- what the step is given ----------------------------------------------------------------------------------------------------

def both(make, given, after=lambda step, *arguments: None, option="auto", **how):
    """Run the step that `make()` gives eagerly and co-executed on the arguments that `given()` makes: [(result, what `after` says)] must be the same."""
    found = []
    for wrap in (harness.eager, functools.partial(harness.coexecuted, reduce_retracing=option, **how)):
        step, state = make()
        step = wrap(step)
        seen = []
        for arguments in given():
            try:
                result = step(*arguments)
            except (ValueError, KeyError, tf.errors.OpError) as error:
                result = type(error).__name__
            seen.append((harness.snapshot(result), harness.snapshot(after(step, *arguments))))
        found.append(harness.snapshot([seen, state]))
    assert list(harness.differences(*found, EXACT)) == []
    assert leaves_unknown(step) and step.stats().coexecuted_steps > len(seen) / 2, step.stats()
    return step


def popped(batch):
    w = batch.pop("weight")
    batch["seen"] = tf.reduce_sum(batch["x"] * w)
    batch["twice"] = batch["x"]
    return batch["seen"]


def appended(batch):
    batch["list"].append(tf.reduce_mean(batch["x"]))
    batch["list"][0] = batch["list"][0] * 2.0
    del batch["list"][1]
    return batch["list"][-1]


def moved(batch):
    batch["x"], batch["weight"] = batch["weight"], batch["x"]
    batch["list"].insert(0, batch["x"])
    return tf.reduce_sum(batch["weight"])


def cleared(batch):
    total = tf.add_n([tf.reduce_sum(x) for x in batch["list"]])
    batch.clear()
    return total


def raises(batch):
    batch["list"].pop()
    batch["n"] = batch.get("n", 0) + 1
    if batch["x"].dtype == tf.float32 and batch["fails"]:
        raise ValueError("no")
    return tf.reduce_sum(batch["x"])


def batches(steps=STEPS):
    for k, (x,) in enumerate(rows(steps=steps, low=2)):
        yield ({"x": x, "weight": x * 0.5, "list": [x + 1.0, x - 1.0, tf.constant(1.0)], "fails": k % 9 == 8},)


@pytest.mark.parametrize("option", ["auto", True])
@pytest.mark.parametrize("change", [popped, appended, moved, cleared, raises])
def test_changes_of_what_it_is_given_reach_the_caller(change, option):
    both(lambda: (change, []), batches, lambda step, batch: batch, option)


def test_what_it_is_given_is_itself():
    held = {}

    def step(batch, more):
        held["batch"] = batch
        return tf.reduce_sum(batch["x"]) + more[0][1][0], batch

    def given():
        for (batch,) in batches():
            yield batch, [(1.0, [tf.reduce_sum(batch["x"])])]

    step = harness.coexecuted(step)
    for batch, more in given():
        tensors = {**batch}
        value, result = step(batch, more)
        assert result is batch is held["batch"] and all(batch[name] is tensors[name] for name in tensors)
        assert type(more[0]) is tuple and len(more) == 1
    assert leaves_unknown(step) and step.stats().coexecuted_steps > STEPS / 2


def test_a_container_that_is_also_the_programs():
    """It looks into the list by another way than the argument."""
    shared = []

    def step(x, held):
        shared[1] = tf.reduce_sum(held[0])
        return shared[1] + x[0, 0]

    def given():
        for x, in rows(steps=STEPS):
            shared[:] = [x, None]
            yield x, shared

    both(lambda: (step, []), given, lambda step, x, held: [*held])


def test_what_is_attached_to_a_tensor():
    def step(x):
        return tf.reduce_sum(x) * x.scale

    def given():
        for k, (x,) in enumerate(rows(steps=STEPS)):
            x.scale = float(k % 2)
            yield (x,)

    expected = [step(x) for x, in given()]
    co = harness.coexecuted(step)
    for (x,), value in zip(given(), expected):
        SAME(co(x), value)


# -- which object it is --------------------------------------------------------------------------------------------------------

def is_the_same(x, other):
    return [x is other, x is not other, other is x, x is held[-1], held[-1] is x is other, id(x) == id(held[-1]), x.ref() == held[-1].ref(), held[-1].ref() == x.ref(),
            held[-1].ref().deref() is x, x is not None, None is x]


def looks_up_by_identity(x, other):
    held.append(x)
    seen = {id(held[0]): "first", id(other): "other"}
    return seen.get(id(x)), {held[0].ref(): 1}.get(x.ref()), [y is x for y in (other, held[0], held[-1])], (lambda y: y is held[0])(x)


def is_in_a_generator(x, other):
    def each():
        yield x is held[-1]
        yield other is x
    return list(each()), all(y is not x for y in [other]), "yes" if x is other else "no"


@pytest.mark.parametrize("function", [is_the_same, looks_up_by_identity, is_in_a_generator])
@pytest.mark.parametrize("option", ["auto", True])
def test_which_tensor_it_is(function, option):
    def step(x, other):
        return tf.reduce_sum(x) + tf.reduce_sum(other), function(x, other)

    def given():
        for k, (x,) in enumerate(rows(steps=STEPS)):
            held[:] = [x]
            yield x, x if k % 3 == 0 else x + 1.0

    both(lambda: (step, []), given, option=option)


# -- tapes ---------------------------------------------------------------------------------------------------------------------


def watched_argument(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(x) ** 2)
    return tape.gradient(y, x)


def watched_in_another_way(x):
    with tf.GradientTape() as tape:
        tape.watch(held[-1])
        y = tf.reduce_sum(tf.sin(x) ** 2)
    return tape.gradient(y, held[-1]), tf.reduce_sum(y)


def used_both_ways(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(x) * held[-1])
    return tape.gradient(y, x), tape.gradient(y, held[-1]), tape.gradient(y, [held[-1], x])


def watched_while_it_does_not_record(x):
    with tf.GradientTape() as tape:
        with tape.stop_recording():
            tape.watch(held[-1])
        y = tf.reduce_sum(x ** 3)
    return tape.gradient(y, x)


def second_order(x):
    with tf.GradientTape() as outer:
        outer.watch(held[-1])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x ** 3)
        slope = tape.gradient(y, held[-1])
    return outer.gradient(slope, x)


def itself(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = held[-1]
    return tape.gradient(y, x)


def not_watched(x):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.tanh(tf.sin(x)) ** 2)
    return str(tape.gradient(y, x)), y


def forward(x):
    with tf.autodiff.ForwardAccumulator(held[-1], tf.ones_like(x)) as accumulator:
        y = tf.sin(x) + held[-1]
    return accumulator.jvp(y)


@pytest.mark.parametrize("function", [
    watched_argument, watched_in_another_way, used_both_ways, watched_while_it_does_not_record, second_order, itself, not_watched, forward])
def test_gradients_of_an_argument(function):
    def given():
        for x, in rows(steps=STEPS):
            held[:] = [x]
            yield (x,)

    expected = [function(x) for x, in given()]
    step = harness.coexecuted(function, reduce_retracing=True)
    for (x,), value in zip(given(), expected):
        tf.nest.map_structure(lambda a, b: SAME(a, b) if isinstance(a, tf.Tensor) else a == b or pytest.fail(f"{a} {b}"), step(x), value)
    stats = step.stats()
    assert leaves_unknown(step) and (function in (forward, used_both_ways) or stats.coexecuted_steps + stats.tracing_steps == STEPS)  # these take tensors from outside for others each time
    if function is watched_argument:
        assert stats.whole_steps > STEPS / 2, stats


def test_a_tape_round_the_step_that_watches_the_original():
    def run(wrap):
        step, found = wrap(lambda x: tf.reduce_sum(tf.tanh(x) ** 2)), []
        for x, in rows(steps=STEPS):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = step(x)
            found.append(tape.gradient(y, x).numpy().tolist())
        return found, step

    expected, (actual, step) = run(harness.eager)[0], run(harness.coexecuted)
    assert actual == expected and leaves_unknown(step)


# -- the option ----------------------------------------------------------------------------------------------------------------

def test_the_values_it_can_have():
    assert [options.Options.make({"reduce_retracing": value}).reduce_retracing for value in (True, False, "auto")] == [True, False, "auto"]
    with pytest.raises(errors.OptionError, match=r"'reduce_retracing' takes True, False or 'auto', not 'always'"):
        options.Options.make({"reduce_retracing": "always"})


def test_keras_fit():
    """Batches of new lengths, through a model's own step."""
    def run(compiled):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Embedding(20, 6), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)])
        model(np.zeros((2, 5), "int32"))
        found = compiled(model, optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return [float(model.train_on_batch(x, y)) for x, y in MANY()], [w.numpy().tolist() for w in model.weights], found

    expected = run(lambda model, **how: model.compile(run_eagerly=True, **how))
    actual = run(lambda model, **how: terra.compile(model, wait_for_graph=True, **how))
    assert actual[:2] == expected[:2]
    assert leaves_unknown(actual[2].train) and actual[2].train.stats().coexecuted_steps > STEPS / 2
