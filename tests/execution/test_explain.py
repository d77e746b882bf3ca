"""What `terra.explain` says of steps that are not as fast as they could be: each test makes one reason, and looks for it and its line."""

import weakref
import gc
import inspect

import pytest
import tensorflow as tf

import terra
from terra import cli

X = [tf.random.stateless_normal([4, 4], seed=[k, 7]) for k in range(4)]


def line_of(text):
    """`test_explain.py:N` of the first line of this file that contains `text`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return f"test_explain.py:{next(k for k, line in enumerate(lines, 1) if text in line)}"


def run(function, n=12):
    step = terra.coexecute(function, wait_for_graph=True)
    for k in range(n):
        step(X[k % 4], k)
    return step


def test_a_method_asked_through_its_class():
    class Trainer:
        def __init__(self, n):
            self.w = tf.Variable(tf.ones([4, 4]) * n)

        @terra.coexecute(wait_for_graph=True)
        def step(self, x):
            self.w.assign_sub(x * 0.1)
            return tf.reduce_sum(self.w)

    trainers = [Trainer(1), Trainer(2)]
    for k in range(8):
        for trainer in trainers:
            trainer.step(X[k % 4])
    text = terra.explain(Trainer.step, full=True)
    assert "16 steps" in text.splitlines()[0] and "Each of its 2 instances" in text.splitlines()[0]
    for trainer in trainers:
        assert terra.explain(trainer.step, full=True) in text
    assert terra.explain(trainers[0].step).startswith("test_a_method") and "of 8 steps" in terra.explain(trainers[0].step)


def test_lines_of_operators_and_of_reads_by_the_step_itself():
    def step(x, k):
        y = x @ x * k
        if y[0, 0] > 1e9:  # the read
            y = y + 1
        return y

    function = run(step)
    assert function.stats().coexecuted_steps > 6
    text = terra.explain(function, full=True)
    assert f"Values that Python reads in the middle of the step: {line_of('# the read')}." in text
    assert f"Values that Python gives to the step: {line_of('y = x @ x * k')}." in text


def test_the_line_where_a_step_left_the_known_paths():
    def step(x, k):
        y = x * 2
        if k == 8:
            y = tf.sin(y) - tf.abs(
                x) @ x  # a new path
        return y + x

    function = run(step)
    assert function.stats().fallbacks == 1
    (reason,) = function.fallback_reasons
    assert line_of("y = tf.sin(y) - tf.abs(") in reason


def test_a_full_graph():
    def step(x, k):
        for _ in range(k):
            x = x + 1
        return x

    step = terra.coexecute(step, wait_for_graph=True, max_traces=2, loops="unroll")
    for k in [0, 0, 1, 1, 2, 3, 4]:
        step(X[0], k)
    text = terra.explain(step, full=True)
    assert "max_traces (2) is reached" in text and "raise it, or lift" in text and "known from now on" not in text


LOG = []


def helper(x):
    weakref.ref(helper)  # what helper does
    return tf.tanh(x) + tf.sin(x)


def test_calls_that_are_not_skipped():
    def step(x, k):
        y = helper(x)  # its call
        return tf.map_fn(lambda row: row * 2, y)  # the framework's call

    function = run(step)
    assert function.stats().coexecuted_steps > 6
    text = terra.explain(function, full=True)
    assert f"map_fn_v2 ({line_of('# the framework')}), because it is given an object of type function" in text
    why = f"because it makes an object of type ReferenceType ({line_of('# what helper does')})"
    assert f"The step's own code runs at each step, {why}." in text and f"helper ({line_of('# its call')}), {why}" in text


def test_the_attribute_that_differs():
    axis = [0]

    def step(x, k):
        return tf.concat([tf.cumsum(x, exclusive=axis[0] > 0), x], 0)

    function = terra.coexecute(step, wait_for_graph=True)
    for k in range(6):
        axis[0] = k == 5
        function(X[0], k)
    (reason,) = function.fallback_reasons
    assert "Cumsum never followed" in reason and "with another exclusive" in reason


def test_a_new_path_behind_a_read():
    def step(x, i):
        y = tf.reduce_sum(x)
        if float(y) > 100.0 and i % 2:
            return y * 2.0
        return y + 1.0

    function = terra.coexecute(step, wait_for_graph=True)
    for i in range(16):
        function(tf.constant([1.0 if i < 10 else 200.0]), i)
    assert "never followed the read of a value here" in terra.explain(function, full=True)


def test_a_step_that_was_not_called():
    function = terra.coexecute(lambda x: x)
    line = function.__wrapped__.__code__.co_firstlineno
    assert terra.explain(function) == f"test_a_step_that_was_not_called.<lambda>  test_explain.py:{line}   not called yet"
    assert terra.explain(function).to_dict()["steps"][0]["stats"]["steps"] == 0 and terra.explain(function).causes == []


def test_what_a_step_is_shown_as():
    class Owner:
        @terra.coexecute
        def step(self, x):
            return helper(x)

        def __repr__(self):
            return "an owner"

    assert repr(Owner.step).startswith("<co-executed ") and repr(Owner.step).endswith(f"Owner.step at {__file__}:{Owner.step.__wrapped__.__code__.co_firstlineno}>")
    assert repr(Owner().step).endswith(" of an owner>")
    for step in (Owner.step, Owner().step):
        assert "helper" in terra.to_code(step) and "_terra_cursor.enter" in terra.to_code(step)


def test_steps_that_always_raise_are_left_alone():
    calls = []

    def step(x, k):
        calls.append(k)
        y = tf.tanh(x)
        if k < 45:
            raise ValueError("not yet")
        return y

    function = terra.coexecute(step, wait_for_graph=True)
    for k in range(45):
        with pytest.raises(ValueError, match="not yet"):
            function(X[k % 4], k)
    stats = function.stats()
    assert calls == list(range(45)) and (stats.tracing_steps, stats.imperative_steps) == (20, 25)
    text = terra.explain(function, full=True)
    assert "20 x the step raised ValueError" in text and "imperatively for the next 25 steps: 20 steps in a row raised" in text
    for k in range(45, 90):
        function(X[k % 4], k)
    assert function.stats().coexecuted_steps > 10
    assert "It ran imperatively for a while once, most recently because 20 steps in a row raised" in terra.explain(function, full=True)


def test_steps_that_raise_now_and_then_go_on():
    def step(x, k):
        y = tf.tanh(x)
        if k % 3 == 2:
            raise ValueError("now")
        return y

    function = terra.coexecute(step, wait_for_graph=True)
    for k in range(90):
        try:
            function(X[k % 4], k)
        except ValueError:
            assert k % 3 == 2
    stats = function.stats()
    assert stats.coexecuted_steps >= 50 and stats.imperative_steps == 0 and function.policy.pauses == 0


def test_blocks_and_everything():
    w = tf.Variable(tf.ones([4, 4]))
    for k in range(12):
        with terra.GradientTape(wait_for_graph=True) as tape:  # the block
            loss = tf.reduce_sum(X[k % 4] @ w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
    text = terra.explain(tape, full=True)
    assert text.startswith(f"the block at {line_of('# the block')}   ") and "of 12 steps" in text and text in terra.explain(full=True)

    class Trainer:
        @terra.coexecute(wait_for_graph=True)
        def step(self, x):
            return x + 1

    trainer = Trainer()
    for k in range(5):
        trainer.step(X[0])
    assert terra.explain(full=True).count(f"{Trainer.step.__qualname__}: 5 steps") == 1  # the instance's
    for other in (len, terra.GradientTape()):  # a tape that was no step
        with pytest.raises(TypeError, match="terra.explain takes"):
            terra.explain(other)


def test_functions_that_are_gone_are_counted():
    def fold():
        w = tf.Variable(tf.ones([4, 4]))

        def a_step_of_a_fold(x):
            w.assign_sub(x * 0.1)
            return w

        step = terra.coexecute(a_step_of_a_fold, wait_for_graph=True)
        for k in range(5):
            step(X[k % 4])

    for _ in range(3):
        fold()
    gc.collect()
    (line,) = [line for line in cli.statistics().splitlines() if "a_step_of_a_fold" in line]
    assert line.split()[0] == "15" and line.endswith("a_step_of_a_fold (3 functions)")
    assert "a_step_of_a_fold, 3 functions that are gone: 15 steps" in terra.explain(full=True)
