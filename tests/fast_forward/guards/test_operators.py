"""What operators, builtins and numpy look at: steps are skipped as a whole only while all of it, however deep, is the same, and runs no code of the user's."""

import sys
import enum
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

X = tf.constant([[1.0, 2.0], [3.0, 4.0]])
CALLS = []
RANK_WARNING = (np.exceptions if hasattr(getattr(np, "exceptions", None), "RankWarning") else np).RankWarning


def run(make, wrap):
    """What 14 calls give, with a change before the ninth, what they leave, and the step."""
    CALLS.clear()
    step, *change = make()
    step = wrap(step)
    seen = []
    for k in range(14):
        if k == 8:
            for act in change:
                act()
        try:
            seen.append(tf.nest.map_structure(lambda x: np.asarray(x).tolist() if tf.is_tensor(x) else x, step(X)))
        except (FloatingPointError, AssertionError) as error:
            seen.append(type(error).__name__)
    return seen, list(CALLS), step


def check(make, skipped=None):
    """Compare with eager execution; `skipped`: whether steps must be skipped, or must not."""
    expected, calls, _ = run(make, lambda step: step)
    found, found_calls, step = run(make, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert found == expected
    assert found_calls == calls
    stats = step.stats()
    assert stats.coexecuted_steps >= 4, stats
    if skipped is not None:
        assert (stats.whole_steps > 0) == skipped, stats


# -- what is deep in the operands ------------------------------------------------------------------------------------------------

NESTED = {
    "difference": (lambda c: len(c["set"].difference(c["other"])), lambda c: c["other"].add("a")),
    "union": (lambda c: len(c["set"].union(c["rates"], c["more"])), lambda c: c["more"].append("new")),
    "union of lists": (lambda c: len(set().union(*c["lists"])), lambda c: c["lists"][0].append(9)),
    "union of a generator": (lambda c: len(set().union(v for v in c["more"])), lambda c: c["more"].append("new")),
    "issubset": (lambda c: c["set"].issubset(c["all"]), lambda c: c["all"].discard("a")),
    "issuperset": (lambda c: c["set"].issuperset(c["other"]), lambda c: c["other"].add("z")),
    "isdisjoint": (lambda c: c["set"].isdisjoint(c["other"]), lambda c: c["other"].add("a")),
    "intersection": (lambda c: len(c["set"].intersection(c["all"])), lambda c: c["all"].discard("a")),
    "symmetric_difference": (lambda c: len(c["set"].symmetric_difference(c["all"])), lambda c: c["all"].discard("a")),
    "operators of sets": (lambda c: len((c["set"] | c["other"]) - c["all"]), lambda c: c["other"].add("z")),
    "format_map": (lambda c: "{more}".format_map(c), lambda c: c["more"].append("new")),
    "translate": (lambda c: "xyz".translate(c["table"]), lambda c: c["table"].update({120: "q"})),
    "join": (lambda c: ",".join(c["more"]), lambda c: c["more"].append("new")),
    "equal dicts": (lambda c: c["a"] == c["b"], lambda c: c["a"]["o"].update(lr=2)),
    "unequal dicts": (lambda c: c["a"] != c["b"], lambda c: c["a"]["o"].update(lr=2)),
    "tuples of dicts": (lambda c: (c["a"], 1) == (c["b"], 1), lambda c: c["a"]["o"].update(lr=2)),
    "lists of dicts": (lambda c: [c["a"]] == [c["b"]], lambda c: c["a"]["o"].update(lr=2)),
    "lists of lists": (lambda c: c["lists"] == [[1], [2]], lambda c: c["lists"][1].append(2)),
    "count": (lambda c: c["dicts"].count({"lr": 1}), lambda c: c["dicts"][0].update(lr=2)),
    "index": (lambda c: c["dicts"].index({"lr": 1}), lambda c: c["dicts"][0].update(lr=2)),
    "count in a tuple": (lambda c: c["pair"].count([1]), lambda c: c["pair"][0].append(2)),
    "in values": (lambda c: {"lr": 1} in c["a"].values(), lambda c: c["a"]["o"].update(lr=2)),
    "in items": (lambda c: ("o", {"lr": 1}) in c["a"].items(), lambda c: c["a"]["o"].update(lr=2)),
    "in a list": (lambda c: {"lr": 1} in c["dicts"], lambda c: c["dicts"][0].update(lr=2)),
    "str": (lambda c: str(c["a"]), lambda c: c["a"]["o"].update(lr=2)),
    "percent": (lambda c: "%s" % c["a"], lambda c: c["a"]["o"].update(lr=2)),
    "percent of a tuple": (lambda c: "%s %s" % (c["a"], 1), lambda c: c["a"]["o"].update(lr=2)),
    "percent by name": (lambda c: "%(o)s" % c["a"], lambda c: c["a"]["o"].update(lr=2)),
    "repr": (lambda c: repr(c["dicts"]), lambda c: c["dicts"][0].update(lr=2)),
    "f-string": (lambda c: f"{c['dicts']}", lambda c: c["dicts"][0].update(lr=2)),
    "format": (lambda c: "{0}".format(c["dicts"]), lambda c: c["dicts"][0].update(lr=2)),
    "dict of lists": (lambda c: dict(c["pairs"])["k"], lambda c: c["pairs"][0].__setitem__(1, 5)),
    "dict of a generator": (lambda c: dict(p for p in c["pairs"])["k"], lambda c: c["pairs"][0].__setitem__(1, 5)),
    "np.stack": (lambda c: float(np.sum(np.stack((c["array"], c["array"])))), lambda c: c["array"].fill(3)),
    "np.array of a tuple": (lambda c: float(np.sum(np.array((c["numbers"], c["numbers"])))), lambda c: c["numbers"].__setitem__(0, 7.0)),
    "np.sum of nested": (lambda c: float(np.sum(([c["array"]],))), lambda c: c["array"].fill(3)),
    "sum of nested": (lambda c: len(sum(c["lists"], [])), lambda c: c["lists"][0].append(3)),
    "a list and an array": (lambda c: float(np.sum(c["array"] + [c["numbers"]])), lambda c: c["numbers"].__setitem__(0, 7.0)),
    "max of lists": (lambda c: max(c["lists"])[0], lambda c: c["lists"][0].__setitem__(0, 8)),
}


@pytest.mark.parametrize("case", NESTED)
def test_nested(case):
    look, change = NESTED[case]

    def make():
        config = {
            "set": {"a", "b"}, "other": set(), "all": {"a", "b", "c"}, "rates": ["a"], "more": ["m"], "lists": [[1], [2]], "table": {120: "u"},
            "a": {"o": {"lr": 1}}, "b": {"o": {"lr": 1}}, "dicts": [{"lr": 1}, {"lr": 1}], "pair": ([1], [2]), "pairs": [["k", 1]],
            "array": np.ones(2), "numbers": [1.0, 2.0]}
        return (lambda x: (tf.tanh(x), look(config))), lambda: change(config)

    check(make)


@pytest.mark.parametrize("name", ["update", "intersection_update", "difference_update", "symmetric_difference_update"])
def test_sets_that_are_changed(name):
    def make():
        held, others = set(range(20)), [{k, k + 1} for k in range(20)]

        def step(x):
            getattr(held, "difference_update" if name == "update" else name)(others[len(held) % 20])
            held.add(3)
            CALLS.append(len(held))
            return tf.tanh(x)

        return (step,)

    check(make, False)


def test_update_with_lists():
    def make():
        pairs = [["k", 1]]

        def step(x):
            made = {"k": 0}
            made.update(pairs)
            return tf.tanh(x), made["k"]

        return step, lambda: pairs[0].__setitem__(1, 5)

    check(make)


# -- the user's special methods --------------------------------------------------------------------------------------------------


class Hashed:
    def __hash__(self):
        CALLS.append("hash")
        return 1


class Equal:
    __hash__ = object.__hash__

    def __eq__(self, other):
        CALLS.append("equal")
        return True


class Like(Equal):
    """Has the hash of a string, and says that it is equal to it."""

    def __hash__(self):
        CALLS.append("hash")
        return hash("a")


class Shown:
    def __repr__(self):
        CALLS.append("repr")
        return "shown"


class Number:
    def __index__(self):
        CALLS.append("index")
        return 0

    def __array__(self, dtype=None, copy=None):
        CALLS.append("array")
        return np.ones(2)


class Sorted:
    def __lt__(self, other):
        CALLS.append("less")
        return False


class Coloured(enum.Enum):
    A = 1
    B = 2

    def __lt__(self, other):
        CALLS.append("less")
        return self.value < other.value

    def __bool__(self):
        CALLS.append("bool")
        return True

    def __str__(self):
        CALLS.append("str")
        return self.name

    def __hash__(self):
        CALLS.append("hash")
        return 1


class Mixin:
    def __add__(self, other):
        CALLS.append("add")
        return 1


class Mixed(Mixin, enum.Enum):
    A = 1


USERS = {
    "hash in a set": lambda o: o["hashed"] in {1, 2},
    "hash in get": lambda o: {1: 2}.get(o["hashed"]),
    "hash in an item": lambda o: o["by_hash"][o["hashed"]],
    "equal in a list": lambda o: o["equal"] in [1, 2],
    "equal in a nested list": lambda o: [[1]] == [[o["equal"]]],
    "equal in count": lambda o: o["equals"].count(1),
    "equal in values": lambda o: 3 in o["by_name"].values(),
    "a key like a string": lambda o: o["like"]["a"],
    "a key like a string, got": lambda o: o["like"].get("a"),
    "a key like a string, searched": lambda o: "a" in o["like"],
    "an item like a string": lambda o: len(o["likes"] | {"a"}),
    "an item like a string, by a method": lambda o: len({"a"}.union(o["likes"])),
    "an item like a string, in a list": lambda o: len(set(o["list"])),
    "shown in str": lambda o: str([o["shown"]]),
    "shown in a dict": lambda o: "%s" % {"a": o["shown"]},
    "shown in a tuple": lambda o: "%s" % (o["shown"],),
    "shown in format_map": lambda o: "{shown}".format_map(o),
    "index in pop": lambda o: [1].pop(o["number"]),
    "index in a slice": lambda o: len([1, 2][o["number"]:]),
    "array in a list": lambda o: float(np.sum(np.ones(2) + [o["number"]])),
    "array in a tuple": lambda o: float(np.sum((o["number"], o["number"]))),
    "sorted": lambda o: len(sorted(o["sorted"])),
    "sort": lambda o: o["sorted"].copy().sort(),
    "enum less": lambda o: Coloured.A < Coloured.B,
    "enum test": lambda o: 1 if Coloured.A else 2,
    "enum str": lambda o: str(Coloured.A),
    "enum key": lambda o: {Coloured.A: 1}[Coloured.A],
    "enum searched": lambda o: Coloured.A in {1: 2},
    "enum mixed": lambda o: Mixed.A + 1,
    "frompyfunc": lambda o: float(o["ufunc"](1.0)),
    "vectorize": lambda o: float(o["vectorized"](1.0)),
}


OBSERVED = ["shown in a tuple", "enum less", "enum test", "enum str", "enum mixed", "vectorize"]  # whose methods are observed; the others run as they do eagerly


@pytest.mark.parametrize("case", USERS)
def test_special_methods(case):
    look = USERS[case]

    def make():
        def noted(v):
            CALLS.append("called")
            return v + 1.0

        hashed = Hashed()
        objects = {
            "hashed": hashed, "by_hash": {hashed: 1}, "equal": Equal(), "equals": [Equal()], "by_name": {"e": Equal()}, "like": {Like(): 1},
            "likes": {Like()}, "list": ["a", Like()], "shown": Shown(), "number": Number(), "sorted": [Sorted(), Sorted()],
            "ufunc": np.frompyfunc(noted, 1, 1), "vectorized": np.vectorize(noted, otypes=[float])}
        return (lambda x: (tf.tanh(x), look(objects))),

    check(make, case in OBSERVED)


def test_methods_that_are_added():
    def make():
        class Plain:
            pass

        plain, other = Plain(), Plain()

        def change():
            Plain.__eq__ = lambda self, other: CALLS.append("equal") or True
            Plain.__bool__ = lambda self: CALLS.append("bool") or False

        return (lambda x: (tf.tanh(x), plain == other, 1 if plain else 2)), change

    check(make, True)


def test_methods_that_are_added_to_enums():
    def make():
        class Mode(enum.IntEnum):
            A = 1
            B = 2

        def change():
            Mode.__lt__ = lambda self, other: CALLS.append("less") or False

        return (lambda x: (tf.tanh(x), Mode.A < Mode.B)), change

    check(make, True)


def test_keys_of_arguments():
    def make():
        held = {Like(): 1.0}
        inner = lambda x, options: tf.tanh(tf.tanh(x)) * len(options)

        def step(x):
            y = inner(x, held)
            sys._getframe()
            return y + 1.0

        return (step,)

    check(make, False)


# -- identity and numpy's state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, str])
def test_equal_but_not_the_same(kind):
    def make():
        class Holder:
            pass

        holder = Holder()
        holder.a = holder.b = kind("1.25")

        def change():
            holder.b = kind("1.2" + str(len(CALLS) + 5))

        return (lambda x: (tf.tanh(x), holder.a is holder.b, holder.a is not holder.b)), change

    check(make, False)


def test_errors_of_numpy():
    before = np.geterr()

    def make():
        np.seterr(all="ignore")
        return (lambda x: (tf.tanh(x), float(np.log(0.0)))), lambda: np.seterr(all="raise")

    def operators():
        np.seterr(all="ignore")
        one, none = np.float32(1), np.float32(0)
        return (lambda x: (tf.tanh(x), float(one / none))), lambda: np.seterr(all="raise")

    try:
        check(make)
        check(operators)
    finally:
        np.seterr(**before)


def test_numpy_prints():
    before = np.get_printoptions()["precision"]

    def make():
        np.set_printoptions(precision=8)
        array = np.array([1 / 3])
        return (lambda x: (tf.tanh(x), str(array), "%s" % array)), lambda: np.set_printoptions(precision=3)

    try:
        check(make)
    finally:
        np.set_printoptions(precision=before)


def test_warnings_that_are_always_shown():
    def make():
        return (lambda x: (tf.tanh(x), float(np.log(0.0)))),

    counts = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            run(make, wrap)
        counts.append(sum(issubclass(w.category, RuntimeWarning) and "log" in str(w.message) for w in shown))
    assert counts[0] == counts[1] == 14


def test_numpy_writes():
    def make():
        out = np.zeros(2)

        def step(x):
            np.sqrt(np.full(2, out[0] + 1.0), out)
            np.sum(np.ones((2, 2)), 0, None, out)
            out[0] += 1
            return tf.tanh(x), float(out[0])

        def state():
            CALLS.append(out.tolist())

        return step, state

    check(make, False)


# -- what is skipped -------------------------------------------------------------------------------------------------------------


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Enum):
    TRAIN = "train"
    TEST = "test"


