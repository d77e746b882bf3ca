"""Steps whose last statements cannot be skipped: these run behind the step, and the program sees what it sees without.

Each program below makes a step, which is called 60 times eagerly and co-executed; what it gives, prints and leaves is compared, and that it was skipped but for its tail.
"""

import collections
import contextlib
import gc
import io
import threading
import traceback
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.step_function.tuning import tails
from tests import harness
from tests.corpus import Spec

EXACT = Spec("tails", "tf", None, exact=True)
CUT, WHOLE = [], []


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Functions are cut at once, however short a run may be."""
    monkeypatch.setattr(tails, "_PAID", 0.0)


def cut(f):
    """A program whose step is cut. It is given what decorates it."""
    CUT.append(pytest.param(f, id=f.__name__))
    return f


def whole(f):
    """A program whose step stays whole."""
    WHOLE.append(pytest.param(f, id=f.__name__))
    return f


def noted(seen, value):
    """Code of which nothing is known notes a value."""
    exec("seen.append(value)", {"seen": seen, "value": value})


class Meter:
    def __init__(self):
        self.sum, self.count, self.avg, self.best, self.waited = 0.0, 0, 0.0, 1e9, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count

    def is_better(self, value):
        if value < self.best:
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False


class Trained:
    """A model, and what most programs here do with it."""

    def __init__(self):
        self.w, self.b = tf.Variable([[1.0, 2.0], [0.5, -1.0]]), tf.Variable([0.1, 0.2])
        self.meter = Meter()

    def loss(self, x):
        return tf.reduce_mean(tf.square(tf.tanh(x @ self.w) + self.b - 0.3))

    def update(self, x):
        with tf.GradientTape() as tape:
            loss = self.loss(x)
        for variable, gradient in zip((self.w, self.b), tape.gradient(loss, (self.w, self.b))):
            variable.assign_sub(0.05 * gradient)
        return loss


def batch(k, n=4):
    return tf.constant(np.random.RandomState(k % 7).rand(n, 2).astype("float32"))


def calls(step, n=60, size=lambda k: 4):
    return [step(batch(k, size(k))) for k in range(n)]


@cut
def a_meter(decorate):
    model = Trained()

    @decorate
    def step(x):
        loss = model.update(x)
        model.meter.update(float(loss), len(x))
        return model.meter.avg

    return step, calls(step), vars(model.meter), model.w


@cut
def tensors_and_containers_that_the_tail_is_given(decorate):
    model, found = Trained(), collections.deque(maxlen=5)

    @decorate
    def step(x):
        y = model.loss(x * 2.0)
        logs = {"loss": model.update(x), "y": [y, 3]}
        x = y + 1.0
        logs["n"] = len(found)
        found.append(round(float(logs["loss"]), 5))
        logs["mean"] = sum(found) / len(found)
        return logs, x, y.numpy().tolist()

    return step, calls(step), list(found), model.w


@cut
def the_best_weights(decorate):
    model, kept = Trained(), {}

    @decorate
    def step(x):
        loss = model.update(x)
        if model.meter.is_better(float(loss)):
            kept.update(w=model.w.numpy(), b=model.b.numpy())
        return model.meter.waited

    return step, calls(step), vars(model.meter), kept


@cut
def arrays_and_what_is_printed(decorate):
    model, buffer = Trained(), np.zeros(60)

    @decorate
    def step(x):
        loss = model.update(x)
        buffer[model.meter.count] = loss
        model.meter.update(loss.numpy())
        print(f"{buffer[model.meter.count - 1]:.3f}")
        buffer[:] = np.sort(buffer)

    return step, calls(step), buffer


@cut
def a_tail_with_operations_of_its_own(decorate):
    model = Trained()
    steps = tf.Variable(0.0)

    @decorate
    def step(x):
        loss = model.update(x)
        model.meter.update(float(tf.reduce_max(loss)))
        steps.assign_add(loss)
        return loss, steps.value()

    return step, calls(step), steps, vars(model.meter)


@cut
def operations_before_and_behind_in_one_statement(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        noted(seen, (tf.reduce_sum(model.w).numpy() * len(seen), loss.numpy()))
        return loss

    return step, calls(step), seen


@cut
def many_kinds_of_parameters(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x, scale=0.5, *more, last=None, **named):
        loss = model.update(x * scale)
        seen.append([float(loss), scale, more, last, sorted(named)])
        seen.sort(key=repr)
        return loss * scale

    found = []
    for k in range(40):
        found += [step(batch(k)), step(batch(k), 0.25), step(batch(k), 0.25, 1, 2, last="b"), step(batch(k), other=3)]
    return step, found, seen


@cut
def errors_in_the_tail(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        model.meter.update(float(loss))
        if model.meter.count % 9 == 8:
            raise ValueError(f"{model.meter.count}")
        return loss

    for k in range(60):
        try:
            seen.append(step(batch(k)))
        except ValueError:
            lines = traceback.format_exc().splitlines()
            seen.append([line for line in lines if "File" in line and "test_tails" in line] + lines[-2:] + [sum("terra/runtime" in line for line in lines)])
    return step, seen, model.w


@cut
def errors_in_the_head(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        model.meter.update(float(loss))
        return loss

    for k in range(60):
        try:
            seen.append(step(batch(k) if k % 13 else tf.ones([3, 5])))
        except Exception as error:
            seen.append(type(error).__name__)
    return step, seen, vars(model.meter)


@cut
def another_step_in_the_tail(decorate):
    model, seen = Trained(), []

    @decorate
    def validate(x):
        return tf.reduce_max(x)

    @decorate
    def step(x):
        loss = model.update(x)
        seen.append(float(loss))
        seen.append(float(validate(x)) + len(set(map(type, seen))))
        return loss

    return step, calls(step), seen


@cut
def code_that_nobody_understands(decorate):
    model, seen = Trained(), []
    table = weakref.WeakKeyDictionary({model: 1.0})

    class Item:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            return self.value < other.value

    @decorate
    def step(x):
        loss = model.update(x)
        thread = threading.Thread(target=seen.append, args=(table[model],))
        thread.start()
        thread.join()
        seen.append(sorted([Item(float(loss)), Item(0.1)])[0].value)
        gc.collect(0)
        return loss

    return step, calls(step), seen


@cut
def a_bound_method(decorate):
    class Trainer(Trained):
        def step(self, x):
            loss = self.update(x)
            self.meter.update(float(loss))
            return self.meter.avg

    trainer = Trainer()
    step = decorate(trainer.step)
    return step, calls(step), trainer.w


@cut
def values_that_are_read_before_the_tail(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        before = model.loss(x)
        loss = model.update(x)
        seen.append(float(loss - before))
        noted(seen, len(seen) * sum(seen))
        return before, loss

    return step, calls(step), seen


@cut
def code_that_goes_on_when_many_operations_come(decorate):
    """Every ninth tail validates: a few operations a step, on average."""
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        noted(seen, float(loss) * len(seen))
        if len(seen) % 9 == 0:
            seen.append(sum(float(model.loss(batch(k))) for k in range(3)))
        return loss

    return step, calls(step), seen


def run(f, decorate):
    harness.reset_seeds()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        step, *found = f(decorate)
    return step, harness.snapshot([*found, said.getvalue()])


def coexecute(function):
    return terra.coexecute(function, wait_for_graph=True)


@pytest.mark.all_variants
@pytest.mark.parametrize("f", CUT)
def test_equals_eager(f):
    _, expected = run(f, lambda function: function)
    step, found = run(f, coexecute)
    assert list(harness.differences(expected, found, EXACT)) == []
    assert step.tails.current is not None and step.stats().whole_steps > 5


@whole
def heads_that_are_not_skipped_either(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        seen.append(threading.get_ident() * 0 + gc.collect(0) * 0)
        seen.sort()
        loss = model.update(x)
        model.meter.update(float(loss))
        return loss

    return step, calls(step, 150), seen


@whole
def steps_that_are_skipped(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        seen.append(float(loss))
        return loss

    return step, calls(step), seen


@whole
def tails_of_many_operations(decorate):
    model, seen = Trained(), []

    @decorate
    def step(x):
        loss = model.update(x)
        noted(seen, float(loss) * len(seen))
        if len(seen) > 30:
            for k in range(30):
                seen[-1] += float(tf.reduce_sum(model.w * k) + tf.reduce_sum(model.b * k))
        return loss

    return step, calls(step, 90), seen


@pytest.mark.all_variants
@pytest.mark.parametrize("f", WHOLE)
def test_what_stays_whole(f):
    _, expected = run(f, lambda function: function)
    step, found = run(f, coexecute)
    assert list(harness.differences(expected, found, EXACT)) == []
    assert step.tails.current is None and step.stats().coexecuted_steps > 20


def cut_step():
    """A step that was cut, its model, and what its tail has seen."""
    model, seen = Trained(), []

    def step(x, factor=1.0):
        loss = model.update(x)
        noted(seen, float(loss) * len(seen) * factor)
        return loss

    step = coexecute(step)
    calls(step, 40)
    assert step.tails.current is not None and step.stats().whole_steps > 8
    return step, model, seen


def test_sizes_of_which_some_need_no_tail():
    """Steps of one size are prepared as a whole before the function is cut because of another."""
    def make(decorate):
        model, seen = Trained(), []

        @decorate
        def step(x):
            loss = model.update(x)
            if len(x) == 4:
                noted(seen, float(loss) * len(seen))
            return loss

        return step, [calls(step, 12, lambda k: 2), calls(step, 40), calls(step, 20, lambda k: 2 + k % 3)], seen, model.w

    _, expected = run(make, lambda function: function)
    step, found = run(make, coexecute)
    assert list(harness.differences(expected, found, EXACT)) == [] and step.tails.current is not None


@pytest.mark.parametrize("how", ["code", "defaults"])
def test_a_function_that_is_changed(how):
    step, model, seen = cut_step()

    def other(x, factor=1.0):
        loss = model.update(x)
        seen.append("other")
        return loss

    if how == "code":
        plain = step.__wrapped__

        def step_again(x, factor=1.0):
            loss = model.update(x)
            seen.append(7.0)
            return loss

        plain.__code__ = step_again.__code__
    else:
        step.__wrapped__.__defaults__ = (0.0,)
    n = len(seen)
    calls(step, 5)
    assert seen[n:] == [7.0 if how == "code" else 0.0] * 5


def test_a_part_of_another_step_is_whole():
    step, model, seen = cut_step()
    n = len(seen)
    outer = coexecute(lambda x: step(x) * 2.0)
    for k in range(20):
        before = model.loss(batch(k)).numpy()
        assert outer(batch(k)).numpy() == before * 2
    assert len(seen) == n + 20 and step.tails.current is not None


def test_imperative_steps():
    step, model, seen = cut_step()
    n = len(seen)
    with terra.set_stance("imperative"):
        found = calls(step, 5)
    assert len(seen) == n + 5 and all(isinstance(x, tf.Tensor) for x in found)
    calls(step, 5)
    assert len(seen) == n + 10


def test_threads():
    step, _, seen = cut_step()
    n = len(seen)
    threads = [threading.Thread(target=calls, args=(step, 20)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == n + 60


def test_methods_of_instances():
    class Trainer(Trained):
        @terra.coexecute(wait_for_graph=True)
        def step(self, x):
            loss = self.update(x)
            self.meter.update(float(loss))
            return self.meter.avg

    a, b = Trainer(), Trainer()
    for k in range(50):
        ya, yb = a.step(batch(k)), b.step(batch(k))
        assert ya == yb == a.meter.avg == b.meter.avg and a.meter.count == k + 1
    assert a.step.tails.current is not b.step.tails.current is not None
    assert Trainer.step.stats().whole_steps > 20
    gone = weakref.ref(a)
    terra.sync()
    del a
    gc.collect()
    assert gone() is None


def test_keras_own_steps_stay_as_they_are():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    steps = terra.compile(model)
    model.fit(np.ones([64, 2]), np.ones([64, 1]), batch_size=4, verbose=0)
    assert steps.stats()["train"].coexecuted_steps > 5


def test_explain_tells_of_it():
    step, _, _ = cut_step()
    line = step.__wrapped__.__code__.co_firstlineno + 2
    assert f"test_tails.py:{line}" in str(terra.explain(step)) and "behind the step" in str(terra.explain(step))


def test_a_short_run_is_not_worth_a_cut(monkeypatch):
    monkeypatch.setattr(tails, "_PAID", 1e3)
    step, _ = a_meter(coexecute)[:2]
    assert step.tails.current is None and step.stats().tracing_steps <= 3
    monkeypatch.setattr(tails, "_PAID", 0.05)
    calls(step, 60)
    assert step.tails.current is not None


def test_a_head_that_is_not_skipped_is_not_cut_off():
    """Where a step is cut, it is traced anew, and all that it skips is recorded anew: in vain if what keeps its code from being skipped stands before the cut."""
    step, model, seen = heads_that_are_not_skipped_either(coexecute)
    assert step.stats().tracing_steps <= 3 and step.stats().graphs == 1 and step.stats().coexecuted_steps > 130


def test_an_excess_of_tensors(monkeypatch):
    monkeypatch.setattr(tails, "_FEW_TENSORS", 0)
    monkeypatch.setattr(tails, "_MOST", 50)
    model, seen = Trained(), []

    def step(x):
        loss = model.update(x)
        noted(seen, float(loss + len(seen)))
        return loss

    step = coexecute(step)
    was_cut = False
    for k in range(80):
        step(batch(k))
        was_cut |= step.tails.current is not None
    assert was_cut and step.tails.current is None and len(seen) == 80
