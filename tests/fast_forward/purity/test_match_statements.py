"""`match` statements: the observed form takes subjects apart as the interpreter does, and what patterns look at is guarded."""

import collections
import dataclasses
import itertools
import linecache
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import terra
from terra.transform import convert
from tests.harness import check_skipped

# --- the form ---


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self):
        return f"{type(self).__name__}({vars(self)})"


class Half(Point):
    def __init__(self, x):
        self.x = x


class Text(str):
    pass


Pair = collections.namedtuple("Pair", "first second")
Names = types.SimpleNamespace(one=1, key="k", point=Point)
_numbers = itertools.count()


def observed(function, *args):
    """The result of the observed form, while nobody observes."""
    return convert.observed_form(function)(*args)


def outcome(call, *args):
    try:
        return call(*args)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


leaves = st.sampled_from(["0", "1", "-1", "1.5", "'k'", "'ab'", "None", "True", "False", "_", "_", "NAME", "NAME", "Names.one", "Names.key", "int()", "str()", "list()", "Point()", "Pair()"])


def larger(inner):
    plain = inner.map(lambda text: text.replace("NAME", "_").replace("STAR", "_").replace("REST", ""))
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.builds(lambda a, b, star: f"[{', '.join([*a, star, *b])}]", st.lists(inner, max_size=2), st.lists(inner, max_size=2), st.sampled_from(["*NAME", "*_"])),
        st.builds(lambda parts, rest: "{" + ", ".join([*(f"{key}: {part}" for key, part in parts.items()), *rest]) + "}",
                  st.dictionaries(st.sampled_from(["'a'", "'k'", "1", "Names.key", "Names.one"]), inner, max_size=2), st.sampled_from([[], ["**NAME"]])),
        st.builds("{}({})".format, st.sampled_from(["int", "str", "list", "Text", "tuple", "bool"]), inner),
        st.builds(lambda cls, parts: f"{cls}({', '.join(parts)})", st.sampled_from(["Point", "Names.point", "Pair", "Half"]), st.lists(inner, max_size=3)),
        st.builds("Point(x={}, y={})".format, inner, inner),
        st.builds("Pair({}, second={})".format, inner, inner),
        inner.map("({} as NAME)".format),
        st.builds("({} | {})".format, plain.filter(lambda text: text != "_"), inner.map(lambda text: text.replace("NAME", "_"))),
        st.builds("(({} as SAME) | ({} as SAME))".format, plain.filter(lambda text: text != "_"), plain),
    )


patterns = st.recursive(leaves, larger, max_leaves=6)
values = st.recursive(
    st.sampled_from([0, 1, -1, 1.5, True, None, "k", "ab", Text("k"), Half(1), b"k", range(2)]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.lists(inner, max_size=3).map(collections.deque),
        st.dictionaries(st.sampled_from(["a", "k", 1]), inner, max_size=3), st.builds(Point, inner, inner), st.builds(Pair, inner, inner)),
    max_leaves=6)


def program(cases):
    lines, names = [], []
    for k, (pattern, guard) in enumerate(cases):
        for word in ("SAME", "NAME"):
            while word in pattern:
                names.append(f"v{len(names)}")
                pattern = pattern.replace(word, names[-1], 2 if word == "SAME" else 1)
        lines += [f"        case {pattern}{guard and f' if log({guard}, {k})'}:", f"            log(0, {k})"]
    text = "\n".join(["def program(subject, log):", *(f"    {name} = 'unbound'" for name in names), "    match subject:", *lines, f"    return [{', '.join(names)}]"]) + "\n"
    filename = f"<match {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space = {"Point": Point, "Half": Half, "Pair": Pair, "Text": Text, "Names": Names, "__name__": "match"}
    exec(compile(text, filename, "exec"), space)
    return space["program"]


@settings(deadline=None)
@given(st.lists(st.tuples(patterns, st.sampled_from(["", "", "0", "1"])), min_size=1, max_size=3), st.lists(values, min_size=1, max_size=4))
def test_subjects_are_taken_apart_as_the_interpreter_does(cases, subjects):
    try:
        function = program(cases)
    except SyntaxError:  # a pattern that matches everything before another one
        return
    for subject in subjects:
        results = []
        for call in (function, lambda *args: observed(function, *args)):
            trail = []

            def log(answer, k):
                trail.append((answer, k))
                return answer

            results.append((outcome(call, subject, log), trail))
        assert repr(results[1]) == repr(results[0]) and results[1] == results[0]


def test_rare_subjects():
    class Odd(collections.abc.Sequence):
        def __len__(self):
            return 2

        def __getitem__(self, k):
            return "item", k

        def __iter__(self):
            return iter(["iterated"] * 2)

    class Lacking(dict):
        def __missing__(self, key):
            raise AssertionError("it was asked for")

    def f(it):
        match it:
            case [a, *_] if len(it) == 2 and isinstance(it, Odd) and Names.one == 1:
                return "wild", a
            case [a, b]:
                return a, b
            case {"a": a, Names.key: k}:
                return a, k
            case {"a": a, **rest}:
                return a, rest
            case (Names.one as n) | (2 as n):
                return n
            case np.ndarray(shape=(2, n)) | tf.Tensor(shape=(n, 2)):
                return n
        return "nothing"

    def g(it):
        match it:
            case [a, b]:
                return a, b

    def twice(it):
        match it:
            case {Names.key: 1, Names.key: 2}:
                return it

    def no_class(it):
        match it:
            case Names.key():
                return it

    subjects = [Odd(), Lacking(a=1), Lacking(a=1, k=2), np.zeros((2, 3)), tf.zeros((3, 2)), 1, 2, 3, [1, 2], (3, 4), np.array([1, 2]), collections.deque([5, 6]), "ab", {}]
    for function in (f, g, twice, no_class):
        for it in subjects + [{"k": 1, "a": 2}]:
            assert repr(outcome(lambda x: observed(function, x), it)) == repr(outcome(function, it)), (function.__name__, it)
    assert observed(g, Odd()) == ("iterated", "iterated") and observed(f, Odd()) == ("wild", ("item", 0))
    assert outcome(no_class, 1)[0] is TypeError and outcome(twice, {"k": 1, "a": 2})[0] is ValueError