class Thing:
    pass


ORDINARY = {
    "arithmetic": lambda c: c["rate"] * 2 + c["n"] ** 2 // 3 % 2,
    "f-string": lambda c: f"{c['rate']:.2f}",
    "in a list": lambda c: 2 in c["ints"],
    "in a dict": lambda c: "rate" in c,
    "in a tuple": lambda c: c["n"] in (1, 2, 3),
    "in a set": lambda c: c["n"] in {1, 2, 3},
    "len": lambda c: len(c["ints"]),
    "sum": lambda c: sum(c["floats"]),
    "sorted": lambda c: sorted(c["floats"])[0],
    "zip": lambda c: sum([a * b for a, b in zip(c["ints"], c["floats"])]),
    "enumerate": lambda c: sum([i * v for i, v in enumerate(c["ints"])]),
    "items": lambda c: sum([v for k, v in c["by_name"].items()]),
    "IntEnum": lambda c: Level.LOW < Level.HIGH and c["level"] == Level.HIGH,
    "Enum": lambda c: 1 if c["mode"] == Mode.TRAIN else 2,
    "Enum in": lambda c: c["mode"] in (Mode.TRAIN, Mode.TEST),
    "Enum is": lambda c: c["mode"] is Mode.TRAIN,
    "Enum key": lambda c: {Mode.TRAIN: 1, Mode.TEST: 2}[c["mode"]],
    "np.sqrt": lambda c: float(np.sqrt(c["rate"])),
    "np.sum": lambda c: float(np.sum(c["array"])),
    "np.mean": lambda c: float(np.mean([c["floats"], c["floats"]])),
    "lists": lambda c: len(c["ints"] + c["layers"]),
    "layer in": lambda c: c["layers"][0] in c["layers"],
    "object is": lambda c: c["layers"][0] is c["thing"],
    "none": lambda c: c["thing"] is not None,
    "get": lambda c: c.get("rate", 1.0),
    "str": lambda c: str(c["n"]) + "a",
    "percent": lambda c: "%d %s" % (c["n"], "a"),
    "join": lambda c: "/".join(["a", str(c["n"])]),
    "strings": lambda c: c["mode"].value.startswith("t") if False else "train".startswith(("t", "e")),
    "sets": lambda c: len({1, 2}.union(c["ints"]) - {1}),
    "dict": lambda c: dict(c["pairs"])["k"],
    "equal": lambda c: c["by_name"] == {"a": 1.0},
    "min": lambda c: min(c["rate"], 0.1),
    "setdefault": lambda c: {"a": 1}.setdefault("a", 2),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_still_skipped(case):
    look = ORDINARY[case]

    def make():
        thing = keras.layers.Dense(2)
        config = {
            "rate": 0.5, "n": 3, "ints": [1, 2, 3], "floats": [0.5, 0.25, 1.0], "by_name": {"a": 1.0}, "level": Level.HIGH, "mode": Mode.TRAIN,
            "array": np.ones(3), "layers": [thing, Thing()], "thing": thing, "pairs": [("k", 1)]}
        return (lambda x: (tf.tanh(x), look(config))),

    check(make, True)


def test_numpy_where_its_warnings_about_fits_are_always_shown():
    """As they are in each program, though not under pytest: numpy itself asks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RANK_WARNING)
        check(lambda: (lambda x: tf.tanh(x) * (np.float32(2.0) * np.float32(3.0)),), skipped=True)


def test_fits_of_numpys():
    """Each call of one that has too few points warns."""
    messages = []

    def make():
        return (lambda x: tf.tanh(x) * np.float32(np.polyfit([1.0, 1.0], [1.0, 2.0], 2)[0])),

    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("always", RANK_WARNING)
            warnings.showwarning = lambda *args, **kwargs: messages[-1].append(str(args[0]))
            messages.append([])
            run(make, wrap)
    assert messages[0] == messages[1] and len(messages[0]) == 14
