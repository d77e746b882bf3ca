"""Steps that take the next element of a `tf.data` iterator, or draw Python's or NumPy's random numbers: these calls are made each time, the rest is skipped. What cannot be used is put
back: elements come once each and in order, and generators are in eager's state afterwards."""

import random

import numpy as np
import pytest
import tensorflow as tf

import terra
from tests.harness import compare_steps
from tests.unwaited import unwaited

DATA = np.random.RandomState(0).rand(64, 3).astype("float32")
LABELS = np.arange(64)


def dataset(batch=4, **kwargs):
    return tf.data.Dataset.from_tensor_slices((DATA, LABELS)).batch(batch, **kwargs).repeat()


def rest(it):
    return lambda: [next(it), next(it)]


# -- iterators -----------------------------------------------------------------------------------------------------------------

def in_a_closure():
    it, total = iter(dataset()), tf.Variable(tf.zeros(3))

    def step():
        x, y = next(it)
        total.assign_add(tf.reduce_sum(x, 0))
        return tf.cast(tf.reduce_sum(y), tf.float32) + tf.reduce_mean(total)
    return step, lambda s, k: s(), lambda: (rest(it)(), total)


def in_an_attribute():
    class Trainer:
        def __init__(self):
            self.it = iter(dataset().map(lambda x, y: {"image": x, "label": y}))
            self.seen = 0

        def step(self, scale):
            self.seen += 1
            batch = next(self.it)
            return tf.reduce_sum(batch["image"] * scale), tf.reduce_max(batch["label"])
    trainer = Trainer()
    return trainer.step, lambda s, k: s(tf.constant(k + 1.0)), lambda: (rest(trainer.it)(), trainer.seen)


def as_an_argument():
    it = iter(dataset().map(lambda x, y: x))

    def step(iterator):
        return tf.reduce_sum(next(iterator) ** 2)
    return step, lambda s, k: s(it), rest(it)


def by_methods():
    it = iter(dataset())

    def step():
        x, _ = it.get_next()
        y, _ = it.next()
        return tf.reduce_sum(x - y)
    return step, lambda s, k: s(), rest(it)


def two_of_them():
    a, b = iter(dataset(4)), iter(dataset(2))

    def step():
        x, _ = next(a)
        y, _ = next(b)
        z, _ = next(a)
        return tf.reduce_sum(x) - tf.reduce_sum(y) * tf.reduce_sum(z)
    return step, lambda s, k: s(), lambda: (rest(a)(), rest(b)())


def shuffled_with_augmentation():
    it = iter(tf.data.Dataset.from_tensor_slices(DATA).shuffle(20, seed=1).repeat().batch(4).map(lambda x: x + tf.random.uniform(tf.shape(x), seed=5)).prefetch(2))
    return lambda: tf.reduce_sum(next(it)), lambda s, k: s(), lambda: ()


ITERATORS = [in_a_closure, in_an_attribute, as_an_argument, by_methods, two_of_them, shuffled_with_augmentation]


@pytest.mark.parametrize("make", ITERATORS)
def test_the_next_element(make):
    compare_steps(make)


@pytest.mark.parametrize("options", [{"verify": True}, {"run_ahead": 0}])
@pytest.mark.parametrize("make", [in_a_closure, two_of_them])
def test_with_options(make, options):
    compare_steps(make, **options)


def the_last_batch_is_smaller():
    it = iter(tf.data.Dataset.from_tensor_slices((DATA[:30], LABELS[:30])).batch(4).repeat())

    def step():
        x, y = next(it)
        return tf.reduce_mean(x) + tf.cast(tf.reduce_sum(y), tf.float32), tf.identity(x)
    return step, lambda s, k: s(), rest(it)


def batches_of_many_sizes():
    sizes = tf.data.Dataset.from_tensor_slices(tf.constant([3, 5, 3, 3, 7, 5, 3, 11, 13, 3])).repeat()
    it = iter(sizes.map(lambda n: tf.ones((n, 2)) * tf.cast(n, tf.float32)))
    return lambda: tf.reduce_sum(tf.tanh(next(it))), lambda s, k: s(), rest(it)


