"""Debuggers, tracebacks, coverage and warnings see the user's own lines, in co-executed steps too."""

import bdb
import inspect
import io
import linecache
import pdb
import sys
import trace
import traceback
import warnings

import numpy as np
import pytest
import tensorflow as tf

import terra


def scaled(x, factor):
    y = x * factor
    z = y + 1.0                                  # the breakpoint
    return z


def program(x):
    total = tf.constant(0.0)
    for factor in (2.0, 3.0):
        total = total + tf.reduce_sum(scaled(x, factor))
    return total


def lines_of(function, *texts):
    lines, first = inspect.getsourcelines(function)
    return [first + next(i for i, line in enumerate(lines) if text in line) for text in texts]


def coexecuting(function, *args, calls=6):
    """A Coexecuted that has reached co-execution with these arguments."""
    step = terra.coexecute(function, wait_for_graph=True)
    for _ in range(calls):
        step(*args)
    terra.sync()
    assert step.stats().coexecuted_steps > 0, terra_reason(step)
    return step


def terra_reason(step):
    return step.fallback_reasons or step.generation.error


class Stops(bdb.Bdb):
    """A debugger that notes where it stops and what it sees there, and goes on."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        self.seen = []

    def user_line(self, frame):
        if self.break_here(frame):
            self.seen.append((frame.f_code.co_name, frame.f_lineno, [frame.f_locals[n] for n in self.names],
                              [f.f_code.co_name for f, _ in self.get_stack(frame, None)[0]]))
        self.set_continue()


@pytest.fixture
def settrace():
    old = sys.gettrace()
    yield
    sys.settrace(old)
    bdb.Breakpoint.clearBreakpoints()  # which debuggers that other tests make would find


def test_a_breakpoint_in_the_users_file_stops_in_a_coexecuted_step(settrace):
    x = tf.constant([1.0, 2.0])
    step = coexecuting(program, x)
    line, = lines_of(scaled, "# the breakpoint")
    debugger = Stops("factor")
    debugger.set_break(__file__, line)
    before = step.stats().coexecuted_steps
    try:
        result = debugger.runcall(step, x)
    finally:
        debugger.clear_all_breaks()
    assert float(result) == 19.0
    assert [s[:3] for s in debugger.seen] == [("scaled", line, [2.0]), ("scaled", line, [3.0])]
    assert all("program" in stack for *_, stack in debugger.seen)
    assert step.stats().coexecuted_steps == before + 1


def test_values_can_be_read_at_a_breakpoint(settrace):
    x = tf.constant([1.0, 2.0])
    step = coexecuting(program, x)
    line, = lines_of(scaled, "return z")
    values = []

    class Reads(Stops):
        def user_line(self, frame):
            if self.break_here(frame):
                values.append(frame.f_locals["z"].numpy().tolist())
            self.set_continue()

    debugger = Reads()
    debugger.set_break(__file__, line)
    try:
        assert float(debugger.runcall(step, x)) == 19.0
    finally:
        debugger.clear_all_breaks()
    assert values == [[3.0, 5.0], [4.0, 7.0]]


def test_pdb_shows_the_users_source_and_steps_over_lines(settrace):
    x = tf.constant([1.0, 2.0])
    step = coexecuting(program, x)
    line, = lines_of(scaled, "# the breakpoint")
    output = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(f"break {__file__}:{line}\ncontinue\np factor\nnext\nwhere\nclear 1\ncontinue\n"),
                       stdout=output, nosigint=True, readrc=False, skip=["terra.*", "tensorflow.*"])
    debugger.use_rawinput = False
    debugger.runcall(step, x)
    text = output.getvalue()
    assert "z = y + 1.0" in text and "-> return z" in text
    assert "(Pdb) 2.0" in text
    assert "total = total + tf.reduce_sum(scaled(x, factor))" in text


def test_set_trace_stops_at_the_next_line_of_the_users_function(settrace):
    output = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p i\nnext\nnext\np y.numpy()\ncontinue\n" * 2), stdout=output, nosigint=True, readrc=False)
    debugger.use_rawinput = False

    def step(x, i):
        if i in (2, 25):
            debugger.set_trace()
        y = x * 2.0                                  # the next line
        return y

    step = terra.coexecute(step, wait_for_graph=True)
    for i in range(30):
        step(tf.constant([1.0, 2.0]), i)
    text = output.getvalue()
    assert text.count("-> y = x * 2.0") == text.count("[2. 4.]") + text.count("[2., 4.]") == 2 and "(Pdb) 25" in text and "terra" not in text.replace(__file__, "")
    assert step.stats().coexecuted_steps > 20


def test_stepping_enters_the_users_function_when_terra_is_skipped(settrace):
    entered = []

    class Steps(bdb.Bdb):
        def user_call(self, frame, _):
            entered.append((frame.f_code.co_name, frame.f_code.co_filename))
            self.set_step()

        def user_line(self, frame):
            self.set_step()

    Steps(skip=["terra.*"]).runcall(terra.transform.instrument(outer), 1)
    assert [name for name, file in entered if file == __file__] == ["inner"]  # bdb calls it no call of its own where it began
    assert not any("terra" in file.split("/")[-2:] for _, file in entered)


def inner(x):
    return abs(x)


def outer(x):
    return inner(x)


def test_tracebacks_and_source_are_the_users():
    def fails(x, bad):
        y = tf.reduce_sum(x)
        if bad:
            raise KeyError("the user's")             # raised here
        return helper(y, bad)

    def helper(y, bad):
        return y * 2.0

    x = tf.constant([1.0, 2.0])
    step = coexecuting(fails, x, False)
    with pytest.raises(KeyError) as caught:
        step(x, True)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].lineno == lines_of(fails, "# raised here")[0] and frames[-1].name == "fails"
    assert frames[-1].line == 'raise KeyError("the user\'s")             # raised here'
    assert not any("site " in f.name for f in frames)
    assert inspect.getsource(step.__wrapped__) == inspect.getsource(fails)
    assert inspect.getsource(terra.transform.instrument(fails)) == inspect.getsource(fails)


def test_coverage_counts_the_users_lines(settrace):
    x = tf.constant([1.0, 2.0])
    step = coexecuting(program, x)
    counter = trace.Trace(count=True, trace=False)
    counter.runfunc(step, x)
    counts = {line: n for (file, line), n in counter.results().counts.items() if file == __file__}
    call, = lines_of(program, "total = total +")
    y, z = lines_of(scaled, "y = x", "z = y")
    assert counts[y] == counts[z] == counts[call] == 2
    own, first = inspect.getsourcelines(program)
    assert all(first <= line < first + len(own) for line in counts if line >= first and line < first + len(own))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_monitoring_sees_the_users_lines():
    seen = set()
    tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "test")
    sys.monitoring.register_callback(tool, events.LINE, lambda code, line: seen.add((code.co_filename, line)))
    sys.monitoring.set_events(tool, events.LINE)
    try:
        terra.transform.instrument(outer)(1)
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert {line for file, line in seen if file == __file__} >= set(lines_of(outer, "return") + lines_of(inner, "return"))


def test_coverage_package_agrees_with_a_plain_run(tmp_path):
    coverage = pytest.importorskip("coverage")
    form = terra.transform.instrument(program)
    x = tf.constant([1.0, 2.0])
    executed = []
    for function in (program, form):
        measured = coverage.Coverage(data_file=str(tmp_path / "data"), include=[__file__])
        measured.start()
        function(x)
        measured.stop()
        executed.append(set(measured.get_data().lines(__file__)))
    assert executed[0] == executed[1]


def test_warnings_point_at_the_caller():
    def warns():
        warnings.warn("look", stacklevel=2)

    def calls(x):
        y = x + 1.0
        warns()                                      # the caller
        return y

    x = tf.constant(1.0)
    step = coexecuting(calls, x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(x)
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, lines_of(calls, "# the caller")[0])]


def test_linecache_is_enough():
    """A notebook's cell: a file name that is no file, with its lines in linecache."""
    source = "def cell(x):\n    y = helper(x)\n    return y\n\ndef helper(x):\n    raise ValueError('in the cell')\n"
    name = "<ipython-input-1-terra>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {}
    exec(compile(source, name, "exec"), space)
    form = terra.transform.instrument(space["cell"])
    assert terra.transform.is_instrumented(form) and terra.transform.reason(space["cell"]) is None
    with pytest.raises(ValueError) as caught:
        form(1)
    shown = [(f.name, f.lineno, f.line) for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == name]
    assert shown == [("cell", 2, "y = helper(x)"), ("helper", 6, "raise ValueError('in the cell')")]


