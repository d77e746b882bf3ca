"""Traps of `tf.function`, each as a test: what `tf.function` gives, and what it should be.

A trap is a small program, written with a decorator that it gets as its argument. It returns what a user would look at. `gives` is what comes out
under `tf.function` (a value, or the exception that it raises), `should_be` what comes out of plain Python, and so of Terra. Under Terra, steps must
have been co-executed: a program that merely stayed eager would fail.
"""
import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import logging
import math
import random
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from tests import harness

TRAPS = []
N = 8  # calls of a step: some are traced, the others co-executed
Symbolic = tf.errors.OperatorNotAllowedInGraphError
OutOfScope = (TypeError, ValueError)


def trap(gives, should_be, least=1):
    """Register a program with what tf.function gives and what it should be; at least `least` steps must be co-executed."""

    def register(program):
        TRAPS.append(pytest.param(program, gives, should_be, least, id=program.__name__))
        return program

    return register


class Decorator:
    """`terra.coexecute` that keeps count of what it decorated."""

    def __init__(self):
        self.made = []

    def __call__(self, fn):
        self.made.append(terra.coexecute(fn, wait_for_graph=True))
        return self.made[-1]

    def coexecuted(self):
        return sum(step.stats().coexecuted_steps for step in self.made)


def is_failure(gives):
    return isinstance(gives, type) or (isinstance(gives, tuple) and isinstance(gives[0], type))


@pytest.mark.parametrize("program, gives, should_be, least", TRAPS)
def test_tf_function(program, gives, should_be, least):
    """The trap is still there: if this fails, tf.function has got better."""
    harness.reset_seeds()
    if is_failure(gives):
        with pytest.raises(gives):
            program(tf.function)
    else:
        assert program(tf.function) == gives
        assert gives != should_be


@pytest.mark.parametrize("program, gives, should_be, least", TRAPS)
def test_terra(program, gives, should_be, least):
    harness.reset_seeds()
    assert program(lambda fn: fn) == should_be
    harness.reset_seeds()
    decorator = Decorator()
    assert program(decorator) == should_be
    assert decorator.coexecuted() >= least


def numbers(tensors):
    return [float(t) for t in tensors]


X = tf.constant([1.0, 2.0, 3.0])


# ------------------------------------------------------------------------------------ Python values are frozen

@trap(gives=[6.0] * 8, should_be=[6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 42.0, 48.0])
def a_number_in_a_closure_is_frozen(decorate):
    scale = 1.0

    @decorate
    def step(x):
        return tf.reduce_sum(x * scale)

    results = []
    for k in range(N):
        scale = k + 1.0
        results.append(step(X))
    return numbers(results)


_rate = 0.0


@trap(gives=[0.0] * 8, should_be=[0.0, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 42.0])
def a_global_is_frozen(decorate):
    global _rate

    @decorate
    def step(x):
        return tf.reduce_sum(x) * _rate

    results = []
    for _rate in map(float, range(N)):
        results.append(step(X))
    return numbers(results)


@trap(gives=[1.0] * 8, should_be=[1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125])
def an_attribute_is_frozen(decorate):
    settings = types.SimpleNamespace(rate=1.0)

    @decorate
    def step(x):
        return x[0] * settings.rate

    results = []
    for k in range(N):
        results.append(step(X))
        if k % 2:
            settings.rate /= 2
    return numbers(results)


@trap(gives=["train"] * 8, should_be=["train", "test"] * 4)
def a_branch_on_a_flag_is_frozen(decorate):
    class Model:
        training = True

        @decorate
        def step(self, x):
            return tf.exp(x) if self.training else -x

    model, results = Model(), []
    for k in range(N):
        model.training = k % 2 == 0
        results.append("train" if float(model.step(X)[0]) > 0 else "test")
    return results


