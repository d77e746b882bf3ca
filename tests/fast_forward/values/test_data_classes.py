"""Data classes whose instances a step makes and gives: it is skipped, and the instances are made anew each time."""

import dataclasses

import pytest
import tensorflow as tf

import terra

X = [tf.constant([float(k), 1.0]) for k in range(3)]


@dataclasses.dataclass
class Output:
    loss: tf.Tensor
    parts: dict = dataclasses.field(default_factory=dict)
    name: str = "train"


@dataclasses.dataclass(frozen=True)
class Frozen:
    loss: tf.Tensor
    n: int = 3


@dataclasses.dataclass
class Derived(Output):
    more: list = dataclasses.field(default_factory=list)
    inner: Frozen = None


class Trainer:
    def __init__(self):
        self.w = tf.Variable([1.0, 2.0])
        self.outputs = []

    def learn(self, x):
        self.w.assign_add(0.1 * x)
        return tf.reduce_sum(self.w * x)


class Gives(Trainer):
    def step(self, x):
        loss = self.learn(x)
        return Output(loss, {"double": loss * 2.0})


class GivesDefaults(Trainer):
    def step(self, x):
        made = Output(loss=self.learn(x))
        made.parts["x"] = x + 1.0
        made.loss += 1.0
        return made


class GivesFrozen(Trainer):
    def step(self, x):
        return Frozen(self.learn(x), len(x.shape)), Frozen(x * 2.0)


class Nested(Trainer):
    def step(self, x):
        made = Derived(self.learn(x), inner=Frozen(x * 2.0))
        made.more.append(made.inner.loss)
        made.name = "other" if made.loss.shape == () else "none"
        return [made]


class Keeps(Trainer):
    """The very object that is given is kept, too."""

    def step(self, x):
        self.last = Output(self.learn(x))
        self.outputs.append(self.last)
        return self.last


class Reads(Trainer):
    def step(self, x):
        loss = self.learn(x)
        return Output(loss, {"value": float(loss)})


class UsesIt(Trainer):
    def forward(self, x):
        return Output(self.learn(x), {"x": x})

    def step(self, x):
        out = self.forward(x)
        return out.loss * 2.0 + tf.reduce_sum(out.parts["x"])


class Replaces(Trainer):
    """It makes another one of an instance."""

    def step(self, x):
        out = Output(self.learn(x))
        return dataclasses.replace(out, name="other")


PURE = [Gives, GivesDefaults, GivesFrozen, Nested, Keeps, Reads, UsesIt, Replaces]


@dataclasses.dataclass
class Counting:
    """It does something when it is made."""

    loss: tf.Tensor
    made = []

    def __post_init__(self):
        self.made.append(1)


@dataclasses.dataclass(init=False)
class OwnInit:
    loss: tf.Tensor
    made = []

    def __init__(self, loss):
        self.loss = loss
        OwnInit.made.append(1)


# As in `python -c`: its code is in no file, as is that of methods that `dataclass` writes.
exec("""
@dataclasses.dataclass(init=False)
class OwnInitInNoFile:
    loss: tf.Tensor

    def __init__(self, loss):
        self.loss = loss
        OwnInit.made.append(1)
""")


@dataclasses.dataclass
class WithProperty:
    loss: tf.Tensor
    made = []

    @property
    def double(self):
        self.made.append(1)
        return self.loss * 2.0


@dataclasses.dataclass
class WithFactory:
    loss: tf.Tensor
    at: int = dataclasses.field(default_factory=lambda: WithFactory.made.append(1) or len(WithFactory.made))
    made = []


def makes(kind):
    class Makes(Trainer):
        def step(self, x):
            out = kind(self.learn(x))
            return out.double if kind is WithProperty else out

    return Makes


IMPURE = [*map(makes, (Counting, OwnInit, globals()["OwnInitInNoFile"], WithProperty, WithFactory))]

OBSERVED = IMPURE[1], IMPURE[3]  # whose classes are the program's own, and do it in Python


def plain(x):
    if dataclasses.is_dataclass(x):
        return type(x).__name__, {name: plain(value) for name, value in vars(x).items()}
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    if isinstance(x, dict):
        return {name: plain(y) for name, y in x.items()}
    return x.numpy().tolist() if tf.is_tensor(x) else x


def run(kind, wrap, change=lambda: None):
    trainer, seen = kind(), []
    step = wrap(trainer.step)
    for k in range(30):
        if k == 15:
            change()
        result = step(X[k % 3])
        seen.append((plain(result), result is vars(trainer).get("last"), plain(trainer.outputs)))
    return seen, step


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["", "verify"])
@pytest.mark.parametrize("kind", PURE)
def test_made_and_given(kind, options):
    expected, _ = run(kind, lambda step: step)
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True, **options))
    assert actual == expected
    stats = step.stats()
    assert stats.verified_calls > 0 if options else stats.express_steps >= 15, terra.explain(step)


@pytest.mark.parametrize("kind", IMPURE)
def test_more_is_done(kind):
    counted = Counting.made, OwnInit.made, WithProperty.made, WithFactory.made

    def counts():
        return [len(held) for held in counted]

    def new():
        for held in counted:
            held.clear()

    new()
    expected, _ = run(kind, lambda step: step)
    found = counts()
    new()
    actual, step = run(kind, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and counts() == found
    assert step.stats().coexecuted_steps >= 20 and (step.stats().whole_steps >= 8) is (kind in OBSERVED)


@pytest.mark.parametrize("name", ["__init__", "name", "__setattr__"])
def test_the_class_changes(name):
    """From then on instances are made in another way."""
    seen = []
    for wrap in (lambda step: step, lambda step: terra.coexecute(step, wait_for_graph=True)):
        @dataclasses.dataclass
        class Own:
            loss: tf.Tensor
            name: str = "first"

        class Makes(Trainer):
            def step(self, x):
                out = Own(self.learn(x))
                out.more = x * 2.0
                return out

        def other_init(self, loss):
            vars(self).update(loss=loss, name="second")

        def other_set(self, name, value):
            vars(self)[name] = value * 3.0 if tf.is_tensor(value) else value

        found, step = run(Makes, wrap, lambda: setattr(Own, name, {"__init__": other_init, "name": "third", "__setattr__": other_set}[name]))  # noqa: B023
        seen.append(found)
    assert seen[0] == seen[1]
    assert step.stats().whole_steps >= 8
