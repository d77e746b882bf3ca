"""Failures of operations that the program catches: in the step, or around it."""

import contextlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.tracing import catching

TABLE = tf.constant([1.0, 2.0, 3.0])
MATRIX = tf.constant([[2.0, 0.0], [0.0, 1.0]])
NONZERO = tf.constant([3, 4])
GOOD, BAD = tf.constant([0, 1]), tf.constant([1, 9])
FAILS = 17  # the first step that fails: by then, steps are co-executed
KINDS = (ValueError, tf.errors.InvalidArgumentError)


class Both:
    """The state of a program, which is run eagerly and co-executed."""

    def __init__(self):
        self.total = tf.Variable(0.0)
        self.log = []
        self.layer = keras.layers.Embedding(3, 2, embeddings_initializer="ones")
        self.layer.build(())


def in_the_step(self, i):
    self.total.assign_add(1.0)
    try:
        y = tf.gather(TABLE, i)
        self.log.append("looked up")
    except tf.errors.InvalidArgumentError as error:
        self.log.append(type(error).__name__)
        y = tf.constant([-1.0, -1.0])
        self.total.assign_sub(10.0)
    return tf.reduce_sum(y)


def with_all_parts(self, i):
    try:
        y = tf.gather(TABLE, i)
    except KINDS:
        self.log.append("caught")
        return tf.constant(0.0)
    else:
        self.log.append("fine")
    finally:
        self.log.append("finally")
        self.total.assign_add(2.0)
    return tf.reduce_sum(y)


def in_a_function(self, i):
    def look_up():
        y = tf.gather(TABLE, i)
        self.log.append("looked up")
        return y * 2.0

    try:
        y = look_up()
    except Exception:
        y = tf.zeros([2])
    self.total.assign_add(tf.reduce_sum(y))
    return tf.reduce_sum(y)


def in_a_layer(self, i):
    try:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.layer(i) ** 2)
        self.log.append("forward")
        gradient = tape.gradient(loss, self.layer.embeddings.value)
        self.layer.embeddings.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    except tf.errors.OpError:
        self.log.append("left out")
        loss = tf.constant(-1.0)
    return loss


def suppressed(self, i):
    y = tf.constant(-1.0)
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        z = tf.gather(TABLE, i)
        self.log.append("looked up")
        y = tf.reduce_sum(z)
    self.total.assign_add(y)
    return y


def tried_again(self, i):
    for scale in (1, 2, 0):
        try:
            y = tf.gather(TABLE, i * scale)
            self.log.append(scale)
            break
        except:  # noqa: E722
            self.total.assign_add(100.0)
    return tf.reduce_sum(y)


def raised_on(self, i):
    try:
        try:
            y = tf.gather(TABLE, i)
            self.log.append("looked up")
        except tf.errors.InvalidArgumentError as error:
            raise LookupError("not there") from error
    except LookupError as error:
        self.log.append(repr(error.__cause__)[:20])
        y = tf.zeros([2])
    return tf.reduce_sum(y)


def of_a_matrix(self, i):
    try:
        y = tf.linalg.inv(MATRIX * tf.cast(tf.reduce_max(i) < 5, tf.float32))
        self.log.append("inverted")
    except tf.errors.InvalidArgumentError:
        y = MATRIX
    self.total.assign_add(y[0, 0])
    return y[0, 0]


def of_integers(self, i):
    try:
        y = 18 // (9 - i)
        self.log.append("divided")
    except tf.errors.InvalidArgumentError:
        y = i
    return tf.reduce_sum(y)


def by_an_argument(self, i):
    try:
        y = 20 // (i - 9)
        z = tf.constant(20) // (NONZERO if i is GOOD else i - i)
        self.log.append("divided")
    except tf.errors.InvalidArgumentError:
        self.log.append("by zero")
        y = z = i
    return tf.reduce_sum(y + z)


def by_a_constant(self, i):
    self.n = getattr(self, "n", -1) + 1
    try:
        y = i // tf.constant(0 if self.n in (17, 27) else self.n)
        self.log.append("divided")
    except tf.errors.InvalidArgumentError:
        y = i
    return tf.reduce_sum(y)