# -- messages that tell the number of the step ---------------------------------------------------------------------------------


def checked(wrap, where, steps=30, bad=25, **options):
    """(losses, message of the failure) of steps that check their numbers, with another message each time; the input of step `bad` is not finite."""
    w = tf.Variable(tf.eye(3))

    def check(x, k):
        return tf.debugging.check_numerics(x, f"in step {k}")

    def step(x, k):
        with tf.GradientTape() as tape:
            y = x @ w
            if where == "rolled":
                for _ in range(1 + k % 5):
                    y = check(tf.tanh(y), k)
            elif where == "gradient of rolled":
                for _ in range(1 + k % 5):
                    y = tf.sqrt(tf.abs(check(y, k)))
            elif where == "function":
                y = check(tf.tanh(y), k)
            elif where == "gradient":
                y = tf.sqrt(tf.abs(tf.debugging.check_numerics(y, f"in step {k}")))  # whose gradient is infinite at 0
            else:
                y = tf.debugging.check_numerics(tf.tanh(y), message=f"in step {k}")
            loss = tf.reduce_sum(y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    step = wrap(step, **options)
    losses, message = [], None
    for k in range(steps):
        x = np.random.default_rng(k).normal(size=(2, 3)).astype(np.float32)
        if k == bad:
            x = x * (0 if "gradient" in where else np.nan)
        try:
            losses.append(float(step(tf.constant(x), k)))
        except tf.errors.InvalidArgumentError as error:
            message = error.message
            break
    return losses, message, w.numpy().tolist(), step


@pytest.mark.parametrize("where", ["plain", "function", "gradient", "rolled", "gradient of rolled"])
def test_a_check_with_another_message_each_time(where):
    expected = checked(lambda step: step, where)[:3]
    *actual, step = checked(terra.coexecute, where, wait_for_graph=True)
    assert expected[1] is not None and "in step 25" in expected[1]
    assert actual == list(expected)
    stats = step.stats()
    assert stats.coexecuted_steps >= (12 if "rolled" in where else 20), (stats, terra.explain(step))
    assert stats.traces <= 2 or "rolled" in where
