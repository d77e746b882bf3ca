"""`terra.profile` and `--timeline`: what is noted adds up, is a trace that Chrome reads, and costs nothing when nobody asks."""

import collections
import functools
import glob
import json
import os
import random
import re
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import terra
from terra.reporting import timeline
from terra.runtime.execution import graph_runner
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.execution.python_runner import PythonRunner
from terra.runtime.interpreter import spans
from terra.runtime.step_function import recorded as recorded_steps
from tests import forks

X = [tf.random.stateless_normal([8, 8], seed=[k, 7]) for k in range(4)]
HERE = os.path.basename(__file__)


def training(reads=False, feeds=False, sine_at=-1):
    """A step, and its variable; step number `sine_at` does something new."""
    w = tf.Variable(tf.random.stateless_normal([8, 8], seed=[3, 4]) * 0.3)

    def step(x, k):
        with tf.GradientTape() as tape:
            y = tf.tanh(x @ w)
            if feeds:
                y = y * np.float32(random.random())
            if k == f"{sine_at}":
                y = tf.sin(y)
            loss = tf.reduce_mean(y * y)
        if reads and float(loss) > 100.0:
            loss = loss * 2.0
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step, w


def run(step, w, n=30, read=lambda k: True, varies=True):
    """The values of the losses, as they are read, and of the variable in the end. varies: whether steps are given a text of their number, which keeps them from being skipped."""
    random.seed(5)
    seen = []
    for k in range(n):
        loss = step(X[k % 4], f"{k}" if varies else "0")
        if read(k):
            seen.append(float(loss))
    terra.sync()
    return seen, w.numpy().tolist()


def waited(events):
    return sum(event["dur"] for event in events if event["cat"] == "wait") / 1e6


def of(trace, *kinds):
    return [event for event in trace["traceEvents"] if event["ph"] != "M" and event["cat"] in (kinds or timeline.KINDS)]


PROGRAMS = {
    "read behind the step": (dict(), dict(), lambda k: True),
    "read now and then": (dict(), dict(), lambda k: k % 5 == 4),
    "never read": (dict(), dict(run_ahead=1), lambda k: False),
    "read in the step": (dict(reads=True), dict(), lambda k: True),
    "skipped": (dict(), dict(), lambda k: k % 5 == 4),
    "fed": (dict(feeds=True), dict(fast_forward=False), lambda k: k % 5 == 4),
    "fed and read in the step": (dict(feeds=True, reads=True), dict(fast_forward=False), lambda k: True),
    "something new": (dict(reads=True, sine_at=20), dict(), lambda k: True),
}


@pytest.mark.all_variants
@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded_steps_are_as_eager_ones_and_their_waits_add_up(name, tmp_path):
    of_step, options, read = PROGRAMS[name]
    varies = name != "skipped"
    expected = run(*training(**of_step), read=read, varies=varies)
    step, w = training(**of_step)
    step = terra.coexecute(step, wait_for_graph=True, **options)
    with terra.profile(tmp_path / "t.json"):
        assert run(step, w, read=read, varies=varies) == expected
    stats, trace = step.stats(), json.loads((tmp_path / "t.json").read_text())
    assert stats.coexecuted_steps >= 20, stats
    found = collections.Counter(event["cat"] for event in of(trace))
    assert waited(of(trace, "wait")) == pytest.approx(stats.python_stall_s, rel=0.05) and stats.python_stall_s > 0
    assert found["python"] + found["skipped"] == stats.steps == 30 and found["skipped"] == stats.whole_steps and (stats.whole_steps >= 15) != varies
    assert found["graph"] - found["fallback"] <= stats.coexecuted_steps <= found["graph"] and found["builder"] >= stats.graphs >= 1
    assert found["feed"] == stats.feeds and found["fallback"] == stats.fallbacks
    assert bool(found["feed"]) == of_step.get("feeds", False) and found["fallback"] == (of_step.get("sine_at", -1) > 0)
    assert {event["args"]["how"] for event in of(trace, "python")} >= {"traced"}
    assert len([event for event in of(trace, "python", "skipped") if event["args"]["how"] in ("co-executed", "skipped")]) == stats.coexecuted_steps
    if of_step.get("reads"):
        lines = {event["args"]["line"]: event["args"]["statement"] for event in of(trace, "wait")}
        assert any(statement.startswith("if reads and float(loss)") for statement in lines.values()), lines
    if of_step.get("feeds"):
        assert {event["args"]["statement"] for event in of(trace, "feed")} == {"y = y * np.float32(random.random())"}
    for event in of(trace, "fallback"):
        assert re.fullmatch(rf"Sin never followed .*\({HERE}:\d+\)", event["args"]["reason"])


