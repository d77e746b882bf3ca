"""Frames that are done show the line that eager execution shows: that of the statement that has raised, or returned."""

import contextlib
import sys

import pytest

from terra.transform import instrument, to_code
from terra.transform.rewriting.raising import _entries, _table


def boom(x=None):
    raise ValueError(x)


def fine(x=None):
    return x


@contextlib.contextmanager
def managed():
    try:
        yield fine()
    finally:
        fine()


@contextlib.contextmanager
def translating():
    try:
        yield
    except ValueError as error:
        raise KeyError(fine()) from error


def plain(x):
    fine(x)
    boom(x)
    return fine()


def in_a_loop(x):
    for k in range(3):
        fine(k)
        if k == 2:
            boom(k)
    return fine()


def in_while(x):
    k = 0
    while fine(k) < 3:
        k += 1
        while True:
            boom(k)
    else:
        fine()


def raised_here(x):
    fine(x)
    for _ in range(2):
        raise ValueError(
            x,
            fine(x))


def with_finally(x):
    try:
        fine()
        boom()
    finally:
        fine()


def finally_with_a_loop(x):
    try:
        boom()
    finally:
        for k in range(2):
            fine(k)


def finally_with_a_break(x):
    try:
        boom()
    finally:
        while fine(True):
            fine()
            break


def finally_with_with(x):
    try:
        boom()
    finally:
        with managed():
            fine()


def finally_raises(x):
    try:
        fine()
    finally:
        boom()


def not_caught(x):
    try:
        boom()
    except KeyError:
        fine()
    except TypeError as error:
        fine(error)


def raised_again(x):
    try:
        boom()
    except ValueError as error:
        fine(error)
        raise


def raised_another(x):
    try:
        boom()
    except ValueError as error:
        for k in range(2):
            fine(k)
        raise KeyError(x) from error


def caught_and_raised(x):
    try:
        boom()
    except ValueError:
        fine()
    fine()
    boom()


def in_with(x):
    with managed() as m:
        fine(m)
        boom(m)
    return fine()


def in_with_in_a_loop(x):
    for k in range(3):
        with managed(), managed():
            if fine(k):
                try:
                    boom()
                finally:
                    fine()


def translated(x):
    with translating():
        boom()


def nested(x):
    def inner(y):
        for k in range(2):
            fine(k)
        return boom(y)

    fine(x)
    return inner(x)


def in_lambda(x):
    function = lambda y: [fine(y), boom(y)]  # noqa: E731
    return function(x)


def in_comprehension(x):
    fine()
    return [fine(k)
            for k in range(3)
            if k == fine(0) or boom()]


def in_generator(x):
    def numbers():
        yield fine(1)
        for k in range(2):
            fine(k)
            yield boom(k)

    return [fine(k) for k in numbers()]


def generator(x):
    yield fine(x)
    with managed():
        yield boom(x)


def generator_is_closed(x):
    def numbers():
        yield fine(1)
        yield fine(2)

    it = numbers()
    next(it)
    it.throw(ValueError("thrown"))


def closing(x, *rest, y=3, **more):
    def helper():
        return x + boom(rest)

    return [helper() for _ in range(fine(1))]


def in_a_class(x):
    class A:
        y = fine(x)
        z = boom(x)

    return A


def deep(x):
    for a in range(1):
        for b in range(1):
            with managed():
                try:
                    try:
                        fine(a + b)
                    finally:
                        boom()
                except KeyError:
                    fine()


def of_an_operator(x):
    fine(x)
    return x / 0


def many_lines(x):
    fine(
        x,
    ) + fine(boom(
        x,
    ))


FUNCTIONS = [
    plain, in_a_loop, in_while, raised_here, with_finally, finally_with_a_loop, finally_with_a_break, finally_with_with, finally_raises, not_caught, raised_again,
    raised_another, caught_and_raised, in_with, in_with_in_a_loop, translated, nested, in_lambda, in_comprehension, in_generator, generator, generator_is_closed, closing,
    in_a_class, deep, of_an_operator, many_lines]
