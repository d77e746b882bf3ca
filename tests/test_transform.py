"""The transform, construct by construct: same behaviour as the original, right locations, the user's lines.

`check(f, *args)` runs a function both ways and compares results, exceptions and their lines. Functions that call `op()`
log the executed location; the log is what the location tests assert on.
"""

import asyncio
import contextlib
import functools
import inspect
import linecache
import logging
import pickle
import sys
import traceback
import types
import warnings

import pytest

from terra import transform
from terra.runtime.location import OUTSIDE, ROOT, begin_step, end_step, tls
from terra.transform import instrument, is_instrumented, reason, to_code

LOG = []


def op(value=None):
    """Stands for a DL operation. No call in here, so that it is not instrumented itself."""
    global LOG
    LOG += [tls.current]
    return value


def located(function, *args, **kwargs):
    """Runs the instrumented function as a step; the locations of its ops."""
    LOG.clear()
    saved = begin_step()
    try:
        instrument(function)(*args, **kwargs)
    finally:
        current = tls.current
        end_step(saved)
    assert current is ROOT
    return list(LOG)


def outcome(function, args):
    try:
        result = function(*args)
        if isinstance(result, types.GeneratorType):
            result = list(result)
        return "returned", result
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        here = [(f.name, f.lineno) for f in frames if f.filename == __file__ and f.name != "outcome"]
        library = [f.filename for f in frames if "terra" in f.filename.replace(__file__, "").split("/")[-2:]]
        return "raised", type(error), str(error), here, library


def check(function, *args):
    form = instrument(function)
    assert is_instrumented(form), reason(function)
    expected = outcome(function, args)
    for _ in range(2):
        assert outcome(form, args) == expected
        assert tls.current is OUTSIDE
        saved = begin_step()
        assert outcome(form, args) == expected
        assert tls.current is ROOT
        end_step(saved)
    return expected[1]


# --- control flow ---


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
    if sys.version_info >= (3, 11):
        assert [instrument(f)(5) for f in pair] == [6, 10]
        assert all(is_instrumented(instrument(f)) for f in pair)
    else:
        assert [instrument(f)(5) for f in pair] == [6, 10]
    nested = lambda x: (lambda y: op(x) + op(y))  # noqa: E731
    assert instrument(nested)(1)(2) == 3 and instrument(nested(1))(2) == 3


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


# --- classes ---


class Base:
    def __init__(self, x):
        self.__x = x

    def value(self):
        return op(self.__x)

    @classmethod
    def make(cls, x):
        return cls(op(x))

    @staticmethod
    def static(x):
        return op(x)

    @property
    def prop(self):
        return op(self.__x)

    def __call__(self, k):
        return op(k) + self.__private(k)

    def __private(self, k):
        return op(k)


class Derived(Base):
    def value(self):
        def again():
            return super(Derived, self).value() + __class__.__name__.count("D")

        return super().value() + again() + self.prop

    def parent(self):
        return [super(Derived, self).value() for _ in range(2)] + [super().static(3)]


def test_methods_super_private_names_and_class_cell():
    d = Derived(4)
    assert instrument(d.value)() == d.value() == 13
    assert instrument(Derived.parent)(d) == d.parent()
    assert instrument(d)(2) == d(2) == 4
    assert instrument(Base.make)(3).value() == 3
    assert instrument(Base.static)(3) == 3
    assert not reason(Derived.value) and not reason(Derived.parent)
    assert Derived.value.__code__ is not instrument(Derived.value).__code__

    def f():
        return d.value(), d(1), Base.make(7).value(), d.static(2), Derived.static(1)

    check(f)
    # call sites inside the methods are seen too
    assert max(len(place.call_ids) for place in located(f)) >= 4


def test_class_defined_inside():
    def f(n):
        class Inner(Base):
            table = [op(i) for i in range(n)]
            size = op(len(table))
            for k in range(2):
                pass

            def value(self):
                return super().value() + op(self.size)

        return Inner(n).value(), Inner.__qualname__, Inner.value.__qualname__, sorted(vars(Inner))

    check(f, 3)