def test_the_file_is_a_trace_as_chrome_reads_it(tmp_path):
    step, w = training(reads=True, feeds=True, sine_at=20)
    step = terra.coexecute(step, wait_for_graph=True, fast_forward=False)
    with terra.profile(tmp_path / "t.json") as profile:
        run(step, w)
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace == profile.to_dict() and trace["displayTimeUnit"] == "ms" and trace["otherData"]["spans_lost"] == 0
    names, by_track = {}, collections.defaultdict(list)
    for event in trace["traceEvents"]:
        assert type(event["name"]) is str and type(event["pid"]) is int and type(event["tid"]) is int and event["ts"] >= 0 and event["ph"] in "XiM", event
        if event["ph"] == "M":
            names[event["name"], event["tid"]] = event["args"]
        else:
            assert event["name"].startswith(event["cat"] + " ") and ("dur" in event) == (event["ph"] == "X") == (event["cat"] not in ("feed", "fallback")), event
            by_track[names["thread_name", event["tid"]]["name"]].append(event)
    assert names["process_name", 0] == {"name": "terra"} and {"Python", "graph", "builder"} == set(by_track)
    assert {event["cat"] for event in by_track["Python"]} == {"python", "wait", "feed", "fallback"}
    for events in by_track.values():  # spans of one track lie behind or within one another
        open_ends = []
        for event in events:
            start, end = event["ts"], event["ts"] + event.get("dur", 0.0)
            while open_ends and open_ends[-1] <= start + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01, event
            open_ends.append(end)
    graphs = by_track["graph"]
    assert all(one["ts"] + one["dur"] <= other["ts"] + 0.01 for one, other in zip(graphs, graphs[1:]))


def test_graphs_that_nobody_waits_for_have_times_of_their_own():
    """Python is busy in between, so only the executor knows when a graph has ended."""
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w)
    with terra.profile() as profile:
        for k in range(6):
            step(X[k % 4], k)
            time.sleep(0.05)
    graphs = of(profile.to_dict(), "graph")
    assert len(graphs) == 6 and step.stats().coexecuted_steps >= 26
    assert sum(event["dur"] < 40e3 and "ended" not in event["args"] for event in graphs) >= 4, graphs


def test_steps_that_are_skipped():
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w, varies=False)
    before = step.stats()
    with terra.profile() as profile:
        run(step, w, 8, varies=False)
    assert step.stats().express_steps - before.express_steps == 8 == len(of(profile.to_dict(), "skipped"))
    assert [event["args"]["step"] for event in of(profile.to_dict(), "skipped")] == list(range(31, 39))


def test_blocks_are_steps():
    v = tf.Variable(2.0)

    def train(tape_class, values):
        for k in range(20):
            with tape_class as make, make() as tape:
                loss = v * v
            v.assign_sub(0.01 * tape.gradient(loss, v))
            values.append(float(loss))
        return tape

    class Of:
        def __init__(self, make):
            self.make = make

        def __enter__(self):
            return self.make

        def __exit__(self, *exc):
            pass

    eager, ours = [], []
    train(Of(tf.GradientTape), eager)
    v.assign(2.0)
    with terra.profile() as profile:
        tape = train(Of(lambda: terra.GradientTape(wait_for_graph=True)), ours)
    assert ours == eager
    trace, stats = profile.to_dict(), tape.block.stats()
    assert stats.coexecuted_steps >= 10 and len(of(trace, "python")) == stats.steps
    assert waited(of(trace, "wait")) == pytest.approx(stats.python_stall_s, rel=0.05) and stats.python_stall_s > 0


def test_a_block_that_is_left_alone_has_a_span_from_its_beginning_to_its_end():
    v = tf.Variable(2.0)

    def train(make, leave_alone):
        values = []
        for k in range(12):
            try:
                with make() as tape:
                    loss = v * v
                    time.sleep(0.02)
                    if k == 10:
                        raise ValueError("in the block")
                v.assign_sub(0.01 * tape.gradient(loss, v))
            except ValueError as error:
                values.append(str(error))
            time.sleep(0.002)  # between two blocks
            if k == 5:
                leave_alone(tape)
            values.append(float(loss))
        return values

    expected = train(tf.GradientTape, lambda tape: None)
    v.assign(2.0)
    with terra.profile() as profile:
        assert train(lambda: terra.GradientTape(wait_for_graph=True), lambda tape: tape.block.policy.never("the test wants it")) == expected
    steps = of(profile.to_dict(), "python")
    assert [event["args"]["how"] for event in steps].count("imperative") == 6 and len(steps) == 12
    assert all(event["dur"] >= 0.02e6 for event in steps), steps
    assert all(one["ts"] + one["dur"] + 0.001e6 <= other["ts"] for one, other in zip(steps[6:], steps[7:])), steps


