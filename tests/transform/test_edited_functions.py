"""Functions that are changed in place (IPython's `%autoreload` does that): the next step runs what they are now."""

import functools
import importlib
import sys
import types

import keras
import pytest
import tensorflow as tf

import terra
from terra.location import location
from terra.tf import versions
from terra.transform import convert, edits, forms, instrument

LOG = []
X = tf.constant([1.0, -2.0])


def program():
    """A step, and what it is made of: (step, {name: function})."""
    scale = 2.0

    def helper(x, by=2.0, *, shift=1.0):
        LOG.append("helper")
        return tf.abs(x) * by + shift

    def inner(x):
        return helper(x)

    class Model:
        factor = tf.Variable(3.0)

        def __call__(self, x):
            return self.forward(x) * self.factor

        def forward(self, x):
            return tf.tanh(x) * scale

        @property
        def size(self):
            return float(tf.size(X))

    @functools.lru_cache
    def cached(n):
        LOG.append("cached")
        return n * 2.0

    model = Model()

    def step(x):
        return inner(x) + model(x) * cached(1) + model.size

    return step, {"helper": helper, "inner": inner, "call": Model.__call__, "forward": Model.forward, "size": Model.size.fget, "cached": cached.__wrapped__,
                  "step": step, "class": Model}


def changed(name):
    """A function whose code may take the place of that of the function of this name."""
    scale = 2.0


    def helper(x, by=2.0, *, shift=1.0):
        LOG.append("another")
        return tf.nn.relu(x) * by - shift

    def forward(self, x):
        y = tf.sin(x)
        return y + scale

    def size(self):
        return 5.0

    helper_of = helper

    def inner(x):
        return helper_of(x) * 10.0

    def call(self, x):
        return self.forward(tf.exp(x))

    return locals()[name]


def edit(function, name):
    function.__code__ = changed(name).__code__


def change_default(functions):
    functions["helper"].__defaults__ = (4.0,)


def change_keyword_default(functions):
    functions["helper"].__kwdefaults__ = {"shift": -1.0}


def change_to_an_integer(functions):
    functions["helper"].__defaults__ = (4,)
    functions["helper"].__kwdefaults__ = {"shift": 1}


def change_step(functions):
    """It has three cells, in this order."""
    cached = inner = model = None

    def step(x):
        LOG.append("new step")
        return inner(x) - cached(1) + model.size

    functions["step"].__code__ = step.__code__


def change_through_the_class(functions):
    """There, the forms of methods that Python calls by name are found."""
    edit(functions["class"].__call__, "call")
    edit(functions["class"].size.fget, "size")


CHANGES = {
    "class": change_through_the_class,
    **{name: functools.partial(lambda functions, name: edit(functions[name], name), name=name) for name in ("helper", "inner", "call", "forward", "size")},
    "default": change_default, "keyword default": change_keyword_default, "integer": change_to_an_integer, "step": change_step,
}


@pytest.mark.parametrize("options", [{}, {"fast_forward": False}, {"loops": "roll"}], ids=str)
@pytest.mark.parametrize("name", CHANGES)
def test_the_next_step_runs_the_new_one(name, options):
    runs = []
    for coexecuted in (False, True):
        step, functions = program()
        LOG.clear()
        run = terra.coexecute(step, wait_for_graph=True, **options) if coexecuted else step
        seen = []
        for k in range(16):
            if k == 8:
                CHANGES[name](functions)
            seen.append((run(X).numpy().tolist(), list(LOG)))
        runs.append(seen)
    assert runs[0] == runs[1]
    assert runs[0][7][0] != runs[0][8][0] or name == "integer"
    stats = run.stats()
    assert stats.coexecuted_steps >= 8 and stats.fallbacks <= 2, stats


def test_several_steps_use_the_function():
    """Each of them, whichever comes first."""
    step, functions = program()
    runs = [terra.coexecute(types.FunctionType(step.__code__, step.__globals__, "step", None, step.__closure__), wait_for_graph=True) for _ in range(3)]
    for _ in range(5):
        for run in runs:
            run(X)
    edit(functions["helper"], "helper")
    expected = step(X).numpy().tolist()
    for _ in range(5):
        assert [run(X).numpy().tolist() for run in runs] == [expected] * 3


