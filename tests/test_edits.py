"""Functions that are changed in place (IPython's `%autoreload` does that): the next step runs what they are now."""

import functools
import types

import pytest
import tensorflow as tf

import terra
from terra.runtime import location
from terra.transform import convert, edits, instrument

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
    edits.look()
    known = edits._known
    assert edits.look() == edits.look() and edits._known is known  # a function that `lru_cache` runs has the code of its form, and is not looked into each time
    assert any(reference() is functions["cached"] for reference, *_ in known[1])


def test_forms_of_functions_that_are_gone():
    def make():
        def gone(x):
            return abs(x)

        return gone

    function = make()
    form = instrument(function)
    edits.look()
    assert any(reference() is function for reference, *_ in edits._known[1])
    del function
    before = edits.look()
    assert not any(reference() is None for reference, *_ in edits._known[1])
    assert before == edits.look() and form(-1) == 1


def test_call_sites_forget():
    def called():
        return 1

    there = location.ROOT.call(location.register_site("call", "a.py", 1, "f"))
    there.callee, there.target = called, len
    location.forget_callees()
    assert there.callee is not called
