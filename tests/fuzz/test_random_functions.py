"""Random programs: instrumented and original give the same result, the same trail, the same exception at the same line.

Programs are made as text. Every one calls ``t(...)`` now and then, which records its argument (the trail) and, when
instrumented, the executed location. The locations must be the same each time a program is run, and balanced at its end.
"""

import ast
import itertools
import linecache
import os
import re
import sys
import traceback

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from terra.location.location import ROOT, begin_step, end_step, tls
from terra.transform import instrument, reason
from terra.transform.rewriting.unparser import unparse
from tests.variants import examples

_numbers = itertools.count()


def shown(value):
    return re.sub("0x[0-9a-f]+", "0x", repr(value))


class Trail:
    def __init__(self):
        self.values = []
        self.places = []

    def __call__(self, value=None):
        if len(self.values) > 300:
            raise MemoryError("long enough")
        self.values += [shown(value)]
        self.places += [tls.current]
        return value


# --- programs ---

names = st.sampled_from(["a", "b", "c"])
small = st.integers(-1, 3).map(str)


def expressions(depth=2, in_generator=False):
    leaf = st.one_of(names, small)
    if depth == 0:
        return leaf
    sub = expressions(depth - 1, in_generator)
    options = [
        leaf,
        st.builds("t({})".format, sub),
        st.builds("t({})".format, sub),
        st.builds("({} + {})".format, sub, sub),
        st.builds("({} // {})".format, sub, sub),
        st.builds("({} if {} else {})".format, sub, sub, sub),
        st.builds("({} and {} or {})".format, sub, sub, sub),
        st.builds("sum([t({}) for {} in range({}) if {}])".format, sub, names, sub, sub),
        st.builds("sum(t({}) for {} in range({}) if t({}))".format, sub, names, sub, sub),
        st.builds("len({{{}: {} for {} in range({})}})".format, sub, sub, names, sub),
        st.builds("(lambda {}: t({}))({})".format, names, sub, sub),
        st.builds("(a := t({}))".format, sub),
        st.builds("len(f'{{{}}}{{t({})!r:>{{3}}}}')".format, sub, sub),
        st.builds("max(*[{}, {}], key=lambda v: t(v))".format, sub, sub),
    ]
    if sys.version_info < (3, 13):  # CPython 3.13.0 itself crashes on locals() in a comprehension
        options.append(st.just("len(sorted(locals()))"))
    if in_generator:
        options += [st.builds("((yield {}) or 0)".format, sub), st.builds("t((yield t({})) or {})".format, sub, sub)]
    return st.one_of(options)


def indent(block):
    return ["    " + line for line in block]


def flatten(head, *parts):
    lines = [head]
    for part in parts:
        lines += [part] if isinstance(part, str) else indent(part)
    return lines


def blocks(depth, loop, gen):
    return st.lists(statements(depth, loop, gen), min_size=1, max_size=3).map(lambda b: [line for s in b for line in s])


def statements(depth, loop=False, gen=False):
    e = expressions(2, gen)
    simple = [
        st.builds("{} = {}".format, names, e),
        st.builds("{} += {}".format, names, e),
        st.builds("t({})".format, e),
        st.builds("assert {}, t('no')".format, e),
        st.builds("raise {}('x')".format, st.sampled_from(["KeyError", "ValueError", "t"])),
        st.builds("return {}".format, e),
    ]
    if loop:
        simple += [st.just("break"), st.just("continue"), st.builds("if {}: break".format, e)]
    if gen:
        simple += [st.builds("yield {}".format, e), st.builds("{} = yield from [{}, t(2)]".format, names, e),
                   st.builds("{} = yield from helper({})".format, names, e)]
    one = st.one_of(simple).map(lambda line: [line])
    if depth == 0:
        return one
    block, inner = blocks(depth - 1, loop, gen), blocks(depth - 1, True, gen)
    errors = st.sampled_from(["KeyError", "(ValueError, AssertionError)", "Exception as error"])
    return st.one_of(
        one,
        one,
        st.builds(lambda c, x, y: flatten(f"if {c}:", x, "else:", y), e, block, block),
        st.builds(lambda v, n, x: flatten(f"for {v} in range({n}):", x), names, e, inner),
        st.builds(lambda v, n, x, y: flatten(f"for {v} in range({n}):", x, "else:", y), names, e, inner, block),
        st.builds(lambda v, c, x, y: flatten(f"while t({v}) < {c}:", [f"{v} += 1"] + x, "else:", y),
                  names, small, inner, block),
        st.builds(lambda x, k, y: flatten("try:", x, f"except {k}:", y), block, errors, block),
        st.builds(lambda x, k, y, z, w: flatten("try:", x, f"except {k}:", y, "else:", z, "finally:", w),
                  block, errors, block, block, block),
        st.builds(lambda x, y: flatten("try:", x, "finally:", y), block, block),
        st.builds(lambda x: flatten("with suppress(KeyError, AssertionError):", x), block),
        st.builds(lambda c, x, y: flatten(f"match {c}:", ["case 0 | 1 if t(a):"] + indent(x) + ["case _:"] + indent(y)),
                  e, block, block),
        st.builds(lambda v, x, k: flatten(f"def inner({v}=t({k}), *rest):", x) + ["b = inner()"], names,
                  blocks(depth - 1, False, False), e),
    )


