"""Functions that are cut in two between two statements: head and tail do what the whole does, or it is not cut."""

import ast
import inspect
import linecache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terra.transform import instrument, parts
from tests import variants

GLOBAL = 5


def cut_at_all(function):
    form = instrument(function)
    return {k: found for k in range(len(parts.statements_at(function)) + 1) if (found := parts.cut_before(function, form, k)) is not None}


def outcome(call):
    """What a call gives, or raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def whole(a, b=2, *more, c=3, **named):
    """The first statement is this text."""
    x = max(a, b)
    y, a = [x, c], a + 1
    for z in more:
        y.append(z)
    if named:
        y.append(sorted(named))
    y.append(GLOBAL)
    def inner(k):
        return k + x
    total = sum(inner(k) for k in y[:2])
    return y, a, b, total


@pytest.mark.parametrize("args, named", [((1,), {}), ((1, 4, 5, 6), {"c": 9}), ((7,), {"d": 1, "b": 3})])
def test_parts_do_what_the_whole_does(args, named):
    cuts = cut_at_all(whole)
    assert set(cuts) == set(range(1, 8))
    for found in cuts.values():
        for head in (found.head, found.plain_head):
            assert found.tail(head(*args, **named), *args, **named) == whole(*args, **named)
        assert inspect.signature(found.head) == inspect.signature(whole)
        assert found.tail.__name__ == found.head.__name__ == "whole" and found.tail.__qualname__ == "whole"


def test_lines_are_those_of_the_whole():
    def fails(x):
        y = max(x, 0)
        y = max(y, 1)
        return y / 0

    found = cut_at_all(fails)[2]
    with pytest.raises(ZeroDivisionError) as caught:
        found.tail(found.head(1), 1)
    last = caught.traceback[-1]
    assert (last.name, str(last.path), last.lineno + 1) == ("fails", __file__, fails.__code__.co_firstlineno + 3) and found.line == last.lineno + 1


class Base:
    def add(self, x):
        return x + 1


class Derived(Base):
    factor = 2

    def add(self, x):
        y = max(super().add(x), 0)
        y = max(y, self.factor)
        return y, __class__.__name__

    def __hidden(self, x):
        return -x

    def hides(self, x):
        y = max(x, 0)
        z = self.__hidden(y)
        return abs(z) - self.__hidden(z)


def test_methods():
    cuts = cut_at_all(Derived.add)
    assert set(cuts) == {1, 2}
    assert all(found.tail(found.head(Derived(), 3), Derived(), 3) == (4, "Derived") for found in cuts.values())
    assert all(found.tail(found.head(Derived(), 3), Derived(), 3) == Derived().hides(3) for found in cut_at_all(Derived.hides).values())


def test_cells_are_shared():
    n = 1

    def step(x):
        y = max(x, n)
        return y + max(n, 0)

    found = cut_at_all(step)[1]
    n = 10
    assert found.tail(found.head(1), 1) == step(1) == 20


def leaves(x):
    if max(x, 0) > 3:
        return 1
    return max(x, 1)


def suspends(x):
    y = max(x, 0)
    yield y


def may_be_unbound(x):
    if max(x, 0) > 3:
        y = 1
    max(x, 1)
    return max(y, 1)


def looks(x):
    y = max(x, 0)
    return sorted(locals()) + [max(y, 0)]


def evaluates(x):
    y = max(x, 0)
    return eval("y") + y


def declares(x):
    global GLOBAL
    y = max(x, GLOBAL)
    return max(y, GLOBAL)


def is_read_by_a_function(x):
    y = max(x, 0)
    f = lambda: y  # noqa: E731
    y = max(y, 7)
    return max(f(), 0)


def uses_super(self, x):
    y = max(x, 0)
    return max(super().add(y), 0)


def reads_what_is_bound_behind(x):
    y = max(GLOBAL if x else 0, 0)  # noqa: F823
    GLOBAL = max(y, 1)  # noqa: F841
    return max(y, 1)


def keeps_a_tape(x):
    with tf.GradientTape() as tape:  # noqa: F821 (it is not run)
        y = max(x, 0)
    return tape.gradient(y, max(x, 1))


def only_returns(x):
    y = max(x, 0)
    return y, (x, 1)


async def is_awaited(x):
    y = max(x, 0)
    return max(y, 1)


@pytest.mark.all_variants
@pytest.mark.parametrize("function, where", [
    (leaves, set()), (suspends, set()), (may_be_unbound, set()), (looks, set()), (evaluates, set()), (declares, set()), (is_read_by_a_function, {1, 3}), (uses_super, set()),
    (reads_what_is_bound_behind, {2}), (keeps_a_tape, set()), (only_returns, set()), (is_awaited, set())], ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_program_could_tell_is_not_cut(function, where):
    assert set(cut_at_all(function)) == where


def test_without_source():
    space = {}
    exec("def step(x):\n    y = max(x, 0)\n    return max(y, 1)", space)
    assert parts.statements_at(space["step"]) == [] and parts.cut_before(space["step"], space["step"], 1) is None


NAMES = "abcx"


@st.composite
def statements(draw, depth=2):
    """A few lines of code that bind, read and delete a few names, and tell of it."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        target, *read = (draw(st.sampled_from(NAMES)) for _ in range(3))
        kind = draw(st.sampled_from(["assign", "assign", "assign", "augment", "see", "if", "for", "function", "delete", "try", "list"] if depth else ["assign", "see"]))
        if kind in ("if", "for"):
            head = f"if max({read[0]}, 0) % 2:" if kind == "if" else f"for {target} in range(max({read[0]}, 0) % 3):"
            lines += [head, *("    " + line for line in draw(statements(depth - 1)))]
        elif kind == "try":
            lines += ["try:", *("    " + line for line in draw(statements(depth - 1))), "except UnboundLocalError:", f"    {target} = 4"]
        elif kind == "function":
            lines += [f"f{target} = lambda: see({read[0]})", f"{target} = f{target}()"]
        else:
            lines.append({"assign": f"{target} = max({read[0]}, {read[1]}) + 1", "augment": f"{target} += see({read[0]})", "see": f"see({read[0]})", "delete": f"del {target}",
                          "list": f"{target} = sum([see({target}) for {read[1]} in (1, 2)])"}[kind])
    return lines


def test_random_functions():
    n_cut = 0

    @settings(max_examples=variants.examples(300), deadline=None)
    @given(statements(), st.integers(0, 3), st.integers(0, 3))
    def check(lines, x, y):
        nonlocal n_cut
        text = "def step(a, b, see):\n" + "\n".join("    " + line for line in [*lines, "return see(a)"])
        name = f"<cut {hash(text)}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        space = {"__name__": "__main__", "c": 1, "x": 2}
        exec(compile(ast.parse(text), name, "exec"), space)
        step = space["step"]

        def run(call):
            seen = []

            def see(value):
                seen.append(value)
                return value

            return outcome(lambda: call(x, y, see)), seen

        expected = run(step)
        for found in cut_at_all(step).values():
            n_cut += 1
            for head in (found.head, found.plain_head):
                assert run(lambda *args, head=head, found=found: found.tail(head(*args), *args)) == expected

    check()
    assert n_cut > 50