def test_what_is_not_changed_is_left_alone(monkeypatch):
    step, functions = program()
    run = terra.coexecute(step, wait_for_graph=True)
    monkeypatch.setattr(convert, "renew_forms", lambda edited: pytest.fail("nothing was changed"))
    for _ in range(12):  # in some of them, it is observed
        run(X)
    other = changed("helper").__code__  # of another function: a reloaded module has such, where nothing was edited
    functions["helper"].__code__ = other.replace(**{name: getattr(functions["helper"].__code__, name) for name in (
        "co_code", "co_consts", "co_names", "co_varnames", "co_firstlineno", "co_linetable", "co_nlocals", "co_stacksize", "co_flags")})
    run(X)
    # A function that `lru_cache` runs has the code of its form. None of them is looked into each time.
    monkeypatch.setattr(edits, "_follow", lambda functions: pytest.fail("nothing was changed"))
    run(X)
    assert id(functions["cached"]) in convert.forms


def test_forms_of_functions_that_are_gone():
    def make():
        def gone(x):
            return abs(x)

        return gone

    function = make()
    form, key = instrument(function), id(function)
    assert key in convert.forms
    del function
    assert key not in convert.forms and form(-1) == 1
    edits.look()


@pytest.mark.skipif(versions.watch([lambda: 0]) is None, reason="functions are looked at one by one")
def test_functions_are_looked_at_at_once(monkeypatch):
    """Once there are no new ones: a change of any of them is seen, and none is looked at that is gone."""
    def make(k):
        def function(x, by=1.0, *, shift=0.0):
            return abs(x) * by + shift

        return function

    def at_once():
        with monkeypatch.context() as only:
            only.setattr(forms, "forms", None)  # where they are looked up one by one
            return edits.look()

    functions = [make(k) for k in range(20)]
    for function in functions:
        instrument(function)
    edits.look(), edits.look()
    before = at_once()
    functions[3].__defaults__ = (2.0,)
    assert edits.look() == before and instrument(functions[3])(-1) == 2.0
    functions[4].__kwdefaults__ = {"shift": 3.0}
    assert edits.look() == before and instrument(functions[4])(-1) == 4.0
    functions[5].__code__ = (lambda x, by=1.0, *, shift=0.0: 7.0).__code__
    assert edits.look() == before + 1 and instrument(functions[5])(-1) == 7.0
    edits.look(), edits.look()
    before = at_once()
    del function, functions[10:]
    assert forms.watched is None
    edits.look(), edits.look()
    assert at_once() == before
    functions.append(make(20))
    instrument(functions[-1])
    assert forms.watched is None
    functions[-1].__defaults__ = (5.0,)
    edits.look()
    assert instrument(functions[-1])(-1) == 5.0


def test_outside_of_steps():
    """What a layer of the program's calls has its new defaults at once, though only steps look for such changes."""
    def helper(x, by=2.0):
        return x * by

    class Layer(keras.layers.Layer):
        def call(self, x):
            return helper(x)

    model = keras.Sequential([Layer()])
    run = terra.coexecute(lambda x: tf.reduce_sum(model(x)), wait_for_graph=True)
    for _ in range(8):
        run(X)
    helper.__defaults__ = (5.0,)
    assert model(X).numpy().tolist() == [5.0, -10.0]
    helper.__code__ = (lambda x, by=2.0: x + by).__code__
    assert model(X).numpy().tolist() == [6.0, 3.0]
    assert float(run(X)) == 9.0


def test_many_edits():
    """Each costs one fallback: what was traced before is forgotten."""
    helper = lambda x: tf.abs(x) * 100.0  # noqa: E731

    def step(x):
        return helper(x) + 1.0

    run = terra.coexecute(step, wait_for_graph=True)
    codes = [compile("\n" * k + f"lambda x: tf.abs(x) * {k}.0", __file__, "eval").co_consts[0] for k in range(1, 25)]
    for code in codes:
        helper.__code__ = code
        for _ in range(6):
            assert run(X).numpy().tolist() == step(X).numpy().tolist()
    stats = run.stats()
    assert stats.coexecuted_steps >= 4 * len(codes) and stats.traces <= 2, stats


