"""Attributes that a skipped step has read: where they run code the step runs, where anything behind them changes it runs again, and plain ones are skipped."""

import abc
import collections
import dataclasses
import enum
import typing
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import terra

warnings.filterwarnings("ignore", "Chaining descriptors")
X = tf.constant(np.random.default_rng(1).normal(size=(6, 4)).astype("float32"))
NOTES = []


class Plain:
    rate = 1.0

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Other:
    rate = 5.0


class Getter:
    """A descriptor of the user's."""

    def __get__(self, instance, owner):
        NOTES.append("get")
        return owner.held


def run(make, terras):
    keras.utils.set_random_seed(1)
    NOTES.clear()
    step, change = make()
    called = terra.coexecute(step, wait_for_graph=True) if terras else step
    seen = []
    for k in range(14):
        if k == 9 and change is not None:
            change()
        result = called(X)
        seen.append((None if tf.is_tensor(result) else type(result).__name__, [np.asarray(t) if tf.is_tensor(t) else t for t in tf.nest.flatten(result)]))
    return seen, list(NOTES), called.stats() if terras else None


def check(make):
    """Compare with eager execution; returns the statistics."""
    expected, notes, _ = run(make, False)
    actual, other_notes, stats = run(make, True)
    for k, ((kind, a), (other, b)) in enumerate(zip(expected, actual, strict=True)):
        assert kind == other and len(a) == len(b), k
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x, y, err_msg=f"step {k}")
    assert notes == other_notes
    assert stats.coexecuted_steps >= 4, stats
    return stats


# -- what a step reads by an attribute has changed ----------------------------------------------------------------------------------


def dict_replaced():
    o = Plain(rate=1.0)
    return lambda x: tf.tanh(x) * o.rate, lambda: setattr(o, "__dict__", {"rate": 5.0})


def dict_replaced_by_setstate():
    class Stated(Plain):
        def __setstate__(self, state):
            self.__dict__ = state

    o = Stated(rate=1.0)
    return lambda x: tf.tanh(x) * o.rate, lambda: o.__setstate__({"rate": 5.0})


def class_replaced():
    o = Plain()
    return lambda x: tf.tanh(x) * o.rate, lambda: setattr(o, "__class__", Other)


def class_replaced_and_type():
    o = Plain()
    return lambda x: tf.tanh(x) * (1.0 if type(o) is Plain else 5.0), lambda: setattr(o, "__class__", Other)


def class_replaced_and_isinstance():
    o = Plain()
    return lambda x: tf.tanh(x) * (1.0 if isinstance(o, Plain) else 5.0), lambda: setattr(o, "__class__", Other)


def class_replaced_and_class():
    o = Plain()
    return lambda x: tf.tanh(x) * o.__class__.rate, lambda: setattr(o, "__class__", Other)


def class_replaced_and_called():
    class A:
        def __call__(self, x):
            return tf.tanh(x)

    class B:
        def __call__(self, x):
            return tf.tanh(x) * 5.0

    o = A()
    return lambda x: o(x), lambda: setattr(o, "__class__", B)


def class_of_a_named_tuple_replaced():
    base = collections.namedtuple("Base", "rate")
    a, b = (type("Kind", (base,), {"__slots__": (), "by": by}) for by in (1.0, 5.0))
    o = a(2.0)
    return lambda x: tf.tanh(x) * o.rate * o.by, lambda: setattr(o, "__class__", b)


def getattribute_added():
    class Kind(Plain):
        pass

    o = Kind(rate=1.0)
    return lambda x: tf.tanh(x) * o.rate, lambda: setattr(Kind, "__getattribute__", lambda self, name: 5.0)


def bases():
    class Kind(Plain):
        pass

    o = Kind()
    return lambda x: tf.tanh(x) * o.rate, lambda: setattr(Kind, "__bases__", (Other,))


def bases_of_a_class():
    class Kind(Plain):
        pass

    return lambda x: tf.tanh(x) * Kind.rate, lambda: setattr(Kind, "__bases__", (Other,))


def bases_of_super():
    class Kind(Plain):
        def __call__(self, x):
            return tf.tanh(x) * super().rate

    o = Kind()
    return lambda x: o(x), lambda: setattr(Kind, "__bases__", (Other,))


def bases_and_issubclass():
    class Kind(Plain):
        pass

    return lambda x: tf.tanh(x) * (1.0 if issubclass(Kind, Plain) else 5.0), lambda: setattr(Kind, "__bases__", (Other,))