def test_steps_run_ahead_as_far_as_ever():
    """A `with` statement that might catch their errors would have them be waited for."""
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w, read=lambda k: False)
    seen = []
    with terra.profile():
        for k in range(8):
            step(X[k % 4], k)
            seen.append(len(GRAPH_RUNNER.flights))
    assert seen[-4:] == [2] * 4 and step.stats().coexecuted_steps >= 35


def test_several_functions_share_the_waits():
    made = [training(), training(reads=True)]
    steps = [(terra.coexecute(step, wait_for_graph=True), w) for step, w in made]
    with terra.profile() as profile:
        for k in range(30):
            for step, _ in steps:
                step(X[k % 4], k)
        terra.sync()
    assert all(step.stats().coexecuted_steps >= 20 for step, _ in steps)
    assert waited(of(profile.to_dict(), "wait")) == pytest.approx(sum(step.stats().python_stall_s for step, _ in steps), rel=0.05)


# -- python_stall_s ------------------------------------------------------------------------------------------------------------

def slow(monkeypatch, seconds, and_then=lambda: None):
    """Has Python find out late that a step in flight is done."""
    known = graph_runner.has_done

    def has_done(outputs):
        time.sleep(seconds)
        and_then()
        return known(outputs)

    monkeypatch.setattr(graph_runner, "has_done", has_done)


def test_a_wait_within_a_read_is_counted_once(monkeypatch):
    """A step that reads in its middle first waits for those before it."""
    first, reading = (terra.coexecute(training(**how)[0], wait_for_graph=True) for how in (dict(), dict(reads=True)))
    for k in range(10):
        first(X[k % 4], k)
        reading(X[k % 4], k)
    terra.sync()
    slow(monkeypatch, 0.05)
    before, start = sum(step.stats().python_stall_s for step in (first, reading)), time.perf_counter()
    for k in range(4):
        first(X[k % 4], k)
        reading(X[k % 4], k)
    terra.sync()
    took, stall = time.perf_counter() - start, sum(step.stats().python_stall_s for step in (first, reading)) - before
    assert reading.stats().coexecuted_steps >= 10 and 0.2 <= stall <= took


def test_a_signal_handler_s_wait_is_part_of_the_one_that_it_interrupts(monkeypatch):
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w, read=lambda k: False)
    nested = []

    def handler():
        if not nested:
            nested.append(True)
            GRAPH_RUNNER.wait_for(GRAPH_RUNNER.flights[-1])

    step(X[0], 0)
    slow(monkeypatch, 0.1, handler)
    before, start = step.stats().python_stall_s, time.perf_counter()
    with terra.profile() as profile:
        terra.sync()
    took = time.perf_counter() - start
    assert nested and step.stats().coexecuted_steps >= 25 and 0.1 <= step.stats().python_stall_s - before <= took
    assert waited(of(profile.to_dict(), "wait")) == pytest.approx(step.stats().python_stall_s - before, rel=0.05)


def test_executing_a_step_again_is_no_wait(monkeypatch):
    """Where a read tells that a kernel has failed."""
    known = PythonRunner.diverge

    def diverge(self, reason):
        time.sleep(0.2)
        known(self, reason)

    table = tf.Variable(tf.ones([10]))

    def step(i):
        return float(tf.reduce_sum(tf.gather(table, i)))

    made = terra.coexecute(step, wait_for_graph=True)
    for k in range(8):
        assert made(tf.constant([k] * 10)) == step(tf.constant([k] * 10))
    monkeypatch.setattr(PythonRunner, "diverge", diverge)
    before, start = made.stats(), time.perf_counter()
    with pytest.raises(tf.errors.InvalidArgumentError):
        made(tf.constant([17] * 10))
    assert before.coexecuted_steps >= 5 and made.stats().fallbacks == before.fallbacks + 1 and time.perf_counter() - start >= 0.2
    assert made.stats().python_stall_s - before.python_stall_s < 0.2


# -- who asks ------------------------------------------------------------------------------------------------------------------

def test_nothing_is_noted_when_nobody_asks(monkeypatch):
    def never(*given):
        raise AssertionError("something was noted")

    for name in ("__init__", "add", "begin_wait", "dispatched", "landed"):
        monkeypatch.setattr(spans.Recorder, name, never)
    expected = run(*training(reads=True, feeds=True, sine_at=20))
    step, w = training(reads=True, feeds=True, sine_at=20)
    step = terra.coexecute(step, wait_for_graph=True)
    assert run(step, w) == expected and step.stats().coexecuted_steps >= 20 and spans.recorder is None


