"""Steps under a profiler, from the first one on: they are recorded and skipped as without it, and the profiler's results are sound."""

import cProfile
import gc
import logging
import profile as python_profile
import pstats
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.runtime.interpreter import profilers

X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))


def steps_of(kind):
    """(a step, what it changes) of one kind."""
    keras.utils.set_random_seed(1)
    w = tf.Variable(tf.ones([3, 2]))
    if kind == "plain":
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss
        return step, lambda: w.numpy().tolist()
    if kind == "keras":
        model = keras.Sequential([keras.layers.Dense(4, activation=lambda x: tf.nn.relu(x) * 2.0), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        model.build((None, 3))
        optimizer.build(model.trainable_variables)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss
        return step, lambda: [v.numpy().tolist() for v in model.variables]
    if kind == "helpers":
        def helper(x, by):
            return tf.tanh(x) * by

        def step(x):
            y = x
            for k in range(3):
                y = helper(y, float(k + 1))
            w.assign_add(tf.ones_like(w))
            return tf.reduce_sum(y)
        return step, lambda: w.numpy().tolist()
    library = sys.modules["library_that_is_profiled"]

    def step(x):
        w.assign_add(tf.ones_like(w))
        return tf.reduce_sum(x * library.Scaler(3.0).transform([1.0, 2.0, 3.0]))
    return step, lambda: w.numpy().tolist()


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    """One of which nothing is known."""
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    folder.mkdir()
    (folder / "library_that_is_profiled.py").write_text(
        "class Scaler:\n    def __init__(self, by):\n        self.by = by\n\n    def transform(self, xs):\n        return [self._one(x) for x in sorted(xs)]\n\n"
        "    def _one(self, x):\n        return abs(x) * self.by\n")
    sys.path.insert(0, str(folder))
    import library_that_is_profiled  # noqa: F401
    yield
    sys.path.remove(str(folder))
    del sys.modules["library_that_is_profiled"]


KINDS = ["plain", "keras", "helpers", "library"]


def c_profile(call):
    """Run it under cProfile, whose results must be sound."""
    profile = cProfile.Profile()
    result = profile.runcall(call)
    stats = pstats.Stats(profile).stats
    assert all(cumulative >= 0 and own >= 0 for _, _, own, cumulative, _ in stats.values())
    (step,), (whole,) = ([value for (file, _, name), value in stats.items() if name == wanted and file == __file__] for wanted in ("called_by_the_program", "whole_program"))
    assert step[:2] == (14, 14) and whole[:2] == (1, 1)  # each call was matched by its return
    assert whole[3] >= step[3] > 0 and step[4].keys() == {(__file__, whole_line(), "whole_program")}
    return result


def whole_line():
    return next(code.co_firstlineno for code in run.__code__.co_consts if getattr(code, "co_name", None) == "whole_program")


def pythons_function(call):
    seen = []

    def function(frame, event, argument):
        if frame.f_code.co_name == "called_by_the_program" and event in ("call", "return"):
            seen.append(event)

    sys.setprofile(function)
    try:
        result = call()
        assert sys.getprofile() is function
    finally:
        sys.setprofile(None)
    assert seen == ["call", "return"] * 14
    return result


def pythons_profile(call):
    """`profile.Profile` raises if a return does not belong to the call; or where something dies as a frame ends, and calls a finalizer."""
    profile = python_profile.Profile(bias=0)
    gc.collect()
    gc.disable()
    try:
        result = profile.runcall(call)
    finally:
        gc.enable()
    profile.create_stats()
    (step,) = [value for (file, _, name), value in profile.stats.items() if name == "called_by_the_program" and file == __file__]
    assert step[:2] == (14, 14)
    return result


def pyinstruments(call):
    profiler = pytest.importorskip("pyinstrument").Profiler(interval=0.0005)
    with profiler:
        kind = type(sys.getprofile())
        result = call()
        assert type(sys.getprofile()) is kind
    assert sys.getprofile() is None
    assert "called_by_the_program" in profiler.output_text(show_all=True)
    assert profiler.last_session.sample_count > 20
    return result


def nothing(call):
    return call()


def run(kind, profiler, coexecuted):
    """(losses and the state after each step, the step), all of it under a profiler."""
    step, state = steps_of(kind)
    step = terra.coexecute(wait_for_graph=True)(step) if coexecuted else step

    def called_by_the_program():
        return float(step(X))

    def whole_program():
        seen = []
        for _ in range(14):
            seen.append((called_by_the_program(), state()))
        return seen

    return profiler(whole_program), step


@pytest.mark.parametrize("profiler", [c_profile, pythons_function, pythons_profile, pyinstruments], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_recorded_under_a_profiler(kind, profiler):
    expected, _ = run(kind, nothing, False)
    actual, step = run(kind, profiler, True)
    plain, without = run(kind, nothing, True)
    assert actual == expected == plain
    stats, others = step.stats(), without.stats()
    assert stats.coexecuted_steps >= 8 and (stats.whole_steps, stats.express_steps) == (others.whole_steps, others.express_steps), (stats, terra.explain(step))
    assert stats.whole_steps > 3 and "profiler" not in terra.explain(step, full=True).replace("test_profilers", "")


@pytest.mark.parametrize("toggle", ["stops", "starts", "is exchanged"])
def test_the_program_changes_the_profiler_within_a_step(toggle):
    """What Terra has set is not put over what the program sets, nor is what the program has stopped taken up again."""
    def after(coexecuted):
        first, second = cProfile.Profile(), lambda *_: None

        def change(x):
            if toggle == "starts":
                sys.setprofile(second)
            else:
                sys.setprofile(None)
                if toggle == "is exchanged":
                    sys.setprofile(second)
            return x

        layer = keras.layers.Lambda(change)
        step = lambda x: tf.reduce_sum(layer(x)) * 2.0  # noqa: E731
        step, found = terra.coexecute(wait_for_graph=True)(step) if coexecuted else step, []
        for _ in range(10):
            if toggle != "starts" and sys.version_info < (3, 12):
                first.enable()
            value = float(step(X))
            found.append((value, sys.getprofile() is second, sys.getprofile() is None))
            sys.setprofile(None)
        return found

    assert after(True) == after(False)


class Unknown:
    """The type of a profile function in C that is no profiler which is known."""


def test_a_profiler_that_cannot_be_suspended(monkeypatch, caplog):
    """It is named once, with what to do, and `explain` does not blame the program."""
    monkeypatch.setattr(profilers, "_told", [])
    monkeypatch.setattr(profilers.sys, "getprofile", lambda: Unknown())
    monkeypatch.setattr(profilers.sys, "setprofile", lambda _: pytest.fail("it would be lost"))
    with caplog.at_level(logging.WARNING, logger="terra"):
        for kind in "keras", "library":
            expected, _ = run(kind, nothing, False)
            actual, step = run(kind, nothing, True)
            assert actual == expected and step.stats().coexecuted_steps >= 8
            assert "while the profiler tests.transform.test_profilers.Unknown" in terra.explain(step, full=True).replace(__name__, "tests.transform.test_profilers"), terra.explain(step)
    (record,) = [record for record in caplog.records if "profiler" in record.getMessage()]
    assert "Unknown" in record.getMessage() and "cProfile or pyinstrument" in record.getMessage()


def test_a_profiler_on_another_thread():
    """Each thread has one of its own."""
    done = threading.Event()

    def other():
        profile = cProfile.Profile()
        try:
            profile.enable()
            done.wait(20)
            profile.disable()
        except ValueError:  # from Python 3.12 on there is one for all
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        expected, _ = run("keras", nothing, False)
        actual, step = run("keras", nothing, True)
    finally:
        done.set()
        thread.join()
    assert actual == expected and step.stats().whole_steps > 3