def registered():
    class Base(abc.ABC):  # noqa: B024
        pass

    o = Plain()
    return lambda x: tf.tanh(x) * (5.0 if isinstance(o, Base) else 1.0), lambda: Base.register(Plain)


def instancecheck_added():
    class Meta(type):
        pass

    class Base(metaclass=Meta):
        pass

    o = Plain()
    return lambda x: tf.tanh(x) * (5.0 if isinstance(o, Base) else 1.0), lambda: setattr(Meta, "__instancecheck__", lambda cls, it: True)


def kwdefaults():
    def scaled(x, *, by=1.0):
        return tf.tanh(x) * by

    return lambda x: scaled(x), lambda: setattr(scaled, "__kwdefaults__", {"by": 5.0})


def kwdefaults_added():
    def scaled(x, *, by=1.0):
        return tf.tanh(x) * by

    def change():
        scaled.__defaults__ = None
        scaled.__kwdefaults__["by"] = 5.0

    return lambda x: scaled(x), change


def shape_of_an_array():
    a = np.ones((4, 3))
    return lambda x: tf.tanh(x) * float(a.shape[0]), lambda: setattr(a, "shape", (3, 4))


def type_of_an_array():
    a = np.zeros(4, "int32")
    return lambda x: tf.tanh(x) * (1.0 if a.dtype == np.int32 else 5.0), lambda: setattr(a, "dtype", np.dtype("float32"))


def slot_deleted():
    @dataclasses.dataclass(slots=True)
    class Kind:
        rate: float = 1.0

        def __getattr__(self, name):
            return 5.0

    o = Kind()
    return lambda x: tf.tanh(x) * o.rate, lambda: delattr(o, "rate")


def member_of_an_enum():
    class Kind(enum.Enum):
        ONE = 1
        TWO = 2

    box = [Kind.ONE]
    return lambda x: tf.tanh(x) * (1.0 if box[0] is Kind.ONE else 5.0), lambda: box.__setitem__(0, Kind.TWO)


def field_of_a_named_tuple():
    kind = collections.namedtuple("Kind", "rate by")
    o = kind(1.0, 2.0)
    return lambda x: tf.tanh(x) * o.rate * o[1], lambda: setattr(kind, "rate", property(lambda self: 5.0))


def items_of_a_named_tuple():
    kind = collections.namedtuple("Kind", "rate by")
    o = kind(1.0, 2.0)

    def step(x):
        a, b = o
        return tf.tanh(x) * a * b

    return step, lambda: setattr(kind, "__iter__", lambda self: iter((5.0, 6.0)))


def parts_of_a_model():
    """The object within has its dict replaced, which the property of the framework's looks at."""
    inner, outer = tf.Module(), tf.Module()
    inner.w, outer.inner = tf.Variable(1.0), [inner]

    def change():
        object.__setattr__(inner, "__dict__", {**vars(inner), "v": tf.Variable(1.0)})

    def step(x):
        for part in outer.inner:
            x = x * part.w
        return tf.tanh(x) * float(len(outer.trainable_variables))

    return step, change


def parts_in_a_list_that_was_read():
    inner, outer = tf.Module(), tf.Module()
    inner.w, outer.inner = tf.Variable(1.0), [inner]

    def step(x):
        for part in outer.inner:
            x = x * part.w
        return tf.tanh(x) * float(len(outer.trainable_variables))

    return step, lambda: setattr(inner, "v", tf.Variable(1.0))


CHANGED = [
    dict_replaced, dict_replaced_by_setstate, class_replaced, class_replaced_and_type, class_replaced_and_isinstance, class_replaced_and_class,
    class_replaced_and_called, class_of_a_named_tuple_replaced, getattribute_added, bases, bases_of_a_class, bases_of_super, bases_and_issubclass, registered,
    instancecheck_added, kwdefaults, kwdefaults_added, shape_of_an_array, type_of_an_array, slot_deleted, member_of_an_enum, field_of_a_named_tuple,
    items_of_a_named_tuple, parts_of_a_model, parts_in_a_list_that_was_read]


@pytest.mark.parametrize("make", CHANGED)
def test_skipped_until_it_changes(make):
    stats = check(make)
    assert stats.whole_steps > 0, stats


# -- attributes that run code of the user's -----------------------------------------------------------------------------------------