PROGRAMS = [in_the_step, with_all_parts, in_a_function, in_a_layer, suppressed, tried_again, raised_on, of_a_matrix, of_integers, by_an_argument, by_a_constant]


def run(call, state, steps=30, fails=lambda k: k % 10 == FAILS % 10 and k >= FAILS):
    return [float(call(state, BAD if fails(k) else GOOD)) for k in range(steps)]


def same(expected, state):
    assert state.log == expected.log
    assert float(state.total) == float(expected.total)
    np.testing.assert_array_equal(state.layer.embeddings, expected.layer.embeddings)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("options", [{}, {"run_ahead": 0}, {"fast_forward": False}, {"loops": "roll"}], ids=str)
def test_a_failure_in_the_step(program, options):
    expected, state = Both(), Both()
    results = run(program, expected)
    step = terra.coexecute(program, wait_for_graph=True, **options)
    assert run(step, state) == results
    same(expected, state)
    stats = step.stats()
    assert stats.coexecuted_steps >= 22
    assert stats.fetches >= 20 and "because the program would catch their failure" in terra.explain(step, full=True)


@pytest.mark.parametrize("options", [{}, {"fast_forward": "framework"}, {"loops": "roll"}], ids=str)
@pytest.mark.parametrize("goes_on", ["updates", "reads", "returns", "returns a tensor"])
def test_a_read_that_would_catch_the_failure_of_an_operation_before(goes_on, options):
    """Eagerly, the failure comes before the statement; Keras 3.12 reads metrics in one that catches all."""
    def step(self, i):
        y = tf.reduce_sum(tf.gather(TABLE, i))
        try:
            value = float(y)
        except Exception:
            value = None
        if goes_on == "updates":
            self.total.assign_add(1.0)
        elif goes_on == "reads":
            value = float(y * 2.0)
        return y if goes_on == "returns a tensor" else value

    outcomes = []
    for call in (step, terra.coexecute(step, wait_for_graph=True, **options)):
        state, found = Both(), []
        for k in range(24):
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                found.append((k, float(call(state, BAD if k in (17, 20) else GOOD))))
        outcomes.append((found, float(state.total)))
    assert outcomes[0] == outcomes[1] and len(outcomes[0][0]) == 22
    assert call.stats().coexecuted_steps >= 16, call.stats()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_failure_while_steps_are_traced(program):
    expected, state = Both(), Both()
    results = run(program, expected, fails=lambda k: k in (0, 2, 20))
    step = terra.coexecute(program, wait_for_graph=True)
    assert run(step, state, fails=lambda k: k in (0, 2, 20)) == results
    same(expected, state)
    assert step.stats().coexecuted_steps >= 20


@pytest.mark.parametrize("program", [in_the_step, in_a_function, tried_again], ids=lambda f: f.__name__)
def test_a_failure_in_pieces(program):
    def looping(self, i, n):
        y = tf.zeros([])
        for _ in range(n):
            y += program(self, i)
        return y

    lengths = [3, 7, 5, 9, 4, 8, 6, 11, 3, 10]
    expected, state = Both(), Both()
    step = terra.coexecute(looping, wait_for_graph=True)
    for k in range(40):
        i, n = BAD if k in (23, 31) else GOOD, lengths[k % 10]
        assert float(looping(expected, i, n)) == float(step(state, i, n))
    same(expected, state)
    assert step.stats().rolled_loops == 1 and step.stats().coexecuted_steps >= 25


def test_a_program_whose_loop_calls_it():
    def program(self, i, n):
        y = tf.zeros([])
        for k in range(n):
            try:
                y += tf.reduce_sum(tf.gather(TABLE, i + (7 if k == 5 else 0)))
                self.log.append(k)
            except tf.errors.InvalidArgumentError:
                y -= 1.0
        return y

    expected, state = Both(), Both()
    step = terra.coexecute(program, wait_for_graph=True)
    for k in range(40):
        n = [3, 4, 2, 5, 1, 4, 3, 5, 2, 1][k % 10] if k < 25 else 8
        assert float(program(expected, GOOD, n)) == float(step(state, GOOD, n))
    same(expected, state)
    assert step.stats().coexecuted_steps >= 20


# -- around the step -----------------------------------------------------------------------------------------------------------

