"""Input pipelines and steps in flight: moving an iterator leaves a step in the air that it cannot meet, and sees what eager execution would have left otherwise."""
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.tf import iterators

BIG = tf.constant(np.random.RandomState(0).standard_normal((300, 300)).astype("float32"))
SCALAR = tf.TensorSpec([], tf.float32)


def slow_zero(rounds=6):
    """A few milliseconds of graph work that leaves a scalar 0, so that results are exact."""
    x = BIG
    for _ in range(rounds):
        x = tf.matmul(x, x) * 1e-3
    return tf.reduce_sum(x) * 0.0


class Job:
    """A variable and a step that updates it after some work, so that it is in flight when the call returns."""

    def __init__(self, coexecute=True, **options):
        self.v = tf.Variable(1.0)
        self.other = tf.Variable(10.0)
        self.iterator = None
        self.rounds = 6 if coexecute else 1  # eagerly nobody is to wait for it
        self.step = terra.coexecute(self._step, wait_for_graph=True, **options) if coexecute else self._step

    def _step(self, x):
        self.v.assign_add(tf.cast(x, tf.float32) + slow_zero(self.rounds))
        return self.v * 2.0

    def in_the_air(self):
        """Run steps until one is in flight and none before it."""
        for k in range(4):
            self.step(tf.constant(float(k)))
        terra.sync()
        self.step(tf.constant(1.0))
        assert len(GRAPH_RUNNER.flights) == 1

    def variables(self):
        return [self.v.numpy(), self.other.numpy()]


numbers = tf.data.Dataset.range(1000).map(lambda i: tf.cast(i, tf.float32))


def table():
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(1000), tf.range(1000) * 2), -1)


def from_generator(job):
    def numbers_and_variable():
        for k in range(1000):
            yield k + job.v.numpy()

    return tf.data.Dataset.from_generator(numbers_and_variable, output_signature=SCALAR)


def plain_generator(job):
    return tf.data.Dataset.from_generator(lambda: iter(np.arange(1000, dtype="float32")), output_signature=SCALAR)


def with_table(job):
    lookup = table()
    return tf.data.Dataset.range(1000).map(lambda i: lookup.lookup(tf.cast(i, tf.int32)))


def nested_capture(job):
    """The variable is captured by a function that the pipeline's function calls."""
    inner = tf.function(lambda x: x + job.v)
    return numbers.map(lambda x: tf.cond(x > 0, lambda: inner(x), lambda: x))


def of_datasets(job):
    """Elements are datasets of which nothing is known but a variant tensor."""
    inside = numbers.map(lambda x: x + job.v)
    return tf.data.Dataset.from_tensors(inside).flat_map(lambda d: d)


def captured_dataset(job):
    inside = numbers.map(lambda x: x + job.v)
    return tf.data.Dataset.range(100).flat_map(lambda i: inside)


PURE = {
    "range": lambda job: numbers,
    "slices": lambda job: tf.data.Dataset.from_tensor_slices(np.arange(1000, dtype="float32")),
    "map_batch_shuffle_prefetch": lambda job: numbers.shuffle(16, seed=1).batch(2).map(tf.reduce_sum, num_parallel_calls=2).prefetch(2),
    "repeat_cache_filter": lambda job: numbers.take(50).cache().repeat().filter(lambda x: x > 1),
    "zip_scan": lambda job: tf.data.Dataset.zip((numbers, numbers.skip(1))).scan(0.0, lambda s, xy: (s + xy[0], s + xy[1])),
    "window_flat_map": lambda job: numbers.window(3).flat_map(lambda w: w.batch(3)).map(tf.reduce_sum),
    "interleave": lambda job: numbers.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), num_parallel_calls=2),
    "table": with_table,
    "variable_of_no_step": lambda job: numbers.map(lambda x: x + job.other),
    "concatenate": lambda job: numbers.take(1).concatenate(numbers),
}
IMPURE = {
    "reads_variable": lambda job: numbers.map(lambda x: x + job.v),
    "nested_capture": nested_capture,
    "from_generator": from_generator,
    "plain_generator": plain_generator,
    "numpy_function": lambda job: numbers.map(lambda x: tf.numpy_function(lambda a: a + job.v.numpy(), [x], tf.float32)),
    "py_function": lambda job: numbers.map(lambda x: tf.ensure_shape(tf.py_function(lambda a: a + job.v, [x], tf.float32), [])),
    "enumerate": lambda job: numbers.enumerate().map(lambda k, x: x),  # TensorFlow hides one of its datasets
    "dataset_of_datasets": of_datasets,
    "captured_dataset": captured_dataset,
    "reads_below_batch": lambda job: numbers.map(lambda x: x + job.v).batch(2).map(tf.reduce_sum),
}
ALL = {**PURE, **IMPURE}