def _rate_of_super(rate):
    """A class with the descriptor `rate`, and an object of a class derived from it, which asks `super()` for that when it is called."""
    class A:
        held = 1.0

    A.rate = rate

    class B(A):
        def __call__(self, x):
            return tf.tanh(x) * super().rate

    return A, B()


def super_property():
    @property
    def rate(self):
        NOTES.append("rate")
        return self.held

    _, o = _rate_of_super(rate)
    return lambda x: o(x), lambda: setattr(o, "held", 5.0)


def super_descriptor():
    made, o = _rate_of_super(Getter())
    return lambda x: o(x), lambda: setattr(made, "held", 5.0)


def class_descriptor():
    class A:
        held = 1.0
        rate = Getter()

    return lambda x: tf.tanh(x) * A.rate, lambda: setattr(A, "held", 5.0)


def _of_class(by_instance):
    class A:
        held = 1.0

        def rate(cls):
            NOTES.append("rate")
            return cls.held

        rate = classmethod(property(rate))

    o = A() if by_instance else A
    return lambda x: tf.tanh(x) * (o.rate if isinstance(o.rate, float) else 2.0), lambda: setattr(A, "held", 5.0)


def class_property():
    return _of_class(False)


def class_property_of_an_instance():
    return _of_class(True)


def getattr_of_a_property():
    class A:
        n = 0

        @property
        def next(self):
            self.n += 1
            NOTES.append(self.n)
            return 1.0

    o = A()
    return lambda x: tf.tanh(x) * getattr(o, "next"), None  # noqa: B009


def _odd(method):
    class A:
        pass

    def noting(self, name):
        NOTES.append(name)
        return object.__getattribute__(self, name) if method == "__getattribute__" and name != "rate" else 1.0

    setattr(A, method, noting)
    return A()


def getattr_of_getattr():
    o = _odd("__getattr__")
    return lambda x: tf.tanh(x) * getattr(o, "rate", 2.0), None


def getattr_of_getattribute():
    o = _odd("__getattribute__")
    return lambda x: tf.tanh(x) * getattr(o, "rate"), None  # noqa: B009


def hasattr_of_getattr():
    o = _odd("__getattr__")
    return lambda x: tf.tanh(x) * (2.0 if hasattr(o, "rate") else 1.0), None


def getattr_missing():
    o = Plain()
    return lambda x: tf.tanh(x) * getattr(o, "gone", 1.0), lambda: setattr(o, "gone", 5.0)


def attribute_of_getattribute():
    o = _odd("__getattribute__")
    return lambda x: tf.tanh(x) * o.rate, None


def named_tuple_with_a_property():
    held = {"rate": 1.0}

    class A(collections.namedtuple("A", "rate by")):
        @property
        def rate(self):
            return held["rate"]

    o = A(1, 2)
    return lambda x: tf.tanh(x) * o.rate, lambda: held.update(rate=5.0)


def named_tuple_with_iter():
    class A(collections.namedtuple("A", "rate by")):
        def __iter__(self):
            NOTES.append("iter")
            return super().__iter__()

    o = A(1.0, 2.0)

    def step(x):
        for y in o:
            x = x * y
        return tf.tanh(x)

    return step, None


def named_tuple_with_len():
    class A(collections.namedtuple("A", "rate by")):
        def __len__(self):
            NOTES.append("len")
            return 2

    o = A(1.0, 2.0)
    return lambda x: tf.tanh(x) * float(len(o)), None


def named_tuple_with_getitem():
    class A(collections.namedtuple("A", "rate by")):
        def __getitem__(self, key):
            NOTES.append("getitem")
            return 2.0

    o = A(1.0, 2.0)
    return lambda x: tf.tanh(x) * o[0], None


def protocol():
    @typing.runtime_checkable
    class P(typing.Protocol):
        rate: float

    class A:
        pass

    o = A()
    return lambda x: tf.tanh(x) * (5.0 if isinstance(o, P) else 1.0), lambda: setattr(o, "rate", 1.0)


def instancecheck():
    held = {"is": False}

    class Meta(type):
        def __instancecheck__(cls, it):
            NOTES.append("instancecheck")
            return held["is"]

    class A(metaclass=Meta):
        pass

    o = Plain()
    return lambda x: tf.tanh(x) * (5.0 if isinstance(o, (int, A)) else 1.0), lambda: held.update({"is": True})


