"""Which executed locations operations see."""

import contextlib

from terra.transform import instrument
from tests.transform.checks import located, op


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
