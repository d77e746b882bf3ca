"""Generators and coroutines: suspended, closed early, thrown into, outliving steps."""

import asyncio
import inspect

from terra.location.location import OUTSIDE, ROOT, begin_step, end_step, tls
from terra.transform import instrument
from tests.transform.checks import check, located, op


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