def programs(gen):
    return blocks(2, False, gen).map(
        lambda body: "\n".join(["def program(t, a=1, b=2, c=0):"] + indent(body + (["yield t(a)"] if gen else [])))
        + "\n\ndef helper(n):\n    for i in range(2):\n        yield n + i\n    return n\n")


# --- running ---


def define(text):
    from contextlib import suppress

    filename = f"<fuzz {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space = {"suppress": suppress, "__name__": "fuzz"}
    exec(compile(text, filename, "exec"), space)
    return space["program"], filename


def drive(function, filename):
    """What a run shows: trail, yields, result or exception with its lines in the program; and the locations."""
    trail = Trail()
    yields = []
    try:
        result = function(trail)
        if hasattr(result, "throw"):
            generator = result
            send = 0
            while True:
                try:
                    if send == 3:
                        yields.append(("thrown", generator.throw(KeyError("thrown in"))))
                    else:
                        yields.append(generator.send(send or None))
                    send += 1
                    if send > 12:
                        generator.close()
                        result = "closed"
                        break
                except StopIteration as stop:
                    result = stop.value
                    break
        end = "returned", shown(result)
    except (Exception, MemoryError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(f.name, f.lineno) for f in frames if f.filename == filename]
        if "thrown in" in str(error):
            lines = lines[:1]  # Python 3.11 leaves out the inner generator if it is run by another one's `finally`, where nothing is instrumented
        end = "raised", type(error), str(error), lines
        error.__traceback__ = error.__context__ = None
    return (trail.values, shown(yields), end), trail.places


def assert_lexical(places):
    """A call site has one way to it (no program here is recursive), whatever was raised, skipped or suspended before."""
    ways = {}
    for place in places:
        way = place.call_ids, tuple(loop_id for loop_id, _ in place.loop_ids)
        assert ways.setdefault(place.call_ids[-1], way) == way, place


def compare(text):
    try:
        program, filename = define(text)
    except SyntaxError:  # a walrus that rebinds a comprehension's variable, say
        return
    expected, _ = drive(program, filename)
    form = instrument(program)
    assert "nothing" in (reason(program) or "nothing"), reason(program)
    places = []
    for _ in range(2):
        saved = begin_step()
        got, where = drive(form, filename)
        assert tls.current is ROOT
        end_step(saved)
        assert got == expected
        assert_lexical(where)
        places.append(where)
    assert len(places[0]) == len(places[1])
    assert all(one is other for one, other in zip(*places))


common = settings(max_examples=int(os.environ.get("TERRA_FUZZ", examples(150))), deadline=None, suppress_health_check=list(HealthCheck))


@common
@given(programs(gen=False))
def test_functions(text):
    compare(text)


@common
@given(programs(gen=True))
def test_generators(text):
    compare(text)


@common
@given(programs(gen=True))
def test_printing_gives_the_same_tree_back(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    printed = unparse(tree)
    assert without_empty_literals(ast.parse(printed)) == without_empty_literals(tree), printed


def without_empty_literals(tree):
    """Python 3.12.1 leaves empty literals in format specifications."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values = [v for v in node.values if getattr(v, "value", None) != ""]
    return ast.dump(tree)
