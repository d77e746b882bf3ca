"""How far instrumentation reaches: functions that no call site names, and those that a library wraps."""

import asyncio
import contextlib
import functools

import pytest

from terra import transform
from terra.location.location import ROOT, begin_step, end_step, tls
from terra.transform import instrument
from tests.transform.checks import check, located, op


@pytest.fixture(autouse=True)
def unpatched():
    yield
    transform.restore_classes()


class Thing:
    """Every function in here loops, so that an instrumented one shows in the loop ids."""

    def __init__(self, n):
        self.n = n
        for _ in range(n):
            op("init")

    def __enter__(self):
        for _ in range(self.n):
            op("enter")
        return self

    def __exit__(self, *args):
        for _ in range(self.n):
            op("exit")

    @property
    def size(self):
        return [op("get") for _ in range(self.n)]

    @size.setter
    def size(self, value):
        for _ in range(value):
            op("set")

    @functools.cached_property
    def once(self):
        return [op("once") for _ in range(self.n)]

    def __add__(self, other):
        for _ in range(self.n):
            op("add")
        return other

    def __len__(self):
        for _ in range(self.n):
            op("len")
        return self.n


def loops(places):
    return [tuple(counter for _, counter in place.loop_ids) for place in places]


def test_constructors_context_managers_properties_and_operators():
    def f(n):
        thing = Thing(n)
        with thing:
            thing.size = n
            return thing.size, thing.once, thing + 3, len(thing)

    assert check(f, 2) == (["get"] * 2, ["once"] * 2, 3, 2)
    assert loops(located(f, 2)) == [(1,), (2,)] * 8


def test_restore_puts_everything_back():
    before = dict(vars(Thing)), Thing.__dict__["once"].func.__code__
    located(lambda: Thing(1).once)
    assert Thing.__init__ is not before[0]["__init__"]
    assert Thing.__dict__["once"].func.__code__ is not before[1]
    transform.restore_classes()
    assert dict(vars(Thing)) == before[0] and Thing.__dict__["once"].func.__code__ is before[1]


def test_metaclasses_slots_and_generated_methods():
    import dataclasses
    import enum

    class Meta(type):
        def __call__(cls, *args):
            op("meta")
            return super().__call__(*args)

    class Made(metaclass=Meta):
        __slots__ = ("x",)

        def __init__(self, x):
            self.x = [op(x) for _ in range(x)]

    @dataclasses.dataclass
    class Data:
        x: int

        def __post_init__(self):
            self.y = [op(self.x) for _ in range(self.x)]

    class Color(enum.Enum):
        RED = 1

        def __call__(self):
            return [op(i) for i in range(2)]

    def f():
        return Made(2).x, Data(2).y, Color(1)(), Color.RED.name

    assert check(f) == ([2, 2], [2, 2], [0, 1], "RED")
    assert loops(located(f)) == [(), (1,), (2,), (1,), (2,), (1,), (2,)]


@contextlib.contextmanager
def managed(n):
    for _ in range(n):
        op("before")
    try:
        yield n
    finally:
        op("after")


def test_contextmanager():
    def f():
        with managed(2) as n, contextlib.suppress(KeyError):
            raise KeyError(n)
        with pytest.raises(ValueError):
            with managed(1):
                raise ValueError

    check(f)
    assert loops(located(f)) == [(1,), (2,), (), (1,), ()]
    assert managed.__name__ == "managed"


def test_a_library_wrapper_keeps_its_other_cells():
    calls = []

    def decorate(function):  # stands for a library's
        @functools.wraps(function)
        def wrapper(*args):
            calls.append(args)
            return function(*args)

        return wrapper

    space = {"__name__": "numpy.mine"}  # library code
    wrapper = type(decorate)(decorate.__code__, {**globals(), **space}, closure=decorate.__closure__)(managed.__wrapped__)

    def f():
        return list(wrapper(1))

    assert located(f) and calls == [(1,)]


def test_lru_cache_keeps_its_cache():
    @functools.lru_cache(None)
    def cached(n):
        return [op(i) for i in range(n)]

    first = cached(1)

    def f():
        return cached(2), cached(1), cached(2)

    assert loops(located(f)) == [(1,), (2,)]
    assert cached(1) is first and cached.cache_info().misses == 2


def test_several_clauses_of_a_generator_expression():
    def f(n):
        return sum(op(i) * j for i in range(n) if i for j in range(i) if op(j)), sum(i for i in range(2) for i in [op(i)])

    check(f, 4)
    places = located(f, 4)
    counted = [p for p in places if p.loop_ids]
    assert len(set(counted)) == len(counted) == 9 and located(f, 4) == places

    def wrong():
        return list(op(i) for _ in 5 for i in [1])

    check(wrong)


def test_a_swallowed_exception_of_a_lambda_is_cleaned_up():
    def swallow(function):
        try:
            function(1)
        except ZeroDivisionError:
            return "swallowed"

    space = {"__name__": "numpy.mine"}
    library = type(swallow)(swallow.__code__, {**globals(), **space})

    def f():
        op(library(lambda x: op(abs(op(x) / 0))))
        op()

    places = located(f)
    assert [len(p.call_ids) for p in places] == [5, 1, 1]


def test_async_comprehensions():
    async def numbers(n):
        for i in range(n):
            yield op(i)

    async def f():
        return [op(i) async for i in numbers(3) if op(i)], {op(i): op(j) async for i in numbers(2) for j in range(i)}, \
            [j async for j in (op(i) async for i in numbers(2))]

    form = instrument(f)
    expected = asyncio.run(f())
    saved = begin_step()
    assert asyncio.run(form()) == expected and tls.current is ROOT
    end_step(saved)


def test_classes_that_answer_strangely():
    class Meta(type):
        @property
        def __dict__(cls):
            return None

        @property
        def __mro__(cls):
            raise RuntimeError

        def __setattr__(cls, name, value):
            raise RuntimeError

    class Strange(metaclass=Meta):
        __module__ = 7

        def __init__(self):
            op("init")

        def method(self):
            return [op(i) for i in range(2)]

    class Frozen(metaclass=Meta):
        def __init__(self):
            op("init")

    def f():
        Frozen()
        return Strange().method()

    assert check(f) == [0, 1]
