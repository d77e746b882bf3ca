"""After an exception, each frame of the traceback has the line that raised, as debuggers and notebooks want it."""

import bdb
import contextlib
import io
import pdb
import re
import sys
import traceback

import pytest

from terra.transform import instrument

# -- the transform alone ---------------------------------------------------------------------------------------------------------


def called(x):
    return x / 0


def in_a_loop(x):
    for k in range(3):
        if k == 2:
            raise ValueError(k)
    return x


def in_nested_loops(x):
    for k in range(3):
        for j in range(k):
            called(
                j
            )


def in_a_while(x):
    while x < 9:
        x += 1
        if x == 5:
            called(x)


def in_a_handler(x):
    try:
        called(x)
    except ZeroDivisionError as error:
        for k in range(2):
            raise KeyError(k) from error


def in_a_finally(x):
    try:
        for k in range(2):
            called(k)
    finally:
        x = [str(k) for k in range(3)]
        print(x)


def in_a_with(x):
    with contextlib.nullcontext() as y:
        for k in range(2):
            called(k)
    return y


def in_a_return(x):
    for k in range(2):
        return called(
            k)


def in_a_comprehension(x):
    return [called(k)
            for k in range(3)]


def in_a_generator(x):
    def numbers():
        for k in range(3):
            yield k
            called(k)

    return list(numbers())


def in_a_lambda(x):
    f = lambda y: [called(y) for _ in range(2)]  # noqa: E731
    return f(x)


def in_a_method(x):
    class Thing:
        def work(self, y):
            for k in range(y):
                called(k)

    return Thing().work(x)


def behind_a_caught_one(x):
    for k in range(3):
        try:
            called(k)
        except ZeroDivisionError:
            continue
    called(x)


def re_raised(x):
    try:
        called(x)
    except ZeroDivisionError:
        print("seen")
        raise


def in_a_match(x):
    match x:
        case 1:
            for k in range(2):
                called(k)


def deleted_name(x):
    for k in range(1):
        print(k)
    del k
    return k


PROGRAMS = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__ and value is not called]


def frames_of(function):
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(Exception) as caught:
        function(1)
    found, trace = [], caught.value.__traceback__.tb_next
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, trace.tb_lineno, trace.tb_frame.f_lineno))
        trace = trace.tb_next
    return type(caught.value), found


@pytest.mark.parametrize("program", PROGRAMS)
def test_frames_have_the_lines_that_they_have_eagerly(program):
    instrumented = instrument(program)
    assert instrumented is not program
    eager, ours = frames_of(program), frames_of(instrumented)
    if program is in_a_comprehension and sys.version_info < (3, 12):
        eager, ours = ((kind, [frame for frame in found if frame[0] != "<listcomp>"]) for kind, found in (eager, ours))
    assert ours == eager


def test_many_levels_and_repetition():
    """The handlers still work: what they do is done, however often, and at any depth."""
    def deep(n):
        for _ in range(1):
            try:
                if not n:
                    raise ValueError(n)
                deep(n - 1)
            finally:
                done.append(n)

    done = []
    deep = instrument(deep)
    for _ in range(50):
        with pytest.raises(ValueError):
            deep(5)
    assert done == [0, 1, 2, 3, 4, 5] * 50


# -- debuggers -------------------------------------------------------------------------------------------------------------------

def a_traceback():
    tf, terra = pytest.importorskip("tensorflow"), pytest.importorskip("terra")

    @terra.coexecute(wait_for_graph=True)
    def train(x, fail):
        y = tf.reduce_sum(x)
        if fail:
            for k in range(2):
                raise ValueError(f"bad batch {k}")
        return y

    for k in range(9):
        try:
            train(tf.ones(3), k == 8)
        except ValueError as error:
            assert train.stats().coexecuted_steps >= 4
            return error
    raise AssertionError("it did not fail")


def commands(*lines):
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("\n".join(lines) + "\n"), stdout=out, nosigint=True)
    debugger.reset()
    try:
        debugger.interaction(None, a_traceback().__traceback__)
    except bdb.BdbQuit:
        pass
    return out.getvalue()


def test_post_mortem_debugger():
    said = commands("l", "p k, fail", "up", "l", "down", "ll", "w", "q")
    assert re.search(r"->\s+raise ValueError", said) and "(0, True)" in said and re.search(r"->\s+train\(tf.ones\(3\), k == 8\)", said)


def test_stack_summaries():
    error = a_traceback()
    walked = list(traceback.walk_tb(error.__traceback__))
    assert all(frame.f_lineno == line for frame, line in walked[1:])
    assert "raise ValueError" in "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