def subclasscheck():
    class Meta(type):
        def __subclasscheck__(cls, it):
            NOTES.append("subclasscheck")
            return True

    class A(metaclass=Meta):
        pass

    return lambda x: tf.tanh(x) * (5.0 if issubclass(Plain, A) else 1.0), None


def class_by_a_property():
    held = {"class": int}

    class A:
        @property
        def __class__(self):
            NOTES.append("class")
            return held["class"]

    o = A()
    return lambda x: tf.tanh(x) * (5.0 if isinstance(o, str) else 1.0), lambda: held.update({"class": str})


def module_of_another_class():
    class Module(type(typing)):
        held = 1.0

        @property
        def rate(self):
            NOTES.append("rate")
            return self.held

    module = Module("module_of_a_test")
    vars(module)["rate"] = 7.0
    return lambda x: tf.tanh(x) * module.rate, lambda: setattr(Module, "held", 5.0)


def scalar_of_the_users():
    class Scalar(np.float64):
        @property
        def rate(self):
            NOTES.append("rate")
            return 1.0

    o = Scalar(2.0)
    return lambda x: tf.tanh(x) * o.rate, None


def _model_of_a_part(library, override=None):
    """A class of layers with two variables, which may override a property, and a model of one such layer."""
    class Part(library.layers.Layer):
        def build(self, _):
            self.a, self.b = self.add_weight(name="a", shape=(4,)), self.add_weight(name="b", shape=(4,))

        def call(self, x):
            return x * self.a + self.b

    if override is not None:
        setattr(Part, override.fget.__name__, override)
    model = library.Sequential([library.layers.Input((4,)), Part()])
    NOTES.clear()
    return Part, lambda x: tf.tanh(x) * float(len(model.trainable_variables))


def overridden_variables():
    held = {"all": True}

    @property
    def variables(self):
        NOTES.append("variables")
        return [self.a, self.b] if held["all"] else [self.a]

    return _model_of_a_part(keras, variables)[1], lambda: held.update(all=False)


def overridden_weights():
    held = {"all": True}

    @property
    def trainable_weights(self):
        NOTES.append("weights")
        return [self.a, self.b] if held["all"] else [self.a]

    return _model_of_a_part(tf_keras, trainable_weights)[1], lambda: held.update(all=False)


def variables_overridden_later():
    part, step = _model_of_a_part(keras)
    return step, lambda: setattr(part, "variables", property(lambda self: [self.a]))


def _with_rate(rate):
    optimizer = keras.optimizers.SGD(rate)
    return lambda x: tf.tanh(x) * optimizer.learning_rate


def rate_of_a_schedule():
    held = {"rate": 1.0}

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            NOTES.extend(["rate"])
            return held["rate"]

    return _with_rate(Schedule()), lambda: held.update(rate=5.0)


def rate_of_a_function():
    held = {"rate": 1.0}

    def rate():
        NOTES.extend(["rate"])
        return held["rate"]

    return _with_rate(rate), lambda: held.update(rate=5.0)


def module_with_a_mapping():
    module = tf.Module()
    module.parts = collections.UserDict(a=tf.Variable(1.0))
    return lambda x: tf.tanh(x) * float(len(module.trainable_variables)), lambda: module.parts.update(b=tf.Variable(1.0))


def module_with_a_sequence():
    module = tf.Module()
    module.parts = collections.UserList([tf.Variable(1.0)])
    return lambda x: tf.tanh(x) * float(len(module.trainable_variables)), lambda: module.parts.append(tf.Variable(1.0))


def named_tuple_of_a_list():
    kind, kept = collections.namedtuple("Kind", "loss log"), []
    return lambda x: kind(tf.tanh(x), kept), lambda: kept.append(1)


def named_tuple_with_new():
    class Kind(collections.namedtuple("Kind", "loss by")):
        def __new__(cls, loss, by):
            NOTES.append("new")
            return super().__new__(cls, loss, by)

    return lambda x: Kind(tf.tanh(x), 1.0), None


RUNNING = [
    super_property, super_descriptor, class_descriptor, class_property, class_property_of_an_instance, getattr_of_a_property, getattr_of_getattr,
    getattr_of_getattribute, hasattr_of_getattr, attribute_of_getattribute, named_tuple_with_iter, named_tuple_with_len,
    named_tuple_with_getitem, protocol, instancecheck, subclasscheck, class_by_a_property, module_of_another_class,
    scalar_of_the_users, overridden_variables, overridden_weights, rate_of_a_schedule, rate_of_a_function, module_with_a_mapping, module_with_a_sequence,
    named_tuple_of_a_list, named_tuple_with_new]