if sys.version_info >= (3, 11):  # a group of exceptions
    namespace = {"boom": boom, "fine": fine, "__name__": __name__}
    TEXT = "def in_a_group(x):\n    fine()\n    try:\n        boom()\n    except* KeyError:\n        fine()\n    except* TypeError as e:\n        fine(e)\n"


def lines(function):
    """(name, line of the frame, line of the traceback's entry) of the program's frames, innermost last, of all exceptions."""
    try:
        result = function(1)
        if hasattr(result, "send"):
            list(result)
    except Exception as error:
        found = []
        while error is not None:
            trace = error.__traceback__.tb_next
            while trace is not None:
                frame = trace.tb_frame
                if frame.f_code.co_filename == __file__:
                    found.append((frame.f_code.co_name, frame.f_lineno, trace.tb_lineno))
                trace = trace.tb_next
            found.append((type(error), str(error)))
            error = error.__context__
        return found
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_lines_of_frames_that_raised(function):
    form = instrument(function)
    assert form is not function and "_terra_" in to_code(function)
    expected = lines(function)
    assert all(line is not None for _, line, _ in (x for x in expected if len(x) == 3))
    for _ in range(3):  # the interpreter specializes instructions
        found = lines(form)
        if function is finally_with_a_break:  # which of the lines of the `finally` it is depends on the compiler's jumps
            assert found[0][1] is not None and [(*x[:1], *x[2:]) for x in found] == [(*x[:1], *x[2:]) for x in expected]
        else:
            assert found == expected


@pytest.mark.skipif(sys.version_info < (3, 11), reason="except* is new in Python 3.11")
def test_lines_in_groups(tmp_path, monkeypatch):
    path = tmp_path / "groups.py"
    path.write_text(TEXT)
    exec(compile(TEXT, str(path), "exec"), namespace)
    function = namespace["in_a_group"]
    form = instrument(function)
    assert form is not function
    shown = []
    for f in function, form:
        try:
            f(1)
        except Exception as error:
            trace = error.__traceback__.tb_next
            shown.append((trace.tb_frame.f_lineno, trace.tb_lineno))
    assert shown[0] == shown[1]  # (None, 4), in both


def returns_early(x):
    fine(x)
    for k in range(3):
        if k == 1:
            return sys._getframe()
    fine(x)


def returns_last(x):
    try:
        frame = sys._getframe()
    finally:
        fine(x)
    return (
        frame)


def returns_nothing(x):
    x.append(sys._getframe())
    fine(x)


@pytest.mark.parametrize("function", [returns_early, returns_last, returns_nothing], ids=lambda f: f.__name__)
def test_lines_of_frames_that_returned(function):
    shown = []
    for f in function, instrument(function):
        found = []
        frame = f(found) or found[0]
        shown.append(frame.f_lineno)
    assert shown[0] is not None and shown[1] is not None
    if function is not returns_nothing:
        assert shown[0] == shown[1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception tables are new in Python 3.11")
def test_exception_tables_are_written_as_read():
    for function in FUNCTIONS:
        table = function.__code__.co_exceptiontable
        assert _table(_entries(table)) == table
    large = [(0, 2, 200, 0, False), (130, 70000, 9000, 3, True), (70000, 70002, 2 * 64 ** 3, 70, True)]
    assert _entries(_table(large)) == large


def test_a_long_function():
    """Offsets of several bytes."""
    text = "def long(x, f):\n" + "    f(x)\n" * 3000 + "    raise ValueError(x)\n"
    import linecache
    linecache.cache["<a long one>"] = len(text), None, text.splitlines(True), "<a long one>"
    space = {"__name__": "somewhere"}
    exec(compile(text, "<a long one>", "exec"), space)
    form = instrument(space["long"])
    assert form is not space["long"]
    with pytest.raises(ValueError) as caught:
        form(1, fine)
    assert caught.tb.tb_next.tb_frame.f_lineno == caught.tb.tb_next.tb_lineno == 3002