def train(self, i):
    y = tf.reduce_sum(tf.gather(TABLE, i))
    self.total.assign_add(y)
    return y


def directly(call, state, k, i):
    try:
        call(state, i)
    except tf.errors.InvalidArgumentError:
        state.log.append(k)


def by_a_function(call, state, k, i):
    def attempt():
        call(state, i)

    try:
        attempt()
    except (KeyError, tf.errors.OpError):
        state.log.append(k)


def by_a_context(call, state, k, i):
    with contextlib.suppress(Exception):
        call(state, i)
        state.log.append(k)


@pytest.mark.parametrize("around", [directly, by_a_function, by_a_context], ids=lambda f: f.__name__)
def test_a_failure_of_one_step(around):
    expected, state = Both(), Both()
    step = terra.coexecute(train, wait_for_graph=True)
    for call, where in ((train, expected), (step, state)):
        for k in range(60):
            around(call, where, k, BAD if k % 13 == 12 else GOOD)
    same(expected, state)
    assert len(state.log) in (4, 56)
    assert step.stats().coexecuted_steps >= 55 and step.stats().fallbacks <= 1


@pytest.mark.parametrize("bad", [25, 38, 39])
def test_a_loop_that_ends_with_the_failure(bad):
    """The last step of the loop, too, must fail before the statement is left."""
    def loop(call, state):
        try:
            for k in range(40):
                call(state, BAD if k == bad else GOOD)
                state.log.append(k)
        except tf.errors.InvalidArgumentError:
            state.log.append("failed")

    expected, state = Both(), Both()
    step = terra.coexecute(train, wait_for_graph=True)
    for call, where in ((train, expected), (step, state)):
        loop(call, where)
        loop(call, where)
    same(expected, state)
    assert state.log.count("failed") == 2 and step.stats().coexecuted_steps >= 2 * bad - 5


def test_a_loop_of_another_function_is_not_waited_for():
    def loop():
        for k in range(5):
            waited.append(catching.around_step(sys._getframe()))

    waited = []
    try:
        loop()
        for k in range(5):
            waited.append(catching.around_block(sys._getframe()))
    except tf.errors.InvalidArgumentError:
        raise
    assert waited == [False] * 10


def test_a_bound_method_whose_failure_is_caught():
    class Trainer(Both):
        @terra.coexecute(wait_for_graph=True)
        def step(self, i):
            return train(self, i)

        def eagerly(self, i):
            return train(self, i)

    expected, state = Trainer(), Trainer()
    for call, where in ((expected.eagerly, expected), (state.step, state)):
        for k in range(40):
            try:
                call(BAD if k in (20, 33) else GOOD)
            except tf.errors.InvalidArgumentError:
                where.log.append(k)
    same(expected, state)
    assert state.log == [20, 33] and state.step.stats().coexecuted_steps >= 35


# -- blocks --------------------------------------------------------------------------------------------------------------------

def block_inside(tape_class, variable, i, log):
    with tape_class() as tape:
        try:
            rows = tf.gather(variable, i)
        except tf.errors.InvalidArgumentError:
            log.append("caught")
            rows = variable * 2.0
        loss = tf.reduce_sum(rows * rows)
    variable.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, variable)))
    return loss, tape


def block_around(tape_class, variable, i, log):
    loss = tape = None
    try:
        with tape_class() as tape:
            loss = tf.reduce_sum(tf.gather(variable, i) ** 2)
        variable.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, variable)))
        log.append("updated")
    except tf.errors.InvalidArgumentError:
        log.append("left out")
    return loss, tape


@pytest.mark.parametrize("program", [block_inside, block_around], ids=lambda f: f.__name__)
def test_a_failure_in_a_block(program):
    outcomes = []
    for tape_class in (tf.GradientTape, lambda: terra.GradientTape(wait_for_graph=True)):
        variable, log = tf.Variable([1.0, 2.0, 3.0]), []
        for k in range(40):
            log.append(k)
            loss, tape = program(tape_class, variable, BAD if k % 13 == 12 else tf.constant([k % 3, 1]), log)
        outcomes.append((log, variable.numpy().tolist(), float(loss)))
    assert outcomes[0] == outcomes[1]
    assert tape.block.stats().coexecuted_steps >= 25