def in_order(dataset):
    """Without what tf.data adds by itself to run ahead of the program: else eager execution, too, leaves open when a pipeline reads a variable."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


@pytest.mark.parametrize("name", PURE)
def test_next_leaves_the_step_in_the_air(name):
    job = Job()
    iterator = iter(PURE[name](job))
    next(iterator)
    job.in_the_air()
    flight = GRAPH_RUNNER.flights[0]
    next(iterator)
    assert list(GRAPH_RUNNER.flights) == [flight] and not flight.done
    iterator.get_next_as_optional()
    assert list(GRAPH_RUNNER.flights) == [flight] and not flight.done
    terra.sync()
    assert flight.done


@pytest.mark.parametrize("name", IMPURE)
def test_next_waits_for_what_it_may_meet(name):
    job = Job()
    iterator = iter(IMPURE[name](job))
    next(iterator)
    job.in_the_air()
    next(iterator)
    assert not GRAPH_RUNNER.flights


def test_a_new_iterator_does_not_wait():
    job = Job()
    dataset = numbers.batch(2)
    job.in_the_air()
    iterator = iter(dataset)
    next(iterator)
    assert len(GRAPH_RUNNER.flights) == 1


def test_tables_and_queues_do_not_wait():
    job = Job()
    lookup, queue = table(), tf.queue.FIFOQueue(4, [tf.float32])
    job.in_the_air()
    assert int(lookup.lookup(tf.constant(3))) == 6
    queue.enqueue(2.0)
    assert float(queue.dequeue()) == 2.0
    assert len(GRAPH_RUNNER.flights) == 1


def test_variables_of_no_step_do_not_wait():
    job = Job()
    job.in_the_air()
    job.other.assign_add(1.0)
    assert float(job.other) == 11.0
    assert len(GRAPH_RUNNER.flights) == 1
    assert job.v.numpy() == 8.0
    assert not GRAPH_RUNNER.flights


def test_an_iterator_that_is_not_known_waits():
    """Rebuilt from its components, an iterator does not tell its dataset."""
    job = Job()
    iterator = iter(numbers.map(lambda x: x + job.v))
    rebuilt = iterator._type_spec._from_components(iterator._type_spec._to_components(iterator))
    job.in_the_air()
    assert float(next(rebuilt)) == job.v.numpy()


def run_loop(job, make, body):
    results = body(job, in_order(make(job)))
    terra.sync()
    return [float(x) for x in results], job.variables()


def equals_eager(make, body, coexecuted=3, **options):
    expected = run_loop(Job(coexecute=False), make, body)
    job = Job(**options)
    assert run_loop(job, make, body) == expected
    assert job.step.stats().coexecuted_steps >= coexecuted
    return job


def plain_loop(job, dataset):
    return [job.step(x) for x in dataset.take(8)]


def next_then_two_steps(job, dataset):
    iterator, results = iter(dataset), []
    for _ in range(4):
        x = next(iterator)
        results += [job.step(x), job.step(x + 1)]
    return results


def epochs(job, dataset):
    return [job.step(x) for _ in range(3) for x in dataset.take(4)]


def until_exhausted(job, dataset):
    iterator, results = iter(dataset.take(5)), []
    while True:
        try:
            results.append(job.step(next(iterator)))
        except StopIteration:
            break
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
        results.append(job.step(1.0))
    return results


def optional(job, dataset):
    iterator, results = iter(dataset.take(5)), []
    while True:
        element = iterator.get_next_as_optional()
        if not element.has_value():
            return results
        results.append(job.step(element.get_value()))


OTHER_LOOPS = [next_then_two_steps, epochs, until_exhausted, optional]


@pytest.mark.parametrize("name, body", [*[(name, plain_loop) for name in ALL], *[(name, OTHER_LOOPS[(k + turn) % 4]) for k, name in enumerate(ALL) for turn in (0, 1)]])
def test_loops_equal_eager(name, body):
    equals_eager(ALL[name], body, coexecuted=1)


@pytest.mark.parametrize("run_ahead", [0, 1, 5])
@pytest.mark.parametrize("name", ["map_batch_shuffle_prefetch", "reads_variable", "from_generator"])
def test_any_run_ahead(name, run_ahead):
    equals_eager(ALL[name], plain_loop, run_ahead=run_ahead)


def test_pipeline_that_updates_the_steps_variable():
    def make(job):
        def counting(x):
            job.v.assign_add(1.0)
            return x

        return numbers.map(counting)

    equals_eager(make, plain_loop)


def test_variable_that_the_step_made():
    """The graph is given the handle, and it is in flight when the pipeline reads the variable."""

    def make(read):
        class Made(Job):
            def _step(self, x):
                w = tf.Variable(tf.cast(x, tf.float32) + slow_zero())
                w.assign_add(1.0)
                total = w + (float(w) if read else 0.0)  # with a read in the middle, the graph is in the early form
                self.made = w
                return total

        return Made

    def body(job, dataset):
        results = []
        for k in range(6):
            results.append(job.step(tf.constant(float(k))))
            results += list(tf.data.Dataset.range(2).map(lambda i: tf.cast(i, tf.float32) + job.made))
            job.made.assign_add(0.5)
            results.append(job.made.read_value())
        return results

    for read in (False, True):
        cls = make(read)
        assert run_loop(cls(), lambda job: numbers, body) == run_loop(cls(coexecute=False), lambda job: numbers, body)


# -- in the step ---------------------------------------------------------------------------------------------------------------


class Inside(Job):
    def _step(self, x):
        first = tf.cast(next(self.iterator), tf.float32)
        self.v.assign_add(first + x + slow_zero())
        return self.v * 2.0


class BehindAnUpdate(Job):
    def _step(self, x):
        self.v.assign_add(x + slow_zero())
        second = tf.cast(next(self.iterator), tf.float32)
        self.v.assign_add(second)
        return self.v * 2.0


class ReadsFirst(Job):
    """Reads a value in the middle, so that the graph runs while the skeleton does."""

    def _step(self, x):
        if float(self.v) > -1:
            self.v.assign_add(x)
        second = tf.cast(next(self.iterator), tf.float32)
        self.v.assign_add(second + slow_zero())
        return self.v * 2.0


class LeftAlone(Job):
    def _step(self, x):
        self.v.assign_add(x + slow_zero())
        with terra.imperative():
            second = tf.cast(next(self.iterator), tf.float32)
        return self.v + second


@pytest.mark.parametrize("cls", [Inside, BehindAnUpdate, ReadsFirst, LeftAlone])
@pytest.mark.parametrize("name", ["range", "table", "variable_of_no_step", "reads_variable", "from_generator", "py_function"])
def test_iterator_in_the_step(cls, name):
    def run(coexecute):
        job = cls(coexecute=coexecute)
        job.iterator = iter(in_order(ALL[name](job)))
        results = [float(r) for r in [job.step(tf.constant(float(k))) for k in range(8)]]
        return results, job.variables(), job

    results, variables, job = run(True)
    expected = run(False)
    assert (results, variables) == expected[:2]
    if name not in IMPURE or cls is Inside:
        assert job.step.stats().coexecuted_steps >= 4
        assert job.step.stats().fallbacks == 0


def test_rolled_loop_over_an_iterator():
    """A step in pieces, which moves an iterator whose pipeline reads what the pieces update."""

    class Rolled(Job):
        def _step(self, n):
            for _ in range(int(n)):
                self.v.assign_add(tf.cast(next(self.iterator), tf.float32) * 1e-2)
            return self.v * 2.0

    def run(name, coexecute):
        job = Rolled(coexecute=coexecute)
        job.iterator = iter(in_order(ALL[name](job)))
        return [float(job.step(n)) for n in (3, 7, 5, 6, 2, 9, 4, 8, 7, 3, 5)], job.variables()

    for name in ("range", "reads_variable", "from_generator"):
        assert run(name, True) == run(name, False)


# -- errors --------------------------------------------------------------------------------------------------------------------


def test_error_in_the_pipeline():
    def body(job, dataset):
        checked = dataset.map(lambda x: tf.debugging.check_numerics(x / (x - 5.0), "not a number"))
        iterator, results = iter(checked), []
        for _ in range(8):
            try:
                results.append(job.step(next(iterator)))
            except tf.errors.InvalidArgumentError as error:
                assert "not a number" in str(error)
                results.append(-1.0)
        return results

    equals_eager(PURE["range"], body)


def test_error_in_the_step_comes_at_the_next_synchronisation():
    job = Job()

    def failing(x):
        tf.debugging.assert_less(x, 6.0)
        job.v.assign_add(x + slow_zero())

    step = terra.coexecute(failing, wait_for_graph=True)
    seen = []
    with pytest.raises(tf.errors.InvalidArgumentError):
        for x in numbers:
            seen.append(float(x))
            step(x)
        terra.sync()
    terra.sync()
    assert 6.0 in seen and seen[-1] <= 6.0 + step.options.run_ahead
    assert step.stats().coexecuted_steps > 0
    assert job.v.numpy() == 1.0 + sum(range(6))


# -- Keras ---------------------------------------------------------------------------------------------------------------------


def model_of(K):
    K.utils.set_random_seed(3)
    model = K.Sequential([K.layers.Input((4,)), K.layers.Dense(8, activation="relu"), K.layers.Dense(3)])
    return model, dict(optimizer="sgd", loss=K.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


def data():
    r = np.random.RandomState(0)
    return r.standard_normal((64, 4)).astype("float32"), r.randint(0, 3, 64)


def pipeline():
    return tf.data.Dataset.from_tensor_slices(data()).shuffle(64, seed=2).batch(8).prefetch(1)


class Most:
    """Counts the flights in the air whenever an iterator is moved."""

    def __init__(self, monkeypatch):
        self.flights = 0
        stock = iterators.must_wait

        def counting(op, inputs, flights):
            wait = stock(op, inputs, flights)
            if op in iterators.PIPELINE_OPS and not wait:
                self.flights = max(self.flights, len(flights))
            return wait

        monkeypatch.setattr(iterators, "must_wait", counting)


@pytest.mark.parametrize("K", [keras, tf_keras])
@pytest.mark.parametrize("arguments", [lambda: dict(zip("xy", data()), batch_size=8), lambda: dict(x=pipeline())], ids=["arrays", "dataset"])
def test_fit(K, arguments, monkeypatch):
    def run(compile_):
        model, how = model_of(K)
        compile_(model, how)
        history = model.fit(**arguments(), epochs=3, verbose=0, shuffle=False)
        return history.history, [w.tolist() for w in model.get_weights()]

    expected = run(lambda model, how: model.compile(**how, run_eagerly=True))
    most = Most(monkeypatch)
    assert run(lambda model, how: terra.compile(model, **how, wait_for_graph=True)) == expected
    assert most.flights > 0


@pytest.mark.parametrize("K", [keras, tf_keras])
def test_fit_with_a_callback_that_reads_the_logs(K):
    def run(compile_):
        model, how = model_of(K)
        compile_(model, how)
        seen = []

        class Listening(K.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append((batch, {name: (type(value).__name__, float(value)) for name, value in logs.items()}))

        model.fit(pipeline(), epochs=2, verbose=0, callbacks=[Listening()])
        seen.append(model.evaluate(pipeline(), verbose=0))
        return seen

    assert run(lambda model, how: terra.compile(model, **how, wait_for_graph=True)) == run(
        lambda model, how: model.compile(**how, run_eagerly=True))


def test_fit_whose_step_returns_numbers():
    """Keras makes tensors of them on the way to the callbacks."""

    def run(terra_):
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.w = self.add_weight(shape=(), initializer="zeros")

            def train_step(self, data):
                self.w.assign_add(tf.reduce_mean(data[0]))
                return {"three": 3, "w": self.w + 0.0}

        model, seen = Own(), []
        listening = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
        model.compile(run_eagerly=True)
        if terra_:
            terra.compile(model, wait_for_graph=True)
        history = model.fit(*data(), batch_size=8, epochs=2, verbose=0, shuffle=False, callbacks=[listening])
        return seen, history.history

    assert run(True) == run(False)