def test_keeps_identity_attributes():
    def f(a: int, b: "str" = "x") -> float:
        "Doc."
        return op(a)

    f.mark = 1
    form = instrument(f)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__dict__",
                 "__annotations__", "__globals__", "__closure__"):
        assert getattr(form, name) == getattr(f, name), name
    assert form.__globals__ is f.__globals__
    form.mark = 2
    assert f.mark == 2
    assert form.__code__.co_freevars == f.__code__.co_freevars
    assert form.__code__.co_firstlineno == f.__code__.co_firstlineno
    if sys.version_info >= (3, 11):
        assert form.__code__.co_qualname == f.__code__.co_qualname
    assert inspect.getsource(form) == inspect.getsource(f)
    before = set(globals())
    form(1)
    assert set(globals()) == before


def test_idempotent_and_cached():
    def f():
        return op()

    form = instrument(f)
    assert instrument(f) is form and instrument(form) is form
    assert is_instrumented(form) and not is_instrumented(f)


def test_closures_made_anew_share_code_not_cells():
    def make(k):
        def f():
            nonlocal k
            k += op(1)
            return k
        return f

    one, two = make(1), make(10)
    forms = instrument(one), instrument(two)
    assert [forms[0](), forms[1](), one(), two()] == [2, 11, 3, 12]
    assert forms[0].__code__ is forms[1].__code__


def test_recursion_goes_through_the_instrumented_form():
    def fact(n):
        op()
        return 1 if n == 0 else n * fact(n - 1)

    assert instrument(fact)(3) == 6
    places = located(fact, 3)
    assert [len(p.call_ids) for p in places] == [1, 2, 3, 4]
    assert len(set(places)) == 4


# --- the caller's frame ---


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


# --- generators and coroutines ---


def test_generators_send_throw_close_return():
    def gen(n):
        trail = []
        try:
            for i in range(n):
                try:
                    got = yield op(i)
                    trail.append(got)
                except KeyError as error:
                    trail.append(op(str(error)))
                    yield op("caught")
        finally:
            op(trail.append("closed"))
            SEEN.append(trail)
        return trail

    def drive(generator):
        SEEN.clear()
        out = [next(generator), generator.send("a"), generator.throw(KeyError("k")), generator.send("b")]
        try:
            while True:
                out.append(generator.send("c"))
        except StopIteration as stop:
            out.append(stop.value)
        other = generator
        assert list(other) == []
        return out, list(SEEN)

    def close_early(generator):
        SEEN.clear()
        next(generator), next(generator)
        generator.close()
        return list(SEEN)

    form = instrument(gen)
    for use in (drive, close_early):
        expected = use(gen(4))
        assert use(form(4)) == expected and tls.current is OUTSIDE
        saved = begin_step()
        assert use(form(4)) == expected and tls.current is ROOT
        end_step(saved)
    assert inspect.isgeneratorfunction(form)


SEEN = []


def test_yield_from_and_delegation():
    def inner(n):
        got = []
        for i in range(n):
            got.append((yield op(i)))
        return got

    def outer(n):
        a = yield from inner(n)
        b = yield from op([7, 8])
        return a, b

    def f(n):
        g = outer(n)
        out = [next(g)]
        try:
            while True:
                out.append(g.send(len(out)))
        except StopIteration as stop:
            out.append(stop.value)
        return out

    form = instrument(outer)
    assert list(form(3)) == list(outer(3))
    check(f, 3)


def test_a_suspended_generator_leaves_nothing_on_the_stack():
    def gen():
        for i in range(3):
            op("in")
            yield f"{op(i)}"

    def consumer():
        g = gen()
        for _ in range(2):
            next(g)
            op("between")
        unfinished = gen()
        next(unfinished)
        op("end")

    places = located(consumer)
    lines = inspect.getsourcelines(consumer)[0]
    first = consumer.__code__.co_firstlineno
    for text, loops in (('op("between")', 1), ('op("end")', 0)):
        line = first + next(i for i, l in enumerate(lines) if text in l)
        own = [p for p in places if p.origin() == (__file__, line)]
        assert len(own) == (2 if loops else 1)
        assert all(len(p.loop_ids) == loops and len(p.call_ids) == 1 for p in own)
    produced = [p for p in places if p.origin()[1] < first]
    assert len(produced) == len(places) - 3 == 6
    assert {len(p.loop_ids) for p in produced} == {1, 2}
    assert located(consumer) == places


def test_a_generator_that_outlives_steps_gives_each_the_same_locations():
    def gen():
        while True:
            op("produce")
            yield 1

    g = instrument(gen)()
    next(g)  # begun outside

    def step():
        next(g)
        op()

    places = [located(step) for _ in range(4)]
    assert places[0] == places[1] == places[2] == places[3]
    assert all(p is not OUTSIDE for p in places[0])


