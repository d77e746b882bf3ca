"""Objects that come and go: finalizers that use variables, functions that are dropped, copied, compared and pickled, tensors that leave through a
`tf.py_function` or come in twice, failures that the step itself catches."""

import copy
import gc
import json
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.frontends import gradient_tape
from terra.runtime.tracing.tracer import Tracer
from terra.tf import private_names as tfi

ONE, TWO = tf.constant(1.0), tf.constant(2.0)


# -- finalizers ----------------------------------------------------------------------------------------------------------------

class Cycle:
    """Garbage whose finalizer uses variables."""

    def __init__(self, count, seen):
        self.me, self.count, self.seen = self, count, seen

    def __del__(self):
        self.count.assign_add(ONE)
        self.seen.append(self.count.numpy())


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("options, threshold", [({}, 1), ({}, 11), ({}, 700), ({"fast_forward": False}, 11), ({"loops": "roll"}, 1), ({"loops": "roll"}, 700)], ids=str)
def test_finalizers_that_use_variables(early, options, threshold):
    count, total, seen = tf.Variable(0.0), tf.Variable(0.0), []

    @terra.coexecute(wait_for_graph=True, **options)
    def step(x):
        y = total + x
        for _ in range(5):
            y = y * ONE + ONE
            Cycle(count, seen)
        if early and float(y) < 0:
            return y
        total.assign_add(ONE)
        for _ in range(5):
            y = y * ONE + ONE
            Cycle(count, seen)
        return y

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold, *before[1:])
    try:
        results = [float(step(ONE)) for _ in range(60)]
        assert gc.get_threshold() == (threshold, *before[1:])
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert results == [k + 11.0 for k in range(60)] and float(total) == 60
    assert seen == [k + 1.0 for k in range(600)] and count.numpy() == 600
    assert step.stats().coexecuted_steps >= 50


def test_what_the_program_sets_for_the_garbage_collector_holds():
    @terra.coexecute(wait_for_graph=True)
    def step(x):
        gc.set_threshold(123, 4, 5)
        return x + 1.0

    before = gc.get_threshold()
    try:
        for _ in range(5):
            step(ONE)
            assert gc.get_threshold() == (123, 4, 5)
        gc.set_threshold(0)
        assert float(terra.coexecute(lambda x: x + float(gc.get_threshold()[0]))(ONE)) == 1.0
    finally:
        gc.set_threshold(*before)


# -- functions -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("method", [False, True], ids=["function", "method"])
def test_nothing_is_left_of_functions_that_are_gone(method):
    def use():
        class Model:
            def __init__(self):
                self.variable = tf.Variable(1.0)

            @terra.coexecute(wait_for_graph=True)
            def step(self, x):
                self.variable.assign_add(x)
                return self.variable * 2.0

        model = Model()
        step = model.step if method else terra.coexecute(lambda x: model.variable * x, wait_for_graph=True)
        for _ in range(5):
            step(ONE)
        assert step.stats().coexecuted_steps >= 2
        terra.sync()

    def left():
        gc.collect()
        terra.coexecute(lambda x: x)(ONE)  # where what is left is removed
        return len(tfi.ctx().list_function_names())

    use()
    before = left()
    for _ in range(5):
        use()
    assert left() <= before


def test_cells_of_a_notebook_that_were_edited(monkeypatch):
    """The blocks in their old versions do not keep the variables for ever."""
    cell = """
w = tf.Variable(tf.ones([4]))
for _ in range(6):
    with terra.GradientTape(wait_for_graph=True) as tape:
        y = tf.reduce_sum(w * w)
    w.assign_sub(0.1 * tape.gradient(y, w))
"""
    handles, blocks = [], []

    def run(k):
        space = {"tf": tf, "terra": terra}
        exec(compile(cell, f"/nowhere/cell {k}.py", "exec"), space)
        terra.sync()
        handles.append(weakref.ref(space["w"].handle))
        blocks.append(weakref.ref(space["tape"].block))
        assert space["tape"].block.stats().coexecuted_steps >= 3

    def alive(references):
        gc.collect()
        return [k for k, reference in enumerate(references) if reference() is not None]

    for k in range(6):
        run(k)
    assert len(alive(blocks)) == 6
    monkeypatch.setattr(gradient_tape, "_UNUSED", 0.0)
    before = gradient_tape.begun()
    run(6)
    assert gradient_tape.begun() == before + 6
    assert alive(blocks) == [2, 3, 4, 5, 6] and alive(handles) == alive(blocks)
    run(6)  # again: that block is known
    assert alive(blocks)[-2:] == [6, 7] and blocks[6]() is blocks[7]()


