"""`entries_guard.EntriesGuard`: whether dicts still have what was read of them, by the numbers of their versions and without these, against a plain comparison."""

import collections
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terra.runtime.fast_forward.guards import entries_guard
from terra.tf import versions
from tests.fast_forward.guards.plain import alike
from tests.variants import examples

VALUES = [1, 1.0, 0.0, -0.0, "a", True, None, object(), (1,), [1], len]
KEYS = ["a", "b", "c", "d"]


class Owner:
    pass


def dicts():
    """(a dict, how to set and delete its entries) of each kind."""
    plain, owner, kind, module, ordered = {}, Owner(), type("Kind", (), {}), types.ModuleType("module"), collections.OrderedDict()
    return [
        (plain, plain.__setitem__, plain.__delitem__), (vars(owner), lambda k, v: setattr(owner, k, v), lambda k: delattr(owner, k)),
        (vars(kind), lambda k, v: setattr(kind, k, v), lambda k: delattr(kind, k)), (vars(module), lambda k, v: setattr(module, k, v), lambda k: delattr(module, k)),
        (ordered, ordered.__setitem__, ordered.__delitem__)]


@pytest.mark.share(2)
@pytest.mark.parametrize("reads_memory", [True, False])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_against_a_plain_comparison(reads_memory, data):
    with pytest.MonkeyPatch.context() as patch:
        if not reads_memory:
            patch.setattr(versions, "_DICTS", False)
        spaces, key, value = dicts(), st.sampled_from(KEYS), st.sampled_from(VALUES)
        which = st.integers(0, len(spaces) - 1)
        for k, name, it in data.draw(st.lists(st.tuples(which, key, value), max_size=10)):
            spaces[k][1](name, it)
        entries = [(space, {name: space[name] for name in KEYS if name in space and data.draw(st.booleans())}) for space, _, _ in spaces]
        absent = [(space, name) for space, _, _ in spaces for name in KEYS if name not in space and data.draw(st.booleans())]
        guard = entries_guard.EntriesGuard([pair for pair in entries if pair[1]], absent)
        for k, name, it, deletes in data.draw(st.lists(st.tuples(which, key, value, st.booleans()), max_size=12)):
            space, put, delete = spaces[k]
            if not deletes:
                put(name, it)
            elif name in space:
                delete(name)
            same = all(name in space and alike(space[name], held) for space, found in entries for name, held in found.items()) and not any(name in space for space, name in absent)
            assert guard.holds() is same
            assert guard.holds() is same


def test_dicts_that_have_not_changed_are_not_looked_into():
    class Asked(dict):
        asked = 0

        def __getitem__(self, key):
            Asked.asked += 1
            return super().__getitem__(key)

    space = Asked(a=1)
    guard = entries_guard.EntriesGuard([(space, {"a": 1})], [])
    assert guard.holds() and guard.holds()
    first = Asked.asked
    assert guard.holds() and (Asked.asked == first if versions.address_of_version({}) else Asked.asked > first)
    space["b"] = 2
    assert guard.holds() and Asked.asked > first
    space["a"] = 2
    assert not guard.holds()