def test_coroutines_and_async_everything():
    class Manager:
        async def __aenter__(self):
            return op("enter")

        async def __aexit__(self, *args):
            await asyncio.sleep(0)
            return args[0] is KeyError

    async def numbers(n):
        for i in range(n):
            await asyncio.sleep(0)
            yield op(i)

    async def child(k):
        await asyncio.sleep(0)
        return op(k)

    async def f(n):
        trail = []
        async with Manager() as m:
            trail.append(m)
            async for i in numbers(n):
                if i == 1:
                    continue
                if i == 4:
                    break
                trail.append(op(i))
            else:
                trail.append("else")
        async with Manager():
            raise KeyError("swallowed")
        trail += [await child(k) for k in range(2)]
        trail += [i async for i in numbers(2)]
        trail.append({k: await child(k) for k in range(2)})
        trail += await asyncio.gather(child(1), child(2))
        trail.append(await op(child(5)))
        return trail

    form = instrument(f)
    assert inspect.iscoroutinefunction(form)
    for n in (2, 6):
        expected = asyncio.run(f(n))
        assert asyncio.run(form(n)) == expected and tls.current is OUTSIDE
        saved = begin_step()
        assert asyncio.run(form(n)) == expected and tls.current is ROOT
        end_step(saved)


# --- locations ---


def two_sites(x):
    a = op(x)
    b = op(a)
    return b


def test_sites_are_distinct_and_stable():
    first, second = located(two_sites, 1), located(two_sites, 2)
    assert first[0] is not first[1]
    assert first[0] is second[0] and first[1] is second[1]
    line = two_sites.__code__.co_firstlineno
    assert first[0].origin() == (__file__, line + 1)


def test_iterations_are_distinct_and_counted():
    def f(n):
        for _ in range(n):
            k = 0
            while k < 2:
                k = k + 1
                op()
        return [op() for _ in range(n)]

    places = located(f, 2)
    assert len(set(places)) == 6
    assert [tuple(c for _, c in p.loop_ids) for p in places] == [(1, 1), (1, 2), (2, 1), (2, 2), (1,), (2,)]
    assert located(f, 2) == places


def test_code_behind_a_branch_does_not_depend_on_it():
    def f(x):
        for i in range(x):
            op() if x > 1 else None
        try:
            if x > 1:
                raise KeyError
        except KeyError:
            op()
        op()

    assert located(f, 1)[-1] is located(f, 2)[-1]


def test_arguments_are_inside_their_call_site():
    def f():
        op(op())

    inner, outer = located(f)
    assert inner.call_ids[:-1] == outer.call_ids[:1]


def test_finally_is_at_home_whichever_way_it_is_reached():
    def f(kind):
        try:
            try:
                for i in range(2):
                    if kind:
                        raise kind
            finally:
                op()
        except KeyError:
            pass

    assert located(f, KeyError) == located(f, None)

    def g():
        try:
            for i in range(2):
                raise KeyError(op())
        except KeyError:
            op()
            yield
        try:
            for i in range(2):
                yield
        except ValueError:
            op()

    def drive(function):
        form = instrument(function)()
        next(form), next(form)
        try:
            form.throw(ValueError)
        except StopIteration:
            pass

    places = located(drive, g)
    assert [len(p.loop_ids) for p in places] == [1, 0, 0]
    assert [len(p.call_ids) for p in places][1:] == [2, 2]


def test_an_exception_through_a_library_function_is_cleaned_up():
    def bad(x):
        for _ in range(3):
            raise ValueError(op(x))

    def f():
        for i in range(2):
            try:
                list(map(bad, [1]))
            except ValueError:
                op("handler")
        with contextlib.suppress(ValueError):
            bad(1)
        op("end")

    places = located(f)
    assert places[-1].loop_ids == () and len(places[-1].call_ids) == 1


# --- what is instrumented, and what is not ---


def test_library_code_is_left_alone():
    assert instrument(len) is len
    assert reason(len) == "is not a Python function"

    def f():
        return functools.reduce(lambda a, b: op(a + b), [1, 2, 3]), textwrap_dedent(" x")

    from textwrap import dedent as textwrap_dedent

    check(f)
    assert not any(c.__code__ is textwrap_dedent.__code__ for c in [instrument(f)])