@terra.coexecute(wait_for_graph=True)
def doubled(x):
    return x * 2.0


class Trainer:
    def __init__(self):
        self.weight = tf.Variable(3.0)
        self.function = doubled

    @terra.coexecute(wait_for_graph=True)
    def step(self, x):
        self.weight.assign_add(x)
        return self.weight * 1.0


def test_copied_and_pickled_as_functions_are():
    assert copy.copy(doubled) is copy.deepcopy(doubled) is pickle.loads(pickle.dumps(doubled)) is doubled
    local = terra.coexecute(lambda x: x)
    assert copy.deepcopy({"step": local})["step"] is local
    trainer = Trainer()
    for _ in range(4):
        trainer.step(ONE)
    other = copy.deepcopy(trainer)
    assert other.function is doubled
    method = copy.deepcopy(trainer.step)
    assert method.__self__ is not trainer and float(method(ONE)) == 8.0 and float(trainer.weight) == 7.0
    assert float(other.step(ONE)) == 8.0 and float(trainer.weight) == 7.0


def test_methods_are_equal_as_methods_are():
    one, other = Trainer(), Trainer()
    assert one.step == one.step and hash(one.step) == hash(one.step)
    assert one.step != other.step and one.step != Trainer.step
    callbacks = [other.step, one.step]
    callbacks.remove(one.step)
    assert callbacks == [other.step]


@pytest.mark.parametrize("threaded", [False, True], ids=["later", "in a thread"])
@pytest.mark.parametrize("kind", range(7))
def test_functions_that_outlive_the_run_in_which_they_were_observed(kind, threaded):
    def run(wrap):
        made, seen = [], []

        def step(x):
            table = [1.0, 2.0, 3.0]
            made.append([
                lambda i: table[i],
                lambda i: {"a": 1, "b": i}["b"],
                lambda i: table[i:],
                lambda i: "%d of %s" % (i, len(table)),
                lambda i: (table is table, i is None),
                lambda i: i in table or i < len(table),
                lambda i: [a + i for a, b in zip(table, table) if a],
            ][kind])
            if threaded:
                thread = threading.Thread(target=lambda: seen.append(made[-1](1)))
                thread.start()
                thread.join()
            return x * 2.0
        step = wrap(step)
        for k in range(10):
            seen.append(float(step(tf.constant(float(k)))))
            seen.extend([function(1) for function in made])
        return seen, step

    expected, _ = run(lambda step: step)
    actual, step = run(terra.coexecute(wait_for_graph=True))
    assert expected == actual
    assert step.stats().coexecuted_steps >= 5


def adding(meta=type):
    """A class with a class method that is a step."""
    class Base(metaclass=meta):
        total = tf.Variable(0.0)

        @classmethod
        @terra.coexecute(wait_for_graph=True)
        def step(cls, x):
            cls.total.assign_add(x)
            return cls.total * 1.0
    return Base


def test_each_class_has_its_own_class_method():
    class Meta(type):
        def __setattr__(cls, name, value):
            raise AttributeError(name)

    Base = adding(Meta)

    class Derived(Base):
        total = tf.Variable(100.0)

    for k in range(8):
        assert float(Base.step(ONE)) == 1.0 + k and float(Derived.step(ONE)) == 101.0 + k
    own = vars(Base)["step"].__func__.of_instances()
    assert len(own) == 2 and all(made.stats().steps == 8 and made.stats().coexecuted_steps >= 4 for made in own)
    assert all("step: 8 steps" in terra.explain(cls.step, full=True) for cls in (Base, Derived))
    # From Python 3.13 on nothing but a call tells a class method's class.
    assert [cls.step.stats().steps for cls in (Base, Derived)] == ([8, 8] if sys.version_info < (3, 13) else [16, 16])


