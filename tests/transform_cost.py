"""What instrumentation costs: ``python -m tests.transform_cost`` prints the table of docs/transform.md, measured with pyperf.

Each row runs a function that does little else but one thing (ten calls, a hundred iterations), plain, instrumented inside
of a step, and instrumented outside of one; the difference is divided by the number of things. pyperf starts worker
processes, so a row is the mean of several processes' values. ``--fast`` and pyperf's other options work.
"""

import os
import sys

import pyperf

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # pyperf's workers run this file as a script

from terra.location.location import begin_step, end_step  # noqa: E402
from terra.transform import instrument  # noqa: E402

ITEMS = range(100)


def function(x):
    return x


def make_closure():
    kept = 1

    def closure(x):
        return kept

    return closure


closure = make_closure()


class Thing:
    def method(self, x):
        return x

    def __call__(self, x):
        return x


thing = Thing()


def call_of_a_function():
    function(1), function(1), function(1), function(1), function(1)
    function(1), function(1), function(1), function(1), function(1)


def call_of_a_closure():
    closure(1), closure(1), closure(1), closure(1), closure(1)
    closure(1), closure(1), closure(1), closure(1), closure(1)


def call_of_a_method():
    thing.method(1), thing.method(1), thing.method(1), thing.method(1), thing.method(1)
    thing.method(1), thing.method(1), thing.method(1), thing.method(1), thing.method(1)


def call_of_an_instance():
    thing(1), thing(1), thing(1), thing(1), thing(1)
    thing(1), thing(1), thing(1), thing(1), thing(1)


def call_of_a_class():
    Thing(), Thing(), Thing(), Thing(), Thing()
    Thing(), Thing(), Thing(), Thing(), Thing()


def call_of_a_builtin():
    abs(1), abs(1), abs(1), abs(1), abs(1)
    abs(1), abs(1), abs(1), abs(1), abs(1)


def iteration_of_for():
    for _ in ITEMS:
        pass


def iteration_of_while():
    i = 0
    while i < 100:
        i += 1


def item_of_a_comprehension():
    [i + i for i in ITEMS]


def item_of_a_generator_expression():
    for _ in (i + i for i in ITEMS):
        pass


def nothing_to_instrument():
    x = 1
    return x + x


ROWS = [(f, 10) for f in (call_of_a_function, call_of_a_closure, call_of_a_method, call_of_an_instance, call_of_a_class,
                          call_of_a_builtin)]
ROWS += [(f, 100) for f in (iteration_of_for, iteration_of_while, item_of_a_comprehension, item_of_a_generator_expression)]
ROWS += [(nothing_to_instrument, 1)]


def in_step(f):
    def timed(loops):
        saved = begin_step()
        try:
            f()
            begin = pyperf.perf_counter()
            for _ in range(loops):
                f()
            return pyperf.perf_counter() - begin
        finally:
            end_step(saved)

    return timed


def outside(f):
    def timed(loops):
        f()
        begin = pyperf.perf_counter()
        for _ in range(loops):
            f()
        return pyperf.perf_counter() - begin

    return timed


def main():
    runner = pyperf.Runner(processes=3, values=5, min_time=0.02)
    lines = ["| | plain (ns) | in a step (+ns) | outside of steps (+ns) |", "|---|---|---|---|"]
    for f, count in ROWS:
        form = instrument(f)
        plain, inside, out = (runner.bench_time_func(f"{f.__name__} {kind}", timed)
                              for kind, timed in (("plain", outside(f)), ("in step", in_step(form)), ("outside", outside(form))))
        if runner.args.worker or out is None:
            continue
        # The fastest values: other processes can only add.
        base, one, other = (min(b.get_values()) / count * 1e9 for b in (plain, inside, out))
        lines.append(f"| {f.__name__.replace('_', ' ')} | {base:.0f} | {one - base:.0f} | {other - base:.0f} |")
    if not runner.args.worker:
        print("\n".join([""] + lines), file=sys.stdout)


if __name__ == "__main__":
    main()
