"""Lists, dicts and sets that a step is given, and changes by their methods: those of the step at hand, not of the one that was recorded."""

import importlib

import pytest

from tests import harness

CHANGES = {
    "[7, 3, 1, 2]": (
        "c.clear()", "c.reverse()", "c.sort()", "c.insert(0, 4)", "c.extend([5, 6])", "c.__setitem__(0, 1)", "c.__delitem__(0)", "c.__iadd__([3])", "c.remove(3)", "c.append(x)", "c.pop()", "c[:] = []",
        "add = c.append; add(4)", "held.append(c.append); held[-1](5); held.clear()", "list(map(c.append, [1, 2]))", "list.append(c, 3)", "functools.partial(c.append, 3)()",
        "operator.methodcaller('append', 9)(c)", "heapq.heappush(c, 5)", "bisect.insort(c, 2)", "operator.setitem(c, 0, 7)", "operator.delitem(c, 1)", "random.Random(3).shuffle(c)"),
    "{'a': 4, 'list': [1, 2], 'inner': {}}": (
        "c.clear()", "c.update(z=1)", "c.update({'a': 5})", "c.setdefault('q', 4)", "c.popitem()", "c.pop('a')", "c.__ior__({'n': 1})", "c['list'].clear()", "c['list'].reverse()", "c['inner'].update(x=1)",
        "c.__setitem__('a', 3)", "c.__delitem__('a')", "del c['a']", "inner = c['inner']; inner.setdefault('y', x)"),
    "{5, 1, 2}": ("c.clear()", "c.add(9)", "c.discard(1)", "c.update([7])", "c.pop()"),
}


@pytest.mark.all_variants
@pytest.mark.parametrize("made, change", [(made, change) for made, changes in CHANGES.items() for change in changes])
def test_each_step_changes_what_it_is_given(made, change, tmp_path, monkeypatch):
    """The change is a statement of its own, whose result is dropped: then it may be made again where the rest is skipped."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"changes_{abs(hash((made, change)))}"
    (tmp_path / f"{name}.py").write_text(
        "import bisect, functools, heapq, operator, random\nimport tensorflow as tf\nheld = []\n"
        f"def step(c, x):\n    y = tf.reduce_sum(x)\n    {change}\n    return y\ndef make():\n    return {made}\n")
    module = importlib.import_module(name)

    def run(step):
        given = [module.make() for _ in range(14)]
        results = [harness.shown(step(c, harness.tf.fill([2], float(k)))) for k, c in enumerate(given)]
        return results, harness.shown([sorted(c) if type(c) is set else c for c in given])

    co = harness.coexecuted(module.step)
    assert run(co) == run(module.step)
    assert co.stats().coexecuted_steps >= 8