def test_a_class_method_does_not_keep_classes_that_are_no_more():
    Base = adding()

    def train():
        made = type("Derived", (Base,), {"total": tf.Variable(10.0)})
        assert [float(made.step(ONE)) for _ in range(8)] == [11.0 + k for k in range(8)]
        return weakref.ref(made)

    references = [train() for _ in range(3)]
    assert [float(Base.step(ONE)) for _ in range(8)] == [1.0 + k for k in range(8)]
    terra.sync()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert vars(Base)["step"].__func__.stats().steps == 32 and Base.step.graph is not None and len(Base.step.trace_graph) > 0


def test_a_class_that_is_an_argument():
    """A function that is no method of the class that it is given takes it as any other argument."""
    class Settings:
        factor = 2.0

    @terra.coexecute(wait_for_graph=True)
    def step(settings, x):
        return x * settings.factor

    assert [float(step(Settings, ONE)) for _ in range(8)] == [2.0] * 8
    assert step.stats().coexecuted_steps >= 4 and not step.of_instances()


# -- tensors -------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("of_class", [False, True])
def test_methods_of_one_name(of_class):
    """Each instance keeps what belongs to each of its methods, until the method is gone."""
    def adding(amount):
        def step(self, x):
            self.total.assign_add(amount * x)
            return self.total * 1.0

        made = terra.coexecute(step, wait_for_graph=True)
        return classmethod(made) if of_class else made

    class Counter:
        total = tf.Variable(0.0)
        up, down = adding(3.0), adding(-1.0)

    class Above(Counter):
        up = adding(4.0)

        def both(self):
            return self.up(ONE), super().up(ONE)

    counter = Above()
    for k in range(12):
        assert [float(x) for x in counter.both()] == [6.0 * k + 4.0, 6.0 * k + 7.0]
        assert float(counter.down(ONE)) == 6.0 * k + 6.0
        if k in (2, 5):
            gc.collect()
    for method in (vars(Above)["up"], vars(Counter)["up"], vars(Counter)["down"]):
        method = method.__func__ if of_class else method
        assert method.stats().coexecuted_steps >= 8, method.stats()
    parts = [weakref.ref(part) for method in (vars(Above)["up"], vars(Counter)["up"], vars(Counter)["down"]) for part in (method.__func__ if of_class else method).of_instances()]
    assert len(parts) == 3 and (of_class or vars(counter) == {})
    Above.up = adding(4.0)
    method = None
    gc.collect()
    (Above if of_class else counter).up(ONE)
    gc.collect()
    assert sum(part() is not None for part in parts) == 2  # that of the method which is no more is gone


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_methods_go_with_their_instance(generation):
    class Counter:
        def __init__(self):
            self.total = tf.Variable(0.0)

        @terra.coexecute(wait_for_graph=True)
        def up(self, x):
            self.total.assign_add(x)
            return self.total * 1.0

    counter, gone = Counter(), []
    weakref.finalize(counter, gone.append, True)
    for k in range(10):
        assert float(counter.up(ONE)) == k + 1.0
        assert sorted(vars(counter)) == ["total"]
        gc.collect(generation)  # which keeps what it has
    assert counter.up.stats().coexecuted_steps >= 5 and Counter.up.of_instances()
    counter = None
    gc.collect()
    assert gone and not Counter.up.of_instances()


def test_a_method_that_is_first_called_while_the_collector_looks():
    class Trainer:
        @terra.coexecute(wait_for_graph=True)
        def train(self, x):
            return x * 2.0

    class Late:
        def __del__(self):
            made.append(Trainer())
            for _ in range(6):
                made[-1].train(ONE)

    made, late = [], Late()
    late.itself = late
    late = None
    gc.collect()
    gc.collect()
    assert len(made) == 1 and vars(made[0]) == {} and len(Trainer.train.of_instances()) == 1
    for _ in range(6):
        made[0].train(ONE)
    assert made[0].train.stats().steps == 12 and made[0].train.stats().coexecuted_steps >= 4


