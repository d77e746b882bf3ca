"""Calls of a `tf.random.Generator` are skipped like other calls of the framework's, and draw the numbers that they would draw."""
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from tests.variants import examples

CALLS = {
    "normal": lambda g: g.normal((4,), 1.0, 2.0),
    "uniform": lambda g: g.uniform((4,), -1.0, 1.0),
    "uniform ints": lambda g: tf.cast(g.uniform((4,), 0, 100, tf.int64), tf.float32),
    "uniform_full_int": lambda g: tf.cast(g.uniform_full_int((4,)) % 1000, tf.float32),
    "truncated_normal": lambda g: g.truncated_normal((4,)),
    "binomial": lambda g: tf.cast(g.binomial((4,), 10.0, 0.5), tf.float32),
}


class Shifted(tf.random.Generator):
    def normal(self, *args, **kwargs):
        return super().normal(*args, **kwargs) + self.shift


def nothing(g):
    return g


def reset(g):
    g.reset_from_seed(5)
    return g


def skip(g):
    g.skip(3)
    return g


def other(g):
    return tf.random.Generator.from_seed(9)


def subclass(g):
    made = Shifted.from_seed(9)
    made.shift = 100.0
    return made


def patched_instance(g):
    g.normal = lambda shape, mean, stddev: tf.zeros(shape) + 7.0
    return g


def losses(draw, change, wrap):
    held = [tf.random.Generator.from_seed(1)]
    w = tf.Variable([1.0, 2.0, 3.0, 4.0])

    def step(x):
        noise = draw(held[0])
        loss = tf.reduce_sum(tf.tanh(x + noise * w))
        w.assign_sub(0.01 * noise)
        return loss

    step = wrap(step)
    seen = []
    for i in range(24):
        if i == 12:
            held[0] = change(held[0])
        seen.append(float(step(tf.constant([1.0, 2.0, 3.0, float(i)]))))
    return seen, step


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("change", [nothing, reset, skip, other], ids=lambda f: f.__name__)
def test_draws(name, change):
    expected, _ = losses(CALLS[name], change, lambda step: step)
    actual, step = losses(CALLS[name], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().coexecuted_steps >= 18
    if name != "binomial":  # which runs imperatively
        assert step.stats().whole_steps >= 12


@pytest.mark.parametrize("change", [subclass, patched_instance], ids=lambda f: f.__name__)
def test_replaced_methods(change):
    expected, _ = losses(CALLS["normal"], change, lambda step: step)
    actual, step = losses(CALLS["normal"], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 5


def test_a_replaced_method_of_the_class(monkeypatch):
    def change(g):
        original = tf.random.Generator.normal
        monkeypatch.setattr(tf.random.Generator, "normal", lambda self, *args: original(self, *args) + 1.0)
        return g

    expected, _ = losses(CALLS["normal"], change, lambda step: step)
    monkeypatch.undo()
    actual, step = losses(CALLS["normal"], change, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 5


# -- the state in the graph ------------------------------------------------------------------------------------------------------

def _after(state, delta):
    """(what a step gives, the state that it leaves, what it keeps copies of), of a generator with this state."""
    generator = tf.random.Generator.from_state(state, "philox")
    step = terra.coexecute(lambda x: generator.skip(delta) + tf.cast(x, tf.int64), wait_for_graph=True)
    for _ in range(4):
        generator.state.assign(state)
        given = step(tf.zeros(len(state)))
    assert step.stats().coexecuted_steps >= 2
    return given.numpy().tolist(), generator.state.numpy().tolist(), step.program.generated.in_place


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1000, 1000), min_size=3, max_size=3), st.integers(0, 1 << 20) | st.integers(0, (1 << 62)))
def test_the_state_that_is_left(state, delta):
    """The graph computes it with plain arithmetic on two halves of 64 bits, where that is what the kernel does."""
    generator = tf.random.Generator.from_state(state, "philox")
    generator.skip(delta)
    given, left, in_place = _after(state, delta)
    assert (given, left) == (state, generator.state.numpy().tolist())
    assert not in_place if delta < 1 << 48 else in_place  # the kernel's own carry gets lost where it skips that many


@pytest.mark.parametrize("state", [[-1, -1, 5], [-256, 7, 5], [-257, -1, 5], [(1 << 63) - 1, 0, 5]])
def test_a_carry(state):
    test_the_state_that_is_left.hypothesis.inner_test(state, 1)


def test_a_state_that_is_read_written_and_drawn_from_in_branches():
    def run(wrap):
        generator, kept = tf.random.Generator.from_seed(2), []

        def step(x, k):
            noise = generator.normal((3,))
            if k % 3:
                noise += generator.uniform((3,))
            kept.append(generator.state.numpy().tolist())
            if k % 4 == 0:
                generator.reset_from_seed(k)
            return x * noise + generator.truncated_normal((3,))

        step = wrap(step)
        return [step(tf.ones(3), k).numpy().tolist() for k in range(30)], kept, generator.state.numpy().tolist(), step

    *expected, _ = run(lambda step: step)
    *actual, step = run(lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().coexecuted_steps >= 12 and not step.program.generated.in_place


def test_steps_that_only_draw_are_express():
    _, step = losses(CALLS["normal"], nothing, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert step.stats().express_steps >= 10
