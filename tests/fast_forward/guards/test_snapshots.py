"""`container_guard.ContainerGuard`: whether anything changed in some containers. Both ways to find out, from memory (`versions`) and by comparing, against a plain comparison."""
import collections
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terra.runtime.fast_forward.guards import container_guard
from terra.tf import versions
from tests.fast_forward.guards.plain import alike
from tests.variants import examples

VALUES = [object(), object(), None, 1, 1.0, True, 0.0, -0.0, float("nan"), "a", (1, 2), 10 ** 30, 10 ** 30 + 1]
numbers = st.integers(0, 1000)


class Attributes:
    pass


class Derived(list):
    pass


def make(kind, values):
    if kind == "attributes":
        thing = Attributes()
        for k, x in enumerate(values):
            setattr(thing, f"x{k}", x)
        return vars(thing)
    if kind == "dict" or kind == "ordered":
        return (dict if kind == "dict" else collections.OrderedDict)((k, x) for k, x in enumerate(values))
    return {"list": list, "derived": Derived, "tuple": tuple, "set": set, "deque": collections.deque}[kind](values)


KINDS = ["attributes", "dict", "ordered", "list", "derived", "tuple", "set", "deque"]


def change(container, how, k, value):
    """Do something to a container; it may well leave things as they were."""
    if isinstance(container, dict):
        keys = list(container)
        if how == "add" or not keys:
            container[f"new{k}" if keys and type(keys[0]) is str else k] = value
        elif how == "remove":
            del container[keys[k % len(keys)]]
        elif how == "clear":
            container.clear()
        else:
            container[keys[k % len(keys)]] = value
    elif isinstance(container, set):
        {"add": lambda: container.add(value), "remove": lambda: container.discard(value), "clear": container.clear, "put": lambda: None}[how]()
    elif not isinstance(container, tuple):
        if how == "add" or not container:
            container.append(value)
        elif how == "remove":
            del container[k % len(container)]
        elif how == "clear":
            container.clear()
        else:
            container[k % len(container)] = value


def contents(container):
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


@pytest.mark.share(2)
@pytest.mark.parametrize("reads_memory", [True, False])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_against_a_plain_comparison(reads_memory, data):
    with pytest.MonkeyPatch.context() as patch:
        if not reads_memory:
            patch.setattr(versions, "_DICTS", False)
            patch.setattr(versions, "_LISTS", False)
            patch.setattr(versions, "_ITEMS", False)
        value = st.sampled_from(VALUES)
        made = data.draw(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(value, max_size=4)), min_size=1, max_size=8))
        containers = [make(kind, values) for kind, values in made]
        snapshot = container_guard.ContainerGuard()
        for container in containers:
            snapshot.add(container)
        before = [contents(container) for container in containers]
        for which, how, k, x in data.draw(st.lists(st.tuples(numbers, st.sampled_from(["add", "remove", "clear", "put", "look"]), numbers, value), max_size=12)):
            if how != "look":
                change(containers[which % len(containers)], how, k, x)
            same = all(
                len(old) == len(new) and all(map(alike, new, old)) for old, new in zip(before, map(contents, containers)))
            assert snapshot.holds() is same
            if not same:
                return  # a guard that has failed once is not asked again


def test_a_change_between_the_note_and_the_first_look():
    for reads_memory in (True, False):
        attributes, values = {"a": 1}, [1]
        snapshot = container_guard.ContainerGuard()
        snapshot.add(attributes)
        snapshot.add(values)
        attributes["a"] = 2
        assert not snapshot.holds()
        attributes["a"] = 1
        assert snapshot.holds()
        values.append(2)
        assert not snapshot.holds()


def test_memory_is_read_where_it_can_be():
    if sys.implementation.name == "cpython" and (3, 10) <= sys.version_info[:2] <= (3, 12):
        assert versions.address_of_version({}) and versions.address_of_version(vars(Attributes))
    assert versions.address_of_version([]) is None and versions.address_of_length({}) is None
    if sys.implementation.name == "cpython":
        assert versions.address_of_length([])


class Plain:
    pass


class Slotted:
    __slots__ = ("x",)


class Both(Slotted):
    pass


class DerivedList(list):
    pass


class DerivedInt(int):
    pass


class DerivedTuple(tuple):
    pass


class Weak:
    __slots__ = ("__dict__", "__weakref__", "y")


@pytest.mark.parametrize("make", [
    Plain, Slotted, Both, DerivedList, lambda: DerivedInt(10 ** 40), lambda: DerivedTuple([1, 2, 3]), Weak, lambda: keras.layers.Dropout(0.1), lambda: keras.layers.Dense(3),
    lambda: ValueError("x"), lambda: np.zeros(3), lambda: (lambda: 1), lambda: keras, lambda: tf.Variable(1.0), set, object,
])
def test_headers(make):
    """Where the class and the attributes of an object are found in memory, they are its class and its attributes: also after a change."""
    it = make()
    attributes = getattr(it, "__dict__", None)
    words = versions.words_of_header(it, type(it), attributes)
    if not words:
        return
    read = versions.Words([address for address, _ in words])
    held = read.read()
    assert held == np.array([id(type(it))] + [id(attributes)] * (attributes is not None), np.uint64).tobytes()
    if attributes is not None and type(attributes) is dict and not isinstance(it, type(keras)):
        attributes["made_up"] = 1
        assert read.read() == held
        del attributes["made_up"]
        if hasattr(type(it), "__dict__") and "__dict__" in dir(type(it)):
            other = dict(attributes)
            object.__setattr__(it, "__dict__", other)
            assert read.read() == np.array([id(type(it)), id(other)], np.uint64).tobytes()
    assert versions.words_of_header(it, str, attributes) == []


def test_headers_are_read_where_they_can_be():
    for it in (Plain(), keras.layers.Dense(3)):
        assert bool(versions.words_of_header(it, type(it), vars(it))) == versions._DICTS