# -- what is waited for --------------------------------------------------------------------------------------------------------

def fetches(step, *args):
    for _ in range(12):
        step(*args)
    terra.sync()
    assert step.stats().coexecuted_steps >= 8
    return step.stats().fetches


class Mine(Exception):
    pass


def test_nothing_is_waited_for_that_nobody_catches():
    state = Both()

    def other_kinds(self, i):
        try:
            return tf.reduce_sum(tf.gather(TABLE, i))
        except (KeyError, StopIteration, Mine):
            return None
        except tf.errors.OutOfRangeError:
            return None

    def in_the_handler(self, i):
        try:
            {}["x"]
        except Exception:
            y = tf.gather(TABLE, i)
        finally:
            z = tf.gather(TABLE, i)
        return tf.reduce_sum(y + z)

    def behind(self, i):
        try:
            y = TABLE * 2.0
        except Exception:
            y = TABLE
        return tf.reduce_sum(tf.gather(y, i))

    def defined_there(self, i):
        try:
            def look_up():
                return tf.reduce_sum(tf.gather(TABLE, i))
        except Exception:
            pass
        return look_up()

    for program in (other_kinds, in_the_handler, behind, defined_there):
        assert fetches(terra.coexecute(program, wait_for_graph=True), state, GOOD) == 0, program.__name__


def test_nothing_is_waited_for_that_cannot_fail():
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    x = tf.ones([4, 3])
    model(x)

    def step(x):
        try:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.reshape(model(x), [-1]) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        except Exception:
            return tf.constant(0.0)
        return loss

    assert fetches(terra.coexecute(step, wait_for_graph=True), x) == 0


def test_classes_that_cannot_be_told_are_taken_for_the_failures():
    kind = tf.errors.InvalidArgumentError

    def local(self, i):
        caught = (kind,)
        try:
            y = tf.gather(TABLE, i)
            self.log.append("looked up")
        except caught:
            y = tf.zeros([2])
        return tf.reduce_sum(y)

    def enclosing(self, i):
        try:
            y = tf.gather(TABLE, i)
            self.log.append("looked up")
        except kind:
            y = tf.zeros([2])
        return tf.reduce_sum(y)

    def computed(self, i):
        try:
            y = tf.gather(TABLE, i)
            self.log.append("looked up")
        except tuple([kind]):
            y = tf.zeros([2])
        return tf.reduce_sum(y)

    for program in (local, enclosing, computed):
        expected, state = Both(), Both()
        results = run(program, expected)
        assert run(terra.coexecute(program, wait_for_graph=True), state) == results
        same(expected, state)


def test_code_without_a_source_is_left_alone_once_it_has_caught_a_failure(caplog):
    made = {"tf": tf, "TABLE": TABLE, "__name__": "made"}
    exec("""
def step(self, i):
    try:
        y = tf.gather(TABLE, i)
    except Exception:
        y = tf.zeros([2])
    return tf.reduce_sum(y)
""", made)
    step = terra.coexecute(made["step"], wait_for_graph=True)
    state = Both()
    assert run(step, state, steps=6, fails=lambda k: k == 1) == [3.0, 0.0, 3.0, 3.0, 3.0, 3.0]
    assert "it goes on when an operation has failed (GatherV2)" in terra.explain(step, full=True)


def test_the_handler_of_autographs_own_code_catches_nothing():
    """Code that AutoGraph has converted stands in a `try`, which raises on what it has caught: no operation in there is waited for."""
    table = tf.Variable([1.0, 2.0, 3.0])

    def looked_up(i):
        if tf.reduce_sum(i) >= 0:
            return tf.gather(table, i) * 2.0
        return tf.gather(table, i)

    converted = tf.autograph.to_graph(looked_up)

    def run(function, decorate):
        step = decorate(lambda i: function(i) + 1.0)
        return step, [step(tf.constant([k % 3])).numpy().tolist() for k in range(10)]

    step, ours = run(converted, terra.coexecute(wait_for_graph=True))
    assert ours == run(looked_up, lambda f: f)[1]
    stats = step.stats()
    assert stats.coexecuted_steps >= 6 and stats.fetches == stats.coexecuted_steps  # the branch alone is read
