"""Classes, methods and identity: ``super``, private names, closures, attributes."""

import inspect
import sys

from terra.transform import instrument, is_instrumented, reason
from tests.transform.checks import check, located, op


class Base:
    def __init__(self, x):
        self.__x = x

    def value(self):
        return op(self.__x)

    @classmethod
    def make(cls, x):
        return cls(op(x))

    @staticmethod
    def static(x):
        return op(x)

    @property
    def prop(self):
        return op(self.__x)

    def __call__(self, k):
        return op(k) + self.__private(k)

    def __private(self, k):
        return op(k)


class Derived(Base):
    def value(self):
        def again():
            return super(Derived, self).value() + __class__.__name__.count("D")

        return super().value() + again() + self.prop

    def parent(self):
        return [super(Derived, self).value() for _ in range(2)] + [super().static(3)]


def test_methods_super_private_names_and_class_cell():
    d = Derived(4)
    assert instrument(d.value)() == d.value() == 13
    assert instrument(Derived.parent)(d) == d.parent()
    assert instrument(d)(2) == d(2) == 4
    assert instrument(Base.make)(3).value() == 3
    assert instrument(Base.static)(3) == 3
    assert not reason(Derived.value) and not reason(Derived.parent)
    assert Derived.value.__code__ is not instrument(Derived.value).__code__

    def f():
        return d.value(), d(1), Base.make(7).value(), d.static(2), Derived.static(1)

    check(f)
    # call sites inside the methods are seen too
    assert max(len(place.call_ids) for place in located(f)) >= 4


def test_class_defined_inside():
    def f(n):
        class Inner(Base):
            table = [op(i) for i in range(n)]
            size = op(len(table))
            for k in range(2):
                pass

            def value(self):
                return super().value() + op(self.size)

        return Inner(n).value(), Inner.__qualname__, Inner.value.__qualname__, sorted(vars(Inner))

    check(f, 3)


def test_keeps_identity_attributes():
    def f(a: int, b: "str" = "x") -> float:
        "Doc."
        return op(a)

    f.mark = 1
    form = instrument(f)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__dict__",
                 "__annotations__", "__globals__", "__closure__"):
        assert getattr(form, name) == getattr(f, name), name
    assert form.__globals__ is f.__globals__
    form.mark = 2
    assert f.mark == 2
    assert form.__code__.co_freevars == f.__code__.co_freevars
    assert form.__code__.co_firstlineno == f.__code__.co_firstlineno
    if sys.version_info >= (3, 11):
        assert form.__code__.co_qualname == f.__code__.co_qualname
    assert inspect.getsource(form) == inspect.getsource(f)
    before = set(globals())
    form(1)
    assert set(globals()) == before


def test_idempotent_and_cached():
    def f():
        return op()

    form = instrument(f)
    assert instrument(f) is form and instrument(form) is form
    assert is_instrumented(form) and not is_instrumented(f)


def test_closures_made_anew_share_code_not_cells():
    def make(k):
        def f():
            nonlocal k
            k += op(1)
            return k
        return f

    one, two = make(1), make(10)
    forms = instrument(one), instrument(two)
    assert [forms[0](), forms[1](), one(), two()] == [2, 11, 3, 12]
    assert forms[0].__code__ is forms[1].__code__


def test_recursion_goes_through_the_instrumented_form():
    def fact(n):
        op()
        return 1 if n == 0 else n * fact(n - 1)

    assert instrument(fact)(3) == 6
    places = located(fact, 3)
    assert [len(p.call_ids) for p in places] == [1, 2, 3, 4]
    assert len(set(places)) == 4