@pytest.mark.parametrize("options", [{}, {"verify": True}])
@pytest.mark.parametrize("make", [the_last_batch_is_smaller, batches_of_many_sizes])
def test_elements_of_other_shapes_are_put_back(make, options):
    compare_steps(make, whole=4, express=0, n=80, **options)


def ends():
    """It raises StopIteration each time once it is exhausted; then there is a new one."""
    class Trainer:
        def __init__(self):
            self.it, self.steps = iter(dataset().take(14)), 0

        def step(self):
            self.steps += 1
            x, _ = next(self.it)
            return tf.reduce_sum(x)
    trainer = Trainer()

    def call(step, k):
        if k % 16 == 15:
            trainer.it = iter(dataset().take(14))
        return step()
    return trainer.step, call, lambda: trainer.steps


def caught():
    it = iter(dataset().take(22))

    def step():
        try:
            x, _ = next(it)
        except StopIteration:
            return tf.constant(-1.0)
        return tf.reduce_sum(x)
    return step, lambda s, k: s(), lambda: ()


def fails_in_the_pipeline():
    it = iter(dataset().map(lambda x, y: tf.debugging.check_numerics(x / tf.cast(tf.reduce_min(y) % 20, tf.float32), "bad")))
    return lambda: tf.reduce_sum(next(it)), lambda s, k: s(), lambda: ()


def fails_at_the_second():
    it = iter(dataset(2).map(lambda x, y: (tf.debugging.check_numerics(x / tf.cast((tf.reduce_min(y) + 46) % 48, tf.float32), "bad"), y)))

    def step():
        (x, _), (z, label) = next(it), next(it)
        return tf.reduce_sum(x) - tf.reduce_sum(z), tf.reduce_sum(label)
    return step, lambda s, k: s(), lambda: next(it)[1]


def of_python():
    """Python code runs in the pipeline, which looks at what the steps leave."""
    state = {"n": 0.0}

    def generate():
        while True:
            state["n"] += 0.5
            yield [state["n"]]
    it = iter(tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((1,), tf.float32)))

    def step():
        x = next(it)
        return tf.reduce_sum(x) * 2.0
    return step, lambda s, k: s(), lambda: ()  # (how far ahead the pipeline is, is up to it)


def looked_at():
    it = iter(dataset())

    def step():
        x, y = next(it)
        if int(y[0]) % 8 == 0:
            return tf.reduce_sum(x) * 2.0
        return tf.reduce_sum(x)
    return step, lambda s, k: s(), rest(it)


def after_other_things():
    """It raises when something has been done already."""
    v, it = tf.Variable(0.0), iter(dataset().take(25))

    class Holder:
        n = 0
    holder = Holder()

    def step():
        holder.n += 1
        v.assign_add(1.0)
        x, _ = next(it)
        v.assign_add(10.0)
        return tf.reduce_sum(x) + v
    return step, lambda s, k: s(), lambda: (holder.n, v)


def sparse_elements():
    it = iter(tf.data.Dataset.from_tensors(tf.sparse.from_dense([[0.0, 1.0]])).repeat())
    return lambda: tf.sparse.reduce_sum(next(it)), lambda s, k: s(), lambda: ()


def a_python_iterator():
    it = iter([tf.constant(float(k)) for k in range(100)])
    return lambda: tf.abs(next(it)) * 2.0, lambda s, k: s(), lambda: next(it)


def gives_what_it_takes():
    it = iter(dataset())

    class Holder:
        pass
    holder = Holder()

    def step():
        x, y = next(it)
        holder.batch = x
        return x, y, tf.reduce_sum(x)
    return step, lambda s, k: s(), lambda: (rest(it)(), holder.batch)


def taken_in_between():
    it = iter(dataset())

    def call(step, k):
        return (step(), next(it)[1]) if k % 3 else step()
    return lambda: tf.reduce_sum(next(it)[0]), call, rest(it)


@pytest.mark.parametrize("make", [
    ends, caught, fails_in_the_pipeline, fails_at_the_second, of_python, looked_at, after_other_things, sparse_elements, a_python_iterator, gives_what_it_takes, taken_in_between])