def test_nothing_is_noted_before_and_after():
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w)
    profile = terra.profile()
    assert profile.to_dict() == {"traceEvents": []} and spans.recorder is None
    with profile:
        run(step, w, 4)
        assert len(of(profile.to_dict(), "python", "skipped")) == 4
    run(step, w, 4)
    assert len(of(profile.to_dict(), "python", "skipped")) == 4 and spans.recorder is None


def test_blocks_in_one_another():
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w)
    with terra.profile() as outer:
        run(step, w, 3)
        with terra.profile() as inner:
            run(step, w, 4)
        run(step, w, 5)
    assert step.stats().coexecuted_steps >= 35 and spans.recorder is None
    found = [[event["args"]["step"] for event in of(profile.to_dict(), "python", "skipped")] for profile in (outer, inner)]
    assert found == [list(range(31, 43)), list(range(34, 38))]
    for profile in (outer, inner):
        graphs = of(profile.to_dict(), "graph")
        assert len(graphs) == (12 if profile is outer else 4) and all(event["ts"] >= 0 for event in graphs)


def test_threads():
    """Each thread has a track; what is recorded is the process's, whoever asks."""
    made = [training(reads=True), training(reads=True)]
    expected = [run(*training(reads=True)) for _ in made]
    steps, seen, recorded = [(terra.coexecute(step, wait_for_graph=True), w) for step, w in made], {}, {}

    def work(k):
        with terra.profile() as recorded[k]:
            seen[k] = run(*steps[k])

    with terra.profile() as whole:
        threads = [threading.Thread(target=work, args=(k,), name=f"worker {k}") for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [seen[k] for k in range(2)] == expected and all(step.stats().coexecuted_steps >= 15 for step, _ in steps), [step.stats() for step, _ in steps]
    trace = whole.to_dict()
    names = {event["args"]["name"]: event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {"Python (worker 0)", "Python (worker 1)", "graph"} <= set(names)
    assert waited(of(trace, "wait")) == pytest.approx(sum(step.stats().python_stall_s for step, _ in steps), rel=0.05)
    for k in range(2):
        assert 25 <= len([event for event in of(trace, "python", "skipped") if event["tid"] == names[f"Python (worker {k})"]]) <= 30  # those that found the other one at work are plain calls
        assert len(of(recorded[k].to_dict())) <= len(of(trace))


def test_a_block_that_raises_writes_its_file(tmp_path):
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    with pytest.raises(KeyError, match="planned"), terra.profile(tmp_path / "t.json", report=tmp_path / "r.html"):
        run(step, w)
        step(X[0], 0)
        raise KeyError("planned")
    trace = json.loads((tmp_path / "t.json").read_text())
    assert len(of(trace, "python", "skipped")) == 31 and step.stats().coexecuted_steps >= 25 and spans.recorder is None
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_an_error_of_a_step_in_flight_is_raised_and_the_file_written(tmp_path):
    table = tf.Variable(tf.ones([10]))

    @terra.coexecute(wait_for_graph=True)
    def step(i):
        table.assign_sub(0.001 * tf.gather(table, i))

    for k in range(8):
        step(tf.constant([k] * 10))
    with pytest.raises(tf.errors.InvalidArgumentError), terra.profile(tmp_path / "t.json"):
        step(tf.constant([17] * 10))
    assert step.stats().coexecuted_steps >= 4 and spans.recorder is None
    (graph,) = of(json.loads((tmp_path / "t.json").read_text()), "graph")
    assert graph["args"]["failed"] is True


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(terra.OptionError, match=r"cannot write .*nowhere/t\.json: there is no directory "):
        terra.profile(tmp_path / "nowhere" / "t.json")
    with pytest.raises(terra.OptionError, match=r"it is a directory\.$"):
        terra.profile(report=tmp_path)


def test_a_program_that_changes_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with terra.profile("t.json"):
        os.chdir("elsewhere")
    assert (tmp_path / "t.json").exists()


def test_spans_that_are_too_many(monkeypatch):
    monkeypatch.setattr(spans, "MOST", 10)
    step, w = training()
    step = terra.coexecute(step, wait_for_graph=True)
    with terra.profile() as profile:
        run(step, w)
    assert len(of(profile.to_dict())) == 10 and profile.to_dict()["otherData"]["spans_lost"] > 20


def test_a_forked_process_notes_nothing(tmp_path):
    with terra.profile(tmp_path / "t.json"):
        child = os.fork()
        if child == 0:
            os._exit(0 if spans.recorder is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and spans.recorder is not None


@pytest.mark.parametrize("beside", [False, True])
def test_tensorflow_s_profiler_has_the_spans(beside, tmp_path):
    """By itself, and beside `terra.profile`."""
    step, w = training(reads=True, feeds=True, sine_at=25)
    step = terra.coexecute(step, wait_for_graph=True)
    run(step, w, 10)
    tf.profiler.experimental.start(str(tmp_path))
    if beside:
        with terra.profile() as profile:
            run(step, w)
    else:
        run(step, w)
    tf.profiler.experimental.stop()
    (path,) = glob.glob(f"{tmp_path}/**/*.xplane.pb", recursive=True)
    with open(path, "rb") as file:
        found = set(re.findall(rb"terra:(\w+) ", file.read()))
    assert {b"python", b"wait", b"feed", b"fallback", b"builder"} <= found and step.stats().coexecuted_steps >= 25, found
    step(X[0], 0)
    assert spans.recorder is None  # the profiler is over
    if beside:
        assert len(of(profile.to_dict(), "python", "skipped")) == 30


def test_what_is_noted_of_a_step_takes_a_twentieth_of_two_milliseconds_at_most():
    """By itself, as steps are no clock on a busy machine: a step, two waits, three feeds, and a graph with no stamp."""
    step, _ = training()
    step = terra.coexecute(step)
    recording = timeline.Recording()
    recorder, outputs, shortest = spans.recorder, [object()], 1.0
    recorder._next_stamp = float("inf")
    try:
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(100):
                before = step._stats.steps, 0, 0, 0, 0
                recorded_steps.note(recorder, step, before, spans.mark(spans.PYTHON, "step"), 0.0)
                for _ in range(2):
                    recorder.end_wait(recorder.begin_wait("step"), 0.0, 1.0)
                for _ in range(3):
                    recorder.instant(spans.FEED, "step")
                recorder.dispatched(outputs, "step", 0.0, None)
                recorder.landed(outputs, 0.0, 1.0, True)
            shortest = min(shortest, (time.perf_counter() - start) / 100)
    finally:
        recording.end()
    assert shortest < 100e-6, shortest


# -- the command line ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def terra_run(tmp_path_factory):
    """`python -m terra run` in a directory, in a fork."""
    with forks.Interpreters(tmp_path_factory.mktemp("interpreters"), "import os, runpy, sys, tensorflow") as made:
        yield functools.partial(forks.run_script, made)


SCRIPT = """
    import sys
    import tensorflow as tf

    w = tf.Variable([1.0, 2.0])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w * x) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    for k in range(40):
        loss = float(step(tf.constant(k % 3 + 1.0)))
        if k == 30 and "raises" in sys.argv:
            raise ValueError("thirty <b>")
    print(loss, w.numpy())
"""


@pytest.mark.parametrize("raises", [False, True])
def test_both_options_together(raises, tmp_path, terra_run):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = terra_run(tmp_path, "--timeline", "t.json", "--report", "r.html", "--stats", "--wait-for-graph", "train.py", *["raises"] * raises)
    assert done.returncode == raises and ("ValueError: thirty <b>" in done.stderr) == raises, done.stderr
    plain = terra_run(tmp_path, "--wait-for-graph", "train.py", *["raises"] * raises)
    assert plain.stdout == done.stdout and re.search(r"^terra: (31|40) steps, [23]\d of them co-executed", done.stderr, re.MULTILINE), done.stderr
    trace, page = json.loads((tmp_path / "t.json").read_text()), (tmp_path / "r.html").read_text()
    assert 30 <= len(of(trace, "python", "skipped")) <= 40 and of(trace, "graph") and of(trace, "wait")
    assert "train.py:8" in page and "loss = tf.reduce_sum((w * x) ** 2)" in page and page.rstrip().endswith("</html>")


def test_a_wrong_file_is_told_before_anything_runs(tmp_path, terra_run):
    (tmp_path / "train.py").write_text("print('it ran')\n")
    done = terra_run(tmp_path, "--timeline", "nowhere/t.json", "train.py")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("terra run: cannot write nowhere/t.json: there is no directory ") and len(done.stderr.splitlines()) == 1


def test_a_script_that_is_not_there_leaves_no_file(tmp_path, terra_run):
    done = terra_run(tmp_path, "--timeline", "t.json", "--report", "r.html", "nothing.py")
    assert done.returncode == 2 and done.stderr == "terra run: cannot read nothing.py: No such file or directory.\n" and os.listdir(tmp_path) == []