def test_attributes_are_what_the_program_has_set():
    class Trainer:
        def __init__(self):
            self.rate = 0.5

        @terra.coexecute(wait_for_graph=True)
        def train(self, x):
            return x * self.rate

        @terra.coexecute(wait_for_graph=True)
        def test(self, x):
            return x + self.rate

    trainer = Trainer()
    for _ in range(8):
        trainer.train(ONE)
        trainer.test(ONE)
    assert json.dumps(vars(trainer)) == '{"rate": 0.5}'
    for other in (copy.copy(trainer), copy.deepcopy(trainer)):
        assert vars(other) == {"rate": 0.5}
        assert float(other.train(ONE)) == 0.5
    vars(trainer).clear()
    trainer.rate = 2.0
    assert float(trainer.train(ONE)) == 2.0
    assert trainer.train.stats().coexecuted_steps >= 4


def test_a_py_function_returns_tensors_of_a_step():
    variable = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            y = variable * x
            loss = tf.py_function(lambda a: a, [y], tf.float32) ** 2.0 + 0.0 * tf.py_function(lambda a: [y, a][0], [x], tf.float32)
        return loss, tape.gradient(loss, variable)

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for _ in range(6):
        assert [x.numpy() for x in coexecuted(ONE)] == [x.numpy() for x in step(ONE)]
    assert coexecuted.stats().coexecuted_steps >= 3
    kept = doubled(ONE)
    for function in (lambda x: kept, lambda x: doubled(x)):
        call = lambda x: tf.py_function(function, [x], tf.float32)  # noqa: B023, E731
        assert call(ONE).numpy() == tf.function(call)(ONE).numpy() == next(iter(tf.data.Dataset.from_tensors(1.0).map(call))).numpy() == 2.0


def test_variables_print_their_values_in_a_step():
    variable, kept = tf.Variable([1.0, 2.0], name="v"), []

    def step(x, out):
        variable.assign_add([1.0, 1.0])
        out.append(repr(variable))
        out.append(f"{variable} {[variable]}")
        return x * 1.0

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for run in (step, coexecuted):
        variable.assign([1.0, 2.0])
        out = []
        for _ in range(6):
            run(ONE, out)
        kept.append(out)
    assert kept[0] == kept[1] and "numpy=array([2., 3.]" in kept[0][0]
    assert coexecuted.stats().coexecuted_steps >= 2


class Holder:
    pass


def test_a_tensor_that_is_an_argument_and_read_elsewhere_too():
    holder = Holder()
    holder.one, holder.ones, total = ONE, [ONE], tf.Variable(0.0)

    def by_global(x):
        y = x * ONE
        for _ in range(3):
            y = y + ONE
        total.assign_add(ONE)
        return y

    def by_attribute(x):
        y = x * holder.one
        for _ in range(3):
            y = y + holder.one
        total.assign_add(holder.one)
        return y

    def by_list(x):
        y = x * holder.ones[0]
        for _ in range(3):
            y = y + holder.ones[0]
        total.assign_add(holder.ones[0])
        return y

    for step in (by_global, by_attribute, by_list):
        total.assign(0.0)
        coexecuted = terra.coexecute(step, wait_for_graph=True)
        for _ in range(20):
            assert float(coexecuted(ONE)) == 4.0
        for _ in range(3):
            assert float(coexecuted(TWO)) == 5.0 and float(coexecuted(ONE)) == 4.0
        assert float(total) == 26.0 and coexecuted.stats().coexecuted_steps >= 15
        coexecuted = terra.coexecute(step, wait_for_graph=True)  # where the first arguments are others, steps are skipped
        for k in range(30):
            assert float(coexecuted(tf.constant(float(k % 7)))) == k % 7 + 3.0
        assert coexecuted.stats().whole_steps >= 10
        assert float(coexecuted(ONE)) == 4.0