def test_other_iterators(make):
    compare_steps(make, whole=0, express=0)


def test_an_element_that_was_put_back_comes_as_an_optional_too():
    from terra.runtime.fast_forward.sources import residual_calls

    it = iter(tf.data.Dataset.range(5))
    first = next(it)
    residual_calls.put_back(it, first)
    assert int(it.get_next_as_optional().get_value()) == 0
    residual_calls.put_back(it, first)
    residual_calls.put_back(it, None, ValueError("again"))
    with pytest.raises(ValueError, match="again"):
        next(it)
    assert [int(x) for x in it] == [0, 1, 2, 3, 4]
    assert "_next_internal" not in vars(it)


def test_an_element_is_put_back_where_an_earlier_step_fails():
    """With steps in flight an error comes late: the step that it meets does nothing, and takes nothing, unless it was in flight, too."""
    def make():
        it = iter(dataset())

        def step(i):
            x, y = next(it)
            return tf.gather(tf.reduce_sum(x, 0), i) + tf.cast(y[0], tf.float32)
        return it, step

    it, step = make()
    step = terra.coexecute(step, wait_for_graph=True)
    for _ in range(20):
        step(tf.constant([1]))
    assert step.stats().express_steps > 0
    bad, taken = unwaited(step, tf.constant([7])), 21
    with pytest.raises(tf.errors.InvalidArgumentError):
        while taken < 26:
            step(tf.constant([1]))
            taken += 1
    del bad
    assert int(next(it)[1][0]) in (4 * taken % 64, 4 * (taken + 1) % 64)


# -- random numbers ------------------------------------------------------------------------------------------------------------

X = [tf.constant(np.random.RandomState(k).rand(4, 3), tf.float32) for k in range(3)]
RNG, STATE, PYTHON = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)
SIZES = [4, 3]


def reseed():
    global RNG, STATE, PYTHON
    RNG, STATE, PYTHON = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)


DRAWS = {
    "random": lambda x: x * random.random(),
    "uniform": lambda x: x * random.uniform(0.5, 1.5) + random.gauss(0.0, 1.0),
    "own random": lambda x: x * PYTHON.random() - PYTHON.uniform(1, 2),
    "numpy number": lambda x: x * np.random.rand() + np.random.uniform(1.0, 2.0),
    "calculated": lambda x: x * (2.0 * random.random() - 1.0),
    "numpy array": lambda x: tf.convert_to_tensor(np.random.rand(4, 3).astype(np.float32)) + x,
    "scaled": lambda x: x + tf.constant((np.random.randn(4, 3) * 0.1 + 1.0).astype("float32")),
    "cast": lambda x: x + tf.cast(2.0 * STATE.normal(size=(4, 3)) - 1, tf.float32),
    "as large as its argument": lambda x: x + np.random.normal(size=x.shape).astype("float32"),
    "sizes in a list": lambda x: x + np.random.uniform(-1.0, 1.0, size=[x.shape[0], 3]).astype("float32") * RNG.random(SIZES).astype("float32"),
    "indices": lambda x: tf.gather(x, np.random.randint(0, 4, 2)),
    "generator": lambda x: tf.gather(x, RNG.integers(0, 4, size=3)) * RNG.random(),
    "permutation": lambda x: tf.gather(x, np.random.permutation(4)),
    "branch": lambda x: tf.abs(x) * 2.0 if random.random() < 0.5 else tf.abs(x),
    "branches": lambda x: tf.abs(x) * (2.0 if np.random.rand() < 0.3 else 1.0) + (1.0 if 0.6 > random.random() else 0.0),
    "drawn in one way only": lambda x: tf.abs(x) * np.random.rand() if random.random() < 0.5 else tf.abs(x) * 3.0,
    "branch on what is calculated": lambda x: tf.abs(x) if 2 * random.random() - 1 > random.uniform(-1, 1) else -tf.abs(x),
    "several": lambda x: tf.gather(x, np.random.randint(0, 4, 2)) * random.random() + np.random.rand() - PYTHON.random(),
}
OTHERS = {
    "integer": lambda x: tf.abs(x) * float(random.randint(0, 3)),
    "numpy integer": lambda x: tf.gather(x, int(np.random.randint(0, 4))),
    "choice": lambda x: tf.abs(x) * random.choice([1.0, 2.0]),
    "shuffled": lambda x: tf.gather(x, shuffled()),
    "mask": lambda x: tf.where(tf.constant(np.random.rand(4, 3) < 0.5), tf.abs(x), 0.0),
    "changed": lambda x: tf.abs(x) + tf.constant(changed()),
    "read": lambda x: tf.abs(x) * float(np.random.rand(2)[0]),
    "view": lambda x: tf.matmul(tf.abs(x), tf.constant(np.random.rand(2, 3).T.astype("float32"))),
    "given": lambda x: (tf.abs(x), random.random(), np.random.rand(2)),
    "large": lambda x: tf.abs(x) + tf.constant(np.random.randn(4, 3).astype(np.float32).sum()),
    "seeded": lambda x: tf.abs(x) * (random.seed(3) or random.random()),
    "of another length": lambda x: tf.reduce_sum(tf.abs(x)) * tf.reduce_sum(tf.constant(np.random.rand(1 + int(tf.reduce_sum(x)) % 3), tf.float32)),
}