def test_no_source_no_problem(caplog):
    space = {"op": op}
    exec("def f(x):\n    return [op(i) for i in range(x)]", space)
    f = space["f"]
    with caplog.at_level(logging.DEBUG, logger="terra"):
        assert instrument(f) is f
    assert "no source" in caplog.text and "no source" in reason(f)
    assert "not instrumented" in to_code(f)

    def g():
        return f(2)

    assert check(g) == [0, 1]


def test_configure_by_prefix():
    source = "def lib(x):\n    return op(x) + op(x)\n"
    name = "/nowhere/site-packages/somelib/core.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"op": op, "__name__": "somelib.core"}
    exec(compile(source, name, "exec"), space)
    lib = space["lib"]

    def f():
        return lib(1)

    assert [len(p.call_ids) for p in located(f)] == [1, 1]
    try:
        transform.configure(include=["somelib"])
        assert [len(p.call_ids) for p in located(f)] == [2, 2]
        transform.configure(exclude="somelib.core")
        assert [len(p.call_ids) for p in located(f)] == [1, 1]
    finally:
        transform.policy.settings.prefixes.pop("somelib", None)
        transform.policy.settings.prefixes.pop("somelib.core", None)
        transform.configure()


def test_partial_and_callable_objects():
    def add(a, b):
        return op(a) + op(b)

    def f():
        return functools.partial(add, 1)(2), Base(3)(4)

    check(f)
    assert [len(p.call_ids) for p in located(f)][:2] == [2, 2]
    assert instrument(functools.partial(add, 1))(2) == 3


def make_library_layer():
    """A class that looks like a library's: its __call__ calls self.call."""
    source = "class Layer:\n    def __call__(self, x):\n        return self.call(x)\n    def call(self, x):\n        pass\n"
    name = "/nowhere/site-packages/layers/__init__.py"
    space = {"__name__": "layers"}
    exec(compile(source, name, "exec"), space)
    return space["Layer"]


def test_overrides_that_only_the_library_calls():
    Layer = make_library_layer()

    class Mine(Layer):
        def call(self, x):
            return [op(i) for i in range(x)]

    original = Mine.call
    layer = Mine()

    def f():
        return layer(2)

    assert check(f) == [0, 1]
    assert [p.loop_ids[-1][1] for p in located(f)] == [1, 2]
    assert Mine.call is not original and is_instrumented(Mine.call)
    assert inspect.signature(Mine.call) == inspect.signature(original)
    transform.restore_classes()
    assert Mine.call is original
    transform.configure(patch_overrides=False)
    try:
        check(f)
        assert Mine.call is original
    finally:
        transform.configure(patch_overrides=True)


def test_instances_and_functions_are_not_kept_alive():
    import gc
    import weakref

    class Model:
        def __call__(self, x):
            return op(x)

    def f():
        model = Model()
        inner = lambda: op(model)  # noqa: E731
        model(1), inner()
        return weakref.ref(model)

    saved = begin_step()
    dead = instrument(f)()
    end_step(saved)
    LOG.clear()
    gc.collect()
    assert dead() is None


def test_pickle_and_to_code():
    form = instrument(two_sites)
    # the form is pickled by reference, as any function: what unpickles is the user's own
    with contextlib.suppress(pickle.PicklingError):
        assert pickle.loads(pickle.dumps(form)) is two_sites
    text = to_code(two_sites)
    assert text == to_code(form)
    assert "enter(" in text and "import tls as _terra_tls" in text
    space = {"op": op}
    exec(compile(text, "printed", "exec"), space)
    assert space["two_sites"](3) == 3


def test_names_do_not_collide():
    def f(_terra_cursor):
        _terra_here = op(_terra_cursor)
        return _terra_here

    assert check(f, 3) == 3


def test_no_tensorflow_needed():
    import subprocess

    code = ("import sys, types, os\n"
            "pkg = types.ModuleType('terra'); pkg.__path__ = [sys.argv[1]]; sys.modules['terra'] = pkg\n"
            "rt = types.ModuleType('terra.runtime'); rt.__path__ = [os.path.join(sys.argv[1], 'runtime')]\n"
            "sys.modules['terra.runtime'] = rt\n"
            "import terra.transform\n"
            "assert 'tensorflow' not in sys.modules\n")
    import os
    subprocess.run([sys.executable, "-c", code, os.path.dirname(os.path.dirname(transform.__file__))], check=True)