# -- failures ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [{}, {"run_ahead": 0}, {"loops": "roll"}], ids=str)
@pytest.mark.parametrize("reads", [False, True])
def test_a_failure_that_the_step_catches(options, reads):
    table, total = tf.constant([1.0, 2.0]), tf.Variable(0.0)

    def step(i):
        total.assign_add(1.0)
        try:
            y = tf.gather(table, i)
            if reads:
                float(y)
        except tf.errors.InvalidArgumentError:
            y = tf.constant(-1.0)
            total.assign_sub(10.0)
        return y

    coexecuted = terra.coexecute(step, wait_for_graph=True, **options)
    seen = []
    for run in (step, coexecuted):
        total.assign(0.0)
        seen.append([[float(run(tf.constant(i))) for i in (0, 7, 1, 0, 7, 1, 1, 7, 0, 0)], float(total)])
    assert seen[0] == seen[1]
    assert coexecuted.stats().coexecuted_steps >= 3


def test_shapes_that_do_not_fit_are_no_such_failure():
    a = tf.constant(np.ones((2, 3), "float32"))

    def step(x):
        try:
            return tf.matmul(x, a)
        except tf.errors.InvalidArgumentError:
            return tf.matmul(x, a, transpose_b=True)

    coexecuted = terra.coexecute(step, wait_for_graph=True)
    for k in range(12):
        x = tf.ones((2, 2 + k % 2))
        np.testing.assert_array_equal(coexecuted(x).numpy(), step(x).numpy())
    assert not coexecuted.policy.for_good and coexecuted.stats().coexecuted_steps >= 4


# -- traces --------------------------------------------------------------------------------------------------------------------

def detector(weights):
    """A loss over three images with some boxes each, or none: parts of it are left out, and its gradient reads values of several types."""

    def step(x, boxes):
        with tf.GradientTape() as tape:
            predicted = x @ weights
            of_boxes = of_objects = 0.0
            for b in range(3):
                truth = tf.boolean_mask(boxes[b], boxes[b][:, 0] >= 0)
                own = predicted[b, :, :4]
                if truth.shape[0] == 0:
                    of_objects += tf.reduce_mean(predicted[b, :, 4])
                    continue
                matched, positive = tf.zeros(6, tf.int64), own[:, 0] > 0
                target = tf.gather(truth, matched)
                of_boxes += tf.reduce_mean(tf.abs(tf.boolean_mask(own, positive) - tf.boolean_mask(target, positive)))
                of_objects += tf.reduce_mean(predicted[b, :, 4])
            loss = of_boxes + of_objects
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return step


@pytest.mark.one_variant
@pytest.mark.parametrize("seed, sometimes_empty, fallbacks", [(0, [0], 6), (0, [0, 1], 8), (1, [0, 1, 2], 10)])
def test_parts_of_a_loss_are_left_out(seed, sometimes_empty, fallbacks):
    """All operations of a gradient, and all reads in it, have one location. Which is which their order alone tells, and that shifts."""
    kept = []
    for wrap in (lambda step: step, terra.coexecute(wait_for_graph=True)):
        randomness, weights = np.random.default_rng(seed), tf.Variable(tf.random.stateless_normal((5, 5), [1, 2]) * 0.1)
        step, losses = wrap(detector(weights)), []
        for _ in range(45):
            boxes = -np.ones((3, 4, 4), "float32")
            for b in range(3):
                k = randomness.integers(0 if b in sometimes_empty else 1, 4)
                boxes[b, :k] = randomness.uniform(0, 1, (k, 4))
            losses.append(step(randomness.normal(size=(3, 6, 5)).astype("float32"), boxes).numpy())
        kept.append((np.array(losses), weights.numpy()))
    for expected, actual in zip(*kept):
        np.testing.assert_array_equal(actual, expected)
    assert step.generation.error is None and step.stats().coexecuted_steps >= 28
    assert step.stats().fallbacks <= fallbacks, step.fallback_reasons


def test_what_was_traced_is_gone_without_a_garbage_collection():
    v = tf.Variable(0.0)
    step = terra.coexecute(lambda x: v.assign_add(x) * 2.0, max_traces=0)
    gc.collect()
    gc.disable()
    try:
        results = [step(tf.constant(float(k))) for k in range(4)]
        assert not [x for x in gc.get_objects() if type(x) is Tracer]
    finally:
        gc.enable()
    assert [float(x) for x in results] == [0.0, 2.0, 6.0, 12.0] and step.stats().tracing_steps == 4  # which it is about: none is co-executed