# Where it is a callable object, which is observed like a function.
OBSERVED = frozenset([
    "rate_of_a_schedule", "rate_of_a_function", "super_property"])


@pytest.mark.parametrize("make", RUNNING)
def test_code_of_the_users_runs(make):
    stats = check(make)
    assert (stats.whole_steps > 0) is (make.__name__ in OBSERVED), stats


def test_property_that_only_computes():
    assert check(named_tuple_with_a_property).whole_steps > 0


@pytest.mark.parametrize("make", [variables_overridden_later, getattr_missing])
def test_what_is_added_later(make):
    assert check(make).whole_steps > 0


# -- plain attributes ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    rate: float = 0.5
    names: tuple = ("a", "b")


class Slots:
    __slots__ = ("rate",)


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Typed(typing.NamedTuple):
    rate: float
    by: float = 2.0


class Base:
    scale = 2.0

    def shifted(self, x):
        return x + 1.0


class Derived(Base):
    @classmethod
    def doubled(cls, x):
        return x * cls.scale

    @staticmethod
    def halved(x):
        return x * 0.5

    def shifted(self, x):
        return super().shifted(x) * super().scale


class Noted(keras.Model):
    """A model with a property that is often overridden."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)
        self.tracker = keras.metrics.Mean()

    def call(self, x):
        return self.inner(x)

    @property
    def metrics(self):
        return [self.tracker]


def _slots():
    o = Slots()
    o.rate = 0.5
    return o


def _built(model):
    model(X)
    return model


PLAIN = {
    "attribute": lambda: (Plain(rate=0.5), lambda o, x: x * o.rate),
    "class attribute": lambda: (Plain(), lambda o, x: x * o.rate * Plain.rate),
    "getattr": lambda: (Plain(rate=0.5), lambda o, x: x * getattr(o, "rate") * getattr(o, "rate", 2.0) if hasattr(o, "rate") else x),  # noqa: B009
    "dataclass": lambda: (Config(), lambda o, x: x * o.rate * len(o.names)),
    "slots": lambda: (_slots(), lambda o, x: x * o.rate),
    "enum": lambda: (Mode.MEAN, lambda o, x: tf.reduce_mean(x) if o is Mode.MEAN else tf.reduce_sum(x)),
    "named tuple": lambda: (collections.namedtuple("Pair", "rate by")(1.0, 2.0), lambda o, x: x * o.rate * o[1] * len(o) * [by for by in o][1]),  # noqa: C416
    "typed named tuple": lambda: (Typed(1.0), lambda o, x: x * o.rate * o.by),
    "named tuple made": lambda: (None, lambda o, x: Typed(x * 2.0, 3.0)),
    "field of one made": lambda: (None, lambda o, x: Typed(x * 2.0, 3.0).rate),
    "methods": lambda: (Derived(), lambda o, x: o.shifted(Derived.doubled(x)) + o.doubled(x) + o.halved(x)),
    "isinstance": lambda: (Plain(), lambda o, x: x * 2.0 if isinstance(o, Plain) and not isinstance(o, (Other, (int, str))) and issubclass(Plain, object) else x),
    "isinstance of a tensor": lambda: (None, lambda o, x: x * 2.0 if isinstance(x, tf.Tensor) and not isinstance(x, (tf.Variable, tf.RaggedTensor)) else x),
    "isinstance of a layer": lambda: (keras.layers.Dense(2), lambda o, x: x * 2.0 if isinstance(o, keras.layers.Layer) else x),
    "array": lambda: (np.ones((2, 3)), lambda o, x: x * float(o.shape[1])),
    "variables": lambda: (_built(keras.Sequential([keras.layers.Dense(2)])), lambda o, x: x * float(len(o.trainable_variables))),
    "variables of a user's model": lambda: (_built(Noted()), lambda o, x: x * float(len(o.trainable_variables))),
    "learning rate": lambda: (keras.optimizers.SGD(0.5), lambda o, x: x * o.learning_rate),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_attributes_are_skipped(name):
    def make():
        o, body = PLAIN[name]()
        return lambda x: body(o, tf.tanh(x)), None

    stats = check(make)
    assert stats.whole_steps > 0, stats