def test_a_name_that_is_not_its_own_is_refused():
    name = 1

    def f(it):
        nonlocal name
        match it:
            case [name]:
                return name

    with pytest.raises(convert.Unobservable, match="not its own"):
        convert.observed_form(f)
    assert f([3]) == 3 and name == 3


# --- in steps ---


@dataclasses.dataclass
class Config:
    kind: str
    rate: float = 0.5


class Shape:
    __match_args__ = ("size",)

    def __init__(self, size, factor):
        self.size, self.factor = size, factor


class Model:
    def __init__(self):
        self.w = tf.Variable([[1.0, 2.0], [-1.0, 0.5]])
        self.act, self.config, self.sizes, self.options, self.pair, self.shape = "relu", Config("a"), [2.0, 3.0, 4.0], {"clip": 1.0, "norm": "l2"}, Pair(1, 2.0), Shape(2, 3.0)

    def by_string(self, h):
        match self.act:
            case "relu":
                return tf.nn.relu(h)
            case "tanh" | "sigmoid" as name:
                return getattr(tf, name)(h)
            case None:
                return h * 3.0
            case _:
                return h * 2.0

    def by_record(self, h):
        match self.config:
            case Config("a", rate=rate) if rate < 0.7:
                return h * rate
            case Config(kind=kind):
                return h + len(kind)

    def by_list(self, h):
        match self.sizes:
            case [first, *others]:
                return h * first + len(others)
            case []:
                return h

    def by_dict(self, h):
        match self.options:
            case {"clip": clip, **others}:
                return tf.clip_by_value(h, -clip, clip) + len(others)
            case {"norm": str(name)}:
                return h - len(name)

    def by_several(self, h):
        match h, self.pair:
            case tf.Tensor(shape=shape), Pair(a, b):
                return h * a / b + shape[0]

    def by_object(self, h):
        match self.shape:
            case Shape(size, factor=3.0):
                return h * size
            case Shape():
                return h - 1.0

    def by_value(self, h):
        match tf.reduce_sum(h) > 0.0, tf.size(h):
            case True, tf.Tensor():
                return h
            case positive, _ if positive:
                return h * 2.0
            case _:
                return h - 1.0


def _setter(**values):
    return lambda model: vars(model).update(values)


CASES = [
    ("by_string", [_setter(act="tanh"), _setter(act=None), _setter(act="other")]),
    ("by_record", [lambda model: setattr(model.config, "rate", 0.9), lambda model: setattr(model.config, "kind", "longer"), _setter(config=Config("a", 0.25))]),
    ("by_list", [lambda model: model.sizes.append(1.0), lambda model: model.sizes.__setitem__(0, 0.5), lambda model: model.sizes.clear()]),
    ("by_dict", [lambda model: model.options.update(clip=0.25), lambda model: model.options.update(more=1), lambda model: model.options.pop("clip")]),
    ("by_several", [_setter(pair=Pair(3, 2.0)), _setter(pair=Pair(3, 0.5))]),
    ("by_object", [lambda model: setattr(model.shape, "size", 5), lambda model: setattr(model.shape, "factor", 1.0)]),
    ("by_value", [lambda model: model.w.assign(-model.w)]),
]


@pytest.mark.parametrize("method,changes", CASES, ids=[name for name, _ in CASES])
def test_steps_that_match_are_skipped_until_something_changes(method, changes):
    x, n = tf.constant([[1.0, -2.0], [0.5, 1.5], [2.0, 1.0]]), 14
    results, seen = [], []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        model, losses = Model(), []

        @wrap
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(getattr(model, method)(x @ model.w) ** 2)
            model.w.assign_sub(0.01 * tape.gradient(loss, model.w))
            return loss

        for change in [lambda model: None, *changes]:
            change(model)
            losses += [float(step(x)) for _ in range(n)]
            if hasattr(step, "stats"):
                seen.append(step.stats().whole_steps)
        results.append((losses, model.w.numpy().tolist()))
    assert results[1] == results[0]
    assert len(set(results[0][0][::n])) == len(changes) + 1
    check_skipped(step, n * (len(changes) + 1), whole=8, express=0)
    assert len(set(seen)) == len(seen), seen  # skipped again after each change


def test_what_positions_stand_for_is_guarded():
    x, results = tf.constant(2.0), []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        shape, values = Shape(2, 3.0), []

        @wrap
        def step(x):
            match shape:
                case Shape(number):
                    return tf.abs(tf.tanh(x) * 0.0 - x) * number

        for names in (("size",), ("factor",), ("size",)):
            Shape.__match_args__ = names
            values += [float(step(x)) for _ in range(12)]
        results.append(values)
    assert results[1] == results[0] == [4.0] * 12 + [6.0] * 12 + [4.0] * 12
    check_skipped(step, 36, whole=8, express=0)