class Stepper:
    @terra.coexecute(wait_for_graph=True)
    def step(self, x):
        return x * 2.0


def test_decorated_functions_in_other_places():
    """Each instance of a class has steps of its own; a decorated function may be part of another step, or of an imperative one."""
    inner = terra.coexecute(lambda x: tf.abs(x) * 2.0, wait_for_graph=True)
    outer = terra.coexecute(lambda x: inner(x) + 1.0, wait_for_graph=True)
    old = Stepper()
    for _ in range(5):
        assert old.step(X).numpy().tolist() == [2.0, -4.0] and outer(X).numpy().tolist() == [3.0, 5.0]
    Stepper.step.__wrapped__.__code__ = (lambda self, x: x * 5.0).__code__
    inner.__wrapped__.__code__ = (lambda x: tf.abs(x) * 3.0).__code__
    for _ in range(5):
        for model in (Stepper(), old):
            assert model.step(X).numpy().tolist() == [5.0, -10.0]
        assert outer(X).numpy().tolist() == [4.0, 7.0]
        assert tf.function(lambda x: inner(x))(X).numpy().tolist() == [3.0, 6.0]
    assert old.step.stats().coexecuted_steps >= 7 and outer.stats().coexecuted_steps >= 6


class Wrapped(keras.layers.Layer):
    @tf.autograph.experimental.do_not_convert
    def call(self, x):
        return helped(x) * 2.0


def helped(x):
    return tf.abs(x)


def test_a_method_in_a_wrapper_of_the_framework_s():
    layer, held = Wrapped(), Wrapped.call.__wrapped__
    run = terra.coexecute(lambda x: layer(x), wait_for_graph=True)
    for _ in range(6):
        assert run(X).numpy().tolist() == [2.0, 4.0]
    held.__code__ = (lambda self, x: helped(x) * 3.0).__code__
    for _ in range(6):
        assert run(X).numpy().tolist() == [3.0, 6.0]
    assert run.stats().coexecuted_steps >= 8


def test_library_code_that_is_a_step(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "steps_of_a_library.py").write_text(
        "import tensorflow as tf\n\n\ndef step(x, by=2.0):\n    return tf.abs(x) * by\n\n\ndef other(x, by=2.0):\n    return tf.nn.relu(x) * by\n")
    monkeypatch.syspath_prepend(str(folder))
    library = importlib.import_module("steps_of_a_library")
    run = terra.coexecute(library.step, wait_for_graph=True)
    for _ in range(5):
        assert run(X).numpy().tolist() == [2.0, 4.0]
    library.step.__defaults__ = (3.0,)
    for _ in range(5):
        assert run(X).numpy().tolist() == [3.0, 6.0]
    library.step.__code__ = library.other.__code__
    for _ in range(5):
        assert run(X).numpy().tolist() == [3.0, 0.0]
    assert run.stats().coexecuted_steps >= 10


def test_a_module_that_is_reloaded(tmp_path, monkeypatch):
    """As IPython's %autoreload does it."""
    path, text = tmp_path / "reloaded_module.py", "import tensorflow as tf\n\n\ndef unchanged(x):\n    return tf.abs(x)\n\n\ndef helper(x, by=2.0):\n    return unchanged(x) * by\n"
    path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("reloaded_module")
    helper = module.helper
    run = terra.coexecute(lambda x: helper(x) + 1.0, wait_for_graph=True)
    for _ in range(8):
        assert run(X).numpy().tolist() == [3.0, 5.0]
    kept = {name: value for name, value in vars(module).items() if callable(value)}
    path.write_text(text.replace("by=2.0", "by=4").replace("* by", "* by + 1.0"))
    importlib.invalidate_caches()
    importlib.reload(module)
    for name, old in kept.items():
        new = getattr(module, name)
        old.__code__, old.__defaults__ = new.__code__, new.__defaults__
        setattr(module, name, old)
    for _ in range(8):
        assert run(X).numpy().tolist() == [6.0, 10.0]
    assert run.stats().coexecuted_steps >= 10


def test_call_sites_forget():
    def called():
        return 1

    there = location.ROOT.call(location.register_site("call", "a.py", 1, "f"))
    there.callee, there.target = called, len
    location.forget_callees()
    assert there.callee is not called
