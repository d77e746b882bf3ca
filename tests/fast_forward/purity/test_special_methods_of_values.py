"""Classes of the program's whose objects calculate, compare, are tested and make texts of themselves by methods in Python: these are observed like others."""

import io

import pytest
import tensorflow as tf

from tests import harness
from tests.fast_forward.purity import training


class Rate:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Rate(self.value + (other.value if isinstance(other, Rate) else other))

    __radd__ = __add__

    def __rmul__(self, other):
        return Rate(other * self.value)

    def __rsub__(self, other):
        return NotImplemented

    def __neg__(self):
        return Rate(-self.value)

    def __lt__(self, other):
        return self.value < other.value

    def __gt__(self, other):
        return self.value > (other.value if isinstance(other, Rate) else other)

    def __eq__(self, other):
        return isinstance(other, Rate) and self.value == other.value

    __hash__ = None

    def __bool__(self):
        return self.value > 0.0

    def __repr__(self):
        return f"Rate({self.value})"

    def __format__(self, spec):
        return f"{self.value:{spec or '.1f'}}"


class Named:
    def __init__(self, value):
        self.value = value

    def __len__(self):
        return self.value

    def __str__(self):
        return f"named {self.value}"


class Held(training.Weights):
    def __init__(self):
        super().__init__()
        self.rate, self.other, self.named, self.said = Rate(0.5), Rate(0.25), Named(2), io.StringIO()


def calculates(h, x):
    total = 1.0 + h.rate + h.other + -h.other + 2 * h.other
    return tf.matmul(x, h.w) * total.value


def compares(h, x):
    y = tf.matmul(x, h.w)
    if h.other < h.rate and h.rate == h.rate and h.rate != h.other and 0.1 < h.rate:
        y = y * 2.0
    return y if h.rate > h.other else -y


def is_tested(h, x):
    y = tf.matmul(x, h.w) * (2.0 if h.rate else 3.0)
    if not h.named or (h.rate and not h.other):
        y = -y
    while h.named and h.rate:
        y = y * 0.5
        break
    return y * float(len([k for k in range(3) if h.rate]))


def texts(h, x):
    text = f"{h.rate} {h.rate:.2f} {h.rate!r} {h.named}" + str(h.rate) + repr(h.other) + format(h.rate, ".3f") + "{} {:.2f}".format(h.named, h.rate) + "%s %r" % (h.named, h.rate) + "%s" % h.named  # noqa: UP031, UP032
    return tf.matmul(x, h.w) * (len(text) / 100.0)


def prints(h, x):
    print(h.rate, h.named, "!", file=h.said)
    return tf.matmul(x, h.w) * h.rate.value


def changes(h, k):
    if k in (14, 15, 21):
        h.rate.value, h.named.value = {14: -0.5, 15: 0.75, 21: 0.125}[k], k % 3
    if k == 18:
        h.rate = Rate(0.375)


def replaces(h, k):
    """The class gets other methods."""
    Rate.__neg__ = (lambda self: Rate(self.value)) if k >= 15 else negated
    Rate.__repr__ = (lambda self: "a rate") if k >= 15 else shown
    Rate.__bool__ = (lambda self: False) if k >= 15 else true


negated, shown, true = Rate.__neg__, Rate.__repr__, Rate.__bool__


def looked_at(h):
    return [h.w, h.said.getvalue(), repr(h.rate.value), One.it.made if One.it else 0]


def cannot(h, x):
    try:
        return tf.matmul(x, h.w) * (1.0 - h.rate)
    except TypeError as error:
        return tf.matmul(x, h.w) * (len(str(error)) / 100.0)


BODIES = [calculates, compares, is_tested, texts, prints]


@pytest.mark.all_variants
@pytest.mark.parametrize("inside", [False, True], ids=["step", "layer"])
@pytest.mark.parametrize("body", BODIES)
def test_methods_of_values(body, inside):
    harness.compare_steps(training.training(Held, training.inside(body) if inside else body, looked_at), whole=12, express=0)


@pytest.mark.all_variants
@pytest.mark.parametrize("change", [changes, replaces])
@pytest.mark.parametrize("body", BODIES)
def test_what_they_read_changes(body, change):
    try:
        harness.compare_steps(training.training(Held, body, looked_at, change), whole=4, express=0, n=50)
    finally:
        replaces(None, 0)


def test_an_operator_that_does_not_know_the_other():
    harness.compare_steps(training.training(Held, cannot, looked_at), whole=0, express=0)


class One:
    """There is one object of this class."""

    it = None

    def __new__(cls, *args):
        if cls.it is None:
            cls.it = super().__new__(cls)
            cls.it.made = 0
        return cls.it

    def __init__(self, scale=1.0):
        self.scale = scale
        self.made += 1


class OneOfEach(type):
    """Makes one object of each class."""

    made, scale = {}, 0.5

    def __call__(cls, *args):
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args)
        return cls.made[cls]


class Settings(metaclass=OneOfEach):
    def __init__(self, scale=2.0):
        self.kept = scale


class Measured:
    def __new__(cls, value):
        it = object.__new__(cls)
        it.extra = value + 1.0
        return it

    def __init__(self, value):
        self.value = value


class Other:
    def __new__(cls, value):
        return Measured(value)  # whose `__init__` does not run again

    def __init__(self, value):
        raise AssertionError


def makes_objects(h, x):
    one = One(2.0)
    return tf.matmul(x, h.w) * one.scale * Settings().kept * Settings.scale * Measured(0.5).extra * Other(0.25).value


def changes_the_classes(h, k):
    Settings().kept = 2.0 if k < 14 else 3.0
    OneOfEach.scale = 0.5 if k < 16 else 0.25
    if k == 18:
        OneOfEach.made.clear()


@pytest.mark.parametrize("inside", [False, True], ids=["step", "layer"])
@pytest.mark.parametrize("change", [None, changes_the_classes])
def test_objects_that_classes_make_in_their_own_way(change, inside):
    def begin():
        One.it = None
        OneOfEach.made.clear()
        return Held()

    harness.compare_steps(training.training(begin, training.inside(makes_objects) if inside else makes_objects, looked_at, change), whole=6 if change else 12, express=0, n=40)


def reads_by_object(h, x):
    h.seen[h.named] = h.seen.get(h.named, 0.0) * 0.0 + 0.5
    return tf.matmul(x, h.w) * {h.rate_of: 2.0, One: 3.0}[One] * h.seen[h.named]


def test_objects_as_keys():
    def begin():
        held = Held()
        held.seen, held.rate_of = {}, begin
        return held

    harness.compare_steps(training.training(begin, reads_by_object, looked_at), whole=0, express=0)