def shuffled():
    order = np.arange(4)
    np.random.shuffle(order)
    return order


def changed():
    a = np.random.rand(4, 3).astype("float32")
    a[0] = 1.0
    a += 1.0
    return a


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    use = DRAWS[name]

    def make():
        reseed()
        return lambda x: tf.identity(use(x)) + 1.0, lambda s, k: s(X[k % 3]), lambda: (RNG.random(), STATE.rand(), PYTHON.random())
    compare_steps(make, n=60, seed=lambda k: k == 45 and (np.random.seed(5), random.seed(6)))


@pytest.mark.parametrize("name", ["several", "scaled", "generator", "branches", "drawn in one way only"])
def test_draws_verified(name):
    use = DRAWS[name]

    def make():
        reseed()
        return lambda x: tf.identity(use(x)) + 1.0, lambda s, k: s(X[k % 3]), lambda: (RNG.random(), STATE.rand(), PYTHON.random())
    compare_steps(make, verify=True)


def flipped(x, modes):
    mode = random.choice(modes)
    if mode == "flip":
        x = tf.reverse(x, [1])
    elif mode == "roll":
        x = tf.roll(x, 1, 1)
    return x * 2.0 if random.choice(("keep", "double")) == "double" else tf.identity(x)


@pytest.mark.parametrize("options", [{}, {"verify": True}])
def test_choices_of_texts(options):
    """Another text is chosen each time, and steps differ in what they ask of it: each draw is made once all the same."""
    def make():
        modes = ["flip", "roll", "none"]
        return lambda x, k: flipped(x, modes) + 1.0, lambda s, k: (k == 60 and modes.append("roll"), s(X[k % 3], k // 90)), lambda: ()

    compare_steps(make, n=120, whole=40, express=0, **options)


def test_objects_that_are_chosen():
    """Functions: they take the place of those that were chosen when the step was recorded."""
    def make():
        return lambda x: random.choice([tf.abs, tf.square, tf.exp])(x) + 1.0, lambda s, k: s(X[k % 3]), lambda: ()

    compare_steps(make, n=60, whole=0, express=0)


def test_sizes_in_a_list_that_change():
    def make():
        reseed()
        return lambda x: tf.identity(x + RNG.random(SIZES).astype("float32")) + 1.0, lambda s, k: s(X[k % 3]), RNG.random

    try:
        compare_steps(make, n=60, seed=lambda k: SIZES.__setitem__(0, 4 if k < 20 or k > 40 else 1))
    finally:
        SIZES[0] = 4


@pytest.mark.parametrize("name", OTHERS)
def test_other_draws(name):
    use = OTHERS[name]

    def make():
        reseed()
        return lambda x: use(x), lambda s, k: s(X[k % 3]), lambda: ()
    compare_steps(make, whole=0, express=0)


def test_draws_are_taken_back_where_the_element_is_another_one():
    def make():
        it = iter(tf.data.Dataset.from_tensor_slices(DATA[:30]).batch(4).repeat())

        def step():
            scale = random.random()
            noise = np.random.rand(3).astype("float32")
            return tf.reduce_mean(next(it) * scale + tf.constant(noise))
        return step, lambda s, k: s(), rest(it)
    compare_steps(make, whole=8, express=0, n=64)


def test_draws_of_a_way_that_is_not_taken():
    """Which way it is depends on an argument: numbers that were drawn for another one are taken back."""
    def make():
        return lambda x, b: tf.abs(x) * (random.random() if b > 0 else 2.0), lambda s, k: s(X[k % 3], float((k * 7) % 5 - 2)), lambda: ()
    compare_steps(make)


def test_draws_between_numbers_that_vary():
    def make():
        class Trainer:
            def step(self, x, b):
                return tf.abs(x) * random.uniform(-self.c, b) + np.random.uniform(b, 9.0) + tf.constant(np.random.rand(3).astype("float32") * self.c)
        trainer = Trainer()

        def call(step, k):
            trainer.c = 1.0 + k // 4
            return step(X[k % 3], 0.5 * k)
        return trainer.step, call, lambda: ()
    compare_steps(make, whole=0, express=0)


def test_a_generator_that_is_replaced():
    class Trainer:
        def step(self, x):
            return tf.identity(x * self.rng.random())

    def make():
        trainer = Trainer()
        trainer.rng = np.random.default_rng(4)

        def call(step, k):
            if k in (16, 28):
                trainer.rng = np.random.default_rng(k) if k == 16 else random.Random(2)
            return step(X[k % 3])
        return trainer.step, call, lambda: trainer.rng.random()
    compare_steps(make)


@pytest.mark.parametrize("name", ["generators", "one of each kind"])
def test_one_bit_generator_of_two(name):
    """What is drawn of it is put back, where the run's answer is another one, as it was before the first draw."""
    def make():
        bits = np.random.MT19937(3)
        return np.random.Generator(bits), np.random.Generator(bits) if name == "generators" else np.random.RandomState(bits)

    def program(wrap):
        (a, b), v = make(), tf.Variable(0.0)

        def step():
            n, u = a.normal(), b.normal()
            if u < -0.3:
                v.assign_add(1.0)
            return v * u + n

        step = wrap(step)
        return [float(step()) for _ in range(60)], a.normal(), step

    *expected, _ = program(lambda step: step)
    *found, step = program(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert expected == found and step.stats().whole_steps >= 30, terra.explain(step)


@tf.function
def _next_in_graph(it):
    return next(it)


def _saved(it, folder):
    saved = tf.train.Checkpoint(it=it)
    path = saved.save(str(folder / "it"))
    found = float(next(it)), float(next(it))
    saved.restore(path)
    return found


@pytest.mark.all_variants
@pytest.mark.parametrize("use", [
    lambda it, _: float(_next_in_graph(it)),
    lambda it, _: float(tf.raw_ops.IteratorGetNext(iterator=it._iterator_resource, output_types=[tf.float32], output_shapes=[[]])[0]),
    _saved,
], ids=["tf.function", "operation", "checkpoint"])
@pytest.mark.parametrize("by", ["draw", "argument"])
def test_an_element_is_taken_only_where_the_step_takes_it(use, by, tmp_path):
    """Others than Python's iterator look at the dataset, too."""
    def program(wrap):
        random.seed(3)
        v, it, found = tf.Variable(0.0), iter(tf.data.Dataset.range(1000).map(lambda q: tf.cast(q, tf.float32))), []

        def step(n):
            if (random.random() if by == "draw" else n % 10 / 10) < 0.2:
                v.assign_add(0.5)
                return v * 1.0
            v.assign_add(next(it))
            return v * 2.0

        step = wrap(step)
        for k in range(60):
            found.append(float(step(1000 + k * k)))
            if k % 4 == 3:
                found.append(use(it, tmp_path))
        return found, step

    expected, _ = program(lambda step: step)
    found, step = program(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert expected == found and step.stats().whole_steps >= 20, terra.explain(step)