@trap(gives=[3.0] * 8, should_be=[3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
def a_numpy_array_in_a_closure_is_frozen(decorate):
    table = np.zeros(3, np.float32)

    @decorate
    def step(x):
        return tf.reduce_max(x + table)

    results = []
    for _ in range(N):
        results.append(step(X))
        table += 1
    return numbers(results)


@trap(gives=[1] * 8, should_be=[1, 2, 3, 4, 5, 6, 7, 8])
def a_counter_attribute_counts_traces(decorate):
    class Model:
        calls = 0

        @decorate
        def step(self, x):
            self.calls += 1
            return x * self.calls

    model = Model()
    return [int(model.step(tf.constant(1.0))) for _ in range(N)]


@trap(gives=1, should_be=8)
def python_random_is_frozen(decorate):
    @decorate
    def step(x):
        return x * random.random()

    return len({float(step(tf.constant(1.0))) for _ in range(N)})


@trap(gives=1, should_be=8)
def numpy_random_is_frozen(decorate):
    @decorate
    def step(x):
        return x + np.random.standard_normal(3).astype("float32")

    return len({float(step(X)[0]) for _ in range(N)})


@trap(gives=1, should_be=8)
def time_is_frozen(decorate):
    @decorate
    def step(x):
        return tf.cast(x, tf.float64) * time.perf_counter()

    return len({float(step(tf.constant(1.0))) for _ in range(N)})


@trap(gives=[10.0] * 8, should_be=[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0])
def an_iterator_is_consumed_once(decorate):
    batches = itertools.count(1)

    @decorate
    def step(x):
        return x * next(batches)

    return [float(step(tf.constant(10.0))) for _ in range(N)]


@trap(gives=["a", "a", "a"], should_be=["a", "b", "b"], least=0)
def dictionary_order_is_frozen(decorate):
    """Dictionaries with equal keys share a trace, though their order differs."""

    @decorate
    def first(d):
        return next(iter(d.values())) * 1.0

    a, b = tf.constant(1.0), tf.constant(2.0)
    return ["ab"[int(first(d)) - 1] for d in ({"a": a, "b": b}, {"b": b, "a": a}, {"b": b, "a": a})]


@trap(gives=[1.0] * 8, should_be=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
def a_changed_object_among_the_arguments_is_frozen(decorate):
    @dataclasses.dataclass(eq=False)
    class State:
        scale: float = 0.0

    @decorate
    def step(state, x):
        return x * state.scale

    state, results = State(), []
    for _ in range(N):
        state.scale += 1
        results.append(step(state, tf.constant(1.0)))
    return numbers(results)


# --------------------------------------------------------------------------- side effects happen while tracing only

@trap(gives=1, should_be=8)
def list_append_happens_once(decorate):
    log = []

    @decorate
    def step(x):
        log.append("called")
        return x + 1

    for _ in range(N):
        step(X)
    return len(log)


@trap(gives={"steps": 1}, should_be={"steps": 8})
def a_dictionary_changes_once(decorate):
    counts = collections.Counter()

    @decorate
    def step(x):
        counts["steps"] += 1
        return x + 1

    for _ in range(N):
        step(X)
    return dict(counts)


@trap(gives=1, should_be=8)
def nonlocal_changes_once(decorate):
    calls = 0

    @decorate
    def step(x):
        nonlocal calls
        calls += 1
        return x + 1

    for _ in range(N):
        step(X)
    return calls


@trap(gives="step\n", should_be="step\n" * 8)
def print_prints_once(decorate):
    @decorate
    def step(x):
        print("step")
        return x + 1

    with contextlib.redirect_stdout(io.StringIO()) as out:
        for _ in range(N):
            step(X)
    return out.getvalue()


@trap(gives=1, should_be=8)
def logging_logs_once(decorate):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("footguns")
    log.propagate = False
    log.addHandler(handler)

    @decorate
    def step(x):
        log.warning("a step")
        return x + 1

    for _ in range(N):
        step(X)
    log.removeHandler(handler)
    return len(records)


@trap(gives=ValueError, should_be=[[], [1], [1, 2], [1, 2, 3]])
def a_default_argument_cannot_remember(decorate):
    @decorate
    def step(x, seen=[]):  # noqa: B006  (the trap)
        before = list(seen)
        seen.append(len(seen) + 1)
        return x + 1, before

    return [[int(i) for i in step(X)[1]] for _ in range(N)][:4]


@trap(gives=["enter", "exit"], should_be=["enter", "exit"] * 8)
def a_context_manager_is_entered_once(decorate):
    events = []

    @contextlib.contextmanager
    def phase():
        events.append("enter")
        yield
        events.append("exit")

    @decorate
    def step(x):
        with phase():
            return x * 2

    for _ in range(N):
        step(X)
    return events


@trap(gives=(1, 1), should_be=(8, 16))
def nested_decorated_functions_run_once(decorate):
    counts = {"inner": 0, "outer": 0}

    @decorate
    def inner(x):
        counts["inner"] += 1
        return x * 2

    @decorate
    def outer(x):
        counts["outer"] += 1
        return inner(inner(x))

    for _ in range(N):
        outer(X)
    return counts["outer"], counts["inner"]


@trap(gives=ValueError, should_be=[1, 2, 3, 4, 5, 6, 7, 8])
def an_argument_cannot_be_appended_to(decorate):
    @decorate
    def step(x, history):
        history.append(x * 2)
        return x + 1

    history, lengths = [], []
    for _ in range(N):
        step(tf.constant(1.0), history)
        lengths.append(len(history))
    return lengths


# ---------------------------------------------------------------------------------------- symbolic tensors leak

@trap(gives=AttributeError, should_be=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
def a_tensor_kept_on_self_has_no_value(decorate):
    class Model:
        @decorate
        def step(self, x):
            self.hidden = x + 1
            return x * 2

    model, results = Model(), []
    for k in range(N):
        model.step(tf.constant(float(k)))
        results.append(float(model.hidden.numpy()))
    return results


@trap(gives=OutOfScope, should_be=36.0)
def tensors_collected_in_a_list_are_out_of_scope(decorate):
    losses = []

    @decorate
    def step(x):
        losses.append(x + 1)
        return x

    for k in range(N):
        step(tf.constant(float(k)))
    return float(tf.add_n(losses))


@trap(gives=OutOfScope, should_be=[0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0])
def a_state_carried_from_call_to_call_is_out_of_scope(decorate):
    state = [tf.constant(0.0)]

    @decorate
    def step(x):
        state[0] = state[0] + x
        return x * state[0]

    results = []
    for k in range(N):
        step(tf.constant(float(k)))
        results.append(float(tf.identity(state[0])))
    return results


@trap(gives=OutOfScope, should_be=[2.0] * 8)
def a_memoised_function_gives_a_dead_tensor(decorate):
    @functools.lru_cache
    def table(n):
        return tf.range(n, dtype=tf.float32) * 2

    @decorate
    def step(x):
        return tf.reduce_sum(x * table(3)) - 14.0

    @decorate
    def other(x):
        return x + table(3)[1]

    return [float(step(X)) for _ in range(N - 1)] + [float(other(tf.constant(0.0)))]


# ------------------------------------------------------------------------------ values are not there while tracing

@trap(gives=(AttributeError, NotImplementedError), should_be=[1.0, 2.0, 3.0] * 2)
def numpy_is_not_there(decorate):
    @decorate
    def step(x):
        return x / np.max(x.numpy())

    return [round(v * 3, 3) for v in np.concatenate([step(X).numpy() for _ in range(N)]).tolist()][-6:]


@trap(gives=TypeError, should_be=2.449)
def the_math_module_cannot_have_a_tensor(decorate):
    @decorate
    def step(x):
        return math.sqrt(tf.reduce_sum(x * x) - 8.0)

    return round([step(X) for _ in range(N)][-1], 3)


@trap(gives=(AttributeError, NotImplementedError), should_be=[3, 3, 3, 3, 3, 3, 3, 3])
def item_is_not_there(decorate):
    @decorate
    def step(x):
        n = tf.size(x * 2).numpy().item()
        return tf.zeros([n])

    return [len(step(X)) for _ in range(N)]


@trap(gives=TypeError, should_be="cat")
def a_tensor_cannot_index_a_list(decorate):
    names = ["dog", "cow", "cat"]

    @decorate
    def step(x):
        best = tf.argmax(x * 2)
        step.answer = names[best]
        return best

    for _ in range(N):
        step(X)
    return step.answer


@trap(gives=False, should_be=True)
def an_f_string_names_the_graph_tensor(decorate):
    texts = []

    @decorate
    def step(x):
        texts.append(f"loss {tf.reduce_sum(x)}")
        return x

    for _ in range(N):
        step(X)
    return texts == ["loss 6.0"] * N


@trap(gives=TypeError, should_be="6.00")
def a_format_specification_raises(decorate):
    texts = []

    @decorate
    def step(x):
        texts.append(f"{tf.reduce_sum(x):.2f}")
        return x

    for _ in range(N):
        step(X)
    return texts[-1]


@trap(gives=["symbolic"] * 8, should_be=["eager"] * 8)
def isinstance_takes_the_other_way(decorate):
    def kind(x):
        return "eager" if hasattr(x, "numpy") and isinstance(x + 1, type(X)) else "symbolic"

    @decorate
    def step(x):
        return (x, tf.constant(1)) if kind(x) == "eager" else (x, tf.constant(2))

    return [{1: "eager", 2: "symbolic"}[int(step(X)[1])] for _ in range(N)]


@trap(gives=0, should_be=8)
def a_swallowed_exception_hides_the_loss(decorate):
    history = []

    @decorate
    def step(x):
        loss = tf.reduce_sum(x)
        try:
            history.append(loss.numpy())
        except Exception:  # meant for something else
            pass
        return loss

    for _ in range(N):
        step(X)
    return len(history)


@trap(gives=TypeError, should_be=[[3.0, 2.0, 1.0]] * 8)
def sorted_cannot_compare_tensors(decorate):
    @decorate
    def step(x):
        return tf.stack(sorted(tf.unstack(x), key=lambda t: -float(t)))

    return [step(X).numpy().tolist() for _ in range(N)]


# --------------------------------------------------------------------------- control flow on values is another language

@trap(gives=ValueError, should_be=[6.0, "not a number"] * 4)
def raise_in_a_branch_always_raises(decorate):
    """Both branches are traced, so the exception is raised while tracing."""

    @decorate
    def step(x):
        total = tf.reduce_sum(x)
        if tf.math.is_nan(total):
            raise ValueError("not a number")
        return total

    results = []
    for k in range(N):
        if k % 2 == 0:
            results.append(float(step(X)))
        else:
            with pytest.raises(ValueError, match="not a number") as info:
                step(X * float("nan"))
            results.append(str(info.value))
    return results


@trap(gives=tf.errors.InvalidArgumentError, should_be=[6.0, -1.0] * 4)
def an_error_of_an_operation_is_not_caught(decorate):
    @decorate
    def step(x):
        try:
            tf.debugging.assert_positive(x)
        except tf.errors.InvalidArgumentError:
            return tf.constant(-1.0)
        return tf.reduce_sum(x)

    return [float(step(X if k % 2 == 0 else -X)) for k in range(N)]


@trap(gives=Symbolic, should_be=["AssertionError"] * 4)
def assert_cannot_test_a_tensor(decorate):
    @decorate
    def step(x):
        assert tf.reduce_all(x > 0), "not positive"
        return x * 2

    caught = []
    for k in range(N):
        try:
            step(X if k % 2 == 0 else -X)
        except AssertionError as error:
            caught.append(type(error).__name__)
    return caught


@trap(gives=(ValueError, TypeError), should_be=["none", 3.0] * 4)
def none_cannot_come_out_of_a_branch(decorate):
    @decorate
    def step(x):
        best = None
        if tf.reduce_sum(x) > 0:
            best = tf.reduce_max(x)
        if best is None:
            return x * 0, "none"
        return x + best, best

    return [step(-X)[1] if k % 2 == 0 else float(step(X)[1]) for k in range(N)]


@trap(gives=NotImplementedError, should_be=[4, 2, 4, 2, 4, 2, 4, 2])
def early_return_out_of_a_loop(decorate):
    """The loop's ways out return different shapes."""

    @decorate
    def step(x):
        for i in tf.range(3):
            if x[i] > 1:
                return x[i:]
        return tf.concat([x, x[:1]], 0)

    return [int(tf.size(step(-X if k % 2 == 0 else X))) for k in range(N)]


@trap(gives=(ValueError, TypeError), should_be=["float32", "int32"] * 4)
def branches_must_agree_in_dtype(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            y = x
        else:
            y = tf.cast(x, tf.int32)
        return y + 1

    return [step(X if k % 2 == 0 else -X).dtype.name for k in range(N)]


@trap(gives=(ValueError, UnboundLocalError), should_be=[2.0, 1.0] * 4)
def a_variable_made_in_one_branch(decorate):
    @decorate
    def step(x):
        if x[0] > 0:
            extra = x[0]
        result = tf.abs(x[0])
        if x[0] > 0:
            result = result + extra
        return result

    return [float(step(X if k % 2 == 0 else -X)) for k in range(N)]


@trap(gives=(ValueError, TypeError), should_be=[[2.0, 3.0]] * 8)
def append_in_a_loop_over_a_tensor(decorate):
    @decorate
    def step(x):
        found = []
        for v in x:
            if v > 1:
                found.append(v)
        return found

    return [numbers(step(X)) for _ in range(N)]


@trap(gives=OutOfScope, should_be=[[0, 10, 20]] * 8)
def closures_over_the_loop_variable(decorate):
    @decorate
    def step(x):
        later = []
        for i in tf.range(3):
            later.append(lambda i=i: i * x)
        return [f() for f in later]

    return [[int(v) for v in step(tf.constant(10))] for _ in range(N)]


@trap(gives=Symbolic, should_be=[[2.0, 3.0]] * 8)
def a_condition_in_a_comprehension(decorate):
    @decorate
    def step(x):
        return [v * 1.0 for v in tf.unstack(x) if v > 1]

    return [numbers(step(X)) for _ in range(N)]


@trap(gives=Symbolic, should_be=[3.0, 1.0] * 4)
def max_of_tensors(decorate):
    @decorate
    def step(x):
        return max(tf.unstack(x)) * 1.0

    return [abs(float(step(X if k % 2 == 0 else -X))) for k in range(N)]


@trap(gives=Symbolic, should_be=[6.0] * 8)
def a_generator_that_tests_values(decorate):
    def positive(x):
        for v in tf.unstack(x):
            yield v if v > 0 else v * 0

    @decorate
    def step(x):
        return tf.add_n(list(positive(x)))

    return [float(step(X)) for _ in range(N)]


@trap(gives=Exception, should_be=[8.0, 64.0] * 4)
def recursion_on_a_value_never_ends(decorate):
    """Both branches are traced, the recursive one without end; what is raised names a RecursionError, and is none."""

    def double_until(x, limit):
        return x if x >= limit else double_until(x * 2, limit)

    @decorate
    def step(x, limit):
        return double_until(x, limit) * 1.0

    return [float(step(tf.constant(1.0), tf.constant(8.0 if k % 2 == 0 else 64.0))) for k in range(N)]


@trap(gives=(ValueError, TypeError), should_be=[[0, 1], [0, 1, 2]] * 4)
def range_of_a_length_that_depends_on_data(decorate):
    @decorate
    def step(x):
        seen = []
        for i in range(len(tf.where(x > 1.0))):
            seen.append(x[i] - x[0])
        return seen

    return [[int(v) for v in step(X if k % 2 == 0 else X + 1)] for k in range(N)]


# -------------------------------------------------------------------------------------------- variables and objects

@trap(gives=ValueError, should_be=[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
def variables_created_in_a_later_call(decorate):
    """A layer is added in the second call."""
    weights = []

    @decorate
    def step(x, grow):
        if grow:
            weights.append(tf.Variable(1.0))
        return x * tf.add_n([tf.convert_to_tensor(w) for w in weights])

    return [float(step(tf.constant(1.0), grow=k < 2)) for k in range(N)]


@trap(gives=ValueError, should_be=[1.0, 1.0, 1.0, 1.0])
def one_step_for_two_models(decorate):
    """The second model creates its variables in a call that is not the first."""

    class Model:
        weight = None

        def __call__(self, x):
            if self.weight is None:
                self.weight = tf.Variable(1.0)
            self.weight.assign_sub(0.1 * x)
            return x * self.weight

    @decorate
    def step(model, x):
        return model(x)

    models = [Model(), Model()]
    for _ in range(N):
        for model in models:
            step(model, tf.constant(0.0))
    return [float(step(m, tf.constant(0.0)) + m.weight) for m in models] * 2


@trap(gives=ValueError, should_be=True)
def a_second_optimizer(decorate):
    @decorate
    def step(optimizer, w):
        optimizer.apply_gradients([(w * 2, w)])
        return w + 0

    weights = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.2, momentum=0.9)]
    for _ in range(N):
        for optimizer, w in zip(optimizers, weights):
            value = step(optimizer, w)
            assert float(value) == float(w)
    return float(weights[0]) != float(weights[1])


@trap(gives="SymbolicTensor", should_be="int")
def a_returned_number_becomes_a_tensor(decorate):
    @decorate
    def step(x):
        return {"loss": tf.reduce_sum(x), "count": 3}

    kind = type([step(X) for _ in range(N)][-1]["count"]).__name__
    return "int" if kind == "int" else "SymbolicTensor"


@trap(gives=TypeError, should_be=6.0)
def objects_cannot_be_returned(decorate):
    class Result:
        def __init__(self, loss, note):
            self.loss, self.note = loss, note

    @decorate
    def step(x):
        return Result(tf.reduce_sum(x), {1, 2})

    return float([step(X) for _ in range(N)][-1].loss)


@trap(gives=TypeError, should_be=True)
def a_changed_shape_becomes_none(decorate):
    """After a few shapes `reduce_retracing` makes the dimension unknown, and `range` cannot have it."""

    @(decorate if decorate is not tf.function else tf.function(reduce_retracing=True))
    def step(x):
        return tf.add_n([x[i] * 0 + 1 for i in range(x.shape[0])])

    for n in range(3, 11):
        values = [int(step(tf.ones([n]))) for _ in range(4)]
        assert values == [n] * 4
    return True


# ------------------------------------------------------------------------------------------------- retracing storms

def test_numbers_as_arguments_retrace():
    """A Python number among the arguments is a constant of the trace: tf.function traces for each, Terra feeds it after the second."""

    def scaled(x, k):
        return tf.reduce_sum(x * k)

    graph = tf.function(scaled)
    assert numbers(graph(X, float(k)) for k in range(20)) == [6.0 * k for k in range(20)]
    assert graph.experimental_get_tracing_count() == 20
    step = terra.coexecute(scaled, wait_for_graph=True)
    assert numbers(step(X, float(k)) for k in range(20)) == [6.0 * k for k in range(20)]
    assert step.stats().traces <= 3 and step.stats().coexecuted_steps >= 15


def test_fresh_objects_as_arguments_retrace():
    """An object is told by its identity: a new one in each call means a new trace in each call."""

    class Batch:
        def __init__(self, x):
            self.x = x

    def total(batch):
        return tf.reduce_sum(batch.x) * 2

    graph = tf.function(total)
    batches = [Batch(X + k) for k in range(20)]
    assert numbers(graph(b) for b in batches) == [12.0 + 6 * k for k in range(20)]
    assert graph.experimental_get_tracing_count() == 20
    step = terra.coexecute(total, wait_for_graph=True)
    assert numbers(step(b) for b in batches) == [12.0 + 6 * k for k in range(20)]
    assert step.stats().traces <= 3 and step.stats().coexecuted_steps >= 15


def test_lambdas_decorated_in_a_loop_retrace():
    """`tf.function(f)(x)` in a loop makes and traces a new function each time; Terra makes new steps, which stay eager and correct."""
    bodies = []

    def body(x):
        bodies.append(1)
        return x * 2

    for _ in range(3):
        tf.function(body)(X)
    assert len(bodies) == 3
    step = terra.coexecute(body, wait_for_graph=True)
    for _ in range(N):
        step(X)
    assert len(bodies) == 3 + N and step.stats().coexecuted_steps > 0


def test_shapes_that_vary_retrace():
    """Each new shape costs tf.function a trace; Terra's values are right for each, and the shapes come back co-executed."""

    def total(x):
        return tf.reduce_sum(x * 2)

    graph = tf.function(total)
    for n in range(1, 9):
        graph(tf.ones([n]))
    assert graph.experimental_get_tracing_count() == 8
    step = terra.coexecute(total, wait_for_graph=True)
    assert numbers(step(tf.ones([1 + k % 8])) for k in range(40)) == [2.0 * (1 + k % 8) for k in range(40)]
    assert step.stats().coexecuted_steps > 8


# ------------------------------------------------------------------------------------------- traps that Terra could set

def test_outputs_are_not_reused():
    """A jit that keeps its output buffers gives the same array twice."""
    step = terra.coexecute(lambda x: x * 2, wait_for_graph=True)
    results = [step(tf.constant([float(k)])) for k in range(N)]
    assert [float(r[0]) for r in results] == [2.0 * k for k in range(N)]
    assert step.stats().coexecuted_steps > 0


def test_arguments_may_be_overwritten():
    """A numpy batch is overwritten as soon as the step has returned, while its graph may still run."""
    step = terra.coexecute(lambda batch: tf.reduce_sum(batch * 2), wait_for_graph=True)
    batch, results = np.zeros(1000, np.float32), []
    for k in range(N):
        batch[:] = k
        results.append(step(batch))
    batch[:] = -1
    assert numbers(results) == [2000.0 * k for k in range(N)]
    assert step.stats().coexecuted_steps > 0


def test_the_body_runs_exactly_once_per_call():
    """Neither the framework's tracing nor a fallback runs the function twice."""
    calls = []

    @terra.coexecute(wait_for_graph=True)
    def step(x, k):
        calls.append(k)
        return tf.exp(x) if k % 5 == 4 else -x

    for k in range(20):
        step(X, k)
    assert calls == list(range(20)) and step.stats().coexecuted_steps > 0 and step.stats().fallbacks > 0
